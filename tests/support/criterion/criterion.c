/* SPDX-License-Identifier: BSD-3-Clause */
/* Keeps the list of tests and runs them. */
#include "tests/support/criterion/criterion.h"
#include <stdarg.h>
#include <sys/wait.h>

static struct criterion_test *criterion_tests, **criterion_end = &criterion_tests;
static bool criterion_failed; /* in the process of a test: some expectation */

void criterion_add(struct criterion_test *test)
{
    *criterion_end = test;
    criterion_end = &test->next;
}

void criterion_report(const char *file, int line, const char *what, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    (void)fprintf(stderr, "%s:%d: %s:", file, line, what);
    (void)vfprintf(stderr, format, arguments);
    (void)fputc('\n', stderr);
    va_end(arguments);
    criterion_failed = true;
}

void criterion_leave(int code)
{
    (void)fflush(NULL);
    _exit(code);
}

bool criterion_equal(const char *a, const char *b)
{
    if (strcmp(a, b) == 0)
        return true;
    (void)fprintf(stderr, "  \"%s\"\n  \"%s\"\n", a, b);
    return false;
}

/* ---- running them ---- */

static const struct criterion_options *criterion_suite(const char *suite)
{
    static const struct criterion_options none;

    for (const struct criterion_test *test = criterion_tests; test; test = test->next)
        if (!test->name && strcmp(test->suite, suite) == 0)
            return &test->options;
    return &none;
}

_Noreturn static void criterion_run(const struct criterion_test *test)
{
    const struct criterion_options *suite = criterion_suite(test->suite);
    double seconds = test->options.timeout > 0 ? test->options.timeout : suite->timeout;

    (void)alarm((unsigned)(seconds > 0 ? seconds : 300));
    if (suite->init)
        suite->init();
    if (test->options.init)
        test->options.init();
    test->run();
    if (test->options.fini)
        test->options.fini();
    if (suite->fini)
        suite->fini();
    criterion_leave(criterion_failed ? CRITERION_FAILED : 0);
}

int main(void)
{
    unsigned n_tested = 0, n_good = 0, n_crashed = 0;

    for (const struct criterion_test *test = criterion_tests; test; test = test->next) {
        int status = -1;
        if (!test->name)
            continue;
        (void)fflush(NULL);
        pid_t child = fork();
        if (child == 0)
            criterion_run(test);
        if (child < 0 || waitpid(child, &status, 0) != child)
            abort();
        if (WIFEXITED(status) && WEXITSTATUS(status) == CRITERION_SKIPPED) {
            (void)fprintf(stderr, "[SKIP] %s::%s\n", test->suite, test->name);
            continue;
        }
        n_tested++;
        n_good += status == 0;
        n_crashed += !WIFEXITED(status);
        if (status != 0)
            (void)fprintf(stderr, "[FAIL] %s::%s (%s %d)\n", test->suite, test->name,
                          WIFSIGNALED(status) ? "signal" : "exit code",
                          WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
    (void)fprintf(stderr, "Synthesis: Tested: %u | Passing: %u | Failing: %u | Crashing: %u \n",
                  n_tested, n_good, n_tested - n_good - n_crashed, n_crashed);
    return n_good == n_tested ? 0 : 1;
}
