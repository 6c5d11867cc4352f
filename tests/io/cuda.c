/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * CUDA's part against a driver made up here: which functions are asked for and how, that contexts
 * are left as they were found, what is said about a driver that is old or does not start.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "config/error.h"
#include "io/device.h"
#include "io/syscalls.h"

#ifndef BERTH_HAS_CUDA

Test(cuda, is_left_out)
{
    berth_error error = {0};
    berth_device_handle *device;

    cr_expect_eq(berth_device_open("cuda:0", &device, &error), BERTH_E_UNAVAILABLE);
    cr_expect_null(device);
    cr_expect_str_eq(error.message,
                     "cuda:0: this library was built without its part for CUDA devices");
}

#else

#include <cuda.h>

#define N_DEVICES 2
#define STACK_DEPTH 8

static berth_error error;
static berth_device_handle *device;

#define expect_good(call) cr_assert_eq((call), 0, "%s", error.message)

/* ---- the driver ---- */

static char contexts[N_DEVICES + 1]; /* the last is the program's own */
static void *stack[STACK_DEPTH];
static size_t depth;
static int n_devices = N_DEVICES, n_retained[N_DEVICES], n_calls;
static void *needed; /* what calls must find current */
static CUresult start_result, next_result;
static unsigned last_flags;
static void *last_stream, *last_event;
static size_t last_nbytes;
static char made; /* whose address stands for streams and events */

/* Every call into a context. */
static CUresult called(void)
{
    cr_assert_gt(depth, 0, "no context is current");
    cr_assert_eq(stack[depth - 1], needed, "another context is current");
    n_calls++;
    return next_result;
}

static CUresult fake_init(unsigned flags)
{
    cr_assert_eq(flags, 0);
    return start_result;
}

static CUresult fake_version(int *version)
{
    *version = 6050;
    return CUDA_SUCCESS;
}

static CUresult fake_count(int *n)
{
    *n = n_devices;
    return CUDA_SUCCESS;
}

static CUresult fake_get(CUdevice *number, int ordinal)
{
    *number = ordinal + 40;
    return CUDA_SUCCESS;
}

static CUresult fake_retain(CUcontext *context, CUdevice number)
{
    n_retained[number - 40]++;
    *context = (CUcontext)(void *)&contexts[number - 40];
    return next_result;
}

static CUresult fake_push(CUcontext context)
{
    cr_assert_lt(depth, STACK_DEPTH);
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

static CUresult fake_pop(CUcontext *context)
{
    cr_assert_gt(depth, 0);
    *context = stack[--depth];
    return CUDA_SUCCESS;
}

static CUresult fake_allocate(CUdeviceptr *address, size_t nbytes)
{
    *address = 0xD000;
    last_nbytes = nbytes;
    return called();
}

static CUresult fake_free(CUdeviceptr address)
{
    cr_assert_eq(address, 0xD000);
    return called();
}

static CUresult fake_host_allocate(void **bytes, size_t nbytes, unsigned flags)
{
    *bytes = &made;
    last_nbytes = nbytes;
    last_flags = flags;
    return called();
}

static CUresult fake_host_free(void *bytes)
{
    cr_assert_eq(bytes, &made);
    return called();
}

static CUresult fake_register(void *bytes, size_t nbytes, unsigned flags)
{
    (void)bytes;
    last_nbytes = nbytes;
    last_flags = flags;
    return called();
}

static CUresult fake_unregister(void *bytes)
{
    (void)bytes;
    return called();
}

/* 0xD000: memory of device 1; 0xA000: pinned; else unknown. */
static CUresult fake_attribute(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    (void)called();
    if (next_result != CUDA_SUCCESS)
        return next_result;
    if (address != 0xD000 && address != 0xA000)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
        *(CUmemorytype *)value = address == 0xD000 ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    else if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        *(int *)value = 1;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult fake_to_host(void *to, CUdeviceptr from, size_t nbytes, CUstream stream)
{
    cr_assert(to == &made && from == 0xD000);
    last_nbytes = nbytes;
    last_stream = stream;
    return called();
}

static CUresult fake_to_device(CUdeviceptr to, const void *from, size_t nbytes, CUstream stream)
{
    cr_assert(from == &made && to == 0xD000);
    last_nbytes = nbytes;
    last_stream = stream;
    return called();
}

static CUresult fake_stream_create(CUstream *stream, unsigned flags)
{
    *stream = (CUstream)(void *)&made;
    last_flags = flags;
    return called();
}

static CUresult fake_stream(CUstream stream)
{
    last_stream = stream;
    return called();
}

static CUresult fake_stream_wait(CUstream stream, CUevent event, unsigned flags)
{
    last_stream = stream;
    last_event = event;
    cr_assert_eq(flags, 0);
    return called();
}

static CUresult fake_event_create(CUevent *event, unsigned flags)
{
    *event = (CUevent)(void *)&made;
    last_flags = flags;
    return called();
}

static CUresult fake_event(CUevent event)
{
    last_event = event;
    return called();
}

static CUresult fake_record(CUevent event, CUstream stream)
{
    last_event = event;
    last_stream = stream;
    return called();
}

static CUresult fake_name(CUresult result, const char **name)
{
    *name = result == CUDA_ERROR_NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_FAKE";
    return CUDA_SUCCESS;
}

static CUresult fake_text(CUresult result, const char **text)
{
    *text = result == CUDA_ERROR_NO_DEVICE ? "no CUDA-capable device is detected" : "a fake";
    return CUDA_SUCCESS;
}

#define FUNCTION(name, function)                                                                   \
    {                                                                                              \
        name, (void (*)(void))(function)                                                           \
    }
static const struct {
    const char *name;
    void (*function)(void);
} functions[] = {FUNCTION("cuInit", fake_init),
                 FUNCTION("cuDeviceGetCount", fake_count),
                 FUNCTION("cuDeviceGet", fake_get),
                 FUNCTION("cuDevicePrimaryCtxRetain", fake_retain),
                 FUNCTION("cuCtxPushCurrent_v2", fake_push),
                 FUNCTION("cuCtxPopCurrent_v2", fake_pop),
                 FUNCTION("cuMemAlloc_v2", fake_allocate),
                 FUNCTION("cuMemFree_v2", fake_free),
                 FUNCTION("cuMemHostAlloc", fake_host_allocate),
                 FUNCTION("cuMemFreeHost", fake_host_free),
                 FUNCTION("cuPointerGetAttribute", fake_attribute),
                 FUNCTION("cuMemcpyDtoHAsync_v2", fake_to_host),
                 FUNCTION("cuMemcpyHtoDAsync_v2", fake_to_device),
                 FUNCTION("cuStreamCreate", fake_stream_create),
                 FUNCTION("cuStreamDestroy_v2", fake_stream),
                 FUNCTION("cuStreamSynchronize", fake_stream),
                 FUNCTION("cuStreamWaitEvent", fake_stream_wait),
                 FUNCTION("cuEventCreate", fake_event_create),
                 FUNCTION("cuEventDestroy_v2", fake_event),
                 FUNCTION("cuEventRecord", fake_record),
                 FUNCTION("cuEventSynchronize", fake_event),
                 FUNCTION("cuEventQuery", fake_event),
                 FUNCTION("cuMemHostRegister_v2", fake_register),
                 FUNCTION("cuMemHostUnregister", fake_unregister),
                 FUNCTION("cuGetErrorName", fake_name),
                 FUNCTION("cuGetErrorString", fake_text),
                 FUNCTION("cuDriverGetVersion", fake_version)};

#define N_FUNCTIONS (sizeof functions / sizeof *functions)
#define N_REQUIRED 22 /* the first ones */

static const char *missing = "", *also_missing = "";

static void *open_library(const char *name, int flags)
{
    (void)flags;
    cr_assert_str_eq(name, "libcuda.so.1");
    return &made;
}

static void *find_function(void *library, const char *name)
{
    void *function = NULL;

    cr_assert_eq(library, &made);
    if (strcmp(name, missing) == 0 || strcmp(name, also_missing) == 0)
        return NULL;
    for (size_t i = 0; i < N_FUNCTIONS; i++)
        if (strcmp(name, functions[i].name) == 0)
            memcpy(&function, &functions[i].function, sizeof function);
    cr_assert_not_null(function, "%s is asked for, which this test does not know", name);
    return function;
}

static void set_up(void)
{
    berth_system.dlopen = open_library;
    berth_system.dlsym = find_function;
    stack[depth++] = needed = &contexts[N_DEVICES];
}

TestSuite(cuda, .init = set_up, .fini = berth_system_restore);

/* At the end of each test, not behind it: what fails there fails no test. */
#define CUDA_TEST(name)                                                                            \
    static void name(void);                                                                        \
    Test(cuda, name)                                                                               \
    {                                                                                              \
        name();                                                                                    \
        cr_expect_eq(depth, 1);                                                                    \
        cr_expect_eq(stack[0], &contexts[N_DEVICES], "the program's context is not current");      \
    }                                                                                              \
    static void name(void)

static void open_device(const char *name, size_t ordinal)
{
    expect_good(berth_device_open(name, &device, &error));
    needed = &contexts[ordinal];
}

static void expect_failure(int code, const char *sentence)
{
    cr_expect_eq(error.code, code);
    cr_expect_str_eq(error.message, sentence);
    berth_error_clear(&error);
}

/* ---- what is kept ---- */

static void use_all(void)
{
    berth_device_stream stream;
    berth_device_event event;
    berth_memory_place place;
    uintptr_t address;
    void *bytes;
    bool has_come;

    expect_good(berth_device_allocate(device, 77, &address, &error));
    cr_expect(address == 0xD000 && last_nbytes == 77);
    expect_good(berth_pinned_allocate(device, 78, &bytes, &error));
    cr_expect(bytes == &made && last_nbytes == 78 && last_flags == CU_MEMHOSTALLOC_PORTABLE);
    expect_good(berth_pinned_register(device, bytes, 79, &error));
    cr_expect(last_nbytes == 79 && last_flags == CU_MEMHOSTREGISTER_PORTABLE);
    expect_good(berth_device_stream_open(device, &stream, &error));
    cr_expect_eq(last_flags, CU_STREAM_NON_BLOCKING);
    expect_good(berth_device_event_open(device, &event, &error));
    cr_expect_eq(last_flags, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
    expect_good(berth_device_copy_to_host(&stream, bytes, address, 80, &error));
    cr_expect(last_nbytes == 80 && last_stream == &made);
    expect_good(berth_device_copy_to_device(&stream, address, bytes, 81, &error));
    cr_expect_eq(last_nbytes, 81);
    expect_good(berth_device_event_record(&event, &stream, &error));
    expect_good(berth_device_stream_wait_for(&stream, &contexts, &error));
    cr_expect_eq(last_event, &contexts, "a program's own event");
    expect_good(berth_device_event_wait(&event, &error));
    expect_good(berth_device_event_query(&event, &has_come, &error));
    cr_expect(has_come);
    expect_good(berth_device_stream_wait(&stream, &error));
    expect_good(berth_device_find(device, address, &place, &error));
    cr_expect(place.kind == BERTH_MEMORY_DEVICE && place.ordinal == 1);
    berth_device_event_close(&event);
    berth_device_stream_close(&stream);
    berth_pinned_unregister(device, bytes);
    berth_pinned_release(device, bytes);
    berth_device_release(device, address);
}

CUDA_TEST(calls_are_made_in_the_devices_primary_context_and_leave_the_programs)
{
    open_device("cuda:0", 0);
    use_all();
    cr_expect_eq(n_calls, 20);
    open_device("cuda:1", 1);
    use_all();
    cr_expect_eq(n_calls, 40);
    open_device("cuda:0", 0);
    cr_expect(n_retained[0] == 1 && n_retained[1] == 1);
}

CUDA_TEST(calls_that_fail_leave_the_programs_context_too)
{
    berth_device_stream stream = {0};
    uintptr_t address;
    void *bytes;

    open_device("cuda:0", 0);
    next_result = CUDA_ERROR_ILLEGAL_ADDRESS;
    cr_expect_eq(berth_device_allocate(device, 5, &address, &error), BERTH_E_DEVICE);
    cr_expect_eq(address, 0);
    expect_failure(BERTH_E_DEVICE, "cuda:0: 5 bytes of device memory cannot be had: a fake "
                                   "(CUDA_ERROR_FAKE)");
    cr_expect_eq(berth_device_stream_open(device, &stream, &error), BERTH_E_DEVICE);
    expect_failure(BERTH_E_DEVICE, "cuda:0: no stream can be had: a fake (CUDA_ERROR_FAKE)");
    cr_expect_null(stream.native);
    next_result = CUDA_ERROR_OUT_OF_MEMORY;
    cr_expect_eq(berth_pinned_allocate(device, 5, &bytes, &error), BERTH_E_MEMORY);
    berth_error_clear(&error);
    next_result = CUDA_ERROR_NOT_SUPPORTED;
    cr_expect_eq(berth_pinned_register(device, &made, 5, &error), BERTH_E_UNSUPPORTED);
    next_result = CUDA_SUCCESS;
}

CUDA_TEST(an_event_that_is_not_ready_is_no_error)
{
    berth_device_event event;
    bool has_come = true;

    open_device("cuda:0", 0);
    expect_good(berth_device_event_open(device, &event, &error));
    next_result = CUDA_ERROR_NOT_READY;
    expect_good(berth_device_event_query(&event, &has_come, &error));
    cr_expect_not(has_come);
    next_result = CUDA_ERROR_ILLEGAL_ADDRESS;
    cr_expect_eq(berth_device_event_query(&event, &has_come, &error), BERTH_E_DEVICE);
    expect_failure(BERTH_E_DEVICE, "cuda:0: copies did not end well: a fake (CUDA_ERROR_FAKE)");
    next_result = CUDA_SUCCESS;
}

CUDA_TEST(memory_is_told_by_its_address)
{
    berth_memory_place place;

    open_device("cuda:0", 0);
    expect_good(berth_device_find(device, 0xA000, &place, &error));
    cr_expect_eq(place.kind, BERTH_MEMORY_PINNED);
    expect_good(berth_device_find(device, 0xB000, &place, &error));
    cr_expect_eq(place.kind, BERTH_MEMORY_PAGEABLE);
    cr_expect_eq(berth_device_check(device, 0xD000, 1, &error), BERTH_E_ARGUMENT);
    expect_failure(BERTH_E_ARGUMENT, "cuda:0: 1 bytes at 0xd000 are memory of cuda:1");
    next_result = CUDA_ERROR_ILLEGAL_ADDRESS;
    cr_expect_eq(berth_device_find(device, 0xD000, &place, &error), BERTH_E_DEVICE);
    expect_failure(BERTH_E_DEVICE,
                   "cuda:0: cannot tell whose memory 0xd000 is: a fake (CUDA_ERROR_FAKE)");
    next_result = CUDA_SUCCESS;
}

/* ---- drivers that do not do ---- */

CUDA_TEST(a_driver_without_a_function_is_refused_by_its_name)
{
    char sentence[200];

    for (size_t i = 0; i < N_REQUIRED; i++) {
        missing = functions[i].name;
        snprintf(sentence, sizeof sentence,
                 "cuda:0: libcuda.so.1 has no %s: a driver for CUDA 6.5 is too old", missing);
        cr_expect_eq(berth_device_open("cuda:0", &device, &error), BERTH_E_DEVICE);
        expect_failure(BERTH_E_DEVICE, sentence);
    }
    also_missing = "cuDriverGetVersion";
    cr_expect_eq(berth_device_open("cuda:0", &device, &error), BERTH_E_DEVICE);
    expect_failure(BERTH_E_DEVICE, "cuda:0: libcuda.so.1 has no cuEventQuery: it is too old");
    missing = "";
    open_device("cuda:0", 0); /* and that one alone does not matter */
}

CUDA_TEST(a_driver_without_names_of_errors_tells_their_numbers)
{
    uintptr_t address;

    missing = "cuGetErrorName";
    open_device("cuda:0", 0);
    next_result = CUDA_ERROR_ILLEGAL_ADDRESS;
    cr_expect_eq(berth_device_allocate(device, 5, &address, &error), BERTH_E_DEVICE);
    expect_failure(BERTH_E_DEVICE,
                   "cuda:0: 5 bytes of device memory cannot be had: CUDA error 700");
    next_result = CUDA_SUCCESS;
}

CUDA_TEST(a_driver_that_cannot_register_says_so)
{
    missing = "cuMemHostUnregister";
    open_device("cuda:0", 0);
    cr_expect_eq(berth_pinned_register(device, &made, 5, &error), BERTH_E_UNSUPPORTED);
    berth_pinned_unregister(device, &made);
    cr_expect_eq(n_calls, 0);
}

CUDA_TEST(a_driver_that_does_not_start_is_told_and_tried_again)
{
    start_result = CUDA_ERROR_NO_DEVICE;
    cr_expect_eq(berth_device_open("cuda", &device, &error), BERTH_E_DEVICE);
    expect_failure(BERTH_E_DEVICE, "cuda:0: the CUDA driver does not start: no CUDA-capable device "
                                   "is detected (CUDA_ERROR_NO_DEVICE)");
    missing = "cuGetErrorString";
    cr_expect_eq(berth_device_open("cuda", &device, &error), BERTH_E_DEVICE);
    expect_failure(BERTH_E_DEVICE, "cuda:0: the CUDA driver does not start: CUDA error 100");
    start_result = CUDA_SUCCESS;
    open_device("cuda", 0);
}

CUDA_TEST(devices_that_there_are_not_are_refused)
{
    cr_expect_eq(berth_device_open("cuda:2", &device, &error), BERTH_E_DEVICE);
    expect_failure(BERTH_E_DEVICE, "cuda:2: there is no such device, the driver has 2");
    next_result = CUDA_ERROR_DEVICE_UNAVAILABLE;
    cr_expect_eq(berth_device_open("cuda:1", &device, &error), BERTH_E_DEVICE);
    expect_failure(BERTH_E_DEVICE, "cuda:1: cannot be opened: a fake (CUDA_ERROR_FAKE)");
    next_result = CUDA_SUCCESS;
    n_devices = 0;
    cr_expect_eq(berth_device_open("cuda:0", &device, &error), BERTH_E_DEVICE);
    expect_failure(BERTH_E_DEVICE, "cuda:0: there is no such device, the driver has 0");
}

#endif
