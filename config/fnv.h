/* SPDX-License-Identifier: BSD-3-Clause */
/* FNV-1a: a hash that is the same on every machine; anybody can choose what collides. */
#ifndef BERTH_CONFIG_FNV_H
#define BERTH_CONFIG_FNV_H

#include <stddef.h>
#include <stdint.h>

#define BERTH_FNV_BEGIN UINT64_C(0xCBF29CE484222325)

/* Goes on with a hash, which begins as BERTH_FNV_BEGIN, over more bytes. */
static inline uint64_t berth_fnv(uint64_t hash, const void *bytes, size_t nbytes)
{
    const uint8_t *at = bytes;

    for (size_t i = 0; i < nbytes; i++)
        hash = (hash ^ at[i]) * UINT64_C(0x100000001B3);
    return hash;
}

#endif
