/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Saves from simulated devices under the thread sanitizer, every copy late: two at once through
 * staging buffers of their own, in small tiles whose descriptors are seams; jobs whose tensors are
 * overwritten as soon as they are staged, also with a base, which is the target itself (W12); a
 * device that is lost on the way (W8).
 *
 * usage: save_devices [NAME...]: from two devices of these names, or one twice, e.g. cuda:0
 */
#include <berth/config.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "io/device/staging_buffers.h"
#include "io/syscalls.h"
#include "tests/support/race.h"
#include "tests/support/save/device_storages.h"

static const bth_simulated_machine late = {.n_devices = 2,
                                           .memory_nbytes = UINT64_MAX,
                                           .pinned_nbytes = UINT64_MAX,
                                           .latest_nanoseconds = 50000};
static device_scene scene;
static char *folder;

static void check_file(const char *path)
{
    size_t nbytes;
    uint8_t *file = test_read_file(path, &nbytes);

    expect(nbytes == scene.expected_nbytes && memcmp(file, scene.expected, nbytes) == 0,
           "another file");
    free(file);
}

/* ---- two at once ---- */

static void *save_often(void *argument)
{
    static const char *const options[] = {
        "io.threads=4 io.chunk_nbytes=8192 save.method=direct save.durability=none",
        "io.threads=3 io.chunk_nbytes=5000 debug=on save.durability=none",
        "io.threads=1 io.chunk_nbytes=64KiB save.durability=none",
        "io.threads=2 io.chunk_nbytes=32KiB save.use_pinned_memory_for_d2h=off"};
    char *path = test_path(folder, argument);
    berth_error error;

    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        expect(berth_config_patch(options[i], &error) == 0, error.message);
        const berth_params call = {.archive_name = "archive"};
        expect(berth_save(path, scene.state, &call, &error) == 0, error.message);
        berth_config_unpatch(NULL);
        check_file(path);
    }
    free(path);
    return NULL;
}

static void save_at_once(void)
{
    static char names[2][8] = {"one.pt", "two.pt"};
    pthread_t threads[2];

    for (size_t i = 0; i < 2; i++)
        expect(pthread_create(&threads[i], NULL, save_often, names[i]) == 0, "no thread");
    for (size_t i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

/* ---- jobs ---- */

static void overwrite(bool back)
{
    static const uint8_t zeros[512 * 1024];

    for (size_t i = 0; i < SCENE_N; i++)
        if (scene.device[i])
            scene_put(scene.device[i], scene.address[i], back ? (const void *)scene.host[i] : zeros,
                      scene_nbytes(i));
}

static void overwrite_when_staged(uint32_t flags, const char *base)
{
    char *path = test_path(folder, "archive.pt");
    berth_stats stats;
    const berth_params call = {.base = base, .stats = &stats};
    berth_job *job;
    berth_error error;

    expect(berth_config_patch("io.threads=4 io.chunk_nbytes=16KiB", &error) == 0, error.message);
    expect(berth_save_begin(TO_PATH(path), OF_VALUE(scene.state), flags, &call, &job, &error) == 0,
           error.message);
    expect(berth_job_wait(job, BERTH_JOB_STAGED, -1, &error) == 0, error.message);
    overwrite(false);
    expect(berth_job_wait(job, BERTH_JOB_DONE, -1, &error) == 0, error.message);
    berth_job_free(job);
    overwrite(true);
    berth_config_unpatch(NULL);
    check_file(path);
    /* 80,000 bytes are in main memory; what is on a device is shared from a snapshot only. */
    expect(!*base || (stats.shared_nbytes > 0 && (stats.shared_nbytes > 80000) == (flags != 0)),
           "shared");
    free(path);
}

/* ---- W8 ---- */

static void lose_device(uint64_t nth)
{
    char *path = test_path(folder, "lost.pt");
    berth_error error;

    bth_simulated_fail(BTH_SIMULATED_WORK, nth, BTH_SIMULATED_LOST);
    expect(berth_config_patch("io.threads=4 io.chunk_nbytes=16KiB", &error) == 0, error.message);
    expect(berth_save(path, scene.state, NULL, &error) == BERTH_E_DEVICE, error.message);
    expect(access(path, F_OK) != 0, "something is left");
    berth_config_unpatch(NULL);
    bth_simulated_set(&late);
    free(path);
}

int main(int argc, char **argv)
{
    folder = test_folder_new();
    bth_simulated_set(&late);
    for (int i = 0; i < 2 && argc > 1; i++)
        scene_devices[i] = argv[argc > 2 ? i + 1 : 1];
    scene_begin(&scene);
    save_at_once();
    overwrite_when_staged(0, "");
    overwrite_when_staged(BERTH_SAVE_SNAPSHOT, "");
    char *base = test_path(folder, "archive.pt");
    bth_system.ioctl = test_clone_by_copying;
    overwrite_when_staged(0, base);
    overwrite_when_staged(BERTH_SAVE_SNAPSHOT, base);
    bth_system_restore();
    free(base);
    for (uint64_t nth = 1; nth < 20 && argc == 1; nth += 6) /* a real one is not lost */
        lose_device(nth);
    scene_end(&scene);
    bth_staging_free_kept();
    bth_simulated_live live = bth_simulated_seen();
    expect(live.memory_nbytes == 0 && live.pinned_nbytes == 0 && live.n_streams == 0,
           "something is left");
    test_folder_remove(folder);
    return 0;
}
