/* SPDX-License-Identifier: BSD-3-Clause */
/* A hash of bytes with a secret seed, so that a file cannot be made to collide. */
#ifndef BTH_BASE_SEEDED_HASH_H
#define BTH_BASE_SEEDED_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A number of 128 bits, also where the compiler has none. */
typedef struct bth_wide {
    uint64_t low;
    uint64_t high;
} bth_wide;

static inline bth_wide bth_wide_product(uint64_t a, uint64_t b)
{
#ifdef __SIZEOF_INT128__
    unsigned __int128 product = (unsigned __int128)a * b;
    return (bth_wide){(uint64_t)product, (uint64_t)(product >> 64)};
#else
    uint64_t a_low = (uint32_t)a, a_high = a >> 32, b_low = (uint32_t)b, b_high = b >> 32;
    uint64_t middle = a_high * b_low + (a_low * b_low >> 32);
    uint64_t other = a_low * b_high + (uint32_t)middle;
    return (bth_wide){a * b, a_high * b_high + (middle >> 32) + (other >> 32)};
#endif
}

static inline bth_wide bth_wide_sum(bth_wide a, bth_wide b)
{
    uint64_t low = a.low + b.low;
    return (bth_wide){low, a.high + b.high + (low < a.low)};
}

/* Mixes two numbers: every bit of the result depends on all bits of both. */
static inline uint64_t bth_hash_mix(uint64_t a, uint64_t b)
{
    bth_wide product =
        bth_wide_product(a ^ UINT64_C(0xa0761d6478bd642f), b ^ UINT64_C(0xe7037ed1a0b428db));
    return product.low ^ product.high;
}

static inline uint32_t bth_hash_fold_to_u32(uint64_t hash)
{
    return (uint32_t)(hash ^ hash >> 32);
}

/* Makes the ASCII capital letters of eight bytes small, and changes nothing else. */
static inline uint64_t bth_small_letters(uint64_t word)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), tops = ones * 0x80;
    uint64_t low = word & ~tops; /* no sum carries into the next byte */
    uint64_t capitals = ((low + ones * (0x80 - 'A')) ^ (low + ones * (0x7F - 'Z'))) & ~word & tops;

    return word | capitals >> 2;
}

/* Z8: equal except for the case of ASCII letters, which PyTorch's reader ignores. In any locale. */
static inline bool bth_same_in_any_case(const char *one, const char *other, size_t nbytes)
{
    uint64_t a, b;

    for (; nbytes >= sizeof a; nbytes -= sizeof a, one += sizeof a, other += sizeof a) {
        memcpy(&a, one, sizeof a);
        memcpy(&b, other, sizeof b);
        if (bth_small_letters(a) != bth_small_letters(b))
            return false;
    }
    a = b = 0;
    memcpy(&a, one, nbytes);
    memcpy(&b, other, nbytes);
    return bth_small_letters(a) == bth_small_letters(b);
}

static inline uint32_t bth_hash_with_case_option(uint64_t seed, const void *bytes, size_t nbytes,
                                                 bool any_case)
{
    const uint8_t *at = bytes;
    uint64_t hash = bth_hash_mix(seed, nbytes), word;
    for (; nbytes >= sizeof(word); nbytes -= sizeof(word), at += sizeof(word)) {
        memcpy(&word, at, sizeof(word));
        hash = bth_hash_mix(hash, any_case ? bth_small_letters(word) : word);
    }
    word = 0;
    for (size_t i = nbytes; i > 0; i--)
        word = word << 8 | at[i - 1];
    return bth_hash_fold_to_u32(bth_hash_mix(hash, any_case ? bth_small_letters(word) : word));
}

static inline uint32_t bth_hash(uint64_t seed, const void *bytes, size_t nbytes)
{
    return bth_hash_with_case_option(seed, bytes, nbytes, false);
}

/* The same hash for texts that differ only in the case of ASCII letters. */
static inline uint32_t bth_hash_any_case(uint64_t seed, const void *bytes, size_t nbytes)
{
    return bth_hash_with_case_option(seed, bytes, nbytes, true);
}

#endif
