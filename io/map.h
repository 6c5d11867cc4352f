/* SPDX-License-Identifier: BSD-3-Clause */
/* Maps of files. */
#ifndef BTH_IO_MAP_H
#define BTH_IO_MAP_H

#include "berth.h"

typedef struct bth_map {
    void *address; /* of the byte asked for */
    uint64_t nbytes;
    void *base; /* what munmap gets: page-aligned */
    size_t base_nbytes;
} bth_map;

/*
 * Maps [offset, offset + nbytes) of a file. `flags`: bits of load.mmap_flags (shared: read-only;
 * else private, copy-on-write; populate and huge are wishes). The file's size is checked again
 * first (F1). nbytes > 0.
 */
int bth_map_file(int fd, uint64_t offset, uint64_t nbytes, int flags, bth_map *map,
                 berth_error *error);
void bth_map_free(bth_map *map);
/* Whether an address lies in it; in a map of zeros none does. */
bool bth_map_holds(const bth_map *map, const void *address);

/*
 * Advice (MADV_...) about bytes of a map that begins with its file, from a page's first byte on.
 * 0, or an errno value; what was interrupted is repeated.
 */
int bth_map_advise(const bth_map *map, uint64_t offset, uint64_t nbytes, int advice);

#endif
