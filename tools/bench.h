/* SPDX-License-Identifier: BSD-3-Clause */
/* What the benchmarks of the `berth` command share: shapes of checkpoints, and what is measured. */
#ifndef BERTH_TOOLS_BENCH_H
#define BERTH_TOOLS_BENCH_H

#include "tools/command.h"

int run_bench_save(int argc, char **argv);
int run_bench_load(int argc, char **argv);
int run_bench_rows(int argc, char **argv);

/* ---- bench_shapes.c ---- */

/* One tensor of a checkpoint to be saved. */
typedef struct bench_tensor {
    char name[48];
    berth_dtype dtype;
    int32_t rank;
    int64_t shape[2];
    size_t nbytes;
    void *data;        /* in main memory: where malloc put it, as PyTorch's */
    uintptr_t address; /* else: in the device's memory */
} bench_tensor;

typedef struct bench_tensors {
    bench_tensor *items;
    size_t n;
    uint64_t nbytes;    /* of all */
    const char *device; /* NULL: main memory */
    uintptr_t memory;   /* that of all, on the device */
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
/*
 * Gives them bytes that no file system or device can shrink; on a device ("cuda:0") unless it is
 * NULL. Stops on a signal.
 */
int bench_tensors_fill(bench_tensors *tensors, const char *device);
void bench_tensors_free(bench_tensors *tensors);
/* A state_dict of them, recorded as of their device; the tree remembers what failed. */
berth_value *bench_tensors_value(const bench_tensors *tensors, berth_tree *tree);
/* Saves them, so that there is something to be loaded. */
int bench_tensors_save(const bench_tensors *tensors, const char *path, const common *options);

/* ---- bench_options.c ---- */

/* Options that every benchmark takes. */
typedef struct bench_options {
    common common;
    bench_shape shape;
    bool is_shaped; /* one of --size, --tensors, --shape was given */
    uint64_t rounds;
} bench_options;

/* Their parser, and that of the common ones, as the one child of every benchmark's. */
extern const struct argp_child bench_children[];

/* The number that a word is, from 1 to `most`; or an error of usage about `what`. */
uint64_t parse_count(const char *word, uint64_t most, const char *what, struct argp_state *state);

/* ---- bench_rounds.c ---- */

enum { BENCH_MOST_ROUNDS = 1000, BENCH_MOST_PHASES = 6 };

/* What one round took. */
typedef struct bench_round {
    double before_seconds; /* getting ready for it, not counted */
    double seconds;
    double phases[BENCH_MOST_PHASES]; /* of those seconds */
} bench_round;

typedef struct bench_rounds {
    const char *const *phases; /* their names, at most BENCH_MOST_PHASES, then NULL */
    const char *before;        /* the name of before_seconds in JSON */
    uint64_t nbytes;           /* what each moves */
    bench_round *items;
    size_t n; /* that are done */
} bench_rounds;

/* Room for so many. 0, or EXIT_TROUBLE after telling. bench_rounds_free takes what it left. */
int bench_rounds_begin(bench_rounds *rounds, uint64_t n);
void bench_rounds_free(bench_rounds *rounds);
/* Medians, limits and each round, as an object to which more can be added. At least one is done. */
json_t *bench_rounds_json(const bench_rounds *rounds);
/* The same in lines, without each round. */
void bench_rounds_print(const bench_rounds *rounds);

/* ---- bench_file.c ---- */

/* A folder of our own in the current one, and the path of a file in it. */
typedef struct bench_folder {
    char folder[32];
    char path[48];
} bench_folder;

/* Each returns 0, or EXIT_TROUBLE after telling. */
int bench_folder_make(bench_folder *folder);
int bench_folder_remove_file(const bench_folder *folder);
/* The folder must be empty. If none was made: nothing. */
int bench_folder_remove(const bench_folder *folder);

/* Drops a file from the page cache; what is dirty is written first. Whether it went, only
 * file_residency tells: another process may hold it. */
int file_evict(const char *path);
/* Reads a file, so that all of it is in the page cache, if it has room there. Stops on a signal. */
int file_warm(const char *path);
/* Which part of a file is in the page cache, 0 to 1; -1 where the system does not tell. */
double file_residency(const char *path);

/* ---- bench_measure.c ---- */

/* What this process has in memory now, and at most since reset_peak; 0 if the system does not say.
 */
uint64_t resident_nbytes(void);
uint64_t peak_nbytes(void);
void reset_peak(void);
/* What this process has sent towards a device. */
uint64_t written_nbytes(void);
/* What it has caused to be fetched from a device. */
uint64_t fetched_nbytes(void);
/* What the system can still give, without swapping. */
uint64_t available_nbytes(void);
/* Sorts, and gives the middle, or the mean of the middle two. */
double median(double *values, size_t n);

#endif
