/* SPDX-License-Identifier: BSD-3-Clause */
/* The simulated devices: that they show what real ones hide, and fail when they are told to. */
#include "tests/simulated/simulated.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>
#include <sys/wait.h>

#include "base/error.h"
#include "io/syscalls.h"
#include "tests/support/support.h"

#define NBYTES ((size_t)10000)
#define LOST "an illegal memory access was encountered (SIMULATED_ILLEGAL_ADDRESS)"

static berth_error error;
static bth_device_handle *device, *other;
static bth_device_stream stream;
static uintptr_t memory;
static uint8_t *pinned;

static void set_up(void)
{
    test_memory_watch();
    assert_ok(bth_device_open("simulated:0", &device, &error));
    assert_ok(bth_device_open("simulated:1", &other, &error));
    assert_ok(bth_device_stream_open(device, &stream, &error));
    assert_ok(bth_device_allocate_memory(device, NBYTES, &memory, &error));
    void *bytes;
    assert_ok(bth_pinned_allocate(device, NBYTES, &bytes, &error));
    pinned = bytes;
}

static void tear_down(void)
{
    bth_system_restore();
    bth_device_stream_close(&stream);
    bth_device_release_memory(device, memory);
    bth_pinned_release(device, pinned);
    test_memory_unwatch();
}

TestSuite(simulated_device, .init = set_up, .fini = tear_down);

/* At the end of each test, not behind it: what fails there fails no test. */
static void expect_no_more(bth_simulated_live before)
{
    bth_simulated_live live = bth_simulated_seen();

    cr_expect_eq(live.memory_nbytes, before.memory_nbytes);
    cr_expect_eq(live.pinned_nbytes, before.pinned_nbytes);
    cr_expect_eq(live.n_streams, before.n_streams);
    cr_expect_eq(live.n_events, before.n_events);
}

#define SIMULATED_TEST(name)                                                                       \
    static void name(void);                                                                        \
    Test(simulated_device, name)                                                                   \
    {                                                                                              \
        bth_simulated_live before = bth_simulated_seen();                                          \
        uint64_t live_nbytes = test_memory_seen().live_nbytes;                                     \
        name();                                                                                    \
        bth_system_restore();                                                                      \
        bth_simulated_set(NULL);                                                                   \
        bth_simulated_hold(&stream, false);                                                        \
        assert_ok(bth_device_stream_wait(&stream, &error));                                        \
        expect_no_more(before);                                                                    \
        cr_expect_eq(test_memory_seen().live_nbytes, live_nbytes);                                 \
    }                                                                                              \
    static void name(void)

/* The kernel tells what a touch would do. */
static bool can_be_touched(uintptr_t address)
{
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    bool is_read = write(ends[1], (const void *)address, 1) == 1;
    cr_assert(is_read || errno == EFAULT);
    close(ends[0]);
    close(ends[1]);
    return is_read;
}

SIMULATED_TEST(memory_cannot_be_touched_by_the_host)
{
    cr_expect_not(can_be_touched(memory));
    cr_expect_not(can_be_touched(memory + NBYTES - 1));
    cr_expect(can_be_touched((uintptr_t)pinned));
}

SIMULATED_TEST(copies_come_late)
{
    bth_device_event event;

    assert_ok(bth_device_event_open(device, &event, &error));
    memset(pinned, 1, NBYTES);
    assert_ok(bth_device_begin_copy_to_device(&stream, memory, pinned, NBYTES, &error));
    assert_ok(bth_device_stream_wait(&stream, &error));
    memset(pinned, 2, NBYTES);
    bth_simulated_hold(&stream, true);
    assert_ok(bth_device_begin_copy_to_host(&stream, pinned, memory, NBYTES, &error));
    assert_ok(bth_device_event_record(&event, &stream, &error));
    cr_expect_not(bth_simulated_has_come(&event));
    cr_expect_eq(pinned[5], 2);
    bth_simulated_hold(&stream, false);
    assert_ok(bth_device_event_wait(&event, &error));
    cr_expect_eq(pinned[5], 1);
    cr_expect(bth_simulated_has_come(&event));
    bth_device_event_close(&event);
}

SIMULATED_TEST(what_changes_before_its_copy_is_made_is_copied_changed)
{
    bth_simulated_hold(&stream, true);
    memset(pinned, 1, NBYTES);
    assert_ok(bth_device_begin_copy_to_device(&stream, memory, pinned, NBYTES, &error));
    memset(pinned, 2, NBYTES);
    bth_simulated_hold(&stream, false);
    assert_ok(bth_device_stream_wait(&stream, &error));
    memset(pinned, 3, NBYTES);
    assert_ok(bth_device_begin_copy_to_host(&stream, pinned, memory, NBYTES, &error));
    assert_ok(bth_device_stream_wait(&stream, &error));
    cr_expect_eq(pinned[0], 2);
}

SIMULATED_TEST(streams_do_not_keep_each_others_order)
{
    bth_device_stream second;

    assert_ok(bth_device_stream_open(device, &second, &error));
    memset(pinned, 1, NBYTES);
    bth_simulated_hold(&stream, true);
    assert_ok(bth_device_begin_copy_to_device(&stream, memory, pinned, NBYTES / 2, &error));
    assert_ok(bth_device_begin_copy_to_device(&second, memory, pinned, NBYTES, &error));
    assert_ok(bth_device_begin_copy_to_host(&second, pinned, memory, NBYTES, &error));
    assert_ok(bth_device_stream_wait(&second, &error)); /* the first has not begun */
    bth_simulated_hold(&stream, false);
    assert_ok(bth_device_stream_wait(&stream, &error));
    bth_device_stream_close(&second);
}

SIMULATED_TEST(a_stream_that_waits_for_an_event_does_not_begin_before_it)
{
    bth_device_stream second;
    bth_device_event event, behind;

    assert_ok(bth_device_stream_open(device, &second, &error));
    assert_ok(bth_device_event_open(device, &event, &error));
    assert_ok(bth_device_event_open(device, &behind, &error));
    bth_simulated_hold(&stream, true);
    assert_ok(bth_device_event_record(&event, &stream, &error));
    assert_ok(bth_device_stream_wait_for_event(&second, event.native, &error));
    assert_ok(bth_device_event_record(&behind, &second, &error));
    (void)nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
    cr_expect_not(bth_simulated_has_come(&behind));
    bth_simulated_hold(&stream, false);
    assert_ok(bth_device_event_wait(&behind, &error));
    bth_device_event_close(&event);
    bth_device_event_close(&behind);
    bth_device_stream_close(&second);
}

SIMULATED_TEST(streams_that_are_late_keep_their_own_order)
{
    bth_device_stream streams[4];

    bth_simulated_set(&(bth_simulated_machine){.n_devices = 2,
                                               .memory_nbytes = UINT64_MAX,
                                               .pinned_nbytes = UINT64_MAX,
                                               .latest_nanoseconds = 200000,
                                               .seed = 7});
    for (size_t i = 0; i < 4; i++)
        assert_ok(bth_device_stream_open(device, &streams[i], &error));
    for (size_t i = 0; i < 2400; i++)
        pinned[i] = (uint8_t)(i / 4 + i % 4);
    /* Each stream writes its byte over and over: the last one stays. */
    for (size_t turn = 0; turn < 20; turn++)
        for (size_t i = 0; i < 4; i++)
            assert_ok(bth_device_begin_copy_to_device(&streams[i], memory + i,
                                                      pinned + 4 * turn + i, 1, &error));
    for (size_t i = 0; i < 4; i++) {
        assert_ok(
            bth_device_begin_copy_to_host(&streams[i], pinned + 5000 + i, memory + i, 1, &error));
        bth_device_stream_close(&streams[i]);
        cr_expect_eq(pinned[5000 + i], 19 + i);
    }
}

SIMULATED_TEST(copies_of_pageable_memory_are_done_when_they_come_back)
{
    uint8_t byte = 7, back = 0;

    bth_simulated_set(&(bth_simulated_machine){.n_devices = 2,
                                               .memory_nbytes = UINT64_MAX,
                                               .pinned_nbytes = UINT64_MAX,
                                               .latest_nanoseconds = 2000000});
    assert_ok(bth_device_begin_copy_to_device(&stream, memory, &byte, 1, &error));
    byte = 8;
    assert_ok(bth_device_begin_copy_to_host(&stream, &back, memory, 1, &error));
    cr_expect_eq(back, 7);
}

SIMULATED_TEST(memory_of_another_device_is_told)
{
    char sentence[200];

    snprintf(sentence, sizeof sentence, "simulated:1: 100 bytes at 0x%zx are memory of simulated:0",
             (size_t)memory);
    FAILS_ONCE(bth_device_check_memory(other, memory, 100, &error), BERTH_E_ARGUMENT, sentence);
    assert_ok(bth_device_check_memory(device, memory, 100, &error));
    cr_expect_eq(bth_device_check_memory(device, memory + 1, NBYTES, &error), BERTH_E_ARGUMENT,
                 "the last byte is not looked at");
    bth_error_clear(&error);
}

SIMULATED_TEST(memory_and_pinned_memory_end)
{
    uintptr_t more, next;
    void *bytes;

    bth_simulated_set(&(bth_simulated_machine){
        .n_devices = 2, .memory_nbytes = 2 * NBYTES, .pinned_nbytes = NBYTES + 10});
    FAILS_ONCE(bth_device_allocate_memory(device, NBYTES + 1, &more, &error), BERTH_E_MEMORY,
               "simulated:0: 10001 bytes of device memory cannot be allocated: out of memory "
               "(SIMULATED_OUT_OF_MEMORY)");
    assert_ok(bth_device_allocate_memory(device, NBYTES, &more, &error));
    assert_ok(bth_device_allocate_memory(other, 2 * NBYTES, &next, &error));
    bth_device_release_memory(device, more);
    bth_device_release_memory(other, next);
    FAILS_ONCE(bth_pinned_allocate(device, 11, &bytes, &error), BERTH_E_MEMORY,
               "simulated:0: 11 bytes of pinned memory cannot be allocated: out of memory "
               "(SIMULATED_OUT_OF_MEMORY)");
    uint8_t here[20];
    FAILS_ONCE(bth_pinned_register(device, here, 11, &error), BERTH_E_MEMORY,
               "simulated:0: 11 bytes cannot be pinned: out of memory (SIMULATED_OUT_OF_MEMORY)");
    assert_ok(bth_pinned_register(device, here + 5, 10, &error));
    FAILS_ONCE(bth_pinned_register(device, here + 14, 2, &error), BERTH_E_DEVICE,
               "simulated:0: 2 bytes cannot be pinned: invalid argument (SIMULATED_INVALID_VALUE)");
    cr_expect_eq(bth_pinned_register(device, here, 6, &error), BERTH_E_DEVICE);
    bth_error_clear(&error);
    bth_pinned_unregister(device, here + 5);
}

/* ---- faults ---- */

/* One of each call: the first error. */
static int use_all(void)
{
    bth_device_stream own = {0};
    bth_device_event event = {0};
    bth_memory_owner owner;
    uintptr_t at = 0;
    void *bytes = NULL;

    (void)(bth_device_allocate_memory(device, 100, &at, &error) < 0 ||
           bth_device_find_memory_owner(device, at, &owner, &error) < 0 ||
           bth_pinned_allocate(device, 100, &bytes, &error) < 0 ||
           bth_device_stream_open(device, &own, &error) < 0 ||
           bth_device_event_open(device, &event, &error) < 0 ||
           bth_device_begin_copy_to_host(&own, bytes, at, 100, &error) < 0 ||
           bth_device_event_record(&event, &own, &error) < 0 ||
           bth_device_event_wait(&event, &error) < 0);
    bth_device_event_close(&event);
    bth_device_stream_close(&own);
    bth_pinned_release(device, bytes);
    bth_device_release_memory(device, at);
    return error.code;
}

SIMULATED_TEST(each_call_fails_when_it_is_told_to)
{
    static const struct {
        bth_simulated_call call;
        const char *tried;
        bool is_memory;
    } rows[] = {{BTH_SIMULATED_ALLOCATE, "100 bytes of device memory cannot be allocated", true},
                {BTH_SIMULATED_FIND, NULL, false},
                {BTH_SIMULATED_PIN, "100 bytes of pinned memory cannot be allocated", true},
                {BTH_SIMULATED_OPEN_STREAM, "a stream cannot be created", false},
                {BTH_SIMULATED_OPEN_EVENT, "an event cannot be created", false},
                {BTH_SIMULATED_COPY, "100 bytes cannot be copied to the host", false},
                {BTH_SIMULATED_RECORD, "an event cannot be recorded", false},
                {BTH_SIMULATED_WAIT, "copies failed", false}};
    char sentence[200];

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t before = bth_simulated_n_calls(rows[i].call);
        bth_simulated_fail(rows[i].call, 1, BTH_SIMULATED_ONCE);
        (void)use_all();
        cr_expect_eq(bth_simulated_n_calls(rows[i].call), before + 1);
        snprintf(sentence, sizeof sentence, "simulated:0: %s: %s", rows[i].tried,
                 rows[i].is_memory ? "out of memory (SIMULATED_OUT_OF_MEMORY)"
                                   : "unspecified failure (SIMULATED_FAILED)");
        if (rows[i].tried)
            cr_expect_str_eq(error.message, sentence);
        cr_expect_eq(error.code, rows[i].is_memory ? BERTH_E_MEMORY : BERTH_E_DEVICE);
        bth_error_clear(&error);
        assert_ok(use_all());
    }
}

SIMULATED_TEST(a_copy_that_goes_wrong_is_told_later_and_loses_the_device)
{
    bth_device_event event;
    uintptr_t at;

    assert_ok(bth_device_event_open(device, &event, &error));
    bth_simulated_hold(&stream, true);
    bth_simulated_fail(BTH_SIMULATED_WORK, 1, BTH_SIMULATED_ONCE);
    assert_ok(bth_device_begin_copy_to_host(&stream, pinned, memory, NBYTES, &error));
    assert_ok(bth_device_event_record(&event, &stream, &error));
    bth_simulated_hold(&stream, false);
    FAILS_ONCE(bth_device_event_wait(&event, &error), BERTH_E_DEVICE,
               "simulated:0: copies failed: " LOST);
    FAILS_ONCE(bth_device_stream_wait(&stream, &error), BERTH_E_DEVICE,
               "simulated:0: copies failed: " LOST);
    FAILS_ONCE(bth_device_begin_copy_to_host(&stream, pinned, memory, 9, &error), BERTH_E_DEVICE,
               "simulated:0: 9 bytes cannot be copied to the host: " LOST);
    FAILS_ONCE(bth_device_allocate_memory(device, 9, &at, &error), BERTH_E_DEVICE,
               "simulated:0: 9 bytes of device memory cannot be allocated: " LOST);
    assert_ok(bth_device_allocate_memory(other, 9, &at, &error)); /* that one lives */
    bth_device_release_memory(other, at);
    bth_device_event_close(&event);
}

SIMULATED_TEST(a_lost_device_lets_nobody_wait_for_ever)
{
    bth_device_stream second;
    bth_device_event event;

    assert_ok(bth_device_stream_open(device, &second, &error));
    assert_ok(bth_device_event_open(device, &event, &error));
    bth_simulated_hold(&stream, true);
    assert_ok(bth_device_event_record(&event, &stream, &error));
    assert_ok(bth_device_stream_wait_for_event(&second, event.native, &error));
    bth_simulated_fail(BTH_SIMULATED_COPY, 1, BTH_SIMULATED_LOST);
    cr_expect_eq(bth_device_begin_copy_to_host(&second, pinned, memory, 9, &error), BERTH_E_DEVICE);
    bth_error_clear(&error);
    bth_device_stream_close(&second);
    bth_device_event_close(&event);
}

static void expect_lost(void)
{
    FAILS_ONCE(bth_device_stream_wait(&stream, &error), BERTH_E_DEVICE,
               "simulated:0: copies failed: " LOST);
    bth_simulated_set(NULL);
    assert_ok(bth_device_stream_wait(&stream, &error));
}

SIMULATED_TEST(memory_that_is_freed_under_a_copy_loses_the_device)
{
    uintptr_t at;
    uint8_t here[100];

    assert_ok(bth_device_allocate_memory(device, 100, &at, &error));
    bth_simulated_hold(&stream, true);
    assert_ok(bth_device_begin_copy_to_host(&stream, pinned, at, 100, &error));
    bth_device_release_memory(device, at);
    bth_simulated_hold(&stream, false);
    expect_lost();
    assert_ok(bth_pinned_register(device, here, sizeof here, &error));
    bth_simulated_hold(&stream, true);
    assert_ok(bth_device_begin_copy_to_host(&stream, here, memory, 100, &error));
    bth_pinned_unregister(device, here);
    bth_simulated_hold(&stream, false);
    expect_lost();
    assert_ok(bth_device_begin_copy_to_host(&stream, pinned, memory + 1, NBYTES, &error));
    expect_lost();
    bth_device_begin_copy_to_host(&stream, pinned, (uintptr_t)pinned, 5, &error);
    bth_error_clear(&error);
    expect_lost();
    assert_ok(bth_device_allocate_memory(other, 100, &at, &error));
    assert_ok(bth_device_begin_copy_to_host(&stream, pinned, at, 100, &error));
    expect_lost();
    bth_device_release_memory(other, at);
}

static int no_thread(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                     void *argument)
{
    (void)thread, (void)attributes, (void)start, (void)argument;
    return EAGAIN;
}

static void *no_map(void *address, size_t nbytes, int protection, int flags, int fd, off_t offset)
{
    (void)address, (void)nbytes, (void)protection, (void)flags, (void)fd, (void)offset;
    errno = ENOMEM;
    return MAP_FAILED;
}

SIMULATED_TEST(a_thread_or_a_map_that_cannot_be_had_is_told) /* W6 */
{
    bth_device_stream second;
    uintptr_t at;

    bth_system.pthread_create = no_thread;
    FAILS_ONCE(
        bth_device_stream_open(device, &second, &error), BERTH_E_SYSTEM,
        "simulated:0: a stream cannot be created: no thread can be started (SIMULATED_NO_THREAD)");
    bth_device_stream_close(&second);
    bth_system.mmap = no_map;
    cr_expect_eq(bth_device_allocate_memory(device, 100, &at, &error), BERTH_E_MEMORY);
    bth_error_clear(&error);
}

SIMULATED_TEST(allocations_that_fail_leave_nothing) /* W6 */
{
    uint64_t nth = 1;

    for (;; nth++) {
        test_memory_refuse(nth, false);
        int code = use_all();
        test_memory_refuse(0, false);
        if (code == 0)
            break;
        cr_expect_eq(code, BERTH_E_MEMORY, "allocation %d: %s", (int)nth, error.message);
        bth_error_clear(&error);
    }
    cr_expect_eq(nth, 5, "a stream, an event, two pieces of work, and none");
}

/* ---- fork ---- */

static int use_in_child(void)
{
    bth_device_handle *again;
    uintptr_t at;
    static const char sentence[] = "simulated:0: this process was forked from one that had opened "
                                   "a device, and devices do not survive that";

    if (bth_device_is_of_this_process(device))
        return 1;
    if (bth_device_allocate_memory(device, 100, &at, &error) != BERTH_E_DEVICE ||
        strcmp(error.message, sentence) != 0)
        return 2;
    bth_error_clear(&error);
    if (bth_device_open("simulated:0", &again, &error) != BERTH_E_DEVICE ||
        strcmp(error.message, sentence) != 0)
        return 3;
    bth_error_clear(&error);
    if (bth_device_begin_copy_to_host(&stream, pinned, memory, 10, &error) != BERTH_E_DEVICE)
        return 4;
    bth_device_stream_close(&stream); /* its thread is not here: to wait for it were for ever */
    bth_device_release_memory(device, memory);
    return 0;
}

SIMULATED_TEST(no_device_survives_a_fork)
{
    test_in_child(use_in_child);
    assert_ok(use_all());
}

static int open_in_child(void)
{
    return bth_device_open("simulated:0", &device, &error) != 0;
}

Test(fork, before_any_device_is_open_leaves_the_child_free)
{
    cr_expect_eq(bth_device_open("simulated:9", &device, &error), BERTH_E_DEVICE);
    bth_error_clear(&error);
    test_in_child(open_in_child);
}
