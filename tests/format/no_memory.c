/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * W6: every maker of values, every pickle, every question for a name, where memory ends at every
 * place: the chunk that nodes are cut from has some bytes left, and there is no other. Each gives a
 * value or fails with BERTH_E_MEMORY, and nothing leaks.
 */
#include "base/memory.h"
#include "format/names/names.h"
#include "format/pickle/pickle.h"
#include "format/values/node.h"
#include "tests/support/format/pickle_assembler.h"

/* ---- makers ---- */

/* What makers make values of. */
static struct {
    berth_tree *tree;
    berth_value *text, *latin, *bytes, *ints, *list, *empty, *pairs, *dict, *ordered, *call,
        *long_key;
    berth_value *tensor, *indices, *sizes, *offsets, *storage_value;
    berth_storage *storage;
} with;

static const float numbers[6] = {0, 1, 2, 3, 4, 5};
static char long_text[3000];

static berth_value *tensor_of(berth_dtype dtype, int32_t rank, const int64_t *shape)
{
    return test_tensor(with.tree, dtype, numbers, rank, shape);
}

static void prepare(void)
{
    berth_tree *tree = with.tree = berth_tree_new(NULL);
    berth_value *two[] = {berth_make_int(tree, 1), berth_make_int(tree, 2)};
    const int64_t one = 1, square[] = {1, 1};

    with.text = berth_make_str(tree, "text", 4);
    with.latin = berth_make_str(tree, "met", 3);
    (void)bth_bytes_from_latin1(tree, with.latin);
    with.bytes = berth_make_bytes(tree, BERTH_KIND_BYTES, "bytes", 5);
    with.ints = berth_make_tuple(tree, two, 2);
    with.list = berth_make_list(tree);
    with.empty = berth_make_list(tree);
    with.pairs = berth_make_list(tree);
    with.dict = berth_make_dict(tree, BERTH_KIND_DICT);
    with.ordered = berth_make_dict(tree, BERTH_KIND_ORDERED_DICT);
    for (int i = 0; i < 9; i++) { /* more than are kept without a table of slots */
        two[0] = berth_make_int(tree, i);
        berth_list_append(with.list, two[0]);
        berth_list_append(with.pairs, berth_make_tuple(tree, two, 2));
        berth_dict_set_value(with.dict, two[0], two[1]);
    }
    with.storage = berth_storage_new(tree, BERTH_FLOAT32, numbers, sizeof numbers, NULL);
    with.storage_value = berth_make_storage(tree, with.storage);
    with.tensor = tensor_of(BERTH_FLOAT32, 1, &one);
    with.indices = tensor_of(BERTH_INT64, 2, square);
    with.sizes = tensor_of(BERTH_INT64, 2, square);
    with.offsets = tensor_of(BERTH_INT64, 1, &one);
    with.call = bth_call_new(tree, bth_global_new(tree, "a", 1, "B", 1, false),
                             berth_make_tuple(tree, NULL, 0), false);
    two[0] = berth_make_str(tree, long_text, sizeof long_text - 1);
    with.long_key = berth_make_tuple(tree, two, 1);
    while (tree->storages.n_room > 0) /* the next one, too, needs memory */
        (void)berth_storage_new(tree, BERTH_FLOAT32, numbers, sizeof numbers, NULL);
}

#define MAKERS(X)                                                                                  \
    X(none, berth_make_none(with.tree))                                                            \
    X(true, berth_make_bool(with.tree, true))                                                      \
    X(int, berth_make_int(with.tree, 7))                                                           \
    X(bigint, berth_make_bytes(with.tree, BERTH_KIND_INT, (const uint8_t[16]){[15] = 1}, 16))      \
    X(float, berth_make_float(with.tree, 1.5))                                                     \
    X(complex, berth_make_complex(with.tree, 1, 2))                                                \
    X(dtype, berth_make_constant(with.tree, BERTH_KIND_DTYPE, BERTH_INT16))                        \
    X(qscheme, berth_make_constant(with.tree, BERTH_KIND_QSCHEME, BERTH_PER_TENSOR_AFFINE))        \
    X(layout, berth_make_constant(with.tree, BERTH_KIND_LAYOUT, BERTH_SPARSE_BSC))                 \
    X(device, berth_make_device(with.tree, "cuda", 3))                                             \
    X(str, berth_make_str(with.tree, "a", 1))                                                      \
    X(long_str, berth_make_str(with.tree, long_text, sizeof long_text - 1))                        \
    X(bytes, berth_make_bytes(with.tree, BERTH_KIND_BYTES, "a", 1))                                \
    X(latin1, bth_bytes_from_latin1(with.tree, with.text))                                         \
    X(latin1_again, bth_bytes_from_latin1(with.tree, with.latin))                                  \
    X(bytearray, berth_make_bytes(with.tree, BERTH_KIND_BYTEARRAY, "a", 1))                        \
    X(empty_bytearray, bth_bytearray_from_bytes(with.tree, NULL))                                  \
    X(bytearray_of, bth_bytearray_from_bytes(with.tree, with.bytes))                               \
    X(global, bth_global_new(with.tree, "a", 1, "b", 1, false))                                    \
    X(inert_global, bth_global_new(with.tree, "a", 1, "b", 1, true))                               \
    X(list, berth_make_list(with.tree))                                                            \
    X(tuple, berth_make_tuple(with.tree, (berth_value *[]){with.text, with.bytes}, 2))             \
    X(dict, berth_make_dict(with.tree, BERTH_KIND_DICT))                                           \
    X(ordered_dict, berth_make_dict(with.tree, BERTH_KIND_ORDERED_DICT))                           \
    X(ordered_dict_of, bth_ordered_dict_from_pairs(with.tree, with.pairs))                         \
    X(counter, bth_counter_from_dict(with.tree, NULL))                                             \
    X(counter_of, bth_counter_from_dict(with.tree, with.dict))                                     \
    X(set, bth_set_from_list(with.tree, NULL))                                                     \
    X(set_of, bth_set_from_list(with.tree, with.list))                                             \
    X(size, berth_make_size(with.tree, (const int64_t[]){2, 3}, 2))                                \
    X(size_of, bth_size_from_tuple(with.tree, with.ints))                                          \
    X(storage_value, berth_make_storage(with.tree, with.storage))                                  \
    X(tensor, tensor_of(BERTH_FLOAT32, 1, (const int64_t[]){3}))                                   \
    X(parameter, berth_make_parameter(with.tree, with.tensor, true))                               \
    X(subclass, berth_make_subclass(with.tree, with.tensor, with.dict))                            \
    X(sparse, berth_make_sparse(with.tree, BERTH_SPARSE_COO, (const int64_t[]){9}, 1,              \
                                (berth_value *[]){with.indices, with.tensor}, true))               \
    X(nested, berth_make_nested(with.tree, (berth_value *[]){with.tensor, with.sizes, with.sizes,  \
                                                             with.offsets}))                       \
    X(call,                                                                                        \
      bth_call_new(with.tree, berth_value_part(with.call, BERTH_PART_INNER), with.ints, true))     \
    X(compact, berth_value_copy(with.tree, with.tensor, BERTH_COPY_COMPACT))                       \
    X(compact_storage, berth_value_copy(with.tree, with.storage_value, BERTH_COPY_COMPACT))        \
    X(compact_inert, berth_value_copy(with.tree, with.call, BERTH_COPY_COMPACT))                   \
    X(compact_tuple, berth_value_copy(with.tree, with.ints, BERTH_COPY_COMPACT))                   \
    X(storage, berth_make_storage(                                                                 \
                   with.tree, berth_storage_new(with.tree, BERTH_FLOAT32, numbers, 4, "cuda:1")))  \
    X(met_storage, berth_make_storage(                                                             \
                       with.tree, bth_tree_find_or_add_storage(with.tree, "a_long_key_of_it", 16,  \
                                                               BERTH_UINT8, 1, "cuda:0", 6)))      \
    /* and what changes one */                                                                     \
    X(append, berth_list_append(with.empty, with.text) == 0 ? with.empty : NULL)                   \
    X(set_key, berth_dict_set(with.ordered, "key", with.text) == 0 ? with.ordered : NULL)          \
    X(set_value, berth_dict_set_value(with.dict, with.ints, with.text) == 0 ? with.dict : NULL)    \
    X(set_long_key,                                                                                \
      berth_dict_set_value(with.ordered, with.long_key, with.text) == 0 ? with.ordered : NULL)     \
    X(set_state, berth_value_set_state(with.ordered, with.dict) == 0 ? with.ordered : NULL)        \
    X(call_extend, bth_call_extend(with.call, &with.text, 1, false) == 0 ? with.call : NULL)       \
    X(call_set_items,                                                                              \
      bth_call_extend(with.call, (berth_value *[]){with.text, with.bytes}, 1, true) == 0           \
          ? with.call                                                                              \
          : NULL)                                                                                  \
    X(as_shape, bth_value_as_shape(with.ints, &shape_asked, &rank_asked) ? with.ints : NULL)

static const int64_t *shape_asked;
static int32_t rank_asked;

#define DEFINE_MAKER(name, expression)                                                             \
    static berth_value *make_##name(void)                                                          \
    {                                                                                              \
        return expression;                                                                         \
    }
MAKERS(DEFINE_MAKER)

#define LIST_MAKER(name, expression) {#name, make_##name},
static const struct maker {
    const char *name;
    berth_value *(*make)(void);
} makers[] = {MAKERS(LIST_MAKER)};

/* Takes of the tree until the chunk at hand has `left` bytes for nodes. */
static void leave(berth_tree *tree, size_t left)
{
    if (!tree->chunk || tree->chunk_nbytes - tree->chunk_at < left)
        (void)bth_tree_allocate(tree, tree->chunk_nbytes - tree->chunk_at + 8);
    while (tree->chunk_nbytes - tree->chunk_at > left)
        (void)bth_tree_allocate(tree, 8);
}

/* One maker, with `left` bytes and refusals of the nth allocation, or from it on; true: it went. */
static bool make_with(const struct maker *maker, size_t left, uint64_t nth, bool for_ever)
{
    berth_error error;

    test_memory_watch();
    prepare();
    leave(with.tree, left);
    test_memory_refuse(nth, for_ever);
    bool made = maker->make() != NULL;
    test_memory_refuse(0, false);
    int code = berth_tree_error(with.tree, &error);
    cr_assert_eq(code, made ? 0 : BERTH_E_MEMORY, "%s with %zu bytes: %s", maker->name, left,
                 error.message);
    berth_tree_free(with.tree);
    cr_assert_eq(test_memory_seen().live_nbytes, 0, "%s with %zu bytes leaks", maker->name, left);
    test_memory_unwatch();
    return made;
}

Test(no_memory, every_maker_of_values_fails_cleanly_wherever_a_chunk_ends, .timeout = 120)
{
    size_t n_points = 0;

    memset(long_text, 'a', sizeof long_text - 1);
    for (size_t i = 0; i < sizeof makers / sizeof *makers; i++) {
        size_t before = n_points;
        for (uint64_t nth = 1; nth <= 8; nth++)
            for (size_t left = 0; left <= 512; left += 8)
                for (int for_ever = 0; for_ever <= 1; for_ever++)
                    n_points += !make_with(&makers[i], left, nth, for_ever);
        cr_expect_gt(n_points, before, "%s needs no memory?", makers[i].name);
        cr_expect(make_with(&makers[i], 512, 1000, true), "%s", makers[i].name);
    }
    printf("makers of values: %zu places where memory ended\n", n_points);
}

/* ---- pickles ---- */

#define OLD_TENSOR                                                                                 \
    " GLOBAL torch FloatTensor EMPTY_TUPLE REDUCE MARK" FLOATS "0 2 3 TUPLE2 3 1 TUPLE2 "          \
    "TUPLE BUILD "
#define OLD_PARAMETER " GLOBAL torch.nn.parameter Parameter" TENSOR "NEWTRUE TUPLE2 REDUCE "
#define TYPED                                                                                      \
    " GLOBAL torch._tensor _rebuild_from_type_v2 GLOBAL torch._utils _rebuild_tensor_v2 GLOBAL "   \
    "torch Tensor MARK" FLOATS "0 2 3 TUPLE2 3 1 TUPLE2 NEWFALSE" NO_HOOKS                         \
    "TUPLE EMPTY_DICT MARK "

static const char *const pickles[] = {
    "EMPTY_LIST BINPUT 0 MARK" TENSOR LONGS("1", "1") DOUBLES("2", "2") "APPENDS STOP",
    "EMPTY_LIST" OLD_TENSOR "APPEND STOP",
    "EMPTY_LIST MARK" OLD_PARAMETER OLD_PARAMETER "APPENDS STOP",
    OLD_PARAMETER "TUPLE1 STOP",
    OLD_PARAMETER "MARK NEWFALSE NEWFALSE" NO_HOOKS "TUPLE BUILD TUPLE1 STOP",
    "EMPTY_DICT" OLD_PARAMETER OLD_PARAMETER "SETITEM STOP",
    OLD_PARAMETER "NONE APPEND STOP",
    "GLOBAL torch Size" OLD_PARAMETER "REDUCE STOP",
    OLD_PARAMETER "BINPERSID STOP",
    OLD_PARAMETER "BINPUT 0 EMPTY_DICT BUILD STOP",
    OLD_PARAMETER "MARK NONE APPENDS STOP",
    OLD_PARAMETER "NONE NONE SETITEM STOP",
    "EMPTY_LIST" OLD_PARAMETER "TUPLE2 STOP",
    OLD_PARAMETER "STOP",
    "GLOBAL collections OrderedDict EMPTY_TUPLE REDUCE BINPUT 1 EMPTY_DICT 'a' 1 SETITEM BUILD "
    "STOP",
    "GLOBAL collections Counter EMPTY_DICT 'a' 1 SETITEM TUPLE1 REDUCE STOP",
    "GLOBAL __builtin__ set EMPTY_LIST 1 APPEND TUPLE1 REDUCE STOP",
    "GLOBAL __builtin__ bytearray GLOBAL _codecs encode 'abc' 'latin1' TUPLE2 REDUCE TUPLE1 REDUCE "
    "STOP",
    "GLOBAL __builtin__ bytearray 'abc' 'latin-1' TUPLE2 REDUCE STOP",
    "GLOBAL torch device 'cuda' 1 TUPLE2 REDUCE STOP",
    "GLOBAL torch Size 1 2 TUPLE2 TUPLE1 REDUCE STOP",
    "EMPTY_LIST MARK 1 2 'three' BINFLOAT 0.5 LONG1 0x0000000000000000ff7f NONE NEWTRUE EMPTY_SET "
    "APPENDS STOP",
    "GLOBAL torch._utils _rebuild_sparse_tensor GLOBAL torch.serialization _get_layout "
    "'torch.sparse_coo' TUPLE1 REDUCE MARK" LONGS("1", "1") "1 TUPLE1 TUPLE TUPLE2 REDUCE STOP",
    "GLOBAL torch._utils _rebuild_meta_tensor_no_storage MARK GLOBAL torch float32 2 TUPLE1 1 "
    "TUPLE1 NEWFALSE TUPLE REDUCE STOP",
    "GLOBAL torch._utils _rebuild_parameter_with_state MARK GLOBAL torch._utils "
    "_rebuild_meta_tensor_no_storage MARK GLOBAL torch float32 2 TUPLE1 1 TUPLE1 NEWFALSE TUPLE "
    "REDUCE NEWFALSE NONE EMPTY_DICT TUPLE REDUCE STOP",
    "MARK 1 2 TUPLE STOP",
};

/* So long that the second tensor is read at once. */
#define USUAL                                                                                      \
    "EMPTY_LIST MARK GLOBAL torch._utils _rebuild_tensor_v2 BINPUT 0 MARK MARK 'storage' BINPUT "  \
    "1 "                                                                                           \
    "GLOBAL torch FloatStorage BINPUT 2 '0' 'cuda' BINPUT 3 6 TUPLE BINPERSID 0 2 3 TUPLE2 3 1 "   \
    "TUPLE2 NEWFALSE GLOBAL collections OrderedDict BINPUT 4 EMPTY_TUPLE REDUCE TUPLE REDUCE "     \
    "BINGET 0 MARK MARK BINGET 1 BINGET 2 'long key of it' BINPUT 5 BINGET 3 6 TUPLE BINPUT 6 "    \
    "BINPERSID 0 2 3 TUPLE2 BINPUT 7 3 1 TUPLE2 BINPUT 8 NEWTRUE BINGET 4 EMPTY_TUPLE REDUCE "     \
    "BINPUT 9 TUPLE BINPUT 10 REDUCE "

#define LINE "'________________________________________________' "
#define FILLER LINE LINE LINE LINE

static const char *const inert_pickles[] = {
    "GLOBAL a B EMPTY_TUPLE REDUCE 1 APPEND 'k' 2 SETITEM EMPTY_DICT BUILD STOP",
    "GLOBAL a B EMPTY_TUPLE NEWOBJ MARK 1 2 APPENDS MARK 'k' 2 SETITEMS STOP",
    "GLOBAL a B EMPTY_TUPLE REDUCE EMPTY_TUPLE REDUCE STOP",
    "PROTO 4 'a' 'B' STACK_GLOBAL MEMOIZE EMPTY_TUPLE NEWOBJ MEMOIZE STOP",
    "GLOBAL torch._tensor _rebuild_from_type_v2 MARK GLOBAL torch._utils "
    "_rebuild_meta_tensor_no_storage GLOBAL mine Tensor MARK GLOBAL torch float32 EMPTY_TUPLE "
    "EMPTY_TUPLE NEWFALSE TUPLE EMPTY_DICT TUPLE REDUCE STOP",
};

/* Reads with `left` bytes for values, the nth allocation refused, or all from it on; true: none
 * was.
 */
static bool read_with(const struct pickle *pickle, bth_pickle_rules rules, const char *words,
                      int wanted, size_t left, uint64_t nth, bool for_ever)
{
    berth_value *root = NULL;
    berth_error error;

    rules.record = "data.pkl";
    test_memory_watch();
    berth_tree *tree = berth_tree_new(NULL);
    leave(tree, left);
    test_memory_refuse(nth, for_ever);
    bth_error_clear(&error);
    int code = bth_pickle_read(pickle->bytes, pickle->nbytes, &rules, tree, &root, &error);
    bool refused = test_memory_refused();
    cr_assert_eq(code, refused ? BERTH_E_MEMORY : wanted, "%s with %zu bytes: %s", words, left,
                 error.message);
    berth_tree_free(tree);
    cr_assert_eq(test_memory_seen().live_nbytes, 0, "%s with %zu bytes leaks", words, left);
    test_memory_unwatch();
    return !refused;
}

static size_t read_everywhere(const char *words, bth_pickle_rules rules)
{
    struct pickle pickle = {0};
    size_t n_points = 0;

    assemble(&pickle, words);
    struct reading whole = read_by(&pickle, rules);
    for (uint64_t nth = 1; nth <= 8; nth++)
        for (size_t left = 0; left <= 1600; left += 8)
            for (int for_ever = 0; for_ever <= 1; for_ever++)
                n_points += !read_with(&pickle, rules, words, whole.code, left, nth, for_ever);
    free_reading(&whole);
    free(pickle.bytes);
    return n_points;
}

Test(no_memory, every_pickle_fails_cleanly_wherever_a_chunk_ends, .timeout = 120)
{
    size_t n_points = 0;

    for (size_t i = 0; i < sizeof pickles / sizeof *pickles; i++)
        n_points += read_everywhere(pickles[i], NO_RULES);
    for (size_t i = 0; i < sizeof inert_pickles / sizeof *inert_pickles; i++)
        n_points += read_everywhere(inert_pickles[i], INERT);
    n_points += read_everywhere(USUAL FILLER "APPENDS STOP", NO_RULES);
    cr_expect_gt(n_points, 1000);
    printf("pickles: %zu places where memory ended\n", n_points);
}

#define STREAMED                                                                                   \
    "PROTO 2 LONG1 0x6cfc9c46f9206aa85019 STOP BININT2 1001 STOP EMPTY_DICT 'little_endian' "      \
    "NEWTRUE SETITEM STOP MARK 'storage' GLOBAL torch FloatStorage 'a' 'cpu' 5 NONE TUPLE "        \
    "BINPERSID STOP EMPTY_LIST 'a' APPEND STOP"

/* The same for a stream, whose list of keys is memory of the tree, too. */
static bool stream_with(const struct pickle *file, size_t left, uint64_t nth, bool for_ever)
{
    bth_legacy stream;
    berth_error error;

    test_memory_watch();
    berth_tree *tree = berth_tree_new(NULL);
    leave(tree, left);
    test_memory_refuse(nth, for_ever);
    bth_error_clear(&error);
    int code = bth_legacy_read_pickles(file->bytes, file->nbytes, &(bth_pickle_rules){0}, tree,
                                       &stream, &error);
    bool refused = test_memory_refused();
    cr_assert_eq(code, refused ? BERTH_E_MEMORY : 0, "stream with %zu bytes: %s", left,
                 error.message);
    berth_tree_free(tree);
    cr_assert_eq(test_memory_seen().live_nbytes, 0, "stream with %zu bytes leaks", left);
    test_memory_unwatch();
    return !refused;
}

Test(no_memory, a_stream_fails_cleanly_wherever_a_chunk_ends, .timeout = 120)
{
    struct pickle file = {0};
    size_t n_points = 0;

    assemble(&file, STREAMED);
    for (uint64_t nth = 1; nth <= 16; nth++)
        for (size_t left = 0; left <= 1600; left += 8)
            for (int for_ever = 0; for_ever <= 1; for_ever++)
                n_points += !stream_with(&file, left, nth, for_ever);
    cr_expect_gt(n_points, 1000);
    free(file.bytes);
}

/* ---- names ---- */

static void set(berth_value *dict, const char *key, berth_value *value)
{
    cr_assert_eq(berth_dict_set(dict, key, value), 0);
}

/* Long keys, deep levels, attributes, parts, other keys, and a name that two share. */
static berth_value *make_named(berth_tree *tree)
{
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT),
                *deep = berth_make_dict(tree, BERTH_KIND_DICT),
                *state = berth_make_dict(tree, BERTH_KIND_DICT);
    char key[400];

    with.tree = tree;
    berth_value *tensor = tensor_of(BERTH_FLOAT32, 1, (const int64_t[]){1});
    berth_value *indices = tensor_of(BERTH_INT64, 2, (const int64_t[]){1, 1});
    for (int i = 0; i < 20; i++) {
        (void)snprintf(key, sizeof key, "%0300d", i);
        set(root, key, tensor);
    }
    set(root, "deep", deep);
    for (int i = 0; i < 40; i++) {
        berth_value *below = berth_make_dict(tree, BERTH_KIND_DICT);
        set(deep, "d", below);
        deep = below;
    }
    set(deep, "tensor", tensor);
    set(state, "b", tensor);
    set(root, "a", state);
    berth_dict_set_value(root, berth_make_float(tree, 1.5), tensor);
    berth_dict_set_value(
        root, berth_make_tuple(tree, (berth_value *[]){berth_make_int(tree, 1)}, 1), tensor);
    set(root, "subclass", berth_make_subclass(tree, tensor, state));
    berth_value *sparse = berth_make_sparse(tree, BERTH_SPARSE_COO, (const int64_t[]){9}, 1,
                                            (berth_value *[]){indices, tensor}, false);
    set(root, "sparse", sparse);
    berth_dict_set_value(root, berth_make_float(tree, 2.5),
                         sparse); /* only its own name needs memory */
    set(root, "call",
        bth_call_new(tree, bth_global_new(tree, "a", 1, "B", 1, false),
                     berth_make_tuple(tree, &state, 1), false));
    return root;
}

/* Asks for every name and path, and by each for its value again; 0, or the first failure. */
static int ask_names(const bth_names *names, berth_error *error)
{
    for (size_t i = 0; i < bth_names_tensor_count(names); i++) {
        char *texts[2];
        if (bth_names_allocate_tensor_name_and_path(names, i, &texts[0], &texts[1], error) < 0)
            return error->code;
        for (int k = 0; k < 2; k++) {
            const berth_value *found =
                error->code == 0 ? bth_names_find_value(names, texts[k], error) : NULL;
            cr_assert(error->code < 0 || found == bth_names_tensor_value(names, i), "%s", texts[k]);
            bth_release(texts[k]);
        }
        if (error->code < 0)
            return error->code;
    }
    (void)bth_names_find_value(names, "1.5", error);
    if (error->code == 0)
        (void)bth_names_find_value(names, "call", error);
    return error->code;
}

/* Whoever was refused memory says so, at once: no name is made of what is missing. */
Test(no_memory, names_fail_cleanly_at_every_allocation, .timeout = 120)
{
    bool refused = true;
    uint64_t n_points = 0;

    test_memory_watch();
    berth_tree *tree = berth_tree_new(NULL);
    const berth_value *root = make_named(tree);
    uint64_t live = test_memory_seen().live_nbytes;
    while (refused) {
        bth_names *names;
        berth_error error;
        bth_error_clear(&error);
        n_points++;
        uint64_t nth = (n_points + 1) / 2; /* it alone, and all from it on */
        test_memory_refuse(nth, n_points % 2 == 0);
        int code = bth_names_new(root, &names, &error);
        cr_assert_eq(code < 0, names == NULL);
        cr_assert_eq(code, test_memory_refused() ? BERTH_E_MEMORY : 0, "allocation %d: %s",
                     (int)nth, error.message);
        if (names)
            code = ask_names(names, &error);
        refused = test_memory_refused();
        cr_assert_eq(code, refused ? BERTH_E_MEMORY : 0, "allocation %d: %s", (int)nth,
                     error.message);
        test_memory_refuse(0, false);
        bth_names_free(names);
        cr_assert_eq(test_memory_seen().live_nbytes, live, "allocation %d leaks", (int)nth);
    }
    berth_tree_free(tree);
    test_memory_unwatch();
    printf("names: %llu places where memory ended\n", (unsigned long long)n_points);
}

/* Two of one name: who could not write out the second says so, and not that there is one. */
Test(no_memory, an_ambiguous_name_is_told_or_the_want_of_memory)
{
    bool refused = true;

    test_memory_watch();
    berth_tree *tree = with.tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT),
                *inner = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_value *tensor = tensor_of(BERTH_FLOAT32, 1, (const int64_t[]){1});
    berth_error error;
    bth_names *names;

    set(root, "a.b", tensor);
    set(inner, "b", tensor);
    set(root, "a", inner);
    bth_error_clear(&error);
    cr_assert_eq(bth_names_new(root, &names, &error), 0);
    for (uint64_t nth = 1; refused; nth++) {
        bth_error_clear(&error);
        test_memory_refuse(nth, true);
        cr_expect_null(bth_names_find_value(names, "a.b", &error));
        refused = test_memory_refused();
        cr_expect(error.code == BERTH_E_AMBIGUOUS || (refused && error.code == BERTH_E_MEMORY),
                  "allocation %d: %s", (int)nth, error.message);
    }
    test_memory_refuse(0, false);
    bth_names_free(names);
    berth_tree_free(tree);
    test_memory_unwatch();
}

/* What is near is a hint: where memory ends for it, the name is not found all the same. */
Test(no_memory, what_is_near_is_told_where_there_is_memory)
{
    bool refused = true;
    size_t n_without = 0;

    test_memory_watch();
    berth_tree *tree = with.tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_error error;
    bth_names *names;

    set(root, "near", tensor_of(BERTH_FLOAT32, 1, (const int64_t[]){1}));
    bth_error_clear(&error);
    cr_assert_eq(bth_names_new(root, &names, &error), 0);
    for (uint64_t nth = 1; refused; nth++) {
        bth_error_clear(&error);
        test_memory_refuse(nth, false);
        cr_expect_null(bth_names_find_value(names, "neer", &error));
        refused = test_memory_refused();
        if (refused && error.code == BERTH_E_MEMORY)
            continue;
        cr_expect_eq(error.code, BERTH_E_NOT_FOUND, "allocation %d: %s", (int)nth, error.message);
        cr_expect_str_eq(error.message, refused ? "no value named \"neer\""
                                                : "no value named \"neer\"; near: \"near\"");
        n_without += refused;
    }
    cr_expect_eq(n_without, 1);
    test_memory_refuse(0, false);
    bth_names_free(names);
    berth_tree_free(tree);
    test_memory_unwatch();
}

/* ---- writing ---- */

/* A text so long that the buffer is full somewhere in what follows, and that. */
static berth_value *make_written(berth_tree *tree, size_t longer)
{
    berth_value *root = berth_make_list(tree),
                *inner = berth_make_dict(tree, BERTH_KIND_ORDERED_DICT);

    with.tree = tree;
    berth_list_append(root, berth_make_str(tree, long_text, longer));
    berth_list_append(root, berth_make_float(tree, 0.5));
    berth_list_append(root,
                      berth_make_bytes(tree, BERTH_KIND_INT, (const uint8_t[16]){[15] = 1}, 16));
    berth_list_append(root, berth_make_int(tree, 70000));
    berth_list_append(root, berth_make_bytes(tree, BERTH_KIND_BYTES, "\xff", 1));
    berth_list_append(root, tensor_of(BERTH_FLOAT32, 1, (const int64_t[]){1}));
    berth_dict_set(inner, "key", berth_make_bool(tree, true));
    berth_value_set_state(inner, berth_make_dict(tree, BERTH_KIND_DICT));
    berth_list_append(root, inner);
    return root;
}

Test(no_memory, pickles_are_written_whole_or_not_at_all, .timeout = 120)
{
    size_t n_points = 0;

    memset(long_text, 'a', sizeof long_text - 1);
    for (size_t longer = 640; longer < 1030; longer++) {
        bool refused = true;
        test_memory_watch();
        berth_tree *tree = berth_tree_new(NULL);
        const berth_value *root = make_written(tree, longer);
        uint64_t live = test_memory_seen().live_nbytes;
        for (uint64_t nth = 1; refused; nth++, n_points++) {
            bth_pickled pickled;
            berth_error error;
            bth_error_clear(&error);
            test_memory_refuse(nth, true);
            int code = bth_pickle_write(root, false, &pickled, &error);
            refused = test_memory_refused();
            cr_assert_eq(code, refused ? BERTH_E_MEMORY : 0, "%s", error.message);
            if (code == 0)
                bth_pickled_free(&pickled);
            cr_assert_eq(test_memory_seen().live_nbytes, live);
        }
        test_memory_refuse(0, false);
        berth_tree_free(tree);
        test_memory_unwatch();
    }
    printf("pickles written: %zu places where memory ended\n", n_points);
}
