/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Loads to devices under the thread sanitizer: copies are late, so that a buffer that is filled
 * while it is still copied is a race; threads fetch, ask for addresses, read, place and save at the
 * same time; and the same with a device that is lost on the way (W8).
 *
 * usage: device_load [NAME...]: on two devices of these names, or one twice, e.g. cuda:0
 */
#include <berth/device.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "io/device/staging_buffers.h"
#include "tests/simulated/simulated.h"
#include "tests/support/race.h"

#define N_TENSORS 16
#define N_ELEMENTS 60000
#define N_THREADS 6

static float elements[N_TENSORS][N_ELEMENTS];
static const char *names[2] = {"simulated:0", "simulated:1"};
static char *path;
static bool is_lost; /* then anything may fail, and nothing else may happen */

static void save(void)
{
    for (int i = 0; i < N_TENSORS; i++)
        for (int k = 0; k < N_ELEMENTS; k++)
            elements[i][k] = (float)(i + k);
    save_float_tensors(path, N_TENSORS, elements[0], N_ELEMENTS, N_ELEMENTS);
}

/* Even ones go to one device, odd ones to the other, t5 stays. */
static int place(berth_checkpoint *checkpoint, berth_error *error)
{
    const berth_storage_rule rules[] = {{.pattern = "t5", .device = "cpu"},
                                        {.pattern = "t*[02468]", .device = names[0]},
                                        {.device = names[1]}};

    return berth_set_storage_rules(checkpoint, rules, 3, error);
}

static void expect_elements(berth_checkpoint *checkpoint, int i)
{
    static _Thread_local float got[N_ELEMENTS];
    char name[16];
    berth_error error;

    (void)snprintf(name, sizeof name, "t%d", i);
    const berth_tensor *tensor = berth_find_tensor(checkpoint, name, NULL);
    int status = berth_tensor_read(checkpoint, tensor, 0, N_ELEMENTS, got, &error);
    expect(status == 0 || is_lost, error.message);
    expect(status < 0 || memcmp(got, elements[i], sizeof got) == 0, "elements differ");
}

static void *fetch(void *context)
{
    static _Atomic int next;
    static const char *const patterns[] = {NULL, "t1*", "t[0-7]"};
    berth_selection selection = {.pattern = patterns[next++ % 3]};
    berth_stats stats;
    berth_params call = {.stats = &stats};
    berth_error error;

    expect(berth_load(context, &selection, &call, &error) == 0 || is_lost, error.message);
    for (int i = 0; i < N_TENSORS; i++)
        expect_elements(context, i);
    return NULL;
}

static void *ask(void *context)
{
    static _Atomic int next;
    berth_checkpoint *checkpoint = context;
    berth_storage_stats stats;
    berth_error error;
    int first = next++ * 5;
    char name[16];

    for (int n = 0; n < N_TENSORS; n++) {
        uintptr_t address;
        (void)snprintf(name, sizeof name, "t%d", (first + n) % N_TENSORS);
        const berth_tensor *tensor = berth_find_tensor(checkpoint, name, NULL);
        int status = berth_tensor_device_address(checkpoint, tensor, &address, &error);
        expect((status < 0) == (address == 0), "an address, or an error");
        expect(status == 0 || is_lost || strcmp(name, "t5") == 0, error.message);
        expect(berth_storage_get_stats(checkpoint, tensor->storage, &stats, &error) == 0,
               error.message);
        expect_elements(checkpoint, (first + n) % N_TENSORS);
    }
    return NULL;
}

static void *save_again(void *context)
{
    berth_checkpoint *checkpoint = context;
    void *bytes = NULL;
    size_t nbytes;
    berth_error error;

    expect(place(checkpoint, &error) == 0 || is_lost, error.message);
    expect(berth_save_to(TO_MEMORY(&bytes, &nbytes), OF_VALUE(berth_root(checkpoint)), NULL,
                         &error) == 0 ||
               is_lost,
           error.message);
    berth_free(bytes);
    return NULL;
}

static void share(const char *options)
{
    static void *(*const roles[N_THREADS])(void *) = {fetch, save_again, ask, fetch, ask, fetch};
    berth_checkpoint *checkpoint = open_with_options(path, options);
    berth_error error;

    expect(place(checkpoint, &error) == 0, error.message);
    run_threads(N_THREADS, roles, checkpoint);
    berth_close(checkpoint);
}

int main(int argc, char **argv)
{
    static const bth_simulated_machine machine = {.n_devices = 2,
                                                  .memory_nbytes = UINT64_MAX,
                                                  .pinned_nbytes = UINT64_MAX,
                                                  .latest_nanoseconds = 50000};
    char *folder = test_folder_new();

    for (int i = 0; i < 2 && argc > 1; i++)
        names[i] = argv[argc > 2 ? i + 1 : 1];
    path = test_path(folder, "model.pt");
    save();
    bth_simulated_set(&machine);
    share("io.chunk_nbytes=65536 io.threads=3 load.check=data");
    share("load.method=direct io.chunk_nbytes=65536 io.threads=4 device.staging_buffers=3");
    share("load.mmap=off io.threads=1 io.chunk_nbytes=65536");
    is_lost = argc == 1; /* a real one is not lost */
    for (uint64_t nth = 5; is_lost && nth < 100; nth += 40) {
        bth_simulated_set(&machine);
        bth_simulated_fail(BTH_SIMULATED_WORK, nth, BTH_SIMULATED_LOST);
        share("io.chunk_nbytes=65536 io.threads=3");
    }
    bth_staging_free_kept();
    bth_simulated_live live = bth_simulated_seen();
    expect(live.pinned_nbytes == 0 && live.n_streams == 0 && live.n_events == 0,
           "something is left");
    free(path);
    test_folder_remove(folder);
    return 0;
}
