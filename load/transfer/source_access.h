/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Access to the bytes of a source: by a map, direct reads, or plain reads. Each is tried when it is
 * first needed. The caller locks, except around functions that are thread-safe.
 */
#ifndef BTH_LOAD_TRANSFER_SOURCE_ACCESS_H
#define BTH_LOAD_TRANSFER_SOURCE_ACCESS_H

#include "io/direct.h"
#include "io/map.h"
#include "io/source.h"
#include "load/transfer/method_choice.h"

typedef struct bth_access {
    bth_reader *reader;
    atomic_bool direct_is_refused; /* the kernel refused a direct read */
    bth_map map;                   /* of the whole file, made when first needed */
    bool map_is_refused;           /* the system refused to map it */
    uint64_t sized_at;             /* the tick of the last read of the file's size; 0: never */
    bool file_system_is_known;
    bth_file_system file_system;
    _Atomic bool direct_is_tried;
    const char *no_direct; /* why direct reads are impossible; NULL: `direct` makes them */
    bth_direct direct;
    uint64_t direct_n_forks; /* bth_fork_count() when `direct` had been opened */
} bth_access;

void bth_access_initialize(bth_access *access, bth_reader *reader);
void bth_access_close_direct(bth_access *access); /* its descriptor only, not the map */

/* Sets the conditions that are known without measuring. */
void bth_access_set_known_conditions(bth_access *access, bth_conditions *conditions);
/* Measures the others, for a transfer of `requested_nbytes` bytes within [begin, end). */
void bth_access_measure(const bth_access *access, bth_conditions *conditions, uint64_t begin,
                        uint64_t end, uint64_t requested_nbytes);
/* bth_choose. If that chooses direct reads, tries them. */
bth_choice bth_access_choose(bth_access *access, const struct berth_config *config,
                             bth_conditions *conditions, berth_load_method requested,
                             const char *requested_by);
/* *map: the source's first byte; NULL: it cannot be mapped. Reads the file's size again, but only
 * once in a tick of the clock (F1), so that many storages in a row cost little. `flags`:
 * load.mmap_flags. `offset`: the byte that an error names. */
int bth_access_map(bth_access *access, int flags, uint64_t offset, const uint8_t **map,
                   berth_error *error);

/* F1, F2: BERTH_E_TRUNCATED if the file has fewer than `nbytes` bytes now. Thread-safe. */
int bth_access_check_size(const bth_reader *reader, uint64_t nbytes, uint64_t offset,
                          berth_error *error);
/* Loads mapped bytes of the file from `offset` on, by an advice (MADV_POPULATE_READ ...). *done:
 * false if the kernel refuses it; then the bytes are read when they are touched. A page after the
 * file's end is an error, not a signal (F2). Thread-safe. */
int bth_access_advise_mapped_bytes(const bth_reader *reader, const uint8_t *memory, uint64_t nbytes,
                                   uint64_t offset, int advice, bool *done, berth_error *error);

#endif
