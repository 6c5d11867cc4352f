/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The small records around the storages (FORMAT.md sections 1 and 7), read by their exact
 * spelling (Z11). `offset`: where the record's data lies, for errors.
 */
#ifndef BTH_FORMAT_ZIP_SMALL_RECORDS_H
#define BTH_FORMAT_ZIP_SMALL_RECORDS_H

#include "berth.h"

/* The records before the storages, in their order (FORMAT.md 1). */
enum { BTH_DATA_PKL, BTH_FORMAT_VERSION, BTH_STORAGE_ALIGNMENT, BTH_BYTEORDER, BTH_N_SMALL };
extern const char *const bth_small_names[BTH_N_SMALL];

/* `byteorder`: "little" or "big", nothing else. */
int bth_record_byteorder(const uint8_t *bytes, size_t nbytes, uint64_t offset, bool *little,
                         berth_error *error);
/* `.storage_alignment`: decimal, 1 to BTH_MAX_ALIGNMENT_READ. */
int bth_record_alignment(const uint8_t *bytes, size_t nbytes, uint64_t offset, uint32_t *alignment,
                         berth_error *error);
/* `.format_version`: decimal, 0 to 999999999. */
int bth_record_format_version(const uint8_t *bytes, size_t nbytes, uint64_t offset,
                              uint32_t *version, berth_error *error);

#endif
