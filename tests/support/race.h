/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the programs of tests/race share. They have a main of their own, because the thread
 * sanitizer does not run under Criterion.
 */
#ifndef TESTS_SUPPORT_RACE_H
#define TESTS_SUPPORT_RACE_H

#include "tests/support/support.h"

/* Ends the program with this sentence, unless the condition holds. */
void expect(bool condition, const char *what);
/* Runs each role in a thread of its own, with the same context, and waits for all. */
void run_threads(size_t n, void *(*const roles[])(void *), void *context);

/*
 * A dict of float tensors t0, t1 …: tensor i has the `n_elements` from elements + i * stride on.
 * The caller frees the tree.
 */
berth_tree *float_tensors(size_t n, const float *elements, size_t n_elements, size_t stride,
                          berth_value **root);
/* The same, saved. */
void save_float_tensors(const char *path, size_t n, const float *elements, size_t n_elements,
                        size_t stride);
berth_checkpoint *open_with_options(const char *path, const char *options);

#endif
