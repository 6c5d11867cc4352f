/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Little-endian integers in bytes. A cursor remembers a failure: after a read beyond the end, every
 * read returns 0 and `good` stays false. So a structure is read field by field and checked once, at
 * its end.
 */
#ifndef BTH_FORMAT_BYTES_H
#define BTH_FORMAT_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct bth_cursor {
    const uint8_t *start;
    size_t nbytes;
    size_t at;
    bool good;
} bth_cursor;

static inline bth_cursor bth_cursor_make(const uint8_t *start, size_t nbytes)
{
    return (bth_cursor){.start = start, .nbytes = nbytes, .at = 0, .good = true};
}

static inline size_t bth_cursor_left(const bth_cursor *cursor)
{
    return cursor->nbytes - cursor->at;
}

/* The next n bytes, or NULL when fewer are left. */
static inline const uint8_t *bth_cursor_bytes(bth_cursor *cursor, size_t n)
{
    const uint8_t *taken = cursor->start + cursor->at;
    if (!cursor->good || n > cursor->nbytes - cursor->at) {
        cursor->good = false;
        return NULL;
    }
    cursor->at += n;
    return taken;
}

static inline uint64_t bth_cursor_integer(bth_cursor *cursor, size_t n)
{
    const uint8_t *taken = bth_cursor_bytes(cursor, n);
    uint64_t value = 0;
    for (size_t i = n; taken && i > 0; i--)
        value = value << 8 | taken[i - 1];
    return value;
}

/* Written out, so that the compiler emits one load instruction. */
static inline uint16_t bth_cursor_u16(bth_cursor *cursor)
{
    const uint8_t *taken = bth_cursor_bytes(cursor, 2);
    return taken ? (uint16_t)((unsigned)taken[0] | (unsigned)taken[1] << 8) : 0;
}

static inline uint32_t bth_cursor_u32(bth_cursor *cursor)
{
    const uint8_t *taken = bth_cursor_bytes(cursor, 4);
    return taken ? taken[0] | (uint32_t)taken[1] << 8 | (uint32_t)taken[2] << 16 |
                       (uint32_t)taken[3] << 24
                 : 0;
}

static inline uint64_t bth_cursor_u64(bth_cursor *cursor)
{
    const uint8_t *taken = bth_cursor_bytes(cursor, 8);
    return taken
               ? taken[0] | (uint64_t)taken[1] << 8 | (uint64_t)taken[2] << 16 |
                     (uint64_t)taken[3] << 24 | (uint64_t)taken[4] << 32 |
                     (uint64_t)taken[5] << 40 | (uint64_t)taken[6] << 48 | (uint64_t)taken[7] << 56
               : 0;
}

/* Writes the low n bytes of value; returns where the next field begins. */
static inline uint8_t *bth_put_integer(uint8_t *out, uint64_t value, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (uint8_t)(value >> (8 * i));
    return out + n;
}

static inline uint8_t *bth_put_u16(uint8_t *out, uint64_t value)
{
    return bth_put_integer(out, value, 2);
}

static inline uint8_t *bth_put_u32(uint8_t *out, uint64_t value)
{
    return bth_put_integer(out, value, 4);
}

static inline uint8_t *bth_put_u64(uint8_t *out, uint64_t value)
{
    return bth_put_integer(out, value, 8);
}

#endif
