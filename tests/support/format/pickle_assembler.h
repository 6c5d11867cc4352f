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
#ifndef TESTS_SUPPORT_PICKLE_ASSEMBLER_H
#define TESTS_SUPPORT_PICKLE_ASSEMBLER_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "format/pickle/pickle_machine.h"
#include "tests/support/format/value_text.h"
#include "tests/support/support.h"

struct pickle {
    uint8_t *bytes; /* of the C library: not counted by a watch over Berth's memory */
    size_t nbytes;
    size_t capacity;
    size_t marked; /* where the word with `!` begins */
};
void put(struct pickle *pickle, const void *bytes, size_t nbytes);
void put_little(struct pickle *pickle, uint64_t number, size_t nbytes);
void put_text(struct pickle *pickle, const void *text, size_t nbytes);
void assemble(struct pickle *pickle, const char *source);

/* The same words n times. */
void assemble_times(struct pickle *pickle, const char *source, size_t n);

/* ---- reading what was assembled ---- */

struct reading {
    berth_tree *tree;
    berth_value *root;
    berth_error error;
    int code;
};
struct reading read_by(const struct pickle *pickle, bth_pickle_rules rules);

/* Reads the words; free_reading afterwards. */
struct reading read_words_by(const char *source, bth_pickle_rules rules);
void free_reading(struct reading *reading);

#define NO_RULES ((bth_pickle_rules){0})

/* Fails the test unless the words are refused at their `!` with exactly this code and sentence. */
void refuses_by(bth_pickle_rules rules, const char *source, int code, const char *sentence);
void refuses_as(int code, const char *source, const char *sentence);
/* As a bad pickle, BERTH_E_PICKLE; and each of these. */
void refuses(const char *source, const char *sentence);
void refuses_each(const char *const *sources, const char *sentence);
#define REFUSES_EACH(sentence, ...) refuses_each((const char *const[]){__VA_ARGS__, NULL}, sentence)

/* The words are accepted, and give this (value_text.h). */
void gives_by(bth_pickle_rules rules, const char *source, const char *text);
void gives(const char *source, const char *text);

/* Declares `name`, read from words that must be accepted. */
#define ACCEPTS_BY(name, rules, source)                                                            \
    struct reading name = read_words_by(source, rules);                                            \
    cr_assert_eq(name.code, 0, "%s", name.error.message)
#define ACCEPTS(name, source) ACCEPTS_BY(name, NO_RULES, source)

#define INERT ((bth_pickle_rules){.inert = true})
#define STREAM ((bth_pickle_rules){.legacy = true})

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
