/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Inside the pickle writer: the bytes being made, the memo, and the stack of
 * containers under way. Values can be nested as deep as memory allows, so nothing
 * recurses (P3): a container pushes a frame, and its step function is called until
 * it pops it. Failures are sticky: after the first one nothing more is emitted.
 */
#ifndef BERTH_FORMAT_PICKLE_EMIT_H
#define BERTH_FORMAT_PICKLE_EMIT_H

#include "format/pickle.h"

/* The opcodes that protocol 2 of CPython's pickler writes for our values (P1). */
enum {
    BERTH_OP_MARK = '(',
    BERTH_OP_STOP = '.',
    BERTH_OP_BINFLOAT = 'G',
    BERTH_OP_BININT = 'J',
    BERTH_OP_BININT1 = 'K',
    BERTH_OP_BININT2 = 'M',
    BERTH_OP_NONE = 'N',
    BERTH_OP_BINPERSID = 'Q',
    BERTH_OP_REDUCE = 'R',
    BERTH_OP_BINUNICODE = 'X',
    BERTH_OP_EMPTY_LIST = ']',
    BERTH_OP_APPEND = 'a',
    BERTH_OP_BUILD = 'b',
    BERTH_OP_GLOBAL = 'c',
    BERTH_OP_APPENDS = 'e',
    BERTH_OP_BINGET = 'h',
    BERTH_OP_LONG_BINGET = 'j',
    BERTH_OP_BINPUT = 'q',
    BERTH_OP_LONG_BINPUT = 'r',
    BERTH_OP_SETITEM = 's',
    BERTH_OP_TUPLE = 't',
    BERTH_OP_EMPTY_TUPLE = ')',
    BERTH_OP_SETITEMS = 'u',
    BERTH_OP_EMPTY_DICT = '}',
    BERTH_OP_PROTO = 0x80,
    BERTH_OP_NEWOBJ = 0x81,
    BERTH_OP_TUPLE1 = 0x85,
    BERTH_OP_TUPLE2 = 0x86,
    BERTH_OP_TUPLE3 = 0x87,
    BERTH_OP_NEWTRUE = 0x88,
    BERTH_OP_NEWFALSE = 0x89,
    BERTH_OP_LONG1 = 0x8a
};

/* A memo slot holds 0 (not met), BERTH_MEMO_OPEN (met, not yet built), or memo number + 1. */
#define BERTH_MEMO_OPEN UINT32_MAX

/* Index of '' among the texts of one character. */
#define BERTH_MEMO_EMPTY 256

/* Strings that are one object wherever CPython and torch's pickler name them. */
enum {
    BERTH_TEXT_STORAGE,
    BERTH_TEXT_CPU,
    BERTH_TEXT_META,
    BERTH_TEXT_MPS,
    BERTH_TEXT_LATIN1,
    BERTH_TEXT_COUNT
};

typedef struct berth_emitter berth_emitter;
typedef struct berth_frame berth_frame;

/* A container under way. A step may push other frames, which moves this one: it changes its
 * frame first and emits an inner value last. */
struct berth_frame {
    void (*step)(berth_emitter *emitter, berth_frame *frame);
    const berth_value *value; /* the node */
    const berth_value *inner; /* tensors: what is rebuilt, without its attributes */
    size_t at;                /* how far it is */
    bool items;               /* lists, dicts: the items of an inert object */
    bool detached;            /* tensors: a Parameter's .data, an object of its own without grad */
};

/* A global that was written. */
typedef struct berth_emitted_global {
    const char *module;
    const char *name;
    uint32_t memo;
} berth_emitted_global;

struct berth_emitter {
    berth_error *error;
    const berth_tree *tree;
    bool foreign;

    uint8_t *bytes;
    size_t nbytes;
    size_t capacity;

    uint32_t n_memo; /* the next number */
    uint32_t *nodes; /* slots by berth_value_id */
    uint32_t
        characters[BERTH_MEMO_EMPTY + 1]; /* texts of one byte that bytes are made of, and '' */
    uint32_t empty_bytes;                 /* b'' */
    uint32_t constants[BERTH_TEXT_COUNT]; /* BERTH_TEXT_… */
    uint32_t layouts[BERTH_JAGGED + 1];   /* torch.layout objects */
    berth_emitted_global *globals;        /* open hash table by module and name */
    size_t n_globals;
    size_t globals_capacity;

    const berth_storage **storages; /* in the order of first meeting */
    berth_dtype *dtypes;            /* storage i's class; BERTH_DTYPE_NONE: UntypedStorage */
    uint32_t *keys;                 /* storage i's memo slot of its key */
    size_t n_storages;
    size_t *met; /* by storage->index: 0, or position in storages + 1 */

    berth_frame *frames;
    size_t n_frames;
    size_t frames_capacity;
};

/* ---- bytes (pickle_emit.c) ---- */

void berth_emit_op(berth_emitter *emitter, int op);
void berth_emit_bool(berth_emitter *emitter, bool value);
void berth_emit_int(berth_emitter *emitter, int64_t value);
void berth_emit_float(berth_emitter *emitter, double value);
/* Two's complement, little-endian, nbytes > 0. */
void berth_emit_bigint(berth_emitter *emitter, const uint8_t *bytes, size_t nbytes);
/* BINUNICODE and its memo store; or a memo fetch, if the slot holds a number. */
void berth_emit_text(berth_emitter *emitter, const char *text, size_t nbytes, uint32_t *slot);
/* The same for bytes as latin-1 text. */
void berth_emit_latin1(berth_emitter *emitter, const uint8_t *bytes, size_t nbytes);
/* One of BERTH_TEXT_…. */
void berth_emit_constant(berth_emitter *emitter, int constant);
/* The position of a text in BERTH_TEXT_…, or -1. */
int berth_emit_find_constant(const char *text, size_t nbytes);

/* Stores the object just made. NULL: one that is never met again. */
void berth_emit_memo(berth_emitter *emitter, uint32_t *slot);
/* True and a memo fetch, if the slot holds a number. */
bool berth_emit_again(berth_emitter *emitter, const uint32_t *slot);

/* GLOBAL, stored or fetched by its text. The text must live as long as the emitter. */
void berth_emit_global(berth_emitter *emitter, const char *module, const char *name);

/* Ends a tuple of n items: TUPLE1 to TUPLE3; for more, a MARK was emitted before them. */
void berth_emit_tuple(berth_emitter *emitter, size_t n, uint32_t *slot);
/* MARK, where a tuple of n items needs it. */
void berth_emit_tuple_mark(berth_emitter *emitter, size_t n);
/* A tuple of ints that is never met again. */
void berth_emit_ints(berth_emitter *emitter, const int64_t *items, int32_t n);

/* ---- values (pickle_write.c) ---- */

/* A value, wherever it is met: fetched, emitted, or begun by pushing a frame. */
void berth_emit_value(berth_emitter *emitter, const berth_value *value);
void berth_emit_push(berth_emitter *emitter, const berth_frame *frame);
void berth_emit_pop(berth_emitter *emitter);
/* The memo slot of a node, or NULL for what is never stored. */
uint32_t *berth_emit_slot(berth_emitter *emitter, const berth_value *value);
/* torch.layout. */
void berth_emit_layout(berth_emitter *emitter, berth_layout_kind layout);
/* torch.Size, which `slot` remembers. */
void berth_emit_size(berth_emitter *emitter, const int64_t *shape, int32_t rank, uint32_t *slot);

/* ---- tensors (pickle_write_tensor.c) ---- */

/* A persistent id: `dtype` decides the storage class. */
void berth_emit_storage(berth_emitter *emitter, const berth_storage *storage, berth_dtype dtype);
/* Begins a TENSOR, SPARSE, NESTED, PARAMETER or SUBCLASS. */
void berth_emit_tensor(berth_emitter *emitter, const berth_value *value, bool detached);
/* torch.per_tensor_affine and friends. */
void berth_emit_qscheme(berth_emitter *emitter, berth_qscheme scheme);

#endif
