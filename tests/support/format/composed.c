/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/format/composed.h"
#include "format/checksum.h"
#include "format/zip/zip.h"
#include "tests/support/support.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Zeros at the end of the file. */
static uint8_t *grow(composed *file, size_t nbytes)
{
    file->bytes = realloc(file->bytes, file->nbytes + nbytes + 1);
    if (!file->bytes)
        test_give_up("out of memory");
    memset(file->bytes + file->nbytes, 0, nbytes + 1);
    file->nbytes += nbytes;
    return file->bytes + file->nbytes - nbytes;
}

static void add_record(composed *file, bth_layout_entry *place, uint32_t *sum, const char *name,
                       const struct record *record, uint32_t alignment, const struct lie *lie)
{
    if (bth_layout_entry_compute(file->nbytes + lie->gap, strlen(name), record->nbytes, alignment,
                                 place) < 0)
        test_give_up("%s has no place", name);
    place->padding_nbytes += lie->more_padding;
    place->data_offset += lie->more_padding;
    place->next_offset += lie->more_padding;
    grow(file, place->next_offset - file->nbytes);
    bth_zip_write_local(place, name, file->bytes + place->header_offset);
    if (record->nbytes > 0)
        memcpy(file->bytes + place->data_offset, record->bytes, record->nbytes);
    bth_layout_entry told = *place;
    told.nbytes += lie->descriptor_lie;
    if (place->descriptor_nbytes > 0)
        bth_zip_write_descriptor(&told, *sum ^ lie->descriptor_crc,
                                 file->bytes + place->data_offset + place->nbytes);
}

void compose_archive(composed *file, const char *top, const struct record *records,
                     size_t n_records, uint32_t alignment, bool with_crc, const struct lie *lie)
{
    static const struct lie none;
    const struct lie *lies[COMPOSED_MAX_RECORDS];
    char name[256];
    size_t n_listed = 0;

    *file = (composed){.n_records = n_records};
    for (size_t i = 0; i < n_records; i++) {
        lies[i] = lie && strcmp(lie->record, records[i].name) == 0 ? lie : &none;
        file->sums[i] = with_crc ? bth_crc32(0, records[i].bytes, records[i].nbytes) : 0;
        (void)snprintf(name, sizeof name, "%s%s", top, records[i].name);
        add_record(file, &file->places[i], &file->sums[i], name, &records[i], alignment, lies[i]);
    }
    file->directory_at = file->nbytes;
    for (size_t i = 0; i < n_records; i++) {
        bth_layout_entry told = file->places[i];
        file->central_at[i] = file->nbytes;
        told.header_offset += (uint64_t)lies[i]->directory_shift;
        told.nbytes += lies[i]->directory_lie;
        (void)snprintf(name, sizeof name, "%s%s", top, records[i].name);
        if (!lies[i]->unlisted)
            bth_zip_write_central(&told, name, file->sums[i],
                                  grow(file, bth_layout_central_entry_nbytes(&told)));
        n_listed += !lies[i]->unlisted;
    }
    file->end_at = file->nbytes;
    bth_zip_write_end(n_listed, file->directory_at, file->end_at - file->directory_at,
                      grow(file, BTH_ZIP_END_NBYTES));
}
