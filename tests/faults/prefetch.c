/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Every call into the system that a prefetch makes fails in turn, once and for ever, and every
 * allocation (W6, F5): each is a clean error that names the file, or did not matter; nothing leaks,
 * nobody waits for ever, and the tensors are right.
 */
#include "tests/support/faults/save_scene.h"

enum { N_ELEMENTS = 30000, N_TENSORS = 4 };

static float *elements;

static void set_up(void)
{
    static const int64_t shape[] = {N_ELEMENTS};
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree);
    char name[16];

    begin_faults();
    elements = malloc(N_ELEMENTS * sizeof *elements);
    for (int i = 0; i < N_ELEMENTS; i++)
        elements[i] = (float)i;
    berth_tensor tensor = {.dtype = BERTH_FLOAT32, .rank = 1, .shape = shape, .data = elements};
    for (int i = 0; i < N_TENSORS; i++) {
        (void)snprintf(name, sizeof name, "t%d", i);
        berth_dict_set(root, name, berth_make_tensor(tree, &tensor));
    }
    cr_assert_eq(berth_save(path, root, NULL, NULL), 0);
    berth_tree_free(tree);
}

static void tear_down(void)
{
    free(elements);
    end_faults();
}

TestSuite(prefetch_faults, .init = set_up, .fini = tear_down, .timeout = 600);

static const struct {
    const char *options;
    uint32_t flags;
} ways[] = {
    {"io.threads=2 load.prefetch_window_nbytes=64KiB", BERTH_PREFETCH_SEQUENTIAL},
    {"io.threads=2 load.prefetch_window_nbytes=64KiB", BERTH_PREFETCH_LOCK},
    {"load.prefetch=advise load.prefetch_passes=3", 0},
    {"load.prefetch=read load.mmap=off io.threads=1", 0},
};
#define N_WAYS (sizeof ways / sizeof *ways)
static size_t way;

/* Every row that prefetching calls beyond opening, and what it can give. */
static const struct {
    enum fault_row row;
    int errnos[8];
} faults[] = {
    {FAULT_open, {EACCES, EMFILE, ENOENT}},
    {FAULT_fstat, {EIO}},
    {FAULT_pread, {EAGAIN, EINTR, EIO, FAULT_SHORT}},
    {FAULT_poll, {EINTR}},
    {FAULT_close, {EIO}},
    {FAULT_fstatfs, {EIO}},
    {FAULT_faccessat, {EACCES, EROFS}},
    {FAULT_mmap, {ENODEV, ENOMEM}},
    {FAULT_munmap, {EINVAL}},
    {FAULT_madvise, {EAGAIN, EFAULT, EINTR, EINVAL, EIO, ENOMEM, ENOSYS}},
    {FAULT_posix_fadvise, {EBADF, EINVAL, ESPIPE}},
    {FAULT_mincore, {EAGAIN, ENOMEM}},
    {FAULT_cachestat, {EBADF, ENOSYS, EPERM}},
    {FAULT_mlock2, {EAGAIN, ENOMEM, EPERM}},
    {FAULT_munlock, {ENOMEM}},
    {FAULT_getrlimit, {EINVAL}},
    {FAULT_pthread_create, {EAGAIN}},
    {FAULT_sched_getaffinity, {EINVAL}},
};
#define N_FAULTS (sizeof faults / sizeof *faults)

/* The consumer; what has failed for the prefetch does not for the tensor. */
static void consume(berth_checkpoint *checkpoint, berth_prefetch *prefetch, berth_error *error)
{
    berth_error unasked;
    char name[16];

    for (int i = 0; i < N_TENSORS; i++) {
        (void)snprintf(name, sizeof name, "t%d", i);
        const berth_tensor *tensor = berth_as_tensor(berth_find(checkpoint, name, &unasked));
        if (tensor && berth_prefetch_advance(prefetch, tensor, 0, -1, &unasked) < 0 &&
            error->code == 0)
            *error = unasked;
        const void *data = tensor ? berth_tensor_data(checkpoint, tensor, &unasked) : NULL;
        if (data)
            cr_assert_eq(memcmp(data, elements, N_ELEMENTS * sizeof *elements), 0);
        else if (error->code == 0)
            *error = unasked;
    }
    if (error->code == 0)
        (void)berth_prefetch_wait(prefetch, error);
}

/* Users without privileges may not lock much. */
static uint32_t flags_of_way(void)
{
    struct rlimit limit = {0};

    (void)getrlimit(RLIMIT_MEMLOCK, &limit);
    bool may_lock = geteuid() == 0 || limit.rlim_cur >= (1u << 20);
    return may_lock ? ways[way].flags : ways[way].flags & ~BERTH_PREFETCH_LOCK;
}

static int use(berth_error *error)
{
    berth_checkpoint *checkpoint;
    berth_prefetch *prefetch;

    if (berth_open(path, NULL, &checkpoint, error) < 0)
        return error->code;
    (void)berth_tensor_count(checkpoint); /* the names; without them nothing is found */
    if (berth_prefetch_begin(checkpoint, NULL, flags_of_way(), NULL, &prefetch, error) == 0)
        consume(checkpoint, prefetch, error);
    else
        cr_assert_null(prefetch);
    berth_prefetch_free(prefetch);
    berth_close(checkpoint);
    return error->code;
}

static int use_watched(size_t n_open, const char *about)
{
    berth_error error;

    int status = use(&error);
    cr_assert_eq(test_memory_seen().live_nbytes, 0, "%s: memory leaks", about);
    cr_assert_eq(n_open_files(), n_open, "%s: a descriptor leaks", about);
    cr_assert_eq(status, error.code, "%s", about);
    if (status < 0)
        cr_assert(names_path(&error, path), "%s: %s", about, error.message);
    return status;
}

/* What only helps, or only tells. */
static bool must_work(enum fault_row row, int system_errno)
{
    return row == FAULT_close || row == FAULT_munmap || row == FAULT_poll ||
           row == FAULT_faccessat || row == FAULT_posix_fadvise || row == FAULT_mincore ||
           row == FAULT_cachestat || row == FAULT_munlock || row == FAULT_sched_getaffinity ||
           row == FAULT_fstatfs || (row == FAULT_pread && system_errno != EIO) ||
           (row == FAULT_madvise && (system_errno == EINTR || system_errno == EINVAL ||
                                     system_errno == EAGAIN || system_errno == ENOSYS));
}

/* False: the fault was not reached any more. */
static bool fails_cleanly(enum fault_row row, unsigned nth, int system_errno, bool for_ever)
{
    size_t n_open = n_open_files();
    char about[100];

    (void)snprintf(about, sizeof about, "way %zu, %s, call %u, errno %d%s", way,
                   fault_row_names[row], nth, system_errno, for_ever ? ", for ever" : "");
    fault_set(row, nth, system_errno, for_ever);
    test_memory_watch();
    int status = use_watched(n_open, about);
    test_memory_unwatch();
    bool hit = atomic_load(&fault.n_hits) > 0;
    fault_clear();
    if (!hit || must_work(row, system_errno))
        cr_assert_eq(status, 0, "%s", about);
    n_points += hit;
    return hit;
}

static void try_faults(size_t i)
{
    for (const int *each = faults[i].errnos; *each; each++)
        for (unsigned nth = 1; fails_cleanly(faults[i].row, nth, *each, false);)
            nth++;
    for (const int *each = faults[i].errnos; *each; each++)
        if (*each != EINTR && *each != EAGAIN) /* for ever: is waited for */
            (void)fails_cleanly(faults[i].row, 1, *each, true);
}

/* W6 */
Test(prefetch_faults, any_fault_is_a_clean_error_or_does_not_matter)
{
    for (way = 0; way < N_WAYS; way++) {
        cr_assert_eq(berth_config_patch(ways[way].options, NULL), 0);
        for (size_t i = 0; i < N_FAULTS; i++)
            try_faults(i);
        berth_config_unpatch(NULL);
    }
    check_points(6, n_points, 700);
}

static bool has_faults(enum fault_row row)
{
    for (size_t i = 0; i < N_FAULTS; i++)
        if (faults[i].row == row)
            return true;
    return false;
}

/* A row that prefetching calls has its errnos above. */
Test(prefetch_faults, no_row_is_forgotten)
{
    for (way = 0; way < N_WAYS; way++) {
        cr_assert_eq(berth_config_patch(ways[way].options, NULL), 0);
        cr_assert_not(fails_cleanly(FAULT_open, 0, EIO, false));
        berth_config_unpatch(NULL);
        for (enum fault_row row = 0; row < FAULT_N_ROWS; row++)
            cr_assert(!atomic_load(&fault.n_calls[row]) || has_faults(row), "%s: not in the table",
                      fault_row_names[row]);
    }
}

/* W6 */
Test(prefetch_faults, no_memory_is_a_clean_error_wherever_it_happens)
{
    for (way = 0; way < N_WAYS; way++)
        for (int for_ever = 0; for_ever < 2; for_ever++) {
            bool reached = true;
            for (unsigned nth = 1; reached; nth++) {
                cr_assert_eq(berth_config_patch(ways[way].options, NULL), 0);
                size_t n_open = n_open_files();
                test_memory_watch();
                test_memory_refuse(nth, for_ever);
                int status = use_watched(n_open, "no memory");
                reached = test_memory_seen().n_allocations >= nth;
                test_memory_unwatch();
                berth_config_unpatch(NULL);
                cr_assert(reached || status == 0, "allocation %u", nth);
                n_points += reached;
            }
        }
    check_points(6, n_points, 240);
}
