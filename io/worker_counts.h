/* SPDX-License-Identifier: BSD-3-Clause */
/* How many workers an operation has, and how many bytes one of them moves at a time. */
#ifndef BTH_IO_WORKER_COUNTS_H
#define BTH_IO_WORKER_COUNTS_H

#include "config/options.h"

/* io.chunk_nbytes = 0. */
#define BTH_WORKERS_CHUNK_NBYTES (UINT64_C(4) << 20)

/* The main work of the workers. It decides their number if io.threads is 0. */
typedef enum bth_workers_kind {
    BTH_WORKERS_COMPUTE,  /* copy and sum: as many as there are processors */
    BTH_WORKERS_WAIT,     /* wait for a disk or a device: 8 */
    BTH_WORKERS_PREFETCH, /* wait for pages, beside the program's own work: at most 4 */
    BTH_WORKERS_ROWS,     /* wait for single rows: 16 */
    BTH_WORKERS_ROTATING, /* wait for a disk that rotates: 1, so that its head need not move */
} bth_workers_kind;

/*
 * At least 1, at most n_tasks. worker_nbytes: the memory of one worker, so that io.memory_nbytes
 * limits their number; 0: no limit. Apart from the arguments, only the number of processors
 * matters.
 */
unsigned bth_workers_choose_count(const struct berth_config *config, bth_workers_kind kind,
                                  uint64_t n_tasks, uint64_t worker_nbytes);

/* io.chunk_nbytes for a load: at least 64 KiB, and a multiple of 8, the widest element. */
uint64_t bth_workers_chunk_nbytes(const struct berth_config *config);

/* The processors that this process may run on, at most 8. */
unsigned bth_processors_count_capped(void);

#endif
