/* SPDX-License-Identifier: BSD-3-Clause */
/* The memory of a tree of values, and its error. */
#include "config/error.h"
#include "config/memory.h"
#include "format/values/node.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/*
 * Chunks grow with the tree, for few calls of the allocator and little waste (P3). A node's
 * position in its chunk has 16 bits, in units of 8 bytes.
 */
enum { FIRST_CHUNK_NBYTES = 2048, CHUNK_NBYTES = 16384, LARGEST_CHUNK_NBYTES = 262144 };
_Static_assert(LARGEST_CHUNK_NBYTES / BTH_BLOCK_UNIT <= UINT16_MAX, "berth_value.at");

static struct block *tree_add_block(berth_tree *tree, size_t nbytes)
{
    uint64_t total;
    struct block *block = NULL;
    if (bth_add(nbytes, sizeof(*block), &total) && total <= SIZE_MAX)
        block = bth_allocate((size_t)total);
    if (!block) {
        bth_tree_fail(tree, BERTH_E_MEMORY, "out of memory: %zu bytes for values", nbytes);
        return NULL;
    }
    *block = (struct block){.next = tree->blocks, .tree = tree};
    if (tree->blocks)
        tree->blocks->previous = block;
    tree->blocks = block;
    return block;
}

static size_t tree_round(size_t nbytes)
{
    return (nbytes + BTH_BLOCK_UNIT - 1) & ~(size_t)(BTH_BLOCK_UNIT - 1);
}

/* A block of the given memory, or NULL. It is not in the list, so it is never released. */
static struct block *tree_take_given(berth_tree *tree, size_t nbytes)
{
    struct block *block = (struct block *)(void *)tree->given;
    if (tree->given_nbytes < sizeof(*block) ||
        nbytes > ((tree->given_nbytes - sizeof(*block)) & ~(size_t)(BTH_BLOCK_UNIT - 1)))
        return NULL;
    *block = (struct block){.tree = tree};
    nbytes = sizeof(*block) + tree_round(nbytes);
    tree->given += nbytes;
    tree->given_nbytes -= nbytes;
    return block;
}

static size_t tree_next_chunk_nbytes(const berth_tree *tree)
{
    size_t nbytes = tree->chunks_nbytes / 16 & ~(size_t)(CHUNK_NBYTES - 1);
    if (!tree->chunk)
        return FIRST_CHUNK_NBYTES;
    if (nbytes < CHUNK_NBYTES)
        return CHUNK_NBYTES;
    return nbytes < LARGEST_CHUNK_NBYTES ? nbytes : LARGEST_CHUNK_NBYTES;
}

/* Adds a chunk, from the given memory as long as that lasts. */
static bool tree_add_chunk(berth_tree *tree)
{
    size_t nbytes = LARGEST_CHUNK_NBYTES;
    struct block *chunk = tree_take_given(tree, nbytes - sizeof(*chunk));
    if (!chunk) {
        nbytes = tree_next_chunk_nbytes(tree);
        chunk = tree_add_block(tree, nbytes - sizeof(*chunk));
    }
    if (!chunk)
        return false;
    tree->chunk = chunk;
    tree->chunk_at = sizeof(struct block);
    tree->chunk_nbytes = nbytes;
    tree->chunks_nbytes += nbytes;
    return true;
}

void bth_tree_give(berth_tree *tree, void *memory, size_t nbytes)
{
    tree->given = memory;
    tree->given_nbytes = nbytes;
}

/* Memory and the block that it lies in. */
static void *tree_allocate(berth_tree *tree, size_t nbytes, struct block **block)
{
    if (nbytes > BTH_LARGEST_IN_CHUNK) {
        *block = tree_take_given(tree, nbytes);
        if (!*block)
            *block = tree_add_block(tree, nbytes);
        return *block ? *block + 1 : NULL;
    }
    nbytes = tree_round(nbytes);
    if (nbytes > tree->chunk_nbytes - tree->chunk_at && !tree_add_chunk(tree))
        return NULL;
    *block = tree->chunk;
    void *memory = (char *)tree->chunk + tree->chunk_at;
    tree->chunk_at += nbytes;
    return memory;
}

void *bth_tree_allocate(berth_tree *tree, size_t nbytes)
{
    struct block *block;
    return tree_allocate(tree, nbytes, &block);
}

void *bth_tree_allocate_some(berth_tree *tree, size_t nbytes, size_t *n)
{
    /* Within a sixteenth of a chunk, as single nodes are. */
    *n = (tree->chunk_nbytes - tree->chunk_at) / 2 / nbytes;
    size_t most = tree->chunk_nbytes / 16 / nbytes;
    *n = *n < most ? *n : most;
    if (*n * nbytes <= BTH_LARGEST_IN_CHUNK) {
        *n = *n ? *n : 1;
        return bth_tree_allocate(tree, *n * nbytes);
    }
    void *memory = (char *)tree->chunk + tree->chunk_at;
    tree->chunk_at += tree_round(*n * nbytes);
    return memory;
}

/* Takes a block out of the tree's list. */
static void tree_unlink_block(berth_tree *tree, const struct block *block)
{
    if (block->next)
        block->next->previous = block->previous;
    *(block->previous ? &block->previous->next : &tree->blocks) = block->next;
}

void bth_tree_discard(berth_tree *tree, void *memory, size_t nbytes)
{
    if (nbytes <= BTH_LARGEST_IN_CHUNK)
        return;
    struct block *block = (struct block *)memory - 1;
    if (!block->previous && tree->blocks != block) /* a part of the given memory */
        return;
    tree_unlink_block(tree, block);
    bth_release(block);
}

void *bth_tree_grow(berth_tree *tree, void *memory, size_t old_nbytes, size_t new_nbytes)
{
    void *grown = bth_tree_allocate(tree, new_nbytes);
    if (!grown || !memory)
        return grown;
    memcpy(grown, memory, old_nbytes);
    bth_tree_discard(tree, memory, old_nbytes);
    return grown;
}

size_t bth_tree_capacity(size_t old, size_t need)
{
    size_t more = old + old / 2 + 2;
    return old == 0 || need > more ? need : more;
}

void *bth_node_new_plain(berth_tree *tree, berth_kind kind, size_t nbytes)
{
    if (!tree)
        return NULL;
    struct block *block;
    berth_value *node = tree_allocate(tree, nbytes, &block);
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
    berth_value *node = bth_node_new_plain(tree, kind, nbytes);
    if (!node)
        return NULL;
    if (tree->n_ids == BTH_NO_ID) {
        bth_tree_fail(tree, BERTH_E_UNSUPPORTED, "more than %u values in one tree", BTH_NO_ID);
        return NULL;
    }
    node->id = tree->n_ids++;
    return node;
}

berth_tree *berth_tree_new(berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    berth_tree *tree = bth_allocate_zeroed(sizeof(*tree));
    if (!tree) {
        bth_fail_memory(error, sizeof(*tree));
        return NULL;
    }
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
    bth_release(tree->keys.chains);
    bth_release(tree->storages.items);
    bth_release(tree->storages.slots);
    bth_release(tree);
}

int bth_tree_fail(berth_tree *tree, int code, const char *format, ...)
{
    char text[sizeof(tree->error.message)];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return bth_fail(&tree->error, code, NULL, BERTH_NO_OFFSET, "%s", text);
}

int berth_tree_error(const berth_tree *tree, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (!tree)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "no tree");
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

size_t bth_tree_n_ids(const berth_tree *tree)
{
    return tree->n_ids;
}

bool bth_tree_owns(berth_tree *tree, const berth_value *value, const char *what)
{
    if (value && bth_value_tree(value) == tree)
        return true;
    bth_tree_fail(tree, BERTH_E_ARGUMENT, value ? "%s is of another tree" : "%s is NULL", what);
    return false;
}

/* Puts the key or index in front of the tree's error, once. */
static void tree_locate_error(berth_tree *tree, const berth_value *key, size_t index)
{
    char where[128], text[sizeof(tree->error.message)];
    if (tree->is_located)
        return;
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
}

bool bth_tree_owns_item(berth_tree *tree, const berth_value *value, const char *what,
                        const berth_value *key, size_t index)
{
    bool owns = bth_tree_owns(tree, value, what);
    if (!owns)
        tree_locate_error(tree, key, index);
    return owns;
}

bool bth_tree_owns_all(berth_tree *tree, berth_value *const *values, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (!bth_tree_owns_item(tree, values[i], what, NULL, i))
            return false;
    return true;
}
