/* SPDX-License-Identifier: BSD-3-Clause */
/* What the benchmarks of the `berth` command share: shapes of checkpoints, and what is measured. */
#ifndef BERTH_TOOLS_BENCH_H
#define BERTH_TOOLS_BENCH_H

#include "tools/command.h"

int run_bench_save(int argc, char **argv);

/* ---- bench_shapes.c ---- */

/* One tensor of a checkpoint to be saved; its bytes lie where malloc put them, as PyTorch's do. */
typedef struct bench_tensor {
    char name[48];
    berth_dtype dtype;
    int32_t rank;
    int64_t shape[2];
    size_t nbytes;
    void *data;
} bench_tensor;

typedef struct bench_tensors {
    bench_tensor *items;
    size_t n;
    uint64_t nbytes; /* of all */
} bench_tensors;

/* What to make; 0: what the shape has by itself. */
typedef struct bench_shape {
    const char *name; /* uniform, llama, small, one */
    uint64_t nbytes;
    uint64_t n_tensors;
} bench_shape;

/* "2GiB", "512M", "4096": false if it is no number of bytes. */
bool parse_nbytes(const char *text, uint64_t *nbytes);

/*
 * Lists the tensors of a shape, without their bytes. 0, or EXIT_TROUBLE after telling why.
 * bench_tensors_free takes what either left.
 */
int bench_tensors_list(const bench_shape *shape, bench_tensors *tensors);
/* Gives them bytes that no file system or device can shrink. Stops on a signal. */
int bench_tensors_fill(bench_tensors *tensors);
void bench_tensors_free(bench_tensors *tensors);
/* A state_dict of them; the tree remembers what failed. */
berth_value *bench_tensors_value(const bench_tensors *tensors, berth_tree *tree);

/* ---- bench_measure.c ---- */

/* What this process has in memory now, and at most since reset_peak; 0 if the system does not say.
 */
uint64_t resident_nbytes(void);
uint64_t peak_nbytes(void);
void reset_peak(void);
/* What this process has sent towards a device. */
uint64_t written_nbytes(void);
/* What the system can still give, without swapping. */
uint64_t available_nbytes(void);
/* Sorts, and gives the middle, or the mean of the middle two. */
double median(double *values, size_t n);

#endif
