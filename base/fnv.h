/* SPDX-License-Identifier: BSD-3-Clause */
/* FNV-1a: a hash that is the same on every machine. It is easy to find collisions on purpose. */
#ifndef BTH_BASE_FNV_H
#define BTH_BASE_FNV_H

#include <stddef.h>
#include <stdint.h>

#define BTH_FNV_BEGIN UINT64_C(0xCBF29CE484222325)

/* Continues a hash over more bytes; it begins as BTH_FNV_BEGIN. */
static inline uint64_t bth_fnv_update(uint64_t hash, const void *bytes, size_t nbytes)
{
    const uint8_t *at = bytes;

    for (size_t i = 0; i < nbytes; i++)
        hash = (hash ^ at[i]) * UINT64_C(0x100000001B3);
    return hash;
}

#endif
