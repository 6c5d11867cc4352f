/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One save with one fault in it, and what must hold afterwards: the path has the complete old file
 * or the complete new one, nothing else is left, nothing leaks, and what is said is what happened.
 */
#ifndef TESTS_SUPPORT_SAVE_SCENE_H
#define TESTS_SUPPORT_SAVE_SCENE_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/support/expected.h"
#include "tests/support/faults/inject.h"
#include "tests/support/save/records.h"

#define OLD "the old file"
#define N_BYTES 30000
extern char *link_path, *leftover_path;
extern uint8_t *bytes;
extern unsigned n_points;        /* fault points tried */
extern unsigned n_points_of[11]; /* the same, by the line of the table of SAFETY.md: W1 … W10 */

/* What a save is tried with. */
typedef struct scene {
    const char *options;
    bool no_fallocate; /* a file system without it */
    bool through_link;
    bool replaces;
    bool leftover; /* of a killed save lies in the folder */
    bool large;    /* so that contents are lent, not copied */
    bool values;   /* a tree, with views and a tied tensor, instead of records */
    bool job;      /* in a thread of its own */
    bool snapshot; /* the same, from copies */
} scene;
int no_fallocate(int fd, int mode, off_t offset, off_t nbytes);
int save_some(const char *to, size_t nbytes, berth_error *error);
int save_by_job(const char *to, uint32_t flags, berth_error *error);
int save_records(const char *to, berth_error *error);
int save_values(const char *to, berth_error *error);
int save(const scene *tried, const char *to, berth_error *error);
void begin_faults(void);
void end_faults(void);

/* Makes the file that the scene's saves must give. False: not part of this build. */
bool make_expected(const scene *tried);

/* Whether saves that ask for it are written past the page cache here: not on tmpfs. */
bool direct_writes_work(void);
void prepare_folder(const scene *tried);

/* Every error begins with the path; but where there was no memory for it, too. */
bool names_path(const berth_error *error, const char *to);

/* Old or new, never both, never neither; and never less than what was said. */
void check_outcome(const scene *tried, int status, const berth_error *error, const char *about);

/* Removes what killed saves left, also where their owner is not known. */
void clean_folder(void);
size_t n_open_files(void);

/* One save with the nth call of a row failing. False when the fault was not reached any more. */
bool try_fault(const scene *tried, enum fault_row row, unsigned nth, int system_errno,
               bool for_ever, int *status);

/* N = 1, 2, 3 … until the row is not called so often. Returns how many saves failed. */
unsigned try_row(const scene *tried, enum fault_row row, int system_errno, bool for_ever);

/* ---- a file that is read ---- */

/* Saves tensors of these names at `path`, all of one shape, with the elements 0, 1, 2 …, which are
 * returned, malloc's. */
float *save_elements(int32_t rank, const int64_t *shape, size_t n_names, const char *const *names);

extern bool is_for_ever; /* the fault that is tried stays */

/* Under test_memory_watch: nothing leaks, and an error names the file. Returns the status. */
int use_watched(int (*use)(berth_error *error), const char *about);

/* The nth allocation is refused, for all n, once and for ever. `always`: none only helps. */
void use_without_memory(int (*use)(berth_error *error), const char *options, bool always);

#endif
