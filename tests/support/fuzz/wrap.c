/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/fuzz/wrap.h"
#include "format/values/value.h"
#include "tests/support/support.h"

#define MAX_STORAGES 64

static int write_to_memory(void *context, const void *bytes, size_t nbytes, uint64_t offset)
{
    struct memory_file *file = context;

    MUST(offset == file->nbytes && nbytes <= sizeof file->bytes - file->nbytes, "%zu", nbytes);
    memcpy(file->bytes + file->nbytes, bytes, nbytes);
    file->nbytes += nbytes;
    return 0;
}

bool wrap(const uint8_t *bytes, size_t nbytes, const berth_tree *tree, struct memory_file *file)
{
    static uint8_t payload[MAX_STORAGE_NBYTES];
    static char names[MAX_STORAGES][1100];
    berth_new_record records[MAX_STORAGES + 1] = {
        {.name = "data.pkl", .nbytes = nbytes, .data = bytes}};
    berth_sink sink = {.write = write_to_memory, .context = file, .in_order = true};
    size_t n = bth_tree_n_storages(tree);
    berth_error error;

    if (n > MAX_STORAGES || nbytes > sizeof file->bytes / 2)
        return false;
    for (size_t i = 0; i < sizeof payload && payload[1] == 0; i++)
        payload[i] = (uint8_t)(i * 31 + i / 256);
    for (size_t i = 0; i < n; i++) {
        const berth_storage *storage = bth_tree_storage(tree, i);
        if (storage->nbytes > MAX_STORAGE_NBYTES)
            return false;
        snprintf(names[i], sizeof names[i], "data/%s", storage->key);
        records[i + 1] =
            (berth_new_record){.name = names[i], .nbytes = storage->nbytes, .data = payload};
    }
    file->nbytes = 0;
    return berth_save_to(TO_SINK(&sink), OF_RECORDS(records, n + 1, 0), NAMED("a"), &error) == 0;
}
