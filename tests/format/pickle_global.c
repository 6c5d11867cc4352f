/* SPDX-License-Identifier: BSD-3-Clause */
/* What a refused pickle names (P1). tests/hostile/named.py asks the command about whole files. */
#include "tests/support/format/pickle_assembler.h"

typedef struct found_case {
    const char *source, *words;
} found_case;

static bth_found_global find(const char *source, bool ignores_distributed)
{
    struct pickle pickle = {0};
    bth_found_global found;

    assemble(&pickle, source);
    uint8_t *exact = realloc(pickle.bytes, pickle.nbytes + !pickle.nbytes); /* no byte to spare */
    cr_assert_not_null(exact);
    pickle.bytes = exact;
    bth_pickle_find_global(pickle.bytes, pickle.nbytes, ignores_distributed, &found);
    free(pickle.bytes);
    return found;
}

static void expect_words(const found_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bth_found_global found = find(cases[i].source, false);
        cr_expect_str_eq(found.words, cases[i].words, "%s: %s", cases[i].source, found.words);
    }
}

#define EXPECT_WORDS(cases) expect_words(cases, sizeof cases / sizeof *cases)

#define OS_SYSTEM "the global os system"

Test(pickle_global, opcodes_that_name)
{
    static const found_case cases[] = {
        {"", ""},
        {"GLOBAL os system", OS_SYSTEM},
        {"GLOBAL torch Size GLOBAL os system GLOBAL nt system", OS_SYSTEM},
        {"MARK INST os system", OS_SYSTEM},
        {"'os' 'system' STACK_GLOBAL", OS_SYSTEM},
        {"'torch' 'Size' STACK_GLOBAL", ""},
        {"'os' NONE STACK_GLOBAL", ""},
        {"NONE 'os' STACK_GLOBAL", ""},
        {"STACK_GLOBAL", ""},
        {"EXT1 7", "the global of extension code 7"},
        {"EXT2 4660 GLOBAL os system", "the global of extension code 4660"},
        {"EXT4 -1", "the global of extension code -1"},
        {"GLOBAL os system EXT1 7", OS_SYSTEM},
        {"EMPTY_LIST STOP GLOBAL os system", OS_SYSTEM},
        {"STOP STOP STOP STOP GLOBAL os system", OS_SYSTEM},
        {"STOP STOP STOP STOP STOP GLOBAL os system", ""},
        {"0xff GLOBAL os system", ""},
        {"0x63 0x6f730a", ""},
        {"0x8d00000000000000f0 GLOBAL os system", ""},
        {"0x8d00000000000000", ""},
        {"0x9500000000000000", ""},
    };

    EXPECT_WORDS(cases);
}

Test(pickle_global, texts_that_are_names)
{
    static const found_case cases[] = {
        {"SHORT_BINUNICODE 'os' BINUNICODE8 'system' STACK_GLOBAL", OS_SYSTEM},
        {"BINSTRING 'os' SHORT_BINSTRING 'system' STACK_GLOBAL", OS_SYSTEM},
        {"UNICODE os STRING \"system\" STACK_GLOBAL", OS_SYSTEM},
        {"UNICODE \\u006Fs STRING \"\\x73\\171\\163tem\" STACK_GLOBAL", OS_SYSTEM},
        {"UNICODE \\U0000006fs STRING \"\\system\" STACK_GLOBAL", OS_SYSTEM},
        /* No escapes: of the other opcode, cut, without digits, alone. */
        {"UNICODE \\x6f STRING \"\\u006f\" STACK_GLOBAL", "the global \\x6f u006f"},
        {"UNICODE \\u006 STRING \"\\x7\" STACK_GLOBAL", "the global \\u006 x7"},
        {"UNICODE \\u00g6s STRING \"\\xg0\" STACK_GLOBAL", "the global \\u00g6s xg0"},
        /* "\x", a NUL and "0"; "\8" */
        {"UNICODE a 0x53225c780030220a STACK_GLOBAL", "the global a x?0"},
        {"UNICODE a STRING \"\\8\" STACK_GLOBAL", "the global a 8"},
        {"UNICODE \\ STRING \"\\\" STACK_GLOBAL", "the global \\ \\"},
        {"UNICODE \\u00e4 STRING \"\\x07\\377\" STACK_GLOBAL", "the global ? ??"},
        {"UNICODE a STRING b STACK_GLOBAL", "the global a b"},
        {"BINUNICODE 0x0061 BINUNICODE 0x7f1b62 STACK_GLOBAL", "the global ?a \x7f\x1b"
                                                               "b"},
        {"BINBYTES 'os' 'system' STACK_GLOBAL", ""},
    };
    char source[400] = "GLOBAL ", words[300] = "the global ";

    EXPECT_WORDS(cases);
    memset(source + 7, 'm', 150);
    memcpy(source + 157, " n", 3);
    memset(words + 11, 'm', 100);
    memcpy(words + 111, " n", 3);
    cr_expect_str_eq(find(source, false).words, words);
}

#define TIMES(text, n) repeated(text, n)

static char *repeated(const char *text, size_t n)
{
    size_t length = strlen(text);
    char *all = malloc(n * length + 1);

    for (size_t i = 0; i < n; i++)
        memcpy(all + i * length, text, length);
    all[n * length] = '\0';
    return all;
}

Test(pickle_global, stack)
{
    static const found_case cases[] = {
        {"'os' 'system' NONE POP STACK_GLOBAL", OS_SYSTEM},
        {"'os' 'system' MARK POP STACK_GLOBAL", OS_SYSTEM},
        {"'os' 'system' MARK 'a' 'b' POP_MARK STACK_GLOBAL", OS_SYSTEM},
        {"'os' 'system' MARK MARK 'a' POP_MARK POP STACK_GLOBAL", OS_SYSTEM},
        {"'os' 'system' DUP POP STACK_GLOBAL", OS_SYSTEM},
        {"'os' 'system' EMPTY_DICT MARK 'a' 'b' SETITEMS POP STACK_GLOBAL", OS_SYSTEM},
        /* An underflow: a machine would end there. Looking goes on. */
        {"POP POP_MARK TUPLE2 'os' 'system' STACK_GLOBAL", OS_SYSTEM},
        {"'os' MARK REDUCE GLOBAL os system", OS_SYSTEM},
    };
    static const struct {
        const char *begin, *each;
        size_t n;
        const char *undo, *words;
    } deep[] = {
        {"'os' 'system' ", "NONE ", 254, "POP ", OS_SYSTEM},
        {"'os' 'system' ", "NONE ", 255, "POP ", ""},
        {"'os' 'system' MARK ", "NONE ", 300, "", ""},
        {"'os' 'system' ", "MARK ", 256, "POP_MARK ", OS_SYSTEM},
        {"'os' 'system' ", "MARK ", 257, "POP_MARK ", ""},
        {"", "MARK ", 257, "POP_MARK POP 'os' 'system' STACK_GLOBAL ", OS_SYSTEM},
    };

    EXPECT_WORDS(cases);
    for (size_t i = 0; i < sizeof deep / sizeof *deep; i++) {
        char *each = TIMES(deep[i].each, deep[i].n), *undo = TIMES(deep[i].undo, deep[i].n);
        char *source = malloc(strlen(each) + strlen(undo) + 100);
        sprintf(source, "%s%s%s%sSTACK_GLOBAL", deep[i].begin, each, undo,
                i == 2 ? "POP_MARK " : "");
        cr_expect_str_eq(find(source, false).words, deep[i].words, "%zu", i);
        free(each);
        free(undo);
        free(source);
    }
}

Test(pickle_global, memo)
{
    static const found_case cases[] = {
        {"'os' BINPUT 255 POP 'system' LONG_BINPUT 70000 POP BINGET 255 LONG_BINGET 70000 "
         "STACK_GLOBAL",
         OS_SYSTEM},
        {"'os' PUT 7 POP 'system' PUT 12 POP GET 7 GET 12 STACK_GLOBAL", OS_SYSTEM},
        {"'os' MEMOIZE POP 'system' MEMOIZE POP BINGET 0 BINGET 1 STACK_GLOBAL", OS_SYSTEM},
        {"'a' BINPUT 0 POP 'os' BINPUT 0 POP BINGET 0 'system' STACK_GLOBAL", OS_SYSTEM},
        {"BINGET 0 BINGET 9 STACK_GLOBAL GLOBAL os system", OS_SYSTEM},
        {"PUT x GET x", ""},
        /* The first 256 are kept, and the last ones. */
        {"'os' BINPUT 0 'a' LONG_BINPUT 300 'b' LONG_BINPUT 556 'system' LONG_BINPUT 812 BINGET 0 "
         "LONG_BINGET 812 STACK_GLOBAL",
         OS_SYSTEM},
        {"'os' LONG_BINPUT 300 'a' LONG_BINPUT 556 LONG_BINGET 300 'system' STACK_GLOBAL", ""},
        /* Each pickle has its own. */
        {"'os' BINPUT 0 STOP BINGET 0 'system' STACK_GLOBAL", ""},
    };

    EXPECT_WORDS(cases);
}

Test(pickle_global, pickles_without_a_protocol)
{
    static const struct {
        const char *source;
        bool is_pickle;
    } cases[] = {
        {"NONE STOP", true},
        {"NONE", false},
        {"NONE NONE STOP", false},
        {"STOP", false},
        {"MARK NONE STOP", false},
        {"POP NONE STOP", false},
        {"GLOBAL os system", false},
        {"GLOBAL os system EMPTY_TUPLE REDUCE", true},
        {"GLOBAL os system EMPTY_TUPLE NEWOBJ", true},
        {"GLOBAL os system EMPTY_TUPLE EMPTY_DICT NEWOBJ_EX", true},
        {"GLOBAL os system EMPTY_DICT BUILD", true},
        {"MARK GLOBAL os system OBJ", true},
        {"MARK INST os system", true},
        {"REDUCE GLOBAL os system EMPTY_TUPLE REDUCE", false},
        {"GLOBAL os, system EMPTY_TUPLE REDUCE", false},
        {"GLOBAL os sy(stem EMPTY_TUPLE REDUCE", false},
        {"GLOBAL A_z.9 B0 EMPTY_TUPLE REDUCE", true},
        {"'' 'a' STACK_GLOBAL EMPTY_TUPLE REDUCE", false},
        {"GLOBAL torch Size EMPTY_TUPLE REDUCE", false},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_expect_eq(find(cases[i].source, false).is_pickle, cases[i].is_pickle, "%s",
                     cases[i].source);
}

static void add_words(void *context, const char *module, const char *name, bool is_allowed)
{
    char *text = context;

    (void)snprintf(text + strlen(text), 400 - strlen(text), "%s%s %s, ", is_allowed ? "+" : "",
                   module, name);
}

static const char *list(const char *source, size_t n_pickles, char *text)
{
    struct pickle pickle = {0};
    berth_error error;
    bool is_whole;

    assemble(&pickle, source);
    *text = '\0';
    cr_expect_eq(bth_pickle_list_globals(pickle.bytes, pickle.nbytes, n_pickles, add_words, text,
                                         &is_whole, &error),
                 0);
    free(pickle.bytes);
    return text;
}

Test(pickle_global, all_of_them)
{
    static const struct {
        const char *source, *words;
        size_t n_pickles;
    } cases[] = {
        {"", "", 1},
        {"GLOBAL os system GLOBAL torch Size GLOBAL nt system",
         "os system, +torch Size, nt system, ", 1},
        {"MARK INST os system GLOBAL os system", "os system, os system, ", 1},
        {"'os' BINPUT 7 'system' LONG_BINPUT 300 BINGET 7 LONG_BINGET 300 STACK_GLOBAL",
         "os system, ", 1},
        {"'os' MEMOIZE 'a' MEMOIZE STACK_GLOBAL BINGET 0 'b' STACK_GLOBAL", "os a, os b, ", 1},
        {"'os' NONE STACK_GLOBAL", "os ?, ", 1},
        {"BINGET 5 'a' STACK_GLOBAL", "? a, ", 1},
        {"EXT1 7", "(extension code) 7, ", 1},
        {"GLOBAL os a STOP GLOBAL os b STOP", "os a, ", 1},
        {"GLOBAL os a STOP GLOBAL os b STOP", "os a, os b, ", 2},
        {"'os' BINPUT 0 STOP BINGET 0 'a' STACK_GLOBAL STOP", "? a, ", 2},
    };
    char text[400];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_expect_str_eq(list(cases[i].source, cases[i].n_pickles, text), cases[i].words, "%s: %s",
                         cases[i].source, text);
}

/* A large state_dict in protocol 4 has its names in the memo long before they are used again. */
Test(pickle_global, names_that_were_put_long_ago)
{
    enum { N = 20000 };
    uint8_t *bytes = malloc(4 * N + 64), *at = bytes + 2;
    char text[400] = "";
    berth_error error;
    bool is_whole;

    memcpy(bytes, "\x80\4", 2);
    for (int i = 0; i < N; i++) {
        memcpy(at, i == 9000 ? "\x8c\2os\x94" : "\x8c\1n\x94", i == 9000 ? 5 : 4);
        at += i == 9000 ? 5 : 4;
    }
    memcpy(at, "j\x28\x23\0\0\x8c\1a\x93.", 10); /* LONG_BINGET 9000 */
    cr_expect_eq(bth_pickle_list_globals(bytes, (size_t)(at - bytes) + 10, 1, add_words, text,
                                         &is_whole, &error),
                 0);
    cr_expect(is_whole);
    cr_expect_str_eq(text, "os a, ");
    free(bytes);
}

Test(pickle_global, classes_of_distributed_checkpoints)
{
#define PACKAGE "GLOBAL torch.distributed.checkpoint."
    static const struct {
        const char *source;
        bool is_ignored;
    } cases[] = {
        {PACKAGE "metadata Metadata", true},
        {PACKAGE "filesystem _StorageInfo", true},
        {PACKAGE "filesystem os", false},
        {PACKAGE "filesystem 0", false},
        {PACKAGE "filesystem [", false},
        {PACKAGE "metadata Metadata.os.system", false},
        {"GLOBAL torch.distributed.checkpoints Metadata", false},
        {"GLOBAL pathlib PosixPath", true},
        {"GLOBAL pathlib._local WindowsPath", true},
        {"GLOBAL pathlib os.system", false},
        {"GLOBAL os system", false},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_expect(*find(cases[i].source, false).words, "%s", cases[i].source);
        cr_expect_eq(!*find(cases[i].source, true).words, cases[i].is_ignored, "%s",
                     cases[i].source);
    }
}
