/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Computes offsets by the layout once (FORMAT.md 2, 5), and compares them with the headers and the
 * directory.
 */
#include "load/open/open_steps.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/bytes.h"
#include "format/layout.h"
#include "format/zip/zip.h"

/* The alignment of data in the layout of this file. */
static uint32_t layout_alignment(const bth_contents *contents)
{
    return contents->storage_alignment ? (uint32_t)contents->storage_alignment
                                       : BTH_DEFAULT_ALIGNMENT;
}

/*
 * The directory as a whole. The layout renders a directory for the records that were found without
 * it. If the file's directory has the same bytes, it is not parsed, and only its counts are kept. A
 * difference is no error: the same entries can be written in other ways.
 */

/* A directory with longer full names, which PyTorch does not write, is parsed. */
#define NAME_MAX_NBYTES 240
/* The same for longer storage keys (digits). */
#define KEY_MAX_NBYTES 20
/* Longest name and zip64 field (FORMAT.md 3). */
#define ENTRY_MAX_NBYTES (BTH_ZIP_CENTRAL_NBYTES + NAME_MAX_NBYTES + 28)
#define CRC32_AT 16

typedef unsigned long long ull;

/* ---- known record names ---- */

/* Records that PyTorch writes after the storages. */
static bool record_name_belongs_after_storages(const char *record)
{
    return strcmp(record, "version") == 0 || strcmp(record, ".data/serialization_id") == 0;
}

/* Z11: records that Berth does not know are counted. */
int bth_contents_ensure_record_counts(bth_contents *contents, bth_reader *reader,
                                      berth_error *error)
{
    const bth_zip_directory *directory = &contents->container.directory;

    if (contents->counts.known || bth_contents_ensure_directory(contents, reader, error) < 0)
        return error->code;
    bth_record_counts counts = {.known = true, .n_records = directory->n_entries};
    for (size_t i = 0; i < directory->n_entries; i++) {
        const char *record = directory->entries[i].record;
        bool is_known = record_name_belongs_after_storages(record);
        if (strncmp(record, "data/", 5) == 0)
            is_known = bth_tree_find_storage(contents->tree, record + 5, strlen(record + 5));
        for (size_t which = 0; which < BTH_N_SMALL && !is_known; which++)
            is_known = strcmp(record, bth_small_names[which]) == 0;
        counts.n_unknown_records += !is_known;
        counts.n_crc32 += directory->entries[i].crc32 != 0;
    }
    contents->counts = counts;
    return 0;
}

/* ---- the directory as the layout renders it ---- */

typedef struct render_check {
    const bth_contents *contents;
    bth_head_cache *cache;
    const uint8_t *bytes; /* the directory's */
    size_t at;            /* in them */
    uint32_t alignment;
    bth_layout_entry layout;  /* of the last record */
    bth_record_counts counts; /* so far */
    size_t prefix_nbytes;     /* "<archive>/" */
    char name[NAME_MAX_NBYTES];
} render_check;

/* Compares the next entry. `record`: the name without the top folder. crc32 NULL: any. */
static bool render_check_entry(render_check *check, const char *record, size_t record_nbytes,
                               uint64_t nbytes, const uint32_t *crc32)
{
    const bth_zip_end *end = &check->contents->container.end;
    size_t name_nbytes = check->prefix_nbytes + record_nbytes;
    size_t left = (size_t)end->directory_nbytes - check->at;
    const uint8_t *bytes = check->bytes + check->at;
    uint8_t rendered[ENTRY_MAX_NBYTES];
    bth_layout_entry *layout = &check->layout;

    if (name_nbytes > NAME_MAX_NBYTES)
        return false;
    int result = bth_layout_entry_compute(layout->next_offset, name_nbytes, nbytes,
                                          check->alignment, layout);
    assert(result == 0); /* the layout was computed before */
    (void)result;
    if (bth_layout_central_entry_nbytes(layout) > left)
        return false;
    size_t entry_nbytes = (size_t)bth_layout_central_entry_nbytes(layout);
    bth_cursor cursor = bth_cursor_make(bytes + CRC32_AT, 4);
    uint32_t recorded = bth_cursor_u32(&cursor);
    memcpy(check->name + check->prefix_nbytes, record, record_nbytes);
    bth_zip_write_central(layout, check->name, crc32 ? *crc32 : recorded, rendered);
    if (memcmp(rendered, bytes, entry_nbytes) != 0)
        return false;
    check->at += entry_nbytes;
    check->counts.n_records++;
    check->counts.n_crc32 += recorded != 0;
    return true;
}

/* Compares the entries of all records that are known without the directory. */
static bool render_check_known_records(render_check *check)
{
    const bth_contents *contents = check->contents;
    char record[sizeof "data/" + KEY_MAX_NBYTES] = "data/";
    size_t archive_nbytes = strlen(contents->archive);
    berth_error ignored;

    /* Z8: the top folder's name; all names begin with "<archive>/". */
    bth_error_clear(&ignored);
    if (archive_nbytes >= NAME_MAX_NBYTES ||
        bth_zip_check_name((const uint8_t *)contents->archive, archive_nbytes, true, true, 0,
                           &ignored) < 0)
        return false;
    memcpy(check->name, contents->archive, archive_nbytes);
    check->name[archive_nbytes] = '/';
    check->prefix_nbytes = archive_nbytes + 1;

    /* Z5, Z11: data.pkl and the small records were compared with their own headers. */
    for (int which = 0; which < BTH_N_SMALL; which++) {
        const bth_zip_entry *small = bth_contents_small_record(contents, which);
        const char *name = bth_small_names[which];
        if (small && (small->flags != (BTH_ZIP_FLAG_UTF8 | BTH_ZIP_FLAG_DESCRIPTOR) ||
                      !render_check_entry(check, name, strlen(name), small->nbytes, &small->crc32)))
            return false;
    }

    /* T1, Z8: one entry for each storage, with its size. If a key is not a number, its name must
       be checked. */
    for (size_t i = 0, n_storages = bth_tree_n_storages(contents->tree); i < n_storages; i++) {
        const berth_storage *storage = bth_tree_storage(contents->tree, i);
        size_t n = 0;
        for (; storage->key[n] >= '0' && storage->key[n] <= '9' && n < KEY_MAX_NBYTES; n++)
            record[5 + n] = storage->key[n];
        if (storage->key[n] || !render_check_entry(check, record, 5 + n, storage->nbytes, NULL))
            return false;
    }
    return true;
}

/* Parses entries that the layout does not have. False without an error: the check decides nothing.
 */
static bool render_check_rest_of_entries(render_check *check, berth_error *error)
{
    bth_container rest = {.end = check->contents->container.end};
    const bth_zip_directory *directory = &rest.directory;

    if (rest.end.n_entries <= check->counts.n_records)
        return false; /* without a version: what that means is told by others */
    rest.end.n_entries -= check->counts.n_records;
    rest.end.directory_nbytes -= check->at;
    if (bth_zip_read_directory(check->bytes + check->at, &rest.end, &rest.directory, error) < 0) {
        if (error->code != BERTH_E_MEMORY)
            bth_error_clear(error);
        return false;
    }
    /* They must be known records in the same folder, and directly follow the storages. */
    bool good = directory->n_folders == 0;
    /* NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): with entries there is an archive */
    good = good && strcmp(directory->archive, check->contents->archive) == 0;
    for (size_t i = 0; i < directory->n_entries; i++) {
        good = good && record_name_belongs_after_storages(directory->entries[i].record);
        check->counts.n_crc32 += directory->entries[i].crc32 != 0;
    }
    good =
        good &&
        directory->entries[directory->by_offset[0]].header_offset == check->layout.next_offset &&
        bth_container_check_records_from(&rest, check->cache, 0, BTH_CHECK_HEADERS, error) == 0 &&
        bth_container_check_version(&rest, check->cache, error) == 0;
    check->counts.n_records += directory->n_entries;
    bth_container_free(&rest);
    return good;
}

int bth_directory_compare_rendered(bth_opening *opening, const uint8_t *directory,
                                   berth_error *error)
{
    render_check check = {.contents = opening->contents,
                          .cache = &opening->cache,
                          .bytes = directory,
                          .alignment = layout_alignment(opening->contents),
                          .counts.known = true};

    if (render_check_known_records(&check) && render_check_rest_of_entries(&check, error))
        opening->contents->counts = check.counts;
    return error->code;
}

/* ---- a walk over the records of the layout ---- */

typedef struct layout_walk {
    bth_contents *contents;
    uint32_t alignment;
    size_t archive_nbytes;
    const char *before;         /* the small record before this one, "" for the first */
    size_t next;                /* entry, after the one that was found last */
    const bth_zip_entry *entry; /* compared last */
    bool ignores_local;         /* only the directory is compared, no local header */
    bth_layout_entry layout;
    berth_storage *storage; /* NULL: before the first one */
    char *record;           /* its record, "data/<key>" */
    size_t record_nbytes;
    size_t capacity; /* of record */
} layout_walk;

static layout_walk layout_walk_begin(const bth_contents *contents, uint64_t cursor)
{
    return (layout_walk){.contents = (bth_contents *)contents,
                         .alignment = layout_alignment(contents),
                         .archive_nbytes = strlen(contents->archive),
                         .before = "",
                         .layout = {.next_offset = cursor}};
}

/* Storage i is the next one. False after an error. */
static bool layout_walk_move_to_storage(layout_walk *walk, size_t i, berth_error *error)
{
    walk->storage = bth_tree_storage(walk->contents->tree, i);
    walk->record_nbytes = sizeof "data/" - 1 + strlen(walk->storage->key);
    assert(walk->storage->index == i);
    if (walk->record_nbytes >= walk->capacity) {
        bth_release(walk->record);
        walk->capacity = walk->record_nbytes + 1;
        walk->record = bth_allocate(walk->capacity);
        if (!walk->record)
            return bth_fail_memory(error, walk->capacity), false;
        memcpy(walk->record, "data/", sizeof "data/");
    }
    memcpy(walk->record + 5, walk->storage->key, walk->record_nbytes - 4);
    return true;
}

/* False: no more storages, or an error. Then the walk has ended. */
static bool layout_walk_next_storage(layout_walk *walk, berth_error *error)
{
    size_t i = walk->storage ? walk->storage->index + 1 : 0;

    if (error->code == 0 && i < bth_tree_n_storages(walk->contents->tree) &&
        layout_walk_move_to_storage(walk, i, error))
        return true;
    bth_release(walk->record);
    walk->record = NULL;
    return false;
}

/* Calculates the layout entry of the next record. */
static int layout_walk_compute_entry(layout_walk *walk, const char *record, size_t record_nbytes,
                                     uint64_t nbytes, berth_error *error)
{
    size_t name_nbytes = walk->archive_nbytes + 1 + record_nbytes;
    uint64_t cursor = walk->layout.next_offset;

    if (bth_layout_entry_compute(cursor, name_nbytes, nbytes, walk->alignment, &walk->layout) < 0)
        return bth_fail(error, BERTH_E_ARCHIVE, record, cursor, "%llu bytes cannot be placed here",
                        (ull)nbytes);
    return 0;
}

static int layout_walk_compute_storage(layout_walk *walk, berth_error *error)
{
    return layout_walk_compute_entry(walk, walk->record, walk->record_nbytes, walk->storage->nbytes,
                                     error);
}

/* Faster for records that follow each other in the directory than bth_container_find. */
static const bth_zip_entry *layout_walk_find_entry(layout_walk *walk, const char *record,
                                                   size_t record_nbytes)
{
    const bth_zip_directory *directory = &walk->contents->container.directory;
    const bth_zip_entry *entry =
        walk->next < directory->n_entries ? &directory->entries[walk->next] : NULL;

    if (!entry || entry->name_nbytes != directory->archive_nbytes + 1 + record_nbytes ||
        memcmp(entry->record, record, record_nbytes) != 0)
        entry = bth_zip_find(directory, record, record_nbytes);
    if (entry)
        walk->next = (size_t)(entry - directory->entries) + 1;
    return entry;
}

/* The entry of the storage. NULL: none, and an error at `offset`. */
static const bth_zip_entry *layout_walk_ensure_storage_entry(layout_walk *walk, uint64_t offset,
                                                             berth_error *error)
{
    // NOLINTNEXTLINE(clang-analyzer-unix.Malloc): freed when the walk ends
    const bth_zip_entry *entry = layout_walk_find_entry(walk, walk->record, walk->record_nbytes);

    if (!entry)
        (void)bth_fail(error, BERTH_E_ARCHIVE, walk->record, offset,
                       "data.pkl names it, but the archive does not hold it");
    return entry;
}

/* ---- messages ---- */

static int layout_fail_header_offset(const layout_walk *walk, const char *record, const char *who,
                                     uint64_t at, berth_error *error)
{
    char before[64] = "first in the file";

    if (walk->storage && walk->storage->index > 0)
        (void)snprintf(before, sizeof before, "right after data/%.42s",
                       bth_tree_storage(walk->contents->tree, walk->storage->index - 1)->key);
    else if (walk->before[0])
        (void)snprintf(before, sizeof before, "right after %s", walk->before);
    return bth_fail(error, BERTH_E_OFFSETS, record, walk->layout.header_offset,
                    "the layout puts its header here, %s; %s at byte %llu; "
                    "load.calculate_storage_offsets=off reads it there",
                    before, who, (ull)at);
}

static int layout_fail_data_offset(const layout_walk *walk, const char *record, uint64_t at,
                                   berth_error *error)
{
    return bth_fail(error, BERTH_E_OFFSETS, record, walk->layout.data_offset,
                    "the layout puts its data here, at the first multiple of %lu after the "
                    "header; its local header puts it at byte %llu; "
                    "load.calculate_storage_offsets=off reads it there",
                    (unsigned long)walk->alignment, (ull)at);
}

/* Z12 */
static int layout_fail_deflated(const char *record, uint64_t at, berth_error *error)
{
    return bth_fail(error, BERTH_E_OFFSETS, record, at,
                    "the layout has it stored, but it is deflated; "
                    "load.calculate_storage_offsets=off reads it");
}

/* ---- computing ---- */

int bth_layout_check_small_records(const bth_contents *contents, uint64_t cursor,
                                   berth_error *error)
{
    layout_walk walk = layout_walk_begin(contents, 0);

    for (int which = 0; which < BTH_N_SMALL; which++) {
        const bth_zip_entry *small = bth_contents_small_record(contents, which);
        const char *record = bth_small_names[which];
        if (!small)
            continue;
        if (layout_walk_compute_entry(&walk, record, strlen(record), small->nbytes, error) < 0)
            return error->code;
        if (small->header_offset != walk.layout.header_offset)
            return layout_fail_header_offset(&walk, record, "it is", small->header_offset, error);
        if (small->data_offset != walk.layout.data_offset)
            return layout_fail_data_offset(&walk, record, small->data_offset, error);
        walk.before = record;
    }
    /* Each end was compared as the next header, except the last: it may have no descriptor. */
    if (walk.layout.next_offset != cursor)
        return bth_fail(error, BERTH_E_OFFSETS, walk.before, cursor,
                        "it ends here; the layout puts its end at byte %llu; "
                        "load.calculate_storage_offsets=off uses the directory",
                        (ull)walk.layout.next_offset);
    return 0;
}

int bth_layout_compute_storage_offsets(bth_opening *opening, uint64_t cursor, berth_error *error)
{
    bth_contents *contents = opening->contents;
    uint64_t file_nbytes = opening->cache.reader->nbytes;
    layout_walk walk = layout_walk_begin(contents, cursor);
    const bth_layout_entry *layout = &walk.layout;

    while (layout_walk_next_storage(&walk, error)) {
        if (layout_walk_compute_storage(&walk, error) == 0 && layout->next_offset > file_nbytes)
            (void)bth_fail(error, BERTH_E_TRUNCATED, walk.record, layout->data_offset,
                           "its %llu bytes do not fit into the file's %llu" BTH_CUT_OFF,
                           (ull)walk.storage->nbytes, (ull)file_nbytes);
        walk.storage->offset = layout->data_offset;
        contents->central_nbytes += bth_layout_central_entry_nbytes(layout);
    }
    contents->layout_end = layout->next_offset;
    return error->code;
}

/* Z5: compares the local header of the storage with the layout. */
static int storage_compare_header(const layout_walk *walk, const bth_head_cache *cache,
                                  berth_error *error)
{
    uint64_t at = walk->layout.header_offset;
    const char *record = walk->record;
    bth_zip_local local;

    if (memcmp(cache->head + at, "PK\3\4", 4) != 0)
        return bth_fail(error, BERTH_E_OFFSETS, record, at,
                        "the layout puts its header here, but there is none; "
                        "load.calculate_storage_offsets=off uses the directory");
    if (bth_zip_parse_local_header(cache->head + at, cache->head_nbytes - at, at, &local, error) <
        0)
        return error->code;
    if (!bth_zip_local_has_name(&local, walk->contents->archive, record))
        return bth_fail(error, BERTH_E_OFFSETS, record, at,
                        "the layout puts its header here, but here is %.*s; "
                        "load.calculate_storage_offsets=off uses the directory",
                        local.name_nbytes > 100 ? 100 : (int)local.name_nbytes, local.name);
    if (local.method != BTH_ZIP_STORED)
        return layout_fail_deflated(record, at, error);
    if (local.data_offset != walk->layout.data_offset)
        return layout_fail_data_offset(walk, record, local.data_offset, error);
    if (local.nbytes != 0 && local.nbytes != walk->storage->nbytes)
        return bth_fail(error, BERTH_E_TENSOR, record, local.data_offset,
                        "data.pkl says %llu bytes, its local header %llu",
                        (ull)walk->storage->nbytes, (ull)local.nbytes);
    return 0;
}

int bth_layout_check_first_storage(const bth_opening *opening, uint64_t cursor, berth_error *error)
{
    const bth_head_cache *cache = &opening->cache;
    layout_walk walk = layout_walk_begin(opening->contents, cursor);

    if (layout_walk_next_storage(&walk, error) && layout_walk_compute_storage(&walk, error) == 0 &&
        walk.layout.data_offset <= cache->head_nbytes)
        (void)storage_compare_header(&walk, cache, error);
    bth_release(walk.record);
    return error->code;
}

/* ---- comparing with the directory ---- */

/*
 * Proves that readers cannot disagree: the entry that was compared last must end where the layout
 * has its end. Then no listed record begins inside it, and the last storage's data are at the
 * computed offset. For all other storages the next header proves that. If the local header was
 * read, its descriptor is checked first: that message is clearer.
 */
static int layout_compare_previous_entry_end(const layout_walk *walk, uint64_t end,
                                             berth_error *error)
{
    const bth_zip_entry *entry = walk->entry;

    if (!entry || entry->next_offset == end ||
        (entry->data_offset != 0 && entry->end_offset == 0 && !walk->ignores_local))
        return 0;
    return bth_fail(error, BERTH_E_OFFSETS, entry->record, end,
                    "the layout has its end here; the directory has what follows it at byte "
                    "%llu; load.calculate_storage_offsets=off uses its local header",
                    (ull)entry->next_offset);
}

static int layout_compare_entry(layout_walk *walk, const char *record, size_t record_nbytes,
                                uint64_t nbytes, berth_error *error)
{
    const bth_zip_entry *entry = layout_walk_find_entry(walk, record, record_nbytes);
    const bth_layout_entry *layout = &walk->layout;

    if (layout_walk_compute_entry(walk, record, record_nbytes, nbytes, error) < 0)
        return error->code;
    if (!entry)
        return bth_fail(error, BERTH_E_OFFSETS, record, layout->header_offset,
                        "the layout puts its header here, but the directory does not list it");
    if (entry->header_offset != layout->header_offset)
        return layout_fail_header_offset(walk, record, "the directory has it", entry->header_offset,
                                         error);
    bool has_local = entry->data_offset != 0 && !walk->ignores_local;
    if (has_local && entry->data_offset != layout->data_offset)
        return layout_fail_data_offset(walk, record, entry->data_offset, error);
    if (layout_compare_previous_entry_end(walk, entry->header_offset, error) < 0)
        return error->code;
    walk->entry = entry;
    /*
     * Z13: a longer header in place of a descriptor moves the data, but no header behind them. The
     * directory's flags tell; only where they are read alone: a local header says more. What is
     * deflated is refused for that.
     */
    bool has_descriptor = entry->flags & BTH_ZIP_FLAG_DESCRIPTOR;
    if (has_local || entry->method != BTH_ZIP_STORED ||
        has_descriptor == (layout->descriptor_nbytes > 0))
        return 0;
    return bth_fail(error, BERTH_E_OFFSETS, record, entry->header_offset,
                    "the layout has it %s a descriptor, the directory has it %s; "
                    "load.calculate_storage_offsets=off uses its local header",
                    has_descriptor ? "without" : "with", has_descriptor ? "with" : "without");
}

static int layout_compare_small(layout_walk *walk, const bth_zip_entry *small, const char *record,
                                berth_error *error)
{
    if (layout_compare_entry(walk, record, strlen(record), small->nbytes, error) < 0)
        return error->code;
    const bth_zip_entry *entry = walk->entry;
    if (entry->method != small->method)
        return bth_fail(error, BERTH_E_ARCHIVE, record, small->data_offset,
                        "its local header says method %u, the directory %u",
                        (unsigned)small->method, (unsigned)entry->method);
    if (entry->method != BTH_ZIP_STORED)
        return layout_fail_deflated(record, entry->header_offset, error);
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

static int layout_compare_all_small(layout_walk *walk, berth_error *error)
{
    for (int which = 0; which < BTH_N_SMALL && error->code == 0; which++) {
        const bth_zip_entry *small = bth_contents_small_record(walk->contents, which);
        const char *record = bth_small_names[which];
        if (!small) { /* Z11: it is not in the head, and must not be anywhere else */
            const bth_zip_entry *entry = bth_container_find(&walk->contents->container, record);
            if (entry)
                (void)bth_fail(error, BERTH_E_OFFSETS, record, entry->header_offset,
                               "the directory has it here, but the layout has it before the "
                               "storages; load.calculate_storage_offsets=off reads it here");
        } else if (which != BTH_BYTEORDER || small->header_offset <= walk->layout.next_offset) {
            (void)layout_compare_small(walk, small, record, error);
        }
        /* Else: after the storages, byteorder changes no offset. PyTorch's writer puts it there, as
           the last record but one, for torch.save(_disable_byteorder_record=True). Before them it
           would move them. */
    }
    return error->code;
}

/*
 * Z12: a deflated storage may have the header, and even the end, that the layout gives it. Readers
 * that calculate offsets would take its deflated bytes for elements.
 */
static int layout_check_storages_are_stored(const bth_contents *contents, berth_error *error)
{
    const bth_zip_entry *entry = contents->first_deflated;

    return entry ? layout_fail_deflated(entry->record, entry->header_offset, error) : 0;
}

int bth_layout_check_small_records_listed(const bth_contents *contents, berth_error *error)
{
    layout_walk walk = layout_walk_begin(contents, 0);

    if (layout_check_storages_are_stored(contents, error) < 0)
        return error->code;
    return layout_compare_all_small(&walk, error);
}

/* Small records, then storages. */
int bth_layout_check(const bth_contents *contents, bool ignores_local, berth_error *error)
{
    layout_walk walk = layout_walk_begin(contents, 0);

    walk.ignores_local = ignores_local;
    (void)layout_compare_all_small(&walk, error);
    while (layout_walk_next_storage(&walk, error))
        // NOLINTNEXTLINE(clang-analyzer-unix.Malloc): freed when the walk ends
        (void)layout_compare_entry(&walk, walk.record, walk.record_nbytes, walk.storage->nbytes,
                                   error);
    if (error->code < 0 ||
        layout_compare_previous_entry_end(&walk, walk.layout.next_offset, error) < 0)
        return error->code;
    return layout_check_storages_are_stored(contents, error);
}

/* ---- storages and their entries ---- */

int bth_storages_check_entries(bth_contents *contents, berth_error *error)
{
    layout_walk walk = layout_walk_begin(contents, 0);

    while (layout_walk_next_storage(&walk, error)) {
        const berth_storage *storage = walk.storage;
        const bth_zip_entry *entry =
            layout_walk_ensure_storage_entry(&walk, BERTH_NO_OFFSET, error);
        if (entry && entry->method == BTH_ZIP_DEFLATED && contents->n_deflated++ == 0)
            contents->first_deflated = entry;
        if (!entry || entry->nbytes == storage->nbytes)
            continue;
        /* T1. The directory's reader has checked that a stored one has two equal sizes (Z9). */
        if (entry->nbytes > storage->nbytes &&
            entry->nbytes - storage->nbytes < berth_dtype_nbytes(storage->dtype))
            contents->has_longer_record = true;
        else
            (void)bth_fail(error, BERTH_E_TENSOR, walk.record, entry->header_offset,
                           "data.pkl says %llu bytes, the record has %llu", (ull)storage->nbytes,
                           (ull)entry->nbytes);
    }
    return error->code;
}

int bth_storages_set_listed_offsets(bth_contents *contents, berth_error *error)
{
    layout_walk walk = layout_walk_begin(contents, 0);

    while (layout_walk_next_storage(&walk, error)) {
        const bth_zip_entry *entry =
            layout_walk_ensure_storage_entry(&walk, BERTH_NO_OFFSET, error);
        if (entry)
            walk.storage->offset = entry->data_offset;
    }
    return error->code;
}

int bth_storage_entry(const bth_contents *contents, const berth_storage *storage,
                      const bth_zip_entry **entry, berth_error *error)
{
    layout_walk walk = layout_walk_begin(contents, 0);

    *entry = NULL;
    if (layout_walk_move_to_storage(&walk, storage->index, error))
        *entry = layout_walk_ensure_storage_entry(&walk, storage->offset, error);
    bth_release(walk.record);
    return error->code;
}

int bth_entries_find_storages(const bth_contents *contents, const berth_storage **storages,
                              berth_error *error)
{
    layout_walk walk = layout_walk_begin(contents, 0);

    while (layout_walk_next_storage(&walk, error)) {
        const bth_zip_entry *entry =
            layout_walk_ensure_storage_entry(&walk, BERTH_NO_OFFSET, error);
        if (entry)
            storages[entry - contents->container.directory.entries] = walk.storage;
    }
    return error->code;
}
