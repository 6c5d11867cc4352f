/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/io/small_file.h"

uint8_t file_bytes[MOST_FILE_NBYTES];

void begin_file(size_t nbytes)
{
    begin_scene("file");
    for (size_t i = 0; i < nbytes; i++)
        file_bytes[i] = (uint8_t)(i * 7 + i / 251);
    test_write_file(path, file_bytes, nbytes);
}

void end_file(void)
{
    bth_system_restore();
    end_scene();
}
