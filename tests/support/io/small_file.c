/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/io/small_file.h"

#include <criterion/criterion.h>

uint8_t file_bytes[MAX_FILE_NBYTES];
int file_fd;

void begin_file(size_t nbytes)
{
    begin_scene("file");
    for (size_t i = 0; i < nbytes; i++)
        file_bytes[i] = (uint8_t)(i * 7 + i / 251);
    test_write_file(path, file_bytes, nbytes);
    file_fd = open(path, O_RDONLY | O_CLOEXEC);
    cr_assert_geq(file_fd, 0);
}

void end_file(void)
{
    bth_system_restore();
    (void)close(file_fd);
    end_scene();
}
