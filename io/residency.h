/* SPDX-License-Identifier: BSD-3-Clause */
/* Whether a file's bytes lie in the page cache already. */
#ifndef BTH_IO_RESIDENCY_H
#define BTH_IO_RESIDENCY_H

#include "berth.h"

typedef enum bth_residency {
    BTH_NOT_RESIDENT, /* much of it is not */
    BTH_RESIDENT,     /* nine tenths of it at least, as far as samples tell */
    BTH_RESIDENCY_UNKNOWN
} bth_residency;

/*
 * Asks at up to 64 pages of [offset, offset + nbytes), at other ones each time, by reads that may
 * not wait: mincore tells callers who may not write the file that everything is there. A page that
 * is not there is brought by asking, but nothing around it. nbytes > 0.
 */
bth_residency bth_residency_of(int fd, uint64_t offset, uint64_t nbytes);

#endif
