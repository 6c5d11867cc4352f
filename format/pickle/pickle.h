/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The restricted pickle: a reader that accepts no more than PyTorch's
 * weights_only=True (P1 to P5) and runs nothing, and a writer that emits what
 * torch.save does, byte for byte (FORMAT.md 6). Pure.
 */
#ifndef BTH_FORMAT_PICKLE_PICKLE_H
#define BTH_FORMAT_PICKLE_PICKLE_H

#include "format/values/value.h"

enum { BTH_FETCHED_BITS = 4096 };

/* What a look over a pickle tells before anything is built. Begins as zeros. */
typedef struct bth_pickle_survey {
    size_t extent; /* bytes up to and with STOP; until that is there, where to go on */
    size_t n_memo; /* one more than the largest memo index that is fetched */
    uint64_t fetched[BTH_FETCHED_BITS / 64]; /* by index modulo its bits: some such is fetched */
} bth_pickle_survey;

typedef struct bth_pickle_rules {
    bool inert;                      /* load.unknown_globals = inert */
    bool stream;                     /* from before 1.6: persistent ids have a sixth item */
    bool one_by_one;                 /* no short cuts: what they are compared with */
    const char *record;              /* for errors: "data.pkl" */
    uint64_t base_offset;            /* of bytes[0] in the file, for errors */
    const bth_pickle_survey *survey; /* of these bytes; NULL: the reader makes it */
} bth_pickle_rules;

/*
 * Finds the end of a pickle. BERTH_E_TRUNCATED if the bytes end before (the caller then brings
 * more, and calls again with the same survey), other codes if it can be none. Linear; allocates
 * nothing.
 */
int bth_pickle_look(const uint8_t *bytes, size_t nbytes, const bth_pickle_rules *rules,
                    bth_pickle_survey *survey, berth_error *error);

/*
 * Reads one pickle of exactly nbytes bytes into the tree, storages included. Text is copied:
 * `bytes` may go afterwards.
 */
int bth_pickle_read(const uint8_t *bytes, size_t nbytes, const bth_pickle_rules *rules,
                    berth_tree *tree, berth_value **root, berth_error *error);

/* What the writer made. */
typedef struct bth_pickled {
    uint8_t *bytes;
    size_t nbytes;
    const berth_storage **storages; /* storage i is record data/<i> */
    berth_dtype *dtypes;            /* its class in the file, by which PyTorch swaps: NONE: never */
    size_t n_storages;
} bth_pickled;

/*
 * Pickles a value as torch.save does. `foreign`: elements will be written in the other
 * byte order than this machine's; dtypes that PyTorch would not swap back are then refused
 * (FORMAT.md 7).
 */
int bth_pickle_write(const berth_value *root, bool foreign, bth_pickled *pickled,
                     berth_error *error);
void bth_pickled_free(bth_pickled *pickled);

/* What torch calls them, by berth_layout_kind. */
extern const char *const bth_layout_names[];

/* ---- files from before PyTorch 1.6 ---- */

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
