/* SPDX-License-Identifier: BSD-3-Clause */
/* Maps of files. */
#ifndef BTH_IO_MAP_H
#define BTH_IO_MAP_H

#include "berth.h"

typedef struct bth_map {
    void *address; /* of the file's first byte */
    uint64_t nbytes;
} bth_map;

/*
 * Maps the first nbytes > 0 of a file. F1: the caller has checked that the file has them. `flags`:
 * bits of load.mmap_flags (shared: read-only; else private: copy on write).
 */
int bth_map_file(int fd, uint64_t nbytes, int flags, bth_map *map, berth_error *error);
/* Does nothing to a map of zeros, which also contains no address. */
void bth_map_free(bth_map *map);
/* Whether this process has a map of the file, made by whomever. `fd`: any, also O_PATH. False also
 * if it cannot be known: without /proc, or of a file that may not be read. */
bool bth_file_is_mapped(int fd);
bool bth_map_holds(const bth_map *map, const void *address);

#endif
