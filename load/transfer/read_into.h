/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranges of a source, many or a long one, to the caller's memory, by io.threads workers. */
#ifndef BTH_LOAD_TRANSFER_READ_INTO_H
#define BTH_LOAD_TRANSFER_READ_INTO_H

#include "load/transfer/transfer.h"

/* Whether workers are worth their start. */
bool bth_read_is_long(const struct berth_config *config, uint64_t nbytes);

/*
 * The ranges of the transfer go to their `memory`. Direct reads go past the page cache: to the
 * caller's memory where it is aligned like the file, else through buffers of io.memory_nbytes at
 * most. The caller of this function sets reader, config, params, calls, ranges and with_crc32.
 * through_cache: load.method=auto leaves the bytes in the page cache, for those who load them next.
 */
int bth_read_into(bth_transfer *transfer, bth_reader *reader, bool through_cache,
                  berth_error *error);
/* The same for one range. */
int bth_read_range(bth_reader *reader, const struct berth_config *config, bool through_cache,
                   uint8_t *buffer, uint64_t nbytes, uint64_t offset, berth_error *error);
/*
 * Bytes of the source that are at `memory` already. is_mapped: F2: a file that was cut short since
 * it was mapped is an error, as far as that can be seen in time.
 */
int bth_copy_range(bth_reader *reader, const struct berth_config *config, const uint8_t *memory,
                   bool is_mapped, uint8_t *buffer, uint64_t nbytes, uint64_t offset,
                   berth_error *error);

#endif
