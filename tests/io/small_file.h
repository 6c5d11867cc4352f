/* SPDX-License-Identifier: BSD-3-Clause */
/* A file of NBYTES bytes, which whoever includes this has defined, and the same bytes in memory. */
#ifndef TESTS_IO_SMALL_FILE_H
#define TESTS_IO_SMALL_FILE_H

#include <stdlib.h>

#include "io/syscalls.h"
#include "tests/support/support.h"

static berth_error error;
static char *folder, *path;
static uint8_t bytes[NBYTES];

static inline void make_a_file(void)
{
    folder = test_folder_new();
    path = test_path(folder, "file");
    for (size_t i = 0; i < NBYTES; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 251);
    test_write_file(path, bytes, NBYTES);
    error = (berth_error){0};
}

static inline void remove_the_file(void)
{
    bth_system_restore();
    free(path);
    test_folder_remove(folder);
}

#endif
