/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A window of the file: the one range of it that a writer owns in a round of the exchange. It
 * collects the short runs of all writers, each byte once.
 */
#ifndef BTH_SAVE_JOINT_WINDOW_H
#define BTH_SAVE_JOINT_WINDOW_H

#include "io/memory_region.h"
#include "save/joint/joint_pieces.h"

typedef struct bth_joint_window {
    const bth_ticket *ticket;
    bth_range range; /* of the file */
    bth_region region;
    uint64_t *given; /* a bit for each byte */
    bool has_any;
} bth_joint_window;

/* The caller then calls bth_joint_window_free_all, after a failure too. */
int bth_joint_window_allocate(bth_joint_window *window, const bth_ticket *ticket, bth_pages *pages,
                              berth_error *error);
void bth_joint_window_free_all(bth_joint_window *window);
/* Begins anew with another range of at most BTH_WINDOW_NBYTES. */
void bth_joint_window_move(bth_joint_window *window, bth_range range);
/* Takes the pieces of a message from a writer. */
int bth_joint_window_take(bth_joint_window *window, uint32_t writer, const uint8_t *message,
                          size_t nbytes, berth_error *error);
/* Appends what it holds as parts, in the file's order; their bytes are the window's. */
int bth_joint_window_append_parts(const bth_joint_window *window, bth_slice_parts *parts,
                                  berth_error *error);

#endif
