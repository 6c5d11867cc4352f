/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Archives for tests, made in memory. test_zip_new makes what PyTorch makes; test_zip_new_foreign
 * what others make, each field by name. The test then breaks one thing by overwriting a field or
 * by inserting bytes, at a place that the archive remembers by name, so that a test reads as what
 * it breaks.
 */
#ifndef TESTS_FORMAT_ZIP_BUILDER_H
#define TESTS_FORMAT_ZIP_BUILDER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/error.h"
#include "format/bytes.h"
#include "format/checksum.h"
#include "format/zip/zip.h"

#define TEST_ZIP_MAX_RECORDS 12

/* Where things lie in the archive. */
typedef struct test_zip {
    uint8_t *bytes;
    size_t nbytes;
    size_t n_records;
    size_t header_at[TEST_ZIP_MAX_RECORDS];
    size_t extra_at[TEST_ZIP_MAX_RECORDS]; /* of the local header */
    size_t data_at[TEST_ZIP_MAX_RECORDS];
    size_t descriptor_at[TEST_ZIP_MAX_RECORDS];
    size_t central_at[TEST_ZIP_MAX_RECORDS];
    size_t directory_at;
    size_t end64_at; /* the directory's end, also where there is none */
    size_t locator_at;
    size_t end_at;
} test_zip;

/* Fields of headers, from the header's first byte. */
enum {
    LOCAL_FLAGS = 6,
    LOCAL_METHOD = 8,
    LOCAL_CRC = 14,
    LOCAL_COMPRESSED = 18,
    LOCAL_SIZE = 22,
    LOCAL_NAME_NBYTES = 26,
    LOCAL_EXTRA_NBYTES = 28,
    LOCAL_NAME = 30,
    CENTRAL_VERSION_NEEDED = 6,
    CENTRAL_FLAGS = 8,
    CENTRAL_METHOD = 10,
    CENTRAL_CRC = 16,
    CENTRAL_COMPRESSED = 20,
    CENTRAL_SIZE = 24,
    CENTRAL_NAME_NBYTES = 28,
    CENTRAL_EXTRA_NBYTES = 30,
    CENTRAL_COMMENT_NBYTES = 32,
    CENTRAL_DISK = 34,
    CENTRAL_ATTRIBUTES = 38,
    CENTRAL_HEADER_OFFSET = 42,
    CENTRAL_NAME = 46,
    END64_RECORD_NBYTES = 4,
    END64_DISK = 16,
    END64_DIRECTORY_DISK = 20,
    END64_N_ENTRIES_HERE = 24,
    END64_N_ENTRIES = 32,
    END64_DIRECTORY_NBYTES = 40,
    END64_DIRECTORY_OFFSET = 48,
    LOCATOR_DISK = 4,
    LOCATOR_OFFSET = 8,
    LOCATOR_N_DISKS = 16,
    END_DISK = 4,
    END_DIRECTORY_DISK = 6,
    END_N_ENTRIES_HERE = 8,
    END_N_ENTRIES = 10,
    END_DIRECTORY_NBYTES = 12,
    END_DIRECTORY_OFFSET = 16,
    END_COMMENT_NBYTES = 20,
};

/* ---- breaking ---- */

static inline void test_zip_put(test_zip *zip, size_t at, uint64_t value, size_t width)
{
    bth_put_integer(zip->bytes + at, value, width);
}

static inline void test_zip_put_text(test_zip *zip, size_t at, const char *text)
{
    memcpy(zip->bytes + at, text, strlen(text));
}

/* Makes room for n bytes; what lies behind moves, and with it the places that the archive knows. */
static inline void test_zip_insert(test_zip *zip, size_t at, const void *bytes, size_t n)
{
    zip->bytes = realloc(zip->bytes, zip->nbytes + n + 1);
    memmove(zip->bytes + at + n, zip->bytes + at, zip->nbytes - at);
    memcpy(zip->bytes + at, bytes, n);
    zip->nbytes += n;
    size_t *places[] = {&zip->directory_at, &zip->end64_at, &zip->locator_at, &zip->end_at};
    for (size_t i = 0; i < 4; i++)
        *places[i] += *places[i] >= at ? n : 0;
    for (size_t i = 0; i < zip->n_records; i++) {
        zip->central_at[i] += zip->central_at[i] >= at ? n : 0;
        zip->header_at[i] += zip->header_at[i] >= at ? n : 0;
        zip->extra_at[i] += zip->extra_at[i] >= at ? n : 0;
        zip->data_at[i] += zip->data_at[i] >= at ? n : 0;
        zip->descriptor_at[i] += zip->descriptor_at[i] >= at ? n : 0;
    }
}

static inline void test_zip_remove(test_zip *zip, size_t at, size_t n)
{
    memmove(zip->bytes + at, zip->bytes + at + n, zip->nbytes - at - n);
    zip->nbytes -= n;
}

static inline void test_zip_append(test_zip *zip, const void *bytes, size_t n)
{
    zip->bytes = realloc(zip->bytes, zip->nbytes + n + 1);
    memcpy(zip->bytes + zip->nbytes, bytes, n);
    zip->nbytes += n;
}

static inline void test_zip_free(test_zip *zip)
{
    free(zip->bytes);
    *zip = (test_zip){0};
}

/* ---- making ---- */

typedef struct test_record {
    const char *name;
    const char *data;
    size_t nbytes;
} test_record;

static inline void test_zip_grow(test_zip *zip, size_t n)
{
    zip->bytes = realloc(zip->bytes, zip->nbytes + n + 1);
    memset(zip->bytes + zip->nbytes, 0, n);
}

static inline void test_zip_add_end(test_zip *zip, size_t n_entries)
{
    zip->end64_at = zip->nbytes;
    zip->locator_at = zip->end64_at + BTH_ZIP_END64_RECORD_NBYTES;
    zip->end_at = zip->locator_at + BTH_ZIP_LOCATOR_NBYTES;
    test_zip_grow(zip, BTH_ZIP_END_NBYTES);
    bth_zip_write_end(n_entries, zip->directory_at, zip->nbytes - zip->directory_at,
                      zip->bytes + zip->nbytes);
    zip->nbytes += BTH_ZIP_END_NBYTES;
}

/* As PyTorch writes it, by the layout. */
static inline test_zip test_zip_new(const test_record *records, size_t n, uint32_t alignment)
{
    test_zip zip = {.n_records = n};
    bth_place places[TEST_ZIP_MAX_RECORDS];
    uint64_t cursor = 0;

    for (size_t i = 0; i < n; i++) {
        const test_record *record = &records[i];
        bth_place *place = &places[i];
        if (bth_layout_place(cursor, strlen(record->name), record->nbytes, alignment, place) < 0)
            abort();
        cursor = place->next_offset;
        test_zip_grow(&zip, place->next_offset - place->header_offset);
        zip.nbytes = place->next_offset;
        zip.header_at[i] = place->header_offset;
        zip.extra_at[i] = place->header_offset + LOCAL_NAME + place->name_nbytes;
        zip.data_at[i] = place->data_offset;
        zip.descriptor_at[i] = place->data_offset + place->nbytes;
        bth_zip_write_local(place, record->name, zip.bytes + zip.header_at[i]);
        memcpy(zip.bytes + zip.data_at[i], record->data, record->nbytes);
        bth_zip_write_descriptor(place, bth_crc32(0, record->data, record->nbytes),
                                 zip.bytes + zip.descriptor_at[i]);
    }
    zip.directory_at = zip.nbytes;
    for (size_t i = 0; i < n; i++) {
        size_t nbytes = bth_layout_central_nbytes(&places[i]);
        zip.central_at[i] = zip.nbytes;
        test_zip_grow(&zip, nbytes);
        bth_zip_write_central(&places[i], records[i].name,
                              bth_crc32(0, records[i].data, records[i].nbytes),
                              zip.bytes + zip.nbytes);
        zip.nbytes += nbytes;
    }
    test_zip_add_end(&zip, n);
    return zip;
}

/* Five records in "m/": 0 data.pkl, 1 byteorder, 2 data/0, 3 data/1 (empty), 4 version. */
static inline test_zip test_zip_small(void)
{
    static const test_record records[] = {
        {"m/data.pkl", "pickle", 6}, {"m/byteorder", "little", 6}, {"m/data/0", "\1\2\3\4\5", 5},
        {"m/data/1", "", 0},         {"m/version", "3\n", 2},
    };
    return test_zip_new(records, 5, 64);
}

/* An entry of another tool's archive: every field as given, nothing computed. */
typedef struct test_entry {
    const char *name;
    const void *data; /* as it lies in the file */
    size_t data_nbytes;
    uint16_t flags;
    uint16_t method;
    uint32_t local_crc32;
    uint32_t local_compressed;
    uint32_t local_size;
    const char *local_extra;
    size_t local_extra_nbytes;
    const char *descriptor;
    size_t descriptor_nbytes;
    uint32_t crc32; /* from here on: the directory */
    uint32_t compressed;
    uint32_t size;
    const char *extra;
    size_t extra_nbytes;
    const char *comment;
} test_entry;

static inline void test_zip_add(test_zip *zip, const void *bytes, size_t n)
{
    if (n > 0)
        test_zip_append(zip, bytes, n);
}

static inline void test_zip_add_local(test_zip *zip, size_t i, const test_entry *entry)
{
    uint8_t fixed[BTH_ZIP_LOCAL_NBYTES] = "PK\3\4";
    bth_put_u16(fixed + LOCAL_FLAGS, entry->flags);
    bth_put_u16(fixed + LOCAL_METHOD, entry->method);
    bth_put_u32(fixed + LOCAL_CRC, entry->local_crc32);
    bth_put_u32(fixed + LOCAL_COMPRESSED, entry->local_compressed);
    bth_put_u32(fixed + LOCAL_SIZE, entry->local_size);
    bth_put_u16(fixed + LOCAL_NAME_NBYTES, strlen(entry->name));
    bth_put_u16(fixed + LOCAL_EXTRA_NBYTES, entry->local_extra_nbytes);
    zip->header_at[i] = zip->nbytes;
    test_zip_add(zip, fixed, sizeof fixed);
    test_zip_add(zip, entry->name, strlen(entry->name));
    zip->extra_at[i] = zip->nbytes;
    test_zip_add(zip, entry->local_extra, entry->local_extra_nbytes);
    zip->data_at[i] = zip->nbytes;
    test_zip_add(zip, entry->data, entry->data_nbytes);
    zip->descriptor_at[i] = zip->nbytes;
    test_zip_add(zip, entry->descriptor, entry->descriptor_nbytes);
}

static inline void test_zip_add_central(test_zip *zip, size_t i, const test_entry *entry)
{
    uint8_t fixed[BTH_ZIP_CENTRAL_NBYTES] = "PK\1\2";
    const char *comment = entry->comment ? entry->comment : "";
    bth_put_u16(fixed + CENTRAL_FLAGS, entry->flags);
    bth_put_u16(fixed + CENTRAL_METHOD, entry->method);
    bth_put_u32(fixed + CENTRAL_CRC, entry->crc32);
    bth_put_u32(fixed + CENTRAL_COMPRESSED, entry->compressed);
    bth_put_u32(fixed + CENTRAL_SIZE, entry->size);
    bth_put_u16(fixed + CENTRAL_NAME_NBYTES, strlen(entry->name));
    bth_put_u16(fixed + CENTRAL_EXTRA_NBYTES, entry->extra_nbytes);
    bth_put_u16(fixed + CENTRAL_COMMENT_NBYTES, strlen(comment));
    bth_put_u32(fixed + CENTRAL_HEADER_OFFSET, zip->header_at[i]);
    zip->central_at[i] = zip->nbytes;
    test_zip_add(zip, fixed, sizeof fixed);
    test_zip_add(zip, entry->name, strlen(entry->name));
    test_zip_add(zip, entry->extra, entry->extra_nbytes);
    test_zip_add(zip, comment, strlen(comment));
}

/* With the classic end record alone, as tools write small archives. */
static inline test_zip test_zip_new_foreign(const test_entry *entries, size_t n)
{
    test_zip zip = {.n_records = n};

    for (size_t i = 0; i < n; i++)
        test_zip_add_local(&zip, i, &entries[i]);
    zip.directory_at = zip.nbytes;
    for (size_t i = 0; i < n; i++)
        test_zip_add_central(&zip, i, &entries[i]);
    test_zip_add_end(&zip, n);
    test_zip_remove(&zip, zip.end64_at, BTH_ZIP_END64_RECORD_NBYTES + BTH_ZIP_LOCATOR_NBYTES);
    zip.locator_at = zip.end_at = zip.end64_at;
    return zip;
}

/* A plain stored entry: sizes and CRC in both headers, no descriptor. */
static inline test_entry test_stored(const char *name, const char *data, size_t nbytes)
{
    uint32_t crc32 = bth_crc32(0, data, nbytes);
    uint32_t size = (uint32_t)nbytes;
    return (test_entry){.name = name,
                        .data = data,
                        .data_nbytes = nbytes,
                        .local_crc32 = crc32,
                        .local_compressed = size,
                        .local_size = size,
                        .crc32 = crc32,
                        .compressed = size,
                        .size = size};
}

/* ---- reading it whole, as the strictest load does ---- */

/* Copies of exactly what was asked for: the sanitizer then sees every step beyond. */
typedef struct test_zip_copies {
    const test_zip *zip;
    uint8_t *copy;
} test_zip_copies;

static inline int test_zip_get(void *context, uint64_t offset, uint64_t nbytes, uint64_t ahead,
                               const uint8_t **bytes, berth_error *error)
{
    test_zip_copies *copies = context;

    (void)ahead;
    if (offset > copies->zip->nbytes || nbytes > copies->zip->nbytes - offset)
        return bth_fail(error, BERTH_E_TRUNCATED, NULL, offset, "no %zu bytes", (size_t)nbytes);
    free(copies->copy);
    copies->copy = malloc(nbytes + 1);
    memcpy(copies->copy, copies->zip->bytes + offset, nbytes);
    *bytes = copies->copy;
    return 0;
}

static inline int test_zip_check_entry(const test_zip *zip, bth_zip_entry *entry,
                                       berth_error *error)
{
    test_zip_copies copies = {.zip = zip};
    const bth_zip_input input = {.get = test_zip_get, .context = &copies};

    bth_zip_check_record(&input, 0, entry, error);
    free(copies.copy);
    return error->code;
}

static inline int test_zip_check_data(const test_zip *zip, const bth_zip_entry *entry,
                                      berth_error *error)
{
    const uint8_t *data = zip->bytes + entry->data_offset;
    uint8_t *inflated = NULL;
    bool present;

    if (entry->method == BTH_ZIP_DEFLATED) {
        if (bth_inflate_check(entry, error) < 0)
            return error->code;
        inflated = malloc(entry->nbytes + 1);
        if (bth_inflate(entry, data, inflated, error) == 0)
            data = inflated;
    }
    if (error->code == BERTH_OK)
        bth_zip_check_crc(entry, bth_crc32(0, data, entry->nbytes), &present, error);
    free(inflated);
    return error->code;
}

/* All checks; on success the caller frees the directory. */
static inline int test_zip_read(const test_zip *zip, uint64_t base_offset,
                                bth_zip_directory *directory, berth_error *error)
{
    size_t tail = zip->nbytes < BTH_ZIP_TAIL_NBYTES ? zip->nbytes : BTH_ZIP_TAIL_NBYTES;
    bth_zip_end end;

    bth_error_clear(error);
    *directory = (bth_zip_directory){0};
    if (bth_zip_find_end(zip->bytes + zip->nbytes - tail, tail, zip->nbytes, &end, error) < 0)
        return error->code;
    /* Copies of their own here, too. */
    uint8_t *bytes = malloc(end.directory_nbytes + 1);
    memcpy(bytes, zip->bytes + end.directory_offset, end.directory_nbytes);
    bth_zip_read_directory(bytes, &end, directory, error);
    free(bytes);
    size_t n = error->code == BERTH_OK ? directory->n_entries + directory->n_folders : 0;
    for (size_t i = 0; i < n && error->code == BERTH_OK; i++)
        test_zip_check_entry(zip, &directory->entries[i], error);
    if (error->code == BERTH_OK)
        bth_zip_check_ranges(directory, &end, 0, base_offset, error);
    for (size_t i = 0; i < n && error->code == BERTH_OK; i++)
        test_zip_check_data(zip, &directory->entries[i], error);
    if (error->code != BERTH_OK)
        bth_zip_free_directory(directory);
    return error->code;
}

#endif
