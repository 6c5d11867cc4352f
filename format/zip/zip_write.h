/* SPDX-License-Identifier: BSD-3-Clause */
/* Renders the bytes of a placed record's headers, as PyTorch writes them (FORMAT.md 2, 3). */
#ifndef BTH_FORMAT_ZIP_ZIP_WRITE_H
#define BTH_FORMAT_ZIP_ZIP_WRITE_H

#include "format/layout.h"

/* Local header, name, extra fields: writes data_offset - header_offset bytes. */
void bth_zip_write_local(const bth_place *place, const char *name, uint8_t *out);
/* Data descriptor: writes place->descriptor_nbytes bytes. */
void bth_zip_write_descriptor(const bth_place *place, uint32_t crc32, uint8_t *out);
/* Central entry: writes bth_layout_central_nbytes(place) bytes. */
void bth_zip_write_central(const bth_place *place, const char *name, uint32_t crc32, uint8_t *out);
/* ZIP64 end record, locator, end record: writes BTH_ZIP_END_NBYTES bytes. */
void bth_zip_write_end(uint64_t n_entries, uint64_t directory_offset, uint64_t directory_nbytes,
                       uint8_t *out);

#endif
