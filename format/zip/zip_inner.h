/* SPDX-License-Identifier: BSD-3-Clause */
/* Private to the files of the zip reader. */
#ifndef BTH_FORMAT_ZIP_ZIP_INNER_H
#define BTH_FORMAT_ZIP_ZIP_INNER_H

#include "format/bytes.h"
#include "format/zip/zip.h"

/* ---- zip_local.c ---- */

typedef struct bth_zip_extra {
    uint16_t id;
    uint16_t nbytes;
    const uint8_t *bytes;
} bth_zip_extra;

/* The header that has extra fields: its name, and what an error says of it. */
typedef struct bth_zip_header {
    const uint8_t *name;
    size_t name_nbytes;
    const char *record; /* NULL: not known yet */
    uint64_t at;        /* the byte of the file where it begins */
} bth_zip_header;

/*
 * Reads the next extra field: 1; 0: there is none; or an error: it is malformed, or gives the entry
 * another name (Z4).
 */
int bth_zip_next_extra(bth_cursor *cursor, bth_zip_extra *extra, const bth_zip_header *header,
                       berth_error *error);

/* ---- zip_local.c ---- */

/* Whether sizes and CRC follow the data (bit 3). */
static inline bool bth_zip_has_descriptor(uint16_t flags)
{
    return (flags & BTH_ZIP_FLAG_DESCRIPTOR) != 0;
}

/*
 * The end of an entry's data and descriptor, from its data_offset and next_offset. Fails if there
 * is no room for a descriptor (Z6) or the data reach into the next entry (Z7).
 */
int bth_zip_find_entry_end(const bth_zip_entry *entry, uint64_t *end_offset, berth_error *error);

/* ---- zip_names.c ---- */

/* Whether a name, which is not empty, ends with '/': it is that of a folder. */
bool bth_zip_name_is_folder(const uint8_t *name, size_t name_nbytes);

/* Builds directory->index over the records; two of one name are refused (Z8). */
int bth_zip_index_names(bth_zip_directory *directory, berth_error *error);

#endif
