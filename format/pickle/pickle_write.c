/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The pickle that torch.save makes, byte for byte (FORMAT.md 6): CPython 3.11's C pickler,
 * protocol 2. Comments name the function of its _pickle.c that a piece follows.
 */
#include "format/pickle/pickle_emitter.h"

#include <string.h>

#include "base/error.h"
#include "base/fnv.h"
#include "base/memory.h"
#include "format/bytes.h"

#define BATCH 1000 /* BATCHSIZE of _pickle.c */

/* ---- bytes ---- */

/* Returns where n more bytes go; NULL after a failure. */
static uint8_t *emitter_extend_output(bth_emitter *emitter, size_t n)
{
    if (emitter->error->code != BERTH_OK)
        return NULL;
    if (n > emitter->capacity - emitter->out.nbytes) {
        uint64_t wanted;
        if (!bth_try_add(emitter->out.nbytes, n, &wanted) || wanted > SIZE_MAX / 2)
            return bth_fail_memory(emitter->error, UINT64_MAX), NULL;
        size_t capacity = emitter->capacity ? emitter->capacity : 1024;
        while (capacity < wanted)
            capacity *= 2;
        uint8_t *bytes = bth_reallocate(emitter->out.bytes, capacity);
        if (!bytes)
            return bth_fail_memory(emitter->error, capacity), NULL;
        emitter->out.bytes = bytes;
        emitter->capacity = capacity;
    }
    uint8_t *at = emitter->out.bytes + emitter->out.nbytes;
    emitter->out.nbytes += n;
    return at;
}

void bth_emit_op(bth_emitter *emitter, int op)
{
    uint8_t *out = emitter_extend_output(emitter, 1);
    if (out)
        *out = (uint8_t)op;
}

/* An opcode with one byte, or another with four, as the value fits. */
static void emit_short_or_long(bth_emitter *emitter, int short_op, int long_op, uint32_t value)
{
    uint8_t *out = emitter_extend_output(emitter, value < 256 ? 2 : 5);
    if (!out)
        return;
    out[0] = (uint8_t)(value < 256 ? short_op : long_op);
    if (value < 256)
        out[1] = (uint8_t)value;
    else
        bth_put_u32(out + 1, value);
}

void bth_emit_bool(bth_emitter *emitter, bool value)
{
    bth_emit_op(emitter, value ? BTH_OP_NEWTRUE : BTH_OP_NEWFALSE);
}

/* Two's complement, little-endian, nbytes > 0. */
static void emit_bigint(bth_emitter *emitter, const uint8_t *bytes, size_t nbytes)
{
    /* As short as the sign allows, as CPython's LONG1. No value has more than 255 bytes. */
    while (nbytes > 1 && ((bytes[nbytes - 1] == 0x00 && !(bytes[nbytes - 2] & 0x80)) ||
                          (bytes[nbytes - 1] == 0xff && (bytes[nbytes - 2] & 0x80))))
        nbytes--;
    uint8_t *out = emitter_extend_output(emitter, 2 + nbytes);
    if (!out)
        return;
    out[0] = BTH_OP_LONG1;
    out[1] = (uint8_t)nbytes;
    memcpy(out + 2, bytes, nbytes);
}

void bth_emit_int(bth_emitter *emitter, int64_t value)
{
    uint8_t bytes[8];
    bth_put_u64(bytes, (uint64_t)value);
    if (value < INT32_MIN || value > INT32_MAX) {
        emit_bigint(emitter, bytes, sizeof bytes);
        return;
    }
    bool one = value >= 0 && value <= UINT8_MAX;
    bool two = value >= 0 && value <= UINT16_MAX;
    size_t n = one ? 1 : two ? 2 : 4;
    bth_emit_op(emitter, one ? BTH_OP_BININT1 : two ? BTH_OP_BININT2 : BTH_OP_BININT);
    uint8_t *out = emitter_extend_output(emitter, n);
    if (out)
        memcpy(out, bytes, n);
}

void bth_emit_float(bth_emitter *emitter, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits); /* as bits: a NaN keeps its payload */
    uint8_t *out = emitter_extend_output(emitter, 9);
    if (!out)
        return;
    out[0] = BTH_OP_BINFLOAT;
    for (int i = 0; i < 8; i++)
        out[1 + i] = (uint8_t)(bits >> (56 - 8 * i));
}

/* ---- memo ---- */

void bth_emit_memoize(bth_emitter *emitter, uint32_t *slot)
{
    if (emitter->n_memo == BTH_MEMO_OPEN - 1) {
        BTH_EMIT_REFUSE(emitter, "more objects than a pickle of protocol 2 can number");
        return;
    }
    emit_short_or_long(emitter, BTH_OP_BINPUT, BTH_OP_LONG_BINPUT, emitter->n_memo);
    emitter->n_memo++;
    if (slot)
        *slot = emitter->n_memo;
}

/* Emits a memo fetch and returns true, if the slot holds a number. */
static bool emit_fetch_if_in_memo(bth_emitter *emitter, const uint32_t *slot)
{
    if (!slot || *slot == 0 || *slot == BTH_MEMO_OPEN)
        return false;
    emit_short_or_long(emitter, BTH_OP_BINGET, BTH_OP_LONG_BINGET, *slot - 1);
    return true;
}

/* ---- text ---- */

/* BINUNICODE and its length: where the text goes. */
static uint8_t *emit_text_header_and_reserve_text(bth_emitter *emitter, size_t nbytes)
{
    if (nbytes > UINT32_MAX) {
        BTH_EMIT_REFUSE(emitter, "text of %zu bytes: pickle protocol 2 holds at most 4294967295",
                        nbytes);
        return NULL;
    }
    uint8_t *out = emitter_extend_output(emitter, 5 + nbytes);
    if (!out)
        return NULL;
    out[0] = BTH_OP_BINUNICODE;
    bth_put_u32(out + 1, nbytes);
    return out + 5;
}

void bth_emit_text(bth_emitter *emitter, const char *text, size_t nbytes, uint32_t *slot)
{
    if (emit_fetch_if_in_memo(emitter, slot))
        return;
    uint8_t *out = emit_text_header_and_reserve_text(emitter, nbytes);
    if (out && nbytes > 0)
        memcpy(out, text, nbytes);
    bth_emit_memoize(emitter, slot);
}

static const char *const constant_texts[BTH_TEXT_COUNT] = {
    [BTH_TEXT_STORAGE] = "storage", [BTH_TEXT_CPU] = "cpu",       [BTH_TEXT_META] = "meta",
    [BTH_TEXT_MPS] = "mps",         [BTH_TEXT_LATIN1] = "latin1",
};

int bth_constant_text_find(const char *text, size_t nbytes)
{
    for (int i = 0; i < BTH_TEXT_COUNT; i++)
        if (strlen(constant_texts[i]) == nbytes && memcmp(constant_texts[i], text, nbytes) == 0)
            return i;
    return -1;
}

/* ---- globals ---- */

/* The entry of a global, or the free one where it belongs. */
static bth_emitted_global *emitted_globals_find_entry_or_empty(const bth_emitter *emitter,
                                                               const char *module, const char *name)
{
    uint64_t hash =
        bth_fnv_update(bth_fnv_update(BTH_FNV_BEGIN, module, strlen(module)), name, strlen(name));
    size_t i = (size_t)(hash ^ hash >> 29) & (emitter->globals_capacity - 1);
    for (;; i = (i + 1) & (emitter->globals_capacity - 1)) {
        bth_emitted_global *global = &emitter->globals[i];
        if (!global->name ||
            (strcmp(global->name, name) == 0 && strcmp(global->module, module) == 0))
            return global;
    }
}

/* The entry of a global, added if it is new. NULL: no memory. */
static bth_emitted_global *emitted_globals_find_or_add(bth_emitter *emitter, const char *module,
                                                       const char *name)
{
    size_t old_capacity = emitter->globals_capacity;
    if (emitter->n_globals >= old_capacity / 2) { /* the table is at most half full */
        size_t capacity = old_capacity ? old_capacity * 2 : 64;
        bth_emitted_global *old = emitter->globals;
        bth_emitted_global *table = bth_allocate_zeroed(capacity * sizeof *table);
        if (!table)
            return bth_fail_memory(emitter->error, capacity * sizeof *table), NULL;
        emitter->globals = table;
        emitter->globals_capacity = capacity;
        for (size_t i = 0; i < old_capacity; i++)
            if (old[i].name)
                *emitted_globals_find_entry_or_empty(emitter, old[i].module, old[i].name) = old[i];
        memset(emitter->recent, 0, sizeof emitter->recent);
        bth_release(old);
    }
    bth_emitted_global *global = emitted_globals_find_entry_or_empty(emitter, module, name);
    if (!global->name) {
        *global = (bth_emitted_global){.module = module, .name = name};
        emitter->n_globals++;
    }
    return global;
}

static uint8_t *text_write_as_line(uint8_t *out, const char *text, size_t nbytes)
{
    memcpy(out, text, nbytes);
    out[nbytes] = '\n';
    return out + nbytes + 1;
}

void bth_emit_global(bth_emitter *emitter, const char *module, const char *name)
{
    bth_emitted_global **recent = &emitter->recent[(uintptr_t)name / 8 % BTH_N_RECENT];
    bth_emitted_global *global = *recent;
    if (!global || global->name != name || global->module != module)
        *recent = global = emitted_globals_find_or_add(emitter, module, name);
    if (!global || emit_fetch_if_in_memo(emitter, &global->memo))
        return;
    size_t module_nbytes = strlen(module);
    size_t name_nbytes = strlen(name);
    uint8_t *out = emitter_extend_output(emitter, module_nbytes + name_nbytes + 3);
    if (!out)
        return;
    *out++ = BTH_OP_GLOBAL;
    text_write_as_line(text_write_as_line(out, module, module_nbytes), name, name_nbytes);
    bth_emit_memoize(emitter, &global->memo);
}

/* ---- tuples and calls ---- */

void bth_emit_tuple_mark(bth_emitter *emitter, size_t n)
{
    if (n > 3)
        bth_emit_op(emitter, BTH_OP_MARK);
}

void bth_emit_tuple_end(bth_emitter *emitter, size_t n, uint32_t *slot)
{
    if (n == 0) { /* Python has one, and never stores it */
        bth_emit_op(emitter, BTH_OP_EMPTY_TUPLE);
        return;
    }
    bth_emit_op(emitter, n > 3 ? BTH_OP_TUPLE : BTH_OP_TUPLE1 + (int)n - 1);
    bth_emit_memoize(emitter, slot);
}

void bth_emit_ints(bth_emitter *emitter, const int64_t *items, int32_t n)
{
    bth_emit_tuple_mark(emitter, (size_t)n);
    for (int32_t i = 0; i < n; i++)
        bth_emit_int(emitter, items[i]);
    bth_emit_tuple_end(emitter, (size_t)n, NULL);
}

/* Ends a call: the tuple of the n arguments just written, REDUCE, and the memo store. */
static void emit_tuple_end_reduce_and_memo(bth_emitter *emitter, size_t n, uint32_t *slot)
{
    bth_emit_tuple_end(emitter, n, NULL);
    bth_emit_op(emitter, BTH_OP_REDUCE);
    bth_emit_memoize(emitter, slot);
}

void bth_emit_ordered_dict(bth_emitter *emitter, uint32_t *slot)
{
    bth_emit_global(emitter, "collections", "OrderedDict");
    emit_tuple_end_reduce_and_memo(emitter, 0, slot);
}

/* ---- memo slots ---- */

/* Objects that exist only once: '', b'', and the constants of torch's pickler, which Python shares
 * with equal literals of a program. Strings of one character do not belong to them: a literal 'a',
 * an 'a' cut out of other text and str(0) are three kinds of objects in CPython 3.11. */
uint32_t *bth_emitter_memo_slot(bth_emitter *emitter, const berth_value *value)
{
    berth_kind kind = berth_value_kind(value);
    size_t nbytes;
    if (kind == BERTH_KIND_BYTES) {
        (void)berth_as_bytes(value, &nbytes);
        if (nbytes == 0)
            return &emitter->empty_bytes;
    } else if (kind == BERTH_KIND_STR) {
        const char *text = berth_as_text(value, &nbytes);
        if (nbytes == 0)
            return &emitter->characters[BTH_MEMO_EMPTY];
        int constant = bth_constant_text_find(text, nbytes);
        if (constant >= 0)
            return &emitter->constants[constant];
    }
    size_t id = bth_value_id(value);
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): no slot is not: no emitter */
    return id == SIZE_MAX ? NULL : &emitter->nodes[id];
}

/* ---- the walk ---- */

void bth_emit_push_value(bth_emitter *emitter, const berth_value *value, uint32_t notes)
{
    bth_walk *walk = &emitter->walk;
    if (!value || emitter->error->code != BERTH_OK ||
        bth_walk_push(walk, value, emitter->error) < 0)
        return;
    walk->frames[walk->n_frames - 1].note = notes;
    if (walk->n_items == BTH_STEP_LIST_ITEMS) /* the walk numbers no more */
        BTH_EMIT_REFUSE(emitter, "%zu items in one container", berth_value_count(value));
}

/* Emits the state, which BUILD follows. Without a state the value is complete. */
static void emit_state_or_finish(bth_emitter *emitter, bth_walk_frame *frame,
                                 const berth_value *state)
{
    if (!state) {
        bth_walk_pop(&emitter->walk);
        return;
    }
    frame->note |= BTH_NOTE_BUILD;
    bth_emit_value(emitter, state);
}

/* Emits the opcodes before the next item, or after the last one. Returns how many items have been
 * written. */
static size_t emit_batch_opcodes(bth_emitter *emitter, const bth_walk_frame *frame, int single_op,
                                 int batch_op)
{
    size_t n = emitter->walk.n_items;
    size_t i = (uint32_t)(frame->step + 1); /* 0 for BTH_STEP_NONE */
    /* The last item is written alone, without a MARK. For list and dict (batch_list_exact(),
     * batch_dict_exact()): if it is the only item. For OrderedDicts and the items of objects
     * (batch_list(), batch_dict()): also if it begins a batch. */
    bool is_last_alone =
        n == 1 || (n % BATCH == 1 && (frame->note & BTH_NOTE_ITEMS ||
                                      berth_value_kind(frame->value) == BERTH_KIND_ORDERED_DICT));
    if (i > 0 && i == n && is_last_alone)
        bth_emit_op(emitter, single_op);
    else if (i > 0 && (i % BATCH == 0 || i == n))
        bth_emit_op(emitter, batch_op);
    if (i < n && i % BATCH == 0 && !(i + 1 == n && is_last_alone))
        bth_emit_op(emitter, BTH_OP_MARK);
    return i;
}

/* ---- lists, sets and tuples ---- */

static void emit_sequence_step(bth_emitter *emitter, bth_walk_frame *frame)
{
    const berth_value *value = frame->value;
    berth_kind kind = berth_value_kind(value);
    if (kind != BERTH_KIND_TUPLE)
        (void)emit_batch_opcodes(emitter, frame, BTH_OP_APPEND, BTH_OP_APPENDS);
    const berth_value *item = bth_walk_next_child(&emitter->walk);
    if (item) {
        bth_emit_value(emitter, item);
        return;
    }
    if (kind == BERTH_KIND_TUPLE) /* save_tuple() */
        bth_emit_tuple_end(emitter, emitter->walk.n_items, bth_emitter_memo_slot(emitter, value));
    if (kind == BERTH_KIND_SET) /* a set is made of a list */
        emit_tuple_end_reduce_and_memo(emitter, 1, bth_emitter_memo_slot(emitter, value));
    bth_walk_pop(&emitter->walk);
}

/* ---- dicts ---- */

static void emit_dict_step(bth_emitter *emitter, bth_walk_frame *frame)
{
    const berth_value *value = frame->value, *state = NULL;
    berth_kind kind = berth_value_kind(value);
    size_t n = emitter->walk.n_items;
    frame->note ^= BTH_NOTE_KEY;
    if (!(frame->note & BTH_NOTE_KEY)) {
        bth_emit_value(emitter, bth_walk_next_child(&emitter->walk));
        return;
    }
    size_t i = emit_batch_opcodes(emitter, frame, BTH_OP_SETITEM, BTH_OP_SETITEMS);
    if (i < n) {
        bth_emit_value(emitter, bth_value_key(value, i));
        return;
    }
    if (kind == BERTH_KIND_ORDERED_DICT) {
        state = berth_value_part(value, BERTH_PART_STATE);
    } else if (!(frame->note & BTH_NOTE_ITEMS) && n > 1 && n % BATCH == 0) {
        bth_emit_op(emitter, BTH_OP_MARK); /* CPython writes one more, empty batch */
        bth_emit_op(emitter, BTH_OP_SETITEMS);
    }
    if (kind == BERTH_KIND_COUNTER)
        emit_tuple_end_reduce_and_memo(emitter, 1, bth_emitter_memo_slot(emitter, value));
    if (state && berth_value_kind(state) != BERTH_KIND_DICT)
        BTH_EMIT_REFUSE(emitter,
                        "attributes of an OrderedDict cannot be saved as %s: they are a dict",
                        bth_kind_phrase(berth_value_kind(state)));
    emit_state_or_finish(emitter, frame, state);
}

/* ---- inert calls: written back as they were read ---- */

/* save_reduce(): the object is made and stored; then list items, key items, and state. */
static void emit_call_step(bth_emitter *emitter, bth_walk_frame *frame)
{
    const berth_value *value = frame->value;
    switch (++frame->step) {
    case 0:
        bth_emit_value(emitter, berth_value_part(value, BERTH_PART_INNER));
        break;
    case 1:
        bth_emit_value(emitter, bth_value_arguments(value));
        break;
    case 2:
        bth_emit_op(emitter, bth_value_is_new_object(value) ? BTH_OP_NEWOBJ : BTH_OP_REDUCE);
        bth_emit_memoize(emitter, bth_emitter_memo_slot(emitter, value));
        bth_emit_push_value(emitter, berth_value_part(value, BERTH_PART_LIST_ITEMS),
                            BTH_NOTE_ITEMS);
        break;
    case 3:
        bth_emit_push_value(emitter, berth_value_part(value, BERTH_PART_DICT_ITEMS),
                            BTH_NOTE_ITEMS);
        break;
    default:
        emit_state_or_finish(emitter, frame, berth_value_part(value, BERTH_PART_STATE));
        break;
    }
}

/* ---- one function for each kind ---- */

#define EMITTER(name)                                                                              \
    static void emit_##name(bth_emitter *emitter,                                                  \
                            __attribute__((unused)) const berth_value *value,                      \
                            __attribute__((unused)) uint32_t *slot)

#define EMITS(name, call)                                                                          \
    EMITTER(name)                                                                                  \
    {                                                                                              \
        call;                                                                                      \
    }

EMITS(none, bth_emit_op(emitter, BTH_OP_NONE))
EMITS(boolean, bth_emit_bool(emitter, bth_value_bool(value)))
EMITS(float, bth_emit_float(emitter, bth_value_real(value)))
EMITS(dtype, bth_emit_global(emitter, "torch", berth_dtype_name(bth_value_as_dtype(value))))
EMITS(qscheme,
      bth_emit_qscheme(emitter, (berth_qscheme)bth_value_constant(value, BERTH_KIND_QSCHEME)))
EMITS(layout, bth_emit_tensor_layout(emitter, bth_value_layout(value)))
EMITS(call, bth_emit_push_value(emitter, value, 0))
EMITS(tensor, bth_emit_tensor(emitter, value, 0))
EMITS(storage, bth_emit_storage(emitter, berth_as_storage(value), bth_value_as_dtype(value)))

EMITTER(int)
{
    int64_t integer;
    size_t nbytes;
    const uint8_t *bytes = berth_as_bytes(value, &nbytes);
    if (berth_as_int(value, &integer))
        bth_emit_int(emitter, integer);
    else
        emit_bigint(emitter, bytes, nbytes);
}

EMITTER(complex)
{
    bth_emit_global(emitter, "__builtin__", "complex");
    bth_emit_float(emitter, bth_value_real(value));
    bth_emit_float(emitter, bth_value_imaginary(value));
    emit_tuple_end_reduce_and_memo(emitter, 2, slot);
}

EMITTER(str)
{
    size_t nbytes;
    const char *text = berth_as_text(value, &nbytes);
    bth_emit_text(emitter, text, nbytes, slot);
}

/* save_bytes(). For b'' Python calls `bytes`, which weights_only refuses: FORMAT.md 6. */
EMITTER(bytes)
{
    size_t nbytes;
    const uint8_t *bytes = berth_as_bytes(value, &nbytes);
    size_t n = nbytes; /* as UTF-8 */
    for (size_t i = 0; i < nbytes; i++)
        n += bytes[i] >> 7;
    /* CPython keeps 256 strings of one character, and decodes one byte to one of them. */
    uint32_t *character = nbytes == 0   ? &emitter->characters[BTH_MEMO_EMPTY]
                          : nbytes == 1 ? &emitter->characters[bytes[0]]
                                        : NULL;
    bth_emit_global(emitter, "_codecs", "encode");
    if (!emit_fetch_if_in_memo(emitter, character)) {
        uint8_t *out = emit_text_header_and_reserve_text(emitter, n);
        if (out)
            (void)bth_latin1_to_utf8(bytes, nbytes, out);
        bth_emit_memoize(emitter, character);
    }
    bth_emit_text(emitter, "latin1", 6, &emitter->constants[BTH_TEXT_LATIN1]);
    emit_tuple_end_reduce_and_memo(emitter, 2, slot);
}

/* save_bytearray() */
EMITTER(bytearray)
{
    size_t nbytes;
    (void)berth_as_bytes(value, &nbytes);
    bth_emit_global(emitter, "__builtin__", "bytearray");
    if (nbytes > 0)
        emit_bytes(emitter, value, NULL);
    emit_tuple_end_reduce_and_memo(emitter, nbytes > 0, slot);
}

EMITTER(size)
{
    int32_t rank;
    const int64_t *shape = berth_as_size(value, &rank);
    bth_emit_torch_size(emitter, shape, rank, slot);
}

EMITTER(device)
{
    int64_t index;
    const char *type = bth_value_device_type_and_index(value, &index);
    bth_emit_global(emitter, "torch", "device");
    bth_emit_text(emitter, type, strlen(type), NULL);
    if (index >= 0)
        bth_emit_int(emitter, index);
    emit_tuple_end_reduce_and_memo(emitter, index >= 0 ? 2 : 1, slot);
}

EMITTER(global)
{
    const char *module, *name;
    bth_value_global_module_and_name(value, &module, &name);
    bth_emit_global(emitter, module, name);
}

/* A set is made of a list, and a Counter of a dict, which do not occur again. */
EMITTER(container)
{
    berth_kind kind = berth_value_kind(value);
    bool is_set = kind == BERTH_KIND_SET, is_counter = kind == BERTH_KIND_COUNTER;
    if (is_set)
        bth_emit_global(emitter, "__builtin__", "set");
    else if (is_counter)
        bth_emit_global(emitter, "collections", "Counter");
    if (kind == BERTH_KIND_TUPLE) {
        bth_emit_tuple_mark(emitter, berth_value_count(value));
    } else if (kind == BERTH_KIND_ORDERED_DICT) {
        bth_emit_ordered_dict(emitter, slot);
    } else {
        bth_emit_op(emitter,
                    kind == BERTH_KIND_LIST || is_set ? BTH_OP_EMPTY_LIST : BTH_OP_EMPTY_DICT);
        bth_emit_memoize(emitter, is_set || is_counter ? NULL : slot);
    }
    bth_emit_push_value(emitter, value, 0);
}

/* Without a step the value is complete at once. A value that is stored when it is complete cannot
 * contain itself. */
static const struct {
    void (*begin)(bth_emitter *emitter, const berth_value *value, uint32_t *slot);
    void (*step)(bth_emitter *emitter, bth_walk_frame *frame);
    bool is_stored_complete;
} kinds[] = {
    [BERTH_KIND_NONE] = {emit_none, NULL, false},
    [BERTH_KIND_BOOL] = {emit_boolean, NULL, false},
    [BERTH_KIND_INT] = {emit_int, NULL, false},
    [BERTH_KIND_FLOAT] = {emit_float, NULL, false},
    [BERTH_KIND_COMPLEX] = {emit_complex, NULL, false},
    [BERTH_KIND_STR] = {emit_str, NULL, false},
    [BERTH_KIND_BYTES] = {emit_bytes, NULL, false},
    [BERTH_KIND_BYTEARRAY] = {emit_bytearray, NULL, false},
    [BERTH_KIND_LIST] = {emit_container, emit_sequence_step, false},
    [BERTH_KIND_TUPLE] = {emit_container, emit_sequence_step, true},
    [BERTH_KIND_DICT] = {emit_container, emit_dict_step, false},
    [BERTH_KIND_ORDERED_DICT] = {emit_container, emit_dict_step, false},
    [BERTH_KIND_SET] = {emit_container, emit_sequence_step, true},
    [BERTH_KIND_COUNTER] = {emit_container, emit_dict_step, true},
    [BERTH_KIND_SIZE] = {emit_size, NULL, false},
    [BERTH_KIND_DEVICE] = {emit_device, NULL, false},
    [BERTH_KIND_DTYPE] = {emit_dtype, NULL, false},
    [BERTH_KIND_QSCHEME] = {emit_qscheme, NULL, false},
    [BERTH_KIND_LAYOUT] = {emit_layout, NULL, false},
    [BERTH_KIND_STORAGE] = {emit_storage, NULL, false},
    [BERTH_KIND_GLOBAL] = {emit_global, NULL, false},
    [BERTH_KIND_TENSOR] = {emit_tensor, bth_emit_tensor_step, true},
    [BERTH_KIND_SPARSE] = {emit_tensor, bth_emit_tensor_step, true},
    [BERTH_KIND_NESTED] = {emit_tensor, bth_emit_tensor_step, true},
    [BERTH_KIND_PARAMETER] = {emit_tensor, bth_emit_tensor_step, true},
    [BERTH_KIND_SUBCLASS] = {emit_tensor, bth_emit_tensor_step, true},
    [BERTH_KIND_CALL] = {emit_call, emit_call_step, true},
};

/* ---- any value ---- */

void bth_emit_value(bth_emitter *emitter, const berth_value *value)
{
    uint32_t *slot = bth_emitter_memo_slot(emitter, value);
    berth_kind kind = berth_value_kind(value);
    if (emit_fetch_if_in_memo(emitter, slot))
        return;
    if (slot && kinds[kind].is_stored_complete) {
        if (*slot == BTH_MEMO_OPEN) /* Python writes POP */
            BTH_EMIT_REFUSE(emitter,
                            "%s contains itself: torch.load(weights_only=True) cannot read that",
                            bth_kind_phrase(kind));
        *slot = BTH_MEMO_OPEN;
    }
    kinds[kind].begin(emitter, value, slot);
}

void bth_emit_torch_size(bth_emitter *emitter, const int64_t *shape, int32_t rank, uint32_t *slot)
{
    bth_emit_global(emitter, "torch", "Size");
    bth_emit_ints(emitter, shape, rank);
    emit_tuple_end_reduce_and_memo(emitter, 1, slot);
}

void bth_emit_tensor_layout(bth_emitter *emitter, berth_layout_kind layout)
{
    const char *text = bth_layout_names[layout];
    uint32_t *slot = &emitter->layouts[layout]; /* one object a layout */
    if (emit_fetch_if_in_memo(emitter, slot))
        return;
    bth_emit_global(emitter, "torch.serialization", "_get_layout");
    bth_emit_text(emitter, text, strlen(text), NULL);
    emit_tuple_end_reduce_and_memo(emitter, 1, slot);
}

/* ---- the whole pickle ---- */

static void *emitter_allocate_array(bth_emitter *emitter, size_t n, size_t item_nbytes)
{
    size_t nbytes = bth_array_nbytes(n + 1, item_nbytes);
    void *memory = bth_allocate_zeroed(nbytes);
    if (!memory)
        bth_fail_memory(emitter->error, nbytes);
    return memory;
}

int bth_pickle_write(const berth_value *root, bool foreign, bth_pickled *pickled,
                     berth_error *error)
{
    *pickled = (bth_pickled){0};
    if (!root)
        return bth_fail(error, BERTH_E_ARGUMENT, BTH_PICKLE_RECORD, BERTH_NO_OFFSET,
                        "no value to save");
    bth_emitter emitter = {.error = error, .foreign = foreign};
    const berth_tree *tree = bth_value_tree(root);
    size_t n_storages = bth_tree_n_storages(tree);
    bth_pickled *out = &emitter.out;
    emitter.nodes = emitter_allocate_array(&emitter, bth_tree_n_ids(tree), sizeof *emitter.nodes);
    out->storages = emitter_allocate_array(&emitter, n_storages, sizeof *out->storages);
    out->dtypes = emitter_allocate_array(&emitter, n_storages, sizeof *out->dtypes);
    emitter.keys = emitter_allocate_array(&emitter, n_storages, sizeof *emitter.keys);
    emitter.positions = emitter_allocate_array(&emitter, n_storages, sizeof *emitter.positions);
    bth_emit_op(&emitter, BTH_OP_PROTO);
    bth_emit_op(&emitter, 2);
    if (error->code == BERTH_OK)
        bth_emit_value(&emitter, root);
    while (emitter.walk.n_frames > 0 && error->code == BERTH_OK) {
        bth_walk_frame *frame = &emitter.walk.frames[emitter.walk.n_frames - 1];
        if (frame->note & BTH_NOTE_BUILD) {
            bth_emit_op(&emitter, BTH_OP_BUILD);
            bth_walk_pop(&emitter.walk);
        } else {
            kinds[berth_value_kind(frame->value)].step(&emitter, frame);
        }
    }
    bth_emit_op(&emitter, BTH_OP_STOP);
    if (error->code == BERTH_OK)
        *pickled = *out;
    else
        bth_pickled_free(out);
    bth_release(emitter.nodes);
    bth_release(emitter.keys);
    bth_release(emitter.positions);
    bth_release(emitter.globals);
    bth_walk_free(&emitter.walk);
    return error->code;
}

void bth_pickled_free(bth_pickled *pickled)
{
    bth_release(pickled->bytes);
    bth_release((void *)pickled->storages);
    bth_release(pickled->dtypes);
    *pickled = (bth_pickled){0};
}
