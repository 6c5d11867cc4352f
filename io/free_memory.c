/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/free_memory.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "io/file.h"
#include "io/syscalls.h"

#define TEXT_NBYTES 8192
#define PATH_NBYTES 4096

/*
 * The files of one version of control groups. `file` and `slab`: lines of memory.stat about memory
 * that can be reclaimed. The lists of file pages have no pages of tmpfs and no locked ones; dirty
 * ones are free after they are written. v1 does not report slabs, only `kernel`: all memory that
 * the kernel has for the group. Its limit of swap includes the memory.
 */
struct version {
    const char *mount, *limit, *used, *file[2], *slab, *kernel, *swap_limit, *swap_used;
    bool swap_has_memory;
};

static const struct version versions[] = {
    {.mount = "/sys/fs/cgroup",
     .limit = "memory.max",
     .used = "memory.current",
     .file = {"\ninactive_file ", "\nactive_file "},
     .slab = "\nslab_reclaimable ",
     .swap_limit = "memory.swap.max",
     .swap_used = "memory.swap.current"},
    {.mount = "/sys/fs/cgroup/memory",
     .limit = "memory.limit_in_bytes",
     .used = "memory.usage_in_bytes",
     .file = {"\ntotal_inactive_file ", "\ntotal_active_file "},
     .kernel = "memory.kmem.usage_in_bytes",
     .swap_limit = "memory.memsw.limit_in_bytes",
     .swap_used = "memory.memsw.usage_in_bytes",
     .swap_has_memory = true},
};

/* Of the whole system. `slab`: reclaimable memory of the kernel. */
struct totals {
    uint64_t available, swap, slab;
};

/* Reads a short file. A newline is added before it, so that each line begins with one. */
static bool kernel_file_read_text(const char *folder, const char *name, char *text,
                                  size_t text_nbytes)
{
    char path[PATH_NBYTES + 64];

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    text[0] = '\n';
    return bth_file_read_start_as_text(path, text + 1, text_nbytes - 1);
}

/* The number after a label. False: the label is missing, or its value is "max". */
static bool kernel_text_find_number(const char *text, const char *label, uint64_t *number)
{
    const char *at = strstr(text, label);
    char *end;

    if (!at)
        return false;
    at += strlen(label);
    *number = strtoull(at, &end, 10);
    return end != at;
}

static bool kernel_file_read_number(const char *folder, const char *name, uint64_t *number)
{
    char text[64];

    return kernel_file_read_text(folder, name, text, sizeof text) &&
           kernel_text_find_number(text, "\n", number);
}

static struct totals meminfo_read_totals(const char *root)
{
    struct totals totals = {.available = UINT64_MAX, .slab = UINT64_MAX};
    char text[TEXT_NBYTES];
    uint64_t number;

    if (!kernel_file_read_text(root, "proc/meminfo", text, sizeof text))
        return totals;
    if (kernel_text_find_number(text, "\nSwapFree:", &number))
        totals.swap = number * 1024;
    if (kernel_text_find_number(text, "\nMemAvailable:", &number))
        totals.available = number * 1024 + totals.swap;
    /* In containers, lxcfs shows 0 for unknown. */
    if (kernel_text_find_number(text, "\nSReclaimable:", &number) && number > 0)
        totals.slab = number * 1024;
    return totals;
}

/*
 * X15: how much of a group's memory can be reclaimed. In v1 its slabs are at most its kernel
 * memory, and at most all slabs of the system. The larger number is right here: only requests that
 * certainly do not fit may be refused.
 */
static uint64_t cgroup_reclaimable_nbytes(const char *folder, const struct version *version,
                                          const struct totals *totals)
{
    uint64_t inactive = 0, active = 0, slab = 0;
    char text[TEXT_NBYTES];

    if (kernel_file_read_text(folder, "memory.stat", text, sizeof text)) {
        (void)kernel_text_find_number(text, version->file[0], &inactive);
        (void)kernel_text_find_number(text, version->file[1], &active);
        if (version->slab)
            (void)kernel_text_find_number(text, version->slab, &slab);
    }
    if (version->kernel && kernel_file_read_number(folder, version->kernel, &slab))
        slab = bth_min(slab, totals->slab);
    return inactive + active + slab;
}

/* The limit minus the used memory that cannot be reclaimed; UINT64_MAX: there is no limit. */
static uint64_t cgroup_nbytes_below_limit(const char *folder, const char *limit_name,
                                          const char *used_name, uint64_t reclaimable)
{
    uint64_t limit, used;

    if (!kernel_file_read_number(folder, limit_name, &limit) ||
        !kernel_file_read_number(folder, used_name, &used))
        return UINT64_MAX;
    used = used > reclaimable ? used - reclaimable : 0;
    return limit > used ? limit - used : 0;
}

/* The memory and swap that one group leaves; UINT64_MAX: it has no limit. */
static uint64_t cgroup_free_nbytes(const char *folder, const struct version *version,
                                   const struct totals *totals)
{
    uint64_t reclaimable = cgroup_reclaimable_nbytes(folder, version, totals);
    uint64_t left = cgroup_nbytes_below_limit(folder, version->limit, version->used, reclaimable);

    if (left == UINT64_MAX || totals->swap == 0)
        return left;
    uint64_t with_swap = cgroup_nbytes_below_limit(folder, version->swap_limit, version->swap_used,
                                                   version->swap_has_memory ? reclaimable : 0);
    if (version->swap_has_memory)
        return bth_min(left + totals->swap, with_swap);
    return left + bth_min(totals->swap, with_swap);
}

/*
 * The smallest free memory of a group and its parents. In a container the path may be that of
 * the host and not exist: then only the limits of the mounted top count.
 */
static uint64_t cgroup_min_free_nbytes(const char *root, const char *group,
                                       const struct version *version, const struct totals *totals)
{
    char folder[PATH_NBYTES];
    uint64_t min = UINT64_MAX;
    int top = snprintf(folder, sizeof folder, "%s%s", root, version->mount);
    int n = snprintf(folder, sizeof folder, "%s%s%s", root, version->mount, group);

    if (n < 0 || (size_t)n >= sizeof folder)
        return min;
    for (char *end = folder + n; end >= folder + top; end--) {
        if (*end != '/' && *end != '\0')
            continue;
        *end = '\0';
        min = bth_min(min, cgroup_free_nbytes(folder, version, totals));
    }
    return min;
}

/* Finds the path in a line "0::/path" (v2), or "4:memory:/path" or "4:cpu,memory:/path" (v1). */
static bool cgroup_find_path(const char *text, const char *controller, char group[PATH_NBYTES])
{
    for (const char *line = strchr(text, '\n'); line && line[1]; line = strchr(line + 1, '\n')) {
        const char *list = strchr(line + 1, ':');
        const char *path = list ? strchr(list + 1, ':') : NULL;
        if (!path)
            continue;
        const char *found = *controller ? strstr(list, controller) : list;
        if (*controller ? !found || found > path : list + 1 != path)
            continue;
        size_t n = strcspn(path + 1, "\n");
        if (n >= PATH_NBYTES)
            return false;
        memcpy(group, path + 1, n);
        group[n > 1 ? n : 0] = '\0'; /* "/" is the top */
        return true;
    }
    return false;
}

uint64_t bth_free_memory_nbytes(const char *root)
{
    static const char *const controllers[] = {"", "memory"};
    char text[TEXT_NBYTES], group[PATH_NBYTES];
    const struct totals totals = meminfo_read_totals(root);
    uint64_t min = totals.available;

    for (size_t i = 0; i < 2; i++) {
        if (!kernel_file_read_text(root, "proc/self/cgroup", text, sizeof text) ||
            !cgroup_find_path(text, controllers[i], group))
            continue;
        min = bth_min(min, cgroup_min_free_nbytes(root, group, &versions[i], &totals));
    }
    return min;
}
