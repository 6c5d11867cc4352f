/* SPDX-License-Identifier: BSD-3-Clause */
/* Standard input, output and error, if they were closed when the command started. */
#include <fcntl.h>
#include <unistd.h>

#include "tools/common/shared.h"

void fill_closed_standard_descriptors(void)
{
    int fd;

    /* O_PATH: neither readable nor writable, so that lost output is still an error. */
    do
        fd = open("/", O_PATH | O_CLOEXEC);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        (void)close(fd);
}
