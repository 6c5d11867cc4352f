/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The exchange of short runs and fragments among the writers of a joint save, by a function of the
 * caller.
 *
 * First each writer tells each one word: what it will send next, and how it is. Then, if any sends,
 * come the messages. All writers see the words of all, so they all know when one has failed, and
 * leave together. In order:
 *
 *     words: the checksum of the ticket; whether the writer wants an exchange
 *     if any has, for each round, which is one window of the file for each writer:
 *         words, messages; again, while any has more
 *     words: how the writer has ended
 *
 * Window g of the file is written by writer g mod n, in round g / n. Rounds in which no storage
 * lies are left out.
 */
#ifndef BTH_SAVE_JOINT_EXCHANGE_H
#define BTH_SAVE_JOINT_EXCHANGE_H

#include "berth/joint.h"
#include "io/memory_region.h"
#include "save/joint/joint_slices.h"

/* ---- joint_exchange.c: words ---- */

/* How a writer is; beyond MORE: 128 minus its status. */
enum { BTH_PEER_SILENT = 0, BTH_PEER_SENDS = 1, BTH_PEER_HAS_MORE = 2, BTH_PEER_FAILED = 128 };

typedef struct bth_exchange {
    berth_exchange_fn function;
    void *context;
    uint32_t n;
    uint32_t number; /* of this writer */
    bool is_over;    /* it is not called again */
    uint64_t *to;    /* what each is told: n items, as in all that follow; less than 2^32 */
    uint64_t *from;  /* what each has told */
    uint64_t *send_nbytes;
    uint64_t *receive_nbytes;
    uint64_t *sent_words;
    uint64_t *received_words;
} bth_exchange;

/* The function, its context, n and number are set. On failure no other writer gets to know. The
 * caller then calls bth_exchange_free_all. */
int bth_exchange_allocate(bth_exchange *exchange, berth_error *error);
void bth_exchange_free_all(bth_exchange *exchange);

/* Calls the function, with the sizes that are set. A failure is the end: others may not know. */
int bth_exchange_call(bth_exchange *exchange, const void *send, void *receive, berth_error *error);
/*
 * Tells each writer `to`, a state, and this writer's error, if one is set. Receives `from` and the
 * largest state of all (NULL: not wanted). If any writer has failed, all get an error and leave:
 * BERTH_E_PEER, or what is set already.
 */
int bth_exchange_tell(bth_exchange *exchange, unsigned state, unsigned *most, berth_error *error);
/* Also compares the tickets. *any: whether one wants an exchange. */
int bth_exchange_begin(bth_exchange *exchange, const bth_ticket *ticket, bool wants, bool *any,
                       berth_error *error);

/* ---- joint_pieces.c: messages ---- */

/*
 * Short runs on their way: from the writer that has them to the owner of the window of the file in
 * which they lie. A message is pieces, one after the other:
 *
 *     u32 storage (of the ticket), u64 offset in it, u32 nbytes, u32 stride, u32 count
 *     count x nbytes bytes, in the sender's byte order
 *
 * A piece is `count` runs of nbytes each. Each begins `stride` bytes behind the one before.
 */

#define BTH_PIECE_HEAD_NBYTES 24
#define BTH_WINDOW_NBYTES ((uint64_t)8 << 20)

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

/* ---- joint_rounds.c ---- */

/*
 * A window of the file: the one range of it that a writer owns in a round of the exchange. It
 * collects the short runs of all writers, each byte once.
 */
typedef struct bth_joint_window {
    const bth_ticket *ticket;
    bth_range range; /* of the file */
    bth_region region;
    uint64_t *given; /* a bit for each byte */
    bool has_any;
} bth_joint_window;

/* Appends what it holds as parts, in the file's order; their bytes are the window's. */
int bth_joint_window_append_parts(const bth_joint_window *window, bth_slice_parts *parts,
                                  berth_error *error);

typedef struct bth_rounds_settings {
    const bth_ticket *ticket;
    const bth_slice_parts *parts;
    int64_t large_pages; /* io.large_pages */
    /* Writes what the window holds. */
    int (*write)(void *context, const bth_joint_window *window, berth_error *error);
    /* Reports bytes of runs that were sent. */
    int (*report)(void *context, uint64_t nbytes, berth_error *error);
    void *context;
} bth_rounds_settings;

/* All rounds. After a failure others wait for one more bth_exchange_tell, unless is_over. */
int bth_exchange_run_rounds(bth_exchange *exchange, const bth_rounds_settings *settings,
                            berth_error *error);

#endif
