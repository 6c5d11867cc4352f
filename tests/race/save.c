/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Saving under the thread sanitizer: tiles so small that every descriptor is a seam, several saves
 * at once, a sink that fails in one thread (W8), a cancel, two writers on one path (W7), which is
 * also the base of both, and is read meanwhile (W12).
 */
#include <berth.h>
#include <berth/config.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "io/syscalls.h"
#include "tests/support/race.h"

#define N_RECORDS 20
#define RECORD_NBYTES 3000
#define OPTIONS "io.threads=4 io.chunk_nbytes=100 save.durability=none debug=on"

static uint8_t bytes[RECORD_NBYTES + N_RECORDS];
static berth_new_record records[N_RECORDS];
static char names[N_RECORDS][16];
static const char *path;

static void prepare(void)
{
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 13);
    for (size_t i = 0; i < N_RECORDS; i++) {
        snprintf(names[i], sizeof names[i], "data/%zu", i);
        records[i] = (berth_new_record){.name = i ? names[i] : "data.pkl",
                                        .nbytes = i % 5 ? RECORD_NBYTES : i,
                                        .data = bytes + i};
    }
}

static void *save_often(void *context)
{
    berth_error error;

    (void)context;
    expect(berth_config_patch(OPTIONS, &error) == 0, "patch");
    for (int i = 0; i < 5; i++)
        expect(berth_save_to(TO_PATH(path), OF_RECORDS(records, N_RECORDS, 0), NULL, &error) == 0,
               error.message);
    berth_config_unpatch(NULL);
    return NULL;
}

/*
 * Blocks that wait for a CRC, kept by one worker and written by another: records of a few blocks,
 * so that their descriptors lie in other tiles than their ends or beginnings.
 */
static void check_direct(void)
{
    enum { N = 12, NBYTES = 50001 };
    static uint8_t large[NBYTES + N];
    berth_new_record some[N];
    berth_storage_stats told[N - 1];
    const berth_params call = {.storage_stats = told, .n_storage_stats = N - 1};
    berth_error error;

    for (size_t i = 0; i < N; i++)
        some[i] = (berth_new_record){
            .name = i ? names[i] : "data.pkl", .nbytes = NBYTES, .data = large + i};
    expect(berth_config_patch("io.threads=4 io.chunk_nbytes=4096 save.method=direct debug=on "
                              "save.durability=none",
                              &error) == 0,
           "patch");
    for (int i = 0; i < 5; i++)
        expect(berth_save_to(TO_PATH(path), OF_RECORDS(some, N, 0), &call, &error) == 0,
               error.message);
    for (size_t i = 0; i < N - 1; i++)
        expect(told[i].moved_nbytes == NBYTES, "some of a storage is not counted");
    berth_config_unpatch(NULL);
}

/* Each save must end whole although another one ends at the same path. */
static void check_two_writers(void)
{
    pthread_t threads[2];

    for (int i = 0; i < 2; i++)
        expect(pthread_create(&threads[i], NULL, save_often, NULL) == 0, "pthread_create");
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

#define N_SHARED 6
#define SHARED_NBYTES 200000

static uint8_t shared_bytes[SHARED_NBYTES * N_SHARED];

static void *save_over_base(void *context)
{
    static const char *const methods[] = {"save.method=buffered", "save.method=direct"};
    berth_new_record some[N_SHARED];
    berth_error error;
    berth_stats stats;
    const berth_params call = {.archive_name = "a", .base = path, .stats = &stats};

    for (size_t i = 0; i < N_SHARED; i++)
        some[i] = (berth_new_record){.name = i ? names[i] : "data.pkl",
                                     .nbytes = i ? SHARED_NBYTES : 4,
                                     .data = i ? (const void *)(shared_bytes + i * SHARED_NBYTES)
                                               : "\x80\2}."};
    for (size_t i = 0; i < 6; i++) {
        expect(berth_config_patch("io.threads=4 io.chunk_nbytes=65536", &error) == 0, "patch");
        expect(berth_config_patch(methods[i % 2], &error) == 0, "patch");
        expect(berth_save_to(TO_PATH(path), OF_RECORDS(some, N_SHARED, 0), &call, &error) == 0,
               error.message);
        expect(!context || (stats.shared_nbytes > sizeof shared_bytes / 2 && !stats.base_reason),
               stats.base_reason);
        berth_config_unpatch(NULL);
        berth_config_unpatch(NULL);
    }
    return NULL;
}

static void *verify_often(void *context)
{
    berth_error error;

    (void)context;
    for (int i = 0; i < 20; i++)
        expect(berth_verify(FROM_PATH(path), NULL, NULL, NULL, NULL, &error) == 0, error.message);
    return NULL;
}

/* W12: clones are copies here. */
static void check_base(void)
{
    void *(*const roles[])(void *) = {save_over_base, save_over_base, verify_often};

    for (size_t i = 0; i < sizeof shared_bytes; i++)
        shared_bytes[i] = (uint8_t)(i * 7 + i / 13);
    bth_system.ioctl = test_clone_by_copying;
    save_over_base(NULL); /* the first finds no such base */
    run_threads(3, roles, shared_bytes);
    bth_system_restore();
}

static int fail_late(void *context, const void *buffer, size_t nbytes, uint64_t offset)
{
    (void)context, (void)buffer, (void)nbytes;
    return offset >= 20000 ? EIO : 0;
}

static int cancel(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    (void)context, (void)total_nbytes;
    return done_nbytes > 0;
}

static void check_failures(void)
{
    const berth_sink sink = {.write = fail_late};
    const berth_params call = {.progress = cancel};
    berth_error error;

    expect(berth_config_patch(OPTIONS, &error) == 0, "patch");
    expect(berth_save_to(TO_SINK(&sink), OF_RECORDS(records, N_RECORDS, 0), NULL, &error) ==
               BERTH_E_CALLBACK,
           "a sink that fails");
    expect(error.offset >= 20000 && error.system_errno == EIO, error.message);
    expect(berth_save_to(TO_PATH(path), OF_RECORDS(records, N_RECORDS, 0), &call, &error) ==
               BERTH_E_CANCELLED,
           "a cancel");
    berth_config_unpatch(NULL);
}

int main(void)
{
    char *folder = test_folder_new();
    char *model = test_path(folder, "model.pt");

    path = model;
    prepare();
    check_two_writers();
    check_direct();
    check_base();
    check_failures();
    expect(test_folder_count(folder) == 1, "something is left behind");
    free(model);
    test_folder_remove(folder);
    return 0;
}
