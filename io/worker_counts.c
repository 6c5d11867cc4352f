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

static uint64_t workers_default_count(bth_workers_kind kind)
{
    switch (kind) {
    case BTH_WORKERS_WAIT:
        return WAIT_WORKERS;
    case BTH_WORKERS_PREFETCH:
        return bth_min(bth_processors_count_capped(), PREFETCH_WORKERS_MAX);
    case BTH_WORKERS_ROWS:
        return ROW_WORKERS;
    case BTH_WORKERS_ROTATING:
        return 1;
    default:
        return bth_processors_count_capped();
    }
}

unsigned bth_workers_choose_count(const struct berth_config *config, bth_workers_kind kind,
                                  uint64_t n_tasks, uint64_t worker_nbytes)
{
    uint64_t n = config->io_threads ? (uint64_t)config->io_threads : workers_default_count(kind);

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
