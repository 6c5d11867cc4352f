/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/user_namespace.h"

#include <stdint.h>
#include <stdlib.h>

#include "io/file.h"

#define UNMAPPED 65534 /* DEFAULT_OVERFLOWUID in linux/highuid.h, of groups, too */

/* Whether ids inside differ from those outside. True if that cannot be known. */
static bool ids_are_mapped(const char *path)
{
    char map[64], *at = map;

    if (!bth_file_read_text(path, map, sizeof map))
        return true;
    unsigned long first = strtoul(at, &at, 10), outside = strtoul(at, &at, 10);
    return first != 0 || outside != 0 || strtoul(at, &at, 10) < UINT32_MAX;
}

bool bth_user_is_unmapped(uid_t user)
{
    return user == UNMAPPED && ids_are_mapped("/proc/self/uid_map");
}

bool bth_group_is_unmapped(gid_t group)
{
    return group == UNMAPPED && ids_are_mapped("/proc/self/gid_map");
}
