/* SPDX-License-Identifier: BSD-3-Clause */
/* Which bytes of the file belong to which entry (Z7). */
#include <inttypes.h>

#include "base/error.h"
#include "format/layout.h"
#include "format/zip/zip_inner.h"

static size_t ranges_n_entries_and_folders(const bth_zip_directory *directory)
{
    return directory->n_entries + directory->n_folders;
}

static uint64_t ranges_header_offset(const bth_zip_directory *directory, size_t i)
{
    return directory->entries[directory->by_offset[i]].header_offset;
}

static bool ranges_is_ordered(const bth_zip_directory *directory)
{
    for (size_t i = 1; i < ranges_n_entries_and_folders(directory); i++)
        if (ranges_header_offset(directory, i - 1) > ranges_header_offset(directory, i))
            return false;
    return true;
}

static void ranges_swap(bth_zip_directory *directory, size_t i, size_t j)
{
    size_t swapped = directory->by_offset[i];

    directory->by_offset[i] = directory->by_offset[j];
    directory->by_offset[j] = swapped;
}

/* A heap sort: no order of entries makes it slow. Entries at the same offset are refused anyway. */
static void ranges_sort(bth_zip_directory *directory)
{
    size_t end = ranges_n_entries_and_folders(directory);

    for (size_t begin = end / 2; end > 1;) {
        if (begin > 0)
            begin--;
        else
            ranges_swap(directory, 0, --end);
        for (size_t root = begin, child; (child = 2 * root + 1) < end; root = child) {
            if (child + 1 < end &&
                ranges_header_offset(directory, child) < ranges_header_offset(directory, child + 1))
                child++;
            if (ranges_header_offset(directory, root) >= ranges_header_offset(directory, child))
                break;
            ranges_swap(directory, root, child);
        }
    }
}

int bth_zip_order_and_check_overlap(bth_zip_directory *directory, uint64_t directory_offset,
                                    berth_error *error)
{
    size_t n = ranges_n_entries_and_folders(directory);

    for (size_t i = 0; i < n; i++)
        directory->by_offset[i] = i;
    if (!ranges_is_ordered(directory))
        ranges_sort(directory);
    for (size_t i = 0; i < n; i++) {
        bth_zip_entry *entry = &directory->entries[directory->by_offset[i]];
        entry->next_offset = i + 1 < n ? ranges_header_offset(directory, i + 1) : directory_offset;
        uint64_t needed = BTH_ZIP_LOCAL_NBYTES + entry->name_nbytes + entry->compressed_nbytes;
        if (needed > entry->next_offset - entry->header_offset)
            return bth_fail(error, BERTH_E_ARCHIVE, entry->record, entry->header_offset,
                            "header, name and data need %" PRIu64
                            " bytes, but the next entry begins at byte %" PRIu64,
                            needed, entry->next_offset);
    }
    return BERTH_OK;
}

int bth_zip_check_no_gaps(const bth_zip_directory *directory, const bth_zip_end *end, size_t first,
                          uint64_t at, berth_error *error)
{
    for (size_t i = first; i < ranges_n_entries_and_folders(directory); i++) {
        const bth_zip_entry *entry = &directory->entries[directory->by_offset[i]];
        if (entry->header_offset != at)
            return bth_fail(error, BERTH_E_ARCHIVE, entry->record, entry->header_offset,
                            i > 0 ? "the entry before it ends at byte %" PRIu64
                                  : "the first entry, but the archive begins at byte %" PRIu64,
                            at);
        if (bth_zip_find_entry_end(entry, &at, error) < 0)
            return error->code;
    }
    if (at != end->directory_offset)
        return bth_fail(error, BERTH_E_ARCHIVE, NULL, end->directory_offset,
                        "the directory begins here, but the last entry ends at byte %" PRIu64, at);
    return BERTH_OK;
}
