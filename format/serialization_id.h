/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The digits of .data/serialization_id, as PyTorch computes them on Linux (format/FORMAT.md
 * section 4). PyTorch keeps the names of the records in a std::unordered_set and hashes them in the
 * order in which that set iterates, so this order is computed here. The same on every machine.
 */
#ifndef BTH_FORMAT_SERIALIZATION_ID_H
#define BTH_FORMAT_SERIALIZATION_ID_H

#include <stddef.h>
#include <stdint.h>

#include "berth.h"

#define BTH_ID_NBYTES 40 /* decimal digits of .data/serialization_id */

/* Names in the order of a std::unordered_set<std::string> of libstdc++. Zeros: none. */
typedef struct bth_id_names {
    uint64_t *hashes;  /* of each name; name i has place i + 1 until the set grows */
    uint64_t *sorted;  /* of names in the order of the list, while the set grows */
    uint32_t *next;    /* behind each place of the list, which begins behind place 0; 0: the end */
    uint32_t *buckets; /* 1 + the place in front of the bucket's first name; 0: empty */
    size_t n;
    size_t room;
    size_t first_bucket;       /* of the list's first name */
    const uint64_t *n_buckets; /* in the table of primes */
} bth_id_names;

/* Room for `room` names, at most 2^32 - 3, in 20 bytes for each and 4 for each bucket. Released by
 * bth_id_names_free_all, after a failure too. */
int bth_id_names_begin(bth_id_names *names, size_t room, berth_error *error);
/* Adds the next name of the file. No name is added twice. */
void bth_id_names_add(bth_id_names *names, const char *name, size_t nbytes);
/* The number of the first 20 digits. Called once, after the last name. */
uint64_t bth_id_names_hash(bth_id_names *names);
void bth_id_names_free_all(bth_id_names *names);

/* Continues a hash, which begins as 0, by one more number: a name's hash, a CRC. */
static inline uint64_t bth_id_combine(uint64_t hash, uint64_t number)
{
    return hash ^ (number + UINT64_C(0x9e3779b9) + (hash << 6) + (hash >> 2));
}

/* The same by what PyTorch takes for the CRC of a record: the number behind the signature of a
 * descriptor. It looks at the beginning of each piece that it writes, a record's data among them:
 * data of 8 bytes and more that begin as a descriptor count too. */
#define BTH_ID_START_NBYTES 8
uint64_t bth_id_combine_record(uint64_t hash, const uint8_t start[BTH_ID_START_NBYTES],
                               uint64_t nbytes, uint32_t crc32);

void bth_id_write(uint64_t names, uint64_t crc32s, char digits[BTH_ID_NBYTES]);

#endif
