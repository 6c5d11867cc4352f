/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Verification. One checksum scan reads every byte of the file: it sums the data, and checks the
 * headers and descriptors in between. Records that it could not check, or that differ, are read
 * again by functions that give the exact message.
 */
#include "load/verify.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/zip/zip.h"
#include "load/errors_with_names.h"
#include "load/storage_state.h"

typedef struct verification {
    bth_reader *reader;
    const struct berth_config *config;
    bth_container *container;     /* NULL: the legacy format */
    berth_checkpoint *checkpoint; /* NULL: an archive */
    bth_verify_request *request;
    bth_head_cache cache;
    const berth_storage **storages; /* by the index of an entry; NULL: it is no storage */
    bth_scan_record *records; /* of a zip: in the order of directory.by_offset, with folders */
    size_t n_records;
    berth_error first;                  /* of the first bad record */
    const berth_storage *first_storage; /* if its CRC is bad; or NULL */
} verification;

bool bth_verify_is_verdict(const berth_error *error)
{
    return error->code == BERTH_E_ARCHIVE || error->code == BERTH_E_OFFSETS ||
           error->code == BERTH_E_CHECKSUM || error->code == BERTH_E_UNSUPPORTED ||
           error->code == BERTH_E_TRUNCATED;
}

/* Whether the error is about one record, and the others can still be checked. */
static bool verify_can_continue_after(const verification *v, const berth_error *error)
{
    return bth_verify_is_verdict(error) ||
           (v->request->scan.goes_on && bth_error_is_of_bad_disk(error));
}

/* ---- the records to scan ---- */

/* The storage of an entry, or NULL. */
static const berth_storage *verification_storage_of_entry(const verification *v,
                                                          const bth_zip_entry *entry)
{
    assert(v->container);
    return v->storages[entry - v->container->directory.entries];
}

/* Whether a later load reads its bytes and sums them. */
static bool verify_leaves_storage_to_load(const verification *v, const berth_storage *storage)
{
    return v->request->only_mapped && storage &&
           !bth_storage_will_be_mapped(v->checkpoint, storage);
}

/*
 * The record of entry i. If it is stored and its offset is known, or computed by the layout, the
 * scan checks its header. Else the header is read first. T1: if a record is longer than its
 * storage, this scan sums the whole record.
 */
static int verify_prepare_record(verification *v, size_t i, berth_error *error)
{
    bth_zip_entry *entry = bth_container_entry_in_file_order(v->container, i);
    const bth_contents *contents = v->checkpoint ? &v->checkpoint->contents : NULL;
    const berth_storage *storage = verification_storage_of_entry(v, entry);
    bth_scan_record *record = &v->records[i];
    uint64_t computed = 0; /* 0: the layout has no such entry, or is not used */

    *record =
        (bth_scan_record){.entry = entry, .offset = entry->data_offset, .nbytes = entry->nbytes};
    if (contents && contents->calculated_offsets && storage)
        computed = storage->offset;
    for (int which = 0; contents && contents->calculated_offsets && !storage && which < BTH_N_SMALL;
         which++)
        if (bth_contents_small_record(contents, which) &&
            strcmp(entry->record, bth_small_names[which]) == 0) {
            computed = contents->small[which].data_offset;
            break;
        }
    /* Z7: a computed offset lies within the range that the directory leaves for the entry. */
    bool is_in_entry = computed >= entry->header_offset && computed <= entry->next_offset &&
                       entry->nbytes <= entry->next_offset - computed;
    record->wants_descriptor = entry->end_offset == 0;
    if (entry->method == 0 && entry->data_offset == 0 && computed != 0 && is_in_entry) {
        record->wants_header = true;
        record->offset = computed;
    } else if (entry->data_offset == 0 || (entry->method != 0 && record->wants_descriptor)) {
        record->wants_descriptor = false;
        if (bth_container_check_entry(v->container, &v->cache, i, error) < 0)
            (void)bth_error_add_record(error, entry->record); /* if it is no verdict */
        if (error->code < 0 && !verify_can_continue_after(v, error))
            return error->code;
        if (error->code < 0 && !bth_verify_is_verdict(error))
            v->request->scan.unread = *error;
        bth_error_clear(error);
        record->offset = entry->data_offset;
        record->is_left_out = entry->end_offset == 0; /* its header or descriptor is bad */
    }
    if (storage && storage->nbytes == entry->nbytes && verify_leaves_storage_to_load(v, storage))
        record->is_left_out = true;
    record->is_deflated = entry->method == BTH_ZIP_DEFLATED && !record->is_left_out;
    if (record->is_left_out) {
        record->offset = entry->header_offset;
        record->nbytes = 0;
    }
    return 0;
}

/* ---- results ---- */

/* Counts and reports one record. Keeps the error of the first bad one. */
static void verify_count_and_report_record(verification *v, const bth_scan_record *record,
                                           berth_crc_verdict crc32, const berth_error *bad)
{
    const bth_zip_entry *entry = record->entry;
    uint64_t nbytes = entry ? entry->nbytes : record->nbytes;
    const berth_storage *storage = /* an archive has none */
        entry && v->checkpoint ? verification_storage_of_entry(v, entry) : NULL;
    berth_verdict *verdict = &v->request->verdict;
    berth_value *name, *value;

    verdict->n_records++;
    verdict->nbytes += nbytes;
    verdict->n_bad += bad->code < 0;
    verdict->n_verified += crc32 == BERTH_CRC_GOOD && nbytes > 0;
    verdict->n_unverified += crc32 == BERTH_CRC_ABSENT && nbytes > 0;
    if (bad->code < 0 && v->first.code == 0) {
        v->first = *bad;
        v->first_storage = crc32 == BERTH_CRC_BAD ? storage : NULL;
    }
    if (storage && nbytes > 0)
        v->checkpoint->storages.stored[storage->index].crc32 = (uint8_t)crc32;
    if (!v->request->report)
        return;
    assert(entry || v->checkpoint);
    berth_record_verdict report = {.offset = record->offset,
                                   .nbytes = nbytes,
                                   .crc32 = crc32,
                                   .bad = bad->code < 0 ? bad : NULL};
    /* What users know it by. Where there is no archive: the tensor of a safetensors file, which has
     * the storage's number among them, or the storage's key. */
    if (entry)
        report.name = entry->record;
    else if (v->checkpoint->contents.kind == BTH_CONTAINER_SAFETENSORS &&
             berth_dict_at(v->checkpoint->contents.root, record->storage->index, &name, &value))
        report.name = berth_as_text(name, NULL);
    else
        report.name = record->storage->key;
    v->request->report(v->request->context, &report);
}

/* One entry, after the scan. Fails only if no further record can be checked. */
static int verify_finish_entry(verification *v, size_t i, berth_error *error)
{
    bth_scan_record *record = &v->records[i];
    bth_zip_entry *entry = bth_container_entry_in_file_order(v->container, i);
    berth_crc_verdict crc32 = BERTH_CRC_UNCHECKED;
    berth_error bad;

    bth_error_clear(&bad);
    /* Header and descriptor (Z5, Z6): they were checked, by the scan or before it, or are now. */
    if (entry->end_offset == 0 && (record->is_left_out || !record->descriptor_is_good ||
                                   (record->wants_header && !record->header_is_good))) {
        (void)bth_container_check_entry(v->container, &v->cache, i, &bad);
    } else if (entry->end_offset == 0) {
        entry->data_offset = record->offset;
        entry->end_offset = entry->flags & BTH_ZIP_FLAG_DESCRIPTOR
                                ? entry->next_offset
                                : record->offset + record->nbytes;
    }
    if (bad.code == 0) {
        /* This record and those after it are not at their computed offsets: their CRCs say nothing.
         */
        if (record->wants_header && entry->data_offset != record->offset) {
            if (bth_layout_check(&v->checkpoint->contents, false, error) == 0)
                (void)bth_fail(error, BERTH_E_OFFSETS, entry->record, record->offset,
                               "its data are not at the computed offset");
            verify_count_and_report_record(v, record, BERTH_CRC_UNCHECKED, error);
            return error->code;
        }
        if (record->is_left_out)
            return 0;            /* its bytes are summed later */
        if (record->is_unread) { /* the failed request may have had several: reads only this one */
            bth_scan alone = {0};
            bth_scan_record again = {.entry = entry,
                                     .offset = record->offset,
                                     .nbytes = record->nbytes,
                                     .is_deflated = record->is_deflated};
            (void)bth_scan_records(v->reader, v->config, &alone, &again, 1, &bad);
            record->crc32 = again.crc32;
        }
        bool present = false;
        if (bad.code == 0 && bth_zip_compare_crc(entry, record->crc32, &present, &bad) == 0)
            crc32 = present ? BERTH_CRC_GOOD : BERTH_CRC_ABSENT;
        else if (bad.code == BERTH_E_CHECKSUM)
            crc32 = BERTH_CRC_BAD;
    }
    if (bad.code < 0 && !verify_can_continue_after(v, &bad)) {
        *error = bad;
        return error->code;
    }
    if (!bth_verify_is_verdict(&bad)) /* verdicts name their record already */
        (void)bth_error_add_record(&bad, entry->record);
    bool is_folder = v->container->directory.by_offset[i] >= v->container->directory.n_entries;
    if (!is_folder || bad.code < 0)
        verify_count_and_report_record(v, record, crc32, &bad);
    return 0;
}

/* ---- the whole ---- */

static int verify_zip(verification *v, berth_error *error)
{
    bth_contents *contents = v->checkpoint ? &v->checkpoint->contents : NULL;

    v->storages = bth_allocate_zeroed((v->n_records + 1) * sizeof *v->storages);
    if (!v->storages)
        return bth_fail_memory(error, (v->n_records + 1) * sizeof *v->storages);
    if (contents && bth_entries_find_storages(contents, v->storages, error) < 0)
        return error->code;
    for (size_t i = 0; i < v->n_records; i++)
        if (verify_prepare_record(v, i, error) < 0)
            return error->code;
    if (bth_scan_records(v->reader, v->config, &v->request->scan, v->records, v->n_records, error) <
        0)
        return error->code;
    for (size_t i = 0; i < v->n_records; i++)
        if (verify_finish_entry(v, i, error) < 0)
            return error->code;
    if (v->first.code < 0)
        return 0;
    /* All records are good: their offsets, and that there are no other records (Z7). */
    if (contents && contents->calculated_offsets && bth_layout_check(contents, false, error) < 0)
        return error->code;
    return bth_zip_check_no_gaps(&v->container->directory, &v->container->end, 0, 0, error);
}

/* Other formats than zip have no CRCs: the scan proves only that all bytes can be read. */
static int verify_other(verification *v, berth_error *error)
{
    const berth_error none = {.code = BERTH_OK};

    v->n_records = 0;
    for (size_t i = 0; i < v->checkpoint->storages.n; i++) {
        const berth_storage *storage = bth_tree_storage(v->checkpoint->contents.tree, i);
        if (!storage->root && !verify_leaves_storage_to_load(v, storage))
            v->records[v->n_records++] = (bth_scan_record){
                .storage = storage, .offset = storage->offset, .nbytes = storage->nbytes};
    }
    qsort(v->records, v->n_records, sizeof *v->records, bth_compare_offsets);
    if (bth_scan_records(v->reader, v->config, &v->request->scan, v->records, v->n_records, error) <
        0)
        return error->code;
    for (size_t i = 0; i < v->n_records; i++)
        verify_count_and_report_record(v, &v->records[i], BERTH_CRC_ABSENT, &none);
    return 0;
}

int bth_verify_records(bth_reader *reader, const struct berth_config *config,
                       bth_container *container, berth_checkpoint *checkpoint,
                       bth_verify_request *request, berth_error *error)
{
    verification v = {.reader = reader,
                      .config = config,
                      .container = container,
                      .checkpoint = checkpoint,
                      .request = request};

    assert(container || checkpoint);
    v.n_records = v.container ? v.container->directory.n_entries + v.container->directory.n_folders
                              : v.checkpoint->storages.n;
    v.records = bth_allocate((v.n_records + 1) * sizeof *v.records);
    if (!v.records)
        return bth_fail_memory(error, (v.n_records + 1) * sizeof *v.records);
    bth_error_clear(&v.first);
    bth_head_cache_initialize(&v.cache, v.reader, v.config->io_large_pages);
    v.request->scan.defers_bad = true;
    (void)(v.container ? verify_zip(&v, error) : verify_other(&v, error));
    /* A bad record comes before the error that ended the verification. */
    if ((error->code == 0 || bth_verify_is_verdict(error)) && v.first.code < 0) {
        *error = v.first;
        if (v.first_storage)
            (void)bth_error_in_storage(v.checkpoint, v.first_storage, error);
    } else if (error->code ==
               0) /* bytes that only the second read could get: the disk is failing */
        *error = v.request->scan.unread;
    bth_head_cache_free(&v.cache);
    bth_release(v.storages);
    bth_release(v.records);
    return error->code;
}

int bth_verify_checkpoint(berth_checkpoint *checkpoint, bth_verify_request *request,
                          berth_error *error)
{
    bth_contents *contents = &checkpoint->contents;
    bth_container *container = bth_contents_are_zip(contents) ? &contents->container : NULL;

    request->verdict.n_storages = checkpoint->storages.n;
    return bth_verify_records(&checkpoint->source.reader, &checkpoint->config, container,
                              checkpoint, request, error);
}
