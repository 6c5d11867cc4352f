/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The pickle that torch.save makes, byte for byte (FORMAT.md 6): CPython 3.11's C pickler,
 * protocol 2. Comments name the function of its _pickle.c that a piece follows.
 */
#include "format/pickle/pickle.h"

#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/pickle/pickle_emit.h"

#define RECORD "data.pkl"
#define BATCH 1000 /* BATCHSIZE of _pickle.c */

/* ---- memo slots ---- */

/*
 * Objects of which there is one: '', b'', and the constants of torch's pickler, which Python makes
 * one with equal literals of a program. Strings of one character are not among them: a literal
 * 'a', an 'a' cut out of other text and str(0) are three kinds of objects to CPython 3.11.
 */
static uint32_t *memo_shared_slot(bth_emitter *emitter, const berth_value *value)
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
    int constant = bth_emit_find_constant(text, nbytes);
    return constant < 0 ? NULL : &emitter->constants[constant];
}

uint32_t *bth_emit_slot(bth_emitter *emitter, const berth_value *value)
{
    uint32_t *slot = memo_shared_slot(emitter, value);
    if (slot)
        return slot;
    size_t id = bth_value_id(value);
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): no slot is not: no emitter */
    return id == SIZE_MAX ? NULL : &emitter->nodes[id];
}

/* ---- the stack ---- */

void bth_emit_push(bth_emitter *emitter, const bth_frame *frame)
{
    if (emitter->error->code != BERTH_OK)
        return;
    if (emitter->n_frames == emitter->frames_capacity) {
        size_t capacity = emitter->frames_capacity ? emitter->frames_capacity * 2 : 64;
        bth_frame *frames = bth_reallocate(emitter->frames, capacity * sizeof *frames);
        if (!frames) {
            bth_fail_memory(emitter->error, capacity * sizeof *frames);
            return;
        }
        emitter->frames = frames;
        emitter->frames_capacity = capacity;
    }
    emitter->frames[emitter->n_frames++] = *frame;
}

void bth_emit_pop(bth_emitter *emitter)
{
    emitter->n_frames--;
}

static void emit_push_step(bth_emitter *emitter, const berth_value *value,
                           void (*step)(bth_emitter *, bth_frame *))
{
    bth_emit_push(emitter, &(bth_frame){.step = step, .value = value});
}

static void emit_step_build(bth_emitter *emitter, bth_frame *frame)
{
    (void)frame;
    bth_emit_op(emitter, BTH_OP_BUILD);
    bth_emit_pop(emitter);
}

/* The frame becomes a BUILD; its state is emitted. */
static void emit_build(bth_emitter *emitter, bth_frame *frame, const berth_value *state)
{
    frame->step = emit_step_build;
    bth_emit_value(emitter, state);
}

static bool dict_is_ordered(const berth_value *value)
{
    return berth_value_kind(value) == BERTH_KIND_ORDERED_DICT;
}

/*
 * Whether item i of n is written alone, without a MARK. For list and dict (batch_list_exact(),
 * batch_dict_exact()): if it is the only item. For OrderedDicts and the items of objects
 * (batch_list(), batch_dict()): also if it is the last one and begins a batch.
 */
static bool batch_is_alone(const bth_frame *frame, size_t i, size_t n)
{
    return i + 1 == n && i % BATCH == 0 &&
           (n == 1 || frame->items || dict_is_ordered(frame->value));
}

/* ---- lists, sets and tuples ---- */

/* A reduce of one argument that has just been emitted. */
static void emit_reduce_one(bth_emitter *emitter, uint32_t *slot)
{
    bth_emit_tuple(emitter, 1, NULL);
    bth_emit_op(emitter, BTH_OP_REDUCE);
    bth_emit_memo(emitter, slot);
}

/* Batches, each in MARK … APPENDS. */
static void emit_step_list(bth_emitter *emitter, bth_frame *frame)
{
    size_t n = berth_value_count(frame->value);
    size_t i = frame->at;
    if (i > 0 && batch_is_alone(frame, i - 1, n))
        bth_emit_op(emitter, BTH_OP_APPEND);
    else if (i > 0 && (i % BATCH == 0 || i == n))
        bth_emit_op(emitter, BTH_OP_APPENDS);
    if (i < n) {
        if (i % BATCH == 0 && !batch_is_alone(frame, i, n))
            bth_emit_op(emitter, BTH_OP_MARK);
        frame->at++;
        bth_emit_value(emitter, bth_value_item(frame->value, i));
        return;
    }
    if (berth_value_kind(frame->value) == BERTH_KIND_SET) /* a set is made of a list */
        emit_reduce_one(emitter, bth_emit_slot(emitter, frame->value));
    bth_emit_pop(emitter);
}

/* save_tuple() */
static void emit_step_tuple(bth_emitter *emitter, bth_frame *frame)
{
    size_t n = berth_value_count(frame->value);
    if (frame->at < n) {
        frame->at++;
        bth_emit_value(emitter, bth_value_item(frame->value, frame->at - 1));
        return;
    }
    bth_emit_tuple(emitter, n, bth_emit_slot(emitter, frame->value));
    bth_emit_pop(emitter);
}

/* ---- dicts ---- */

static void emit_finish_dict(bth_emitter *emitter, bth_frame *frame, size_t n)
{
    const berth_value *value = frame->value;
    if (!dict_is_ordered(value) && !frame->items && n > 1 &&
        n % BATCH == 0) { /* CPython writes one more, empty batch */
        bth_emit_op(emitter, BTH_OP_MARK);
        bth_emit_op(emitter, BTH_OP_SETITEMS);
    }
    if (berth_value_kind(value) == BERTH_KIND_COUNTER)
        emit_reduce_one(emitter, bth_emit_slot(emitter, value));
    const berth_value *state =
        dict_is_ordered(value) ? berth_value_part(value, BERTH_PART_STATE) : NULL;
    if (state && berth_value_kind(state) != BERTH_KIND_DICT)
        bth_fail(emitter->error, BERTH_E_UNSUPPORTED, RECORD, BERTH_NO_OFFSET,
                 "attributes of an OrderedDict cannot be saved as %s: they are a dict",
                 bth_kind_phrase(berth_value_kind(state)));
    else if (state)
        emit_build(emitter, frame, state);
    else
        bth_emit_pop(emitter);
}

/* `at` counts keys and values. */
static void emit_step_dict(bth_emitter *emitter, bth_frame *frame)
{
    const berth_value *value = frame->value;
    size_t n = berth_value_count(value);
    size_t i = frame->at / 2;
    if (frame->at % 2 == 1) {
        frame->at++;
        bth_emit_value(emitter, bth_value_item(value, i));
        return;
    }
    if (i > 0 && batch_is_alone(frame, i - 1, n))
        bth_emit_op(emitter, BTH_OP_SETITEM);
    else if (i > 0 && (i % BATCH == 0 || i == n))
        bth_emit_op(emitter, BTH_OP_SETITEMS);
    if (i == n) {
        emit_finish_dict(emitter, frame, n);
        return;
    }
    if (i % BATCH == 0 && !batch_is_alone(frame, i, n))
        bth_emit_op(emitter, BTH_OP_MARK);
    frame->at++;
    bth_emit_value(emitter, bth_value_key(value, i));
}

/* ---- inert calls: written back as they were read ---- */

static void emit_step_state(bth_emitter *emitter, bth_frame *frame)
{
    const berth_value *state = berth_value_part(frame->value, BERTH_PART_STATE);
    if (state)
        emit_build(emitter, frame, state);
    else
        bth_emit_pop(emitter);
}

/* save_reduce(): the object is made and stored; then list items, key items, and state. */
static void emit_begin_items(bth_emitter *emitter, bth_frame *frame)
{
    const berth_value *list = berth_value_part(frame->value, BERTH_PART_LIST_ITEMS);
    const berth_value *dict = berth_value_part(frame->value, BERTH_PART_DICT_ITEMS);
    frame->step = emit_step_state;
    if (dict)
        bth_emit_push(emitter, &(bth_frame){.step = emit_step_dict, .value = dict, .items = true});
    if (list)
        bth_emit_push(emitter, &(bth_frame){.step = emit_step_list, .value = list, .items = true});
}

static void emit_step_call(bth_emitter *emitter, bth_frame *frame)
{
    const berth_value *value = frame->value;
    size_t at = frame->at++;
    if (at == 0) {
        bth_emit_value(emitter, berth_value_part(value, BERTH_PART_INNER));
    } else if (at == 1) {
        bth_emit_value(emitter, bth_value_arguments(value));
    } else {
        bth_emit_op(emitter, bth_value_is_new_object(value) ? BTH_OP_NEWOBJ : BTH_OP_REDUCE);
        bth_emit_memo(emitter, bth_emit_slot(emitter, value));
        emit_begin_items(emitter, frame);
    }
}

/* ---- leaves ---- */

static void emit_any_int(bth_emitter *emitter, const berth_value *value)
{
    int64_t integer;
    size_t nbytes;
    if (berth_as_int(value, &integer)) {
        bth_emit_int(emitter, integer);
        return;
    }
    const uint8_t *bytes = berth_as_bigint(value, &nbytes);
    bth_emit_bigint(emitter, bytes, nbytes);
}

static void emit_str(bth_emitter *emitter, const berth_value *value, uint32_t *slot)
{
    size_t nbytes;
    const char *text = berth_as_text(value, &nbytes);
    bth_emit_text(emitter, text, nbytes, slot);
}

/* save_bytes(). For b'' Python calls `bytes`, which weights_only refuses: FORMAT.md 6. */
static void emit_bytes(bth_emitter *emitter, const uint8_t *bytes, size_t nbytes, uint32_t *slot)
{
    bth_emit_global(emitter, "_codecs", "encode");
    bth_emit_latin1(emitter, bytes, nbytes);
    bth_emit_constant(emitter, BTH_TEXT_LATIN1);
    bth_emit_tuple(emitter, 2, NULL);
    bth_emit_op(emitter, BTH_OP_REDUCE);
    bth_emit_memo(emitter, slot);
}

/* save_bytearray() */
static void emit_bytearray(bth_emitter *emitter, const berth_value *value, uint32_t *slot)
{
    size_t nbytes;
    const uint8_t *bytes = berth_as_bytes(value, &nbytes);
    bth_emit_global(emitter, "__builtin__", "bytearray");
    if (nbytes > 0)
        emit_bytes(emitter, bytes, nbytes, NULL);
    bth_emit_tuple(emitter, nbytes > 0 ? 1 : 0, NULL);
    bth_emit_op(emitter, BTH_OP_REDUCE);
    bth_emit_memo(emitter, slot);
}

static void emit_complex(bth_emitter *emitter, const berth_value *value, uint32_t *slot)
{
    bth_emit_global(emitter, "__builtin__", "complex");
    bth_emit_float(emitter, bth_value_real(value));
    bth_emit_float(emitter, bth_value_imaginary(value));
    bth_emit_tuple(emitter, 2, NULL);
    bth_emit_op(emitter, BTH_OP_REDUCE);
    bth_emit_memo(emitter, slot);
}

static void emit_device(bth_emitter *emitter, const berth_value *value, uint32_t *slot)
{
    int64_t index;
    const char *type = bth_value_device(value, &index);
    bth_emit_global(emitter, "torch", "device");
    bth_emit_text(emitter, type, strlen(type), NULL);
    if (index >= 0)
        bth_emit_int(emitter, index);
    bth_emit_tuple(emitter, index >= 0 ? 2 : 1, NULL);
    bth_emit_op(emitter, BTH_OP_REDUCE);
    bth_emit_memo(emitter, slot);
}

void bth_emit_size(bth_emitter *emitter, const int64_t *shape, int32_t rank, uint32_t *slot)
{
    bth_emit_global(emitter, "torch", "Size");
    bth_emit_ints(emitter, shape, rank);
    emit_reduce_one(emitter, slot);
}

void bth_emit_layout(bth_emitter *emitter, berth_layout_kind layout)
{
    const char *text = bth_layout_names[layout];
    uint32_t *slot = &emitter->layouts[layout]; /* one object a layout */
    if (bth_emit_again(emitter, slot))
        return;
    bth_emit_global(emitter, "torch.serialization", "_get_layout");
    bth_emit_text(emitter, text, strlen(text), NULL);
    emit_reduce_one(emitter, slot);
}

static void emit_global(bth_emitter *emitter, const berth_value *value)
{
    const char *module;
    const char *name;
    bth_value_global(value, &module, &name);
    bth_emit_global(emitter, module, name);
}

/* ---- any value ---- */

/*
 * These values are stored when they are complete. For one that contains itself Python writes POP.
 */
static void memo_open_slot(bth_emitter *emitter, const berth_value *value, uint32_t *slot)
{
    if (slot && *slot == BTH_MEMO_OPEN)
        bth_fail(emitter->error, BERTH_E_UNSUPPORTED, RECORD, BERTH_NO_OFFSET,
                 "%s contains itself: torch.load(weights_only=True) cannot read that",
                 bth_kind_phrase(berth_value_kind(value)));
    else if (slot)
        *slot = BTH_MEMO_OPEN;
}

static void emit_begin_tuple(bth_emitter *emitter, const berth_value *value, uint32_t *slot)
{
    memo_open_slot(emitter, value, slot);
    bth_emit_tuple_mark(emitter, berth_value_count(value));
    emit_push_step(emitter, value, emit_step_tuple);
}

static void emit_begin_list(bth_emitter *emitter, const berth_value *value, uint32_t *slot)
{
    bool is_set = berth_value_kind(value) == BERTH_KIND_SET;
    if (is_set) {
        memo_open_slot(emitter, value, slot);
        bth_emit_global(emitter, "__builtin__", "set");
    }
    bth_emit_op(emitter, BTH_OP_EMPTY_LIST);
    bth_emit_memo(emitter, is_set ? NULL : slot);
    emit_push_step(emitter, value, emit_step_list);
}

static void emit_begin_dict(bth_emitter *emitter, const berth_value *value, uint32_t *slot)
{
    if (dict_is_ordered(value)) {
        bth_emit_global(emitter, "collections", "OrderedDict");
        bth_emit_op(emitter, BTH_OP_EMPTY_TUPLE);
        bth_emit_op(emitter, BTH_OP_REDUCE);
        bth_emit_memo(emitter, slot);
    } else {
        bool is_counter = berth_value_kind(value) == BERTH_KIND_COUNTER;
        if (is_counter) {
            memo_open_slot(emitter, value, slot);
            bth_emit_global(emitter, "collections", "Counter");
        }
        bth_emit_op(emitter, BTH_OP_EMPTY_DICT);
        bth_emit_memo(emitter, is_counter ? NULL : slot);
    }
    emit_push_step(emitter, value, emit_step_dict);
}

/* Containers and what is made of several values. */
static void emit_begin_value(bth_emitter *emitter, const berth_value *value, uint32_t *slot)
{
    switch (berth_value_kind(value)) {
    case BERTH_KIND_LIST:
    case BERTH_KIND_SET:
        emit_begin_list(emitter, value, slot);
        break;
    case BERTH_KIND_TUPLE:
        emit_begin_tuple(emitter, value, slot);
        break;
    case BERTH_KIND_DICT:
    case BERTH_KIND_ORDERED_DICT:
    case BERTH_KIND_COUNTER:
        emit_begin_dict(emitter, value, slot);
        break;
    case BERTH_KIND_CALL:
        memo_open_slot(emitter, value, slot);
        emit_push_step(emitter, value, emit_step_call);
        break;
    default: /* TENSOR, SPARSE, NESTED, PARAMETER, SUBCLASS */
        memo_open_slot(emitter, value, slot);
        bth_emit_tensor(emitter, value, false);
        break;
    }
}

/* Numbers and text; false if it is something else. */
static bool emit_scalar(bth_emitter *emitter, const berth_value *value, uint32_t *slot)
{
    size_t nbytes;
    switch (berth_value_kind(value)) {
    case BERTH_KIND_NONE:
        bth_emit_op(emitter, BTH_OP_NONE);
        return true;
    case BERTH_KIND_BOOL:
        bth_emit_bool(emitter, bth_value_bool(value));
        return true;
    case BERTH_KIND_INT:
        emit_any_int(emitter, value);
        return true;
    case BERTH_KIND_FLOAT:
        bth_emit_float(emitter, bth_value_real(value));
        return true;
    case BERTH_KIND_COMPLEX:
        emit_complex(emitter, value, slot);
        return true;
    case BERTH_KIND_STR:
        emit_str(emitter, value, slot);
        return true;
    case BERTH_KIND_BYTES: {
        const uint8_t *bytes = berth_as_bytes(value, &nbytes);
        emit_bytes(emitter, bytes, nbytes, slot);
        return true;
    }
    case BERTH_KIND_BYTEARRAY:
        emit_bytearray(emitter, value, slot);
        return true;
    default:
        return false;
    }
}

/* torch's small objects, storages, globals; false if it is something else. */
static bool emit_object(bth_emitter *emitter, const berth_value *value, uint32_t *slot)
{
    int32_t rank;
    switch (berth_value_kind(value)) {
    case BERTH_KIND_SIZE: {
        const int64_t *shape = berth_as_size(value, &rank);
        bth_emit_size(emitter, shape, rank, slot);
        return true;
    }
    case BERTH_KIND_DEVICE:
        emit_device(emitter, value, slot);
        return true;
    case BERTH_KIND_DTYPE:
        bth_emit_global(emitter, "torch", berth_dtype_name(bth_value_dtype(value)));
        return true;
    case BERTH_KIND_QSCHEME:
        bth_emit_qscheme(emitter, bth_value_qscheme(value));
        return true;
    case BERTH_KIND_LAYOUT:
        bth_emit_layout(emitter, bth_value_layout(value));
        return true;
    case BERTH_KIND_STORAGE: {
        const berth_storage *storage = berth_as_storage(value);
        bth_emit_storage(emitter, storage, bth_value_storage_class(value));
        return true;
    }
    case BERTH_KIND_GLOBAL:
        emit_global(emitter, value);
        return true;
    default:
        return false;
    }
}

void bth_emit_value(bth_emitter *emitter, const berth_value *value)
{
    uint32_t *slot = bth_emit_slot(emitter, value);
    if (bth_emit_again(emitter, slot) || emit_scalar(emitter, value, slot) ||
        emit_object(emitter, value, slot))
        return;
    emit_begin_value(emitter, value, slot);
}

/* ---- the whole ---- */

static void *emit_allocate(bth_emitter *emitter, size_t n, size_t item_nbytes)
{
    size_t nbytes = bth_array_nbytes(n + 1, item_nbytes);
    void *memory = bth_allocate_zeroed(nbytes);
    if (!memory)
        bth_fail_memory(emitter->error, nbytes);
    return memory;
}

static int emit_all(bth_emitter *emitter, const berth_value *root)
{
    size_t n_storages = bth_tree_n_storages(emitter->tree);
    emitter->nodes = emit_allocate(emitter, bth_tree_n_ids(emitter->tree), sizeof *emitter->nodes);
    emitter->storages = emit_allocate(emitter, n_storages, sizeof *emitter->storages);
    emitter->dtypes = emit_allocate(emitter, n_storages, sizeof *emitter->dtypes);
    emitter->keys = emit_allocate(emitter, n_storages, sizeof *emitter->keys);
    emitter->met = emit_allocate(emitter, n_storages, sizeof *emitter->met);
    if (emitter->error->code != BERTH_OK)
        return emitter->error->code;
    bth_emit_op(emitter, BTH_OP_PROTO);
    bth_emit_op(emitter, 2);
    bth_emit_value(emitter, root);
    while (emitter->n_frames > 0 && emitter->error->code == BERTH_OK) {
        bth_frame *frame = &emitter->frames[emitter->n_frames - 1];
        frame->step(emitter, frame);
    }
    bth_emit_op(emitter, BTH_OP_STOP);
    return emitter->error->code;
}

int bth_pickle_write(const berth_value *root, bool foreign, bth_pickled *pickled,
                     berth_error *error)
{
    *pickled = (bth_pickled){0};
    if (!root)
        return bth_fail(error, BERTH_E_ARGUMENT, RECORD, BERTH_NO_OFFSET, "no value to save");
    bth_emitter emitter = {.error = error, .tree = bth_value_tree(root), .foreign = foreign};
    if (emit_all(&emitter, root) == BERTH_OK) {
        *pickled = (bth_pickled){.bytes = emitter.bytes,
                                 .nbytes = emitter.nbytes,
                                 .storages = emitter.storages,
                                 .dtypes = emitter.dtypes,
                                 .n_storages = emitter.n_storages};
    } else {
        bth_release(emitter.bytes);
        bth_release((void *)emitter.storages);
        bth_release(emitter.dtypes);
    }
    bth_release(emitter.nodes);
    bth_release(emitter.keys);
    bth_release(emitter.met);
    bth_release(emitter.globals);
    bth_release(emitter.frames);
    return error->code;
}

void bth_pickled_free(bth_pickled *pickled)
{
    bth_release(pickled->bytes);
    bth_release((void *)pickled->storages);
    bth_release(pickled->dtypes);
    *pickled = (bth_pickled){0};
}
