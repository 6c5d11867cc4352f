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

#endif
