/* SPDX-License-Identifier: BSD-3-Clause */
/* A pickle as a row of whole opcodes: said, found, and put between others. */
#ifndef TESTS_SUPPORT_FUZZ_OPCODES_H
#define TESTS_SUPPORT_FUZZ_OPCODES_H

#include "format/pickle/pickle_machine.h"
#include "tests/support/fuzz/target.h"

#define MAX_OPCODES 4096
#define MAX_FRAGMENT_NBYTES 2048

/* ---- said ---- */

struct fragment {
    uint8_t bytes[MAX_FRAGMENT_NBYTES];
    size_t nbytes;
};
void say_bytes(struct fragment *out, const void *bytes, size_t n);
void say(struct fragment *out, const char *text);
void say_byte(struct fragment *out, size_t byte);
void say_global(struct fragment *out, const char *module, const char *name);
void say_text(struct fragment *out, const char *text);
void say_int(struct fragment *out, size_t number);

/* ---- found ---- */

struct opcodes {
    size_t at[MAX_OPCODES + 1]; /* the last is the end */
    size_t n;
};
void find_opcodes(const uint8_t *bytes, size_t nbytes, struct opcodes *found);

/* Puts `with` in the place of `cut` bytes at `at`; leaves it where it does not fit. */
size_t put_between(uint8_t *bytes, size_t nbytes, size_t most, size_t at, size_t cut,
                   const void *with, size_t n);

#endif
