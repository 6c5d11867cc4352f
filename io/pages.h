/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Large pages. One request to a disk can have a limited number of pieces of memory: with large
 * pages there are fewer and larger requests.
 */
#ifndef BTH_IO_PAGES_H
#define BTH_IO_PAGES_H

#include "berth.h"

#define BTH_LARGE_PAGE_NBYTES ((size_t)2 * 1024 * 1024)

/* Opens a descriptor for bth_pages_are_large; -1 on failure. Close it with bth_file_close. */
int bth_pages_open(void);

/* Whether all of [bytes, bytes + nbytes) is present, in large pages. False: also if unknown. */
bool bth_pages_are_large(int fd, const void *bytes, size_t nbytes);

/* Requests large pages for memory that is aligned to them and was not touched yet. */
void bth_pages_make_large(void *bytes, size_t nbytes);

#endif
