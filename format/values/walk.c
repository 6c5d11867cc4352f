/* SPDX-License-Identifier: BSD-3-Clause */

#include "base/error.h"
#include "base/memory.h"
#include "format/values/node.h"

static void walk_set_items_of_value(bth_walk *walk, const berth_value *value)
{
    const struct call_node *call = (const struct call_node *)value;
    const struct wrap_node *wrap = (const struct wrap_node *)value;
    berth_kind kind = bth_node_kind(value);
    bool made_of = walk->edges == BTH_WALK_MADE_OF;
    bool has_items =
        made_of ? kind == BERTH_KIND_TUPLE || kind == BERTH_KIND_SPARSE || kind == BERTH_KIND_NESTED
                : (kind >= BERTH_KIND_LIST && kind <= BERTH_KIND_SET) || kind == BERTH_KIND_CALL;
    size_t n = 0, stride = 1;
    if (has_items) {
        walk->items = bth_node_items(value, &n, &stride);
    } else if (made_of && kind == BERTH_KIND_CALL) { /* what is called, and the arguments */
        walk->items = call->made_of;
        n = 2;
    } else if (made_of && kind == BERTH_KIND_SUBCLASS) { /* the tensor; its class is further on */
        walk->items = &wrap->inner;
        n = wrap->type ? 2 : 1;
        stride = BTH_WRAP_TYPE_STRIDE;
    } else if (made_of && (kind == BERTH_KIND_BYTEARRAY || kind == BERTH_KIND_SIZE ||
                           kind == BERTH_KIND_PARAMETER)) {
        walk->items = &wrap->inner;
        n = 1;
    }
    walk->n_items = n < BTH_STEP_LIST_ITEMS ? (uint32_t)n : BTH_STEP_LIST_ITEMS;
    walk->stride = (uint32_t)stride;
}

int bth_walk_push(bth_walk *walk, const berth_value *value, berth_error *error)
{
    if (walk->n_frames == walk->capacity) {
        size_t capacity = walk->capacity + walk->capacity / 2 + 16;
        void *frames = bth_reallocate(walk->frames, capacity * sizeof(*walk->frames));
        if (!frames)
            return bth_fail_memory(error, capacity * sizeof(*walk->frames));
        walk->frames = frames;
        walk->capacity = capacity;
    }
    walk->frames[walk->n_frames++] = (bth_walk_frame){.value = value, .step = BTH_STEP_NONE};
    walk_set_items_of_value(walk, value);
    return 0;
}

void bth_walk_pop(bth_walk *walk)
{
    if (--walk->n_frames > 0)
        walk_set_items_of_value(walk, walk->frames[walk->n_frames - 1].value);
}

void bth_walk_free(bth_walk *walk)
{
    bth_release(walk->frames);
    bth_release(walk->seen);
}

/* ---- children that are no items ---- */

const berth_value *bth_tensor_part(const berth_value *value, uint32_t i)
{
    const berth_value *plain = bth_value_unwrap_tensor(value);
    const berth_tensor *tensor = berth_as_tensor(plain);
    if (!tensor)
        return bth_value_item(plain, i);
    const berth_value *part = i == 0 ? tensor->scales : i == 1 ? tensor->zero_points : NULL;
    return berth_as_tensor(part) ? part : NULL; /* older files have lists */
}

const berth_value *bth_value_child_at_step(const berth_value *parent, uint32_t step)
{
    switch (step) {
    case BTH_STEP_LIST_ITEMS:
        return berth_value_part(parent, BERTH_PART_LIST_ITEMS);
    case BTH_STEP_DICT_ITEMS:
        return berth_value_part(parent, BERTH_PART_DICT_ITEMS);
    case BTH_STEP_INNER:
        return berth_value_part(parent, BERTH_PART_INNER);
    case BTH_STEP_STATE:
        return berth_value_part(parent, BERTH_PART_STATE);
    default:
        return bth_kind_is_tensor(berth_value_kind(parent)) ? bth_tensor_part(parent, step)
                                                            : bth_value_item(parent, step);
    }
}

const berth_value *bth_walk_next_non_item(const bth_walk *walk, bth_walk_frame *frame)
{
    const berth_value *value = frame->value, *child = NULL;
    uint32_t step = frame->step == BTH_STEP_NONE ? 0 : frame->step + 1;
    if (walk->edges == BTH_WALK_ITEMS || walk->edges == BTH_WALK_MADE_OF)
        return NULL;
    /* Only the tensor itself has parts: a Parameter has the tensor as BTH_STEP_INNER. */
    bool has_parts = walk->edges == BTH_WALK_ALL && bth_kind_is_tensor(bth_node_kind(value)) &&
                     bth_value_unwrap_tensor(value) == value;
    if (step < BTH_STEP_LIST_ITEMS && !(has_parts && bth_tensor_part(value, step)))
        step = BTH_STEP_LIST_ITEMS;
    for (; !child && step < BTH_STEP_NONE; step++)
        child = bth_value_child_at_step(value, step);
    frame->step = step - 1;
    return child;
}

/* ---- values that were seen ---- */

int bth_walk_allocate_seen(bth_walk *walk, const berth_tree *tree, berth_error *error)
{
    size_t nbytes = bth_tree_n_ids(tree) / 8 + 1;
    walk->seen = bth_allocate_zeroed(nbytes);
    return walk->seen ? 0 : bth_fail_memory(error, nbytes);
}

bool bth_walk_mark_if_new(bth_walk *walk, const berth_value *value)
{
    size_t id = bth_value_id(value);
    if (id == SIZE_MAX)
        return true;
    bool is_new = !(walk->seen[id / 8] >> id % 8 & 1);
    walk->seen[id / 8] |= (uint8_t)(1u << id % 8);
    return is_new;
}
