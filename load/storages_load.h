/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Loading storages: one when its memory is needed, or many at once. A thread claims those that it
 * loads: others wait for it, and none is loaded twice. Names and other storages stay usable
 * meanwhile.
 */
#ifndef BTH_LOAD_STORAGES_LOAD_H
#define BTH_LOAD_STORAGES_LOAD_H

#include "load/checkpoint.h"

typedef struct bth_load_request {
    const struct berth_config *config; /* load.check=data: CRCs are compared (Z10) */
    const berth_params *params;        /* progress and statistics; or NULL */
    bool at_once; /* all bytes are read before it returns, to the host or to devices. Else only host
                     addresses are needed: mapped bytes may come later, devices are an error */
} bth_load_request;

/* Roots, each once, in the file's order. All or nothing. Thread-safe. */
int bth_storages_load(berth_checkpoint *checkpoint, const bth_load_request *request,
                      const berth_storage *const *roots, size_t n, berth_error *error);
void bth_kept_region_free(bth_kept_region *kept); /* NULL: nothing */

/* ---- storage_state.c: one storage ---- */

/* Whether the file does not say what its elements are: bytes, or anything (v3). */
bool bth_storage_is_untyped(const berth_storage *storage);
/* What its address must be a multiple of (T5): a complex number is two of its halves. */
size_t bth_storage_alignment(const berth_storage *storage);
int bth_fail_ambiguous(const berth_storage *storage, berth_error *error);
/* Its memory, or NULL if it is not loaded. Thread-safe. */
const uint8_t *bth_storage_memory_or_null(berth_checkpoint *checkpoint, size_t index);
/* A copy; its device is NULL where the storage goes to the host. Thread-safe. */
bth_storage_target bth_storage_get_target(berth_checkpoint *checkpoint, const berth_storage *root);
/* With the lock held: the I/O method for a storage that is not loaded yet, with regard to T5. */
bth_choice bth_storage_choose(berth_checkpoint *checkpoint, const struct berth_config *config,
                              bth_conditions *conditions, const berth_storage *root);
/* Whether that method is map. Thread-safe. */
bool bth_storage_will_be_mapped(berth_checkpoint *checkpoint, const berth_storage *root);
/*
 * Compares the CRC of nbytes that were read with the directory, which has been read, and keeps the
 * verdict (Z10). BERTH_E_CHECKSUM: a bad one.
 */
int bth_storage_check_crc32(berth_checkpoint *checkpoint, const berth_storage *storage,
                            uint64_t nbytes, uint32_t crc32, berth_error *error);
/* The same for a transfer's ranges, which are whole storages, if it has computed CRCs. */
int bth_ranges_check_crc32s(berth_checkpoint *checkpoint, const bth_transfer *transfer,
                            berth_error *error);
/* A bth_transfer_calls.name; its context is the checkpoint, the ranges' owners are roots. */
int bth_range_name(void *context, const bth_range *range, berth_error *error);
/* Adds what a transfer did; `stats` may be NULL. */
void bth_stats_add_transfer(berth_stats *stats, const bth_transfer *transfer);

#endif
