/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Private to the pickle writer: its output, its memo, and its walk over the values. Nothing
 * recurses (P3): a container enters the walk, and its step function is called until it leaves.
 * After the first failure nothing more is written.
 */
#ifndef BTH_FORMAT_PICKLE_PICKLE_EMITTER_H
#define BTH_FORMAT_PICKLE_PICKLE_EMITTER_H

#include "berth/more.h"
#include "format/pickle/pickle_opcodes.h"

/* A memo slot holds 0 (not begun), BTH_MEMO_OPEN (begun, not complete), or memo number + 1. */
#define BTH_MEMO_OPEN UINT32_MAX

/* Index of '' among the texts of one character. */
#define BTH_MEMO_EMPTY 256

/* Strings of which CPython and torch's pickler have one object. */
enum {
    BTH_TEXT_STORAGE,
    BTH_TEXT_CPU,
    BTH_TEXT_META,
    BTH_TEXT_MPS,
    BTH_TEXT_LATIN1,
    BTH_TEXT_COUNT
};

/* Notes of a frame of the walk. */
enum {
    BTH_NOTE_KEY = 1,       /* dicts: the key of the next item was written */
    BTH_NOTE_ITEMS = 2,     /* lists, dicts: the items of an inert object */
    BTH_NOTE_BUILD = 4,     /* dicts, calls: the state was written, and BUILD is next */
    BTH_NOTE_STATE = 8,     /* tensors: the state was written, and REDUCE is next */
    BTH_NOTE_DETACHED = 16, /* tensors: a Parameter's .data, an object of its own without grad */
    BTH_NOTE_TYPE = 32      /* tensors: their inert class was written, and the arguments are next */
};

/* A global that was written. */
typedef struct bth_emitted_global {
    const char *module;
    const char *name;
    uint32_t memo;
} bth_emitted_global;

#define BTH_N_RECENT 16 /* globals */

typedef struct bth_emitter {
    berth_error *error;
    bool foreign;
    bth_pickled out;
    size_t capacity; /* of out.bytes */
    bth_walk walk;

    uint32_t n_memo;                         /* the next number */
    uint32_t *nodes;                         /* slots by bth_value_id */
    uint32_t characters[BTH_MEMO_EMPTY + 1]; /* texts of one byte that bytes are made of, and '' */
    uint32_t empty_bytes;                    /* b'' */
    uint32_t constants[BTH_TEXT_COUNT];      /* BTH_TEXT_… */
    uint32_t layouts[BERTH_JAGGED + 1];      /* torch.layout objects */
    bth_emitted_global *globals;             /* open hash table by module and name */
    size_t n_globals;
    size_t globals_capacity;
    /* By the address of the name, most of which are constants: a tensor names three globals. */
    bth_emitted_global *recent[BTH_N_RECENT];

    uint32_t *keys;    /* memo slots of the keys of out.storages */
    size_t *positions; /* by storage->index: position in out.storages + 1; 0: none yet */
} bth_emitter;

/* A value that pickle protocol 2, or PyTorch, cannot hold. */
#define BTH_EMIT_REFUSE(emitter, ...)                                                              \
    ((void)bth_fail((emitter)->error, BERTH_E_UNSUPPORTED, BTH_PICKLE_RECORD, BERTH_NO_OFFSET,     \
                    __VA_ARGS__))
#define BTH_PICKLE_RECORD "data.pkl"

/* ---- bytes (pickle_write.c) ---- */

void bth_emit_op(bth_emitter *emitter, int op);
void bth_emit_bool(bth_emitter *emitter, bool value);
void bth_emit_int(bth_emitter *emitter, int64_t value);
void bth_emit_float(bth_emitter *emitter, double value);
/* BINUNICODE and its memo store; or a memo fetch, if the slot holds a number. */
void bth_emit_text(bth_emitter *emitter, const char *text, size_t nbytes, uint32_t *slot);
/* The position of a text in BTH_TEXT_…, or -1. */
int bth_constant_text_find(const char *text, size_t nbytes);

/* Stores the last object in the memo. NULL: an object that does not occur again. */
void bth_emit_memoize(bth_emitter *emitter, uint32_t *slot);
/* GLOBAL, stored or fetched by its text. The text must live as long as the emitter. */
void bth_emit_global(bth_emitter *emitter, const char *module, const char *name);

/* Before and behind the n items of a tuple: a MARK if it needs one; TUPLE1 to TUPLE3, or TUPLE. */
void bth_emit_tuple_mark(bth_emitter *emitter, size_t n);
void bth_emit_tuple_end(bth_emitter *emitter, size_t n, uint32_t *slot);
/* A tuple of ints that does not occur again. */
void bth_emit_ints(bth_emitter *emitter, const int64_t *items, int32_t n);
/* OrderedDict(). */
void bth_emit_ordered_dict(bth_emitter *emitter, uint32_t *slot);

/* ---- values (pickle_write.c) ---- */

/* Emits a value: as a memo fetch, at once, or by entering it. This can move the frames of the walk:
 * a step function changes its frame first, and emits an inner value last. */
void bth_emit_value(bth_emitter *emitter, const berth_value *value);
/* Puts a value on top of the walk: its step function is called next. NULL: does nothing. */
void bth_emit_push_value(bth_emitter *emitter, const berth_value *value, uint32_t notes);
/* The memo slot of a node, or NULL if the node is never stored. */
uint32_t *bth_emitter_memo_slot(bth_emitter *emitter, const berth_value *value);
/* torch.layout. */
void bth_emit_tensor_layout(bth_emitter *emitter, berth_layout_kind layout);
/* torch.Size, which `slot` remembers. */
void bth_emit_torch_size(bth_emitter *emitter, const int64_t *shape, int32_t rank, uint32_t *slot);

/* ---- tensors (pickle_write_tensor.c) ---- */

/* A persistent id: `dtype` decides the storage class. */
void bth_emit_storage(bth_emitter *emitter, const berth_storage *storage, berth_dtype dtype);
/* Begins a TENSOR, SPARSE, NESTED, PARAMETER or SUBCLASS. */
void bth_emit_tensor(bth_emitter *emitter, const berth_value *value, uint32_t notes);
void bth_emit_tensor_step(bth_emitter *emitter, bth_walk_frame *frame);
/* torch.per_tensor_affine and friends. */
void bth_emit_qscheme(bth_emitter *emitter, berth_qscheme scheme);

#endif
