/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What every kind of device keeps: each test runs on a simulated one, and on a real one where there
 * is one.
 */
#include "io/device/device.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "io/syscalls.h"
#include "tests/support/support.h"

#define NBYTES ((size_t)3 * 1000 * 1000 + 7)
#define N_STREAMS 4

static berth_error error;
static bth_device_handle *device;

static void on_simulated(void)
{
    assert_ok(bth_device_open("simulated:0", &device, &error));
}

static void on_cuda(void)
{
    if (bth_device_open("cuda:0", &device, &error) < 0)
        cr_skip_test("%s", error.message);
}

TestSuite(simulated, .init = on_simulated);
TestSuite(device_cuda, .init = on_cuda);

/* The same test twice. */
#define DEVICE_TEST(name)                                                                          \
    static void name(void);                                                                        \
    Test(simulated, name)                                                                          \
    {                                                                                              \
        name();                                                                                    \
    }                                                                                              \
    Test(device_cuda, name)                                                                        \
    {                                                                                              \
        name();                                                                                    \
    }                                                                                              \
    static void name(void)

static void fill(uint8_t *bytes, size_t nbytes, unsigned seed)
{
    for (size_t i = 0; i < nbytes; i++)
        bytes[i] = (uint8_t)(i * 31 + i / 253 + seed);
}

static uint8_t *new_pinned(size_t nbytes)
{
    void *bytes;

    assert_ok(bth_pinned_allocate(device, nbytes, &bytes, &error));
    return bytes;
}

static uintptr_t new_memory(size_t nbytes)
{
    uintptr_t address;

    assert_ok(bth_device_allocate_memory(device, nbytes, &address, &error));
    return address;
}

/* There and back, through one stream, with an event behind. */
static void expect_round_trip(uint8_t *out, uint8_t *in, uintptr_t at, size_t nbytes)
{
    bth_device_stream stream;
    bth_device_event event;

    fill(out, nbytes, 1);
    memset(in, 0, nbytes);
    assert_ok(bth_device_stream_open(device, &stream, &error));
    assert_ok(bth_device_event_open(device, &event, &error));
    assert_ok(bth_device_begin_copy_to_device(&stream, at, out, nbytes, &error));
    assert_ok(bth_device_begin_copy_to_host(&stream, in, at, nbytes, &error));
    assert_ok(bth_device_event_record(&event, &stream, &error));
    assert_ok(bth_device_event_wait(&event, &error));
    cr_expect(memcmp(out, in, nbytes) == 0, "%zu bytes", nbytes);
    bth_device_event_close(&event);
    bth_device_stream_close(&stream);
}

DEVICE_TEST(bytes_go_there_and_back_through_pinned_memory)
{
    static const size_t sizes[] = {0, 1, 2, 4095, 4096, 4097, NBYTES - 13};
    uint8_t *out = new_pinned(NBYTES), *in = new_pinned(NBYTES);
    uintptr_t at = new_memory(NBYTES);

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        expect_round_trip(out + i, in + i, at + 13, sizes[i]);
    bth_pinned_release(device, in);
    bth_pinned_release(device, out);
    bth_device_release_memory(device, at);
}

DEVICE_TEST(bytes_go_there_and_back_through_pageable_memory)
{
    uint8_t *out = malloc(NBYTES), *in = malloc(NBYTES);
    uintptr_t at = new_memory(NBYTES);

    expect_round_trip(out, in, at, NBYTES);
    free(in);
    free(out);
    bth_device_release_memory(device, at);
}

DEVICE_TEST(memory_that_is_there_can_be_pinned)
{
    size_t nbytes = 1 << 20;
    uint8_t *bytes =
        mmap(NULL, 2 * nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uintptr_t at = new_memory(nbytes);
    bth_memory_owner owner;

    if (bth_pinned_register(device, bytes, 2 * nbytes, &error) == BERTH_E_UNSUPPORTED)
        cr_skip_test("%s", error.message);
    assert_ok(error.code);
    assert_ok(bth_device_find_memory_owner(device, (uintptr_t)bytes + nbytes, &owner, &error));
    cr_expect_eq(owner.kind, BTH_MEMORY_PINNED);
    expect_round_trip(bytes, bytes + nbytes, at, nbytes);
    bth_pinned_unregister(device, bytes);
    assert_ok(bth_device_find_memory_owner(device, (uintptr_t)bytes, &owner, &error));
    cr_expect_eq(owner.kind, BTH_MEMORY_PAGEABLE);
    munmap(bytes, 2 * nbytes);
    bth_device_release_memory(device, at);
}

DEVICE_TEST(an_address_tells_whose_memory_it_is)
{
    uintptr_t at = new_memory(NBYTES);
    void *pinned = new_pinned(100);
    bth_memory_owner owner;
    int here;

    assert_ok(bth_device_find_memory_owner(device, at, &owner, &error));
    cr_expect_eq(owner.kind, BTH_MEMORY_DEVICE);
    cr_expect_eq(owner.ordinal, 0);
    assert_ok(bth_device_find_memory_owner(device, at + NBYTES - 1, &owner, &error));
    cr_expect_eq(owner.kind, BTH_MEMORY_DEVICE);
    assert_ok(bth_device_find_memory_owner(device, (uintptr_t)pinned, &owner, &error));
    cr_expect_eq(owner.kind, BTH_MEMORY_PINNED);
    assert_ok(bth_device_find_memory_owner(device, (uintptr_t)&here, &owner, &error));
    cr_expect_eq(owner.kind, BTH_MEMORY_PAGEABLE);
    assert_ok(bth_device_find_memory_owner(device, 0, &owner, &error));
    cr_expect_eq(owner.kind, BTH_MEMORY_PAGEABLE);
    bth_pinned_release(device, pinned);
    bth_device_release_memory(device, at);
}

static void expect_refused(uintptr_t at, size_t nbytes)
{
    char sentence[200];

    snprintf(sentence, sizeof sentence,
             "%s: %zu bytes at 0x%zx are not this device's memory, or not any more",
             bth_device_name(device), nbytes, (size_t)at);
    bth_error_clear(&error);
    FAILS(bth_device_check_memory(device, at, nbytes, &error), BERTH_E_ARGUMENT, sentence);
    bth_error_clear(&error);
}

DEVICE_TEST(memory_of_the_host_and_freed_memory_are_refused)
{
    size_t nbytes = (size_t)64 << 20; /* a piece of its own, so that nothing else lies there */
    uintptr_t at = new_memory(nbytes);
    void *pinned = new_pinned(100);
    int here;

    assert_ok(bth_device_check_memory(device, at, nbytes, &error));
    assert_ok(bth_device_check_memory(device, at + 5, 1, &error));
    assert_ok(bth_device_check_memory(device, 0, 0, &error));
    expect_refused((uintptr_t)pinned, 100);
    expect_refused((uintptr_t)&here, sizeof here);
    bth_device_release_memory(device, at);
    expect_refused(at, nbytes);
    bth_pinned_release(device, pinned);
}

DEVICE_TEST(bytes_that_end_beyond_all_addresses_are_refused)
{
    cr_expect_eq(bth_device_check_memory(device, UINTPTR_MAX - 10, 12, &error), BERTH_E_ARGUMENT);
    cr_expect(
        strstr(error.message, ": 12 bytes at 0xfffffffffffffff5 end beyond the address space"));
}

DEVICE_TEST(no_bytes_need_no_memory)
{
    uintptr_t at = 1;

    assert_ok(bth_device_allocate_memory(device, 0, &at, &error));
    cr_expect_eq(at, 0);
    bth_device_release_memory(device, at);
}

DEVICE_TEST(more_memory_than_there_is_is_told_with_its_bytes)
{
    uintptr_t at;
    char begin[100];

    snprintf(begin, sizeof begin,
             "%s: 1152921504606846976 bytes of device memory cannot be allocated: ",
             bth_device_name(device));
    cr_expect_eq(bth_device_allocate_memory(device, (size_t)1 << 60, &at, &error), BERTH_E_MEMORY);
    cr_expect_eq(at, 0);
    cr_expect(strncmp(error.message, begin, strlen(begin)) == 0, "%s", error.message);
    cr_expect(strstr(error.message, "out of memory ("), "%s", error.message);
}

DEVICE_TEST(a_stream_waits_for_an_event_of_another)
{
    uint8_t *out = new_pinned(NBYTES), *in = new_pinned(NBYTES);
    uintptr_t at = new_memory(NBYTES);
    bth_device_stream first, second;
    bth_device_event event;

    assert_ok(bth_device_stream_open(device, &first, &error));
    assert_ok(bth_device_stream_open(device, &second, &error));
    assert_ok(bth_device_event_open(device, &event, &error));
    for (unsigned turn = 0; turn < 5; turn++) {
        fill(out, NBYTES, turn);
        assert_ok(bth_device_begin_copy_to_device(&first, at, out, NBYTES, &error));
        assert_ok(bth_device_event_record(&event, &first, &error));
        assert_ok(bth_device_stream_wait_for_event(&second, event.native, &error));
        assert_ok(bth_device_begin_copy_to_host(&second, in, at, NBYTES, &error));
        assert_ok(bth_device_stream_wait(&second, &error));
        cr_expect(memcmp(out, in, NBYTES) == 0, "turn %u", turn);
    }
    bth_device_event_close(&event);
    bth_device_stream_close(&second);
    bth_device_stream_close(&first);
    bth_pinned_release(device, in);
    bth_pinned_release(device, out);
    bth_device_release_memory(device, at);
}

DEVICE_TEST(an_event_that_was_never_recorded_has_come)
{
    bth_device_event event;

    assert_ok(bth_device_event_open(device, &event, &error));
    assert_ok(bth_device_event_wait(&event, &error));
    bth_device_event_close(&event);
}

DEVICE_TEST(an_event_may_be_closed_before_it_comes)
{
    uint8_t *bytes = new_pinned(NBYTES);
    uintptr_t at = new_memory(NBYTES);
    bth_device_stream streams[2];
    bth_device_event event;

    for (size_t i = 0; i < 2; i++)
        assert_ok(bth_device_stream_open(device, &streams[i], &error));
    assert_ok(bth_device_event_open(device, &event, &error));
    assert_ok(bth_device_begin_copy_to_device(&streams[0], at, bytes, NBYTES, &error));
    assert_ok(bth_device_event_record(&event, &streams[0], &error));
    assert_ok(bth_device_stream_wait_for_event(&streams[1], event.native, &error));
    bth_device_event_close(&event);
    for (size_t i = 0; i < 2; i++) {
        assert_ok(bth_device_stream_wait(&streams[i], &error));
        bth_device_stream_close(&streams[i]);
    }
    bth_pinned_release(device, bytes);
    bth_device_release_memory(device, at);
}

DEVICE_TEST(closing_a_stream_waits_for_its_copies)
{
    uint8_t *out = new_pinned(NBYTES), *in = new_pinned(NBYTES);
    uintptr_t at = new_memory(NBYTES);
    bth_device_stream stream;

    fill(out, NBYTES, 3);
    assert_ok(bth_device_stream_open(device, &stream, &error));
    assert_ok(bth_device_begin_copy_to_device(&stream, at, out, NBYTES, &error));
    assert_ok(bth_device_begin_copy_to_host(&stream, in, at, NBYTES, &error));
    bth_device_stream_close(&stream);
    cr_expect_null(stream.native);
    cr_expect(memcmp(out, in, NBYTES) == 0);
    bth_device_stream_close(&stream);
    bth_pinned_release(device, in);
    bth_pinned_release(device, out);
    bth_device_release_memory(device, at);
}

DEVICE_TEST(many_streams_work_at_a_time)
{
    uint8_t *out = new_pinned(N_STREAMS * NBYTES), *in = new_pinned(N_STREAMS * NBYTES);
    uintptr_t at = new_memory(N_STREAMS * NBYTES);
    bth_device_stream streams[N_STREAMS];

    fill(out, N_STREAMS * NBYTES, 9);
    for (size_t i = 0; i < N_STREAMS; i++)
        assert_ok(bth_device_stream_open(device, &streams[i], &error));
    for (size_t part = 0; part < 7; part++)
        for (size_t i = 0; i < N_STREAMS; i++) {
            size_t from = i * NBYTES + part * (NBYTES / 7), n = NBYTES / 7;
            assert_ok(
                bth_device_begin_copy_to_device(&streams[i], at + from, out + from, n, &error));
            assert_ok(bth_device_begin_copy_to_host(&streams[i], in + from, at + from, n, &error));
        }
    for (size_t i = 0; i < N_STREAMS; i++) {
        assert_ok(bth_device_stream_wait(&streams[i], &error));
        cr_expect(memcmp(out + i * NBYTES, in + i * NBYTES, NBYTES / 7 * 7) == 0, "stream %zu", i);
        bth_device_stream_close(&streams[i]);
    }
    bth_pinned_release(device, in);
    bth_pinned_release(device, out);
    bth_device_release_memory(device, at);
}

DEVICE_TEST(one_name_is_one_handle)
{
    bth_device_handle *again;
    char kind[32];

    assert_ok(bth_device_open(bth_device_name(device), &again, &error));
    cr_expect_eq(again, device);
    snprintf(kind, sizeof kind, "%s", bth_device_name(device));
    *strchr(kind, ':') = '\0';
    assert_ok(bth_device_open(kind, &again, &error));
    cr_expect_eq(again, device);
    cr_expect(bth_device_is_same_kind(again, device));
}

/* ---- what names no device ---- */

static void expect_sentence(const char *name, berth_status code, const char *sentence)
{
    bth_device_handle *none = device;

    bth_error_clear(&error);
    cr_expect_eq(bth_device_open(name, &none, &error), code, "%s", name);
    cr_expect_str_eq(error.message, sentence);
    cr_expect_null(none);
}

Test(names, that_name_no_device_are_refused)
{
    static const char *const names[] = {"",
                                        ":",
                                        "0",
                                        "gpu:0",
                                        "cuda:",
                                        "cuda:-1",
                                        "cuda:+1",
                                        "cuda:1 ",
                                        "cuda:0x1",
                                        "cuda:01",
                                        "CUDA:0",
                                        "cuda0",
                                        "cud:0",
                                        "cuda:1:2",
                                        "simulated:",
                                        "cuda:00",
                                        "simulate",
                                        "mps:0",
                                        "simulated:4294967296"};
    char sentence[200];

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(sentence, sizeof sentence,
                 "%s: not the name of a device; devices are cuda:0, cuda:1 and so on", names[i]);
        expect_sentence(names[i], BERTH_E_ARGUMENT, sentence);
    }
}

Test(names, of_devices_that_there_are_not_are_refused)
{
    expect_sentence("simulated:2", BERTH_E_DEVICE,
                    "simulated:2: there is no such device, the driver has 2");
    expect_sentence("simulated:63", BERTH_E_DEVICE,
                    "simulated:63: there is no such device, the driver has 2");
    expect_sentence("simulated:64", BERTH_E_DEVICE,
                    "simulated:64: there is no such device, at most 64 are used");
}

Test(names, of_cuda_devices_are_refused_where_there_is_no_driver)
{
#ifdef BERTH_HAS_CUDA
    void *library = dlopen("libcuda.so.1", RTLD_NOW);

    if (library)
        cr_skip_test("this machine has a driver");
    expect_sentence("cuda:0", BERTH_E_DEVICE,
                    "cuda:0: there is no CUDA driver on this machine (libcuda.so.1: cannot open "
                    "shared object file: No such file or directory)");
#else
    expect_sentence("cuda:3", BERTH_E_UNAVAILABLE,
                    "cuda:3: this library was built without support for CUDA devices");
#endif
}
