/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A checkpoint as other tools write it again (Z13), by a recipe: any bytes. The first one selects
 * the checkpoint, each four that follow are a step: what is done, to which entry, and two numbers
 * that say how. A step that changes how the archive is written is honest: what is read must stay
 * what it was. A lie makes one fact contradict another.
 */
#ifndef TESTS_SUPPORT_FUZZ_REPACK_H
#define TESTS_SUPPORT_FUZZ_REPACK_H

#include "tests/support/fuzz/properties.h"

#define REPACKED_MAX_NBYTES ((size_t)1 << 17)
#define RECIPE_STEP_NBYTES 4
#define RECIPE_MAX_STEPS 24
#define RECIPE_ALL 192 /* from here on: all entries */

struct repacked {
    uint8_t bytes[REPACKED_MAX_NBYTES];
    size_t nbytes;
    const uint8_t *original; /* the checkpoint as PyTorch wrote it */
    size_t original_nbytes;
    bool is_honest;
};

/* False: it did not fit. */
bool repack(const uint8_t *recipe, size_t nbytes, struct repacked *file);

/* The number of checkpoints that the first byte selects from. */
size_t repack_n_checkpoints(void);

#endif
