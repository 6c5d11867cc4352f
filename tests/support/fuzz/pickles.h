/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Pickles: made of what the reader knows, and changed by whole opcodes, so that a change is often
 * a pickle still. mutate_pickle knows opcodes and globals by the reader's own tables.
 */
#ifndef TESTS_SUPPORT_FUZZ_PICKLES_H
#define TESTS_SUPPORT_FUZZ_PICKLES_H

#include "tests/support/fuzz/usual.h"

void say_tensor(struct fragment *out);

/* Something to put into a pickle at any place. */
void say_anything(struct fragment *out);

/* ---- changed ---- */

/*
 * A third are new ones, changed a little: what a fuzzer keeps are changes of changes, of which
 * hardly any is accepted still, so that they are refused before they come to where it matters.
 */
size_t mutate_pickle(uint8_t *bytes, size_t nbytes, size_t most, unsigned number);

/* ---- seeds ---- */

/* The pickle of a value with a bit of everything. */
void seed_written(void);

/* Of one class, and of several: the last one is of an untyped storage. */
void seed_usual(void);

/* One of each call, several times, as its arguments differ. */
void seed_calls(void);

/* What doubles, is deep, or holds itself. */
void seed_bombs(size_t depth);

#endif
