/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Prefetches when the system refuses (W6), does not know what it is asked for, or the file changes
 * meanwhile (F1, F2, W9): a clean error, or the way back, and what became of it is told.
 */
#include "tests/support/load/prefetch_scene.h"

#define POPULATE 22 /* MADV_POPULATE_READ */

TestSuite(prefetch_faults, .init = begin_prefetches, .fini = end_prefetches);

/* ---- advices that fail ---- */

static int refused_advice, refused_with;
static _Atomic int n_refused;

static int refusing_madvise(void *address, size_t nbytes, int advice)
{
    if (advice != refused_advice)
        return madvise(address, nbytes, advice);
    n_refused++;
    errno = refused_with;
    return -1;
}

static void refuse(int advice, int with)
{
    refused_advice = advice;
    refused_with = with;
    bth_system.madvise = refusing_madvise;
}

static void expect_way_back(const char *options, int advice, int with, const char *method)
{
    evict_file();
    open_path("");
    refuse(advice, with);
    begin_prefetch(options);
    advance_through_all();
    wait_for_all();
    cr_expect_str_eq(stats.method, method);
    cr_expect_str_eq(stats.reason, "the system refused an advice");
    cr_expect_gt(n_refused, 0);
    expect_cached(0, N_TENSORS * TENSOR_NBYTES);
    cr_expect_eq(stats.resident_nbytes + stats.loaded_nbytes, stats.requested_nbytes);
}

Test(prefetch_faults, populate_that_the_kernel_does_not_know_is_read)
{
    expect_way_back("load.prefetch=populate", POPULATE, EINVAL, "populate, then read");
}

Test(prefetch_faults, populate_without_resources_is_read)
{
    expect_way_back("load.prefetch=populate load.prefetch_passes=4", POPULATE, EAGAIN,
                    "populate, then read");
}

Test(prefetch_faults, advice_that_is_refused_is_read)
{
    expect_way_back("load.prefetch=advise", MADV_WILLNEED, EBADF, "advise, then read");
}

static int interrupted_madvise(void *address, size_t nbytes, int advice)
{
    static _Atomic int n;

    if (advice == POPULATE && n++ % 2 == 0) {
        errno = EINTR;
        return -1;
    }
    return madvise(address, nbytes, advice);
}

Test(prefetch_faults, interrupted_advice_is_repeated_w3)
{
    open_path("");
    bth_system.madvise = interrupted_madvise;
    begin_prefetch("load.prefetch=populate");
    advance_through_all();
    cr_expect_str_eq(stats.method, "populate");
}

/* The error is told by whoever waits, once and again; the tensors are still there to be used. */
static void expect_error(const char *options, int code, const char *sentence)
{
    begin_prefetch(options);
    cr_expect_eq(berth_prefetch_advance(prefetch, NULL, 0, -1, &error), code, "%s", error.message);
    cr_expect(strncmp(error.message, path, strlen(path)) == 0, "%s", error.message);
    cr_expect(strstr(error.message, sentence), "%s", error.message);
    cr_expect_eq(berth_prefetch_advance(prefetch, tensor_at(N_TENSORS - 1), 0, -1, &error), code);
    berth_prefetch_get_stats(prefetch, &stats, NULL);
    cr_expect_lt(stats.n_passes_done, stats.n_passes);
}

Test(prefetch_faults, no_memory_is_an_error_w6)
{
    open_path("");
    refuse(POPULATE, ENOMEM);
    expect_error("load.prefetch=populate load.prefetch_window_nbytes=64KiB", BERTH_E_MEMORY,
                 "65536 bytes cannot be loaded into memory: Cannot allocate memory");
    cr_expect_not_null(berth_tensor_data(checkpoint, tensor_at(3), &error));
}

Test(prefetch_faults, pages_that_cannot_be_read_are_an_error)
{
    open_path("");
    refuse(POPULATE, EFAULT);
    expect_error("load.prefetch=populate load.prefetch_window_nbytes=64KiB", BERTH_E_SYSTEM,
                 "65536 bytes cannot be loaded into memory: Input/output error");
}

/* ---- reads that fail ---- */

static ssize_t broken_pread(int fd, void *buffer, size_t nbytes, off_t offset)
{
    if (offset < (off_t)(N_TENSORS / 2 * TENSOR_NBYTES))
        return pread(fd, buffer, nbytes, offset);
    errno = EIO;
    return -1;
}

Test(prefetch_faults, what_cannot_be_read_is_an_error_from_there_on)
{
    evict_file();
    open_path("");
    bth_system.pread = broken_pread;
    begin_prefetch("load.prefetch=read load.prefetch_passes=12");
    cr_expect_eq(berth_prefetch_advance(prefetch, tensor_at(N_TENSORS / 2 - 4), 0, -1, &error), 0);
    FAILS_SAYING(berth_prefetch_advance(prefetch, tensor_at(N_TENSORS - 1), 0, -1, &error),
                 BERTH_E_SYSTEM, "bytes not read: Input/output error");
}

static ssize_t halting_pread(int fd, void *buffer, size_t nbytes, off_t offset)
{
    static _Atomic int n;

    if (n++ % 3 == 0) {
        errno = EINTR;
        return -1;
    }
    return pread(fd, buffer, nbytes > 1000 ? nbytes / 2 : nbytes, offset);
}

Test(prefetch_faults, short_and_interrupted_reads_go_on_w3)
{
    evict_file();
    open_path("");
    bth_system.pread = halting_pread;
    begin_prefetch("load.prefetch=read");
    wait_for_all();
    expect_cached(0, N_TENSORS * TENSOR_NBYTES);
}

/* ---- the file changes ---- */

static void expect_truncation(const char *options)
{
    char expected[200];
    off_t nbytes = N_TENSORS * TENSOR_NBYTES / 2;
    uint64_t size;
    berth_info info;

    open_path("load.check=directory");
    cr_assert_eq(berth_get_info(checkpoint, &info, &error), 0);
    size = info.nbytes;
    begin_prefetch(options);
    cr_assert_eq(berth_prefetch_advance(prefetch, tensor_at(1), 0, -1, &error), 0);
    wait_until_idle();
    cr_assert_eq(truncate(path, nbytes), 0);
    cr_expect_eq(berth_prefetch_advance(prefetch, NULL, 0, -1, &error), BERTH_E_TRUNCATED, "%s",
                 error.message);
    (void)snprintf(expected, sizeof expected,
                   ": the file had %llu bytes when it was opened, and now has %lld",
                   (unsigned long long)size, (long long)nbytes);
    cr_expect(strstr(error.message, expected), "%s", error.message);
}

Test(prefetch_faults, a_file_that_shrinks_is_told_by_populate_f2)
{
    expect_truncation("load.prefetch=populate load.prefetch_passes=12");
}

Test(prefetch_faults, a_file_that_shrinks_is_told_by_advise_f1)
{
    expect_truncation("load.prefetch=advise load.prefetch_passes=12");
}

Test(prefetch_faults, a_file_that_shrinks_is_told_by_read_w9)
{
    expect_truncation("load.prefetch=read load.prefetch_passes=12");
}

/* After the size was looked at, and before the pages are: no SIGBUS either. */
static int truncating_madvise(void *address, size_t nbytes, int advice)
{
    if (advice == POPULATE)
        (void)truncate(path, 4096);
    return madvise(address, nbytes, advice);
}

Test(prefetch_faults, a_file_that_shrinks_under_the_pages_is_told_f2)
{
    open_path("");
    bth_system.madvise = truncating_madvise;
    begin_prefetch("load.prefetch=populate");
    FAILS_SAYING(berth_prefetch_advance(prefetch, NULL, 0, -1, &error), BERTH_E_TRUNCATED,
                 "and now has 4096");
}

/* ---- nobody tells ---- */

static int unknown_cachestat(int fd, void *range, void *counts, unsigned flags)
{
    (void)fd, (void)range, (void)counts, (void)flags;
    errno = ENOSYS;
    return -1;
}

static int unknown_mincore(void *address, size_t nbytes, unsigned char *pages)
{
    (void)address, (void)nbytes, (void)pages;
    errno = EAGAIN;
    return -1;
}

Test(prefetch_faults, what_is_in_memory_need_not_be_known)
{
    open_path("");
    bth_system.cachestat = unknown_cachestat;
    bth_system.mincore = unknown_mincore;
    begin_prefetch("load.prefetch=populate");
    advance_through_all();
    wait_for_all();
    cr_expect_eq(stats.resident_nbytes, 0);
    cr_expect_eq(stats.loaded_nbytes, stats.requested_nbytes);
}

/* ---- begin ---- */

static int n_threads_left;

static int scarce_threads(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument)
{
    return n_threads_left-- > 0 ? pthread_create(thread, attributes, start, argument) : EAGAIN;
}

Test(prefetch_faults, threads_that_cannot_start_fail_the_begin_w6)
{
    for (int n = 0; n < 3; n++) {
        char expected[300];
        open_path("");
        bth_system.pthread_create = scarce_threads;
        n_threads_left = n;
        cr_expect_eq(
            try_to_begin(NULL, 0, "io.threads=3 load.prefetch_window_nbytes=64KiB", &prefetch),
            BERTH_E_SYSTEM);
        (void)snprintf(expected, sizeof expected,
                       "%s: thread %d of 3 of the prefetch cannot be started: Resource temporarily "
                       "unavailable",
                       path, n + 1);
        cr_expect_str_eq(error.message, expected);
        cr_expect_null(prefetch);
        bth_system_restore();
        close_opened();
    }
}

Test(prefetch_faults, every_allocation_that_is_refused_fails_the_begin_and_leaks_nothing_w6)
{
    const berth_tensor *tensors[2];
    berth_selection what = {.pattern = "t*"};
    int result = -1;

    for (uint64_t nth = 1, is_list = 0; is_list < 2; nth++) {
        cr_assert_lt(nth, 500);
        test_memory_watch();
        if (berth_open(path, NULL, &checkpoint, &error) == 0) {
            tensors[0] = tensor_at(0), tensors[1] = tensor_at(1); /* names are made */
            if (is_list)
                what = (berth_selection){.tensors = tensors, .n_tensors = 2};
            test_memory_refuse(nth, false);
            result = berth_prefetch_begin(checkpoint, &what, 0, NULL, &prefetch, &error);
            if (result < 0)
                cr_assert_eq(error.code, BERTH_E_MEMORY, "%s", error.message);
            else
                cr_assert_eq(berth_prefetch_advance(prefetch, NULL, 0, -1, &error), 0);
            free_prefetch();
        }
        close_opened();
        cr_assert_eq(test_memory_seen().live_nbytes, 0, "allocation %d", (int)nth);
        test_memory_unwatch();
        if (result == 0) {
            cr_expect_gt(nth, 3);
            nth = 0;
            is_list++;
        }
    }
}

/* ---- nobody asks ---- */

static char logged[400];

static void keep_line(void *context, const char *line)
{
    (void)context;
    (void)snprintf(logged, sizeof logged, "%s", line);
}

Test(prefetch_faults, an_error_that_nobody_is_told_goes_to_the_log)
{
    open_path("");
    berth_set_log(keep_line, NULL);
    refuse(POPULATE, EFAULT);
    begin_prefetch("load.prefetch=populate");
    wait_until_idle();
    free_prefetch();
    berth_set_log(NULL, NULL);
    cr_expect(strstr(logged, "cannot be loaded into memory"), "%s", logged);
    cr_expect(strncmp(logged, path, strlen(path)) == 0, "%s", logged);
}
