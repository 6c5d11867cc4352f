/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Under the thread sanitizer: workers that share one ring move bytes to a simulated device and back
 * again, each copy late; what is looked at before its event has come would be a race. Then the same
 * with a device that is lost on the way (W8), and devices opened from many threads.
 *
 * usage: devices [NAME...]: on two devices of these names, or one twice, e.g. cuda:0
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "io/device/staging_buffers.h"
#include "io/thread_pool.h"
#include "tests/simulated/simulated.h"
#include "tests/support/race.h"

#define N_WORKERS 4
#define N_TASKS 200
#define CHUNK_NBYTES 20000

static const char *names[2] = {"simulated:0", "simulated:1"};
static bth_device_handle *devices[2];
static bth_staging ring;

struct worker {
    bth_device_stream stream;
    bth_device_event event;
    uintptr_t memory;
};

static int open_worker(struct worker *worker, bth_device_handle *device, berth_error *error)
{
    *worker = (struct worker){0};
    if (bth_device_stream_open(device, &worker->stream, error) < 0 ||
        bth_device_event_open(device, &worker->event, error) < 0 ||
        bth_device_allocate_memory(device, CHUNK_NBYTES, &worker->memory, error) < 0)
        return error->code;
    return 0;
}

static void close_worker(struct worker *worker, bth_device_handle *device)
{
    bth_device_event_close(&worker->event);
    bth_device_stream_close(&worker->stream);
    bth_device_release_memory(device, worker->memory);
}

static int wait(struct worker *worker, berth_error *error)
{
    if (bth_device_event_record(&worker->event, &worker->stream, error) < 0)
        return error->code;
    return bth_device_event_wait(&worker->event, error);
}

static int move(struct worker *worker, uint8_t *bytes, uint64_t task, berth_error *error)
{
    memset(bytes, (int)(task % 251), CHUNK_NBYTES);
    if (bth_device_begin_copy_to_device(&worker->stream, worker->memory, bytes, CHUNK_NBYTES,
                                        error) < 0 ||
        wait(worker, error) < 0)
        return error->code;
    memset(bytes, 255, CHUNK_NBYTES);
    if (bth_device_begin_copy_to_host(&worker->stream, bytes, worker->memory, CHUNK_NBYTES, error) <
            0 ||
        wait(worker, error) < 0)
        return error->code;
    for (size_t i = 0; i < CHUNK_NBYTES; i++)
        expect(bytes[i] == task % 251, "other bytes came back");
    return 0;
}

static int do_task(void *context, uint64_t task, unsigned number, berth_error *error)
{
    bth_device_handle *device = devices[number % 2];
    struct worker worker;

    (void)context;
    if (open_worker(&worker, device, error) == 0) {
        (void)move(&worker, ring.buffers[number].bytes, task, error);
        bth_device_stream_wait(&worker.stream, error);
    }
    close_worker(&worker, device);
    return error->code;
}

static void *open_devices(void *argument)
{
    bth_device_handle *first, *second;
    berth_error error;

    (void)argument;
    bth_error_clear(&error);
    expect(bth_device_open(names[0], &first, &error) == 0, error.message);
    expect(bth_device_open(names[1], &second, &error) == 0, error.message);
    expect(first == devices[0] && second == devices[1], "another handle");
    return NULL;
}

static void open_at_once(void)
{
    pthread_t threads[N_WORKERS];

    for (size_t i = 0; i < N_WORKERS; i++)
        expect(pthread_create(&threads[i], NULL, open_devices, NULL) == 0, "no thread");
    for (size_t i = 0; i < N_WORKERS; i++)
        pthread_join(threads[i], NULL);
}

int main(int argc, char **argv)
{
    static const bth_simulated_machine machine = {.n_devices = 2,
                                                  .memory_nbytes = UINT64_MAX,
                                                  .pinned_nbytes = UINT64_MAX,
                                                  .latest_nanoseconds = 50000};
    static const bth_staging_need need = {
        .buffer_nbytes = CHUNK_NBYTES, .n_buffers = N_WORKERS, .is_pinned = true};
    berth_error error;

    bth_error_clear(&error);
    bth_simulated_set(&machine);
    for (size_t i = 0; i < 2; i++) {
        if (argc > 1)
            names[i] = argv[argc > 2 ? i + 1 : 1];
        expect(bth_device_open(names[i], &devices[i], &error) == 0, error.message);
    }
    open_at_once();
    for (uint64_t lost = 0; lost < (argc > 1 ? 1 : 3); lost++) { /* a real one is not lost */
        bth_simulated_set(&machine);
        bth_simulated_fail(BTH_SIMULATED_WORK, lost * 31, BTH_SIMULATED_LOST);
        expect(bth_staging_open(devices[0], &need, &ring, &error) == 0, error.message);
        int code = bth_pool_run(N_WORKERS, N_TASKS, do_task, NULL, NULL, &error);
        expect(code == (lost ? BERTH_E_DEVICE : 0), error.message);
        bth_error_clear(&error);
        bth_staging_close(&ring);
    }
    bth_staging_free_kept();
    bth_simulated_live live = bth_simulated_seen();
    expect(live.memory_nbytes == 0 && live.pinned_nbytes == 0 && live.n_streams == 0 &&
               live.n_events == 0,
           "something is left");
    return 0;
}
