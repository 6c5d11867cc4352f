/* SPDX-License-Identifier: BSD-3-Clause */
/* Saves from devices: how many staging buffers there are, how large, and what is told of a save. */
#include <berth/config.h>
#include <berth/device.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/error.h"
#include "io/device/staging_buffers.h"
#include "tests/support/save/device_storages.h"
#include "tests/support/scene.h"

#define MIB ((uint64_t)1 << 20)

static device_scene scene;
static berth_error error;
static berth_stats stats;

static void set_up(void)
{
    begin_scene("archive.pt");
    bth_simulated_set(NULL);
    scene_begin(&scene);
}

static void tear_down(void)
{
    scene_end(&scene);
    end_scene();
}

TestSuite(save_ring, .init = set_up, .fini = tear_down);

/* Eight tiles of devices' bytes. Anew: nothing is kept pinned from before. */
static int save(const char *options)
{
    const berth_params call = {.stats = &stats};

    cr_assert_eq(berth_config_patch("io.chunk_nbytes=64KiB", &error), 0);
    cr_assert_eq(berth_config_patch(options, &error), 0, "%s", error.message);
    int status = berth_save(path, scene.state, &call, &error);
    berth_config_unpatch(NULL);
    berth_config_unpatch(NULL);
    return status;
}

static void check_saved(const char *options)
{
    size_t nbytes;

    cr_assert_eq(save(options), 0, "%s", error.message);
    uint8_t *file = test_read_file(path, &nbytes);
    cr_assert_eq(nbytes, scene.expected_nbytes);
    cr_assert_eq(memcmp(file, scene.expected, nbytes), 0, "%s", options);
    free(file);
}

/* ---- the ring ---- */

static void check_ring(const char *options, uint64_t ring_nbytes)
{
    bth_staging_free_kept();
    check_saved(options);
    cr_expect_eq(bth_staging_kept_nbytes(), ring_nbytes, "%s: %llu", options,
                 (unsigned long long)bth_staging_kept_nbytes());
    cr_expect_geq(stats.memory_nbytes, ring_nbytes, "%s", options);
    cr_expect_leq(stats.memory_nbytes, ring_nbytes + MIB, "%s", options);
}

Test(save_ring, buffers_are_as_many_and_as_large_as_asked_for)
{
    check_ring("device.staging_buffers=3", 3 * 2 * MIB);
    check_ring("device.staging_buffers=3 device.staging_nbytes=1", 3 * 2 * MIB);
    check_ring("device.staging_buffers=2 io.threads=5", 2 * 2 * MIB);
    check_ring("device.staging_buffers=5 io.threads=2", 2 * 2 * MIB);
    check_ring("device.staging_buffers=5 io.threads=1", 5 * 2 * MIB);
    check_ring("io.threads=1", 3 * 2 * MIB);
    check_ring("io.threads=4", 4 * 2 * MIB);
    check_ring("io.chunk_nbytes=3MiB", 4 * MIB); /* one tile */
    check_ring("io.chunk_nbytes=3MiB device.staging_nbytes=2MiB", 2 * MIB);
    check_ring("io.threads=4 save.method=direct", 4 * 2 * MIB);
}

Test(save_ring, what_is_said_of_buffers_goes_before_what_is_measured)
{
    check_ring("io.chunk_nbytes=32MiB device.staging_nbytes=32MiB io.threads=4", 32 * MIB);
    cr_expect_leq(stats.n_requests, 3, "one tile in one buffer, and the tail");
}

Test(save_ring, is_pinned_once_and_kept)
{
    check_saved("io.threads=3");
    uint64_t n = bth_simulated_n_calls(BTH_SIMULATED_PIN);
    cr_expect_eq(n, 3);
    check_saved("io.threads=3");
    check_saved("io.threads=1");
    cr_expect_eq(bth_simulated_n_calls(BTH_SIMULATED_PIN), n);
}

Test(save_ring, is_not_pinned_when_that_is_off)
{
    check_saved("save.use_pinned_memory_for_d2h=off io.threads=4");
    check_saved("save.use_pinned_memory_for_d2h=off io.threads=1 save.method=direct");
    cr_expect_eq(bth_simulated_n_calls(BTH_SIMULATED_PIN), 0);
    cr_expect_eq(bth_simulated_seen().pinned_nbytes, 0);
    cr_expect_eq(bth_staging_kept_nbytes(), 0);
    cr_expect_geq(stats.memory_nbytes, 3 * 2 * MIB);
}

Test(save_ring, comes_from_the_driver_where_memory_cannot_be_registered)
{
    bth_simulated_set(&(bth_simulated_machine){.n_devices = 2,
                                               .memory_nbytes = UINT64_MAX,
                                               .pinned_nbytes = UINT64_MAX,
                                               .cannot_register = true});
    check_ring("io.threads=4", 4 * 2 * MIB);
    check_ring("io.threads=3 save.method=direct", 3 * 2 * MIB);
}

Test(save_ring, is_bound_by_the_memory_that_may_be_used)
{
    char message[300];

    check_ring("io.memory_nbytes=7MiB", 3 * 2 * MIB);
    check_ring("io.memory_nbytes=7MiB device.staging_nbytes=32MiB io.chunk_nbytes=32MiB", 2 * MIB);
    check_ring("io.memory_nbytes=3MiB", 2 * MIB);
    cr_expect_leq(stats.memory_nbytes, 3 * MIB);
    test_write_file(path, "old", 3);
    cr_expect_eq(save("io.memory_nbytes=1MiB io.threads=1"), BERTH_E_MEMORY);
    (void)snprintf(message, sizeof message,
                   "%s: a staging buffer needs 2097152 bytes, io.memory_nbytes leaves ", path);
    cr_expect_eq(strncmp(error.message, message, strlen(message)), 0, "%s", error.message);
    cr_expect_eq(test_folder_count(folder), 1);
}

/* Whole large pages, and nothing beside them but what waits for its CRC. */
Test(save_ring, is_all_that_direct_writes_have_large_pages_for)
{
    const int64_t n = 3 << 20;
    const berth_params call = {.stats = &stats};
    uintptr_t address;

    cr_assert_eq(berth_device_memory_new("simulated:0", (size_t)n, &address, &error), 0);
    berth_storage *storage =
        berth_device_storage_new(scene.tree, BERTH_INT8, address, (uint64_t)n, "simulated", NULL);
    berth_value *tensor = berth_make_tensor(
        scene.tree,
        &(berth_tensor){.dtype = BERTH_INT8, .rank = 1, .shape = &n, .storage = storage});
    cr_assert_eq(
        berth_config_patch("io.chunk_nbytes=2MiB io.memory_nbytes=5MiB save.method=direct", &error),
        0);
    cr_assert_eq(berth_save(path, tensor, &call, &error), 0, "%s", error.message);
    berth_config_unpatch(NULL);
    cr_expect_geq(stats.memory_nbytes, 2 * 2 * MIB);
    cr_expect_leq(stats.memory_nbytes, 5 * MIB);
    berth_device_memory_free("simulated:0", address);
}

static char logged[400];

static void keep_log(void *context, const char *message)
{
    (void)context;
    (void)snprintf(logged, sizeof logged, "%s", message);
}

static void pin_at_most(uint64_t nbytes)
{
    bth_staging_free_kept();
    bth_simulated_set(&(bth_simulated_machine){
        .n_devices = 2, .memory_nbytes = UINT64_MAX, .pinned_nbytes = nbytes});
}

/* With fewer buffers, and then an error that names the bytes. */
Test(save_ring, shrinks_where_pinned_memory_is_short)
{
    char message[300];
    size_t nbytes;

    berth_set_log(keep_log, NULL);
    pin_at_most(5 * MIB);
    check_ring("io.threads=4", 4 * MIB);
    cr_expect_str_eq(logged, "2 staging buffers instead of 4: simulated:0: 2097152 bytes cannot be "
                             "pinned: out of memory (SIMULATED_OUT_OF_MEMORY)");
    pin_at_most(2 * MIB);
    check_ring("io.threads=4", 2 * MIB);
    pin_at_most(2 * MIB - 1);
    test_write_file(path, "old", 3);
    cr_expect_eq(save("io.threads=4"), BERTH_E_MEMORY);
    (void)snprintf(message, sizeof message,
                   "%s: simulated:0: 2097152 bytes cannot be pinned: out of memory "
                   "(SIMULATED_OUT_OF_MEMORY)",
                   path);
    cr_expect_str_eq(error.message, message);
    free(test_read_file(path, &nbytes));
    cr_expect_eq(nbytes, 3, "the old file");
    cr_expect_eq(test_folder_count(folder), 1);
    berth_set_log(NULL, NULL);
}

/* ---- snapshots ---- */

static int save_snapshot(const char *options)
{
    berth_job *job;

    cr_assert_eq(berth_config_patch(options, &error), 0, "%s", error.message);
    if (berth_save_begin(TO_PATH(path), OF_VALUE(scene.state), BERTH_SAVE_SNAPSHOT, NULL, &job,
                         &error) == 0) {
        cr_expect_eq(berth_job_wait(job, BERTH_JOB_DONE, -1, &error), (int)error.code);
        berth_job_free(job);
    }
    berth_config_unpatch(NULL);
    return error.code;
}

Test(save_ring, carries_snapshots_too)
{
    cr_expect_eq(save_snapshot("io.threads=4 io.chunk_nbytes=64KiB"), 0, "%s", error.message);
    cr_expect_eq(bth_staging_kept_nbytes(), 4 * 2 * MIB);
    bth_staging_free_kept();
    cr_expect_eq(save_snapshot("io.threads=4 io.chunk_nbytes=64KiB io.memory_nbytes=5MiB"), 0, "%s",
                 error.message);
    cr_expect_eq(bth_staging_kept_nbytes(), 2 * 2 * MIB);
    cr_expect_eq(save_snapshot("io.memory_nbytes=2MiB"), BERTH_E_MEMORY);
    cr_expect_not_null(strstr(error.message, ", and 2097152 for buffers; io.memory_nbytes is "),
                       "%s", error.message);
}

/* ---- what is told ---- */

static int sleep_and_write(void *context, const void *buffer, size_t nbytes, uint64_t offset)
{
    (void)context, (void)buffer, (void)nbytes, (void)offset;
    usleep(10000);
    return 0;
}

static int note_copies(void *context, const void *buffer, size_t nbytes, uint64_t offset)
{
    uint64_t *n_copies = context;

    (void)buffer, (void)nbytes, (void)offset;
    if (*n_copies == 0)
        *n_copies = bth_simulated_n_calls(BTH_SIMULATED_COPY);
    return 0;
}

/* One thread, too: while a tile is summed and written, the next ones are being copied. */
Test(save_ring, tiles_are_copied_while_others_are_written)
{
    uint64_t n_copies = 0;
    const berth_sink sink = {.write = note_copies, .context = &n_copies};

    cr_assert_eq(berth_config_patch("io.threads=1 io.chunk_nbytes=64KiB", &error), 0);
    uint64_t n_before = bth_simulated_n_calls(BTH_SIMULATED_COPY);
    cr_assert_eq(berth_save_to(TO_SINK(&sink), OF_VALUE(scene.state), NULL, &error), 0, "%s",
                 error.message);
    berth_config_unpatch(NULL);
    cr_expect_eq(n_copies - n_before, 4, "two of the first tile, and two tiles ahead: %llu",
                 (unsigned long long)(n_copies - n_before));
}

Test(save_ring, what_limited_the_save_is_told)
{
    const berth_sink slow = {.write = sleep_and_write};
    const berth_params call = {.stats = &stats};

    bth_simulated_set(&(bth_simulated_machine){.n_devices = 2,
                                               .memory_nbytes = UINT64_MAX,
                                               .pinned_nbytes = UINT64_MAX,
                                               .latest_nanoseconds = 40000000,
                                               .seed = 1});
    cr_assert_eq(save("io.threads=2 save.durability=none save.method=buffered"), 0);
    cr_expect_str_eq(stats.limited_by, "device");
    cr_expect_gt(stats.device_seconds, 0.01);
    cr_expect_gt(stats.crc32_seconds, 0);
    cr_expect_leq(stats.crc32_seconds, stats.render_seconds);
    cr_assert_eq(save("save.compute_crc32=off save.method=buffered"), 0);
    cr_expect_eq(stats.crc32_seconds, 0);
    cr_expect_gt(stats.render_seconds, 0);
    bth_simulated_set(NULL);
    cr_assert_eq(berth_save_to(TO_SINK(&slow), OF_VALUE(scene.state), &call, &error), 0);
    cr_expect_str_eq(stats.limited_by, "disk");
    cr_expect_gt(stats.disk_seconds, 0.009);
}

Test(save_ring, what_became_of_each_storage_is_told)
{
    enum { N = SCENE_N };
    berth_storage_stats told[N];
    const berth_params call = {.stats = &stats, .storage_stats = told, .n_storage_stats = N};
    uint64_t device_nbytes = 0;

    cr_assert_eq(berth_config_patch("save.method=buffered", &error), 0);
    cr_assert_eq(berth_save(path, scene.state, &call, &error), 0);
    berth_config_unpatch(NULL);
    for (size_t i = 0; i < N; i++) {
        cr_expect_eq(told[i].moved_nbytes, scene_nbytes(i));
        if (scene.device[i] && scene_nbytes(i) > 0)
            cr_expect_str_eq(told[i].method, "buffered, from device");
        else
            cr_expect_null(strstr(told[i].method, "device"), "%zu: %s", i, told[i].method);
        device_nbytes += scene.device[i] ? scene_nbytes(i) : 0;
    }
    cr_expect_eq(stats.device_nbytes, device_nbytes);
    cr_expect_eq(stats.n_storages, N);
}
