/* SPDX-License-Identifier: BSD-3-Clause */
/* Compares the records of a file with its checksums and headers. */
#ifndef BTH_LOAD_VERIFY_RECORDS_H
#define BTH_LOAD_VERIFY_RECORDS_H

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
/* The same for an archive that is not a checkpoint; its local headers were read. */
int bth_verify_archive(bth_reader *reader, const struct berth_config *config,
                       bth_container *container, bth_verify_request *request, berth_error *error);

#endif
