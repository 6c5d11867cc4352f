/* SPDX-License-Identifier: BSD-3-Clause */
/* berth_value_walk: the walk over values with the caller's functions, and paths as berth_find's. */
#include "base/error.h"
#include "base/memory.h"
#include "config/options.h"
#include "format/names/names.h"

struct value_walk {
    berth_walk public; /* first: what the caller's functions get */
    berth_walker walker;
    bth_walk walk;
    size_t n_steps;         /* from the root to the value at hand: the steps of so many frames */
    size_t n_steps_written; /* so many of them are in `path`; the note of a frame is the end of its
                               step */
    bth_name_text path;
};

/* Adds the steps that `path` does not have yet, so that each is written once. */
static const char *value_walk_path(const berth_walk *public)
{
    struct value_walk *state = (struct value_walk *)(uintptr_t) public;
    bth_walk_frame *frames = state->walk.frames;
    bth_name_text *out = &state->path;
    size_t i = state->n_steps_written < state->n_steps ? state->n_steps_written : state->n_steps;
    out->nbytes = i ? frames[i - 1].note : 0;
    out->cut = false;
    for (bth_name_text_append_bytes(out, "", 0); i < state->n_steps; i++) {
        bth_name_text_append_step(out, frames[i].value, frames[i].step, true);
        frames[i].note = (uint32_t)out->nbytes;
    }
    state->n_steps_written = out->cut ? 0 : state->n_steps;
    if (out->failed || out->cut)
        return "...";
    return out->text;
}

static int value_walk_call(struct value_walk *state, berth_walk_function function,
                           const berth_value *value, size_t n_steps, berth_error *error)
{
    state->n_steps = n_steps;
    int code = function ? function(state->walker.context, &state->public, value) : 0;
    return state->path.failed ? bth_fail_memory(error, state->path.capacity) : code;
}

static int value_walk_call_and_push_if_new(struct value_walk *state, const berth_value *value,
                                           berth_error *error)
{
    const berth_walker *walker = &state->walker;
    size_t n = state->walk.n_frames;
    bool is_new = bth_walk_mark_if_new(&state->walk, value);
    int code = value_walk_call(state, is_new ? walker->enter : walker->alias, value, n, error);
    if (code == BERTH_WALK_SKIP || (code == 0 && !is_new))
        return 0;
    return code ? code : bth_walk_push(&state->walk, value, error);
}

int berth_value_walk(const berth_value *value, const berth_walker *walker, berth_error *error)
{
    struct value_walk state = {.public = {.path = value_walk_path},
                               .path = {.limit = BTH_MAX_NAME_NBYTES}};
    bth_walk *walk = &state.walk;
    int code;
    BTH_ERROR_BEGIN(error);
    if (!value || !walker)
        return bth_fail_argument(error, "the %s is NULL", value ? "walker" : "value");
    if (BTH_CHECK_RESERVED(berth_walker, walker, error) < 0)
        return error->code;
    state.walker = *walker;
    if (state.walker.flags & ~BERTH_WALK_ITEMS)
        return bth_fail_argument(error, "unknown flags 0x%x of a walk",
                                 (unsigned)state.walker.flags);
    walk->edges = state.walker.flags & BERTH_WALK_ITEMS ? BTH_WALK_ITEMS : BTH_WALK_ALL;
    code = bth_walk_allocate_seen(walk, bth_value_tree(value), error);
    if (code == 0)
        code = value_walk_call_and_push_if_new(&state, value, error);
    while (code == 0 && walk->n_frames > 0) {
        const berth_value *child = bth_walk_next_child(walk);
        if (state.n_steps_written >= walk->n_frames)
            state.n_steps_written = walk->n_frames - 1;
        if (child) {
            code = value_walk_call_and_push_if_new(&state, child, error);
            continue;
        }
        const berth_value *left = walk->frames[walk->n_frames - 1].value;
        code = value_walk_call(&state, state.walker.leave, left, walk->n_frames - 1, error);
        bth_walk_pop(walk);
    }
    bth_walk_free(walk);
    bth_release(state.path.text);
    return code;
}
