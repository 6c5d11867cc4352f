/* SPDX-License-Identifier: BSD-3-Clause */
/* Argument shapes (P1, P5, T4) at their edges: each item of each shape wrong alone. */
#include "tests/support/format/pickle_assembler.h"

/* ---- Parameters and tensors from before 0.4 ---- */

#define PARAMETER_CLASS "GLOBAL torch.nn.parameter Parameter "
#define OLD_PARAMETER PARAMETER_CLASS TENSOR "TUPLE1 REDUCE "
#define PARAMETER_WANTS "BUILD of a Parameter wants (requires_grad, volatile, hooks), once"
#define OLD_TENSOR "GLOBAL torch FloatTensor EMPTY_TUPLE REDUCE "
#define TENSOR_WANTS "BUILD of a tensor wants (storage, offset, size, stride), once"

Test(pickle_shapes, arguments_of_the_parameter_class)
{
    gives(PARAMETER_CLASS TENSOR "TUPLE1 NEWOBJ STOP",
          "Parameter(float32[2, 3]<float32 '0' 24>, grad)");
    gives(PARAMETER_CLASS TENSOR "NEWFALSE TUPLE2 REDUCE STOP",
          "Parameter(float32[2, 3]<float32 '0' 24>)");
    gives(PARAMETER_CLASS TENSOR "NEWTRUE TUPLE2 REDUCE STOP",
          "Parameter(float32[2, 3]<float32 '0' 24>, grad)");
    refuses(PARAMETER_CLASS "EMPTY_TUPLE !REDUCE STOP",
            "torch.nn.parameter Parameter wants 1 or 2 arguments, got 0");
    refuses(PARAMETER_CLASS TENSOR "NEWTRUE NEWTRUE TUPLE3 !REDUCE STOP",
            "torch.nn.parameter Parameter wants 1 or 2 arguments, got 3");
    refuses(PARAMETER_CLASS "NONE TUPLE1 !REDUCE STOP",
            "torch.nn.parameter Parameter wants a tensor as argument 1, got None");
    refuses(PARAMETER_CLASS TENSOR "1 TUPLE2 !REDUCE STOP",
            "torch.nn.parameter Parameter wants a bool as argument 2, got int");
}

Test(pickle_shapes, the_state_of_an_old_parameter)
{
    gives(OLD_PARAMETER "NEWFALSE NEWFALSE" NO_HOOKS "TUPLE3 BUILD STOP",
          "Parameter(float32[2, 3]<float32 '0' 24>)");
    REFUSES_EACH(
        PARAMETER_WANTS, OLD_PARAMETER "NEWFALSE NEWFALSE TUPLE2 !BUILD STOP",
        OLD_PARAMETER "1 NEWFALSE NONE TUPLE3 !BUILD STOP",
        OLD_PARAMETER "NEWFALSE 1 NONE TUPLE3 !BUILD STOP",
        OLD_PARAMETER "NEWFALSE NEWFALSE 1 TUPLE3 !BUILD STOP",
        OLD_PARAMETER "NEWFALSE NEWFALSE" NO_HOOKS "1 1 SETITEM TUPLE3 !BUILD STOP",
        OLD_PARAMETER
        "BINPUT 0 NEWFALSE NEWFALSE NONE TUPLE3 BUILD NEWFALSE NEWFALSE NONE TUPLE3 !BUILD STOP");
}

Test(pickle_shapes, the_state_of_an_old_tensor)
{
    REFUSES_EACH(
        TENSOR_WANTS, OLD_TENSOR "EMPTY_TUPLE !BUILD STOP",
        OLD_TENSOR "MARK" FLOATS "0 6 TUPLE1 TUPLE !BUILD STOP",
        OLD_TENSOR "MARK" FLOATS "0 6 TUPLE1 1 TUPLE1 1 TUPLE !BUILD STOP",
        OLD_TENSOR "MARK 1 0 6 TUPLE1 1 TUPLE1 TUPLE !BUILD STOP",
        "GLOBAL torch Tensor EMPTY_TUPLE REDUCE MARK 1 0 6 TUPLE1 1 TUPLE1 TUPLE !BUILD STOP",
        OLD_TENSOR "MARK" FLOATS "'a' 6 TUPLE1 1 TUPLE1 TUPLE !BUILD STOP");
    refuses_as(BERTH_E_TENSOR, OLD_TENSOR "MARK" FLOATS "0 7 TUPLE1 1 TUPLE1 TUPLE !BUILD STOP",
               "BUILD: a tensor of float32, shape [7], stride [1] and storage offset 0 ends at "
               "byte 28 of storage 0, which has 24");
    refuses_as(BERTH_E_TENSOR, OLD_TENSOR "MARK" FLOATS "0 6 TUPLE1 EMPTY_TUPLE TUPLE !BUILD STOP",
               "a tensor of 1 sizes and 0 strides");
    refuses_as(BERTH_E_TENSOR, OLD_TENSOR "MARK" FLOATS "0 6 TUPLE1 'a' TUPLE1 TUPLE !BUILD STOP",
               "BUILD: item 0 of a shape is a str, not an int");
}

/* ---- what NEWOBJ makes ---- */

Test(pickle_shapes, objects_made_without_arguments)
{
    gives("GLOBAL collections Counter EMPTY_TUPLE NEWOBJ STOP", "Counter{}");
    gives("GLOBAL collections Counter EMPTY_TUPLE REDUCE STOP", "Counter{}");
    gives("GLOBAL __builtin__ set EMPTY_TUPLE NEWOBJ STOP", "set{}");
    gives("GLOBAL collections OrderedDict EMPTY_TUPLE NEWOBJ STOP", "OrderedDict{}");
    gives("GLOBAL torch FloatTensor EMPTY_TUPLE NEWOBJ MARK" FLOATS
          "0 6 TUPLE1 1 TUPLE1 TUPLE BUILD STOP",
          "float32[6]<float32 '0' 24>");
    refuses_as(BERTH_E_FORBIDDEN, "GLOBAL collections Counter EMPTY_DICT TUPLE1 !NEWOBJ STOP",
               "NEWOBJ of collections Counter: no pickler makes it this way");
    refuses_as(BERTH_E_FORBIDDEN, "GLOBAL torch device EMPTY_TUPLE !NEWOBJ STOP",
               "NEWOBJ of torch device: no pickler makes it this way");
}

/* ---- attributes, metadata ---- */

#define WITH_STATE(state)                                                                          \
    "GLOBAL torch._utils _rebuild_parameter_with_state MARK" TENSOR "NEWFALSE" NO_HOOKS state      \
    " TUPLE !REDUCE STOP"

Test(pickle_shapes, attributes_are_dicts_or_pairs_of_them)
{
    static const char sentence[] =
        "torch._utils _rebuild_parameter_with_state wants a dict as argument 4, got ";
    char text[200];

    gives(WITH_STATE("NONE"), "Subclass(Parameter(float32[2, 3]<float32 '0' 24>), None)");
    gives(WITH_STATE("EMPTY_DICT NONE TUPLE2"),
          "Subclass(Parameter(float32[2, 3]<float32 '0' 24>), ({}, None))");
    gives(WITH_STATE("NONE EMPTY_DICT TUPLE2"),
          "Subclass(Parameter(float32[2, 3]<float32 '0' 24>), (None, {}))");
    (void)snprintf(text, sizeof text, "%stuple", sentence);
    REFUSES_EACH(text, WITH_STATE("EMPTY_DICT TUPLE1"), WITH_STATE("EMPTY_DICT 1 TUPLE2"),
                 WITH_STATE("1 EMPTY_DICT TUPLE2"));
    (void)snprintf(text, sizeof text, "%sint", sentence);
    refuses(WITH_STATE("1"), text);
    refuses(
        "GLOBAL torch._utils _rebuild_parameter_with_state MARK GLOBAL torch._utils "
        "_rebuild_parameter MARK" TENSOR "NEWFALSE" NO_HOOKS "TUPLE REDUCE NEWFALSE" NO_HOOKS
        "EMPTY_DICT TUPLE !REDUCE STOP",
        "torch._utils _rebuild_parameter_with_state wants a tensor as argument 1, got Parameter");
}

#define METADATA(metadata)                                                                         \
    "GLOBAL torch._utils _rebuild_tensor_v2 MARK" FLOATS                                           \
    "0 6 TUPLE1 1 TUPLE1 NEWFALSE" NO_HOOKS metadata " TUPLE !REDUCE STOP"
#define METADATA_V3(metadata)                                                                      \
    "GLOBAL torch._utils _rebuild_tensor_v3 MARK" STORAGE(                                         \
        "torch.storage UntypedStorage", "0", "24") "0 6 TUPLE1 1 TUPLE1 NEWFALSE" NO_HOOKS         \
                                                   "GLOBAL torch float32 " metadata                \
                                                   " TUPLE !REDUCE STOP"

Test(pickle_shapes, metadata_is_conj_and_neg)
{
    static const char v2[] =
        "torch._utils _rebuild_tensor_v2 with other metadata than conj and neg, True";
    static const char v3[] =
        "torch._utils _rebuild_tensor_v3 with other metadata than conj and neg, True";

    gives(METADATA("EMPTY_DICT MARK 'conj' NEWTRUE 'neg' NEWTRUE SETITEMS"),
          "float32[6]<float32 '0' 24> conj neg");
    gives(METADATA("EMPTY_DICT"), "float32[6]<float32 '0' 24>");
    gives(METADATA_V3("EMPTY_DICT 'neg' NEWTRUE SETITEM"),
          "float32[6]<untyped of float32 '0' 24> neg");
    refuses(METADATA("EMPTY_DICT 'conj' 1 SETITEM"), v2);
    /* PyTorch takes them for True. */
    REFUSES_EACH(v2, METADATA("EMPTY_DICT 'conj' NEWFALSE SETITEM"),
                 METADATA("EMPTY_DICT MARK 'conj' NEWTRUE 'neg' NEWFALSE SETITEMS"),
                 METADATA("EMPTY_DICT 'other' NEWTRUE SETITEM"),
                 METADATA("EMPTY_DICT 1 NEWTRUE SETITEM"));
    refuses(METADATA_V3("EMPTY_DICT 'other' NEWTRUE SETITEM"), v3);
}

Test(pickle_shapes, a_tensor_of_bytes_may_lie_in_an_untyped_storage)
{
    gives("GLOBAL torch._utils _rebuild_tensor MARK" STORAGE(
              "torch.storage UntypedStorage", "0", "6") "0 6 TUPLE1 1 TUPLE1 TUPLE REDUCE STOP",
          "uint8[6]<untyped of uint8 '0' 6>");
}

Test(pickle_shapes, a_meta_tensor_has_a_shape)
{
    refuses_as(
        BERTH_E_TENSOR,
        "GLOBAL torch._utils _rebuild_meta_tensor_no_storage MARK GLOBAL torch float32 'a' TUPLE1 "
        "1 TUPLE1 NEWFALSE TUPLE !REDUCE STOP",
        "torch._utils _rebuild_meta_tensor_no_storage: item 0 of a shape is a str, not an int");
}

/* ---- _rebuild_from_type_v2 ---- */

#define TYPED(function, type)                                                                      \
    "GLOBAL torch._tensor _rebuild_from_type_v2 MARK " function " " type                           \
    " EMPTY_TUPLE EMPTY_DICT TUPLE !REDUCE STOP"
#define WANTS                                                                                      \
    "torch._tensor _rebuild_from_type_v2 wants a _rebuild function and torch Tensor as first "     \
    "arguments"
#define REBUILD "GLOBAL torch._utils _rebuild_tensor"

Test(pickle_shapes, types_and_functions_that_are_something_else)
{
    static const char *const others[] = {
        "GLOBAL torch float32",
        "GLOBAL torch per_tensor_affine",
        "GLOBAL torch per_channel_affine",
        "EMPTY_LIST",
        "NONE",
        "GLOBAL torch.storage TypedStorage",
        "GLOBAL collections OrderedDict",
        "GLOBAL torch FloatTensor",
        "GLOBAL torch FloatStorage",
    };
    char text[300];

    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        (void)snprintf(text, sizeof text, TYPED("%s", "GLOBAL torch Tensor"), others[i]);
        refuses(text, WANTS);
        (void)snprintf(text, sizeof text, TYPED(REBUILD, "%s"), others[i]);
        refuses(text, WANTS);
    }
}

/* On request such a call is kept, but one of the wrong count is none (P1). */
Test(pickle_shapes, inert_calls_of_from_type_have_four_arguments)
{
    gives_by(INERT,
             "GLOBAL torch._tensor _rebuild_from_type_v2 MARK GLOBAL a b GLOBAL a C EMPTY_TUPLE "
             "EMPTY_DICT TUPLE REDUCE STOP",
             "<torch._tensor _rebuild_from_type_v2>(<a b>, <a C>, (), {})");
    refuses_by(INERT,
               "GLOBAL torch._tensor _rebuild_from_type_v2 MARK GLOBAL a b GLOBAL a C EMPTY_TUPLE "
               "TUPLE !REDUCE STOP",
               BERTH_E_PICKLE, "torch._tensor _rebuild_from_type_v2 wants 4 arguments, got 3");
}

/* ---- quantized, sparse ---- */

#define QTENSOR(parameters)                                                                        \
    "GLOBAL torch._utils _rebuild_qtensor MARK" STORAGE(                                           \
        "torch QInt8Storage", "0", "6") "0 6 TUPLE1 1 TUPLE1 " parameters " NEWFALSE" NO_HOOKS     \
                                        "TUPLE !REDUCE STOP"
#define QTENSOR_WANTS                                                                              \
    "torch._utils _rebuild_qtensor wants (per_tensor_affine, scale, zero_point) or "               \
    "(per_channel_affine, scales, zero_points, axis) as argument 5"
#define PER_TENSOR "GLOBAL torch per_tensor_affine "
#define PER_CHANNEL "GLOBAL torch per_channel_affine "

Test(pickle_shapes, quantizers)
{
    gives(QTENSOR("MARK " PER_TENSOR "BINFLOAT 0.5 1 TUPLE"),
          "qint8[6]<qint8 '0' 6> quantized 1(0.5, 1)");
    gives(QTENSOR("MARK " PER_TENSOR "2 1 TUPLE"), "qint8[6]<qint8 '0' 6> quantized 1(2, 1)");
    gives(QTENSOR("MARK " PER_CHANNEL DOUBLES("1", "6") LONGS("2", "6") "0 TUPLE"),
          "qint8[6]<qint8 '0' 6> quantized 3(axis 0, float64[6]<float64 '1' 48>, int64[6]<int64 "
          "'2' 48>)");
    REFUSES_EACH(QTENSOR_WANTS, QTENSOR("EMPTY_TUPLE"), QTENSOR("MARK NONE BINFLOAT 0.5 1 TUPLE"),
                 QTENSOR("MARK " PER_TENSOR "BINFLOAT 0.5 TUPLE"),
                 QTENSOR("MARK " PER_TENSOR "BINFLOAT 0.5 1 1 TUPLE"),
                 QTENSOR("MARK " PER_TENSOR "'a' 1 TUPLE"),
                 QTENSOR("MARK " PER_TENSOR "BINFLOAT 0.5 'a' TUPLE"),
                 QTENSOR("MARK " PER_CHANNEL "1 1 1 1 TUPLE"),
                 QTENSOR("MARK " PER_CHANNEL "EMPTY_LIST EMPTY_LIST 1 TUPLE"),
                 QTENSOR("MARK " PER_CHANNEL DOUBLES("1", "6") "1 0 TUPLE"),
                 QTENSOR("MARK " PER_CHANNEL "1 " LONGS("2", "6") "0 TUPLE"),
                 QTENSOR("MARK " PER_CHANNEL DOUBLES("1", "6") LONGS("2", "6") "TUPLE"),
                 QTENSOR("MARK " PER_CHANNEL DOUBLES("1", "6") LONGS("2", "6") "'a' TUPLE"),
                 QTENSOR("MARK " PER_CHANNEL DOUBLES("1", "6") LONGS("2", "6") "0 0 TUPLE"),
                 QTENSOR("MARK GLOBAL torch per_tensor_symmetric BINFLOAT 0.5 1 TUPLE"));
}

#define SPARSE(layout, parts)                                                                      \
    "GLOBAL torch._utils _rebuild_sparse_tensor GLOBAL torch.serialization _get_layout "           \
    "'torch." layout "' TUPLE1 REDUCE MARK " parts " TUPLE TUPLE2 !REDUCE STOP"
#define SPARSE_SENTENCE "torch._utils _rebuild_sparse_tensor of parts that make no sparse tensor"
#define INDICES                                                                                    \
    V2 STORAGE("torch LongStorage", "1", "2") "0 1 2 TUPLE2 2 1 TUPLE2 NEWFALSE" NO_HOOKS          \
                                              "TUPLE REDUCE "

Test(pickle_shapes, parts_of_sparse_tensors)
{
    gives(SPARSE("sparse_coo", INDICES DOUBLES("2", "2") "9 TUPLE1"),
          "COO([9], int64[1, 2]<int64 '1' 16>, float64[2]<float64 '2' 16>)");
    gives(SPARSE("sparse_coo", INDICES DOUBLES("2", "2") "9 TUPLE1 NEWTRUE"),
          "COO([9], int64[1, 2]<int64 '1' 16>, float64[2]<float64 '2' 16>, coalesced)");
    REFUSES_EACH(SPARSE_SENTENCE, SPARSE("sparse_coo", ""), SPARSE("strided", ""),
                 SPARSE("sparse_coo", "1 2 3 NEWTRUE"),
                 SPARSE("sparse_csr",
                        LONGS("1", "3") LONGS("3", "2") DOUBLES("2", "2") "2 2 TUPLE2 NEWTRUE"),
                 SPARSE("sparse_coo", INDICES "9 TUPLE1"),
                 SPARSE("sparse_coo", INDICES DOUBLES("2", "2") "9 TUPLE1 1"),
                 SPARSE("sparse_coo", INDICES DOUBLES("2", "2") "9 TUPLE1 NEWTRUE NEWTRUE"),
                 SPARSE("sparse_coo", "1 " DOUBLES("2", "2") "9 TUPLE1"),
                 SPARSE("sparse_coo", INDICES "1 9 TUPLE1"),
                 SPARSE("sparse_csr", INDICES DOUBLES("2", "2") "9 TUPLE1"),
                 SPARSE("strided", INDICES INDICES DOUBLES("2", "2") "9 TUPLE1"),
                 SPARSE("jagged", INDICES INDICES DOUBLES("2", "2") "9 TUPLE1"));
    refuses_as(BERTH_E_TENSOR, SPARSE("sparse_coo", INDICES DOUBLES("2", "2") "'a' TUPLE1"),
               "torch._utils _rebuild_sparse_tensor: item 0 of a shape is a str, not an int");
    refuses_as(BERTH_E_TENSOR, SPARSE("sparse_coo", INDICES DOUBLES("2", "2") "'a'"),
               "torch._utils _rebuild_sparse_tensor: a str for a shape, not a tuple of ints");
    /* Nor where the parts would fit the shape (). */
    refuses_as(BERTH_E_TENSOR,
               SPARSE("sparse_coo", V2 STORAGE("torch LongStorage", "1",
                                               "0") "0 0 2 TUPLE2 2 1 TUPLE2 NEWFALSE" NO_HOOKS
                                                    "TUPLE REDUCE " DOUBLES("2", "2") "1"),
               "torch._utils _rebuild_sparse_tensor: an int for a shape, not a tuple of ints");
}

/* ---- other shapes ---- */

Test(pickle_shapes, devices)
{
    static const char none[] = "torch device of text that names no device";

    gives("GLOBAL torch device 'cuda:127' TUPLE1 REDUCE STOP", "device cuda:127");
    REFUSES_EACH(
        none, "GLOBAL torch device '' TUPLE1 !REDUCE STOP",
        "GLOBAL torch device ':1' TUPLE1 !REDUCE STOP",
        "GLOBAL torch device 'cuda:' TUPLE1 !REDUCE STOP",
        "GLOBAL torch device 'cuda:1x' TUPLE1 !REDUCE STOP",
        "GLOBAL torch device 'cuda:1000' TUPLE1 !REDUCE STOP",
        "GLOBAL torch device 'cpus' TUPLE1 !REDUCE STOP",
        "GLOBAL torch device 'cuda' -1 TUPLE2 !REDUCE STOP",
        "GLOBAL torch device BINUNICODE 0x6370750078 TUPLE1 !REDUCE STOP",
        "GLOBAL torch device 'a_device_type_of_forty_characters_and_more' TUPLE1 !REDUCE STOP");
    refuses("GLOBAL torch device 'cuda' LONG1 0x000000000000000001 TUPLE2 !REDUCE STOP",
            "torch device wants an int of 64 bits as argument 2, got int");
}

/* An item of a Size of more than 64 is checked, too: once (P3). */
Test(pickle_shapes, long_sizes_hold_ints)
{
    struct pickle pickle = {0};

    assemble(&pickle, "GLOBAL torch Size MARK");
    assemble_times(&pickle, "1", 70);
    assemble(&pickle, "'a' TUPLE TUPLE1 !REDUCE STOP");
    struct reading read = read_by(&pickle, NO_RULES);
    cr_expect_eq(read.code, BERTH_E_TENSOR);
    cr_expect_not_null(strstr(read.error.message, "item 70 of a shape is a str, not an int"), "%s",
                       read.error.message);
    free_reading(&read);
    free(pickle.bytes);
}

/* Names of unknown globals are cut in the sentence. */
Test(pickle_shapes, long_globals_are_cut_in_the_sentence)
{
    char name[161], words[400], sentence[400];

    memset(name, 'a', 160);
    name[160] = 0;
    (void)snprintf(words, sizeof words, "!GLOBAL %s %s STOP", name, name);
    (void)snprintf(sentence, sizeof sentence,
                   "global %.100s %.100s is not allowed in a checkpoint "
                   "(load.unknown_globals=inert lists such files without running anything)",
                   name, name);
    refuses_as(BERTH_E_FORBIDDEN, words, sentence);
}

/* P5: a view of a storage says what it is a view of, and of which part. */
#define VIEWED(view)                                                                               \
    "MARK 'storage' GLOBAL torch FloatStorage 'root' 'cpu' 6 " view " TUPLE !BINPERSID STOP"

Test(pickle_shapes, views_of_storages)
{
    static const char sentence[] = "a persistent id whose view is not (key, offset, numel)";
    static const char large[] = "0xffffffffffffff7f";
    char text[300];

    refuses_by(STREAM, VIEWED("'abc'"), BERTH_E_PICKLE, sentence);
    refuses_by(STREAM, VIEWED("'part' 1 TUPLE2"), BERTH_E_PICKLE, sentence);
    refuses_by(STREAM, VIEWED("1 1 1 TUPLE3"), BERTH_E_PICKLE, sentence);
    refuses_by(STREAM, VIEWED("'part' 'a' 1 TUPLE3"), BERTH_E_PICKLE,
               "a persistent id whose view's offset is not an int");
    refuses_by(STREAM, VIEWED("'part' 1 'a' TUPLE3"), BERTH_E_PICKLE,
               "a persistent id whose view's numel is not an int");
    refuses_by(STREAM, VIEWED("'part' 1 6 TUPLE3"), BERTH_E_TENSOR,
               "a view of 24 bytes at byte 4 of a storage of 24 bytes");
    (void)snprintf(
        text, sizeof text,
        "MARK 'storage' GLOBAL torch DoubleStorage 'root' 'cpu' LONG1 %s TUPLE !BINPERSID STOP",
        large);
    refuses_as(BERTH_E_TENSOR, text,
               "a storage whose numel of 9223372036854775807 x 8 bytes is too large");
    refuses_by(STREAM, VIEWED("'' 1 1 TUPLE3"), BERTH_E_UNSUPPORTED,
               "persistent id: a storage key of 0 bytes (1 to 1024, without NUL)");
}

/* Whoever looks at a tensor from before 0.4 finds it built, or the pickle is refused. */
Test(pickle_shapes, a_tensor_is_built_before_it_is_used)
{
    static const char sentence[] = "a tensor is used before its BUILD";

    REFUSES_EACH(
        sentence, "EMPTY_LIST " OLD_TENSOR "!APPEND STOP", OLD_TENSOR "NONE !APPEND STOP",
        "EMPTY_LIST MARK " OLD_TENSOR "!APPENDS STOP", OLD_TENSOR "MARK NONE !APPENDS STOP",
        "EMPTY_DICT " OLD_TENSOR "NONE !SETITEM STOP",
        "EMPTY_DICT NONE " OLD_TENSOR "!SETITEM STOP", OLD_TENSOR "NONE NONE !SETITEM STOP",
        "EMPTY_DICT MARK " OLD_TENSOR "NONE !SETITEMS STOP", "MARK " OLD_TENSOR "!TUPLE STOP",
        OLD_TENSOR "NONE !TUPLE2 STOP", "NONE " OLD_TENSOR "NONE !TUPLE3 STOP",
        "EMPTY_DICT " OLD_TENSOR "!BUILD STOP", OLD_TENSOR OLD_TENSOR "!BUILD STOP",
        OLD_TENSOR "!BINPERSID STOP", "GLOBAL torch Size " OLD_TENSOR "!REDUCE STOP",
        OLD_TENSOR "EMPTY_TUPLE !REDUCE STOP", "GLOBAL torch Size " OLD_TENSOR "!NEWOBJ STOP");
}

/* An OrderedDict of pairs: each of two items, in a list or tuple. */
Test(pickle_shapes, pairs_of_an_ordered_dict)
{
#define FROM(pair) "GLOBAL collections OrderedDict EMPTY_LIST " pair " APPEND TUPLE1 !REDUCE STOP"
#define NO_PAIR "collections OrderedDict: an OrderedDict made from an item that is not a pair"
    gives(FROM("EMPTY_LIST MARK 1 2 APPENDS"), "OrderedDict{1: 2}");
    gives(FROM("1 2 TUPLE2"), "OrderedDict{1: 2}");
    REFUSES_EACH(NO_PAIR, FROM("1 2 3 TUPLE3"), FROM("1 TUPLE1"),
                 FROM("EMPTY_DICT MARK 1 1 2 2 SETITEMS"),
                 FROM("GLOBAL torch Size 1 2 TUPLE2 TUPLE1 REDUCE"), FROM("'ab'"));
    refuses_as(BERTH_E_UNSUPPORTED, FROM("EMPTY_LIST 1 TUPLE2"),
               "collections OrderedDict: a list cannot be a dict key");
}
