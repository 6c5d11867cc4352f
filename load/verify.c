/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Every byte of every record, and what is said of it. One sweep over the file sums the data and
 * looks at the headers and descriptors between; what it could not see, or what did not agree, is
 * then read again by those who make the exact sentence.
 */
#include <stdlib.h>
#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/zip/zip.h"
#include "load/storages_load.h"
#include "load/transfer/checksum_scan.h"

typedef struct verification {
    bth_reader *reader;
    const struct berth_config *config;
    bth_container *container;     /* NULL: the legacy format */
    berth_checkpoint *checkpoint; /* NULL: an archive */
    bth_verifying *asked;
    berth_verdict *verdict; /* in there */
    bth_head_cache cache;
    size_t *storages;         /* by the index of the entry: 1 + the storage's; 0: of none */
    bth_scan_record *records; /* of a zip: in directory.by_offset's order, folders too */
    size_t n_records;
    berth_error first; /* what is told of the first bad record */
} verification;

static bth_zip_entry *entry_at(const verification *v, size_t i)
{
    return &v->container->directory.entries[v->container->directory.by_offset[i]];
}

bool bth_verify_is_verdict(const berth_error *error)
{
    return error->code == BERTH_E_ARCHIVE || error->code == BERTH_E_OFFSETS ||
           error->code == BERTH_E_CHECKSUM || error->code == BERTH_E_UNSUPPORTED ||
           error->code == BERTH_E_TRUNCATED;
}

/* Whether it is about one record, and the others are looked at all the same. */
static bool is_of_record(const verification *v, const berth_error *error)
{
    return bth_verify_is_verdict(error) || bth_scan_goes_on(&v->asked->scan, error);
}

/* ---- what is swept ---- */

/* Z7: a computed place is within what the directory leaves for the entry. */
static bool fits(const bth_zip_entry *entry, uint64_t offset)
{
    return offset >= entry->header_offset && offset <= entry->next_offset &&
           entry->nbytes <= entry->next_offset - offset;
}

/* The storage of an entry, or NULL. */
static const berth_storage *storage_of(const verification *v, const bth_zip_entry *entry)
{
    size_t number = v->storages[entry - v->container->directory.entries];

    return number > 0 ? bth_tree_storage(v->checkpoint->contents.tree, number - 1) : NULL;
}

/* Where the layout has an entry's data; 0: it does not say, or that is not how this file is read.
 */
static uint64_t computed_offset(const verification *v, const bth_zip_entry *entry)
{
    const berth_storage *storage = storage_of(v, entry);

    if (!v->checkpoint || !v->checkpoint->contents.calculated_offsets)
        return 0;
    if (storage)
        return storage->offset;
    for (int which = 0; which < BTH_N_SMALL; which++)
        if (v->checkpoint->contents.small[which].present &&
            strcmp(entry->record, bth_small_names[which]) == 0)
            return v->checkpoint->contents.small[which].data_offset;
    return 0;
}

/* Whether its bytes are read when they are asked for, and summed then. */
static bool comes_later(const verification *v, const berth_storage *storage)
{
    berth_checkpoint *checkpoint = v->checkpoint;
    bth_conditions conditions = {0};

    if (!v->asked->only_mapped || !storage)
        return false;
    bth_checkpoint_lock(checkpoint);
    bth_access_describe(&checkpoint->source.access, &conditions);
    bth_choice choice = bth_storage_choose(checkpoint, &checkpoint->config, &conditions, storage);
    bth_checkpoint_unlock(checkpoint);
    return choice.method != BERTH_LOAD_MAP;
}

/*
 * What is known of one entry. Stored ones are swept where they are known to be, or are computed to
 * be; of others the header is read first.
 */
static int prepare_place(verification *v, size_t i, berth_error *error)
{
    bth_zip_entry *entry = entry_at(v, i);
    bth_scan_record *record = &v->records[i];
    uint64_t computed = computed_offset(v, entry);

    record->wants_descriptor = entry->end_offset == 0;
    if (entry->method == 0 && entry->data_offset == 0 && computed != 0 && fits(entry, computed)) {
        record->wants_header = true;
        record->offset = computed;
    } else if (entry->data_offset == 0 || (entry->method != 0 && record->wants_descriptor)) {
        record->wants_descriptor = false;
        (void)bth_container_check_entry(v->container, &v->cache, i, error);
        if (error->code < 0 && !is_of_record(v, error))
            return error->code;
        if (error->code < 0 && !bth_verify_is_verdict(error))
            v->asked->scan.unread = *error;
        bth_error_clear(error);
        record->offset = entry->data_offset;
        record->is_left_out = entry->end_offset == 0; /* not as it should be */
    }
    return 0;
}

/* T1: a record that is longer than its storage is summed as a whole, now. */
static int prepare(verification *v, size_t i, berth_error *error)
{
    const bth_zip_entry *entry = entry_at(v, i);
    const berth_storage *storage = storage_of(v, entry);
    bth_scan_record *record = &v->records[i];

    *record =
        (bth_scan_record){.entry = entry, .offset = entry->data_offset, .nbytes = entry->nbytes};
    if (prepare_place(v, i, error) < 0)
        return error->code;
    if (entry->method != 0 ||
        (storage && storage->nbytes == entry->nbytes && comes_later(v, storage)))
        record->is_left_out = true;
    if (record->is_left_out) {
        record->offset = entry->header_offset;
        record->nbytes = 0;
    }
    return 0;
}

static int prepare_zip(verification *v, berth_error *error)
{
    v->storages = bth_allocate_zeroed((v->n_records + 1) * sizeof *v->storages);
    if (!v->storages)
        return bth_fail_memory(error, (v->n_records + 1) * sizeof *v->storages);
    if (v->checkpoint && bth_storages_of_entries(&v->checkpoint->contents, v->storages, error) < 0)
        return error->code;
    for (size_t i = 0; i < v->n_records && error->code == 0; i++)
        (void)prepare(v, i, error);
    return error->code;
}

static int compare_offsets(const void *a, const void *b)
{
    const bth_scan_record *first = a, *second = b;

    return (first->offset > second->offset) - (first->offset < second->offset);
}

/* A stream has no CRCs; what can be shown is that all its bytes can be read. */
static void prepare_stream(verification *v)
{
    v->n_records = 0;
    for (size_t i = 0; i < v->checkpoint->storages.n; i++) {
        const berth_storage *storage = bth_tree_storage(v->checkpoint->contents.tree, i);
        if (!storage->root && !comes_later(v, storage))
            v->records[v->n_records++] =
                (bth_scan_record){.offset = storage->offset, .nbytes = storage->nbytes};
    }
    qsort(v->records, v->n_records, sizeof *v->records, compare_offsets);
}

/* ---- verdicts ---- */

/* Counts and tells one record; what is bad about the first one is kept. */
static void tell_record(verification *v, const bth_scan_record *record, berth_crc_verdict crc32,
                        const berth_error *bad)
{
    const bth_zip_entry *entry = record->entry;
    uint64_t nbytes = entry ? entry->nbytes : record->nbytes;
    const berth_storage *storage =
        entry && v->container && v->checkpoint ? storage_of(v, entry) : NULL;

    v->verdict->n_records++;
    v->verdict->nbytes += nbytes;
    v->verdict->n_bad += bad->code < 0;
    v->verdict->n_verified += crc32 == BERTH_CRC_GOOD && nbytes > 0;
    v->verdict->n_unverified += crc32 == BERTH_CRC_ABSENT && nbytes > 0;
    if (bad->code < 0 && v->first.code == 0)
        v->first = *bad;
    if (storage && nbytes > 0)
        v->checkpoint->storages.stored[storage->index].crc32 = (uint8_t)crc32;
    if (v->asked->tell)
        v->asked->tell(v->asked->context,
                       &(berth_record_verdict){.name = entry ? entry->record : "",
                                               .offset = record->offset,
                                               .nbytes = nbytes,
                                               .crc32 = crc32,
                                               .bad = bad->code < 0 ? bad : NULL});
}

/* Header and descriptor of one entry (Z5, Z6): seen on the way, or else now. */
static int settle(verification *v, size_t i, berth_error *bad)
{
    bth_zip_entry *entry = entry_at(v, i);
    const bth_scan_record *record = &v->records[i];

    if (entry->end_offset != 0)
        return 0;
    if (record->is_left_out || (record->wants_header && !record->header_is_good) ||
        !record->descriptor_is_good)
        return bth_container_check_entry(v->container, &v->cache, i, bad);
    entry->data_offset = record->offset;
    entry->end_offset = entry->flags & BTH_ZIP_FLAG_DESCRIPTOR ? entry->next_offset
                                                               : record->offset + record->nbytes;
    return 0;
}

/* What a request failed for that was for others, too, or for another part: read alone. */
static int read_again(const verification *v, bth_scan_record *record, berth_error *bad)
{
    bth_scan alone = {0};
    bth_scan_record again = {
        .entry = record->entry, .offset = record->offset, .nbytes = record->nbytes};

    if (!record->is_unread)
        return 0;
    (void)bth_scan_records(v->reader, v->config, &alone, &again, 1, bad);
    record->crc32 = again.crc32;
    return bad->code;
}

/* Z10. *present: the file says a CRC. */
static int compare_sum(verification *v, size_t i, bool *present, berth_error *bad)
{
    const bth_zip_entry *entry = entry_at(v, i);
    const uint8_t *bytes;
    uint8_t *owned;

    if (entry->method == 0)
        return bth_zip_check_crc(entry, v->records[i].crc32, present, bad);
    /* Deflated ones are few and small: one after the other. */
    *present = entry->crc32 != 0 || entry->nbytes == 0;
    (void)bth_container_bytes(entry, &v->cache, &bytes, &owned, bad);
    bth_release(owned);
    return bad->code;
}

/* It is not where the layout has it, nor is what follows: sums would be of other bytes. */
static int conclude_misplaced(verification *v, const bth_scan_record *record, berth_error *error)
{
    if (bth_layout_check(&v->checkpoint->contents, error) == 0)
        (void)bth_fail(error, BERTH_E_OFFSETS, record->entry->record, record->offset,
                       "its data are not where they were computed to be");
    tell_record(v, record, BERTH_CRC_UNCHECKED, error);
    return error->code;
}

/* One entry after the sweep. Fails only where nothing can be said, or about nothing more. */
static int conclude(verification *v, size_t i, berth_error *error)
{
    const bth_scan_record *record = &v->records[i];
    const bth_zip_entry *entry = record->entry;
    berth_crc_verdict crc32 = BERTH_CRC_UNCHECKED;
    bool present = false,
         is_folder = v->container->directory.by_offset[i] >= v->container->directory.n_entries;
    berth_error bad;

    bth_error_clear(&bad);
    if (settle(v, i, &bad) == 0) {
        if (record->wants_header && entry->data_offset != record->offset)
            return conclude_misplaced(v, record, error);
        if (record->is_left_out && entry->method == 0)
            return 0; /* comes later */
        if (read_again(v, &v->records[i], &bad) == 0 && compare_sum(v, i, &present, &bad) == 0)
            crc32 = present ? BERTH_CRC_GOOD : BERTH_CRC_ABSENT;
        else if (bad.code == BERTH_E_CHECKSUM)
            crc32 = BERTH_CRC_BAD;
    }
    if (bad.code < 0 && !is_of_record(v, &bad)) {
        *error = bad;
        return error->code;
    }
    if (!bth_verify_is_verdict(&bad)) /* they name their record */
        (void)bth_error_in(&bad, entry->record);
    if (!is_folder || bad.code < 0)
        tell_record(v, record, crc32, &bad);
    return 0;
}

/* Of a whole whose parts are good: that there are no others (Z7), and where they are. */
static int conclude_zip(verification *v, berth_error *error)
{
    for (size_t i = 0; i < v->n_records; i++)
        if (conclude(v, i, error) < 0)
            return error->code;
    if (v->first.code < 0)
        return 0;
    if (v->checkpoint && v->checkpoint->contents.calculated_offsets &&
        bth_layout_check(&v->checkpoint->contents, error) < 0)
        return error->code;
    return bth_zip_check_ranges(&v->container->directory, &v->container->end, 0, 0, error);
}

static void conclude_stream(verification *v)
{
    berth_error none;

    bth_error_clear(&none);
    for (size_t i = 0; i < v->n_records; i++)
        tell_record(v, &v->records[i], BERTH_CRC_ABSENT, &none);
}

/* ---- the whole ---- */

static int verify_all(verification *v, berth_error *error)
{
    if (v->container && prepare_zip(v, error) < 0)
        return error->code;
    if (!v->container)
        prepare_stream(v);
    if (bth_scan_records(v->reader, v->config, &v->asked->scan, v->records, v->n_records, error) <
        0)
        return error->code;
    if (v->container)
        return conclude_zip(v, error);
    conclude_stream(v);
    return 0;
}

static int verify(verification *v, berth_error *error)
{
    v->records = bth_allocate((v->n_records + 1) * sizeof *v->records);
    if (!v->records)
        return bth_fail_memory(error, (v->n_records + 1) * sizeof *v->records);
    bth_error_clear(&v->first);
    bth_head_cache_begin(&v->cache, v->reader);
    /* What is bad about an earlier record goes before what ends a verification. */
    if ((verify_all(v, error) == 0 || bth_verify_is_verdict(error)) && v->first.code < 0)
        *error = v->first;
    else if (error->code == 0) /* read at the second time: a disk that does so is not well */
        *error = v->asked->scan.unread;
    bth_head_cache_free(&v->cache);
    bth_release(v->storages);
    bth_release(v->records);
    return error->code;
}

static size_t n_all_records(const bth_container *container)
{
    return container->directory.n_entries + container->directory.n_folders;
}

int bth_verify_container(bth_reader *reader, const struct berth_config *config,
                         bth_container *container, bth_verifying *asked, berth_error *error)
{
    verification v = {.reader = reader,
                      .config = config,
                      .container = container,
                      .n_records = n_all_records(container),
                      .asked = asked,
                      .verdict = &asked->verdict};

    return verify(&v, error);
}

int bth_verify_data(berth_checkpoint *checkpoint, bth_verifying *asked, berth_error *error)
{
    verification v = {.reader = &checkpoint->source.reader,
                      .config = &checkpoint->config,
                      .container =
                          checkpoint->contents.is_legacy ? NULL : &checkpoint->contents.container,
                      .n_records = checkpoint->contents.is_legacy
                                       ? checkpoint->storages.n
                                       : n_all_records(&checkpoint->contents.container),
                      .checkpoint = checkpoint,
                      .asked = asked,
                      .verdict = &asked->verdict};

    asked->verdict.n_storages = checkpoint->storages.n;
    return verify(&v, error);
}
