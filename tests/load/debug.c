/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The cross-check of debug mode (BERTH_SERIALIZATION_DEBUG=1): every kind of lie, through every
 * function that opens, whatever the options say of checking and of how storages become memory, is
 * refused before a byte is handed out, with the one sentence that names it.
 */
#include <berth/config.h>
#include <fcntl.h>
#include <unistd.h>

#include "tests/support/load/archive.h"

/* Before anything has asked for the environment, which is read once. */
static void set_up(void)
{
    cr_assert_eq(setenv("BERTH_SERIALIZATION_DEBUG", "1", 1), 0);
    begin_sample_file();
}

TestSuite(debug, .init = set_up, .fini = end_sample_file);

/* ---- lies ---- */

/* A byte of the sample that is changed: where, by which bits. */
struct edit {
    size_t at;
    uint8_t bits;
};

static const struct {
    struct lie lie;
    struct edit edit;
    const char *swapped[2]; /* two records whose places are exchanged */
    const char *added;      /* a record in front of the storages */
    int code;               /* 0: BERTH_E_ARCHIVE */
    const char *message;    /* what follows the name of what was opened */
} lies[] = {
    {.lie = {.record = "data/1", .gap = 192},
     .message = "data/0 at byte 984: 208 bytes lie between the data and the next entry, but a "
                "descriptor has 12, 16, 20 or 24"},
    {.lie = {.record = "data/0", .gap = 64},
     .message = "byteorder at byte 838: 80 bytes lie between the data and the next entry, but a "
                "descriptor has 12, 16, 20 or 24"},
    {.lie = {.record = "version", .gap = 64},
     .message = "data/2 at byte 1220: 80 bytes lie between the data and the next entry, but a "
                "descriptor has 12, 16, 20 or 24"},
    {.lie = {.record = "data/1", .more_padding = 64},
     .code = BERTH_E_OFFSETS,
     .message = "data/1 at byte 1088: the layout puts its data here, at the first multiple of 64 "
                "after the header; its local header puts it at byte 1152; "
                "load.calculate_storage_offsets=off reads it there"},
    {.lie = {.record = "data/2", .more_padding = 16},
     .code = BERTH_E_OFFSETS,
     .message = "data/2 at byte 1216: the layout puts its data here, at the first multiple of 64 "
                "after the header; its local header puts it at byte 1232; "
                "load.calculate_storage_offsets=off reads it there"},
    {.lie = {.record = ".format_version", .more_padding = 64},
     .code = BERTH_E_OFFSETS,
     .message = ".format_version at byte 576: the layout puts its data here, at the first multiple "
                "of 64 after the header; its local header puts it at byte 640; "
                "load.calculate_storage_offsets=off reads it there"},
    {.lie = {.record = "data/1", .directory_shift = -64},
     .message = "data/0 at byte 960: its 24 bytes overlap what begins at byte 936"},
    {.lie = {.record = "data/1", .descriptor_lie = 8},
     .message = "data/1 at byte 1112: the descriptor says CRC 0xc37f9b13 and sizes 32 and 32, the "
                "directory 0xc37f9b13, 24 and 24"},
    {.lie = {.record = "data/2", .descriptor_crc = 1},
     .message = "data/2 at byte 1220: the descriptor says CRC 0x27deaa87 and sizes 4 and 4, the "
                "directory 0x27deaa86, 4 and 4"},
    {.lie = {.record = "data.pkl", .descriptor_lie = 8},
     .message = "data.pkl at byte 472: the descriptor says CRC 0x1b5f4d8f and sizes 416 and 416, "
                "the directory 0x1b5f4d8f, 408 and 408"},
    {.edit = {1112, 1},
     .message = "data/1 at byte 1112: the descriptor begins with 0x08074b51, not 0x08074b50"},
    {.lie = {.record = "data/1", .directory_lie = 8},
     .code = BERTH_E_TENSOR,
     .message = "data/1 at byte 1000: data.pkl says 24 bytes, the record has 32"},
    {.lie = {.record = "data/1", .unlisted = true},
     .message = "data/1: data.pkl names it, but the archive does not hold it"},
    {.swapped = {"data/1", "data/2"},
     .code = BERTH_E_OFFSETS,
     .message = "data/1 at byte 1000: the layout puts its header here, right after data/0; the "
                "directory has it at byte 1108; load.calculate_storage_offsets=off reads it there"},
    {.swapped = {"data/0", "data/2"},
     .code = BERTH_E_OFFSETS,
     .message = "data/0 at byte 854: the layout puts its header here, right after byteorder; the "
                "directory has it at byte 1128; load.calculate_storage_offsets=off reads it there"},
    {.added = "notes.txt",
     .code = BERTH_E_OFFSETS,
     .message = "data/0 at byte 854: the layout puts its header here, right after byteorder; the "
                "directory has it at byte 980; load.calculate_storage_offsets=off reads it there"},
    {.edit = {1000 + 14, 1},
     .message =
         "data/1 at byte 1000: the local header's CRC is 0x00000001, the directory's 0xc37f9b13"},
    {.edit = {1000 + 22, 16},
     .message = "data/1 at byte 1000: the local header's size is 16, the directory's 24"},
    {.edit = {1000 + 8, 8},
     .message = "data/1 at byte 1000: the local header's method is 8, the directory's 0"},
    {.edit = {1000 + 6, 8},
     .message = "data/1 at byte 1000: the local header's flags is 2048, the directory's 2056"},
    {.edit = {1000 + 30 + 12, 3},
     .message = "data/1 at byte 1000: the local header's name is 'sample/data/2', the directory's "
                "'sample/data/1'"},
};
#define N_LIES (sizeof lies / sizeof *lies)

/* The file, and the one at `path`. */
static void plant(size_t which)
{
    begin_sample();
    if (lies[which].swapped[0])
        swap_records(lies[which].swapped[0], lies[which].swapped[1]);
    if (lies[which].added)
        insert_text(lies[which].added, "mine");
    build(lies[which].lie.record ? &lies[which].lie : NULL);
    file[lies[which].edit.at] ^= lies[which].edit.bits;
    test_write_file(path, file, file_nbytes);
}

/* ---- through every function that opens ---- */

static int open_path(const berth_params *call)
{
    return berth_open(path, call, &checkpoint, &error);
}

static int open_descriptor(const berth_params *call)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int result = berth_open_source(FROM_FD(fd), call, &checkpoint, &error);

    (void)close(fd);
    return result;
}

static int open_memory(const berth_params *call)
{
    return berth_open_source(FROM_MEMORY(file, file_nbytes), call, &checkpoint, &error);
}

static int read_bytes(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    (void)context;
    memcpy(buffer, file + offset, nbytes);
    return 0;
}

static int open_function(const berth_params *call)
{
    berth_source source = {.nbytes = file_nbytes, .name = "shelf", .read = read_bytes};

    return berth_open_source(&source, call, &checkpoint, &error);
}

static int verify(const berth_params *call)
{
    checkpoint = NULL;
    return berth_verify(FROM_PATH(path), call, NULL, NULL, NULL, &error);
}

/* The last does not open. */
static const struct opener {
    const char *name; /* what errors begin with; NULL: the path */
    int (*open)(const berth_params *call);
} openers[] = {{NULL, open_path},
               {"descriptor ", open_descriptor},
               {"memory", open_memory},
               {"shelf", open_function},
               {NULL, verify}};
#define N_OPENERS (sizeof openers / sizeof *openers)

static const char *const all_options[] = {
    "",
    "load.check=none",
    "load.check=data",
    "load.method=map load.mmap_flags=shared",
    "load.method=read io.threads=4",
    "load.method=direct",
    "load.mmap=off load.check=none load.head_nbytes=1",
};
#define N_OPTIONS (sizeof all_options / sizeof *all_options)

/* False: one of the options is not part of this build. */
static bool configure(berth_config *config, const char *options)
{
    if (berth_config_apply(config, options, &error) == 0)
        return true;
    cr_assert_eq(error.code, BERTH_E_UNAVAILABLE, "%s", error.message);
    return false;
}

static void expect_lie(size_t which, const struct opener *opener, const char *options)
{
    berth_config *config = berth_config_new(NULL);
    berth_params call = {.config = config};
    const char *name = opener->name ? opener->name : path;

    if (configure(config, options)) {
        int result = opener->open(&call);
        const char *message = strstr(error.message, ": ");
        bool is_refused_repacked = lies[which].code == BERTH_E_OFFSETS;
        char *end = is_refused_repacked ? strstr(error.message, "; the file was repacked, ") : NULL;
        cr_expect(!is_refused_repacked || end, "%s", error.message);
        if (end)
            *end = '\0';
        cr_expect_eq(result, lies[which].code ? lies[which].code : BERTH_E_ARCHIVE, "%s, %s: %s",
                     name, options, error.message);
        cr_expect(message && strcmp(message + 2, lies[which].message) == 0, "%s, %s: %s", name,
                  options, error.message);
        cr_expect_eq(strncmp(error.message, name, strlen(name)), 0, "%s", error.message);
        cr_expect_null(checkpoint);
        close_opened();
    }
    berth_config_free(config);
}

/* One reading, Z5 to Z7: not one way in that misses one of them. */
Test(debug, every_lie_is_named_through_every_way_in)
{
    for (size_t which = 0; which < N_LIES; which++) {
        plant(which);
        for (size_t i = 0; i < N_OPENERS; i++)
            for (size_t j = 0; j < N_OPTIONS; j++)
                expect_lie(which, &openers[i], all_options[j]);
    }
}

/* With load.calculate_storage_offsets=off the directory's reading is meant; a difference from the
 * layout is told to the log, what contradicts the directory is refused. */
static char told[4096];

static void keep_line(void *context, const char *message)
{
    (void)context;
    if (strlen(told) + strlen(message) + 2 < sizeof told)
        (void)strcat(strcat(told, message), "\n");
}

Test(debug, where_the_directory_is_meant_a_layout_of_another_kind_is_told)
{
    for (size_t which = 0; which < N_LIES; which++) {
        plant(which);
        told[0] = 0;
        berth_set_log(keep_line, NULL);
        if (try_file("debug=on load.calculate_storage_offsets=off") == 0)
            cr_expect_not_null(strstr(told, lies[which].message), "%s: %s", lies[which].message,
                               told);
        else
            cr_expect(error.code == BERTH_E_ARCHIVE || error.code == BERTH_E_TENSOR, "%s",
                      error.message);
        berth_set_log(NULL, NULL);
        close_opened();
    }
}

/* ---- attributes ---- */

/* A file of one tensor with attributes of these names: a dict, and a second one for slots. */
static void save_tensor_with_attributes(const char *const *names, const char *const *slots)
{
    static const float one[1] = {1};
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *states[2] = {berth_make_dict(tree, BERTH_KIND_DICT),
                              berth_make_dict(tree, BERTH_KIND_DICT)};
    const berth_tensor tensor = {.dtype = BERTH_FLOAT32,
                                 .rank = 1,
                                 .shape = (const int64_t[1]){1},
                                 .stride = (const int64_t[1]){1},
                                 .data = one};

    for (; *names; names++)
        berth_dict_set(states[0], *names, berth_make_none(tree));
    for (; slots && *slots; slots++)
        berth_dict_set(states[1], *slots, berth_make_none(tree));
    save_file(berth_make_subclass(tree, berth_make_tensor(tree, &tensor),
                                  slots ? berth_make_tuple(tree, states, 2) : states[0]),
              "");
}

static void expect_told(const char *options, const char *wanted)
{
    told[0] = 0;
    berth_set_log(keep_line, NULL);
    open_file(options);
    berth_set_log(NULL, NULL);
    cr_expect_str_eq(told, wanted);
}

/* P5: a newer PyTorch can have a name for itself, and then sets another thing than an attribute. */
Test(debug, names_of_attributes_are_told)
{
#define TOLD(names)                                                                                \
    "memory: tensors have the attributes " names ", which no known PyTorch has for itself\n"
    save_tensor_with_attributes((const char *[]){"_no_weight_decay", "tag", NULL}, NULL);
    expect_told("debug=on", TOLD("_no_weight_decay, tag"));
    expect_told("debug=off", "");
    save_tensor_with_attributes((const char *[]){"tag", NULL},
                                (const char *[]){"slot", "tag", NULL});
    expect_told("debug=on", TOLD("tag, slot"));
    save_tensor_with_attributes(
        (const char *[]){"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", NULL}, NULL);
    expect_told("debug=on", TOLD("a, b, c, d, e, f, g, h and 2 more"));
    save_tensor_with_attributes((const char *[]){NULL}, NULL);
    expect_told("debug=on", "");
    read_file("torch/inert.pt"); /* those of tensors of other classes are not told */
    told[0] = 0;
    berth_set_log(keep_line, NULL);
    open_file("debug=on load.unknown_globals=inert");
    berth_set_log(NULL, NULL);
    cr_expect_not_null(strstr(told, "_dynamo_dynamic_range"), "%s", told);
    close_opened();
}

/* What is no lie is read, by every way in. */
Test(debug, a_file_without_any_lie_is_read_through_every_way_in)
{
    for (size_t i = 0; i < N_OPENERS - 1; i++)
        for (size_t j = 0; j < N_OPTIONS; j++) {
            berth_config *config = berth_config_new(NULL);
            berth_params call = {.config = config};
            if (configure(config, all_options[j])) {
                cr_assert_eq(openers[i].open(&call), 0, "%s, %s: %s", openers[i].name,
                             all_options[j], error.message);
                expect_sample_values();
                close_opened();
            }
            berth_config_free(config);
        }
}
