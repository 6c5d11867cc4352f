/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Reads a usual tensor at once, without stack and memo, and without nodes for its parts. The result
 * is the same: what is unusual, fetched again, or would fail is read opcode by opcode.
 */
#include <string.h>

#include "base/error.h"
#include "format/pickle/pickle_machine.h"

/* ---- its opcodes ---- */

/* The longest opcode, with an argument of 4 bytes, and all other bytes together. */
enum { LONG = 5, OTHERS = 16 };
_Static_assert(LONG *(BTH_USUAL_GETS + BTH_USUAL_PUTS + 3 + 2 * BTH_USUAL_RANK) +
                       BTH_USUAL_KEY_NBYTES + OTHERS <
                   BTH_USUAL_NBYTES,
               "a usual tensor fits BTH_USUAL_NBYTES");

/* Each reads what it names and moves *at, or returns false. As calls they would take twice as long.
 */
#define READS static inline __attribute__((always_inline)) bool

READS usual_read_opcode(const uint8_t **at, uint8_t opcode)
{
    return *(*at)++ == opcode;
}

READS usual_read_memo_opcode_and_index(const uint8_t **at, uint8_t brief, uint8_t wide,
                                       uint32_t *index)
{
    const uint8_t *bytes = *at;
    bool is_brief = bytes[0] == brief;
    *index = is_brief ? bytes[1] : bth_little_u32(bytes + 1);
    *at += is_brief ? 2 : LONG;
    return is_brief || bytes[0] == wide;
}

READS usual_read_get(const uint8_t **at, uint32_t *index)
{
    return usual_read_memo_opcode_and_index(at, 'h', 'j', index);
}

READS usual_read_put(const uint8_t **at, bth_usual *usual)
{
    return usual_read_memo_opcode_and_index(at, 'q', 'r', &usual->puts[usual->n_puts++]);
}

READS usual_read_int(const uint8_t **at, int64_t *number)
{
    const uint8_t *bytes = *at;
    switch (bytes[0]) {
    case 'K':
        *number = bytes[1];
        *at += 2;
        return true;
    case 'M':
        *number = bytes[1] | bytes[2] << 8;
        *at += 3;
        return true;
    case 'J':
        *number = (int32_t)bth_little_u32(bytes + 1);
        if (*number < 0) /* *at stays, so that the caller can go on from there */
            return false;
        *at += LONG;
        return true;
    default:
        return false;
    }
}

READS usual_read_bool(const uint8_t **at, bool *value)
{
    uint8_t opcode = *(*at)++;
    *value = opcode == 0x88;
    return opcode == 0x88 || opcode == 0x89;
}

/* The text of a key, or a fetch of one. */
READS usual_read_key_or_get(const uint8_t **at, bth_usual *usual)
{
    const uint8_t *bytes = *at;
    usual->key = NULL;
    if (bytes[0] != 'X')
        return usual_read_get(at, &usual->gets[BTH_USUAL_KEY]);
    usual->gets[BTH_USUAL_KEY] = usual->gets[BTH_USUAL_WORD];
    usual->key_nbytes = bth_little_u32(bytes + 1);
    if (usual->key_nbytes > BTH_USUAL_KEY_NBYTES)
        return false;
    usual->key = (const char *)bytes + LONG;
    *at += LONG + usual->key_nbytes;
    return usual_read_put(at, usual);
}

/* A tuple of ints. An empty one is never put into the memo. */
READS usual_read_shape(const uint8_t **at, bth_usual *usual, int64_t *items, int32_t *rank)
{
    uint8_t n = 0;
    bool is_marked = **at == '(';
    *at += is_marked;
    while (n < BTH_USUAL_RANK && usual_read_int(at, &items[n]))
        n++;
    *rank = n;
    if (n == 0)
        return !is_marked && usual_read_opcode(at, ')');
    return (is_marked || n <= 3) && usual_read_opcode(at, is_marked ? 't' : (uint8_t)(0x84 + n)) &&
           usual_read_put(at, usual);
}

size_t bth_usual_tensor_parse(const uint8_t *bytes, bth_usual *usual)
{
    const uint8_t *at = bytes;
    uint32_t *gets = usual->gets;
    usual->n_puts = 0;
    bool good =
        usual_read_get(&at, &gets[BTH_USUAL_FUNCTION]) && usual_read_opcode(&at, '(') &&
        usual_read_opcode(&at, '(') && usual_read_get(&at, &gets[BTH_USUAL_WORD]) &&
        usual_read_get(&at, &gets[BTH_USUAL_CLASS]) && usual_read_key_or_get(&at, usual) &&
        usual_read_get(&at, &gets[BTH_USUAL_LOCATION]) && usual_read_int(&at, &usual->numel) &&
        usual_read_opcode(&at, 't') && usual_read_put(&at, usual) && usual_read_opcode(&at, 'Q') &&
        usual_read_int(&at, &usual->offset) &&
        usual_read_shape(&at, usual, usual->size, &usual->rank) &&
        usual_read_shape(&at, usual, usual->stride, &usual->stride_rank) &&
        usual_read_bool(&at, &usual->requires_grad) &&
        usual_read_get(&at, &gets[BTH_USUAL_HOOKS]) && usual_read_opcode(&at, ')') &&
        usual_read_opcode(&at, 'R') && usual_read_put(&at, usual) && usual_read_opcode(&at, 't') &&
        usual_read_put(&at, usual) && usual_read_opcode(&at, 'R');
    return good ? (size_t)(at - bytes) : 0;
}

/* ---- its meaning ---- */

/* A node in the memo; NULL: there is none, or it is pending. */
static const berth_value *usual_find_memo_node(const bth_unpickler *unpickler,
                                               const bth_usual *usual, int which)
{
    uint32_t index = usual->gets[which];
    const berth_value *slot = index < unpickler->n_memo ? unpickler->memo[index] : NULL;
    return bth_slot_tag(slot) ? NULL : slot;
}

static bool usual_get_is_callable(const bth_unpickler *unpickler, const bth_usual *usual, int which,
                                  enum bth_build build)
{
    const bth_known *known = bth_node_known_global(usual_find_memo_node(unpickler, usual, which));
    return known && known->build == build;
}

/* NULL: only the opcodes can make it, or fail with the better message. */
static berth_value *usual_make(const bth_unpickler *unpickler, const bth_usual *usual)
{
    const struct text_node *word =
        bth_node_as_text_node(usual_find_memo_node(unpickler, usual, BTH_USUAL_WORD));
    const struct text_node *key =
        bth_node_as_text_node(usual_find_memo_node(unpickler, usual, BTH_USUAL_KEY));
    const struct text_node *location =
        bth_node_as_text_node(usual_find_memo_node(unpickler, usual, BTH_USUAL_LOCATION));
    const berth_value *class = usual_find_memo_node(unpickler, usual, BTH_USUAL_CLASS);
    berth_dtype dtype;
    if (!bth_text_is(word, "storage") || !key || !location ||
        !bth_node_is_storage_class(class, &dtype))
        return NULL;
    const char *text = usual->key ? usual->key : key->data;
    size_t nbytes = usual->key ? usual->key_nbytes : key->key.count;
    unsigned char all = 0;
    for (size_t i = 0; usual->key && i < nbytes; i++)
        all |= (unsigned char)text[i];
    if (all >= 0x80) /* more than ASCII */
        return NULL;
    /* P5, T3. No overflow: 31 bits times the bytes of an item (T1). */
    berth_storage *storage = bth_tree_find_or_add_storage(
        unpickler->tree, text, nbytes, dtype, (uint64_t)usual->numel * berth_dtype_nbytes(dtype),
        location->data, location->key.count);
    size_t rank = (size_t)usual->rank;
    int64_t *shape =
        storage ? bth_tree_allocate_inline(unpickler->tree, (2 * rank + 1) * sizeof *shape) : NULL;
    if (!shape)
        return NULL;
    memcpy(shape, usual->size, rank * sizeof *shape);
    memcpy(shape + rank, usual->stride, rank * sizeof *shape);
    return bth_tensor_adopt(
        unpickler->tree, &(berth_tensor){.dtype = dtype == BERTH_DTYPE_NONE ? BERTH_UINT8 : dtype,
                                         .rank = usual->rank,
                                         .shape = shape,
                                         .stride = shape + rank,
                                         .storage_offset = usual->offset,
                                         .storage = storage,
                                         .flags = usual->requires_grad ? BERTH_REQUIRES_GRAD : 0});
}

size_t bth_unpickle_make_usual_tensor(const bth_unpickler *unpickler, const uint8_t *bytes,
                                      berth_value **tensor)
{
    bth_usual usual;
    size_t used = unpickler->rules->legacy ? 0 : bth_usual_tensor_parse(bytes, &usual);
    if (!used || usual.rank != usual.stride_rank ||
        !usual_get_is_callable(unpickler, &usual, BTH_USUAL_FUNCTION, BTH_BUILD_tensor_v2) ||
        !usual_get_is_callable(unpickler, &usual, BTH_USUAL_HOOKS, BTH_BUILD_ordered_dict))
        return 0;
    /* None of its PUTs is ever fetched, and all have valid indices (P3). */
    for (size_t i = 0; i < usual.n_puts; i++)
        if (usual.puts[i] >= unpickler->nbytes ||
            bth_unpickle_memo_may_be_fetched(unpickler, usual.puts[i]))
            return 0;
    *tensor = usual_make(unpickler, &usual);
    if (*tensor || unpickler->tree->error.code == BERTH_E_MEMORY)
        return used;
    bth_error_clear(&unpickler->tree->error);
    return 0;
}
