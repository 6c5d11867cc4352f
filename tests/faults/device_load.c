/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Loads to devices with one fault in them: the Nth call of every kind into the driver fails, once,
 * for ever, or so that the device is lost; the Nth system call; the Nth allocation. Nothing counts
 * as loaded then, nothing is left on a device, and what failed once works the next time (W6, W8).
 */
#include <berth/config.h>

#include "tests/support/faults/inject.h"
#include "tests/support/load/device_scene.h"

/* Three chunks of one device, and something of all else. */
static const struct part few_parts[] = {{1, BERTH_FLOAT32, "simulated:0"},
                                        {40000, BERTH_FLOAT32, "simulated:0"},
                                        {300, BERTH_INT16, "cpu"},
                                        {700, BERTH_INT64, "simulated:1"},
                                        {0, BERTH_FLOAT32, "simulated:1"}};
static unsigned n_points;

static void begin(void)
{
    parts = few_parts;
    n_parts = sizeof few_parts / sizeof *few_parts;
    begin_devices();
}

static void end(void)
{
    fault_clear();
    end_devices();
}

TestSuite(device_load_faults, .init = begin, .fini = end);

static const char *const all_options[] = {
    "io.threads=1 io.chunk_nbytes=65536 load.mmap=off load.check=data",
    "io.threads=3 io.chunk_nbytes=65536 load.method=direct",
    "io.threads=4 io.chunk_nbytes=65536 device.staging_buffers=2 load.method=read"};
#define N_OPTIONS (sizeof all_options / sizeof *all_options)

/* What is tried now; its kinds end when the load has: what is looked at then is no part of it. */
static bth_simulated_call faulty_call;
static uint64_t faulty_nth; /* 0: no call into the driver, and no allocation */
static bool is_hit;

static void end_faults(bool is_allocation)
{
    uint64_t n =
        is_allocation ? test_memory_seen().n_allocations : bth_simulated_n_calls(faulty_call);

    is_hit = faulty_nth > 0 ? n >= faulty_nth : atomic_load(&fault.n_hits) > 0;
    fault.nth = 0;
    bth_simulated_fail(faulty_call, 0, BTH_SIMULATED_ONCE);
    test_memory_refuse(0, false);
}

/* Opens, places, brings: 0, or the first status. */
static int load(void)
{
    int status = berth_open(path, NULL, &checkpoint, &error);

    if (status == 0)
        status = berth_set_storage_rules(checkpoint, &as_they_were, 1, &error);
    return status == 0 ? berth_load(checkpoint, NULL, NULL, &error) : status;
}

/* What failed once works the next time. */
static void load_again(void)
{
    berth_error again;

    cr_assert_eq(berth_set_storage_rules(checkpoint, &as_they_were, 1, &again), 0, "%s",
                 again.message);
    cr_assert_eq(berth_load(checkpoint, NULL, NULL, &again), 0, "%s", again.message);
    again = error;
    expect_all_as_they_were();
    error = again;
}

/* Loads, looks, closes. */
static int use_all(bool is_allocation, bool is_lost)
{
    int status = load();

    end_faults(is_allocation);
    if (status == 0)
        expect_all_as_they_were();
    for (size_t i = 0; checkpoint && i < checkpoint->storages.n && status < 0; i++) {
        berth_storage *storage = bth_tree_storage(checkpoint->contents.tree, i);
        cr_assert(!checkpoint->storages.targets || storage->nbytes == 0 ||
                  !checkpoint->storages.targets[i].is_there);
        cr_assert(storage->nbytes == 0 || !atomic_load(&checkpoint->storages.stored[i].memory));
    }
    cr_assert(status == 0 || !checkpoint || !checkpoint->storages.device_memory);
    if (status < 0 && checkpoint && !is_lost)
        load_again();
    berth_close(checkpoint);
    checkpoint = NULL;
    return status;
}

/* After test_memory_watch. */
static int use_watched(const char *about, bool is_lost, bool is_allocation)
{
    size_t n_open = test_folder_count("/proc/self/fd");
    int status = use_all(is_allocation, is_lost);

    bth_staging_free_kept();
    bth_simulated_live live = bth_simulated_seen();
    cr_assert(live.memory_nbytes == 0 || is_lost, "%s: memory of a device leaks", about);
    cr_assert_eq(live.pinned_nbytes, 0, "%s: pinned memory leaks", about);
    cr_assert_eq(live.n_streams, 0, "%s: a stream leaks", about);
    cr_assert_eq(live.n_events, 0, "%s: an event leaks", about);
    cr_assert_eq(test_folder_count("/proc/self/fd"), n_open, "%s: a descriptor leaks", about);
    cr_assert_eq(test_memory_seen().live_nbytes, 0, "%s: memory leaks", about);
    cr_assert_eq(status, error.code, "%s", about);
    cr_assert(status == 0 || error.message[0], "%s", about);
    return status;
}

/* ---- calls into the driver ---- */

/* False: the fault was not reached any more. */
static bool device_fails_cleanly(bth_simulated_call call, uint64_t nth, bth_simulated_fault kind)
{
    char about[100];

    (void)snprintf(about, sizeof about, "driver's call %d, the %uth, fault %d", (int)call,
                   (unsigned)nth, (int)kind);
    bth_simulated_set(NULL);
    faulty_call = call;
    faulty_nth = nth;
    test_memory_watch();
    bth_simulated_fail(call, nth, kind);
    int status =
        use_watched(about, kind == BTH_SIMULATED_LOST || call == BTH_SIMULATED_WORK, false);
    bool hit = is_hit;
    test_memory_unwatch();
    cr_assert(hit || status == 0, "%s: %s", about, error.message);
    /* All that only helps is one buffer of many. */
    cr_assert(!hit || status < 0 || call == BTH_SIMULATED_PIN, "%s", about);
    cr_assert(status == 0 || strstr(error.message, "SIMULATED_") ||
                  strstr(error.message, "not this device's memory"),
              "%s: %s", about, error.message);
    n_points += hit;
    return hit;
}

Test(device_load_faults, a_driver_that_fails_anywhere_is_a_clean_error)
{
    static const bth_simulated_fault kinds[] = {BTH_SIMULATED_ONCE, BTH_SIMULATED_FOR_EVER,
                                                BTH_SIMULATED_LOST};

    (void)device_named("simulated:0"), (void)device_named("simulated:1");
    for (size_t i = 0; i < N_OPTIONS; i++) {
        cr_assert_eq(berth_config_patch(all_options[i], NULL), 0);
        for (int call = BTH_SIMULATED_ALLOCATE; call < BTH_SIMULATED_N_CALLS; call++)
            for (size_t k = 0; k < 3; k++)
                for (uint64_t nth = 1;
                     device_fails_cleanly((bth_simulated_call)call, nth, kinds[k]);)
                    nth++;
        (void)berth_config_unpatch(NULL);
    }
    bth_simulated_set(NULL);
    check_points(6, n_points, 150);
}

/* ---- system calls ---- */

static const struct {
    enum fault_row row;
    int errnos[4];
    bool must_fail;
} faults[] = {{FAULT_pread, {EIO, EISDIR}, true}, {FAULT_pread, {FAULT_SHORT, EINTR}, false},
              {FAULT_mmap, {ENOMEM}, false},      {FAULT_madvise, {EINVAL}, false},
              {FAULT_munmap, {EINVAL}, false},    {FAULT_pthread_create, {EAGAIN}, false}};

static bool call_fails_cleanly(size_t i, unsigned nth, int system_errno)
{
    char about[100];

    (void)snprintf(about, sizeof about, "%s, call %u, errno %d", fault_row_names[faults[i].row],
                   nth, system_errno);
    bth_simulated_set(NULL);
    faulty_nth = 0;
    test_memory_watch();
    fault_set(faults[i].row, nth, system_errno, false);
    int status = use_watched(about, false, false);
    test_memory_unwatch();
    bool hit = is_hit;
    fault_clear();
    cr_assert(hit || status == 0, "%s: %s", about, error.message);
    cr_assert(!hit || !faults[i].must_fail || status < 0, "%s", about);
    n_points += hit;
    return hit;
}

Test(device_load_faults, a_system_call_that_fails_is_a_clean_error_or_does_not_matter)
{
    (void)device_named("simulated:0"), (void)device_named("simulated:1");
    for (size_t i = 0; i < N_OPTIONS; i++) {
        cr_assert_eq(berth_config_patch(all_options[i], NULL), 0);
        for (size_t j = 0; j < sizeof faults / sizeof *faults; j++)
            for (const int *each = faults[j].errnos; *each; each++)
                for (unsigned nth = 1; call_fails_cleanly(j, nth, *each);)
                    nth++;
        (void)berth_config_unpatch(NULL);
    }
    check_points(6, n_points, 100);
}

/* ---- allocations ---- */

Test(device_load_faults, no_memory_is_a_clean_error_wherever_it_happens)
{
    (void)device_named("simulated:0"), (void)device_named("simulated:1");
    for (size_t i = 0; i < N_OPTIONS; i++)
        for (int for_ever = 0; for_ever < 2; for_ever++) {
            bool reached = true;
            for (unsigned nth = 1; reached; nth++) {
                cr_assert_eq(berth_config_patch(all_options[i], NULL), 0);
                bth_simulated_set(NULL);
                faulty_nth = nth;
                test_memory_watch();
                test_memory_refuse(nth, for_ever);
                int status = use_watched("no memory", false, true);
                reached = is_hit;
                test_memory_unwatch();
                (void)berth_config_unpatch(NULL);
                cr_assert(reached || status == 0, "allocation %u: %s", nth, error.message);
                n_points += reached;
            }
        }
    check_points(6, n_points, 200);
}
