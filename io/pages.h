/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which memory lies in large pages. A device counts the pieces of memory that one request of it may
 * have: from large pages requests are fewer and larger.
 */
#ifndef BTH_IO_PAGES_H
#define BTH_IO_PAGES_H

#include "berth.h"

#define BTH_LARGE_PAGE_NBYTES ((size_t)2 * 1024 * 1024)

/* A descriptor to ask by, or -1. */
int bth_pages_open(void);
void bth_pages_close(int fd);

/* Whether all of [bytes, bytes + nbytes) is present in large pages. False where nobody tells. */
bool bth_pages_are_large(int fd, const void *bytes, size_t nbytes);

/* Asks for large pages: for memory that has not been touched yet, aligned to them. */
void bth_pages_make_large(void *bytes, size_t nbytes);

#endif
