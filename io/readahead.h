/* SPDX-License-Identifier: BSD-3-Clause */
/* The readahead size of a device. */
#ifndef BTH_IO_READAHEAD_H
#define BTH_IO_READAHEAD_H

#include "berth.h"

/* The default of Linux, if the device does not report its own. */
#define BTH_READAHEAD_NBYTES (UINT64_C(128) * 1024)

/*
 * The readahead size of the device that holds the file: whole pages, at least one. Linux ignores
 * the rest of an advice to read more than that. `root`: where the folder sys is; "" except in
 * tests.
 */
uint64_t bth_readahead_nbytes(int fd, const char *root);

#endif
