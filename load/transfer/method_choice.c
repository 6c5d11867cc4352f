/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/transfer/method_choice.h"

#include <assert.h>
#include <string.h>

/* For fewer bytes the page cache is as fast, and keeps the file for the next load. */
#define DIRECT_MIN_NBYTES ((uint64_t)64 * 1024 * 1024)

/* The reason in statistics if load.method sets the method, by number. Its name is after "=". */
static const char *const by_option[] = {"load.method=auto", "load.method=map", "load.method=read",
                                        "load.method=direct"};

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

static bth_choice choice_auto(const struct berth_config *config, const bth_conditions *conditions)
{
    bool excludes_map = conditions_exclude_map(conditions);
    const char *no_map = excludes_map ? NULL : choice_no_map_reason(config, conditions);
    berth_load_method in_place = no_map || excludes_map ? BERTH_LOAD_READ : BERTH_LOAD_MAP;
    /* An eighth of the free memory is left to other programs. */
    uint64_t room_nbytes = conditions->free_nbytes - conditions->free_nbytes / 8;
    bool is_copied = conditions->use == BTH_USE_MEMORY;

    /* A process that touches a truncated map is killed (F2). Here other machines may truncate. */
    if (conditions->file_system == BTH_REMOTE)
        return (bth_choice){BERTH_LOAD_READ, "the file system belongs to a network or a process"};
    if (!conditions->at_once)
        return no_map ? (bth_choice){BERTH_LOAD_READ, no_map}
                      : (bth_choice){BERTH_LOAD_MAP, "the source is a file"};
    if (conditions->file_system == BTH_IN_MEMORY || conditions->page_cache == BTH_PAGE_CACHE_WARM)
        return (bth_choice){in_place, no_map ? no_map : "the file is in memory"};
    if (is_copied && conditions->requested_nbytes > room_nbytes)
        return (bth_choice){in_place, no_map ? no_map : "memory is short"};
    /* Into the page cache, if it has room for the bytes beside the memory that they are copied to;
     * or if direct reads are not worth it, or not measured. */
    bool has_room = conditions->requested_nbytes <= room_nbytes / (is_copied ? 2 : 1);
    if (conditions->through_cache)
        return (bth_choice){BERTH_LOAD_READ, "the bytes are to stay in the page cache"};
    if (has_room && config->load_reuse == BTH_REUSE_OFTEN)
        return (bth_choice){BERTH_LOAD_READ, "load.reuse=often"};
    if (has_room && config->load_reuse == BTH_REUSE_AUTO && conditions->loaded_before)
        return (bth_choice){BERTH_LOAD_READ, "the file was loaded before"};
    if (conditions->requested_nbytes < DIRECT_MIN_NBYTES && config->load_reuse != BTH_REUSE_ONCE)
        return (bth_choice){BERTH_LOAD_READ, "few bytes are requested"};
    if (conditions->page_cache == BTH_PAGE_CACHE_UNKNOWN)
        return (bth_choice){BERTH_LOAD_READ, "it is not known whether the file is in memory"};
    if (conditions->file_system != BTH_ON_DISK)
        return (bth_choice){BERTH_LOAD_READ, "direct reads are not measured on this file system"};
    if (conditions->no_direct)
        return (bth_choice){BERTH_LOAD_READ, conditions->no_direct};
    return (bth_choice){BERTH_LOAD_DIRECT, "the file is on a disk, and not in memory"};
}

bth_choice bth_choose(const struct berth_config *config, const bth_conditions *conditions,
                      berth_load_method requested, const char *requested_by)
{
    bool measures_map = conditions->use == BTH_USE_CALLER || conditions->use == BTH_USE_CHECKSUMS;

    if (conditions->is_memory && requested != BERTH_LOAD_READ)
        return (bth_choice){conditions_exclude_map(conditions) ? BERTH_LOAD_READ : BERTH_LOAD_MAP,
                            "the source is memory"};
    if (!conditions->is_file && !conditions->is_memory)
        return (bth_choice){BERTH_LOAD_READ, "the source is a function"};
    if (requested == BERTH_LOAD_AUTO || (requested == BERTH_LOAD_MAP && measures_map))
        return choice_auto(config, conditions);
    if (requested == BERTH_LOAD_MAP && conditions->use == BTH_USE_DEVICE)
        return (bth_choice){BERTH_LOAD_READ, "it goes to a device"};
    if (requested == BERTH_LOAD_MAP && choice_no_map_reason(config, conditions))
        return (bth_choice){BERTH_LOAD_READ, choice_no_map_reason(config, conditions)};
    if (requested == BERTH_LOAD_DIRECT && conditions->no_direct)
        return (bth_choice){BERTH_LOAD_READ, conditions->no_direct};
    return (bth_choice){requested, requested_by ? requested_by : by_option[requested]};
}

bth_choice bth_choice_for_deflated(void)
{
    return (bth_choice){BERTH_LOAD_READ, "it is deflated"};
}

bool bth_load_method_is_valid(berth_load_method method)
{
    return (unsigned)method < sizeof by_option / sizeof *by_option;
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
