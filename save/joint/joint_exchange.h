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
#include "save/joint/joint_window.h"

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

/* ---- joint_rounds.c ---- */

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
