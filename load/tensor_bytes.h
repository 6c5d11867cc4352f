/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef BTH_LOAD_TENSOR_BYTES_H
#define BTH_LOAD_TENSOR_BYTES_H

#include "load/checkpoint.h"

/* *offset: the byte of the first element in its storage. BERTH_E_UNSUPPORTED: it begins within one.
 */
int bth_tensor_find_first_byte(const berth_tensor *tensor, uint64_t *offset, berth_error *error);

/* Sets the hook for views of all storages, so that they can be saved. */
void bth_storages_set_read_elements(berth_checkpoint *checkpoint);
/* berth_tensor_read with checked arguments. */
int bth_tensor_read(berth_checkpoint *checkpoint, const berth_tensor *tensor, int64_t first,
                    int64_t n, void *buffer, berth_error *error);

#endif
