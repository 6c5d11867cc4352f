/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The directory as a whole. The layout renders a directory for the records that were found without
 * it. If the file's directory has the same bytes, it is not parsed, and only its counts are kept. A
 * difference is no error: the same entries can be written in other ways.
 */
#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "format/bytes.h"
#include "format/layout.h"
#include "format/zip/zip.h"
#include "load/open/open_steps.h"

/* A directory with longer full names, which PyTorch does not write, is parsed. */
#define NAME_MAX_NBYTES 240
/* The same for longer storage keys (digits). */
#define KEY_MAX_NBYTES 20
/* Longest name and zip64 field (FORMAT.md 3). */
#define ENTRY_MAX_NBYTES (BTH_ZIP_CENTRAL_NBYTES + NAME_MAX_NBYTES + 28)
#define CRC32_AT 16

/* ---- known record names ---- */

/* Records that PyTorch writes after the storages. */
static bool record_name_belongs_after_storages(const char *record)
{
    return strcmp(record, "version") == 0 || strcmp(record, ".data/serialization_id") == 0;
}

static bool record_is_known(const bth_contents *contents, const char *record)
{
    if (strncmp(record, "data/", 5) == 0)
        return bth_tree_find_storage(contents->tree, record + 5, strlen(record + 5)) != NULL;
    for (size_t i = 0; i < BTH_N_SMALL; i++)
        if (strcmp(record, bth_small_names[i]) == 0)
            return true;
    return record_name_belongs_after_storages(record);
}

/* Z11: records that Berth does not know are counted. */
bth_record_counts bth_directory_count_records(const bth_contents *contents)
{
    const bth_zip_directory *directory = &contents->container.directory;
    bth_record_counts counts = {.known = true, .n_records = directory->n_entries};

    for (size_t i = 0; i < directory->n_entries; i++) {
        counts.n_unknown_records += !record_is_known(contents, directory->entries[i].record);
        counts.n_crc32 += directory->entries[i].crc32 != 0;
    }
    return counts;
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

/* Z8: checks the top folder's name; all names begin with "<archive>/". */
static bool render_check_set_prefix(render_check *check)
{
    const char *archive = check->contents->archive;
    size_t nbytes = strlen(archive);
    berth_error ignored;

    bth_error_clear(&ignored);
    if (nbytes >= NAME_MAX_NBYTES ||
        bth_zip_check_name((const uint8_t *)archive, nbytes, true, true, 0, &ignored) < 0)
        return false;
    memcpy(check->name, archive, nbytes);
    check->name[nbytes] = '/';
    check->prefix_nbytes = nbytes + 1;
    return true;
}

/* Z5, Z11: compares data.pkl and the small records with their own headers and descriptors. */
static bool render_check_small_records(render_check *check)
{
    for (int which = 0; which < BTH_N_SMALL; which++) {
        const bth_zip_entry *small = bth_contents_small_record(check->contents, which);
        const char *record = bth_small_names[which];
        if (small &&
            (small->flags != (BTH_ZIP_FLAG_UTF8 | BTH_ZIP_FLAG_DESCRIPTOR) ||
             !render_check_entry(check, record, strlen(record), small->nbytes, &small->crc32)))
            return false;
    }
    return true;
}

/* T1, Z8: one entry for each storage, with its size. False if a key is not a number: such names
 * must be checked. */
static bool render_check_storages(render_check *check)
{
    const berth_tree *tree = check->contents->tree;
    char record[sizeof "data/" + KEY_MAX_NBYTES] = "data/";

    for (size_t i = 0, n_storages = bth_tree_n_storages(tree); i < n_storages; i++) {
        const berth_storage *storage = bth_tree_storage(tree, i);
        size_t n = 0;
        for (; storage->key[n] >= '0' && storage->key[n] <= '9' && n < KEY_MAX_NBYTES; n++)
            record[5 + n] = storage->key[n];
        if (storage->key[n] || !render_check_entry(check, record, 5 + n, storage->nbytes, NULL))
            return false;
    }
    return true;
}

/* Whether these are known records in the same folder, and directly follow the storages. */
static bool render_check_rest_is_expected(const render_check *check, const bth_zip_directory *rest)
{
    /* NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): with entries there is an archive */
    bool good = rest->n_folders == 0 && strcmp(rest->archive, check->contents->archive) == 0;

    for (size_t i = 0; good && i < rest->n_entries; i++)
        good = record_name_belongs_after_storages(rest->entries[i].record);
    return good && rest->entries[rest->by_offset[0]].header_offset == check->layout.next_offset;
}

/* Parses entries that the layout does not have. False without an error: the check decides nothing.
 */
static bool render_check_rest_of_entries(render_check *check, berth_error *error)
{
    bth_container rest = {.end = check->contents->container.end};

    if (rest.end.n_entries <= check->counts.n_records)
        return false; /* without a version: what that means is told by others */
    rest.end.n_entries -= check->counts.n_records;
    rest.end.directory_nbytes -= check->at;
    if (bth_zip_read_directory(check->bytes + check->at, &rest.end, &rest.directory, error) < 0) {
        if (error->code != BERTH_E_MEMORY)
            bth_error_clear(error);
        return false;
    }
    bool good = render_check_rest_is_expected(check, &rest.directory) &&
                bth_container_check_records_from(&rest, check->cache, 0, error) == 0 &&
                bth_container_check_version(&rest, check->cache, error) == 0;
    for (size_t i = 0; i < rest.directory.n_entries; i++)
        check->counts.n_crc32 += rest.directory.entries[i].crc32 != 0;
    check->counts.n_records += rest.directory.n_entries;
    bth_container_free(&rest);
    return good;
}

int bth_directory_compare_rendered(bth_opening *opening, const uint8_t *directory,
                                   berth_error *error)
{
    render_check check = {.contents = opening->contents,
                          .cache = &opening->cache,
                          .bytes = directory,
                          .alignment = bth_layout_alignment(opening->contents),
                          .counts.known = true};

    if (render_check_set_prefix(&check) && render_check_small_records(&check) &&
        render_check_storages(&check) && render_check_rest_of_entries(&check, error))
        opening->contents->counts = check.counts;
    return error->code;
}
