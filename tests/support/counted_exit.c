/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a child has run is counted, too, if it leaves by _exit(): tests of the variant "coverage"
 * are linked with --wrap=_exit, and only they take this from the library.
 */
#include <sys/resource.h>

void counts_write(void) __asm__("__gcov_dump");
_Noreturn void exit_now(int code) __asm__("__real__exit");
_Noreturn void exit_counted(int code) __asm__("__wrap__exit");

_Noreturn void exit_counted(int code)
{
    /* Whatever size of files a test allows itself. */
    (void)setrlimit(RLIMIT_FSIZE, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY});
    counts_write();
    exit_now(code);
}
