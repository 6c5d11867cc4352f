/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Storages become memory: one when it is asked for, or many at once. Who brings one claims it, so
 * that others wait for it and none is brought twice; names and data of others stay at hand
 * meanwhile.
 */
#ifndef BTH_LOAD_TRANSFER_BRING_H
#define BTH_LOAD_TRANSFER_BRING_H

#include "load/checkpoint.h"

typedef struct bth_bringing {
    const struct berth_config *config;
    const berth_params *call; /* for its progress; or NULL */
    bool at_once;    /* a fetch: bytes are to be there at the end, not when they are touched */
    bool with_crc32; /* CRCs are compared (Z10) */
    bool to_devices; /* also those that go there; else they are an error */
    /* Results, added up: */
    double transfer_seconds;
    double device_seconds, render_seconds, disk_seconds; /* of all workers */
    double crc32_seconds;                                /* of render_seconds */
    uint64_t device_nbytes;
    uint64_t moved_nbytes;
    uint64_t n_requests;
    uint64_t memory_nbytes;
} bth_bringing;

/* Roots, each once, in the file's order. All or nothing. Thread-safe. */
int bth_bring(berth_checkpoint *checkpoint, bth_bringing *how, const berth_storage *const *roots,
              size_t n, berth_error *error);

#endif
