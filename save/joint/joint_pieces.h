/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Short runs on their way: from the writer that has them to the owner of the window of the file in
 * which they lie. A message is pieces, one after the other:
 *
 *     u32 storage (of the ticket), u64 offset in it, u32 nbytes, u32 stride, u32 count
 *     count x nbytes bytes, in the sender's byte order
 *
 * A piece is `count` runs of nbytes each. Each begins `stride` bytes behind the one before.
 */
#ifndef BTH_SAVE_JOINT_PIECES_H
#define BTH_SAVE_JOINT_PIECES_H

#include "save/joint/joint_slices.h"

#define BTH_PIECE_HEAD_NBYTES 24
#define BTH_WINDOW_NBYTES ((uint64_t)8 << 20)

/* ---- writing ---- */

/* What of a window was put into messages: all runs before number `run`, and of it all before byte
 * `at` of its storage. First come the boxes, then the fragments. */
typedef struct bth_pieces_place {
    size_t run;
    uint64_t at;
} bth_pieces_place;

/*
 * Puts boxes and fragments, as far as they lie in `window`, a range of the file, into a message of
 * at most `room` bytes, from *place on. Returns the bytes of the message; adds those of the runs to
 * *runs_nbytes.
 */
size_t bth_pieces_put(const bth_ticket *ticket, const bth_slice_parts *parts, bth_range window,
                      bth_pieces_place *place, uint8_t *out, size_t room, uint64_t *runs_nbytes);
/* Whether something of the window is left. */
bool bth_pieces_are_left(const bth_slice_parts *parts, const bth_pieces_place *place);

/* ---- reading ---- */

typedef struct bth_piece {
    uint32_t storage;
    uint32_t nbytes;
    uint32_t stride;
    uint32_t count;
    uint64_t at;
    uint64_t offset; /* of the first run in the file */
    const uint8_t *bytes;
} bth_piece;

/*
 * Reads the next piece of a message, which is treated as bytes of a stranger: all its runs lie in
 * the window and in their storage, do not overlap each other, and cut no element that is swapped.
 */
int bth_piece_read(const bth_ticket *ticket, bth_range window, bth_cursor *cursor, bth_piece *piece,
                   berth_error *error);

#endif
