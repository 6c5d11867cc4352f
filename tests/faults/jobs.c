/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Jobs when the machine fails them: after any single fault the path holds the old file or the
 * new one, as the job says (W1, W2, W6); and cancels at the moments that matter.
 */
#include <berth/config.h>
#include <criterion/criterion.h>
#include <semaphore.h>
#include <stdio.h>
#include <unistd.h>

#include "config/options.h"
#include "tests/support/expected.h"
#include "tests/support/faults/inject.h"
#include "tests/support/save/records.h"

#define OLD "the old file"
#define OPTIONS "io.threads=3 io.chunk_nbytes=4096 save.durability=full"

static uint8_t *bytes;
static unsigned n_points;

static int begin(uint32_t flags, berth_job **job, berth_error *error)
{
    const berth_new_record records[] = {{.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."},
                                        {.name = "data/0", .nbytes = 30000, .data = bytes},
                                        {.name = "data/1", .nbytes = 17, .data = bytes}};

    return berth_save_begin(TO_PATH(path), OF_RECORDS(records, 3, 0), flags, NAMED("archive"), job,
                            error);
}

static int save(uint32_t flags, berth_error *error)
{
    berth_job *job;
    int status = begin(flags, &job, error);

    cr_assert_eq(status == 0, job != NULL);
    if (status == 0) {
        status = berth_job_wait(job, BERTH_JOB_DONE, -1, error);
        berth_job_free(job);
    }
    return status;
}

static void set_up(void)
{
    berth_error error;

    begin_scene("model.pt");
    bytes = sample_bytes(30000);
    cr_assert_eq(berth_config_patch(OPTIONS, &error), 0, "%s", error.message);
    cr_assert_eq(save(0, &error), 0, "%s", error.message);
    expected = test_read_file(path, &expected_nbytes);
    test_write_file(path, OLD, strlen(OLD));
}

static void tear_down(void)
{
    fault_clear();
    printf("fault points W6: %u\n", n_points);
    free(bytes);
    end_scene();
}

TestSuite(job_faults, .init = set_up, .fini = tear_down);

static void check_held(int status, const char *about)
{
    if (status == 0 || status == BERTH_E_NOT_DURABLE)
        cr_assert(test_file_holds(path, expected, expected_nbytes), "%s: not the new file", about);
    else
        cr_assert(test_file_holds(path, OLD, strlen(OLD)), "%s: not the old file", about);
    cr_assert_eq(test_folder_count(folder), 1, "%s: something is left behind", about);
}

/* One job with the nth call of a row failing. False when the fault was not reached any more. */
static bool try_fault(uint32_t flags, enum fault_row row, unsigned nth, int system_errno)
{
    size_t n_open = test_folder_count("/proc/self/fd");
    berth_error error;
    char about[720];

    test_write_file(path, OLD, strlen(OLD));
    fault_set(row, nth, system_errno, false);
    test_memory_watch();
    int status = save(flags, &error);
    uint64_t live_nbytes = test_memory_seen().live_nbytes;
    test_memory_unwatch();
    bool hit = atomic_load(&fault.n_hits) > 0;
    fault_clear();
    snprintf(about, sizeof about, "row %d, call %u, errno %d: %s", row, nth, system_errno,
             error.message);
    check_held(status, about);
    cr_assert_eq(live_nbytes, 0, "%s: memory leaks", about);
    cr_assert_eq(test_folder_count("/proc/self/fd"), n_open, "%s: a descriptor leaks", about);
    if (row == FAULT_pthread_create && hit)
        cr_assert_eq(status, BERTH_E_SYSTEM, "%s", about);
    n_points += hit;
    return hit;
}

/* W1, W2, W6 */
Test(job_faults, any_single_fault_leaves_the_old_file_or_the_new_one)
{
    static const struct {
        enum fault_row row;
        int system_errno;
    } faults[] = {
        {FAULT_openat, EMFILE},  {FAULT_fallocate, ENOSPC}, {FAULT_pwrite, EIO},
        {FAULT_fsync, EIO},      {FAULT_dup, EMFILE},       {FAULT_close, EIO},
        {FAULT_renameat, EBUSY}, {FAULT_fgetxattr, EIO},    {FAULT_fsetxattr, ENOSPC},
        {FAULT_fstatat, EIO},    {FAULT_fchmod, EPERM},     {FAULT_pthread_create, EAGAIN}};

    for (uint32_t flags = 0; flags <= BERTH_SAVE_SNAPSHOT; flags += BERTH_SAVE_SNAPSHOT)
        for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
            for (unsigned nth = 1; try_fault(flags, faults[i].row, nth, faults[i].system_errno);)
                nth++;
    cr_assert_geq(n_points, 55, "only %u fault points", n_points);
}

/* W6 */
Test(job_faults, a_thread_that_cannot_be_started_is_told_at_begin_and_nothing_is_left)
{
    berth_job *job;
    berth_error error;
    char message[640];

    fault_set(FAULT_pthread_create, 1, EAGAIN, false);
    cr_assert_eq(begin(0, &job, &error), BERTH_E_SYSTEM);
    fault_clear();
    cr_assert_null(job);
    snprintf(message, sizeof message,
             "%s: the job's thread cannot be started: Resource temporarily unavailable", path);
    cr_assert_str_eq(error.message, message);
    cr_assert_eq(error.system_errno, EAGAIN);
    check_held(error.code, "no thread");
    n_points++;
}

Test(job_faults, no_room_is_known_at_begin)
{
    berth_job *job;
    berth_error error;

    fault_set(FAULT_fallocate, 1, ENOSPC, false);
    cr_assert_eq(begin(BERTH_SAVE_SNAPSHOT, &job, &error), BERTH_E_NO_SPACE);
    fault_clear();
    cr_assert_null(job);
    check_held(error.code, "no room");
    n_points++;
}

/* ---- held at a call ---- */

static sem_t reached, go_on;

static void hold(void)
{
    sem_post(&reached);
    while (sem_wait(&go_on) != 0)
        continue;
}

static int held_fsync(int fd)
{
    struct stat status;

    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode))
        hold();
    return fsync(fd);
}

static int held_renameat(int from_folder, const char *from, int to_folder, const char *to)
{
    hold();
    return renameat(from_folder, from, to_folder, to);
}

static berth_job *begin_held(void)
{
    berth_job *job;
    berth_error error;

    sem_init(&reached, 0, 0);
    sem_init(&go_on, 0, 0);
    cr_assert_eq(begin(0, &job, &error), 0, "%s", error.message);
    sem_wait(&reached);
    return job;
}

Test(job_faults, while_the_data_is_synced_a_job_is_staged_and_memory_may_be_changed)
{
    berth_error error;

    bth_system.fsync = held_fsync;
    berth_job *job = begin_held();
    cr_assert(JOB_IS(job, BERTH_JOB_STAGED));
    cr_assert_not(JOB_IS(job, BERTH_JOB_DONE));
    cr_assert_eq(berth_job_wait(job, BERTH_JOB_STAGED, -1, &error), 0);
    memset(bytes, 0, 30000);
    sem_post(&go_on);
    cr_assert_eq(berth_job_wait(job, BERTH_JOB_DONE, -1, &error), 0, "%s", error.message);
    berth_job_free(job);
    check_held(0, "synced");
}

Test(job_faults, a_cancel_while_the_data_is_synced_leaves_the_old_file)
{
    berth_error error;

    bth_system.fsync = held_fsync;
    berth_job *job = begin_held();
    cr_assert(berth_job_cancel(job));
    sem_post(&go_on);
    cr_assert_eq(berth_job_wait(job, BERTH_JOB_DONE, -1, &error), BERTH_E_CANCELLED, "%s",
                 error.message);
    cr_assert_eq(berth_job_wait(job, BERTH_JOB_STAGED, -1, &error), 0, "it was");
    berth_job_free(job);
    check_held(BERTH_E_CANCELLED, "cancelled while synced");
}

static bool is_synced;

static int note_fsync(int fd)
{
    is_synced = true;
    return fsync(fd);
}

static int cancel_when_synced(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    (void)context, (void)done_nbytes, (void)total_nbytes;
    return is_synced;
}

Test(job_faults, a_progress_function_is_heard_once_more_before_the_rename)
{
    const berth_new_record record = {.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."};
    const berth_params call = {.progress = cancel_when_synced, .archive_name = "archive"};
    berth_error error;

    bth_system.fsync = note_fsync;
    cr_assert_eq(berth_save_to(TO_PATH(path), OF_RECORDS(&record, 1, 0), &call, &error),
                 BERTH_E_CANCELLED, "%s", error.message);
    check_held(error.code, "cancelled once it was synced");
}

Test(job_faults, a_cancel_at_the_rename_comes_too_late_and_says_so)
{
    berth_error error;

    bth_system.renameat = held_renameat;
    berth_job *job = begin_held();
    cr_assert_not(berth_job_cancel(job));
    sem_post(&go_on);
    cr_assert_eq(berth_job_wait(job, BERTH_JOB_DONE, -1, &error), 0, "%s", error.message);
    cr_assert_not(berth_job_cancel(job));
    berth_job_free(job);
    check_held(0, "too late");
}
