/* SPDX-License-Identifier: BSD-3-Clause */
/* berth_archive: the records of an archive; data.pkl is not read. */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/trace.h"
#include "format/json/safetensors.h"
#include "format/layout.h"
#include "format/pickle/pickle.h"
#include "format/zip/zip.h"
#include "load/verify.h"

/* Enough for the small records after data.pkl. */
#define SMALL_NBYTES 4096

struct berth_archive {
    bth_reader reader;
    struct berth_config config;
    bth_container container;
};

/* ---- where records lie ---- */

/* The number in a small record; 0: no record, or no valid number. */
static uint32_t archive_read_number_record(berth_archive *archive, bth_head_cache *cache,
                                           const char *record,
                                           int (*parse)(const uint8_t *, size_t, uint64_t,
                                                        uint32_t *, berth_error *))
{
    bth_container *container = &archive->container;
    bth_zip_entry *entry = bth_container_find(container, record);
    const uint8_t *bytes;
    uint8_t *owned = NULL;
    uint32_t number = 0;
    berth_error ignored;

    if (!entry || entry->method != 0)
        return 0;
    bth_error_clear(&ignored);
    const bth_zip_input input = bth_head_cache_input(cache);
    /* One read for all small records. */
    if (bth_zip_check_record_header(&input, SMALL_NBYTES, entry, &ignored) < 0 ||
        bth_entry_read_data(entry, cache, &bytes, &owned, &ignored) < 0 ||
        parse(bytes, entry->nbytes, entry->data_offset, &number, &ignored) < 0)
        number = 0;
    bth_release(owned);
    return number;
}

/*
 * Computes the data offsets of all records by the layout. They are right if the directory agrees
 * with the layout on all header offsets, up to its own. Then no local header is read. False: the
 * local headers must be read.
 */
static bool archive_compute_offsets(berth_archive *archive, bth_head_cache *cache)
{
    const bth_zip_directory *directory = &archive->container.directory;
    bth_layout_entry layout = {0};
    size_t n = directory->n_entries;

    if (!archive->config.load_calculate_storage_offsets || directory->n_folders > 0 ||
        archive_read_number_record(archive, cache, ".format_version",
                                   bth_record_parse_format_version) < 1)
        return false;
    uint32_t alignment = /* 0: bth_layout_entry_compute fails */
        bth_container_find(&archive->container, ".storage_alignment")
            ? archive_read_number_record(archive, cache, ".storage_alignment",
                                         bth_record_parse_alignment)
            : BTH_DEFAULT_ALIGNMENT;
    for (size_t i = 0; i < n; i++) { /* no gaps, from byte 0 on */
        bth_zip_entry *entry = &directory->entries[directory->by_offset[i]];
        /* After a failure next_offset does not change, so the comparison fails. */
        (void)bth_layout_entry_compute(layout.next_offset, entry->name_nbytes, entry->nbytes,
                                       alignment, &layout);
        if (entry->method != 0 || layout.next_offset != entry->next_offset)
            return false;
        entry->data_offset = layout.data_offset;
    }
    return true;
}

static int archive_read_and_check(berth_archive *archive, bth_head_cache *cache,
                                  bth_verify_request *request, berth_error *error)
{
    bth_container *container = &archive->container;
    int64_t check = archive->config.load_check;
    /* Of the first read, and of the read at the file's end. */
    uint64_t nbytes = bth_max((uint64_t)archive->config.load_head_nbytes, BTH_HEAD_MIN_NBYTES);

    if (bth_head_cache_extend_head(cache, nbytes, error) < 0)
        return error->code;
    if (bth_is_legacy(cache->head, cache->head_nbytes))
        return bth_fail_status(
            error, BERTH_E_NOT_CHECKPOINT,
            "a file in the legacy format, from before PyTorch 1.6, has values but no records");
    if (bth_safetensors_header_nbytes(cache->head, (size_t)cache->head_nbytes) > 0)
        return bth_fail_status(error, BERTH_E_NOT_CHECKPOINT,
                               "a safetensors file has tensors but no records");
    if (cache->head_nbytes < 4 || memcmp(cache->head, "PK\3\4", 4) != 0)
        return bth_refuse_kind(cache, error);
    if (bth_archive_check_first_name(cache, error) < 0 ||
        bth_container_read(container, cache, nbytes, error) < 0)
        return error->code;
    if (check < BTH_CHECK_HEADERS && archive_compute_offsets(archive, cache))
        return 0;
    if (bth_container_check_records_from(container, cache, 0, check, error) < 0)
        return error->code;
    if (check >= BTH_CHECK_DATA)
        return bth_verify_records(&archive->reader, &archive->config, container, NULL, request,
                                  error);
    return 0;
}

/* Opens the source of an empty archive and reads its directory. The error names the file. */
static int archive_open_and_read(berth_archive *archive, const berth_source *source,
                                 const berth_params *params, bth_verify_request *request,
                                 berth_error *error)
{
    double begin_seconds = bth_seconds();
    bth_head_cache cache;

    if (bth_reader_open_source(source, &archive->reader, error) < 0) {
        (void)bth_folder_explain(source, error);
        return bth_error_prefix(error, bth_source_name(source));
    }
    bth_traced_call traced;
    request->scan.params = params =
        bth_traced_call_begin(&traced, archive->config.trace, "open archive", archive->reader.name,
                              begin_seconds, params);
    bth_head_cache_initialize(&cache, &archive->reader, archive->config.io_large_pages);
    (void)archive_read_and_check(archive, &cache, request, error);
    bth_head_cache_free(&cache);
    /* The bytes that opening read; with load.check=data that is every record. */
    double seconds = bth_seconds() - begin_seconds;
    uint64_t nbytes = atomic_load(&archive->reader.moved_nbytes);
    if (params && params->stats)
        *params->stats = (berth_stats){.plan_seconds = seconds,
                                       .total_seconds = seconds,
                                       .requested_nbytes = nbytes,
                                       .moved_nbytes = nbytes,
                                       .n_requests = atomic_load(&archive->reader.n_requests),
                                       .n_records = archive->container.directory.n_entries,
                                       .method = request->scan.method,
                                       .reason = request->scan.reason};
    bth_traced_call_end(&traced, 0, error);
    return bth_error_prefix(error, archive->reader.name);
}

int bth_archive_verify(const berth_source *source, const struct berth_config *config,
                       const berth_params *params, bth_verify_request *request, berth_error *error)
{
    berth_archive archive = {.reader.fd = -1, .config = *config};

    archive.config.load_check = BTH_CHECK_DATA;
    archive.config.load_head_nbytes = BTH_HEAD_MIN_NBYTES; /* the disk may not read what follows */
    (void)archive_open_and_read(&archive, source, params, request, error);
    bth_container_free(&archive.container);
    bth_reader_close(&archive.reader);
    return error->code;
}

int berth_archive_open(const berth_source *source, const berth_params *params,
                       berth_archive **opened, berth_archive_info *info, berth_error *error)
{
    bth_verify_request request = {.scan = {.params = params,
                                           .through_cache = true,
                                           .method = "none",
                                           .reason = "records are read on request"}};

    BTH_ERROR_BEGIN(error);
    if (info)
        *info = (berth_archive_info){0};
    bth_params_initialize_stats(params);
    if (bth_source_check_open_arguments(source, opened, error) < 0)
        return error->code;
    *opened = NULL;
    berth_archive *archive = bth_allocate_zeroed(sizeof *archive);
    if (!archive)
        return bth_fail_memory(error, sizeof *archive);
    archive->reader.fd = -1;
    if (bth_config_copy_for_operation(params, &archive->config, error) == 0 &&
        archive_open_and_read(archive, source, params, &request, error) == 0) {
        *opened = archive;
        if (info)
            *info = (berth_archive_info){.name = archive->container.directory.archive,
                                         .n_records = archive->container.directory.n_entries};
    } else
        berth_archive_close(archive);
    return error->code;
}

void berth_archive_close(berth_archive *archive)
{
    BTH_HOLD_CANCEL(true);
    if (!archive)
        return;
    bth_trace_flush(archive->config.trace);
    bth_container_free(&archive->container);
    bth_reader_close(&archive->reader);
    bth_release(archive);
}

int berth_archive_at(const berth_archive *archive, size_t i, berth_record *record)
{
    if (record)
        *record = (berth_record){0};
    if (!archive || !record)
        return BERTH_E_ARGUMENT;
    if (i >= archive->container.directory.n_entries)
        return BERTH_E_NOT_FOUND;
    const bth_zip_entry *entry = &archive->container.directory.entries[i];
    *record = (berth_record){.name = entry->record,
                             .nbytes = entry->nbytes,
                             .header_offset = entry->header_offset,
                             .offset = entry->data_offset,
                             .crc32 = entry->crc32,
                             .method = entry->method};
    return 0;
}

int berth_archive_find(const berth_archive *archive, const char *name, berth_record *record,
                       berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (record)
        *record = (berth_record){0};
    if (!archive || !name || !record)
        return bth_fail_argument(
            error, "berth_archive_find needs an archive, a name and a pointer for the record");
    const bth_zip_entry *entry = bth_container_find(&archive->container, name);
    if (!entry) {
        (void)bth_fail_status(
            error, BERTH_E_NOT_FOUND, "there is no record \"%.100s\" among the %zu in %s/", name,
            archive->container.directory.n_entries, archive->container.directory.archive);
        return bth_error_prefix(error, archive->reader.name);
    }
    return berth_archive_at(archive, (size_t)(entry - archive->container.directory.entries),
                            record);
}

int berth_archive_read(berth_archive *archive, const berth_record *record, void *buffer,
                       size_t nbytes, uint64_t offset, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (!archive || !record || !record->name || (!buffer && nbytes > 0))
        return bth_fail_argument(
            error, "berth_archive_read needs an archive, a record of it and a buffer");
    /* Found by name: sizes and offsets in the caller's struct are not trusted. */
    const bth_zip_entry *entry = bth_container_find(&archive->container, record->name);
    bth_trace_scope traced = {0};
    bth_trace_enter_outermost(&traced, archive->config.trace, "read record", archive->reader.name);
    if (!entry)
        (void)bth_fail(error, BERTH_E_NOT_FOUND, record->name, BERTH_NO_OFFSET,
                       "there is no such record");
    else if (offset > entry->nbytes || nbytes > entry->nbytes - offset)
        (void)bth_fail(error, BERTH_E_ARGUMENT, record->name, entry->data_offset,
                       "%zu bytes from byte %llu on were requested, but it has %llu", nbytes,
                       (unsigned long long)offset, (unsigned long long)entry->nbytes);
    else if (entry->method != 0 && !archive->config.load_inflate &&
             strncmp(entry->record, "data/", 5) == 0) /* Z12: small records are always read */
        (void)bth_fail(error, BERTH_E_UNSUPPORTED, entry->record, entry->data_offset,
                       "it is deflated: load.inflate=on inflates it");
    else if (entry->method != 0)
        (void)bth_read_range(&archive->reader, &archive->config,
                             (bth_range){.offset = entry->data_offset,
                                         .nbytes = nbytes,
                                         .deflated = entry,
                                         .inflated_from = offset,
                                         .memory = buffer},
                             false, error);
    else if (bth_read_is_long(&archive->config, nbytes))
        (void)bth_read_range(
            &archive->reader, &archive->config,
            (bth_range){.offset = entry->data_offset + offset, .nbytes = nbytes, .memory = buffer},
            false, error);
    else
        (void)bth_reader_read(&archive->reader, buffer, nbytes, entry->data_offset + offset, error);
    bth_trace_leave_lazily(&traced);
    if (error->code == 0)
        return 0;
    (void)bth_error_add_record(error, record->name);
    return bth_error_prefix(error, archive->reader.name);
}
