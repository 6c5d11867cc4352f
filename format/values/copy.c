/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Copies a value to another tree. No byte is copied: the new storages are views of the old ones,
 * with BERTH_COPY_COMPACT only of the range that the tensors use.
 *
 * The values that a value was made of are older, so the edges to them have no cycles:
 * copy_make_node follows these, depth first, without recursion (P3). Items that were added later
 * can contain the value again: copy_fill adds them afterwards.
 */
#include <string.h>

#include "base/memory.h"
#include "format/values/node.h"

/* The part of one old storage that is used. */
struct use {
    berth_storage *made; /* views the whole storage until all uses are known */
    uint64_t begin, end; /* bytes; begin == end: none */
    uint64_t unit;       /* size of the widest element that tensors view it as: a power of two */
    bool is_whole;       /* a storage as such is a value, too */
};

typedef struct copying {
    berth_tree *tree;
    const berth_tree *from;
    berth_value **made;          /* by the id that the node has in the old tree */
    const berth_value **sources; /* old nodes that were made, in that order */
    size_t n_made;
    bth_walk walk;    /* along what values are made of */
    struct use *uses; /* by the old storages' index */
    bool is_compact;  /* storages are cut to what is used */
} copying;

/* ---- storages ---- */

static int view_storage_read(const berth_storage *storage, void *buffer, size_t nbytes,
                             uint64_t offset, berth_error *error)
{
    const berth_storage *bottom = storage->context;
    return bottom->read(bottom, buffer, nbytes, storage->root_offset + offset, error);
}

/* The tensor is on the copy of the storage; its elements are counted from that. */
static int view_storage_read_elements(const berth_storage *storage, const berth_tensor *tensor,
                                      int64_t first, int64_t n, void *buffer, berth_error *error)
{
    const berth_storage *bottom = storage->context;
    berth_tensor moved = *tensor;
    moved.storage = (berth_storage *)(uintptr_t)bottom;
    moved.storage_offset += (int64_t)(storage->root_offset / berth_dtype_nbytes(tensor->dtype)) *
                            bth_dtype_elements_per_item(tensor->dtype);
    return bottom->read_elements(bottom, &moved, first, n, buffer, error);
}

static struct use *copy_get_or_make_storage_use(copying *copy, const berth_storage *storage)
{
    struct use *use = &copy->uses[storage->index];
    uint64_t offset = 0;
    if (use->made)
        return use;
    use->made = berth_storage_new(copy->tree, storage->dtype, NULL, 0, storage->location);
    if (!use->made)
        return NULL;
    const berth_storage *bottom = bth_storage_resolve_view(storage, &offset);
    use->made->nbytes = storage->nbytes;
    use->made->root_offset = offset;
    if (bottom->data) {
        use->made->data = (const uint8_t *)bottom->data + offset;
    } else if (bottom->device) {
        use->made->read = bottom->read;
        use->made->device = bottom->device;
        use->made->root_offset += bottom->root_offset;
    } else if (bottom->read) {
        use->made->read = view_storage_read;
        use->made->read_elements = bottom->read_elements ? view_storage_read_elements : NULL;
        use->made->context = (void *)(uintptr_t)bottom;
    }
    use->unit = berth_dtype_nbytes(storage->dtype);
    use->is_whole = !copy->is_compact;
    return use;
}

/* ---- making: along the values that the old node was made of ---- */

/* Of kinds that have no parts. */
static berth_value *copy_make_leaf(berth_tree *tree, const berth_value *source)
{
    berth_kind kind = berth_value_kind(source);
    int64_t number;
    size_t nbytes;
    switch (kind) {
    case BERTH_KIND_BOOL:
        return berth_make_bool(tree, bth_value_bool(source));
    case BERTH_KIND_INT:
        if (berth_as_int(source, &number))
            return berth_make_int(tree, number);
        __attribute__((fallthrough));
    case BERTH_KIND_BYTES: {
        const uint8_t *bytes = berth_as_bytes(source, &nbytes);
        return berth_make_bytes(tree, kind, bytes, nbytes);
    }
    case BERTH_KIND_FLOAT:
        return berth_make_float(tree, bth_value_real(source));
    case BERTH_KIND_COMPLEX:
        return berth_make_complex(tree, bth_value_real(source), bth_value_imaginary(source));
    case BERTH_KIND_STR: {
        const char *text = berth_as_text(source, &nbytes);
        return berth_make_str(tree, text, nbytes);
    }
    case BERTH_KIND_TUPLE: /* the empty one */
        return bth_tuple_of(tree, NULL, 0);
    case BERTH_KIND_DEVICE: {
        const char *type = bth_value_device_type_and_index(source, &number);
        return berth_make_device(tree, type, number);
    }
    case BERTH_KIND_DTYPE:
    case BERTH_KIND_QSCHEME:
    case BERTH_KIND_LAYOUT:
        return berth_make_constant(tree, kind, bth_value_constant(source, kind));
    case BERTH_KIND_GLOBAL: {
        const struct global_node *node = (const struct global_node *)source;
        return bth_global_new(tree, node->text, node->module_nbytes,
                              node->text + node->module_nbytes + 1, node->name_nbytes,
                              source->flags & BTH_NODE_TRUE);
    }
    default:
        return berth_make_none(tree);
    }
}

/* The new node of an old one whose copy exists. Nodes without an id have no identity: each copy is
 * a new one. */
static berth_value *copy_get_made(const copying *copy, const berth_value *source)
{
    size_t id = bth_value_id(source);
    return id != SIZE_MAX ? copy->made[id] : copy_make_leaf(copy->tree, source);
}

/* On the whole storage at first. The parameters of a quantized tensor are filled in later. */
static berth_value *copy_make_tensor(copying *copy, const berth_value *source)
{
    const berth_tensor *old = berth_as_tensor(source);
    berth_tensor tensor = *old;
    tensor.qscheme = BERTH_NOT_QUANTIZED;
    tensor.scales = tensor.zero_points = NULL;
    if (!old->storage)
        return bth_tensor_adopt(copy->tree, &tensor);
    tensor.storage =
        (berth_storage *)(uintptr_t)bth_tensor_saved_storage(old, &tensor.storage_offset);
    struct use *use = copy_get_or_make_storage_use(copy, tensor.storage);
    if (!use)
        return NULL;
    /* Adds the bytes of the tensor, which has been checked (T2): its end cannot overflow. */
    uint64_t end, item_nbytes = berth_dtype_nbytes(tensor.dtype);
    uint64_t begin = (uint64_t)tensor.storage_offset /
                     (uint64_t)bth_dtype_elements_per_item(tensor.dtype) * item_nbytes;
    if (use->unit < item_nbytes)
        use->unit = item_nbytes;
    (void)bth_tensor_compute_end_in_storage(&tensor, &end);
    if (end > 0) {
        if (use->begin == use->end || begin < use->begin)
            use->begin = begin;
        if (end > use->end)
            use->end = end;
    }
    tensor.storage = use->made;
    return bth_tensor_adopt(copy->tree, &tensor);
}

/* Copies the node on top, whose parts have been copied. Containers and attributes are empty at
 * first. */
static berth_value *copy_make_node(copying *copy)
{
    berth_tree *tree = copy->tree;
    const bth_walk *walk = &copy->walk;
    const berth_value *source = walk->frames[walk->n_frames - 1].value;
    switch (berth_value_kind(source)) {
    case BERTH_KIND_LIST:
        return berth_make_list(tree);
    case BERTH_KIND_DICT:
    case BERTH_KIND_ORDERED_DICT:
    case BERTH_KIND_COUNTER:
    case BERTH_KIND_SET:
        return bth_dict_new(tree, (berth_kind)source->kind);
    case BERTH_KIND_TUPLE: {
        berth_value *tuple = bth_tuple_of(tree, walk->items, walk->n_items);
        for (size_t i = 0; tuple && i < walk->n_items; i++)
            ((struct tuple_node *)tuple)->items[i] = copy_get_made(copy, walk->items[i]);
        return tree->error.code == BERTH_OK ? tuple : NULL;
    }
    case BERTH_KIND_BYTEARRAY:
        return bth_bytearray_from_bytes(tree, copy_get_made(copy, walk->items[0]));
    case BERTH_KIND_SIZE:
        return bth_size_from_tuple(tree, copy_get_made(copy, walk->items[0]));
    case BERTH_KIND_STORAGE: {
        struct use *use = copy_get_or_make_storage_use(copy, berth_as_storage(source));
        if (!use)
            return NULL;
        use->is_whole = true;
        return bth_storage_value_new(tree, use->made, bth_value_as_dtype(source));
    }
    case BERTH_KIND_TENSOR:
        return copy_make_tensor(copy, source);
    case BERTH_KIND_SPARSE:
    case BERTH_KIND_NESTED: {
        const struct parts_node *node = (const struct parts_node *)source;
        berth_value *parts[4];
        for (size_t i = 0; i < node->n_parts; i++)
            parts[i] = copy_get_made(copy, node->parts[i]);
        if (source->kind == BERTH_KIND_NESTED)
            return berth_make_nested(tree, parts);
        return bth_sparse_adopt(tree, (berth_layout_kind)node->layout, node->shape, node->rank,
                                parts, source->flags & BTH_NODE_COALESCED);
    }
    case BERTH_KIND_PARAMETER:
        return berth_make_parameter(tree, copy_get_made(copy, walk->items[0]),
                                    source->flags & BTH_NODE_TRUE);
    case BERTH_KIND_SUBCLASS: { /* its attributes follow later */
        const berth_value *type = berth_value_part(source, BERTH_PART_TYPE);
        berth_value *tensor = copy_get_made(copy, walk->items[0]), *none = berth_make_none(tree);
        return type ? bth_inert_subclass_new(tree, copy_get_made(copy, type), tensor, none)
                    : berth_make_subclass(tree, tensor, none);
    }
    case BERTH_KIND_CALL:
        return bth_call_new(tree, copy_get_made(copy, walk->items[0]),
                            copy_get_made(copy, walk->items[1]), bth_value_is_new_object(source));
    default:
        return copy_make_leaf(tree, source);
    }
}

static bool copy_is_made(const copying *copy, const berth_value *source)
{
    size_t id = bth_value_id(source);
    return id == SIZE_MAX || copy->made[id];
}

/* The copy of an old node, made if there is none yet. NULL: for NULL, or the tree has failed. */
static berth_value *copy_get_or_make(copying *copy, const berth_value *source)
{
    bth_walk *walk = &copy->walk;
    int code = copy->tree->error.code;
    if (!source || code != BERTH_OK)
        return NULL;
    if (!copy_is_made(copy, source))
        code = bth_walk_push(walk, source, &copy->tree->error);
    while (code == BERTH_OK && walk->n_frames > 0) {
        const berth_value *part, *top = walk->frames[walk->n_frames - 1].value;
        while ((part = bth_walk_next_child(walk)) && copy_is_made(copy, part))
            ;
        if (part) {
            code = bth_walk_push(walk, part, &copy->tree->error);
            continue;
        }
        berth_value *made = copy_make_node(copy);
        if (!made)
            return NULL;
        copy->made[bth_value_id(top)] = made;
        copy->sources[copy->n_made++] = top;
        bth_walk_pop(walk);
    }
    return code == BERTH_OK ? copy_get_made(copy, source) : NULL;
}

/* Adds the items and attributes that were added to the old node after it was made. */
static void copy_fill(copying *copy, const berth_value *source)
{
    berth_value *made = copy_get_made(copy, source);
    const berth_value *state = berth_value_part(source, BERTH_PART_STATE);
    berth_kind kind = berth_value_kind(source);
    size_t n = berth_value_count(source);
    switch (kind) {
    case BERTH_KIND_LIST:
    case BERTH_KIND_SET:
    case BERTH_KIND_DICT:
    case BERTH_KIND_ORDERED_DICT:
    case BERTH_KIND_COUNTER:
        for (size_t i = 0; i < n && copy->tree->error.code == BERTH_OK; i++) {
            berth_value *item = copy_get_or_make(copy, bth_value_item(source, i));
            if (kind == BERTH_KIND_LIST)
                berth_list_append(made, item);
            else if (kind == BERTH_KIND_SET)
                berth_set_add(made, item);
            else
                berth_dict_set_value(made, copy_get_or_make(copy, bth_value_key(source, i)), item);
        }
        made->flags |= source->flags & BTH_NODE_ATTRIBUTES; /* its keys are the same */
        break;
    case BERTH_KIND_TENSOR: { /* what only a quantized one has */
        const berth_tensor *old = &((const struct tensor_node *)source)->tensor;
        berth_tensor *tensor = &((struct tensor_node *)made)->tensor;
        tensor->qscheme = old->qscheme;
        tensor->scales = copy_get_or_make(copy, old->scales);
        tensor->zero_points = copy_get_or_make(copy, old->zero_points);
        break;
    }
    case BERTH_KIND_CALL:
        ((struct call_node *)made)->list_items =
            copy_get_or_make(copy, berth_value_part(source, BERTH_PART_LIST_ITEMS));
        ((struct call_node *)made)->dict_items =
            copy_get_or_make(copy, berth_value_part(source, BERTH_PART_DICT_ITEMS));
        break;
    default:
        break;
    }
    if (state)
        berth_value_set_state(made, copy_get_or_make(copy, state));
}

/* ---- trimming, when everything is copied ---- */

/* Cuts the storages to what is used, and sets the tensors on these. */
static void copy_trim(copying *copy, size_t n_uses)
{
    for (size_t i = 0; i < n_uses; i++) {
        struct use *use = &copy->uses[i];
        berth_storage *made = use->made;
        if (!made)
            continue;
        /* At multiples of the unit, so that elements stay aligned. */
        uint64_t old_nbytes = bth_tree_storage(copy->from, i)->nbytes;
        uint64_t rest = use->end % use->unit ? use->unit - use->end % use->unit : 0;
        uint64_t end = rest > old_nbytes - use->end ? old_nbytes : use->end + rest;
        if (use->is_whole)
            end = old_nbytes;
        use->begin = use->is_whole ? 0 : use->begin & ~(use->unit - 1);
        made->nbytes = end - use->begin;
        made->root_offset += use->begin;
        if (made->data)
            made->data = (const uint8_t *)made->data + use->begin;
    }
    for (size_t i = 0; i < copy->n_made; i++) {
        const berth_value *source = copy->sources[i];
        if (source->kind != BERTH_KIND_TENSOR)
            continue;
        berth_tensor *tensor = &((struct tensor_node *)copy_get_made(copy, source))->tensor;
        if (!tensor->storage)
            continue;
        const berth_storage *storage =
            bth_tensor_saved_storage(berth_as_tensor(source), &tensor->storage_offset);
        const struct use *use = &copy->uses[storage->index];
        uint64_t skipped = use->begin / berth_dtype_nbytes(tensor->dtype) *
                           (uint64_t)bth_dtype_elements_per_item(tensor->dtype);
        if (berth_tensor_numel(tensor) > 0)
            tensor->storage_offset -= (int64_t)skipped;
        else if (use->made->nbytes < storage->nbytes)
            tensor->storage_offset = 0; /* without elements, any offset is valid */
        (void)bth_tensor_check(tensor, &copy->tree->error); /* T2 holds for it as for any */
    }
}

berth_value *berth_value_copy(berth_tree *tree, const berth_value *value, uint32_t flags)
{
    copying copy = {.tree = tree,
                    .from = bth_value_tree(value),
                    .walk = {.edges = BTH_WALK_MADE_OF},
                    .is_compact = flags & BERTH_COPY_COMPACT};
    berth_value *made = NULL;
    berth_error error;
    if (!tree || !value)
        return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT, "the value is NULL");
    if (flags & ~BERTH_COPY_COMPACT)
        return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT, "unknown flags 0x%x of a copy",
                               (unsigned)flags);
    if (berth_tree_error(copy.from, &error) < 0)
        return BTH_TREE_REFUSE(tree, error.code, "%s", error.message);
    /* The sizes are read now: the new tree can be the old one, which then grows. */
    size_t n = bth_tree_n_ids(copy.from) + 1, n_uses = bth_tree_n_storages(copy.from);
    copy.made = bth_allocate_zeroed(n * sizeof *copy.made);
    copy.sources = bth_allocate_zeroed(n * sizeof *copy.sources);
    copy.uses = bth_allocate_zeroed((n_uses + 1) * sizeof *copy.uses);
    if (copy.made && copy.sources && copy.uses) {
        tree->has_inert |= copy.from->has_inert;
        made = copy_get_or_make(&copy, value);
    } else {
        bth_tree_fail(tree, BERTH_E_MEMORY, "out of memory: %zu bytes for a walk",
                      n * 2 * sizeof *copy.made + n_uses * sizeof *copy.uses);
    }
    for (size_t i = 0; i < copy.n_made && tree->error.code == BERTH_OK; i++)
        copy_fill(&copy, copy.sources[i]);
    if (tree->error.code == BERTH_OK)
        copy_trim(&copy, n_uses);
    bth_release(copy.made);
    bth_release(copy.sources);
    bth_release(copy.uses);
    bth_walk_free(&copy.walk);
    return tree->error.code == BERTH_OK ? made : NULL;
}
