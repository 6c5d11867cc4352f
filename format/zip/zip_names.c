/* SPDX-License-Identifier: BSD-3-Clause */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/seeded_hash.h"
#include "base/utf8.h"
#include "format/zip/zip.h"

/* ---- refused names ---- */

#define NAME_FAIL(...) bth_fail(error, BERTH_E_ARCHIVE, NULL, at, __VA_ARGS__)

/* The length of the run of printable ASCII without backslash, counted eight at a time. */
static size_t name_count_plain_characters(const uint8_t *name, size_t nbytes)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), tops = ones * 0x80;
    uint64_t word, backslash, delete;
    if (nbytes < sizeof(word))
        return name[0] >= 0x20 && name[0] < 0x7F && name[0] != '\\';
    memcpy(&word, name, sizeof(word));
    /* A byte below x borrows in word - ones * x; a byte y is 0 in word ^ ones * y. */
    backslash = word ^ ones * '\\';
    delete = word ^ ones * 0x7F;
    uint64_t odd = word | ((word - ones * 0x20) & ~word) | ((backslash - ones) & ~backslash) |
                   ((delete - ones) & ~delete);
    return odd & tops ? name[0] >= 0x20 && name[0] < 0x7F && name[0] != '\\' : sizeof(word);
}

int bth_zip_check_name(const uint8_t *name, size_t name_nbytes, bool marked_utf8,
                       bool with_top_folder, uint64_t at, berth_error *error)
{
    const char *text = (const char *)name;
    size_t length;
    if (name_nbytes == 0)
        return NAME_FAIL("an empty name");
    /* Bytes behind the top folder must be ASCII, or marked as UTF-8. */
    const uint8_t *slash = memchr(name, '/', name_nbytes);
    size_t needs_mark_from = marked_utf8 ? name_nbytes : slash ? (size_t)(slash - name) : 0;
    for (size_t i = 0; i < name_nbytes; i += length) {
        length = name_count_plain_characters(name + i, name_nbytes - i);
        if (length > 0)
            continue;
        length = bth_utf8_sequence_nbytes(name + i, name_nbytes - i);
        if (length == 0)
            return NAME_FAIL("a name that is not UTF-8: 0x%02x at its byte %zu", name[i], i);
        if (bth_utf8_is_control(name + i))
            return NAME_FAIL("a name with a control character: 0x%02x at its byte %zu",
                             name[i + length - 1], i);
        if (length > 1 && i >= needs_mark_from)
            return NAME_FAIL("a name that is not ASCII and not marked as UTF-8 (flag bit 11): "
                             "0x%02x at its byte %zu",
                             name[i], i);
        if (name[i] == '\\')
            return NAME_FAIL("a name with a backslash: '%.*s'", (int)name_nbytes, text);
    }
    if (name[0] == '/')
        return NAME_FAIL("an absolute name: '%.*s'", (int)name_nbytes, text);
    for (size_t begin = 0; begin < name_nbytes; begin += length + 1) {
        const uint8_t *part = name + begin;
        slash = memchr(part, '/', name_nbytes - begin);
        length = slash ? (size_t)(slash - part) : name_nbytes - begin;
        /* Readers resolve an empty component, "." and ".." differently. */
        if (length == 0 || (length == 1 && part[0] == '.') ||
            (length == 2 && part[0] == '.' && part[1] == '.'))
            return NAME_FAIL("a name with a part '%.*s': '%.*s'", (int)length, text + begin,
                             (int)name_nbytes, text);
        /* The top folder may begin with a drive, but not be one: "c:/x" is absolute. */
        uint8_t letter = length > 1 && part[1] == ':' ? (uint8_t)(part[0] | 0x20) : 0;
        if (letter >= 'a' && letter <= 'z' && (!with_top_folder || begin > 0 || length == 2))
            return NAME_FAIL("a name with a drive letter: '%.*s'", (int)name_nbytes, text);
    }
    return BERTH_OK;
}

/* ---- finding a name ---- */

/* Open addressing: slot 0 is free, else entry number + 1. */
typedef struct name_index {
    uint64_t seed;
    size_t mask;
    size_t slots[];
} name_index;

/* The slot of the name, in any case, or the free slot for it. */
static size_t *name_index_find_slot(const bth_zip_directory *directory, name_index *index,
                                    const char *record, size_t record_nbytes, uint32_t hash)
{
    size_t at = hash & index->mask;
    size_t skip_nbytes = directory->archive_nbytes + (size_t)1;
    while (index->slots[at]) {
        const bth_zip_entry *entry = &directory->entries[index->slots[at] - 1];
        if (entry->name_hash == hash && entry->name_nbytes - skip_nbytes == record_nbytes &&
            bth_same_in_any_case(entry->record, record, record_nbytes))
            break;
        at = (at + 1) & index->mask;
    }
    return &index->slots[at];
}

/* Builds the index with a seed that the maker of a file cannot know: it comes from addresses. */
int bth_zip_index_names(bth_zip_directory *directory, berth_error *error)
{
    size_t n_slots = 8;
    while (n_slots / 2 < directory->n_entries)
        n_slots *= 2;
    size_t nbytes = sizeof(name_index) + n_slots * sizeof(size_t);
    name_index *index = bth_allocate_zeroed(nbytes);
    directory->index = index;
    if (!index)
        return bth_fail_memory(error, nbytes);
    index->mask = n_slots - 1;
    index->seed = (uint64_t)(uintptr_t)index * UINT64_C(0x9e3779b97f4a7c15) ^
                  (uint64_t)(uintptr_t)&nbytes * UINT64_C(0xd6e8feb86659fd93);
    for (size_t i = 0; i < directory->n_entries; i++) {
        bth_zip_entry *entry = &directory->entries[i];
        size_t record_nbytes = entry->name_nbytes - directory->archive_nbytes - 1;
        entry->name_hash = bth_hash_any_case(index->seed, entry->record, record_nbytes);
        size_t *slot =
            name_index_find_slot(directory, index, entry->record, record_nbytes, entry->name_hash);
        const bth_zip_entry *first = *slot ? &directory->entries[*slot - 1] : NULL;
        if (first && strcmp(entry->record, first->record) == 0)
            return bth_fail(error, BERTH_E_ARCHIVE, entry->record, entry->header_offset,
                            "a second record of this name; the first one is at byte %" PRIu64,
                            first->header_offset);
        if (first)
            return bth_fail(error, BERTH_E_ARCHIVE, entry->record, entry->header_offset,
                            "its name differs from '%s' at byte %" PRIu64
                            " only in case, which PyTorch ignores",
                            first->record, first->header_offset);
        *slot = i + 1;
    }
    /* Z8: PyTorch ignores case when it looks for a record, so `Byteorder` is refused instead of
     * being an unknown record. */
    for (int which = 0; which < BTH_N_SMALL; which++) {
        const char *record = bth_small_names[which];
        const bth_zip_entry *entry = bth_zip_find_any_case(directory, record, strlen(record));
        if (entry && strcmp(entry->record, record) != 0)
            return bth_fail(error, BERTH_E_ARCHIVE, entry->record, entry->header_offset,
                            "PyTorch, which ignores case, reads it as '%s'", record);
    }
    return BERTH_OK;
}

bth_zip_entry *bth_zip_find_any_case(const bth_zip_directory *directory, const char *record,
                                     size_t record_nbytes)
{
    name_index *index = directory->index;
    if (!index)
        return NULL;
    uint32_t hash = bth_hash_any_case(index->seed, record, record_nbytes);
    size_t *slot = name_index_find_slot(directory, index, record, record_nbytes, hash);
    return *slot ? &directory->entries[*slot - 1] : NULL;
}

bth_zip_entry *bth_zip_find(const bth_zip_directory *directory, const char *record,
                            size_t record_nbytes)
{
    bth_zip_entry *entry = bth_zip_find_any_case(directory, record, record_nbytes);
    return entry && memcmp(entry->record, record, record_nbytes) == 0 ? entry : NULL;
}
