/* SPDX-License-Identifier: BSD-3-Clause */
/* The tensors and storages that a berth_selection selects. */
#ifndef BTH_LOAD_SELECTION_H
#define BTH_LOAD_SELECTION_H

#include "load/checkpoint.h"

/* Called with each tensor. An error ends the visit. */
typedef int (*bth_visit)(void *context, const berth_tensor *tensor, berth_error *error);

/*
 * Visits selected tensors that have bytes: those whose name fits the pattern, in the list's order,
 * and then selection->tensors, which are checked (T2). A tensor can be visited twice.
 * BERTH_E_NOT_FOUND: no name fits the pattern.
 */
int bth_selection_visit(berth_checkpoint *checkpoint, const berth_selection *selection,
                        bth_visit visit, void *context, berth_error *error);

/*
 * The storages of these tensors; all storages if everything is selected. Only roots, each once, in
 * the file's order. The caller frees *storages; it is NULL if there are none.
 */
int bth_selection_list_storages(berth_checkpoint *checkpoint, const berth_selection *selection,
                                const berth_storage ***storages, size_t *n, berth_error *error);

#endif
