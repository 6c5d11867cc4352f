/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/free_memory.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/file.h"
#include "io/syscalls.h"

#define TEXT_NBYTES 8192
#define PATH_NBYTES 4096

/* The names of one version of control groups. */
struct version {
    const char *mount, *limit, *used, *inactive, *active;
};

static const struct version versions[] = {
    {"/sys/fs/cgroup", "memory.max", "memory.current", "\ninactive_file ", "\nactive_file "},
    {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "\ntotal_inactive_file ", "\ntotal_active_file "},
};

/* The beginning of a short file of the kernel's, as text with a newline before it. */
static bool read_text(const char *path, char text[TEXT_NBYTES])
{
    int fd;
    ssize_t n;

    do
        fd = berth_system.open(path, O_RDONLY | O_CLOEXEC, 0);
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return false;
    do
        n = berth_system.pread(fd, text + 1, TEXT_NBYTES - 2, 0);
    while (n < 0 && errno == EINTR);
    berth_file_close(fd);
    if (n <= 0)
        return false;
    text[0] = '\n';
    text[1 + n] = '\0';
    return true;
}

/* The number behind a label; "max", or no such label: false. */
static bool find_number(const char *text, const char *label, uint64_t *number)
{
    const char *at = strstr(text, label);
    char *end;

    if (!at)
        return false;
    at += strlen(label);
    *number = strtoull(at, &end, 10);
    return end != at;
}

static bool read_number(const char *folder, const char *name, char text[TEXT_NBYTES],
                        uint64_t *number)
{
    char path[PATH_NBYTES + 64];

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return read_text(path, text) && find_number(text, "\n", number);
}

static uint64_t free_of_system(const char *root, char text[TEXT_NBYTES])
{
    char path[PATH_NBYTES];
    uint64_t available, swap = 0;

    (void)snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (!read_text(path, text) || !find_number(text, "\nMemAvailable:", &available))
        return UINT64_MAX;
    (void)find_number(text, "\nSwapFree:", &swap);
    return (available + swap) * 1024;
}

/* What one group leaves; UINT64_MAX if it has no limit. */
static uint64_t free_of_group(const char *folder, const struct version *version,
                              char text[TEXT_NBYTES])
{
    uint64_t limit, used, inactive = 0, active = 0;
    char path[PATH_NBYTES + 64];

    if (!read_number(folder, version->limit, text, &limit) ||
        !read_number(folder, version->used, text, &used))
        return UINT64_MAX;
    (void)snprintf(path, sizeof path, "%s/memory.stat", folder);
    if (read_text(path, text)) {
        (void)find_number(text, version->inactive, &inactive);
        (void)find_number(text, version->active, &active);
    }
    used = used > inactive + active ? used - inactive - active : 0;
    return limit > used ? limit - used : 0;
}

/*
 * The least that a group and those around it leave. In a container the group's own path may be the
 * host's and not be seen: then only what is mounted at the top tells.
 */
static uint64_t free_of_groups(const char *root, const char *group, const struct version *version,
                               char text[TEXT_NBYTES])
{
    char folder[PATH_NBYTES];
    uint64_t least = UINT64_MAX;
    int top = snprintf(folder, sizeof folder, "%s%s", root, version->mount);
    int n = snprintf(folder, sizeof folder, "%s%s%s", root, version->mount, group);

    if (n < 0 || (size_t)n >= sizeof folder)
        return least;
    for (char *end = folder + n; end >= folder + top; end--) {
        if (*end != '/' && *end != '\0')
            continue;
        *end = '\0';
        uint64_t left = free_of_group(folder, version, text);
        least = left < least ? left : least;
    }
    return least;
}

/* The path in a line "0::/path" (v2) or "4:memory:/path" (v1, maybe with others: "cpu,memory"). */
static bool find_group(const char *text, const char *controller, char group[PATH_NBYTES])
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
        group[n > 1 ? n : 0] = '\0'; /* "/" is the top itself */
        return true;
    }
    return false;
}

uint64_t berth_free_memory(const char *root)
{
    static const char *const controllers[] = {"", "memory"};
    char text[TEXT_NBYTES], path[PATH_NBYTES], group[PATH_NBYTES];
    uint64_t least = free_of_system(root, text);

    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
        if (!read_text(path, text) || !find_group(text, controllers[i], group))
            continue;
        uint64_t left = free_of_groups(root, group, &versions[i], text);
        least = left < least ? left : least;
    }
    return least;
}
