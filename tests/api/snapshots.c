/* SPDX-License-Identifier: BSD-3-Clause */
/* Jobs with BERTH_SAVE_SNAPSHOT: what is saved is what was there at begin, at a known cost. */
#include <berth/config.h>
#include <semaphore.h>
#include <stdio.h>

#include "tests/support/job_scene.h"

TestSuite(snapshots, .init = begin_jobs, .fini = end_jobs);

static berth_job *begin(const berth_params *call)
{
    berth_job *job;
    berth_error error;

    assert_ok(
        berth_save_begin(TO_PATH(path), OF_VALUE(state), BERTH_SAVE_SNAPSHOT, call, &job, &error));
    return job;
}

static void check_snapshot(const char *options)
{
    size_t nbytes;
    void *bytes;
    float *kept = malloc(WEIGHTS_NBYTES);
    berth_verdict verdict;
    berth_error error;

    patch(options);
    memcpy(kept, weights, WEIGHTS_NBYTES);
    assert_ok(berth_save_to(TO_MEMORY(&bytes, &nbytes), OF_VALUE(state), NULL, &error));
    berth_job *job = begin(NULL);
    cr_assert(JOB_IS(job, BERTH_JOB_STAGED));
    cr_assert_eq(berth_job_wait(job, BERTH_JOB_STAGED, -1, &error), 0);
    memset(weights, 0x77, WEIGHTS_NBYTES);
    check_wait(job, 0);
    berth_job_free(job);
    check_file(path, bytes, nbytes);
    assert_ok(berth_verify(FROM_PATH(path), NULL, NULL, NULL, &verdict, &error));
    memcpy(weights, kept, WEIGHTS_NBYTES);
    berth_config_unpatch(NULL);
    berth_free(bytes);
    free(kept);
}

Test(snapshots, keep_the_bytes_of_begin_and_their_crcs)
{
    check_snapshot("debug=on");
    check_snapshot("io.threads=1");
    check_snapshot(SMALL_TILES);
    check_snapshot("io.threads=3 io.chunk_nbytes=1001 save.storage_alignment=4096");
    check_snapshot("io.threads=3 io.chunk_nbytes=7 save.byteorder=big");
    check_snapshot("io.threads=3 io.chunk_nbytes=7 save.byteorder=little");
    check_snapshot("save.compute_crc32=off");
}

struct hold {
    sem_t reached, go_on;
    bool held;
};

static int hold(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    struct hold *held = context;

    (void)done_nbytes, (void)total_nbytes;
    if (!held->held) {
        held->held = true;
        sem_post(&held->reached);
        while (sem_wait(&held->go_on) != 0)
            continue;
    }
    return 0;
}

Test(snapshots, need_neither_tree_nor_tensors_after_begin)
{
    struct hold held = {.held = false};
    const berth_params call = {.progress = hold, .progress_context = &held};

    sem_init(&held.reached, 0, 0);
    sem_init(&held.go_on, 0, 0);
    berth_job *job = begin(&call);
    sem_wait(&held.reached); /* nothing is written yet */
    memset(weights, 0, WEIGHTS_NBYTES);
    berth_tree_free(tree);
    tree = NULL;
    sem_post(&held.go_on);
    check_wait(job, 0);
    berth_job_free(job);
    check_file(path, expected, expected_nbytes);
}

/* io.memory_nbytes, and the error that it gives. */
static void check_refused(uint64_t memory_nbytes, berth_error *error)
{
    char options[64];
    berth_job *job;

    snprintf(options, sizeof options, "io.memory_nbytes=%llu", (unsigned long long)memory_nbytes);
    patch(options);
    cr_assert_eq(
        berth_save_begin(TO_PATH(path), OF_VALUE(state), BERTH_SAVE_SNAPSHOT, NULL, &job, error),
        BERTH_E_MEMORY);
    cr_assert_null(job);
    cr_assert_eq(test_folder_count(folder), 0);
    berth_config_unpatch(NULL);
}

/* "… (123 bytes missing)": exactly these are missing. */
Test(snapshots, beyond_the_bound_are_refused_with_the_bytes_missing)
{
    unsigned long long takes, missing, again;
    char options[64], start[640];
    berth_error error;

    check_refused(1000, &error);
    snprintf(start, sizeof start,
             "%s: a snapshot takes %%llu bytes, and 65536 for buffers; io.memory_nbytes is 1000 "
             "(%%llu bytes missing)%%n",
             path);
    int end = 0;
    cr_assert_eq(sscanf(error.message, start, &takes, &missing, &end), 2, "%s", error.message);
    cr_assert_eq((size_t)end, strlen(error.message));
    cr_assert_eq(missing, takes + 65536 - 1000);
    cr_assert(takes >= 80024 && takes <= expected_nbytes + 8192);
    check_refused(1000 + missing - 1, &error);
    cr_assert(strstr(error.message, "(1 bytes missing)"), "%s", error.message);
    snprintf(options, sizeof options, "io.memory_nbytes=%llu", 1000 + missing);
    patch(options);
    test_memory_watch();
    berth_job *job = begin(NULL);
    check_wait(job, 0);
    berth_job_free(job);
    again = test_memory_seen().peak_nbytes;
    test_memory_unwatch();
    check_file(path, expected, expected_nbytes);
    cr_assert_leq(again, 1000 + missing + 16384, "%llu at most, beside plan and pickle", again);
}
