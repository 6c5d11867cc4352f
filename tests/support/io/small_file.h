/* SPDX-License-Identifier: BSD-3-Clause */
/* A scene whose file has bytes that are known. */
#ifndef TESTS_SUPPORT_SMALL_FILE_H
#define TESTS_SUPPORT_SMALL_FILE_H

#include "io/syscalls.h"
#include "tests/support/opened.h"

#define MAX_FILE_NBYTES 100000
extern uint8_t file_bytes[MAX_FILE_NBYTES]; /* what the file has */
extern int file_fd;                         /* the file, open for reading */

void begin_file(size_t nbytes);
/* Also puts the real system calls back. */
void end_file(void);

#endif
