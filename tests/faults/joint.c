/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Joint saves with a fault in the coordinator or in a writer, and with either of them killed: the
 * path has the complete old file or the complete new one (J6, W1, W4, W6); what a killed
 * coordinator leaves is removed as that of any save (X5).
 */
#include <berth/config.h>
#include <berth/joint.h>
#include <signal.h>
#include <sys/wait.h>

#include "tests/support/faults/save_scene.h"

enum { N = 6000, N_JOINT_WRITERS = 2, N_FILES = 2 /* the target, and a link to it */ };

static float elements[N];
static berth_value *outline;
static berth_tree *tree;
static uint8_t *new_file;
static size_t new_nbytes;

static berth_value *state_new(berth_tree *of, const void *data)
{
    const int64_t shape[] = {N}, chained[] = {N / 3};
    berth_value *dict = berth_make_dict(of, BERTH_KIND_DICT);

    berth_dict_set(dict, "w", test_tensor(of, BERTH_FLOAT32, data, 1, shape));
    berth_dict_set(dict, "x", test_tensor(of, BERTH_FLOAT32, data, 1, chained));
    berth_dict_set(dict, "y", test_tensor(of, BERTH_FLOAT32, data, 1, chained));
    return dict;
}

static void set_up(void)
{
    berth_error error;

    begin_faults();
    for (size_t i = 0; i < N; i++)
        elements[i] = (float)i;
    tree = berth_tree_new(NULL);
    outline = state_new(tree, elements);
    assert_ok(berth_save(path, outline, NULL, &error));
    new_file = test_read_file(path, &new_nbytes);
    outline = state_new(tree, BERTH_ELSEWHERE);
    test_write_file(path, OLD, strlen(OLD));
    assert_ok(berth_config_patch("io.threads=1 save.durability=full save.method=direct", &error));
}

static void tear_down(void)
{
    berth_tree_free(tree);
    free(new_file);
    end_faults();
}

TestSuite(joint_faults, .init = set_up, .fini = tear_down);

/* ---- a joint save in steps ---- */

/* Writer 1 also has two whole tensors: a chain. */
static int write_half(const berth_joint_info *info, size_t writer, void **receipt, size_t *nbytes,
                      berth_error *error)
{
    const int64_t starts[] = {(int64_t)writer * N / 2}, lengths[] = {N / 2};
    const berth_slice slices[] = {berth_slice_of("w", starts, lengths, elements + starts[0]),
                                  berth_slice_whole("x", elements),
                                  berth_slice_whole("y", elements)};

    return berth_joint_write(info->ticket, info->ticket_nbytes, writer, slices, writer == 1 ? 3 : 1,
                             NULL, receipt, nbytes, error);
}

static int add_half(berth_joint *joint, const berth_joint_info *info, size_t writer,
                    berth_error *error)
{
    void *receipt;
    size_t nbytes;

    if (write_half(info, writer, &receipt, &nbytes, error) < 0)
        return error->code;
    int status = berth_joint_add_receipt(joint, receipt, nbytes, error);
    berth_free(receipt);
    return status;
}

static int save_all(berth_error *error)
{
    berth_joint_info info;
    berth_joint *joint;

    if (berth_joint_begin(path, outline, N_JOINT_WRITERS, NULL, &joint, &info, error) < 0)
        return error->code;
    if (add_half(joint, &info, 0, error) < 0 || add_half(joint, &info, 1, error) < 0) {
        berth_joint_abort(joint);
        return error->code;
    }
    return berth_joint_finish(joint, error);
}

static void check_old_or_new(bool is_new, const char *about)
{
    if (is_new)
        cr_assert(test_file_holds(path, new_file, new_nbytes), "%s: not the new file", about);
    else
        cr_assert(test_file_holds(path, OLD, strlen(OLD)), "%s: not the old file", about);
}

/* ---- one call fails ---- */

static bool try_failing(enum fault_row row, unsigned nth, int system_errno, unsigned *n_failed)
{
    size_t n_open = n_open_files();
    berth_error error;
    char about[100];

    snprintf(about, sizeof about, "%s, call %u, %s", fault_row_names[row], nth,
             strerror(system_errno));
    test_write_file(path, OLD, strlen(OLD));
    fault_set(row, nth, system_errno, false);
    test_memory_watch();
    int status = save_all(&error);
    uint64_t live_nbytes = test_memory_seen().live_nbytes;
    test_memory_unwatch();
    bool hit = atomic_load(&fault.n_hits) > 0;
    fault_clear();
    check_old_or_new(status == 0 || status == BERTH_E_NOT_DURABLE, about);
    cr_assert_eq(status, error.code, "%s", about);
    if (row == FAULT_readlinkat && status < 0)
        cr_assert_eq(error.system_errno, system_errno, "%s: %s", about, error.message);
    cr_assert_eq(live_nbytes, 0, "%s: memory leaks", about);
    cr_assert_eq(n_open_files(), n_open, "%s: a descriptor leaks", about);
    if (row != FAULT_unlinkat)
        cr_assert_eq(test_folder_count(folder), N_FILES, "%s: something is left", about);
    clean_folder();
    *n_failed += status < 0;
    return hit;
}

static const struct {
    enum fault_row row;
    int system_errno;
    bool always_fails;
} failing[] = {
    {FAULT_openat, EIO, false},     {FAULT_fallocate, ENOSPC, true}, {FAULT_ftruncate, EIO, false},
    {FAULT_pwrite, EIO, true},      {FAULT_pwritev, ENOSPC, true},   {FAULT_pread, EIO, true},
    {FAULT_fsync, EIO, true},       {FAULT_dup, EMFILE, true},       {FAULT_fstat, EIO, false},
    {FAULT_readlinkat, EIO, false}, {FAULT_getrandom, EIO, true},    {FAULT_renameat, EACCES, true},
    {FAULT_close, EIO, false},
};

Test(joint_faults, one_call_fails)
{
    unsigned n_all = 0;

    for (size_t i = 0; i < sizeof failing / sizeof *failing; i++) {
        unsigned nth = 1, n_failed = 0;
        while (try_failing(failing[i].row, nth, failing[i].system_errno, &n_failed))
            nth++;
        if (failing[i].always_fails)
            cr_assert_eq(n_failed, nth - 1, "%s", fault_row_names[failing[i].row]);
        n_all += nth - 1;
    }
    check_points(1, n_all, 50);
}

/* W6: of each allocation, also of those without which a save goes on. */
Test(joint_faults, no_memory_is_a_clean_error_wherever_it_happens)
{
    uint64_t n_allocations = 1;
    unsigned n_failed = 0;
    berth_error error;
    char about[50];

    for (uint64_t nth = 1; nth <= n_allocations; nth++) {
        snprintf(about, sizeof about, "allocation %u", (unsigned)nth);
        test_write_file(path, OLD, strlen(OLD));
        test_memory_watch();
        test_memory_refuse(nth, false);
        int status = save_all(&error);
        struct test_memory seen = test_memory_seen();
        test_memory_refuse(0, false);
        test_memory_unwatch();
        cr_assert(status == 0 || status == BERTH_E_MEMORY, "%s: %s", about, error.message);
        check_old_or_new(status == 0, about);
        cr_assert_eq(seen.live_nbytes, 0, "%s: memory leaks", about);
        n_failed += status < 0;
        n_allocations = status == 0 ? seen.n_allocations : n_allocations + 1;
    }
    check_points(6, n_failed, 50);
}

/* A container may forbid the question whether data can be read. */
Test(joint_faults, without_the_question_where_data_lie_it_works)
{
    static const int errnos[] = {EPERM, ENOSYS, ESRCH};

    for (size_t i = 0; i < sizeof errnos / sizeof *errnos; i++) {
        unsigned nth = 1, n_failed = 0;
        while (try_failing(FAULT_process_vm_readv, nth, errnos[i], &n_failed))
            nth++;
        cr_assert_gt(nth, 4, "two writers, two ends of a slice");
        cr_assert_eq(n_failed, 0, "errno %d", errnos[i]);
    }
}

/* ---- kills ---- */

static void kill_self(void)
{
    (void)kill(getpid(), SIGKILL);
}

/* Runs it in a child that is killed before the nth call of a row. False: it ended by itself. */
static bool kill_at(enum fault_row row, unsigned nth, int (*run)(void))
{
    int status;

    (void)fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        fault_set(row, nth, 0, false);
        fault.before = kill_self;
        _exit(run());
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFSIGNALED(status) || status == 0, "the child ended with %x", (unsigned)status);
    return WIFSIGNALED(status);
}

static const enum fault_row killing[] = {
    FAULT_openat, FAULT_fallocate, FAULT_ftruncate, FAULT_pwrite,    FAULT_pwritev, FAULT_pread,
    FAULT_fsync,  FAULT_dup,       FAULT_close,     FAULT_fsetxattr, FAULT_renameat};
#define N_KILLING (sizeof killing / sizeof *killing)

static int run_all(void)
{
    berth_error error;

    return save_all(&error) < 0;
}

static bool is_new_file(void)
{
    return test_file_holds(path, new_file, new_nbytes);
}

/* W4, X5 */
Test(joint_faults, the_coordinator_is_killed)
{
    unsigned n_killed = 0, n_left = 0;

    for (size_t i = 0; i < N_KILLING; i++)
        for (unsigned nth = 1;; nth++) {
            test_write_file(path, OLD, strlen(OLD));
            if (!kill_at(killing[i], nth, run_all))
                break;
            n_killed++;
            n_left += test_folder_count(folder) > N_FILES;
            check_old_or_new(is_new_file(), fault_row_names[killing[i]]);
            clean_folder();
            cr_assert_eq(test_folder_count(folder), N_FILES);
        }
    check_old_or_new(true, "at last");
    cr_assert_gt(n_left, n_killed / 2);
    check_points(4, n_killed, 45);
}

static berth_joint_info shared_info;

static int run_writer(void)
{
    berth_error error;
    void *receipt;
    size_t nbytes;

    return write_half(&shared_info, 0, &receipt, &nbytes, &error) < 0;
}

static berth_joint *begin(void)
{
    berth_joint *joint;
    berth_error error;

    assert_ok(
        berth_joint_begin(path, outline, N_JOINT_WRITERS, NULL, &joint, &shared_info, &error));
    return joint;
}

/* Without its receipt the old file stays; another process can take its place. */
static void check_after_a_killed_writer(berth_joint *joint, bool is_replaced)
{
    berth_error error;

    if (is_replaced)
        assert_ok(add_half(joint, &shared_info, 0, &error));
    assert_ok(add_half(joint, &shared_info, 1, &error));
    int status = berth_joint_finish(joint, &error);
    cr_assert_eq(status, is_replaced ? 0 : BERTH_E_ARGUMENT, "%s", error.message);
    if (!is_replaced)
        cr_assert(strstr(error.message, "writer 0 of 2 has given no receipt"), "%s", error.message);
    check_old_or_new(is_replaced, "a killed writer");
    cr_assert_eq(test_folder_count(folder), N_FILES);
}

/* W4 */
Test(joint_faults, a_writer_is_killed)
{
    unsigned n_killed = 0;

    for (size_t i = 0; i < N_KILLING; i++)
        for (unsigned nth = 1;; nth++) {
            test_write_file(path, OLD, strlen(OLD));
            berth_joint *joint = begin();
            bool killed = kill_at(killing[i], nth, run_writer);
            n_killed += killed;
            check_after_a_killed_writer(joint, nth % 2 == 0);
            if (!killed)
                break;
        }
    check_points(4, n_killed, 10);
}

/* The writers of a dead coordinator write into a file that is removed, and then find none. */
Test(joint_faults, writers_outlive_the_coordinator)
{
    int pipe_fds[2], status;
    uint8_t ticket[4096];
    berth_error error;
    void *receipt;
    size_t nbytes;

    cr_assert_eq(pipe(pipe_fds), 0);
    pid_t child = fork();
    if (child == 0) {
        berth_joint *joint = begin();
        _exit(!joint || write(pipe_fds[1], shared_info.ticket, shared_info.ticket_nbytes) < 0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    ssize_t n = read(pipe_fds[0], ticket, sizeof ticket);
    cr_assert_gt(n, 0);
    shared_info = (berth_joint_info){.ticket = ticket, .ticket_nbytes = (size_t)n};
    assert_ok(write_half(&shared_info, 0, &receipt, &nbytes, &error));
    berth_free(receipt);
    clean_folder();
    cr_assert_eq(write_half(&shared_info, 1, &receipt, &nbytes, &error), BERTH_E_NOT_FOUND);
    check_old_or_new(false, "a dead coordinator");
    cr_assert_eq(test_folder_count(folder), N_FILES);
}
