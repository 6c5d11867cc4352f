/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Storages are loaded: one when it is asked for, or many at once. A thread claims those that it
 * loads: others wait for it, and none is loaded twice. Names and data of others stay usable
 * meanwhile.
 */
#ifndef BTH_LOAD_STORAGES_LOAD_H
#define BTH_LOAD_STORAGES_LOAD_H

#include "load/checkpoint.h"

typedef struct bth_load_request {
    const struct berth_config *config;
    const berth_params *params; /* for its progress; or NULL */
    bool at_once;               /* bytes are there when it returns, not when they are touched */
    bool with_crc32;            /* CRCs are compared (Z10) */
    bool to_devices;            /* also storages that go there; else they are an error */
    /* Results, added up: */
    double transfer_seconds;
    double device_seconds, render_seconds, disk_seconds; /* of all workers */
    double crc32_seconds;                                /* of render_seconds */
    uint64_t device_nbytes;
    uint64_t moved_nbytes;
    uint64_t n_requests;
    uint64_t memory_nbytes;
} bth_load_request;

/* Roots, each once, in the file's order. All or nothing. Thread-safe. */
int bth_storages_load(berth_checkpoint *checkpoint, bth_load_request *request,
                      const berth_storage *const *roots, size_t n, berth_error *error);

/* With the lock held: the choice for a storage that is not loaded yet, T5 considered. */
bth_choice bth_storage_choose(berth_checkpoint *checkpoint, const struct berth_config *config,
                              bth_conditions *conditions, const berth_storage *root);

/* Of a root, as it is now; its device is NULL where it goes to the host. Thread-safe. */
bth_placed bth_storage_placed(berth_checkpoint *checkpoint, const berth_storage *root);
/* BERTH_E_ARGUMENT: its bytes have no address that the host can follow. */
int bth_fail_on_device(const bth_device_handle *device, berth_error *error);
int bth_fail_ambiguous(const berth_storage *storage, berth_error *error);
/* What its address must be a multiple of (T5): a complex number is two of its halves. */
size_t bth_storage_alignment(const berth_storage *storage);
/* Whether the class in the file leaves open what the elements are: bytes, or anything (v3). */
bool bth_storage_is_untyped(const berth_storage *storage);
/* Compares its CRC with that of the directory, which has been read, and keeps the verdict (Z10).
 * BERTH_E_CHECKSUM: a bad one. */
int bth_storage_check_crc32(berth_checkpoint *checkpoint, const berth_storage *storage,
                            uint32_t computed, berth_error *error);
void bth_kept_region_free(bth_kept_region *kept); /* NULL: nothing */

#endif
