/* SPDX-License-Identifier: BSD-3-Clause */
/* Slices of tensors, and tensors that a program expects. */
#include "tests/support/load/fetch_scene.h"

TestSuite(slice, .init = begin_fetch, .fini = end_fetch);

/* Of "t3", as [5][100][1000] of int64, with any strides. */
static int64_t shape[] = {5, 100, 1000}, stride[] = {100000, 1000, 1};
static berth_tensor tensor;

static const int64_t *words(void)
{
    return (const int64_t *)(const void *)elements[3];
}

static void view(int64_t s0, int64_t s1, int64_t s2, int64_t offset)
{
    tensor = *tensor_at(3);
    stride[0] = s0, stride[1] = s1, stride[2] = s2;
    tensor.rank = 3, tensor.shape = shape, tensor.stride = stride;
    tensor.storage_offset = offset;
}

static void expect_slice(const int64_t *starts, const int64_t *sizes, const char *about)
{
    int64_t n = sizes[0] * sizes[1] * sizes[2], at = 0;
    int64_t *buffer = malloc(8 * (size_t)n + 8);

    buffer[n] = 77;
    cr_assert_eq(berth_tensor_read_slice(checkpoint, &tensor, starts, sizes, buffer, &error), 0,
                 "%s: %s", about, error.message);
    for (int64_t i = 0; i < sizes[0]; i++)
        for (int64_t j = 0; j < sizes[1]; j++)
            for (int64_t k = 0; k < sizes[2]; k++)
                cr_assert_eq(buffer[at++],
                             words()[tensor.storage_offset + (starts[0] + i) * stride[0] +
                                     (starts[1] + j) * stride[1] + (starts[2] + k) * stride[2]],
                             "%s: %d %d %d", about, (int)i, (int)j, (int)k);
    cr_expect_eq(buffer[n], 77);
    free(buffer);
}

static void expect_slices(const char *about)
{
    static const int64_t starts[][3] = {
        {0, 0, 0}, {1, 2, 3}, {4, 99, 999}, {0, 10, 100}, {3, 0, 0}};
    static const int64_t sizes[][3] = {
        {5, 100, 1000}, {3, 90, 500}, {1, 1, 1}, {5, 1, 200}, {2, 100, 64}};

    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
        expect_slice(starts[i], sizes[i], about);
}

Test(slice, has_its_elements_whatever_way_and_strides)
{
    static const char *const ways[] = {"load.method=read",
                                       "load.method=read " BACK,
                                       "load.method=direct " BACK,
                                       "load.method=read io.memory_nbytes=4096",
                                       "load.method=read load.check=data",
                                       "load.method=map"};

    for (int order = 0; order < 2; order++) {
        bool is_foreign = (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__) == (order == 0);
        save_tensors(order ? "save.byteorder=big" : "save.byteorder=little");
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            open_as(ways[i]);
            if (is_foreign && i > 3)
                continue;
            view(100000, 1000, 1, 0);
            expect_slices(ways[i]);
            view(1, 5, 500, 0); /* transposed */
            expect_slices(ways[i]);
            view(0, 1000, 1, 5); /* the same again and again */
            expect_slices(ways[i]);
            view(100, 4000, 1, 7); /* overlapping, not ascending */
            cr_assert_eq(tensor.shape[2], 1000);
            shape[2] = 100;
            const int64_t starts[] = {1, 3, 2}, sizes[] = {4, 96, 98};
            expect_slice(starts, sizes, ways[i]);
            shape[2] = 1000;
        }
        /* As bytes: rows of 4000 that begin and end within elements. */
        const int64_t starts[] = {1, 3}, sizes[] = {40, 2001};
        static int64_t byte_shape[] = {100, 4000}, byte_stride[] = {4000, 1};
        static uint8_t bytes[40][2001];
        open_as("load.method=read");
        tensor = *tensor_at(3);
        tensor.dtype = BERTH_UINT8;
        tensor.rank = 2, tensor.shape = byte_shape, tensor.stride = byte_stride;
        assert_ok(berth_tensor_read_slice(checkpoint, &tensor, starts, sizes, bytes, &error));
        for (size_t i = 0; i < 40; i++)
            cr_expect_eq(memcmp(bytes[i], (const uint8_t *)elements[3] + 4000 * (i + 1) + 3, 2001),
                         0, "order %d, row %zu", order, i);
    }
}

/* Rows far apart are requests of their own: the rest is not read. */
Test(slice, reads_no_more_than_it_must)
{
    const int64_t starts[] = {0, 3, 0}, sizes[] = {5, 1, 500};
    int64_t buffer[2500];

    open_as("load.method=read io.threads=1");
    view(100000, 1000, 1, 0);
    uint64_t before = atomic_load(&checkpoint->source.reader.moved_nbytes);
    cr_assert_eq(berth_tensor_read_slice(checkpoint, &tensor, starts, sizes, buffer, &error), 0);
    cr_expect_eq(atomic_load(&checkpoint->source.reader.moved_nbytes) - before, sizeof buffer);
}

/* W6: by runs, by rows and by storages. */
Test(slice, of_which_no_memory_is_left_is_told)
{
    static const char *const ways[] = {"load.method=read", ("load.method=direct " BACK),
                                       "load.method=read io.memory_nbytes=4096"};
    const int64_t starts[] = {0, 3, 0}, sizes[] = {5, 1, 500};
    static int64_t buffer[2500];

    for (size_t i = 0; i < 3; i++)
        for (int transposed = 0; transposed < 2; transposed++) {
            int result;
            uint64_t nth = 0;
            test_memory_watch();
            open_as(ways[i]);
            if (transposed)
                view(1, 5, 500, 0);
            else
                view(100000, 1000, 1, 0);
            do {
                test_memory_refuse(++nth, false);
                result =
                    berth_tensor_read_slice(checkpoint, &tensor, starts, sizes, buffer, &error);
                cr_expect(result == 0 || result == BERTH_E_MEMORY, "%s, allocation %u: %s", ways[i],
                          (unsigned)nth, error.message);
            } while (result < 0 && nth < 100);
            cr_expect_gt(nth, 1, "%s", ways[i]);
            test_memory_refuse(0, false);
            close_opened();
            cr_expect_eq(test_memory_seen().live_nbytes, 0, "%s", ways[i]);
            test_memory_unwatch();
        }
}

/* ---- what is told to the system ---- */

static bool is_cached;
static _Atomic int n_asked, n_announced;
static _Atomic uint64_t announced_nbytes;

static int cachestat_of_an_old_system(int fd, void *range, void *counts, unsigned flags)
{
    (void)fd, (void)range, (void)counts, (void)flags;
    errno = ENOSYS;
    return -1;
}

static ssize_t preadv2_that_counts(int fd, const struct iovec *pieces, int n, off_t offset,
                                   int flags)
{
    (void)fd, (void)pieces, (void)n, (void)offset, (void)flags;
    n_asked++;
    errno = EAGAIN;
    return is_cached ? 1 : -1;
}

static int fadvise_that_counts(int fd, off_t offset, off_t nbytes, int advice)
{
    if (advice == POSIX_FADV_WILLNEED) {
        n_announced++;
        announced_nbytes += (uint64_t)nbytes;
    }
    return posix_fadvise(fd, offset, nbytes, advice);
}

/* Runs of 2400 bytes. */
static void read_runs(int64_t n_rows, const char *options)
{
    const int64_t starts[3] = {0}, sizes[] = {5, n_rows, 300};

    open_as(options);
    shape[1] = n_rows;
    view(100000, 100000 / n_rows, 1, 0);
    n_asked = n_announced = 0;
    announced_nbytes = 0;
    bth_system.cachestat = cachestat_of_an_old_system;
    bth_system.preadv2 = preadv2_that_counts;
    bth_system.posix_fadvise = fadvise_that_counts;
    expect_slice(starts, sizes, options);
    bth_system_restore();
}

/* A disk would wait for each. Small gaps are announced with the runs. */
Test(slice, runs_that_are_not_in_the_page_cache_are_announced)
{
    read_runs(50, "load.mmap=off io.threads=1");
    cr_expect_eq(n_announced, 5 * 50);
    cr_expect_eq(announced_nbytes, 5 * 50 * 2400);
    read_runs(100, "load.mmap=off io.threads=3");
    cr_expect_eq(n_announced, 1);
    cr_expect_eq(announced_nbytes, 499 * 8000 + 2400);
}

/* It is asked for 64 pages at most: once, though the choice of a method may need to know, too. */
Test(slice, runs_in_the_page_cache_are_not)
{
    is_cached = true;
    read_runs(50, "load.mmap=off");
    cr_expect_eq(n_announced, 0);
    cr_expect(n_asked > 0 && n_asked <= 64, "%d", n_asked);
}

Test(slice, outside_the_tensor_is_refused)
{
    static const struct {
        int64_t starts[3], sizes[3];
    } cases[] = {{{-1, 0, 0}, {1, 1, 1}},        {{0, 0, 0}, {1, 1, 1001}},
                 {{5, 0, 0}, {1, 1, 1}},         {{6, 0, 0}, {0, 1, 1}},
                 {{0, 0, 0}, {1, -1, 1}},        {{0, INT64_MAX, 0}, {1, 1, 1}},
                 {{0, 1, 0}, {1, INT64_MAX, 1}}, {{0, INT64_MIN, 0}, {1, INT64_MIN, 1}}};
    const int64_t starts[] = {5, 100, 1000}, sizes[] = {0, 0, 0};
    int64_t word;

    open_as("");
    view(100000, 1000, 1, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_expect_eq(berth_tensor_read_slice(checkpoint, &tensor, cases[i].starts, cases[i].sizes,
                                             &word, &error),
                     BERTH_E_ARGUMENT, "case %zu", i);
        cr_expect_not_null(strstr(error.message, "dimension"), "%s", error.message);
    }
    cr_expect_eq(berth_tensor_read_slice(checkpoint, &tensor, starts, sizes, NULL, &error), 0);
}

/* Two elements a byte: nothing is read that would cut one. */
Test(slice, of_elements_smaller_than_a_byte_only_the_whole_is_read)
{
    static const uint8_t packed[] = {0x21, 0x43, 0x65, 0x87};
    static const int64_t eight[] = {8}, four[] = {2, 2}, columns[] = {1, 2}, one[] = {1},
                         two[] = {2};
    static const struct {
        int64_t offset, first, n;
        const int64_t *shape, *stride;
        int32_t rank;
    } bad[] = {{0, 1, 7, eight, one, 1}, {0, 0, 7, eight, one, 1}, {0, 0, 6, eight, one, 1},
               {0, 2, 6, eight, one, 1}, {1, 0, 2, two, one, 1},   {0, 0, 4, four, columns, 2}};
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    uint8_t read[8] = {0};

    berth_dict_set(root, "p",
                   berth_make_tensor(tree, &(berth_tensor){.dtype = BERTH_QUINT4X2,
                                                           .rank = 1,
                                                           .shape = eight,
                                                           .stride = one,
                                                           .qscheme = BERTH_PER_TENSOR_AFFINE,
                                                           .scale = 0.5,
                                                           .data = packed}));
    assert_ok(berth_save(path, root, NULL, &error));
    berth_tree_free(tree);
    open_as("");
    const berth_tensor *whole = berth_find_tensor(checkpoint, "p", &error);
    cr_assert_not_null(whole, "%s", error.message);
    assert_ok(berth_tensor_read(checkpoint, whole, 0, 8, read, &error));
    cr_expect_arr_eq(read, packed, sizeof packed);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tensor = *whole;
        tensor.storage_offset = bad[i].offset;
        tensor.rank = bad[i].rank, tensor.shape = bad[i].shape, tensor.stride = bad[i].stride;
        cr_expect_eq(berth_tensor_read(checkpoint, &tensor, bad[i].first, bad[i].n, read, &error),
                     BERTH_E_UNSUPPORTED, "%zu: %s", i, error.message);
        cr_expect(strstr(error.message, "only the whole of a contiguous tensor can be read"),
                  "%zu: %s", i, error.message);
    }
    tensor = *whole; /* from the middle on, where a byte begins */
    tensor.storage_offset = 2, tensor.shape = (const int64_t[]){6};
    assert_ok(berth_tensor_read(checkpoint, &tensor, 0, 6, read, &error));
    cr_expect_arr_eq(read, packed + 1, 3);
    tensor.storage_offset = 1;
    cr_expect_null(berth_tensor_data(checkpoint, &tensor, &error));
    cr_expect(strstr(error.message, "are smaller than a byte: this tensor begins within a byte"),
              "%s", error.message);
}

/* ---- berth_expect ---- */

static void expect_different(const char *name, berth_dtype dtype, int32_t rank,
                             const int64_t *expected, int status, const char *text)
{
    cr_expect_null(berth_expect(checkpoint, name, dtype, rank, expected, &error));
    cr_expect_eq(error.code, status, "%s", error.message);
    cr_expect_not_null(strstr(error.message, text), "%s", error.message);
}

Test(slice, of_what_is_expected_is_given_or_the_difference_is_told)
{
    const int64_t any[] = {-1}, right[] = {500000}, wrong[] = {500001}, two[] = {-1, 7};

    open_as("");
    const void *data = berth_expect(checkpoint, "t3", BERTH_INT64, 1, right, &error);
    cr_assert_not_null(data, "%s", error.message);
    cr_expect_eq(memcmp(data, elements[3], 4000000), 0);
    cr_expect_eq(berth_expect(checkpoint, "t3", BERTH_INT64, 1, any, &error), data);
    expect_different("t3", BERTH_INT64, 1, wrong, BERTH_E_ARGUMENT,
                     "\"t3\" has the shape [500000], expected: [500001]");
    expect_different("t3", BERTH_INT64, 2, two, BERTH_E_ARGUMENT, "expected: [any, 7]");
    expect_different("t3", BERTH_INT64, 0, NULL, BERTH_E_ARGUMENT, "expected: []");
    int64_t long_one[40];
    for (size_t d = 0; d < 40; d++)
        long_one[d] = 1000000000;
    expect_different("t3", BERTH_INT64, 40, long_one, BERTH_E_ARGUMENT,
                     "1000000000, 1000000000, ...");
    expect_different("t3", BERTH_FLOAT32, 1, right, BERTH_E_ARGUMENT,
                     "elements of int64, expected: float32");
    expect_different("t33", BERTH_INT64, 1, right, BERTH_E_NOT_FOUND, "t33");
    expect_different("t3", BERTH_INT64, 1, NULL, BERTH_E_ARGUMENT, "needs a rank and a shape");
    expect_different("t3", BERTH_INT64, -1, any, BERTH_E_ARGUMENT, "needs a rank and a shape");
    expect_different("", BERTH_INT64, 1, any, BERTH_E_ARGUMENT, "is not a tensor: it is");
    cr_expect_null(berth_expect(NULL, "t3", BERTH_INT64, 1, any, &error));
}

Test(slice, of_a_meta_tensor_nothing_is_given)
{
    static const int64_t three[] = {3}, one[] = {1};
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);

    berth_dict_set(root, "m",
                   berth_make_tensor(tree, &(berth_tensor){.dtype = BERTH_INT64,
                                                           .rank = 1,
                                                           .shape = three,
                                                           .stride = one,
                                                           .flags = BERTH_META}));
    assert_ok(berth_save(path, root, NULL, &error));
    berth_tree_free(tree);
    open_as("");
    expect_different("m", BERTH_INT64, 1, three, BERTH_E_ARGUMENT,
                     "is a meta tensor: it has no data");
}
