/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Every byte of every record, and what is said of it. One sweep over the file sums the data and
 * looks at the headers and descriptors between; what it could not see, or what did not agree, is
 * then read again by those who make the exact sentence.
 */
#include <stdlib.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/zip_fields.h"
#include "load/checkpoint.h"
#include "load/sweep.h"

typedef struct verification {
    berth_reader *reader;
    const struct berth_config *config;
    berth_container *container;   /* NULL: a stream */
    berth_checkpoint *checkpoint; /* NULL: an archive */
    berth_verifying *asked;
    berth_verdict *verdict; /* in there */
    berth_window window;
    berth_swept *records; /* of a zip: in directory.by_offset's order, folders too */
    size_t n_records;
    berth_error first; /* what is told of the first bad record */
} verification;

static berth_zip_entry *entry_at(const verification *v, size_t i)
{
    return &v->container->directory.entries[v->container->directory.by_offset[i]];
}

/* Whether it is about what the file says; else verification itself went wrong. */
static bool is_verdict(const berth_error *error)
{
    return error->code == BERTH_E_ARCHIVE || error->code == BERTH_E_OFFSETS ||
           error->code == BERTH_E_CHECKSUM || error->code == BERTH_E_UNSUPPORTED ||
           error->code == BERTH_E_TRUNCATED;
}

/* ---- what is swept ---- */

/* Z7: a computed place is within what the directory leaves for the entry. */
static bool fits(const berth_zip_entry *entry, uint64_t offset)
{
    return offset >= entry->header_offset && offset <= entry->next_offset &&
           entry->nbytes <= entry->next_offset - offset;
}

/*
 * One record of a zip. Stored ones are swept where they are known to be, or are computed to be; of
 * others the header must be read first. One that is not as it should be is left out.
 */
static int prepare(verification *v, size_t i, uint64_t computed, berth_error *error)
{
    berth_zip_entry *entry = entry_at(v, i);
    bool is_stored = entry->method == 0;
    berth_swept *record = &v->records[i];

    *record = (berth_swept){.entry = entry, .offset = entry->data_offset, .nbytes = entry->nbytes};
    record->wants_descriptor = entry->end_offset == 0;
    if (is_stored && entry->data_offset == 0 && computed != 0 && fits(entry, computed)) {
        record->wants_header = true;
        record->offset = computed;
    } else if (entry->data_offset == 0 || (!is_stored && record->wants_descriptor)) {
        record->wants_descriptor = false;
        (void)berth_container_check_entry(v->container, &v->window, i, error);
        if (error->code < 0 && !is_verdict(error))
            return error->code;
        berth_error_clear(error);
        record->offset = entry->data_offset;
        if (entry->end_offset == 0)
            record->is_left_out = true;
    }
    if (!is_stored)
        record->is_left_out = true;
    if (record->is_left_out) {
        record->offset = entry->header_offset;
        record->nbytes = 0;
    }
    return 0;
}

static int prepare_zip(verification *v, berth_error *error)
{
    const berth_zip_directory *directory = &v->container->directory;
    uint64_t *computed = berth_allocate_zeroed((v->n_records + 1) * sizeof *computed);

    if (!computed)
        return berth_fail_memory(error, (v->n_records + 1) * sizeof *computed);
    if (v->checkpoint && v->checkpoint->calculated_offsets)
        (void)berth_computed_places(v->checkpoint, computed, error);
    for (size_t i = 0; i < v->n_records && error->code == 0; i++)
        (void)prepare(v, i, computed[directory->by_offset[i]], error);
    berth_release(computed);
    return error->code;
}

static int compare_offsets(const void *a, const void *b)
{
    const berth_swept *first = a, *second = b;

    return (first->offset > second->offset) - (first->offset < second->offset);
}

/* A stream has no CRCs; what can be shown is that all its bytes can be read. */
static void prepare_stream(verification *v)
{
    v->n_records = 0;
    for (size_t i = 0; i < v->checkpoint->n_storages; i++) {
        const berth_storage *storage = berth_tree_storage(v->checkpoint->tree, i);
        if (!storage->root)
            v->records[v->n_records++] =
                (berth_swept){.offset = storage->offset, .nbytes = storage->nbytes};
    }
    qsort(v->records, v->n_records, sizeof *v->records, compare_offsets);
}

/* ---- verdicts ---- */

/* Counts and tells one record; what is bad about the first one is kept. */
static void tell_record(verification *v, const berth_swept *record, berth_crc_verdict crc32,
                        const berth_error *bad)
{
    const berth_zip_entry *entry = record->entry;
    uint64_t nbytes = entry ? entry->nbytes : record->nbytes;

    v->verdict->n_records++;
    v->verdict->nbytes += nbytes;
    v->verdict->n_bad += bad->code < 0;
    v->verdict->n_verified += crc32 == BERTH_CRC_GOOD && nbytes > 0;
    v->verdict->n_unverified += crc32 == BERTH_CRC_ABSENT && nbytes > 0;
    if (bad->code < 0 && v->first.code == 0)
        v->first = *bad;
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
    berth_zip_entry *entry = entry_at(v, i);
    const berth_swept *record = &v->records[i];

    if (entry->end_offset != 0)
        return 0;
    if (record->is_left_out || (record->wants_header && !record->header_is_good) ||
        !record->descriptor_is_good)
        return berth_container_check_entry(v->container, &v->window, i, bad);
    entry->data_offset = record->offset;
    entry->end_offset = entry->flags & BERTH_ZIP_FLAG_DESCRIPTOR ? entry->next_offset
                                                                 : record->offset + record->nbytes;
    return 0;
}

/* Z10. *present: the file says a CRC. */
static int compare_sum(verification *v, size_t i, bool *present, berth_error *bad)
{
    const berth_zip_entry *entry = entry_at(v, i);
    const uint8_t *bytes;
    uint8_t *owned;

    if (entry->method == 0)
        return berth_zip_check_crc(entry, v->records[i].crc32, present, bad);
    /* Deflated ones are few and small: one after the other. */
    *present = entry->crc32 != 0 || entry->nbytes == 0;
    (void)berth_container_bytes(entry, &v->window, &bytes, &owned, bad);
    berth_release(owned);
    return bad->code;
}

/* It is not where the layout has it, nor is what follows: sums would be of other bytes. */
static int conclude_misplaced(verification *v, const berth_swept *record, berth_error *error)
{
    if (berth_check_layout(v->checkpoint, error) == 0)
        (void)berth_fail(error, BERTH_E_OFFSETS, record->entry->record, record->offset,
                         "its data are not where they were computed to be");
    tell_record(v, record, BERTH_CRC_UNCHECKED, error);
    return error->code;
}

/* One entry after the sweep. Fails only where nothing can be said, or about nothing more. */
static int conclude(verification *v, size_t i, berth_error *error)
{
    const berth_swept *record = &v->records[i];
    const berth_zip_entry *entry = record->entry;
    berth_crc_verdict crc32 = BERTH_CRC_UNCHECKED;
    bool present = false,
         is_folder = v->container->directory.by_offset[i] >= v->container->directory.n_entries;
    berth_error bad;

    berth_error_clear(&bad);
    if (settle(v, i, &bad) == 0) {
        if (record->wants_header && entry->data_offset != record->offset)
            return conclude_misplaced(v, record, error);
        if (compare_sum(v, i, &present, &bad) == 0)
            crc32 = present ? BERTH_CRC_GOOD : BERTH_CRC_ABSENT;
        else if (bad.code == BERTH_E_CHECKSUM)
            crc32 = BERTH_CRC_BAD;
    }
    if (bad.code < 0 && !is_verdict(&bad)) {
        *error = bad;
        return error->code;
    }
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
    if (v->checkpoint && v->checkpoint->calculated_offsets &&
        berth_check_layout(v->checkpoint, error) < 0)
        return error->code;
    return berth_zip_check_ranges(&v->container->directory, &v->container->end, 0, error);
}

static void conclude_stream(verification *v)
{
    berth_error none;

    berth_error_clear(&none);
    for (size_t i = 0; i < v->n_records; i++)
        tell_record(v, &v->records[i], BERTH_CRC_ABSENT, &none);
}

/* ---- the whole ---- */

static int sweep_all(verification *v, berth_error *error)
{
    if (v->container && prepare_zip(v, error) < 0)
        return error->code;
    if (!v->container)
        prepare_stream(v);
    if (berth_sweep(v->reader, v->config, &v->asked->sweep, v->records, v->n_records, error) < 0)
        return error->code;
    if (v->container)
        return conclude_zip(v, error);
    conclude_stream(v);
    return 0;
}

static int verify(verification *v, berth_error *error)
{
    v->n_records = v->container
                       ? v->container->directory.n_entries + v->container->directory.n_folders
                       : v->checkpoint->n_storages;
    v->records = berth_allocate((v->n_records + 1) * sizeof *v->records);
    if (!v->records)
        return berth_fail_memory(error, (v->n_records + 1) * sizeof *v->records);
    berth_error_clear(&v->first);
    berth_window_begin(&v->window, v->reader);
    /* What is bad about an earlier record goes before what ends a verification. */
    if ((sweep_all(v, error) == 0 || is_verdict(error)) && v->first.code < 0)
        *error = v->first;
    berth_window_free(&v->window);
    berth_release(v->records);
    return error->code;
}

int berth_verify_container(berth_reader *reader, const struct berth_config *config,
                           berth_container *container, berth_verifying *asked, berth_error *error)
{
    verification v = {.reader = reader,
                      .config = config,
                      .container = container,
                      .asked = asked,
                      .verdict = &asked->verdict};

    return verify(&v, error);
}

int berth_verify_data(berth_checkpoint *checkpoint, berth_verifying *asked, berth_error *error)
{
    verification v = {.reader = &checkpoint->reader,
                      .config = &checkpoint->config,
                      .container = checkpoint->is_stream ? NULL : &checkpoint->container,
                      .checkpoint = checkpoint,
                      .asked = asked,
                      .verdict = &asked->verdict};

    asked->verdict.n_storages = checkpoint->n_storages;
    return verify(&v, error);
}

/*
 * Everything but what the sweep sees is the business of open. A file that it refuses is opened
 * again to look at all headers: they may show something wrong in an earlier record.
 */
static int open_to_verify(const char *path, struct berth_config *config, const berth_call *call,
                          berth_checkpoint **checkpoint, berth_error *error)
{
    config->load_check = config->debug ? BERTH_CHECK_HEADERS : BERTH_CHECK_DIRECTORY;
    if (berth_checkpoint_open_path(path, config, call, checkpoint, error) == 0 || config->debug ||
        (!is_verdict(error) && error->code != BERTH_E_TENSOR))
        return error->code;
    berth_error_clear(error);
    config->load_check = BERTH_CHECK_HEADERS;
    return berth_checkpoint_open_path(path, config, call, checkpoint, error);
}

int berth_verify_records(const char *path, const berth_call *call, berth_record_function tell,
                         void *context, berth_verdict *verdict, berth_error *error)
{
    berth_verifying asked = {.sweep.call = call, .tell = tell, .context = context};
    berth_checkpoint *checkpoint = NULL;
    struct berth_config config;

    BERTH_ERROR_BEGIN(error);
    if (verdict)
        *verdict = asked.verdict;
    if (berth_config_resolve(call, &config, error) < 0 ||
        open_to_verify(path, &config, call, &checkpoint, error) < 0)
        return error->code;
    if (berth_verify_data(checkpoint, &asked, error) < 0)
        (void)berth_error_prefix(error, checkpoint->reader.name);
    if (verdict)
        *verdict = asked.verdict;
    berth_checkpoint_stats(checkpoint, call);
    if (call && call->stats && asked.sweep.method) {
        call->stats->method = asked.sweep.method;
        call->stats->reason = asked.sweep.reason;
    }
    berth_close(checkpoint);
    return error->code;
}

int berth_verify(const char *path, const berth_call *call, berth_verdict *verdict,
                 berth_error *error)
{
    return berth_verify_records(path, call, NULL, NULL, verdict, error);
}
