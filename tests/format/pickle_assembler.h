/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Pickles for tests, assembled from words: names of opcodes with their arguments, 'text' for
 * BINUNICODE, a number for BININT, 0x… for raw bytes.
 *
 *     assemble(&pickle, "PROTO 2 EMPTY_LIST MARK 1 'two' APPENDS STOP");
 *     assemble(&pickle, "GLOBAL torch Size 1 2 TUPLE2 TUPLE1 REDUCE");
 *
 * `!` before a word tells where an error is expected: refuses("EMPTY_LIST !TUPLE STOP", …).
 */
#ifndef TESTS_PICKLE_ASSEMBLER_H
#define TESTS_PICKLE_ASSEMBLER_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/error.h"
#include "format/pickle/pickle_machine.h"
#include "tests/support/support.h"

struct pickle {
    uint8_t *bytes; /* of the C library: not counted by a watch over Berth's memory */
    size_t nbytes;
    size_t capacity;
    size_t marked; /* where the word with `!` begins */
};

static inline void put(struct pickle *pickle, const void *bytes, size_t nbytes)
{
    if (pickle->nbytes + nbytes > pickle->capacity) {
        pickle->capacity = (pickle->nbytes + nbytes) * 2;
        pickle->bytes = realloc(pickle->bytes, pickle->capacity);
        if (!pickle->bytes)
            test_give_up("no memory for a pickle");
    }
    if (nbytes)
        memcpy(pickle->bytes + pickle->nbytes, bytes, nbytes);
    pickle->nbytes += nbytes;
}

static inline void put_little(struct pickle *pickle, uint64_t number, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++)
        put(pickle, &(uint8_t){(uint8_t)(number >> (8 * i))}, 1);
}

static inline void put_text(struct pickle *pickle, const void *text, size_t nbytes)
{
    put(pickle, "X", 1);
    put_little(pickle, nbytes, 4);
    put(pickle, text, nbytes);
}

/* The next word of *source, and moves behind it; 'text' is one word. False: none. */
static inline bool next_word(const char **source, const char **word, size_t *nbytes)
{
    const char *start = *source + strspn(*source, " \n");
    if (!*start)
        return false;
    const char *end = *start == '\'' ? strchr(start + 1, '\'') + 1 : start + strcspn(start, " \n");
    *word = start;
    *nbytes = (size_t)(end - start);
    *source = end;
    return true;
}

static inline void put_hex(struct pickle *pickle, const char *word, size_t nbytes)
{
    for (size_t i = 2; i + 1 < nbytes; i += 2) {
        char digits[3] = {word[i], word[i + 1], 0};
        put(pickle, &(uint8_t){(uint8_t)strtol(digits, NULL, 16)}, 1);
    }
}

static inline void put_argument(struct pickle *pickle, const char **source, bth_form form)
{
    static const size_t number_nbytes[] = {0, 1, 2, 4, 4};
    const char *word;
    size_t nbytes;
    if (form == BTH_FORM_NOTHING || !next_word(source, &word, &nbytes))
        return;
    if (form <= BTH_FORM_I4) {
        put_little(pickle, (uint64_t)strtoll(word, NULL, 10), number_nbytes[form]);
    } else if (form == BTH_FORM_F8) {
        double real = strtod(word, NULL);
        uint64_t bits;
        memcpy(&bits, &real, sizeof bits);
        for (int i = 7; i >= 0; i--)
            put_little(pickle, bits >> (8 * i), 1);
    } else if (form == BTH_FORM_LINES) {
        put(pickle, word, nbytes);
        put(pickle, "\n", 1);
        if (next_word(source, &word, &nbytes))
            put(pickle, word, nbytes);
        put(pickle, "\n", 1);
    } else { /* TEXT1, TEXT4: 'text', or raw bytes after 0x */
        bool raw = *word == '0';
        put_little(pickle, raw ? (nbytes - 2) / 2 : nbytes - 2, form == BTH_FORM_TEXT1 ? 1 : 4);
        if (raw)
            put_hex(pickle, word, nbytes);
        else
            put(pickle, word + 1, nbytes - 2);
    }
}

static inline void put_word(struct pickle *pickle, const char **source, const char *word,
                            size_t nbytes)
{
    if (*word == '!') {
        pickle->marked = pickle->nbytes;
        word++;
        if (--nbytes == 0)
            return;
    }
    if (*word == '\'') {
        put_text(pickle, word + 1, nbytes - 2);
        return;
    }
    if (strncmp(word, "0x", 2) == 0) {
        put_hex(pickle, word, nbytes);
        return;
    }
    if (strchr("-0123456789", *word)) {
        put(pickle, "J", 1);
        put_little(pickle, (uint64_t)strtoll(word, NULL, 10), 4);
        return;
    }
    for (int byte = 0; byte < 256; byte++) {
        const char *name = bth_opcodes[byte].name;
        if (name && strlen(name) == nbytes && memcmp(name, word, nbytes) == 0) {
            put_little(pickle, (uint64_t)byte, 1);
            put_argument(pickle, source, (bth_form)bth_opcodes[byte].form);
            return;
        }
    }
    test_give_up("no such opcode: %.*s", (int)nbytes, word);
}

static inline void assemble(struct pickle *pickle, const char *source)
{
    const char *word;
    size_t nbytes;
    while (next_word(&source, &word, &nbytes))
        put_word(pickle, &source, word, nbytes);
}

/* The same words n times. */
static inline void assemble_times(struct pickle *pickle, const char *source, size_t n)
{
    struct pickle once = {0};
    assemble(&once, source);
    for (size_t i = 0; i < n; i++)
        put(pickle, once.bytes, once.nbytes);
    free(once.bytes);
}

/* ---- reading what was assembled ---- */

struct reading {
    berth_tree *tree;
    berth_value *root;
    berth_error error;
    int code;
};

static inline struct reading read_by(const struct pickle *pickle, bth_pickle_rules rules)
{
    struct reading reading = {.tree = berth_tree_new(NULL)};
    uint8_t *exact = malloc(pickle->nbytes); /* a sanitizer sees a byte read behind it */
    if (!rules.record)
        rules.record = "data.pkl";
    if (pickle->nbytes)
        memcpy(exact, pickle->bytes, pickle->nbytes);
    bth_error_clear(&reading.error);
    reading.code =
        bth_pickle_read(exact, pickle->nbytes, &rules, reading.tree, &reading.root, &reading.error);
    free(exact);
    return reading;
}

/* Reads the words; free_reading afterwards. */
static inline struct reading read_words_by(const char *source, bth_pickle_rules rules)
{
    struct pickle pickle = {0};
    assemble(&pickle, source);
    struct reading reading = read_by(&pickle, rules);
    free(pickle.bytes);
    return reading;
}

static inline void free_reading(struct reading *reading)
{
    berth_tree_free(reading->tree);
}

#define NO_RULES ((bth_pickle_rules){0})

/* Fails the test unless the words are refused at their `!` with exactly this code and sentence. */
static inline void refuses_by(bth_pickle_rules rules, const char *source, int code,
                              const char *sentence)
{
    struct pickle pickle = {0};
    char message[640];
    assemble(&pickle, source);
    struct reading read = read_by(&pickle, rules);
    snprintf(message, sizeof message, "data.pkl at byte %zu: %s", pickle.marked, sentence);
    cr_expect_eq(read.code, code, "%s gave %d", source, read.code);
    cr_expect_str_eq(read.error.message, message, "%s gave %s", source, read.error.message);
    cr_expect_eq(read.error.offset, pickle.marked);
    free_reading(&read);
    free(pickle.bytes);
}

static inline void refuses(const char *source, int code, const char *sentence)
{
    refuses_by(NO_RULES, source, code, sentence);
}

/* Declares `name`, read from words that must be accepted. */
#define ACCEPTS_BY(name, rules, source)                                                            \
    struct reading name = read_words_by(source, rules);                                            \
    cr_assert_eq(name.code, 0, "%s", name.error.message)
#define ACCEPTS(name, source) ACCEPTS_BY(name, NO_RULES, source)

#define INERT ((bth_pickle_rules){.inert = true})
#define STREAM ((bth_pickle_rules){.stream = true})

/* ---- words that many tests use ---- */

/* Words that leave a storage on the stack: its class, key, and numel. */
#define STORAGE(class, key, numel)                                                                 \
    " MARK 'storage' GLOBAL " class " '" key "' 'cpu' " numel " TUPLE !BINPERSID "
#define FLOATS STORAGE("torch FloatStorage", "0", "6")
#define NO_HOOKS " GLOBAL collections OrderedDict EMPTY_TUPLE REDUCE "
#define V2 " GLOBAL torch._utils _rebuild_tensor_v2 MARK "
/* A float tensor of shape (2, 3). */
#define TENSOR V2 FLOATS "0 2 3 TUPLE2 3 1 TUPLE2 NEWFALSE" NO_HOOKS "TUPLE REDUCE "
/* One of n int64 items, in storage `key`. */
#define LONGS(key, n)                                                                              \
    V2 STORAGE("torch LongStorage", key, n) "0 " n " TUPLE1 1 TUPLE1 NEWFALSE" NO_HOOKS            \
                                            "TUPLE REDUCE "
#define DOUBLES(key, n)                                                                            \
    V2 STORAGE("torch DoubleStorage", key, n) "0 " n " TUPLE1 1 TUPLE1 NEWFALSE" NO_HOOKS          \
                                              "TUPLE REDUCE "

#endif
