/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Positioned reads and writes that finish: short transfers and EINTR are continued, EAGAIN is
 * waited for (W3). Thread-safe on one descriptor. Messages name the byte, not the file: who has the
 * path puts it in front (bth_error_prefix).
 */
#ifndef BTH_IO_FILE_H
#define BTH_IO_FILE_H

#include <sys/uio.h>

#include "berth.h"

/* Opens a regular file for reading with O_CLOEXEC (F1): *fd and *nbytes. Folders, devices: an
 * error. */
int bth_file_open(const char *path, int *fd, uint64_t *nbytes, berth_error *error);
/* The size now of what is open, which must be a regular file. */
int bth_file_size(int fd, uint64_t *nbytes, berth_error *error);
/*
 * A second description of what fd is open on, through fd and never by path (F1); flags: O_RDONLY or
 * O_WRONLY, and O_DIRECT. -1 and errno where that cannot be.
 */
int bth_file_open_again(int fd, int flags);
/* The beginning of a short file of the kernel's, with a NUL behind it. False if it has none. */
bool bth_file_read_text(const char *path, char *text, size_t text_nbytes);
/* Closes; a failure of close after reading is no error. */
void bth_file_close(int fd);

/* After a transfer that failed: whether it is to be tried again, after waiting where EAGAIN says so
 * (`events` as of poll). */
bool bth_file_may_continue(int fd, int system_errno, short events);
/* Reads exactly nbytes; the end of the file before that is BERTH_E_TRUNCATED. */
int bth_file_read(int fd, void *buffer, size_t nbytes, uint64_t offset, berth_error *error);
/* Writes exactly nbytes. */
int bth_file_write(int fd, const void *buffer, size_t nbytes, uint64_t offset, berth_error *error);
/* Gathers n pieces (the array is used up) to one position. */
int bth_file_write_pieces(int fd, struct iovec *pieces, size_t n, uint64_t offset,
                          berth_error *error);
/* Writes in order at the descriptor's own position: pipes, sockets. */
int bth_file_append(int fd, const void *buffer, size_t nbytes, berth_error *error);

#endif
