/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Every call into the system that opening, verifying and reading make fails in turn, once and for
 * ever, and every allocation (W6, F5): each is a clean error that names the file, or did not
 * matter; nothing leaks, and what is read is right.
 */
#include <berth/config.h>

#include "load/checkpoint.h"
#include "tests/support/faults/save_scene.h"

enum { N_ELEMENTS = 20000 };

static float *elements;

static void set_up(void)
{
    static const int64_t shape[] = {N_ELEMENTS};
    static const char *const names[] = {"a", "b"};

    begin_faults();
    elements = save_elements(1, shape, 2, names);
}

static void tear_down(void)
{
    free(elements);
    end_faults();
}

TestSuite(load_faults, .init = set_up, .fini = tear_down, .timeout = 600);

static const char *const all_options[] = {
    "",
    "load.mmap_flags=shared,populate load.check=data",
    "load.mmap=off io.threads=3 io.chunk_nbytes=65536",
    "load.mmap=off load.calculate_storage_offsets=off load.head_nbytes=1000",
    "load.method=read load.check=data io.threads=1 io.chunk_nbytes=65536",
    "load.method=read load.check=none io.threads=4 io.chunk_nbytes=65536",
    /* From here on with berth_load. */
    "load.method=read load.check=data io.threads=4 io.chunk_nbytes=65536",
    "load.method=direct io.threads=1 io.chunk_nbytes=65536",
    "load.method=auto io.threads=1",
    "load.method=direct load.check=data io.threads=4 io.chunk_nbytes=65536",
    "load.method=map load.check=headers io.threads=4 io.chunk_nbytes=65536",
};
#define FIRST_WITH_FETCH 6
#define N_OPTIONS (sizeof all_options / sizeof *all_options)

/* Every row that loading calls, and what it can give. */
static const fault_kind faults[] = {
    {FAULT_open,
     {EACCES, EINTR, EIO, ELOOP, EMFILE, ENAMETOOLONG, ENFILE, ENOENT, ENOMEM, ENOTDIR, ENXIO,
      EOVERFLOW, EPERM}},
    {FAULT_dup, {EINVAL, EMFILE}},
    {FAULT_fstat, {EIO, ENOMEM, EOVERFLOW}},
    {FAULT_pread, {EAGAIN, EFAULT, EINTR, EINVAL, EIO, EISDIR, ENXIO, FAULT_SHORT}},
    {FAULT_preadv2, {EAGAIN, EBADF, EINTR, EINVAL, EIO, ENOSYS, EOPNOTSUPP}},
    {FAULT_cachestat, {EBADF, EFAULT, EINVAL, ENOSYS, EOPNOTSUPP, EPERM}},
    {FAULT_posix_fadvise, {EBADF, EINVAL, ESPIPE}},
    {FAULT_fstatfs, {EINTR, EIO, ENOMEM, ENOSYS, EOVERFLOW}},
    {FAULT_statx, {EACCES, EINVAL, ENOMEM, ENOSYS}},
    {FAULT_poll, {EINTR, ENOMEM}},
    {FAULT_close, {EINTR, EIO}},
    {FAULT_mmap, {EACCES, EAGAIN, EINVAL, ENODEV, ENOMEM, EPERM}},
    {FAULT_munmap, {EINVAL}},
    {FAULT_madvise, {EAGAIN, EFAULT, EHWPOISON, EINVAL, EIO, ENOMEM}},
    {FAULT_mincore, {EAGAIN, ENOMEM}},
    {FAULT_pthread_create, {EAGAIN, EINVAL, EPERM}},
    {FAULT_sched_getaffinity, {EINVAL, EPERM}},
};
#define N_FAULTS (sizeof faults / sizeof *faults)

/* Through the archive's own functions. */
static int use_archive(berth_error *error)
{
    berth_archive *archive;
    berth_record record;
    uint8_t *buffer = malloc(N_ELEMENTS * sizeof *elements);

    if (berth_archive_open(FROM_PATH(path), NULL, &archive, NULL, error) == 0) {
        if (berth_archive_find(archive, "data/1", &record, error) == 0 &&
            berth_archive_read(archive, &record, buffer, N_ELEMENTS * sizeof *elements, 0, error) ==
                0)
            cr_assert_eq(memcmp(buffer, elements, N_ELEMENTS * sizeof *elements), 0);
        berth_archive_close(archive);
    }
    free(buffer);
    return error->code;
}

static bool with_fetch;

/* All or nothing; what failed once works the next time. */
static void fetch(berth_checkpoint *checkpoint, berth_error *error)
{
    berth_error again;

    if (!with_fetch || berth_load(checkpoint, NULL, NULL, error) == 0)
        return;
    cr_assert_null(checkpoint->storages.regions);
    for (size_t i = 0; i < checkpoint->storages.n; i++)
        cr_assert_null(atomic_load(&checkpoint->storages.stored[i].memory));
    if (!is_for_ever)
        cr_assert_eq(berth_load(checkpoint, NULL, NULL, &again), 0, "%s", again.message);
}

/* A range that is long where chunks are of 64 KiB: by workers. */
static void read_range(berth_checkpoint *checkpoint, berth_error *error)
{
    enum { FIRST = 5, N = N_ELEMENTS - 7 };
    const berth_value *found = berth_find(checkpoint, "b", error);
    float *buffer = malloc(N * sizeof *buffer);

    if (found &&
        berth_tensor_read(checkpoint, berth_as_tensor(found), FIRST, N, buffer, error) == 0)
        cr_assert_eq(memcmp(buffer, elements + FIRST, N * sizeof *buffer), 0);
    free(buffer);
}

/* Opens, reads both tensors, closes, verifies: 0, or the first status. */
static int use_all(berth_error *error)
{
    static const char *const names[] = {"a", "b"};
    berth_checkpoint *checkpoint;

    if (berth_open(path, NULL, &checkpoint, error) < 0)
        return error->code;
    fetch(checkpoint, error);
    if (error->code == 0)
        read_range(checkpoint, error);
    for (int i = 0; i < 2 && error->code == 0; i++) {
        const berth_value *found = berth_find(checkpoint, names[i], error);
        const void *data =
            found ? berth_tensor_data(checkpoint, berth_as_tensor(found), error) : NULL;
        cr_assert(!data == (error->code < 0));
        if (data)
            cr_assert_eq(memcmp(data, elements, N_ELEMENTS * sizeof *elements), 0);
    }
    berth_close(checkpoint);
    if (error->code < 0 || berth_verify(FROM_PATH(path), NULL, NULL, NULL, NULL, error) < 0)
        return error->code;
    return use_archive(error);
}

static bool goes_on(int system_errno)
{
    return system_errno == EINTR || system_errno == EAGAIN || system_errno == FAULT_SHORT;
}

/*
 * Where mapping fails, auto reads; what was interrupted, or short, goes on. The first open is that
 * of the path; later ones may be of what only helps.
 */
static bool must_fail(enum fault_row row, unsigned nth, int system_errno)
{
    if (with_fetch && !is_for_ever && row == FAULT_pread &&
        (system_errno == EINVAL || system_errno == EFAULT))
        return false; /* of a direct read: it is repeated */
    return !goes_on(system_errno) && (row == FAULT_pread || (row == FAULT_open && nth == 1));
}

static bool must_work(enum fault_row row, int system_errno)
{
    return row == FAULT_close || row == FAULT_munmap || row == FAULT_poll || row == FAULT_statx ||
           row == FAULT_sched_getaffinity || row == FAULT_preadv2 || row == FAULT_cachestat ||
           (row == FAULT_madvise && (system_errno == EAGAIN || system_errno == EINVAL)) ||
           /* others say of POPULATE that bytes are lost, and nothing of huge pages */
           row == FAULT_posix_fadvise || row == FAULT_fstatfs ||
           ((row == FAULT_pread || row == FAULT_open) && goes_on(system_errno));
}

/* False: the fault was not reached any more. */
static bool fails_cleanly(enum fault_row row, unsigned nth, int system_errno, bool for_ever)
{
    char about[100];

    snprintf(about, sizeof about, "%s, call %u, errno %d%s", fault_row_names[row], nth,
             system_errno, for_ever ? ", for ever" : "");
    fault_set(row, nth, system_errno, for_ever);
    is_for_ever = for_ever;
    test_memory_watch();
    int status = use_watched(use_all, about);
    test_memory_unwatch();
    bool hit = atomic_load(&fault.n_hits) > 0;
    fault_clear();
    if (hit && must_fail(row, nth, system_errno))
        cr_assert_lt(status, 0, "%s", about);
    if (!hit || must_work(row, system_errno))
        cr_assert_eq(status, 0, "%s", about);
    n_points += hit;
    return hit;
}

/* W6 */
Test(load_faults, any_fault_is_a_clean_error_or_does_not_matter)
{
    for (size_t i = 0; i < N_OPTIONS; i++) {
        cr_assert_eq(berth_config_patch(all_options[i], NULL), 0);
        with_fetch = i >= FIRST_WITH_FETCH;
        for (size_t j = 0; j < N_FAULTS; j++)
            for (const int *each = faults[j].errnos; *each; each++)
                for (int for_ever = 0; for_ever < 2; for_ever++)
                    for (unsigned nth = 1; (!for_ever || must_fail(faults[j].row, 1, *each)) &&
                                           fails_cleanly(faults[j].row, nth, *each, for_ever);)
                        nth++;
        berth_config_unpatch(NULL);
    }
    check_points(6, n_points, 9500);
}

/* A descriptor of the caller's: read in ranges, then whole. */
static int use_descriptor(int fd, berth_error *error)
{
    berth_checkpoint *checkpoint;
    float few[100];

    if (berth_open_source(FROM_FD(fd), NULL, &checkpoint, error) < 0)
        return error->code;
    const berth_value *found = berth_find(checkpoint, "b", error);
    const berth_tensor *tensor = berth_as_tensor(found);
    for (int64_t first = 0; found && error->code == 0 && first < 500; first += 100)
        if (berth_tensor_read(checkpoint, tensor, first, 100, few, error) == 0)
            cr_assert_eq(memcmp(few, elements + first, sizeof few), 0);
    if (error->code == 0)
        (void)berth_tensor_data(checkpoint, tensor, error);
    berth_close(checkpoint);
    return error->code;
}

/* False: the fault was not reached any more. */
static bool descriptor_fails_cleanly(int fd, enum fault_row row, unsigned nth, int system_errno)
{
    size_t n_open = n_open_files();
    berth_error error;

    fault_set(row, nth, system_errno, false);
    test_memory_watch();
    int status = use_descriptor(fd, &error);
    cr_assert_eq(test_memory_seen().live_nbytes, 0, "memory leaks");
    test_memory_unwatch();
    bool hit = atomic_load(&fault.n_hits) > 0;
    fault_clear();
    cr_assert_eq(n_open_files(), n_open, "a descriptor leaks");
    cr_assert_eq(status, error.code);
    cr_assert(status == 0 || strncmp(error.message, "descriptor", 10) == 0 ||
                  error.code == BERTH_E_MEMORY,
              "%s", error.message);
    if (hit && goes_on(system_errno))
        cr_assert_eq(status, 0, "%s, call %u: %s", fault_row_names[row], nth, error.message);
    if (hit && !goes_on(system_errno) && (row == FAULT_dup || row == FAULT_pread))
        cr_assert_lt(status, 0, "%s, call %u", fault_row_names[row], nth);
    n_points += hit;
    return hit;
}

/* W6, F1: with load.check=data its sums are made by the first range. */
Test(load_faults, a_descriptor_of_the_caller_stays_the_callers)
{
    static const char *const options[] = {"", "load.mmap=off", "load.method=read load.check=data"};
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    for (size_t i = 0; i < 3; i++) {
        cr_assert_eq(berth_config_patch(options[i], NULL), 0);
        for (size_t j = 0; j < N_FAULTS; j++)
            for (const int *each = faults[j].errnos; *each; each++)
                for (unsigned nth = 1; descriptor_fails_cleanly(fd, faults[j].row, nth, *each);)
                    nth++;
        berth_config_unpatch(NULL);
    }
    cr_assert_eq(close(fd), 0);
    check_points(6, n_points, 180);
}

/* A row that loading calls has its errnos above. */
Test(load_faults, no_row_is_forgotten)
{
    for (size_t i = 0; i < N_OPTIONS; i++) {
        cr_assert_eq(berth_config_patch(all_options[i], NULL), 0);
        with_fetch = i >= FIRST_WITH_FETCH;
        cr_assert_not(fails_cleanly(FAULT_open, 0, EIO, false));
        berth_config_unpatch(NULL);
        check_no_row_is_forgotten(faults, N_FAULTS);
    }
}

/* W6 */
Test(load_faults, no_memory_is_a_clean_error_wherever_it_happens)
{
    for (size_t i = 0; i < N_OPTIONS; i++) {
        with_fetch = i >= FIRST_WITH_FETCH;
        use_without_memory(use_all, all_options[i], true);
    }
    check_points(6, n_points, 1400);
}

/* A tensor "a.b" twice, and a key that is a tuple. */
static berth_checkpoint *open_names(void **saved)
{
    static const int64_t shape[] = {3};
    const berth_tensor tensor = {
        .dtype = BERTH_FLOAT32, .rank = 1, .shape = shape, .data = elements};
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT),
                *below = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_value *pair[] = {berth_make_int(tree, 1), berth_make_int(tree, 2)};
    berth_checkpoint *checkpoint;
    size_t nbytes;

    berth_dict_set(root, "a", below);
    berth_dict_set(below, "b", berth_make_tensor(tree, &tensor));
    berth_dict_set(root, "a.b", berth_make_tensor(tree, &tensor));
    berth_dict_set_value(root, berth_make_tuple(tree, pair, 2), berth_make_int(tree, 5));
    cr_assert_eq(berth_save_to(TO_MEMORY(saved, &nbytes), OF_VALUE(root), NULL, NULL), 0);
    berth_tree_free(tree);
    cr_assert_eq(berth_open_source(FROM_MEMORY(*saved, nbytes), NULL, &checkpoint, NULL), 0);
    return checkpoint;
}

/* W6: No memory is told as that, and never as another answer. */
Test(load_faults, names_are_found_or_there_is_no_memory)
{
    static const struct {
        const char *name;
        int code;
    } names[] = {{"a.b", BERTH_E_AMBIGUOUS}, {"['a.b']", 0}, {"[(1, 2)]", 0}, {"(1, 2)", 0}};

    for (size_t i = 0; i < 4; i++) {
        bool reached = true;
        for (unsigned nth = 1; reached; nth++) {
            berth_error error;
            void *saved;
            test_memory_watch();
            berth_checkpoint *checkpoint = open_names(&saved);
            uint64_t before = test_memory_seen().n_allocations;
            test_memory_refuse(nth, false);
            const berth_value *value = berth_find(checkpoint, names[i].name, &error);
            reached = test_memory_seen().n_allocations >= before + nth;
            cr_assert(error.code == names[i].code || (reached && error.code == BERTH_E_MEMORY),
                      "%s: %s", names[i].name, error.message);
            cr_assert_eq(!value, error.code != 0);
            berth_close(checkpoint);
            berth_free(saved);
            test_memory_unwatch();
            n_points += reached;
        }
    }
    check_points(6, n_points, 12);
}

/* W3 */
Test(load_faults, short_reads_are_continued)
{
    for (size_t i = 0; i < N_OPTIONS; i++) {
        cr_assert_eq(berth_config_patch(all_options[i], NULL), 0);
        with_fetch = i >= FIRST_WITH_FETCH;
        fault_set(FAULT_pread, 1, FAULT_SHORT, true);
        test_memory_watch();
        cr_assert_eq(use_watched(use_all, "short reads"), 0);
        test_memory_unwatch();
        n_points += atomic_load(&fault.n_hits);
        fault_clear();
        berth_config_unpatch(NULL);
    }
    check_points(3, n_points, 1800);
}
