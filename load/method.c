/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/method.h"

/* Below this, the page cache is as fast, and keeps the file for who loads it next. */
#define LEAST_DIRECT_NBYTES ((uint64_t)64 * 1024 * 1024)

static bth_way way(berth_load_method method, const char *reason)
{
    return (bth_way){.method = method, .reason = reason};
}

/* Why nothing is mapped; NULL: it may be. */
static const char *why_not_mapped(const struct berth_config *config, const bth_facts *facts)
{
    if (!config->load_mmap)
        return "load.mmap=off";
    return facts->cannot_map ? "the file cannot be mapped" : NULL;
}

/* An eighth beside what is read is left for everybody else. */
static bool is_short(const bth_facts *facts)
{
    return facts->asked_nbytes > facts->free_nbytes - facts->free_nbytes / 8;
}

/* A fetch: bytes are to be there at once. */
static bth_way choose_for_fetch(const bth_facts *facts, const char *not_mapped)
{
    berth_load_method lying = not_mapped || facts->to_device ? BERTH_LOAD_READ : BERTH_LOAD_MAP;

    if (facts->file_system == BTH_IN_MEMORY || facts->residency == BTH_PAGE_CACHE_WARM)
        return way(lying, not_mapped ? not_mapped : "the file is in memory");
    if (is_short(facts) && !facts->to_device)
        return way(lying, not_mapped ? not_mapped : "memory is short");
    if (facts->asked_nbytes < LEAST_DIRECT_NBYTES)
        return way(BERTH_LOAD_READ, "it is not much");
    if (facts->residency == BTH_PAGE_CACHE_UNKNOWN)
        return way(BERTH_LOAD_READ, "nobody tells whether the file is in memory");
    if (facts->file_system != BTH_ON_DISK)
        return way(BERTH_LOAD_READ, "direct reads are not measured on this file system");
    if (facts->no_direct)
        return way(BERTH_LOAD_READ, facts->no_direct);
    return way(BERTH_LOAD_DIRECT, "the file is on a disk, and not in memory");
}

static bth_way choose_auto(const struct berth_config *config, const bth_facts *facts)
{
    const char *not_mapped = facts->to_device ? NULL : why_not_mapped(config, facts);

    /* Truncating a mapped file kills who touches it (F2): here strangers may. */
    if (facts->file_system == BTH_REMOTE)
        return way(BERTH_LOAD_READ, "the file system is a network's, or a process's");
    if (facts->at_once)
        return choose_for_fetch(facts, not_mapped);
    if (not_mapped)
        return way(BERTH_LOAD_READ, not_mapped);
    return way(BERTH_LOAD_MAP, "the source is a file");
}

bth_way bth_way_choose(const struct berth_config *config, const bth_facts *facts,
                       berth_load_method asked, const char *asked_by)
{
    static const char *const by_option[] = {"load.method=auto", "load.method=map",
                                            "load.method=read", "load.method=direct"};

    if (facts->is_memory)
        return way(facts->to_device ? BERTH_LOAD_READ : BERTH_LOAD_MAP, "the source is memory");
    if (!facts->is_file)
        return way(BERTH_LOAD_READ, "the source is no file");
    if (asked == BERTH_LOAD_AUTO)
        return choose_auto(config, facts);
    if (asked == BERTH_LOAD_MAP && facts->to_device)
        return way(BERTH_LOAD_READ, "it goes to a device");
    if (asked == BERTH_LOAD_MAP && why_not_mapped(config, facts))
        return way(BERTH_LOAD_READ, why_not_mapped(config, facts));
    if (asked == BERTH_LOAD_DIRECT && facts->no_direct)
        return way(BERTH_LOAD_READ, facts->no_direct);
    return way(asked, asked_by ? asked_by : by_option[asked]);
}
