/* SPDX-License-Identifier: BSD-3-Clause */
/* Loads storages, one when its memory is needed, or many at once. */
#ifndef BTH_LOAD_STORAGES_LOAD_H
#define BTH_LOAD_STORAGES_LOAD_H

#include "load/checkpoint.h"

typedef struct bth_load_request {
    const struct berth_config *config; /* load.check=data: CRCs are compared (Z10) */
    const berth_params *params;        /* progress and statistics; or NULL */
    bool at_once; /* true: returns when all bytes are on the host or on devices. False: sets host
                     addresses, mapped bytes are read when touched, devices are an error */
} bth_load_request;

/* Loads all of these roots, or none: each is listed once, in the file's order. Thread-safe. */
int bth_storages_load(berth_checkpoint *checkpoint, const bth_load_request *request,
                      const berth_storage *const *roots, size_t n, berth_error *error);
void bth_kept_region_free(bth_kept_region *kept); /* NULL: nothing */

#endif
