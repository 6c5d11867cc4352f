/* SPDX-License-Identifier: BSD-3-Clause */
/* How bytes become memory: mapped, read, where they lie; alignment, lifetime, changing files. */
#include <berth/device.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "format/values/value.h"
#include "io/syscalls.h"
#include "load/checkpoint.h"
#include "tests/support/io/refusals.h"
#include "tests/support/load/archive.h"

static void tear_down(void)
{
    bth_system_restore();
    berth_set_log(NULL, NULL);
    end_sample_file();
}

TestSuite(storages, .init = begin_sample_file, .fini = tear_down);

/* Opens the file at a path with these options alone. */
static void open_at(const char *at, const char *options, berth_stats *stats)
{
    close_opened();
    assert_ok(berth_open(at, only(options, stats), &checkpoint, &error));
}

static void open_path(const char *options)
{
    open_at(path, options, NULL);
}

/* ---- one file, many ways ---- */

Test(storages, every_method_gives_the_same_values_and_tells_itself)
{
    static const struct {
        const char *options, *method, *reason;
    } cases[] = {
        {"", "map", "the source is a file"},
        {"load.method=map", "map", "load.method=map"},
        {"load.method=read", "read", "load.method=read"},
        {"load.mmap=off", "read", "load.mmap=off"},
        {"load.method=map load.mmap_flags=shared", "map", "load.method=map"},
        {"load.mmap_flags=private,populate", "map", "the source is a file"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        berth_stats stats;
        open_at(path, cases[i].options, &stats);
        cr_expect_str_eq(stats.method, cases[i].method, "%s", cases[i].options);
        cr_expect_str_eq(stats.reason, cases[i].reason, "%s", cases[i].options);
        expect_sample_values();
        cr_expect_arr_eq(data_of("weight"), sample_weight, sizeof sample_weight);
    }
}

Test(storages, of_a_descriptor_and_of_memory)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    berth_stats stats;
    berth_params call = {.stats = &stats};

    cr_assert_eq(berth_open_source(FROM_FD(fd), &call, &checkpoint, NULL), 0);
    close(fd);
    expect_sample_values();
    close_opened();
    cr_assert_eq(berth_open_source(FROM_MEMORY(file, file_nbytes), &call, &checkpoint, NULL), 0);
    cr_expect_str_eq(stats.method, "memory");
    expect_sample_values();
    const uint8_t *weight = data_of("weight");
    cr_expect(weight > file && weight < file + file_nbytes, "used where it lies");
}

Test(storages, a_private_map_can_be_written_and_changes_no_file)
{
    open_path("");
    size_t nbytes;

    ((float *)(uintptr_t)data_of("weight"))[0] = 7;
    uint8_t *now = test_read_file(path, &nbytes);
    cr_expect_eq(nbytes, file_nbytes);
    cr_expect_arr_eq(now, file, nbytes);
    free(now);
}

Test(storages, a_shared_map_is_read_only)
{
    open_path("load.mmap_flags=shared");
    int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);

    /* The kernel will not write there either, and tells instead of killing. */
    cr_expect_eq(read(zero, (void *)(uintptr_t)data_of("weight"), 4), -1);
    cr_expect_eq(errno, EFAULT);
    close(zero);
}

Test(storages, what_the_caller_wrote_is_what_a_storage_holds)
{
    open_path("");
    const berth_tensor *weight = berth_find_tensor(checkpoint, "weight", NULL);
    float first;

    ((float *)(uintptr_t)data_of("weight"))[0] = 7;
    cr_assert_eq(berth_tensor_read(checkpoint, weight, 0, 1, &first, NULL), 0);
    cr_expect_eq(first, 7);
}

Test(storages, views_of_one_storage_have_one_memory)
{
    read_file("torch/small.pt");
    open_file("");
    const float *base = data_of("base");
    const float *row = data_of("row");
    cr_expect_eq(row, base + 4);
    cr_expect_eq(
        berth_storage_data(checkpoint, berth_find_tensor(checkpoint, "row", NULL)->storage, NULL),
        base);
}

/* T5 */
Test(storages, memory_is_aligned_whatever_the_file_is)
{
    static const char *const options[] = {"", "load.mmap=off"};
    static const char *const names[] = {"base", "integers", "words", "complex", "row", "weight"};

    for (size_t i = 0; i < 2; i++) {
        open_at("tests/data/torch/unaligned.pt", options[i], NULL);
        for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
            const berth_tensor *tensor = berth_find_tensor(checkpoint, names[n], NULL);
            uintptr_t address = (uintptr_t)berth_tensor_data(checkpoint, tensor, NULL);
            cr_expect_neq(address, 0);
            cr_expect_eq(address % bth_dtype_swap_nbytes(tensor->dtype), 0, "%s", names[n]);
        }
    }
}

Test(storages, an_empty_one_has_an_address)
{
    open_at("tests/data/torch/small.pt", "", NULL);
    const berth_tensor *empty = berth_find_tensor(checkpoint, "empty", NULL);
    cr_expect_not_null(berth_tensor_data(checkpoint, empty, NULL));
    cr_expect_not_null(berth_storage_data(checkpoint, empty->storage, NULL));
    cr_expect_eq(berth_tensor_read(checkpoint, empty, 0, 0, NULL, NULL), 0);
}

/* ---- elements ---- */

Test(storages, elements_are_read_in_row_major_order_from_anywhere)
{
    static const float expected[] = {0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11};
    static const char *const options[] = {"", "load.mmap=off"};

    for (size_t i = 0; i < 2; i++) {
        float got[12];
        open_at("tests/data/torch/small.pt", options[i], NULL);
        const berth_tensor *transposed = berth_find_tensor(checkpoint, "transposed", NULL);
        const berth_tensor *row = berth_find_tensor(checkpoint, "row", NULL);
        for (int64_t first = 0; first <= 12; first++)
            for (int64_t n = 0; n <= 12 - first; n++) {
                cr_expect_eq(berth_tensor_read(checkpoint, transposed, first, n, got, NULL), 0);
                cr_expect_arr_eq(got, expected + first, (size_t)n * 4);
            }
        cr_expect_eq(berth_tensor_read(checkpoint, row, 1, 2, got, NULL), 0);
        cr_expect_arr_eq(got, ((const float[]){5, 6}), 8);
    }
}

/* T1: the end of its last row does not fit 63 bits together with the first element. */
Test(storages, rows_of_almost_as_many_elements_as_there_can_be)
{
    const int64_t shape[] = {INT64_MAX / 2, 2}, stride[] = {0, 1};
    uint8_t got[2], expected[4];

    open_at("tests/data/torch/small.pt", "load.method=read", NULL);
    berth_tensor many = *berth_find_tensor(checkpoint, "row", NULL);
    cr_assert_eq(berth_storage_get_info(many.storage)->nbytes >= 4, 1);
    many.dtype = BERTH_UINT8;
    many.storage_offset = 0;
    many.rank = 2, many.shape = shape;
    many.stride = stride;
    assert_ok(berth_tensor_read(checkpoint, &many, INT64_MAX - 3, 2, got, &error));
    many.rank = 1, many.shape = (const int64_t[]){4}, many.stride = (const int64_t[]){1};
    assert_ok(berth_tensor_read(checkpoint, &many, 0, 4, expected, &error));
    cr_expect_arr_eq(got, expected, 2);
}

/* T2: each call refuses them, and its message uses nothing of them. */
Test(storages, malformed_tensors_of_the_caller_are_refused)
{
    open_at("tests/data/torch/small.pt", "", NULL);
    berth_tensor bad[3];
    for (size_t i = 0; i < 3; i++)
        bad[i] = *berth_find_tensor(checkpoint, "row", NULL);
    bad[0].shape = NULL;
    bad[1].rank = 100000000;
    bad[2].flags |= BERTH_META;
    bad[2].storage = (berth_storage *)(uintptr_t)64;
    static const char *const why[] = {"a tensor without a shape or stride",
                                      "a tensor of rank 100000000 (0 to 64)",
                                      "a meta tensor has no data"};
    for (size_t i = 0; i < 3; i++) {
        const berth_tensor *tensor = &bad[i];
        const int64_t start = 0, length = 1;
        float got[4];
        uintptr_t address;
        char expected[200];
        const berth_destination destination = {
            .tensor = tensor, .address = got, .nbytes = sizeof got};
        const berth_selection selection = {.tensors = &tensor, .n_tensors = 1};
        (void)snprintf(expected, sizeof expected, "tests/data/torch/small.pt: %s", why[i]);
        cr_expect_null(berth_tensor_data(checkpoint, tensor, &error));
        cr_expect_str_eq(error.message, expected);
        cr_expect_lt(berth_tensor_read(checkpoint, tensor, 0, 1, got, &error), 0);
        cr_expect_str_eq(error.message, expected);
        cr_expect_lt(berth_tensor_read_slice(checkpoint, tensor, &start, &length, got, &error), 0);
        cr_expect_str_eq(error.message, expected);
        cr_expect_lt(berth_tensor_device_address(checkpoint, tensor, &address, &error), 0);
        cr_expect_str_eq(error.message, expected);
        cr_expect_lt(berth_load_into(checkpoint, &destination, 1, NULL, &error), 0);
        cr_expect(strstr(error.message, why[i]), "%s", error.message);
        cr_expect_lt(berth_load(checkpoint, &selection, NULL, &error), 0);
        cr_expect(strstr(error.message, why[i]), "%s", error.message);
    }
}

Test(storages, questions_that_do_not_fit_are_refused)
{
    berth_checkpoint *other;
    float got[12];

    open_at("tests/data/torch/small.pt", "", NULL);
    cr_assert_eq(berth_open("tests/data/torch/small.pt", NULL, &other, NULL), 0);
    const berth_tensor *row = berth_find_tensor(checkpoint, "row", NULL);
    FAILS(berth_tensor_read(checkpoint, row, 3, 2, got, &error), BERTH_E_ARGUMENT,
          "tests/data/torch/small.pt: \"row\": data/0: 2 elements from element 3 on were "
          "requested, but the tensor has 4");
    cr_expect_eq(berth_tensor_read(checkpoint, row, -1, 1, got, &error), BERTH_E_ARGUMENT);
    cr_expect_eq(berth_tensor_read(checkpoint, row, INT64_MAX, INT64_MAX, got, &error),
                 BERTH_E_ARGUMENT);
    cr_expect_null(berth_tensor_data(other, row, &error));
    cr_expect_str_eq(error.message,
                     "tests/data/torch/small.pt: the storage is of another checkpoint or tree");
    cr_expect_null(data_of("meta"));
    cr_expect_eq(error.code, BERTH_E_ARGUMENT);
    cr_expect_null(berth_tensor_data(checkpoint, NULL, &error));
    cr_expect_null(berth_storage_data(checkpoint, NULL, &error));
    cr_expect_null(berth_tensor_data(NULL, row, &error));
    /* T2: a struct of the caller's is checked like one of the file. */
    berth_tensor mine = *row;
    mine.storage_offset = 9;
    cr_expect_null(berth_tensor_data(checkpoint, &mine, &error));
    cr_expect_eq(error.code, BERTH_E_TENSOR);
    mine.storage_offset = 8;
    cr_expect_not_null(berth_tensor_data(checkpoint, &mine, &error));
    berth_close(other);
}

static uint64_t moved_nbytes;

static int counted_read(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    (void)context;
    memcpy(buffer, file + offset, nbytes);
    moved_nbytes += nbytes;
    return 0;
}

Test(storages, rows_of_what_is_not_mapped_are_read_alone)
{
    berth_source source = {.nbytes = file_nbytes, .read = counted_read};
    berth_stats stats;
    float row[3];

    cr_assert_eq(berth_open_source(&source, &(berth_params){.stats = &stats}, &checkpoint, NULL),
                 0);
    cr_expect_str_eq(stats.method, "read");
    cr_expect_str_eq(stats.reason, "the source is a function");
    uint64_t before = moved_nbytes;
    cr_expect_eq(berth_tensor_read(checkpoint, berth_find_tensor(checkpoint, "weight", NULL), 3, 3,
                                   row, NULL),
                 0);
    cr_expect_arr_eq(row, ((const float[]){3, 4, 5}), sizeof row);
    cr_expect_eq(moved_nbytes - before, 12);
    expect_sample_values();
}

/* Columns [2, 12) of rows of 100: rows that lie together are read together, and no others. */
Test(storages, rows_with_gaps_are_read_without_the_rest_of_the_table)
{
    enum { N_ROWS = 5000, N_COLUMNS = 100, N_SEEN = 10 };
    static const int64_t shape[] = {N_ROWS, N_SEEN}, stride[] = {N_COLUMNS, 1};
    static int32_t table[N_ROWS * N_COLUMNS], got[N_ROWS * N_SEEN];
    static const int64_t ranges[][2] = {{0, 1},      {7, 12},    {25, 100},
                                        {49990, 10}, {0, 20000}, {3, 0}};
    berth_tree *tree = berth_tree_new(NULL);

    for (int32_t i = 0; i < N_ROWS * N_COLUMNS; i++)
        table[i] = i;
    berth_storage *storage = berth_storage_new(tree, BERTH_INT32, table, sizeof table, NULL);
    berth_value *value = berth_make_tensor(tree, &(berth_tensor){.dtype = BERTH_INT32,
                                                                 .rank = 2,
                                                                 .shape = shape,
                                                                 .stride = stride,
                                                                 .storage_offset = 2,
                                                                 .storage = storage});
    save_file(value, "");
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        berth_source source = {.nbytes = file_nbytes, .read = counted_read};
        int64_t first = ranges[i][0], n = ranges[i][1];
        cr_assert_eq(berth_open_source(&source, only("load.check=none", NULL), &checkpoint, NULL),
                     0);
        moved_nbytes = 0;
        const berth_tensor *tensor = berth_as_tensor(berth_root(checkpoint));
        assert_ok(berth_tensor_read(checkpoint, tensor, first, n, got, &error));
        for (int64_t k = 0; k < n; k++) {
            int64_t at = first + k;
            cr_assert_eq(got[k], at / N_SEEN * N_COLUMNS + at % N_SEEN + 2);
        }
        uint64_t rows = n == 0 ? 0 : (uint64_t)((first + n - 1) / N_SEEN - first / N_SEEN + 1);
        cr_expect_leq(moved_nbytes, rows * N_COLUMNS * 4);
        cr_expect_geq(moved_nbytes, (uint64_t)n * 4);
        /* More than half of the table: then all of it, once. */
        cr_assert_eq(berth_tensor_read(checkpoint, tensor, 0, N_ROWS * N_SEEN, got, &error), 0);
        cr_expect_eq(got[N_ROWS * N_SEEN - 1], (N_ROWS - 1) * N_COLUMNS + 11);
        close_opened();
    }
}

/* T5: elements that begin in the middle of bytes are copied, never handed out where they lie. */
Test(storages, elements_in_the_middle_of_bytes_are_copied)
{
    static const uint8_t nine[9] = {9, 1, 2, 3, 4, 5, 6, 7, 8};
    static const int64_t all[] = {9}, two[] = {2};
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_storage *storage = berth_storage_new(tree, BERTH_DTYPE_NONE, nine, 9, NULL);
    uint32_t got[2];

    berth_dict_set(
        root, "words",
        berth_make_tensor(
            tree,
            &(berth_tensor){.dtype = BERTH_UINT32, .rank = 1, .shape = two, .storage = storage}));
    berth_dict_set(
        root, "bytes",
        berth_make_tensor(
            tree,
            &(berth_tensor){.dtype = BERTH_UINT8, .rank = 1, .shape = all, .storage = storage}));
    save_file(root, "");
    open_file("");
    const berth_tensor *words = berth_find_tensor(checkpoint, "words", NULL);
    cr_expect_arr_eq(berth_tensor_data(checkpoint, words, NULL), nine, 8);
    /* As a stream's view of a storage could lie: one byte further. */
    berth_storage *moved = (berth_storage *)(uintptr_t)words->storage;
    atomic_fetch_add(&((bth_storage_state *)moved->context)->memory, 1);
    cr_expect_null(berth_tensor_data(checkpoint, words, &error));
    cr_expect_eq(error.code, BERTH_E_UNSUPPORTED);
    cr_expect_str_eq(error.message, "memory: \"words\": data/0: the elements are not aligned to 4 "
                                    "bytes: copy them with berth_tensor_read");
    cr_expect_eq(berth_tensor_read(checkpoint, words, 0, 2, got, &error), 0);
    cr_expect_arr_eq(got, nine + 1, 8);
}

/* ---- files that change (F1, W9) ---- */

Test(storages, a_file_that_got_shorter_is_an_error_not_a_signal)
{
    static const char *const options[] = {"load.method=map", "load.method=read", ""};

    for (size_t i = 0; i < 3; i++) {
        test_write_file(path, file, file_nbytes);
        open_path(options[i]);
        cr_assert_eq(truncate(path, 500), 0);
        cr_expect_null(data_of("weight"));
        cr_expect_eq(error.code, BERTH_E_TRUNCATED, "%s", error.message);
        cr_expect_str_eq(error.record, "data/0");
        cr_expect_gt(error.offset, 500, "%s", error.message);
    }
}

/* A look at the file's size counts for so long. */
static void wait_for_next_tick(void)
{
    uint64_t tick = bth_clock_read_coarse_tick();

    while (bth_clock_read_coarse_tick() == tick)
        (void)usleep(500);
}

Test(storages, a_file_that_got_shorter_after_its_first_storage_was_mapped)
{
    open_path("");

    cr_assert_not_null(data_of("weight"));
    cr_assert_eq(truncate(path, 500), 0);
    wait_for_next_tick();
    cr_expect_null(data_of("bias"));
    cr_expect_eq(error.code, BERTH_E_TRUNCATED, "%s", error.message);
}

static size_t n_fstats;

static int counting_fstat(int fd, struct stat *status)
{
    n_fstats++;
    return fstat(fd, status);
}

/* Who asks for one after the other does not pay for each. */
Test(storages, the_size_is_looked_at_once_in_a_tick)
{
    bool was_one_tick = false;

    bth_system.fstat = counting_fstat;
    for (int i = 0; i < 10000 && !was_one_tick; i++) {
        open_path("");
        const berth_tensor *bias = berth_find_tensor(checkpoint, "bias", NULL);
        uint64_t tick = bth_clock_read_coarse_tick();
        cr_assert_not_null(data_of("weight"));
        n_fstats = 0;
        cr_assert_not_null(berth_tensor_data(checkpoint, bias, NULL));
        size_t n = n_fstats;
        was_one_tick = bth_clock_read_coarse_tick() == tick;
        cr_expect(n == 0 || !was_one_tick);
        wait_for_next_tick();
        n_fstats = 0;
        cr_assert_not_null(data_of("words"));
        cr_expect_eq(n_fstats, 1);
    }
    cr_expect(was_one_tick);
}

Test(storages, a_file_that_is_replaced_or_deleted_stays_whole_for_who_has_it_open)
{
    static const char *const options[] = {"load.method=map", "load.method=read"};

    for (size_t i = 0; i < 2; i++) {
        test_write_file(path, file, file_nbytes);
        open_path(options[i]);
        char *other = test_path(folder, "other.pt");
        test_write_file(other, "nothing", 7);
        cr_assert_eq(rename(other, path), 0);
        expect_sample_values();
        cr_assert_eq(unlink(path), 0);
        expect_sample_values();
        close_opened();
        free(other);
    }
}

/* ---- faults of the system ---- */

static char logged[512];

static void keep_log(void *context, const char *message)
{
    (void)context;
    (void)snprintf(logged, sizeof logged, "%s", message);
}

Test(storages, where_nothing_can_be_mapped_they_are_read_and_it_is_told)
{
    open_path("");
    char expected[512];
    berth_storage_stats stats;

    berth_set_log(keep_log, NULL);
    refused_mmap_errno = ENODEV;
    bth_system.mmap = refused_mmap;
    expect_sample_values();
    cr_expect_not_null(data_of("weight"));
    (void)snprintf(
        expected, sizeof expected,
        "%s: the file is read, not mapped: at byte 0: %zu bytes cannot be mapped: No such device",
        path, file_nbytes);
    cr_expect_str_eq(logged, expected);
    close_opened();
    open_path("load.method=map");
    cr_expect_not_null(data_of("weight"));
    const berth_storage *storage = berth_find_tensor(checkpoint, "weight", NULL)->storage;
    cr_assert_eq(berth_storage_get_stats(checkpoint, storage, &stats, NULL), 0);
    cr_expect_str_eq(stats.method, "read");
    cr_expect_str_eq(stats.reason, "the file cannot be mapped");
    close_opened();
    bth_system_restore();
    berth_set_log(NULL, NULL);
}

/* F5, W1: whichever read fails, the error names the file, and asking again may succeed. */
Test(storages, a_read_that_fails_is_told_and_leaves_all_as_it_was)
{
    open_path("load.mmap=off");

    bth_system.pread = failing_pread;
    n_reads_left = 0;
    cr_expect_null(data_of("weight"));
    cr_expect_eq(error.code, BERTH_E_SYSTEM);
    cr_expect_eq(error.system_errno, EIO);
    cr_expect_eq(strncmp(error.message, path, strlen(path)), 0, "%s", error.message);
    cr_expect_arr_eq(data_of("weight"), sample_weight, sizeof sample_weight);
}
