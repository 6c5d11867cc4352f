/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The pickle reader's machine, private to its files. Each file calls only those below it:
 *
 *     pickle_run.c         runs the opcodes
 *     pickle_scan.c        looks ahead
 *     pickle_build_tensors.c   REDUCE: checks arguments, chooses the builder, builds
 *     pickle_build_values.c, pickle_persistent.c    build
 *     pickle_usual_tensor.c    a usual tensor at once
 *     pickle_globals.c     the known globals; what a refused pickle names
 *     pickle_stack.c       stack, memo, errors
 *     pickle_opcodes.c     the table of opcodes
 */
#ifndef BTH_FORMAT_PICKLE_PICKLE_MACHINE_H
#define BTH_FORMAT_PICKLE_PICKLE_MACHINE_H

#include <string.h>

#include "base/error.h"
#include "format/pickle/pickle_opcodes.h"
#include "format/values/node.h"

/* ---- the usual tensor ---- */

/*
 * A tensor as torch.save writes all but the first of its class: always the same opcodes, with other
 * arguments. Most of a checkpoint's pickle consists of them.
 */
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

/* P1: opcodes of protocols 4 and 5 are read inertly only, where PROTO says so. */
static inline bool bth_rules_allow_protocol_4(const bth_pickle_rules *rules, const uint8_t *bytes,
                                              size_t nbytes)
{
    return rules->inert && nbytes > 1 && bytes[0] == BTH_OP_PROTO && bytes[1] >= 4;
}

/* Whether a usual tensor may begin here: with a GET, then a MARK. */
static inline bool bth_usual_tensor_may_begin(const bth_pickle_rules *rules, const uint8_t *bytes,
                                              size_t nbytes)
{
    bool is_brief = bytes[0] == BTH_OP_BINGET;
    if ((!is_brief && bytes[0] != BTH_OP_LONG_BINGET) || nbytes < BTH_USUAL_NBYTES ||
        rules->one_by_one)
        return false;
    return bytes[is_brief ? 2 : 5] == BTH_OP_MARK;
}

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
typedef struct bth_known bth_known;

/* What REDUCE builds: one for each function of pickle_globals.def. */
enum bth_build {
    BTH_BUILD_NOTHING,
#define BTH_CALLABLE(module, name, build, wanted, optional) BTH_BUILD_##build,
#include "format/pickle/pickle_globals.def"
};

/* Makes the object of a REDUCE from checked arguments. NULL: error or tree has failed. */
typedef berth_value *(*bth_builder)(bth_unpickler *unpickler, const bth_known *known,
                                    berth_value *const *arguments, size_t n);

/* A global that may be named. */
struct bth_known {
    const char *module;
    const char *name;
    const char *arguments; /* CALLABLE: a letter each */
    enum bth_build build;  /* CALLABLE */
    bth_what what;
    uint8_t min_arguments, max_arguments; /* CALLABLE */
    int number; /* TENSOR_CLASS, DTYPE, STORAGE_CLASS: the dtype; QSCHEME: the scheme */
};

enum { BTH_MAX_GLOBALS = 255 };

extern const bth_known bth_globals[]; /* the rows of pickle_globals.def and of dtypes.def */

/* ---- the machine ---- */

/*
 * A Parameter or tensor whose BUILD is still to come: files from before PyTorch 0.4 build them in
 * two steps. It is resolved when it is used or built.
 */
typedef struct bth_pending {
    berth_value *value;  /* NULL until resolved */
    berth_value *tensor; /* of a Parameter; NULL: a tensor class */
    bool requires_grad;
    berth_dtype dtype; /* of a tensor class; BERTH_DTYPE_NONE: any */
} bth_pending;

/*
 * Slots of the stack and the memo hold nodes. The low bits of the pointer mark two other things:
 * marks (with the index of the mark below), and pending objects.
 */
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

    /*
     * A tuple of arguments that is used by the next opcode only: see bth_unpickle_tuple. Last,
     * because it ends with a flexible array.
     */
    union {
        struct tuple_node tuple;
        char room[sizeof(struct tuple_node) + 8 * sizeof(berth_value *)];
    } arguments;
};

/* Sets the error with record and byte of the opcode at hand; returns its code. */
int bth_unpickle_fail(bth_unpickler *unpickler, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same, for functions that return a value. */
#define BTH_UNPICKLE_REFUSE(unpickler, ...) ((void)bth_unpickle_fail(unpickler, __VA_ARGS__), NULL)
/* The same with the tree's message behind "subject: ", unless an error is set already. */
int bth_unpickle_fail_by_tree_error(bth_unpickler *unpickler, const char *subject);
const char *bth_unpickle_opcode_name(const bth_unpickler *unpickler);

int bth_unpickle_grow_stack(bth_unpickler *unpickler);
/* P2: fewer than n items lie above the last MARK. */
int bth_unpickle_fail_underflow(bth_unpickler *unpickler, size_t n);
/* The object behind a slot that is pending. */
berth_value *bth_unpickle_resolve_pending(bth_unpickler *unpickler, berth_value *slot);

static inline uintptr_t bth_slot_tag(const berth_value *slot)
{
    return (uintptr_t)slot & BTH_TAG_BITS;
}

static inline int bth_unpickle_push_slot(bth_unpickler *unpickler, berth_value *slot)
{
    if (unpickler->depth == unpickler->capacity && bth_unpickle_grow_stack(unpickler) < 0)
        return unpickler->error->code;
    unpickler->stack[unpickler->depth++] = slot;
    return 0;
}

/* A value of NULL: the function that made it has failed. */
static inline int bth_unpickle_push(bth_unpickler *unpickler, berth_value *value)
{
    if (!value)
        return bth_unpickle_fail_by_tree_error(unpickler, bth_unpickle_opcode_name(unpickler));
    return bth_unpickle_push_slot(unpickler, value);
}

/* Whether n items lie above the last MARK; else an error (P2). */
static inline int bth_unpickle_check_items_above_mark(bth_unpickler *unpickler, size_t n)
{
    return unpickler->depth - unpickler->floor >= n ? 0 : bth_unpickle_fail_underflow(unpickler, n);
}

/* The item `below` the top, which must exist, resolved; NULL after a failure. */
static inline berth_value *bth_unpickle_peek_resolved(bth_unpickler *unpickler, size_t below)
{
    berth_value *slot = unpickler->stack[unpickler->depth - 1 - below];
    return bth_slot_tag(slot) ? bth_unpickle_resolve_pending(unpickler, slot) : slot;
}

int bth_unpickle_push_mark(bth_unpickler *unpickler);
/* Removes the last MARK and returns the items above it, which are valid until the next push. */
int bth_unpickle_pop_items_to_mark(bth_unpickler *unpickler, berth_value *const **items, size_t *n);
/* Allocates the memo, for indices that are fetched. */
int bth_unpickle_allocate_memo(bth_unpickler *unpickler);
/* PUT at an index that is not fetched (P2, P3). */
int bth_unpickle_check_put_index(bth_unpickler *unpickler, uint64_t index);

/* Whether a memo index may be fetched. */
static inline bool bth_unpickle_memo_may_be_fetched(const bth_unpickler *unpickler, uint64_t index)
{
    return index < unpickler->n_memo &&
           unpickler->survey->fetched[index % BTH_FETCHED_BITS / 64] >> index % 64 & 1;
}

static inline int bth_unpickle_put(bth_unpickler *unpickler, uint64_t index)
{
    if (!bth_unpickle_memo_may_be_fetched(unpickler, index))
        return bth_unpickle_check_put_index(unpickler, index);
    unpickler->memo[index] = unpickler->stack[unpickler->depth - 1];
    return 0;
}

/* The tuple of n items that the opcode at hand makes; NULL: the tree has failed. */
berth_value *bth_unpickle_tuple(bth_unpickler *unpickler, berth_value *const *items, size_t n);
int bth_unpickle_get(bth_unpickler *unpickler, uint64_t index);

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
/* BUILD on the item on top, pending or not. */
int bth_unpickle_build(bth_unpickler *unpickler, berth_value *slot, berth_value *state);
/* The storage that a persistent id names (P5); inert, in the legacy format, also a class. */
berth_value *bth_unpickle_follow_persistent_id(bth_unpickler *unpickler, berth_value *id);

/* Reads and pushes the usual tensor at `bytes`. Returns its size, or 0 if there is none. */
size_t bth_unpickle_push_usual_tensor(bth_unpickler *unpickler, const uint8_t *bytes);

/* The items of a tuple; SIZE_MAX for any other kind. */
static inline size_t bth_node_tuple_items(const berth_value *value, berth_value *const **items)
{
    const struct tuple_node *tuple = (const struct tuple_node *)value;
    if (value->kind != BERTH_KIND_TUPLE)
        return SIZE_MAX;
    *items = tuple->items;
    return tuple->key.count;
}

/* Whether it is a FLOAT or an INT of 64 bits. */
static inline bool bth_node_as_double(const berth_value *value, double *number)
{
    int64_t integer;
    bool is_int = berth_as_int(value, &integer);
    *number = is_int ? (double)integer : bth_value_real(value);
    return is_int || bth_node_is(value, BERTH_KIND_FLOAT);
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

/* The builder of one row, a bth_builder. */
#define BTH_BUILDER(name)                                                                          \
    berth_value *bth_build_##name(bth_unpickler *unpickler,                                        \
                                  __attribute__((unused)) const bth_known *known,                  \
                                  berth_value *const *items, __attribute__((unused)) size_t n)
#define BTH_CALLABLE(module, name, build, wanted, optional) BTH_BUILDER(build);
#include "format/pickle/pickle_globals.def"

#endif
