/* SPDX-License-Identifier: BSD-3-Clause */
/* A hash of bytes by a secret seed: who makes a file cannot choose what collides. */
#ifndef BERTH_FORMAT_HASH_H
#define BERTH_FORMAT_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A number of 128 bits, also where the compiler has none. */
typedef struct berth_wide {
    uint64_t low;
    uint64_t high;
} berth_wide;

static inline berth_wide berth_wide_product(uint64_t a, uint64_t b)
{
#ifdef __SIZEOF_INT128__
    unsigned __int128 product = (unsigned __int128)a * b;
    return (berth_wide){(uint64_t)product, (uint64_t)(product >> 64)};
#else
    uint64_t a_low = (uint32_t)a, a_high = a >> 32, b_low = (uint32_t)b, b_high = b >> 32;
    uint64_t middle = a_high * b_low + (a_low * b_low >> 32);
    uint64_t other = a_low * b_high + (uint32_t)middle;
    return (berth_wide){a * b, a_high * b_high + (middle >> 32) + (other >> 32)};
#endif
}

static inline berth_wide berth_wide_sum(berth_wide a, berth_wide b)
{
    uint64_t low = a.low + b.low;
    return (berth_wide){low, a.high + b.high + (low < a.low)};
}

/* Of two numbers one, all bits of both in all bits of it. */
static inline uint64_t berth_hash_mix(uint64_t a, uint64_t b)
{
    berth_wide product =
        berth_wide_product(a ^ UINT64_C(0xa0761d6478bd642f), b ^ UINT64_C(0xe7037ed1a0b428db));
    return product.low ^ product.high;
}

static inline uint32_t berth_hash_fold(uint64_t hash)
{
    return (uint32_t)(hash ^ hash >> 32);
}

/* The capital letters of ASCII made small, in eight bytes; nothing else is. */
static inline uint64_t berth_small_letters(uint64_t word)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), tops = ones * 0x80;
    uint64_t low = word & ~tops; /* no sum carries into the next byte */
    uint64_t capitals = ((low + ones * (0x80 - 'A')) ^ (low + ones * (0x7F - 'Z'))) & ~word & tops;

    return word | capitals >> 2;
}

static inline uint32_t berth_hash_of(uint64_t seed, const void *bytes, size_t nbytes, bool any_case)
{
    const uint8_t *at = bytes;
    uint64_t hash = berth_hash_mix(seed, nbytes), word;
    for (; nbytes >= sizeof(word); nbytes -= sizeof(word), at += sizeof(word)) {
        memcpy(&word, at, sizeof(word));
        hash = berth_hash_mix(hash, any_case ? berth_small_letters(word) : word);
    }
    word = 0;
    for (size_t i = nbytes; i > 0; i--)
        word = word << 8 | at[i - 1];
    return berth_hash_fold(berth_hash_mix(hash, any_case ? berth_small_letters(word) : word));
}

static inline uint32_t berth_hash(uint64_t seed, const void *bytes, size_t nbytes)
{
    return berth_hash_of(seed, bytes, nbytes, false);
}

/* The same for texts that differ in the case of ASCII letters alone. */
static inline uint32_t berth_hash_any_case(uint64_t seed, const void *bytes, size_t nbytes)
{
    return berth_hash_of(seed, bytes, nbytes, true);
}

#endif
