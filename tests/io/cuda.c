/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * CUDA's part against a driver made up here: which functions are asked for and how, that contexts
 * are left as they were found, what is said about a driver that is old or does not start.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "io/device/device.h"
#include "io/syscalls.h"

#ifndef BERTH_HAS_CUDA

Test(cuda, is_left_out)
{
    berth_error error = {0};
    bth_device_handle *device;

    cr_expect_eq(bth_device_open("cuda:0", &device, &error), BERTH_E_UNAVAILABLE);
    cr_expect_null(device);
    cr_expect_str_eq(error.message,
                     "cuda:0: this library was built without support for CUDA devices");
}

#else

#define CUDA_SUITE cuda
#include "tests/io/cuda_stand_in.h"
#include "tests/support/support.h"

/* ---- what is kept ---- */

static void use_all(void)
{
    bth_device_stream stream;
    bth_device_event event;
    bth_memory_owner owner;
    uintptr_t address;
    void *bytes;

    assert_ok(bth_device_allocate_memory(device, 77, &address, &error));
    cr_expect(address == 0xD000 && last_nbytes == 77);
    assert_ok(bth_pinned_allocate(device, 78, &bytes, &error));
    cr_expect(bytes == &made && last_nbytes == 78 && last_flags == CU_MEMHOSTALLOC_PORTABLE);
    assert_ok(bth_pinned_register(device, bytes, 79, &error));
    cr_expect(last_nbytes == 79 && last_flags == CU_MEMHOSTREGISTER_PORTABLE);
    assert_ok(bth_device_stream_open(device, &stream, &error));
    cr_expect_eq(last_flags, CU_STREAM_NON_BLOCKING);
    assert_ok(bth_device_event_open(device, &event, &error));
    cr_expect_eq(last_flags, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
    assert_ok(bth_device_begin_copy_to_host(&stream, bytes, address, 80, &error));
    cr_expect(last_nbytes == 80 && last_stream == stream.native);
    assert_ok(bth_device_begin_copy_to_device(&stream, address, bytes, 81, &error));
    cr_expect_eq(last_nbytes, 81);
    assert_ok(bth_device_event_record(&event, &stream, &error));
    assert_ok(bth_device_stream_wait_for_event(&stream, &memory, &error));
    cr_expect_eq(last_event, &memory, "a program's own event");
    assert_ok(bth_device_event_wait(&event, &error));
    assert_ok(bth_device_stream_wait(&stream, &error));
    assert_ok(bth_device_find_memory_owner(device, address, &owner, &error));
    cr_expect(owner.kind == BTH_MEMORY_DEVICE && owner.ordinal == 1);
    bth_device_event_close(&event);
    bth_device_stream_close(&stream);
    bth_pinned_unregister(device, bytes);
    bth_pinned_release(device, bytes);
    bth_device_release_memory(device, address);
}

CUDA_TEST(calls_are_made_in_the_devices_primary_context_and_leave_the_programs)
{
    open_device("cuda:0", 0);
    use_all();
    cr_expect_eq(n_calls, 21, "an event to try it out, and all that is here");
    open_device("cuda:1", 1);
    use_all();
    cr_expect_eq(n_calls, 42);
    open_device("cuda:0", 0);
    cr_expect(n_retained[0] == 1 && n_retained[1] == 1);
}

CUDA_TEST(calls_that_fail_leave_the_programs_context_too)
{
    bth_device_stream stream = {0};
    uintptr_t address;
    void *bytes;

    open_device("cuda:0", 0);
    next_result = CUDA_ERROR_ILLEGAL_ADDRESS;
    FAILS_ONCE(bth_device_allocate_memory(device, 5, &address, &error), BERTH_E_DEVICE,
               "cuda:0: 5 bytes of device memory cannot be allocated, and the process must be "
               "started again: a fake (CUDA_ERROR_FAKE)");
    cr_expect_eq(address, 0);
    FAILS_ONCE(bth_device_stream_open(device, &stream, &error), BERTH_E_DEVICE,
               "cuda:0: a stream cannot be created, and the process must be started again: a fake "
               "(CUDA_ERROR_FAKE)");
    cr_expect_null(stream.native);
    next_result = CUDA_ERROR_OUT_OF_MEMORY;
    cr_expect_eq(bth_pinned_allocate(device, 5, &bytes, &error), BERTH_E_MEMORY);
    bth_error_clear(&error);
    next_result = CUDA_ERROR_NOT_SUPPORTED;
    cr_expect_eq(bth_pinned_register(device, &made, 5, &error), BERTH_E_UNSUPPORTED);
    next_result = CUDA_SUCCESS;
}

CUDA_TEST(memory_is_told_by_its_address)
{
    bth_memory_owner owner;

    open_device("cuda:0", 0);
    assert_ok(bth_device_find_memory_owner(device, 0xA000, &owner, &error));
    cr_expect_eq(owner.kind, BTH_MEMORY_PINNED);
    assert_ok(bth_device_find_memory_owner(device, 0xB000, &owner, &error));
    cr_expect_eq(owner.kind, BTH_MEMORY_PAGEABLE);
    FAILS_ONCE(bth_device_check_memory(device, 0xD000, 1, &error), BERTH_E_ARGUMENT,
               "cuda:0: 1 bytes at 0xd000 are memory of cuda:1");
    next_result = CUDA_ERROR_ILLEGAL_ADDRESS;
    FAILS_ONCE(bth_device_find_memory_owner(device, 0xD000, &owner, &error), BERTH_E_DEVICE,
               "cuda:0: the owner of the memory at 0xd000 cannot be found, and the process must be "
               "started again: a fake (CUDA_ERROR_FAKE)");
    next_result = CUDA_SUCCESS;
}

/* ---- captures of graphs ---- */

/* The stand-in looks at each call: X16. */
CUDA_TEST(a_thread_that_captures_a_graph_itself_keeps_its_mode)
{
    uintptr_t address;

    mode = own_mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    open_device("cuda:0", 0);
    use_all();
    next_result = CUDA_ERROR_ILLEGAL_ADDRESS;
    cr_expect_eq(bth_device_allocate_memory(device, 5, &address, &error), BERTH_E_DEVICE);
    cr_expect_eq(bth_device_open("cuda:1", &device, &error), BERTH_E_DEVICE);
    next_result = CUDA_SUCCESS;
    bth_error_clear(&error);
}

static void *use_from_a_thread(void *name)
{
    assert_ok(bth_device_open(name, &device, &error));
    use_all();
    cr_expect_eq(depth, 0);
    cr_expect_eq(mode, own_mode);
    return NULL;
}

/* Which of both a driver does is not said. */
CUDA_TEST(a_thread_without_a_context_is_relaxed_too)
{
    static char names[2][8] = {"cuda:0", "cuda:1"};
    pthread_t thread;

    for (size_t i = 0; i < 2; i++) {
        modes_need_context = i == 1;
        needed = &contexts[i];
        cr_assert_eq(pthread_create(&thread, NULL, use_from_a_thread, names[i]), 0);
        pthread_join(thread, NULL);
    }
}

CUDA_TEST(a_driver_that_knows_no_modes_is_used_without)
{
    has_modes = false;
    missing = "cuThreadExchangeStreamCaptureMode";
    open_device("cuda:0", 0);
    use_all();
}

/* ---- drivers that do not do ---- */

CUDA_TEST(a_driver_without_a_function_is_refused_by_its_name)
{
    char sentence[200];

    for (size_t i = 0; i < N_REQUIRED; i++) {
        missing = functions[i].name;
        snprintf(sentence, sizeof sentence,
                 "cuda:0: libcuda.so.1 has no %s: a driver for CUDA 6.5 is too old", missing);
        FAILS_ONCE(bth_device_open("cuda:0", &device, &error), BERTH_E_DEVICE, sentence);
    }
    also_missing = "cuDriverGetVersion";
    FAILS_ONCE(bth_device_open("cuda:0", &device, &error), BERTH_E_DEVICE,
               "cuda:0: libcuda.so.1 has no cuEventSynchronize: it is too old");
    missing = "";
    open_device("cuda:0", 0); /* and that one alone does not matter */
}

CUDA_TEST(a_driver_without_names_of_errors_tells_their_numbers)
{
    uintptr_t address;

    missing = "cuGetErrorName";
    open_device("cuda:0", 0);
    next_result = CUDA_ERROR_ILLEGAL_ADDRESS;
    FAILS_ONCE(bth_device_allocate_memory(device, 5, &address, &error), BERTH_E_DEVICE,
               "cuda:0: 5 bytes of device memory cannot be allocated, and the process must be "
               "started again: CUDA error 700");
    next_result = CUDA_SUCCESS;
}

CUDA_TEST(a_driver_that_cannot_register_says_so)
{
    missing = "cuMemHostUnregister";
    open_device("cuda:0", 0);
    cr_expect_eq(bth_pinned_register(device, &made, 5, &error), BERTH_E_UNSUPPORTED);
    bth_pinned_unregister(device, &made);
    cr_expect_eq(n_calls, 2, "to try it out");
}

CUDA_TEST(a_driver_that_does_not_start_is_told_and_tried_again)
{
    start_result = CUDA_ERROR_NO_DEVICE;
    FAILS_ONCE(bth_device_open("cuda", &device, &error), BERTH_E_DEVICE,
               "cuda:0: the CUDA driver does not start: no CUDA-capable device is detected "
               "(CUDA_ERROR_NO_DEVICE)");
    missing = "cuGetErrorString";
    FAILS_ONCE(bth_device_open("cuda", &device, &error), BERTH_E_DEVICE,
               "cuda:0: the CUDA driver does not start: CUDA error 100");
    start_result = CUDA_SUCCESS;
    open_device("cuda", 0);
}

CUDA_TEST(devices_that_there_are_not_are_refused)
{
    FAILS_ONCE(bth_device_open("cuda:2", &device, &error), BERTH_E_DEVICE,
               "cuda:2: there is no such device, the driver has 2");
    next_result = CUDA_ERROR_DEVICE_UNAVAILABLE;
    FAILS_ONCE(bth_device_open("cuda:1", &device, &error), BERTH_E_DEVICE,
               "cuda:1: cannot be opened: a fake (CUDA_ERROR_FAKE)");
    next_result = CUDA_SUCCESS;
    n_devices = 0;
    FAILS_ONCE(bth_device_open("cuda:0", &device, &error), BERTH_E_DEVICE,
               "cuda:0: there is no such device, the driver has 0");
}

#endif
