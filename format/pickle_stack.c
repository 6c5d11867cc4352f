/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Stack, marks and memo of the pickle reader. One array of 8-byte slots holds the stack with its
 * marks; neither array can outgrow the bytes of the pickle (P3).
 */
#include "config/memory.h"
#include "format/pickle_machine.h"

/* Room for one more slot. Every opcode pushes one at most, so the bytes that are left bound it. */
static int grow_stack(berth_unpickler *unpickler)
{
    size_t limit = unpickler->depth + 1 + (unpickler->nbytes - unpickler->at);
    size_t capacity = unpickler->capacity + unpickler->capacity / 2 + 64;
    if (capacity > limit)
        capacity = limit;
    if (capacity > SIZE_MAX / sizeof *unpickler->stack)
        return berth_fail_memory(unpickler->error, UINT64_MAX);
    berth_value **stack = berth_reallocate(unpickler->stack, capacity * sizeof *unpickler->stack);
    if (!stack)
        return berth_fail_memory(unpickler->error, capacity * sizeof *stack);
    unpickler->stack = stack;
    unpickler->capacity = capacity;
    return 0;
}

static int push_slot(berth_unpickler *unpickler, berth_value *slot)
{
    if (unpickler->depth == unpickler->capacity) {
        int code = grow_stack(unpickler);
        if (code < 0)
            return code;
    }
    unpickler->stack[unpickler->depth++] = slot;
    return 0;
}

int berth_unpickle_push(berth_unpickler *unpickler, berth_value *value)
{
    if (!value)
        return berth_unpickle_fail_tree(unpickler, berth_unpickle_opcode(unpickler));
    return push_slot(unpickler, value);
}

/* A mark remembers where the items below it begin. */
int berth_unpickle_push_mark(berth_unpickler *unpickler)
{
    uintptr_t mark = (uintptr_t)unpickler->floor << 2 | BERTH_TAG_MARK;
    int code = push_slot(unpickler, (berth_value *)mark);
    if (code == 0)
        unpickler->floor = unpickler->depth;
    return code;
}

int berth_unpickle_want(berth_unpickler *unpickler, size_t n)
{
    size_t there = unpickler->depth - unpickler->floor;
    if (there >= n)
        return 0;
    return berth_unpickle_fail(unpickler, BERTH_E_PICKLE,
                               "stack underflow: %s takes %zu items, %zu there",
                               berth_unpickle_opcode(unpickler), n, there);
}

berth_value *berth_unpickle_peek(berth_unpickler *unpickler, size_t below)
{
    berth_value *slot = unpickler->stack[unpickler->depth - 1 - below];
    return berth_slot_tag(slot) ? berth_unpickle_resolve(unpickler, slot) : slot;
}

int berth_unpickle_pop_mark(berth_unpickler *unpickler, berth_value *const **items, size_t *n)
{
    if (unpickler->floor == 0)
        return berth_unpickle_fail(unpickler, BERTH_E_PICKLE, "%s without a MARK",
                                   berth_unpickle_opcode(unpickler));
    size_t first = unpickler->floor;
    if (unpickler->has_pending) {
        for (size_t i = first; i < unpickler->depth; i++) {
            berth_value **slot = &unpickler->stack[i];
            if (berth_slot_tag(*slot))
                *slot = berth_unpickle_resolve(unpickler, *slot);
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

/* Picklers number from 0, so no index reaches the length of the pickle (P3). */
int berth_unpickle_put(berth_unpickler *unpickler, uint64_t index)
{
    if (index >= unpickler->nbytes)
        return berth_unpickle_fail(unpickler, BERTH_E_PICKLE,
                                   "memo index %llu in a pickle of %zu bytes",
                                   (unsigned long long)index, unpickler->nbytes);
    if (index >= unpickler->n_memo) {
        size_t n = unpickler->n_memo + unpickler->n_memo / 2 + 16;
        n = n > index ? n : (size_t)index + 1;
        n = n < unpickler->nbytes ? n : unpickler->nbytes;
        berth_value **memo = berth_reallocate(unpickler->memo, n * sizeof *memo);
        if (!memo)
            return berth_fail_memory(unpickler->error, n * sizeof *memo);
        for (size_t i = unpickler->n_memo; i < n; i++)
            memo[i] = NULL;
        unpickler->memo = memo;
        unpickler->n_memo = n;
    }
    unpickler->memo[index] = unpickler->stack[unpickler->depth - 1];
    return 0;
}

int berth_unpickle_get(berth_unpickler *unpickler, uint64_t index)
{
    if (index >= unpickler->n_memo || !unpickler->memo[index])
        return berth_unpickle_fail(unpickler, BERTH_E_PICKLE,
                                   "%s of memo index %llu, where nothing was put",
                                   berth_unpickle_opcode(unpickler), (unsigned long long)index);
    return push_slot(unpickler, unpickler->memo[index]);
}

void berth_unpickle_free_stack(berth_unpickler *unpickler)
{
    berth_release(unpickler->stack);
    berth_release(unpickler->memo);
}
