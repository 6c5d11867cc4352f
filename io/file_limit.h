/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * X14: a write beyond RLIMIT_FSIZE raises SIGXFSZ, which kills the process. Our own threads block
 * the signal; a caller's thread blocks it until the end of the block, and then consumes it, unless
 * one was pending before.
 */
#ifndef BTH_IO_FILE_LIMIT_H
#define BTH_IO_FILE_LIMIT_H

#include <signal.h>
#include <stdbool.h>

typedef struct bth_file_limit {
    sigset_t before; /* the thread's mask */
    bool was_pending;
} bth_file_limit;

bth_file_limit bth_file_limit_hold(void);
void bth_file_limit_restore(const bth_file_limit *held);

#define BTH_HOLD_FILE_LIMIT()                                                                      \
    __attribute__((cleanup(bth_file_limit_restore), unused))                                       \
    const bth_file_limit bth_file_limit_held = bth_file_limit_hold()

#endif
