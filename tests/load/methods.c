/* SPDX-License-Identifier: BSD-3-Clause */
/* Which method a storage gets, and which reason is told: from conditions, options, rules,
 * functions. */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <unistd.h>

#include "format/values/value.h"
#include "io/syscalls.h"
#include "load/checkpoint.h"
#include "load/transfer/method_choice.h"
#include "tests/support/load/archive.h"

static const char *const names[] = {"auto", "map", "read", "direct"};

#define GIB ((uint64_t)1 << 30)

/* ---- decisions, pure ---- */

/* Of a cold file on a disk, which is what zeros say. Of 1 GiB, with twice that free, if 0. */
#define COLD .is_file = true, .at_once = true
/* One storage that is asked for. */
#define LAZY .is_file = true

/* `expected`: "read: the reason". */
static void expect_choice(const struct berth_config *config, bth_conditions conditions,
                          berth_load_method asked, const char *expected)
{
    char text[200];

    conditions.requested_nbytes = conditions.requested_nbytes ? conditions.requested_nbytes : GIB;
    conditions.free_nbytes = conditions.free_nbytes ? conditions.free_nbytes : 2 * GIB;
    bth_choice choice = bth_choose(config, &conditions, asked, NULL);
    (void)snprintf(text, sizeof text, "%s: %s", names[choice.method], choice.reason);
    cr_expect_str_eq(text, expected);
}

static void expect_way(bth_conditions conditions, bool mmap, berth_load_method asked,
                       const char *expected)
{
    struct berth_config config = {.load_mmap = mmap, .load_method = asked};

    expect_choice(&config, conditions, asked, expected);
}

#define DIRECT "direct: the file is on a disk, and not in memory"
#define AGAIN "read: the file was loaded before"
#define REMOTE "read: the file system belongs to a network or a process"
#define OFF "read: load.mmap=off"

Test(methods, of_auto_go_by_what_is_measured)
{
    static const struct {
        bth_conditions conditions;
        const char *mapped, *unmapped; /* with load.mmap=off; NULL: the same */
    } cases[] = {
        {{.is_memory = true}, "map: the source is memory", NULL},
        {{.at_once = true}, "read: the source is a function", NULL},
        {{LAZY}, "map: the source is a file", OFF},
        {{LAZY, .cannot_map = true}, "read: the file cannot be mapped", OFF},
        {{LAZY, .file_system = BTH_REMOTE}, REMOTE, NULL},
        {{COLD}, DIRECT, NULL},
        {{COLD, .no_direct = "the reason"}, "read: the reason", NULL},
        {{COLD, .page_cache = BTH_PAGE_CACHE_WARM}, "map: the file is in memory", OFF},
        {{COLD, .file_system = BTH_IN_MEMORY}, "map: the file is in memory", OFF},
        {{COLD, .page_cache = BTH_PAGE_CACHE_WARM, .cannot_map = true},
         "read: the file cannot be mapped",
         OFF},
        {{COLD, .requested_nbytes = GIB / 16 - 1}, "read: few bytes are requested", NULL},
        {{COLD, .requested_nbytes = GIB / 16}, DIRECT, NULL},
        {{COLD, .free_nbytes = GIB + GIB / 8}, "map: memory is short", OFF},
        {{COLD, .free_nbytes = GIB + GIB / 4}, DIRECT, NULL},
        {{COLD, .file_system = BTH_ELSEWHERE},
         "read: direct reads are not measured on this file system",
         NULL},
        {{COLD, .page_cache = BTH_PAGE_CACHE_UNKNOWN},
         "read: it is not known whether the file is in memory",
         NULL},
        {{COLD, .file_system = BTH_REMOTE, .page_cache = BTH_PAGE_CACHE_WARM}, REMOTE, NULL},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *unmapped = cases[i].unmapped ? cases[i].unmapped : cases[i].mapped;
        expect_way(cases[i].conditions, true, BERTH_LOAD_AUTO, cases[i].mapped);
        expect_way(cases[i].conditions, false, BERTH_LOAD_AUTO, unmapped);
    }
}

/* The page cache has room for the file beside the memory that it is loaded to: twice 1 GiB. */
Test(methods, of_auto_go_by_load_reuse)
{
    static const struct {
        int reuse;
        bth_conditions conditions;
        const char *expected;
    } cases[] = {
        {BTH_REUSE_AUTO, {COLD, .free_nbytes = 3 * GIB, .loaded_before = true}, AGAIN},
        {BTH_REUSE_AUTO, {COLD, .free_nbytes = 2 * GIB, .loaded_before = true}, DIRECT},
        {BTH_REUSE_AUTO,
         {COLD, .free_nbytes = 2 * GIB, .loaded_before = true, .use = BTH_USE_CALLER},
         AGAIN},
        {BTH_REUSE_OFTEN, {COLD, .free_nbytes = 3 * GIB}, "read: load.reuse=often"},
        {BTH_REUSE_OFTEN, {COLD, .free_nbytes = 2 * GIB}, DIRECT},
        {BTH_REUSE_OFTEN, {COLD, .free_nbytes = GIB}, "map: memory is short"},
        {BTH_REUSE_ONCE, {COLD, .free_nbytes = 3 * GIB, .loaded_before = true}, DIRECT},
        {BTH_REUSE_ONCE, {COLD, .requested_nbytes = 1000}, DIRECT},
        {BTH_REUSE_ONCE,
         {COLD, .requested_nbytes = 1000, .no_direct = "the reason"},
         "read: the reason"},
        {BTH_REUSE_ONCE, {COLD, .page_cache = BTH_PAGE_CACHE_WARM}, "map: the file is in memory"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct berth_config config = {.load_mmap = true, .load_reuse = cases[i].reuse};
        expect_choice(&config, cases[i].conditions, BERTH_LOAD_AUTO, cases[i].expected);
    }
}

/* Bytes that only pass: nothing is mapped, and the host's memory is not what is short. */
Test(methods, to_devices_read_or_read_directly)
{
    static const struct {
        bth_conditions conditions;
        const char *expected;
    } cases[] = {{{COLD, .free_nbytes = 1}, DIRECT},
                 {{COLD, .page_cache = BTH_PAGE_CACHE_WARM}, "read: the file is in memory"},
                 {{COLD, .requested_nbytes = 1000}, "read: few bytes are requested"},
                 {{COLD, .no_direct = "the reason"}, "read: the reason"},
                 {{.is_memory = true}, "read: the source is memory"},
                 {{.at_once = true}, "read: the source is a function"}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bth_conditions conditions = cases[i].conditions;
        conditions.use = BTH_USE_DEVICE;
        expect_way(conditions, true, BERTH_LOAD_AUTO, cases[i].expected);
        expect_way(conditions, false, BERTH_LOAD_AUTO, cases[i].expected);
    }
    expect_way((bth_conditions){COLD, .use = BTH_USE_DEVICE}, true, BERTH_LOAD_MAP,
               "read: it goes to a device");
}

Test(methods, that_are_asked_for_are_given_where_they_can_be)
{
    const bth_conditions plain = {LAZY}, remote = {LAZY, .file_system = BTH_REMOTE};
    const bth_conditions memory = {.is_memory = true}, function = {.at_once = true};
    const bth_conditions poor = {LAZY, .cannot_map = true, .no_direct = "the reason"};

    expect_way(plain, true, BERTH_LOAD_MAP, "map: load.method=map");
    expect_way(remote, true, BERTH_LOAD_MAP, "map: load.method=map");
    expect_way(plain, false, BERTH_LOAD_MAP, "read: load.mmap=off");
    expect_way(poor, true, BERTH_LOAD_MAP, "read: the file cannot be mapped");
    expect_way(plain, true, BERTH_LOAD_READ, "read: load.method=read");
    expect_way(plain, true, BERTH_LOAD_DIRECT, "direct: load.method=direct");
    expect_way(plain, false, BERTH_LOAD_DIRECT, "direct: load.method=direct");
    expect_way(poor, true, BERTH_LOAD_DIRECT, "read: the reason");
    for (int asked = BERTH_LOAD_AUTO; asked <= BERTH_LOAD_DIRECT; asked++) {
        expect_way(memory, true, (berth_load_method)asked,
                   asked == BERTH_LOAD_READ ? "read: load.method=read"
                                            : "map: the source is memory");
        expect_way(function, true, (berth_load_method)asked, "read: the source is a function");
    }
}

/* ---- of a file ---- */

static void tear_down(void)
{
    bth_system_restore();
    end_sample_file();
}

TestSuite(chosen, .init = begin_sample_file, .fini = tear_down);

/* Asks for one tensor's data, and tells how it became memory: "read: load.method=read". */
static const char *way_of(const char *name)
{
    static char text[100];
    const berth_tensor *tensor = berth_find_tensor(checkpoint, name, NULL);
    berth_storage_stats stats;

    cr_assert_not_null(berth_tensor_data(checkpoint, tensor, &error), "%s", error.message);
    cr_assert_eq(berth_storage_get_stats(checkpoint, tensor->storage, &stats, &error), 0);
    (void)snprintf(text, sizeof text, "%s: %s", stats.method, stats.reason);
    return text;
}

Test(chosen, by_rules_the_first_that_fits_counts)
{
    const berth_storage_rule rules[] = {
        {.pattern = "b*", .max_nbytes = 23, .method = BERTH_LOAD_MAP},
        {.pattern = "b*", .location = "c?u", .min_nbytes = 24, .method = BERTH_LOAD_READ},
        {.location = "cuda*", .method = BERTH_LOAD_READ},
        {.max_nbytes = 4, .method = BERTH_LOAD_AUTO},
    };

    open_as("load.method=map");
    assert_ok(berth_set_storage_rules(checkpoint, rules, 4, &error));
    cr_expect_str_eq(way_of("bias"), "read: a rule chose it");
    cr_expect_str_eq(way_of("weight"), "map: load.method=map");
    cr_expect_str_eq(way_of("words"), "map: load.method=map");
    /* A later choice does not count for what is memory already. */
    cr_assert_eq(berth_set_storage_rules(checkpoint, NULL, 0, &error), 0);
    cr_expect_str_eq(way_of("bias"), "read: a rule chose it");
}

/* Rules with a pattern are looked at by the tensor, the others by the storage: the order counts. */
Test(chosen, by_rules_one_without_a_pattern_goes_before_those_behind_it)
{
    const berth_storage_rule rules[] = {{.min_nbytes = 1, .method = BERTH_LOAD_READ},
                                        {.pattern = "b*", .method = BERTH_LOAD_MAP}};

    open_as("");
    assert_ok(berth_set_storage_rules(checkpoint, rules, 2, &error));
    cr_expect_str_eq(way_of("bias"), "read: a rule chose it");
}

Test(chosen, by_no_rules_load_method_counts_again)
{
    const berth_storage_rule all = {.method = BERTH_LOAD_READ};

    open_as("");
    cr_assert_eq(berth_set_storage_rules(checkpoint, &all, 1, &error), 0);
    cr_assert_eq(berth_set_storage_rules(checkpoint, NULL, 0, &error), 0);
    cr_expect_str_eq(way_of("bias"), "map: the source is a file");
}

Test(chosen, by_rules_that_are_none)
{
    const berth_storage_rule rules[] = {{.method = BERTH_LOAD_READ},
                                        {.method = (berth_load_method)99}};
    char expected[300];

    open_as("");
    cr_expect_eq(berth_set_storage_rules(checkpoint, rules, 2, &error), BERTH_E_ARGUMENT);
    (void)snprintf(expected, sizeof expected, "%s: rule 1: invalid method 99", path);
    cr_expect_str_eq(error.message, expected);
    cr_expect_str_eq(way_of("bias"), "map: the source is a file", "none of them was taken");
}

/* load.mmap=off is a promise: no rule maps. */
Test(chosen, maps_are_never_made_with_load_mmap_off)
{
    const berth_storage_rule all = {.method = BERTH_LOAD_MAP};

    open_as("load.mmap=off");
    cr_assert_eq(berth_set_storage_rules(checkpoint, &all, 1, &error), 0);
    cr_expect_str_eq(way_of("bias"), "read: load.mmap=off");
    cr_expect_null(checkpoint->source.access.map.address);
}

static int small_ones_are_read(void *context, const berth_storage *storage,
                               berth_storage_choice *choice)
{
    ++*(int *)context;
    choice->method =
        berth_storage_get_info(storage)->nbytes < 24 ? BERTH_LOAD_READ : BERTH_LOAD_MAP;
    return 0;
}

static int nonsense(void *context, const berth_storage *storage, berth_storage_choice *choice)
{
    (void)context, (void)storage;
    choice->method = (berth_load_method)-1;
    return 0;
}

Test(chosen, by_a_function_asked_once_a_storage)
{
    int n = 0;

    open_as("");
    cr_assert_eq(
        berth_set_storage_rules(checkpoint,
                                &(berth_storage_rule){.choose = small_ones_are_read, .context = &n},
                                1, &error),
        0);
    cr_expect_eq(n, 3);
    cr_expect_str_eq(way_of("words"), "read: the caller's function chose it");
    cr_expect_str_eq(way_of("bias"), "map: the caller's function chose it");
    cr_expect_eq(berth_set_storage_rules(checkpoint,
                                         &(berth_storage_rule){.choose = nonsense, .context = NULL},
                                         1, &error),
                 BERTH_E_ARGUMENT);
    cr_expect_str_eq(way_of("weight"), "map: the caller's function chose it");
}

static unsigned long told_type;

static int told_fstatfs(int fd, struct statfs *system)
{
    (void)fd;
    memset(system, 0, sizeof *system);
    system->f_type = (__fsword_t)told_type;
    return 0;
}

/* F2: strangers may cut it short. */
Test(chosen, files_of_networks_are_not_mapped_unasked)
{
    static const unsigned long types[] = {NFS_SUPER_MAGIC, 0x65735546 /* FUSE */, 0xFE534D42};

    bth_system.fstatfs = told_fstatfs;
    for (size_t i = 0; i < 3; i++) {
        told_type = types[i];
        open_as("");
        cr_expect_str_eq(way_of("bias"), "read: the file system belongs to a network or a process");
        open_as("load.method=map");
        cr_expect_str_eq(way_of("bias"), "map: load.method=map");
    }
}

Test(chosen, direct_reads_are_not_tried_in_memory)
{
    told_type = TMPFS_MAGIC;
    bth_system.fstatfs = told_fstatfs;
    open_as("load.method=direct");
    cr_expect_str_eq(way_of("bias"), "read: the file system is in memory");
    cr_expect_eq(checkpoint->source.access.direct.fd, -1);
}

static int no_direct_open(const char *what, int flags, mode_t mode)
{
    if (flags & O_DIRECT) {
        errno = EINVAL;
        return -1;
    }
    return open(what, flags, mode);
}

Test(chosen, direct_reads_that_the_file_system_has_not_are_told)
{
    bth_system.open = no_direct_open;
    told_type = EXT4_SUPER_MAGIC;
    bth_system.fstatfs = told_fstatfs;
    open_as("load.method=direct");
    cr_expect_str_eq(way_of("bias"), "read: the file system does not support direct reads");
    cr_expect_str_eq(way_of("words"), "read: the file system does not support direct reads");
}

Test(chosen, what_is_swapped_or_moved_is_read_and_says_so)
{
    berth_error unasked;

    close_opened();
    cr_assert_eq(berth_open("tests/data/torch/unaligned.pt", NULL, &checkpoint, &unasked), 0);
    bool any_read = false;
    for (size_t i = 0; i < berth_tensor_count(checkpoint); i++) {
        berth_named_tensor named;
        cr_assert_eq(berth_tensor_at(checkpoint, i, &named, &error), 0);
        if (!named.tensor || !named.tensor->storage || named.tensor->storage->nbytes == 0)
            continue;
        char name[100];
        (void)snprintf(name, sizeof name, "%s", named.name);
        const char *way = way_of(name);
        any_read = any_read || strcmp(way, "read: it is not aligned for its elements") == 0;
    }
    cr_expect(any_read);
}

Test(chosen, statistics_of_what_is_not_the_checkpoint_s_are_refused)
{
    berth_storage_stats stats;
    berth_checkpoint *other;

    open_as("");
    cr_assert_eq(berth_open(path, NULL, &other, NULL), 0);
    const berth_storage *storage = berth_find_tensor(other, "bias", NULL)->storage;
    cr_expect_eq(berth_storage_get_stats(checkpoint, storage, &stats, &error), BERTH_E_ARGUMENT);
    cr_expect_str_eq(stats.method, "none");
    cr_expect_eq(berth_storage_get_stats(other, storage, &stats, &error), 0);
    cr_expect_str_eq(stats.method, "none");
    cr_expect_eq(stats.nbytes, 24);
    berth_close(other);
}
