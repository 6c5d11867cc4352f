/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Private to the pickle writer: the output, the memo, and the stack of containers that are being
 * written. Values can be nested as deep as memory allows, so nothing recurses (P3): a container
 * pushes a frame, and its step function is called until it pops the frame. It is no walk over
 * values (format/values/walk.h), because opcodes stand between the children, and a repeated value
 * is written again as a memo fetch. After the first failure nothing more is written.
 */
#ifndef BTH_FORMAT_PICKLE_PICKLE_EMIT_H
#define BTH_FORMAT_PICKLE_PICKLE_EMIT_H

#include "format/pickle/pickle.h"

/* The opcodes that protocol 2 of CPython's pickler writes for our values (P1). */
enum {
    BTH_OP_MARK = '(',
    BTH_OP_STOP = '.',
    BTH_OP_BINFLOAT = 'G',
    BTH_OP_BININT = 'J',
    BTH_OP_BININT1 = 'K',
    BTH_OP_BININT2 = 'M',
    BTH_OP_NONE = 'N',
    BTH_OP_BINPERSID = 'Q',
    BTH_OP_REDUCE = 'R',
    BTH_OP_BINUNICODE = 'X',
    BTH_OP_EMPTY_LIST = ']',
    BTH_OP_APPEND = 'a',
    BTH_OP_BUILD = 'b',
    BTH_OP_GLOBAL = 'c',
    BTH_OP_APPENDS = 'e',
    BTH_OP_BINGET = 'h',
    BTH_OP_LONG_BINGET = 'j',
    BTH_OP_BINPUT = 'q',
    BTH_OP_LONG_BINPUT = 'r',
    BTH_OP_SETITEM = 's',
    BTH_OP_TUPLE = 't',
    BTH_OP_EMPTY_TUPLE = ')',
    BTH_OP_SETITEMS = 'u',
    BTH_OP_EMPTY_DICT = '}',
    BTH_OP_PROTO = 0x80,
    BTH_OP_NEWOBJ = 0x81,
    BTH_OP_TUPLE1 = 0x85,
    BTH_OP_TUPLE2 = 0x86,
    BTH_OP_TUPLE3 = 0x87,
    BTH_OP_NEWTRUE = 0x88,
    BTH_OP_NEWFALSE = 0x89,
    BTH_OP_LONG1 = 0x8a
};

/* A memo slot holds 0 (not met), BTH_MEMO_OPEN (met, not yet built), or memo number + 1. */
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

typedef struct bth_emitter bth_emitter;
typedef struct bth_frame bth_frame;

/*
 * A container that is being written. A step may push other frames, which moves this one: so it
 * changes its frame first and emits an inner value last.
 */
struct bth_frame {
    void (*step)(bth_emitter *emitter, bth_frame *frame);
    const berth_value *value; /* the node */
    const berth_value *inner; /* tensors: what is rebuilt, without its attributes */
    size_t at;                /* how far it is */
    bool items;               /* lists, dicts: the items of an inert object */
    bool detached;            /* tensors: a Parameter's .data, an object of its own without grad */
};

/* A global that was written. */
typedef struct bth_emitted_global {
    const char *module;
    const char *name;
    uint32_t memo;
} bth_emitted_global;

struct bth_emitter {
    berth_error *error;
    const berth_tree *tree;
    bool foreign;

    uint8_t *bytes;
    size_t nbytes;
    size_t capacity;

    uint32_t n_memo;                         /* the next number */
    uint32_t *nodes;                         /* slots by bth_value_id */
    uint32_t characters[BTH_MEMO_EMPTY + 1]; /* texts of one byte that bytes are made of, and '' */
    uint32_t empty_bytes;                    /* b'' */
    uint32_t constants[BTH_TEXT_COUNT];      /* BERTH_TEXT_… */
    uint32_t layouts[BERTH_JAGGED + 1];      /* torch.layout objects */
    bth_emitted_global *globals;             /* open hash table by module and name */
    size_t n_globals;
    size_t globals_capacity;

    const berth_storage **storages; /* in the order of first meeting */
    berth_dtype *dtypes;            /* storage i's class; BERTH_DTYPE_NONE: UntypedStorage */
    uint32_t *keys;                 /* storage i's memo slot of its key */
    size_t n_storages;
    size_t *met; /* by storage->index: 0, or position in storages + 1 */

    bth_frame *frames;
    size_t n_frames;
    size_t frames_capacity;
};

/* ---- bytes (pickle_emit.c) ---- */

void bth_emit_op(bth_emitter *emitter, int op);
void bth_emit_bool(bth_emitter *emitter, bool value);
void bth_emit_int(bth_emitter *emitter, int64_t value);
void bth_emit_float(bth_emitter *emitter, double value);
/* Two's complement, little-endian, nbytes > 0. */
void bth_emit_bigint(bth_emitter *emitter, const uint8_t *bytes, size_t nbytes);
/* BINUNICODE and its memo store; or a memo fetch, if the slot holds a number. */
void bth_emit_text(bth_emitter *emitter, const char *text, size_t nbytes, uint32_t *slot);
/* The same for bytes as latin-1 text. */
void bth_emit_latin1(bth_emitter *emitter, const uint8_t *bytes, size_t nbytes);
/* One of BERTH_TEXT_…. */
void bth_emit_constant(bth_emitter *emitter, int constant);
/* The position of a text in BERTH_TEXT_…, or -1. */
int bth_emit_find_constant(const char *text, size_t nbytes);

/* Stores the object just made. NULL: an object that does not occur again. */
void bth_emit_memo(bth_emitter *emitter, uint32_t *slot);
/* Emits a memo fetch and returns true, if the slot holds a number. */
bool bth_emit_again(bth_emitter *emitter, const uint32_t *slot);

/* GLOBAL, stored or fetched by its text. The text must live as long as the emitter. */
void bth_emit_global(bth_emitter *emitter, const char *module, const char *name);

/* Ends a tuple of n items: TUPLE1 to TUPLE3; for more, a MARK was emitted before them. */
void bth_emit_tuple(bth_emitter *emitter, size_t n, uint32_t *slot);
/* MARK, where a tuple of n items needs it. */
void bth_emit_tuple_mark(bth_emitter *emitter, size_t n);
/* A tuple of ints that does not occur again. */
void bth_emit_ints(bth_emitter *emitter, const int64_t *items, int32_t n);

/* ---- values (pickle_write.c) ---- */

/* Emits a value: as a memo fetch, at once, or by pushing a frame. */
void bth_emit_value(bth_emitter *emitter, const berth_value *value);
void bth_emit_push(bth_emitter *emitter, const bth_frame *frame);
void bth_emit_pop(bth_emitter *emitter);
/* The memo slot of a node, or NULL for what is never stored. */
uint32_t *bth_emit_slot(bth_emitter *emitter, const berth_value *value);
/* torch.layout. */
void bth_emit_layout(bth_emitter *emitter, berth_layout_kind layout);
/* torch.Size, which `slot` remembers. */
void bth_emit_size(bth_emitter *emitter, const int64_t *shape, int32_t rank, uint32_t *slot);

/* ---- tensors (pickle_write_tensor.c) ---- */

/* A persistent id: `dtype` decides the storage class. */
void bth_emit_storage(bth_emitter *emitter, const berth_storage *storage, berth_dtype dtype);
/* Begins a TENSOR, SPARSE, NESTED, PARAMETER or SUBCLASS. */
void bth_emit_tensor(bth_emitter *emitter, const berth_value *value, bool detached);
/* torch.per_tensor_affine and friends. */
void bth_emit_qscheme(bth_emitter *emitter, berth_qscheme scheme);

#endif
