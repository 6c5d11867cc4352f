/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The usual tensor, read at once: whatever bytes are like one, reading them so and opcode by opcode
 * gives the same value, or the same refusal (P1 to P5). That it was read at once is told by the
 * nodes that nobody made.
 */
#include "format/values/value.h"
#include "tests/support/format/pickle_assembler.h"

/* The first tensor, in words that the next ones fetch: 2 to 6, and 10. */
#define BEGIN                                                                                      \
    "PROTO 2 EMPTY_DICT BINPUT 0 MARK 'a' BINPUT 1 GLOBAL torch._utils _rebuild_tensor_v2 BINPUT " \
    "2 MARK MARK 'storage' BINPUT 3 GLOBAL torch FloatStorage BINPUT 4 '0' BINPUT 5 'cpu' BINPUT " \
    "6 12 TUPLE BINPUT 7 BINPERSID 0 3 4 TUPLE2 BINPUT 8 4 1 TUPLE2 BINPUT 9 NEWFALSE GLOBAL "     \
    "collections OrderedDict BINPUT 10 EMPTY_TUPLE REDUCE BINPUT 11 TUPLE BINPUT 12 REDUCE "       \
    "BINPUT 13 'b' "
/* The same, but that the storage's key is its second one. */
#define HEAD "BINGET 2 MARK MARK BINGET 3 BINGET 4 "
#define KEY "'1' BINPUT 15 "
#define STORED "BINGET 6 12 TUPLE BINPUT 16 BINPERSID "
#define SHAPE "0 3 4 TUPLE2 BINPUT 17 4 1 TUPLE2 BINPUT 18 "
#define TAIL "NEWFALSE BINGET 10 EMPTY_TUPLE REDUCE BINPUT 19 TUPLE BINPUT 20 REDUCE "
#define USUAL HEAD KEY STORED SHAPE TAIL
/* What must lie behind, or there is no looking for it. */
#define LINE "'________________________________________________' "
#define END "BINPUT 21 " LINE LINE LINE LINE "SETITEMS STOP"

/* What nodes with a number the usual tensor is spared: key, storage, two tuples, OrderedDict. */
enum { N_SPARED = 5 };

static struct reading read_as(const struct pickle *pickle, bth_pickle_rules rules, bool one_by_one,
                              bth_pickle_survey *survey)
{
    berth_error unasked;
    bth_error_clear(&unasked);
    rules.one_by_one = one_by_one;
    *survey = (bth_pickle_survey){0};
    (void)bth_pickle_find_end_and_fetches(pickle->bytes, pickle->nbytes, &rules, survey, &unasked);
    return read_by(pickle, rules);
}

static void expect_same_storages(const berth_tree *a, const berth_tree *b)
{
    cr_assert_eq(bth_tree_n_storages(a), bth_tree_n_storages(b));
    for (size_t i = 0; i < bth_tree_n_storages(a); i++) {
        const berth_storage *x = bth_tree_storage(a, i), *y = bth_tree_storage(b, i);
        cr_expect_str_eq(x->key, y->key);
        cr_expect_str_eq(x->location, y->location);
        cr_expect_eq(x->dtype, y->dtype);
        cr_expect_eq(x->element, y->element);
        cr_expect_eq(x->nbytes, y->nbytes);
    }
}

/* Written again they are the same bytes, if they can be written. */
static void expect_same_values(const berth_value *a, const berth_value *b)
{
    bth_pickled x = {0}, y = {0};
    berth_error error, other;
    bth_error_clear(&error);
    bth_error_clear(&other);
    int code = bth_pickle_write(a, false, &x, &error);
    cr_assert_eq(code, bth_pickle_write(b, false, &y, &other));
    cr_expect_str_eq(error.message, other.message);
    if (code == 0) {
        cr_expect_eq(x.nbytes, y.nbytes);
        cr_expect(x.nbytes == y.nbytes && memcmp(x.bytes, y.bytes, x.nbytes) == 0);
        bth_pickled_free(&x);
        bth_pickled_free(&y);
    }
}

/* Reads both ways; how many nodes fewer are made by short cuts. */
static size_t compare(const struct pickle *pickle, bth_pickle_rules rules)
{
    bth_pickle_survey survey, other;
    struct reading quick = read_as(pickle, rules, false, &survey);
    struct reading slow = read_as(pickle, rules, true, &other);
    size_t spared = bth_tree_n_ids(slow.tree) - bth_tree_n_ids(quick.tree);
    cr_assert_eq(quick.code, slow.code, "%s, not %s", quick.error.message, slow.error.message);
    cr_expect_str_eq(quick.error.message, slow.error.message);
    cr_expect_eq(quick.error.offset, slow.error.offset);
    cr_expect_arr_eq(&survey, &other, sizeof survey);
    if (quick.code == 0) {
        expect_same_storages(quick.tree, slow.tree);
        expect_same_values(quick.root, slow.root);
        cr_expect_eq(berth_tree_error(quick.tree, NULL), 0);
    }
    free_reading(&quick);
    free_reading(&slow);
    return spared;
}

static size_t spared_by(const char *words, bth_pickle_rules rules, int code)
{
    struct pickle pickle = {0};
    assemble(&pickle, words);
    struct reading read = read_by(&pickle, rules);
    cr_expect_eq(read.code, code, "%s gave %s", words, read.error.message);
    free_reading(&read);
    size_t spared = compare(&pickle, rules);
    free(pickle.bytes);
    return spared;
}

#define EXPECT_SPARED(n, words) cr_expect_eq(spared_by(words, NO_RULES, 0), n, "%s", words)
#define EXPECT_REFUSED(code, words) cr_expect_eq(spared_by(words, NO_RULES, code), 0, "%s", words)

/* ---- what is usual ---- */

Test(pickle_usual, a_tensor_like_the_one_before_is_made_at_once)
{
    EXPECT_SPARED(N_SPARED, BEGIN USUAL END);
    ACCEPTS(read, BEGIN USUAL END);
    const berth_tensor *tensor = berth_as_tensor(berth_dict_get(read.root, "b"));
    cr_assert(tensor);
    cr_expect_eq(tensor->dtype, BERTH_FLOAT32);
    cr_expect_eq(tensor->rank, 2);
    cr_expect_arr_eq(tensor->shape, ((const int64_t[]){3, 4}), 16);
    cr_expect_arr_eq(tensor->stride, ((const int64_t[]){4, 1}), 16);
    cr_expect_eq(tensor->flags, 0);
    cr_expect_str_eq(berth_storage_get_info(tensor->storage)->key, "1");
    cr_expect_eq(berth_storage_get_info(tensor->storage)->nbytes, 48);
    free_reading(&read);
}

Test(pickle_usual, numbers_and_indices_may_be_of_any_length)
{
    EXPECT_SPARED(
        N_SPARED,
        BEGIN "LONG_BINGET 2 MARK MARK LONG_BINGET 3 LONG_BINGET 4 '1' LONG_BINPUT 15 LONG_BINGET "
              "6 BININT2 400 TUPLE LONG_BINPUT 16 BINPERSID BININT1 4 BININT1 3 BININT2 4 TUPLE2 "
              "LONG_BINPUT 17 BININT2 100 BININT1 1 TUPLE2 LONG_BINPUT 18 NEWTRUE LONG_BINGET 10 "
              "EMPTY_TUPLE REDUCE LONG_BINPUT 19 TUPLE LONG_BINPUT 20 REDUCE " END);
}

Test(pickle_usual, shapes_of_up_to_six_dimensions_are)
{
    EXPECT_SPARED(N_SPARED - 2, BEGIN HEAD KEY STORED "0 EMPTY_TUPLE EMPTY_TUPLE " TAIL END);
    EXPECT_SPARED(N_SPARED,
                  BEGIN HEAD KEY STORED "2 5 TUPLE1 BINPUT 17 2 TUPLE1 BINPUT 18 " TAIL END);
    EXPECT_SPARED(N_SPARED, BEGIN HEAD KEY STORED
                  "0 3 2 2 TUPLE3 BINPUT 17 4 2 1 TUPLE3 BINPUT 18 " TAIL END);
    EXPECT_SPARED(N_SPARED, BEGIN HEAD KEY STORED
                  "0 MARK 1 3 2 2 TUPLE BINPUT 17 MARK 12 4 2 1 TUPLE BINPUT 18 " TAIL END);
    EXPECT_SPARED(
        N_SPARED, BEGIN HEAD KEY STORED
        "0 MARK 1 1 1 3 2 2 TUPLE BINPUT 17 MARK 12 12 12 4 2 1 TUPLE BINPUT 18 " TAIL END);
    EXPECT_SPARED(
        0, BEGIN HEAD KEY STORED
        "0 MARK 1 1 1 1 3 2 2 TUPLE BINPUT 17 MARK 12 12 12 12 4 2 1 TUPLE BINPUT 18 " TAIL END);
    EXPECT_SPARED(0, BEGIN HEAD KEY STORED "0 MARK TUPLE BINPUT 17 MARK TUPLE BINPUT 18 " TAIL END);
}

/* Tied weights: the key is fetched, and the storage is the first one. */
Test(pickle_usual, a_storage_may_be_met_again)
{
    EXPECT_SPARED(N_SPARED - 1, BEGIN HEAD "BINGET 5 " STORED SHAPE TAIL END);
    EXPECT_SPARED(N_SPARED, BEGIN HEAD "'0' BINPUT 15 " STORED SHAPE TAIL END);
}

Test(pickle_usual, an_untyped_storage_has_bytes)
{
    EXPECT_SPARED(N_SPARED,
                  BEGIN "GLOBAL torch.storage UntypedStorage BINPUT 4 " USUAL "TUPLE2 " END);
}

/* ---- what is not ---- */

Test(pickle_usual, what_is_fetched_again_is_kept)
{
    EXPECT_SPARED(0, BEGIN USUAL "BINGET 15 TUPLE2 " END);
    EXPECT_SPARED(0, BEGIN USUAL "BINGET 16 TUPLE2 " END);
    EXPECT_SPARED(0, BEGIN USUAL "BINGET 17 TUPLE2 " END);
    EXPECT_SPARED(0, BEGIN USUAL "BINGET 18 TUPLE2 " END);
    EXPECT_SPARED(0, BEGIN USUAL "BINGET 19 TUPLE2 " END);
    EXPECT_SPARED(0, BEGIN USUAL "BINGET 20 TUPLE2 " END);
    /* The tensor itself is put into the memo by an opcode of its own. */
    EXPECT_SPARED(N_SPARED, BEGIN USUAL "BINPUT 21 BINGET 21 TUPLE2 " END);
}

/* Which indices are fetched is known by their remainders: one too many is kept, none too few. */
Test(pickle_usual, what_looks_like_an_index_that_is_fetched_is_kept)
{
    static char filler[BTH_FETCHED_BITS];
    for (int index = 15; index <= 21; index++) {
        struct pickle pickle = {0};
        char words[100];
        memset(filler, 'a', sizeof filler);
        assemble(&pickle, BEGIN);
        put_text(&pickle, filler, sizeof filler);
        (void)snprintf(words, sizeof words, "LONG_BINPUT %d 'c' ", BTH_FETCHED_BITS + index);
        assemble(&pickle, words);
        assemble(&pickle, USUAL);
        (void)snprintf(words, sizeof words, "LONG_BINGET %d TUPLE2 ", BTH_FETCHED_BITS + index);
        assemble(&pickle, words);
        assemble(&pickle, END);
        cr_expect_eq(compare(&pickle, NO_RULES), index == 21 ? N_SPARED : 0, "%d", index);
        free(pickle.bytes);
    }
}

Test(pickle_usual, what_is_fetched_must_be_what_it_stands_for)
{
    /* The function: None, a class, text, nothing. */
    EXPECT_REFUSED(BERTH_E_FORBIDDEN,
                   BEGIN "BINGET 4 MARK MARK BINGET 3 BINGET 4 " KEY STORED SHAPE TAIL END);
    EXPECT_REFUSED(BERTH_E_PICKLE,
                   BEGIN "BINGET 10 MARK MARK BINGET 3 BINGET 4 " KEY STORED SHAPE TAIL END);
    EXPECT_REFUSED(BERTH_E_FORBIDDEN,
                   BEGIN "BINGET 3 MARK MARK BINGET 3 BINGET 4 " KEY STORED SHAPE TAIL END);
    EXPECT_REFUSED(BERTH_E_PICKLE,
                   BEGIN "BINGET 99 MARK MARK BINGET 3 BINGET 4 " KEY STORED SHAPE TAIL END);
    EXPECT_REFUSED(BERTH_E_PICKLE, BEGIN
                   "LONG_BINGET 100000 MARK MARK BINGET 3 BINGET 4 " KEY STORED SHAPE TAIL END);
    /* 'storage' */
    EXPECT_REFUSED(BERTH_E_PICKLE,
                   BEGIN "BINGET 2 MARK MARK BINGET 6 BINGET 4 " KEY STORED SHAPE TAIL END);
    EXPECT_REFUSED(BERTH_E_PICKLE,
                   BEGIN "BINGET 2 MARK MARK BINGET 4 BINGET 4 " KEY STORED SHAPE TAIL END);
    EXPECT_REFUSED(BERTH_E_PICKLE, BEGIN "'storagf' BINPUT 3 NONE " USUAL END);
    EXPECT_REFUSED(BERTH_E_PICKLE, BEGIN "'storages' BINPUT 3 NONE " USUAL END);
    EXPECT_REFUSED(BERTH_E_PICKLE,
                   BEGIN "BINGET 2 MARK MARK BINGET 4 BINGET 4 BINGET 5 " STORED SHAPE TAIL END);
    /* its class */
    EXPECT_REFUSED(BERTH_E_PICKLE,
                   BEGIN "BINGET 2 MARK MARK BINGET 3 BINGET 3 " KEY STORED SHAPE TAIL END);
    EXPECT_REFUSED(BERTH_E_PICKLE,
                   BEGIN "BINGET 2 MARK MARK BINGET 3 BINGET 99 " KEY STORED SHAPE TAIL END);
    EXPECT_REFUSED(BERTH_E_PICKLE,
                   BEGIN "BINGET 2 MARK MARK BINGET 3 BINGET 2 " KEY STORED SHAPE TAIL END);
    /* its key */
    EXPECT_REFUSED(BERTH_E_PICKLE, BEGIN HEAD "BINGET 4 " STORED SHAPE TAIL END);
    EXPECT_REFUSED(BERTH_E_UNSUPPORTED, BEGIN HEAD "'' BINPUT 15 " STORED SHAPE TAIL END);
    EXPECT_REFUSED(BERTH_E_PICKLE, BEGIN HEAD "BINUNICODE 0xff BINPUT 15 " STORED SHAPE TAIL END);
    EXPECT_SPARED(0, BEGIN HEAD "BINUNICODE 0xc3a9 BINPUT 15 " STORED SHAPE TAIL END);
    EXPECT_SPARED(0, BEGIN HEAD "'12345678901234567' BINPUT 15 " STORED SHAPE TAIL END);
    /* its location */
    EXPECT_REFUSED(BERTH_E_PICKLE,
                   BEGIN HEAD KEY "BINGET 4 12 TUPLE BINPUT 16 BINPERSID " SHAPE TAIL END);
    /* the hooks */
    EXPECT_REFUSED(BERTH_E_PICKLE, BEGIN HEAD KEY STORED SHAPE
                   "NEWFALSE BINGET 2 EMPTY_TUPLE REDUCE BINPUT 19 TUPLE BINPUT 20 REDUCE " END);
    EXPECT_REFUSED(BERTH_E_FORBIDDEN, BEGIN HEAD KEY STORED SHAPE
                   "NEWFALSE BINGET 3 EMPTY_TUPLE REDUCE BINPUT 19 TUPLE BINPUT 20 REDUCE " END);
}

/* A Parameter as before 0.4 is no node yet when it is put into the memo. */
Test(pickle_usual, what_is_pending_is_left_to_its_opcodes)
{
    cr_expect_eq(spared_by(BEGIN "GLOBAL torch.nn.parameter Parameter " USUAL
                                 "NEWTRUE TUPLE2 REDUCE BINPUT 2 'c' " USUAL END,
                           NO_RULES, BERTH_E_FORBIDDEN),
                 N_SPARED);
}

Test(pickle_usual, numbers_that_are_wrong_are_told_by_their_opcodes)
{
    /* T1, T2: negative, unlike each other, beyond the storage. */
    EXPECT_REFUSED(BERTH_E_TENSOR,
                   BEGIN HEAD KEY "BINGET 6 -1 TUPLE BINPUT 16 BINPERSID " SHAPE TAIL END);
    EXPECT_REFUSED(BERTH_E_TENSOR,
                   BEGIN HEAD KEY STORED "-1 3 4 TUPLE2 BINPUT 17 4 1 TUPLE2 BINPUT 18 " TAIL END);
    EXPECT_REFUSED(BERTH_E_TENSOR,
                   BEGIN HEAD KEY STORED "0 3 -4 TUPLE2 BINPUT 17 4 1 TUPLE2 BINPUT 18 " TAIL END);
    /* Also where what stands before it would do. */
    EXPECT_REFUSED(BERTH_E_TENSOR, BEGIN HEAD KEY STORED
                   "0 MARK 3 4 -1 TUPLE BINPUT 17 4 1 TUPLE2 BINPUT 18 " TAIL END);
    EXPECT_REFUSED(BERTH_E_TENSOR, BEGIN HEAD KEY STORED
                   "0 3 4 TUPLE2 BINPUT 17 MARK 4 1 -1 TUPLE BINPUT 18 " TAIL END);
    EXPECT_REFUSED(BERTH_E_PICKLE, BEGIN HEAD KEY STORED
                   "0 3 4 -1 TUPLE2 BINPUT 17 4 1 TUPLE2 BINPUT 18 " TAIL END);
    EXPECT_REFUSED(BERTH_E_PICKLE,
                   BEGIN HEAD KEY STORED "0 -1 EMPTY_TUPLE -1 EMPTY_TUPLE " TAIL END);
    EXPECT_REFUSED(BERTH_E_TENSOR,
                   BEGIN HEAD KEY STORED "0 3 4 TUPLE2 BINPUT 17 1 TUPLE1 BINPUT 18 " TAIL END);
    EXPECT_REFUSED(BERTH_E_TENSOR,
                   BEGIN HEAD KEY STORED "1 3 4 TUPLE2 BINPUT 17 4 1 TUPLE2 BINPUT 18 " TAIL END);
    EXPECT_REFUSED(
        BERTH_E_TENSOR, BEGIN HEAD KEY STORED
        "0 MARK 2147483647 2147483647 2147483647 TUPLE BINPUT 17 MARK 0 0 0 TUPLE BINPUT 18 " TAIL
            END);
    /* T3: the same key of another size. */
    EXPECT_REFUSED(BERTH_E_TENSOR,
                   BEGIN HEAD "BINGET 5 BINGET 6 13 TUPLE BINPUT 16 BINPERSID " SHAPE TAIL END);
    /* P3: a memo index that no pickler reaches. */
    EXPECT_REFUSED(BERTH_E_PICKLE, BEGIN HEAD "'1' LONG_BINPUT 100000 " STORED SHAPE TAIL END);
    /* No tuple. */
    EXPECT_REFUSED(BERTH_E_PICKLE, BEGIN HEAD KEY STORED "0 NONE EMPTY_TUPLE " TAIL END);
    EXPECT_REFUSED(BERTH_E_PICKLE, BEGIN HEAD KEY STORED "0 EMPTY_TUPLE EMPTY_LIST " TAIL END);
    EXPECT_REFUSED(BERTH_E_FORBIDDEN,
                   BEGIN HEAD KEY STORED "0 MARK EMPTY_TUPLE EMPTY_TUPLE " TAIL END);
    EXPECT_REFUSED(BERTH_E_PICKLE, BEGIN HEAD KEY STORED
                   "0 1 1 3 4 NEWTRUE BINPUT 17 1 1 4 1 NEWTRUE BINPUT 18 " TAIL END);
    EXPECT_REFUSED(BERTH_E_PICKLE, BEGIN HEAD KEY STORED
                   "0 3 4 TUPLE2 BINPUT 17 1 1 4 1 NEWTRUE BINPUT 18 " TAIL END);
    /* An item is left on the stack. */
    EXPECT_REFUSED(BERTH_E_PICKLE,
                   BEGIN HEAD KEY STORED "0 3 4 TUPLE1 BINPUT 17 4 1 TUPLE2 BINPUT 18 " TAIL END);
    EXPECT_REFUSED(BERTH_E_PICKLE, BEGIN HEAD KEY STORED
                   "0 1 1 3 4 TUPLE3 BINPUT 17 4 1 TUPLE2 BINPUT 18 " TAIL END);
}

Test(pickle_usual, none_is_looked_for_near_the_end_or_in_a_stream)
{
    EXPECT_SPARED(0, BEGIN USUAL "SETITEMS STOP");
    cr_expect_eq(spared_by(BEGIN USUAL END, STREAM, BERTH_E_PICKLE), 0);
    /* Inert objects keep their arguments, so tuples of them are made there, too. */
    cr_expect_eq(spared_by(BEGIN USUAL END, INERT, 0), N_SPARED + 2);
}

/* ---- whatever is there ---- */

static struct pickle two_tensors(void)
{
    struct pickle pickle = {0};
    assemble(
        &pickle, BEGIN USUAL
        "BINPUT 21 'c' BINGET 2 MARK MARK BINGET 3 BINGET 4 '2' BINPUT 22 BINGET 6 BININT2 12 "
        "TUPLE BINPUT 23 BINPERSID BININT1 0 BININT1 12 TUPLE1 BINPUT 24 BININT1 1 TUPLE1 BINPUT "
        "25 NEWTRUE BINGET 10 EMPTY_TUPLE REDUCE BINPUT 26 TUPLE BINPUT 27 REDUCE " END);
    return pickle;
}

Test(pickle_usual, any_byte_changed_is_the_same_as_opcode_by_opcode)
{
    struct pickle pickle = two_tensors();
    size_t most = 0, least = SIZE_MAX;
    for (size_t at = 0; at < pickle.nbytes - 4 * 53; at++)
        for (unsigned change = 1; change < 256; change++) {
            pickle.bytes[at] ^= (uint8_t)change;
            size_t spared = compare(&pickle, NO_RULES);
            most = spared > most ? spared : most;
            least = spared < least ? spared : least;
            pickle.bytes[at] ^= (uint8_t)change;
        }
    cr_expect_eq(most, 2 * N_SPARED);
    cr_expect_eq(least, 0);
    free(pickle.bytes);
}

/* So that nothing is passed over between two things that are looked for. */
Test(pickle_usual, any_opcode_put_in_is_the_same_as_opcode_by_opcode)
{
    static const char *const words[] = {
        "-1",          "1",      "BININT2 1", "MARK",     "TUPLE",    "TUPLE1",
        "TUPLE2",      "TUPLE3", "'1'",       "BINGET 5", "BINPUT 9", "LONG_BINPUT 9",
        "EMPTY_TUPLE", "NONE",   "NEWTRUE",   "REDUCE",   "POP",      "BINPERSID"};
    struct pickle pickle = two_tensors();
    for (size_t which = 0; which < sizeof words / sizeof *words; which++)
        for (size_t at = 0; at < pickle.nbytes - 4 * 53; at++) {
            struct pickle more = {0};
            put(&more, pickle.bytes, at);
            assemble(&more, words[which]);
            put(&more, pickle.bytes + at, pickle.nbytes - at);
            (void)compare(&more, NO_RULES);
            free(more.bytes);
        }
    free(pickle.bytes);
}

Test(pickle_usual, cut_anywhere_it_is_the_same_as_opcode_by_opcode)
{
    struct pickle pickle = two_tensors();
    for (; pickle.nbytes > 0; pickle.nbytes--)
        (void)compare(&pickle, NO_RULES);
    free(pickle.bytes);
}
