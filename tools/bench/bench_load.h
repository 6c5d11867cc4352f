/* SPDX-License-Identifier: BSD-3-Clause */
/* One load, measured by phases, for `berth bench load`. */
#ifndef BERTH_TOOLS_BENCH_LOAD_H
#define BERTH_TOOLS_BENCH_LOAD_H

#include <berth/more.h>

#include "tools/bench/bench.h"

/* The file that is loaded. */
typedef struct load_subject {
    const char *path;
    const char *device; /* where its storages go; NULL: to main memory */
    uint64_t nbytes;    /* of its storages */
    uint64_t file_nbytes;
    uint64_t pickle_nbytes; /* 0: the legacy format, without data.pkl */
    size_t n_tensors;
    size_t n_storages;
} load_subject;

enum { LOAD_OPEN, LOAD_NAMES, LOAD_TRANSFER, LOAD_TOUCH, LOAD_N_PHASES };

/* One load: its objects, until load_result_close_checkpoint, and its figures. */
typedef struct load_result {
    berth_checkpoint *checkpoint;
    struct tensor_storage *tensor_storages; /* each tensor's storage */
    size_t n_tensor_storages;
    berth_stats open, fetch;
    const char *method, *reason;
    double phases[LOAD_N_PHASES];
    uint64_t touched_nbytes;
    uint64_t sum; /* of all touched bytes: the compiler must not remove the reads */
} load_result;

/* Each returns 0, or an exit code after printing why. */

/* Opens the file once and fills the rest of the subject. */
int load_subject_read_info(load_subject *subject);
/*
 * Loads the file: open, names, bytes into memory, and every byte read once if it is mapped. With
 * only_open: open, names, and the addresses of all tensors, if that needs no reading.
 */
int load_run(const load_subject *subject, const berth_params *params, bool only_open,
             load_result *result);
/* Frees what was loaded; the figures stay. */
void load_result_close_checkpoint(load_result *result);
/* Measures opening the file from memory without checks, which is almost only parsing. */
int load_measure_parsing(const load_subject *subject, double *seconds);

#endif
