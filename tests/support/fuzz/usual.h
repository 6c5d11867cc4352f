/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The tensor that the reader has a short cut for (format/pickle/pickle_usual_tensor.c): said anew,
 * of what the pickle at hand has in its memo, and changed by single opcodes inside, as a short cut
 * errs where something stands between two things that it looks for.
 */
#ifndef TESTS_SUPPORT_FUZZ_USUAL_H
#define TESTS_SUPPORT_FUZZ_USUAL_H

#include "tests/support/fuzz/opcodes.h"

#define MAX_OF_A_SORT 32
#define MAX_USUAL 64
/* ---- what is in the memo ---- */

enum sort {
    SORT_FUNCTION,
    SORT_WORD,
    SORT_CLASS,
    SORT_KEY,
    SORT_LOCATION,
    SORT_HOOKS,
    SORT_OTHER,
    N_SORTS
};

struct memo {
    uint32_t at[N_SORTS][MAX_OF_A_SORT];
    size_t n[N_SORTS];
    uint32_t next; /* one more than the largest */
    /* The storage said last. */
    uint32_t key, class;
    int32_t numel;
    uint32_t pending; /* a Parameter that is none yet; 0: none */
};
/* ---- said ---- */

/* A list of some, and what must follow for them to be looked for. */
void say_usual_list(struct fragment *out);

/* ---- changed ---- */

/* Where they begin, by the number of the opcode. */
size_t find_usual(const uint8_t *bytes, const struct opcodes *found, size_t *first);

/*
 * A pickle that has one, changed within it, or by another one before it. Most changes are of one
 * opcode: a second one hides what the first would have shown.
 */
size_t mutate_usual(uint8_t *bytes, size_t nbytes, size_t most, const struct opcodes *found,
                    const size_t *firsts, size_t n);

#endif
