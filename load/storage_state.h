/* SPDX-License-Identifier: BSD-3-Clause */
/* The life of a storage; loading many; bytes of tensors. */
#ifndef BTH_LOAD_STORAGE_STATE_H
#define BTH_LOAD_STORAGE_STATE_H

#include "load/checkpoint.h"

/* Sets the read hooks of all storages, so that they can be read and saved. Their offsets are set.
 */
int bth_storages_initialize_states(berth_checkpoint *checkpoint, berth_error *error);
void bth_storages_free_memory_and_map(berth_checkpoint *checkpoint);
/* Sets the address of the storage's bytes, in this machine's order and aligned for its dtype. */
int bth_storage_load_and_get_memory(berth_checkpoint *checkpoint, const berth_storage *storage,
                                    const uint8_t **memory, berth_error *error);
/* Copies a range of those bytes without loading the storage. Thread-safe. */
int bth_storage_read(berth_checkpoint *checkpoint, const berth_storage *storage, void *buffer,
                     size_t nbytes, uint64_t offset, berth_error *error);
/* Whether bth_storage_load_and_get_memory reads nothing: it is loaded, or will be mapped.
 * Thread-safe. */
bool bth_storage_is_loaded_or_will_be_mapped(berth_checkpoint *checkpoint,
                                             const berth_storage *storage);
/* The alignment of its address (T5). That of a complex number is that of its parts. */
size_t bth_storage_alignment(const berth_storage *storage);
int bth_storage_fail_ambiguous_swap(const berth_storage *storage, berth_error *error);
/* A copy. Its device is NULL if the storage is loaded to the host. Thread-safe. */
bth_storage_target bth_storage_get_target(berth_checkpoint *checkpoint, const berth_storage *root);
/* Under the lock: the I/O method for a storage that is not loaded yet. Respects T5. */
bth_choice bth_storage_choose(berth_checkpoint *checkpoint, const struct berth_config *config,
                              bth_conditions *conditions, const berth_storage *root);
/* Whether that method is map. Thread-safe. */
bool bth_storage_will_be_mapped(berth_checkpoint *checkpoint, const berth_storage *root);
/* Compares the CRC of the whole storage, once, before ranges of it are read. Thread-safe. */
int bth_storage_verify(berth_checkpoint *checkpoint, const berth_storage *root, berth_error *error);
/* The same for a transfer's ranges, which are whole storages and were read, if it has computed
 * CRCs. BERTH_E_CHECKSUM: one differs (Z10). */
int bth_ranges_check_crc32s(berth_checkpoint *checkpoint, const bth_transfer *transfer,
                            berth_error *error);
/* A bth_transfer_calls.name; its context is the checkpoint, the ranges' owners are roots. */
int bth_range_add_storage_to_error(void *context, const bth_range *range, berth_error *error);
/* Adds the statistics of a transfer; `stats` may be NULL. */
void bth_stats_add_transfer(berth_stats *stats, const bth_transfer *transfer);
/* Deflated storages (Z12): */
/* The record of a storage, or of its root, if it is deflated; else NULL. */
const bth_zip_entry *bth_storage_deflated_record(const berth_storage *storage);
/* BERTH_E_UNSUPPORTED: it is deflated, and `what` needs the bytes in the file as they are, or
 * load.inflate=off. `what` NULL: inflating it is enough. */
int bth_storage_check_may_inflate(const berth_checkpoint *checkpoint, const berth_storage *root,
                                  const char *what, berth_error *error);

/* ---- storages_load.c ---- */

typedef struct bth_load_request {
    const struct berth_config *config; /* load.check=data: CRCs are compared (Z10) */
    const berth_params *params;        /* progress and statistics; or NULL */
    bool at_once; /* true: returns when all bytes are on the host or on devices. False: sets host
                     addresses, mapped bytes are read when touched, devices are an error */
} bth_load_request;

/* Loads all of these roots, or none: each is listed once, in the file's order. Thread-safe. */
int bth_storages_load(berth_checkpoint *checkpoint, const bth_load_request *request,
                      const berth_storage *const *roots, size_t n, berth_error *error);

/* ---- tensor_bytes.c ---- */

/* berth_tensor_read with checked arguments. */
int bth_tensor_read(berth_checkpoint *checkpoint, const berth_tensor *tensor, int64_t first,
                    int64_t n, void *buffer, berth_error *error);
/* The hook by which save/ reads views of storages. */
int bth_storage_read_elements_for_save(const berth_storage *storage, const berth_tensor *tensor,
                                       int64_t first, int64_t n, void *buffer, berth_error *error);

#endif
