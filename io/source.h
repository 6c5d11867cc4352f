/* SPDX-License-Identifier: BSD-3-Clause */
/* The source of a load's bytes: a file, memory, or a function of the caller. */
#ifndef BTH_IO_SOURCE_H
#define BTH_IO_SOURCE_H

#include <stdatomic.h>

#include "berth.h"

/* Whether this process has loaded the file before, past the page cache. */
typedef enum bth_reader_reuse {
    BTH_READER_REUSE_UNKNOWN,
    BTH_READER_FIRST_LOAD,
    BTH_READER_LOADED_BEFORE,
} bth_reader_reuse;

typedef struct bth_reader {
    char *name;      /* for messages: the path, "memory", or the caller's name of the source */
    uint64_t nbytes; /* of the whole source */
    int fd;          /* -1 unless it is a file */
    bool has_path;   /* the name is a path */
    char *stand_in;  /* of a source without a path: what the command takes in its place; or NULL */
    const uint8_t *memory;           /* NULL unless it is memory */
    berth_source source;             /* used if it is neither */
    atomic_uint_fast64_t n_requests; /* reads done so far */
    atomic_uint_fast64_t moved_nbytes;
    _Atomic bth_reader_reuse reuse; /* for load.reuse=auto; see bth_access_choose */
} bth_reader;

/* A descriptor is duplicated. A failure leaves a closed reader. */
int bth_reader_open_source(const berth_source *source, bth_reader *reader, berth_error *error);
const char *bth_source_name(const berth_source *source);
void bth_reader_close(bth_reader *reader); /* does nothing to a reader of zeros, or with fd -1 */

/* The file that it reads, by itself or by the caller's function; -1: none, or it is not known. */
int bth_reader_file(const bth_reader *reader);
/* Whether a short read costs no more than a call of the system. */
bool bth_reader_is_near(const bth_reader *reader);

/* Reads exactly nbytes; BERTH_E_TRUNCATED if the source has fewer. Any thread may call it. */
int bth_reader_read(bth_reader *reader, void *buffer, size_t nbytes, uint64_t offset,
                    berth_error *error);
/* The same for a caller who puts the request into the trace. */
int bth_reader_read_untraced(bth_reader *reader, void *buffer, size_t nbytes, uint64_t offset,
                             berth_error *error);

/* Counts one read that did not go through bth_reader_read. */
void bth_reader_count_request(bth_reader *reader, size_t nbytes);

#endif
