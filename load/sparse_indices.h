/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef BTH_LOAD_SPARSE_INDICES_H
#define BTH_LOAD_SPARSE_INDICES_H

#include "load/checkpoint.h"

/*
 * T6: berth_tensor_check_indices of every sparse tensor. With load.inflate=off those whose indices
 * are deflated are left out.
 */
int bth_checkpoint_check_all_indices(berth_checkpoint *checkpoint, const berth_params *params,
                                     berth_error *error);

#endif
