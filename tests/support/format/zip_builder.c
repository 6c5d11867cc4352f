/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/format/zip_builder.h"
#include "tests/support/format/composed.h"

void test_zip_put(test_zip *zip, size_t at, uint64_t value, size_t width)
{
    bth_put_integer(zip->bytes + at, value, width);
}

void test_zip_insert(test_zip *zip, size_t at, const void *bytes, size_t n)
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

void test_zip_remove(test_zip *zip, size_t at, size_t n)
{
    memmove(zip->bytes + at, zip->bytes + at + n, zip->nbytes - at - n);
    zip->nbytes -= n;
}

void test_zip_append(test_zip *zip, const void *bytes, size_t n)
{
    zip->bytes = realloc(zip->bytes, zip->nbytes + n + 1);
    if (n > 0)
        memcpy(zip->bytes + zip->nbytes, bytes, n);
    zip->nbytes += n;
}

void test_zip_free(test_zip *zip)
{
    free(zip->bytes);
    *zip = (test_zip){0};
}

test_zip test_zip_small(void)
{
    static const struct record records[] = {
        {"data.pkl", "pickle", 6}, {"byteorder", "little", 6}, {"data/0", "\1\2\3\4\5", 5},
        {"data/1", "", 0},         {"version", "3\n", 2},
    };
    composed file;

    compose_archive(&file, "m/", records, 5, 64, true, NULL);
    test_zip zip = {.bytes = file.bytes,
                    .nbytes = file.nbytes,
                    .n_records = 5,
                    .directory_at = file.directory_at,
                    .end64_at = file.end_at,
                    .locator_at = file.end_at + BTH_ZIP_END64_RECORD_NBYTES,
                    .end_at = file.nbytes - BTH_ZIP_END_RECORD_NBYTES};
    for (size_t i = 0; i < 5; i++) {
        zip.header_at[i] = file.places[i].header_offset;
        zip.extra_at[i] = zip.header_at[i] + LOCAL_NAME + file.places[i].name_nbytes;
        zip.data_at[i] = file.places[i].data_offset;
        zip.descriptor_at[i] = zip.data_at[i] + file.places[i].nbytes;
        zip.central_at[i] = file.central_at[i];
    }
    return zip;
}

static void test_zip_add_local(test_zip *zip, size_t i, const test_entry *entry)
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
    test_zip_append(zip, fixed, sizeof fixed);
    test_zip_append(zip, entry->name, strlen(entry->name));
    zip->extra_at[i] = zip->nbytes;
    test_zip_append(zip, entry->local_extra, entry->local_extra_nbytes);
    zip->data_at[i] = zip->nbytes;
    test_zip_append(zip, entry->data, entry->data_nbytes);
    zip->descriptor_at[i] = zip->nbytes;
    test_zip_append(zip, entry->descriptor, entry->descriptor_nbytes);
}

static void test_zip_add_central(test_zip *zip, size_t i, const test_entry *entry)
{
    uint8_t fixed[BTH_ZIP_CENTRAL_NBYTES] = "PK\1\2";
    bth_put_u16(fixed + CENTRAL_FLAGS, entry->flags);
    bth_put_u16(fixed + CENTRAL_METHOD, entry->method);
    bth_put_u32(fixed + CENTRAL_CRC, entry->crc32);
    bth_put_u32(fixed + CENTRAL_COMPRESSED, entry->compressed);
    bth_put_u32(fixed + CENTRAL_SIZE, entry->size);
    bth_put_u16(fixed + CENTRAL_NAME_NBYTES, strlen(entry->name));
    bth_put_u32(fixed + CENTRAL_HEADER_OFFSET, zip->header_at[i]);
    zip->central_at[i] = zip->nbytes;
    test_zip_append(zip, fixed, sizeof fixed);
    test_zip_append(zip, entry->name, strlen(entry->name));
}

test_zip test_zip_new_foreign(const test_entry *entries, size_t n)
{
    uint8_t end[BTH_ZIP_END_NBYTES];
    test_zip zip = {.n_records = n};

    for (size_t i = 0; i < n; i++)
        test_zip_add_local(&zip, i, &entries[i]);
    zip.directory_at = zip.nbytes;
    for (size_t i = 0; i < n; i++)
        test_zip_add_central(&zip, i, &entries[i]);
    bth_zip_write_end(n, zip.directory_at, zip.nbytes - zip.directory_at, end);
    zip.end64_at = zip.locator_at = zip.end_at = zip.nbytes;
    test_zip_append(&zip, end + sizeof end - BTH_ZIP_END_RECORD_NBYTES, BTH_ZIP_END_RECORD_NBYTES);
    return zip;
}

test_entry test_stored(const char *name, const char *data, size_t nbytes)
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

static int test_zip_get(void *context, uint64_t offset, uint64_t nbytes, uint64_t ahead,
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

static int test_zip_check_entry(const test_zip *zip, bth_zip_entry *entry, berth_error *error)
{
    test_zip_copies copies = {.zip = zip};
    const bth_zip_input input = {.get = test_zip_get, .context = &copies};

    bth_zip_check_record(&input, 0, entry, error);
    free(copies.copy);
    return error->code;
}

static int test_zip_check_data(const test_zip *zip, const bth_zip_entry *entry, berth_error *error)
{
    const uint8_t *data = zip->bytes + entry->data_offset;
    uint8_t *inflated = NULL;
    bool present;

    if (entry->method == BTH_ZIP_DEFLATED) {
        if (bth_inflate_check_limits(entry, error) < 0)
            return error->code;
        inflated = malloc(entry->nbytes + 1);
        if (bth_inflate(entry, data, inflated, error) == 0)
            data = inflated;
    }
    if (error->code == BERTH_OK)
        bth_zip_compare_crc(entry, bth_crc32(0, data, entry->nbytes), &present, error);
    free(inflated);
    return error->code;
}

int test_zip_read(const test_zip *zip, uint64_t base_offset, bth_zip_directory *directory,
                  berth_error *error)
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
        bth_zip_check_no_gaps(directory, &end, 0, base_offset, error);
    for (size_t i = 0; i < n && error->code == BERTH_OK; i++)
        test_zip_check_data(zip, &directory->entries[i], error);
    if (error->code != BERTH_OK)
        bth_zip_free_directory(directory);
    return error->code;
}
