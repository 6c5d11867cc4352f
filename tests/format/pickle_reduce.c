/* SPDX-License-Identifier: BSD-3-Clause */
/* Globals, and the values that REDUCE builds of them (P1); tensors: pickle_tensors.c. */
#include "tests/support/format/pickle_assembler.h"

/* ---- globals ---- */

static void expect_kind(const char *module, const char *name, berth_kind kind)
{
    char source[120];
    snprintf(source, sizeof source, "GLOBAL %s %s STOP", module, name);
    struct reading read = read_words_by(source, NO_RULES);
    cr_expect_eq(read.code, 0, "%s", read.error.message);
    cr_expect_eq(berth_value_kind(read.root), kind, "%s %s", module, name);
    free_reading(&read);
}

Test(pickle_reduce, every_dtype_and_its_storage_class_may_be_named)
{
    for (unsigned i = 1; i < BERTH_DTYPE_COUNT; i++)
        expect_kind("torch", berth_dtype_name((berth_dtype)i), BERTH_KIND_DTYPE);
    static const char *const classes[] = {"Float", "Double", "Half",         "BFloat16",
                                          "Char",  "Short",  "Int",          "Long",
                                          "Byte",  "Bool",   "ComplexFloat", "ComplexDouble"};
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        char name[40];
        snprintf(name, sizeof name, "%sStorage", classes[i]);
        expect_kind("torch", name, BERTH_KIND_GLOBAL);
        expect_kind("torch.cuda", name, BERTH_KIND_GLOBAL);
    }
    expect_kind("torch", "QUInt4x2Storage", BERTH_KIND_GLOBAL);
    expect_kind("torch.storage", "UntypedStorage", BERTH_KIND_GLOBAL);
    expect_kind("torch", "per_channel_affine", BERTH_KIND_QSCHEME);
}

Test(pickle_reduce, every_row_of_the_table_of_globals_may_be_named)
{
    static const char *const rows[][2] = {
#define BTH_CALLABLE(module, name, build, wanted, optional) {module, name},
#define BTH_NAMED(module, name, what) {module, name},
#define BTH_TENSOR_CLASS(module, name, dtype) {module, name},
#include "format/pickle/pickle_globals.def"
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_kind(rows[i][0], rows[i][1], BERTH_KIND_GLOBAL);
}

static void expect_forbidden(const char *module, const char *name)
{
    char source[120], sentence[250];
    snprintf(source, sizeof source, "PROTO 2 !GLOBAL %s %s STOP", module, name);
    snprintf(sentence, sizeof sentence,
             "global %s %s is not allowed in a checkpoint "
             "(load.unknown_globals=inert lists such files without running anything)",
             module, name);
    refuses(source, BERTH_E_FORBIDDEN, sentence);
}

Test(pickle_reduce, all_other_globals_are_refused_by_name)
{
    expect_forbidden("os", "system");
    expect_forbidden("__builtin__", "eval");
    expect_forbidden("__builtin__", "bytes");
    expect_forbidden("torch._utils", "_rebuild_wrapper_subclass");
    expect_forbidden("torch._utils", "_rebuild_device_tensor_from_numpy");
    expect_forbidden("torch._utils", "_rebuild_device_tensor_from_cpu_tensor");
    expect_forbidden("torch", "load");
    expect_forbidden("torch", "torch.float32");
    expect_forbidden("torch", "untyped");
    expect_forbidden("torch", "UntypedStorage");
    expect_forbidden("torch", "FloatStorag");
    expect_forbidden("torch", "FloatStorage2");
    expect_forbidden("torch", "TypedStorage");
    expect_forbidden("torch.cuda", "QInt8Storage");
    expect_forbidden("torch.cuda", "UntypedStorage");
    expect_forbidden("torch.cuda", "float32");
    expect_forbidden("torch.sparse", "BoolTensor");
    expect_forbidden("torch.cuda.sparse", "FloatStorage");
    expect_forbidden("torch.storage", "FloatStorage");
    expect_forbidden("collections", "OrderedDict.fromkeys");
    refuses("0x63746f7263680a53697a6500780a", BERTH_E_PICKLE, /* Size, NUL, x */
            "GLOBAL with text that is not a dotted name");
    refuses("0x63746f7263680a666c6f6174333200780a", BERTH_E_PICKLE, /* float32, NUL, x */
            "GLOBAL with text that is not a dotted name");
    REFUSES_EACH(BERTH_E_PICKLE, "GLOBAL with text that is not a dotted name", "0x630a0a",
                 "0x630a780a", "0x63617f0a780a", "0x63c3a90a780a", "0x63610a787f0a");
}

/* No name is too long to be compared with those of dtypes. */
Test(pickle_reduce, a_global_with_a_name_of_a_megabyte_is_refused)
{
    enum { NBYTES = 1 << 20 };
    struct pickle pickle = {0};
    char *name = malloc(NBYTES);
    memset(name, 'a', NBYTES);
    assemble(&pickle, "0x63746f7263680a"); /* GLOBAL torch */
    put(&pickle, name, NBYTES);
    assemble(&pickle, "0x0a STOP");
    struct reading read = read_by(&pickle, NO_RULES);
    cr_expect_eq(read.code, BERTH_E_FORBIDDEN, "%s", read.error.message);
    free_reading(&read);
    free(pickle.bytes);
    free(name);
}

/* ---- inert ---- */

Test(pickle_reduce, unknown_globals_become_inert_on_request)
{
    ACCEPTS_BY(
        read, INERT,
        "PROTO 2 GLOBAL os system BINPUT 0 'rm' TUPLE1 REDUCE EMPTY_DICT 'a' 1 SETITEM BUILD "
        "BINGET 0 EMPTY_TUPLE NEWOBJ BINGET 0 TUPLE3 STOP");
    const berth_value *call = bth_value_item(read.root, 0);
    cr_assert_eq(berth_value_kind(call), BERTH_KIND_CALL);
    cr_expect_str_eq(berth_as_text(berth_value_part(call, BERTH_PART_INNER), NULL), "os system");
    cr_expect_eq(berth_value_count(call), 1);
    cr_expect_eq(berth_value_count(berth_value_part(call, BERTH_PART_STATE)), 1);
    cr_expect_not(bth_value_is_new_object(call));
    cr_expect(bth_value_is_new_object(bth_value_item(read.root, 1)));
    cr_expect_eq(bth_value_item(read.root, 2), berth_value_part(call, BERTH_PART_INNER),
                 "one node");
    free_reading(&read);
}

/* P1 */
Test(pickle_reduce, inert_objects_keep_their_items)
{
    ACCEPTS_BY(read, INERT,
               "GLOBAL x Y EMPTY_TUPLE NEWOBJ 1 APPEND MARK 2 3 APPENDS 'a' 4 SETITEM "
               "MARK 'b' 5 'a' 6 SETITEMS EMPTY_DICT BUILD STOP");
    const berth_value *list = berth_value_part(read.root, BERTH_PART_LIST_ITEMS);
    const berth_value *dict = berth_value_part(read.root, BERTH_PART_DICT_ITEMS);
    int64_t integer;
    cr_expect_eq(berth_value_count(read.root), 0, "no arguments");
    cr_assert_eq(berth_value_kind(list), BERTH_KIND_LIST);
    cr_assert_eq(berth_value_count(list), 3);
    cr_expect(berth_as_int(bth_value_item(list, 2), &integer) && integer == 3);
    cr_assert_eq(berth_value_kind(dict), BERTH_KIND_DICT);
    cr_assert_eq(berth_value_count(dict), 2);
    cr_expect(berth_as_int(berth_dict_get(dict, "a"), &integer) && integer == 6);
    cr_expect_not_null(berth_value_part(read.root, BERTH_PART_STATE));
    cr_expect_null(berth_value_part(list, BERTH_PART_LIST_ITEMS), "of objects only");
    free_reading(&read);
}

/* P4: as in Python, objects of one class are not equal. */
Test(pickle_reduce, inert_nodes_are_keys_by_identity)
{
    ACCEPTS_BY(read, INERT,
               "GLOBAL __builtin__ set EMPTY_LIST MARK GLOBAL x Y BINPUT 0 EMPTY_TUPLE REDUCE "
               "BINPUT 1 BINGET 0 EMPTY_TUPLE REDUCE BINGET 1 BINGET 1 TUPLE1 APPENDS TUPLE1 "
               "REDUCE STOP");
    cr_expect_eq(berth_value_count(read.root), 3);
    free_reading(&read);
    refuses_by(INERT, "EMPTY_DICT GLOBAL torch Tensor 1 !SETITEM STOP", BERTH_E_UNSUPPORTED,
               "SETITEM: a global cannot be a dict key");
}

/* P1: what another reader would do, and the tree would not show. */
Test(pickle_reduce, inert_pickles_lose_nothing)
{
    refuses_by(INERT, "EMPTY_DICT 'a' EMPTY_LIST SETITEM 'a' 1 !SETITEM STOP", BERTH_E_PICKLE,
               "SETITEM: a dict has a key twice: the first would be lost");
    refuses_by(INERT, "EMPTY_DICT 1 2 SETITEM 1 2 !SETITEM STOP", BERTH_E_PICKLE,
               "SETITEM: a dict has a key twice: the first would be lost");
    refuses_by(
        INERT,
        "GLOBAL __builtin__ set EMPTY_LIST MARK 1 TUPLE1 1 TUPLE1 APPENDS TUPLE1 !REDUCE STOP",
        BERTH_E_PICKLE, "__builtin__ set: a set has a key twice: the first would be lost");
    ACCEPTS_BY(read, INERT, "EMPTY_DICT 'a' 1 SETITEM 'a' 2 SETITEM STOP");
    cr_expect_eq(berth_value_count(read.root), 1);
    free_reading(&read);
}

Test(pickle_reduce, inert_objects_take_items_only_in_order)
{
    refuses_by(INERT, "GLOBAL x Y EMPTY_TUPLE REDUCE 1 2 SETITEM 3 !APPEND STOP", BERTH_E_PICKLE,
               "APPEND to an object that has key items");
    refuses_by(INERT, "GLOBAL x Y EMPTY_TUPLE REDUCE NONE BUILD 1 !APPEND STOP", BERTH_E_PICKLE,
               "APPEND on an object that has a state");
    refuses_by(INERT, "GLOBAL x Y EMPTY_TUPLE REDUCE NONE BUILD MARK 1 2 !SETITEMS STOP",
               BERTH_E_PICKLE, "SETITEMS on an object that has a state");
    refuses_by(INERT, "GLOBAL x Y EMPTY_TUPLE REDUCE MARK 1 !SETITEMS STOP", BERTH_E_PICKLE,
               "SETITEMS of 1 items, which are not pairs");
    refuses_by(INERT, "GLOBAL x Y EMPTY_TUPLE REDUCE EMPTY_LIST 1 !SETITEM STOP",
               BERTH_E_UNSUPPORTED, "SETITEM: a list cannot be a dict key");
    refuses_by(INERT, "'x' EMPTY_TUPLE !REDUCE STOP", BERTH_E_FORBIDDEN,
               "REDUCE of a str, which is not a known function");
}

/* getattr(Outer, 'Inner')(1), as protocols 2 and 3 name what is inside a class. */
Test(pickle_reduce, inert_objects_of_classes_within_classes)
{
    ACCEPTS_BY(read, INERT,
               "GLOBAL builtins getattr GLOBAL mine Outer 'Inner' TUPLE2 REDUCE BINPUT 0 1 TUPLE1 "
               "REDUCE BINGET 0 EMPTY_TUPLE NEWOBJ TUPLE2 STOP");
    const berth_value *first = bth_value_item(read.root, 0), *second = bth_value_item(read.root, 1);
    const berth_value *class = berth_value_part(first, BERTH_PART_INNER);
    cr_assert_eq(berth_value_kind(first), BERTH_KIND_CALL);
    cr_assert_eq(berth_value_kind(class), BERTH_KIND_CALL);
    cr_expect_str_eq(berth_as_text(bth_value_item(class, 1), NULL), "Inner");
    cr_expect_eq(berth_value_part(second, BERTH_PART_INNER), class, "one node");
    cr_expect(bth_value_is_new_object(second));
    free_reading(&read);
}

/* Whole optimizers keep the state of each parameter under the parameter itself. */
Test(pickle_reduce, tensors_are_keys_of_inert_files_by_identity)
{
    ACCEPTS_BY(read, INERT,
               "EMPTY_DICT MARK" TENSOR "BINPUT 0 1 BINGET 0 2" TENSOR "3 BINGET 0 TUPLE1 4 "
               "SETITEMS STOP");
    cr_expect_eq(berth_value_count(read.root), 3);
    free_reading(&read);
    refuses(
        "EMPTY_DICT GLOBAL torch._utils _rebuild_tensor MARK MARK 'storage' "
        "GLOBAL torch FloatStorage '0' 'cpu' 6 TUPLE BINPERSID 0 6 TUPLE1 1 TUPLE1 TUPLE REDUCE "
        "1 !SETITEM STOP",
        BERTH_E_UNSUPPORTED, "SETITEM: a tensor cannot be a dict key");
}

Test(pickle_reduce, known_globals_keep_their_argument_shapes_when_others_are_inert)
{
    refuses_by(INERT, "GLOBAL torch Size EMPTY_TUPLE !REDUCE STOP", BERTH_E_PICKLE,
               "torch Size wants 1 argument, got 0");
    ACCEPTS_BY(read, INERT,
               "GLOBAL torch._utils _rebuild_tensor MARK" FLOATS
               "0 6 TUPLE1 1 TUPLE1 TUPLE REDUCE STOP");
    cr_expect_eq(berth_value_kind(read.root), BERTH_KIND_TENSOR);
    free_reading(&read);
}

#define FROM_TYPE(function, type, state)                                                           \
    "GLOBAL torch._tensor _rebuild_from_type_v2 MARK GLOBAL " function " " type                    \
    " MARK GLOBAL torch float32 EMPTY_TUPLE EMPTY_TUPLE NEWFALSE TUPLE " state " TUPLE !REDUCE "
#define META "torch._utils _rebuild_meta_tensor_no_storage"

/* A tensor like any other, but for its class and for a state of any kind. */
Test(pickle_reduce, tensors_of_unknown_classes_are_inert_tensors)
{
    static const struct {
        const char *words, *type;
    } rows[] = {
        {FROM_TYPE(META, "GLOBAL mine Tensor", "EMPTY_LIST") "STOP", "mine Tensor"},
        {FROM_TYPE(META, "GLOBAL torch.nn.parameter Parameter", "EMPTY_LIST") "STOP",
         "torch.nn.parameter Parameter"},
        {FROM_TYPE(META, "GLOBAL x getattr GLOBAL mine Outer 'Inner' TUPLE2 REDUCE",
                   "EMPTY_LIST") "STOP",
         NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ACCEPTS_BY(read, INERT, rows[i].words);
        const berth_value *type = berth_value_part(read.root, BERTH_PART_TYPE);
        cr_assert_eq(berth_value_kind(read.root), BERTH_KIND_SUBCLASS);
        cr_expect_eq(berth_as_tensor(read.root)->flags, BERTH_META);
        cr_expect_eq(berth_value_kind(berth_value_part(read.root, BERTH_PART_STATE)),
                     BERTH_KIND_LIST);
        if (rows[i].type)
            cr_expect_str_eq(berth_as_text(type, NULL), rows[i].type);
        else
            cr_expect_eq(berth_value_kind(type), BERTH_KIND_CALL);
        free_reading(&read);
    }
    ACCEPTS_BY(plain, INERT, FROM_TYPE(META, "GLOBAL torch Tensor", "EMPTY_DICT") "STOP");
    cr_expect_null(berth_value_part(plain.root, BERTH_PART_TYPE));
    cr_expect_null(berth_value_part(bth_value_item(plain.root, 0), BERTH_PART_TYPE));
    free_reading(&plain);
}

Test(pickle_reduce, tensors_of_unknown_classes_are_checked_as_any)
{
    refuses_by(INERT, FROM_TYPE("torch._utils _rebuild_tensor", "GLOBAL mine Tensor", "NONE"),
               BERTH_E_PICKLE,
               "torch._utils _rebuild_tensor wants a storage as argument 1, got torch.dtype");
    refuses_by(INERT, FROM_TYPE(META, "GLOBAL torch Tensor", "EMPTY_LIST"), BERTH_E_PICKLE,
               "torch._tensor _rebuild_from_type_v2 wants a dict as argument 4, got list");
}

/* What makes it is not known, or the class is no class. */
Test(pickle_reduce, other_rebuilt_tensors_stay_calls)
{
    static const char *const rows[] = {
        FROM_TYPE("mine rebuild", "GLOBAL mine Tensor", "NONE") "STOP",
        FROM_TYPE("torch._utils _rebuild_parameter", "GLOBAL mine Tensor", "NONE") "STOP",
        FROM_TYPE(META, "NONE", "NONE") "STOP",
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ACCEPTS_BY(read, INERT, rows[i]);
        cr_expect_eq(berth_value_kind(read.root), BERTH_KIND_CALL, "%s", rows[i]);
        free_reading(&read);
    }
}

/* torch.quantize_per_channel(...).as_subclass(...): scales and zero points have the class, too. */
Test(pickle_reduce, parts_of_tensors_can_be_of_unknown_classes)
{
#define OWN(function, arguments)                                                                   \
    " GLOBAL torch._tensor _rebuild_from_type_v2 MARK GLOBAL torch._utils " function               \
    " GLOBAL mine Tensor MARK " arguments " TUPLE NONE TUPLE REDUCE "
#define OWN_PART(class, key)                                                                       \
    OWN("_rebuild_tensor_v2", STORAGE(class, key, "2") "0 2 TUPLE1 1 TUPLE1 NEWFALSE" NO_HOOKS)
#define OWN_QUANTIZED(scales)                                                                      \
    OWN("_rebuild_qtensor",                                                                        \
        STORAGE("torch QInt8Storage", "0", "4") "0 2 2 TUPLE2 2 1 TUPLE2 MARK "                    \
                                                "GLOBAL torch per_channel_affine" scales OWN_PART( \
                                                    "torch LongStorage",                           \
                                                    "2") "0 TUPLE NEWFALSE" NO_HOOKS)
    ACCEPTS_BY(read, INERT, OWN_QUANTIZED(OWN_PART("torch DoubleStorage", "1")) "STOP");
    cr_expect_eq(berth_value_kind(berth_as_tensor(read.root)->scales), BERTH_KIND_SUBCLASS);
    free_reading(&read);
    static const char *const others[] = {
        OWN_QUANTIZED(" NONE ") "STOP",
        OWN_QUANTIZED(
            OWN("_rebuild_sparse_tensor",
                "GLOBAL torch.serialization _get_layout 'torch.sparse_coo' TUPLE1 REDUCE MARK" V2
                    STORAGE("torch LongStorage", "5",
                            "1") "0 1 1 TUPLE2 1 1 TUPLE2 NEWFALSE" NO_HOOKS
                                 "TUPLE REDUCE" DOUBLES(
                                     "6", "1") "GLOBAL torch Size 3 TUPLE1 TUPLE1 REDUCE "
                                               "TUPLE")) "STOP",
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        struct reading other = read_words_by(others[i], INERT);
        cr_expect_eq(other.code, BERTH_E_PICKLE);
        cr_expect_not_null(strstr(other.error.message, "_rebuild_qtensor wants"), "%s",
                           other.error.message);
        free_reading(&other);
    }
}

/* ---- values that are no tensors ---- */

Test(pickle_reduce, ordered_dicts)
{
    ACCEPTS(read,
            "GLOBAL collections OrderedDict BINPUT 0 EMPTY_TUPLE REDUCE 'a' 1 SETITEM "
            "BINGET 0 EMPTY_LIST EMPTY_LIST MARK 'b' 2 APPENDS APPEND TUPLE1 REDUCE TUPLE2 STOP");
    for (size_t i = 0; i < 2; i++) {
        const berth_value *dict = bth_value_item(read.root, i);
        cr_expect_eq(berth_value_kind(dict), BERTH_KIND_ORDERED_DICT);
        cr_expect_eq(berth_value_count(dict), 1);
    }
    free_reading(&read);
    refuses("GLOBAL collections OrderedDict EMPTY_DICT TUPLE1 !REDUCE STOP", BERTH_E_PICKLE,
            "collections OrderedDict wants a list as argument 1, got dict");
}

Test(pickle_reduce, counters_and_sets)
{
    ACCEPTS(read, "GLOBAL collections Counter EMPTY_DICT 'a' 3 SETITEM TUPLE1 REDUCE "
                  "GLOBAL __builtin__ set EMPTY_LIST MARK 1 2 1 APPENDS TUPLE1 REDUCE "
                  "GLOBAL builtins set EMPTY_TUPLE REDUCE TUPLE3 STOP");
    cr_expect_eq(berth_value_kind(bth_value_item(read.root, 0)), BERTH_KIND_COUNTER);
    cr_expect_eq(berth_value_kind(bth_value_item(read.root, 1)), BERTH_KIND_SET);
    cr_expect_eq(berth_value_count(bth_value_item(read.root, 1)), 2);
    cr_expect_eq(berth_value_count(bth_value_item(read.root, 2)), 0);
    free_reading(&read);
    refuses("GLOBAL __builtin__ set 1 TUPLE1 !REDUCE STOP", BERTH_E_PICKLE,
            "__builtin__ set wants a list as argument 1, got int");
    refuses("GLOBAL __builtin__ set EMPTY_LIST EMPTY_LIST TUPLE2 !REDUCE STOP", BERTH_E_PICKLE,
            "__builtin__ set wants 0 or 1 argument, got 2");
}

Test(pickle_reduce, sizes_and_devices)
{
    ACCEPTS(read, "GLOBAL torch Size 2 3 TUPLE2 TUPLE1 REDUCE GLOBAL torch device BINPUT 0 "
                  "'cuda' 1 TUPLE2 REDUCE BINGET 0 'cuda:3' TUPLE1 REDUCE TUPLE3 "
                  "BINGET 0 'cpu' TUPLE1 REDUCE TUPLE2 STOP");
    int32_t rank;
    const berth_value *three = bth_value_item(read.root, 0);
    const int64_t *shape = berth_as_size(bth_value_item(three, 0), &rank);
    cr_assert_eq(rank, 2);
    cr_expect_eq(shape[1], 3);
    cr_expect_str_eq(berth_as_text(bth_value_item(three, 1), NULL), "cuda:1");
    cr_expect_str_eq(berth_as_text(bth_value_item(three, 2), NULL), "cuda:3");
    cr_expect_str_eq(berth_as_text(bth_value_item(read.root, 1), NULL), "cpu");
    free_reading(&read);
    refuses("GLOBAL torch device 'cuda:1' 1 TUPLE2 !REDUCE STOP", BERTH_E_PICKLE,
            "torch device of text that names no device");
    refuses("GLOBAL torch Size 'a' TUPLE1 TUPLE1 !REDUCE STOP", BERTH_E_TENSOR,
            "torch Size: item 0 of a shape is a str, not an int");
}

Test(pickle_reduce, bytes_and_bytearrays)
{
    ACCEPTS(read, "GLOBAL _codecs encode BINUNICODE 0x61c3bfc280 'latin1' TUPLE2 REDUCE BINPUT 0 "
                  "GLOBAL __builtin__ bytearray BINPUT 1 BINGET 0 TUPLE1 REDUCE TUPLE2 "
                  "BINGET 1 EMPTY_TUPLE REDUCE BINGET 1 'old' 'latin-1' TUPLE2 REDUCE TUPLE3 STOP");
    size_t nbytes;
    const berth_value *two = bth_value_item(read.root, 0);
    const uint8_t *bytes = berth_as_bytes(bth_value_item(two, 0), &nbytes);
    cr_assert_eq(nbytes, 3);
    cr_expect(bytes[0] == 'a' && bytes[1] == 0xff && bytes[2] == 0x80);
    cr_expect_eq(berth_value_kind(bth_value_item(two, 1)), BERTH_KIND_BYTEARRAY);
    berth_as_bytes(bth_value_item(read.root, 1), &nbytes);
    cr_expect_eq(nbytes, 0);
    berth_as_bytes(bth_value_item(read.root, 2), &nbytes);
    cr_expect_eq(nbytes, 3);
    free_reading(&read);
    refuses("GLOBAL _codecs encode 'a' 'utf8' TUPLE2 !REDUCE STOP", BERTH_E_PICKLE,
            "_codecs encode wants the encoding latin1");
    refuses("GLOBAL _codecs encode BINUNICODE 0xc480 'latin1' TUPLE2 !REDUCE STOP", BERTH_E_PICKLE,
            "_codecs encode: latin1 text with a character above 255");
    refuses("GLOBAL __builtin__ bytearray 'a' TUPLE1 !REDUCE STOP", BERTH_E_PICKLE,
            "__builtin__ bytearray wants the encoding latin1");
    refuses("GLOBAL __builtin__ bytearray 99 TUPLE1 !REDUCE STOP", BERTH_E_PICKLE,
            "__builtin__ bytearray wants bytes as argument 1, got int");
    refuses("GLOBAL __builtin__ bytearray 1 2 3 TUPLE3 !REDUCE STOP", BERTH_E_PICKLE,
            "__builtin__ bytearray wants 0 to 2 arguments, got 3");
}

Test(pickle_reduce, complex_numbers_and_layouts)
{
    ACCEPTS(read, "GLOBAL __builtin__ complex BINFLOAT 1.5 BINFLOAT -2 TUPLE2 REDUCE GLOBAL "
                  "torch.serialization _get_layout 'torch.sparse_bsc' TUPLE1 REDUCE TUPLE2 STOP");
    cr_expect_eq(bth_value_real(bth_value_item(read.root, 0)), 1.5);
    cr_expect_eq(bth_value_imaginary(bth_value_item(read.root, 0)), -2);
    cr_expect_eq(bth_value_layout(bth_value_item(read.root, 1)), BERTH_SPARSE_BSC);
    free_reading(&read);
    refuses("GLOBAL torch.serialization _get_layout 'torch.load' TUPLE1 !REDUCE STOP",
            BERTH_E_PICKLE, "torch.serialization _get_layout of an unknown layout");
}

/* Tuples that only REDUCE sees are no nodes; those that are fetched again are. */
Test(pickle_reduce, arguments_are_kept_where_they_are_fetched_again)
{
    ACCEPTS(read, "GLOBAL torch device BINPUT 0 'cuda' 1 TUPLE2 BINPUT 1 REDUCE "
                  "BINGET 0 'cpu' 2 TUPLE2 BINPUT 7 REDUCE "
                  "BINGET 0 'xla' 3 TUPLE2 LONG_BINPUT 8 REDUCE BINGET 0 'mps' TUPLE1 REDUCE "
                  "MARK BINGET 1 BINGET 1 TUPLE BINPUT 2 TUPLE3 TUPLE3 STOP");
    const berth_value *inner = bth_value_item(read.root, 2);
    const berth_value *pair = bth_value_item(inner, 2), *kept = bth_value_item(pair, 0);
    cr_expect_str_eq(berth_as_text(bth_value_item(read.root, 0), NULL), "cuda:1");
    cr_expect_str_eq(berth_as_text(bth_value_item(read.root, 1), NULL), "cpu:2");
    cr_expect_str_eq(berth_as_text(bth_value_item(inner, 0), NULL), "xla:3");
    cr_expect_str_eq(berth_as_text(bth_value_item(inner, 1), NULL), "mps");
    cr_assert_eq(berth_value_kind(kept), BERTH_KIND_TUPLE);
    cr_expect_eq(bth_value_item(pair, 1), kept, "one node");
    cr_assert_eq(berth_value_count(kept), 2);
    cr_expect_str_eq(berth_as_text(bth_value_item(kept, 0), NULL), "cuda");
    free_reading(&read);
    refuses("GLOBAL torch device 'cuda' 1 TUPLE2 !LONG_BINPUT 70000 REDUCE STOP", BERTH_E_PICKLE,
            "memo index 70000 in a pickle of 36 bytes");
    ACCEPTS(far, "GLOBAL torch device 'cuda' 1 TUPLE2 LONG_BINPUT 1 REDUCE BINGET 1 TUPLE2 STOP");
    cr_expect_str_eq(berth_as_text(bth_value_item(far.root, 0), NULL), "cuda:1");
    cr_assert_eq(berth_value_kind(bth_value_item(far.root, 1)), BERTH_KIND_TUPLE);
    cr_expect_eq(berth_value_count(bth_value_item(far.root, 1)), 2);
    free_reading(&far);
}

Test(pickle_reduce, a_mutable_argument_is_used_once)
{
    refuses("GLOBAL __builtin__ set BINPUT 0 EMPTY_LIST TUPLE1 BINPUT 1 REDUCE BINGET 0 BINGET 1 "
            "!REDUCE TUPLE2 STOP",
            BERTH_E_PICKLE,
            "__builtin__ set: a list is used by set after another object "
            "was built from it");
}

Test(pickle_reduce, only_functions_are_called)
{
    refuses("EMPTY_LIST EMPTY_TUPLE !REDUCE STOP", BERTH_E_FORBIDDEN,
            "REDUCE of a list, which is not a known function");
    refuses("GLOBAL torch float32 EMPTY_TUPLE !REDUCE STOP", BERTH_E_FORBIDDEN,
            "REDUCE of a torch.dtype, which is not a known function");
    refuses("GLOBAL torch FloatStorage EMPTY_TUPLE !REDUCE STOP", BERTH_E_FORBIDDEN,
            "REDUCE of torch FloatStorage: it may be named, but not called");
    refuses("GLOBAL torch.sparse FloatTensor EMPTY_TUPLE !REDUCE STOP", BERTH_E_FORBIDDEN,
            "REDUCE of torch.sparse FloatTensor: it may be named, but not called");
    refuses("GLOBAL torch Size EMPTY_LIST !REDUCE STOP", BERTH_E_PICKLE,
            "REDUCE with a list for arguments, not a tuple");
    refuses("GLOBAL torch Size EMPTY_TUPLE TUPLE1 !NEWOBJ STOP", BERTH_E_FORBIDDEN,
            "NEWOBJ of torch Size: no pickler makes it this way");
}
