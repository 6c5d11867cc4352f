/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Reads a usual tensor at once, without stack and memo, and without nodes for its parts. This is a
 * short cut with the same result: anything unusual, anything that is fetched again and anything
 * that would fail is left to the opcodes, one by one.
 */
#include <string.h>

#include "config/error.h"
#include "format/pickle/pickle_machine.h"

/* ---- its opcodes ---- */

/* The longest opcode, with an argument of 4 bytes, and all other bytes together. */
enum { LONG = 5, OTHERS = 16 };
_Static_assert(LONG *(BTH_USUAL_GETS + BTH_USUAL_PUTS + 3 + 2 * BTH_USUAL_RANK) +
                       BTH_USUAL_KEY_NBYTES + OTHERS <
                   BTH_USUAL_NBYTES,
               "what is looked at is there");

/*
 * Each reads what it names and moves *at, or returns false. They are a few instructions each; as
 * calls they would take as long as all the rest.
 */
#define TAKES static inline __attribute__((always_inline)) bool

TAKES usual_take(const uint8_t **at, uint8_t opcode)
{
    return *(*at)++ == opcode;
}

TAKES usual_take_index(const uint8_t **at, uint8_t brief, uint8_t wide, uint32_t *index)
{
    const uint8_t *bytes = *at;
    bool is_brief = bytes[0] == brief;
    *index = is_brief ? bytes[1] : bth_little_u32(bytes + 1);
    *at += is_brief ? 2 : LONG;
    return is_brief || bytes[0] == wide;
}

TAKES usual_take_get(const uint8_t **at, uint32_t *index)
{
    return usual_take_index(at, 'h', 'j', index);
}

TAKES usual_take_put(const uint8_t **at, bth_usual *usual)
{
    return usual_take_index(at, 'q', 'r', &usual->puts[usual->n_puts++]);
}

TAKES usual_take_int(const uint8_t **at, int64_t *number)
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

TAKES usual_take_bool(const uint8_t **at, bool *value)
{
    uint8_t opcode = *(*at)++;
    *value = opcode == 0x88;
    return opcode == 0x88 || opcode == 0x89;
}

/* The text of a key, or a fetch of one. */
TAKES usual_take_key(const uint8_t **at, bth_usual *usual)
{
    const uint8_t *bytes = *at;
    usual->key = NULL;
    if (bytes[0] != 'X')
        return usual_take_get(at, &usual->gets[BTH_USUAL_KEY]);
    usual->gets[BTH_USUAL_KEY] = usual->gets[BTH_USUAL_WORD];
    usual->key_nbytes = bth_little_u32(bytes + 1);
    if (usual->key_nbytes > BTH_USUAL_KEY_NBYTES)
        return false;
    usual->key = (const char *)bytes + LONG;
    *at += LONG + usual->key_nbytes;
    return usual_take_put(at, usual);
}

/* A tuple of ints. An empty one is never put into the memo. */
TAKES usual_take_shape(const uint8_t **at, bth_usual *usual, int64_t *items, int32_t *rank)
{
    uint8_t n = 0;
    bool is_marked = **at == '(';
    *at += is_marked;
    while (n < BTH_USUAL_RANK && usual_take_int(at, &items[n]))
        n++;
    *rank = n;
    if (n == 0)
        return !is_marked && usual_take(at, ')');
    return (is_marked || n <= 3) && usual_take(at, is_marked ? 't' : (uint8_t)(0x84 + n)) &&
           usual_take_put(at, usual);
}

size_t bth_scan_usual(const uint8_t *bytes, bth_usual *usual)
{
    const uint8_t *at = bytes;
    uint32_t *gets = usual->gets;
    usual->n_puts = 0;
    bool good = usual_take_get(&at, &gets[BTH_USUAL_FUNCTION]) && usual_take(&at, '(') &&
                usual_take(&at, '(') && usual_take_get(&at, &gets[BTH_USUAL_WORD]) &&
                usual_take_get(&at, &gets[BTH_USUAL_CLASS]) && usual_take_key(&at, usual) &&
                usual_take_get(&at, &gets[BTH_USUAL_LOCATION]) &&
                usual_take_int(&at, &usual->numel) && usual_take(&at, 't') &&
                usual_take_put(&at, usual) && usual_take(&at, 'Q') &&
                usual_take_int(&at, &usual->offset) &&
                usual_take_shape(&at, usual, usual->size, &usual->rank) &&
                usual_take_shape(&at, usual, usual->stride, &usual->stride_rank) &&
                usual_take_bool(&at, &usual->requires_grad) &&
                usual_take_get(&at, &gets[BTH_USUAL_HOOKS]) && usual_take(&at, ')') &&
                usual_take(&at, 'R') && usual_take_put(&at, usual) && usual_take(&at, 't') &&
                usual_take_put(&at, usual) && usual_take(&at, 'R');
    return good ? (size_t)(at - bytes) : 0;
}

/* ---- its meaning ---- */

/* A node in the memo; NULL: there is none, or it is pending. */
static const berth_value *usual_fetch(const bth_unpickler *unpickler, const bth_usual *usual,
                                      int which)
{
    uint32_t index = usual->gets[which];
    const berth_value *slot = index < unpickler->n_memo ? unpickler->memo[index] : NULL;
    return bth_slot_tag(slot) ? NULL : slot;
}

static const struct text_node *usual_fetch_text(const bth_unpickler *unpickler,
                                                const bth_usual *usual, int which)
{
    const berth_value *value = usual_fetch(unpickler, usual, which);
    return value && value->kind == BERTH_KIND_STR ? (const struct text_node *)value : NULL;
}

static bool usual_calls(const bth_unpickler *unpickler, const bth_usual *usual, int which,
                        enum bth_build build)
{
    bth_known room;
    const berth_value *value = usual_fetch(unpickler, usual, which);
    const bth_known *known = value ? bth_unpickle_known(value, &room) : NULL;
    return known && known->build == build;
}

/* Whether none of its PUTs is ever fetched, and all have valid indices (P3). */
static bool usual_keeps_nothing(const bth_unpickler *unpickler, const bth_usual *usual)
{
    for (size_t i = 0; i < usual->n_puts; i++)
        if (usual->puts[i] >= unpickler->nbytes ||
            bth_unpickle_is_fetched(unpickler, usual->puts[i]))
            return false;
    return true;
}

static bool usual_is_ascii(const char *text, size_t nbytes)
{
    unsigned char all = 0;
    for (size_t i = 0; i < nbytes; i++)
        all |= (unsigned char)text[i];
    return all < 0x80;
}

/* The storage (P5, T3) and its class; NULL: left to the opcodes. */
static berth_storage *usual_storage(const bth_unpickler *unpickler, const bth_usual *usual,
                                    berth_dtype *dtype)
{
    const struct text_node *word = usual_fetch_text(unpickler, usual, BTH_USUAL_WORD);
    const struct text_node *key = usual_fetch_text(unpickler, usual, BTH_USUAL_KEY);
    const struct text_node *location = usual_fetch_text(unpickler, usual, BTH_USUAL_LOCATION);
    const berth_value *class = usual_fetch(unpickler, usual, BTH_USUAL_CLASS);
    if (!word || !key || !location || !class || word->key.count != 7 ||
        memcmp(word->data, "storage", 7) != 0 || !bth_unpickle_storage_class(class, dtype))
        return NULL;
    const char *text = usual->key ? usual->key : key->data;
    size_t nbytes = usual->key ? usual->key_nbytes : key->key.count;
    if (usual->key && !usual_is_ascii(text, nbytes))
        return NULL;
    /* No overflow: 31 bits times the bytes of an item (T1). */
    return bth_tree_register_storage(unpickler->tree, text, nbytes, *dtype,
                                     (uint64_t)usual->numel * berth_dtype_nbytes(*dtype),
                                     location->data, location->key.count);
}

/* NULL: it cannot be made, or only by the opcodes. */
static berth_value *usual_make(const bth_unpickler *unpickler, const bth_usual *usual)
{
    size_t rank = (size_t)usual->rank;
    berth_dtype dtype;
    berth_storage *storage = usual_storage(unpickler, usual, &dtype);
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

size_t bth_unpickle_usual(bth_unpickler *unpickler, const uint8_t *bytes)
{
    bth_usual usual;
    size_t used = unpickler->rules->legacy ? 0 : bth_scan_usual(bytes, &usual);
    if (!used || usual.rank != usual.stride_rank || !usual_keeps_nothing(unpickler, &usual) ||
        !usual_calls(unpickler, &usual, BTH_USUAL_FUNCTION, BTH_BUILD_tensor_v2) ||
        !usual_calls(unpickler, &usual, BTH_USUAL_HOOKS, BTH_BUILD_ordered_dict))
        return 0;
    berth_value *tensor = usual_make(unpickler, &usual);
    if (tensor || unpickler->tree->error.code == BERTH_E_MEMORY) {
        (void)bth_unpickle_push(unpickler, tensor);
        return used;
    }
    /* The opcodes will fail at the same point, with a better message. */
    bth_error_clear(&unpickler->tree->error);
    return 0;
}
