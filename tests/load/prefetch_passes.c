/* SPDX-License-Identifier: BSD-3-Clause */
/* Prefetches: how far ahead of the consumer they go, in which steps, on which devices. */
#include "tests/support/load/prefetch_scene.h"

TestSuite(prefetch_passes, .init = begin_prefetches, .fini = end_prefetches);

/* ---- how far ahead ---- */

Test(prefetch_passes, never_goes_further_ahead_than_a_pass)
{
    static const uint64_t all_passes[] = {1, 2, 4, 12};
    char options[80];

    open_path("");
    for (size_t i = 0; i < 4; i++) {
        uint64_t n = all_passes[i];
        (void)snprintf(options, sizeof options, "load.prefetch_passes=%d load.prefetch=%s", (int)n,
                       i % 2 ? "populate" : "read");
        begin_prefetch(options);
        wait_until_idle();
        uint64_t pass = (stats.requested_nbytes + n - 1) / n;
        cr_expect_eq(stats.n_passes, n);
        cr_expect_geq(stats.pass_nbytes, pass);
        cr_expect_lt(stats.pass_nbytes, pass + 4096);
        /* No consumer has come: one pass is there, but for what would be a short request. */
        cr_expect_leq(stats.peak_ahead_nbytes, stats.pass_nbytes);
        cr_expect_gt(stats.peak_ahead_nbytes, stats.pass_nbytes - stats.window_nbytes);
        cr_expect_leq(stats.n_passes_begun, 1);
        for (size_t k = 0; k < N_TENSORS; k++) {
            cr_assert_eq(berth_prefetch_advance(prefetch, tensor_at(k), 0, -1, &error), 0);
            if (k % 7 == 0)
                wait_until_idle(); /* as far as they may go */
        }
        berth_prefetch_get_stats(prefetch, &stats, NULL);
        cr_expect_leq(stats.peak_ahead_nbytes, stats.pass_nbytes, "%d passes", (int)n);
        wait_for_all();
        cr_expect_eq(stats.n_passes_begun, n);
        cr_expect_eq(stats.n_passes_done, n);
        cr_expect_eq(stats.resident_nbytes + stats.loaded_nbytes, stats.requested_nbytes);
    }
}

/* A window that ends with its pass is full; and one that ends with its range is short, but not the
 * last one. */
Test(prefetch_passes, goes_as_far_ahead_as_a_pass)
{
    const berth_tensor *listed[N_TENSORS / 2];
    const berth_selection what = {.tensors = listed, .n_tensors = N_TENSORS / 2};

    open_path("");
    begin_prefetch("load.prefetch=read load.prefetch_passes=4 load.prefetch_window_nbytes=4096");
    wait_until_idle();
    cr_expect_eq(stats.peak_ahead_nbytes, stats.pass_nbytes);
    free_prefetch();
    for (size_t i = 0; i < N_TENSORS / 2; i++)
        listed[i] = tensor_at(2 * i);
    assert_ok(try_to_begin(
        &what, 0, "load.prefetch=read load.prefetch_passes=2 load.prefetch_window_nbytes=98304",
        &prefetch));
    wait_until_idle();
    cr_expect_gt(stats.peak_ahead_nbytes, stats.pass_nbytes - stats.window_nbytes);
    /* What waits for its consumer begins nothing more. */
    uint64_t peak_nbytes = stats.peak_ahead_nbytes;
    (void)usleep(50000);
    berth_prefetch_get_stats(prefetch, &stats, NULL);
    cr_expect_eq(stats.peak_ahead_nbytes, peak_nbytes);
}

Test(prefetch_passes, brings_no_bytes_beyond_a_pass_into_memory)
{
    evict_file();
    open_path("");
    begin_prefetch("load.prefetch=advise load.prefetch_passes=12");
    uint64_t begin_nbytes = cached_nbytes(0, N_TENSORS * TENSOR_NBYTES);
    wait_until_idle();
    (void)usleep(50000);
    cr_expect_leq(cached_nbytes(0, N_TENSORS * TENSOR_NBYTES), begin_nbytes + stats.pass_nbytes);
    cr_assert_eq(berth_prefetch_advance(prefetch, tensor_at(5), 0, -1, &error), 0);
    wait_until_idle();
    (void)usleep(50000);
    uint64_t consumed = 6 * TENSOR_NBYTES + 65536;
    cr_expect_leq(cached_nbytes(consumed, N_TENSORS * TENSOR_NBYTES - consumed), stats.pass_nbytes);
}

Test(prefetch_passes, waits_for_the_tensor_that_the_consumer_is_at)
{
    evict_file();
    open_path("");
    begin_prefetch("load.prefetch_passes=12");
    for (size_t i = 0; i < N_TENSORS; i++) {
        berth_named_tensor named;
        cr_assert_eq(berth_prefetch_advance(prefetch, tensor_at(i), 0, -1, &error), 0);
        cr_assert_eq(berth_tensor_at(checkpoint, i, &named, &error), 0);
        uint64_t page = named.offset - named.offset % 4096;
        expect_cached(page, TENSOR_NBYTES);
    }
    berth_prefetch_get_stats(prefetch, &stats, NULL);
    cr_expect_eq(stats.n_passes_done, stats.n_passes);
}

Test(prefetch_passes, goes_through_a_long_tensor_in_parts)
{
    open_path("");
    const berth_tensor *listed[] = {tensor_at(7)};
    berth_selection what = {.tensors = listed, .n_tensors = 1};
    cr_assert_eq(try_to_begin(&what, 0, "load.prefetch_passes=4 load.prefetch=read", &prefetch), 0);
    for (int64_t i = 0; i < 16; i++)
        cr_assert_eq(berth_prefetch_advance(prefetch, listed[0], i * TENSOR_NBYTES / 64,
                                            TENSOR_NBYTES / 64, &error),
                     0);
    berth_prefetch_get_stats(prefetch, &stats, NULL);
    cr_expect_eq(stats.n_passes_done, stats.n_passes);
    cr_expect_leq(stats.peak_ahead_nbytes, stats.pass_nbytes);
    cr_expect_eq(berth_prefetch_advance(prefetch, listed[0], 65536, 0, &error), 0);
    FAILS_SAYING(berth_prefetch_advance(prefetch, listed[0], 65536, 1, &error), BERTH_E_ARGUMENT,
                 ": \"t7\": data/7: 1 elements from element 65536 on were ");
    cr_expect_eq(berth_prefetch_advance(prefetch, listed[0], 65536, -1, &error), 0);
    cr_expect_eq(berth_prefetch_advance(prefetch, listed[0], 65537, -1, &error), BERTH_E_ARGUMENT);
}

Test(prefetch_passes, stays_where_the_consumer_uses_no_elements)
{
    open_path("");
    begin_prefetch("load.prefetch=read load.prefetch_passes=12");
    assert_ok(berth_prefetch_advance(prefetch, tensor_at(N_TENSORS - 1), 7, 0, &error));
    wait_until_idle();
    cr_expect_eq(stats.n_passes_begun, 1);
}

Test(prefetch_passes, makes_no_pass_shorter_than_the_least)
{
    open_path("");
    begin_prefetch("load.prefetch_passes=12 load.prefetch_min_pass_nbytes=2MiB");
    berth_prefetch_get_stats(prefetch, &stats, NULL);
    cr_expect_eq(stats.pass_nbytes, 2 << 20);
    cr_expect_eq(stats.n_passes, 4);
}

Test(prefetch_passes, keeps_to_the_budget_and_its_window)
{
    open_path("");
    begin_prefetch("io.memory_nbytes=1MiB load.prefetch_window_nbytes=64KiB");
    wait_until_idle();
    cr_expect_eq(stats.window_nbytes, 65536);
    cr_expect_leq(stats.pass_nbytes, 1 << 20);
    cr_expect_leq(stats.peak_ahead_nbytes, 1 << 20);
    cr_expect_eq(stats.n_passes, 7);
    advance_through_all();
    cr_expect_leq(stats.peak_ahead_nbytes, 1 << 20);
}

Test(prefetch_passes, without_room_for_a_window_names_the_storage_and_the_bytes_missing)
{
    char expected[400];

    open_path("");
    const berth_tensor *listed[] = {tensor_at(9), tensor_at(8)};
    berth_selection what = {.tensors = listed, .n_tensors = 2};
    cr_expect_eq(try_to_begin(&what, 0, "io.memory_nbytes=64KiB load.prefetch_window_nbytes=96KiB",
                              &prefetch),
                 BERTH_E_MEMORY);
    (void)snprintf(expected, sizeof expected,
                   "%s: \"t8\": data/8 at byte %llu: io.memory_nbytes=65536 is too small for one "
                   "window of a prefetch: 32768 bytes are missing",
                   path, (unsigned long long)error.offset);
    cr_expect_str_eq(error.message, expected);
    cr_expect_null(prefetch);
}

/* ---- how windows are asked for ---- */

static char *readahead_path;
static _Atomic int n_announced;

static int open_readahead(const char *name, int flags, mode_t mode)
{
    return open(strstr(name, "read_ahead_kb") ? readahead_path : name, flags, mode);
}

static int refuses_fadvise; /* an errno, or 0 */

static int counted_fadvise(int fd, off_t offset, off_t nbytes, int advice)
{
    n_announced += advice == POSIX_FADV_WILLNEED;
    return refuses_fadvise ? refuses_fadvise : posix_fadvise(fd, offset, nbytes, advice);
}

/* On a device that reads so much ahead; options with three passes of 2 MiB. */
static void bring_on_device(const char *readahead_kib, const char *options)
{
    readahead_path = test_path(folder, "read_ahead_kb");
    test_write_file(readahead_path, readahead_kib, strlen(readahead_kib));
    bth_system.open = open_readahead;
    bth_system.posix_fadvise = counted_fadvise;
    evict_file();
    open_path("");
    begin_prefetch(options);
    for (size_t i = 0; i < N_TENSORS; i++) {
        cr_assert_eq(berth_prefetch_advance(prefetch, tensor_at(i), 0, -1, &error), 0);
        if (i % 8 == 0)
            wait_until_idle();
    }
    wait_for_all();
    free(readahead_path);
    cr_expect_leq(stats.peak_ahead_nbytes, stats.pass_nbytes);
    cr_expect_gt(stats.peak_ahead_nbytes, stats.pass_nbytes / 2);
    cr_expect_eq(stats.resident_nbytes + stats.loaded_nbytes, stats.requested_nbytes);
}

Test(prefetch_passes, announces_windows_to_a_device_that_reads_little_ahead)
{
    bring_on_device("64", "load.prefetch_passes=3");
    cr_expect_geq(n_announced, stats.loaded_nbytes / 65536);
    /* Without it, loading is only slower: the rest of the window is not announced. */
    n_announced = 0;
    refuses_fadvise = EBADF;
    bring_on_device("64", "load.prefetch_passes=3");
    cr_expect_gt(n_announced, 0);
    cr_expect_lt(n_announced, stats.loaded_nbytes / 65536);
}

Test(prefetch_passes, leaves_windows_to_a_device_that_reads_more_ahead)
{
    bring_on_device("256", "load.prefetch_passes=3 load.prefetch_window_nbytes=128KiB");
    cr_expect_eq(n_announced, 0);
}

/* Two passes of 3 MiB, of which 2.5 MiB lie ahead: a window of a pass is brought in part, where its
 * consumer waits for it. */
Test(prefetch_passes, shortens_a_window_that_its_consumer_waits_for)
{
    const berth_tensor *first;

    readahead_path = test_path(folder, "read_ahead_kb");
    test_write_file(readahead_path, "256", 3);
    bth_system.open = open_readahead;
    open_path("");
    first = tensor_at(0);
    begin_prefetch(
        "load.prefetch=populate load.prefetch_passes=2 load.prefetch_window_nbytes=4MiB");
    assert_ok(berth_prefetch_advance(prefetch, first, 0, 1, &error));
    berth_prefetch_get_stats(prefetch, &stats, NULL);
    cr_expect_eq(stats.window_nbytes, stats.pass_nbytes);
    cr_expect_gt(stats.peak_ahead_nbytes, stats.pass_nbytes / 2);
    free(readahead_path);
}

/* It would follow the first bytes of each, and all would count as asked for. */
Test(prefetch_passes, advises_a_device_of_no_more_than_it_reads_ahead)
{
    bring_on_device("64",
                    "load.prefetch=advise load.prefetch_passes=3 load.prefetch_window_nbytes=1MiB");
    cr_expect_str_eq(stats.method, "advise");
    cr_expect_eq(stats.window_nbytes, 65536);
    cr_expect_geq(stats.n_requests, stats.loaded_nbytes / 65536);
}

Test(prefetch_passes, announces_windows_where_a_pass_has_no_room_for_reading_ahead)
{
    bring_on_device("1024", "load.prefetch_passes=3 load.prefetch_window_nbytes=128KiB");
    cr_expect_gt(n_announced, 0);
}
