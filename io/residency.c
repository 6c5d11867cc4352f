/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/residency.h"

#include <errno.h>
#include <time.h>

#include "io/file.h"
#include "io/syscalls.h"

#define N_SAMPLES 64
/* So many of them may be missing. */
#define MOST_ABSENT 6

static bth_residency ask(int fd, uint64_t offset)
{
    uint8_t byte;
    struct iovec piece = {.iov_base = &byte, .iov_len = 1};
    ssize_t n;

    do
        n = bth_system.preadv2(fd, &piece, 1, (off_t)offset, RWF_NOWAIT);
    while (n < 0 && errno == EINTR);
    if (n == 1)
        return BTH_RESIDENT;
    return n < 0 && errno == EAGAIN ? BTH_NOT_RESIDENT : BTH_RESIDENCY_UNKNOWN;
}

/*
 * Asking starts reading ahead (since Linux 5.10): a description of its own is told not to. Where
 * there is none, fd itself will do.
 */
static int open_for_asking(int fd)
{
    int again = bth_file_open_again(fd, O_RDONLY);

    if (again < 0)
        return fd;
    (void)bth_system.posix_fadvise(again, 0, 0, POSIX_FADV_RANDOM);
    return again;
}

/* Another number at each call, so that pages which asking has brought are not asked for again. */
static uint64_t stir(uint64_t number)
{
    struct timespec time = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    number += (uint64_t)time.tv_nsec * UINT64_C(0x9E3779B97F4A7C15);
    return number ^ number >> 29;
}

bth_residency bth_residency_of(int fd, uint64_t offset, uint64_t nbytes)
{
    uint64_t page_nbytes = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t first = offset / page_nbytes;
    uint64_t n_pages = (offset + nbytes - 1) / page_nbytes - first + 1;
    uint64_t n_samples = n_pages < N_SAMPLES ? n_pages : N_SAMPLES;
    uint64_t stride = n_pages / n_samples;
    uint64_t most_absent = n_samples * MOST_ABSENT / N_SAMPLES;
    bth_residency result = BTH_RESIDENT;
    int asked = open_for_asking(fd);

    for (uint64_t i = 0, n_absent = 0; i < n_samples && result == BTH_RESIDENT; i++) {
        uint64_t page = first + i * stride + stir(i) % stride;
        bth_residency there = ask(asked, page * page_nbytes);
        if (there == BTH_RESIDENCY_UNKNOWN)
            result = there;
        else if (there == BTH_NOT_RESIDENT && ++n_absent > most_absent)
            result = BTH_NOT_RESIDENT;
    }
    if (asked != fd)
        bth_file_close(asked);
    return result;
}
