/* SPDX-License-Identifier: BSD-3-Clause */
/* The stream format from before PyTorch 1.6, read-only, through the same pickle reader. Pure. */
#ifndef BTH_FORMAT_PICKLE_STREAM_READ_H
#define BTH_FORMAT_PICKLE_STREAM_READ_H

#include "format/pickle/pickle.h"

/* Whether a file beginning with these bytes is such a stream (80 02 8a 0a …); 14 bytes tell. */
bool bth_stream_is(const uint8_t *bytes, size_t nbytes);

typedef struct bth_stream {
    berth_value *root;
    /* What the machine that wrote it said of itself. Counts and elements are little-endian
       nevertheless: PyTorch encodes them so, and does not look at this when it loads. */
    bool recorded_little_endian;
    const char **keys; /* storages in the file's order: the key list; memory of the tree */
    size_t n_keys;
    uint64_t payload_offset; /* of the first storage's count */
} bth_stream;

/*
 * Reads the five pickles at the head. BERTH_E_TRUNCATED: bring more bytes (the tree is untouched).
 * `inert` as in bth_pickle_rules. The storages are then placed one by one: bth_stream_place.
 */
int bth_stream_read(const uint8_t *bytes, size_t nbytes, bool inert, berth_tree *tree,
                    bth_stream *stream, berth_error *error);

/*
 * Places storage i, whose 8-byte element count was read at `count_offset`: checks the count
 * against the storage's bytes, sets its offset (with the last one also that of views), and gives
 * the next count_offset. After the last one that is the file's end.
 */
int bth_stream_place(const bth_stream *stream, berth_tree *tree, size_t i, const uint8_t count[8],
                     uint64_t count_offset, uint64_t file_nbytes, uint64_t *next_offset,
                     berth_error *error);

#endif
