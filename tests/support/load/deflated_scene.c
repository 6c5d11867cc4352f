/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/load/deflated_scene.h"

#include <zlib.h>

#include "tests/support/format/zip_builder.h"

/* Raw deflate, malloc's. */
static void *deflate_bytes(const void *bytes, size_t nbytes, size_t *deflated_nbytes)
{
    z_stream stream = {.next_in = (Bytef *)(uintptr_t)bytes, .avail_in = (uInt)nbytes};

    cr_assert_eq(deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    *deflated_nbytes = deflateBound(&stream, nbytes);
    stream.next_out = malloc(*deflated_nbytes);
    void *deflated = stream.next_out;
    stream.avail_out = (uInt)*deflated_nbytes;
    cr_assert_eq(deflate(&stream, Z_FINISH), Z_STREAM_END);
    *deflated_nbytes = stream.total_out;
    deflateEnd(&stream);
    return deflated;
}

static test_entry deflated_entry(const char *name, const struct record *record)
{
    size_t nbytes;
    void *bytes = deflate_bytes(record->bytes, record->nbytes, &nbytes);
    test_entry entry = test_stored(name, bytes, nbytes);

    entry.method = BTH_ZIP_DEFLATED;
    entry.local_size = entry.size = (uint32_t)record->nbytes;
    entry.local_crc32 = entry.crc32 = bth_crc32(0, record->bytes, record->nbytes);
    return entry;
}

/* The records of the sample, zipped again: those that begin with `prefix` are deflated. Where in
 * the file each has its data is kept. */
static size_t data_at[MAX_RECORDS];

void zip_again(const char *prefix)
{
    char names[MAX_RECORDS][64];
    test_entry entries[MAX_RECORDS];
    bool is_deflated[MAX_RECORDS];

    for (size_t i = 0; i < sample.n; i++) {
        const struct record *record = &sample.records[i];
        (void)snprintf(names[i], sizeof names[i], "sample/%s", record->name);
        is_deflated[i] = strncmp(record->name, prefix, strlen(prefix)) == 0;
        entries[i] = is_deflated[i] ? deflated_entry(names[i], record)
                                    : test_stored(names[i], record->bytes, record->nbytes);
    }
    test_zip zip = test_zip_new_foreign(entries, sample.n);
    free(file);
    file = memcpy(malloc(zip.nbytes), zip.bytes, zip.nbytes);
    file_nbytes = zip.nbytes;
    for (size_t i = 0; i < sample.n; i++) {
        data_at[i] = zip.data_at[i];
        if (is_deflated[i])
            free((void *)(uintptr_t)entries[i].data);
    }
    test_zip_free(&zip);
}

size_t data_of_record(const char *name)
{
    return data_at[find_record(name) - sample.records];
}

void begin_deflated(void)
{
    begin_sample();
    zip_again("data/");
}

/* A storage of 8 MiB of zeros, and two that are small; deflated. */
void begin_large(void)
{
    static uint8_t zeros[LARGE_NBYTES];
    static const uint8_t few[1000] = {1, 2, 3};
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);

    berth_dict_set(root, "large", test_vector(tree, BERTH_UINT8, zeros, LARGE_NBYTES));
    berth_dict_set(root, "few", test_vector(tree, BERTH_UINT8, few, sizeof few));
    berth_dict_set(root, "more", test_vector(tree, BERTH_UINT8, few + 1, sizeof few - 1));
    begin_records(tree, root, "little");
    add_record("data/0", zeros, sizeof zeros);
    add_record("data/1", few, sizeof few);
    add_record("data/2", few + 1, sizeof few - 1);
    add_text("version", "3\n");
    zip_again("data/");
}

const berth_tensor *tensor_named(const char *name)
{
    return berth_find_tensor(checkpoint, name, NULL);
}

void expect_error(int code, const char *message)
{
    cr_expect_eq(error.code, code);
    cr_expect_str_eq(error.message, message, "says\n  %s\ninstead of\n  %s", error.message,
                     message);
}
