/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The exchange among the writers: words, and rounds in which runs are sent, as messages, to the
 * owners of windows, which write them. A window is written by a thread of its own, while the
 * messages of the next round fill the other one.
 */

#include "save/joint/joint_writer.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/trace.h"
#include "io/direct.h"
#include "io/thread_pool.h"

/* A word: u8 state, u24 number of the sender, u32 value. */
#define WORD_NBYTES 8
#define N_TABLES 6

/* So many gaps in one window mean that a writer did not give its slice. They would cost more memory
 * than the window. */
#define MAX_GAPS 16384
/* All messages that a writer sends in a step, and all that it receives, have a window and this
 * together, so that equal shares of one need one step; but at most so many bytes. */
#define MORE_MESSAGES_NBYTES ((uint64_t)1 << 20)
#define MAX_MESSAGES_NBYTES ((uint64_t)256 << 20)
#define MIN_MESSAGE_NBYTES ((uint64_t)1024)
/* Where a run must be cut, because a message is full: no element of a swapped storage is cut. */
#define CUT_NBYTES ((size_t)16)
#define ASK_NANOSECONDS 100000000

/* ---- words ---- */

int bth_exchange_allocate(bth_exchange *exchange, berth_error *error)
{
    size_t n = exchange->n, nbytes = bth_array_nbytes(n, N_TABLES * sizeof *exchange->to);
    uint64_t *tables = bth_allocate_zeroed(nbytes);

    if (!tables)
        return bth_fail_memory(error, nbytes);
    exchange->to = tables;
    exchange->from = tables + n;
    exchange->send_nbytes = tables + 2 * n;
    exchange->receive_nbytes = tables + 3 * n;
    exchange->sent_words = tables + 4 * n;
    exchange->received_words = tables + 5 * n;
    return 0;
}

/* Calls the function, with the sizes that are set. A failure is the end: others may not know. */
int bth_exchange_call(bth_exchange *exchange, const void *send, void *receive, berth_error *error)
{
    int failure = exchange->function(exchange->context, send, exchange->send_nbytes, receive,
                                     exchange->receive_nbytes);

    if (failure == 0)
        return 0;
    exchange->is_over = true;
    if (error->code == BERTH_OK) {
        (void)bth_fail_system(error, failure < 0 ? -failure : failure, "the exchange has failed");
        error->code = BERTH_E_CALLBACK;
    }
    return error->code;
}

/* J8: each writer has the same words, so all find the same. */
int bth_exchange_tell(bth_exchange *exchange, unsigned state, unsigned *most, berth_error *error)
{
    bool is_over = false;

    if (error->code != BERTH_OK)
        state = BTH_PEER_FAILED - (unsigned)error->code;
    for (uint32_t i = 0; i < exchange->n; i++) {
        uint64_t word = state | (uint64_t)exchange->number << 8 | exchange->to[i] << 32;
        (void)bth_put_u64((uint8_t *)&exchange->sent_words[i], word);
        exchange->send_nbytes[i] = exchange->receive_nbytes[i] = WORD_NBYTES;
    }
    if (bth_exchange_call(exchange, exchange->sent_words, exchange->received_words, error) < 0)
        return error->code;
    if (most)
        *most = BTH_PEER_SILENT;
    for (uint32_t i = 0; i < exchange->n; i++) {
        bth_cursor cursor =
            bth_cursor_make((const uint8_t *)&exchange->received_words[i], WORD_NBYTES);
        uint64_t word = bth_cursor_u64(&cursor);
        unsigned told = word & 255;
        uint32_t number = word >> 8 & 0xffffff;
        exchange->from[i] = word >> 32;
        if (most && told > *most)
            *most = told;
        if (number != i)
            (void)bth_fail_argument(error, "the exchange gives bytes of writer %u as those of %u",
                                    number, i);
        else if (told > BTH_PEER_HAS_MORE)
            (void)bth_fail_status(error, BERTH_E_PEER, "writer %u has failed with %s, and says why",
                                  i, berth_status_name(BTH_PEER_FAILED - (int)told));
        is_over |= number != i || told > BTH_PEER_HAS_MORE;
    }
    exchange->is_over |= is_over;
    return error->code;
}

int bth_exchange_begin(bth_exchange *exchange, const bth_ticket *ticket, bool wants, bool *any,
                       berth_error *error)
{
    bth_cursor end =
        bth_cursor_make(ticket->bytes + ticket->nbytes - BTH_BLOB_END_NBYTES, BTH_BLOB_END_NBYTES);
    uint32_t crc32 = bth_cursor_u32(&end);
    unsigned most;

    for (uint32_t i = 0; i < exchange->n; i++)
        exchange->to[i] = crc32;
    if (bth_exchange_tell(exchange, wants ? BTH_PEER_HAS_MORE : BTH_PEER_SILENT, &most, error) < 0)
        return error->code;
    for (uint32_t i = 0; i < exchange->n; i++)
        if (exchange->from[i] != crc32) {
            exchange->is_over = true; /* in all: each finds another one */
            return bth_fail_argument(error, "writer %u has the ticket of another save", i);
        }
    *any = most == BTH_PEER_HAS_MORE;
    return 0;
}

/* ---- a message, written ---- */

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

/* What of a window was put into messages: all runs before number `run`, and of it all before byte
 * `at` of its storage. First come the boxes, then the fragments. */
typedef struct pieces_place {
    size_t run;
    uint64_t at;
} pieces_place;

/* A window, as one writer fills it from *place on. */
typedef struct window_message {
    const bth_ticket *ticket;
    bth_range window;
    pieces_place *place;
    uint8_t *out;
    size_t room;
    size_t nbytes;
    uint64_t *runs_nbytes; /* part of nbytes, added to those of other messages */
} window_message;

/* The box is at message->place. If it is done, the next one is. False: the message is full. */
static bool message_put_box(window_message *message, const bth_short_box *box)
{
    pieces_place *place = message->place;
    bth_range range = storage_in_window(&message->ticket->storages[box->storage], message->window);
    uint64_t at = bth_max(place->at, bth_max(range.offset, box->at));
    const uint64_t end = bth_min(range.offset + range.nbytes, box->end);
    /* The first run that ends behind `at`: runs are in the order of their places. */
    uint64_t n = at < end ? 0 : box->n_runs;
    for (uint64_t high = box->n_runs; n < high;) {
        uint64_t middle = n + (high - n) / 2;
        if (bth_short_box_run_at(box, middle) + box->run_nbytes > at)
            high = middle;
        else
            n = middle + 1;
    }

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
    *place = (pieces_place){place->run + 1, 0};
    return true;
}

/* The first fragment that ends behind a place in the file. */
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

/*
 * Puts boxes and fragments, as far as they lie in `window`, a range of the file, into a message of
 * at most `room` bytes, from *place on. Returns the bytes of the message; adds those of the runs to
 * *runs_nbytes.
 */
static size_t pieces_put(const bth_ticket *ticket, const bth_slice_parts *parts, bth_range window,
                         pieces_place *place, uint8_t *out, size_t room, uint64_t *runs_nbytes)
{
    window_message message = {ticket, window, place, out, room, 0, runs_nbytes};
    const uint64_t end = window.offset + window.nbytes;
    size_t n = parts->n_boxes, first = n + fragments_find(ticket, parts, window.offset);
    size_t behind = n + fragments_find(ticket, parts, end);

    if (behind - n < parts->n_fragments) { /* it may lie in this window and in the next one */
        const bth_joint_part *part = &parts->fragments[behind - n].part;
        behind += ticket->storages[part->storage].data_offset + part->at < end;
    }
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

/* ---- a message, read ---- */

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
    if (fault) {
        (void)bth_fail_argument(error, "a piece is invalid: %s", fault);
        return BERTH_E_ARGUMENT; /* for analyzers: they do not look so deep */
    }
    piece->offset = ticket->storages[piece->storage].data_offset + piece->at;
    return 0;
}

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

/* ---- a window ---- */

/* Takes the pieces of a message from a writer. */
static int window_take(bth_joint_window *window, uint32_t writer, const uint8_t *message,
                       size_t nbytes, berth_error *error)
{
    const bth_ticket *ticket = window->ticket;
    bth_cursor cursor = bth_cursor_make(message, nbytes);
    bth_piece piece;

    while (bth_cursor_left(&cursor) > 0) {
        if (bth_piece_read(ticket, window->range, &cursor, &piece, error) < 0)
            return bth_error_prefix_index(error, "the message of writer", writer);
        uint64_t at = piece.offset - window->range.offset;
        window->has_any = true;
        for (uint32_t i = 0; i < piece.count; i++) {
            uint64_t taken = bits_set(window->given, at, at + piece.nbytes);
            if (taken < at + piece.nbytes) {
                const uint64_t offset = window->range.offset + taken;
                const size_t storage = bth_ticket_find_storage(window->named, offset);
                if (storage == window->named->n_storages)
                    return bth_fail_argument(error,
                                             "writer %u has byte %" PRIu64 " of the file, "
                                             "which is the coordinator's",
                                             writer, offset);
                return bth_fail(error, BERTH_E_ARGUMENT,
                                bth_ticket_name_of_storage(window->named, storage), BERTH_NO_OFFSET,
                                "writer %u has byte %" PRIu64
                                " of its storage, and so has another slice",
                                writer, offset - window->named->storages[storage].data_offset);
            }
            memcpy(window->bytes + at, piece.bytes + (size_t)i * piece.nbytes, piece.nbytes);
            at += piece.stride;
        }
    }
    return 0;
}

uint64_t bth_joint_window_find_gap(const bth_joint_window *window)
{
    uint64_t at = bits_find(window->given, 0, window->range.nbytes, false);

    return at < window->range.nbytes ? window->range.offset + at : UINT64_MAX;
}

int bth_joint_window_append_parts(const bth_joint_window *window, bth_slice_parts *parts,
                                  berth_error *error)
{
    uint64_t from = window->range.offset, to = from + window->range.nbytes;
    const bth_ticket *ticket = window->ticket;

    for (size_t i = 0; i < ticket->n_storages && ticket->storages[i].data_offset < to; i++) {
        uint64_t data_offset = ticket->storages[i].data_offset;
        uint64_t end = bth_min(data_offset + ticket->storages[i].nbytes, to);
        if (end <= from || end == data_offset)
            continue;
        end -= from; /* in the window, as `at` */
        uint64_t at = bits_find(window->given, bth_max(data_offset, from) - from, end, true);
        for (size_t n_gaps = 0; at < end; n_gaps++) {
            uint64_t behind = bits_find(window->given, at, end, false);
            const bth_joint_part part = {.storage = i & BTH_MAX_JOINT_STORAGES,
                                         .at = from + at - data_offset,
                                         .nbytes = behind - at};
            if (n_gaps > MAX_GAPS)
                return bth_fail(error, BERTH_E_ARGUMENT, bth_ticket_name_of_storage(ticket, i),
                                BERTH_NO_OFFSET,
                                "its short slices leave more than %d gaps, one of them before byte "
                                "%" PRIu64 " of its storage: no writer has given all of them",
                                MAX_GAPS, part.at);
            if (bth_slice_parts_append(parts, &part, window->bytes + at, error) < 0)
                return error->code;
            at = bits_find(window->given, behind, end, true);
        }
    }
    return 0;
}

/* ---- rounds ---- */

/* A window, and the thread that writes it. */
typedef struct window_writing {
    bth_joint_window window;
    const bth_rounds_settings *settings;
    const bth_trace_thread *traced; /* of the thread that began it; NULL: none */
    bool is_written;                /* by the thread, which has begun */
    pthread_t thread;
    berth_error error; /* the thread's, until it is joined */
} window_writing;

typedef struct rounds {
    bth_exchange *exchange;
    const bth_rounds_settings *settings;
    uint64_t number;         /* of the round */
    window_writing *windows; /* settings->n_windows */
    size_t filled;           /* the one that this round fills */
    size_t message_nbytes;   /* the most in a message */
    bth_region sent;
    bth_region received;
    bth_region memory;    /* of all windows */
    uint64_t *given;      /* likewise */
    pieces_place *places; /* one a writer */
} rounds;

/* The window of a writer in this round. A file has less than 2^63 bytes, and a round at most
 * 2^44. */
static bth_range rounds_window_of(const rounds *all, uint32_t writer)
{
    const uint64_t nbytes = all->settings->window_nbytes;
    const bth_window_owners *owners = all->settings->owners;

    if (!owners)
        return (bth_range){(all->number * all->exchange->n + writer) * nbytes, nbytes};
    if (all->number >= owners->begins[writer + 1] - owners->begins[writer])
        return (bth_range){0};
    const uint64_t at = owners->windows[owners->begins[writer] + all->number] * nbytes;
    return (bth_range){at, bth_min(nbytes, all->settings->ticket->file_nbytes - at)};
}

static void *window_writing_run(void *argument)
{
    window_writing *writing = argument;
    bth_trace_scope traced = {0};

    bth_thread_disable_cancel();
    bth_trace_enter_worker(&traced, writing->traced);
    (void)writing->settings->write(writing->settings->context, &writing->window, &writing->error);
    bth_trace_leave_lazily(&traced);
    return NULL;
}

/* Waits for it. Its own failure is the cause that the caller wants, and not that of another. A
 * store can be silent for minutes: the caller is asked meanwhile, and may stop its sink. */
static int window_writing_end(window_writing *writing, berth_error *error)
{
    const bth_rounds_settings *settings = writing->settings;
    berth_error ignored;
    struct timespec end;

    if (!writing->is_written)
        return error->code;
    for (;;) {
        (void)clock_gettime(CLOCK_REALTIME, &end); /* glibc before 2.31 has no other */
        end.tv_nsec += ASK_NANOSECONDS;
        end.tv_sec += end.tv_nsec / 1000000000;
        end.tv_nsec %= 1000000000;
        if (pthread_timedjoin_np(writing->thread, NULL, &end) != ETIMEDOUT)
            break;
        bth_error_clear(&ignored);
        (void)settings->report(settings->context, 0, error->code == BERTH_OK ? error : &ignored);
    }
    writing->is_written = false;
    if (writing->error.code != BERTH_OK && (error->code == BERTH_OK || error->code == BERTH_E_PEER))
        *error = writing->error;
    return error->code;
}

/* What this writer has of its own window: a message that is not sent, as often as it is full. */
static int rounds_take_own(rounds *all, uint64_t *runs_nbytes, berth_error *error)
{
    const bth_rounds_settings *settings = all->settings;
    const uint32_t own = all->exchange->number;
    const size_t n_pieces = settings->parts->n_boxes + settings->parts->n_fragments;
    pieces_place *place = &all->places[own];

    while (place->run < n_pieces) {
        size_t nbytes = pieces_put(settings->ticket, settings->parts, rounds_window_of(all, own),
                                   place, all->sent.bytes, all->message_nbytes, runs_nbytes);
        if (window_take(&all->windows[all->filled].window, own, all->sent.bytes, nbytes, error) < 0)
            return error->code;
    }
    return 0;
}

/* Takes what is its own; puts a message for each other writer, tells them, sends, and takes what
 * they send. *has_more: of any writer, in this round. */
static int rounds_step(rounds *all, bool *has_more, berth_error *error)
{
    const bth_rounds_settings *settings = all->settings;
    bth_exchange *exchange = all->exchange;
    const uint32_t n = exchange->n, own = exchange->number;
    const size_t n_pieces = settings->parts->n_boxes + settings->parts->n_fragments;
    const uint8_t *received = all->received.bytes;
    unsigned state = BTH_PEER_SILENT, most;
    uint8_t *out = all->sent.bytes;
    uint64_t runs_nbytes = 0;

    (void)rounds_take_own(all, &runs_nbytes, error);
    for (uint32_t to = 0; to < n; to++) {
        pieces_place *place = &all->places[to];
        exchange->to[to] = 0;
        if (to == own || error->code != BERTH_OK)
            continue;
        size_t nbytes = pieces_put(settings->ticket, settings->parts, rounds_window_of(all, to),
                                   place, out, all->message_nbytes, &runs_nbytes);
        if (place->run < n_pieces)
            state = BTH_PEER_HAS_MORE;
        else if (nbytes > 0 && state == BTH_PEER_SILENT)
            state = BTH_PEER_SENDS;
        exchange->to[to] = nbytes;
        out += nbytes;
    }
    if (bth_exchange_tell(exchange, state, &most, error) < 0)
        return error->code;
    for (uint32_t i = 0; i < n; i++)
        if (exchange->from[i] > all->message_nbytes) {
            exchange->is_over = true; /* there is no room for it, so this writer leaves alone */
            return bth_fail_argument(error,
                                     "writer %u announces a message of %llu bytes, the most is %zu",
                                     i, (unsigned long long)exchange->from[i], all->message_nbytes);
        }
    *has_more = most == BTH_PEER_HAS_MORE;
    memcpy(exchange->send_nbytes, exchange->to, n * sizeof *exchange->to);
    memcpy(exchange->receive_nbytes, exchange->from, n * sizeof *exchange->from);
    if (most != BTH_PEER_SILENT &&
        bth_exchange_call(exchange, all->sent.bytes, all->received.bytes, error) < 0)
        return error->code;
    for (uint32_t i = 0; i < n; i++) {
        size_t nbytes = (size_t)exchange->from[i];
        if (window_take(&all->windows[all->filled].window, i, received, nbytes, error) < 0)
            return error->code;
        received += nbytes;
    }
    return runs_nbytes > 0 ? settings->report(settings->context, runs_nbytes, error) : 0;
}

/* A bit for each byte of a window. */
static size_t given_words(const bth_rounds_settings *settings)
{
    return (size_t)settings->window_nbytes / 64 + 1;
}

/* The error of a window's write is known, and told to the others, in a later round. */
static int rounds_run_one(rounds *all, berth_error *error)
{
    const bth_exchange *exchange = all->exchange;
    const size_t n_windows = all->settings->n_windows;
    window_writing *writing = &all->windows[all->filled];
    bth_joint_window *window = &writing->window;
    bool has_more = true;

    if (window->has_any)
        memset(window->given, 0, given_words(all->settings) * 8);
    window->has_any = false;
    window->range = rounds_window_of(all, exchange->number);
    memset(all->places, 0, exchange->n * sizeof *all->places);
    while (has_more)
        if (rounds_step(all, &has_more, error) < 0)
            return error->code;
    if (!window->has_any && (!all->settings->owners || window->range.nbytes == 0))
        return 0;
    /* The next one to be filled: so all but one can be written at a time. */
    all->filled = (all->filled + 1) % n_windows;
    if (window_writing_end(&all->windows[all->filled], error) < 0)
        return error->code;
    writing->settings = all->settings;
    writing->traced = bth_trace_current();
    bth_error_clear(&writing->error);
    int failure = bth_thread_start(&writing->thread, window_writing_run, writing);
    writing->is_written = failure == 0;
    return failure == 0 ? 0
                        : bth_fail_system(error, failure,
                                          "the thread that writes a window cannot be started");
}

/* Memory for places, messages and windows. Each window is as far from a block in memory as in the
 * file, so that direct writes need no copy. */
static int rounds_allocate(rounds *all, berth_error *error)
{
    const bth_rounds_settings *settings = all->settings;
    const size_t n = all->exchange->n, n_windows = settings->n_windows;
    const uint64_t each = bth_round_up(settings->window_nbytes, BTH_MAX_DIRECT_BLOCK_NBYTES);
    const uint64_t most =
        bth_min(settings->window_nbytes + MORE_MESSAGES_NBYTES, MAX_MESSAGES_NBYTES);
    const size_t given_nbytes = bth_array_nbytes(n_windows * given_words(settings), 8);
    bth_pages pages = {.wanted = settings->large_pages};

    all->message_nbytes = (size_t)bth_max(most / n, MIN_MESSAGE_NBYTES);
    all->places = bth_allocate_zeroed(bth_array_nbytes(n, sizeof *all->places));
    all->windows = bth_allocate_zeroed(bth_array_nbytes(n_windows, sizeof *all->windows));
    all->given = bth_allocate_zeroed(given_nbytes);
    if (!all->places || !all->windows || !all->given)
        return bth_fail_memory(error, given_nbytes);
    size_t nbytes = bth_array_nbytes(n, all->message_nbytes);
    if (bth_region_new(nbytes, 1, false, &pages, &all->sent, error) < 0 ||
        bth_region_new(nbytes, 1, false, &pages, &all->received, error) < 0 ||
        bth_region_new(each * n_windows, BTH_MAX_DIRECT_BLOCK_NBYTES, false, &pages, &all->memory,
                       error) < 0)
        return error->code;
    for (size_t i = 0; i < n_windows; i++)
        all->windows[i].window =
            (bth_joint_window){.ticket = settings->ticket,
                               .named = settings->named,
                               .bytes = all->memory.bytes + i * each,
                               .given = all->given + i * given_words(settings)};
    return 0;
}

int bth_exchange_run_rounds(bth_exchange *exchange, const bth_rounds_settings *settings,
                            berth_error *error)
{
    const uint64_t round_nbytes = exchange->n * settings->window_nbytes;
    const bth_ticket *ticket = settings->ticket;
    rounds all = {.exchange = exchange, .settings = settings};

    assert(round_nbytes > 0); /* there is a writer */
    (void)rounds_allocate(&all, error);
    for (; settings->owners && error->code == BERTH_OK && all.number < settings->owners->n_rounds;
         all.number++)
        (void)rounds_run_one(&all, error);
    for (size_t i = 0; !settings->owners && i < ticket->n_storages; i++) {
        const bth_ticket_storage *storage = &ticket->storages[i];
        const uint64_t end = storage->data_offset + storage->nbytes;
        for (; error->code == BERTH_OK && storage->nbytes > 0 && end > all.number * round_nbytes;
             all.number++) {
            all.number = bth_max(all.number, storage->data_offset / round_nbytes);
            (void)rounds_run_one(&all, error);
        }
    }
    for (size_t i = 0; all.windows && i < settings->n_windows; i++)
        (void)window_writing_end(&all.windows[i], error);
    bth_region_free(&all.memory);
    bth_release(all.given);
    bth_region_free(&all.sent);
    bth_region_free(&all.received);
    bth_release(all.places);
    bth_release(all.windows);
    return error->code;
}
