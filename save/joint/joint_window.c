/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/joint/joint_window.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "io/direct.h"

/* So many gaps in one window mean that a writer did not give its slice. They would cost more memory
 * than the window. */
#define MAX_GAPS 16384
#define GIVEN_NBYTES ((size_t)BTH_WINDOW_NBYTES / 8)

/* ---- bits ---- */

/* The bits of word i that are in [begin, end). */
static uint64_t bits_mask(uint64_t i, uint64_t begin, uint64_t end)
{
    uint64_t mask = UINT64_MAX;

    if (i == begin / 64)
        mask <<= begin % 64;
    if (i == (end - 1) / 64)
        mask &= UINT64_MAX >> (63 - (end - 1) % 64);
    return mask;
}

/* How many of n words have only bits of that value, before another one comes. */
static uint64_t words_count_equal(const uint64_t *words, uint64_t n, bool value)
{
    const uint64_t wanted = value ? UINT64_MAX : 0;
    uint64_t i = 0;

    while (i < n && words[i] == wanted)
        i++;
    return i;
}

/* The first bit of that value in [begin, end), or end. */
static uint64_t bits_find(const uint64_t *bits, uint64_t begin, uint64_t end, bool value)
{
    for (uint64_t i = begin / 64; i * 64 < end; i++) {
        if (i > begin / 64)
            i += words_count_equal(bits + i, (end - 1) / 64 - i, !value);
        uint64_t found = (value ? bits[i] : ~bits[i]) & bits_mask(i, begin, end);
        if (found)
            return i * 64 + (uint64_t)__builtin_ctzll(found);
    }
    return end;
}

/* begin < end. Returns the first bit that was set before, or end. */
static uint64_t bits_set(uint64_t *bits, uint64_t begin, uint64_t end)
{
    for (uint64_t i = begin / 64; i * 64 < end; i++) {
        if (i > begin / 64) {
            uint64_t n = words_count_equal(bits + i, (end - 1) / 64 - i, false);
            memset(bits + i, 0xff, (size_t)n * sizeof *bits);
            i += n;
        }
        uint64_t mask = bits_mask(i, begin, end);
        if (bits[i] & mask)
            return i * 64 + (uint64_t)__builtin_ctzll(bits[i] & mask);
        bits[i] |= mask;
    }
    return end;
}

/* ---- begin and end ---- */

int bth_joint_window_allocate(bth_joint_window *window, const bth_ticket *ticket, bth_pages *pages,
                              berth_error *error)
{
    window->ticket = ticket;
    /* As far from a block in memory as in the file, so that direct writes need no copy. */
    if (bth_region_new(BTH_WINDOW_NBYTES, BTH_MAX_DIRECT_BLOCK_NBYTES, false, pages,
                       &window->region, error) < 0)
        return error->code;
    window->given = bth_allocate_zeroed(GIVEN_NBYTES);
    return window->given ? 0 : bth_fail_memory(error, GIVEN_NBYTES);
}

void bth_joint_window_free_all(bth_joint_window *window)
{
    bth_region_free(&window->region);
    bth_release(window->given);
}

void bth_joint_window_move(bth_joint_window *window, bth_range range)
{
    if (window->has_any)
        memset(window->given, 0, GIVEN_NBYTES);
    window->has_any = false;
    window->range = range;
}

/* ---- pieces ---- */

static int window_fail_twice(const bth_joint_window *window, const bth_piece *piece,
                             uint64_t offset, uint32_t writer, berth_error *error)
{
    const bth_ticket_storage *storage = &window->ticket->storages[piece->storage];

    return bth_fail(error, BERTH_E_ARGUMENT,
                    bth_ticket_name_of_storage(window->ticket, piece->storage), BERTH_NO_OFFSET,
                    "writer %u has byte %" PRIu64 " of its storage, and so has another slice",
                    writer, offset - storage->data_offset);
}

static int window_take_piece(bth_joint_window *window, const bth_piece *piece, uint32_t writer,
                             berth_error *error)
{
    uint64_t at = piece->offset - window->range.offset;
    const uint8_t *bytes = piece->bytes;

    window->has_any = true;
    for (uint32_t i = 0; i < piece->count; i++) {
        uint64_t taken = bits_set(window->given, at, at + piece->nbytes);
        if (taken < at + piece->nbytes)
            return window_fail_twice(window, piece, window->range.offset + taken, writer, error);
        memcpy(window->region.bytes + at, bytes, piece->nbytes);
        at += piece->stride;
        bytes += piece->nbytes;
    }
    return 0;
}

int bth_joint_window_take(bth_joint_window *window, uint32_t writer, const uint8_t *message,
                          size_t nbytes, berth_error *error)
{
    bth_cursor cursor = bth_cursor_make(message, nbytes);
    bth_piece piece;

    while (bth_cursor_left(&cursor) > 0) {
        if (bth_piece_read(window->ticket, window->range, &cursor, &piece, error) < 0)
            return bth_error_prefix_index(error, "the message of writer", writer);
        if (window_take_piece(window, &piece, writer, error) < 0)
            return error->code;
    }
    return 0;
}

/* ---- parts ---- */

static int window_fail_gaps(const bth_joint_window *window, size_t storage, uint64_t at,
                            berth_error *error)
{
    return bth_fail(error, BERTH_E_ARGUMENT, bth_ticket_name_of_storage(window->ticket, storage),
                    BERTH_NO_OFFSET,
                    "its short slices leave more than %d gaps, one of them before byte %" PRIu64
                    " of its storage: no writer has given all of them",
                    MAX_GAPS, at);
}

/* [begin, end) of the window are of that storage. */
static int window_append_storage(const bth_joint_window *window, size_t storage, uint64_t begin,
                                 uint64_t end, bth_slice_parts *parts, berth_error *error)
{
    uint64_t data_offset = window->ticket->storages[storage].data_offset;
    uint64_t at = bits_find(window->given, begin, end, true);

    for (size_t n_gaps = 0; at < end; n_gaps++) {
        uint64_t behind = bits_find(window->given, at, end, false);
        const bth_joint_part part = {.storage = storage & BTH_MAX_JOINT_STORAGES,
                                     .at = window->range.offset + at - data_offset,
                                     .nbytes = behind - at};
        if (n_gaps > MAX_GAPS)
            return window_fail_gaps(window, storage, part.at, error);
        if (bth_slice_parts_append(parts, &part, window->region.bytes + at, error) < 0)
            return error->code;
        at = bits_find(window->given, behind, end, true);
    }
    return 0;
}

int bth_joint_window_append_parts(const bth_joint_window *window, bth_slice_parts *parts,
                                  berth_error *error)
{
    uint64_t from = window->range.offset, to = from + window->range.nbytes;
    const bth_ticket *ticket = window->ticket;

    for (size_t i = 0; i < ticket->n_storages && ticket->storages[i].data_offset < to; i++) {
        uint64_t begin = bth_max(ticket->storages[i].data_offset, from);
        uint64_t end = bth_min(ticket->storages[i].data_offset + ticket->storages[i].nbytes, to);
        if (begin < end &&
            window_append_storage(window, i, begin - from, end - from, parts, error) < 0)
            return error->code;
    }
    return 0;
}
