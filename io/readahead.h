/* SPDX-License-Identifier: BSD-3-Clause */
/* How far ahead the system reads by itself. */
#ifndef BTH_IO_READAHEAD_H
#define BTH_IO_READAHEAD_H

#include "berth.h"

/* Linux's own default, where nobody tells. */
#define BTH_READAHEAD_NBYTES (UINT64_C(128) * 1024)

/*
 * The read-ahead window of the device that holds the file, in whole pages, at least one: of an
 * advice over more than that, Linux follows no more than that. `root`: of the folder sys, "" but
 * for tests.
 */
uint64_t bth_readahead_nbytes(int fd, const char *root);

#endif
