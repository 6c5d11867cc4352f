/* SPDX-License-Identifier: BSD-3-Clause */
/* Which bytes of the file belong to which entry (Z7). */
#include <inttypes.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/layout.h"
#include "format/zip/zip_inner.h"

static size_t ranges_n_all(const bth_zip_directory *directory)
{
    return directory->n_entries + directory->n_folders;
}

static uint64_t header_of(const bth_zip_directory *directory, const size_t *order, size_t i)
{
    return directory->entries[order[i]].header_offset;
}

static bool ranges_is_ordered(const bth_zip_directory *directory)
{
    for (size_t i = 1; i < ranges_n_all(directory); i++)
        if (header_of(directory, directory->by_offset, i - 1) >
            header_of(directory, directory->by_offset, i))
            return false;
    return true;
}

/* Merges from[begin, middle) and from[middle, end) to the same places of `to`. */
static void ranges_merge(const bth_zip_directory *directory, const size_t *from, size_t *to,
                         size_t begin, size_t middle, size_t end)
{
    size_t left = begin, right = middle;

    for (size_t i = begin; i < end; i++) {
        bool take_left = left < middle && (right == end || header_of(directory, from, left) <=
                                                               header_of(directory, from, right));
        to[i] = take_left ? from[left++] : from[right++];
    }
}

/* Bottom-up: no order of entries makes it deep or slow. */
static int ranges_sort(bth_zip_directory *directory, berth_error *error)
{
    size_t n = ranges_n_all(directory);
    size_t *other = bth_allocate(n * sizeof *other);

    if (!other)
        return bth_fail_memory(error, n * sizeof *other);
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t begin = 0; begin < n; begin += 2 * width) {
            size_t middle = width < n - begin ? begin + width : n;
            size_t end = 2 * width < n - begin ? begin + 2 * width : n;
            ranges_merge(directory, directory->by_offset, other, begin, middle, end);
        }
        size_t *sorted = other;
        other = directory->by_offset;
        directory->by_offset = sorted;
    }
    bth_release(other);
    return BERTH_OK;
}

int bth_zip_order_entries(bth_zip_directory *directory, uint64_t directory_offset,
                          berth_error *error)
{
    size_t n = ranges_n_all(directory);

    for (size_t i = 0; i < n; i++)
        directory->by_offset[i] = i;
    if (!ranges_is_ordered(directory) && ranges_sort(directory, error) < 0)
        return error->code;
    for (size_t i = 0; i < n; i++) {
        bth_zip_entry *entry = &directory->entries[directory->by_offset[i]];
        entry->next_offset =
            i + 1 < n ? header_of(directory, directory->by_offset, i + 1) : directory_offset;
        uint64_t least = BTH_ZIP_LOCAL_NBYTES + entry->name_nbytes + entry->compressed_nbytes;
        if (least > entry->next_offset - entry->header_offset)
            return bth_fail(error, BERTH_E_ARCHIVE, entry->record, entry->header_offset,
                            "header, name and data need %" PRIu64
                            " bytes, but the next entry begins at byte %" PRIu64,
                            least, entry->next_offset);
    }
    return BERTH_OK;
}

int bth_zip_check_ranges(const bth_zip_directory *directory, const bth_zip_end *end, size_t first,
                         uint64_t at, berth_error *error)
{
    for (size_t i = first; i < ranges_n_all(directory); i++) {
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
