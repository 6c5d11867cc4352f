/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * W5: after a power cut at any moment of any save the path holds an old file or a new one, whole,
 * and after a save that said it was done, that one.
 */
#include <berth/config.h>

#include "save/temporary.h"
#include "tests/support/faults/power.h"

TestSuite(power_cut, .init = begin_faults, .fini = end_faults);

#define SERIAL "io.threads=1 io.chunk_nbytes=4096 "
#define PARALLEL "io.threads=4 io.chunk_nbytes=4096 "
#define BUFFERED "save.method=buffered "
#define DIRECT "save.method=direct "

static const scene scenes[] = {
    {.options = SERIAL BUFFERED "save.durability=full", .replaces = true},
    {.options = SERIAL BUFFERED "save.durability=full", .leftover = true, .values = true},
    {.options = SERIAL BUFFERED "save.durability=full", .replaces = true, .no_fallocate = true},
    {.options = SERIAL BUFFERED "save.durability=file", .replaces = true, .through_link = true},
    {.options = PARALLEL BUFFERED "save.durability=full", .replaces = true, .values = true},
    {.options = PARALLEL BUFFERED "save.durability=file"},
    {.options = SERIAL DIRECT "save.durability=full", .replaces = true},
    {.options = PARALLEL DIRECT "save.durability=file", .replaces = true},
};
#define N_SCENES (sizeof scenes / sizeof *scenes)

static bool is_full(const scene *tried)
{
    return strstr(tried->options, "durability=full");
}

/* ---- recording ---- */

static void note_version(enum power_kind kind, unsigned version)
{
    pthread_mutex_lock(&power.lock);
    power_note(kind, -1)->offset = version;
    pthread_mutex_unlock(&power.lock);
}

/* One more save, of other bytes; fills in the version that it made. */
static int save_version(const scene *tried, unsigned version)
{
    berth_error error;

    bytes[0] = (uint8_t)version;
    note_version(POWER_BEGUN, version);
    int status = save(tried, tried->through_link ? link_path : path, &error);
    if (status == 0 || status == BERTH_E_NOT_DURABLE)
        power_add_version(version);
    if (status == 0 && is_full(tried))
        note_version(POWER_TOLD, version);
    return status;
}

/*
 * Two saves, one after the other, the first with a fault (nth 0: none). The second makes what a
 * failed one leaves behind matter. False: the fault was not reached.
 */
static bool record(const scene *tried, enum fault_row row, unsigned nth, int system_errno)
{
    berth_error error;

    prepare_folder(tried);
    cr_assert_eq(berth_config_patch(tried->options, &error), 0, "%s", error.message);
    fault_set(row, nth, system_errno, false);
    if (tried->no_fallocate && row != FAULT_fallocate)
        bth_system.fallocate = no_fallocate;
    power_begin();
    (void)save_version(tried, 1);
    bool hit = atomic_load(&fault.n_hits) > 0;
    fault.nth = 0;
    cr_assert_eq(save_version(tried, 2), 0);
    berth_config_unpatch(NULL);
    return hit;
}

/* ---- looking at what is left ---- */

static unsigned n_bad;
static power_content left_bytes;

static bool is_version(unsigned version)
{
    return power.versions[version].bytes && left_bytes.nbytes == power.versions[version].nbytes &&
           memcmp(left_bytes.bytes, power.versions[version].bytes, left_bytes.nbytes) == 0;
}

/* One state of the disk. The path's file is one of the versions low … high. */
static void check_content(int file, size_t moment, power_fate *fate, unsigned low, unsigned high)
{
    bool good = false;

    power_content_of(file, moment, fate, &left_bytes);
    for (unsigned version = low; version <= high && !good; version++)
        good = is_version(version);
    n_bad += !good;
    n_points++;
}

static void check_file(int file, size_t moment, unsigned low, unsigned high)
{
    power_fate fate = {.choice = KEEP_ALL};

    check_content(file, moment, &fate, low, high);
    size_t n_blocks = fate.n_blocks;
    if (n_blocks == 0)
        return;
    fate.choice = KEEP_NONE;
    check_content(file, moment, &fate, low, high);
    for (fate.which = 0; fate.which < n_blocks; fate.which++) {
        fate.choice = KEEP_ONE;
        check_content(file, moment, &fate, low, high);
        fate.choice = LOSE_ONE;
        check_content(file, moment, &fate, low, high);
    }
    for (unsigned i = 0; i < 8; i++) {
        fate.choice = i % 2 ? KEEP_SOME : KEEP_SOME_SECTORS;
        fate.random = i;
        check_content(file, moment, &fate, low, high);
    }
}

static void check_folder(const power_folder *left, size_t moment, unsigned low, unsigned high)
{
    int file = power_file_named(left, "model.pt");

    for (int i = 0; i < POWER_MAX_NAMES; i++) {
        const char *name = left->entries[i].name;
        cr_assert(!*name || strcmp(name, "model.pt") == 0 || bth_temporary_is_name(name),
                  "%s is no name of a temporary", name);
    }
    if (file >= 0)
        check_file(file, moment, low, high);
    else {
        n_bad += low > 0 || power.versions[0].bytes;
        n_points++;
    }
}

/* Every moment, every subset of the changes of names. Returns how many states break the promise. */
static unsigned cut_everywhere(void)
{
    unsigned low = 0, high = 0;

    n_bad = 0;
    for (size_t moment = 0; moment <= power.n_events; moment++) {
        const power_event *before = moment > 0 ? &power.events[moment - 1] : NULL;
        power_folder left;
        if (before && before->kind == POWER_BEGUN)
            high = (unsigned)before->offset;
        if (before && before->kind == POWER_TOLD)
            low = (unsigned)before->offset;
        unsigned n_changes = power_folder_of(moment, 0, &left);
        cr_assert_lt(n_changes, 10);
        for (uint64_t subset = 0; subset < (uint64_t)1 << n_changes; subset++) {
            (void)power_folder_of(moment, subset, &left);
            check_folder(&left, moment, low, high);
        }
    }
    return n_bad;
}

static void tear_down_power(void)
{
    free(left_bytes.bytes);
    left_bytes = (power_content){0};
}

/* W5 */
Test(power_cut, at_any_moment_leaves_an_old_file_or_a_new_one)
{
    for (size_t i = 0; i < N_SCENES; i++) {
        if (!make_expected(&scenes[i]))
            continue;
        record(&scenes[i], FAULT_open, 0, 0);
        cr_assert_gt(power.n_events, 20);
        cr_assert_eq(cut_everywhere(), 0, "%s", scenes[i].options);
        power_end();
    }
    tear_down_power();
    check_points(5, n_points, 700);
}

/* W1, W2, W5: What a failed save leaves on the disk is never taken for more than it is. */
Test(power_cut, after_any_fault_leaves_an_old_file_or_a_new_one, .timeout = 600)
{
    static const enum fault_row rows[] = {FAULT_openat,    FAULT_fallocate, FAULT_ftruncate,
                                          FAULT_pwrite,    FAULT_pwritev,   FAULT_fsync,
                                          FAULT_fdatasync, FAULT_dup,       FAULT_close,
                                          FAULT_renameat,  FAULT_unlinkat};

    for (size_t i = 0; i < N_SCENES; i++)
        for (size_t j = 0; make_expected(&scenes[i]) && j < sizeof rows / sizeof *rows; j++)
            for (unsigned nth = 1;; nth++) {
                bool hit = record(&scenes[i], rows[j], nth, EIO);
                if (hit)
                    cr_assert_eq(cut_everywhere(), 0, "%s: %s, call %u", scenes[i].options,
                                 fault_row_names[rows[j]], nth);
                power_end();
                if (!hit)
                    break;
            }
    tear_down_power();
    check_points(5, n_points, 18000);
}

/* ---- the next save ---- */

static void write_folder(const power_folder *left, size_t moment, unsigned random)
{
    for (int i = 0; i < POWER_MAX_NAMES; i++) {
        power_fate fate = {.choice = KEEP_SOME, .random = random};
        if (!left->entries[i].name[0])
            continue;
        char *at = test_path(folder, left->entries[i].name);
        power_content_of(left->entries[i].file, moment, &fate, &left_bytes);
        test_write_file(at, left_bytes.bytes, left_bytes.nbytes);
        free(at);
    }
}

static void save_after(const scene *tried)
{
    berth_error error;

    cr_assert_eq(berth_config_patch(tried->options, &error), 0);
    fault_set(FAULT_open, 0, 0, false);
    cr_assert_eq(save(tried, path, &error), 0, "%s", error.message);
    fault_clear();
    berth_config_unpatch(NULL);
    clean_folder(); /* no owner was on the disk yet */
    cr_assert_eq(test_folder_count(folder), 2, "more than the link and the target");
    cr_assert_eq(berth_verify(FROM_PATH(path), NULL, NULL, NULL, NULL, &error), 0, "%s",
                 error.message);
}

/* W5, F4 */
Test(power_cut, is_cleaned_up_after_the_next_save)
{
    const scene *tried = &scenes[0];

    cr_assert(make_expected(tried));
    record(tried, FAULT_open, 0, 0);
    fault_clear();
    for (size_t moment = 0; moment <= power.n_events; moment++) {
        power_folder left;
        unsigned n_changes = power_folder_of(moment, 0, &left);
        for (uint64_t subset = 0; subset < (uint64_t)1 << n_changes; subset++) {
            (void)power_folder_of(moment, subset, &left);
            (void)unlink(path);
            write_folder(&left, moment, (unsigned)moment);
            save_after(tried);
            n_points++;
        }
    }
    power_end();
    tear_down_power();
    check_points(5, n_points, 60);
}

/* ---- the model itself ---- */

static unsigned n_bad_without(const scene *tried, enum power_kind kind)
{
    cr_assert(make_expected(tried));
    power.forget[kind] = true;
    record(tried, FAULT_open, 0, 0);
    unsigned n = cut_everywhere();
    power.forget[kind] = false;
    power_end();
    return n;
}

/* A save that leaves out a step, or does it too late, would be found out. */
Test(power_cut, finds_saves_that_sync_too_little)
{
    cr_assert_gt(n_bad_without(&scenes[0], POWER_SYNC), 0);
    cr_assert_gt(n_bad_without(&scenes[0], POWER_SYNC_FOLDER), 0);
    cr_assert_gt(n_bad_without(&scenes[3], POWER_SYNC), 0);
    cr_assert_eq(n_bad_without(&scenes[3], POWER_SYNC_FOLDER), 0, "none is promised");
    tear_down_power();
}
