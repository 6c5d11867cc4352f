/* SPDX-License-Identifier: BSD-3-Clause */
/* What the tests of the pickle writer share. */
#ifndef TESTS_SUPPORT_PICKLE_WRITTEN_H
#define TESTS_SUPPORT_PICKLE_WRITTEN_H

#include <criterion/criterion.h>
#include <string.h>

#include "base/error.h"
#include "format/checksum.h"
#include "format/pickle/pickle.h"

/* The bytes of a pickle are a string literal's, without its NUL. */
#define check_pickle(value, expected) check_pickled(value, expected, sizeof(expected) - 1)

bth_pickled must_write(const berth_value *value);
void check_pickled(const berth_value *value, const char *expected, size_t nbytes);

/* struct expected_sum is each program's own. */
void check_pickled_sum(const berth_value *value, size_t n, size_t nbytes, uint32_t crc32);

/* The whole message of a refusal. */
void check_write_refused(const berth_value *value, bool foreign, int code, const char *message);
berth_value *make_text(const char *string);

/* A list of these values, in the tree of the scene. */
#define LIST(...)                                                                                  \
    list_of(sizeof((berth_value *[]){__VA_ARGS__}) / sizeof(berth_value *),                        \
            (berth_value *[]){__VA_ARGS__})
berth_value *list_of(size_t n, berth_value *const *items);

#endif
