/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * After any single fault of a device in the middle of a save from devices, the path holds the old
 * file or the new one, and the process lives (W6, W8): the Nth call of every kind into the driver
 * fails, once, for ever, or so that the device is lost; the Nth system call and allocation of what
 * is only done for devices.
 */
#include <berth/config.h>
#include <criterion/criterion.h>
#include <unistd.h>

#include "base/error.h"
#include "io/device/staging_buffers.h"
#include "tests/support/expected.h"
#include "tests/support/faults/inject.h"
#include "tests/support/save/device_storages.h"

#define OLD "the old file"
#define SERIAL "io.threads=1 io.chunk_nbytes=64KiB "
#define PARALLEL "io.threads=4 io.chunk_nbytes=64KiB "

typedef struct way {
    const char *options;
    bool job;
    uint32_t flags; /* of the job */
} way;

static const way ways[] = {
    {.options = SERIAL "save.method=buffered"},
    {.options = PARALLEL "save.method=direct"},
    {.options = PARALLEL "save.byteorder=big debug=on"},
    {.options = SERIAL "save.use_pinned_memory_for_d2h=off"},
    {.options = PARALLEL "device.staging_buffers=2", .job = true},
    {.options = "io.threads=4 io.chunk_nbytes=40001", .job = true, .flags = BERTH_SAVE_SNAPSHOT},
};
#define N_WAYS (sizeof ways / sizeof *ways)

static device_scene scene;
static bth_device_event ready;
static unsigned n_points;

static void set_up(void)
{
    berth_error error;
    bth_device_stream stream;

    bth_error_clear(&error);
    begin_scene("archive.pt");
    bth_simulated_set(NULL);
    scene_begin(&scene);
    cr_assert_eq(bth_device_stream_open(scene.device[0], &stream, &error), 0);
    cr_assert_eq(bth_device_event_open(scene.device[0], &ready, &error), 0);
    cr_assert_eq(bth_device_event_record(&ready, &stream, &error), 0);
    bth_device_stream_close(&stream);
    n_points = 0;
}

static void tear_down(void)
{
    fault_clear();
    bth_device_event_close(&ready);
    scene_end(&scene);
    end_scene();
}

TestSuite(device_faults, .init = set_up, .fini = tear_down);

static int save_by_job(const berth_value *value, uint32_t flags, berth_error *error)
{
    berth_job *job;

    if (berth_save_begin(TO_PATH(path), OF_VALUE(value), flags, NULL, &job, error) < 0)
        return error->code;
    int status = berth_job_wait(job, BERTH_JOB_DONE, -1, error);
    berth_job_free(job);
    return status;
}

/* What fails before there is a value to save names no path. */
static int save(const way *tried, berth_error *error)
{
    berth_tree *tree = berth_tree_new(error);

    if (!tree)
        return error->code;
    const berth_value *state = scene_value(&scene, tree, true, ready.native);
    int status = berth_tree_error(tree, error);
    if (status == 0) {
        status = tried->job ? save_by_job(state, tried->flags, error)
                            : berth_save(path, state, NULL, error);
        cr_assert(status == 0 || status == BERTH_E_MEMORY ||
                      strncmp(error->message, path, strlen(path)) == 0,
                  "%s", error->message);
    }
    berth_tree_free(tree);
    return status;
}

/* What is not the host's and was got for a save is given back; what is kept pinned, by trimming. */
static void check_nothing_leaks(const char *about)
{
    bth_staging_free_kept();
    const bth_simulated_live live = bth_simulated_seen();
    cr_assert_eq(live.pinned_nbytes, 0, "%s: pinned memory leaks", about);
    cr_assert_eq(live.n_streams, 0, "%s: a stream leaks", about);
    cr_assert_eq(live.n_events, 1, "%s: an event leaks", about);
    cr_assert_eq(test_memory_seen().live_nbytes, 0, "%s: memory leaks", about);
}

static void check_outcome(int status, const berth_error *error, const char *about)
{
    cr_assert_eq(status, error->code, "%s", about);
    cr_assert_eq(test_folder_count(folder), 1, "%s: something is left behind", about);
    if (status == 0) {
        cr_assert(test_file_holds(path, scene.expected, scene.expected_nbytes),
                  "%s: not the new file", about);
        return;
    }
    cr_assert(test_file_holds(path, OLD, strlen(OLD)), "%s: not the old file: %s", about,
              error->message);
}

/* A save of its own scene, with whatever was set up to fail. */
static int try_save(const way *tried, berth_error *error, const char *about)
{
    size_t n_open = test_folder_count("/proc/self/fd");

    bth_error_clear(error);
    test_write_file(path, OLD, strlen(OLD));
    int status = save(tried, error);
    bth_simulated_fail(BTH_SIMULATED_FIND, 0, BTH_SIMULATED_ONCE);
    test_memory_refuse(0, false);
    check_outcome(status, error, about);
    check_nothing_leaks(about);
    cr_assert_eq(test_folder_count("/proc/self/fd"), n_open, "%s: a descriptor leaks", about);
    return status;
}

static void begin(const way *tried)
{
    berth_error error;

    cr_assert_eq(berth_config_patch(tried->options, &error), 0, "%s", error.message);
    scene_expect(&scene);
    test_memory_watch();
}

/* The process and its devices go on: the same save, whole. */
static void end(const way *tried)
{
    berth_error error;

    bth_simulated_set(NULL);
    cr_assert_eq(try_save(tried, &error, "afterwards"), 0, "%s: %s", tried->options, error.message);
    test_memory_unwatch();
    berth_config_unpatch(NULL);
}

/* ---- the driver's calls ---- */

static const struct {
    bth_simulated_call call;
    const char *name;
    bool spares; /* its failure is no error: fewer staging buffers do */
} calls[] = {
    {BTH_SIMULATED_FIND, "looking up memory", false},
    {BTH_SIMULATED_PIN, "pinning", true},
    {BTH_SIMULATED_OPEN_STREAM, "opening a stream", false},
    {BTH_SIMULATED_OPEN_EVENT, "opening an event", false},
    {BTH_SIMULATED_COPY, "asking for a copy", false},
    {BTH_SIMULATED_RECORD, "recording and waiting for an event", false},
    {BTH_SIMULATED_WAIT, "waiting", false},
    {BTH_SIMULATED_WORK, "copying", false},
};
#define N_CALLS (sizeof calls / sizeof *calls)

static bool try_call(const way *tried, size_t i, uint64_t nth, bth_simulated_fault how)
{
    static const char *const hows[] = {"once", "for ever", "lost"};
    berth_error error;
    char about[200];

    (void)snprintf(about, sizeof about, "%s, call %u, %s, %s", calls[i].name, (unsigned)nth,
                   hows[how], tried->options);
    bth_simulated_set(NULL);
    bth_simulated_fail(calls[i].call, nth, how);
    int status = try_save(tried, &error, about);
    bool is_hit = bth_simulated_n_calls(calls[i].call) >= nth;
    cr_assert(is_hit || status == 0, "%s: %s", about, error.message);
    if (is_hit && !calls[i].spares)
        cr_assert_lt(status, 0, "%s: nothing was said", about);
    if (status < 0) /* in the driver's own words */
        cr_assert(strstr(error.message, "simulated:") && strstr(error.message, " (SIMULATED_"),
                  "%s: %s", about, error.message);
    n_points += is_hit;
    return is_hit;
}

/* W8: a sticky error too, which all later calls get. */
Test(device_faults, every_call_into_the_driver_fails_once_for_ever_or_loses_the_device)
{
    for (size_t i = 0; i < N_WAYS; i++) {
        begin(&ways[i]);
        for (size_t j = 0; j < N_CALLS; j++)
            for (int how = BTH_SIMULATED_ONCE; how <= BTH_SIMULATED_LOST; how++)
                for (uint64_t nth = 1; try_call(&ways[i], j, nth, (bth_simulated_fault)how); nth++)
                    ;
        end(&ways[i]);
    }
    check_points(8, n_points, 700);
}

/* ---- the system's calls, and allocations ---- */

static bool try_row(const way *tried, enum fault_row row, unsigned nth, int system_errno,
                    bool for_ever)
{
    berth_error error;
    char about[200];

    (void)snprintf(about, sizeof about, "%s, call %u, %s%s", fault_row_names[row], nth,
                   tried->options, for_ever ? ", for ever" : "");
    fault_set(row, nth, system_errno, for_ever);
    (void)try_save(tried, &error, about);
    bool is_hit = atomic_load(&fault.n_hits) > 0;
    fault_clear();
    n_points += is_hit;
    return is_hit;
}

static bool try_refusal(const way *tried, unsigned nth, bool for_ever)
{
    berth_error error;

    uint64_t before = test_memory_seen().n_allocations;
    test_memory_refuse(nth, for_ever);
    int status = try_save(tried, &error, "no memory");
    bool is_hit = test_memory_seen().n_allocations - before >= nth;
    if (is_hit)
        cr_assert_eq(status, BERTH_E_MEMORY, "allocation %u, %s: %s", nth, tried->options,
                     error.message);
    n_points += is_hit;
    return is_hit;
}

/* W6 */
Test(device_faults, no_memory_no_maps_no_threads_are_clean_errors)
{
    static const struct {
        enum fault_row row;
        int system_errno;
    } rows[] = {{FAULT_mmap, ENOMEM},
                {FAULT_munmap, EINVAL},
                {FAULT_madvise, EINVAL},
                {FAULT_pthread_create, EAGAIN}};

    for (size_t i = 0; i < N_WAYS; i++) {
        begin(&ways[i]);
        for (unsigned for_ever = 0; for_ever < 2; for_ever++) {
            for (size_t j = 0; j < 4; j++)
                for (unsigned nth = 1;
                     try_row(&ways[i], rows[j].row, nth, rows[j].system_errno, for_ever); nth++)
                    ;
            for (unsigned nth = 1; try_refusal(&ways[i], nth, for_ever); nth++)
                ;
        }
        end(&ways[i]);
    }
    check_points(6, n_points, 500);
}

/* ---- what is said ---- */

static void check_message(bth_simulated_call call, uint64_t nth, const char *message)
{
    const way serial = {.options = SERIAL "save.method=buffered"};
    berth_error error;
    char whole[400];

    begin(&serial);
    bth_simulated_set(NULL);
    bth_simulated_fail(call, nth, BTH_SIMULATED_LOST);
    cr_assert_lt(try_save(&serial, &error, message), 0);
    (void)snprintf(whole, sizeof whole, "%s: %s", path, message);
    cr_expect_str_eq(error.message, whole);
    end(&serial);
}

Test(device_faults, messages_name_the_record_the_device_and_what_its_driver_says)
{
    check_message(BTH_SIMULATED_WAIT, 1,
                  "data/0: simulated:0: copies failed: an illegal memory access was "
                  "encountered (SIMULATED_ILLEGAL_ADDRESS)");
    check_message(
        BTH_SIMULATED_OPEN_STREAM, 1,
        "simulated:0: a stream cannot be created: an illegal memory access was encountered "
        "(SIMULATED_ILLEGAL_ADDRESS)");
}
