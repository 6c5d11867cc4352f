/* SPDX-License-Identifier: BSD-3-Clause */
/* The memory of a tree of values, and its error. */
#include "base/error.h"
#include "base/memory.h"
#include "format/values/node.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Chunks grow with the tree, for few calls of the allocator and little waste (P3). A node's
 * position in its chunk has 16 bits, in units of 8 bytes. */
enum { FIRST_CHUNK_NBYTES = 2048, CHUNK_NBYTES = 16384, MAX_CHUNK_NBYTES = 262144 };
_Static_assert(MAX_CHUNK_NBYTES / BTH_BLOCK_UNIT <= UINT16_MAX, "berth_value.at");

static struct block *tree_add_block(berth_tree *tree, size_t nbytes)
{
    uint64_t total;
    struct block *block = NULL;
    if (bth_try_add(nbytes, sizeof(*block), &total) && total <= SIZE_MAX)
        block = bth_allocate((size_t)total);
    if (!block)
        return BTH_TREE_REFUSE(tree, BERTH_E_MEMORY, "out of memory: %zu bytes for values", nbytes);
    *block = (struct block){.next = tree->blocks, .tree = tree};
    if (tree->blocks)
        tree->blocks->previous = block;
    tree->blocks = block;
    return block;
}

/* A block of the spare memory, or NULL. It is not in the list, so it is never released. */
static struct block *tree_take_block_from_spare(berth_tree *tree, size_t nbytes)
{
    struct block *block = (struct block *)(void *)tree->spare;
    if (tree->spare_nbytes < sizeof(*block) ||
        nbytes > ((tree->spare_nbytes - sizeof(*block)) & ~(size_t)(BTH_BLOCK_UNIT - 1)))
        return NULL;
    *block = (struct block){.tree = tree};
    nbytes = sizeof(*block) + bth_tree_round_up_nbytes(nbytes);
    tree->spare += nbytes;
    tree->spare_nbytes -= nbytes;
    return block;
}

void bth_tree_set_spare_memory(berth_tree *tree, void *memory, size_t nbytes)
{
    tree->spare = memory;
    tree->spare_nbytes = nbytes;
}

/* Memory and the block that it lies in. */
static void *tree_allocate_and_get_block(berth_tree *tree, size_t nbytes, struct block **block)
{
    if (nbytes > BTH_MAX_IN_CHUNK) {
        *block = tree_take_block_from_spare(tree, nbytes);
        if (!*block)
            *block = tree_add_block(tree, nbytes);
        return *block ? *block + 1 : NULL;
    }
    void *memory = bth_tree_allocate_in_chunk(tree, nbytes);
    if (!memory) { /* a new chunk, from the spare memory while enough is left */
        size_t chunk_nbytes = MAX_CHUNK_NBYTES;
        struct block *chunk = tree_take_block_from_spare(tree, chunk_nbytes - sizeof(*chunk));
        if (!chunk) {
            chunk_nbytes = tree->chunks_nbytes / 16 & ~(size_t)(CHUNK_NBYTES - 1);
            chunk_nbytes = chunk_nbytes < CHUNK_NBYTES ? CHUNK_NBYTES : chunk_nbytes;
            chunk_nbytes = chunk_nbytes > MAX_CHUNK_NBYTES ? MAX_CHUNK_NBYTES : chunk_nbytes;
            chunk_nbytes = tree->chunk ? chunk_nbytes : FIRST_CHUNK_NBYTES;
            chunk = tree_add_block(tree, chunk_nbytes - sizeof(*chunk));
        }
        if (!chunk)
            return NULL;
        tree->chunk = chunk;
        tree->chunk_at = sizeof(struct block);
        tree->chunk_nbytes = chunk_nbytes;
        tree->chunks_nbytes += chunk_nbytes;
        memory = bth_tree_allocate_in_chunk(tree, nbytes);
    }
    *block = tree->chunk;
    return memory;
}

void *bth_tree_allocate(berth_tree *tree, size_t nbytes)
{
    struct block *block;
    return tree_allocate_and_get_block(tree, nbytes, &block);
}

void bth_tree_release_allocation(berth_tree *tree, void *memory, size_t nbytes)
{
    if (nbytes <= BTH_MAX_IN_CHUNK)
        return;
    struct block *block = (struct block *)memory - 1;
    if (!block->previous && tree->blocks != block) /* a part of the spare memory */
        return;
    if (block->next)
        block->next->previous = block->previous;
    *(block->previous ? &block->previous->next : &tree->blocks) = block->next;
    bth_release(block);
}

void *bth_tree_reserve_array(berth_tree *tree, struct size *old, size_t n, size_t head_nbytes,
                             size_t item_nbytes, size_t max)
{
    static const struct size none;
    struct size size = old ? *old : none;
    size_t max_in_memory = (SIZE_MAX / 2 - head_nbytes) / item_nbytes; /* 32 bits */
    max = max < max_in_memory ? max : max_in_memory;
    assert(size.count <= max);
    if (n > max - size.count)
        return BTH_TREE_REFUSE(tree, BERTH_E_UNSUPPORTED,
                               "one list or table has more than %zu items", max);
    if (old && n <= size.capacity - size.count)
        return old;
    /* Exact at first, then half more. */
    size_t need = size.count + n, more = old ? size.capacity + size.capacity / 2 + (size_t)2 : 0;
    size_t capacity = need > more ? need : more > max ? max : more;
    struct size *grown = bth_tree_allocate(tree, head_nbytes + capacity * item_nbytes);
    if (!grown)
        return NULL;
    if (old) {
        size_t nbytes = head_nbytes + size.capacity * item_nbytes;
        memcpy(grown, old, nbytes);
        bth_tree_release_allocation(tree, old, nbytes);
    } else {
        memset(grown, 0, head_nbytes);
    }
    grown->capacity = (uint32_t)capacity;
    return grown;
}

void *bth_node_new_without_id(berth_tree *tree, berth_kind kind, size_t nbytes)
{
    if (!tree)
        return NULL;
    struct block *block;
    berth_value *node = tree_allocate_and_get_block(tree, nbytes, &block);
    if (!node)
        return NULL;
    memset(node, 0, nbytes);
    node->kind = (uint8_t)kind;
    node->at = (uint16_t)(((char *)node - (char *)block) / BTH_BLOCK_UNIT);
    node->id = BTH_NO_ID;
    return node;
}

void *bth_node_new(berth_tree *tree, berth_kind kind, size_t nbytes)
{
    berth_value *node = bth_node_new_without_id(tree, kind, nbytes);
    if (!node)
        return NULL;
    if (tree->n_ids == BTH_NO_ID)
        return BTH_TREE_REFUSE(tree, BERTH_E_UNSUPPORTED, "more than %u values in one tree",
                               BTH_NO_ID);
    node->id = tree->n_ids++;
    return node;
}

berth_value *bth_wrapper_node_new(berth_tree *tree, berth_kind kind, berth_value *inner)
{
    size_t nbytes = kind == BERTH_KIND_SUBCLASS    ? sizeof(struct wrap_node)
                    : kind == BERTH_KIND_PARAMETER ? offsetof(struct wrap_node, type)
                                                   : BTH_WRAP_NBYTES;
    struct wrap_node *node = inner ? bth_node_new(tree, kind, nbytes) : NULL;
    if (!node)
        return NULL;
    node->inner = inner;
    return &node->head;
}

berth_tree *berth_tree_new(berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    berth_tree *tree = bth_allocate_zeroed(sizeof(*tree));
    if (!tree)
        return bth_fail_memory(error, sizeof(*tree)), NULL;
    /* Differs from run to run where addresses do, so that a file cannot be made to collide. */
    tree->seed = (uint64_t)(uintptr_t)tree * UINT64_C(0x9e3779b97f4a7c15) ^
                 (uint64_t)(uintptr_t)&error * UINT64_C(0xd6e8feb86659fd93);
    bth_error_clear(&tree->error);
    return tree;
}

void berth_tree_free(berth_tree *tree)
{
    if (!tree)
        return;
    /* Frees blocks, not values, so depth costs nothing (P3). */
    for (struct block *block = tree->blocks, *next; block; block = next) {
        next = block->next;
        bth_release(block);
    }
    bth_release(tree);
}

int bth_tree_fail(berth_tree *tree, int code, const char *format, ...)
{
    char text[sizeof(tree->error.message)];
    va_list arguments;
    if (!tree)
        return BERTH_E_ARGUMENT;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return bth_fail(&tree->error, code, NULL, BERTH_NO_OFFSET, "%s", text);
}

int berth_tree_error(const berth_tree *tree, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (!tree)
        return bth_fail_argument(error, "no tree");
    *error = tree->error;
    return error->code;
}

berth_tree *bth_value_tree(const berth_value *value)
{
    if (!value)
        return NULL;
    const char *block = (const char *)value - (size_t)value->at * BTH_BLOCK_UNIT;
    return ((const struct block *)block)->tree;
}

size_t bth_value_id(const berth_value *value)
{
    return value && value->id != BTH_NO_ID ? value->id : SIZE_MAX;
}

size_t bth_tree_n_storages(const berth_tree *tree)
{
    return tree->storages.items ? tree->storages.items->size.count : 0;
}

size_t bth_tree_n_ids(const berth_tree *tree)
{
    return tree->n_ids;
}

bool bth_tree_check_owns_value(berth_tree *tree, const berth_value *value, const char *what)
{
    if (value && bth_value_tree(value) == tree)
        return true;
    return BTH_TREE_REFUSE(tree, BERTH_E_ARGUMENT, value ? "%s is of another tree" : "%s is NULL",
                           what);
}

bool bth_tree_check_owns_item(berth_tree *tree, const berth_value *value, const char *what,
                              const berth_value *key, size_t index)
{
    if (bth_tree_check_owns_value(tree, value, what))
        return true;
    if (!tree || tree->is_located)
        return false;
    /* Puts the key or index in front of the tree's error, once. */
    char where[128], text[sizeof(tree->error.message)];
    tree->is_located = true;
    if (bth_node_is(key, BERTH_KIND_STR))
        (void)snprintf(where, sizeof(where), "['%.100s']", ((const struct text_node *)key)->data);
    else if (bth_node_is(key, BERTH_KIND_INT) && !(key->flags & BTH_NODE_BIG))
        (void)snprintf(where, sizeof(where), "[%" PRId64 "]",
                       ((const struct int_node *)key)->value);
    else
        (void)snprintf(where, sizeof(where), "[%zu]", index);
    memcpy(text, tree->error.message, sizeof(text));
    (void)snprintf(tree->error.message, sizeof(text), "%s: %.*s", where,
                   (int)(sizeof(text) - sizeof(where) - 3), text);
    return false;
}

bool bth_tree_check_owns_items(berth_tree *tree, berth_value *const *values, size_t n,
                               const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (!bth_tree_check_owns_item(tree, values[i], what, NULL, i))
            return false;
    return true;
}
