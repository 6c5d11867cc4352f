/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * An archive as PyTorch writes it, put together by nothing but the layout and the header writers:
 * record by record, or with one lie in it.
 */
#ifndef TESTS_SUPPORT_COMPOSED_H
#define TESTS_SUPPORT_COMPOSED_H

#include <stdbool.h>

#include "format/layout.h"

struct record {
    const char *name; /* without the top folder */
    const void *bytes;
    uint64_t nbytes;
};

/* What is wrong about one record; zeros: nothing. */
struct lie {
    const char *record;
    uint64_t gap;            /* bytes of nothing before its header */
    uint32_t more_padding;   /* bytes between its header and its data, beyond the layout's */
    int64_t directory_shift; /* its directory entry's header offset is wrong by this */
    uint64_t descriptor_lie; /* the descriptor's sizes are larger by this */
    uint32_t descriptor_crc; /* xor */
    uint64_t directory_lie;  /* the directory's sizes are larger by this */
    bool unlisted;           /* not in the directory */
};

#define COMPOSED_MAX_RECORDS 64

typedef struct composed {
    uint8_t *bytes; /* malloc's, with one byte more */
    size_t nbytes;
    size_t n_records;
    bth_layout_entry places[COMPOSED_MAX_RECORDS];
    uint32_t sums[COMPOSED_MAX_RECORDS];
    size_t central_at[COMPOSED_MAX_RECORDS];
    size_t directory_at;
    size_t end_at; /* of the directory */
} composed;

/* `top`: the top folder, with its slash. `lie` may be NULL. */
void compose_archive(composed *file, const char *top, const struct record *records,
                     size_t n_records, uint32_t alignment, bool with_crc, const struct lie *lie);

#endif
