/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Jobs under the thread sanitizer: several at once, cancelled at random moments, waited for and
 * polled from other threads; their memory is changed as soon as they say that it may be.
 */
#include <berth.h>
#include <berth/config.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/race.h"

#define N_ROUNDS 12
#define N_JOBS 5
#define N_RECORDS 8
#define RECORD_NBYTES 3000
#define OPTIONS "io.threads=3 io.chunk_nbytes=500 save.durability=none debug=on"
#define OLD "the old file"

/* One job, and the threads that have to do with it. */
struct player {
    berth_job *job;
    char *path;
    uint8_t *bytes; /* of the records */
    bool snapshot;
    unsigned cancel_after; /* microseconds; 0: not cancelled */
    unsigned delay;        /* of the job, in microseconds, when it tells its progress */
    bool cancelled;        /* what the cancel answered */
    int codes[2];          /* what two waiters were told */
    unsigned n_progress;
    pthread_t threads[3];
};

static char names[N_RECORDS][24];
static unsigned n_cancelled, n_saved;

static int count_progress(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    struct player *player = context;

    expect(done_nbytes <= total_nbytes, "more is done than there is");
    player->n_progress++; /* always the same thread */
    usleep(player->delay);
    return 0;
}

static void fill(struct player *player, uint8_t with)
{
    memset(player->bytes, with, (size_t)N_RECORDS * RECORD_NBYTES);
}

static void begin(struct player *player)
{
    const berth_params call = {.progress = count_progress, .progress_context = player};
    berth_new_record records[N_RECORDS];
    berth_error error;

    fill(player, 0x41);
    records[0] = (berth_new_record){.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."};
    for (size_t i = 1; i < N_RECORDS; i++)
        records[i] = (berth_new_record){
            .name = names[i], .nbytes = RECORD_NBYTES, .data = player->bytes + i * RECORD_NBYTES};
    test_write_file(player->path, OLD, strlen(OLD));
    expect(berth_save_begin(TO_PATH(player->path), OF_RECORDS(records, N_RECORDS, 0),
                            player->snapshot ? BERTH_SAVE_SNAPSHOT : 0, &call, &player->job,
                            &error) == 0,
           error.message);
    if (player->snapshot)
        fill(player, 0x42);
}

/* Waits until the memory is free again, and uses it. */
static void *stage(void *context)
{
    struct player *player = context;
    berth_error error;

    int code = berth_job_wait(player->job, BERTH_JOB_STAGED, -1, &error);
    expect(code == 0 || code == BERTH_E_CANCELLED, error.message);
    fill(player, 0x43);
    player->codes[0] = berth_job_wait(player->job, BERTH_JOB_DONE, -1, &error);
    return NULL;
}

static void *wait_too(void *context)
{
    struct player *player = context;

    player->codes[1] = berth_job_wait(player->job, BERTH_JOB_DONE, -1, NULL);
    return NULL;
}

static void *poll_and_cancel(void *context)
{
    struct player *player = context;
    uint64_t done_nbytes, total_nbytes, last_nbytes = 0;

    if (player->cancel_after) {
        usleep(player->cancel_after);
        player->cancelled = berth_job_cancel(player->job);
        expect(berth_job_cancel(player->job) == player->cancelled, "the answer changed");
    }
    do {
        berth_job_progress(player->job, &done_nbytes, &total_nbytes);
        expect(done_nbytes >= last_nbytes && done_nbytes <= total_nbytes, "progress goes back");
        last_nbytes = done_nbytes;
    } while (!JOB_IS(player->job, BERTH_JOB_DONE));
    expect(JOB_IS(player->job, BERTH_JOB_STAGED), "done and not staged");
    return NULL;
}

static void check_file(const struct player *player)
{
    berth_archive *archive;
    berth_record record;
    uint8_t bytes[RECORD_NBYTES];
    berth_verdict verdict;
    berth_error error;
    size_t nbytes;

    if (player->cancelled) {
        uint8_t *file = test_read_file(player->path, &nbytes);
        expect(nbytes == strlen(OLD) && memcmp(file, OLD, nbytes) == 0, "not the old file");
        free(file);
        n_cancelled++;
        return;
    }
    expect(berth_archive_open(FROM_PATH(player->path), NULL, &archive, NULL, &error) == 0,
           error.message);
    for (size_t i = 1; i < N_RECORDS; i++) {
        expect(berth_archive_find(archive, names[i], &record, &error) == 0, error.message);
        expect(berth_archive_read(archive, &record, bytes, sizeof bytes, 0, &error) == 0,
               error.message);
        for (size_t k = 0; k < sizeof bytes; k++)
            expect(bytes[k] == 0x41, "bytes from after staged");
    }
    berth_archive_close(archive);
    expect(berth_verify(FROM_PATH(player->path), NULL, NULL, NULL, &verdict, &error) == 0,
           error.message);
    n_saved++;
}

static void play(struct player *players)
{
    static void *(*const roles[])(void *) = {stage, wait_too, poll_and_cancel};

    for (int i = 0; i < N_JOBS; i++)
        begin(&players[i]);
    for (int i = 0; i < N_JOBS; i++)
        for (int k = 0; k < 3; k++)
            expect(pthread_create(&players[i].threads[k], NULL, roles[k], &players[i]) == 0,
                   "pthread_create");
    for (int i = 0; i < N_JOBS; i++) {
        struct player *player = &players[i];
        for (int k = 0; k < 3; k++)
            pthread_join(player->threads[k], NULL);
        berth_job_free(player->job);
        expect(player->codes[0] == (player->cancelled ? BERTH_E_CANCELLED : 0), "the end");
        expect(player->codes[0] == player->codes[1], "two ends");
        check_file(player);
    }
}

int main(void)
{
    char *folder = test_folder_new();
    char *paths[N_JOBS];
    uint8_t *bytes[N_JOBS];
    char name[32];
    berth_error error;

    srand(7);
    expect(berth_config_patch(OPTIONS, &error) == 0, "patch");
    for (int i = 0; i < N_RECORDS; i++)
        snprintf(names[i], sizeof names[i], "data/%d", i);
    for (int i = 0; i < N_JOBS; i++) {
        snprintf(name, sizeof name, "model%d.pt", i);
        paths[i] = test_path(folder, name);
        bytes[i] = malloc((size_t)N_RECORDS * RECORD_NBYTES);
    }
    for (int round = 0; round < N_ROUNDS; round++) {
        struct player players[N_JOBS];
        memset(players, 0, sizeof players);
        for (int i = 0; i < N_JOBS; i++) {
            players[i].path = paths[i];
            players[i].bytes = bytes[i];
            players[i].snapshot = rand() % 2;
            players[i].cancel_after = rand() % 3 ? 1u + (unsigned)rand() % 6000 : 0;
            players[i].delay = (unsigned)rand() % 6000;
        }
        play(players);
        expect(test_folder_count(folder) == N_JOBS, "something is left behind");
    }
    expect(n_cancelled > 0 && n_saved > 0, "all or none were cancelled");
    printf("%u cancelled, %u saved\n", n_cancelled, n_saved);
    for (int i = 0; i < N_JOBS; i++)
        free(paths[i]), free(bytes[i]);
    berth_config_unpatch(NULL);
    test_folder_remove(folder);
    return 0;
}
