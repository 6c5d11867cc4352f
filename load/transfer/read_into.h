/* SPDX-License-Identifier: BSD-3-Clause */
/* A long range of a source to the caller's memory, by io.threads workers. */
#ifndef BTH_LOAD_TRANSFER_READ_INTO_H
#define BTH_LOAD_TRANSFER_READ_INTO_H

#include "load/transfer/transfer.h"

/* Whether workers are worth their start. */
bool bth_read_is_long(const struct berth_config *config, uint64_t nbytes);
/* Reads one range, past the page cache where bth_transfer_once chooses that. */
int bth_read_range(bth_reader *reader, const struct berth_config *config, bool through_cache,
                   uint8_t *buffer, uint64_t nbytes, uint64_t offset, berth_error *error);
/*
 * The same for bytes that are at `memory` already. is_mapped: F2: a file that was cut short since
 * it was mapped is an error, as far as that can be seen in time.
 */
int bth_copy_range(bth_reader *reader, const struct berth_config *config, const uint8_t *memory,
                   bool is_mapped, uint8_t *buffer, uint64_t nbytes, uint64_t offset,
                   berth_error *error);

#endif
