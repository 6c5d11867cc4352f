/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Positioned reads and writes that transfer everything: they continue after short transfers and
 * EINTR, and wait after EAGAIN (W3). Any thread may call them for one descriptor. Messages name the
 * byte, not the file: the caller that knows the path adds it (bth_error_prefix).
 */
#ifndef BTH_IO_FILE_H
#define BTH_IO_FILE_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "berth.h"

/* What to do with a pipe; the package for Python knows the sentence. */
#define BTH_FILE_COPY_FIRST ": read it into memory or into a file, and open that"
#define BTH_FILE_IS_PIPE "is a pipe, which can be read only once and in order" BTH_FILE_COPY_FIRST

/* Opens a regular file for reading, with O_CLOEXEC (F1). Fails for folders and devices. */
int bth_file_open(const char *path, int *fd, uint64_t *nbytes, berth_error *error);
/* The current size of an open file; fails if it is not a regular file. */
int bth_file_size(int fd, uint64_t *nbytes, berth_error *error);
/* The path of an open file in /proc. */
#define BTH_FILE_PATH_NBYTES 32
const char *bth_file_proc_path(int fd, char path[BTH_FILE_PATH_NBYTES]);
/*
 * Makes a second open file description, through fd and not by its path (F1). flags: O_RDONLY or
 * O_WRONLY, and O_DIRECT. -1 and errno on failure.
 */
int bth_file_open_again(int fd, int flags);
/* Reads the start of a short file of the kernel, and adds a NUL. False: nothing could be read. */
bool bth_file_read_start_as_text(const char *path, char *text, size_t text_nbytes);
/* Ignores -1. A failure of close after reading is no error. */
void bth_file_close(int fd);

/* After a failed transfer: whether to repeat it. After EAGAIN, waits for `events` (of poll). */
bool bth_file_can_retry_after_wait(int fd, int system_errno, short events);
/* Reads exactly nbytes; BERTH_E_TRUNCATED if the file ends earlier. */
int bth_file_read(int fd, void *buffer, size_t nbytes, uint64_t offset, berth_error *error);
/* Writes exactly nbytes. BERTH_NO_OFFSET: at the descriptor's own position, also to pipes and
 * sockets. */
int bth_file_write(int fd, const void *buffer, size_t nbytes, uint64_t offset, berth_error *error);
/* Writes n pieces one after the other; changes the array. */
int bth_file_write_pieces(int fd, struct iovec *pieces, size_t n, uint64_t offset,
                          berth_error *error);

/*
 * X14: a write beyond RLIMIT_FSIZE raises SIGXFSZ, which kills the process. Our own threads block
 * the signal; a caller's thread blocks it until the end of the block, and then consumes it, unless
 * one was pending before.
 */
typedef struct bth_file_limit {
    sigset_t before; /* the thread's mask */
    bool was_pending;
} bth_file_limit;

bth_file_limit bth_file_limit_signal_block(void);
void bth_file_limit_signal_unblock(const bth_file_limit *held);

#define BTH_HOLD_FILE_LIMIT()                                                                      \
    __attribute__((cleanup(bth_file_limit_signal_unblock), unused))                                \
    const bth_file_limit bth_file_limit_held = bth_file_limit_signal_block()

/*
 * Extended attributes of open files. The system calls refuse O_PATH descriptors with EBADF: then
 * these functions use the descriptor's path in /proc, and fail with ENOENT if there is none.
 */

/* The kernel's limit for one value, and for all names together (XATTR_SIZE_MAX). */
#define BTH_MAX_XATTR_NBYTES 65536

/* The size of the value, or -1 and errno; ENODATA: the attribute does not exist. */
ssize_t bth_xattr_get(int fd, const char *name, void *value, size_t nbytes);
/* Each name ends with a NUL. */
ssize_t bth_xattr_list(int fd, char *names, size_t nbytes);
/* `flags`: 0, or XATTR_CREATE: fail with EEXIST if the attribute exists. */
int bth_xattr_set(int fd, const char *name, const void *value, size_t nbytes, int flags);

/* Whether errno means: no such attribute, or no attributes on this file system. */
bool bth_xattr_is_absent(int system_errno);

#endif
