/* SPDX-License-Identifier: BSD-3-Clause */
/* Messages of an exchange: boxes and fragments as pieces, written and read. */
#include "save/joint/joint_writer.h"

#include "base/error.h"
#include "base/memory.h"

/* Where a run must be cut, because a message is full: no element of a swapped storage is cut. */
#define CUT_NBYTES ((size_t)16)

/* ---- writing ---- */

/* The first run that ends behind `at`: runs are in the order of their places. */
static uint64_t box_find_run(const bth_short_box *box, uint64_t at)
{
    uint64_t low = 0, high = box->n_runs;

    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (bth_short_box_run_at(box, middle) + box->run_nbytes > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/*
 * The next piece from run n on, as far as it lies in [at, end) and in `room`: whole runs that lie
 * on one line of the grid, or, where the first of them is cut, what there is of it. count 0:
 * nothing.
 */
static bth_piece box_make_piece(const bth_short_box *box, uint64_t n, uint64_t at, uint64_t end,
                                size_t room)
{
    const uint64_t begin = bth_short_box_run_at(box, n), run_end = begin + box->run_nbytes;
    bth_piece piece = {.storage = box->storage, .bytes = box->bytes + n * box->run_nbytes};

    if (at > begin || run_end > end || box->run_nbytes > room) {
        piece.at = bth_max(begin, at);
        uint64_t nbytes = bth_min(run_end, end) - piece.at;
        if (nbytes > room)
            nbytes = room & ~(CUT_NBYTES - 1);
        piece.bytes += piece.at - begin;
        piece.nbytes = piece.stride = (uint32_t)nbytes;
        piece.count = nbytes > 0;
        return piece;
    }
    const uint64_t length = box->lengths[box->n_dims - 1], stride = box->strides[box->n_dims - 1];
    uint64_t count = bth_min(length - n % length, room / box->run_nbytes);
    if (stride > 0) /* a line of one run may have any */
        count = bth_min(count, (end - run_end) / stride + 1);
    piece.at = begin;
    piece.nbytes = (uint32_t)box->run_nbytes;
    piece.stride = (uint32_t)(count > 1 ? stride : box->run_nbytes);
    piece.count = (uint32_t)count;
    return piece;
}

/* The range of a storage that lies in a range of the file. */
static bth_range storage_in_window(const bth_ticket_storage *storage, bth_range window)
{
    uint64_t begin = bth_max(storage->data_offset, window.offset);
    uint64_t end = bth_min(storage->data_offset + storage->nbytes, window.offset + window.nbytes);

    if (begin >= end)
        return (bth_range){0};
    return (bth_range){begin - storage->data_offset, end - begin};
}

/* A window, as one writer fills it from *place on. */
typedef struct window_message {
    const bth_ticket *ticket;
    bth_range window;
    bth_pieces_place *place;
    uint8_t *out;
    size_t room;
    size_t nbytes;
    uint64_t *runs_nbytes; /* part of nbytes, added to those of other messages */
} window_message;

/* The box is at message->place. If it is done, the next one is. False: the message is full. */
static bool message_put_box(window_message *message, const bth_short_box *box)
{
    bth_pieces_place *place = message->place;
    bth_range range = storage_in_window(&message->ticket->storages[box->storage], message->window);
    uint64_t at = bth_max(place->at, bth_max(range.offset, box->at));
    const uint64_t end = bth_min(range.offset + range.nbytes, box->end);
    uint64_t n = at < end ? box_find_run(box, at) : box->n_runs;

    place->at = at;
    while (n < box->n_runs && bth_short_box_run_at(box, n) < end) {
        const size_t free_nbytes = message->room - message->nbytes;
        if (free_nbytes <= BTH_PIECE_HEAD_NBYTES)
            return false;
        uint64_t begin = bth_short_box_run_at(box, n);
        bth_piece piece = box_make_piece(box, n, at, end, free_nbytes - BTH_PIECE_HEAD_NBYTES);
        if (piece.count == 0)
            return false;
        size_t all = (size_t)piece.nbytes * piece.count;
        uint8_t *to = bth_put_u32(message->out + message->nbytes, piece.storage);
        to = bth_put_u64(to, piece.at);
        to = bth_put_u32(to, piece.nbytes);
        to = bth_put_u32(to, piece.stride);
        to = bth_put_u32(to, piece.count);
        memcpy(to, piece.bytes, all);
        message->nbytes += BTH_PIECE_HEAD_NBYTES + all;
        *message->runs_nbytes += all;
        place->at = at = piece.at + (uint64_t)(piece.count - 1) * piece.stride + piece.nbytes;
        if (at >= end)
            break;
        n += piece.count - (at < begin + box->run_nbytes);
    }
    *place = (bth_pieces_place){place->run + 1, 0};
    return true;
}

/* The first fragment that ends behind a place in the file, where a block begins. */
static size_t fragments_find(const bth_ticket *ticket, const bth_slice_parts *parts,
                             uint64_t offset)
{
    size_t low = 0, high = parts->n_fragments;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const bth_joint_part *part = &parts->fragments[middle].part;
        if (ticket->storages[part->storage].data_offset + part->at + part->nbytes > offset)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

size_t bth_pieces_put(const bth_ticket *ticket, const bth_slice_parts *parts, bth_range window,
                      bth_pieces_place *place, uint8_t *out, size_t room, uint64_t *runs_nbytes)
{
    window_message message = {ticket, window, place, out, room, 0, runs_nbytes};
    size_t n = parts->n_boxes, first = n + fragments_find(ticket, parts, window.offset);
    size_t behind = n + fragments_find(ticket, parts, window.offset + window.nbytes);

    while (place->run < n)
        if (!message_put_box(&message, &parts->boxes[place->run]))
            return message.nbytes;
    if (place->run < first)
        place->run = first;
    while (place->run < behind) {
        const bth_slice_part *fragment = &parts->fragments[place->run - n];
        const bth_short_box box = {.storage = fragment->part.storage,
                                   .n_dims = 1,
                                   .at = fragment->part.at,
                                   .end = fragment->part.at + fragment->part.nbytes,
                                   .run_nbytes = fragment->part.nbytes,
                                   .n_runs = 1,
                                   .lengths = {1},
                                   .bytes = fragment->bytes};
        if (!message_put_box(&message, &box))
            return message.nbytes;
    }
    place->run = n + parts->n_fragments;
    return message.nbytes;
}

/* ---- reading ---- */

int bth_piece_read(const bth_ticket *ticket, bth_range window, bth_cursor *cursor, bth_piece *piece,
                   berth_error *error)
{
    piece->storage = bth_cursor_u32(cursor);
    piece->at = bth_cursor_u64(cursor);
    piece->nbytes = bth_cursor_u32(cursor);
    piece->stride = bth_cursor_u32(cursor);
    piece->count = bth_cursor_u32(cursor);
    const char *fault = NULL;
    if (!cursor->good)
        fault = "it is cut";
    else if (piece->storage >= ticket->n_storages)
        fault = "there is no such storage";
    else if (piece->count == 0 || piece->nbytes == 0)
        fault = "it is empty";
    else if (piece->stride < piece->nbytes)
        fault = "its runs overlap";
    else {
        const bth_ticket_storage *storage = &ticket->storages[piece->storage];
        bth_range range = storage_in_window(storage, window);
        /* Both factors have 32 bits. */
        uint64_t span = (uint64_t)(piece->count - 1) * piece->stride + piece->nbytes;
        uint64_t all = storage->data_offset | piece->at | piece->nbytes;
        if (piece->count > 1)
            all |= piece->stride;
        if (piece->at < range.offset || span > range.nbytes ||
            piece->at - range.offset > range.nbytes - span)
            fault = "it is not in its storage, or not in the window";
        else if ((all & (storage->swap_nbytes - 1)) != 0)
            fault = "it cuts an element that is swapped";
        else { /* in a window, the product is small */
            piece->bytes = bth_cursor_bytes(cursor, (size_t)piece->nbytes * piece->count);
            fault = piece->bytes ? NULL : "its bytes are cut";
        }
    }
    if (fault)
        return bth_fail_argument(error, "a piece is invalid: %s", fault);
    piece->offset = ticket->storages[piece->storage].data_offset + piece->at;
    return 0;
}
