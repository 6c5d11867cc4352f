/* SPDX-License-Identifier: BSD-3-Clause */
/* What a benchmark reads of Linux's /proc. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/bench.h"

/* The number after "field:" in a file of lines; 0 if there is none. */
static uint64_t field_of(const char *path, const char *field)
{
    FILE *file = fopen(path, "re");
    size_t n = strlen(field);
    uint64_t value = 0;
    char line[256];

    if (!file)
        return 0;
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, field, n) && line[n] == ':') {
            value = strtoull(line + n + 1, NULL, 10);
            break;
        }
    (void)fclose(file);
    return value;
}

uint64_t resident_nbytes(void)
{
    return field_of("/proc/self/status", "VmRSS") * 1024;
}

uint64_t peak_nbytes(void)
{
    return field_of("/proc/self/status", "VmHWM") * 1024;
}

void reset_peak(void)
{
    int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        return;
    if (write(fd, "5", 1) != 1) /* "5": VmHWM begins anew, see proc(5) */
        fputs("berth: the peak of memory cannot be reset; it is that of the whole run\n", stderr);
    close(fd);
}

uint64_t written_nbytes(void)
{
    return field_of("/proc/self/io", "write_bytes");
}

uint64_t fetched_nbytes(void)
{
    return field_of("/proc/self/io", "read_bytes");
}

uint64_t available_nbytes(void)
{
    return field_of("/proc/meminfo", "MemAvailable") * 1024;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, compare);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}
