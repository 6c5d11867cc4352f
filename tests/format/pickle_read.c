/* SPDX-License-Identifier: BSD-3-Clause */
/* The pickle machine: what each opcode makes, and a sentence for each thing that is wrong (P1, P2,
   P4, P5). */
#include "tests/support/format/pickle_assembler.h"

#include <sys/mman.h>
#include <unistd.h>

/* ---- what is read ---- */

Test(pickle_read, values)
{
    gives("PROTO 2 EMPTY_LIST MARK BININT1 255 BININT2 65535 BININT -2147483648 LONG1 0x LONG1 "
          "0xff LONG1 0x0000000000000080 LONG1 0x000000000000008000 LONG1 "
          "0x010000000000000000000000 APPENDS STOP",
          "[255, 65535, -2147483648, 0, -1, -9223372036854775808, 0x008000000000000000, 1]");
    gives("PROTO 2 BINFLOAT -0.0 BINFLOAT 1.5 0x477ff8000000000123 TUPLE3 STOP",
          "(-0f, 1.5f, nan:7ff8000000000123f)");
    gives("MARK NONE NEWTRUE NEWFALSE EMPTY_TUPLE EMPTY_LIST EMPTY_DICT EMPTY_SET TUPLE STOP",
          "(None, True, False, (), [], {}, set{})");
    gives("MARK 1 MARK 2 3 TUPLE MARK TUPLE 4 TUPLE1 5 6 TUPLE2 7 8 9 TUPLE3 TUPLE STOP",
          "(1, (2, 3), (), (4), (5, 6), (7, 8, 9))");
    gives("EMPTY_LIST BINPUT 0 MARK EMPTY_DICT LONG_BINPUT 1 BINGET 1 'x' BINPUT 2 LONG_BINGET 2 "
          "APPENDS STOP",
          "[&1 {}, *1, &2 'x', *2]");
    gives("EMPTY_LIST BINPUT 0 BINGET 0 APPEND STOP", "&1 [*1]");
    /* A repeated key keeps its place, as in Python. */
    gives("EMPTY_DICT MARK 'a' 1 'b' 2 'a' 3 SETITEMS 'b' 4 SETITEM STOP", "{'a': 3, 'b': 4}");
    /* P4 */
    gives("EMPTY_DICT MARK 'a' 0 7 0 NEWTRUE 0 NONE 0 BINFLOAT 2.5 0 'a' 1 TUPLE2 0 GLOBAL torch "
          "float16 0 GLOBAL torch device 'cuda' 1 TUPLE2 REDUCE 0 GLOBAL torch Size 3 TUPLE1 "
          "TUPLE1 REDUCE 0 GLOBAL _codecs encode 'b' 'latin1' TUPLE2 REDUCE 0 SETITEMS STOP",
          "{'a': 0, 7: 0, True: 0, None: 0, 2.5f: 0, ('a', 1): 0, float16: 0, device cuda:1: 0, "
          "Size[3]: 0, b'b': 0}");
    gives("GLOBAL collections Counter EMPTY_TUPLE REDUCE 'a' 1 SETITEM STOP", "Counter{'a': 1}");
    gives("PROTO 0 NONE STOP", "None");
}

Test(pickle_read, text_may_hold_surrogates_and_the_text_of_python_2_may_not)
{
    gives("PROTO 2 BINUNICODE 0xeda080 SHORT_BINSTRING 'old' TUPLE2 STOP",
          "('\\xed\\xa0\\x80', 'old')");
    gives("SHORT_BINSTRING 0xed9fbf STOP", "'\\xed\\x9f\\xbf'"); /* U+D7FF is none */
    REFUSES_EACH("SHORT_BINSTRING: text that is not UTF-8 at its byte 1 (load.old_text=latin1 "
                 "reads it, in Python encoding=\"latin1\")",
                 "!SHORT_BINSTRING 0x41eda080 STOP", "!SHORT_BINSTRING 0x41e9 STOP");
}

/* Texts of Python 3 are UTF-8 all the same. */
Test(pickle_read, text_of_python_2_may_be_latin1)
{
    gives_by((bth_pickle_rules){.latin1 = true},
             "MARK SHORT_BINSTRING 0x00417f80bfc0ff SHORT_BINSTRING 0x SHORT_BINSTRING 0xeda080 "
             "BINUNICODE 0xc3a9 TUPLE STOP",
             "('\\x00A\\x7f\\xc2\\x80\\xc2\\xbf\\xc3\\x80\\xc3\\xbf', '', "
             "'\\xc3\\xad\\xc2\\xa0\\xc2\\x80', '\\xc3\\xa9')");
}

Test(pickle_read, keys_that_cannot_be_hashed_are_refused_by_name)
{
    refuses_as(BERTH_E_UNSUPPORTED, "EMPTY_DICT EMPTY_LIST 1 !SETITEM STOP",
               "SETITEM: a list cannot be a dict key");
    refuses_as(BERTH_E_UNSUPPORTED,
               "EMPTY_DICT GLOBAL torch._utils _rebuild_meta_tensor_no_storage MARK GLOBAL torch "
               "float32 EMPTY_TUPLE EMPTY_TUPLE NEWFALSE TUPLE REDUCE 1 !SETITEM STOP",
               "SETITEM: a tensor cannot be a dict key");
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
        refuses_as(BERTH_E_FORBIDDEN, source, sentence);
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
    refuses_as(BERTH_E_FORBIDDEN, "!0xff STOP", "0xff is not a pickle opcode");
    refuses_as(BERTH_E_FORBIDDEN, "0x00", "0x00 is not a pickle opcode");
}

/* ---- P2: each its own sentence ---- */

Test(pickle_read, stack_marks_memo_and_ends)
{
    refuses("PROTO 2 !STOP", "STOP with 0 items on the stack");
    refuses("NONE !TUPLE2 STOP", "stack underflow: TUPLE2 needs 2 items, 1 are there");
    refuses("EMPTY_LIST MARK !APPEND", "stack underflow: APPEND needs 2 items, 0 are there");
    refuses("EMPTY_LIST MARK NONE !APPEND", "stack underflow: APPEND needs 2 items, 1 are there");
    refuses("MARK 1 !APPENDS", "stack underflow: APPENDS needs 1 items, 0 are there");
    refuses("NONE !SETITEM STOP", "stack underflow: SETITEM needs 3 items, 1 are there");
    refuses("NONE !REDUCE STOP", "stack underflow: REDUCE needs 2 items, 1 are there");
    refuses("NONE !NEWOBJ STOP", "stack underflow: NEWOBJ needs 2 items, 1 are there");
    refuses("NONE !BUILD STOP", "stack underflow: BUILD needs 2 items, 1 are there");
    refuses("!BINPERSID STOP", "stack underflow: BINPERSID needs 1 items, 0 are there");
    refuses("!BINPUT 0", "stack underflow: BINPUT needs 1 items, 0 are there");
    refuses("NONE !TUPLE STOP", "TUPLE without a MARK");
    refuses("EMPTY_LIST !APPENDS STOP", "APPENDS without a MARK");
    refuses("EMPTY_DICT !SETITEMS STOP", "SETITEMS without a MARK");
    refuses("MARK NONE !STOP", "STOP within a MARK");
    REFUSES_EACH("the pickle ends without STOP", "PROTO 2 NONE !", "NONE TUPLE1 !", "");
    refuses("NONE NONE !STOP", "STOP with 2 items on the stack");
    refuses("NONE !STOP NONE STOP", "2 bytes after STOP");
    refuses("!PROTO 6 NONE STOP", "pickle protocol 6");
    refuses("NONE !PROTO 2 STOP", "PROTO after the start");
    refuses("EMPTY_DICT MARK 1 2 3 !SETITEMS STOP", "SETITEMS of 3 items, which are not pairs");
    refuses("!BINGET 3 STOP", "BINGET of memo index 3, where nothing was put");
    refuses("NONE BINPUT 0 !LONG_BINGET 1 STOP",
            "LONG_BINGET of memo index 1, where nothing was put");
    refuses("NONE BINPUT 0 BINGET 0 !LONG_BINGET 4294967295 STOP",
            "LONG_BINGET of memo index 4294967295, where nothing was put");
    /* Also where an index of the same remainder is fetched. */
    refuses("1 BINPUT 0 !LONG_BINPUT 1073741824 BINGET 0 TUPLE2 STOP",
            "memo index 1073741824 in a pickle of 16 bytes");
    refuses("NONE !LONG_BINPUT 7 STOP", "memo index 7 in a pickle of 7 bytes");
    refuses("NONE !LONG_BINPUT 4294967295 STOP", "memo index 4294967295 in a pickle of 7 bytes");
    gives("NONE LONG_BINPUT 6 STOP", "None");
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
    refuses("BINUNICODE 'abc' BININT1 1 !0x4a0000",
            "the argument of BININT is cut: 2 bytes are left");
    refuses("0x4d01", "the argument of BININT2 is cut: 1 bytes are left");
    refuses("NONE !0x72000000", "the argument of LONG_BINPUT is cut: 3 bytes are left");
    refuses("NONE BINPUT 0 !0x6a000000", "the argument of LONG_BINGET is cut: 3 bytes are left");
    refuses("0x58ffffffff6162", "the argument of BINUNICODE is cut: 6 bytes are left");
    refuses("0x8a05aabb", "the argument of LONG1 is cut: 3 bytes are left");
    refuses("0x5509", "the argument of SHORT_BINSTRING is cut: 1 bytes are left");
    refuses("0x4740", "the argument of BINFLOAT is cut: 1 bytes are left");
    refuses("0x80", "the argument of PROTO is cut: 0 bytes are left");
    refuses("0x63746f7263682e", /* ctorch. */
            "GLOBAL without its two newlines");
    refuses("0x63746f7263680a53697a652e", /* ctorch, newline, Size. */
            "GLOBAL without its two newlines");
    refuses("!BINUNICODE 0x61ff STOP", "BINUNICODE: text that is not UTF-8 at its byte 1");
    refuses("!BINUNICODE 0xc080 STOP", "BINUNICODE: text that is not UTF-8 at its byte 0");
}

/* ---- P5 ---- */

Test(pickle_read, items_go_only_into_their_containers)
{
    refuses("EMPTY_SET 1 !APPEND STOP", "APPEND to a set: only to lists");
    refuses("EMPTY_TUPLE MARK 1 !APPENDS STOP", "APPENDS to a tuple: only to lists");
    refuses("EMPTY_LIST 1 2 !SETITEM STOP", "SETITEM on a list: only on dicts");
    refuses("NONE MARK 1 2 !SETITEMS STOP", "SETITEMS on None: only on dicts");
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
    FAILS(bth_pickle_find_end_and_fetches(pickle.bytes, nbytes, &rules, &survey, &error),
          BERTH_E_FORBIDDEN,
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
    struct test_refusals each = {0};
    for (; test_refuse_next(&each); each.for_ever = !each.for_ever) {
        berth_tree *tree = berth_tree_new(NULL);
        berth_value *root = NULL;
        bth_pickle_rules rules = {.record = "data.pkl"};
        berth_error error;
        bth_error_clear(&error);
        int code = tree ? bth_pickle_read(pickle.bytes, pickle.nbytes, &rules, tree, &root, &error)
                        : BERTH_E_MEMORY;
        cr_expect_eq(code, test_memory_refused() ? BERTH_E_MEMORY : 0, "%s", error.message);
        berth_tree_free(tree);
    }
    cr_expect_geq(each.nth, 10, "fault points tried: %lu", (unsigned long)each.nth);
    free(pickle.bytes);
}
