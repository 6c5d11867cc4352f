/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * All system calls of the library go through this table, so that tests can make each of them fail,
 * transfer less, or take longer, and count them (W1 to W8).
 */
#ifndef BTH_IO_SYSCALLS_H
#define BTH_IO_SYSCALLS_H

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h> /* renameat */
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

#ifndef STATX_TYPE /* musl before 1.2.5 has no statx */
#include <linux/stat.h>
#endif

#ifndef MADV_POPULATE_READ /* Linux 5.14; headers may be older */
#define MADV_POPULATE_READ 22
#endif
#ifndef RWF_NOWAIT /* musl before 1.2.5 has no preadv2 */
#define RWF_NOWAIT 8
#endif

typedef struct bth_system_table {
#define BTH_SYSCALL(result, name, parameters, function) result(*name) parameters;
#include "io/syscalls.def"
#undef BTH_SYSCALL
} bth_system_table;

/* Tests replace functions before an operation starts, and restore them. */
extern bth_system_table bth_system;

void bth_system_restore(void);

/* Repeats a call that a signal interrupted. */
#define BTH_REPEAT(result, call)                                                                   \
    do                                                                                             \
        (result) = (call);                                                                         \
    while ((result) < 0 && errno == EINTR)

/*
 * Descriptors 0, 1 and 2 belong to the program, also while they are closed (X10): its output must
 * not land in a file of ours that got such a number. So each open first fills the closed numbers
 * with placeholders that can be neither read nor written, and closes them afterwards.
 */

/* Fills the closed numbers. True: call bth_low_fds_release afterwards. Any thread may call it. */
bool bth_low_fds_fill(void);
void bth_low_fds_release(void);

#endif
