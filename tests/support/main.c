/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Runs the tests of a folder. A test that hangs is ended, also where nobody thought of it, and the
 * others go on: by the clock, so with room for a machine that is busy with much else.
 */
#include <criterion/criterion.h>

#include "tests/support/support.h"

/* A fuzzer has a main of its own, and so has what stands in for Criterion. */
#if !defined(TESTS_CRITERION_H) && !defined(BERTH_FUZZER)

enum { MAX_SECONDS = 300, MAX_SECONDS_LONG = 3600 };

static void limit_each_test(const struct criterion_test_set *set)
{
    double limit = test_is_long() ? MAX_SECONDS_LONG : MAX_SECONDS;

    FOREACH_SET(struct criterion_suite_set * suite, set->suites)
    {
        const struct criterion_test_extra_data *shared = suite->suite.data;
        bool is_limited = shared && shared->timeout > 0;
        FOREACH_SET(struct criterion_test * test, suite->tests)
        {
            if (!is_limited && !(test->data->timeout > 0))
                test->data->timeout = limit;
        }
    }
}

/* Criterion's workers look for it. */
__attribute__((visibility("default"))) int main(int argc, char **argv)
{
    struct criterion_test_set *set = criterion_initialize();
    int code = 0;

    limit_each_test(set);
    if (criterion_handle_args(argc, argv, true))
        code = !criterion_run_all_tests(set);
    criterion_finalize(set);
    return code;
}

#endif
