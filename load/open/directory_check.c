/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The directory as a whole. Where it is, byte for byte, what the layout renders for the records
 * that were found without it, nothing in it is left to be read: it is not taken apart, and nothing
 * is kept of it but its counts. A difference is no verdict: field by field it may say the same.
 */
#include <string.h>

#include "config/error.h"
#include "format/bytes.h"
#include "format/layout.h"
#include "format/zip/zip_fields.h"
#include "format/zip/zip_write.h"
#include "load/checkpoint.h"

/* Of a full name. Longer ones, which PyTorch does not write, are read as ever. */
#define MOST_NAME_NBYTES 240
/* The same of a storage's key: digits. */
#define MOST_KEY_NBYTES 20
/* Name and zip64 field: FORMAT.md 3. */
#define MOST_ENTRY_NBYTES (BTH_ZIP_CENTRAL_NBYTES + MOST_NAME_NBYTES + 28)
#define CRC32_AT 16

/* ---- records that are known by name ---- */

/* What PyTorch writes behind the storages. */
static bool is_last(const char *record)
{
    return strcmp(record, "version") == 0 || strcmp(record, ".data/serialization_id") == 0;
}

static bool is_own_record(const char *record)
{
    for (size_t i = 0; i < BTH_N_SMALL; i++)
        if (strcmp(record, bth_small_names[i]) == 0)
            return true;
    return is_last(record);
}

/* Z11: records that nothing here knows are counted. */
static bth_listing count_records(const berth_checkpoint *checkpoint)
{
    const bth_zip_directory *directory = &checkpoint->contents.container.directory;
    bth_listing listing = {.known = true, .n_records = directory->n_entries};

    for (size_t i = 0; i < directory->n_entries; i++) {
        const bth_zip_entry *entry = &directory->entries[i];
        bool is_storage = strncmp(entry->record, "data/", 5) == 0 &&
                          bth_tree_find_storage(checkpoint->contents.tree, entry->record + 5,
                                                strlen(entry->record + 5)) != NULL;
        listing.n_unknown_records += !is_storage && !is_own_record(entry->record);
        listing.n_crc32 += entry->crc32 != 0;
    }
    return listing;
}

int bth_checkpoint_need_listing(berth_checkpoint *checkpoint, berth_error *error)
{
    if (!checkpoint->contents.listing.known &&
        bth_checkpoint_need_directory(checkpoint, error) == 0)
        checkpoint->contents.listing = count_records(checkpoint);
    return error->code;
}

/* ---- the directory as it is rendered ---- */

/* Where the comparison is. */
struct comparing {
    const berth_checkpoint *checkpoint;
    const bth_zip_end *end;
    const uint8_t *bytes; /* the directory's */
    size_t at;            /* in them */
    uint32_t alignment;
    bth_place place;      /* of the last record */
    bth_listing listing;  /* so far */
    size_t prefix_nbytes; /* "<archive>/" */
    char name[MOST_NAME_NBYTES];
};

/* The next entry, of the record whose name ends in `record`. NULL: any CRC. */
static bool take_entry(struct comparing *comparing, const char *record, size_t record_nbytes,
                       uint64_t nbytes, const uint32_t *crc32)
{
    size_t name_nbytes = comparing->prefix_nbytes + record_nbytes;
    size_t left = (size_t)comparing->end->directory_nbytes - comparing->at;
    const uint8_t *bytes = comparing->bytes + comparing->at;
    uint8_t rendered[MOST_ENTRY_NBYTES];
    bth_place *place = &comparing->place;

    if (name_nbytes > MOST_NAME_NBYTES)
        return false;
    /* It has been placed there before; otherwise the last place would not be that of this entry. */
    (void)bth_layout_place(place->next_offset, name_nbytes, nbytes, comparing->alignment, place);
    if (bth_layout_central_nbytes(place) > left)
        return false;
    size_t entry_nbytes = (size_t)bth_layout_central_nbytes(place);
    bth_cursor cursor = bth_cursor_over(bytes + CRC32_AT, 4);
    uint32_t recorded = bth_cursor_u32(&cursor);
    memcpy(comparing->name + comparing->prefix_nbytes, record, record_nbytes);
    bth_zip_write_central(place, comparing->name, crc32 ? *crc32 : recorded, rendered);
    if (memcmp(rendered, bytes, entry_nbytes) != 0)
        return false;
    comparing->at += entry_nbytes;
    comparing->listing.n_records++;
    comparing->listing.n_crc32 += recorded != 0;
    return true;
}

/* Z8: the top folder is a name as good as any; then "<archive>/" begins all names. */
static bool take_prefix(struct comparing *comparing)
{
    const char *archive = comparing->checkpoint->contents.archive;
    size_t nbytes = strlen(archive);
    berth_error unasked;

    bth_error_clear(&unasked);
    if (nbytes >= MOST_NAME_NBYTES ||
        bth_zip_check_name((const uint8_t *)archive, nbytes, true, 0, &unasked) < 0)
        return false;
    memcpy(comparing->name, archive, nbytes);
    comparing->name[nbytes] = '/';
    comparing->prefix_nbytes = nbytes + 1;
    return true;
}

/* Z5, Z11: data.pkl and its neighbours, as their own headers and descriptors have them. */
static bool take_small(struct comparing *comparing)
{
    for (int which = 0; which < BTH_N_SMALL; which++) {
        const bth_small *small = &comparing->checkpoint->contents.small[which];
        const char *record = bth_small_names[which];
        if (small->present &&
            (small->flags != (BTH_ZIP_FLAG_UTF8 | BTH_ZIP_FLAG_DESCRIPTOR) ||
             !take_entry(comparing, record, strlen(record), small->nbytes, &small->crc32)))
            return false;
    }
    return true;
}

/* T1, Z8: one for each, of its size; keys that are no numbers are left to who checks names. */
static bool take_storages(struct comparing *comparing)
{
    const berth_checkpoint *checkpoint = comparing->checkpoint;
    char record[sizeof "data/" + MOST_KEY_NBYTES] = "data/";

    for (size_t i = 0; i < checkpoint->storages.n; i++) {
        const berth_storage *storage = bth_tree_storage(checkpoint->contents.tree, i);
        size_t n = 0;
        for (; storage->key[n] >= '0' && storage->key[n] <= '9' && n < MOST_KEY_NBYTES; n++)
            record[5 + n] = storage->key[n];
        if (storage->key[n] || !take_entry(comparing, record, 5 + n, storage->nbytes, NULL))
            return false;
    }
    return true;
}

/* Whether these are known records in the same folder, the first one right behind the storages. */
static bool are_last(const struct comparing *comparing, const bth_zip_directory *rest)
{
    /* NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): with entries there is an archive */
    bool good =
        rest->n_folders == 0 && strcmp(rest->archive, comparing->checkpoint->contents.archive) == 0;

    for (size_t i = 0; good && i < rest->n_entries; i++)
        good = is_last(rest->entries[i].record);
    return good && rest->entries[rest->by_offset[0]].header_offset == comparing->place.next_offset;
}

/* What the layout does not know, and is read strictly. False without an error: no verdict. */
static bool take_rest(struct comparing *comparing, bth_window *window, berth_error *error)
{
    bth_container rest = {.end = *comparing->end};

    if (rest.end.n_entries <= comparing->listing.n_records)
        return rest.end.n_entries == comparing->listing.n_records &&
               rest.end.directory_nbytes == comparing->at &&
               rest.end.directory_offset == comparing->place.next_offset;
    rest.end.n_entries -= comparing->listing.n_records;
    rest.end.directory_nbytes -= comparing->at;
    if (bth_zip_read_directory(comparing->bytes + comparing->at, &rest.end, &rest.directory,
                               error) < 0) {
        if (error->code != BERTH_E_MEMORY)
            bth_error_clear(error);
        return false;
    }
    bool good = are_last(comparing, &rest.directory) &&
                bth_container_check_rest(&rest, window, 0, error) == 0;
    for (size_t i = 0; i < rest.directory.n_entries; i++)
        comparing->listing.n_crc32 += rest.directory.entries[i].crc32 != 0;
    comparing->listing.n_records += rest.directory.n_entries;
    bth_container_free(&rest);
    return good;
}

int bth_listing_take_rendered(berth_checkpoint *checkpoint, const uint8_t *directory,
                              bth_window *window, berth_error *error)
{
    struct comparing comparing = {.checkpoint = checkpoint,
                                  .end = &checkpoint->contents.container.end,
                                  .bytes = directory,
                                  .alignment = bth_checkpoint_alignment(checkpoint),
                                  .listing.known = true};

    if (take_prefix(&comparing) && take_small(&comparing) && take_storages(&comparing) &&
        take_rest(&comparing, window, error))
        checkpoint->contents.listing = comparing.listing;
    return error->code;
}
