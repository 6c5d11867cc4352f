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

/* What the scan of a pickle finds before anything is built. Begins as zeros. */
typedef struct bth_pickle_survey {
    size_t extent; /* bytes up to and including STOP; until STOP is found, where the scan goes on */
    size_t n_memo; /* one more than the largest memo index that is fetched */
    /* A bit for each memo index, modulo their number: it may be fetched. */
    uint64_t fetched[BTH_FETCHED_BITS / 64];
} bth_pickle_survey;

typedef struct bth_pickle_rules {
    bool inert;                      /* load.unknown_globals = inert */
    bool latin1;                     /* load.old_text = latin1 */
    bool legacy;                     /* from before 1.6: persistent ids have a sixth item */
    bool one_by_one;                 /* opcode by opcode, for comparison */
    const char *record;              /* for errors: "data.pkl" */
    uint64_t base_offset;            /* of bytes[0] in the file, for errors */
    const bth_pickle_survey *survey; /* of these bytes; NULL: the reader makes it */
} bth_pickle_rules;

/* Finds the end of a pickle. BERTH_E_TRUNCATED if the bytes end before it: call again with more
 * bytes and the same survey. Any other code: this is no pickle. Linear; allocates nothing. */
int bth_pickle_find_end_and_fetches(const uint8_t *bytes, size_t nbytes,
                                    const bth_pickle_rules *rules, bth_pickle_survey *survey,
                                    berth_error *error);

/* Reads one pickle of exactly these bytes into the tree, with its storages. Keeps no pointer. */
int bth_pickle_read(const uint8_t *bytes, size_t nbytes, const bth_pickle_rules *rules,
                    berth_tree *tree, berth_value **root, berth_error *error);

/* ---- pickles that are refused ---- */

enum {
    BTH_LEGACY_N_PICKLES = 5,     /* of a file in the legacy format */
    BTH_GLOBAL_SHOWN_NBYTES = 100 /* of a module and of a name: more is not shown */
};

/* A global that a pickle names, each time that it does: at most BTH_GLOBAL_SHOWN_NBYTES of each
 * text. "?": a name that the walk could not follow. */
typedef void (*bth_global_seen)(void *context, const char *module, const char *name,
                                bool is_allowed);

/* The first global of a pickle that is not one of those that a checkpoint may name (P1). */
typedef struct bth_found_global {
    char words[2 * BTH_GLOBAL_SHOWN_NBYTES + 16]; /* "the global os system"; "": there is none */
    bool is_pickle; /* the bytes are a pickle, though they do not begin with PROTO */
    bool is_dotted; /* this and the rest: the finder's own */
    bool is_called;
    bool ignores_distributed;
    bth_global_seen report; /* NULL: the first is enough */
    void *context;
} bth_found_global;

/* Looks for it in a pickle of any protocol, or in the BTH_LEGACY_N_PICKLES that follow each other
 * there. Ends with the bytes, or where they are no opcode. `ignores_distributed`: the classes of
 * torch.distributed.checkpoint do not count. Linear; allocates nothing. */
void bth_pickle_find_global(const uint8_t *bytes, size_t nbytes, bool ignores_distributed,
                            bth_found_global *found);

/* Reports all globals of n_pickles pickles that follow each other, of any protocol: of GLOBAL, INST
 * and STACK_GLOBAL, whose texts can come from the memo, and extension codes. *is_whole: all of them
 * end in these bytes. Linear; 32 MiB of memory at most. */
int bth_pickle_list_globals(const uint8_t *bytes, size_t nbytes, size_t n_pickles,
                            bth_global_seen report, void *context, bool *is_whole,
                            berth_error *error);

/* How a message ends that refuses an opcode because of the pickle's protocol. */
#define BTH_REFUSED_FOR_PROTOCOL ", which PyTorch's weights_only=True refuses, too"

/* How a message ends that refuses a global. */
#define BTH_REFUSED_FOR_GLOBAL                                                                     \
    " (load.unknown_globals=inert lists such files without running anything)"

/* What a file of another pickle protocol than 2 and 3 needs: a command before the file's name, and
 * what it does. Protocols 4 and 5 are read safely; nothing else can read the others. */
#define BTH_CONVERT_INERT "berth convert --set load.unknown_globals=inert "
#define BTH_RESAVE_BY_PYTORCH                                                                      \
    "python3 -c \"import sys, torch; torch.save(torch.load(sys.argv[1], weights_only=False), "     \
    "'NEW.pt')\" "
#define BTH_RESAVE_DOES "saves it again, but runs what is in it: only if you trust the file"

/* What the writer made. */
typedef struct bth_pickled {
    uint8_t *bytes;
    size_t nbytes;
    const berth_storage **storages; /* storage i is record data/<i> */
    berth_dtype *dtypes; /* its class in the file; PyTorch swaps bytes by it, and never for NONE */
    size_t n_storages;
    bool has_nested; /* PyTorch 2.15 loads nested tensors with weights_only=False alone */
} bth_pickled;

/* Pickles a value as torch.save does. `foreign`: elements will be written in the other byte order;
 * dtypes that PyTorch would not swap back are then refused (FORMAT.md 7). */
int bth_pickle_write(const berth_value *root, bool foreign, bth_pickled *pickled,
                     berth_error *error);
void bth_pickled_free(bth_pickled *pickled);

/* PyTorch's names of layouts, by berth_layout_kind. */
extern const char *const bth_layout_names[];

/* ---- files from before PyTorch 1.6 ---- */

/* Whether a file that begins with these bytes (14 are enough) is in the legacy format. */
bool bth_is_legacy(const uint8_t *bytes, size_t nbytes);
/* The same in any protocol that has frames or not; so many bytes are enough. */
#define BTH_LEGACY_MAGIC_NBYTES 32
bool bth_legacy_begins(const uint8_t *bytes, size_t nbytes);

typedef struct bth_legacy {
    berth_value *root;
    /* Of the machine that wrote the file. PyTorch ignores it: all is little-endian nevertheless. */
    bool recorded_little_endian;
    const char **keys; /* storages in the file's order: the key list; memory of the tree */
    size_t n_keys;
    uint64_t payload_offset; /* of the first storage's count */
} bth_legacy;

/* Reads the five pickles at the head. BERTH_E_TRUNCATED: call again with more bytes (the tree is
 * unchanged). common: `inert`, of the object, and `latin1`. Then call
 * bth_legacy_check_count_and_set_offset for each storage. */
int bth_legacy_read_pickles(const uint8_t *bytes, size_t nbytes, const bth_pickle_rules *common,
                            berth_tree *tree, bth_legacy *legacy, berth_error *error);

/* Checks the 8-byte element count of storage i, which was read at `count_offset`, against its size.
 * Sets the storage's offset (after the last storage also those of views) and *next_offset: the
 * offset of the next count, or of the file's end. */
int bth_legacy_check_count_and_set_offset(const bth_legacy *legacy, berth_tree *tree, size_t i,
                                          const uint8_t count[8], uint64_t count_offset,
                                          uint64_t file_nbytes, uint64_t *next_offset,
                                          berth_error *error);

#endif
