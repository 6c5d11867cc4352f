/* SPDX-License-Identifier: BSD-3-Clause */
/* The patches of this thread: values that go with the patch that made them. */
#ifndef BTH_CONFIG_PATCH_H
#define BTH_CONFIG_PATCH_H

#include "config/layer.h"

/* All values that the patches of this thread set; NULL: it has none. */
const bth_layer *bth_patch_values(void);

/* Begins a patch with these values. */
int bth_patch_begin(const bth_layer *values, berth_error *error);
/* False: there is no patch. */
bool bth_patch_end(void);

/*
 * Changes an option in the patch that has it, until that patch ends. False: no patch of this thread
 * has it.
 */
bool bth_patch_set_value(const bth_option_row *row, int64_t value);

/*
 * Scopes of this thread whose assignments were refused: as long as there is one, every operation
 * fails with the first of these errors.
 */
void bth_patch_begin_refused_scope(const berth_error *error);
void bth_patch_end_refused_scope(void);
void bth_patch_check_scopes(berth_error *error);

#endif
