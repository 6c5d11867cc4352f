/* SPDX-License-Identifier: BSD-3-Clause */
/* Where a load's bytes come from: a file, memory, or the caller's own read function. */
#ifndef BTH_IO_SOURCE_H
#define BTH_IO_SOURCE_H

#include <stdatomic.h>

#include "berth.h"

typedef struct bth_reader {
    char *name;                      /* for messages: the path, "memory", or the caller's name */
    uint64_t nbytes;                 /* of the whole */
    int fd;                          /* -1 unless it is a file */
    const uint8_t *memory;           /* NULL unless it is memory */
    berth_source source;             /* the caller's, if neither */
    atomic_uint_fast64_t n_requests; /* reads done so far */
    atomic_uint_fast64_t moved_nbytes;
} bth_reader;

int bth_reader_open_path(const char *path, bth_reader *reader, berth_error *error);
int bth_reader_open_fd(int fd, bth_reader *reader, berth_error *error); /* duplicates it */
int bth_reader_open_memory(const void *bytes, size_t nbytes, bth_reader *reader,
                           berth_error *error);
/* Any of these, or the caller's function. */
int bth_reader_open_source(const berth_source *source, bth_reader *reader, berth_error *error);
/* What messages call it. */
const char *bth_source_name(const berth_source *source);
void bth_reader_close(bth_reader *reader); /* of zeros with fd -1: nothing */

/* Fills the buffer; a range beyond nbytes is BERTH_E_TRUNCATED before anything is read.
 * Thread-safe. */
int bth_reader_read(bth_reader *reader, void *buffer, size_t nbytes, uint64_t offset,
                    berth_error *error);

/* Counts one read that was done past it. */
void bth_reader_count(bth_reader *reader, size_t nbytes);

#endif
