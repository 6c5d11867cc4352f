/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/support.h"
#include <criterion/criterion.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

void test_in_child(int (*try)(void))
{
    int status;

    (void)fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(try());
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0, "the child ended with status %x", (unsigned)status);
}
