/* SPDX-License-Identifier: BSD-3-Clause */
/* The values of a checkpoint that are not tensors. */
#ifndef BERTH_TOOLS_NON_TENSOR_VALUES_H
#define BERTH_TOOLS_NON_TENSOR_VALUES_H

#include <berth/more.h>

/* Containers and objects that are in a tree more than once, but no tensors. */
typedef struct repeated_values repeated_values;
/* Finds them, without recursion. NULL: no memory. */
repeated_values *repeated_values_find(const berth_value *root);
void repeated_values_free(repeated_values *all);
/* Called by a later walk when it enters a value. Returns 0, or a status if memory is out. */
int repeated_values_note_path(repeated_values *all, const berth_walk *walk,
                              const berth_value *value);
/* The path that was noted for a value; NULL: none. */
const char *repeated_values_first_path(const repeated_values *all, const berth_value *value);
/* A place for the caller's own note on a repeated value, NULL at first; NULL: it is not repeated.
 */
void **repeated_values_note(const repeated_values *all, const berth_value *value);

/* Called with a later path to a container with items; `first` is its first path. */
typedef int (*alias_function)(void *context, const char *path, const char *first);
/*
 * Calls the function for all such paths under root, without recursion. Returns its last result, or
 * EXIT_TROUBLE after printing that memory is out.
 */
int walk_aliases(const berth_value *root, alias_function function, void *context);
/* A short text of a leaf, as Python would show it; allocated. */
char *leaf_text(const berth_value *value);
/* The same of at most max_nbytes of a text or bytes; "..." follows what was cut. */
char *leaf_text_start(const berth_value *value, size_t max_nbytes);

#endif
