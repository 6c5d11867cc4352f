/* SPDX-License-Identifier: BSD-3-Clause */
/* What must hold of a checkpoint that was read, when it is saved again, in any way. */
#ifndef TESTS_SUPPORT_FUZZ_SAVES_H
#define TESTS_SUPPORT_FUZZ_SAVES_H

#include "format/pickle/pickle.h"
#include "tests/support/fuzz/properties.h"

/*
 * What was read can be saved, or not, with a sentence; what was saved opens, with every check (but
 * for that of sparse indices), and is equal; and saving that again gives the same bytes, so that
 * nothing was lost on the way.
 */
void check_saves_again(berth_checkpoint *checkpoint, const char *options);

/* A compact value can be made of everything, and saved wherever the whole one can. */
void check_compact(berth_checkpoint *checkpoint, size_t nbytes);

#endif
