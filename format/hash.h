/* SPDX-License-Identifier: BSD-3-Clause */
/* A hash of bytes by a secret seed: who makes a file cannot choose what collides. */
#ifndef BERTH_FORMAT_HASH_H
#define BERTH_FORMAT_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Of two numbers one, all bits of both in all bits of it. */
static inline uint64_t berth_hash_mix(uint64_t a, uint64_t b)
{
    unsigned __int128 product =
        (unsigned __int128)(a ^ UINT64_C(0xa0761d6478bd642f)) * (b ^ UINT64_C(0xe7037ed1a0b428db));
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint32_t berth_hash_fold(uint64_t hash)
{
    return (uint32_t)(hash ^ hash >> 32);
}

static inline uint32_t berth_hash(uint64_t seed, const void *bytes, size_t nbytes)
{
    const uint8_t *at = bytes;
    uint64_t hash = berth_hash_mix(seed, nbytes), word;
    for (; nbytes >= sizeof(word); nbytes -= sizeof(word), at += sizeof(word)) {
        memcpy(&word, at, sizeof(word));
        hash = berth_hash_mix(hash, word);
    }
    word = 0;
    for (size_t i = nbytes; i > 0; i--)
        word = word << 8 | at[i - 1];
    return berth_hash_fold(berth_hash_mix(hash, word));
}

#endif
