/* SPDX-License-Identifier: BSD-3-Clause */
/* What the system reports of the disk that a file is on. `root`: the folder that has sys; "" except
 * in tests. */
#ifndef BTH_IO_DISK_PROPERTIES_H
#define BTH_IO_DISK_PROPERTIES_H

#include <stdbool.h>
#include <stdint.h>

/* The default of Linux, if the disk does not report its own. */
#define BTH_READAHEAD_NBYTES (UINT64_C(128) * 1024)

/*
 * The readahead size of the disk: whole pages, at least one. Linux ignores the rest of a longer
 * advice.
 */
uint64_t bth_disk_readahead_nbytes(int fd, const char *root);

/*
 * Whether it is one disk that rotates: requests of several workers move its head to and fro. False
 * for what only says so: virtual disks, and controllers that join disks.
 */
bool bth_disk_is_rotating(int fd, const char *root);

#endif
