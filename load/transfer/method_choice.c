/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/transfer/method_choice.h"

#include <assert.h>
#include <string.h>

/* For fewer bytes the page cache is as fast, and keeps the file for the next load. */
#define DIRECT_MIN_NBYTES ((uint64_t)64 * 1024 * 1024)

/* The reason in statistics if load.method sets the method, by number. Its name is after "=". */
static const char *const by_option[] = {"load.method=auto", "load.method=map", "load.method=read",
                                        "load.method=direct"};

bool bth_load_method_is_valid(berth_load_method method)
{
    return (unsigned)method < sizeof by_option / sizeof *by_option;
}

static bth_choice choice_make(berth_load_method method, const char *reason)
{
    return (bth_choice){.method = method, .reason = reason};
}

/* With a map the bytes would be copied once more, or the device could not use them. */
static bool conditions_exclude_map(const bth_conditions *conditions)
{
    return conditions->use == BTH_USE_CALLER || conditions->use == BTH_USE_DEVICE;
}

/* Why the file is not mapped; NULL: it may be mapped. */
static const char *choice_no_map_reason(const struct berth_config *config,
                                        const bth_conditions *conditions)
{
    if (!config->load_mmap)
        return "load.mmap=off";
    return conditions->cannot_map ? "the file cannot be mapped" : NULL;
}

/* Leaves an eighth of the free memory to other programs. */
static uint64_t conditions_room_nbytes(const bth_conditions *conditions)
{
    return conditions->free_nbytes - conditions->free_nbytes / 8;
}

/*
 * Why the bytes are read into the page cache, if it has room for them beside the memory that they
 * are copied to; or why direct reads are not worth it, or not measured. NULL: these may be the
 * fastest.
 */
static const char *choice_read_reason(const struct berth_config *config,
                                      const bth_conditions *conditions)
{
    uint64_t n_copies = conditions->use == BTH_USE_MEMORY ? 2 : 1;
    bool has_room = conditions->requested_nbytes <= conditions_room_nbytes(conditions) / n_copies;

    if (conditions->through_cache)
        return "the bytes are to stay in the page cache";
    if (has_room && config->load_reuse == BTH_REUSE_OFTEN)
        return "load.reuse=often";
    if (has_room && config->load_reuse == BTH_REUSE_AUTO && conditions->loaded_before)
        return "the file was loaded before";
    if (conditions->requested_nbytes < DIRECT_MIN_NBYTES && config->load_reuse != BTH_REUSE_ONCE)
        return "few bytes are requested";
    if (conditions->page_cache == BTH_PAGE_CACHE_UNKNOWN)
        return "it is not known whether the file is in memory";
    if (conditions->file_system != BTH_ON_DISK)
        return "direct reads are not measured on this file system";
    return conditions->no_direct;
}

static bth_choice choice_auto(const struct berth_config *config, const bth_conditions *conditions)
{
    bool excludes_map = conditions_exclude_map(conditions);
    const char *no_map = excludes_map ? NULL : choice_no_map_reason(config, conditions);
    berth_load_method in_place = no_map || excludes_map ? BERTH_LOAD_READ : BERTH_LOAD_MAP;

    /* A process that touches a truncated map is killed (F2). Here other machines may truncate. */
    if (conditions->file_system == BTH_REMOTE)
        return choice_make(BERTH_LOAD_READ, "the file system belongs to a network or a process");
    if (!conditions->at_once)
        return no_map ? choice_make(BERTH_LOAD_READ, no_map)
                      : choice_make(BERTH_LOAD_MAP, "the source is a file");
    if (conditions->file_system == BTH_IN_MEMORY || conditions->page_cache == BTH_PAGE_CACHE_WARM)
        return choice_make(in_place, no_map ? no_map : "the file is in memory");
    if (conditions->use == BTH_USE_MEMORY &&
        conditions->requested_nbytes > conditions_room_nbytes(conditions))
        return choice_make(in_place, no_map ? no_map : "memory is short");
    const char *reason = choice_read_reason(config, conditions);
    if (reason)
        return choice_make(BERTH_LOAD_READ, reason);
    return choice_make(BERTH_LOAD_DIRECT, "the file is on a disk, and not in memory");
}

bth_choice bth_choose(const struct berth_config *config, const bth_conditions *conditions,
                      berth_load_method requested, const char *requested_by)
{
    bool measures_map = conditions->use == BTH_USE_CALLER || conditions->use == BTH_USE_CHECKSUMS;

    if (conditions->is_memory && requested != BERTH_LOAD_READ)
        return choice_make(conditions_exclude_map(conditions) ? BERTH_LOAD_READ : BERTH_LOAD_MAP,
                           "the source is memory");
    if (!conditions->is_file && !conditions->is_memory)
        return choice_make(BERTH_LOAD_READ, "the source is a function");
    if (requested == BERTH_LOAD_AUTO || (requested == BERTH_LOAD_MAP && measures_map))
        return choice_auto(config, conditions);
    if (requested == BERTH_LOAD_MAP && conditions->use == BTH_USE_DEVICE)
        return choice_make(BERTH_LOAD_READ, "it goes to a device");
    if (requested == BERTH_LOAD_MAP && choice_no_map_reason(config, conditions))
        return choice_make(BERTH_LOAD_READ, choice_no_map_reason(config, conditions));
    if (requested == BERTH_LOAD_DIRECT && conditions->no_direct)
        return choice_make(BERTH_LOAD_READ, conditions->no_direct);
    return choice_make(requested, requested_by ? requested_by : by_option[requested]);
}

bth_choice bth_choice_for_deflated(void)
{
    return choice_make(BERTH_LOAD_READ, "it is deflated");
}

const char *bth_choice_method_name(bth_choice choice, bool is_memory, bool fell_back)
{
    assert(bth_load_method_is_valid(choice.method));
    if (fell_back)
        return "direct, then read";
    if (choice.method == BERTH_LOAD_AUTO)
        return "none";
    return is_memory && choice.method == BERTH_LOAD_MAP ? "memory"
                                                        : strchr(by_option[choice.method], '=') + 1;
}
