/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The legacy format, from before PyTorch 1.6 (FORMAT.md 1): five pickles (magic number, protocol
 * version, system info, object, storage keys), then for each key its count of elements and the
 * elements. The object is read by the same restricted reader as any other.
 */
#include "format/pickle/pickle.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/pickle/pickle_opcodes.h"

enum { MAGIC, PROTOCOL, SYSTEM, OBJECT, KEYS, N_PICKLES = BTH_LEGACY_N_PICKLES };

enum { PROTOCOL_VERSION = 1001, COUNT_NBYTES = 8 };

static const char *const names[N_PICKLES] = {"magic number", "protocol version", "system info",
                                             "object", "storage keys"};

/* 0x1950a86a20f9469cfc6c, the magic number, as LONG1 has it. */
static const uint8_t magic_number[10] = {0x6c, 0xfc, 0x9c, 0x46, 0xf9,
                                         0x20, 0x6a, 0xa8, 0x50, 0x19};

bool bth_is_legacy(const uint8_t *bytes, size_t nbytes)
{
    enum { HEAD_NBYTES = 4 };
    if (nbytes < HEAD_NBYTES + sizeof magic_number)
        return false;
    bool begins_with_long =
        bytes[0] == BTH_OP_PROTO && bytes[2] == BTH_OP_LONG1 && bytes[3] == sizeof magic_number;
    bool is_known_protocol = bytes[1] == 2 || bytes[1] == 3;
    return begins_with_long && is_known_protocol &&
           memcmp(bytes + HEAD_NBYTES, magic_number, sizeof magic_number) == 0;
}

bool bth_legacy_begins(const uint8_t *bytes, size_t nbytes)
{
    for (size_t at = 2; at + sizeof magic_number <= nbytes && bytes[0] == BTH_OP_PROTO; at++)
        if (memcmp(bytes + at, magic_number, sizeof magic_number) == 0)
            return true;
    return false;
}

#define LEGACY_FAIL(error, pickle, ...)                                                            \
    bth_fail(error, BERTH_E_PICKLE, names[pickle], BERTH_NO_OFFSET, __VA_ARGS__)

/* ---- the five pickles ---- */

/* Each key of the list names a storage of the object, not a view, and each of those once. */
static int legacy_read_keys(const berth_value *list, const berth_tree *tree, bool *named,
                            const char **keys, berth_error *error)
{
    for (size_t i = 0; i < berth_value_count(list); i++) {
        const berth_value *value = bth_value_item(list, i);
        size_t nbytes;
        if (berth_value_kind(value) != BERTH_KIND_STR)
            return LEGACY_FAIL(error, KEYS, "a key is not a str");
        keys[i] = berth_as_text(value, &nbytes);
        const berth_storage *storage = bth_tree_find_storage(tree, keys[i], nbytes);
        if (!storage)
            return LEGACY_FAIL(
                error, KEYS, "storage %.80s is not in the object, so its size is unknown", keys[i]);
        if (storage->root || named[storage->index])
            return LEGACY_FAIL(error, KEYS, "storage %.80s is %s", keys[i],
                               storage->root ? "a view of another one" : "listed twice");
        named[storage->index] = true;
    }
    /* A storage that the list leaves out has no bytes: PyTorch would return garbage. */
    for (size_t i = 0; i < bth_tree_n_storages(tree); i++) {
        const berth_storage *storage = bth_tree_storage(tree, i);
        if (!storage->root && !named[i])
            return LEGACY_FAIL(error, KEYS, "storage %.80s of the object is not listed",
                               storage->key);
    }
    return 0;
}

int bth_legacy_read_pickles(const uint8_t *bytes, size_t nbytes, const bth_pickle_rules *common,
                            berth_tree *tree, bth_legacy *legacy, berth_error *error)
{
    size_t begins[N_PICKLES + 1] = {0};
    berth_value *values[N_PICKLES];
    *legacy = (bth_legacy){0};
    /* Finds the end of each before anything is built, so that the caller can provide more bytes. */
    for (int i = 0; i < N_PICKLES; i++) {
        bth_pickle_rules rules = {.record = names[i], .base_offset = begins[i]};
        bth_pickle_survey survey = {0};
        if (bth_pickle_find_end_and_fetches(bytes + begins[i], nbytes - begins[i], &rules, &survey,
                                            error) < 0)
            return error->code;
        begins[i + 1] = begins[i] + survey.extent;
    }
    for (int i = 0; i < N_PICKLES; i++) {
        bth_pickle_rules rules = {.inert = common->inert && i == OBJECT,
                                  .latin1 = common->latin1,
                                  .legacy = true,
                                  .record = names[i],
                                  .base_offset = begins[i]};
        if (bth_pickle_read(bytes + begins[i], begins[i + 1] - begins[i], &rules, tree, &values[i],
                            error) < 0)
            return error->code;
        if (i != SYSTEM)
            continue;
        /* Those before the object say that it is one of PyTorch's. */
        size_t magic_nbytes;
        int64_t version;
        const uint8_t *magic = berth_as_bytes(values[MAGIC], &magic_nbytes);
        if (berth_value_kind(values[MAGIC]) != BERTH_KIND_INT ||
            magic_nbytes != sizeof magic_number || memcmp(magic, magic_number, magic_nbytes) != 0)
            return LEGACY_FAIL(error, MAGIC, "not that of PyTorch's legacy format");
        if (!berth_as_int(values[PROTOCOL], &version) || version != PROTOCOL_VERSION)
            return LEGACY_FAIL(error, PROTOCOL, "not 1001");
        if (berth_value_kind(values[SYSTEM]) != BERTH_KIND_DICT)
            return LEGACY_FAIL(error, SYSTEM, "not a dict");
        const berth_value *little = berth_dict_get(values[SYSTEM], "little_endian");
        if (berth_value_kind(little) != BERTH_KIND_BOOL)
            return LEGACY_FAIL(error, SYSTEM, "little_endian is missing or not a bool");
        legacy->recorded_little_endian = bth_value_bool(little);
    }
    if (berth_value_kind(values[KEYS]) != BERTH_KIND_LIST)
        return LEGACY_FAIL(error, KEYS, "not a list");
    legacy->root = values[OBJECT];
    legacy->payload_offset = begins[N_PICKLES];
    legacy->n_keys = berth_value_count(values[KEYS]);
    legacy->keys = bth_tree_allocate(tree, (legacy->n_keys + 1) * sizeof *legacy->keys);
    bool *named = bth_allocate_zeroed(bth_tree_n_storages(tree) + 1);
    int code = legacy->keys && named
                   ? legacy_read_keys(values[KEYS], tree, named, legacy->keys, error)
                   : bth_fail_memory(error, legacy->n_keys * sizeof *legacy->keys);
    bth_release(named);
    return code;
}

/* ---- the payload ---- */

int bth_legacy_check_count_and_set_offset(const bth_legacy *legacy, berth_tree *tree, size_t i,
                                          const uint8_t count[8], uint64_t count_offset,
                                          uint64_t file_nbytes, uint64_t *next_offset,
                                          berth_error *error)
{
    const char *key = legacy->keys[i];
    berth_storage *storage = bth_tree_find_storage(tree, key, strlen(key));
    uint64_t numel = 0, nbytes;
    char record[sizeof error->record];
    (void)snprintf(record, sizeof record, "storage %s", key);
    for (int byte = COUNT_NBYTES - 1; byte >= 0; byte--)
        numel = numel << 8 | count[byte];
    if (!bth_try_multiply(numel, berth_dtype_nbytes(storage->dtype), &nbytes) ||
        nbytes != storage->nbytes)
        return bth_fail(error, BERTH_E_TENSOR, record, count_offset,
                        "%" PRIu64 " elements of %s, but %" PRIu64 " bytes in the object", numel,
                        berth_dtype_name(storage->dtype), storage->nbytes);
    if (count_offset > file_nbytes || file_nbytes - count_offset < COUNT_NBYTES ||
        nbytes > file_nbytes - count_offset - COUNT_NBYTES)
        return bth_fail(error, BERTH_E_TRUNCATED, record, count_offset,
                        "the file ends within this storage's %" PRIu64 " bytes" BTH_CUT_OFF,
                        nbytes);
    storage->offset = count_offset + COUNT_NBYTES;
    *next_offset = storage->offset + nbytes;
    /* Views have no bytes of their own: they are parts of their root. */
    for (size_t j = 0; i + 1 == legacy->n_keys && j < bth_tree_n_storages(tree); j++) {
        berth_storage *view = bth_tree_storage(tree, j);
        if (view->root)
            view->offset = view->root->offset + view->root_offset;
    }
    return 0;
}
