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
    for (unsigned i = 1; i < BERTH_FLOAT6_E2M3FN_X4; i++)
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
             "global %s %s is not allowed in a checkpoint (load.unknown_globals=inert lists such "
             "files without running anything)",
             module, name);
    refuses_as(BERTH_E_FORBIDDEN, source, sentence);
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
    expect_forbidden("torch", berth_dtype_name(BERTH_FLOAT6_E2M3FN_X4));
    expect_forbidden("torch", berth_dtype_name(BERTH_FLOAT6_E3M2FN_X4));
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
    refuses("0x63746f7263680a53697a6500780a", /* Size, NUL, x */
            "GLOBAL with text that is not a dotted name");
    refuses("0x63746f7263680a666c6f6174333200780a", /* float32, NUL, x */
            "GLOBAL with text that is not a dotted name");
    REFUSES_EACH("GLOBAL with text that is not a dotted name", "0x630a0a", "0x630a780a",
                 "0x63617f0a780a", "0x63c3a90a780a", "0x63610a787f0a");
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
    gives_by(INERT,
             "PROTO 2 GLOBAL os system BINPUT 0 'rm' TUPLE1 REDUCE EMPTY_DICT 'a' 1 SETITEM BUILD "
             "BINGET 0 EMPTY_TUPLE NEWOBJ BINGET 0 TUPLE3 STOP",
             "(&1 <os system>('rm')+{'a': 1}, new *1(), *1)");
    /* P1: their items, too. */
    gives_by(INERT,
             "GLOBAL x Y EMPTY_TUPLE NEWOBJ 1 APPEND MARK 2 3 APPENDS 'a' 4 SETITEM MARK 'b' 5 'a' "
             "6 SETITEMS EMPTY_DICT BUILD STOP",
             "new <x Y>()+[1, 2, 3]+{'a': 6, 'b': 5}+{}");
    /* getattr(Outer, 'Inner')(1), as protocols 2 and 3 name what is inside a class. */
    gives_by(INERT,
             "GLOBAL builtins getattr GLOBAL mine Outer 'Inner' TUPLE2 REDUCE BINPUT 0 1 TUPLE1 "
             "REDUCE BINGET 0 EMPTY_TUPLE NEWOBJ TUPLE2 STOP",
             "(&1 <builtins getattr>(<mine Outer>, 'Inner')(1), new *1())");
}

/* P4: as in Python, objects of one class are not equal. */
Test(pickle_reduce, inert_nodes_are_keys_by_identity)
{
    gives_by(INERT,
             "GLOBAL __builtin__ set EMPTY_LIST MARK GLOBAL x Y BINPUT 0 EMPTY_TUPLE REDUCE BINPUT "
             "1 BINGET 0 EMPTY_TUPLE REDUCE BINGET 1 BINGET 1 TUPLE1 APPENDS TUPLE1 REDUCE STOP",
             "set{&1 &2 <x Y>(), *2(), (*1)}");
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
    gives_by(INERT, "EMPTY_DICT 'a' 1 SETITEM 'a' 2 SETITEM STOP", "{'a': 2}");
    gives_by(INERT,
             "EMPTY_DICT GLOBAL _codecs encode 'a' 'latin1' TUPLE2 REDUCE BINPUT 0 1 SETITEM "
             "BINGET 0 2 SETITEM STOP",
             "{b'a': 2}");
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

/* Whole optimizers keep the state of each parameter under the parameter itself. */
Test(pickle_reduce, tensors_are_keys_of_inert_files_by_identity)
{
    gives_by(INERT,
             "EMPTY_DICT MARK" TENSOR "BINPUT 0 1 BINGET 0 2" TENSOR
             "3 BINGET 0 TUPLE1 4 SETITEMS STOP",
             "{&1 float32[2, 3]<float32 '0' 24>: 2, float32[2, 3]<float32 '0' 24>: 3, (*1): 4}");
    refuses_as(BERTH_E_UNSUPPORTED,
               "EMPTY_DICT GLOBAL torch._utils _rebuild_tensor MARK" FLOATS
               "0 6 TUPLE1 1 TUPLE1 TUPLE REDUCE 1 !SETITEM STOP",
               "SETITEM: a tensor cannot be a dict key");
}

Test(pickle_reduce, known_globals_keep_their_argument_shapes_when_others_are_inert)
{
    refuses_by(INERT, "GLOBAL torch Size EMPTY_TUPLE !REDUCE STOP", BERTH_E_PICKLE,
               "torch Size wants 1 argument, got 0");
    gives_by(INERT,
             "GLOBAL torch._utils _rebuild_tensor MARK" FLOATS
             "0 6 TUPLE1 1 TUPLE1 TUPLE REDUCE STOP",
             "float32[6]<float32 '0' 24>");
}

#define FROM_TYPE(function, type, state)                                                           \
    "GLOBAL torch._tensor _rebuild_from_type_v2 MARK GLOBAL " function " " type                    \
    " MARK GLOBAL torch float32 EMPTY_TUPLE EMPTY_TUPLE NEWFALSE TUPLE " state " TUPLE !REDUCE "
#define META "torch._utils _rebuild_meta_tensor_no_storage"

/* A tensor like any other, but for its class and for a state of any kind. */
Test(pickle_reduce, tensors_of_unknown_classes_are_inert_tensors)
{
    gives_by(INERT, FROM_TYPE(META, "GLOBAL mine Tensor", "EMPTY_LIST") "STOP",
             "Subclass(float32[] meta, [], <mine Tensor>)");
    gives_by(INERT, FROM_TYPE(META, "GLOBAL torch.nn.parameter Parameter", "EMPTY_LIST") "STOP",
             "Subclass(float32[] meta, [], <torch.nn.parameter Parameter>)");
    gives_by(INERT,
             FROM_TYPE(META, "GLOBAL x getattr GLOBAL mine Outer 'Inner' TUPLE2 REDUCE",
                       "EMPTY_LIST") "STOP",
             "Subclass(float32[] meta, [], <x getattr>(<mine Outer>, 'Inner'))");
    gives_by(INERT, FROM_TYPE(META, "GLOBAL torch Tensor", "EMPTY_DICT") "STOP",
             "Subclass(float32[] meta, {})");
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
    gives_by(INERT, FROM_TYPE("mine rebuild", "GLOBAL mine Tensor", "NONE") "STOP",
             "<torch._tensor _rebuild_from_type_v2>(<mine rebuild>, <mine Tensor>, (float32, (), "
             "(), False), None)");
    gives_by(INERT,
             FROM_TYPE("torch._utils _rebuild_parameter", "GLOBAL mine Tensor", "NONE") "STOP",
             "<torch._tensor _rebuild_from_type_v2>(<torch._utils _rebuild_parameter>, <mine "
             "Tensor>, (float32, (), (), False), None)");
    gives_by(INERT, FROM_TYPE(META, "NONE", "NONE") "STOP",
             "<torch._tensor _rebuild_from_type_v2>(<torch._utils "
             "_rebuild_meta_tensor_no_storage>, None, (float32, (), (), False), None)");
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
    gives_by(INERT, OWN_QUANTIZED(OWN_PART("torch DoubleStorage", "1")) "STOP",
             "Subclass(qint8[2, 2]<qint8 '0' 4> quantized 3(axis 0, Subclass(float64[2]<float64 "
             "'1' 16>, None, <mine Tensor>), Subclass(int64[2]<int64 '2' 16>, None, <mine "
             "Tensor>)), None, <mine Tensor>)");
    static const char *const others[] = {
        OWN_QUANTIZED(" NONE ") "STOP",
        OWN_QUANTIZED(
            OWN("_rebuild_sparse_tensor",
                "GLOBAL torch.serialization _get_layout 'torch.sparse_coo' TUPLE1 REDUCE MARK" V2
                    STORAGE("torch LongStorage", "5",
                            "1") "0 1 1 TUPLE2 1 1 TUPLE2 NEWFALSE" NO_HOOKS
                                 "TUPLE REDUCE" DOUBLES(
                                     "6",
                                     "1") "GLOBAL torch Size 3 TUPLE1 TUPLE1 REDUCE TUPLE")) "STOP",
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

Test(pickle_reduce, ordered_dicts_counters_and_sets)
{
    gives("GLOBAL collections OrderedDict BINPUT 0 EMPTY_TUPLE REDUCE 'a' 1 SETITEM BINGET 0 "
          "EMPTY_LIST EMPTY_LIST MARK 'b' 2 APPENDS APPEND TUPLE1 REDUCE TUPLE2 STOP",
          "(OrderedDict{'a': 1}, OrderedDict{'b': 2})");
    refuses("GLOBAL collections OrderedDict EMPTY_DICT TUPLE1 !REDUCE STOP",
            "collections OrderedDict wants a list as argument 1, got dict");
    gives("GLOBAL collections Counter EMPTY_DICT 'a' 3 SETITEM TUPLE1 REDUCE GLOBAL __builtin__ "
          "set EMPTY_LIST MARK 1 2 1 APPENDS TUPLE1 REDUCE GLOBAL builtins set EMPTY_TUPLE REDUCE "
          "TUPLE3 STOP",
          "(Counter{'a': 3}, set{1, 2}, set{})");
    refuses("GLOBAL __builtin__ set 1 TUPLE1 !REDUCE STOP",
            "__builtin__ set wants a list as argument 1, got int");
    refuses("GLOBAL __builtin__ set EMPTY_LIST EMPTY_LIST TUPLE2 !REDUCE STOP",
            "__builtin__ set wants 0 or 1 argument, got 2");
}

Test(pickle_reduce, sizes_and_devices)
{
    gives("GLOBAL torch Size 2 3 TUPLE2 TUPLE1 REDUCE GLOBAL torch device BINPUT 0 'cuda' 1 TUPLE2 "
          "REDUCE BINGET 0 'cuda:3' TUPLE1 REDUCE TUPLE3 BINGET 0 'cpu' TUPLE1 REDUCE TUPLE2 STOP",
          "((Size[2, 3], device cuda:1, device cuda:3), device cpu)");
    refuses("GLOBAL torch device 'cuda:1' 1 TUPLE2 !REDUCE STOP",
            "torch device of text that names no device");
    refuses_as(BERTH_E_TENSOR, "GLOBAL torch Size 'a' TUPLE1 TUPLE1 !REDUCE STOP",
               "torch Size: item 0 of a shape is a str, not an int");
}

Test(pickle_reduce, bytes_and_bytearrays)
{
    gives("GLOBAL _codecs encode BINUNICODE 0x61c3bfc280 'latin1' TUPLE2 REDUCE BINPUT 0 GLOBAL "
          "__builtin__ bytearray BINPUT 1 BINGET 0 TUPLE1 REDUCE TUPLE2 BINGET 1 EMPTY_TUPLE "
          "REDUCE BINGET 1 'old' 'latin-1' TUPLE2 REDUCE TUPLE3 STOP",
          "((b'a\\xff\\x80', bytearray'a\\xff\\x80'), bytearray'', bytearray'old')");
    refuses("GLOBAL _codecs encode 'a' 'utf8' TUPLE2 !REDUCE STOP",
            "_codecs encode wants the encoding latin1");
    refuses("GLOBAL _codecs encode BINUNICODE 0xc480 'latin1' TUPLE2 !REDUCE STOP",
            "_codecs encode: latin1 text with a character above 255");
    refuses("GLOBAL __builtin__ bytearray 'a' TUPLE1 !REDUCE STOP",
            "__builtin__ bytearray wants the encoding latin1");
    refuses("GLOBAL __builtin__ bytearray 99 TUPLE1 !REDUCE STOP",
            "__builtin__ bytearray wants bytes as argument 1, got int");
    refuses("GLOBAL __builtin__ bytearray 1 2 3 TUPLE3 !REDUCE STOP",
            "__builtin__ bytearray wants 0 to 2 arguments, got 3");
}

Test(pickle_reduce, complex_numbers_and_layouts)
{
    gives("GLOBAL __builtin__ complex BINFLOAT 1.5 BINFLOAT -2 TUPLE2 REDUCE GLOBAL "
          "torch.serialization _get_layout 'torch.sparse_bsc' TUPLE1 REDUCE TUPLE2 STOP",
          "(1.5 -2j, layout 5)");
    refuses("GLOBAL torch.serialization _get_layout 'torch.load' TUPLE1 !REDUCE STOP",
            "torch.serialization _get_layout of an unknown layout");
}

/* Tuples that only REDUCE sees are no nodes; those that are fetched again are. */
Test(pickle_reduce, arguments_are_kept_where_they_are_fetched_again)
{
    gives("GLOBAL torch device BINPUT 0 'cuda' 1 TUPLE2 BINPUT 1 REDUCE BINGET 0 'cpu' 2 TUPLE2 "
          "BINPUT 7 REDUCE BINGET 0 'xla' 3 TUPLE2 LONG_BINPUT 8 REDUCE BINGET 0 'mps' TUPLE1 "
          "REDUCE MARK BINGET 1 BINGET 1 TUPLE BINPUT 2 TUPLE3 TUPLE3 STOP",
          "(device cuda:1, device cpu:2, (device xla:3, device mps, (&1 ('cuda', 1), *1)))");
    refuses("GLOBAL torch device 'cuda' 1 TUPLE2 !LONG_BINPUT 70000 REDUCE STOP",
            "memo index 70000 in a pickle of 36 bytes");
    gives("GLOBAL torch device 'cuda' 1 TUPLE2 LONG_BINPUT 1 REDUCE BINGET 1 TUPLE2 STOP",
          "(device cuda:1, ('cuda', 1))");
}

Test(pickle_reduce, a_mutable_argument_is_used_once)
{
    refuses("GLOBAL __builtin__ set BINPUT 0 EMPTY_LIST TUPLE1 BINPUT 1 REDUCE BINGET 0 BINGET 1 "
            "!REDUCE TUPLE2 STOP",
            "__builtin__ set: a list is used by set after another object was built from it");
}

Test(pickle_reduce, only_functions_are_called)
{
    refuses_as(BERTH_E_FORBIDDEN, "EMPTY_LIST EMPTY_TUPLE !REDUCE STOP",
               "REDUCE of a list, which is not a known function");
    refuses_as(BERTH_E_FORBIDDEN, "GLOBAL torch float32 EMPTY_TUPLE !REDUCE STOP",
               "REDUCE of a torch.dtype, which is not a known function");
    refuses_as(BERTH_E_FORBIDDEN, "GLOBAL torch FloatStorage EMPTY_TUPLE !REDUCE STOP",
               "REDUCE of torch FloatStorage: it may be named, but not called");
    refuses_as(BERTH_E_FORBIDDEN, "GLOBAL torch.sparse FloatTensor EMPTY_TUPLE !REDUCE STOP",
               "REDUCE of torch.sparse FloatTensor: it may be named, but not called");
    refuses("GLOBAL torch Size EMPTY_LIST !REDUCE STOP",
            "REDUCE with a list for arguments, not a tuple");
    refuses_as(BERTH_E_FORBIDDEN, "GLOBAL torch Size EMPTY_TUPLE TUPLE1 !NEWOBJ STOP",
               "NEWOBJ of torch Size: no pickler makes it this way");
}
