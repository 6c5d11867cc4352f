/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the benchmarks of the `berth` command share. Each times one run of Berth. The
 * programs in Python beside them repeat runs, make shapes of checkpoints, and compare with others.
 */
#ifndef BERTH_TOOLS_BENCH_H
#define BERTH_TOOLS_BENCH_H

#include <berth/more.h>
#include <jansson.h>

#include "tools/common/options.h"

/* ---- bench.c ---- */

/* Options of save and load: FILE, or tensors of the sizes given. */
typedef struct bench_options {
    common common;
    positional words; /* FILE */
    uint64_t nbytes, n_tensors;
    bool is_sized;      /* --size or --tensors was given */
    const char *device; /* NULL: main memory */
} bench_options;

/* The only child parser of save and load; it includes the common options. */
extern const struct argp_child bench_children[];

enum { BENCH_MAX_PHASES = 6 };

/* One run: its time, memory and traffic. */
typedef struct bench_run {
    const char *const *phases; /* their names, at most BENCH_MAX_PHASES, then NULL */
    double phase_seconds[BENCH_MAX_PHASES];
    double seconds;
    uint64_t nbytes;         /* of the tensors that it moves */
    uint64_t peak_nbytes;    /* of memory, above what was in use before */
    uint64_t written_nbytes; /* that this process wrote to disks */
    uint64_t fetched_nbytes; /* that it read from disks */
} bench_run;

void bench_run_begin_memory_and_disk(bench_run *run);
void bench_run_end_memory_and_disk(bench_run *run);
/* Sets phase i, and adds it to the run's seconds. */
void bench_run_add_phase_seconds(bench_run *run, int i, double seconds);
/* Memory that is available without swapping; UINT64_MAX: unknown. */
uint64_t available_memory_nbytes(void);
/* The run as an object; the caller adds more members. */
json_t *bench_run_json(const bench_run *run);
/* The same in lines. */
void bench_run_print(const bench_run *run);

/* Refuses what is not one file here. Returns 0, or an exit code after printing what to do. */
int bench_check_file(const positional *words);

/* A folder of our own in the current one, and the path of a file in it. */
typedef struct bench_folder {
    char folder[32];
    char path[48];
} bench_folder;

/* Each returns 0, or EXIT_TROUBLE after printing why. */
int bench_folder_make(bench_folder *folder);
/* Removes the file and the folder. If none was made: nothing. */
int bench_folder_remove(const bench_folder *folder);

/* How much of a file is in the page cache. */
typedef struct bench_cache {
    bool is_cold;  /* set by the options */
    double before; /* the cached part before the run, 0 to 1; -1: unknown */
} bench_cache;

/*
 * Evicts a file from the page cache, or reads all of it into the cache; then measures how much is
 * there. Stops on a signal.
 */
int bench_cache_set_and_measure(bench_cache *cache, const char *path);
/* Whether it was cold: a few pages may stay. */
bool bench_cache_was_cold(const bench_cache *cache);
/* The part as JSON; null: unknown. */
json_t *bench_cache_part_json(const bench_cache *cache);

/* ---- bench_tensors.c ---- */

/* One tensor to be saved. */
typedef struct bench_tensor {
    size_t index; /* in its file */
    char *name;
    berth_dtype dtype;
    int32_t rank;
    int64_t *shape;
    size_t nbytes;
    void *data;        /* in main memory, allocated */
    uintptr_t address; /* on the device */
} bench_tensor;

typedef struct bench_tensors {
    bench_tensor *items;
    size_t n;
    uint64_t nbytes;              /* of all */
    const char *device;           /* NULL: main memory */
    uintptr_t memory;             /* of all, on the device */
    berth_checkpoint *checkpoint; /* their source; NULL: they get random bytes */
} bench_tensors;

/* Each returns 0, or an exit code after printing why. bench_tensors_free is due in any case. */

/* Lists n float32 tensors of the same size. */
int bench_tensors_list_equal_sizes(bench_tensors *tensors, uint64_t n, uint64_t nbytes);
/* Lists one tensor of so many rows. */
int bench_tensors_list_table(bench_tensors *tensors, uint64_t n_rows, uint64_t row_nbytes);
/* Lists the tensors of a checkpoint that are not quantized. */
int bench_tensors_list_file(bench_tensors *tensors, const char *path);
/* Gives them bytes, on a device ("cuda:0") unless it is NULL. Stops on a signal. */
int bench_tensors_allocate_and_fill(bench_tensors *tensors, const char *device);
void bench_tensors_free(bench_tensors *tensors);
/* A state_dict of them; the tree remembers what failed. */
berth_value *bench_tensors_value(const bench_tensors *tensors, berth_tree *tree);
/* Fills and saves them, as a file that can be loaded, in a folder that it makes. */
int bench_tensors_make_file(bench_tensors *tensors, bench_folder *folder, const common *options);

#endif
