/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * As much of Criterion as our tests use, for machines that Debian has no Criterion for: found in
 * its place where tests/support/ is searched for <criterion/criterion.h> (portable.sh). Each test
 * runs in a process of its own; the last line counts as Criterion's does.
 */
#ifndef TESTS_CRITERION_H
#define TESTS_CRITERION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what tests declare ---- */

struct criterion_options {
    void (*init)(void);
    void (*fini)(void);
    double timeout;
};

struct criterion_test {
    const char *suite;
    const char *name; /* NULL: the options of a suite */
    void (*run)(void);
    struct criterion_options options;
    struct criterion_test *next;
};

void criterion_add(struct criterion_test *test);

#define CRITERION_ADD(identifier, suite_text, name_text, function, ...)                            \
    static struct criterion_test criterion_##identifier = {                                        \
        suite_text, name_text, function, {__VA_ARGS__}, NULL};                                     \
    __attribute__((constructor)) static void criterion_add_##identifier(void)                      \
    {                                                                                              \
        criterion_add(&criterion_##identifier);                                                    \
    }

#define Test(suite, name, ...)                                                                     \
    static void criterion_run_##suite##_##name(void);                                              \
    CRITERION_ADD(suite##_##name, #suite, #name, criterion_run_##suite##_##name, __VA_ARGS__)      \
    static void criterion_run_##suite##_##name(void)

#define TestSuite(suite, ...)                                                                      \
    CRITERION_ADD(suite##_suite, #suite, NULL, NULL, __VA_ARGS__)                                  \
    _Static_assert(true, "takes the semicolon")

/* ---- what tests state ---- */

enum { CRITERION_FAILED = 1, CRITERION_SKIPPED = 77 };

__attribute__((format(printf, 4, 5))) void
criterion_report(const char *file, int line, const char *what, const char *format, ...);
_Noreturn void criterion_leave(int code);
/* Shows both where they differ: what a test compares most, and what tells most. */
bool criterion_equal(const char *a, const char *b);

#define CRITERION_EXPECT(condition, what, ...)                                                     \
    ((condition) ? (void)0 : criterion_report(__FILE__, __LINE__, what, " " __VA_ARGS__))
#define CRITERION_ASSERT(condition, what, ...)                                                     \
    ((condition) ? (void)0                                                                         \
                 : (criterion_report(__FILE__, __LINE__, what, " " __VA_ARGS__),                   \
                    criterion_leave(CRITERION_FAILED)))

#define cr_assert(a, ...) CRITERION_ASSERT(a, #a, __VA_ARGS__)
#define cr_assert_not(a, ...) CRITERION_ASSERT(!(a), "not " #a, __VA_ARGS__)
#define cr_assert_null(a, ...) CRITERION_ASSERT((a) == NULL, #a " is NULL", __VA_ARGS__)
#define cr_assert_not_null(a, ...) CRITERION_ASSERT((a) != NULL, #a " is not NULL", __VA_ARGS__)
#define cr_assert_eq(a, b, ...) CRITERION_ASSERT((a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...) CRITERION_ASSERT((a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...) CRITERION_ASSERT((a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...) CRITERION_ASSERT((a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...) CRITERION_ASSERT((a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...) CRITERION_ASSERT((a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_assert_str_empty(a, ...) CRITERION_ASSERT(!*(a), #a " is empty", __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...)                                                                \
    CRITERION_ASSERT(criterion_equal(a, b), #a " is " #b, __VA_ARGS__)
#define cr_assert_arr_eq(a, b, n, ...)                                                             \
    CRITERION_ASSERT(memcmp(a, b, n) == 0, #a " has the bytes of " #b, __VA_ARGS__)
#define cr_assert_fail(...) CRITERION_ASSERT(false, "reached", __VA_ARGS__)

#define cr_expect(a, ...) CRITERION_EXPECT(a, #a, __VA_ARGS__)
#define cr_expect_not(a, ...) CRITERION_EXPECT(!(a), "not " #a, __VA_ARGS__)
#define cr_expect_null(a, ...) CRITERION_EXPECT((a) == NULL, #a " is NULL", __VA_ARGS__)
#define cr_expect_not_null(a, ...) CRITERION_EXPECT((a) != NULL, #a " is not NULL", __VA_ARGS__)
#define cr_expect_eq(a, b, ...) CRITERION_EXPECT((a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_expect_neq(a, b, ...) CRITERION_EXPECT((a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_expect_lt(a, b, ...) CRITERION_EXPECT((a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_expect_leq(a, b, ...) CRITERION_EXPECT((a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_expect_gt(a, b, ...) CRITERION_EXPECT((a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_expect_geq(a, b, ...) CRITERION_EXPECT((a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_expect_str_eq(a, b, ...)                                                                \
    CRITERION_EXPECT(criterion_equal(a, b), #a " is " #b, __VA_ARGS__)
#define cr_expect_str_neq(a, b, ...)                                                               \
    CRITERION_EXPECT(strcmp(a, b) != 0, #a " is not " #b, __VA_ARGS__)
#define cr_expect_arr_eq(a, b, n, ...)                                                             \
    CRITERION_EXPECT(memcmp(a, b, n) == 0, #a " has the bytes of " #b, __VA_ARGS__)

#define cr_log_info(...) (void)(fprintf(stderr, " " __VA_ARGS__), fputc('\n', stderr))
#define cr_skip_test(...)                                                                          \
    (fprintf(stderr, " " __VA_ARGS__), fputc('\n', stderr), criterion_leave(CRITERION_SKIPPED))

#endif
