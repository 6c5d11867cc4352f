/* SPDX-License-Identifier: BSD-3-Clause */
/* The pickle machine: what each opcode makes, and a sentence for each thing that is wrong (P1, P2,
   P4, P5). */
#include "tests/support/format/pickle_assembler.h"

#include <sys/mman.h>
#include <unistd.h>

static int64_t int_of(const berth_value *value)
{
    int64_t integer = -1;
    cr_assert(berth_as_int(value, &integer));
    return integer;
}

#define LATIN1_READS_IT " (load.old_text=latin1 reads it, in Python encoding=\"latin1\")"

/* ---- what is read ---- */

Test(pickle_read, integers_of_every_opcode)
{
    ACCEPTS(read, "PROTO 2 EMPTY_LIST MARK BININT1 255 BININT2 65535 BININT -2147483648 "
                  "LONG1 0x LONG1 0xff LONG1 0x0000000000000080 LONG1 0x000000000000008000 "
                  "LONG1 0x010000000000000000000000 APPENDS STOP");
    const int64_t wanted[] = {255, 65535, INT32_MIN, 0, -1, INT64_MIN};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        cr_expect_eq(int_of(bth_value_item(read.root, i)), wanted[i], "item %zu", i);
    size_t nbytes;
    const uint8_t *big = berth_as_bytes(bth_value_item(read.root, 6), &nbytes);
    cr_assert(big && nbytes == 9 && big[7] == 0x80 && big[8] == 0);
    cr_expect_eq(int_of(bth_value_item(read.root, 7)), 1, "longer than it needs to be");
    free_reading(&read);
}

Test(pickle_read, floats_keep_their_bits)
{
    ACCEPTS(read, "PROTO 2 BINFLOAT -0.0 BINFLOAT 1.5 0x477ff8000000000123 TUPLE3 STOP");
    double zero = bth_value_real(bth_value_item(read.root, 0));
    double nan = bth_value_real(bth_value_item(read.root, 2));
    uint64_t zero_bits, nan_bits;
    memcpy(&zero_bits, &zero, sizeof zero);
    memcpy(&nan_bits, &nan, sizeof nan);
    cr_expect_eq(zero_bits, UINT64_C(1) << 63);
    cr_expect_eq(bth_value_real(bth_value_item(read.root, 1)), 1.5);
    cr_expect_eq(nan_bits, UINT64_C(0x7ff8000000000123), "a NaN's payload");
    free_reading(&read);
}

Test(pickle_read, text_may_hold_surrogates_and_the_text_of_python_2_may_not)
{
    size_t nbytes;
    ACCEPTS(read, "PROTO 2 BINUNICODE 0xeda080 SHORT_BINSTRING 'old' TUPLE2 STOP");
    cr_expect_str_eq(berth_as_text(bth_value_item(read.root, 0), &nbytes), "\xed\xa0\x80");
    cr_expect_str_eq(berth_as_text(bth_value_item(read.root, 1), &nbytes), "old");
    free_reading(&read);
    refuses("!SHORT_BINSTRING 0x41eda080 STOP", BERTH_E_PICKLE,
            "SHORT_BINSTRING: text that is not UTF-8 at its byte 1" LATIN1_READS_IT);
    refuses("!SHORT_BINSTRING 0x41e9 STOP", BERTH_E_PICKLE,
            "SHORT_BINSTRING: text that is not UTF-8 at its byte 1" LATIN1_READS_IT);
    ACCEPTS(below, "SHORT_BINSTRING 0xed9fbf STOP");
    cr_expect_str_eq(berth_as_text(below.root, &nbytes), "\xed\x9f\xbf", "U+D7FF is none");
    free_reading(&below);
}

Test(pickle_read, text_of_python_2_may_be_latin1)
{
    size_t nbytes;
    ACCEPTS_BY(read, ((bth_pickle_rules){.latin1 = true}),
               "MARK SHORT_BINSTRING 0x00417f80bfc0ff SHORT_BINSTRING 0x SHORT_BINSTRING 0xeda080 "
               "BINUNICODE 0xc3a9 TUPLE STOP");
    const char *text = berth_as_text(bth_value_item(read.root, 0), &nbytes);
    cr_expect_arr_eq(text, "\0A\x7f\xc2\x80\xc2\xbf\xc3\x80\xc3\xbf", 11);
    cr_expect_eq(nbytes, 11);
    cr_expect_str_eq(berth_as_text(bth_value_item(read.root, 1), &nbytes), "");
    cr_expect_str_eq(berth_as_text(bth_value_item(read.root, 2), &nbytes),
                     "\xc3\xad\xc2\xa0\xc2\x80");
    cr_expect_str_eq(berth_as_text(bth_value_item(read.root, 3), &nbytes), "\xc3\xa9",
                     "texts of Python 3 are UTF-8");
    free_reading(&read);
}

Test(pickle_read, singletons_and_empty_containers)
{
    ACCEPTS(read,
            "MARK NONE NEWTRUE NEWFALSE EMPTY_TUPLE EMPTY_LIST EMPTY_DICT EMPTY_SET TUPLE STOP");
    static const berth_kind kinds[] = {BERTH_KIND_NONE,  BERTH_KIND_BOOL, BERTH_KIND_BOOL,
                                       BERTH_KIND_TUPLE, BERTH_KIND_LIST, BERTH_KIND_DICT,
                                       BERTH_KIND_SET};
    for (size_t i = 0; i < 7; i++)
        cr_expect_eq(berth_value_kind(bth_value_item(read.root, i)), kinds[i], "item %zu", i);
    cr_expect(bth_value_bool(bth_value_item(read.root, 1)));
    cr_expect_not(bth_value_bool(bth_value_item(read.root, 2)));
    free_reading(&read);
}

Test(pickle_read, tuples_and_nested_marks_keep_their_order)
{
    ACCEPTS(read, "MARK 1 MARK 2 3 TUPLE MARK TUPLE 4 TUPLE1 5 6 TUPLE2 7 8 9 TUPLE3 TUPLE STOP");
    cr_assert_eq(berth_value_count(read.root), 6);
    cr_expect_eq(int_of(bth_value_item(bth_value_item(read.root, 1), 1)), 3);
    cr_expect_eq(berth_value_count(bth_value_item(read.root, 2)), 0);
    cr_expect_eq(int_of(bth_value_item(bth_value_item(read.root, 3), 0)), 4);
    cr_expect_eq(int_of(bth_value_item(bth_value_item(read.root, 5), 0)), 7);
    cr_expect_eq(int_of(bth_value_item(bth_value_item(read.root, 5), 2)), 9);
    free_reading(&read);
}

Test(pickle_read, the_memo_keeps_identity)
{
    ACCEPTS(read, "EMPTY_LIST BINPUT 0 MARK EMPTY_DICT LONG_BINPUT 1 BINGET 1 'x' BINPUT 2 "
                  "LONG_BINGET 2 APPENDS STOP");
    cr_expect_eq(bth_value_item(read.root, 0), bth_value_item(read.root, 1));
    cr_expect_eq(bth_value_item(read.root, 2), bth_value_item(read.root, 3));
    free_reading(&read);
}

Test(pickle_read, a_list_may_hold_itself)
{
    ACCEPTS(read, "EMPTY_LIST BINPUT 0 BINGET 0 APPEND STOP");
    cr_expect_eq(bth_value_item(read.root, 0), read.root);
    free_reading(&read);
}

Test(pickle_read, a_repeated_key_keeps_its_place_as_in_python)
{
    ACCEPTS(read, "EMPTY_DICT MARK 'a' 1 'b' 2 'a' 3 SETITEMS 'b' 4 SETITEM STOP");
    cr_assert_eq(berth_value_count(read.root), 2);
    cr_expect_str_eq(berth_as_text(bth_value_key(read.root, 0), NULL), "a");
    cr_expect_eq(int_of(bth_value_item(read.root, 0)), 3);
    cr_expect_eq(int_of(bth_value_item(read.root, 1)), 4);
    free_reading(&read);
}

Test(pickle_read, keys_of_every_hashable_kind)
{
    ACCEPTS(read, "EMPTY_DICT MARK 'a' 0 7 0 NEWTRUE 0 NONE 0 BINFLOAT 2.5 0 'a' 1 TUPLE2 0 "
                  "GLOBAL torch float16 0 GLOBAL torch device 'cuda' 1 TUPLE2 REDUCE 0 "
                  "GLOBAL torch Size 3 TUPLE1 TUPLE1 REDUCE 0 "
                  "GLOBAL _codecs encode 'b' 'latin1' TUPLE2 REDUCE 0 SETITEMS STOP");
    cr_expect_eq(berth_value_count(read.root), 10, "P4");
    free_reading(&read);
}

Test(pickle_read, keys_that_cannot_be_hashed_are_refused_by_name)
{
    refuses("EMPTY_DICT EMPTY_LIST 1 !SETITEM STOP", BERTH_E_UNSUPPORTED,
            "SETITEM: a list cannot be a dict key");
    refuses(
        "EMPTY_DICT GLOBAL torch._utils _rebuild_meta_tensor_no_storage "
        "MARK GLOBAL torch float32 EMPTY_TUPLE EMPTY_TUPLE NEWFALSE TUPLE REDUCE 1 !SETITEM STOP",
        BERTH_E_UNSUPPORTED, "SETITEM: a tensor cannot be a dict key");
}

/* ---- P1 ---- */

Test(pickle_read, every_other_opcode_is_refused_by_name)
{
    static const struct {
        int byte;
        const char *name;
    } others[] = {
#define BTH_OPCODE_REFUSED(name, byte, form, takes, gives) {byte, #name},
#include "format/pickle/pickle_opcodes.def"
    };
    size_t n = sizeof others / sizeof *others;
    cr_assert_eq(n, 32);
    for (size_t i = 0; i < n; i++) {
        char source[32], sentence[100];
        snprintf(source, sizeof source, "PROTO 2 !0x%02x STOP", (unsigned)others[i].byte);
        snprintf(sentence, sizeof sentence, "opcode %s (0x%02x) is not allowed in a checkpoint",
                 others[i].name, (unsigned)others[i].byte);
        refuses(source, BERTH_E_FORBIDDEN, sentence);
    }
}

/* PyTorch writes pickles of every protocol from 0 to 5 if it is asked to. */
Test(pickle_read, other_protocols_are_named)
{
    static const struct {
        const char *source, *protocol;
    } cases[] = {{"NONE !0x64 STOP", "0 (whose tensors nobody can read) or 1"},
                 {"!0x64 STOP", "0 (whose tensors nobody can read) or 1"},
                 {"PROTO 4 !0x95 STOP", "4"},
                 {"PROTO 5 !0x95 STOP", "5"},
                 {"PROTO 2 !0x95 STOP", ""}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char said[80];
        struct reading read = read_words_by(cases[i].source, NO_RULES);
        cr_expect_eq(read.error.code, BERTH_E_FORBIDDEN);
        const char *found = strstr(read.error.message, "pickle_protocol=");
        cr_expect_eq(found != NULL, *cases[i].protocol != '\0', "%s", read.error.message);
        snprintf(said, sizeof said, "pickle_protocol=%s, which", cases[i].protocol);
        cr_expect(!found || strncmp(found, said, strlen(said)) == 0, "%s", read.error.message);
        free_reading(&read);
    }
}

/* And two more: the bytes of protocol 3. */
Test(pickle_read, exactly_the_opcodes_of_weights_only_are_read)
{
    size_t n = 0;
    for (int byte = 0; byte < 256; byte++)
        n += bth_opcodes[byte].allowed;
    cr_expect_eq(n, 36, "P1 lists 36 opcodes");
    refuses("!0xff STOP", BERTH_E_FORBIDDEN, "0xff is not a pickle opcode");
    refuses("0x00", BERTH_E_FORBIDDEN, "0x00 is not a pickle opcode");
}

/* ---- P2: each its own sentence ---- */

Test(pickle_read, underflow_of_the_stack)
{
    refuses("PROTO 2 !STOP", BERTH_E_PICKLE, "STOP with 0 items on the stack");
    refuses("NONE !TUPLE2 STOP", BERTH_E_PICKLE,
            "stack underflow: TUPLE2 needs 2 items, 1 are there");
    refuses("EMPTY_LIST MARK !APPEND", BERTH_E_PICKLE,
            "stack underflow: APPEND needs 2 items, 0 are there");
    refuses("EMPTY_LIST MARK NONE !APPEND", BERTH_E_PICKLE,
            "stack underflow: APPEND needs 2 items, 1 are there");
    refuses("MARK 1 !APPENDS", BERTH_E_PICKLE,
            "stack underflow: APPENDS needs 1 items, 0 are there");
    static const char *const takers[] = {"SETITEM", "REDUCE", "NEWOBJ", "BUILD"};
    for (size_t i = 0; i < sizeof takers / sizeof *takers; i++) {
        char source[32], sentence[100];
        snprintf(source, sizeof source, "NONE !%s STOP", takers[i]);
        snprintf(sentence, sizeof sentence, "stack underflow: %s needs %d items, 1 are there",
                 takers[i], i ? 2 : 3);
        refuses(source, BERTH_E_PICKLE, sentence);
    }
    refuses("!BINPERSID STOP", BERTH_E_PICKLE,
            "stack underflow: BINPERSID needs 1 items, 0 are there");
    refuses("!BINPUT 0", BERTH_E_PICKLE, "stack underflow: BINPUT needs 1 items, 0 are there");
}

Test(pickle_read, underflow_of_marks)
{
    refuses("NONE !TUPLE STOP", BERTH_E_PICKLE, "TUPLE without a MARK");
    refuses("EMPTY_LIST !APPENDS STOP", BERTH_E_PICKLE, "APPENDS without a MARK");
    refuses("EMPTY_DICT !SETITEMS STOP", BERTH_E_PICKLE, "SETITEMS without a MARK");
    refuses("MARK NONE !STOP", BERTH_E_PICKLE, "STOP within a MARK");
}

Test(pickle_read, a_pickle_ends_at_its_stop_with_one_value)
{
    REFUSES_EACH(BERTH_E_PICKLE, "the pickle ends without STOP", "PROTO 2 NONE !", "NONE TUPLE1 !",
                 "");
    refuses("NONE NONE !STOP", BERTH_E_PICKLE, "STOP with 2 items on the stack");
    refuses("NONE !STOP NONE STOP", BERTH_E_PICKLE, "2 bytes after STOP");
}

Test(pickle_read, protocols)
{
    ACCEPTS(read, "PROTO 0 NONE STOP");
    free_reading(&read);
    refuses("!PROTO 6 NONE STOP", BERTH_E_PICKLE, "pickle protocol 6");
    refuses("NONE !PROTO 2 STOP", BERTH_E_PICKLE, "PROTO after the start");
}

Test(pickle_read, pairs_that_are_odd)
{
    refuses("EMPTY_DICT MARK 1 2 3 !SETITEMS STOP", BERTH_E_PICKLE,
            "SETITEMS of 3 items, which are not pairs");
}

Test(pickle_read, memo_indices_that_were_never_put)
{
    refuses("!BINGET 3 STOP", BERTH_E_PICKLE, "BINGET of memo index 3, where nothing was put");
    refuses("NONE BINPUT 0 !LONG_BINGET 1 STOP", BERTH_E_PICKLE,
            "LONG_BINGET of memo index 1, where nothing was put");
    refuses("NONE BINPUT 0 BINGET 0 !LONG_BINGET 4294967295 STOP", BERTH_E_PICKLE,
            "LONG_BINGET of memo index 4294967295, where nothing was put");
}

Test(pickle_read, memo_indices_beyond_the_pickle)
{
    /* Also where an index of the same remainder is fetched. */
    refuses("1 BINPUT 0 !LONG_BINPUT 1073741824 BINGET 0 TUPLE2 STOP", BERTH_E_PICKLE,
            "memo index 1073741824 in a pickle of 16 bytes");
    refuses("NONE !LONG_BINPUT 7 STOP", BERTH_E_PICKLE, "memo index 7 in a pickle of 7 bytes");
    refuses("NONE !LONG_BINPUT 4294967295 STOP", BERTH_E_PICKLE,
            "memo index 4294967295 in a pickle of 7 bytes");
    ACCEPTS(read, "NONE LONG_BINPUT 6 STOP");
    free_reading(&read);
}

/* Read where the next byte cannot be. */
static int read_before_a_wall(const char *words)
{
    struct pickle pickle = {0};
    bth_pickle_rules rules = {.record = "data.pkl"};
    berth_value *root;
    berth_error error;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    assemble(&pickle, words);
    uint8_t *pages =
        mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(pages, MAP_FAILED);
    cr_assert_eq(mprotect(pages + page, page, PROT_NONE), 0);
    uint8_t *bytes = memcpy(pages + page - pickle.nbytes, pickle.bytes, pickle.nbytes);
    berth_tree *tree = berth_tree_new(NULL);
    bth_error_clear(&error);
    int code = bth_pickle_read(bytes, pickle.nbytes, &rules, tree, &root, &error);
    cr_expect(strstr(error.message, "the pickle ends without STOP"), "%s", error.message);
    berth_tree_free(tree);
    (void)munmap(pages, 2 * page);
    free(pickle.bytes);
    return code;
}

/* What makes a tuple looks at the opcodes that follow. */
Test(pickle_read, nothing_is_read_behind_the_end)
{
    cr_expect_eq(read_before_a_wall("1 TUPLE1"), BERTH_E_PICKLE);
    cr_expect_eq(read_before_a_wall("1 TUPLE1 BINPUT 0"), BERTH_E_PICKLE);
    cr_expect_eq(read_before_a_wall("1 TUPLE1 LONG_BINPUT 0"), BERTH_E_PICKLE);
    cr_expect_eq(read_before_a_wall("1 BINPUT 0 BINGET 0 MARK MARK"), BERTH_E_PICKLE);
}

Test(pickle_read, arguments_that_are_cut)
{
    refuses("BINUNICODE 'abc' BININT1 1 !0x4a0000", BERTH_E_PICKLE,
            "the argument of BININT is cut: 2 bytes are left");
    refuses("0x4d01", BERTH_E_PICKLE, "the argument of BININT2 is cut: 1 bytes are left");
    refuses("NONE !0x72000000", BERTH_E_PICKLE,
            "the argument of LONG_BINPUT is cut: 3 bytes are left");
    refuses("NONE BINPUT 0 !0x6a000000", BERTH_E_PICKLE,
            "the argument of LONG_BINGET is cut: 3 bytes are left");
    refuses("0x58ffffffff6162", BERTH_E_PICKLE,
            "the argument of BINUNICODE is cut: 6 bytes are left");
    refuses("0x8a05aabb", BERTH_E_PICKLE, "the argument of LONG1 is cut: 3 bytes are left");
    refuses("0x5509", BERTH_E_PICKLE, "the argument of SHORT_BINSTRING is cut: 1 bytes are left");
    refuses("0x4740", BERTH_E_PICKLE, "the argument of BINFLOAT is cut: 1 bytes are left");
    refuses("0x80", BERTH_E_PICKLE, "the argument of PROTO is cut: 0 bytes are left");
}

Test(pickle_read, globals_without_newlines)
{
    refuses("0x63746f7263682e", BERTH_E_PICKLE, /* ctorch. */
            "GLOBAL without its two newlines");
    refuses("0x63746f7263680a53697a652e", BERTH_E_PICKLE, /* ctorch, newline, Size. */
            "GLOBAL without its two newlines");
}

Test(pickle_read, text_that_is_no_utf8)
{
    refuses("!BINUNICODE 0x61ff STOP", BERTH_E_PICKLE,
            "BINUNICODE: text that is not UTF-8 at its byte 1");
    refuses("!BINUNICODE 0xc080 STOP", BERTH_E_PICKLE,
            "BINUNICODE: text that is not UTF-8 at its byte 0");
}

/* ---- P5 ---- */

Test(pickle_read, items_go_only_into_their_containers)
{
    refuses("EMPTY_SET 1 !APPEND STOP", BERTH_E_PICKLE, "APPEND to a set: only to lists");
    refuses("EMPTY_TUPLE MARK 1 !APPENDS STOP", BERTH_E_PICKLE,
            "APPENDS to a tuple: only to lists");
    refuses("EMPTY_LIST 1 2 !SETITEM STOP", BERTH_E_PICKLE, "SETITEM on a list: only on dicts");
    refuses("NONE MARK 1 2 !SETITEMS STOP", BERTH_E_PICKLE, "SETITEMS on None: only on dicts");
    ACCEPTS(counter, "GLOBAL collections Counter EMPTY_TUPLE REDUCE 'a' 1 SETITEM STOP");
    cr_expect_eq(berth_value_kind(counter.root), BERTH_KIND_COUNTER);
    cr_expect_eq(berth_value_count(counter.root), 1);
    free_reading(&counter);
}

/* ---- where it is told ---- */

Test(pickle_read, errors_name_record_and_byte_of_the_file)
{
    bth_pickle_rules rules = {.record = "code.pkl", .base_offset = 1000};
    struct reading read = read_words_by("PROTO 2 POP STOP", rules);
    cr_expect_str_eq(read.error.message,
                     "code.pkl at byte 1002: opcode POP (0x30) is not allowed in a checkpoint");
    cr_expect_str_eq(read.error.record, "code.pkl");
    cr_expect_eq(read.error.offset, 1002);
    free_reading(&read);
}

/* ---- the extent ---- */

static const char sample[] =
    "PROTO 2 GLOBAL collections OrderedDict EMPTY_TUPLE REDUCE BINPUT 46 MARK 'a.b' LONG_BINPUT 46 "
    "GLOBAL torch._utils _rebuild_tensor_v2 MARK MARK 'storage' GLOBAL torch FloatStorage '0' "
    "'cpu' BININT 46 TUPLE BINPERSID 0 BININT1 46 TUPLE1 1 TUPLE1 NEWFALSE GLOBAL collections "
    "OrderedDict EMPTY_TUPLE REDUCE TUPLE REDUCE 'f' BINFLOAT 1.5 'l' LONG1 0x2e2e SETITEMS STOP";

Test(pickle_read, the_extent_ends_behind_stop_and_not_at_a_dot_elsewhere)
{
    struct pickle pickle = {0};
    bth_pickle_rules rules = {.record = "data.pkl", .base_offset = 64};
    berth_error error;
    bth_pickle_survey survey = {0}, resumed = {0};
    assemble(&pickle, sample);
    size_t nbytes = pickle.nbytes;
    assemble(&pickle, "POP POP");
    bth_error_clear(&error);
    cr_assert_eq(
        bth_pickle_find_end_and_fetches(pickle.bytes, pickle.nbytes, &rules, &survey, &error), 0);
    cr_expect_eq(survey.extent, nbytes);
    for (size_t cut = 0; cut < nbytes; cut++) {
        bth_error_clear(&error);
        survey = (bth_pickle_survey){0};
        cr_expect_eq(bth_pickle_find_end_and_fetches(pickle.bytes, cut, &rules, &survey, &error),
                     BERTH_E_TRUNCATED, "cut at %zu", cut);
        bth_error_clear(&error);
        (void)bth_pickle_find_end_and_fetches(pickle.bytes, cut, &rules, &resumed, &error);
        cr_expect_eq(resumed.extent, survey.extent, "it goes on where it was, cut at %zu", cut);
    }
    cr_expect_geq(resumed.extent, nbytes - 2);
    pickle.bytes[2] = '0';
    survey = (bth_pickle_survey){0};
    bth_error_clear(&error);
    cr_expect_eq(bth_pickle_find_end_and_fetches(pickle.bytes, nbytes, &rules, &survey, &error),
                 BERTH_E_FORBIDDEN);
    cr_expect_str_eq(error.message,
                     "data.pkl at byte 66: opcode POP (0x30) is not allowed in a checkpoint");
    free(pickle.bytes);
}

/* ---- anything at all ---- */

Test(pickle_read, a_cut_pickle_is_refused_wherever_it_is_cut)
{
    struct pickle pickle = {0};
    assemble(&pickle, sample);
    struct reading whole = read_by(&pickle, NO_RULES);
    cr_assert_eq(whole.code, 0, "%s", whole.error.message);
    free_reading(&whole);
    while (pickle.nbytes-- > 0) {
        struct reading read = read_by(&pickle, NO_RULES);
        cr_expect_lt(read.code, 0, "cut at %zu", pickle.nbytes);
        free_reading(&read);
    }
    free(pickle.bytes);
}

Test(pickle_read, a_flipped_bit_is_refused_or_read_and_nothing_else)
{
    struct pickle pickle = {0};
    size_t n_refused = 0;
    assemble(&pickle, sample);
    for (size_t bit = 0; bit < pickle.nbytes * 8; bit++) {
        pickle.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        for (int inert = 0; inert < 2; inert++) {
            struct reading read = read_by(&pickle, (bth_pickle_rules){.inert = inert});
            cr_expect((read.code == 0) == (read.root != NULL));
            cr_expect_eq(read.code, read.error.code);
            n_refused += read.code < 0;
            free_reading(&read);
        }
        pickle.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    cr_expect_gt(n_refused, pickle.nbytes * 8, "most flips are noticed");
    free(pickle.bytes);
}

Test(pickle_read, memory_that_runs_out_is_an_error_and_nothing_leaks)
{
    struct pickle pickle = {0};
    uint64_t n_points = 0;
    /* Stack, memo, values, a table of keys of storages, a dict and its slots. */
    assemble(&pickle, "'x' BINPUT 0 MARK");
    assemble_times(&pickle, "BINGET 0", 300);
    assemble(&pickle, STORAGE("torch FloatStorage", "k", "46") "EMPTY_DICT MARK");
    for (int i = 0; i < 100; i++) {
        put(&pickle, "K", 1);
        put_little(&pickle, (uint64_t)i, 1);
        assemble(&pickle, "NONE");
    }
    assemble(&pickle, "SETITEMS TUPLE TUPLE2 STOP");
    for (bool refused = true; refused; n_points++) {
        test_memory_watch();
        berth_tree *tree = berth_tree_new(NULL);
        berth_value *root = NULL;
        bth_pickle_rules rules = {.record = "data.pkl"};
        berth_error error;
        bth_error_clear(&error);
        test_memory_refuse(n_points + 1, n_points % 2 == 0);
        int code = bth_pickle_read(pickle.bytes, pickle.nbytes, &rules, tree, &root, &error);
        refused = code < 0;
        cr_expect(code == 0 || code == BERTH_E_MEMORY, "%s", error.message);
        berth_tree_free(tree);
        cr_expect_eq(test_memory_seen().live_nbytes, 0, "W6: point %lu", (unsigned long)n_points);
        test_memory_unwatch();
    }
    cr_expect_geq(n_points, 10, "fault points tried: %lu", (unsigned long)n_points);
    free(pickle.bytes);
}
