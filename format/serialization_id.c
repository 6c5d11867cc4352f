/* SPDX-License-Identifier: BSD-3-Clause */
#include "format/serialization_id.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/bytes.h"

/* The numbers of buckets that a set takes one after the other as it grows by one name at a time.
 * Printed by a program that asked libstdc++ 12: bucket_count() of a set up to 20 million elements,
 * then std::__detail::_Prime_rehash_policy::_M_next_bkt(2 * n). A set grows when it would have more
 * names than buckets. */
static const uint64_t primes[] = {
    13,        29,        59,         127,        257,       541,      1109,      2357,
    5087,      10273,     20753,      42043,      85229,     172933,   351061,    712697,
    1447153,   2938679,   5967347,    12117689,   24607243,  49969847, 101473717, 206062531,
    418451333, 849749479, 1725587117, 3504151727, 8589934583};

/* std::hash<std::string>: _Hash_bytes of libstdc++, which is MurmurHash64A with other ends. */
#define NAME_SEED UINT64_C(0xc70f6907)
#define NAME_MULTIPLIER UINT64_C(0xc6a4a7935bd1e995)

static uint64_t name_shift_and_mix(uint64_t hash)
{
    return hash ^ hash >> 47;
}

/* Inserts the names of places from `first` to `last`. Buckets are far apart in memory, so they are
 * fetched some names ahead: that makes it twice as fast. */
static void names_insert_range(bth_id_names *names, size_t first, size_t last)
{
    enum { AHEAD = 32 };
    uint32_t buckets[AHEAD];
    for (size_t at = first; at <= last; at += AHEAD) {
        size_t n = last + 1 - at < AHEAD ? last + 1 - at : AHEAD;
        for (size_t i = 0; i < n; i++) {
            buckets[i] = (uint32_t)(names->hashes[at + i] % *names->n_buckets);
            __builtin_prefetch(&names->buckets[buckets[i]], 1);
        }
        /* The new first name of a bucket goes to the front of the list, others before the bucket's
         * first. */
        for (size_t i = 0; i < n; i++) {
            uint32_t place = (uint32_t)(at + i), bucket = buckets[i], in_front = 0;
            if (names->buckets[bucket] > 0) {
                in_front = names->buckets[bucket] - 1;
            } else {
                if (names->next[0] > 0)
                    names->buckets[names->first_bucket] = place + 1;
                names->buckets[bucket] = 1;
                names->first_bucket = bucket;
            }
            names->next[place] = names->next[in_front];
            names->next[in_front] = place;
        }
    }
}

int bth_id_names_begin(bth_id_names *names, size_t room, berth_error *error)
{
    const uint64_t *last = primes;
    assert(room <= UINT32_MAX - 2);
    while (*last < room)
        last++;
    *names = (bth_id_names){.room = room, .n_buckets = primes};
    names->hashes = bth_allocate((room + 1) * sizeof *names->hashes);
    names->sorted = bth_allocate((room + 1) * sizeof *names->sorted);
    names->next = bth_allocate((room + 1) * sizeof *names->next);
    names->buckets = bth_allocate((size_t)*last * sizeof *names->buckets);
    if (!names->hashes || !names->sorted || !names->next || !names->buckets)
        return bth_fail_memory(error, (size_t)*last * sizeof *names->buckets);
    names->next[0] = 0;
    memset(names->buckets, 0, (size_t)*primes * sizeof *names->buckets);
    return 0;
}

void bth_id_names_add(bth_id_names *names, const char *name, size_t nbytes)
{
    bth_cursor cursor = bth_cursor_make((const uint8_t *)name, nbytes);
    uint64_t hash = NAME_SEED ^ nbytes * NAME_MULTIPLIER;
    assert(names->n < names->room);
    while (bth_cursor_left(&cursor) >= 8) {
        uint64_t word = name_shift_and_mix(bth_cursor_u64(&cursor) * NAME_MULTIPLIER);
        hash = (hash ^ word * NAME_MULTIPLIER) * NAME_MULTIPLIER;
    }
    if (bth_cursor_left(&cursor) > 0)
        hash = (hash ^ bth_cursor_integer(&cursor, nbytes % 8)) * NAME_MULTIPLIER;
    names->hashes[++names->n] = name_shift_and_mix(name_shift_and_mix(hash) * NAME_MULTIPLIER);
}

uint64_t bth_id_names_hash(bth_id_names *names)
{
    size_t n_inserted = 0;
    uint64_t hash = 0;
    while (n_inserted < names->n) {
        if (n_inserted > 0) {
            /* The set grows: all names are inserted again, in the order of the list, which reverses
             * much of it. They get the places of that order, so that neighbours lie side by side
             * from now on. */
            size_t n_sorted = 0;
            for (uint32_t place = names->next[0]; place > 0; place = names->next[place])
                names->sorted[n_sorted++] = names->hashes[place];
            assert(n_sorted == n_inserted);
            memcpy(names->hashes + 1, names->sorted, n_inserted * sizeof *names->hashes);
            names->n_buckets++;
            memset(names->buckets, 0, (size_t)*names->n_buckets * sizeof *names->buckets);
            names->next[0] = 0;
            names_insert_range(names, 1, n_inserted);
        }
        size_t last = *names->n_buckets < names->n ? (size_t)*names->n_buckets : names->n;
        names_insert_range(names, n_inserted + 1, last);
        n_inserted = last;
    }
    for (uint32_t place = names->next[0]; place > 0; place = names->next[place])
        hash = bth_id_combine(hash, names->hashes[place]);
    return hash;
}

void bth_id_names_free_all(bth_id_names *names)
{
    bth_release(names->hashes);
    bth_release(names->sorted);
    bth_release(names->next);
    bth_release(names->buckets);
    *names = (bth_id_names){0};
}

/* ---- CRCs, digits ---- */

uint64_t bth_id_combine_record(uint64_t hash, const uint8_t start[BTH_ID_START_NBYTES],
                               uint64_t nbytes, uint32_t crc32)
{
    if (nbytes == 0) /* it has no descriptor */
        return hash;
    if (nbytes >= BTH_ID_START_NBYTES && memcmp(start, "PK\7\10", 4) == 0) {
        bth_cursor behind = bth_cursor_make(start + 4, 4);
        hash = bth_id_combine(hash, bth_cursor_u32(&behind));
    }
    return bth_id_combine(hash, crc32);
}

void bth_id_write(uint64_t names, uint64_t crc32s, char digits[BTH_ID_NBYTES])
{
    char text[BTH_ID_NBYTES + 1];
    (void)snprintf(text, sizeof text, "%020" PRIu64 "%020" PRIu64, names, crc32s);
    memcpy(digits, text, BTH_ID_NBYTES);
}
