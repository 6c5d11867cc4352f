/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Every call into the system that opening, verifying and reading make fails in turn, once and for
 * ever (W6, F5): each is a clean error that names the file, or did not matter; nothing leaks, and
 * what is read is right.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/faults/inject.h"
#include "tests/support/support.h"

#define N_ELEMENTS 50000

static char *folder, *path;
static float *elements;
static unsigned n_points;

static void set_up(void)
{
    static const int64_t shape[] = {N_ELEMENTS};
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_dict(tree);

    folder = test_folder_new();
    path = test_path(folder, "model.pt");
    elements = malloc(N_ELEMENTS * sizeof *elements);
    for (int i = 0; i < N_ELEMENTS; i++)
        elements[i] = (float)i;
    berth_tensor tensor = {.dtype = BERTH_FLOAT32, .rank = 1, .shape = shape, .data = elements};
    berth_dict_set(root, "a", berth_tensor_value(tree, &tensor));
    berth_dict_set(root, "b", berth_tensor_value(tree, &tensor));
    cr_assert_eq(berth_save(path, root, NULL, NULL), 0);
    berth_tree_free(tree);
    n_points = 0;
}

static void tear_down(void)
{
    fault_clear();
    printf("fault points tried: %u\n", n_points);
    free(path);
    free(elements);
    test_folder_remove(folder);
}

TestSuite(load_faults, .init = set_up, .fini = tear_down);

/* Opens, reads both tensors, closes, verifies: 0, or the first status. */
static int use_all(const berth_call *call, berth_error *error)
{
    static const char *const names[] = {"a", "b"};
    berth_checkpoint *checkpoint;

    if (berth_open(path, call, &checkpoint, error) < 0)
        return error->code;
    for (int i = 0; i < 2 && error->code == 0; i++) {
        const void *data =
            berth_tensor_data(checkpoint, berth_find_tensor(checkpoint, names[i]), error);
        cr_expect(!data == (error->code < 0));
        if (data)
            cr_expect_arr_eq(data, elements, N_ELEMENTS * sizeof *elements);
    }
    berth_close(checkpoint);
    return error->code < 0 ? error->code : berth_verify(path, call, NULL, error);
}

static void expect_clean(const berth_call *call, const char *about, unsigned nth, bool must_fail)
{
    berth_error error;

    test_memory_watch();
    int result = use_all(call, &error);
    cr_expect_eq(test_memory_seen().live_nbytes, 0, "%s %u", about, nth);
    test_memory_unwatch();
    n_points++;
    if (must_fail)
        cr_expect_lt(result, 0, "%s %u", about, nth);
    if (result < 0) {
        cr_expect_eq(result, error.code);
        cr_expect_eq(strncmp(error.message, path, strlen(path)), 0, "%s %u: %s", about, nth,
                     error.message);
    }
}

/* The nth call of a row fails, n = 1, 2, 3 …, until there are no more. */
static void fail_each(const berth_call *call, enum fault_row row, const char *about, int number,
                      bool for_ever, bool must_fail)
{
    for (unsigned nth = 1;; nth++) {
        fault_set(row, nth, number, for_ever);
        expect_clean(call, about, nth, false);
        if (atomic_load(&fault.n_hits) == 0)
            break;
        fault_set(row, nth, number, for_ever);
        expect_clean(call, about, nth, must_fail);
    }
    fault_clear();
}

static void fail_rows(const char *options)
{
    berth_config *config = berth_config_new(NULL);
    berth_call call = {.config = config};

    cr_assert_eq(berth_config_apply(config, options, NULL), 0);
    for (int for_ever = 0; for_ever < 2; for_ever++) {
        /* Where mapping fails, auto reads. */
        fail_each(&call, FAULT_fstat, "fstat", EIO, for_ever, options[0] != 0);
        fail_each(&call, FAULT_pread, "pread", EIO, for_ever, true);
        fail_each(&call, FAULT_pread, "pread", EINTR, false, false);
        fail_each(&call, FAULT_close, "close", EIO, for_ever, false);
        fail_each(&call, FAULT_pthread_create, "pthread_create", EAGAIN, for_ever, false);
    }
    berth_config_free(config);
}

Test(load_faults, mapped)
{
    fail_rows("");
    cr_expect_gt(n_points, 20);
}

Test(load_faults, read_by_several_workers)
{
    fail_rows("load.mmap=off io.threads=3 io.chunk_nbytes=65536");
    cr_expect_gt(n_points, 50);
}

Test(load_faults, read_through_the_directory)
{
    fail_rows("load.mmap=off load.calculate_storage_offsets=off load.head_nbytes=1000");
    cr_expect_gt(n_points, 20);
}

static int refused_open(const char *name, int flags, mode_t mode)
{
    (void)name, (void)flags, (void)mode;
    errno = EMFILE;
    return -1;
}

Test(load_faults, too_many_open_files)
{
    berth_checkpoint *checkpoint;
    berth_error error;

    berth_system.open = refused_open;
    cr_expect_eq(berth_open(path, NULL, &checkpoint, &error), BERTH_E_SYSTEM);
    cr_expect_eq(error.system_errno, EMFILE);
    berth_system_restore();
    n_points++;
}

static ssize_t short_pread(int fd, void *buffer, size_t nbytes, off_t offset)
{
    return pread(fd, buffer, nbytes > 7 ? 7 : nbytes, offset);
}

/* W3 */
Test(load_faults, short_reads_are_continued)
{
    berth_config *config = berth_config_new(NULL);
    berth_call call = {.config = config};
    berth_error error;

    cr_assert_eq(berth_config_apply(config, "load.mmap=off", NULL), 0);
    berth_system.pread = short_pread;
    cr_expect_eq(use_all(&call, &error), 0, "%s", error.message);
    berth_system_restore();
    berth_config_free(config);
    n_points++;
}
