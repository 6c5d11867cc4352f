/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Runs the opcodes of a pickle (P1, P2), each by its handler. No recursion, and no allocation but
 * for stack and memo: neither can outgrow the bytes of the pickle (P3).
 */
#include <string.h>

#include "base/memory.h"
#include "format/pickle/pickle_machine.h"

/* P1: opcodes of protocols 4 and 5 are read inertly only, where PROTO says so. */
static inline bool rules_allow_protocol_4(const bth_pickle_rules *rules, const uint8_t *bytes,
                                          size_t nbytes)
{
    return rules->inert && nbytes > 1 && bytes[0] == BTH_OP_PROTO && bytes[1] >= 4;
}

/* Whether a usual tensor may begin here: with a GET, then a MARK. */
static inline bool usual_tensor_may_begin(const bth_pickle_rules *rules, const uint8_t *bytes,
                                          size_t nbytes)
{
    bool is_brief = bytes[0] == BTH_OP_BINGET;
    if ((!is_brief && bytes[0] != BTH_OP_LONG_BINGET) || nbytes < BTH_USUAL_NBYTES ||
        rules->one_by_one)
        return false;
    return bytes[is_brief ? 2 : 5] == BTH_OP_MARK;
}

/* ---- the end of a pickle, and the memo indices that it fetches ---- */

static void survey_mark_fetched(bth_pickle_survey *survey, uint32_t index)
{
    survey->fetched[index % BTH_FETCHED_BITS / 64] |= UINT64_C(1) << index % 64;
    /* With 32-bit sizes the count may be one too small; no pickle is so long that it matters. */
    uint64_t n = (uint64_t)index + 1;
    if (n > survey->n_memo)
        survey->n_memo = n < SIZE_MAX ? (size_t)n : SIZE_MAX;
}

int bth_pickle_find_end_and_fetches(const uint8_t *bytes, size_t nbytes,
                                    const bth_pickle_rules *rules, bth_pickle_survey *survey,
                                    berth_error *error)
{
    size_t at = survey->extent;
    bool ended = false;
    bool is_protocol_4 = rules_allow_protocol_4(rules, bytes, nbytes);
    while (at < nbytes && !ended) {
        bth_usual usual;
        size_t used = usual_tensor_may_begin(rules, bytes + at, nbytes - at)
                          ? bth_usual_tensor_parse(bytes + at, &usual)
                          : 0;
        if (used) {
            for (size_t i = 0; i < BTH_USUAL_GETS; i++)
                survey_mark_fetched(survey, usual.gets[i]);
            at += used;
            continue;
        }
        bth_argument argument;
        switch (bytes[at]) {
#define SCAN_OPCODE(opcode, form)                                                                  \
    used = bth_scan_##form(bytes + at + 1, nbytes - at - 1, &argument);                            \
    if (((opcode) == BTH_OP_BINGET || (opcode) == BTH_OP_LONG_BINGET) && used != SIZE_MAX)         \
        survey_mark_fetched(survey, (uint32_t)argument.number);                                    \
    ended = (opcode) == BTH_OP_STOP;                                                               \
    break;
#define BTH_OPCODE(name, opcode, form, takes, gives)                                               \
    case opcode:                                                                                   \
        SCAN_OPCODE(opcode, form)
#define BTH_OPCODE_INERT(name, opcode, form, takes, gives)                                         \
    case opcode:                                                                                   \
        if (!is_protocol_4)                                                                        \
            return bth_fail_opcode(bytes, at, rules, error);                                       \
        SCAN_OPCODE(opcode, form)
#include "format/pickle/pickle_opcodes.def"
        default:
            return bth_fail_opcode(bytes, at, rules, error);
        }
        if (used == SIZE_MAX)
            break;
        at += 1 + used;
    }
    survey->extent = at;
    if (ended)
        return 0;
    return bth_fail(error, BERTH_E_TRUNCATED, rules->record, rules->base_offset + nbytes,
                    "the pickle does not end here: no STOP yet");
}

/* ---- the stack: one array of 8-byte slots, with its marks ---- */

/* Every opcode pushes one slot at most, so the bytes that are left bound the stack. */
static int read_grow_stack(bth_unpickler *unpickler)
{
    size_t limit = unpickler->depth + 1 + (unpickler->nbytes - unpickler->op_at);
    size_t capacity = unpickler->capacity + unpickler->capacity / 2 + 64;
    if (capacity > limit)
        capacity = limit;
    size_t nbytes = bth_array_nbytes(capacity, sizeof *unpickler->stack);
    berth_value **stack = bth_reallocate(unpickler->stack, nbytes);
    if (!stack)
        return bth_fail_memory(unpickler->error, nbytes);
    unpickler->stack = stack;
    unpickler->capacity = capacity;
    return 0;
}

static inline int read_push_slot(bth_unpickler *unpickler, berth_value *slot)
{
    if (unpickler->depth == unpickler->capacity && read_grow_stack(unpickler) < 0)
        return unpickler->error->code;
    unpickler->stack[unpickler->depth++] = slot;
    return 0;
}

/* A value of NULL: the function that made it has failed. */
static inline int read_push(bth_unpickler *unpickler, berth_value *value)
{
    if (!value)
        return bth_unpickle_fail_by_tree_error(unpickler, bth_unpickle_opcode_name(unpickler));
    return read_push_slot(unpickler, value);
}

/* Whether n items lie above the last MARK; else an error (P2). */
static inline int read_check_items_above_mark(bth_unpickler *unpickler, size_t n)
{
    size_t there = unpickler->depth - unpickler->floor;
    return there >= n
               ? 0
               : BTH_BAD_PICKLE(unpickler, "stack underflow: %s needs %zu items, %zu are there",
                                bth_unpickle_opcode_name(unpickler), n, there);
}

/* The item `below` the top, which must exist, resolved; NULL after a failure. */
static inline berth_value *read_peek_resolved(bth_unpickler *unpickler, size_t below)
{
    berth_value *slot = unpickler->stack[unpickler->depth - 1 - below];
    return bth_slot_tag(slot) ? bth_unpickle_resolve_pending(unpickler, slot) : slot;
}

/* Removes the n items on top, resolved, in their order. `n_below` more lie above the MARK (P2). */
static inline int read_pop_n_items(bth_unpickler *unpickler, berth_value **items, size_t n,
                                   size_t n_below)
{
    int code = read_check_items_above_mark(unpickler, n + n_below);
    for (size_t i = 0; i < n && code == 0; i++) {
        items[i] = read_peek_resolved(unpickler, n - 1 - i);
        code = unpickler->error->code;
    }
    if (code == 0)
        unpickler->depth -= n;
    return code;
}

/* Removes the last MARK and returns the items above it, which are valid until the next push. */
static int read_pop_items_to_mark(bth_unpickler *unpickler, berth_value *const **items, size_t *n)
{
    *items = NULL;
    *n = 0;
    if (unpickler->floor == 0)
        return BTH_BAD_PICKLE(unpickler, "%s without a MARK", bth_unpickle_opcode_name(unpickler));
    size_t first = unpickler->floor;
    if (unpickler->has_pending) {
        for (size_t i = first; i < unpickler->depth; i++) {
            berth_value **slot = &unpickler->stack[i];
            if (bth_slot_tag(*slot))
                *slot = bth_unpickle_resolve_pending(unpickler, *slot);
            if (!*slot)
                return unpickler->error->code;
        }
    }
    *items = unpickler->stack + first;
    *n = unpickler->depth - first;
    unpickler->depth = first - 1;
    unpickler->floor = (size_t)((uintptr_t)unpickler->stack[first - 1] >> 2);
    return 0;
}

/* The tuple of n items that the opcode at hand makes; NULL: the tree has failed. Most tuples are
 * the arguments of one call and need no node. Inert objects keep their arguments. */
static berth_value *read_make_tuple(bth_unpickler *unpickler, berth_value *const *items, size_t n)
{
    struct tuple_node *tuple = &unpickler->arguments.tuple;
    const uint8_t *next = unpickler->bytes + unpickler->op_at + 1;
    size_t left = unpickler->nbytes - unpickler->op_at - 1;
    /* It is used once if REDUCE or BINPERSID is next, or follows a PUT that is never fetched. */
    if (left > 5 && next[0] == BTH_OP_LONG_BINPUT &&
        !bth_unpickle_memo_may_be_fetched(unpickler, bth_little_u32(next + 1)))
        next += 5;
    else if (left > 2 && next[0] == BTH_OP_BINPUT &&
             !bth_unpickle_memo_may_be_fetched(unpickler, next[1]))
        next += 2;
    bool is_used_once = left > 0 && (next[0] == BTH_OP_REDUCE || next[0] == BTH_OP_BINPERSID);
    if (n == 0 || n > 8 || unpickler->rules->inert || !is_used_once)
        return bth_tuple_of(unpickler->tree, items, n);
    *tuple = (struct tuple_node){
        .key = {.head = {.kind = BERTH_KIND_TUPLE, .id = BTH_NO_ID}, .count = (uint32_t)n}};
    for (size_t i = 0; i < n; i++)
        tuple->items[i] = items[i];
    return &tuple->key.head;
}

#define HANDLER(name)                                                                              \
    static inline int run_##name(bth_unpickler *unpickler,                                         \
                                 __attribute__((unused)) const bth_argument *argument)

/* ---- scalars and text ---- */

/* Older protocols are a subset; newer ones fail at the first opcode that they added. */
HANDLER(PROTO)
{
    if (unpickler->op_at != 0)
        return BTH_BAD_PICKLE(unpickler, "PROTO after the start");
    if (argument->number > 5)
        return BTH_BAD_PICKLE(unpickler, "pickle protocol %d", (int)argument->number);
    return 0;
}

#define RUNS(name, call)                                                                           \
    HANDLER(name)                                                                                  \
    {                                                                                              \
        return call;                                                                               \
    }

/* An opcode that only pushes a value. */
#define PUSHES(name, made) RUNS(name, read_push(unpickler, made))

PUSHES(NONE, berth_make_none(unpickler->tree))
PUSHES(NEWTRUE, berth_make_bool(unpickler->tree, true))
PUSHES(NEWFALSE, berth_make_bool(unpickler->tree, false))
PUSHES(BININT, berth_make_int(unpickler->tree, argument->number))
PUSHES(BININT2, berth_make_int(unpickler->tree, argument->number))
PUSHES(BINFLOAT, berth_make_float(unpickler->tree, argument->real))
PUSHES(BINUNICODE, berth_make_str(unpickler->tree, argument->text, argument->text_nbytes))
PUSHES(BINBYTES,
       berth_make_bytes(unpickler->tree, BERTH_KIND_BYTES, argument->text, argument->text_nbytes))
RUNS(SHORT_BINBYTES, run_BINBYTES(unpickler, argument))
PUSHES(EMPTY_LIST, berth_make_list(unpickler->tree))
PUSHES(EMPTY_DICT, berth_make_dict(unpickler->tree, BERTH_KIND_DICT))
PUSHES(EMPTY_SET, berth_make_set(unpickler->tree))
PUSHES(EMPTY_TUPLE, bth_tuple_of(unpickler->tree, NULL, 0))
PUSHES(GLOBAL, bth_unpickle_make_global(unpickler, argument))

/* Python, too, has each small integer once. */
HANDLER(BININT1)
{
    berth_value **kept = &unpickler->small_ints[argument->number];
    if (!*kept)
        *kept = berth_make_int(unpickler->tree, argument->number);
    return read_push(unpickler, *kept);
}

HANDLER(LONG1)
{
    const uint8_t *bytes = (const uint8_t *)argument->text;
    size_t nbytes = argument->text_nbytes;
    return read_push(unpickler,
                     nbytes ? berth_make_bytes(unpickler->tree, BERTH_KIND_INT, bytes, nbytes)
                            : berth_make_int(unpickler->tree, 0));
}

/* Text of Python 2: PyTorch reads it as UTF-8, here without surrogates. */
HANDLER(SHORT_BINSTRING)
{
    const uint8_t *text = (const uint8_t *)argument->text;
    if (unpickler->rules->latin1) {
        uint8_t utf8[2 * UINT8_MAX]; /* its length is one byte */
        size_t n = bth_latin1_to_utf8(text, argument->text_nbytes, utf8);
        return read_push(unpickler, berth_make_str(unpickler->tree, (const char *)utf8, n));
    }
    int code = 0;
    for (size_t i = 1; i < argument->text_nbytes && code == 0; i++)
        if (text[i - 1] == 0xed && text[i] >= 0xa0)
            code = BTH_BAD_PICKLE(unpickler,
                                  "SHORT_BINSTRING: text that is not UTF-8 at its byte %zu", i - 1);
    if (code == 0)
        code = run_BINUNICODE(unpickler, argument);
    return code == BERTH_E_PICKLE
               ? bth_error_append(unpickler->error,
                                  " (load.old_text=latin1 reads it, in Python encoding=\"latin1\")")
               : code;
}

/* ---- containers ---- */

/* It remembers where the items below it begin. */
HANDLER(MARK)
{
    uintptr_t mark = (uintptr_t)unpickler->floor << 2 | BTH_TAG_MARK;
    int code = read_push_slot(unpickler, (berth_value *)mark);
    if (code == 0)
        unpickler->floor = unpickler->depth;
    return code;
}

HANDLER(TUPLE)
{
    berth_value *const *items;
    size_t n;
    int code = read_pop_items_to_mark(unpickler, &items, &n);
    return code < 0 ? code : read_push(unpickler, read_make_tuple(unpickler, items, n));
}

static inline int read_tuple_from_top(bth_unpickler *unpickler, size_t n)
{
    berth_value *items[3] = {NULL};
    int code = read_pop_n_items(unpickler, items, n, 0);
    return code < 0 ? code : read_push(unpickler, read_make_tuple(unpickler, items, n));
}

RUNS(TUPLE1, read_tuple_from_top(unpickler, 1))
RUNS(TUPLE2, read_tuple_from_top(unpickler, 2))
RUNS(TUPLE3, read_tuple_from_top(unpickler, 3))

/* Adds the n items on top (0: those above the last MARK) to the list below them, or as pairs to the
 * dict (P5). What is built from an unknown global keeps its items, too (P1). Every pickler writes
 * list items, then key items, then the state. They are written again in that order, so any other
 * order is refused. */
static int read_fill(bth_unpickler *unpickler, size_t n_on_top, bool by_key)
{
    const char *opcode = bth_unpickle_opcode_name(unpickler);
    berth_value *few[2] = {NULL}, *const *items = few;
    size_t n = n_on_top;
    int code =
        n ? read_pop_n_items(unpickler, few, n, 1) : read_pop_items_to_mark(unpickler, &items, &n);
    if (code == 0 && n_on_top == 0)
        code = read_check_items_above_mark(unpickler, 1);
    if (code < 0)
        return code;
    berth_value *container = read_peek_resolved(unpickler, 0); /* NULL: the first error stays */
    berth_kind kind = bth_node_kind(container);
    bool is_inert = kind == BERTH_KIND_CALL;
    bool fits = by_key ? bth_kind_is_dict(kind) : kind == BERTH_KIND_LIST;
    if (!fits && !is_inert)
        return BTH_BAD_PICKLE(unpickler,
                              by_key ? "%s on %s: only on dicts" : "%s to %s: only to lists",
                              opcode, bth_kind_phrase(kind));
    if (by_key && n % 2 != 0)
        return BTH_BAD_PICKLE(unpickler, "%s of %zu items, which are not pairs", opcode, n);
    if (is_inert && berth_value_part(container, BERTH_PART_STATE))
        return BTH_BAD_PICKLE(unpickler, "%s on an object that has a state", opcode);
    if (is_inert && !by_key && berth_value_part(container, BERTH_PART_DICT_ITEMS))
        return BTH_BAD_PICKLE(unpickler, "%s to an object that has key items", opcode);
    n = by_key ? n / 2 : n;
    code = is_inert ? bth_call_extend(container, items, n, by_key)
           : by_key ? bth_dict_extend(container, items, n)
                    : bth_list_extend(container, items, n);
    return code < 0 ? bth_unpickle_fail_by_tree_error(unpickler, opcode) : 0;
}

RUNS(APPEND, read_fill(unpickler, 1, false))
RUNS(SETITEM, read_fill(unpickler, 2, true))
RUNS(APPENDS, read_fill(unpickler, 0, false))
RUNS(SETITEMS, read_fill(unpickler, 0, true))

/* ---- memo ---- */

static inline int read_put(bth_unpickler *unpickler, uint64_t index)
{
    if (bth_unpickle_memo_may_be_fetched(unpickler, index))
        unpickler->memo[index] = unpickler->stack[unpickler->depth - 1];
    else if (index >= unpickler->nbytes) /* P2, P3 */
        return BTH_BAD_PICKLE(unpickler, "memo index %llu in a pickle of %zu bytes",
                              (unsigned long long)index, unpickler->nbytes);
    return 0;
}

HANDLER(BINPUT)
{
    int code = read_check_items_above_mark(unpickler, 1);
    if (unpickler->n_memoized)
        return BTH_BAD_PICKLE(unpickler, "%s behind MEMOIZE", bth_unpickle_opcode_name(unpickler));
    unpickler->has_put = true;
    return code < 0 ? code : read_put(unpickler, (uint64_t)argument->number);
}

RUNS(LONG_BINPUT, run_BINPUT(unpickler, argument))

HANDLER(BINGET)
{
    uint64_t index = (uint64_t)argument->number;
    if (index >= unpickler->n_memo || !unpickler->memo[index])
        return BTH_BAD_PICKLE(unpickler, "%s of memo index %llu, where nothing was put",
                              bth_unpickle_opcode_name(unpickler), (unsigned long long)index);
    return read_push_slot(unpickler, unpickler->memo[index]);
}

RUNS(LONG_BINGET, run_BINGET(unpickler, argument))

/* ---- protocol 4, inert ---- */

/* Everything is in memory: a frame need not be read at once, only be there. */
HANDLER(FRAME)
{
    size_t left = unpickler->nbytes - unpickler->op_at - 9;
    return (uint64_t)argument->number <= left
               ? 0
               : BTH_BAD_PICKLE(unpickler, "FRAME of %llu bytes: %zu are left",
                                (unsigned long long)argument->number, left);
}

RUNS(SHORT_BINUNICODE, run_BINUNICODE(unpickler, argument))
RUNS(BINUNICODE8, run_BINUNICODE(unpickler, argument))

/* Its index is the number of those before it. Readers differ on what it is behind a PUT. */
HANDLER(MEMOIZE)
{
    int code = read_check_items_above_mark(unpickler, 1);
    if (code == 0 && unpickler->has_put)
        return BTH_BAD_PICKLE(unpickler, "MEMOIZE behind a PUT");
    return code < 0 ? code : read_put(unpickler, unpickler->n_memoized++);
}

HANDLER(STACK_GLOBAL)
{
    enum { FREE_NBYTES = 16384 };
    berth_value *items[2] = {NULL}; /* module and name */
    int code = read_pop_n_items(unpickler, items, 2, 0);
    if (code < 0)
        return code;
    bth_argument global = {0};
    global.text = berth_as_text(items[0], &global.text_nbytes);
    global.name = berth_as_text(items[1], &global.name_nbytes);
    if (bth_node_kind(items[0]) != BERTH_KIND_STR || bth_node_kind(items[1]) != BERTH_KIND_STR)
        return BTH_BAD_PICKLE(unpickler, "STACK_GLOBAL of values that are no texts");
    if (memchr(global.name, '.', global.name_nbytes)) /* protocol 2 cannot say it */
        return bth_unpickle_fail(unpickler, BERTH_E_UNSUPPORTED,
                                 "STACK_GLOBAL of a class within another");
    /* P3: its texts can be fetched and named again and again; a pickler names each class once. */
    unpickler->names_nbytes += global.text_nbytes + global.name_nbytes;
    if (unpickler->names_nbytes > 2 * unpickler->nbytes + FREE_NBYTES)
        return BTH_BAD_PICKLE(unpickler, "STACK_GLOBAL: its names have more bytes than the pickle");
    return read_push(unpickler, bth_unpickle_make_global(unpickler, &global));
}

/* ---- objects ---- */

static int read_reduce_or_newobj(bth_unpickler *unpickler, bool new_object)
{
    berth_value *items[2] = {NULL}; /* what is called, and the arguments */
    int code = read_pop_n_items(unpickler, items, 2, 0);
    return code < 0 ? code
                    : read_push(unpickler,
                                bth_unpickle_reduce(unpickler, items[0], items[1], new_object));
}

RUNS(REDUCE, read_reduce_or_newobj(unpickler, false))
RUNS(NEWOBJ, read_reduce_or_newobj(unpickler, true))

HANDLER(BUILD)
{
    berth_value *state = NULL;
    int code = read_pop_n_items(unpickler, &state, 1, 1);
    return code < 0 ? code
                    : bth_unpickle_build(unpickler, unpickler->stack[unpickler->depth - 1], state);
}

/* ---- persistent ids ---- */

/* P5: ('storage', class, key, location, numel), and in the legacy format a sixth item, None or
 * (view_key, offset, numel) of a view of that storage. */
enum { TYPE, CLASS, KEY, LOCATION, NUMEL, VIEW, N_ITEMS, N_MODULE_ITEMS = 4 };

/* numel is in items of the class; untyped storages count bytes (FORMAT.md 5). */
static bool persistent_numel_to_nbytes(bth_unpickler *unpickler, const berth_value *value,
                                       berth_dtype dtype, const char *what, uint64_t *nbytes)
{
    int64_t numel;
    size_t item_nbytes = berth_dtype_nbytes(dtype);
    /* T1: the product may not wrap: 0x4000000000000001 x 4 would be 4. */
    if (!berth_as_int(value, &numel))
        BTH_BAD_PICKLE(unpickler, "a persistent id whose %s is not an int", what);
    else if (numel < 0)
        bth_unpickle_fail(unpickler, BERTH_E_TENSOR, "a storage whose %s is %lld", what,
                          (long long)numel);
    else if (!bth_try_multiply((uint64_t)numel, item_nbytes, nbytes) || *nbytes > INT64_MAX)
        bth_unpickle_fail(unpickler, BERTH_E_TENSOR,
                          "a storage whose %s of %lld x %zu bytes is too large", what,
                          (long long)numel, item_nbytes);
    else
        return true;
    return false;
}

/* A storage that is a part of another one. NULL: error or tree has failed. */
static berth_storage *persistent_register_view(bth_unpickler *unpickler, berth_storage *root,
                                               berth_dtype dtype, const struct text_node *location,
                                               const berth_value *view)
{
    berth_value *const *items;
    const struct text_node *key;
    uint64_t offset = 0, nbytes = 0;
    if (bth_node_tuple_items(view, &items) != 3 || !(key = bth_node_as_text_node(items[0])))
        return BTH_UNPICKLE_REFUSE(unpickler, BERTH_E_PICKLE,
                                   "a persistent id whose view is not (key, offset, numel)");
    if (!persistent_numel_to_nbytes(unpickler, items[1], dtype, "view's offset", &offset) ||
        !persistent_numel_to_nbytes(unpickler, items[2], dtype, "view's numel", &nbytes))
        return NULL;
    if (offset > root->nbytes || nbytes > root->nbytes - offset)
        return BTH_UNPICKLE_REFUSE(unpickler, BERTH_E_TENSOR,
                                   "a view of %llu bytes at byte %llu of a storage of %llu bytes",
                                   (unsigned long long)nbytes, (unsigned long long)offset,
                                   (unsigned long long)root->nbytes);
    size_t n_before = bth_tree_n_storages(unpickler->tree);
    berth_storage *storage =
        bth_tree_find_or_add_storage(unpickler->tree, key->data, key->key.count, dtype, nbytes,
                                     location->data, location->key.count);
    if (!storage)
        return NULL;
    if (bth_tree_n_storages(unpickler->tree) > n_before) {
        storage->root = root;
        storage->root_offset = offset;
    }
    if (storage->root != root || storage->root_offset != offset)
        return BTH_UNPICKLE_REFUSE(
            unpickler, BERTH_E_PICKLE,
            "a persistent id whose view was another part, or a whole storage, before");
    return storage;
}

/* The storage that a persistent id names (P5). */
HANDLER(BINPERSID)
{
    bool legacy = unpickler->rules->legacy;
    berth_value *id = NULL, *const *items = NULL;
    int code = read_pop_n_items(unpickler, &id, 1, 0);
    if (code != 0)
        return code;
    size_t wanted = legacy ? N_ITEMS : N_ITEMS - 1, n = bth_node_tuple_items(id, &items);
    if (n == SIZE_MAX)
        return BTH_BAD_PICKLE(unpickler, "a persistent id that is %s, not a tuple",
                              bth_kind_phrase(bth_node_kind(id)));
    const struct text_node *type = n > 0 ? bth_node_as_text_node(items[TYPE]) : NULL;
    /* Inert, the legacy format also names classes of modules: ('module', class, its source file,
     * its source), whose source is not kept, as today's PyTorch does. */
    if (bth_text_is(type, "module")) {
        if (unpickler->rules->inert && legacy && n == N_MODULE_ITEMS &&
            bth_node_can_be_inert_class(items[CLASS]))
            return read_push(unpickler, items[CLASS]);
        return bth_unpickle_fail(unpickler, BERTH_E_FORBIDDEN,
                                 "a whole pickled module, which is code and never run: only its "
                                 "state_dict can be read");
    }
    if (n > 0 && !bth_text_is(type, "storage"))
        return BTH_BAD_PICKLE(unpickler, "a persistent id whose first item is not 'storage'");
    if (n != wanted)
        return BTH_BAD_PICKLE(unpickler, "a persistent id of %zu items, not %zu", n, wanted);
    berth_dtype dtype;
    if (!bth_node_is_storage_class(items[CLASS], &dtype))
        return BTH_BAD_PICKLE(unpickler,
                              "a persistent id whose second item is not a storage class");
    const struct text_node *key = bth_node_as_text_node(items[KEY]);
    const struct text_node *location = bth_node_as_text_node(items[LOCATION]);
    if (!key || !location)
        return BTH_BAD_PICKLE(unpickler, "a persistent id whose %s is not a str",
                              key ? "location" : "key");
    uint64_t nbytes;
    if (!persistent_numel_to_nbytes(unpickler, items[NUMEL], dtype, "numel", &nbytes))
        return unpickler->error->code;
    berth_storage *storage =
        bth_tree_find_or_add_storage(unpickler->tree, key->data, key->key.count, dtype, nbytes,
                                     location->data, location->key.count);
    if (storage && storage->root)
        return BTH_BAD_PICKLE(unpickler, "a persistent id whose storage was a view before");
    if (storage && legacy && bth_node_kind(items[VIEW]) != BERTH_KIND_NONE)
        storage = persistent_register_view(unpickler, storage, dtype, location, items[VIEW]);
    if (!storage)
        return bth_unpickle_fail_by_tree_error(unpickler, "persistent id");
    return read_push(unpickler, bth_storage_value_new(unpickler->tree, storage, dtype));
}

/* ---- the end ---- */

/* A pickle has one reading: nothing may be left on the stack, and nothing may follow. */
HANDLER(STOP)
{
    if (unpickler->floor != 0)
        return BTH_BAD_PICKLE(unpickler, "STOP within a MARK");
    if (unpickler->depth != 1)
        return BTH_BAD_PICKLE(unpickler, "STOP with %zu items on the stack", unpickler->depth);
    size_t left = unpickler->nbytes - unpickler->op_at - 1;
    if (left > 0)
        return BTH_BAD_PICKLE(unpickler, "%zu bytes after STOP", left);
    unpickler->stopped = true;
    return 0;
}

/* ---- the machine ---- */

static int read_fail_cut_argument(bth_unpickler *unpickler, size_t left)
{
    const char *name = bth_unpickle_opcode_name(unpickler);
    if (unpickler->bytes[unpickler->op_at] == BTH_OP_GLOBAL)
        return BTH_BAD_PICKLE(unpickler, "GLOBAL without its two newlines");
    return BTH_BAD_PICKLE(unpickler, "the argument of %s is cut: %zu bytes are left", name, left);
}

/* Picklers number from 0, so no index reaches the length of the pickle (P3). */
int bth_unpickle_allocate_memo(bth_unpickler *unpickler)
{
    size_t n_memo = unpickler->survey->n_memo;
    size_t n = n_memo < unpickler->nbytes ? n_memo : unpickler->nbytes;
    if (n == 0)
        return 0;
    size_t memo_nbytes = bth_array_nbytes(n, sizeof *unpickler->memo);
    unpickler->memo = bth_allocate_zeroed(memo_nbytes);
    if (!unpickler->memo)
        return bth_fail_memory(unpickler->error, memo_nbytes);
    unpickler->n_memo = n;
    return 0;
}

/* One case for each row of pickle_opcodes.def, with its argument and handler inlined. */
static int unpickler_run_opcodes(bth_unpickler *unpickler)
{
    const uint8_t *at = unpickler->bytes, *end = at + unpickler->nbytes;
    int code = 0;
    while (code == 0 && !unpickler->stopped) {
        if (at == end)
            return bth_fail(unpickler->error, BERTH_E_PICKLE, unpickler->rules->record,
                            unpickler->rules->base_offset + unpickler->nbytes,
                            "the pickle ends without STOP");
        unpickler->op_at = (size_t)(at - unpickler->bytes);
        berth_value *tensor;
        bool may_be_usual = !unpickler->is_protocol_4 &&
                            usual_tensor_may_begin(unpickler->rules, at, (size_t)(end - at));
        size_t used = may_be_usual ? bth_unpickle_make_usual_tensor(unpickler, at, &tensor) : 0;
        if (used) {
            at += used;
            code = read_push(unpickler, tensor);
            continue;
        }
        bth_argument argument;
        size_t left = (size_t)(end - ++at);
        switch (at[-1]) {
#define RUN_OPCODE(name, form)                                                                     \
    used = bth_scan_##form(at, left, &argument);                                                   \
    if (used == SIZE_MAX)                                                                          \
        return read_fail_cut_argument(unpickler, left);                                            \
    at += used;                                                                                    \
    code = run_##name(unpickler, &argument);                                                       \
    break;
#define BTH_OPCODE(name, opcode, form, takes, gives)                                               \
    case opcode:                                                                                   \
        RUN_OPCODE(name, form)
#define BTH_OPCODE_INERT(name, opcode, form, takes, gives)                                         \
    case opcode:                                                                                   \
        if (!unpickler->is_protocol_4)                                                             \
            return bth_fail_opcode(unpickler->bytes, unpickler->op_at, unpickler->rules,           \
                                   unpickler->error);                                              \
        RUN_OPCODE(name, form)
#include "format/pickle/pickle_opcodes.def"
        default:
            return bth_fail_opcode(unpickler->bytes, unpickler->op_at, unpickler->rules,
                                   unpickler->error);
        }
    }
    return code;
}

int bth_pickle_read(const uint8_t *bytes, size_t nbytes, const bth_pickle_rules *rules,
                    berth_tree *tree, berth_value **root, berth_error *error)
{
    bth_pickle_survey own = {0};
    berth_error unasked;
    bth_unpickler unpickler = {.bytes = bytes,
                               .nbytes = nbytes,
                               .is_protocol_4 = rules_allow_protocol_4(rules, bytes, nbytes),
                               .rules = rules,
                               .survey = rules->survey ? rules->survey : &own,
                               .tree = tree,
                               .error = error};
    bth_error_clear(&unasked);
    tree->has_inert |= rules->inert;
    if (!rules->survey) /* a bad pickle fails when it is run */
        (void)bth_pickle_find_end_and_fetches(bytes, nbytes, rules, &own, &unasked);
    int code = bth_unpickle_allocate_memo(&unpickler);
    tree->keeps_all = rules->inert; /* nothing that the pickle makes is lost (P1) */
    if (code == 0)
        code = unpickler_run_opcodes(&unpickler);
    tree->keeps_all = false;
    if (code == 0) {
        *root = read_peek_resolved(&unpickler, 0);
        code = error->code;
    }
    bth_release(unpickler.stack);
    bth_release(unpickler.memo);
    return code;
}
