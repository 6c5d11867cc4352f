/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The walk over values: depth first, with a stack of its own, because a file can nest values as
 * deep as memory allows (P3). The walk returns children; its caller decides which to push.
 */
#ifndef BTH_FORMAT_VALUES_WALK_H
#define BTH_FORMAT_VALUES_WALK_H

#include "berth.h"

/*
 * A step from a value to one that it holds: the number of an item, or of a part of a tensor (the
 * indices of a sparse one, the scales of a quantized one), or one of these.
 */
enum {
    BTH_STEP_LIST_ITEMS = UINT32_MAX - 4, /* the first: items have smaller numbers */
    BTH_STEP_DICT_ITEMS,
    BTH_STEP_INNER,
    BTH_STEP_STATE,
    BTH_STEP_NONE /* before the first */
};

/* Which children a walk returns. */
typedef enum bth_walk_edges {
    BTH_WALK_ITEMS,   /* items of containers */
    BTH_WALK_MEMBERS, /* items, then BTH_STEP_LIST_ITEMS to BTH_STEP_STATE; no parts of tensors */
    BTH_WALK_ALL,     /* the same, and the parts of tensors as items */
    BTH_WALK_MADE_OF  /* the values that a value was made of; these are older: no cycles */
} bth_walk_edges;

/* Small, because a value may be nested as deep as its pickle has bytes (P3). */
typedef struct bth_walk_frame {
    const berth_value *value;
    uint32_t step; /* to the child that was returned last */
    uint32_t note; /* the caller's; 0 at first */
} bth_walk_frame;

typedef struct bth_walk {
    bth_walk_edges edges;
    uint32_t n_items; /* of the value on top: */
    uint32_t stride;  /* every `stride`th of `items` is one */
    berth_value *const *items;
    bth_walk_frame *frames;
    size_t n_frames;
    size_t capacity;
    uint8_t *seen; /* bits by id */
} bth_walk;

/* Begins the children of a value. A walk begins as zeros and `edges`. */
int bth_walk_push(bth_walk *walk, const berth_value *value, berth_error *error);
/* Ends the children of the value on top. */
void bth_walk_pop(bth_walk *walk);
void bth_walk_free(bth_walk *walk);

/* The value of a step; NULL if there is none. */
const berth_value *bth_value_child_at_step(const berth_value *parent, uint32_t step);
/* Part i of a sparse, nested or quantized tensor, or of a value around one. */
const berth_value *bth_tensor_part(const berth_value *value, uint32_t i);

/* Memory for bth_walk_mark_if_new. */
int bth_walk_allocate_seen(bth_walk *walk, const berth_tree *tree, berth_error *error);
/* True if the value is seen for the first time, or has no id. */
bool bth_walk_mark_if_new(bth_walk *walk, const berth_value *value);

/* The next child that is no item. */
const berth_value *bth_walk_next_non_item(const bth_walk *walk, bth_walk_frame *frame);

/* The next child of the value on top, whose `step` then leads to it. NULL: pop the value. */
static inline const berth_value *bth_walk_next_child(bth_walk *walk)
{
    bth_walk_frame *frame = &walk->frames[walk->n_frames - 1];
    uint32_t step = frame->step == BTH_STEP_NONE ? 0 : frame->step + 1;
    if (step >= walk->n_items)
        return bth_walk_next_non_item(walk, frame);
    frame->step = step;
    return walk->items[(size_t)step * walk->stride];
}

static inline bool bth_kind_is_tensor(berth_kind kind)
{
    return kind >= BERTH_KIND_TENSOR && kind <= BERTH_KIND_SUBCLASS;
}

static inline bool bth_kind_is_dict(berth_kind kind)
{
    return kind >= BERTH_KIND_DICT && kind <= BERTH_KIND_COUNTER;
}

static inline bool bth_is_container_other_than_set(berth_kind kind)
{
    return (kind >= BERTH_KIND_LIST && kind <= BERTH_KIND_COUNTER) || kind == BERTH_KIND_CALL;
}

#endif
