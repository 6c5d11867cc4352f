/* SPDX-License-Identifier: BSD-3-Clause */
/* A writer of a joint save: its slices as ranges of storages, what it writes itself, what it
 * exchanges with others. */
#ifndef BTH_SAVE_JOINT_WRITER_H
#define BTH_SAVE_JOINT_WRITER_H

#include "berth/joint.h"
#include "io/memory_region.h"
#include "save/joint/joint_ticket.h"
#include "save/output.h"

/* ---- joint_slices.c ---- */

/* Short runs of one slice. They lie on a grid; in memory they follow each other. */
typedef struct bth_short_box {
    uint32_t storage;
    int32_t n_dims; /* of the grid */
    uint64_t at;    /* of the first run in the storage */
    uint64_t end;   /* of the last run */
    uint64_t run_nbytes;
    uint64_t n_runs;
    uint64_t lengths[BERTH_MAX_RANK]; /* runs along each dimension; the last one is the innermost */
    uint64_t strides[BERTH_MAX_RANK]; /* in bytes */
    const uint8_t *bytes;             /* the caller's */
} bth_short_box;

/* Where run n begins in its storage. */
static inline uint64_t bth_short_box_run_at(const bth_short_box *box, uint64_t n)
{
    uint64_t at = box->at;

    for (int32_t i = box->n_dims; i-- > 0;) {
        at += n % box->lengths[i] * box->strides[i];
        n /= box->lengths[i];
    }
    return at;
}

/* A slice on a device, on the host. */
typedef struct bth_slice_copy {
    struct bth_slice_copy *next;
    uint8_t bytes[];
} bth_slice_copy;

typedef struct bth_slice_parts {
    bth_slice_part *parts; /* in the file's order and without overlaps */
    size_t n;
    size_t room;
    bth_short_box *boxes; /* to be exchanged */
    size_t n_boxes;
    size_t boxes_room;
    bth_slice_part *fragments; /* to be exchanged, in the file's order */
    size_t n_fragments;
    bth_slice_copy *copies;
} bth_slice_parts;

/* can_exchange: slices of short runs become boxes; else they are refused. The caller calls
 * bth_slice_parts_free_all, after a failure too. */
int bth_slice_parts_make(const bth_ticket *ticket, const berth_slice *slices, size_t n_slices,
                         bool can_exchange, bth_slice_parts *parts, berth_error *error);
void bth_slice_parts_free_all(bth_slice_parts *parts);
int bth_slice_parts_append(bth_slice_parts *parts, const bth_joint_part *part, const uint8_t *bytes,
                           berth_error *error);
/* Puts them into the file's order. */
void bth_slice_parts_sort(bth_slice_parts *parts);

/*
 * Marks chains: neighbours in the file that one writer has as a whole (joint_ticket.h). It writes
 * the descriptors and headers between them, which otherwise are left to the coordinator, a block
 * each. The parts are of slices, in the file's order.
 */
void bth_chains_make(const bth_ticket *ticket, bth_slice_parts *parts);

/*
 * Fragments of slices are exchanged, as short runs are: the owner of their window puts the blocks
 * together that writers share, and writes them. Only what shares a block with a header, or with
 * another storage, stays in the part and goes to the coordinator, which writes such blocks.
 */

/* The bytes of the parts that could be exchanged. */
uint64_t bth_fragments_count_nbytes(const bth_ticket *ticket, const bth_slice_parts *parts);
/* Takes them out of the parts. */
int bth_fragments_take(const bth_ticket *ticket, bth_slice_parts *parts, berth_error *error);

/* ---- joint_exchange.c: messages ---- */

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

/*
 * ---- joint_exchange.c: words and rounds ----
 *
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
 * lies are left out. Of an object, windows are parts, and have other owners (joint_object.c).
 */

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
 * caller then releases exchange->to, which holds all tables. */
int bth_exchange_allocate(bth_exchange *exchange, berth_error *error);
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

/*
 * A window of the file: the one range of it that a writer owns in a round of the exchange. It
 * collects the short runs of all writers, each byte once.
 */
typedef struct bth_joint_window {
    const bth_ticket *ticket;
    const bth_ticket *named; /* for messages */
    bth_range range;         /* of the file */
    uint8_t *bytes;
    uint64_t *given; /* a bit for each byte */
    bool has_any;
} bth_joint_window;

/* Appends what it holds as parts, in the file's order; their bytes are the window's. */
int bth_joint_window_append_parts(const bth_joint_window *window, bth_slice_parts *parts,
                                  berth_error *error);

/* The first byte of the file that nobody has given; UINT64_MAX: all are given. */
uint64_t bth_joint_window_find_gap(const bth_joint_window *window);

/* The windows of the whole file, by the writers that own them. */
typedef struct bth_window_owners {
    uint32_t *windows; /* their numbers: those of writer i are begins[i] to begins[i + 1] - 1 */
    uint32_t *begins;  /* one a writer, and the end */
    uint64_t n_rounds; /* the most that one owns */
} bth_window_owners;

typedef struct bth_rounds_settings {
    const bth_ticket *ticket;
    const bth_ticket *named; /* for messages: its storages lie in the same file */
    const bth_slice_parts *parts;
    uint64_t window_nbytes;
    size_t n_windows;                /* 2 or more: all but one are written at a time */
    const bth_window_owners *owners; /* NULL: those of writer i are i, i + n, ..., as far as they
                                        have storages */
    int64_t large_pages;             /* io.large_pages */
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
