/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Stack, marks, memo and errors of the pickle reader. One array of 8-byte slots holds the stack
 * with its marks; neither array can outgrow the bytes of the pickle (P3).
 */
#include <stdarg.h>
#include <stdio.h>

#include "base/memory.h"
#include "format/pickle/pickle_machine.h"

/* ---- errors ---- */

const char *bth_unpickle_opcode_name(const bth_unpickler *unpickler)
{
    return bth_opcodes[unpickler->bytes[unpickler->op_at]].name;
}

int bth_unpickle_fail(bth_unpickler *unpickler, int code, const char *format, ...)
{
    char text[sizeof unpickler->error->message];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return bth_fail(unpickler->error, code, unpickler->rules->record,
                    unpickler->rules->base_offset + unpickler->op_at, "%s", text);
}

int bth_unpickle_fail_by_tree_error(bth_unpickler *unpickler, const char *subject)
{
    berth_error inner;
    /* The first error stays. */
    if (berth_tree_error(unpickler->tree, &inner) == BERTH_OK)
        return bth_fail_memory(unpickler->error, 0);
    /* An invalid argument of a berth_make function means an invalid pickle. */
    int code = inner.code == BERTH_E_ARGUMENT ? BERTH_E_PICKLE : inner.code;
    return bth_unpickle_fail(unpickler, code, "%s: %s", subject, inner.message);
}

/* ---- stack and marks ---- */

/* Every opcode pushes one slot at most, so the bytes that are left bound the stack. */
int bth_unpickle_grow_stack(bth_unpickler *unpickler)
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

int bth_unpickle_fail_underflow(bth_unpickler *unpickler, size_t n)
{
    return bth_unpickle_fail(
        unpickler, BERTH_E_PICKLE, "stack underflow: %s needs %zu items, %zu are there",
        bth_unpickle_opcode_name(unpickler), n, unpickler->depth - unpickler->floor);
}

/* A mark remembers where the items below it begin. */
int bth_unpickle_push_mark(bth_unpickler *unpickler)
{
    uintptr_t mark = (uintptr_t)unpickler->floor << 2 | BTH_TAG_MARK;
    int code = bth_unpickle_push_slot(unpickler, (berth_value *)mark);
    if (code == 0)
        unpickler->floor = unpickler->depth;
    return code;
}

berth_value *bth_unpickle_resolve_pending(bth_unpickler *unpickler, berth_value *slot)
{
    bth_pending *pending = (bth_pending *)((uintptr_t)slot & ~(uintptr_t)BTH_TAG_BITS);
    if (pending->value)
        return pending->value;
    if (!pending->tensor)
        return BTH_UNPICKLE_REFUSE(unpickler, BERTH_E_PICKLE, "a tensor is used before its BUILD");
    pending->value = berth_make_parameter(unpickler->tree, pending->tensor, pending->requires_grad);
    if (!pending->value)
        bth_unpickle_fail_by_tree_error(unpickler, "torch.nn.parameter Parameter");
    return pending->value;
}

int bth_unpickle_pop_items_to_mark(bth_unpickler *unpickler, berth_value *const **items, size_t *n)
{
    if (unpickler->floor == 0)
        return bth_unpickle_fail(unpickler, BERTH_E_PICKLE, "%s without a MARK",
                                 bth_unpickle_opcode_name(unpickler));
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

/* ---- memo ---- */

/* Picklers number from 0, so no index reaches the length of the pickle (P3). */
int bth_unpickle_allocate_memo(bth_unpickler *unpickler)
{
    size_t n_memo = unpickler->survey->n_memo;
    size_t n = n_memo < unpickler->nbytes ? n_memo : unpickler->nbytes;
    if (n == 0)
        return 0;
    size_t memo_nbytes = bth_array_nbytes(n, sizeof(berth_value *));
    unpickler->memo = bth_allocate_zeroed(memo_nbytes);
    if (!unpickler->memo)
        return bth_fail_memory(unpickler->error, memo_nbytes);
    unpickler->n_memo = n;
    return 0;
}

int bth_unpickle_check_put_index(bth_unpickler *unpickler, uint64_t index)
{
    if (index < unpickler->nbytes)
        return 0;
    return bth_unpickle_fail(unpickler, BERTH_E_PICKLE, "memo index %llu in a pickle of %zu bytes",
                             (unsigned long long)index, unpickler->nbytes);
}

/* Whether REDUCE or BINPERSID is next, or follows a PUT that is never fetched. */
static bool tuple_is_used_once(const bth_unpickler *unpickler)
{
    const uint8_t *at = unpickler->bytes + unpickler->op_at + 1;
    size_t left = unpickler->nbytes - unpickler->op_at - 1;
    if (left > 5 && at[0] == BTH_OP_LONG_BINPUT &&
        !bth_unpickle_memo_may_be_fetched(unpickler, bth_little_u32(at + 1)))
        at += 5;
    else if (left > 2 && at[0] == BTH_OP_BINPUT &&
             !bth_unpickle_memo_may_be_fetched(unpickler, at[1]))
        at += 2;
    else if (left == 0)
        return false;
    return at[0] == BTH_OP_REDUCE || at[0] == BTH_OP_BINPERSID;
}

/*
 * Most tuples are the arguments of one call and never fetched, so they need no node. Inert objects
 * keep their arguments.
 */
berth_value *bth_unpickle_tuple(bth_unpickler *unpickler, berth_value *const *items, size_t n)
{
    struct tuple_node *tuple = &unpickler->arguments.tuple;
    if (n == 0 || n > 8 || unpickler->rules->inert || !tuple_is_used_once(unpickler))
        return bth_tuple_of(unpickler->tree, items, n);
    *tuple = (struct tuple_node){
        .key = {.head = {.kind = BERTH_KIND_TUPLE, .id = BTH_NO_ID}, .count = (uint32_t)n}};
    for (size_t i = 0; i < n; i++)
        tuple->items[i] = items[i];
    return &tuple->key.head;
}

int bth_unpickle_get(bth_unpickler *unpickler, uint64_t index)
{
    if (index >= unpickler->n_memo || !unpickler->memo[index])
        return bth_unpickle_fail(unpickler, BERTH_E_PICKLE,
                                 "%s of memo index %llu, where nothing was put",
                                 bth_unpickle_opcode_name(unpickler), (unsigned long long)index);
    return bth_unpickle_push_slot(unpickler, unpickler->memo[index]);
}
