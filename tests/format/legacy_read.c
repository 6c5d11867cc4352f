/* SPDX-License-Identifier: BSD-3-Clause */
/* Streams from before PyTorch 1.6: the five pickles, the key list, where the elements lie. */
#include "format/pickle/pickle.h"

#include "tests/support/format/pickle_assembler.h"

#define MAGIC "PROTO 2 LONG1 0x6cfc9c46f9206aa85019 STOP "
#define PROTOCOL "PROTO 2 BININT2 1001 STOP "
#define SYSTEM                                                                                     \
    "PROTO 2 EMPTY_DICT MARK 'protocol_version' BININT2 1001 'little_endian' NEWTRUE SETITEMS "    \
    "STOP "
#define STREAM_FLOATS(key, numel)                                                                  \
    " MARK 'storage' GLOBAL torch FloatStorage '" key "' 'cpu' " numel " NONE TUPLE BINPERSID "
#define PART(key, offset, numel)                                                                   \
    " MARK 'storage' GLOBAL torch FloatStorage 'b' 'cpu' 5 '" key "' " offset " " numel            \
    " TUPLE3 TUPLE BINPERSID "
#define OBJECT                                                                                     \
    "PROTO 2 MARK" STREAM_FLOATS("b", "5") STREAM_FLOATS("a", "2") PART("v", "3", "2") "TUPLE "    \
                                                                                       "STOP "
#define KEYS "PROTO 2 EMPTY_LIST MARK 'a' 'b' APPENDS STOP "

struct streamed {
    struct pickle file;
    berth_tree *tree;
    bth_legacy legacy;
    berth_error error;
    int code;
};

static struct streamed read_stream_by(const char *words, bool inert)
{
    struct streamed read = {.tree = berth_tree_new(NULL)};
    assemble(&read.file, words);
    bth_error_clear(&read.error);
    read.code = bth_legacy_read_pickles(read.file.bytes, read.file.nbytes,
                                        &(bth_pickle_rules){.inert = inert}, read.tree,
                                        &read.legacy, &read.error);
    return read;
}

static struct streamed read_stream(const char *words)
{
    return read_stream_by(words, false);
}

static void free_streamed(struct streamed *read)
{
    berth_tree_free(read->tree);
    free(read->file.bytes);
}

static void expect_refused(const char *words, int code, const char *message)
{
    struct streamed read = read_stream(words);
    cr_expect_eq(read.code, code, "%s", words);
    cr_expect_str_eq(read.error.message, message);
    free_streamed(&read);
}

/* Places all storages; the offsets of counts follow each other. */
static int place_all(struct streamed *read)
{
    uint64_t at = read->legacy.payload_offset;
    for (size_t i = 0; i < read->legacy.n_keys && read->code == 0; i++) {
        uint8_t count[8] = {0};
        if (at + 8 <= read->file.nbytes)
            memcpy(count, read->file.bytes + at, 8);
        read->code = bth_legacy_check_count_and_set_offset(&read->legacy, read->tree, i, count, at,
                                                           read->file.nbytes, &at, &read->error);
    }
    if (read->code == 0)
        cr_expect_eq(at, read->file.nbytes, "the last storage ends the file");
    return read->code;
}

static uint64_t offset_of(const struct streamed *read, const char *key)
{
    return bth_tree_find_storage(read->tree, key, strlen(key))->offset;
}

/* ---- what is read ---- */

Test(legacy_read, a_stream_is_told_by_its_magic_number)
{
    struct pickle pickle = {0};
    assemble(&pickle, MAGIC);
    cr_expect(bth_is_legacy(pickle.bytes, pickle.nbytes));
    cr_expect(bth_is_legacy(pickle.bytes, 14));
    cr_expect_not(bth_is_legacy(pickle.bytes, 13));
    for (size_t i = 0; i < 14; i++) {
        pickle.bytes[i] ^= 4;
        cr_expect_not(bth_is_legacy(pickle.bytes, pickle.nbytes), "byte %zu", i);
        pickle.bytes[i] ^= 4;
    }
    for (uint8_t protocol = 0; protocol < 6; protocol++) {
        pickle.bytes[1] = protocol;
        cr_expect_eq(bth_is_legacy(pickle.bytes, pickle.nbytes), protocol == 2 || protocol == 3,
                     "protocol %d", protocol);
    }
    free(pickle.bytes);
}

Test(legacy_read, storages_follow_the_key_list_and_views_lie_in_their_roots)
{
    struct streamed read = read_stream(MAGIC PROTOCOL SYSTEM OBJECT KEYS);
    cr_assert_eq(read.code, 0, "%s", read.error.message);
    cr_expect_eq(read.legacy.payload_offset, read.file.nbytes);
    cr_expect(read.legacy.recorded_little_endian);
    cr_assert_eq(read.legacy.n_keys, 2);
    cr_expect_str_eq(read.legacy.keys[0], "a");
    uint64_t payload = read.file.nbytes;
    put_little(&read.file, 2, 8);
    put(&read.file, "aaaabbbb", 8);
    put_little(&read.file, 5, 8);
    put(&read.file, "ccccddddeeeeffffgggg", 20);
    cr_assert_eq(place_all(&read), 0, "%s", read.error.message);
    cr_expect_eq(offset_of(&read, "a"), payload + 8);
    cr_expect_eq(offset_of(&read, "b"), payload + 24);
    cr_expect_eq(offset_of(&read, "v"), payload + 24 + 12);
    free_streamed(&read);
}

/* As torch.save(..., pickle_protocol=3) writes it: all five pickles, bytes with their own opcode.
 */
Test(legacy_read, a_stream_of_protocol_3)
{
    struct streamed read = read_stream(
        "PROTO 3 LONG1 0x6cfc9c46f9206aa85019 STOP PROTO 3 BININT2 1001 STOP PROTO 3 EMPTY_DICT "
        "'little_endian' NEWTRUE SETITEM STOP PROTO 3 SHORT_BINBYTES 0xff00" STREAM_FLOATS(
            "b", "5") "TUPLE2 STOP PROTO 3 EMPTY_LIST 'b' APPEND STOP");
    cr_assert_eq(read.code, 0, "%s", read.error.message);
    cr_expect_eq(read.legacy.n_keys, 1);
    size_t nbytes;
    const uint8_t *bytes = berth_as_bytes(bth_value_item(read.legacy.root, 0), &nbytes);
    cr_assert_eq(nbytes, 2);
    cr_expect_eq(bytes[0], 0xff);
    free_streamed(&read);
}

Test(legacy_read, a_stream_without_storages)
{
    struct streamed read =
        read_stream(MAGIC PROTOCOL SYSTEM "PROTO 2 NONE STOP PROTO 2 EMPTY_LIST STOP");
    cr_expect_eq(read.code, 0, "%s", read.error.message);
    cr_expect_eq(read.legacy.n_keys, 0);
    free_streamed(&read);
}

/* Elements are little-endian whatever the machine says of itself: PyTorch does not look either. */
Test(legacy_read, the_word_of_the_machine_is_only_kept)
{
    struct streamed read =
        read_stream(MAGIC PROTOCOL "EMPTY_DICT 'little_endian' NEWFALSE SETITEM STOP " OBJECT KEYS);
    cr_expect_eq(read.code, 0, "%s", read.error.message);
    cr_expect_not(read.legacy.recorded_little_endian);
    free_streamed(&read);
}

/* ---- what is refused ---- */

Test(legacy_read, heads_that_are_not_a_streams)
{
    expect_refused("LONG1 0x6cfc9c46f9206aa85018 STOP " PROTOCOL SYSTEM OBJECT KEYS, BERTH_E_PICKLE,
                   "magic number: not that of PyTorch's legacy format");
    expect_refused(
        "PROTO 3 SHORT_BINBYTES 0x6cfc9c46f9206aa85019 STOP " PROTOCOL SYSTEM OBJECT KEYS,
        BERTH_E_PICKLE, "magic number: not that of PyTorch's legacy format");
    expect_refused("NONE STOP " PROTOCOL SYSTEM OBJECT KEYS, BERTH_E_PICKLE,
                   "magic number: not that of PyTorch's legacy format");
    expect_refused("LONG1 0x6cfc9c46f9206aa8501901 STOP " PROTOCOL SYSTEM OBJECT KEYS,
                   BERTH_E_PICKLE, "magic number: not that of PyTorch's legacy format");
    expect_refused("LONG1 0x6cfc9c46f9206aa850 STOP " PROTOCOL SYSTEM OBJECT KEYS, BERTH_E_PICKLE,
                   "magic number: not that of PyTorch's legacy format");
    expect_refused(MAGIC "NONE STOP " SYSTEM OBJECT KEYS, BERTH_E_PICKLE,
                   "protocol version: not 1001");
    expect_refused(MAGIC "BININT2 1000 STOP " SYSTEM OBJECT KEYS, BERTH_E_PICKLE,
                   "protocol version: not 1001");
    expect_refused(MAGIC PROTOCOL "NONE STOP " OBJECT KEYS, BERTH_E_PICKLE,
                   "system info: not a dict");
    expect_refused(MAGIC PROTOCOL "EMPTY_DICT STOP " OBJECT KEYS, BERTH_E_PICKLE,
                   "system info: little_endian is missing or not a bool");
    expect_refused(MAGIC PROTOCOL SYSTEM OBJECT "NONE STOP", BERTH_E_PICKLE,
                   "storage keys: not a list");
}

Test(legacy_read, the_object_goes_through_the_same_door)
{
    expect_refused(MAGIC PROTOCOL SYSTEM "GLOBAL os system STOP " KEYS, BERTH_E_FORBIDDEN,
                   "object at byte 70: global os system is not allowed in a checkpoint "
                   "(load.unknown_globals=inert lists such files without running anything)");
    expect_refused(MAGIC PROTOCOL SYSTEM "PROTO 2 NONE POP STOP " KEYS, BERTH_E_FORBIDDEN,
                   "object at byte 73: opcode POP (0x30) is not allowed in a checkpoint");
    expect_refused(MAGIC PROTOCOL SYSTEM "MARK 'module' NONE NONE NONE TUPLE BINPERSID STOP " KEYS,
                   BERTH_E_FORBIDDEN,
                   "object at byte 86: a whole pickled module, which is code and never run: only "
                   "its state_dict can be read");
}

/* On request, and of the object alone. */
Test(legacy_read, unknown_globals_of_the_object_become_inert)
{
    struct streamed read =
        read_stream_by(MAGIC PROTOCOL SYSTEM "GLOBAL os system STOP EMPTY_LIST STOP", true);
    cr_assert_eq(read.code, 0, "%s", read.error.message);
    cr_expect_eq(berth_value_kind(read.legacy.root), BERTH_KIND_GLOBAL);
    free_streamed(&read);
    read = read_stream_by(MAGIC PROTOCOL "GLOBAL os system STOP " OBJECT KEYS, true);
    cr_expect_eq(read.code, BERTH_E_FORBIDDEN);
    free_streamed(&read);
    read = read_stream_by(MAGIC PROTOCOL SYSTEM OBJECT "GLOBAL os system STOP", true);
    cr_expect_eq(read.code, BERTH_E_FORBIDDEN);
    free_streamed(&read);
}

/* ('module', class, source file, source) names the class of a whole pickled module. */
Test(legacy_read, classes_of_modules_become_inert)
{
#define MODULE(class) "MARK 'module' " class " 'file.py' 'source' TUPLE BINPERSID "
    static const struct {
        const char *object;
        berth_kind kind; /* NONE: refused */
    } rows[] = {
        {MODULE("GLOBAL mine Module"), BERTH_KIND_GLOBAL},
        {MODULE("GLOBAL x getattr GLOBAL mine Outer 'Module' TUPLE2 REDUCE"), BERTH_KIND_CALL},
        {MODULE("GLOBAL mine Module") "EMPTY_TUPLE NEWOBJ ", BERTH_KIND_CALL},
        {MODULE("'Module'"), BERTH_KIND_NONE},
        {"MARK 'module' GLOBAL mine Module 'file.py' TUPLE BINPERSID ", BERTH_KIND_NONE},
        {"MARK 'other' GLOBAL mine Module 'a' 'b' TUPLE BINPERSID ", BERTH_KIND_NONE},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char words[500];
        snprintf(words, sizeof words, "%sSTOP EMPTY_LIST STOP", rows[i].object);
        char *file = malloc(1000);
        snprintf(file, 1000, "%s%s", MAGIC PROTOCOL SYSTEM, words);
        struct streamed read = read_stream_by(file, true);
        cr_expect_eq(read.code == 0, rows[i].kind != BERTH_KIND_NONE, "%s", read.error.message);
        if (read.code == 0)
            cr_expect_eq(berth_value_kind(read.legacy.root), rows[i].kind);
        free_streamed(&read);
        free(file);
    }
}

Test(legacy_read, key_lists_that_do_not_fit_the_object)
{
#define WITH_KEYS(keys) MAGIC PROTOCOL SYSTEM OBJECT "EMPTY_LIST MARK " keys " APPENDS STOP"
    expect_refused(WITH_KEYS("'a' 'b' 'c'"), BERTH_E_PICKLE,
                   "storage keys: storage c is not in the object, so its size is unknown");
    expect_refused(WITH_KEYS("'a' 'b' 'a'"), BERTH_E_PICKLE,
                   "storage keys: storage a is listed twice");
    expect_refused(WITH_KEYS("'a' 'b' 'v'"), BERTH_E_PICKLE,
                   "storage keys: storage v is a view of another one");
    expect_refused(WITH_KEYS("'b'"), BERTH_E_PICKLE,
                   "storage keys: storage a of the object is not listed");
    expect_refused(WITH_KEYS("'a' 5"), BERTH_E_PICKLE, "storage keys: a key is not a str");
}

Test(legacy_read, more_bytes_are_asked_for_before_anything_is_built)
{
    struct pickle pickle = {0};
    assemble(&pickle, MAGIC PROTOCOL SYSTEM OBJECT KEYS);
    berth_tree *tree = berth_tree_new(NULL);
    for (size_t cut = 0; cut < pickle.nbytes; cut++) {
        bth_legacy legacy;
        berth_error error;
        bth_error_clear(&error);
        int code = bth_legacy_read_pickles(pickle.bytes, cut, &(bth_pickle_rules){0}, tree, &legacy,
                                           &error);
        cr_expect_eq(code, BERTH_E_TRUNCATED, "cut at %zu: %s", cut, error.message);
        cr_expect_eq(bth_tree_n_ids(tree), 0);
    }
    berth_tree_free(tree);
    free(pickle.bytes);
}

Test(legacy_read, counts_that_differ_and_files_that_end_are_refused)
{
    struct streamed read = read_stream(MAGIC PROTOCOL SYSTEM OBJECT KEYS);
    cr_assert_eq(read.code, 0, "%s", read.error.message);
    uint64_t next, at = read.legacy.payload_offset;
    char message[160];
    uint8_t count[8] = {3};
    cr_expect_eq(bth_legacy_check_count_and_set_offset(&read.legacy, read.tree, 0, count, at,
                                                       at + 100, &next, &read.error),
                 BERTH_E_TENSOR);
    snprintf(message, sizeof message,
             "storage a at byte %llu: 3 elements of float32, but 8 bytes in the object",
             (unsigned long long)at);
    cr_expect_str_eq(read.error.message, message);
    bth_error_clear(&read.error);
    memcpy(count, "\2\0\0\0\0\0\0\100", 8); /* x 4 wraps to 8 (T1) */
    cr_expect_eq(bth_legacy_check_count_and_set_offset(&read.legacy, read.tree, 0, count, at,
                                                       at + 100, &next, &read.error),
                 BERTH_E_TENSOR);
    bth_error_clear(&read.error);
    memcpy(count, "\2\0\0\0\0\0\0\0", 8);
    cr_expect_eq(bth_legacy_check_count_and_set_offset(&read.legacy, read.tree, 0, count, at,
                                                       at + 16, &next, &read.error),
                 0);
    cr_expect_eq(next, at + 16);
    for (uint64_t file_nbytes = at - 1; file_nbytes < at + 16; file_nbytes++) {
        bth_error_clear(&read.error);
        cr_expect_eq(bth_legacy_check_count_and_set_offset(&read.legacy, read.tree, 0, count, at,
                                                           file_nbytes, &next, &read.error),
                     BERTH_E_TRUNCATED);
    }
    snprintf(message, sizeof message,
             "storage a at byte %llu: the file ends within this storage's 8 bytes: a download or a "
             "save in place that did not end?",
             (unsigned long long)at);
    cr_expect_str_eq(read.error.message, message);
    free_streamed(&read);
}

/* ---- files that PyTorch wrote ---- */

static void read_file(struct streamed *read, const char *name)
{
    char *path = test_path("tests/data/old", name);
    *read = (struct streamed){.tree = berth_tree_new(NULL)};
    read->file.bytes = test_read_file(path, &read->file.nbytes);
    free(path);
    bth_error_clear(&read->error);
    cr_assert(bth_is_legacy(read->file.bytes, read->file.nbytes));
    read->code =
        bth_legacy_read_pickles(read->file.bytes, read->file.nbytes, &(bth_pickle_rules){0},
                                read->tree, &read->legacy, &read->error);
}

Test(legacy_read, files_of_pytorch_are_read_to_their_last_byte)
{
    static const struct {
        const char *name;
        size_t n_keys;
    } files[] = {{"many-1.13-stream.pth", 13},
                 {"rare-1.13-stream.pth", 6},
                 {"training-1.13-stream.pth", 28},
                 {"views-1.13-stream.pth", 9}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct streamed read;
        read_file(&read, files[i].name);
        cr_expect_eq(read.code, 0, "%s: %s", files[i].name, read.error.message);
        cr_expect_eq(read.legacy.n_keys, files[i].n_keys, "%s: %zu", files[i].name,
                     read.legacy.n_keys);
        cr_expect_eq(place_all(&read), 0, "%s: %s", files[i].name, read.error.message);
        free_streamed(&read);
    }
}

Test(legacy_read, views_of_one_storage_share_it)
{
    struct streamed read;
    read_file(&read, "views-1.13-stream.pth");
    cr_assert_eq(place_all(&read), 0, "%s", read.error.message);
    const berth_tensor *base = berth_as_tensor(berth_dict_get(read.legacy.root, "base"));
    const berth_tensor *column = berth_as_tensor(berth_dict_get(read.legacy.root, "column"));
    cr_assert(base && column);
    cr_expect_eq(base->storage, column->storage);
    cr_expect_eq(column->storage_offset, 2);
    const uint8_t two[] = {0, 0, 0, 0x40}; /* little-endian on every machine (FORMAT.md 7) */
    cr_expect_arr_eq(read.file.bytes + column->storage->offset + 2 * sizeof two, two, sizeof two);
    free_streamed(&read);
}

Test(legacy_read, a_pickled_module_is_refused)
{
    struct streamed read;
    read_file(&read, "module-1.13-stream.pth");
    cr_expect_eq(read.code, BERTH_E_FORBIDDEN);
    cr_expect_str_eq(read.error.message,
                     "object at byte 153: global __main__ Scale is not allowed in a checkpoint "
                     "(load.unknown_globals=inert lists such files without running anything)");
    free_streamed(&read);
}
