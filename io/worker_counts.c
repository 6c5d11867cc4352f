/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/worker_counts.h"

#include "base/memory.h"
#include "io/syscalls.h"

#define PROCESSORS_MAX 8
/*
 * Enough to keep a disk busy while other workers compute checksums. On 2 processors 2, 3, 4, 6 and
 * 8 workers wrote 2.9, 3.2, 3.3, 3.4 and 3.5 GiB/s with checksums, and 3.1, 3.3, 3.4, 3.5 and 3.5
 * without.
 */
#define WAIT_WORKERS 8
#define PREFETCH_WORKERS_MAX 4
#define ROW_WORKERS 16
#define CHUNK_MIN_NBYTES 65536
#define CHUNK_UNIT_NBYTES 8

unsigned bth_processors_count_capped(void)
{
    cpu_set_t cpus;
    long n;

    if (bth_system.sched_getaffinity(0, sizeof cpus, &cpus) == 0)
        n = CPU_COUNT(&cpus);
    else /* more processors than the set has bits */
        n = sysconf(_SC_NPROCESSORS_ONLN);
    if (n < 1)
        return 1;
    return n > PROCESSORS_MAX ? PROCESSORS_MAX : (unsigned)n;
}

unsigned bth_workers_choose_count(const struct berth_config *config, bth_workers_kind kind,
                                  uint64_t n_tasks, uint64_t worker_nbytes)
{
    uint64_t n = (uint64_t)config->io_threads;

    if (n == 0)
        n = kind == BTH_WORKERS_WAIT       ? WAIT_WORKERS
            : kind == BTH_WORKERS_ROWS     ? ROW_WORKERS
            : kind == BTH_WORKERS_ROTATING ? 1
            : kind == BTH_WORKERS_PREFETCH
                ? bth_min(bth_processors_count_capped(), PREFETCH_WORKERS_MAX)
                : bth_processors_count_capped();
    if (config->io_memory_nbytes && worker_nbytes)
        n = bth_min(n, (uint64_t)config->io_memory_nbytes / worker_nbytes);
    n = bth_min(n, n_tasks);
    return n > 0 ? (unsigned)n : 1;
}

uint64_t bth_workers_chunk_nbytes(const struct berth_config *config)
{
    uint64_t nbytes = (uint64_t)config->io_chunk_nbytes;

    if (nbytes == 0)
        return BTH_WORKERS_CHUNK_NBYTES;
    return nbytes < CHUNK_MIN_NBYTES ? CHUNK_MIN_NBYTES : nbytes - nbytes % CHUNK_UNIT_NBYTES;
}
