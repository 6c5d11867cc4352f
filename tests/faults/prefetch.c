/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Every call into the system that a prefetch makes fails in turn, once and for ever, and every
 * allocation (W6, F5): each is a clean error that names the file, or did not matter; nothing leaks,
 * nobody waits for ever, and the tensors are right.
 */
#include <berth/config.h>
#include <berth/prefetch.h>

#include "tests/support/faults/save_scene.h"

enum { N_ELEMENTS = 30000, N_TENSORS = 4 };

static const char *const names[N_TENSORS] = {"t0", "t1", "t2", "t3"};
static float *elements;

static void set_up(void)
{
    static const int64_t shape[] = {N_ELEMENTS};

    begin_faults();
    elements = save_elements(1, shape, N_TENSORS, names);
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
static const fault_kind faults[] = {
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

    for (int i = 0; i < N_TENSORS; i++) {
        const berth_tensor *tensor = berth_as_tensor(berth_find(checkpoint, names[i], &unasked));
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
        (void)berth_prefetch_advance(prefetch, NULL, 0, -1, error);
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
    char about[100];

    (void)snprintf(about, sizeof about, "way %zu, %s, call %u, errno %d%s", way,
                   fault_row_names[row], nth, system_errno, for_ever ? ", for ever" : "");
    fault_set(row, nth, system_errno, for_ever);
    test_memory_watch();
    int status = use_watched(use, about);
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

/* A row that prefetching calls has its errnos above. */
Test(prefetch_faults, no_row_is_forgotten)
{
    for (way = 0; way < N_WAYS; way++) {
        cr_assert_eq(berth_config_patch(ways[way].options, NULL), 0);
        cr_assert_not(fails_cleanly(FAULT_open, 0, EIO, false));
        berth_config_unpatch(NULL);
        check_no_row_is_forgotten(faults, N_FAULTS);
    }
}

/* W6 */
Test(prefetch_faults, no_memory_is_a_clean_error_wherever_it_happens)
{
    for (way = 0; way < N_WAYS; way++)
        use_without_memory(use, ways[way].options, false);
    check_points(6, n_points, 240);
}
