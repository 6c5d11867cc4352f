/* SPDX-License-Identifier: BSD-3-Clause */
/* Verification: the records of a file against its checksums and headers; indices of sparse tensors.
 */
#ifndef BTH_LOAD_VERIFY_H
#define BTH_LOAD_VERIFY_H

#include "load/checkpoint.h"

/* Whether the error describes the file's content. If not, verification itself failed. */
bool bth_verify_is_verdict(const berth_error *error);

typedef struct bth_verify_request {
    bth_scan scan;
    bool only_mapped;             /* skips storages that a load reads, so that they are read once */
    berth_record_function report; /* or NULL */
    void *context;
    berth_verdict verdict; /* zeros */
} bth_verify_request;

/*
 * Reads all records. Compares their CRCs, and the headers and descriptors that were not compared
 * before. In the legacy format: reads all storages. Reports all bad records; the error is the first
 * of them in the file's order. The directory is parsed. Not thread-safe.
 */
int bth_verify_checkpoint(berth_checkpoint *checkpoint, bth_verify_request *request,
                          berth_error *error);
/* The same for the records of a checkpoint, or (NULL) of an archive that is none; its local headers
 * were read. `container` NULL: the file is no zip. */
int bth_verify_records(bth_reader *reader, const struct berth_config *config,
                       bth_container *container, berth_checkpoint *checkpoint,
                       bth_verify_request *request, berth_error *error);

/* archive.c: opens an archive, verifies it, closes it. BERTH_E_NOT_CHECKPOINT: it is none. */
int bth_archive_verify(const berth_source *source, const struct berth_config *config,
                       const berth_params *params, bth_verify_request *request, berth_error *error);

/*
 * sparse_indices.c, T6: berth_tensor_check_indices of every sparse tensor. With load.inflate=off
 * those whose indices are deflated are left out.
 */
int bth_checkpoint_check_all_indices(berth_checkpoint *checkpoint, const berth_params *params,
                                     berth_error *error);

#endif
