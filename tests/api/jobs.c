/* SPDX-License-Identifier: BSD-3-Clause */
/* Saves that go on while the caller does: staged, done, progress, cancel. */
#include <berth/config.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/support/job_scene.h"

static berth_error error;

#define OLD "the old file"

TestSuite(jobs, .init = begin_jobs, .fini = end_jobs);

static berth_job *begin(uint32_t flags, const berth_params *call)
{
    berth_job *job;

    assert_ok(berth_save_begin(TO_PATH(path), OF_VALUE(state), flags, call, &job, &error));
    return job;
}

/* ---- what is written ---- */

Test(jobs, write_what_berth_save_writes)
{
    uint64_t done_nbytes, total_nbytes;
    berth_job *job = begin(0, NULL);

    assert_ok(berth_job_wait(job, BERTH_JOB_STAGED, -1, &error));
    check_wait(job, 0);
    check_wait(job, 0);
    cr_assert(JOB_IS(job, BERTH_JOB_STAGED) && JOB_IS(job, BERTH_JOB_DONE));
    berth_job_progress(job, &done_nbytes, &total_nbytes);
    cr_assert_eq(done_nbytes, expected_nbytes);
    cr_assert_eq(total_nbytes, expected_nbytes);
    berth_job_progress(job, NULL, NULL);
    cr_assert_not(berth_job_cancel(job), "it is done");
    check_wait(job, 0);
    berth_job_free(job);
    check_file(path, expected, expected_nbytes);
}

Test(jobs, are_several_at_once)
{
    enum { N = 4 };
    berth_job *jobs[N];
    char name[32], *paths[N];

    patch(SMALL_TILES);
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "archive%d", i);
        paths[i] = test_path(folder, name);
        assert_ok(berth_save_begin(TO_PATH(i == 0 ? path : paths[i]), OF_VALUE(state), 0, NULL,
                                   &jobs[i], &error));
    }
    for (int i = N - 1; i >= 0; i--) {
        check_wait(jobs[i], 0);
        berth_job_free(jobs[i]);
        if (i == 0)
            check_file(path, expected, expected_nbytes);
        free(paths[i]);
    }
    cr_assert_eq(test_folder_count(folder), N);
}

Test(jobs, are_waited_for_when_they_are_freed)
{
    berth_job_free(begin(0, NULL));
    check_file(path, expected, expected_nbytes);
    cr_assert_eq(test_folder_count(folder), 1);
    berth_job_free(NULL);
}

Test(jobs, keep_the_folder_they_began_in)
{
    berth_job *job;

    cr_assert_eq(chdir(folder), 0);
    assert_ok(berth_save_begin(TO_PATH("archive.pt"), OF_VALUE(state), 0, NULL, &job, &error));
    cr_assert_eq(chdir("/"), 0);
    check_wait(job, 0);
    berth_job_free(job);
    check_file(path, expected, expected_nbytes);
}

static int read_weights(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    memcpy(buffer, (const char *)context + offset, nbytes);
    return 0;
}

Test(jobs, write_records_too_from_memory_and_from_callbacks)
{
    char name[] = "data/0", archive[] = "archive", *copy = strdup(path);
    berth_new_record records[] = {
        {.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."},
        {.name = name, .nbytes = 80000, .read = read_weights, .context = weights},
        {.name = "data/1", .nbytes = 80000, .data = weights}};
    berth_job *job;
    size_t nbytes;

    assert_ok(berth_save_to(TO_PATH(path), OF_RECORDS(records, 3, 0), NAMED(archive), &error));
    uint8_t *file = test_read_file(path, &nbytes);
    for (uint32_t flags = 0; flags <= BERTH_SAVE_SNAPSHOT; flags += BERTH_SAVE_SNAPSHOT) {
        (void)unlink(path);
        assert_ok(berth_save_begin(TO_PATH(copy), OF_RECORDS(records, 3, 0), flags, NAMED(archive),
                                   &job, &error));
        if (flags) { /* nothing is borrowed any more */
            memset(records, 0, sizeof records);
            memset(name, 0, sizeof name);
            memset(archive, 0, sizeof archive);
            memset(weights, 0, WEIGHTS_NBYTES);
            memset(copy, 0, strlen(copy));
        }
        check_wait(job, 0);
        berth_job_free(job);
        check_file(path, file, nbytes);
    }
    free(file);
    free(copy);
}

/* ---- sinks that can be held ---- */

struct held_sink {
    uint8_t *bytes;
    sem_t reached, go_on;
    uint64_t hold_from; /* the first write behind this offset waits */
    uint64_t fail_from;
    _Atomic bool held;
    _Atomic unsigned n_writes;
};

static int write_held(void *context, const void *buffer, size_t nbytes, uint64_t offset)
{
    struct held_sink *sink = context;

    sink->n_writes++;
    if (offset + nbytes > sink->fail_from)
        return EPERM; /* its text is the same in every C library */
    if (offset >= sink->hold_from && !atomic_exchange(&sink->held, true)) {
        sem_post(&sink->reached);
        while (sem_wait(&sink->go_on) != 0)
            continue;
    }
    memcpy(sink->bytes + offset, buffer, nbytes);
    return 0;
}

static void make_sink(struct held_sink *sink, uint64_t hold_from)
{
    *sink = (struct held_sink){
        .bytes = calloc(expected_nbytes, 1), .hold_from = hold_from, .fail_from = UINT64_MAX};
    sem_init(&sink->reached, 0, 0);
    sem_init(&sink->go_on, 0, 0);
}

static berth_job *begin_to_sink(struct held_sink *held, bool in_order, uint32_t flags)
{
    berth_sink sink = {.write = write_held, .context = held, .in_order = in_order};
    berth_job *job;

    assert_ok(berth_save_begin(TO_SINK(&sink), OF_VALUE(state), flags, NULL, &job, &error));
    memset(&sink, 0x55, sizeof sink); /* it was copied */
    return job;
}

Test(jobs, go_to_sinks_in_order_or_anyhow)
{
    patch(SMALL_TILES);
    for (int in_order = 0; in_order < 2; in_order++) {
        struct held_sink sink;
        make_sink(&sink, UINT64_MAX);
        berth_job *job = begin_to_sink(&sink, in_order, 0);
        check_wait(job, 0);
        berth_job_free(job);
        cr_assert_eq(memcmp(sink.bytes, expected, expected_nbytes), 0);
        free(sink.bytes);
    }
}

Test(jobs, go_to_memory_and_descriptors_too)
{
    void *bytes = &bytes;
    size_t nbytes = 1;
    berth_job *job;

    patch(SMALL_TILES);
    assert_ok(berth_save_begin(TO_MEMORY(&bytes, &nbytes), OF_VALUE(state), 0, NULL, &job, &error));
    check_wait(job, 0);
    cr_assert(nbytes == expected_nbytes && memcmp(bytes, expected, nbytes) == 0);
    berth_job_free(job);
    berth_free(bytes);
    assert_ok(berth_save_begin(TO_MEMORY(&bytes, &nbytes), OF_VALUE(state), 0, NULL, &job, &error));
    bool cancelled = berth_job_cancel(job);
    cr_assert_eq(berth_job_wait(job, BERTH_JOB_DONE, -1, &error),
                 cancelled ? BERTH_E_CANCELLED : 0);
    cr_assert_eq(bytes == NULL && nbytes == 0, cancelled);
    berth_job_free(job);
    berth_free(bytes);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    cr_assert_geq(fd, 0);
    assert_ok(berth_save_begin(TO_FD(fd), OF_VALUE(state), 0, NULL, &job, &error));
    check_wait(job, 0);
    berth_job_free(job);
    (void)close(fd);
    check_file(path, expected, expected_nbytes);
}

Test(jobs, write_records_to_sinks_too)
{
    struct held_sink to = {.fail_from = UINT64_MAX, .hold_from = UINT64_MAX};
    const berth_new_record records[] = {{.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."},
                                        {.name = "data/0", .nbytes = 80000, .data = weights}};
    berth_sink sink = {.write = write_held, .context = &to};
    berth_job *job;
    size_t nbytes;

    cr_assert_eq(berth_save_to(TO_PATH(path), OF_RECORDS(records, 2, 0), NAMED("a"), &error), 0);
    uint8_t *file = test_read_file(path, &nbytes);
    to.bytes = calloc(nbytes, 1);
    assert_ok(berth_save_begin(TO_SINK(&sink), OF_RECORDS(records, 2, 0), BERTH_SAVE_SNAPSHOT,
                               NAMED("a"), &job, &error));
    memset(weights, 0, WEIGHTS_NBYTES);
    check_wait(job, 0);
    berth_job_free(job);
    cr_assert_eq(memcmp(to.bytes, file, nbytes), 0);
    cr_assert_eq(
        berth_save_begin(TO_SINK(NULL), OF_RECORDS(records, 2, 0), 0, NAMED("a"), &job, &error),
        BERTH_E_ARGUMENT);
    free(to.bytes);
    free(file);
}

static int write_slowly(void *context, const void *buffer, size_t nbytes, uint64_t offset)
{
    (void)context, (void)buffer, (void)nbytes, (void)offset;
    usleep(60000);
    return 0;
}

/* Ten times a second; with one worker between its tiles. */
static void check_progress(const char *options)
{
    const berth_sink sink = {.write = write_slowly};
    uint64_t last_nbytes = 0, done_nbytes, total_nbytes;
    unsigned n_told = 0;
    berth_job *job;

    patch(options);
    cr_assert_eq(berth_save_begin(TO_SINK(&sink), OF_VALUE(state), 0, NULL, &job, &error), 0);
    while (!JOB_IS(job, BERTH_JOB_DONE)) {
        berth_job_progress(job, &done_nbytes, &total_nbytes);
        cr_assert_eq(total_nbytes, expected_nbytes);
        cr_assert(done_nbytes >= last_nbytes && done_nbytes <= total_nbytes);
        n_told += done_nbytes > last_nbytes && done_nbytes < total_nbytes;
        last_nbytes = done_nbytes;
        usleep(2000);
    }
    berth_job_free(job);
    berth_config_unpatch(NULL);
    cr_expect_geq(n_told, 2, "%s: told %u times", options, n_told);
}

Test(jobs, tell_how_far_they_are)
{
    check_progress("io.threads=1 io.chunk_nbytes=8000");
    check_progress("io.threads=2 io.chunk_nbytes=4000");
}

Test(jobs, are_staged_only_when_all_was_read)
{
    struct held_sink sink;

    patch("io.threads=1 io.chunk_nbytes=1000");
    make_sink(&sink, expected_nbytes - 3000);
    berth_job *job = begin_to_sink(&sink, true, 0);
    sem_wait(&sink.reached);
    cr_assert_not(JOB_IS(job, BERTH_JOB_STAGED) || JOB_IS(job, BERTH_JOB_DONE));
    FAILS(berth_job_wait(job, BERTH_JOB_STAGED, 0.02, &error), BERTH_E_TIMEOUT,
          "the job was not staged within 0.02 seconds");
    FAILS(berth_job_wait(job, BERTH_JOB_DONE, 0, &error), BERTH_E_TIMEOUT,
          "the job was not done within 0 seconds");
    sem_post(&sink.go_on);
    cr_assert_eq(berth_job_wait(job, BERTH_JOB_STAGED, -1, &error), 0);
    memset(weights, 0, WEIGHTS_NBYTES);
    berth_tree_free(tree);
    tree = NULL;
    cr_assert_eq(berth_job_wait(job, BERTH_JOB_DONE, 1e300, &error), 0);
    berth_job_free(job);
    cr_assert_eq(memcmp(sink.bytes, expected, expected_nbytes), 0);
    free(sink.bytes);
}

/* ---- cancel ---- */

Test(jobs, cancelled_write_nothing_any_more)
{
    struct held_sink sink;

    patch("io.threads=1 io.chunk_nbytes=1000");
    make_sink(&sink, 5000);
    berth_job *job = begin_to_sink(&sink, true, 0);
    sem_wait(&sink.reached);
    unsigned n_writes = sink.n_writes;
    cr_assert(berth_job_cancel(job));
    cr_assert(berth_job_cancel(job), "twice is once");
    sem_post(&sink.go_on);
    check_wait(job, BERTH_E_CANCELLED);
    cr_assert_eq(sink.n_writes, n_writes);
    FAILS(berth_job_wait(job, BERTH_JOB_STAGED, -1, &error), BERTH_E_CANCELLED, "cancelled");
    cr_assert(berth_job_cancel(job), "the answer stays");
    berth_job_free(job);
    free(sink.bytes);
}

/* A write that was begun just before the cancel may still come, one of each other worker. */
Test(jobs, of_many_workers_cancelled_write_no_more_than_was_begun)
{
    struct held_sink sink;

    patch("io.threads=4 io.chunk_nbytes=50");
    make_sink(&sink, 0);
    berth_job *job = begin_to_sink(&sink, false, 0);
    sem_wait(&sink.reached); /* the others go on */
    cr_assert(berth_job_cancel(job));
    unsigned n_writes = sink.n_writes;
    usleep(20000);
    cr_assert_leq(sink.n_writes, n_writes + 3);
    n_writes = sink.n_writes;
    sem_post(&sink.go_on);
    check_wait(job, BERTH_E_CANCELLED);
    cr_assert_eq(sink.n_writes, n_writes);
    berth_job_free(job);
    free(sink.bytes);
}

struct held_progress {
    sem_t reached, go_on;
    pthread_t thread;
    unsigned n;
    int answer;
};

static int hold_progress(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    struct held_progress *progress = context;

    (void)done_nbytes, (void)total_nbytes;
    progress->thread = pthread_self();
    if (progress->n++ == 0) {
        sem_post(&progress->reached);
        while (sem_wait(&progress->go_on) != 0)
            continue;
    }
    return progress->answer;
}

static berth_job *begin_held(struct held_progress *progress, int answer)
{
    const berth_params call = {.progress = hold_progress, .progress_context = progress};

    *progress = (struct held_progress){.answer = answer};
    sem_init(&progress->reached, 0, 0);
    sem_init(&progress->go_on, 0, 0);
    test_write_file(path, OLD, strlen(OLD));
    berth_job *job = begin(0, &call);
    sem_wait(&progress->reached);
    return job;
}

static void check_cancelled(berth_job *job)
{
    char message[640];

    check_wait(job, BERTH_E_CANCELLED);
    snprintf(message, sizeof message, "%s: cancelled", path);
    FAILS(berth_job_wait(job, BERTH_JOB_DONE, -1, &error), BERTH_E_CANCELLED, message);
    berth_job_free(job);
    check_file(path, OLD, strlen(OLD));
    cr_assert_eq(test_folder_count(folder), 1);
}

Test(jobs, cancelled_leave_the_old_file_and_nothing_else)
{
    struct held_progress progress;
    berth_job *job = begin_held(&progress, 0);

    cr_assert(berth_job_cancel(job));
    sem_post(&progress.go_on);
    check_cancelled(job);
}

Test(jobs, are_cancelled_by_their_progress_function_on_their_own_thread)
{
    struct held_progress progress;
    berth_job *job = begin_held(&progress, 1);

    cr_assert_not(pthread_equal(progress.thread, pthread_self()));
    sem_post(&progress.go_on);
    check_cancelled(job);
}

/* ---- what is told ---- */

Test(jobs, fail_with_the_error_of_the_save)
{
    struct held_sink sink;
    berth_error again;

    patch("io.threads=1 io.chunk_nbytes=1000");
    make_sink(&sink, UINT64_MAX);
    sink.fail_from = 8000;
    berth_job *job = begin_to_sink(&sink, true, 0);
    FAILS(berth_job_wait(job, BERTH_JOB_STAGED, -1, &error), BERTH_E_CALLBACK,
          "data/0 at byte 8000: the sink failed: Operation not permitted");
    cr_assert_eq(berth_job_wait(job, BERTH_JOB_DONE, -1, &again), BERTH_E_CALLBACK);
    cr_assert_eq(memcmp(&error, &again, sizeof error), 0);
    cr_assert_eq(berth_job_wait(job, BERTH_JOB_DONE, -1, NULL), BERTH_E_CALLBACK);
    cr_assert(JOB_IS(job, BERTH_JOB_STAGED) && JOB_IS(job, BERTH_JOB_DONE));
    berth_job_free(job);
    free(sink.bytes);
}

static char logged[640];

static void keep_log(void *context, const char *message)
{
    (void)context;
    snprintf(logged, sizeof logged, "%s", message);
}

Test(jobs, that_fail_and_are_never_waited_for_are_logged)
{
    struct held_sink sink;

    berth_set_log(keep_log, NULL);
    make_sink(&sink, UINT64_MAX);
    sink.fail_from = 0;
    berth_job_free(begin_to_sink(&sink, true, 0));
    cr_assert_str_eq(logged, "data.pkl at byte 0: the sink failed: Operation not permitted");
    logged[0] = '\0';
    berth_job *job = begin_to_sink(&sink, true, 0);
    check_wait(job, BERTH_E_CALLBACK);
    berth_job_free(job);
    cr_assert_str_eq(logged, "", "it was told already");
    berth_set_log(NULL, NULL);
    free(sink.bytes);
}

Test(jobs, use_the_options_of_begin_and_fill_the_statistics)
{
    berth_config *config = berth_config_new(&error);
    berth_stats stats;
    berth_params call = {.config = config, .stats = &stats};

    cr_assert_eq(berth_config_apply(config, "save.storage_alignment=4096", &error), 0);
    berth_job *job = begin(BERTH_SAVE_SNAPSHOT, &call);
    berth_config_free(config);
    memset(&call, 0x55, sizeof call);
    check_wait(job, 0);
    berth_job_free(job);
    cr_assert_gt(stats.moved_nbytes, expected_nbytes);
    cr_assert_eq(stats.n_storages, 2);
    cr_assert(stats.copy_seconds > 0 && stats.total_seconds >= stats.copy_seconds);
}

/* And NULL: nothing.c. */
Test(jobs, that_cannot_begin_say_so_at_once_and_are_none)
{
    const berth_new_record record = {.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."};
    berth_job *job = (berth_job *)&job;
    berth_stats stats = {0};
    const berth_params call = {.stats = &stats};

    cr_assert_eq(
        berth_save_begin(TO_PATH("/nowhere/model.pt"), OF_VALUE(state), 0, &call, &job, &error),
        BERTH_E_NOT_FOUND);
    cr_assert_null(job);
    cr_assert_str_eq(error.message,
                     "/nowhere/model.pt: its folder cannot be opened: No such file or directory");
    cr_assert_eq(stats.n_storages, 2);
    FAILS(berth_save_begin(TO_PATH(NULL), OF_VALUE(state), 0, NULL, &job, &error), BERTH_E_ARGUMENT,
          "the path is NULL");
    cr_assert_eq(berth_save_begin(TO_PATH(path), OF_VALUE(NULL), 0, NULL, &job, &error),
                 BERTH_E_ARGUMENT);
    FAILS(berth_save_begin(TO_PATH(path), OF_VALUE(state), 1, NULL, &job, &error), BERTH_E_ARGUMENT,
          "unknown flags 0x1");
    FAILS(berth_save_begin(TO_PATH(path), OF_VALUE(state), 0, NULL, NULL, &error), BERTH_E_ARGUMENT,
          "job is NULL");
    cr_assert_eq(berth_save_begin(TO_SINK(NULL), OF_VALUE(state), 0, NULL, &job, &error),
                 BERTH_E_ARGUMENT);
    cr_assert_eq(
        berth_save_begin(TO_PATH(path), OF_RECORDS(&record, 1, 0), 0x200, NULL, &job, &error),
        BERTH_E_ARGUMENT);
    cr_assert_eq(
        berth_save_to(TO_PATH(path), OF_RECORDS(&record, 1, BERTH_SAVE_SNAPSHOT), NULL, &error),
        BERTH_E_ARGUMENT, "no flag of records");
    FAILS(berth_job_wait(NULL, BERTH_JOB_DONE, -1, &error), BERTH_E_ARGUMENT, "the job is NULL");
    uint64_t total_nbytes = 1;
    berth_job_progress(NULL, NULL, &total_nbytes);
    cr_assert_eq(total_nbytes, 0);
    cr_assert_eq(test_folder_count(folder), 0);
    job = begin(0, NULL);
    FAILS(berth_job_wait(job, (berth_job_event)0, -1, &error), BERTH_E_ARGUMENT, "invalid event 0");
    check_wait(job, 0);
    berth_job_free(job);
}

/* W6 */
Test(jobs, without_memory_fail_cleanly_wherever_it_happens)
{
    unsigned n_points = 0;

    patch(SMALL_TILES " save.durability=none");
    for (uint32_t flags = 0; flags <= BERTH_SAVE_SNAPSHOT; flags += BERTH_SAVE_SNAPSHOT) {
        struct test_refusals each = {0};
        while (test_refuse_next(&each)) {
            berth_job *job;
            test_write_file(path, OLD, strlen(OLD));
            int status =
                berth_save_begin(TO_PATH(path), OF_VALUE(state), flags, NULL, &job, &error);
            if (status == 0) {
                status = berth_job_wait(job, BERTH_JOB_DONE, -1, &error);
                berth_job_free(job);
            }
            bool refused = test_memory_refused();
            cr_assert_eq(status, refused ? BERTH_E_MEMORY : 0, "allocation %u: %s",
                         (unsigned)each.nth, error.message);
            cr_assert_eq(test_folder_count(folder), 1);
            check_file(path, refused ? (const void *)OLD : expected,
                       refused ? strlen(OLD) : expected_nbytes);
            n_points += refused;
        }
    }
    printf("fault points tried: %u\n", n_points);
    cr_assert_geq(n_points, 30);
}
