/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Faults by the table of system calls: the nth call of one row fails, once or from then on. Every
 * row that saving uses has a stand-in here. What the rows did is kept as a trace of letters.
 */
#ifndef TESTS_FAULTS_INJECT_H
#define TESTS_FAULTS_INJECT_H

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "io/syscalls.h"

/* The rows with int or ssize_t results: name, parameters, arguments. */
#define FAULT_ROWS(X)                                                                              \
    X(int, openat, (int folder, const char *path, int flags, mode_t mode),                         \
      (folder, path, flags, mode))                                                                 \
    X(int, fstatat, (int folder, const char *path, struct stat *status, int flags),                \
      (folder, path, status, flags))                                                               \
    X(int, fstat, (int fd, struct stat *status), (fd, status))                                     \
    X(int, fstatvfs, (int fd, struct statvfs *status), (fd, status))                               \
    X(int, faccessat, (int folder, const char *path, int mode, int flags),                         \
      (folder, path, mode, flags))                                                                 \
    X(ssize_t, readlinkat, (int folder, const char *path, char *text, size_t nbytes),              \
      (folder, path, text, nbytes))                                                                \
    X(int, getrlimit, (int resource, struct rlimit *limit), (resource, limit))                     \
    X(ssize_t, getrandom, (void *buffer, size_t nbytes, unsigned flags), (buffer, nbytes, flags))  \
    X(ssize_t, getdents64, (int fd, void *entries, size_t nbytes), (fd, entries, nbytes))          \
    X(int, flock, (int fd, int operation), (fd, operation))                                        \
    X(int, fchmod, (int fd, mode_t mode), (fd, mode))                                              \
    X(int, fallocate, (int fd, int mode, off_t offset, off_t nbytes), (fd, mode, offset, nbytes))  \
    X(int, ftruncate, (int fd, off_t nbytes), (fd, nbytes))                                        \
    X(ssize_t, pwrite, (int fd, const void *buffer, size_t nbytes, off_t offset),                  \
      (fd, buffer, nbytes, offset))                                                                \
    X(ssize_t, pread, (int fd, void *buffer, size_t nbytes, off_t offset),                         \
      (fd, buffer, nbytes, offset))                                                                \
    X(ssize_t, write, (int fd, const void *buffer, size_t nbytes), (fd, buffer, nbytes))           \
    X(int, fsync, (int fd), (fd))                                                                  \
    X(int, fdatasync, (int fd), (fd))                                                              \
    X(int, dup, (int fd), (fd))                                                                    \
    X(int, close, (int fd), (fd))                                                                  \
    X(int, renameat, (int from_folder, const char *from, int to_folder, const char *to),           \
      (from_folder, from, to_folder, to))                                                          \
    X(int, unlinkat, (int folder, const char *path, int flags), (folder, path, flags))             \
    X(int, sched_getaffinity, (pid_t process, size_t nbytes, cpu_set_t * cpus),                    \
      (process, nbytes, cpus))

enum fault_row {
#define FAULT_ROW(result, name, parameters, arguments) FAULT_##name,
    FAULT_ROWS(FAULT_ROW)
#undef FAULT_ROW
        FAULT_pthread_create,
    FAULT_N_ROWS
};

static struct {
    enum fault_row row;
    unsigned nth; /* 0: none */
    int system_errno;
    bool for_ever;
    atomic_uint n_calls; /* of that row */
    atomic_uint n_hits;
} fault;

/* The calls below in their order, a letter each: open w(rite) s(ync) d(atasync) r(ename) u(nlink).
 */
static char fault_trace[4096];
static atomic_size_t fault_trace_nbytes;

static void fault_note(char letter)
{
    size_t at = atomic_fetch_add(&fault_trace_nbytes, 1);

    if (at < sizeof fault_trace - 1)
        fault_trace[at] = letter;
}

static bool fault_is_due(enum fault_row row)
{
    static const char letters[FAULT_N_ROWS] = {[FAULT_pwrite] = 'w',
                                               [FAULT_fsync] = 's',
                                               [FAULT_fdatasync] = 'd',
                                               [FAULT_renameat] = 'r',
                                               [FAULT_unlinkat] = 'u'};

    if (letters[row])
        fault_note(letters[row]);
    if (row != fault.row || fault.nth == 0)
        return false;
    unsigned n = atomic_fetch_add(&fault.n_calls, 1) + 1;
    if (n != fault.nth && !(fault.for_ever && n > fault.nth))
        return false;
    atomic_fetch_add(&fault.n_hits, 1);
    return true;
}

static berth_system_table real;

/* A close that fails has closed. */
#define FAULT_ROW(result, name, parameters, arguments)                                             \
    static result fault_##name parameters                                                          \
    {                                                                                              \
        if (!fault_is_due(FAULT_##name))                                                           \
            return real.name arguments;                                                            \
        if (FAULT_##name == FAULT_close)                                                           \
            (void)real.name arguments;                                                             \
        errno = fault.system_errno;                                                                \
        return -1;                                                                                 \
    }
FAULT_ROWS(FAULT_ROW)
#undef FAULT_ROW

static int fault_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                                void *(*start)(void *), void *argument)
{
    if (fault_is_due(FAULT_pthread_create))
        return fault.system_errno;
    return real.pthread_create(thread, attributes, start, argument);
}

/* Puts the stand-ins in; nth 0: no fault, only the trace. */
static inline void fault_set(enum fault_row row, unsigned nth, int system_errno, bool for_ever)
{
    berth_system_restore();
    real = berth_system;
    fault.row = row;
    fault.nth = nth;
    fault.system_errno = system_errno;
    fault.for_ever = for_ever;
    atomic_store(&fault.n_calls, 0);
    atomic_store(&fault.n_hits, 0);
    atomic_store(&fault_trace_nbytes, 0);
    memset(fault_trace, 0, sizeof fault_trace);
#define FAULT_ROW(result, name, parameters, arguments) berth_system.name = fault_##name;
    FAULT_ROWS(FAULT_ROW)
#undef FAULT_ROW
    berth_system.pthread_create = fault_pthread_create;
}

static inline void fault_clear(void)
{
    berth_system_restore();
}

#endif
