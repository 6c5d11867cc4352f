/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The file against the layout: offsets computed once (FORMAT.md 2, 5), and compared with what the
 * headers and the directory say.
 */
#include <stdio.h>
#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/layout.h"
#include "load/checkpoint.h"

typedef unsigned long long ull;

/* "data/<key>", in one buffer that grows. */
typedef struct storage_name {
    char *text;
    size_t nbytes; /* of the buffer */
    size_t length; /* of the name */
} storage_name;

static const char *name_storage(storage_name *name, const berth_storage *storage,
                                berth_error *error)
{
    size_t nbytes = sizeof "data/" + strlen(storage->key);

    if (nbytes > name->nbytes) {
        char *grown = bth_reallocate(name->text, nbytes);
        if (!grown) {
            (void)bth_fail_memory(error, nbytes);
            return NULL;
        }
        name->text = grown;
        name->nbytes = nbytes;
    }
    memcpy(name->text, "data/", 5);
    memcpy(name->text + 5, storage->key, nbytes - 5);
    name->length = nbytes - 1;
    return name->text;
}

uint32_t bth_checkpoint_alignment(const berth_checkpoint *checkpoint)
{
    return checkpoint->contents.storage_alignment ? (uint32_t)checkpoint->contents.storage_alignment
                                                  : BTH_DEFAULT_ALIGNMENT;
}

/* ---- the layout's walk over the records it knows ---- */

struct walk {
    const berth_checkpoint *checkpoint;
    size_t archive_nbytes;
    const char *before;         /* the record before this one, "" for the first */
    size_t before_at;           /* unless it is a small one: storage's index + 1 */
    size_t next;                /* bth_container_find_next */
    const bth_zip_entry *entry; /* that was compared last */
    bth_place place;
};

static struct walk begin_walk(const berth_checkpoint *checkpoint, uint64_t cursor)
{
    return (struct walk){.checkpoint = checkpoint,
                         .archive_nbytes = strlen(checkpoint->contents.archive),
                         .before = "",
                         .place = {.next_offset = cursor}};
}

/* Places the next record of the walk. */
static int step(struct walk *walk, const char *record, size_t record_nbytes, uint64_t nbytes,
                berth_error *error)
{
    const berth_checkpoint *checkpoint = walk->checkpoint;
    size_t name_nbytes = walk->archive_nbytes + 1 + record_nbytes;
    uint64_t cursor = walk->place.next_offset;

    if (bth_layout_place(cursor, name_nbytes, nbytes, bth_checkpoint_alignment(checkpoint),
                         &walk->place) < 0)
        return bth_fail(error, BERTH_E_ARCHIVE, record, cursor, "%llu bytes cannot be placed here",
                        (ull)nbytes);
    return 0;
}

/* The record that the layout puts before storage i; text for a sentence. */
static void name_before(const struct walk *walk, char *text, size_t nbytes)
{
    size_t i = walk->before_at;

    if (i > 0)
        (void)snprintf(text, nbytes, "data/%s",
                       bth_tree_storage(walk->checkpoint->contents.tree, i - 1)->key);
    else
        (void)snprintf(text, nbytes, "%s", walk->before);
}

static int fail_header(const struct walk *walk, const char *record, const char *who, uint64_t at,
                       berth_error *error)
{
    char before[48];

    name_before(walk, before, sizeof before);
    if (!before[0])
        return bth_fail(error, BERTH_E_OFFSETS, record, walk->place.header_offset,
                        "the layout puts its header here, first in the file; %s at byte %llu; "
                        "load.calculate_storage_offsets=off reads it there",
                        who, (ull)at);
    return bth_fail(error, BERTH_E_OFFSETS, record, walk->place.header_offset,
                    "the layout puts its header here, right after %s; %s at byte %llu; "
                    "load.calculate_storage_offsets=off reads it there",
                    before, who, (ull)at);
}

static int fail_data(const struct walk *walk, const char *record, uint64_t at, berth_error *error)
{
    return bth_fail(error, BERTH_E_OFFSETS, record, walk->place.data_offset,
                    "the layout puts its data here, at the first multiple of %lu after the "
                    "header; its local header puts it at byte %llu; "
                    "load.calculate_storage_offsets=off reads it there",
                    (unsigned long)bth_checkpoint_alignment(walk->checkpoint), (ull)at);
}

/* ---- computing ---- */

int bth_check_small_layout(const berth_checkpoint *checkpoint, uint64_t cursor, berth_error *error)
{
    struct walk walk = begin_walk(checkpoint, 0);

    for (int which = 0; which < BTH_N_SMALL; which++) {
        const bth_small *small = &checkpoint->contents.small[which];
        if (!small->present)
            continue;
        const char *record = bth_small_names[which];
        if (step(&walk, record, strlen(record), small->nbytes, error) < 0)
            return error->code;
        if (small->header_offset != walk.place.header_offset)
            return fail_header(&walk, record, "it is", small->header_offset, error);
        if (small->data_offset != walk.place.data_offset)
            return fail_data(&walk, record, small->data_offset, error);
        walk.before = record;
    }
    /* The next record's header tells the end of each but the last: it may have no descriptor. */
    if (walk.place.next_offset != cursor)
        return bth_fail(error, BERTH_E_OFFSETS, walk.before, cursor,
                        "it ends here; the layout puts its end at byte %llu; "
                        "load.calculate_storage_offsets=off asks the directory",
                        (ull)walk.place.next_offset);
    return 0;
}

int bth_compute_offsets(berth_checkpoint *checkpoint, uint64_t cursor, berth_error *error)
{
    struct walk walk = begin_walk(checkpoint, cursor);
    uint64_t file_nbytes = checkpoint->source.reader.nbytes;
    storage_name name = {0};

    for (size_t i = 0; i < checkpoint->storages.n; i++) {
        berth_storage *storage = bth_tree_storage(checkpoint->contents.tree, i);
        const char *record = name_storage(&name, storage, error);
        if (!record || step(&walk, record, name.length, storage->nbytes, error) < 0)
            break;
        if (walk.place.next_offset > file_nbytes) {
            (void)bth_fail(error, BERTH_E_TRUNCATED, record, walk.place.data_offset,
                           "its %llu bytes do not fit into the file's %llu", (ull)storage->nbytes,
                           (ull)file_nbytes);
            break;
        }
        storage->offset = walk.place.data_offset;
        checkpoint->contents.central_nbytes += bth_layout_central_nbytes(&walk.place);
    }
    checkpoint->contents.layout_end = walk.place.next_offset;
    bth_release(name.text);
    return error->code;
}

/* Z5, in the head only: the first storage's own header, where it is at hand. */
static int compare_first(const struct walk *walk, const char *record, const berth_storage *storage,
                         const uint8_t *bytes, size_t nbytes, berth_error *error)
{
    size_t archive_nbytes = strlen(walk->checkpoint->contents.archive);
    bth_zip_local local;

    if (memcmp(bytes, "PK\3\4", 4) != 0)
        return bth_fail(error, BERTH_E_OFFSETS, record, walk->place.header_offset,
                        "the layout puts its header here, but there is none; "
                        "load.calculate_storage_offsets=off asks the directory");
    if (bth_zip_read_local(bytes, nbytes, walk->place.header_offset, &local, error) < 0)
        return error->code;
    if (local.name_nbytes != walk->place.name_nbytes ||
        memcmp(local.name + archive_nbytes + 1, record, strlen(record)) != 0 ||
        memcmp(local.name, walk->checkpoint->contents.archive, archive_nbytes) != 0)
        return bth_fail(error, BERTH_E_OFFSETS, record, walk->place.header_offset,
                        "the layout puts its header here, but here is %.*s; "
                        "load.calculate_storage_offsets=off asks the directory",
                        local.name_nbytes > 100 ? 100 : (int)local.name_nbytes, local.name);
    if (local.method != 0)
        return bth_fail(error, BERTH_E_UNSUPPORTED, record, walk->place.header_offset,
                        "a deflated storage cannot be mapped or placed; unpack the archive and zip "
                        "it again with `zip -0 -r`");
    if (local.data_offset != walk->place.data_offset)
        return fail_data(walk, record, local.data_offset, error);
    if (local.nbytes != 0 && local.nbytes != storage->nbytes)
        return bth_fail(error, BERTH_E_TENSOR, record, walk->place.data_offset,
                        "data.pkl says %llu bytes, its local header %llu", (ull)storage->nbytes,
                        (ull)local.nbytes);
    return 0;
}

int bth_check_first_storage(const berth_checkpoint *checkpoint, uint64_t cursor,
                            const bth_window *window, berth_error *error)
{
    struct walk walk = begin_walk(checkpoint, cursor);
    storage_name name = {0};

    if (checkpoint->storages.n == 0)
        return 0;
    const berth_storage *storage = bth_tree_storage(checkpoint->contents.tree, 0);
    const char *record = name_storage(&name, storage, error);
    if (record && step(&walk, record, name.length, storage->nbytes, error) == 0 &&
        walk.place.data_offset <= window->head_nbytes)
        (void)compare_first(&walk, record, storage, window->head + cursor,
                            window->head_nbytes - cursor, error);
    bth_release(name.text);
    return error->code;
}

/* ---- comparing with the directory ---- */

/*
 * One reading: the entry that was compared last ends where the layout has its end: nothing that the
 * directory lists begins inside it, and the last storage's data are where they were computed, as
 * the next header tells of all others. Where its local header was read its descriptor comes first:
 * what is wrong there is told better.
 */
static int compare_end(const struct walk *walk, uint64_t end, berth_error *error)
{
    const bth_zip_entry *entry = walk->entry;

    if (!entry || entry->next_offset == end || (entry->data_offset != 0 && entry->end_offset == 0))
        return 0;
    return bth_fail(error, BERTH_E_OFFSETS, entry->record, end,
                    "the layout has its end here; the directory has what follows it at byte "
                    "%llu; load.calculate_storage_offsets=off asks its local header",
                    (ull)entry->next_offset);
}

static int compare(struct walk *walk, const char *record, size_t record_nbytes, uint64_t nbytes,
                   berth_error *error)
{
    const bth_zip_entry *entry = bth_container_find_next(&walk->checkpoint->contents.container,
                                                         record, record_nbytes, &walk->next);

    if (step(walk, record, record_nbytes, nbytes, error) < 0)
        return error->code;
    if (!entry)
        return bth_fail(error, BERTH_E_OFFSETS, record, walk->place.header_offset,
                        "the layout puts its header here, but the directory does not list it");
    if (entry->header_offset != walk->place.header_offset)
        return fail_header(walk, record, "the directory has it", entry->header_offset, error);
    if (entry->data_offset != 0 && entry->data_offset != walk->place.data_offset)
        return fail_data(walk, record, entry->data_offset, error);
    if (compare_end(walk, entry->header_offset, error) < 0)
        return error->code;
    walk->entry = entry;
    return 0;
}

static int compare_small(struct walk *walk, int which, berth_error *error)
{
    const bth_small *small = &walk->checkpoint->contents.small[which];
    const char *record = bth_small_names[which];

    if (compare(walk, record, strlen(record), small->nbytes, error) < 0)
        return error->code;
    const bth_zip_entry *entry = bth_container_find(&walk->checkpoint->contents.container, record);
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

/* Z11, one reading: a small record that the head does not show is nowhere else either. */
static int check_absent(const berth_checkpoint *checkpoint, int which, berth_error *error)
{
    const char *record = bth_small_names[which];
    const bth_zip_entry *entry = bth_container_find(&checkpoint->contents.container, record);

    if (!entry)
        return 0;
    return bth_fail(error, BERTH_E_OFFSETS, record, entry->header_offset,
                    "the directory has it here, but the layout has it before the storages; "
                    "load.calculate_storage_offsets=off reads it here");
}

/*
 * Behind the storages no offset depends on it. PyTorch's writer puts it there, as the last but one,
 * for torch.save(_disable_byteorder_record=True). Anywhere else storages are not where they should.
 */
static bool lies_elsewhere(const struct walk *walk, int which)
{
    const bth_small *small = &walk->checkpoint->contents.small[which];

    return which == BTH_BYTEORDER && small->header_offset > walk->place.next_offset;
}

static int compare_all_small(struct walk *walk, berth_error *error)
{
    for (int which = 0; which < BTH_N_SMALL && error->code == 0; which++)
        if (!lies_elsewhere(walk, which))
            (void)(walk->checkpoint->contents.small[which].present
                       ? compare_small(walk, which, error)
                       : check_absent(walk->checkpoint, which, error));
    return error->code;
}

int bth_check_small_listed(const berth_checkpoint *checkpoint, berth_error *error)
{
    struct walk walk = begin_walk(checkpoint, 0);

    return compare_all_small(&walk, error);
}

int bth_check_layout(const berth_checkpoint *checkpoint, berth_error *error)
{
    struct walk walk = begin_walk(checkpoint, 0);
    storage_name name = {0};

    if (compare_all_small(&walk, error) < 0)
        return error->code;
    for (size_t i = 0; i < checkpoint->storages.n; i++) {
        const berth_storage *storage = bth_tree_storage(checkpoint->contents.tree, i);
        const char *record = name_storage(&name, storage, error);
        walk.before_at = i;
        if (!record || compare(&walk, record, name.length, storage->nbytes, error) < 0)
            break;
    }
    bth_release(name.text);
    return error->code < 0 ? error->code : compare_end(&walk, walk.place.next_offset, error);
}

/* ---- storages and their records ---- */

/* T1. That it is stored, with two equal sizes, the directory's reader has made sure (Z9). */
static int check_storage(const berth_storage *storage, const bth_zip_entry *entry,
                         const char *record, bool *is_longer, berth_error *error)
{
    if (!entry)
        return bth_fail(error, BERTH_E_ARCHIVE, record, BERTH_NO_OFFSET,
                        "data.pkl names it, but the archive does not hold it");
    if (entry->nbytes == storage->nbytes)
        return 0;
    if (entry->nbytes > storage->nbytes &&
        entry->nbytes - storage->nbytes < berth_dtype_nbytes(storage->dtype)) {
        *is_longer = true;
        return 0;
    }
    return bth_fail(error, BERTH_E_TENSOR, record, entry->header_offset,
                    "data.pkl says %llu bytes, the record has %llu", (ull)storage->nbytes,
                    (ull)entry->nbytes);
}

int bth_check_storages(berth_checkpoint *checkpoint, berth_error *error)
{
    storage_name name = {0};
    size_t next = 0;

    for (size_t i = 0; i < checkpoint->storages.n; i++) {
        const berth_storage *storage = bth_tree_storage(checkpoint->contents.tree, i);
        const char *record = name_storage(&name, storage, error);
        const bth_zip_entry *entry = record
                                         ? bth_container_find_next(&checkpoint->contents.container,
                                                                   record, name.length, &next)
                                         : NULL;
        if (!record || check_storage(storage, entry, record,
                                     &checkpoint->contents.has_longer_record, error) < 0)
            break;
    }
    bth_release(name.text);
    return error->code;
}

int bth_take_offsets(berth_checkpoint *checkpoint, berth_error *error)
{
    storage_name name = {0};
    size_t next = 0;

    for (size_t i = 0; i < checkpoint->storages.n; i++) {
        berth_storage *storage = bth_tree_storage(checkpoint->contents.tree, i);
        const char *record = name_storage(&name, storage, error);
        if (!record)
            break;
        storage->offset =
            bth_container_find_next(&checkpoint->contents.container, record, name.length, &next)
                ->data_offset;
    }
    bth_release(name.text);
    return error->code;
}

int bth_storage_entry(const berth_checkpoint *checkpoint, const berth_storage *storage,
                      const bth_zip_entry **entry, berth_error *error)
{
    storage_name name = {0};
    const char *record = name_storage(&name, storage, error);

    *entry = record ? bth_container_find(&checkpoint->contents.container, record) : NULL;
    bth_release(name.text);
    if (record && !*entry)
        (void)bth_fail(error, BERTH_E_ARCHIVE, NULL, storage->offset,
                       "data.pkl names it, but the archive does not hold it");
    return error->code;
}

int bth_storages_of_entries(const berth_checkpoint *checkpoint, size_t *storages,
                            berth_error *error)
{
    const bth_zip_entry *entries = checkpoint->contents.container.directory.entries;
    storage_name name = {0};

    for (size_t i = 0; i < checkpoint->storages.n; i++) {
        const berth_storage *storage = bth_tree_storage(checkpoint->contents.tree, i);
        const char *record = name_storage(&name, storage, error);
        if (!record)
            break;
        const bth_zip_entry *entry = bth_container_find(&checkpoint->contents.container, record);
        if (entry)
            storages[entry - entries] = i + 1;
    }
    bth_release(name.text);
    return error->code;
}
