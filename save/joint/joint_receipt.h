/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Receipts: what a writer of a joint save tells its coordinator, as bytes. Read as carefully as
 * tickets (joint_ticket.h).
 *
 *     "BerthRct", u32 version, 16 bytes identity of the save
 *     u32 number of the writer, u64 number of parts
 *     parts, in the file's order: u32 storage (of the ticket), u32 CRC, u64 offset in it,
 *                                 u64 nbytes, 8 first bytes of the middle
 *     fragments: the head and the tail of each part
 *     u32 CRC-32 of all before
 *
 * A part is a range of a storage that the writer has written. The whole blocks of the file in it
 * are its middle, which is in the file; the CRC is of the middle, shifted over the bytes of the
 * storage behind it. The bytes before it are the head, those behind it the tail: the blocks that
 * they lie in have bytes of others, too, and are written by the coordinator. A part without a whole
 * block is all head; CRC and first bytes are 0.
 *
 * Parts that are whole storages, of which one follows the other in the file, are a chain: the
 * writer has written the descriptors and headers between them, too. At a link the middle goes up to
 * the end of the storage, and there is no fragment. Bit 31 of `storage`: the part is chained to the
 * one before; bit 30: to the one behind.
 */
#ifndef BTH_SAVE_JOINT_RECEIPT_H
#define BTH_SAVE_JOINT_RECEIPT_H

#include "save/image.h"
#include "save/joint/joint_ticket.h"
#include "save/run.h"

/* A range of a storage of the ticket. */
typedef struct bth_joint_part {
    uint32_t storage : 30;
    uint32_t is_chained_behind : 1;
    uint32_t is_chained_before : 1;
    uint32_t crc32; /* of the middle, shifted over the rest of the storage */
    uint64_t at;
    uint64_t nbytes;
    uint8_t start[BTH_ID_START_NBYTES];
} bth_joint_part;

/* How a part lies in the file. */
typedef struct bth_joint_split {
    uint64_t head_nbytes;
    bth_range middle; /* of the file; nbytes 0: there is none */
    uint64_t tail_nbytes;
} bth_joint_split;

bth_joint_split bth_joint_part_split(const bth_ticket *ticket, const bth_joint_part *part);
/* Whether both are whole storages, and `part` follows `before` in the file. */
bool bth_joint_parts_are_neighbours(const bth_ticket *ticket, const bth_joint_part *before,
                                    const bth_joint_part *part);

/* ---- writing ---- */

/* Allocates a receipt for these parts, which are in order, with all but the fragments and the end.
 * *fragments: where the first one goes. */
int bth_receipt_new(const bth_ticket *ticket, uint32_t writer, size_t n_parts,
                    uint64_t fragments_nbytes, uint8_t **bytes, size_t *nbytes, uint8_t **fragments,
                    berth_error *error);
/* When all is known of the parts, and the fragments are in it. */
void bth_receipt_complete(uint8_t *bytes, size_t nbytes, const bth_joint_part *parts,
                          size_t n_parts);

/* ---- reading ---- */

typedef struct bth_receipt {
    uint32_t writer;
    size_t n_parts;
    const uint8_t *parts;     /* in its bytes */
    const uint8_t *fragments; /* likewise */
} bth_receipt;

/* Checks that it is a receipt of this save, and all its parts. */
int bth_receipt_read(const bth_ticket *ticket, const void *bytes, size_t nbytes,
                     bth_receipt *receipt, berth_error *error);
/* i < n_parts. */
bth_joint_part bth_receipt_part(const bth_receipt *receipt, size_t i);

/* ---- joint.c: the receipts, put together ---- */

/* A part with its writer and its fragments, which lie in a receipt. There are millions. */
typedef struct bth_written_part {
    bth_joint_part part;
    uint32_t writer;
    const uint8_t *fragments; /* the head, then the tail */
} bth_written_part;

/* The parts of one storage: their fragments are the content of its record. */
typedef struct bth_joint_source {
    const bth_ticket *ticket;
    bth_written_part *parts; /* in the file's order */
    size_t n_parts;
} bth_joint_source;

typedef struct bth_joint_parts {
    bth_written_part *parts; /* in the file's order */
    size_t n_parts;
    bth_joint_source *sources; /* one a storage of the ticket */
    bth_present *present;
    bth_range *ranges;
    bth_run_parts run;
} bth_joint_parts;

/*
 * Checks that each byte of each storage is in just one part. Then the plan's storages without bytes
 * get the fragments as their content, and parts->run says what is left to write. The ticket and
 * the receipts, one a writer, must live as long as the parts. The caller calls
 * bth_joint_parts_free_all, after a failure too.
 */
int bth_joint_parts_make(const bth_ticket *ticket, const bth_receipt *receipts, berth_plan *plan,
                         bth_joint_parts *parts, berth_error *error);
void bth_joint_parts_free_all(bth_joint_parts *parts);

#endif
