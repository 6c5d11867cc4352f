/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Opening: from a source to values whose storages have offsets. If the file follows the layout, one
 * read of the head is enough, and arithmetic. The directory is read if the file does not, or if
 * load.check requires it.
 */
#include "load/open/open_steps.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/json/safetensors.h"
#include "format/layout.h"
#include "format/pickle/pickle.h"
#include "format/values/value.h"
#include "format/zip/zip.h"
#include "io/memory_region.h"

/*
 * Debug mode tells which attributes a file gives its tensors (P5). They are names that no PyTorch
 * that was tried has for itself; a newer one can, and would then set another thing than an
 * attribute.
 */

enum { MAX_SHOWN = 8 };

/* The different names, as keys. */
typedef struct attribute_names {
    berth_tree *tree;
    berth_value *names;
} attribute_names;

/* A state is a dict, or one and a second one for slots. Inert classes can have anything. Each name
 * is a str (P5). */
static int attribute_names_add_of_value(void *context, const berth_walk *walk,
                                        const berth_value *value)
{
    const attribute_names *found = context;
    const berth_value *state = berth_value_part(value, BERTH_PART_STATE);
    bool are_two = berth_value_kind(state) == BERTH_KIND_TUPLE;

    (void)walk;
    if (berth_value_kind(value) != BERTH_KIND_SUBCLASS || berth_value_part(value, BERTH_PART_TYPE))
        return 0;
    for (size_t d = 0; d < (are_two ? 2 : 1); d++) {
        const berth_value *attributes = are_two ? bth_value_item(state, d) : state;
        for (size_t i = 0; i < berth_value_count(attributes); i++) {
            size_t nbytes;
            const char *text = berth_as_text(bth_value_key(attributes, i), &nbytes);
            (void)berth_dict_set_value(found->names, berth_make_str(found->tree, text, nbytes),
                                       berth_make_none(found->tree));
        }
    }
    return 0;
}

/* Logs the different names, if there are any. Only memory can fail. */
static int contents_log_attribute_names(const bth_contents *contents, const char *file,
                                        berth_error *error)
{
    attribute_names found = {.tree = berth_tree_new(error)};
    berth_walker walker = {.enter = attribute_names_add_of_value, .context = &found};
    char shown[MAX_SHOWN * 42] = "", more[40] = "";
    size_t n = 0, at = 0;

    if (!found.tree)
        return error->code;
    found.names = berth_make_dict(found.tree, BERTH_KIND_DICT);
    if (berth_value_walk(contents->root, &walker, error) == 0 &&
        berth_tree_error(found.tree, error) == 0)
        n = berth_value_count(found.names);
    for (size_t i = 0; i < n && i < MAX_SHOWN; i++)
        at += (size_t)snprintf(shown + at, sizeof shown - at, "%s%.40s", i ? ", " : "",
                               berth_as_text(bth_value_key(found.names, i), NULL));
    if (n > MAX_SHOWN)
        (void)snprintf(more, sizeof more, " and %zu more", n - MAX_SHOWN);
    if (n > 0)
        bth_log("%s: tensors have the attributes %s%s, which no known PyTorch has for itself", file,
                shown, more);
    berth_tree_free(found.tree);
    return error->code;
}

/*
 * Repacked files (Z13): they say that their offsets can be calculated, but their directory differs
 * from the layout. The directory decides, if all headers agree with it.
 */

/*
 * After an error without the directory: whether it must decide if the file was repacked. A repacked
 * file can be shorter than its layout. One that was cut short has no end records: that is told,
 * whatever global its pickle names.
 */
static bool opening_may_be_repacked(bth_opening *opening, berth_error *error)
{
    bth_container *container = &opening->contents->container, damaged = {0};
    const uint8_t *directory;
    berth_error found;

    bth_error_clear(&found);
    if (error->code == BERTH_E_TRUNCATED && !container->known)
        return bth_container_read_directory_bytes(container, &opening->cache, BTH_ZIP_TAIL_NBYTES,
                                                  &directory, &found) == 0;
    if (error->code != BERTH_E_FORBIDDEN)
        return error->code == BERTH_E_OFFSETS;
    (void)bth_container_read(&damaged, &opening->cache, BTH_ZIP_TAIL_NBYTES, &found);
    bth_container_free(&damaged);
    if (found.code == BERTH_E_ARCHIVE || found.code == BERTH_E_TRUNCATED)
        *error = found;
    return false;
}

/* Z5 to Z7 for every record, as this load.check says. */
static int opening_check_records(bth_opening *opening, int64_t load_check, berth_error *error)
{
    return bth_container_check_records_from(&opening->contents->container, &opening->cache, 0,
                                            load_check, error);
}

/*
 * Compares a file that is read by its directory with the layout, because PyTorch may read it by
 * calculated offsets. If its directory differs, it was repacked. If only local headers differ, that
 * is an error.
 */
static int opening_compare_with_layout(bth_opening *opening, berth_error *error)
{
    static const bth_step mends = {"berth convert --set debug=off --set load.repacked=accept ",
                                   " NEW.pt", "mends it",
                                   "debug=off and load.repacked=accept read it", false};
    bth_contents *contents = opening->contents;
    const struct berth_config *config = opening->config;

    if (contents->format_version < 1)
        return 0;
    /* With the directory alone, as load.check=directory does: the same file gets the same result,
     * whichever local headers were read. T1: the layout has no place for storages behind a record
     * that is longer than its elements. */
    (void)(contents->has_longer_record ? bth_layout_check_small_records_listed(contents, error)
                                       : bth_layout_check(contents, true, error));
    contents->repacked = error->code == BERTH_E_OFFSETS;
    if (!config->load_calculate_storage_offsets) {
        /* Only the directory counts. Debug mode logs how the layout differs. */
        if (error->code == BERTH_E_MEMORY)
            return error->code;
        bth_error_clear(error);
        if (!config->debug || contents->has_longer_record ||
            bth_layout_check(contents, false, error) == 0 || error->code == BERTH_E_MEMORY)
            return error->code;
        bth_log("%s: %s", opening->cache.reader->name, error->message);
        bth_error_clear(error);
        return 0;
    }
    if (!contents->repacked) {
        if (opening->difference.code < 0)
            *error = opening->difference;
        if (error->code < 0 || config->load_check < BTH_CHECK_DIRECTORY)
            return error->code;
        return bth_layout_check(contents, false, error);
    }
    /* Z13: it has one reading if every local header and descriptor agrees with the directory. */
    if (opening->difference.code == 0)
        opening->difference = *error;
    bth_error_clear(error);
    if ((!opening->looks_repacked &&
         opening_check_records(opening, BTH_CHECK_HEADERS, error) < 0) ||
        (!config->debug && config->load_repacked != BTH_REPACKED_REFUSE))
        return error->code;
    *error = opening->difference;
    (void)bth_error_append(error, "; the file was repacked, which debug mode and "
                                  "load.repacked=refuse refuse");
    return bth_error_append_step(error, ": ", &mends, opening->cache.reader);
}

/* Estimated bytes of the directory for entries that are not storages. */
#define OTHER_ENTRIES_NBYTES 4096
/* Read in addition to the estimate: another request would cost more. */
#define REST_MAX_NBYTES (1 << 20)

/* One read for the counts of small storages that follow each other. */
#define LEGACY_AHEAD_NBYTES 4096
#define LEGACY_COUNT_NBYTES 8

/* ---- the steps ---- */

/* Fills empty contents with what is so before anything is read. */
static int contents_begin(bth_opening *opening, berth_error *error)
{
    const int64_t assumed = opening->config->load_endianness;
    const bool native_is_big = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;

    /* The byte order of a file without a byteorder record (FORMAT.md 7). */
    opening->contents->is_big =
        assumed == BTH_BYTEORDER_NATIVE ? native_is_big : assumed == BTH_BYTEORDER_BIG;
    opening->contents->tree = berth_tree_new(error);
    return error->code;
}

static int values_read(bth_opening *opening, const uint8_t *bytes, size_t nbytes, uint64_t offset,
                       const bth_pickle_survey *survey, berth_error *error)
{
    bth_contents *contents = opening->contents;
    bth_pickle_rules rules = {.survey = survey,
                              .inert = opening->config->load_unknown_globals == BTH_UNKNOWN_INERT,
                              .latin1 = opening->config->load_old_text == BTH_OLD_TEXT_LATIN1,
                              .record = bth_small_names[BTH_DATA_PKL],
                              .base_offset = offset};
    bth_pages pages = {.wanted = opening->config->io_large_pages};
    uint64_t n_pages = 5 * (uint64_t)nbytes / BTH_LARGE_PAGE_NBYTES;
    uint64_t spare_nbytes = n_pages * BTH_LARGE_PAGE_NBYTES;
    berth_error ignored;

    /*
     * Values need about five times the bytes of their pickle. A new page of memory costs more time
     * than filling it, so many values get large pages. A failure here does no harm.
     */
    bth_error_clear(&ignored);
    if (n_pages > 0 &&
        bth_region_new(spare_nbytes, 4096, false, &pages, &contents->values, &ignored) == 0)
        bth_tree_set_spare_memory(contents->tree, contents->values.bytes, (size_t)spare_nbytes);
    if (bth_pickle_read(bytes, nbytes, &rules, contents->tree, &contents->root, error) < 0)
        (void)bth_pickle_explain_refusal(bytes, nbytes, opening->cache.reader, error);
    return error->code;
}

static void opening_log_fallback(const bth_opening *opening, const char *reason)
{
    if (opening->contents->repacked)
        reason = "repacked: readers that calculate offsets misread this file; `berth convert` "
                 "mends it";
    bth_log("%s: storages are found through the directory, not by calculated offsets: %s",
            opening->cache.reader->name, reason);
}

/* ---- offsets by the layout ---- */

/*
 * The size of the read at the file's end: the end records, and the directory if it lists only the
 * expected records. If little more lies after the storages, all of that: its headers are checked.
 */
static uint64_t contents_tail_nbytes(const bth_contents *contents, uint64_t file_nbytes)
{
    uint64_t guess = contents->central_nbytes + OTHER_ENTRIES_NBYTES + BTH_ZIP_END_NBYTES;
    uint64_t rest = file_nbytes - contents->layout_end;

    return rest > guess && rest - guess <= REST_MAX_NBYTES ? rest : guess;
}

/* load.check=directory or stricter: compares the computed offsets with the directory. */
static int contents_check_computed_offsets(bth_opening *opening, berth_error *error)
{
    bth_contents *contents = opening->contents;
    bth_container *container = &contents->container;
    bth_head_cache *cache = &opening->cache;
    bool checks_headers = opening->config->load_check >= BTH_CHECK_HEADERS;
    uint64_t tail_nbytes = contents_tail_nbytes(contents, cache->reader->nbytes);
    const uint8_t *directory;
    berth_error ignored;

    if (bth_container_read_directory_bytes(container, cache, tail_nbytes, &directory, error) < 0)
        return error->code;
    if (!checks_headers && !contents->keeps_directory &&
        bth_directory_compare_rendered(opening, directory, error) < 0)
        return error->code;
    if (contents->counts.known)
        return 0;
    if (bth_container_parse_directory(container, directory, error) < 0 ||
        bth_archive_check_is_checkpoint(container, cache->reader, error) < 0 ||
        bth_storages_check_entries(contents, error) < 0)
        return error->code;
    if (contents->has_longer_record) {
        /* FORMAT.md 6: a rare file of PyTorch for which calculated offsets are wrong. */
        if (opening_check_records(opening, opening->config->load_check, error) < 0 ||
            bth_container_check_version(container, cache, error) < 0 ||
            bth_layout_check_small_records_listed(contents, error) < 0 ||
            bth_storages_set_listed_offsets(contents, error) < 0)
            return error->code;
        contents->calculated_offsets = false;
        opening_log_fallback(opening, "a record is longer than its elements");
        return 0;
    }
    /*
     * Compares the layout with the directory first: that message is the clearest. If they differ,
     * local headers that are checked may show an earlier difference.
     */
    if (bth_layout_check(contents, false, error) == BERTH_E_OFFSETS && checks_headers) {
        bth_error_clear(&ignored);
        (void)opening_check_records(opening, BTH_CHECK_NONE, &ignored);
        bth_error_clear(error);
        (void)bth_layout_check(contents, false, error);
    }
    if (error->code < 0)
        return error->code;
    if (checks_headers) {
        if (opening_check_records(opening, opening->config->load_check, error) < 0 ||
            bth_layout_check(contents, false, error) < 0)
            return error->code;
    } else { /* only the records after those of the layout */
        size_t n_known = bth_tree_n_storages(contents->tree);
        for (int which = 0; which < BTH_N_SMALL; which++)
            n_known += bth_contents_small_record(contents, which) != NULL;
        if (bth_container_check_records_from(container, cache, n_known, BTH_CHECK_HEADERS, error) <
            0)
            return error->code;
    }
    return bth_container_check_version(container, cache, error);
}

static int contents_read_listed(bth_opening *opening, const char *reason, berth_error *error)
{
    bth_contents *contents = opening->contents;
    bth_container *container = &contents->container;
    int64_t load_check = opening->looks_repacked ? BTH_CHECK_HEADERS : opening->config->load_check;
    const uint8_t *bytes;
    uint8_t *owned;

    if (bth_container_read(container, &opening->cache, BTH_ZIP_TAIL_NBYTES, error) < 0 ||
        bth_archive_check_is_checkpoint(container, opening->cache.reader, error) < 0 ||
        opening_check_records(opening, load_check, error) < 0 ||
        bth_container_check_version(container, &opening->cache, error) < 0)
        return error->code;
    char *archive =
        bth_duplicate_text(container->directory.archive, container->directory.archive_nbytes);
    if (!archive)
        return bth_fail_memory(error, container->directory.archive_nbytes);
    contents->archive = archive;
    for (int which = BTH_N_SMALL; which-- > 0;) { /* data.pkl last */
        const bth_zip_entry *entry = bth_container_find(container, bth_small_names[which]);
        if (!entry)
            continue;
        if (bth_entry_read_data(entry, &opening->cache, &bytes, &owned, error) < 0)
            return error->code;
        contents->small[which] = *entry;
        if (which == BTH_DATA_PKL)
            (void)values_read(opening, bytes, entry->nbytes, entry->data_offset, NULL, error);
        else
            (void)bth_small_record_parse(contents, which, bytes, entry->nbytes, entry->data_offset,
                                         error);
        bth_release(owned);
        if (error->code < 0)
            return error->code;
    }
    contents->is_program = !contents->root;
    if ((contents->is_program && bth_exported_read(opening, error) < 0) ||
        bth_storages_check_entries(contents, error) < 0 ||
        (!contents->is_program && opening_compare_with_layout(opening, error) < 0))
        return error->code;
    opening_log_fallback(opening, reason);
    return bth_storages_set_listed_offsets(contents, error);
}

static int contents_read_zip(bth_opening *opening, berth_error *error)
{
    bth_contents *contents = opening->contents;
    const char *reason = "load.calculate_storage_offsets=off";
    uint64_t cursor = 0;

    if (bth_archive_check_first_name(&opening->cache, error) < 0)
        return error->code;
    if (opening->config->load_calculate_storage_offsets &&
        bth_head_read(opening, &cursor, &reason, error) < 0)
        return error->code;
    if (!reason) {
        const bth_zip_entry *pickle = &contents->small[BTH_DATA_PKL];
        if (bth_layout_check_small_records(contents, cursor, error) == 0 &&
            values_read(opening, opening->cache.head + pickle->data_offset, pickle->nbytes,
                        pickle->data_offset, &contents->survey, error) == 0 &&
            bth_layout_compute_storage_offsets(opening, cursor, error) == 0) {
            contents->calculated_offsets = true;
            /* The directory first: then the message has both offsets. */
            if (opening->config->load_check >= BTH_CHECK_DIRECTORY)
                (void)contents_check_computed_offsets(opening, error);
            if (error->code == 0 && contents->calculated_offsets)
                (void)bth_layout_check_first_storage(opening, cursor, error);
        }
        if (error->code == 0 || !opening_may_be_repacked(opening, error))
            return error->code;
        if (error->code == BERTH_E_OFFSETS)
            opening->difference = *error;
        opening->looks_repacked = true;
        bth_error_clear(error);
    }
    /* Discards what was found without the directory. */
    bth_contents_free(contents);
    *contents = (bth_contents){.keeps_directory = contents->keeps_directory};
    if (contents_begin(opening, error) < 0)
        return error->code;
    return contents_read_listed(opening, reason, error);
}

/* ---- the legacy format ---- */

static int legacy_read(bth_opening *opening, berth_error *error)
{
    bth_pickle_rules common = {.inert = opening->config->load_unknown_globals == BTH_UNKNOWN_INERT,
                               .latin1 = opening->config->load_old_text == BTH_OLD_TEXT_LATIN1};
    bth_contents *contents = opening->contents;
    bth_head_cache *cache = &opening->cache;
    uint64_t at, max_tail_nbytes = 0, file_nbytes = cache->reader->nbytes;
    bth_legacy legacy = {0};
    const berth_storage *last = NULL;
    const uint8_t *bytes;

    contents->kind = BTH_CONTAINER_LEGACY;
    /* The five pickles: the head is extended until it holds them. */
    while (bth_legacy_read_pickles(cache->head, cache->head_nbytes, &common, contents->tree,
                                   &legacy, error) == BERTH_E_TRUNCATED &&
           cache->head_nbytes < file_nbytes) {
        bth_error_clear(error);
        if (bth_head_cache_extend_head(cache, 4 * cache->head_nbytes, error) < 0)
            break;
    }
    if (error->code < 0)
        (void)bth_legacy_explain_refusal(cache, error);
    if (error->code == BERTH_E_TRUNCATED && !strstr(error->message, "; it names"))
        (void)bth_error_append(error, BTH_CUT_OFF);
    if (error->code < 0)
        return error->code;
    contents->root = legacy.root;
    /* PyTorch writes and reads the elements little-endian on every machine, even if little_endian
       in the head is false (FORMAT.md 7). */
    contents->is_big = false;
    contents->byteorder_recorded = true;

    at = legacy.payload_offset;
    for (size_t i = 0; i < legacy.n_keys; i++)
        if (bth_head_cache_get_or_read(&opening->cache, at, LEGACY_COUNT_NBYTES,
                                       LEGACY_AHEAD_NBYTES, &bytes, error) < 0 ||
            bth_legacy_check_count_and_set_offset(&legacy, contents->tree, i, bytes, at,
                                                  file_nbytes, &at, error) < 0)
            return error->code;
    /*
     * PyTorch writes all bytes of a storage, also those behind its last whole element, and its
     * readers end before them. Only the last storage can have some: behind another one no reader
     * finds its way.
     */
    if (legacy.n_keys > 0) {
        const char *key = legacy.keys[legacy.n_keys - 1];
        last = bth_tree_find_storage(contents->tree, key, strlen(key));
    }
    if (last)
        max_tail_nbytes = berth_dtype_nbytes(last->dtype) - 1;
    if (file_nbytes - at <= max_tail_nbytes)
        return 0;
    /* torch.save can write several objects to one file: torch.load of the path reads the first. */
    uint64_t n = bth_min(file_nbytes - at, BTH_LEGACY_MAGIC_NBYTES);
    if (bth_head_cache_get_or_read(&opening->cache, at, n, n, &bytes, error) < 0)
        return error->code;
    if (bth_legacy_begins(bytes, (size_t)n)) {
        contents->behind_nbytes = file_nbytes - at;
        return 0;
    }
    (void)bth_fail(error, BERTH_E_ARCHIVE, NULL, at, "%llu bytes" BTH_FOLLOW_LAST "storage",
                   (unsigned long long)(file_nbytes - at));
    return bth_error_append_leaves_out(error, at, " >NEW.pt", opening->cache.reader);
}

/* ---- safetensors ---- */

static int safetensors_read(bth_opening *opening, uint64_t header_nbytes, berth_error *error)
{
    bth_head_cache *cache = &opening->cache;
    bth_contents *contents = opening->contents;
    int64_t tied_names = opening->config->load_tied_names;
    bth_safetensors read;

    contents->kind = BTH_CONTAINER_SAFETENSORS;
    if (bth_safetensors_check_length(header_nbytes, cache->reader->nbytes, error) < 0 ||
        bth_head_cache_extend_head(cache, BTH_SAFETENSORS_LENGTH_NBYTES + header_nbytes, error) <
            0 ||
        bth_safetensors_read(cache->head, header_nbytes, cache->reader->nbytes, contents->tree,
                             &read, error) < 0) {
        if (error->code == BERTH_E_ARCHIVE && strstr(error->message, BTH_FOLLOW_LAST))
            (void)bth_error_append_leaves_out(error, error->offset, " >NEW.safetensors",
                                              cache->reader);
        return error->code;
    }
    if (tied_names != BTH_TIED_NAMES_OFF &&
        bth_safetensors_add_tied_names(contents->tree, &read, tied_names == BTH_TIED_NAMES_RULE,
                                       error) < 0)
        return error->code;
    contents->root = read.root;
    contents->metadata = read.metadata;
    contents->byteorder_recorded = true; /* the format has only little-endian elements */
    return 0;
}

int bth_contents_read(bth_contents *contents, bth_reader *reader, const struct berth_config *config,
                      berth_error *error)
{
    bth_opening opening = {.contents = contents, .config = config};
    bth_head_cache *cache = &opening.cache;
    uint64_t head_nbytes = bth_max((uint64_t)config->load_head_nbytes, BTH_HEAD_MIN_NBYTES);

    if (contents_begin(&opening, error) < 0)
        return error->code;
    bth_head_cache_initialize(cache, reader, config->io_large_pages);
    if (bth_head_cache_extend_head(cache, head_nbytes, error) == 0) {
        uint64_t header_nbytes =
            bth_safetensors_header_nbytes(cache->head, (size_t)cache->head_nbytes);
        if (cache->head_nbytes >= 4 && memcmp(cache->head, "PK\3\4", 4) == 0)
            (void)contents_read_zip(&opening, error);
        else if (bth_is_legacy(cache->head, cache->head_nbytes))
            (void)legacy_read(&opening, error);
        else if (header_nbytes > 0)
            (void)safetensors_read(&opening, header_nbytes, error);
        else
            (void)bth_refuse_kind(cache, error);
    }
    if (error->code == 0 && config->debug)
        (void)contents_log_attribute_names(contents, reader->name, error);
    bth_head_cache_free(cache);
    return error->code;
}

/* ---- afterwards ---- */

int bth_contents_ensure_directory(bth_contents *contents, bth_reader *reader, berth_error *error)
{
    bth_head_cache cache;

    if (!bth_contents_are_zip(contents) || contents->container.known)
        return 0;
    bth_head_cache_initialize(&cache, reader, BTH_LARGE_PAGES_AUTO);
    (void)bth_container_read(&contents->container, &cache,
                             contents_tail_nbytes(contents, reader->nbytes), error);
    bth_head_cache_free(&cache);
    return error->code;
}

void bth_contents_free(bth_contents *contents)
{
    bth_names_free(contents->names);
    berth_tree_free(contents->tree);
    bth_region_free(&contents->values);
    bth_container_free(&contents->container);
    bth_release(contents->archive);
}
