/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How the bytes of a source can be reached: by a map, direct reads, or plain reads. Each is tried
 * when it is first needed. The caller has the lock, except where a function is thread-safe.
 */
#ifndef BTH_LOAD_TRANSFER_ACCESS_H
#define BTH_LOAD_TRANSFER_ACCESS_H

#include "io/direct.h"
#include "io/map.h"
#include "io/source.h"
#include "load/transfer/choice.h"

typedef struct bth_access {
    bth_reader *reader;
    atomic_bool direct_is_refused; /* the kernel refused a direct read */
    bth_map map;                   /* of the whole file, made when first needed */
    bool map_is_refused;           /* the system refused to map it */
    uint64_t sized_at;             /* the tick in which the file's size was last read; 0: never */
    bool file_system_is_known;
    bth_file_system file_system;
    bool direct_is_tried;
    const char *no_direct; /* why direct reads are impossible; NULL: `direct` makes them */
    bth_direct direct;
} bth_access;

void bth_access_begin(bth_access *access, bth_reader *reader);
void bth_access_end(bth_access *access);
/* In a child that was forked while a thread of the parent changed it: all is made anew. */
void bth_access_forget(bth_access *access);

/* Fills what is known of the source at any time. */
void bth_access_describe(bth_access *access, bth_conditions *conditions);
/* Fills the rest, for a transfer of `asked_nbytes` bytes that lie within [begin, end). */
void bth_access_measure(const bth_access *access, bth_conditions *conditions, uint64_t begin,
                        uint64_t end, uint64_t asked_nbytes);
/* bth_choose; direct reads are tried where they are chosen. */
bth_choice bth_access_choose(bth_access *access, const struct berth_config *config,
                             bth_conditions *conditions, berth_load_method asked,
                             const char *asked_by);
/*
 * *map: the address of the source's first byte; NULL: it cannot be mapped. Reads the file's size
 * again unless that was done in this tick of the clock (F1): many storages, one after the other,
 * do not pay for each. `flags`: load.mmap_flags. `offset` is the byte that an error names.
 */
int bth_access_map(bth_access *access, int flags, uint64_t offset, const uint8_t **map,
                   berth_error *error);

/* F1, F2: BERTH_E_TRUNCATED where the file has less than `nbytes` bytes now. Thread-safe. */
int bth_access_check_size(const bth_reader *reader, uint64_t nbytes, uint64_t offset,
                          berth_error *error);
/*
 * Loads mapped bytes, those of the file from `offset` on, by an advice (MADV_POPULATE_READ ...).
 * *done: false where the kernel refuses the advice: the bytes come when they are touched. A page
 * behind the file's end is an error, not a signal (F2). Thread-safe.
 */
int bth_access_advise(const bth_reader *reader, const uint8_t *memory, uint64_t nbytes,
                      uint64_t offset, int advice, bool *done, berth_error *error);

#endif
