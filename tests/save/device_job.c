/* SPDX-License-Identifier: BSD-3-Clause */
/* Jobs over tensors on devices: when they are staged, and what may happen then. */
#include <berth/config.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "io/device/staging_buffers.h"
#include "tests/support/save/device_storages.h"
#include "tests/support/scene.h"

static device_scene scene;
static berth_error error;

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

TestSuite(save_device_job, .init = set_up, .fini = tear_down);

/* ---- a sink that takes nothing until it is let ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_open;
    int result;
    uint8_t *bytes;
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static int write_when_let(void *context, const void *buffer, size_t nbytes, uint64_t offset)
{
    (void)context;
    pthread_mutex_lock(&gate.lock);
    while (!gate.is_open)
        pthread_cond_wait(&gate.changed, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
    memcpy(gate.bytes + offset, buffer, nbytes);
    return gate.result;
}

static void open_gate(int result)
{
    pthread_mutex_lock(&gate.lock);
    gate.is_open = true;
    gate.result = result;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
}

/* As many workers as there are tiles: all are copied before one is written. */
static berth_job *begin_gated(void)
{
    const berth_sink sink = {.write = write_when_let};
    berth_job *job;

    gate.bytes = calloc(1, scene.expected_nbytes);
    cr_assert_eq(berth_config_patch("io.threads=16 io.chunk_nbytes=64KiB", &error), 0);
    cr_assert_eq(
        berth_save_begin(TO_SINK(&sink), OF_VALUE(scene.state), 0, NAMED("archive"), &job, &error),
        0, "%s", error.message);
    berth_config_unpatch(NULL);
    return job;
}

Test(save_device_job, is_staged_with_the_last_copy_and_the_devices_memory_may_go)
{
    berth_job *job = begin_gated();

    cr_assert_eq(berth_job_wait(job, BERTH_JOB_STAGED, -1, &error), 0, "%s", error.message);
    cr_expect_not(JOB_IS(job, BERTH_JOB_DONE));
    scene_release(&scene);
    open_gate(0);
    cr_assert_eq(berth_job_wait(job, BERTH_JOB_DONE, -1, &error), 0, "%s", error.message);
    berth_job_free(job);
    cr_expect_eq(memcmp(gate.bytes, scene.expected, scene.expected_nbytes), 0);
    free(gate.bytes);
}

Test(save_device_job, that_fails_behind_its_staging_tells_it_at_its_end)
{
    berth_job *job = begin_gated();

    cr_assert_eq(berth_job_wait(job, BERTH_JOB_STAGED, -1, &error), 0, "%s", error.message);
    open_gate(EIO);
    cr_expect_eq(berth_job_wait(job, BERTH_JOB_DONE, -1, &error), BERTH_E_CALLBACK);
    cr_expect_eq(berth_job_wait(job, BERTH_JOB_STAGED, -1, &error), 0, "it was");
    berth_job_free(job);
    free(gate.bytes);
}

/* ---- events and cancels ---- */

/* A stream of the program's, held: its event does not come. */
typedef struct kernels {
    bth_device_stream stream;
    bth_device_event ready;
    berth_tree *tree;
    berth_value *state;
} kernels;

static void begin_kernels(kernels *held)
{
    cr_assert_eq(bth_device_stream_open(scene.device[0], &held->stream, &error), 0);
    cr_assert_eq(bth_device_event_open(scene.device[0], &held->ready, &error), 0);
    bth_simulated_hold(&held->stream, true);
    cr_assert_eq(bth_device_event_record(&held->ready, &held->stream, &error), 0);
    held->tree = berth_tree_new(&error);
    held->state = scene_value(&scene, held->tree, true, held->ready.native);
}

static void end_kernels(kernels *held)
{
    berth_tree_free(held->tree);
    bth_device_event_close(&held->ready);
    bth_device_stream_close(&held->stream);
}

static void check_event(const char *options)
{
    kernels held;
    berth_job *job;
    size_t nbytes;

    begin_kernels(&held);
    cr_assert_eq(berth_config_patch(options, &error), 0);
    scene_expect(&scene);
    cr_assert_eq(berth_save_begin(TO_PATH(path), OF_VALUE(held.state), 0, NULL, &job, &error), 0,
                 "%s", error.message);
    usleep(20000);
    cr_expect_not(JOB_IS(job, BERTH_JOB_STAGED), "%s: before the event", options);
    bth_simulated_hold(&held.stream, false);
    cr_expect_eq(berth_job_wait(job, BERTH_JOB_DONE, -1, &error), 0, "%s", error.message);
    berth_config_unpatch(NULL);
    berth_job_free(job);
    end_kernels(&held);
    uint8_t *file = test_read_file(path, &nbytes);
    cr_expect_eq(nbytes, scene.expected_nbytes);
    cr_expect_eq(memcmp(file, scene.expected, nbytes), 0, "%s", options);
    free(file);
}

Test(save_device_job, waits_for_the_events_of_all_devices)
{
    check_event("io.threads=4 io.chunk_nbytes=64KiB");
    check_event("io.threads=1 io.chunk_nbytes=64KiB save.method=direct");
    check_event("save.use_pinned_memory_for_d2h=off");
    check_event("save.byteorder=big io.chunk_nbytes=40001");
}

/* A cancel is heard while an event is waited for; it ends when that has come. */
Test(save_device_job, is_cancelled_while_it_waits_for_an_event)
{
    kernels held;
    berth_job *job;

    test_write_file(path, "old", 3);
    begin_kernels(&held);
    cr_assert_eq(berth_save_begin(TO_PATH(path), OF_VALUE(held.state), 0, NULL, &job, &error), 0);
    cr_expect(berth_job_cancel(job));
    bth_simulated_hold(&held.stream, false);
    cr_expect_eq(berth_job_wait(job, BERTH_JOB_DONE, -1, &error), BERTH_E_CANCELLED, "%s",
                 error.message);
    berth_job_free(job);
    end_kernels(&held);
    cr_expect_eq(test_folder_count(folder), 1);
    cr_expect_eq(bth_simulated_seen().n_streams, 0);
}

/* ---- forks ---- */

Test(save_device_job, a_child_process_gets_an_error_and_the_old_file_stays)
{
    char message[300];
    int status;

    test_write_file(path, "old", 3);
    pid_t child = fork();
    if (child == 0) {
        (void)snprintf(message, sizeof message,
                       "%s: data/0: simulated:0: this process was forked from one that had opened "
                       "a device, and devices do not survive that",
                       path);
        int code = berth_save(path, scene.state, NULL, &error);
        _exit(code == BERTH_E_DEVICE && strcmp(error.message, message) == 0 ? 0 : 1);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    cr_expect_eq(test_folder_count(folder), 1);
    cr_expect_eq(berth_save(path, scene.state, NULL, &error), 0, "%s", error.message);
}
