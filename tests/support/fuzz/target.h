/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What makes a program of a target. As a fuzzer (-DBERTH_FUZZER, VARIANT=fuzz) libFuzzer calls it;
 * with BERTH_FUZZ_SEEDS=folder it writes its seeds there, and ends. As a Criterion program it
 * replays the seeds, what was ever found, and some thousand changes of them that its own mutator
 * makes.
 */
#ifndef TESTS_SUPPORT_FUZZ_TARGET_H
#define TESTS_SUPPORT_FUZZ_TARGET_H

#include "tests/support/fuzz/properties.h"

#ifndef BERTH_FUZZER
#include <criterion/criterion.h>
#endif

/* ---- what a target defines ---- */

/* Checks all that must hold of an input; stops the program where it does not. */
void check_input(const uint8_t *bytes, size_t nbytes);
/* Calls seed() or seed_folder() for each. */
void make_seeds(void);
/* Changes bytes in place, up to `most` of them; returns how many there are then. */
size_t mutate(uint8_t *bytes, size_t nbytes, size_t most, unsigned number);

/* ---- seeds ---- */

#define MAX_FILE_NBYTES ((size_t)1 << 20)

void seed(const char *name, const void *bytes, size_t nbytes);
/* All files of a folder whose name holds `part`; in the project's root, where tests run. */
void seed_folder(const char *folder, const char *part);
#ifndef BERTH_FUZZER
extern size_t n_changes_of_each; /* seed */
/* The number of seeds, for the test to know that it had some. */
size_t replay_seeds(size_t changes_of_each);
/* A copy of its own: a sanitizer then sees every step beyond. */
void replay(const uint8_t *bytes, size_t nbytes);
#endif

/* ---- changes ---- */

/* Numbers that look random, the same ones each time. */
void random_begin(unsigned number);
/* Below n; n 0: 0. */
size_t random_below(size_t n);
/* Every other time one that was accepted in the place of this one; how long it is. */
size_t start_over(uint8_t *bytes, size_t nbytes, size_t most);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t nbytes);
/* libFuzzer's; in a replay our own: a few bytes overwritten, inserted or cut out. */
size_t LLVMFuzzerMutate(uint8_t *bytes, size_t nbytes, size_t most);

#endif
