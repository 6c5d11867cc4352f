/* SPDX-License-Identifier: BSD-3-Clause */
/* Which tensors and storages a berth_selection means. */
#ifndef BTH_LOAD_SELECTION_H
#define BTH_LOAD_SELECTION_H

#include "load/checkpoint.h"

/* Gets one name of the list, and its tensor, or NULL if that has no bytes. An error ends the visit.
 */
typedef int (*bth_name_visit)(void *context, const berth_tensor *tensor, const char *name,
                              berth_error *error);
/* with_text: else the visit gets NULL for the name. */
int bth_names_visit(berth_checkpoint *checkpoint, bool with_text, bth_name_visit visit,
                    void *context, berth_error *error);

/* Gets one tensor. An error ends the visit. */
typedef int (*bth_visit)(void *context, const berth_tensor *tensor, berth_error *error);

/*
 * Visits the tensors that have bytes: all of the list (no pattern, no tensors), or those whose name
 * fits the pattern, in the list's order, then those named one by one, which are checked (T2). One
 * may come twice. BERTH_E_NOT_FOUND: no name fits the pattern.
 */
int bth_selection_visit(berth_checkpoint *checkpoint, const berth_selection *selection,
                        bth_visit visit, void *context, berth_error *error);

/*
 * The storages of these tensors, or, where everything is meant, all there are: roots of views, each
 * once, in the file's order. *storages is the caller's to release, NULL if there are none.
 */
int bth_selection_storages(berth_checkpoint *checkpoint, const berth_selection *selection,
                           const berth_storage ***storages, size_t *n, berth_error *error);

/* Whether a name fits a glob. */
bool bth_name_fits(const char *pattern, const char *name);

#endif
