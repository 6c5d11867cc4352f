/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/open/open.h"

#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/checksum.h"
#include "format/layout.h"
#include "format/zip/zip.h"

/* Headers that are this close to each other are read together. */
#define RUN_NBYTES (UINT64_C(256) << 10)
/* Usually enough for a header's extra fields: alignment 64, zip64. If not, more is read. */
#define EXTRA_NBYTES 128
/* A version record has no more: "3\n". */
#define VERSION_MAX_NBYTES 16

typedef unsigned long long ull;

void bth_container_free(bth_container *container)
{
    bth_zip_free_directory(&container->directory);
    memset(container, 0, sizeof *container);
}

int bth_container_read_directory_bytes(bth_container *container, bth_head_cache *cache,
                                       uint64_t tail_nbytes, const uint8_t **directory,
                                       berth_error *error)
{
    uint64_t file_nbytes = cache->reader->nbytes;
    const uint8_t *bytes;

    memset(container, 0, sizeof *container);
    tail_nbytes = bth_min(bth_max(tail_nbytes, BTH_ZIP_TAIL_NBYTES), file_nbytes);
    if (file_nbytes - tail_nbytes < cache->head_nbytes &&
        bth_head_cache_extend_head(cache, file_nbytes, error) < 0)
        return error->code;
    if (bth_head_cache_get_or_read(cache, file_nbytes - tail_nbytes, tail_nbytes, 0, &bytes,
                                   error) < 0)
        return error->code;
    if (bth_zip_find_end(bytes, tail_nbytes, file_nbytes, &container->end, error) < 0)
        return bth_archive_refuse_end(cache, bytes, tail_nbytes, error);
    return bth_head_cache_get_or_read(cache, container->end.directory_offset,
                                      container->end.directory_nbytes, 0, directory, error);
}

int bth_container_parse_directory(bth_container *container, const uint8_t *bytes,
                                  berth_error *error)
{
    bth_zip_directory *directory = &container->directory;

    if (bth_zip_read_directory(bytes, &container->end, directory, error) < 0)
        return error->code;
    /* Z7: if the directory does not list the local header at byte 0, readers that begin at the
       front would still read that record. */
    const bth_zip_entry *first = &directory->entries[directory->by_offset[0]];
    if (first->header_offset != 0)
        return bth_fail(error, BERTH_E_ARCHIVE, first->record, first->header_offset,
                        "the first entry, but the archive begins at byte 0");
    container->known = true;
    return 0;
}

int bth_container_read(bth_container *container, bth_head_cache *cache, uint64_t tail_nbytes,
                       berth_error *error)
{
    const uint8_t *directory = NULL;

    if (bth_container_read_directory_bytes(container, cache, tail_nbytes, &directory, error) < 0)
        return error->code;
    if (bth_container_parse_directory(container, directory, error) < 0)
        (void)bth_archive_explain_directory(directory, (size_t)container->end.directory_nbytes,
                                            cache->reader, error);
    return error->code;
}

bth_zip_entry *bth_container_find(const bth_container *container, const char *record)
{
    return bth_zip_find(&container->directory, record, strlen(record));
}

/* Usually enough for a local header. */
static uint64_t header_estimate_nbytes(const bth_zip_entry *entry)
{
    return BTH_ZIP_LOCAL_NBYTES + EXTRA_NBYTES + entry->name_nbytes;
}

/*
 * The end of the headers that one read covers, from entry i on. After the last entry: the end of
 * the bytes before the directory. *last: the last of these entries. A later call must not have a
 * smaller i: it continues at *last.
 */
static uint64_t headers_find_end_of_one_read(const bth_container *container, size_t i, size_t *last)
{
    size_t n = container->directory.n_entries + container->directory.n_folders;
    const bth_zip_entry *first, *next;

    if (i == n)
        return container->end.directory_offset;
    if (*last < i)
        *last = i;
    first = bth_container_entry_in_file_order(container, i);
    for (; *last + 1 < n; ++*last) {
        next = bth_container_entry_in_file_order(container, *last + 1);
        if (next->header_offset - first->header_offset > RUN_NBYTES - header_estimate_nbytes(next))
            break;
    }
    next = bth_container_entry_in_file_order(container, *last);
    return next->header_offset + header_estimate_nbytes(next);
}

int bth_container_check_records_from(bth_container *container, bth_head_cache *cache, size_t first,
                                     int64_t load_check, berth_error *error)
{
    const bth_zip_input input = bth_head_cache_input(cache);
    size_t n = container->directory.n_entries + container->directory.n_folders, last = 0;

    for (size_t i = first; i < n; i++) {
        bth_zip_entry *entry = bth_container_entry_in_file_order(container, i);
        uint64_t end = headers_find_end_of_one_read(container, i, &last), at; /* of a read */
        if (bth_zip_check_record_header(&input, end - entry->header_offset, entry, error) < 0)
            return error->code;
        /* Without a signature, which is rare, it may be the rest of one that a wrong header cut. */
        if (load_check < BTH_CHECK_HEADERS && strncmp(entry->record, "data/", 5) == 0 &&
            !bth_zip_descriptor_is_unsigned(entry))
            continue;
        /* Read together with the headers behind it. */
        end = headers_find_end_of_one_read(container, i + 1, &last);
        at = entry->data_offset + entry->compressed_nbytes;
        if (bth_zip_check_record_descriptor(&input, end > at ? end - at : 0, entry, error) < 0)
            return error->code;
    }
    if (first == n || load_check < BTH_CHECK_DIRECTORY)
        return 0;
    return bth_zip_check_no_gaps(&container->directory, &container->end, first,
                                 bth_container_entry_in_file_order(container, first)->header_offset,
                                 error);
}

int bth_container_check_entry(bth_container *container, bth_head_cache *cache, size_t i,
                              berth_error *error)
{
    const bth_zip_input input = bth_head_cache_input(cache);
    bth_zip_entry *entry = bth_container_entry_in_file_order(container, i);

    return bth_zip_check_record(&input, header_estimate_nbytes(entry), entry, error);
}

int bth_entry_read_data(const bth_zip_entry *entry, bth_head_cache *cache, const uint8_t **bytes,
                        uint8_t **owned, berth_error *error)
{
    bool present;

    *bytes = *owned = NULL;
    if (entry->method == BTH_ZIP_STORED) {
        (void)bth_head_cache_get_or_read(cache, entry->data_offset, entry->nbytes, 0, bytes, error);
    } else if (bth_inflate_check_limits(entry, error) == 0 &&
               bth_head_cache_get_or_read(cache, entry->data_offset, entry->compressed_nbytes, 0,
                                          bytes, error) == 0) {
        /* Z9: the limits were checked before memory of the entry's size is allocated. */
        *owned = bth_allocate(entry->nbytes + 1); /* never NULL for an empty one */
        if (!*owned)
            (void)bth_fail_memory(error, entry->nbytes);
        else
            (void)bth_inflate(entry, *bytes, *owned, error);
        *bytes = *owned;
    }
    if (error->code == 0)
        (void)bth_zip_compare_crc(entry, bth_crc32(0, *bytes, entry->nbytes), &present, error);
    if (error->code < 0) {
        bth_release(*owned);
        *bytes = *owned = NULL;
        (void)bth_error_add_record(error, entry->record);
    }
    return error->code;
}

int bth_container_check_version(const bth_container *container, bth_head_cache *cache,
                                berth_error *error)
{
    static const char *const records[] = {".data/version", "version"}; /* PyTorch: the first */
    const bth_zip_input input = bth_head_cache_input(cache);
    bool has_version = false;
    const uint8_t *bytes;
    uint8_t *owned;

    for (size_t i = 0; i < 2; i++) {
        bth_zip_entry *entry = bth_container_find(container, records[i]);
        if (!entry)
            continue;
        has_version = true;
        if (entry->nbytes > VERSION_MAX_NBYTES) /* Z11: it is no number, and not read */
            return bth_fail(error, BERTH_E_ARCHIVE, entry->record, entry->header_offset,
                            "%llu bytes are no decimal number from 1 to 10", (ull)entry->nbytes);
        if (entry->data_offset == 0 &&
            bth_zip_check_record_header(&input, header_estimate_nbytes(entry), entry, error) < 0)
            return error->code;
        if (bth_entry_read_data(entry, cache, &bytes, &owned, error) < 0)
            return error->code;
        (void)bth_record_check_version(entry->record, bytes, entry->nbytes, entry->data_offset,
                                       error);
        bth_release(owned);
        if (error->code < 0)
            return error->code;
    }
    return has_version ? 0
                       : bth_fail_status(error, BERTH_E_ARCHIVE,
                                         "no record 'version', which PyTorch needs");
}
