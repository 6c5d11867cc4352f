/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Pickles: any bytes as the data.pkl of an archive that has just the storages that they name, so
 * that whatever the pickle reader accepts goes all the way. As a Criterion program it replays a
 * few; as a fuzzer (-DBERTH_FUZZER -fsanitize=fuzzer) it makes its own.
 * A fuzzer is built of this file and all sources of the rooms (config, format, io, save, load),
 * with clang -D_GNU_SOURCE -DBERTH_FUZZER -fsanitize=fuzzer,address,undefined -I. … -ldeflate -lz.
 */
#include "tests/fuzz/properties.h"

#include "config/error.h"
#include "format/pickle.h"

#define MOST_STORAGES 64
#define MOST_STORAGE_NBYTES 65536

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t nbytes);

/* ---- the archive around it ---- */

struct memory_file {
    uint8_t bytes[4 << 20];
    size_t nbytes;
};

static int write_to_memory(void *context, const void *bytes, size_t nbytes, uint64_t offset)
{
    struct memory_file *file = context;

    MUST(offset == file->nbytes && nbytes <= sizeof file->bytes - file->nbytes, "%zu", nbytes);
    memcpy(file->bytes + file->nbytes, bytes, nbytes);
    file->nbytes += nbytes;
    return 0;
}

/* False: the storages are too many, or too large, for a test. */
static bool wrap(const uint8_t *bytes, size_t nbytes, const berth_tree *tree,
                 struct memory_file *file)
{
    static uint8_t payload[MOST_STORAGE_NBYTES];
    static char names[MOST_STORAGES][1100];
    berth_new_record records[MOST_STORAGES + 1] = {
        {.name = "data.pkl", .nbytes = nbytes, .data = bytes}};
    berth_sink sink = {.write = write_to_memory, .context = file, .in_order = true};
    size_t n = berth_tree_n_storages(tree);
    berth_error error;

    if (n > MOST_STORAGES)
        return false;
    for (size_t i = 0; i < sizeof payload; i++)
        payload[i] = (uint8_t)(i * 31 + i / 256);
    for (size_t i = 0; i < n; i++) {
        const berth_storage *storage = berth_tree_storage(tree, i);
        if (storage->nbytes > MOST_STORAGE_NBYTES)
            return false;
        snprintf(names[i], sizeof names[i], "data/%s", storage->key);
        records[i + 1] =
            (berth_new_record){.name = names[i], .nbytes = storage->nbytes, .data = payload};
    }
    file->nbytes = 0;
    /* Keys that make no record name: then no archive can hold them. */
    return berth_save_records_sink(&sink, "a", records, n + 1, 0, NULL, &error) == 0;
}

/* ---- the reader by itself ---- */

/* The tree, or NULL with a sentence. */
static berth_tree *read_pickle(const uint8_t *bytes, size_t nbytes, bool inert)
{
    berth_pickle_rules rules = {.inert = inert, .record = "data.pkl"};
    berth_pickle_survey survey = {0};
    size_t before_nbytes;
    berth_value *root = NULL;
    berth_error error;

    count_memory_from_now();
    before_nbytes = live_nbytes;
    berth_tree *tree = berth_tree_new(&error);
    int result = berth_pickle_read(bytes, nbytes, &rules, tree, &root, &error);
    MUST(most_nbytes - before_nbytes <= MEMORY_PER_BYTE * nbytes + 65536,
         "P3: %zu bytes of memory for a pickle of %zu", most_nbytes - before_nbytes, nbytes);
    MUST((result < 0) == (error.message[0] != 0) && (result < 0 || root), "%s", error.message);
    if (result == 0) {
        MUST(berth_pickle_look(bytes, nbytes, &rules, &survey, &error) == 0 &&
                 survey.extent == nbytes,
             "its end is at %zu of %zu: %s", survey.extent, nbytes, error.message);
        return tree;
    }
    berth_tree_free(tree);
    MUST(live_nbytes == before_nbytes, "%zu bytes leak", live_nbytes - before_nbytes);
    return NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t nbytes)
{
    static struct memory_file file;
    berth_tree *inert = read_pickle(bytes, nbytes, true);
    berth_tree *tree = read_pickle(bytes, nbytes, false);
    bool wrapped = inert && wrap(bytes, nbytes, inert, &file);

    MUST(!tree || inert, "what is read without unknown globals is read with them");
    berth_tree_free(inert);
    berth_tree_free(tree);
    if (!wrapped)
        return 0;
    MUST(check_opening(file.bytes, file.nbytes, "load.unknown_globals=inert"),
         "the pickle is read, the archive around it is not");
    MUST(check_opening(file.bytes, file.nbytes, "load.unknown_globals=refuse") == (tree != NULL),
         "read by itself and in an archive, not the same");
    check_readings(file.bytes, file.nbytes, "load.unknown_globals=inert");
    return 0;
}

#ifndef BERTH_FUZZER

#include <criterion/criterion.h>

/* The pickle of a value with a bit of everything; by malloc. */
static uint8_t *written(size_t *nbytes)
{
    static const float elements[6] = {0, 1, 2, 3, 4, 5};
    static const int64_t shape[] = {2, 3};
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_ordered_dict(tree), *list = berth_list(tree);
    berth_value *pair[2] = {berth_int(tree, 300), berth_str(tree, "k", 1)};
    berth_pickled pickled;
    berth_error error = {0};

    berth_value *tensor = berth_tensor_value(
        tree, &(berth_tensor){.dtype = BERTH_FLOAT32, .rank = 2, .shape = shape, .data = elements});
    berth_dict_set(root, "weight", berth_parameter(tree, tensor, true));
    berth_dict_set_value(root, berth_tuple(tree, pair, 2), list);
    berth_list_append(list, tensor);
    berth_list_append(list, berth_bytes(tree, "\xff\x00\x01", 3));
    berth_list_append(list, berth_complex(tree, 1, -2));
    berth_list_append(list, berth_size(tree, shape, 2));
    berth_list_append(list, berth_device(tree, "cuda", 1));
    berth_value_set_state(root, berth_dict(tree));
    MUST(berth_pickle_write(root, false, &pickled, &error) == 0, "%s", error.message);
    uint8_t *bytes = malloc(pickled.nbytes);
    memcpy(bytes, pickled.bytes, pickled.nbytes);
    *nbytes = pickled.nbytes;
    berth_pickled_free(&pickled);
    berth_tree_free(tree);
    return bytes;
}

/* n times the same opcodes between a beginning and an end. */
static void replay_repeated(const char *begin, size_t begin_nbytes, const char *opcodes,
                            size_t opcodes_nbytes, size_t n, const char *end)
{
    size_t nbytes = begin_nbytes;
    uint8_t *bytes = malloc(begin_nbytes + n * opcodes_nbytes + strlen(end));

    memcpy(bytes, begin, begin_nbytes);
    for (size_t i = 0; i < n; i++, nbytes += opcodes_nbytes)
        memcpy(bytes + nbytes, opcodes, opcodes_nbytes);
    memcpy(bytes + nbytes, end, strlen(end));
    LLVMFuzzerTestOneInput(bytes, nbytes + strlen(end));
    free(bytes);
}

Test(pickles, keep_all_properties_cut_at_every_byte)
{
    size_t nbytes;
    uint8_t *bytes = written(&nbytes);

    for (size_t n = 0; n <= nbytes; n++)
        LLVMFuzzerTestOneInput(bytes, n);
    free(bytes);
}

Test(pickles, keep_all_properties_with_any_bit_flipped)
{
    size_t nbytes;
    uint8_t *bytes = written(&nbytes);

    for (size_t i = 0; i < 8 * nbytes; i++) {
        bytes[i / 8] ^= (uint8_t)(1u << i % 8);
        LLVMFuzzerTestOneInput(bytes, nbytes);
        bytes[i / 8] ^= (uint8_t)(1u << i % 8);
    }
    free(bytes);
}

Test(pickles, keep_all_properties_when_tuples_double)
{
    replay_repeated("\x80\x02K\x01", 4, "q\x00h\x00\x86", 5, 30, ".");
    replay_repeated("\x80\x02}K\x01", 5, "q\x00h\x00\x86", 5, 30, "K\x01s.");
}

Test(pickles, keep_all_properties_when_deep)
{
    replay_repeated("\x80\x02)", 3, "\x85", 1, 100000, ".");
    replay_repeated("\x80\x02]", 3, "]q\x00h\x00\x61", 6, 1, "a.");
}

Test(pickles, keep_all_properties_when_they_hold_themselves)
{
    replay_repeated("\x80\x02]q\x00", 5, "h\x00\x61", 3, 3, ".");
    replay_repeated("\x80\x02}q\x00", 5, "K\x01h\x00s", 5, 3, ".");
}
#endif
