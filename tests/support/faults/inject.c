/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/faults/inject.h"
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

/* The rows whose failure is -1 and errno: name, parameters, arguments. */
#define FAULT_ROWS(X)                                                                              \
    X(int, open, (const char *path, int flags, mode_t mode), (path, flags, mode))                  \
    X(int, openat, (int folder, const char *path, int flags, mode_t mode),                         \
      (folder, path, flags, mode))                                                                 \
    X(int, close, (int fd), (fd))                                                                  \
    X(int, dup, (int fd), (fd))                                                                    \
    X(int, poll, (struct pollfd * fds, nfds_t n, int milliseconds), (fds, n, milliseconds))        \
    X(int, fstat, (int fd, struct stat *status), (fd, status))                                     \
    X(int, fstatat, (int folder, const char *path, struct stat *status, int flags),                \
      (folder, path, status, flags))                                                               \
    X(int, statx, (int folder, const char *path, int flags, unsigned mask, struct statx *status),  \
      (folder, path, flags, mask, status))                                                         \
    X(int, fstatfs, (int fd, struct statfs *status), (fd, status))                                 \
    X(int, fstatvfs, (int fd, struct statvfs *status), (fd, status))                               \
    X(int, faccessat, (int folder, const char *path, int mode, int flags),                         \
      (folder, path, mode, flags))                                                                 \
    X(ssize_t, readlinkat, (int folder, const char *path, char *text, size_t nbytes),              \
      (folder, path, text, nbytes))                                                                \
    X(int, get_seals, (int fd), (fd))                                                              \
    X(int, getrlimit, (int resource, struct rlimit *limit), (resource, limit))                     \
    X(int, ioctl, (int fd, unsigned long request, void *argument), (fd, request, argument))        \
    X(int, fallocate, (int fd, int mode, off_t offset, off_t nbytes), (fd, mode, offset, nbytes))  \
    X(int, ftruncate, (int fd, off_t nbytes), (fd, nbytes))                                        \
    X(int, sync_file_range, (int fd, off_t offset, off_t nbytes, unsigned flags),                  \
      (fd, offset, nbytes, flags))                                                                 \
    X(int, fsync, (int fd), (fd))                                                                  \
    X(int, fdatasync, (int fd), (fd))                                                              \
    X(int, fchmod, (int fd, mode_t mode), (fd, mode))                                              \
    X(int, fchown, (int fd, uid_t owner, gid_t group), (fd, owner, group))                         \
    X(ssize_t, getxattr, (const char *path, const char *name, void *value, size_t nbytes),         \
      (path, name, value, nbytes))                                                                 \
    X(ssize_t, listxattr, (const char *path, char *names, size_t nbytes), (path, names, nbytes))   \
    X(int, setxattr,                                                                               \
      (const char *path, const char *name, const void *value, size_t nbytes, int flags),           \
      (path, name, value, nbytes, flags))                                                          \
    X(ssize_t, fgetxattr, (int fd, const char *name, void *value, size_t nbytes),                  \
      (fd, name, value, nbytes))                                                                   \
    X(ssize_t, flistxattr, (int fd, char *names, size_t nbytes), (fd, names, nbytes))              \
    X(int, fsetxattr, (int fd, const char *name, const void *value, size_t nbytes, int flags),     \
      (fd, name, value, nbytes, flags))                                                            \
    X(int, fremovexattr, (int fd, const char *name), (fd, name))                                   \
    X(int, capget, (void *header, void *capabilities), (header, capabilities))                     \
    X(int, kill, (pid_t process, int signal), (process, signal))                                   \
    X(int, renameat, (int from_folder, const char *from, int to_folder, const char *to),           \
      (from_folder, from, to_folder, to))                                                          \
    X(int, unlinkat, (int folder, const char *path, int flags), (folder, path, flags))             \
    X(ssize_t, getrandom, (void *buffer, size_t nbytes, unsigned flags), (buffer, nbytes, flags))  \
    X(ssize_t, getdents64, (int fd, void *entries, size_t nbytes), (fd, entries, nbytes))          \
    X(int, munmap, (void *address, size_t nbytes), (address, nbytes))                              \
    X(int, madvise, (void *address, size_t nbytes, int advice), (address, nbytes, advice))         \
    X(int, cachestat, (int fd, void *range, void *counts, unsigned flags),                         \
      (fd, range, counts, flags))                                                                  \
    X(int, mincore, (void *address, size_t nbytes, unsigned char *pages),                          \
      (address, nbytes, pages))                                                                    \
    X(int, mlock2, (const void *address, size_t nbytes, unsigned flags), (address, nbytes, flags)) \
    X(int, munlock, (const void *address, size_t nbytes), (address, nbytes))                       \
    X(int, posix_fadvise, (int fd, off_t offset, off_t nbytes, int advice),                        \
      (fd, offset, nbytes, advice))                                                                \
    X(ssize_t, preadv2, (int fd, const struct iovec *pieces, int n, off_t offset, int flags),      \
      (fd, pieces, n, offset, flags))                                                              \
    X(long, get_mempolicy,                                                                         \
      (int *mode, unsigned long *nodes, unsigned long n_nodes, void *address,                      \
       unsigned long flags),                                                                       \
      (mode, nodes, n_nodes, address, flags))                                                      \
    X(long, mbind,                                                                                 \
      (void *address, unsigned long nbytes, int mode, const unsigned long *nodes,                  \
       unsigned long n_nodes, unsigned flags),                                                     \
      (address, nbytes, mode, nodes, n_nodes, flags))                                              \
    X(ssize_t, process_vm_readv,                                                                   \
      (pid_t process, const struct iovec *to, unsigned long n_to, const struct iovec *from,        \
       unsigned long n_from, unsigned long flags),                                                 \
      (process, to, n_to, from, n_from, flags))                                                    \
    X(int, pipe2, (int ends[2], int flags), (ends, flags))                                         \
    X(int, sched_getaffinity, (pid_t process, size_t nbytes, cpu_set_t * cpus),                    \
      (process, nbytes, cpus))

/* Those that may also move fewer bytes than asked for (W3). `nbytes` is what they are asked for. */
#define FAULT_TRANSFER_ROWS(X)                                                                     \
    X(pread, (int fd, void *buffer, size_t nbytes, off_t offset), (fd, buffer, nbytes, offset))    \
    X(pwrite, (int fd, const void *buffer, size_t nbytes, off_t offset),                           \
      (fd, buffer, nbytes, offset))                                                                \
    X(write, (int fd, const void *buffer, size_t nbytes), (fd, buffer, nbytes))

const char *const fault_row_names[FAULT_N_ROWS] = {
#define BTH_SYSCALL(result, name, parameters, function) [FAULT_##name] = #name,
#include "io/syscalls.def"
#undef BTH_SYSCALL
};

struct fault fault;
char fault_trace[4096];
static atomic_size_t fault_trace_nbytes;
static bth_system_table real; /* what stand-ins call */

static void fault_note(char letter)
{
    size_t at = atomic_fetch_add(&fault_trace_nbytes, 1);

    if (at < sizeof fault_trace - 1)
        fault_trace[at] = letter;
}

static bool fault_is_due(enum fault_row row)
{
    static const char letters[FAULT_N_ROWS] = {
        [FAULT_pwrite] = 'w',  [FAULT_pwritev] = 'w',   [FAULT_ftruncate] = 't',
        [FAULT_fsync] = 's',   [FAULT_fdatasync] = 'd', [FAULT_renameat] = 'r',
        [FAULT_unlinkat] = 'u'};

    if (letters[row])
        fault_note(letters[row]);
    unsigned n = atomic_fetch_add(&fault.n_calls[row], 1) + 1;
    if (row != fault.row || fault.nth == 0 ||
        (n != fault.nth && !(fault.for_ever && n > fault.nth)))
        return false;
    atomic_fetch_add(&fault.n_hits, 1);
    if (fault.before)
        fault.before();
    return !fault.before;
}

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

#define FAULT_ROW(name, parameters, arguments)                                                     \
    static ssize_t fault_##name parameters                                                         \
    {                                                                                              \
        if (!fault_is_due(FAULT_##name))                                                           \
            return real.name arguments;                                                            \
        if (fault.system_errno == FAULT_SHORT) {                                                   \
            nbytes = nbytes > 1 ? nbytes / 2 : nbytes;                                             \
            return real.name arguments;                                                            \
        }                                                                                          \
        errno = fault.system_errno;                                                                \
        return -1;                                                                                 \
    }
FAULT_TRANSFER_ROWS(FAULT_ROW)
#undef FAULT_ROW

static ssize_t fault_pwritev(int fd, const struct iovec *pieces, int n, off_t offset)
{
    if (!fault_is_due(FAULT_pwritev))
        return real.pwritev(fd, pieces, n, offset);
    if (fault.system_errno == FAULT_SHORT)
        return real.pwrite(fd, pieces->iov_base, (pieces->iov_len + 1) / 2, offset);
    errno = fault.system_errno;
    return -1;
}

static void *fault_mmap(void *address, size_t nbytes, int protection, int flags, int fd,
                        off_t offset)
{
    if (!fault_is_due(FAULT_mmap))
        return real.mmap(address, nbytes, protection, flags, fd, offset);
    errno = fault.system_errno;
    return MAP_FAILED;
}

static int fault_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                                void *(*start)(void *), void *argument)
{
    if (fault_is_due(FAULT_pthread_create))
        return fault.system_errno;
    return real.pthread_create(thread, attributes, start, argument);
}

static void *fault_dlopen(const char *name, int flags)
{
    return fault_is_due(FAULT_dlopen) ? NULL : real.dlopen(name, flags);
}

static void *fault_dlsym(void *library, const char *name)
{
    return fault_is_due(FAULT_dlsym) ? NULL : real.dlsym(library, name);
}

/* Nothing here loses its power: only the calls matter, and thousands of saves are made. */
static int pretend_to_sync(int fd)
{
    (void)fd;
    return 0;
}

static int pretend_to_write_back(int fd, off_t offset, off_t nbytes, unsigned flags)
{
    (void)fd, (void)offset, (void)nbytes, (void)flags;
    return 0;
}

void fault_set(enum fault_row row, unsigned nth, int system_errno, bool for_ever)
{
    bth_system_restore();
    real = bth_system;
    real.fsync = real.fdatasync = pretend_to_sync;
    real.sync_file_range = pretend_to_write_back;
    fault.row = row;
    fault.nth = nth;
    fault.system_errno = system_errno;
    fault.for_ever = for_ever;
    fault.before = NULL;
    for (size_t i = 0; i < FAULT_N_ROWS; i++)
        atomic_store(&fault.n_calls[i], 0);
    atomic_store(&fault.n_hits, 0);
    atomic_store(&fault_trace_nbytes, 0);
    memset(fault_trace, 0, sizeof fault_trace);
#define FAULT_ROW(result, name, parameters, arguments) bth_system.name = fault_##name;
    FAULT_ROWS(FAULT_ROW)
#undef FAULT_ROW
#define FAULT_ROW(name, parameters, arguments) bth_system.name = fault_##name;
    FAULT_TRANSFER_ROWS(FAULT_ROW)
#undef FAULT_ROW
    bth_system.pwritev = fault_pwritev;
    bth_system.mmap = fault_mmap;
    bth_system.pthread_create = fault_pthread_create;
    bth_system.dlopen = fault_dlopen;
    bth_system.dlsym = fault_dlsym;
}

void fault_clear(void)
{
    bth_system_restore();
}

const char *fault_row_without(void)
{
    void (*now[FAULT_N_ROWS])(void), (*before[FAULT_N_ROWS])(void);

    _Static_assert(sizeof now == sizeof bth_system, "the table is nothing but functions");
    memcpy(now, &bth_system, sizeof now);
    memcpy(before, &real, sizeof before);
    for (size_t i = 0; i < FAULT_N_ROWS; i++)
        if (now[i] == before[i])
            return fault_row_names[i];
    return NULL;
}

void check_points(unsigned line, unsigned n, unsigned least)
{
    printf("fault points W%u: %u\n", line, n);
    fflush(stdout);
    cr_assert_geq(n, least, "W%u: only %u fault points, not %u", line, n, least);
}

static bool is_among(enum fault_row row, const fault_kind *kinds, size_t n_kinds)
{
    for (size_t i = 0; i < n_kinds; i++)
        if (kinds[i].row == row)
            return true;
    return false;
}

void check_no_row_is_forgotten(const fault_kind *kinds, size_t n_kinds)
{
    for (enum fault_row row = 0; row < FAULT_N_ROWS; row++)
        cr_assert(!atomic_load(&fault.n_calls[row]) || is_among(row, kinds, n_kinds),
                  "%s: not in the table", fault_row_names[row]);
}
