/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * P3: at most 64 bytes of memory per byte of pickle, plus 64 KiB, with stack, memo and the tree;
 * each pickle here makes as much as it can of few bytes. Counted at the peak, while blocks that
 * grow are held twice.
 */
#include "tests/support/format/pickle_assembler.h"

/* Old and new block of a realloc are held at the same time: counts both. */
static uint64_t live_nbytes, peak_nbytes;

enum { PREFIX_NBYTES = 16 };

static void *counting_reallocate(void *context, void *pointer, size_t nbytes)
{
    (void)context;
    char *old = pointer ? (char *)pointer - PREFIX_NBYTES : NULL;
    uint64_t old_nbytes = old ? *(uint64_t *)(void *)old : 0;
    live_nbytes += nbytes;
    peak_nbytes = live_nbytes > peak_nbytes ? live_nbytes : peak_nbytes;
    live_nbytes -= old_nbytes;
    if (nbytes == 0) {
        free(old);
        return NULL;
    }
    char *block = realloc(old, nbytes + PREFIX_NBYTES);
    if (!block)
        test_give_up("no memory for a bomb");
    *(uint64_t *)(void *)block = nbytes;
    return block + PREFIX_NBYTES;
}

/* Reads the pickle and frees it; fails the test if its memory goes beyond the bound. */
static void read_by_within_bound(struct pickle *pickle, bth_pickle_rules rules, const char *name,
                                 int wanted)
{
    berth_set_allocator(&(berth_allocator){.reallocate = counting_reallocate});
    live_nbytes = peak_nbytes = 0;
    struct reading read = read_by(pickle, rules);
    uint64_t bound = 64 * (uint64_t)pickle->nbytes + 65536;
    cr_expect_eq(read.code, wanted, "%s: %s", name, read.error.message);
    cr_expect_leq(peak_nbytes, bound, "%s: %llu bytes of memory for %zu bytes of pickle", name,
                  (unsigned long long)peak_nbytes, pickle->nbytes);
    free_reading(&read);
    cr_expect_eq(live_nbytes, 0, "%s leaks", name);
    berth_set_allocator(NULL);
    free(pickle->bytes);
}

static void read_within_bound(struct pickle *pickle, const char *name, int wanted)
{
    read_by_within_bound(pickle, NO_RULES, name, wanted);
}

/* Assembles `before`, n times `words`, `after`. */
static void bomb(const char *name, const char *before, const char *words, size_t n,
                 const char *after, int wanted)
{
    struct pickle pickle = {0};
    assemble(&pickle, before);
    assemble_times(&pickle, words, n);
    assemble(&pickle, after);
    read_within_bound(&pickle, name, wanted);
}

enum { MANY = 300000 };

/* What other readers need seconds to for ever for: each tuple holds the one before twice. */
Test(pickle_bombs, doubling_is_as_small_as_its_bytes)
{
    bomb("doubling of 144 bytes", "PROTO 2 EMPTY_TUPLE BINPUT 0", "BINGET 0 TUPLE2 BINPUT 0", 28,
         "STOP", 0);
    bomb("long doubling", "PROTO 2 EMPTY_TUPLE BINPUT 0", "BINGET 0 TUPLE2 BINPUT 0", MANY, "STOP",
         0);
    bomb("doubling of lists", "EMPTY_LIST BINPUT 0",
         "EMPTY_LIST BINGET 0 APPEND BINGET 0 APPEND BINPUT 0 TUPLE2", MANY / 4, "STOP", 0);
}

Test(pickle_bombs, ten_million_empty_lists_side_by_side)
{
    bomb("empty lists", "EMPTY_LIST MARK", "EMPTY_LIST", 10000000, "APPENDS STOP", 0);
}

Test(pickle_bombs, ten_million_marks)
{
    bomb("marks", "", "MARK", 10000000, "STOP", BERTH_E_PICKLE);
}

Test(pickle_bombs, containers_side_by_side)
{
    bomb("empty dicts", "EMPTY_LIST MARK", "EMPTY_DICT", MANY, "APPENDS STOP", 0);
    bomb("empty sets", "EMPTY_LIST MARK", "EMPTY_SET", MANY, "APPENDS STOP", 0);
    bomb("empty dicts in a tuple", "MARK", "EMPTY_DICT", MANY, "TUPLE STOP", 0);
    bomb("empty lists appended one by one", "EMPTY_LIST", "EMPTY_LIST APPEND", MANY, "STOP", 0);
    bomb("lists of one", "EMPTY_LIST MARK", "EMPTY_LIST NONE APPEND", MANY, "APPENDS STOP", 0);
    bomb("lists of two", "EMPTY_LIST MARK", "EMPTY_LIST NONE APPEND NONE APPEND", MANY,
         "APPENDS STOP", 0);
    bomb("lists of three", "EMPTY_LIST MARK", "EMPTY_LIST NONE APPEND NONE APPEND NONE APPEND",
         MANY, "APPENDS STOP", 0);
    bomb("dicts of one", "EMPTY_LIST MARK", "EMPTY_DICT NONE NONE SETITEM", MANY, "APPENDS STOP",
         0);
    bomb("dicts of two", "EMPTY_LIST MARK", "EMPTY_DICT NONE NONE SETITEM NEWTRUE NONE SETITEM",
         MANY, "APPENDS STOP", 0);
    bomb("empty tuples", "MARK", "EMPTY_TUPLE", MANY, "TUPLE STOP", 0);
    bomb("marked tuples", "MARK", "MARK TUPLE", MANY, "TUPLE STOP", 0);
    bomb("tuples of one", "MARK", "NONE TUPLE1", MANY, "TUPLE STOP", 0);
    bomb("ordered dicts", "GLOBAL collections OrderedDict BINPUT 0 TUPLE1 MARK",
         "BINGET 0 EMPTY_TUPLE REDUCE", MANY, "TUPLE TUPLE2 STOP", 0);
}

Test(pickle_bombs, depth_is_bounded_only_by_memory)
{
    struct pickle pickle = {0};
    bomb("chain of TUPLE1", "NONE", "TUPLE1", 10000000, "STOP", 0);
    bomb("nested lists, built inside out", "EMPTY_LIST BINPUT 0",
         "EMPTY_LIST BINGET 0 APPEND BINPUT 0 TUPLE2", MANY, "STOP", 0);
    assemble_times(&pickle, "EMPTY_LIST", 1000000);
    assemble_times(&pickle, "APPEND", 999999);
    assemble(&pickle, "STOP");
    read_within_bound(&pickle, "nested lists", 0);
    pickle = (struct pickle){0};
    assemble_times(&pickle, "EMPTY_DICT NONE", 500000);
    assemble(&pickle, "NONE");
    assemble_times(&pickle, "SETITEM", 500000);
    assemble(&pickle, "STOP");
    read_within_bound(&pickle, "nested dicts", 0);
}

Test(pickle_bombs, scalars)
{
    bomb("ones", "MARK", "BININT1 1", MANY, "TUPLE STOP", 0);
    bomb("ints", "MARK", "BININT2 1000", MANY, "TUPLE STOP", 0);
    bomb("empty long ints", "MARK", "LONG1 0x", MANY, "TUPLE STOP", 0);
    bomb("long ints", "MARK", "LONG1 0x0000000000000000ff7f", MANY, "TUPLE STOP", 0);
    bomb("floats", "MARK", "BINFLOAT 0.5", MANY, "TUPLE STOP", 0);
    bomb("empty texts", "MARK", "''", MANY, "TUPLE STOP", 0);
    bomb("empty old texts", "MARK", "SHORT_BINSTRING ''", MANY, "TUPLE STOP", 0);
    bomb("old texts of a byte", "MARK", "SHORT_BINSTRING 'a'", MANY, "TUPLE STOP", 0);
    bomb("dtypes", "MARK", "GLOBAL torch int1", MANY, "TUPLE STOP", 0);
}

Test(pickle_bombs, the_memo)
{
    bomb("memo of each", "MARK", "EMPTY_LIST BINPUT 0", MANY, "TUPLE STOP", 0);
    bomb("memo of one", "EMPTY_LIST BINPUT 0 MARK", "BINGET 0", MANY, "TUPLE TUPLE2 STOP", 0);
    bomb("puts", "NONE", "BINPUT 255", MANY, "STOP", 0);
    struct pickle pickle = {0};
    assemble(&pickle, "NONE");
    for (uint64_t i = 0; i < 100000; i++) { /* each index a new one, downwards */
        put(&pickle, "r", 1);
        put_little(&pickle, 499999 - i, 4);
    }
    assemble(&pickle, "STOP");
    read_within_bound(&pickle, "memo downwards", 0);
}

/* REDUCE never copies: what it is given again and again is shared, or used once. */
Test(pickle_bombs, long_arguments_used_again_and_again)
{
    static const struct {
        const char *name, *function, *before, *items, *after; /* no items: a long text */
        int wanted;
    } cases[] = {
        {"text encoded", "_codecs encode", "", NULL, "'latin1' TUPLE2", 0},
        {"bytearrays of the same bytes", "__builtin__ bytearray", "GLOBAL _codecs encode", NULL,
         "'latin1' TUPLE2 REDUCE TUPLE1", 0},
        {"bytearrays of the same text", "__builtin__ bytearray", "", NULL, "'latin1' TUPLE2", 0},
        {"sizes of the same tuple", "torch Size", "MARK", "BININT1 1", "TUPLE TUPLE1", 0},
        {"sets of the same list", "__builtin__ set", "EMPTY_LIST MARK", "BININT1 1",
         "APPENDS TUPLE1", BERTH_E_PICKLE},
    };
    char text[20001], words[100];

    memset(text, 'x', sizeof text);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pickle pickle = {0};
        (void)snprintf(words, sizeof words, "GLOBAL %s BINPUT 0 %s", cases[i].function,
                       cases[i].before);
        assemble(&pickle, words);
        if (cases[i].items)
            assemble_times(&pickle, cases[i].items, sizeof text);
        else
            put_text(&pickle, text, sizeof text);
        assemble(&pickle, cases[i].after);
        assemble(&pickle, "BINPUT 1 MARK");
        assemble_times(&pickle, "BINGET 0 BINGET 1 REDUCE", MANY);
        assemble(&pickle, "TUPLE TUPLE3 STOP");
        read_within_bound(&pickle, cases[i].name, cases[i].wanted);
    }
}

Test(pickle_bombs, keys_are_hashed_once)
{
    struct pickle pickle = {0};
    assemble(&pickle, "EMPTY_TUPLE BINPUT 0");
    assemble_times(&pickle, "BINGET 0 TUPLE2 BINPUT 0", 1000);
    assemble(&pickle, "EMPTY_DICT MARK");
    assemble_times(&pickle, "BINGET 0 NONE", MANY);
    assemble(&pickle, "SETITEMS TUPLE2 STOP");
    read_within_bound(&pickle, "a doubled key", 0);
    bomb("keys that are new", "EMPTY_DICT MARK", "NONE TUPLE1 NONE", 2, "SETITEMS STOP", 0);
    pickle = (struct pickle){0};
    assemble(&pickle, "EMPTY_DICT MARK");
    for (uint64_t i = 0; i < 100000; i++) {
        put(&pickle, "J", 1);
        put_little(&pickle, i, 4);
        assemble(&pickle, "NONE");
    }
    assemble(&pickle, "SETITEMS STOP");
    read_within_bound(&pickle, "a dict of ints", 0);
    pickle = (struct pickle){0};
    assemble(&pickle, "EMPTY_DICT");
    for (uint64_t i = 0; i < 65536; i++) {
        put(&pickle, "M", 1);
        put_little(&pickle, i, 2);
        assemble(&pickle, "NONE SETITEM");
    }
    assemble(&pickle, "STOP");
    read_within_bound(&pickle, "a dict of ints, one by one", 0);
}

/* A shape of 64 dimensions, named by memo in tensor after tensor. */
Test(pickle_bombs, tensors_share_their_shapes)
{
    struct pickle pickle = {0};
    assemble(&pickle, "MARK MARK");
    assemble_times(&pickle, "BININT1 1", 64);
    assemble(&pickle, "TUPLE BINPUT 2 GLOBAL torch._utils _rebuild_tensor BINPUT 0 MARK" FLOATS
                      "BINPUT 3 0 BINGET 2 BINGET 2 TUPLE BINPUT 1");
    assemble_times(&pickle, "BINGET 0 BINGET 1 REDUCE", MANY);
    assemble_times(&pickle, "BINGET 0 MARK BINGET 3 0 BINGET 2 BINGET 2 TUPLE REDUCE", MANY);
    assemble(&pickle, "TUPLE STOP");
    read_within_bound(&pickle, "tensors of one shape", 0);
}

Test(pickle_bombs, every_kind_of_tensor_from_the_same_arguments)
{
    static const struct {
        const char *name, *words; /* leave function and arguments on the stack, memo 0 and 1 */
    } kinds[] = {
        {"meta tensors", "GLOBAL torch._utils _rebuild_meta_tensor_no_storage BINPUT 0 MARK GLOBAL "
                         "torch float32 EMPTY_TUPLE EMPTY_TUPLE NEWFALSE TUPLE BINPUT 1"},
        {"parameters",
         "GLOBAL torch._utils _rebuild_parameter BINPUT 0" TENSOR "NEWTRUE NONE TUPLE3 BINPUT 1"},
        {"parameters with state",
         "GLOBAL torch._utils _rebuild_parameter_with_state BINPUT 0 MARK" TENSOR
         "NEWTRUE NONE EMPTY_DICT TUPLE BINPUT 1"},
        {"old parameters", "GLOBAL torch.nn.parameter Parameter BINPUT 0" TENSOR "TUPLE1 BINPUT 1"},
        {"tensors with state",
         "GLOBAL torch._tensor _rebuild_from_type_v2 BINPUT 0 MARK GLOBAL torch._utils "
         "_rebuild_meta_tensor_no_storage GLOBAL torch Tensor MARK GLOBAL torch float32 "
         "EMPTY_TUPLE EMPTY_TUPLE NEWFALSE TUPLE EMPTY_DICT TUPLE BINPUT 1"},
        {"quantized tensors", "GLOBAL torch._utils _rebuild_qtensor BINPUT 0 MARK" STORAGE(
                                  "torch QInt8Storage", "q",
                                  "6") "0 EMPTY_TUPLE EMPTY_TUPLE GLOBAL torch per_tensor_affine 1 "
                                       "0 TUPLE3 NEWTRUE NONE TUPLE BINPUT 1"},
        {"complex numbers", "GLOBAL __builtin__ complex BINPUT 0 1 1 TUPLE2 BINPUT 1"},
        {"devices", "GLOBAL torch device BINPUT 0 'cuda' 1 TUPLE2 BINPUT 1"},
        {"layouts",
         "GLOBAL torch.serialization _get_layout BINPUT 0 'torch.strided' TUPLE1 BINPUT 1"},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct pickle pickle = {0};
        assemble(&pickle, kinds[i].words);
        assemble(&pickle, "MARK");
        assemble_times(&pickle, "BINGET 0 BINGET 1 REDUCE", MANY);
        assemble(&pickle, "TUPLE TUPLE3 STOP");
        read_within_bound(&pickle, kinds[i].name, 0);
    }
}

Test(pickle_bombs, sparse_tensors_share_their_shape)
{
    struct pickle pickle = {0};
    assemble(
        &pickle,
        "GLOBAL torch._utils _rebuild_sparse_tensor BINPUT 0 GLOBAL torch.serialization "
        "_get_layout 'torch.sparse_coo' TUPLE1 REDUCE MARK" V2 STORAGE(
            "torch LongStorage", "i",
            "63") "0 63 1 TUPLE2 1 1 TUPLE2 NEWFALSE NONE TUPLE REDUCE" LONGS("v", "1") "MARK");
    assemble_times(&pickle, "BININT1 1", 63);
    assemble(&pickle, "TUPLE NEWFALSE TUPLE TUPLE2 BINPUT 1 MARK");
    assemble_times(&pickle, "BINGET 0 BINGET 1 REDUCE", MANY);
    assemble(&pickle, "TUPLE TUPLE3 STOP");
    read_within_bound(&pickle, "sparse tensors", 0);
}

Test(pickle_bombs, storages)
{
    bomb("one storage again and again",
         "MARK 'storage' GLOBAL torch FloatStorage '0' 'cpu' 0 TUPLE BINPUT 0 MARK",
         "BINGET 0 BINPERSID", MANY, "TUPLE TUPLE2 STOP", 0);
    struct pickle pickle = {0};
    assemble(&pickle, "'storage' BINPUT 0 GLOBAL torch ByteStorage BINPUT 1 MARK");
    for (unsigned i = 0; i < 60000; i++) { /* a new key each time */
        char key[4] = {(char)('!' + i % 90), (char)('!' + i / 90 % 90), (char)('!' + i / 8100), 0};
        assemble(&pickle, "MARK BINGET 0 BINGET 1");
        put(&pickle, "U\003", 2);
        put(&pickle, key, 3);
        assemble(&pickle, "BINPUT 2 BINGET 2 BININT1 0 TUPLE BINPERSID"); /* as location, too */
    }
    assemble(&pickle, "TUPLE TUPLE3 STOP");
    read_within_bound(&pickle, "a storage of its own each time", 0);
}

static void inert_bomb_gives(int wanted, const char *name, const char *before, const char *words,
                             const char *after)
{
    struct pickle pickle = {0};
    assemble(&pickle, before);
    assemble_times(&pickle, words, MANY);
    assemble(&pickle, after);
    read_by_within_bound(&pickle, INERT, name, wanted);
}

static void inert_bomb(const char *name, const char *before, const char *words, const char *after)
{
    inert_bomb_gives(0, name, before, words, after);
}

#define LONG_NAME "aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffgggggggggg"

Test(pickle_bombs, protocol_4)
{
    inert_bomb("short texts", "PROTO 4 MARK", "SHORT_BINUNICODE ''", "TUPLE STOP");
    inert_bomb("memoized", "PROTO 4 MARK", "NEWTRUE MEMOIZE", "LONG_BINGET 299999 TUPLE STOP");
    inert_bomb("short names", "PROTO 4 MARK 'x' MEMOIZE", "BINGET 0 BINGET 0 STACK_GLOBAL",
               "TUPLE STOP");
    inert_bomb_gives(BERTH_E_PICKLE, "one long name", "PROTO 4 MARK '" LONG_NAME "' MEMOIZE",
                     "BINGET 0 BINGET 0 STACK_GLOBAL", "TUPLE STOP");
}

Test(pickle_bombs, unknown_globals_kept_inert)
{
    inert_bomb("unknown globals", "MARK", "GLOBAL x Y", "TUPLE STOP");
    inert_bomb("objects", "MARK", "GLOBAL x Y EMPTY_TUPLE REDUCE", "TUPLE STOP");
    inert_bomb("objects of one class", "GLOBAL x Y BINPUT 0 MARK", "BINGET 0 EMPTY_TUPLE REDUCE",
               "TUPLE TUPLE2 STOP");
    inert_bomb("objects of objects", "GLOBAL x Y", "EMPTY_TUPLE REDUCE", "STOP");
    inert_bomb("objects in a set", "GLOBAL x Y BINPUT 0 GLOBAL __builtin__ set EMPTY_LIST MARK",
               "BINGET 0 EMPTY_TUPLE REDUCE", "APPENDS TUPLE1 REDUCE TUPLE2 STOP");
}

Test(pickle_bombs, items_of_inert_objects)
{
    const char *class = "GLOBAL x Y BINPUT 0 MARK", *end = "TUPLE TUPLE2 STOP";
    inert_bomb("no items", class, "BINGET 0 EMPTY_TUPLE REDUCE MARK APPENDS MARK SETITEMS", end);
    inert_bomb("one item", class, "BINGET 0 EMPTY_TUPLE REDUCE NONE APPEND", end);
    inert_bomb("three items", class,
               "BINGET 0 EMPTY_TUPLE REDUCE NONE APPEND NONE APPEND NONE APPEND", end);
    inert_bomb("one key", class, "BINGET 0 EMPTY_TUPLE REDUCE NONE NONE SETITEM", end);
    inert_bomb("item, key and state", class,
               "BINGET 0 EMPTY_TUPLE REDUCE NONE APPEND NONE NONE SETITEM NONE BUILD", end);
    inert_bomb("items one by one", "GLOBAL x Y EMPTY_TUPLE REDUCE", "EMPTY_LIST APPEND", "STOP");
    inert_bomb("objects as keys", "GLOBAL x Y BINPUT 0 EMPTY_TUPLE REDUCE MARK",
               "BINGET 0 EMPTY_TUPLE REDUCE NONE", "SETITEMS STOP");
    inert_bomb("objects as keys, one by one", "GLOBAL x Y BINPUT 0 EMPTY_TUPLE REDUCE",
               "BINGET 0 EMPTY_TUPLE REDUCE NONE SETITEM", "STOP");
}

/* The size of so many places, as a number, would be small. */
Test(pickle_bombs, memos_of_more_places_than_memory_has_are_refused)
{
    static bth_unpickler unpickler;
    const bth_pickle_survey survey = {.n_memo = SIZE_MAX / sizeof(berth_value *) + 2};
    berth_error error;
    bth_error_clear(&error);
    unpickler.nbytes = SIZE_MAX;
    unpickler.survey = &survey;
    unpickler.error = &error;
    cr_expect_eq(bth_unpickle_allocate_memo(&unpickler), BERTH_E_MEMORY);
    cr_expect_null(unpickler.memo);
}
