/* SPDX-License-Identifier: BSD-3-Clause */
/* How many of a file's bytes the page cache holds: counted, and nothing is brought by it. */
#ifndef BTH_IO_CACHED_H
#define BTH_IO_CACHED_H

#include "io/map.h"

/*
 * Of [offset, offset + nbytes), which begins with a page. `map`: of the file from its beginning;
 * NULL: none. False where the system does not tell the truth, or nothing.
 */
bool bth_cached_nbytes(int fd, const bth_map *map, uint64_t offset, uint64_t nbytes,
                       uint64_t *cached_nbytes);

#endif
