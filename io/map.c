/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/map.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "config/options.h"
#include "io/file.h"
#include "io/syscalls.h"

#define MAPS_NBYTES 4096 /* the kernel gives whole lines */

int bth_map_file(int fd, uint64_t nbytes, int flags, bth_map *map, berth_error *error)
{
    bool is_shared = flags & BTH_MMAP_SHARED;

    assert(nbytes > 0);
    if (nbytes > PTRDIFF_MAX) /* of a 32-bit process; the cast below would cut it */
        return bth_fail_errno(error, ENOMEM, NULL, 0, "%llu bytes cannot be mapped",
                              (unsigned long long)nbytes);
    /*
     * MAP_NORESERVE: without it the kernel's overcommit heuristic refuses a copy-on-write map of a
     * file that is larger than memory, although not all of its pages are written.
     */
    void *address =
        bth_system.mmap(NULL, (size_t)nbytes, is_shared ? PROT_READ : PROT_READ | PROT_WRITE,
                        is_shared ? MAP_SHARED : MAP_PRIVATE | MAP_NORESERVE, fd, 0);
    if (address == MAP_FAILED)
        return bth_fail_errno(error, errno, NULL, 0, "%llu bytes cannot be mapped",
                              (unsigned long long)nbytes);
    if (flags & BTH_MMAP_HUGE)
        (void)bth_system.madvise(address, (size_t)nbytes, MADV_HUGEPAGE);
    /*
     * Not MAP_POPULATE: it writes to a private map, and so copies every page
     * (populate_vma_page_range in the kernel's mm/gup.c). Before Linux 5.14 pages are read when
     * they are touched.
     */
    if (flags & BTH_MMAP_POPULATE)
        (void)bth_system.madvise(address, (size_t)nbytes, MADV_POPULATE_READ);
    *map = (bth_map){.address = address, .nbytes = nbytes};
    return 0;
}

void bth_map_free(bth_map *map)
{
    if (map->address)
        (void)bth_system.munmap(map->address, map->nbytes);
    *map = (bth_map){0};
}

bool bth_map_holds(const bth_map *map, const void *address)
{
    return map->address && (uintptr_t)address - (uintptr_t)map->address < map->nbytes;
}

/* ---- who maps a file ---- */

/* One line of /proc/self/maps, "begin-end rwxp offset device inode path". */
typedef struct map_line {
    unsigned long begin, end;
    char file[48]; /* its device and inode */
} map_line;

/*
 * Finds the line that holds `address`, or, if that is 0, another line of this file: lines that
 * begin at known->begin are not looked at.
 */
static bool maps_find(uintptr_t address, map_line *known)
{
    char text[MAPS_NBYTES + 1];
    int maps = bth_system.open("/proc/self/maps", O_RDONLY | O_CLOEXEC, 0);
    off_t at = 0;
    bool found = false;
    ssize_t n;

    while (maps >= 0 && !found && (n = bth_system.pread(maps, text, MAPS_NBYTES, at)) > 0) {
        char *end = NULL, *next = text;
        text[n] = '\0';
        for (; !found && (end = strchr(next, '\n')) != NULL; next = end + 1) {
            map_line line;
            char device[24], inode[24], *behind;
            *end = '\0';
            line.begin = strtoul(next, &behind, 16);
            if (*behind != '-')
                continue;
            line.end = strtoul(behind + 1, &behind, 16);
            if (sscanf(behind, " %*s %*s %23s %23s", device, inode) != 2)
                continue;
            (void)snprintf(line.file, sizeof line.file, "%s %s", device, inode);
            if (address != 0 && address >= line.begin && address < line.end) {
                *known = line;
                found = true;
            } else if (address == 0)
                found = line.begin != known->begin && strcmp(line.file, known->file) == 0;
        }
        if (next == text)
            break; /* a line that is longer than all others: its path is */
        at += next - text;
    }
    bth_file_close(maps);
    return found;
}

/*
 * The device in such a line is not st_dev on btrfs or an overlay. So a map of our own shows how the
 * kernel calls this file.
 */
bool bth_file_is_mapped(int fd)
{
    const size_t nbytes = 1;
    int again = bth_file_open_again(fd, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    void *own =
        again < 0 ? MAP_FAILED : bth_system.mmap(NULL, nbytes, PROT_READ, MAP_PRIVATE, again, 0);
    map_line line = {0};
    bool has = false;

    if (own != MAP_FAILED && maps_find((uintptr_t)own, &line))
        has = line.begin != (uintptr_t)own || maps_find(0, &line);
    if (own != MAP_FAILED)
        (void)bth_system.munmap(own, nbytes);
    bth_file_close(again);
    return has;
}
