/* SPDX-License-Identifier: BSD-3-Clause */
/* Persistent ids, tensors of every kind, and BUILD (P5, T1 to T4). */
#include "tests/support/format/pickle_assembler.h"

/* ---- persistent ids ---- */

Test(pickle_tensors, a_storage_has_its_class_key_location_and_bytes)
{
    gives("MARK 'storage' GLOBAL torch.cuda HalfStorage 'a/7' 'cuda:1' 5 TUPLE BINPERSID STOP",
          "<float16 'a/7' 10 cuda:1>");
}

Test(pickle_tensors, persistent_ids_of_any_other_form_are_refused)
{
    refuses("'storage' !BINPERSID STOP", "a persistent id that is a str, not a tuple");
    refuses("EMPTY_TUPLE !BINPERSID STOP", "a persistent id of 0 items, not 5");
    refuses("'storage' TUPLE1 !BINPERSID STOP", "a persistent id of 1 items, not 5");
    refuses("'tensor' TUPLE1 !BINPERSID STOP", "a persistent id whose first item is not 'storage'");
    refuses_as(
        BERTH_E_FORBIDDEN, "MARK 'module' NONE NONE NONE TUPLE !BINPERSID STOP",
        "a whole pickled module, which is code and never run: only its state_dict can be read");
    refuses_by(
        INERT, "MARK 'module' GLOBAL mine Module 'file.py' 'source' TUPLE !BINPERSID STOP",
        BERTH_E_FORBIDDEN,
        "a whole pickled module, which is code and never run: only its state_dict can be read");
    refuses_by(
        STREAM, "MARK 'module' GLOBAL torch FloatStorage 'file.py' 'source' TUPLE !BINPERSID STOP",
        BERTH_E_FORBIDDEN,
        "a whole pickled module, which is code and never run: only its state_dict can be read");
    refuses("MARK 'storage' NONE '0' 'cpu' 1 TUPLE !BINPERSID STOP",
            "a persistent id whose second item is not a storage class");
    refuses("MARK 'storage' GLOBAL torch.storage TypedStorage '0' 'cpu' 1 TUPLE !BINPERSID STOP",
            "a persistent id whose second item is not a storage class");
    refuses("MARK 'storage' GLOBAL torch IntStorage 0 'cpu' 1 TUPLE !BINPERSID STOP",
            "a persistent id whose key is not a str");
    refuses("MARK 'storage' GLOBAL torch IntStorage '0' NONE 1 TUPLE !BINPERSID STOP",
            "a persistent id whose location is not a str");
    refuses("MARK 'storage' GLOBAL torch IntStorage '0' 'cpu' NONE TUPLE !BINPERSID STOP",
            "a persistent id whose numel is not an int");
    refuses("MARK 'storage' GLOBAL torch IntStorage '0' 'cpu' 1 NONE TUPLE !BINPERSID STOP",
            "a persistent id of 6 items, not 5");
}

/* P5: what PyTorch makes of it has no elements; it writes none such. */
Test(pickle_tensors, storages_are_not_at_location_meta)
{
#define META_SENTENCE                                                                              \
    "persistent id: a storage whose location is meta: PyTorch would read none of its bytes"
    refuses_as(BERTH_E_UNSUPPORTED,
               "MARK 'storage' GLOBAL torch IntStorage '0' 'meta' 1 TUPLE !BINPERSID STOP",
               META_SENTENCE);
    refuses_by(STREAM,
               "MARK 'storage' GLOBAL torch IntStorage '0' 'meta' 1 NONE TUPLE !BINPERSID STOP",
               BERTH_E_UNSUPPORTED, META_SENTENCE);
    refuses_by(
        STREAM,
        "MARK 'storage' GLOBAL torch IntStorage '0' 'meta' 2 '1' 0 1 TUPLE3 TUPLE !BINPERSID STOP",
        BERTH_E_UNSUPPORTED, META_SENTENCE);
}

/* T1: 0x4000000000000001 x 4 wraps to 4. */
Test(pickle_tensors, sizes_of_storages_do_not_wrap)
{
    refuses_as(BERTH_E_TENSOR,
               "MARK 'storage' GLOBAL torch IntStorage '0' 'cpu' LONG1 0x0100000000000040 TUPLE "
               "!BINPERSID STOP",
               "a storage whose numel of 4611686018427387905 x 4 bytes is too large");
    refuses_as(BERTH_E_TENSOR,
               "MARK 'storage' GLOBAL torch HalfStorage '0' 'cpu' LONG1 0x0000000000000040 TUPLE "
               "!BINPERSID STOP",
               "a storage whose numel of 4611686018427387904 x 2 bytes is too large");
    refuses_as(BERTH_E_TENSOR,
               "MARK 'storage' GLOBAL torch IntStorage '0' 'cpu' -1 TUPLE !BINPERSID STOP",
               "a storage whose numel is -1");
    refuses("MARK 'storage' GLOBAL torch IntStorage '0' 'cpu' LONG1 0x000000000000000000ff TUPLE "
            "!BINPERSID STOP",
            "a persistent id whose numel is not an int");
}

/* T3 */
Test(pickle_tensors, one_key_has_one_size_and_one_class)
{
    refuses_as(BERTH_E_TENSOR, FLOATS STORAGE("torch FloatStorage", "0", "7") "TUPLE2 STOP",
               "persistent id: storage 0 has 28 bytes here and 24 bytes before");
    refuses_as(BERTH_E_TENSOR, FLOATS STORAGE("torch IntStorage", "0", "6") "TUPLE2 STOP",
               "persistent id: storage 0 is of int32 here and of float32 before");
    gives(STORAGE("torch.storage UntypedStorage", "0", "6")
              STORAGE("torch ByteStorage", "0", "6") "TUPLE2 STOP",
          "(<untyped '0' 6>, <uint8 '0' 6>)");
}

Test(pickle_tensors, an_empty_storage_may_be_of_two_classes)
{
    gives(V2 STORAGE("torch FloatStorage", "0",
                     "0") "0 0 TUPLE1 1 TUPLE1 NEWFALSE" NO_HOOKS
                          "TUPLE REDUCE" V2 STORAGE("torch LongStorage", "0",
                                                    "0") "0 0 TUPLE1 1 TUPLE1 NEWFALSE" NO_HOOKS
                                                         "TUPLE REDUCE TUPLE2 STOP",
          "(float32[0]<float32 '0' 0>, int64[0]<float32 '0' 0>)");
}

#define VIEW(key, offset, numel)                                                                   \
    " MARK 'storage' GLOBAL torch FloatStorage 'root' 'cpu' 6 '" key "' " offset " " numel         \
    " TUPLE3 TUPLE !BINPERSID "

Test(pickle_tensors, streams_have_views_of_storages)
{
    gives_by(STREAM, VIEW("part", "2", "3") VIEW("part", "2", "3") "TUPLE2 STOP",
             "(<float32 'part' 12 at 8 of <float32 'root' 24>>, <float32 'part' 12 at 8 of "
             "<float32 'root' 24>>)");
}

Test(pickle_tensors, views_of_storages_lie_inside_and_are_one_part)
{
    refuses_by(STREAM, VIEW("part", "4", "3") "STOP", BERTH_E_TENSOR,
               "a view of 12 bytes at byte 16 of a storage of 24 bytes");
    refuses_by(STREAM, VIEW("part", "7", "0") "STOP", BERTH_E_TENSOR,
               "a view of 0 bytes at byte 28 of a storage of 24 bytes");
    refuses_by(STREAM, VIEW("part", "-1", "1") "STOP", BERTH_E_TENSOR,
               "a storage whose view's offset is -1");
    refuses_by(STREAM, VIEW("part", "0", "2") VIEW("part", "1", "2") "TUPLE2 STOP", BERTH_E_PICKLE,
               "a persistent id whose view was another part, or a whole storage, before");
    refuses_by(STREAM, VIEW("root", "0", "6") "STOP", BERTH_E_PICKLE,
               "a persistent id whose view was another part, or a whole storage, before");
    refuses_by(STREAM,
               VIEW("part", "0", "2") " MARK 'storage' GLOBAL torch FloatStorage 'part' 'cpu' 2 "
                                      "NONE TUPLE !BINPERSID TUPLE2 STOP",
               BERTH_E_PICKLE, "a persistent id whose storage was a view before");
    refuses_by(STREAM, FLOATS "STOP", BERTH_E_PICKLE, "a persistent id of 5 items, not 6");
    refuses_by(STREAM,
               "MARK 'storage' GLOBAL torch FloatStorage 'root' 'cpu' 6 1 TUPLE !BINPERSID STOP",
               BERTH_E_PICKLE, "a persistent id whose view is not (key, offset, numel)");
}

/* ---- tensors ---- */

Test(pickle_tensors, tensors_of_all_three_versions)
{
    gives(TENSOR "STOP", "float32[2, 3]<float32 '0' 24>");
    gives("GLOBAL torch._utils _rebuild_tensor MARK" FLOATS "1 3 TUPLE1 2 TUPLE1 TUPLE REDUCE STOP",
          "float32[3](2)@1<float32 '0' 24>");
    gives("GLOBAL torch._utils _rebuild_tensor_v3 MARK" STORAGE(
              "torch.storage UntypedStorage", "0", "8") "0 4 TUPLE1 1 TUPLE1 NEWTRUE" NO_HOOKS
                                                        "GLOBAL torch uint16 TUPLE REDUCE STOP",
          "uint16[4]<untyped of uint16 '0' 8> grad");
    gives("GLOBAL torch._utils _rebuild_meta_tensor_no_storage MARK GLOBAL torch bfloat16 LONG1 "
          "0xffffffff00 TUPLE1 1 TUPLE1 NEWTRUE TUPLE REDUCE STOP",
          "bfloat16[4294967295] meta grad");
}

Test(pickle_tensors, wrong_arguments_are_told_by_function_and_position)
{
    refuses("GLOBAL torch._utils _rebuild_tensor_v2 1 2 3 TUPLE3 !REDUCE STOP",
            "torch._utils _rebuild_tensor_v2 wants 6 or 7 arguments, got 3");
    refuses(V2 FLOATS "NEWTRUE 6 TUPLE1 1 TUPLE1 NEWFALSE" NO_HOOKS "TUPLE !REDUCE STOP",
            "torch._utils _rebuild_tensor_v2 wants an int of 64 bits as argument 2, got bool");
    refuses(V2 FLOATS "0 EMPTY_LIST EMPTY_TUPLE NEWFALSE" NO_HOOKS "TUPLE !REDUCE STOP",
            "torch._utils _rebuild_tensor_v2 wants a tuple of ints as argument 3, got list");
    refuses(V2 FLOATS "0 EMPTY_TUPLE EMPTY_TUPLE 1" NO_HOOKS "TUPLE !REDUCE STOP",
            "torch._utils _rebuild_tensor_v2 wants a bool as argument 5, got int");
    refuses(V2 FLOATS "0 EMPTY_TUPLE EMPTY_TUPLE NEWFALSE" NO_HOOKS
                      "1 2 SETITEM TUPLE !REDUCE STOP",
            "torch._utils _rebuild_tensor_v2 wants an empty OrderedDict as argument 6, got "
            "OrderedDict");
    refuses(V2 "NONE 0 EMPTY_TUPLE EMPTY_TUPLE NEWFALSE" NO_HOOKS "TUPLE !REDUCE STOP",
            "torch._utils _rebuild_tensor_v2 wants a storage as argument 1, got None");
    refuses("GLOBAL torch._utils _rebuild_tensor_v3 MARK" FLOATS
            "0 EMPTY_TUPLE EMPTY_TUPLE NEWFALSE" NO_HOOKS "GLOBAL torch float32 TUPLE !REDUCE STOP",
            "torch._utils _rebuild_tensor_v3 wants an UntypedStorage as argument 1");
}

/* T2, through every rebuild path */
Test(pickle_tensors, tensors_must_fit_their_storage)
{
    static const char *const before[] = {
        V2 FLOATS, "GLOBAL torch._utils _rebuild_tensor MARK" FLOATS,
        "GLOBAL torch._utils _rebuild_tensor_v3 MARK" STORAGE("torch.storage UntypedStorage", "0",
                                                              "24"),
        "GLOBAL torch._utils _rebuild_qtensor MARK" STORAGE("torch QInt32Storage", "0", "6")};
    static const char *const after[] = {
        "NEWFALSE" NO_HOOKS "TUPLE REDUCE STOP", "TUPLE REDUCE STOP",
        "NEWFALSE" NO_HOOKS "GLOBAL torch float32 TUPLE REDUCE STOP",
        "GLOBAL torch per_tensor_affine BINFLOAT 1 0 TUPLE3 NEWFALSE" NO_HOOKS "TUPLE REDUCE STOP"};
    static const struct {
        const char *words;
        bool fits;
    } views[] = {{"0 6 TUPLE1 1 TUPLE1 ", true},
                 {"0 7 TUPLE1 1 TUPLE1 ", false},
                 {"1 6 TUPLE1 1 TUPLE1 ", false},
                 {"5 1 TUPLE1 9 TUPLE1 ", true},
                 {"6 1 TUPLE1 1 TUPLE1 ", false},
                 {"0 2 TUPLE1 5 TUPLE1 ", true},
                 {"0 2 TUPLE1 6 TUPLE1 ", false},
                 {"-1 1 TUPLE1 1 TUPLE1 ", false},
                 {"0 -1 TUPLE1 1 TUPLE1 ", false},
                 {"5 2 TUPLE1 -1 TUPLE1 ", false},
                 {"0 2 TUPLE1 EMPTY_TUPLE ", false},
                 {"0 LONG1 0xffffffffffffff7f 2 TUPLE2 LONG1 0xffffffffffffff7f 1 TUPLE2 ", false}};
    for (size_t path = 0; path < 4; path++) {
        for (size_t i = 0; i < sizeof views / sizeof *views; i++) {
            char source[800];
            snprintf(source, sizeof source, "%s%s%s", before[path], views[i].words, after[path]);
            struct reading read = read_words_by(source, NO_RULES);
            cr_expect_eq(read.code, views[i].fits ? 0 : BERTH_E_TENSOR, "%s: %s", source,
                         read.error.message);
            free_reading(&read);
        }
    }
}

Test(pickle_tensors, shapes_of_odd_items_or_rank)
{
    refuses_as(BERTH_E_TENSOR,
               V2 FLOATS "0 NONE TUPLE1 1 TUPLE1 NEWFALSE" NO_HOOKS "TUPLE !REDUCE STOP",
               "torch._utils _rebuild_tensor_v2: item 0 of a shape is None, not an int");
    struct pickle pickle = {0};
    assemble(&pickle, V2 FLOATS "0 MARK ");
    assemble_times(&pickle, "1 ", 65);
    assemble(&pickle, "TUPLE BINPUT 0 BINGET 0 NEWFALSE" NO_HOOKS "TUPLE REDUCE STOP");
    struct reading read = read_by(&pickle, NO_RULES);
    cr_expect_eq(read.code, BERTH_E_TENSOR);
    cr_expect(strstr(read.error.message, "a shape of 65 items (at most 64)"), "%s",
              read.error.message);
    free_reading(&read);
    free(pickle.bytes);
}

#define QTENSOR(quantizer)                                                                         \
    "GLOBAL torch._utils _rebuild_qtensor MARK" STORAGE(                                           \
        "torch QInt8Storage", "q", "6") "0 2 3 TUPLE2 3 1 TUPLE2 " quantizer " NEWFALSE" NO_HOOKS  \
                                        "TUPLE REDUCE STOP"

/* T4 */
Test(pickle_tensors, quantizers_that_do_not_fit_are_refused)
{
    struct reading read;
    static const char *const misfits[] = {
        QTENSOR("MARK GLOBAL torch per_channel_affine " DOUBLES("s", "3")
                    LONGS("z", "3") "2 TUPLE"),
        QTENSOR("MARK GLOBAL torch per_channel_affine " DOUBLES("s", "3")
                    LONGS("z", "3") "-1 TUPLE"),
        QTENSOR("MARK GLOBAL torch per_channel_affine " DOUBLES("s", "2")
                    LONGS("z", "3") "1 TUPLE"),
        QTENSOR("MARK GLOBAL torch per_channel_affine " DOUBLES("s", "3")
                    LONGS("z", "2") "1 TUPLE")};
    for (size_t i = 0; i < sizeof misfits / sizeof *misfits; i++) {
        read = read_words_by(misfits[i], NO_RULES);
        cr_expect_eq(read.code, BERTH_E_TENSOR, "%s: %s", misfits[i], read.error.message);
        free_reading(&read);
    }
}

#define LAYOUT(name) "GLOBAL torch.serialization _get_layout 'torch." name "' TUPLE1 REDUCE "
#define SPARSE "GLOBAL torch._utils _rebuild_sparse_tensor "
/* (1, n) indices and n values of a vector. */
#define INDICES                                                                                    \
    V2 STORAGE("torch LongStorage", "i", "2") "0 1 2 TUPLE2 2 1 TUPLE2 NEWFALSE" NO_HOOKS          \
                                              "TUPLE REDUCE "

Test(pickle_tensors, sparse_tensors)
{
    gives(SPARSE LAYOUT("sparse_coo") "MARK " INDICES DOUBLES(
              "v", "2") "GLOBAL torch Size 9 TUPLE1 TUPLE1 REDUCE NEWTRUE TUPLE TUPLE2 REDUCE STOP",
          "COO([9], int64[1, 2]<int64 'i' 16>, float64[2]<float64 'v' 16>, coalesced)");
    gives(
        SPARSE LAYOUT("sparse_csr") "MARK " LONGS("a", "3") LONGS("b", "2")
            DOUBLES("v", "2") "2 2 TUPLE2 TUPLE TUPLE2 REDUCE STOP",
        "CSR([2, 2], int64[3]<int64 'a' 24>, int64[2]<int64 'b' 16>, float64[2]<float64 'v' 16>)");
}

Test(pickle_tensors, sparse_parts_that_do_not_fit_are_refused)
{
    struct reading read;
    /* T4: three values for two indices; a size of two dimensions for a vector. */
    static const char *const misfits[] = {
        SPARSE LAYOUT("sparse_coo") "MARK " INDICES DOUBLES(
            "v", "3") "9 TUPLE1 NEWTRUE TUPLE TUPLE2 REDUCE STOP",
        SPARSE LAYOUT("sparse_coo") "MARK " INDICES DOUBLES(
            "v", "2") "9 9 TUPLE2 NEWTRUE TUPLE TUPLE2 REDUCE STOP"};
    for (size_t i = 0; i < sizeof misfits / sizeof *misfits; i++) {
        read = read_words_by(misfits[i], NO_RULES);
        cr_expect_eq(read.code, BERTH_E_TENSOR, "%s: %s", misfits[i], read.error.message);
        free_reading(&read);
    }
}

Test(pickle_tensors, nested_tensors)
{
#define PAIRS(key)                                                                                 \
    V2 STORAGE("torch LongStorage", key, "2") "0 2 1 TUPLE2 1 1 TUPLE2 NEWFALSE" NO_HOOKS          \
                                              "TUPLE REDUCE "
    gives("GLOBAL torch._utils _rebuild_nested_tensor MARK " DOUBLES("v", "5") PAIRS("s") PAIRS("t")
              LONGS("o", "2") "TUPLE REDUCE STOP",
          "Nested(float64[5]<float64 'v' 40>, int64[2, 1]<int64 's' 16>, int64[2, 1]<int64 't' "
          "16>, int64[2]<int64 'o' 16>)");
    refuses("GLOBAL torch._utils _rebuild_nested_tensor MARK 1 2 3 4 TUPLE !REDUCE STOP",
            "torch._utils _rebuild_nested_tensor wants a tensor as argument 1, got int");
}

/* ---- Parameters and attributes ---- */

Test(pickle_tensors, parameters)
{
    gives("GLOBAL torch._utils _rebuild_parameter" TENSOR "NEWTRUE" NO_HOOKS "TUPLE3 REDUCE STOP",
          "Parameter(float32[2, 3]<float32 '0' 24>, grad)");
    refuses("GLOBAL torch._utils _rebuild_parameter EMPTY_DICT NEWTRUE" NO_HOOKS
            "TUPLE3 !REDUCE STOP",
            "torch._utils _rebuild_parameter wants a tensor as argument 1, got dict");
}

Test(pickle_tensors, parameters_and_tensors_with_attributes)
{
    gives("GLOBAL torch._utils _rebuild_parameter_with_state MARK" TENSOR "NEWFALSE" NO_HOOKS
          "EMPTY_DICT 'a' 1 SETITEM TUPLE REDUCE STOP",
          "Subclass(Parameter(float32[2, 3]<float32 '0' 24>), {'a': 1})");
#define FROM_TYPE(function, type, arguments)                                                       \
    "GLOBAL torch._tensor _rebuild_from_type_v2 MARK GLOBAL " function " GLOBAL " type             \
    " MARK " arguments " TUPLE EMPTY_DICT 'a' 1 SETITEM TUPLE !REDUCE STOP"
#define META "GLOBAL torch float32 EMPTY_TUPLE EMPTY_TUPLE NEWFALSE"
    gives(FROM_TYPE("torch._utils _rebuild_meta_tensor_no_storage", "torch Tensor", META),
          "Subclass(float32[] meta, {'a': 1})");
}

Test(pickle_tensors, from_type_calls_only_rebuild_functions_for_plain_tensors)
{
#define WANTS                                                                                      \
    "torch._tensor _rebuild_from_type_v2 wants a _rebuild function and torch Tensor as first "     \
    "arguments"
    refuses(FROM_TYPE("torch Size", "torch Tensor", "EMPTY_TUPLE"), WANTS);
    refuses(FROM_TYPE("torch._tensor _rebuild_from_type_v2", "torch Tensor", META), WANTS);
    /* Not even with good arguments: it would recurse as deep as the file likes (P3). */
    REFUSES_EACH(
        WANTS,
        FROM_TYPE(
            "torch._tensor _rebuild_from_type_v2", "torch Tensor",
            "GLOBAL torch._utils _rebuild_meta_tensor_no_storage GLOBAL torch Tensor MARK " META
            " TUPLE EMPTY_DICT"),
        FROM_TYPE("torch._utils _rebuild_tensor", "torch FloatTensor", META),
        FROM_TYPE("torch._utils _rebuild_parameter_with_state", "torch Tensor",
                  TENSOR "NEWTRUE" NO_HOOKS "EMPTY_DICT"),
        FROM_TYPE("torch._utils _rebuild_meta_tensor_no_storage", "torch Size", META));
    refuses(FROM_TYPE("torch._utils _rebuild_tensor", "torch Tensor", "1 2"),
            "torch._utils _rebuild_tensor wants 4 arguments, got 2");
}

/* ---- BUILD ---- */

Test(pickle_tensors, a_state_dict_keeps_its_metadata)
{
    gives("GLOBAL collections OrderedDict EMPTY_TUPLE REDUCE BINPUT 0 EMPTY_DICT '_metadata' 1 "
          "SETITEM BUILD STOP",
          "OrderedDict{}+{'_metadata': 1}");
}

Test(pickle_tensors, build_takes_only_what_has_a_state)
{
    refuses_as(BERTH_E_FORBIDDEN, "EMPTY_DICT EMPTY_DICT !BUILD STOP",
               "BUILD of a dict: only OrderedDicts, and tensors and Parameters of old files, take "
               "a state");
    refuses("GLOBAL collections OrderedDict EMPTY_TUPLE REDUCE NONE !BUILD STOP",
            "BUILD of an OrderedDict wants a dict, got None");
    refuses(
        "GLOBAL collections OrderedDict EMPTY_TUPLE REDUCE EMPTY_DICT BUILD EMPTY_DICT !BUILD STOP",
        "BUILD of an OrderedDict that has a state");
}

/* Files of torchvision from 2017 hold Parameters that are built in two steps. */
Test(pickle_tensors, parameters_of_old_files_are_built_in_two_steps)
{
#define OLD_PARAMETER "GLOBAL torch.nn.parameter Parameter " TENSOR "TUPLE1 REDUCE "
    gives(OLD_PARAMETER "BINPUT 0 NEWFALSE NEWFALSE NONE TUPLE3 BUILD BINGET 0 TUPLE2 STOP",
          "(&1 Parameter(float32[2, 3]<float32 '0' 24>), *1)");
    gives(OLD_PARAMETER "STOP",
          "Parameter(float32[2, 3]<float32 '0' 24>, grad)"); /* without BUILD as Parameter() makes
                                                                it */
    gives("EMPTY_LIST MARK " OLD_PARAMETER OLD_PARAMETER "APPENDS STOP",
          "[Parameter(float32[2, 3]<float32 '0' 24>, grad), Parameter(float32[2, 3]<float32 '0' "
          "24>, grad)]");
    refuses(OLD_PARAMETER "EMPTY_DICT !BUILD STOP",
            "BUILD of a Parameter wants (requires_grad, volatile, hooks), once");
    refuses(OLD_PARAMETER "BINPUT 0 TUPLE1 BINGET 0 NEWTRUE NEWTRUE NONE TUPLE3 !BUILD TUPLE2 STOP",
            "BUILD of a Parameter wants (requires_grad, volatile, hooks), once");
}

Test(pickle_tensors, tensors_of_the_oldest_files_are_built_in_two_steps)
{
#define OLD_TENSOR(class) "GLOBAL torch " class " EMPTY_TUPLE REDUCE "
#define OLD_STATE "MARK" FLOATS "0 6 TUPLE1 1 TUPLE1 TUPLE !BUILD "
    gives(OLD_TENSOR("FloatTensor") OLD_STATE "STOP", "float32[6]<float32 '0' 24>");
    gives(OLD_TENSOR("Tensor") OLD_STATE "STOP", "float32[6]<float32 '0' 24>");
    refuses(OLD_TENSOR("LongTensor") OLD_STATE "STOP",
            "BUILD of a tensor wants (storage, offset, size, stride), once");
    refuses(OLD_TENSOR("FloatTensor") "!TUPLE1 STOP", "a tensor is used before its BUILD");
    refuses(OLD_TENSOR("FloatTensor") "!STOP", "a tensor is used before its BUILD");
    refuses("GLOBAL torch FloatTensor 5 TUPLE1 !REDUCE STOP",
            "torch FloatTensor wants 0 arguments, got 1");
    refuses(OLD_TENSOR("FloatTensor") "MARK" FLOATS "0 6 TUPLE1 1 TUPLE1 TUPLE BUILD " OLD_STATE
                                      "STOP",
            "BUILD of a tensor wants (storage, offset, size, stride), once");
}
