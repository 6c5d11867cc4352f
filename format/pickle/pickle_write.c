/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The pickle that torch.save makes, byte for byte (FORMAT.md 6): CPython 3.11's C pickler,
 * protocol 2. Comments name the function of its _pickle.c that a piece follows.
 */
#include "format/pickle/pickle.h"

#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/pickle/pickle_emit.h"

#define BATCH 1000 /* BATCHSIZE of _pickle.c */

/* ---- memo slots ---- */

/*
 * Objects that exist only once: '', b'', and the constants of torch's pickler, which Python shares
 * with equal literals of a program. Strings of one character do not belong to them: a literal 'a',
 * an 'a' cut out of other text and str(0) are three kinds of objects in CPython 3.11.
 */
static uint32_t *memo_slot_find_shared_constant(bth_emitter *emitter, const berth_value *value)
{
    size_t nbytes = 0;
    if (berth_value_kind(value) == BERTH_KIND_BYTES) {
        berth_as_bytes(value, &nbytes);
        return nbytes == 0 ? &emitter->empty_bytes : NULL;
    }
    if (berth_value_kind(value) != BERTH_KIND_STR)
        return NULL;
    const char *text = berth_as_text(value, &nbytes);
    if (nbytes == 0)
        return &emitter->characters[BTH_MEMO_EMPTY];
    int constant = bth_constant_text_find(text, nbytes);
    return constant < 0 ? NULL : &emitter->constants[constant];
}

uint32_t *bth_emitter_memo_slot(bth_emitter *emitter, const berth_value *value)
{
    uint32_t *slot = memo_slot_find_shared_constant(emitter, value);
    if (slot)
        return slot;
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

/*
 * Whether item i of n is written alone, without a MARK. For list and dict (batch_list_exact(),
 * batch_dict_exact()): if it is the only item. For OrderedDicts and the items of objects
 * (batch_list(), batch_dict()): also if it is the last one and begins a batch.
 */
static bool emit_item_is_without_mark(const bth_walk_frame *frame, size_t i, size_t n)
{
    return i + 1 == n && i % BATCH == 0 &&
           (n == 1 || frame->note & BTH_NOTE_ITEMS ||
            berth_value_kind(frame->value) == BERTH_KIND_ORDERED_DICT);
}

/*
 * Emits the opcodes before the next item, or after the last one. Returns how many items have been
 * written.
 */
static size_t emit_batch_opcodes(bth_emitter *emitter, const bth_walk_frame *frame, int single_op,
                                 int batch_op)
{
    size_t n = emitter->walk.n_items;
    size_t i = (uint32_t)(frame->step + 1); /* 0 for BTH_STEP_NONE */
    if (i > 0 && emit_item_is_without_mark(frame, i - 1, n))
        bth_emit_op(emitter, single_op);
    else if (i > 0 && (i % BATCH == 0 || i == n))
        bth_emit_op(emitter, batch_op);
    if (i < n && i % BATCH == 0 && !emit_item_is_without_mark(frame, i, n))
        bth_emit_op(emitter, BTH_OP_MARK);
    return i;
}

/* ---- lists, sets and tuples ---- */

static void emit_list_step(bth_emitter *emitter, bth_walk_frame *frame)
{
    const berth_value *value = frame->value;
    (void)emit_batch_opcodes(emitter, frame, BTH_OP_APPEND, BTH_OP_APPENDS);
    const berth_value *item = bth_walk_next_child(&emitter->walk);
    if (item) {
        bth_emit_value(emitter, item);
        return;
    }
    if (berth_value_kind(value) == BERTH_KIND_SET) /* a set is made of a list */
        bth_emit_tuple_end_reduce_and_memo(emitter, 1, bth_emitter_memo_slot(emitter, value));
    bth_walk_pop(&emitter->walk);
}

/* save_tuple() */
static void emit_tuple_step(bth_emitter *emitter, bth_walk_frame *frame)
{
    const berth_value *value = frame->value, *item = bth_walk_next_child(&emitter->walk);
    if (item) {
        bth_emit_value(emitter, item);
        return;
    }
    bth_emit_tuple_end(emitter, emitter->walk.n_items, bth_emitter_memo_slot(emitter, value));
    bth_walk_pop(&emitter->walk);
}

/* ---- dicts ---- */

static void emit_after_dict_items(bth_emitter *emitter, bth_walk_frame *frame)
{
    const berth_value *value = frame->value, *state = NULL;
    berth_kind kind = berth_value_kind(value);
    size_t n = emitter->walk.n_items;
    if (kind == BERTH_KIND_ORDERED_DICT) {
        state = berth_value_part(value, BERTH_PART_STATE);
    } else if (!(frame->note & BTH_NOTE_ITEMS) && n > 1 && n % BATCH == 0) {
        bth_emit_op(emitter, BTH_OP_MARK); /* CPython writes one more, empty batch */
        bth_emit_op(emitter, BTH_OP_SETITEMS);
    }
    if (kind == BERTH_KIND_COUNTER)
        bth_emit_tuple_end_reduce_and_memo(emitter, 1, bth_emitter_memo_slot(emitter, value));
    if (state && berth_value_kind(state) != BERTH_KIND_DICT)
        BTH_EMIT_REFUSE(emitter,
                        "attributes of an OrderedDict cannot be saved as %s: they are a dict",
                        bth_kind_phrase(berth_value_kind(state)));
    emit_state_or_finish(emitter, frame, state);
}

static void emit_dict_step(bth_emitter *emitter, bth_walk_frame *frame)
{
    frame->note ^= BTH_NOTE_KEY;
    if (!(frame->note & BTH_NOTE_KEY)) {
        bth_emit_value(emitter, bth_walk_next_child(&emitter->walk));
        return;
    }
    size_t i = emit_batch_opcodes(emitter, frame, BTH_OP_SETITEM, BTH_OP_SETITEMS);
    if (i < emitter->walk.n_items)
        bth_emit_value(emitter, bth_value_key(frame->value, i));
    else
        emit_after_dict_items(emitter, frame);
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
        bth_emit_memo(emitter, bth_emitter_memo_slot(emitter, value));
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
EMITS(qscheme, bth_emit_qscheme(emitter, bth_value_as_qscheme(value)))
EMITS(layout, bth_emit_tensor_layout(emitter, bth_value_layout(value)))
EMITS(storage, bth_emit_storage(emitter, berth_as_storage(value), bth_value_storage_class(value)))

EMITTER(int)
{
    int64_t integer;
    size_t nbytes;
    const uint8_t *bytes = berth_as_bytes(value, &nbytes);
    if (berth_as_int(value, &integer))
        bth_emit_int(emitter, integer);
    else
        bth_emit_bigint(emitter, bytes, nbytes);
}

EMITTER(complex)
{
    bth_emit_global(emitter, "__builtin__", "complex");
    bth_emit_float(emitter, bth_value_real(value));
    bth_emit_float(emitter, bth_value_imaginary(value));
    bth_emit_tuple_end_reduce_and_memo(emitter, 2, slot);
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
    bth_emit_global(emitter, "_codecs", "encode");
    bth_emit_bytes_as_latin1_text(emitter, bytes, nbytes);
    bth_emit_constant_text(emitter, BTH_TEXT_LATIN1);
    bth_emit_tuple_end_reduce_and_memo(emitter, 2, slot);
}

/* save_bytearray() */
EMITTER(bytearray)
{
    size_t nbytes;
    (void)berth_as_bytes(value, &nbytes);
    bth_emit_global(emitter, "__builtin__", "bytearray");
    if (nbytes > 0)
        emit_bytes(emitter, value, NULL);
    bth_emit_tuple_end_reduce_and_memo(emitter, nbytes > 0, slot);
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
    bth_emit_tuple_end_reduce_and_memo(emitter, index >= 0 ? 2 : 1, slot);
}

EMITTER(global)
{
    const char *module, *name;
    bth_value_global_module_and_name(value, &module, &name);
    bth_emit_global(emitter, module, name);
}

EMITTER(list)
{
    bth_emit_op(emitter, BTH_OP_EMPTY_LIST);
    bth_emit_memo(emitter, slot);
    bth_emit_push_value(emitter, value, 0);
}

EMITTER(dict)
{
    bth_emit_op(emitter, BTH_OP_EMPTY_DICT);
    bth_emit_memo(emitter, slot);
    bth_emit_push_value(emitter, value, 0);
}

EMITTER(ordered_dict)
{
    bth_emit_ordered_dict(emitter, slot);
    bth_emit_push_value(emitter, value, 0);
}

/*
 * The values below are stored when they are complete. For one that contains itself Python writes
 * POP.
 */
static void memo_slot_mark_open(bth_emitter *emitter, const berth_value *value, uint32_t *slot)
{
    if (slot && *slot == BTH_MEMO_OPEN)
        BTH_EMIT_REFUSE(emitter,
                        "%s contains itself: torch.load(weights_only=True) cannot read that",
                        bth_kind_phrase(berth_value_kind(value)));
    else if (slot)
        *slot = BTH_MEMO_OPEN;
}

EMITTER(set)
{
    memo_slot_mark_open(emitter, value, slot);
    bth_emit_global(emitter, "__builtin__", "set");
    emit_list(emitter, value, NULL);
}

EMITTER(counter)
{
    memo_slot_mark_open(emitter, value, slot);
    bth_emit_global(emitter, "collections", "Counter");
    emit_dict(emitter, value, NULL);
}

EMITTER(tuple)
{
    memo_slot_mark_open(emitter, value, slot);
    bth_emit_tuple_mark(emitter, berth_value_count(value));
    bth_emit_push_value(emitter, value, 0);
}

EMITTER(call)
{
    memo_slot_mark_open(emitter, value, slot);
    bth_emit_push_value(emitter, value, 0);
}

EMITTER(tensor)
{
    memo_slot_mark_open(emitter, value, slot);
    bth_emit_tensor(emitter, value, 0);
}

/* Without a step the value is complete at once. */
static const struct {
    void (*begin)(bth_emitter *emitter, const berth_value *value, uint32_t *slot);
    void (*step)(bth_emitter *emitter, bth_walk_frame *frame);
} kinds[] = {
    [BERTH_KIND_NONE] = {emit_none, NULL},
    [BERTH_KIND_BOOL] = {emit_boolean, NULL},
    [BERTH_KIND_INT] = {emit_int, NULL},
    [BERTH_KIND_FLOAT] = {emit_float, NULL},
    [BERTH_KIND_COMPLEX] = {emit_complex, NULL},
    [BERTH_KIND_STR] = {emit_str, NULL},
    [BERTH_KIND_BYTES] = {emit_bytes, NULL},
    [BERTH_KIND_BYTEARRAY] = {emit_bytearray, NULL},
    [BERTH_KIND_LIST] = {emit_list, emit_list_step},
    [BERTH_KIND_TUPLE] = {emit_tuple, emit_tuple_step},
    [BERTH_KIND_DICT] = {emit_dict, emit_dict_step},
    [BERTH_KIND_ORDERED_DICT] = {emit_ordered_dict, emit_dict_step},
    [BERTH_KIND_SET] = {emit_set, emit_list_step},
    [BERTH_KIND_COUNTER] = {emit_counter, emit_dict_step},
    [BERTH_KIND_SIZE] = {emit_size, NULL},
    [BERTH_KIND_DEVICE] = {emit_device, NULL},
    [BERTH_KIND_DTYPE] = {emit_dtype, NULL},
    [BERTH_KIND_QSCHEME] = {emit_qscheme, NULL},
    [BERTH_KIND_LAYOUT] = {emit_layout, NULL},
    [BERTH_KIND_STORAGE] = {emit_storage, NULL},
    [BERTH_KIND_GLOBAL] = {emit_global, NULL},
    [BERTH_KIND_TENSOR] = {emit_tensor, bth_emit_tensor_step},
    [BERTH_KIND_SPARSE] = {emit_tensor, bth_emit_tensor_step},
    [BERTH_KIND_NESTED] = {emit_tensor, bth_emit_tensor_step},
    [BERTH_KIND_PARAMETER] = {emit_tensor, bth_emit_tensor_step},
    [BERTH_KIND_SUBCLASS] = {emit_tensor, bth_emit_tensor_step},
    [BERTH_KIND_CALL] = {emit_call, emit_call_step},
};

/* ---- any value ---- */

void bth_emit_value(bth_emitter *emitter, const berth_value *value)
{
    uint32_t *slot = bth_emitter_memo_slot(emitter, value);
    if (!bth_emit_fetch_if_in_memo(emitter, slot))
        kinds[berth_value_kind(value)].begin(emitter, value, slot);
}

void bth_emit_torch_size(bth_emitter *emitter, const int64_t *shape, int32_t rank, uint32_t *slot)
{
    bth_emit_global(emitter, "torch", "Size");
    bth_emit_ints(emitter, shape, rank);
    bth_emit_tuple_end_reduce_and_memo(emitter, 1, slot);
}

void bth_emit_tensor_layout(bth_emitter *emitter, berth_layout_kind layout)
{
    const char *text = bth_layout_names[layout];
    uint32_t *slot = &emitter->layouts[layout]; /* one object a layout */
    if (bth_emit_fetch_if_in_memo(emitter, slot))
        return;
    bth_emit_global(emitter, "torch.serialization", "_get_layout");
    bth_emit_text(emitter, text, strlen(text), NULL);
    bth_emit_tuple_end_reduce_and_memo(emitter, 1, slot);
}

/* The next step of the value on top. */
static void emit_step(bth_emitter *emitter)
{
    bth_walk_frame *frame = &emitter->walk.frames[emitter->walk.n_frames - 1];
    if (!(frame->note & BTH_NOTE_BUILD)) {
        kinds[berth_value_kind(frame->value)].step(emitter, frame);
        return;
    }
    bth_emit_op(emitter, BTH_OP_BUILD);
    bth_walk_pop(&emitter->walk);
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

static void emit_pickle_of_root(bth_emitter *emitter, const berth_value *root)
{
    const berth_tree *tree = bth_value_tree(root);
    size_t n_storages = bth_tree_n_storages(tree);
    emitter->nodes = emitter_allocate_array(emitter, bth_tree_n_ids(tree), sizeof *emitter->nodes);
    emitter->out.storages =
        emitter_allocate_array(emitter, n_storages, sizeof *emitter->out.storages);
    emitter->out.dtypes = emitter_allocate_array(emitter, n_storages, sizeof *emitter->out.dtypes);
    emitter->keys = emitter_allocate_array(emitter, n_storages, sizeof *emitter->keys);
    emitter->positions = emitter_allocate_array(emitter, n_storages, sizeof *emitter->positions);
    if (emitter->error->code != BERTH_OK)
        return;
    bth_emit_op(emitter, BTH_OP_PROTO);
    bth_emit_op(emitter, 2);
    bth_emit_value(emitter, root);
    while (emitter->walk.n_frames > 0 && emitter->error->code == BERTH_OK)
        emit_step(emitter);
    bth_emit_op(emitter, BTH_OP_STOP);
}

int bth_pickle_write(const berth_value *root, bool foreign, bth_pickled *pickled,
                     berth_error *error)
{
    *pickled = (bth_pickled){0};
    if (!root)
        return bth_fail(error, BERTH_E_ARGUMENT, BTH_PICKLE_RECORD, BERTH_NO_OFFSET,
                        "no value to save");
    bth_emitter emitter = {.error = error, .foreign = foreign};
    emit_pickle_of_root(&emitter, root);
    if (error->code == BERTH_OK)
        *pickled = emitter.out;
    else
        bth_pickled_free(&emitter.out);
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
