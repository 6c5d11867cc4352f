/* SPDX-License-Identifier: BSD-3-Clause */
/* What a caller passes is checked; names, and errors that carry them. */
#ifndef BTH_LOAD_ERRORS_WITH_NAMES_H
#define BTH_LOAD_ERRORS_WITH_NAMES_H

#include "load/checkpoint.h"

/*
 * Checks that the storage belongs to this checkpoint: only then its context is a bth_storage_state.
 */
int bth_checkpoint_check_caller_storage(const berth_checkpoint *checkpoint,
                                        const berth_storage *storage, berth_error *error);
/*
 * T2: the caller may have made the tensor, as a part of a tensor of the file. It gets the same
 * checks as those. BERTH_E_ARGUMENT: of another checkpoint, or a meta tensor.
 */
int bth_checkpoint_check_caller_tensor(const berth_checkpoint *checkpoint,
                                       const berth_tensor *tensor, berth_error *error);
/* The same. *offset: the byte of its first element in the storage. BERTH_E_UNSUPPORTED: it begins
 * within one. */
int bth_checkpoint_find_caller_tensor(const berth_checkpoint *checkpoint,
                                      const berth_tensor *tensor, uint64_t *offset,
                                      berth_error *error);

/* The names of all tensors, made at the first call. NULL after an error. */
const bth_names *bth_checkpoint_names(const berth_checkpoint *checkpoint, berth_error *error);
/* The same with the lock held. */
const bth_names *bth_checkpoint_names_locked(berth_checkpoint *checkpoint, berth_error *error);
/*
 * Writes the name of the tensor; if it is NULL or has none, of the first that begins at byte
 * `offset` of the storage (BERTH_NO_OFFSET: at any byte). False: there is none. Not under the lock:
 * it is slow.
 */
bool bth_tensor_find_name(const berth_checkpoint *checkpoint, const berth_tensor *tensor,
                          const berth_storage *storage, uint64_t offset, char *name,
                          size_t name_nbytes);
/*
 * Adds the storage's record (in a legacy file: its key) to the error that is set, and the name of a
 * tensor that views the storage. Returns the code. Not under the lock.
 */
int bth_error_in_storage(const berth_checkpoint *checkpoint, const berth_storage *storage,
                         berth_error *error);
/*
 * Adds the storage's record and the tensor's name to an error that names no record yet. Nothing if
 * there is no error, or if the tensor is NULL or of another checkpoint. Returns the code. Not under
 * the lock.
 */
int bth_error_in_tensor(const berth_checkpoint *checkpoint, const berth_tensor *tensor,
                        berth_error *error);
/*
 * Public functions end with it: adds the file's name to an error, if one is set. Returns the code.
 * The checkpoint may be NULL.
 */
int bth_error_in_checkpoint(const berth_checkpoint *checkpoint, berth_error *error);

#endif
