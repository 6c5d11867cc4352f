/* SPDX-License-Identifier: BSD-3-Clause */
/* Where a load's bytes come from: a file, memory, or the caller's own read function. */
#ifndef BERTH_IO_SOURCE_H
#define BERTH_IO_SOURCE_H

#include <stdatomic.h>

#include "berth.h"

typedef struct berth_reader {
    char *name;                      /* for messages: the path, "memory", or the caller's name */
    uint64_t nbytes;                 /* of the whole */
    int fd;                          /* -1 unless it is a file */
    const uint8_t *memory;           /* NULL unless it is memory */
    berth_source source;             /* the caller's, if neither */
    atomic_uint_fast64_t n_requests; /* reads done so far */
    atomic_uint_fast64_t moved_nbytes;
} berth_reader;

int berth_reader_open_path(const char *path, berth_reader *reader, berth_error *error);
int berth_reader_open_fd(int fd, berth_reader *reader, berth_error *error); /* duplicates it */
int berth_reader_open_memory(const void *bytes, size_t nbytes, berth_reader *reader,
                             berth_error *error);
int berth_reader_open_source(const berth_source *source, berth_reader *reader, berth_error *error);
void berth_reader_close(berth_reader *reader); /* of zeros with fd -1: nothing */

/* Fills the buffer; a range beyond nbytes is BERTH_E_TRUNCATED before anything is read.
 * Thread-safe. */
int berth_reader_read(berth_reader *reader, void *buffer, size_t nbytes, uint64_t offset,
                      berth_error *error);

/* Counts one read that was done past it. */
void berth_reader_count(berth_reader *reader, size_t nbytes);

#endif
