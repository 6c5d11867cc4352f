/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The file against the layout: offsets are computed once (FORMAT.md 2, 5), and compared with what
 * the headers and the directory say.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/layout.h"
#include "load/open/open_steps.h"

typedef unsigned long long ull;

/* ---- the layout's walk over the records that it knows ---- */

typedef struct layout_walk {
    bth_contents *contents;
    uint32_t alignment;
    size_t archive_nbytes;
    const bth_head_cache *cache; /* where the head, or the file's size, is needed */
    const char *before;          /* the record before this one, "" for the first */
    size_t before_storage;       /* index + 1 of the storage before this one; 0: `before` counts */
    size_t next;                 /* for bth_container_find_next */
    const bth_zip_entry *entry;  /* compared last */
    size_t *storages;            /* bth_storages_of_entries */
    bth_layout_entry place;
} layout_walk;

static layout_walk walk_begin(const bth_contents *contents, uint64_t cursor)
{
    return (layout_walk){.contents = (bth_contents *)contents,
                         .alignment = bth_layout_alignment(contents),
                         .archive_nbytes = strlen(contents->archive),
                         .before = "",
                         .place = {.next_offset = cursor}};
}

/* Places the next record. */
static int walk_step(layout_walk *walk, const char *record, size_t record_nbytes, uint64_t nbytes,
                     berth_error *error)
{
    size_t name_nbytes = walk->archive_nbytes + 1 + record_nbytes;
    uint64_t cursor = walk->place.next_offset;

    if (bth_layout_entry_compute(cursor, name_nbytes, nbytes, walk->alignment, &walk->place) < 0)
        return bth_fail(error, BERTH_E_ARCHIVE, record, cursor, "%llu bytes cannot be placed here",
                        (ull)nbytes);
    return 0;
}

/* What a walk does with each storage, whose record is "data/<key>". */
typedef int (*storage_function)(layout_walk *walk, berth_storage *storage, const char *record,
                                size_t record_nbytes, berth_error *error);

/* Storages [first, end). */
static int storages_walk(layout_walk *walk, size_t first, size_t end, storage_function function,
                         berth_error *error)
{
    char *record = NULL;
    size_t capacity = 0;

    for (size_t i = first; i < end && error->code == 0; i++) {
        berth_storage *storage = bth_tree_storage(walk->contents->tree, i);
        size_t nbytes = sizeof "data/" + strlen(storage->key);
        assert(storage->index == i);
        if (nbytes > capacity) {
            bth_release(record);
            record = bth_allocate(nbytes);
            capacity = nbytes;
            if (!record)
                return bth_fail_memory(error, nbytes);
            memcpy(record, "data/", sizeof "data/");
        }
        memcpy(record + 5, storage->key, nbytes - 5);
        (void)function(walk, storage, record, nbytes - 1, error);
    }
    bth_release(record);
    return error->code;
}

static int storages_walk_all(layout_walk *walk, storage_function function, berth_error *error)
{
    return storages_walk(walk, 0, bth_tree_n_storages(walk->contents->tree), function, error);
}

/* ---- messages ---- */

static int fail_header(const layout_walk *walk, const char *record, const char *who, uint64_t at,
                       berth_error *error)
{
    char before[64] = "first in the file";

    if (walk->before_storage > 0)
        (void)snprintf(before, sizeof before, "right after data/%.42s",
                       bth_tree_storage(walk->contents->tree, walk->before_storage - 1)->key);
    else if (walk->before[0])
        (void)snprintf(before, sizeof before, "right after %s", walk->before);
    return bth_fail(error, BERTH_E_OFFSETS, record, walk->place.header_offset,
                    "the layout puts its header here, %s; %s at byte %llu; "
                    "load.calculate_storage_offsets=off reads it there",
                    before, who, (ull)at);
}

static int fail_data(const layout_walk *walk, const char *record, uint64_t at, berth_error *error)
{
    return bth_fail(error, BERTH_E_OFFSETS, record, walk->place.data_offset,
                    "the layout puts its data here, at the first multiple of %lu after the "
                    "header; its local header puts it at byte %llu; "
                    "load.calculate_storage_offsets=off reads it there",
                    (unsigned long)walk->alignment, (ull)at);
}

static int fail_missing(const char *record, uint64_t offset, berth_error *error)
{
    return bth_fail(error, BERTH_E_ARCHIVE, record, offset,
                    "data.pkl names it, but the archive does not hold it");
}

/* ---- computing ---- */

uint32_t bth_layout_alignment(const bth_contents *contents)
{
    return contents->storage_alignment ? (uint32_t)contents->storage_alignment
                                       : BTH_DEFAULT_ALIGNMENT;
}

int bth_layout_check_small(const bth_contents *contents, uint64_t cursor, berth_error *error)
{
    layout_walk walk = walk_begin(contents, 0);

    for (int which = 0; which < BTH_N_SMALL; which++) {
        const bth_small_record *small = &contents->small[which];
        const char *record = bth_small_names[which];
        if (!small->present)
            continue;
        if (walk_step(&walk, record, strlen(record), small->nbytes, error) < 0)
            return error->code;
        if (small->header_offset != walk.place.header_offset)
            return fail_header(&walk, record, "it is", small->header_offset, error);
        if (small->data_offset != walk.place.data_offset)
            return fail_data(&walk, record, small->data_offset, error);
        walk.before = record;
    }
    /* The next record's header shows the end of each but the last: it may have no descriptor. */
    if (walk.place.next_offset != cursor)
        return bth_fail(error, BERTH_E_OFFSETS, walk.before, cursor,
                        "it ends here; the layout puts its end at byte %llu; "
                        "load.calculate_storage_offsets=off uses the directory",
                        (ull)walk.place.next_offset);
    return 0;
}

static int storage_compute(layout_walk *walk, berth_storage *storage, const char *record,
                           size_t record_nbytes, berth_error *error)
{
    if (walk_step(walk, record, record_nbytes, storage->nbytes, error) < 0)
        return error->code;
    if (walk->place.next_offset > walk->cache->reader->nbytes)
        return bth_fail(error, BERTH_E_TRUNCATED, record, walk->place.data_offset,
                        "its %llu bytes do not fit into the file's %llu", (ull)storage->nbytes,
                        (ull)walk->cache->reader->nbytes);
    storage->offset = walk->place.data_offset;
    walk->contents->central_nbytes += bth_layout_central_nbytes(&walk->place);
    return 0;
}

int bth_layout_compute(bth_opening *opening, uint64_t cursor, berth_error *error)
{
    layout_walk walk = walk_begin(opening->contents, cursor);

    walk.cache = &opening->cache;
    (void)storages_walk_all(&walk, storage_compute, error);
    opening->contents->layout_end = walk.place.next_offset;
    return error->code;
}

/* Z5, for a header that is in the head. */
static int storage_compare_head(layout_walk *walk, berth_storage *storage, const char *record,
                                size_t record_nbytes, berth_error *error)
{
    const bth_head_cache *cache = walk->cache;
    const bth_layout_entry *place = &walk->place;
    uint64_t at = place->next_offset;
    bth_zip_local local;

    if (walk_step(walk, record, record_nbytes, storage->nbytes, error) < 0 ||
        place->data_offset > cache->head_nbytes)
        return error->code;
    if (memcmp(cache->head + at, "PK\3\4", 4) != 0)
        return bth_fail(error, BERTH_E_OFFSETS, record, at,
                        "the layout puts its header here, but there is none; "
                        "load.calculate_storage_offsets=off uses the directory");
    if (bth_zip_read_local(cache->head + at, cache->head_nbytes - at, at, &local, error) < 0)
        return error->code;
    if (!bth_local_has_name(&local, walk->contents->archive, record))
        return bth_fail(error, BERTH_E_OFFSETS, record, at,
                        "the layout puts its header here, but here is %.*s; "
                        "load.calculate_storage_offsets=off uses the directory",
                        local.name_nbytes > 100 ? 100 : (int)local.name_nbytes, local.name);
    if (local.method != 0)
        return bth_fail(error, BERTH_E_UNSUPPORTED, record, at,
                        "a deflated storage cannot be mapped or placed; unpack the archive and zip "
                        "it again with `zip -0 -r`");
    if (local.data_offset != place->data_offset)
        return fail_data(walk, record, local.data_offset, error);
    if (local.nbytes != 0 && local.nbytes != storage->nbytes)
        return bth_fail(error, BERTH_E_TENSOR, record, place->data_offset,
                        "data.pkl says %llu bytes, its local header %llu", (ull)storage->nbytes,
                        (ull)local.nbytes);
    return 0;
}

int bth_layout_check_first(const bth_opening *opening, uint64_t cursor, berth_error *error)
{
    layout_walk walk = walk_begin(opening->contents, cursor);
    size_t n = bth_tree_n_storages(opening->contents->tree);

    walk.cache = &opening->cache;
    return storages_walk(&walk, 0, n < 1 ? n : 1, storage_compare_head, error);
}

/* ---- comparing with the directory ---- */

/*
 * One reading: the entry that was compared last ends where the layout has its end. So nothing that
 * the directory lists begins inside it, and the last storage's data are where they were computed,
 * as the next header shows for all others. Where its local header was read, its descriptor comes
 * first: that message is clearer.
 */
static int end_compare(const layout_walk *walk, uint64_t end, berth_error *error)
{
    const bth_zip_entry *entry = walk->entry;

    if (!entry || entry->next_offset == end || (entry->data_offset != 0 && entry->end_offset == 0))
        return 0;
    return bth_fail(error, BERTH_E_OFFSETS, entry->record, end,
                    "the layout has its end here; the directory has what follows it at byte "
                    "%llu; load.calculate_storage_offsets=off uses its local header",
                    (ull)entry->next_offset);
}

static const bth_zip_entry *entry_next(layout_walk *walk, const char *record, size_t record_nbytes)
{
    return bth_container_find_next(&walk->contents->container, record, record_nbytes, &walk->next);
}

static int entry_compare(layout_walk *walk, const char *record, size_t record_nbytes,
                         uint64_t nbytes, berth_error *error)
{
    const bth_zip_entry *entry = entry_next(walk, record, record_nbytes);

    if (walk_step(walk, record, record_nbytes, nbytes, error) < 0)
        return error->code;
    if (!entry)
        return bth_fail(error, BERTH_E_OFFSETS, record, walk->place.header_offset,
                        "the layout puts its header here, but the directory does not list it");
    if (entry->header_offset != walk->place.header_offset)
        return fail_header(walk, record, "the directory has it", entry->header_offset, error);
    if (entry->data_offset != 0 && entry->data_offset != walk->place.data_offset)
        return fail_data(walk, record, entry->data_offset, error);
    if (end_compare(walk, entry->header_offset, error) < 0)
        return error->code;
    walk->entry = entry;
    return 0;
}

static int small_compare(layout_walk *walk, int which, berth_error *error)
{
    const bth_small_record *small = &walk->contents->small[which];
    const char *record = bth_small_names[which];

    if (entry_compare(walk, record, strlen(record), small->nbytes, error) < 0)
        return error->code;
    const bth_zip_entry *entry = walk->entry;
    if (entry->method != 0)
        return bth_fail(error, BERTH_E_ARCHIVE, record, small->data_offset,
                        "it is stored, the directory says method %u", (unsigned)entry->method);
    if (entry->nbytes != small->nbytes || entry->crc32 != small->crc32)
        return bth_fail(error, BERTH_E_ARCHIVE, record, small->data_offset,
                        "it has %llu bytes and CRC 0x%08lx, the directory says %llu and 0x%08lx",
                        (ull)small->nbytes, (unsigned long)small->crc32, (ull)entry->nbytes,
                        (unsigned long)entry->crc32);
    if (entry->flags != small->flags) /* Z5 */
        return bth_fail(error, BERTH_E_ARCHIVE, record, small->header_offset,
                        "the local header's flags is %d, the directory's %d", small->flags,
                        entry->flags);
    walk->before = record;
    return 0;
}

/* Z11, one reading: a small record that is not in the head is nowhere else either. */
static int small_check_absent(const layout_walk *walk, int which, berth_error *error)
{
    const char *record = bth_small_names[which];
    const bth_zip_entry *entry = bth_container_find(&walk->contents->container, record);

    if (!entry)
        return 0;
    return bth_fail(error, BERTH_E_OFFSETS, record, entry->header_offset,
                    "the directory has it here, but the layout has it before the storages; "
                    "load.calculate_storage_offsets=off reads it here");
}

/*
 * Behind the storages, byteorder changes no offset. PyTorch's writer puts it there, as the last but
 * one, for torch.save(_disable_byteorder_record=True). Anywhere else it would move the storages.
 */
static bool lies_behind(const layout_walk *walk, int which)
{
    return which == BTH_BYTEORDER &&
           walk->contents->small[which].header_offset > walk->place.next_offset;
}

static int small_compare_all(layout_walk *walk, berth_error *error)
{
    for (int which = 0; which < BTH_N_SMALL && error->code == 0; which++)
        if (!lies_behind(walk, which))
            (void)(walk->contents->small[which].present ? small_compare(walk, which, error)
                                                        : small_check_absent(walk, which, error));
    return error->code;
}

int bth_layout_check_small_listed(const bth_contents *contents, berth_error *error)
{
    layout_walk walk = walk_begin(contents, 0);

    return small_compare_all(&walk, error);
}

static int storage_compare(layout_walk *walk, berth_storage *storage, const char *record,
                           size_t record_nbytes, berth_error *error)
{
    (void)entry_compare(walk, record, record_nbytes, storage->nbytes, error);
    walk->before_storage = storage->index + 1;
    return error->code;
}

int bth_layout_check(const bth_contents *contents, berth_error *error)
{
    layout_walk walk = walk_begin(contents, 0);

    if (small_compare_all(&walk, error) < 0 || storages_walk_all(&walk, storage_compare, error) < 0)
        return error->code;
    return end_compare(&walk, walk.place.next_offset, error);
}

/* ---- storages and their entries ---- */

/* T1. The directory's reader has made sure that it is stored, with two equal sizes (Z9). */
static int storage_check_entry(layout_walk *walk, berth_storage *storage, const char *record,
                               size_t record_nbytes, berth_error *error)
{
    const bth_zip_entry *entry = entry_next(walk, record, record_nbytes);

    if (!entry)
        return fail_missing(record, BERTH_NO_OFFSET, error);
    if (entry->nbytes == storage->nbytes)
        return 0;
    if (entry->nbytes > storage->nbytes &&
        entry->nbytes - storage->nbytes < berth_dtype_nbytes(storage->dtype)) {
        walk->contents->has_longer_record = true;
        return 0;
    }
    return bth_fail(error, BERTH_E_TENSOR, record, entry->header_offset,
                    "data.pkl says %llu bytes, the record has %llu", (ull)storage->nbytes,
                    (ull)entry->nbytes);
}

int bth_storages_check_entries(bth_contents *contents, berth_error *error)
{
    layout_walk walk = walk_begin(contents, 0);

    return storages_walk_all(&walk, storage_check_entry, error);
}

static int storage_take_offset(layout_walk *walk, berth_storage *storage, const char *record,
                               size_t record_nbytes, berth_error *error)
{
    const bth_zip_entry *entry = entry_next(walk, record, record_nbytes);

    assert(entry); /* bth_storages_check_entries */
    storage->offset = entry->data_offset;
    return error->code;
}

int bth_storages_take_offsets(bth_contents *contents, berth_error *error)
{
    layout_walk walk = walk_begin(contents, 0);

    return storages_walk_all(&walk, storage_take_offset, error);
}

static int storage_find_entry(layout_walk *walk, berth_storage *storage, const char *record,
                              size_t record_nbytes, berth_error *error)
{
    walk->entry = entry_next(walk, record, record_nbytes);
    return walk->entry ? 0 : fail_missing(NULL, storage->offset, error);
}

int bth_storage_entry(const bth_contents *contents, const berth_storage *storage,
                      const bth_zip_entry **entry, berth_error *error)
{
    layout_walk walk = walk_begin(contents, 0);

    (void)storages_walk(&walk, storage->index, storage->index + 1, storage_find_entry, error);
    *entry = walk.entry;
    return error->code;
}

static int storage_of_entry(layout_walk *walk, berth_storage *storage, const char *record,
                            size_t record_nbytes, berth_error *error)
{
    const bth_zip_entry *entry = entry_next(walk, record, record_nbytes);

    assert(entry); /* bth_storages_check_entries */
    walk->storages[entry - walk->contents->container.directory.entries] = storage->index + 1;
    return error->code;
}

int bth_storages_of_entries(const bth_contents *contents, size_t *storages, berth_error *error)
{
    layout_walk walk = walk_begin(contents, 0);

    walk.storages = storages;
    return storages_walk_all(&walk, storage_of_entry, error);
}
