/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Runs the opcodes of a pickle (P1, P2), each by its handler. No recursion, and no allocation but
 * for stack and memo (P3).
 */
#include "base/memory.h"
#include "format/pickle/pickle_machine.h"

/*
 * Removes the n items on top, resolved, in their order. `n_below` more must lie above the last MARK
 * (P2).
 */
static inline int read_pop_n_items(bth_unpickler *unpickler, berth_value **items, size_t n,
                                   size_t n_below)
{
    int code = bth_unpickle_check_items_above_mark(unpickler, n + n_below);
    for (size_t i = 0; i < n && code == 0; i++) {
        items[i] = bth_unpickle_peek_resolved(unpickler, n - 1 - i);
        code = unpickler->error->code;
    }
    if (code == 0)
        unpickler->depth -= n;
    return code;
}

#define HANDLER(name)                                                                              \
    static inline int run_##name(bth_unpickler *unpickler,                                         \
                                 __attribute__((unused)) const bth_argument *argument)

/* ---- scalars and text ---- */

/* Older protocols are a subset; newer ones fail at the first opcode that they added. */
HANDLER(PROTO)
{
    if (unpickler->op_at != 0)
        return bth_unpickle_fail(unpickler, BERTH_E_PICKLE, "PROTO after the start");
    if (argument->number > 5)
        return bth_unpickle_fail(unpickler, BERTH_E_PICKLE, "pickle protocol %d",
                                 (int)argument->number);
    return 0;
}

#define RUNS(name, call)                                                                           \
    HANDLER(name)                                                                                  \
    {                                                                                              \
        return call;                                                                               \
    }

/* An opcode that only pushes a value. */
#define PUSHES(name, made) RUNS(name, bth_unpickle_push(unpickler, made))

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
    return bth_unpickle_push(unpickler, *kept);
}

HANDLER(LONG1)
{
    const uint8_t *bytes = (const uint8_t *)argument->text;
    size_t nbytes = argument->text_nbytes;
    return bth_unpickle_push(
        unpickler, nbytes ? berth_make_bytes(unpickler->tree, BERTH_KIND_INT, bytes, nbytes)
                          : berth_make_int(unpickler->tree, 0));
}

/* Each byte is a character: U+0080 and above take two bytes of UTF-8. */
static int read_push_latin1(bth_unpickler *unpickler, const uint8_t *text, size_t nbytes)
{
    char utf8[2 * UINT8_MAX]; /* the length of a SHORT_BINSTRING is one byte */
    size_t n = 0;
    for (size_t i = 0; i < nbytes; i++) {
        if (text[i] >= 0x80)
            utf8[n++] = (char)(0xc0 | text[i] >> 6);
        utf8[n++] = (char)(text[i] < 0x80 ? text[i] : 0x80 | (text[i] & 0x3f));
    }
    return bth_unpickle_push(unpickler, berth_make_str(unpickler->tree, utf8, n));
}

/* Text of Python 2: PyTorch reads it as UTF-8, here without surrogates. */
HANDLER(SHORT_BINSTRING)
{
    const uint8_t *text = (const uint8_t *)argument->text;
    if (unpickler->rules->latin1)
        return read_push_latin1(unpickler, text, argument->text_nbytes);
    int code = 0;
    for (size_t i = 1; i < argument->text_nbytes && code == 0; i++)
        if (text[i - 1] == 0xed && text[i] >= 0xa0)
            code =
                bth_unpickle_fail(unpickler, BERTH_E_PICKLE,
                                  "SHORT_BINSTRING: text that is not UTF-8 at its byte %zu", i - 1);
    if (code == 0)
        code = run_BINUNICODE(unpickler, argument);
    return code == BERTH_E_PICKLE
               ? bth_error_append(unpickler->error,
                                  " (load.old_text=latin1 reads it, in Python encoding=\"latin1\")")
               : code;
}

/* ---- containers ---- */

RUNS(MARK, bth_unpickle_push_mark(unpickler))

HANDLER(TUPLE)
{
    berth_value *const *items;
    size_t n;
    int code = bth_unpickle_pop_items_to_mark(unpickler, &items, &n);
    return code < 0 ? code : bth_unpickle_push(unpickler, bth_unpickle_tuple(unpickler, items, n));
}

static inline int read_tuple_from_top(bth_unpickler *unpickler, size_t n)
{
    berth_value *items[3];
    int code = read_pop_n_items(unpickler, items, n, 0);
    return code < 0 ? code : bth_unpickle_push(unpickler, bth_unpickle_tuple(unpickler, items, n));
}

RUNS(TUPLE1, read_tuple_from_top(unpickler, 1))
RUNS(TUPLE2, read_tuple_from_top(unpickler, 2))
RUNS(TUPLE3, read_tuple_from_top(unpickler, 3))

/*
 * P1: what is built from an unknown global keeps its items. Every pickler writes list items, then
 * key items, then the state. They are written again in that order, so any other order is refused.
 */
static int read_add_inert_items(bth_unpickler *unpickler, berth_value *object,
                                berth_value *const *items, size_t n, bool by_key)
{
    const char *opcode = bth_unpickle_opcode_name(unpickler);
    if (berth_value_part(object, BERTH_PART_STATE))
        return bth_unpickle_fail(unpickler, BERTH_E_PICKLE, "%s on an object that has a state",
                                 opcode);
    if (!by_key && berth_value_part(object, BERTH_PART_DICT_ITEMS))
        return bth_unpickle_fail(unpickler, BERTH_E_PICKLE, "%s to an object that has key items",
                                 opcode);
    int code = by_key ? bth_call_set_dict_items(object, items, n / 2)
                      : bth_call_append_list_items(object, items, n);
    return code < 0 ? bth_unpickle_fail_by_tree_error(unpickler, opcode) : 0;
}

/* P5. `list` is NULL after a failure, which stays the error. */
static int read_append_items(bth_unpickler *unpickler, berth_value *list, berth_value *const *items,
                             size_t n)
{
    if (bth_node_kind(list) == BERTH_KIND_CALL)
        return read_add_inert_items(unpickler, list, items, n, false);
    if (bth_node_kind(list) != BERTH_KIND_LIST)
        return bth_unpickle_fail(unpickler, BERTH_E_PICKLE, "%s to %s: only to lists",
                                 bth_unpickle_opcode_name(unpickler),
                                 bth_kind_phrase(bth_node_kind(list)));
    if (bth_list_extend(list, items, n) < 0)
        return bth_unpickle_fail_by_tree_error(unpickler, bth_unpickle_opcode_name(unpickler));
    return 0;
}

/* P5. `dict` can be NULL in the same way. */
static int read_set_items(bth_unpickler *unpickler, berth_value *dict, berth_value *const *items,
                          size_t n)
{
    const char *opcode = bth_unpickle_opcode_name(unpickler);
    berth_kind kind = bth_node_kind(dict);
    if (!bth_kind_is_dict(kind) && kind != BERTH_KIND_CALL)
        return bth_unpickle_fail(unpickler, BERTH_E_PICKLE, "%s on %s: only on dicts", opcode,
                                 bth_kind_phrase(kind));
    if (n % 2 != 0)
        return bth_unpickle_fail(unpickler, BERTH_E_PICKLE, "%s of %zu items, which are not pairs",
                                 opcode, n);
    if (kind == BERTH_KIND_CALL)
        return read_add_inert_items(unpickler, dict, items, n, true);
    if (bth_dict_extend(dict, items, n / 2) < 0)
        return bth_unpickle_fail_by_tree_error(unpickler, opcode);
    return 0;
}

typedef int read_filler(bth_unpickler *unpickler, berth_value *container, berth_value *const *items,
                        size_t n);

/* Adds the n items on top to the container below them. */
static int read_fill_from_top(bth_unpickler *unpickler, size_t n, read_filler *fill)
{
    berth_value *items[2] = {NULL};
    int code = read_pop_n_items(unpickler, items, n, 1);
    return code < 0 ? code : fill(unpickler, bth_unpickle_peek_resolved(unpickler, 0), items, n);
}

/* Adds the items above the last MARK to the container below it. */
static int read_fill_from_mark(bth_unpickler *unpickler, read_filler *fill)
{
    berth_value *const *items;
    size_t n;
    int code = bth_unpickle_pop_items_to_mark(unpickler, &items, &n);
    if (code == 0)
        code = bth_unpickle_check_items_above_mark(unpickler, 1);
    return code < 0 ? code : fill(unpickler, bth_unpickle_peek_resolved(unpickler, 0), items, n);
}

RUNS(APPEND, read_fill_from_top(unpickler, 1, read_append_items))
RUNS(SETITEM, read_fill_from_top(unpickler, 2, read_set_items))
RUNS(APPENDS, read_fill_from_mark(unpickler, read_append_items))
RUNS(SETITEMS, read_fill_from_mark(unpickler, read_set_items))

/* ---- memo ---- */

HANDLER(BINPUT)
{
    int code = bth_unpickle_check_items_above_mark(unpickler, 1);
    if (unpickler->n_memoized)
        return bth_unpickle_fail(unpickler, BERTH_E_PICKLE, "%s behind MEMOIZE",
                                 bth_unpickle_opcode_name(unpickler));
    unpickler->has_put = true;
    return code < 0 ? code : bth_unpickle_put(unpickler, (uint64_t)argument->number);
}

RUNS(LONG_BINPUT, run_BINPUT(unpickler, argument))
RUNS(BINGET, bth_unpickle_get(unpickler, (uint64_t)argument->number))
RUNS(LONG_BINGET, run_BINGET(unpickler, argument))

/* ---- protocol 4, inert ---- */

/* Everything is in memory: a frame need not be read at once, only be there. */
HANDLER(FRAME)
{
    size_t left = unpickler->nbytes - unpickler->op_at - 9;
    return (uint64_t)argument->number <= left
               ? 0
               : bth_unpickle_fail(unpickler, BERTH_E_PICKLE, "FRAME of %llu bytes: %zu are left",
                                   (unsigned long long)argument->number, left);
}

RUNS(SHORT_BINUNICODE, run_BINUNICODE(unpickler, argument))
RUNS(BINUNICODE8, run_BINUNICODE(unpickler, argument))

/* Its index is the number of those before it. Readers differ on what it is behind a PUT. */
HANDLER(MEMOIZE)
{
    int code = bth_unpickle_check_items_above_mark(unpickler, 1);
    if (code == 0 && unpickler->has_put)
        return bth_unpickle_fail(unpickler, BERTH_E_PICKLE, "MEMOIZE behind a PUT");
    return code < 0 ? code : bth_unpickle_put(unpickler, unpickler->n_memoized++);
}

/* P3: its texts can be fetched and named again and again; a pickler names each class once. */
static int read_count_stack_global(bth_unpickler *unpickler, const bth_argument *global)
{
    enum { FREE_NBYTES = 16384 };
    unpickler->names_nbytes += global->text_nbytes + global->name_nbytes;
    if (unpickler->names_nbytes <= 2 * unpickler->nbytes + FREE_NBYTES)
        return 0;
    return bth_unpickle_fail(unpickler, BERTH_E_PICKLE,
                             "STACK_GLOBAL: its names have more bytes than the pickle");
}

HANDLER(STACK_GLOBAL)
{
    berth_value *items[2] = {NULL}; /* module and name */
    int code = read_pop_n_items(unpickler, items, 2, 0);
    if (code < 0)
        return code;
    bth_argument global = {0};
    global.text = berth_as_text(items[0], &global.text_nbytes);
    global.name = berth_as_text(items[1], &global.name_nbytes);
    if (bth_node_kind(items[0]) != BERTH_KIND_STR || bth_node_kind(items[1]) != BERTH_KIND_STR)
        return bth_unpickle_fail(unpickler, BERTH_E_PICKLE,
                                 "STACK_GLOBAL of values that are no texts");
    if (memchr(global.name, '.', global.name_nbytes)) /* protocol 2 cannot say it */
        return bth_unpickle_fail(unpickler, BERTH_E_UNSUPPORTED,
                                 "STACK_GLOBAL of a class within another");
    code = read_count_stack_global(unpickler, &global);
    return code < 0 ? code
                    : bth_unpickle_push(unpickler, bth_unpickle_make_global(unpickler, &global));
}

/* ---- objects ---- */

static int read_reduce_or_newobj(bth_unpickler *unpickler, bool new_object)
{
    berth_value *items[2] = {NULL}; /* what is called, and the arguments */
    int code = read_pop_n_items(unpickler, items, 2, 0);
    return code < 0 ? code
                    : bth_unpickle_push(unpickler, bth_unpickle_reduce(unpickler, items[0],
                                                                       items[1], new_object));
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

HANDLER(BINPERSID)
{
    berth_value *id = NULL;
    int code = read_pop_n_items(unpickler, &id, 1, 0);
    return code < 0
               ? code
               : bth_unpickle_push(unpickler, bth_unpickle_follow_persistent_id(unpickler, id));
}

/* A pickle has one reading: nothing may be left on the stack, and nothing may follow. */
HANDLER(STOP)
{
    if (unpickler->floor != 0)
        return bth_unpickle_fail(unpickler, BERTH_E_PICKLE, "STOP within a MARK");
    if (unpickler->depth != 1)
        return bth_unpickle_fail(unpickler, BERTH_E_PICKLE, "STOP with %zu items on the stack",
                                 unpickler->depth);
    size_t left = unpickler->nbytes - unpickler->op_at - 1;
    if (left > 0)
        return bth_unpickle_fail(unpickler, BERTH_E_PICKLE, "%zu bytes after STOP", left);
    unpickler->stopped = true;
    return 0;
}

/* ---- the machine ---- */

static int read_fail_cut_argument(bth_unpickler *unpickler, size_t left)
{
    const char *name = bth_unpickle_opcode_name(unpickler);
    if (unpickler->bytes[unpickler->op_at] == BTH_OP_GLOBAL)
        return bth_unpickle_fail(unpickler, BERTH_E_PICKLE, "GLOBAL without its two newlines");
    return bth_unpickle_fail(unpickler, BERTH_E_PICKLE,
                             "the argument of %s is cut: %zu bytes are left", name, left);
}

static int read_fail_without_stop(bth_unpickler *unpickler)
{
    return bth_fail(unpickler->error, BERTH_E_PICKLE, unpickler->rules->record,
                    unpickler->rules->base_offset + unpickler->nbytes,
                    "the pickle ends without STOP");
}

/* One case for each row of pickle_opcodes.def, with its argument and handler inlined. */
static int unpickler_run_opcodes(bth_unpickler *unpickler)
{
    const uint8_t *at = unpickler->bytes, *end = at + unpickler->nbytes;
    int code = 0;
    unpickler->is_protocol_4 =
        bth_rules_allow_protocol_4(unpickler->rules, unpickler->bytes, unpickler->nbytes);
    while (code == 0 && !unpickler->stopped) {
        if (at == end)
            return read_fail_without_stop(unpickler);
        unpickler->op_at = (size_t)(at - unpickler->bytes);
        bool usual = !unpickler->is_protocol_4 &&
                     bth_usual_tensor_may_begin(unpickler->rules, at, (size_t)(end - at));
        size_t usual_nbytes = usual ? bth_unpickle_push_usual_tensor(unpickler, at) : 0;
        if (usual_nbytes) {
            at += usual_nbytes;
            code = unpickler->error->code;
            continue;
        }
        bth_argument argument;
        size_t left = (size_t)(end - ++at), used;
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
        *root = bth_unpickle_peek_resolved(&unpickler, 0);
        code = error->code;
    }
    bth_release(unpickler.stack);
    bth_release(unpickler.memo);
    return code;
}
