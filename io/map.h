/* SPDX-License-Identifier: BSD-3-Clause */
/* Maps of files. */
#ifndef BTH_IO_MAP_H
#define BTH_IO_MAP_H

#include "berth.h"

typedef struct bth_map {
    void *address; /* of the byte at `offset` */
    uint64_t nbytes;
    void *base; /* what was mapped: whole pages */
    size_t base_nbytes;
} bth_map;

/*
 * Maps [offset, offset + nbytes) of a file, nbytes > 0, after a check of its present size (F1).
 * `flags`: bits of load.mmap_flags (shared: read-only; else private: copy on write).
 */
int bth_map_file(int fd, uint64_t offset, uint64_t nbytes, int flags, bth_map *map,
                 berth_error *error);
/* Does nothing to a map of zeros, which also holds no address. */
void bth_map_free(bth_map *map);
bool bth_map_holds(const bth_map *map, const void *address);

/*
 * Gives advice (MADV_...) about bytes of a map that begins with its file; `offset` is that of a
 * page. 0 or an errno value; repeats after EINTR.
 */
int bth_map_advise(const bth_map *map, uint64_t offset, uint64_t nbytes, int advice);

#endif
