/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Many storages at once: every method gives the same bytes in aligned memory, and what is read is
 * counted.
 */
#include "tests/support/load/fetch_scene.h"

TestSuite(fetch, .init = begin_fetch, .fini = end_fetch);

Test(fetch, by_every_method_with_any_number_of_workers)
{
    static const char *const options[] = {"load.method=read",
                                          "load.method=read io.numa=interleave",
                                          "load.method=read load.check=data " BACK,
                                          "load.method=direct",
                                          "load.method=direct " BACK,
                                          "load.method=direct load.check=data io.threads=1",
                                          "load.method=map",
                                          "load.method=map load.check=data " BACK,
                                          "load.mmap_flags=shared,huge load.method=map",
                                          "",
                                          "load.mmap=off " BACK};
    /* One of the byte orders is not this machine's. */
    static const char *const saved[] = {"save.byteorder=little", "save.byteorder=big",
                                        "save.storage_alignment=1 save.byteorder=little",
                                        "save.storage_alignment=1 save.byteorder=big",
                                        "save.storage_alignment=4096"};

    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        for (size_t j = 0; j < sizeof saved / sizeof *saved; j++) {
            save_tensors(saved[j]);
            open_as(options[i]);
            berth_stats stats = fetched(NULL);
            uint64_t asked = 0;
            for (size_t k = 0; k < N_TENSORS; k++) {
                asked += lengths[k] * 4;
                cr_assert(is_memory(k), "t%zu, %s", k, options[i]);
                cr_assert_eq(stats_at(k).crc32, strstr(options[i], "check=data") && lengths[k]
                                                    ? BERTH_CRC_GOOD
                                                    : BERTH_CRC_UNCHECKED);
            }
            cr_expect_eq(stats.requested_nbytes, asked);
            cr_expect_eq(stats.n_storages, N_TENSORS);
            expect_elements();
        }
}

Test(fetch, tells_which_method_and_why)
{
    static const struct {
        const char *options, *method, *reason;
    } cases[] = {{"load.method=read", "read", "load.method=read"},
                 {"load.method=map", "map", "load.method=map"},
                 {"load.method=map load.mmap=off", "read", "load.mmap=off"}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        open_as(cases[i].options);
        cr_expect_str_eq(stats_at(3).method, "none");
        cr_expect_str_eq(stats_at(3).reason, "it is not loaded yet");
        berth_stats stats = fetched(NULL);
        cr_expect_str_eq(stats.method, cases[i].method);
        cr_expect_str_eq(stats.reason, cases[i].reason);
        cr_expect_str_eq(stats_at(3).method, cases[i].method);
        cr_expect_str_eq(stats_at(3).reason, cases[i].reason);
        cr_expect_eq(stats_at(3).nbytes, 4000000);
        cr_expect_eq(stats_at(3).moved_nbytes, i == 1 ? 0 : 4000000);
        cr_expect_str_eq(stats_at(2).reason, "it is empty");
    }
}

/* Neighbours come together: requests do not grow with the number of storages. */
Test(fetch, reads_neighbours_as_one_span)
{
    open_as("load.method=read io.threads=1 io.chunk_nbytes=128MiB debug=off");
    berth_stats stats = fetched(NULL);
    const berth_storage *first = tensor_at(0)->storage, *last = tensor_at(N_TENSORS - 1)->storage;

    cr_expect_eq(stats.n_requests, 1);
    cr_expect_eq(stats.moved_nbytes, last->offset + last->nbytes - first->offset);
    stats = fetched(NULL);
    cr_expect_eq(stats.n_requests, 0, "nothing is read twice");
    cr_expect_eq(stats.moved_nbytes, 0);
    cr_expect_str_eq(stats.method, "read");
}

/* What lies between is jumped over when it is long. */
Test(fetch, reads_of_a_part_only_what_is_needed)
{
    const berth_selection some = {.pattern = "t[0468]"}, small = {.pattern = "t[01]"};

    open_as("load.method=read io.threads=1");
    berth_stats stats = fetched(&some);
    cr_expect_eq(stats.n_requests, 4);
    cr_expect_eq(stats.requested_nbytes, 4 * (1 + 7 + 5 + 3));
    cr_expect_eq(stats.moved_nbytes, stats.requested_nbytes);
    cr_expect_not(is_memory(3));
    open_as("load.method=read io.threads=1");
    stats = fetched(&small);
    cr_expect_eq(stats.n_requests, 1);
    const berth_storage *first = tensor_at(0)->storage, *second = tensor_at(1)->storage;
    cr_expect_eq(stats.moved_nbytes, second->offset + second->nbytes - first->offset);
    expect_elements();
}

Test(fetch, of_a_pattern_that_fits_nothing)
{
    char expected[300];

    open_as("");
    cr_expect_eq(berth_load(checkpoint, &(berth_selection){.pattern = "x*"}, NULL, &error),
                 BERTH_E_NOT_FOUND);
    (void)snprintf(expected, sizeof expected, "%s: no tensor has a name that fits \"x*\"", path);
    cr_expect_str_eq(error.message, expected);
}

Test(fetch, directly_reads_whole_blocks_once)
{
    if (!direct_reads_work())
        cr_skip_test("no direct reads here");
    open_as("load.method=direct io.threads=1 io.chunk_nbytes=128MiB");
    berth_stats stats = fetched(NULL);
    const berth_storage *first = tensor_at(0)->storage, *last = tensor_at(N_TENSORS - 1)->storage;
    uint64_t block = checkpoint->source.access.direct.block_nbytes;
    uint64_t begin = first->offset / block * block;
    uint64_t end = (last->offset + last->nbytes + block - 1) / block * block;

    cr_expect_eq(stats.n_requests, 1);
    cr_expect_eq(stats.moved_nbytes, (end < file_nbytes ? end : file_nbytes) - begin);
    cr_expect_str_eq(stats.method, "direct");
    cr_expect_str_eq(stats_at(3).method, "direct");
    expect_elements();
}

static atomic_int n_direct_reads;
static int refusal;

/* The second request of a direct descriptor, and all behind it. */
static ssize_t refusing_pread(int fd, void *buffer, size_t nbytes, off_t offset)
{
    if (fcntl(fd, F_GETFL) & O_DIRECT && ++n_direct_reads > 1) {
        errno = refusal;
        return -1;
    }
    return pread(fd, buffer, nbytes, offset);
}

Test(fetch, goes_on_through_the_page_cache_when_a_direct_read_is_refused)
{
    /* An alignment that the device does not take; memory that it cannot reach; no such thing. */
    static const int refusals[] = {EINVAL, EFAULT, EOPNOTSUPP};

    if (!direct_reads_work())
        cr_skip_test("no direct reads here");
    for (size_t i = 0; i < 3; i++) {
        refusal = refusals[i];
        open_as("load.method=direct io.threads=1 io.chunk_nbytes=1MiB");
        bth_system.pread = refusing_pread;
        n_direct_reads = 0;
        berth_stats stats = fetched(&(berth_selection){.pattern = "t[03]"});
        cr_expect_eq(n_direct_reads, 2, "after one refusal none is tried again");
        cr_expect_str_eq(stats.method, "mixed");
        cr_expect_str_eq(stats_at(0).method, "direct");
        cr_expect_str_eq(stats_at(3).method, "direct, then read");
        cr_expect_str_eq(stats_at(3).reason, "a direct read was refused");
        fetched(NULL);
        cr_expect_eq(n_direct_reads, 2);
        cr_expect_str_eq(stats_at(7).method, "read");
        cr_expect_str_eq(stats_at(7).reason, "a direct read was refused");
        bth_system_restore();
        expect_elements();
    }
}

/* A disk that fails is no reason to ask again in another way. */
Test(fetch, directly_fails_where_the_disk_does)
{
    if (!direct_reads_work())
        cr_skip_test("no direct reads here");
    refusal = EIO;
    open_as("load.method=direct io.threads=1 io.chunk_nbytes=1MiB");
    bth_system.pread = refusing_pread;
    n_direct_reads = 0;
    cr_expect_eq(berth_load(checkpoint, NULL, NULL, &error), BERTH_E_SYSTEM, "%s", error.message);
    cr_expect_eq(error.system_errno, EIO);
    bth_system_restore();
    expect_elements();
}

Test(fetch, mixes_methods_in_one_checkpoint)
{
    const berth_storage_rule rules[] = {
        {.pattern = "t[01]", .method = BERTH_LOAD_READ},
        {.min_nbytes = 3000000, .method = BERTH_LOAD_MAP},
        {.location = "cpu", .max_nbytes = 2000000, .method = BERTH_LOAD_DIRECT}};

    open_as("load.method=read");
    assert_ok(berth_set_storage_rules(checkpoint, rules, 3, &error));
    berth_stats stats = fetched(NULL);
    cr_expect_str_eq(stats.method, "mixed");
    cr_expect_str_eq(stats_at(0).method, "read");
    cr_expect_str_eq(stats_at(0).reason, "a rule chose it");
    cr_expect_str_eq(stats_at(3).method, "map");
    if (direct_reads_work())
        cr_expect_str_eq(stats_at(7).method, "direct");
    expect_elements();
    cr_expect_eq(berth_set_storage_rules(checkpoint, rules, 3, &error), 0);
    const berth_storage_rule wrong = {.method = (berth_load_method)99};
    cr_expect_eq(berth_set_storage_rules(checkpoint, &wrong, 1, &error), BERTH_E_ARGUMENT);
}

/* ---- sources that are no files ---- */

static atomic_uint n_file_reads;
static atomic_uint_fast64_t read_nbytes;
static bool source_fails;

static int read_bytes(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    (void)context;
    if (source_fails)
        return EIO;
    memcpy(buffer, file + offset, nbytes);
    n_file_reads++;
    read_nbytes += nbytes;
    return 0;
}

static void open_source(const char *options)
{
    berth_source source = {.nbytes = file_nbytes, .name = "far", .read = read_bytes};

    assert_ok(berth_open_source(&source, only(options, NULL), &checkpoint, &error));
    n_file_reads = 0;
    read_nbytes = 0;
}

/* Small storages cost no request each. */
Test(fetch, of_many_small_ones_takes_few_requests)
{
    enum { N = 3000 };
    static const uint8_t bytes[1000] = {1, 2, 3};
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_list(tree);

    for (int i = 0; i < N; i++)
        berth_list_append(root, test_vector(tree, BERTH_UINT8, bytes, 1000));
    save_file(root, "");
    open_source("io.threads=3 io.chunk_nbytes=1MiB");
    berth_stats stats = fetched(NULL);
    cr_expect_eq(n_file_reads, stats.n_requests);
    cr_expect_eq(read_nbytes, stats.moved_nbytes);
    cr_expect_leq(n_file_reads, file_nbytes / (1 << 20) + 1);
    cr_expect_str_eq(stats.method, "read");
    cr_expect_str_eq(stats.reason, "the source is a function");
    for (size_t i = 0; i < N; i++) {
        const berth_storage *storage = bth_tree_storage(checkpoint->contents.tree, i);
        cr_assert_eq(memcmp(berth_storage_data(checkpoint, storage, NULL), bytes, 1000), 0);
    }
}

Test(fetch, of_a_source_that_fails_tells_what_it_said)
{
    open_source("io.threads=1");
    source_fails = true;
    cr_expect_eq(berth_load(checkpoint, &(berth_selection){.pattern = "t1"}, NULL, &error),
                 BERTH_E_CALLBACK);
    char expected[200];
    (void)snprintf(
        expected, sizeof expected,
        "far: \"t1\": data/1 at byte %llu: the source did not read 1200 bytes: Input/output error",
        (unsigned long long)tensor_at(1)->storage->offset);
    cr_expect_str_eq(error.message, expected);
    source_fails = false;
    fetched(NULL);
    expect_elements();
}

/* Used where it lies, or copied where that is not aligned (T5): by the file, or by the caller. */
Test(fetch, of_memory)
{
    static const char *const saved[] = {"", "save.storage_alignment=1", ""};

    for (size_t i = 0; i < 3; i++) {
        close_opened();
        save_tensors(saved[i]);
        file = realloc(file, file_nbytes + 1);
        memmove(file + (i == 2), file, file_nbytes);
        cr_assert_eq(
            berth_open_source(FROM_MEMORY(file + (i == 2), file_nbytes), NULL, &checkpoint, &error),
            0);
        berth_stats stats = fetched(NULL);
        expect_elements();
        cr_expect_eq(strcmp(stats.method, "memory") == 0, i == 0);
        if (i != 1) /* there it is a matter of luck */
            cr_expect_str_eq(stats_at(3).reason, i == 0 ? "the source is memory"
                                                        : "it is not aligned for its elements");
    }
}
