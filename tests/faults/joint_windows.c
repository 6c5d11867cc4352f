/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Joint saves of columns whose file has several windows, with a fault while a window is written,
 * which happens while the next one is exchanged; or between two windows. All writers return an
 * error, after equally many exchanges; the path has its old file (J6, J8, W1, W2, W6).
 */
#include <berth/config.h>

#include "tests/support/faults/save_scene.h"
#include "tests/support/scene.h"
#include "tests/support/writer_group.h"

/* Two writers, five windows of 8 MiB: three rounds, the last of one window. */
enum { N_WRITERS = 2, ROWS = 1100, COLUMNS = 8192, HALF = COLUMNS / N_WRITERS, N_CALLS = 8 };

static berth_tree *tree;
static berth_value *outline;
static float *half; /* of zeros: each writer gives it as its columns */
static writer_group group;
static berth_joint_info info;

static group_result results[N_WRITERS];
static unsigned n_reports[N_WRITERS];

static berth_config *config; /* a patch is its thread's */
static unsigned cancel_at;   /* a report of writer 1; 0: none */

static void set_up(void)
{
    const int64_t shape[] = {ROWS, COLUMNS};

    begin_faults();
    tree = berth_tree_new(NULL);
    outline = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_dict_set(outline, "w", test_tensor(tree, BERTH_FLOAT32, BERTH_ELSEWHERE, 2, shape));
    half = calloc((size_t)ROWS * HALF, sizeof *half);
}

static void tear_down(void)
{
    free(half);
    berth_tree_free(tree);
    end_faults();
}

TestSuite(joint_windows, .init = set_up, .fini = tear_down);

/* ---- one save ---- */

static void set_options(const char *options)
{
    berth_error error;

    patch(options);
    config = berth_config_new(&error);
    assert_ok(berth_config_apply(config, options, &error));
}

static void unset_options(void)
{
    berth_config_free(config);
    cr_assert_eq(berth_config_unpatch(NULL), 0);
}

static int report(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    unsigned *n = context;

    (void)done_nbytes, (void)total_nbytes;
    return ++*n == cancel_at && n == &n_reports[1];
}

static void write_half(group_seat *seat)
{
    const int64_t starts[] = {0, (int64_t)seat->number * HALF}, lengths[] = {ROWS, HALF};
    const berth_slice slice = berth_slice_of("w", starts, lengths, half);
    const berth_params params = {
        .config = config, .progress = report, .progress_context = &n_reports[seat->number]};

    group_write(seat, &info, &slice, 1, params, seat->context);
}

/* The coordinator's calls meet no fault. */
static int save_with_fault(enum fault_row row, unsigned nth, int system_errno, bool for_ever)
{
    berth_error error;
    berth_joint *joint;

    memset(results, 0, sizeof results);
    memset(n_reports, 0, sizeof n_reports);
    test_write_file(path, OLD, strlen(OLD));
    assert_ok(berth_joint_begin(path, outline, N_WRITERS, NULL, &joint, &info, &error));
    fault_set(row, nth, system_errno, for_ever);
    group_run(&group, N_WRITERS, write_half, results, sizeof *results);
    unsigned n_hits = atomic_load(&fault.n_hits);
    fault_clear();
    cr_assert(test_file_holds(path, OLD, strlen(OLD)));
    for (size_t i = 0; i < N_WRITERS; i++)
        if (results[i].status == 0)
            assert_ok(
                berth_joint_add_receipt(joint, results[i].receipt, results[i].nbytes, &error));
    int status = berth_joint_finish(joint, &error);
    for (size_t i = 0; i < N_WRITERS; i++)
        berth_free(results[i].receipt);
    cr_assert_eq(status == 0, n_hits == 0 && group.breaks_at == 0 && cancel_at == 0, "%s",
                 error.message);
    return (int)n_hits;
}

/* ---- what must hold ---- */

/* One has its own error at least, and the others that one's. They left together, and none waited
 * until its exchange gave up. */
static void check_all_left(const char *about, int status, int system_errno)
{
    size_t n_own = 0;

    cr_assert(!group.is_broken, "%s: a writer waited in vain", about);
    for (size_t i = 0; i < N_WRITERS; i++) {
        const group_result *got = &results[i];
        cr_assert(got->status == status || got->status == BERTH_E_PEER, "%s: writer %zu: %d, %s",
                  about, i, got->status, got->error.message);
        cr_assert_eq(got->n_calls, results[0].n_calls, "%s: they did not leave together", about);
        cr_assert_null(got->receipt);
        if (got->status == BERTH_E_PEER)
            continue;
        n_own++;
        cr_assert_eq(got->error.system_errno, system_errno, "%s: %s", about, got->error.message);
    }
    cr_assert_gt(n_own, 0, "%s: nobody says why", about);
}

static void check_nothing_is_left(const char *about, uint64_t live_nbytes, size_t n_open)
{
    cr_assert(test_file_holds(path, OLD, strlen(OLD)), "%s: not the old file", about);
    cr_assert_eq(test_memory_seen().live_nbytes, live_nbytes, "%s: memory leaks", about);
    cr_assert_eq(n_open_files(), n_open, "%s: a descriptor leaks", about);
    cr_assert_eq(test_folder_count(folder), 2, "%s: something is left", about);
}

typedef struct window_fault {
    const char *options;
    enum fault_row row;
    int system_errno;
    bool for_ever;
    int status;
    unsigned first; /* call that fails; then every `step`th one */
    unsigned step;
    unsigned n_calls_first; /* of the exchange, if the first one fails */
    unsigned least;         /* so many calls fail */
} window_fault;

/* Returns how many saves failed. */
static unsigned try_window_fault(const window_fault *tried)
{
    unsigned nth = tried->first, n = 0;
    char about[200];

    set_options(tried->options);
    for (;; nth += tried->step, n++) {
        (void)snprintf(about, sizeof about, "%s, %s, call %u, %s", tried->options,
                       fault_row_names[tried->row], nth, strerror(tried->system_errno));
        size_t n_open = n_open_files();
        test_memory_watch();
        int n_hits = save_with_fault(tried->row, nth, tried->system_errno, tried->for_ever);
        if (n_hits == 0)
            break;
        check_all_left(about, tried->status, tried->system_errno);
        check_nothing_is_left(about, 0, n_open);
        test_memory_unwatch();
        if (nth == tried->first && tried->n_calls_first > 0)
            cr_assert_eq(results[0].n_calls, tried->n_calls_first, "%s: %u exchanges", about,
                         results[0].n_calls);
    }
    test_memory_unwatch();
    cr_assert_eq(results[0].n_calls, N_CALLS);
    unset_options();
    cr_assert_geq(n, tried->least, "%s", about);
    return n;
}

#define BUFFERED "io.threads=1 save.durability=none save.method=buffered"
#define DIRECT "io.threads=2 save.durability=file save.method=direct"
#define SYNCED "io.threads=1 save.durability=file save.method=buffered"

/*
 * Each window is several writes. The first of all fails while the messages of the second round are
 * on their way; the words of the third one tell it: hello, two rounds, and these.
 */
static const window_fault faults[] = {
    {BUFFERED, FAULT_pwrite, EIO, false, BERTH_E_SYSTEM, 1, 3, 6, 3},
    {BUFFERED, FAULT_pwrite, ENOSPC, false, BERTH_E_NO_SPACE, 1, 3, 6, 3},
    {DIRECT, FAULT_pwrite, EIO, true, BERTH_E_SYSTEM, 1, 5, 6, 2},
    {SYNCED, FAULT_sync_file_range, EIO, false, BERTH_E_SYSTEM, 1, 4, 6, 2},
    /* Each writer's messages and windows. */
    {BUFFERED, FAULT_mmap, ENOMEM, false, BERTH_E_MEMORY, 1, 1, 0, 4},
    /* The last calls of both writers. */
    {SYNCED, FAULT_fdatasync, EIO, false, BERTH_E_SYSTEM, 1, 1, N_CALLS, 2},
    /* One a window; it is missed at once: hello, a round, and the words of the second one. */
    {BUFFERED, FAULT_pthread_create, EAGAIN, false, BERTH_E_SYSTEM, 1, 1, 4, 5},
};

Test(joint_windows, a_write_fails)
{
    unsigned n_all = 0;

    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        n_all += try_window_fault(&faults[i]);
    check_points(1, n_all, 15);
}

/* J8: writer 1 leaves after each of the three rounds, while what it has collected is written;
 * sooner if that takes long, as it is asked meanwhile, too. */
Test(joint_windows, a_writer_leaves_between_windows)
{
    set_options(BUFFERED);
    for (cancel_at = 1; cancel_at <= 3; cancel_at++) {
        (void)save_with_fault(FAULT_N_ROWS, 0, 0, false);
        check_all_left("cancelled", BERTH_E_CANCELLED, 0);
        cr_assert_eq(results[1].status, BERTH_E_CANCELLED);
        cr_assert(strstr(results[0].error.message, "writer 1 has failed with BERTH_E_CANCELLED"),
                  "%s", results[0].error.message);
        cr_assert_leq(results[0].n_calls, 2 + 2 * cancel_at);
    }
    unset_options();
}

Test(joint_windows, the_exchange_breaks_while_a_window_is_written)
{
    set_options(BUFFERED);
    for (group.breaks_at = 4; group.breaks_at <= N_CALLS; group.breaks_at++) {
        (void)save_with_fault(FAULT_N_ROWS, 0, 0, false);
        for (size_t i = 0; i < N_WRITERS; i++)
            cr_assert_eq(results[i].status, BERTH_E_CALLBACK, "%s", results[i].error.message);
    }
    unset_options();
}
