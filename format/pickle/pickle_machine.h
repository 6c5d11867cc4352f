/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The pickle reader's machine, private to its files. Each file calls only those below it:
 *
 *     pickle_run.c             looks ahead; runs the opcodes; stack, memo, persistent ids
 *     pickle_usual_tensor.c    a usual tensor at once
 *     pickle_build.c           what REDUCE, NEWOBJ and BUILD make
 *     pickle_globals.c         the known globals; what a refused pickle names
 *     pickle_opcodes.c         the table of opcodes; errors
 */
#ifndef BTH_FORMAT_PICKLE_PICKLE_MACHINE_H
#define BTH_FORMAT_PICKLE_PICKLE_MACHINE_H

#include <string.h>

#include "base/error.h"
#include "format/pickle/pickle_opcodes.h"
#include "format/values/node.h"

/* The usual tensor: as torch.save writes all but the first of its class, always the same opcodes
 * with other arguments. Most of a checkpoint's pickle consists of them. */
enum {
    BTH_USUAL_NBYTES = 192, /* more than its size; only looked for where so many are left */
    BTH_USUAL_RANK = 6,
    BTH_USUAL_KEY_NBYTES = 16,
    BTH_USUAL_PUTS = 6
};

/* What it fetches: _rebuild_tensor_v2, 'storage', class, key, location, OrderedDict. */
enum {
    BTH_USUAL_FUNCTION,
    BTH_USUAL_WORD,
    BTH_USUAL_CLASS,
    BTH_USUAL_KEY,
    BTH_USUAL_LOCATION,
    BTH_USUAL_HOOKS,
    BTH_USUAL_GETS
};

typedef struct bth_usual {
    uint32_t gets[BTH_USUAL_GETS];
    uint32_t puts[BTH_USUAL_PUTS];
    size_t n_puts;
    const char *key; /* NULL: it is fetched */
    size_t key_nbytes;
    int64_t numel; /* this and the numbers below are 0 to 2^31 - 1 */
    int64_t offset;
    int64_t size[BTH_USUAL_RANK];
    int64_t stride[BTH_USUAL_RANK];
    int32_t rank;
    int32_t stride_rank;
    bool requires_grad;
} bth_usual;

/* Its size, or 0 if there is none. Needs BTH_USUAL_NBYTES bytes. */
size_t bth_usual_tensor_parse(const uint8_t *bytes, bth_usual *usual);

/* ---- globals ---- */

typedef enum bth_what {
    BTH_IS_CALLABLE,
    BTH_IS_PARAMETER_CLASS,
    BTH_IS_TENSOR_CLASS,
    BTH_IS_NEVER_CALLED,
    BTH_IS_QSCHEME,
    BTH_IS_DTYPE,
    BTH_IS_STORAGE_CLASS
} bth_what;

typedef struct bth_unpickler bth_unpickler;

/* What REDUCE builds: one for each function of pickle_globals.def. */
enum bth_build {
    BTH_BUILD_NOTHING,
#define BTH_CALLABLE(module, name, build, wanted, optional) BTH_BUILD_##build,
#include "format/pickle/pickle_globals.def"
};

/* A global that may be named. */
typedef struct bth_known {
    const char *module;
    const char *name;
    const char *arguments; /* CALLABLE: a letter each */
    enum bth_build build;  /* CALLABLE */
    bth_what what;
    uint8_t min_arguments, max_arguments; /* CALLABLE */
    int number; /* TENSOR_CLASS, DTYPE, STORAGE_CLASS: the dtype; QSCHEME: the scheme */
} bth_known;

enum { BTH_MAX_GLOBALS = 255 };

extern const bth_known bth_globals[]; /* the rows of pickle_globals.def and of dtypes.def */

/* ---- the machine ---- */

/* A Parameter or tensor that files from before PyTorch 0.4 make in two steps: its BUILD is still to
 * come. It is resolved when it is used or built. */
typedef struct bth_pending {
    berth_value *value;  /* NULL until resolved */
    berth_value *tensor; /* of a Parameter; NULL: a tensor class */
    bool requires_grad;
    berth_dtype dtype; /* of a tensor class; BERTH_DTYPE_NONE: any */
} bth_pending;

/* Slots of the stack and the memo hold nodes, or by the low bits of the pointer: marks (with the
 * index of the mark below), and pending objects. */
#define BTH_TAG_MARK 1u
#define BTH_TAG_PENDING 2u
#define BTH_TAG_BITS 3u

struct bth_unpickler {
    const uint8_t *bytes;
    size_t nbytes;
    size_t op_at; /* the opcode at hand */
    const bth_pickle_rules *rules;
    const bth_pickle_survey *survey;
    berth_tree *tree;
    berth_error *error;
    bool stopped;

    berth_value **stack;
    size_t depth;
    size_t capacity;
    size_t floor;       /* first slot above the last MARK */
    berth_value **memo; /* of indices that are fetched */
    size_t n_memo;
    bool has_pending;
    bool is_protocol_4; /* inert, and the pickle begins with PROTO 4 or 5 */
    bool has_put;       /* a PUT or MEMOIZE was there */
    size_t n_memoized;
    size_t names_nbytes; /* of the texts that STACK_GLOBAL has copied */

    berth_value *small_ints[256];          /* made once */
    berth_value *globals[BTH_MAX_GLOBALS]; /* the nodes of those that were named */

    /* A tuple of arguments for the next opcode alone: see read_make_tuple(). Last, because it ends
     * with a flexible array. */
    union {
        struct tuple_node tuple;
        char room[sizeof(struct tuple_node) + 8 * sizeof(berth_value *)];
    } arguments;
};

/* Sets the error with record and byte of the opcode at hand; returns its code. */
int bth_unpickle_fail(bth_unpickler *unpickler, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
#define BTH_BAD_PICKLE(unpickler, ...) bth_unpickle_fail(unpickler, BERTH_E_PICKLE, __VA_ARGS__)
/* The same, for functions that return a value. */
#define BTH_UNPICKLE_REFUSE(unpickler, ...) ((void)bth_unpickle_fail(unpickler, __VA_ARGS__), NULL)
/* The same with the tree's message behind "subject: ", unless an error is set already. */
int bth_unpickle_fail_by_tree_error(bth_unpickler *unpickler, const char *subject);

static inline const char *bth_unpickle_opcode_name(const bth_unpickler *unpickler)
{
    return bth_opcodes[unpickler->bytes[unpickler->op_at]].name;
}

static inline uintptr_t bth_slot_tag(const berth_value *slot)
{
    return (uintptr_t)slot & BTH_TAG_BITS;
}

/* Allocates the memo, for indices that are fetched. */
int bth_unpickle_allocate_memo(bth_unpickler *unpickler);
/* Whether a memo index may be fetched. */
static inline bool bth_unpickle_memo_may_be_fetched(const bth_unpickler *unpickler, uint64_t index)
{
    return index < unpickler->n_memo &&
           unpickler->survey->fetched[index % BTH_FETCHED_BITS / 64] >> index % 64 & 1;
}

/* The node of GLOBAL module name; unknown ones are refused, or inert. */
berth_value *bth_unpickle_make_global(bth_unpickler *unpickler, const bth_argument *argument);

/* What a GLOBAL means; NULL for an unknown one and for any other value. */
static inline const bth_known *bth_node_known_global(const berth_value *value)
{
    const struct global_node *node = (const struct global_node *)value;
    bool is_known = bth_node_is(value, BERTH_KIND_GLOBAL) && node->known;
    return is_known ? &bth_globals[node->known - 1] : NULL;
}

/* Whether it names a storage class; *dtype is then that of the class. */
static inline bool bth_node_is_storage_class(const berth_value *value, berth_dtype *dtype)
{
    const bth_known *known = bth_node_known_global(value);
    bool is_class = known && known->what == BTH_IS_STORAGE_CLASS;
    *dtype = is_class ? (berth_dtype)known->number : BERTH_DTYPE_NONE;
    return is_class;
}

/* REDUCE and NEWOBJ: the new object (possibly pending), or NULL: error or tree has failed. */
berth_value *bth_unpickle_reduce(bth_unpickler *unpickler, berth_value *callable,
                                 berth_value *arguments, bool new_object);
/* The object behind a slot that is pending. */
berth_value *bth_unpickle_resolve_pending(bth_unpickler *unpickler, berth_value *slot);
/* BUILD on the item on top, pending or not. */
int bth_unpickle_build(bth_unpickler *unpickler, berth_value *slot, berth_value *state);

/* Makes the usual tensor at `bytes`: NULL if there is no memory. Returns its size, or 0 if there is
 * none. */
size_t bth_unpickle_make_usual_tensor(const bth_unpickler *unpickler, const uint8_t *bytes,
                                      berth_value **tensor);

/* The items of a tuple; SIZE_MAX for any other kind. */
static inline size_t bth_node_tuple_items(const berth_value *value, berth_value *const **items)
{
    const struct tuple_node *tuple = (const struct tuple_node *)value;
    if (value->kind != BERTH_KIND_TUPLE)
        return SIZE_MAX;
    *items = tuple->items;
    return tuple->key.count;
}

/* A class by its name, or one within another: getattr(Outer, 'Inner'). */
static inline bool bth_node_can_be_inert_class(const berth_value *value)
{
    return bth_node_is(value, BERTH_KIND_GLOBAL) || bth_node_is(value, BERTH_KIND_CALL);
}

/* NULL for any other value than a STR. */
static inline const struct text_node *bth_node_as_text_node(const berth_value *value)
{
    return bth_node_is(value, BERTH_KIND_STR) ? (const struct text_node *)value : NULL;
}

static inline bool bth_text_is(const struct text_node *text, const char *wanted)
{
    size_t nbytes = strlen(wanted);
    return text && text->key.count == nbytes && memcmp(text->data, wanted, nbytes) == 0;
}

#endif
