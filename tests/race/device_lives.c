/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Under the thread sanitizer: a device is reset again and again while threads open it anew and use
 * it (X18). They get errors, and free nothing that is another's.
 *
 * usage: device_lives
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "io/device/staging_buffers.h"
#include "tests/simulated/simulated.h"
#include "tests/support/race.h"

#define N_THREADS 4
#define N_TURNS 2000

static atomic_uint n_running = N_THREADS;

/* What any call may say: not for a device that was never reset. */
static void expect_known(const berth_error *error)
{
    expect(error->code == 0 || error->code == BERTH_E_DEVICE, error->message);
}

static void use(bth_device_handle *device, berth_error *error)
{
    static const bth_staging_need need = {.buffer_nbytes = 100, .n_buffers = 1, .is_pinned = true};
    unsigned life = bth_device_life(device);
    bth_staging ring;
    uintptr_t address;

    if (bth_staging_open(device, &need, &ring, error) == 0)
        bth_staging_close(&ring);
    expect_known(error);
    bth_error_clear(error);
    if (bth_device_allocate_memory(device, 100, &address, error) == 0 &&
        bth_device_check_life(device, life, error) == 0)
        bth_device_release_memory(device, address);
    expect_known(error);
}

static void *open_and_use(void *argument)
{
    bth_device_handle *device, *before = NULL;
    berth_error error;

    for (int turn = 0; turn < N_TURNS; turn++) {
        bth_error_clear(&error);
        if (bth_device_open("simulated:0", &device, &error) == 0) {
            expect(!before || device == before, "another handle");
            before = device;
            use(device, &error);
        }
        expect_known(&error);
    }
    atomic_fetch_sub(&n_running, 1);
    return argument;
}

int main(void)
{
    pthread_t threads[N_THREADS];
    bth_device_handle *device;
    berth_error error;
    unsigned n_resets = 0;

    bth_error_clear(&error);
    expect(bth_device_open("simulated:0", &device, &error) == 0, error.message);
    for (size_t i = 0; i < N_THREADS; i++)
        expect(pthread_create(&threads[i], NULL, open_and_use, NULL) == 0, "no thread");
    for (; atomic_load(&n_running) > 0; n_resets++) {
        bth_simulated_reset(0);
        (void)usleep(100);
    }
    for (size_t i = 0; i < N_THREADS; i++)
        pthread_join(threads[i], NULL);
    bth_simulated_reset(0);
    expect(bth_device_open("simulated:0", &device, &error) == 0, error.message);
    bth_staging_free_kept();
    bth_simulated_live live = bth_simulated_seen();
    expect(live.memory_nbytes == 0 && live.pinned_nbytes == 0, "something is left");
    expect(n_resets > 1 && bth_device_life(device) > 2, "nothing was opened anew");
    return 0;
}
