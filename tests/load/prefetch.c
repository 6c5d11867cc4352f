/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Prefetches: what is brought, how often, by whom, and what is told of it. How far ahead:
 * prefetch_passes.c.
 */
#include "tests/support/load/prefetch_scene.h"

#include <stdatomic.h>
#include <sys/resource.h>

TestSuite(prefetch, .init = begin_prefetches, .fini = end_prefetches);

/* ---- what is brought ---- */

Test(prefetch, brings_every_storage_by_each_method)
{
    static const char *const methods[] = {"populate", "advise", "read"};
    char options[40];

    for (size_t i = 0; i < 3; i++) {
        evict_file();
        open_path("");
        (void)snprintf(options, sizeof options, "load.prefetch=%s", methods[i]);
        begin_prefetch(options);
        wait_for_all();
        cr_expect_str_eq(stats.method, methods[i]);
        cr_expect_str_eq(stats.reason, "load.prefetch sets it");
        uint64_t all = stats.requested_nbytes;
        cr_expect_geq(all, (uint64_t)N_TENSORS * TENSOR_NBYTES);
        cr_expect_leq(all, (uint64_t)N_TENSORS * TENSOR_NBYTES + 65536);
        /* The head was read by the open. */
        cr_expect_leq(stats.resident_nbytes, 300000);
        cr_expect_eq(stats.resident_nbytes + stats.loaded_nbytes, all);
        cr_expect_eq(stats.shared_nbytes, 0);
        wait_until_cached(0, all);
        free_prefetch();
        close_opened();
    }
}

Test(prefetch, populates_where_load_prefetch_says_nothing)
{
    open_path("");
    begin_prefetch("");
    wait_for_all();
    cr_expect_str_eq(stats.method, "populate");
    cr_expect_str_eq(stats.reason, "populate is the default");
}

Test(prefetch, of_what_is_there_brings_nothing)
{
    open_path("");
    begin_prefetch("load.prefetch=read");
    wait_for_all();
    begin_prefetch("load.prefetch=read");
    wait_for_all();
    cr_expect_eq(stats.loaded_nbytes, 0);
    cr_expect_eq(stats.resident_nbytes, stats.requested_nbytes);
    cr_expect_eq(stats.n_requests, 0);
}

Test(prefetch, brings_a_selection_by_pattern_and_by_list_and_nothing_else)
{
    berth_selection what = {.pattern = "t1?"};

    evict_file();
    open_path("");
    const berth_tensor *listed[] = {tensor_at(3), tensor_at(3)};
    cr_assert_eq(try_to_begin(&what, 0, "load.prefetch=advise", &prefetch), 0);
    berth_prefetch_get_stats(prefetch, &stats, NULL);
    cr_expect_geq(stats.requested_nbytes, 10 * TENSOR_NBYTES);
    cr_expect_leq(stats.requested_nbytes, 10 * TENSOR_NBYTES + 8192);
    free_prefetch();
    what = (berth_selection){.tensors = listed, .n_tensors = 2};
    evict_file();
    cr_assert_eq(try_to_begin(&what, 0, "load.prefetch=advise", &prefetch), 0);
    wait_for_all();
    cr_expect_eq(stats.requested_nbytes, TENSOR_NBYTES + 4096);
    berth_named_tensor third;
    cr_assert_eq(berth_tensor_at(checkpoint, 3, &third, &error), 0);
    wait_until_cached(third.offset - third.offset % 4096, TENSOR_NBYTES);
    cr_expect_leq(cached_nbytes(0, N_TENSORS * TENSOR_NBYTES), stats.requested_nbytes);
    /* Tensors that are not in it are passed by. */
    cr_expect_eq(berth_prefetch_advance(prefetch, tensor_at(20), 0, -1, &error), 0);
}

Test(prefetch, brings_only_the_bytes_that_a_view_uses)
{
    static const int64_t shape[] = {1024}, none[] = {0}, stride[] = {1};

    open_path("");
    berth_tensor view = *tensor_at(5);
    view.shape = none;
    view.stride = stride;
    view.storage_offset = 1 << 14;
    const berth_tensor *listed[] = {&view};
    berth_selection what = {.tensors = listed, .n_tensors = 1};
    assert_ok(try_to_begin(&what, 0, "", &prefetch));
    wait_for_all();
    cr_expect_eq(stats.requested_nbytes, 0);
    free_prefetch();
    view.shape = shape;
    assert_ok(try_to_begin(&what, 0, "", &prefetch));
    wait_for_all();
    cr_expect_leq(stats.requested_nbytes, 8192);
}

Test(prefetch, of_a_pattern_that_fits_nothing_is_an_error)
{
    berth_selection what = {.pattern = "x*"};

    open_path("");
    cr_expect_eq(try_to_begin(&what, 0, "", &prefetch), BERTH_E_NOT_FOUND);
    cr_expect_null(prefetch);
}

/* ---- several ---- */

/* Whichever comes first for a window. */
static int slow_fadvise(int fd, off_t offset, off_t nbytes, int advice)
{
    (void)usleep(20000);
    return posix_fadvise(fd, offset, nbytes, advice);
}

static int slow_madvise(void *address, size_t nbytes, int advice)
{
    (void)usleep(20000);
    return madvise(address, nbytes, advice);
}

/* What this process has had read from devices. */
static uint64_t device_nbytes(void)
{
    FILE *io = fopen("/proc/self/io", "re");
    unsigned long long nbytes = 0;
    char line[200];

    while (io && fgets(line, sizeof line, io))
        (void)sscanf(line, "read_bytes: %llu", &nbytes);
    if (io)
        (void)fclose(io);
    return nbytes;
}

Test(prefetch, of_the_same_bytes_at_once_reads_them_once)
{
    berth_prefetch *second;
    berth_prefetch_stats others;

    evict_file();
    open_path("");
    uint64_t before_nbytes = device_nbytes();
    bth_system.posix_fadvise = slow_fadvise;
    bth_system.madvise = slow_madvise;
    begin_prefetch("load.prefetch=populate io.threads=2");
    cr_assert_eq(try_to_begin(NULL, 0, "load.prefetch=populate io.threads=3", &second), 0);
    wait_for_all();
    cr_assert_eq(berth_prefetch_advance(second, NULL, 0, -1, &error), 0);
    berth_prefetch_get_stats(second, &others, NULL);
    berth_prefetch_free(second);
    cr_expect_gt(stats.shared_nbytes + others.shared_nbytes, 0);
    cr_expect_eq(others.resident_nbytes + others.shared_nbytes + others.loaded_nbytes,
                 others.requested_nbytes);
    /* Once, not twice; the process may read pages of its own code again. */
    cr_expect_lt(device_nbytes() - before_nbytes, stats.requested_nbytes / 2 * 3);
}

/* ---- ends ---- */

Test(prefetch, can_be_freed_in_the_middle)
{
    evict_file();
    open_path("");
    begin_prefetch("load.prefetch_passes=6");
    cr_assert_eq(berth_prefetch_advance(prefetch, tensor_at(3), 0, -1, &error), 0);
    berth_prefetch_get_stats(prefetch, &stats, NULL);
    berth_prefetch_free(prefetch);
    prefetch = NULL;
    cr_expect_lt(stats.n_passes_begun, 6);
    expect_cached(0, 3 * TENSOR_NBYTES); /* what is there stays there */
    cr_expect_not_null(berth_tensor_data(checkpoint, tensor_at(23), &error));
}

Test(prefetch, can_be_freed_at_once)
{
    open_path("");
    for (int i = 0; i < 20; i++) /* each frees the one before */
        begin_prefetch("load.prefetch_window_nbytes=4096 load.prefetch_passes=3");
    berth_prefetch_free(NULL);
}

/* ---- flags ---- */

static uint64_t locked_nbytes(void)
{
    FILE *status = fopen("/proc/self/status", "re");
    unsigned long long kib = 0;
    char line[200];

    while (fgets(line, sizeof line, status))
        (void)sscanf(line, "VmLck: %llu kB", &kib);
    (void)fclose(status);
    return kib * 1024;
}

Test(prefetch, locks_pages_on_request_until_it_is_freed)
{
    berth_selection what = {.pattern = "t0"};

    open_path("");
    if (try_to_begin(&what, BERTH_PREFETCH_LOCK, "", &prefetch) < 0)
        cr_skip_test("this user may not lock so much");
    wait_for_all();
    cr_expect_eq(locked_nbytes(), (stats.requested_nbytes + 4095) / 4096 * 4096);
    free_prefetch();
#ifndef __SANITIZE_ADDRESS__ /* whose munlock does nothing */
    cr_expect_eq(locked_nbytes(), 0);
#endif
}

static int refusing_mlock2(const void *address, size_t nbytes, unsigned flags)
{
    (void)address, (void)nbytes, (void)flags;
    errno = ENOMEM;
    return -1;
}

static int limit_of_a_user(int resource, struct rlimit *limit)
{
    cr_assert_eq(resource, RLIMIT_MEMLOCK);
    *limit = (struct rlimit){65536, 65536};
    return 0;
}

Test(prefetch, that_may_not_lock_is_refused_with_the_limit)
{
    open_path("");
    bth_system.mlock2 = refusing_mlock2;
    bth_system.getrlimit = limit_of_a_user;
    cr_expect_eq(try_to_begin(NULL, BERTH_PREFETCH_LOCK, "", &prefetch), BERTH_E_MEMORY);
    cr_expect(strstr(error.message, "bytes cannot be locked in memory, RLIMIT_MEMLOCK is 65536: "),
              "%s", error.message);
    cr_expect_null(prefetch);
    cr_expect_eq(try_to_begin(NULL, BERTH_PREFETCH_LOCK, "load.prefetch=read", &prefetch),
                 BERTH_E_ARGUMENT);
    cr_expect(strstr(error.message,
                     "only what is mapped and populated can be locked: load.prefetch sets it"));
}

static _Atomic int n_sequential, n_normal;

static int noting_madvise(void *address, size_t nbytes, int advice)
{
    n_sequential += advice == MADV_SEQUENTIAL;
    n_normal += advice == MADV_NORMAL;
    return madvise(address, nbytes, advice);
}

Test(prefetch, tells_the_system_of_a_sweep_while_it_lives)
{
    open_path("");
    bth_system.madvise = noting_madvise;
    begin_prefetch("");
    wait_for_all();
    free_prefetch();
    cr_expect_eq(n_sequential + n_normal, 0);
    cr_assert_eq(try_to_begin(NULL, BERTH_PREFETCH_SEQUENTIAL, "", &prefetch), 0);
    cr_expect_eq(n_sequential, 1);
    free_prefetch();
    cr_expect_eq(n_normal, 1);
}

/* ---- other sources ---- */

Test(prefetch, of_what_is_not_mapped_reads_into_the_page_cache)
{
    evict_file();
    open_path("load.mmap=off");
    begin_prefetch("load.prefetch=populate");
    advance_through_all();
    cr_expect_str_eq(stats.method, "read");
    cr_expect_str_eq(stats.reason, "load.mmap=off");
    expect_cached(0, N_TENSORS * TENSOR_NBYTES);
}

Test(prefetch, leaves_out_what_is_read_past_the_page_cache_or_is_memory_already)
{
    const berth_storage_rule rules[] = {{.pattern = "t1?", .method = BERTH_LOAD_DIRECT},
                                        {.pattern = "t2?", .method = BERTH_LOAD_READ}};

    open_path("");
    if (berth_set_storage_rules(checkpoint, rules, 2, &error) < 0)
        cr_assert_fail("%s", error.message);
    begin_prefetch("");
    berth_prefetch_get_stats(prefetch, &stats, NULL);
    free_prefetch();
    uint64_t nbytes = stats.requested_nbytes;
    berth_storage_stats direct;
    cr_assert_not_null(berth_tensor_data(checkpoint, tensor_at(12), &error));
    cr_assert_eq(berth_storage_get_stats(checkpoint, tensor_at(12)->storage, &direct, &error), 0);
    if (strcmp(direct.method, "direct") != 0)
        cr_skip_test("no direct reads here");
    cr_expect_leq(nbytes, 14 * TENSOR_NBYTES + 3 * 8192);
    cr_assert_not_null(berth_tensor_data(checkpoint, tensor_at(20), &error));
    begin_prefetch("");
    wait_for_all();
    cr_expect_leq(stats.requested_nbytes, nbytes - TENSOR_NBYTES + 8192);
    cr_expect_str_eq(stats.method, "populate");
}

static void expect_none(const char *reason)
{
    begin_prefetch("load.prefetch=populate");
    advance_through_all();
    wait_for_all();
    cr_expect_str_eq(stats.method, "none");
    cr_expect_str_eq(stats.reason, reason);
    cr_expect_eq(stats.requested_nbytes + stats.n_passes + stats.n_requests + stats.n_threads, 0);
    free_prefetch();
    close_opened();
}

/* load.method=auto would map what nobody has asked for yet: what it has become counts. */
Test(prefetch, leaves_out_what_became_memory_whatever_its_method_would_be_now)
{
    const berth_storage_rule read = {.method = BERTH_LOAD_READ},
                             direct = {.pattern = "t1?", .method = BERTH_LOAD_DIRECT};

    open_path("");
    assert_ok(berth_set_storage_rules(checkpoint, &read, 1, &error));
    assert_ok(berth_load(checkpoint, NULL, NULL, &error));
    assert_ok(berth_set_storage_rules(checkpoint, NULL, 0, &error));
    evict_file();
    expect_none("it is memory of its own already");
    cr_expect_eq(cached_nbytes(TENSOR_NBYTES, (N_TENSORS - 1) * TENSOR_NBYTES), 0);
    /* And the other way round: it is mapped, and stays so. */
    open_path("load.method=map");
    assert_ok(berth_load(checkpoint, NULL, NULL, &error));
    assert_ok(berth_set_storage_rules(checkpoint, &direct, 1, &error));
    begin_prefetch("");
    wait_for_all();
    cr_expect_geq(stats.requested_nbytes, N_TENSORS * TENSOR_NBYTES);
}

static int read_bytes(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    memcpy(buffer, (uint8_t *)context + offset, nbytes);
    return 0;
}

Test(prefetch, of_memory_and_callbacks_has_nothing_to_do)
{
    size_t nbytes;
    uint8_t *bytes = test_read_file(path, &nbytes);
    berth_source source = {.nbytes = nbytes, .read = read_bytes, .context = bytes};

    cr_assert_eq(berth_open_source(FROM_MEMORY(bytes, nbytes), NULL, &checkpoint, &error), 0);
    expect_none("the source is memory");
    cr_assert_eq(berth_open_source(&source, NULL, &checkpoint, &error), 0);
    expect_none("the source is a function");
    free(bytes);
}

Test(prefetch, of_nothing_is_done_at_once)
{
    berth_tree *tree = berth_tree_new(NULL);

    cr_assert_eq(berth_save(path, berth_make_dict(tree, BERTH_KIND_DICT), NULL, &error), 0);
    berth_tree_free(tree);
    open_path("load.prefetch=populate");
    begin_prefetch("io.memory_nbytes=1");
    wait_for_all();
    cr_expect_eq(stats.requested_nbytes + stats.n_passes, 0);
}

/* ---- arguments ---- */

Test(prefetch, refuses_what_makes_no_sense)
{
    open_path("");
    berth_checkpoint *first = checkpoint;
    const berth_tensor *tensor = tensor_at(0);
    FAILS(berth_prefetch_begin(NULL, NULL, 0, NULL, &prefetch, &error), BERTH_E_ARGUMENT,
          "berth_prefetch_begin needs a checkpoint and a pointer for the prefetch");
    FAILS(berth_prefetch_begin(checkpoint, NULL, 4, NULL, &prefetch, &error), BERTH_E_ARGUMENT,
          "unknown flags 0x4");
    cr_expect_eq(berth_prefetch_advance(NULL, tensor, 0, -1, &error), BERTH_E_ARGUMENT);
    FAILS(berth_prefetch_advance(NULL, NULL, 0, -1, &error), BERTH_E_ARGUMENT,
          "the prefetch is NULL");
    FAILS(berth_prefetch_get_stats(NULL, &stats, &error), BERTH_E_ARGUMENT, "the prefetch is NULL");
    FAILS(berth_prefetch_get_stats(NULL, NULL, &error), BERTH_E_ARGUMENT,
          "the pointer for the statistics is NULL");
    checkpoint = NULL; /* the next one stands beside it */
    open_path("");
    begin_prefetch("");
    cr_expect_eq(berth_prefetch_advance(prefetch, tensor, 0, -1, &error), BERTH_E_ARGUMENT);
    berth_close(first);
}

/* ---- load.prefetch ---- */

Test(prefetch, goes_on_behind_an_open_that_asks_for_it)
{
    uint64_t all = N_TENSORS * TENSOR_NBYTES;

    evict_file();
    open_path("load.prefetch=advise");
    wait_until_cached(0, all);
}

Test(prefetch, of_an_open_advances_as_tensors_are_asked_for)
{
    uint64_t all = N_TENSORS * TENSOR_NBYTES;

    evict_file();
    open_path("load.prefetch=advise load.prefetch_passes=12");
    (void)usleep(100000);
    cr_expect_leq(cached_nbytes(0, all), all / 12 + 131072);
    cr_assert_not_null(berth_tensor_data(checkpoint, tensor_at(11), &error));
    wait_until_cached(0, all / 2);
    (void)usleep(50000);
    cr_expect_leq(cached_nbytes(0, all), all / 2 + all / 12 + 131072);
}

static _Atomic uintptr_t furthest;

static int following_madvise(void *address, size_t nbytes, int advice)
{
    uintptr_t end = (uintptr_t)address + nbytes;

    for (uintptr_t seen = furthest; advice == MADV_WILLNEED && end > seen;)
        if (atomic_compare_exchange_weak(&furthest, &seen, end))
            break;
    return 0;
}

/*
 * A window that is in memory is not advised. A read of one element may bring the whole file there,
 * if the system reads far ahead.
 */
static int nothing_is_in_memory(void *address, size_t nbytes, unsigned char *pages)
{
    const size_t page_nbytes = (size_t)sysconf(_SC_PAGESIZE);

    (void)address;
    memset(pages, 0, (nbytes + page_nbytes - 1) / page_nbytes);
    return 0;
}

Test(prefetch, of_an_open_advances_by_the_elements_that_are_read)
{
    const uint64_t slack = 3 * 131072; /* windows */
    const uint64_t pass = (uint64_t)N_TENSORS * TENSOR_NBYTES / 12;
    float element;

    evict_file();
    bth_system.madvise = following_madvise;
    bth_system.mincore = nothing_is_in_memory;
    open_path("load.prefetch=advise load.prefetch_passes=12");
    uintptr_t begin = (uintptr_t)berth_tensor_data(checkpoint, tensor_at(0), &error);
    (void)usleep(100000);
    cr_expect_leq(furthest, begin + TENSOR_NBYTES + pass + slack);
    cr_assert_eq(berth_tensor_read(checkpoint, tensor_at(10), 7, 1, &element, &error), 0);
    /* However late a busy machine lets the first pass end. */
    uintptr_t end = begin + 10 * TENSOR_NBYTES + pass;
    for (int k = 0; k < 2000 && furthest < end - slack; k++)
        (void)usleep(10000);
    (void)usleep(50000);
    cr_expect_geq(furthest, end - slack);
    cr_expect_leq(furthest, end + slack);
}

Test(prefetch, of_an_open_that_cannot_be_planned_fails_it)
{
    cr_expect_eq(
        try_to_open(
            "load.prefetch=populate io.memory_nbytes=4096 load.prefetch_window_nbytes=8192"),
        BERTH_E_MEMORY);
    cr_expect_null(checkpoint);
    cr_expect(strstr(error.message, "4096 bytes are missing"), "%s", error.message);
}
