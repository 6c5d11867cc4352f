/* SPDX-License-Identifier: BSD-3-Clause */
/* Long ranges into the caller's memory, by io.threads workers. */
#ifndef BTH_LOAD_TRANSFER_RANGE_H
#define BTH_LOAD_TRANSFER_RANGE_H

#include "load/checkpoint.h"

/* Whether workers are worth their begin. */
bool bth_range_is_long(const struct berth_config *config, uint64_t nbytes);

/*
 * Bytes of the source from `offset` on: past the page cache, through buffers of io.memory_nbytes at
 * most, where load.method asks for that, or where auto finds them on a disk and not in memory; else
 * straight into `buffer`. through_cache: auto leaves them in the page cache, where others bring
 * them to. An error names the byte.
 */
int bth_range_read(bth_reader *reader, const struct berth_config *config, bool through_cache,
                   uint8_t *buffer, uint64_t nbytes, uint64_t offset, berth_error *error);

/*
 * Bytes of a checkpoint from `memory`, which they have become. F2: of a file that was cut short
 * since it was mapped it is an error, as far as that can be seen in time.
 */
int bth_range_copy(berth_checkpoint *checkpoint, const uint8_t *memory, uint8_t *buffer,
                   uint64_t nbytes, uint64_t offset, berth_error *error);

/*
 * Makes mapped bytes present, those of the file from `offset` on. Where the kernel cannot, they
 * come as they are touched; a page behind the file's end is an error here, not a signal (F2).
 */
int bth_make_present(const bth_reader *reader, const uint8_t *memory, uint64_t nbytes,
                     uint64_t offset, berth_error *error);

#endif
