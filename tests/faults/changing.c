/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * W9: the file is replaced, deleted or truncated while it is read, before the Nth call of every row
 * that reading makes. Who has it open keeps it whole; a truncated one that is not mapped is an
 * error.
 */
#include <berth/config.h>

#include "tests/support/faults/save_scene.h"

enum { N_FLOATS = 20000 };

static float *elements;
static char *copy_path;
static off_t cut_to;
static uint8_t *old_file, *new_file; /* of the same size and layout: the hardest to notice */
static size_t old_nbytes, new_nbytes;

/* Every element of version v is v. */
static int save_floats(float version, berth_error *error)
{
    static const int64_t shape[] = {N_FLOATS};
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);

    for (int i = 0; i < N_FLOATS; i++)
        elements[i] = version;
    berth_tensor tensor = {.dtype = BERTH_FLOAT32, .rank = 1, .shape = shape, .data = elements};
    berth_dict_set(root, "a", berth_make_tensor(tree, &tensor));
    berth_dict_set(root, "b", berth_make_tensor(tree, &tensor));
    int status = berth_save(path, root, NULL, error);
    berth_tree_free(tree);
    return status;
}

static void set_up(void)
{
    berth_error error;

    begin_faults();
    elements = malloc(N_FLOATS * sizeof *elements);
    copy_path = test_path(folder, "copy.pt");
    cr_assert_eq(berth_config_set("save.durability", "none", NULL, NULL), 0);
    cr_assert_eq(save_floats(2, &error), 0, "%s", error.message);
    new_file = test_read_file(path, &new_nbytes);
    cr_assert_eq(save_floats(1, &error), 0, "%s", error.message);
    old_file = test_read_file(path, &old_nbytes);
    cr_assert_eq(old_nbytes, new_nbytes);
}

static void tear_down(void)
{
    free(elements), free(copy_path), free(old_file), free(new_file);
    end_faults();
}

TestSuite(changing, .init = set_up, .fini = tear_down, .timeout = 600);

/* ---- what happens to the file; without the stand-ins, which are being asked ---- */

static void replace(void)
{
    char *other = test_path(folder, "other.pt");

    test_write_file(other, new_file, new_nbytes);
    cr_assert_eq(rename(other, path), 0);
    free(other);
}

static void delete (void)
{
    (void)unlink(path);
}

static void cut(void)
{
    cr_assert_eq(truncate(path, cut_to), 0);
}

/* ---- readers ---- */

/* All elements are of one version. 0 or the first error. */
static int read_by(bool at_once, berth_error *error)
{
    static const char *const names[] = {"a", "b"};
    berth_checkpoint *checkpoint;
    float first = 0;

    if (berth_open(path, NULL, &checkpoint, error) < 0)
        return error->code;
    if (at_once)
        (void)berth_load(checkpoint, NULL, NULL, error);
    for (int i = 0; i < 2 && error->code == 0; i++) {
        const float *data =
            berth_tensor_data(checkpoint, berth_find_tensor(checkpoint, names[i], NULL), error);
        if (data && i == 0)
            first = *data;
        for (int j = 0; data && j < N_FLOATS; j++)
            cr_assert(data[j] >= first && data[j] <= first, "elements of two files");
    }
    berth_close(checkpoint);
    if (error->code == 0)
        cr_assert((first >= 1 && first <= 1) || (first >= 2 && first <= 2), "%f", (double)first);
    return error->code;
}

static int read_all(berth_error *error)
{
    return read_by(false, error);
}

static int fetch_all(berth_error *error)
{
    return read_by(true, error);
}

/* Opens it, and saves what is in it to another path, whose old file stays where that fails. */
static int read_and_save(berth_error *error)
{
    berth_checkpoint *checkpoint;

    (void)unlink(copy_path);
    test_write_file(copy_path, OLD, strlen(OLD));
    if (berth_open(path, NULL, &checkpoint, error) == 0) {
        cr_expect_eq(berth_save(copy_path, berth_root(checkpoint), NULL, error), (int)error->code);
        berth_close(checkpoint);
    }
    size_t nbytes;
    uint8_t *copy = test_read_file(copy_path, &nbytes);
    if (error->code < 0)
        cr_assert(nbytes == strlen(OLD) && memcmp(copy, OLD, nbytes) == 0, "%s", error->message);
    else
        cr_assert_eq(berth_verify(FROM_PATH(copy_path), NULL, NULL, NULL, NULL, NULL), 0);
    free(copy);
    return error->code;
}

static int verify(berth_error *error)
{
    return berth_verify(FROM_PATH(path), NULL, NULL, NULL, NULL, error);
}

static int (*const readers[])(berth_error *) = {read_all, fetch_all, read_and_save, verify};
#define N_READERS (sizeof readers / sizeof *readers)

/* ---- before every call ---- */

static const enum fault_row rows[] = {FAULT_open,    FAULT_fstat,          FAULT_pread, FAULT_mmap,
                                      FAULT_preadv2, FAULT_pthread_create, FAULT_close};
#define N_ROWS (sizeof rows / sizeof *rows)

static bool may_be(int status, void (*change)(void))
{
    if (status == 0)
        return true;
    if (change == delete)
        return status == BERTH_E_NOT_FOUND;
    return change == cut && (status == BERTH_E_TRUNCATED || status == BERTH_E_CHECKSUM ||
                             status == BERTH_E_NOT_CHECKPOINT || status == BERTH_E_ARCHIVE ||
                             status == BERTH_E_CALLBACK);
}

/* False: the call was not reached any more. */
static bool change_before(enum fault_row row, unsigned nth, void (*change)(void),
                          int (*reader)(berth_error *))
{
    size_t n_open = n_open_files();
    berth_error error;

    (void)unlink(path); /* or ext4 flushes it at once */
    test_write_file(path, old_file, old_nbytes);
    fault_set(row, nth, 0, false);
    fault.before = change;
    test_memory_watch();
    int status = reader(&error);
    cr_assert_eq(test_memory_seen().live_nbytes, 0, "memory leaks");
    test_memory_unwatch();
    bool hit = atomic_load(&fault.n_hits) > 0;
    fault_clear();
    cr_assert_eq(status, error.code);
    cr_assert(may_be(status, change), "%s, call %u: %s (%s)", fault_row_names[row], nth,
              error.message, berth_status_name(error.code));
    cr_assert_eq(n_open_files(), n_open, "a descriptor leaks");
    n_points += hit;
    return hit;
}

static void change_everywhere(const char *options, void (*change)(void))
{
    cr_assert_eq(berth_config_patch(options, NULL), 0);
    for (size_t reader = 0; reader < N_READERS; reader++)
        for (size_t row = 0; row < N_ROWS; row++)
            for (unsigned nth = 1; change_before(rows[row], nth, change, readers[reader]);)
                nth++;
    berth_config_unpatch(NULL);
}

static const char *const unmapped[] = {
    "load.mmap=off",
    "load.mmap=off io.threads=3 io.chunk_nbytes=4096",
    "load.mmap=off load.method=direct io.threads=1",
    "load.mmap=off load.check=data load.calculate_storage_offsets=off load.head_nbytes=1000",
    "load.mmap=off load.method=direct load.check=data io.threads=3",
};
#define N_UNMAPPED (sizeof unmapped / sizeof *unmapped)

/* W9 */
Test(changing, a_file_that_is_replaced_or_deleted_stays_whole_for_who_has_it_open)
{
    static const char *const mapped[] = {"", "load.mmap_flags=shared load.check=data"};

    for (size_t i = 0; i < 2 + N_UNMAPPED; i++) {
        change_everywhere(i < 2 ? mapped[i] : unmapped[i - 2], replace);
        change_everywhere(i < 2 ? mapped[i] : unmapped[i - 2], delete);
    }
    check_points(9, n_points, 2400);
}

/* W9, F2: Mapped, it would be SIGBUS. */
Test(changing, a_file_that_is_truncated_is_an_error_when_it_is_read)
{
    unsigned n_sizes = test_is_long() ? 60 : 6;

    for (size_t i = 0; i < N_UNMAPPED; i++)
        for (unsigned part = 0; part <= n_sizes; part++) {
            cut_to = (off_t)(old_nbytes * part / n_sizes) - (part == n_sizes);
            change_everywhere(unmapped[i], cut);
        }
    check_points(9, n_points, test_is_long() ? 18000 : 5000);
}

/*
 * W9, F2: Verification looks at bytes of a map only after the system has said that they are there.
 * With one worker nothing comes between; what lies behind the new end in the same page is zeros.
 */
Test(changing, a_file_that_is_truncated_while_it_is_verified_is_an_error_and_no_signal)
{
    static const enum fault_row more_rows[] = {FAULT_madvise, FAULT_mmap, FAULT_preadv2,
                                               FAULT_pread,   FAULT_open, FAULT_munmap};

    cr_assert_eq(berth_config_patch("io.threads=1 io.chunk_nbytes=65536", NULL), 0);
    for (unsigned part = 0; part <= 20; part++)
        for (size_t row = 0; row < 6; row++) {
            cut_to = (off_t)(old_nbytes * part / 20) - (part == 20);
            for (unsigned nth = 1; change_before(more_rows[row], nth, cut, verify);)
                nth++;
        }
    berth_config_unpatch(NULL);
    check_points(9, n_points, 500);
}

/* W9, F3: Of a save over the very file that is being read from. */
Test(changing, a_file_that_is_saved_over_itself_is_whole)
{
    static const char *const options[] = {"", "load.mmap=off", "save.method=direct io.threads=4"};

    for (size_t i = 0; i < 3; i++) {
        berth_checkpoint *checkpoint;
        berth_error error;
        cr_assert_eq(berth_config_patch(options[i], NULL), 0);
        cr_assert_eq(berth_open(path, NULL, &checkpoint, &error), 0, "%s", error.message);
        for (int again = 0; again < 3; again++)
            cr_assert_eq(berth_save(path, berth_root(checkpoint), NULL, &error), 0, "%s",
                         error.message);
        const float *data =
            berth_tensor_data(checkpoint, berth_find_tensor(checkpoint, "b", NULL), &error);
        cr_assert(data && *data >= 1 && *data <= 1);
        berth_close(checkpoint);
        cr_assert_eq(read_all(&error), 0, "%s", error.message);
        cr_assert_eq(berth_verify(FROM_PATH(path), NULL, NULL, NULL, NULL, &error), 0, "%s",
                     error.message);
        berth_config_unpatch(NULL);
        n_points += 3;
    }
    check_points(9, n_points, 9);
}
