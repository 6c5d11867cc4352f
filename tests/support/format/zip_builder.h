/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Archives for tests, made in memory. test_zip_new makes what PyTorch makes; test_zip_new_foreign
 * what others make, each field by name. The test then breaks one thing by overwriting a field or
 * by inserting bytes, at a place that the archive remembers by name, so that a test reads as what
 * it breaks.
 */
#ifndef TESTS_SUPPORT_ZIP_BUILDER_H
#define TESTS_SUPPORT_ZIP_BUILDER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
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
    CENTRAL_FLAGS = 8,
    CENTRAL_METHOD = 10,
    CENTRAL_CRC = 16,
    CENTRAL_COMPRESSED = 20,
    CENTRAL_SIZE = 24,
    CENTRAL_NAME_NBYTES = 28,
    CENTRAL_HEADER_OFFSET = 42,
    CENTRAL_NAME = 46,
    END64_DIRECTORY_OFFSET = 48,
    LOCATOR_OFFSET = 8,
    END_DIRECTORY_OFFSET = 16,
};

/* ---- breaking ---- */

void test_zip_put(test_zip *zip, size_t at, uint64_t value, size_t width);

/* Makes room for n bytes; what lies behind moves, and with it the places that the archive knows. */
void test_zip_insert(test_zip *zip, size_t at, const void *bytes, size_t n);
void test_zip_remove(test_zip *zip, size_t at, size_t n);
void test_zip_append(test_zip *zip, const void *bytes, size_t n);
void test_zip_free(test_zip *zip);

/* ---- making ---- */

/* Five records in "m/": 0 data.pkl, 1 byteorder, 2 data/0, 3 data/1 (empty), 4 version. */
test_zip test_zip_small(void);

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
} test_entry;

/* With the classic end record alone, as tools write small archives. */
test_zip test_zip_new_foreign(const test_entry *entries, size_t n);

/* A plain stored entry: sizes and CRC in both headers, no descriptor. */
test_entry test_stored(const char *name, const char *data, size_t nbytes);

/* ---- reading it whole, as the strictest load does ---- */

/* All checks; on success the caller frees the directory. */
int test_zip_read(const test_zip *zip, uint64_t base_offset, bth_zip_directory *directory,
                  berth_error *error);

/* The whole archive is refused with this status and exactly this sentence. Frees it. */
void expect_refused(test_zip zip, int code, const char *sentence);
/* The whole archive is read, with so many records. Frees it. */
void expect_read(test_zip zip, size_t n_entries);

#endif
