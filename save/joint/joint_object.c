/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A joint save to an object store, which takes an object as parts of one size, each from one
 * writer. So bytes go to the writer that sends their part, and only whole parts leave it. A
 * descriptor in a part needs the CRC of a storage whose bytes others have; so all sum what they
 * have first. The coordinator, writer 0, gets the sums, and then has each byte of the file that is
 * no tensor's of another process: headers, descriptors, the pickle, the directory. It is a writer
 * of these as others are of their slices. In order:
 *
 *     words: the checksum of the ticket; the size of the parts
 *     sums: those of storage s to writer s mod n, which adds them; from it to the coordinator
 *     owners: how many bytes a writer has of part p to writer p mod n; from it to all, who sends it
 *     rounds of windows, which are parts (joint_exchange.c)
 *     words: how the writer has ended
 */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/memory.h"
#include "base/trace.h"
#include "format/checksum.h"
#include "io/thread_pool.h"
#include "save/joint/joint_writer.h"
#include "save/save_operation.h"

/* Parts that a writer sends at a time, if io.threads does not say. */
#define N_SENDERS 4
/* What a worker sums at a time, of one part. */
#define SUMMED_NBYTES ((uint64_t)16 << 20)

#define SUM_NBYTES (4 + BTH_ID_START_NBYTES)
#define MAX_PARTS 1048576 /* of an object: S3 takes 10,000 */

typedef struct object_sender {
    bth_ticket ticket;
    bth_ticket whole; /* the same file, as one storage that is all of it */
    bth_ticket_storage whole_storage;
    const berth_joint_object *object;
    const berth_params *params;
    struct berth_config config;
    bth_exchange exchange;
    bth_slice_parts parts; /* of slices; then, with the rest, as bytes of `whole` */
    bth_joint_sum *sums;   /* one a storage */
    bth_lock sums_lock;
    uint32_t n_parts; /* of the object */
    bth_window_owners owners;
    _Atomic uint64_t sent_nbytes, n_sent;
    _Atomic uint64_t send_nanoseconds;
    uint64_t done_nbytes, total_nbytes;
} object_sender;

/* ---- sums ---- */

/* So much of a run of a slice, or some runs of a box, as one worker sums it. */
typedef struct summing {
    object_sender *sender;
    uint64_t *first; /* task of each part, then of each box; then the number of all */
    size_t n;
} summing;

static void sender_add_sum(object_sender *sender, size_t storage, uint32_t crc32, uint64_t at,
                           const uint8_t *bytes, uint64_t nbytes)
{
    bth_joint_sum *sum = &sender->sums[storage];

    (void)bth_lock_acquire(&sender->sums_lock);
    sum->crc32 ^= crc32;
    for (uint64_t i = at; i < sizeof sum->start && i < at + nbytes; i++)
        sum->start[i] = bytes[i - at];
    bth_lock_release(&sender->sums_lock);
}

static void sender_sum_part(object_sender *sender, const bth_slice_part *slice, uint64_t from)
{
    const bth_joint_part *part = &slice->part;
    const uint64_t nbytes = bth_min(part->nbytes - from, SUMMED_NBYTES), at = part->at + from;
    const uint64_t behind = sender->ticket.storages[part->storage].nbytes - at - nbytes;
    uint32_t crc32 = 0;

    if (sender->ticket.compute_crc32)
        crc32 = bth_crc32_combine(bth_crc32(0, slice->bytes + from, (size_t)nbytes), 0, behind);
    sender_add_sum(sender, part->storage, crc32, at, slice->bytes + from, nbytes);
}

/* The CRC of a run moves on by the same distance to the next one of its line: a cheap shift. */
static void sender_sum_runs(object_sender *sender, const bth_short_box *box, uint64_t from,
                            uint64_t end)
{
    const uint64_t nbytes = sender->ticket.storages[box->storage].nbytes;
    const uint64_t length = box->lengths[box->n_dims - 1], stride = box->strides[box->n_dims - 1];
    uint32_t all = 0, line = 0;

    for (uint64_t n = from; n < end; n++) {
        const uint8_t *bytes = box->bytes + n * box->run_nbytes;
        const uint64_t at = bth_short_box_run_at(box, n), behind = at + box->run_nbytes;
        const uint32_t crc32 =
            sender->ticket.compute_crc32 ? bth_crc32(0, bytes, (size_t)box->run_nbytes) : 0;
        line = n > from && n % length != 0 ? bth_crc32_combine(line, crc32, stride) : crc32;
        if (n + 1 == end || (n + 1) % length == 0)
            all ^= bth_crc32_combine(line, 0, nbytes - behind);
        if (at < BTH_ID_START_NBYTES)
            sender_add_sum(sender, box->storage, 0, at, bytes, box->run_nbytes);
    }
    sender_add_sum(sender, box->storage, all, BTH_ID_START_NBYTES, NULL, 0);
}

static uint64_t box_runs_per_task(const bth_short_box *box)
{
    return bth_max(SUMMED_NBYTES / box->run_nbytes, 1);
}

/* A task of the pool. */
static int sum_some(void *context, uint64_t task, unsigned worker, berth_error *error)
{
    const summing *all = context;
    const bth_slice_parts *parts = &all->sender->parts;
    size_t low = 0, high = all->n;

    (void)worker, (void)error;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (all->first[middle] <= task)
            low = middle;
        else
            high = middle;
    }
    uint64_t number = task - all->first[low];
    if (low < parts->n) {
        sender_sum_part(all->sender, &parts->parts[low], number * SUMMED_NBYTES);
        return 0;
    }
    const bth_short_box *box = &parts->boxes[low - parts->n];
    uint64_t each = box_runs_per_task(box), from = number * each;
    sender_sum_runs(all->sender, box, from, bth_min(from + each, box->n_runs));
    return 0;
}

static int sender_sum(object_sender *sender, berth_error *error)
{
    const bth_slice_parts *parts = &sender->parts;
    summing all = {.sender = sender, .n = parts->n + parts->n_boxes};
    size_t nbytes = bth_array_nbytes(all.n + 1, sizeof *all.first);
    uint64_t n = 0;

    all.first = bth_allocate(nbytes);
    if (!all.first)
        return bth_fail_memory(error, nbytes);
    for (size_t i = 0; i < all.n; i++) {
        all.first[i] = n;
        if (i < parts->n)
            n += (parts->parts[i].part.nbytes - 1) / SUMMED_NBYTES + 1;
        else
            n += (parts->boxes[i - parts->n].n_runs - 1) /
                     box_runs_per_task(&parts->boxes[i - parts->n]) +
                 1;
    }
    unsigned n_workers = bth_workers_choose_count(&sender->config, BTH_WORKERS_COMPUTE, n, 0);
    if (n > 0)
        (void)bth_pool_run(n_workers, n, sum_some, NULL, &all, error);
    bth_release(all.first);
    return error->code;
}

/* ---- items that are dealt out: item i belongs to writer i mod n ---- */

static uint64_t dealt_count(const bth_exchange *exchange, uint64_t n_items, uint32_t writer)
{
    return n_items / exchange->n + (writer < n_items % exchange->n);
}

/* Where item i is among those of all writers, one writer after the other. */
static uint64_t dealt_place(const bth_exchange *exchange, uint64_t n_items, uint64_t i)
{
    const uint64_t writer = i % exchange->n, each = n_items / exchange->n;

    return writer * each + bth_min(writer, n_items % exchange->n) + i / exchange->n;
}

/*
 * Each writer sends its version of each item to the one to which it belongs: *received is n
 * versions of its items, one writer's after the other. Or back: each writer sends its own items to
 * writer 0, or to all (`send` has them once for each), who get the items of all, by their places.
 */
typedef enum dealing { DEAL_OUT, DEAL_TO_FIRST, DEAL_TO_ALL } dealing;

static int items_exchange(bth_exchange *exchange, dealing kind, uint64_t n_items,
                          size_t item_nbytes, const uint8_t *send, uint8_t *receive,
                          berth_error *error)
{
    const uint64_t own = dealt_count(exchange, n_items, exchange->number) * item_nbytes;

    for (uint32_t i = 0; i < exchange->n; i++) {
        const uint64_t theirs = dealt_count(exchange, n_items, i) * item_nbytes;
        bool sends = kind == DEAL_TO_ALL || i == 0;
        bool receives = kind == DEAL_TO_ALL || exchange->number == 0;
        exchange->send_nbytes[i] = kind == DEAL_OUT ? theirs : sends ? own : 0;
        exchange->receive_nbytes[i] = kind == DEAL_OUT ? own : receives ? theirs : 0;
    }
    return bth_exchange_call(exchange, send, receive, error);
}

/* ---- sums, put together ---- */

/* The coordinator's are those of all, then. */
static int sender_exchange_sums(object_sender *sender, berth_error *error)
{
    bth_exchange *exchange = &sender->exchange;
    const uint64_t n = sender->ticket.n_storages;
    const uint64_t own = dealt_count(exchange, n, exchange->number);
    size_t nbytes = bth_array_nbytes((size_t)(n + exchange->n), SUM_NBYTES);
    uint8_t *mine = bth_allocate_zeroed(nbytes), *theirs = bth_allocate_zeroed(nbytes);

    if (!mine || !theirs)
        (void)bth_fail_memory(error, nbytes);
    for (uint64_t i = 0; i < n && error->code == BERTH_OK; i++) {
        uint8_t *to = mine + dealt_place(exchange, n, i) * SUM_NBYTES;
        memcpy(bth_put_u32(to, sender->sums[i].crc32), sender->sums[i].start, BTH_ID_START_NBYTES);
    }
    memset(exchange->to, 0, exchange->n * sizeof *exchange->to);
    if (bth_exchange_tell(exchange, BTH_PEER_SENDS, NULL, error) == 0 &&
        items_exchange(exchange, DEAL_OUT, n, SUM_NBYTES, mine, theirs, error) == 0) {
        for (uint32_t i = 1; i < exchange->n; i++)
            for (uint64_t j = 0; j < own * SUM_NBYTES; j++)
                theirs[j] ^= theirs[i * own * SUM_NBYTES + j];
        (void)items_exchange(exchange, DEAL_TO_FIRST, n, SUM_NBYTES, theirs, mine, error);
    }
    for (uint64_t i = 0; exchange->number == 0 && i < n && error->code == BERTH_OK; i++) {
        const uint8_t *from = mine + dealt_place(exchange, n, i) * SUM_NBYTES;
        bth_cursor cursor = bth_cursor_make(from, SUM_NBYTES);
        sender->sums[i].crc32 = bth_cursor_u32(&cursor);
        memcpy(sender->sums[i].start, from + 4, BTH_ID_START_NBYTES);
    }
    bth_release(mine);
    bth_release(theirs);
    return error->code;
}

/* ---- all bytes of this writer, by their places in the file ---- */

static int sender_place_parts(object_sender *sender, berth_error *error)
{
    const bth_ticket_storage *storages = sender->ticket.storages;
    bth_slice_parts *parts = &sender->parts;
    const bth_joint_rest *rest = NULL;
    size_t n_rest = 0;

    if (sender->object->joint && bth_joint_render_rest(sender->object->joint, &sender->ticket,
                                                       sender->sums, &rest, &n_rest, error) < 0)
        return error->code;
    for (size_t i = 0; i < parts->n; i++) {
        bth_joint_part *part = &parts->parts[i].part;
        part->at += storages[part->storage].data_offset;
        part->storage = 0;
    }
    for (size_t i = 0; i < parts->n_boxes; i++) {
        bth_short_box *box = &parts->boxes[i];
        box->at += storages[box->storage].data_offset;
        box->end += storages[box->storage].data_offset;
        box->storage = 0;
        sender->total_nbytes += box->n_runs * box->run_nbytes;
    }
    for (size_t i = 0; i < n_rest; i++) {
        const bth_joint_part part = {.at = rest[i].range.offset, .nbytes = rest[i].range.nbytes};
        if (bth_slice_parts_append(parts, &part, rest[i].bytes, error) < 0)
            return error->code;
    }
    bth_slice_parts_sort(parts);
    for (size_t i = 0; i < parts->n; i++)
        sender->total_nbytes += parts->parts[i].part.nbytes;
    parts->fragments = parts->parts; /* all are exchanged */
    parts->n_fragments = parts->n;
    parts->parts = NULL;
    parts->n = parts->room = 0;
    return 0;
}

/* ---- who sends which part ---- */

/* Adds what [at, at + nbytes) has of each part; `share` of each byte, of 2^16. */
static void counts_add(const object_sender *sender, uint64_t *counts, uint64_t at, uint64_t nbytes,
                       uint64_t share)
{
    const uint64_t part_nbytes = sender->object->part_nbytes;

    while (nbytes > 0) {
        uint64_t left = part_nbytes - at % part_nbytes, n = bth_min(left, nbytes);
        counts[at / part_nbytes] += (n >> 16) * share + ((n & 0xffff) * share >> 16);
        at += n;
        nbytes -= n;
    }
}

/* Who has more than half of a part sends it. Else it is dealt out, as no bytes could stay. */
static uint32_t part_choose_owner(const object_sender *sender, const uint8_t *counts, uint64_t i)
{
    const bth_exchange *exchange = &sender->exchange;
    const uint64_t own = dealt_count(exchange, sender->n_parts, exchange->number);
    const uint64_t at = (i * exchange->n + exchange->number) * sender->object->part_nbytes;
    const uint64_t nbytes = bth_min(sender->object->part_nbytes, sender->ticket.file_nbytes - at);

    for (uint32_t writer = 0; writer < exchange->n; writer++) {
        bth_cursor cursor = bth_cursor_make(counts + (writer * own + i) * 8, 8);
        if (bth_cursor_u64(&cursor) > nbytes / 2)
            return writer;
    }
    return exchange->number;
}

/* all: the owner of each part, as dealt. */
static int sender_sort_owners(object_sender *sender, const uint8_t *all, berth_error *error)
{
    const bth_exchange *exchange = &sender->exchange;
    bth_window_owners *owners = &sender->owners;
    size_t nbytes = bth_array_nbytes((size_t)sender->n_parts + exchange->n + 2, 4);

    owners->begins = bth_allocate_zeroed(nbytes);
    if (!owners->begins)
        return bth_fail_memory(error, nbytes);
    owners->windows = owners->begins + exchange->n + 2;
    for (unsigned pass = 0; pass < 2; pass++) { /* counts; then places */
        for (uint32_t i = 0; i < sender->n_parts; i++) {
            const uint8_t *from = all + dealt_place(exchange, sender->n_parts, i) * 4;
            bth_cursor cursor = bth_cursor_make(from, 4);
            uint32_t owner = bth_cursor_u32(&cursor);
            if (owner >= exchange->n)
                return bth_fail_argument(error, "there is no writer %u that could send part %u",
                                         owner, i);
            if (pass == 0)
                owners->begins[owner + 2]++;
            else
                owners->windows[owners->begins[owner + 1]++] = i;
        }
        for (uint32_t i = 0; pass == 0 && i < exchange->n; i++) {
            owners->n_rounds = bth_max(owners->n_rounds, owners->begins[i + 2]);
            owners->begins[i + 2] += owners->begins[i + 1];
        }
    }
    return 0;
}

/* counts: one a part, all 0. dealt: receives them, as they are dealt out. */
static void sender_count(const object_sender *sender, uint64_t *counts, uint8_t *dealt)
{
    const bth_slice_parts *parts = &sender->parts;

    for (size_t i = 0; i < parts->n_fragments; i++)
        counts_add(sender, counts, parts->fragments[i].part.at, parts->fragments[i].part.nbytes,
                   1 << 16);
    for (size_t i = 0; i < parts->n_boxes; i++) {
        const bth_short_box *box = &parts->boxes[i];
        const uint64_t span = box->end - box->at, has = box->n_runs * box->run_nbytes;
        counts_add(sender, counts, box->at, span, has / (span / 65536 + 1));
    }
    for (uint64_t i = 0; i < sender->n_parts; i++)
        (void)bth_put_u64(dealt + dealt_place(&sender->exchange, sender->n_parts, i) * 8,
                          counts[i]);
}

static int sender_choose_owners(object_sender *sender, berth_error *error)
{
    bth_exchange *exchange = &sender->exchange;
    const uint64_t n = sender->n_parts, own = dealt_count(exchange, n, exchange->number);
    const size_t nbytes = bth_array_nbytes((size_t)n + exchange->n, 8);
    /* Counts; those and the owners of all as they are dealt; the own ones, once for each writer. */
    const size_t all_nbytes = 3 * nbytes + bth_array_nbytes((size_t)own * exchange->n, 4);
    uint64_t *counts = bth_allocate_zeroed(all_nbytes);

    if (!counts)
        (void)bth_fail_memory(error, all_nbytes);
    else if (error->code == BERTH_OK)
        sender_count(sender, counts, (uint8_t *)counts + nbytes);
    memset(exchange->to, 0, exchange->n * sizeof *exchange->to);
    if (bth_exchange_tell(exchange, BTH_PEER_SENDS, NULL, error) == 0 && counts) {
        uint8_t *mine = (uint8_t *)counts + nbytes, *theirs = mine + nbytes;
        uint8_t *to_all = theirs + nbytes;
        if (items_exchange(exchange, DEAL_OUT, n, 8, mine, theirs, error) == 0) {
            for (uint64_t i = 0; i < own; i++)
                (void)bth_put_u32(to_all + i * 4, part_choose_owner(sender, theirs, i));
            for (uint32_t i = 1; i < exchange->n; i++)
                memcpy(to_all + i * own * 4, to_all, (size_t)own * 4);
            if (items_exchange(exchange, DEAL_TO_ALL, n, 4, to_all, theirs, error) == 0)
                (void)sender_sort_owners(sender, theirs, error);
        }
    }
    bth_release(counts);
    return error->code;
}

/* ---- sending ---- */

/* On a thread of its own. */
static int sender_send_window(void *context, const bth_joint_window *window, berth_error *error)
{
    object_sender *sender = context;
    const berth_sink *sink = &sender->object->sink;
    const bth_ticket *ticket = &sender->ticket;
    uint64_t gap = bth_joint_window_find_gap(window);

    /* J3 */
    if (gap != UINT64_MAX) {
        size_t storage = bth_ticket_find_storage(ticket, gap);
        bool is_named = storage < ticket->n_storages;
        return bth_fail(
            error, BERTH_E_ARGUMENT, is_named ? bth_ticket_name_of_storage(ticket, storage) : NULL,
            BERTH_NO_OFFSET, "no writer has given byte %llu of its storage",
            (unsigned long long)(gap - (is_named ? ticket->storages[storage].data_offset : 0)));
    }
    const bth_range range = window->range;
    bth_trace_span request = {.category = "request,write",
                              .name = "write",
                              .offset = range.offset,
                              .n_requests = 1,
                              .begin_seconds = bth_seconds()};
    if (bth_trace_current())
        bth_trace_begin_request();
    int failure = sink->write(sink->context, window->bytes, (size_t)range.nbytes, range.offset);
    const double begin = request.begin_seconds, end = bth_seconds();
    request.nbytes = failure == 0 ? range.nbytes : 0;
    request.end_seconds = end;
    if (bth_trace_current())
        bth_trace_end_request(&request, true);
    BTH_TRACE(.category = "disk", .name = "send part", .begin_seconds = begin, .end_seconds = end,
              .offset = range.offset, .nbytes = range.nbytes);
    atomic_fetch_add(&sender->send_nanoseconds, (uint64_t)((end - begin) * 1e9));
    if (failure != 0) {
        (void)bth_fail_errno(error, failure < 0 ? -failure : failure, NULL, range.offset,
                             "the sink failed");
        error->code = BERTH_E_CALLBACK;
        return error->code;
    }
    atomic_fetch_add(&sender->sent_nbytes, range.nbytes);
    atomic_fetch_add(&sender->n_sent, 1);
    return 0;
}

static int sender_report(void *context, uint64_t nbytes, berth_error *error)
{
    object_sender *sender = context;
    const berth_params *params = sender->params;

    sender->done_nbytes += nbytes;
    if (params->progress &&
        params->progress(params->progress_context, sender->done_nbytes, sender->total_nbytes) != 0)
        return bth_fail_status(error, BERTH_E_CANCELLED, "cancelled");
    return 0;
}

/* The parts have the same size for all. */
static int sender_compare_sizes(object_sender *sender, berth_error *error)
{
    bth_exchange *exchange = &sender->exchange;
    uint8_t bytes[8];

    (void)bth_put_u64(bytes, sender->object->part_nbytes);
    uint32_t crc32 = bth_crc32(0, bytes, sizeof bytes);
    for (uint32_t i = 0; i < exchange->n; i++)
        exchange->to[i] = crc32;
    if (bth_exchange_tell(exchange, BTH_PEER_SENDS, NULL, error) < 0)
        return error->code;
    for (uint32_t i = 0; i < exchange->n; i++)
        if (exchange->from[i] != crc32) {
            exchange->is_over = true; /* in all: each finds another one */
            return bth_fail_argument(error, "writer %u has parts of another size", i);
        }
    return 0;
}

/* What can fail before an exchange: others are told by its first words. */
static int sender_prepare(object_sender *sender, const berth_slice *slices, size_t n_slices,
                          berth_error *error)
{
    const bth_ticket *ticket = &sender->ticket;
    const berth_joint_object *object = sender->object;
    size_t nbytes = bth_array_nbytes(ticket->n_storages + (size_t)1, sizeof *sender->sums);

    if (error->code != BERTH_OK)
        return error->code;
    if (!bth_ticket_is_of_object(ticket))
        return bth_fail_argument(error, "the ticket is of a file: berth_joint_write writes it");
    if (BTH_CHECK_RESERVED(berth_joint_object, object, error) < 0)
        return error->code;
    if (!object->sink.write || object->part_nbytes == 0 ||
        (ticket->file_nbytes - 1) / object->part_nbytes >= MAX_PARTS)
        return bth_fail_argument(error, "the object has no sink, or no size of parts");
    if (!object->joint != (sender->exchange.number != 0))
        return bth_fail_argument(error, "the coordinator is writer 0, and gives its joint save");
    for (size_t i = 0; i < ticket->n_storages; i++)
        if (ticket->storages[i].swap_nbytes > 1)
            return bth_fail_status(error, BERTH_E_UNSUPPORTED,
                                   "save.byteorder: an object of many writers has this machine's");
    sender->n_parts = (uint32_t)((ticket->file_nbytes - 1) / object->part_nbytes + 1);
    sender->whole_storage = (bth_ticket_storage){.swap_nbytes = 1, .nbytes = ticket->file_nbytes};
    sender->whole = *ticket;
    sender->whole.storages = &sender->whole_storage;
    sender->whole.n_storages = 1;
    sender->sums = bth_allocate_zeroed(nbytes);
    if (!sender->sums)
        return bth_fail_memory(error, nbytes);
    if (bth_slice_parts_make(ticket, slices, n_slices, true, &sender->parts, error) < 0)
        return error->code;
    return sender_sum(sender, error);
}

static void sender_send(object_sender *sender, const berth_slice *slices, size_t n_slices,
                        berth_error *error)
{
    bth_exchange *exchange = &sender->exchange;
    const unsigned n_threads = (unsigned)sender->config.io_threads;
    bool ignored;

    (void)sender_prepare(sender, slices, n_slices, error);
    if (bth_exchange_begin(exchange, &sender->ticket, true, &ignored, error) == 0 &&
        sender_compare_sizes(sender, error) == 0 && sender_exchange_sums(sender, error) == 0) {
        (void)sender_place_parts(sender, error);
        if (sender_choose_owners(sender, error) == 0) {
            const uint32_t *begins = sender->owners.begins + exchange->number;
            const size_t n_own = begins[1] - begins[0];
            const bth_rounds_settings settings = {
                .ticket = &sender->whole,
                .named = &sender->ticket,
                .parts = &sender->parts,
                .window_nbytes = sender->object->part_nbytes,
                .n_windows = bth_max(bth_min(n_threads ? n_threads : N_SENDERS, n_own), 1) + 1,
                .owners = &sender->owners,
                .large_pages = sender->config.io_large_pages,
                .write = sender_send_window,
                .report = sender_report,
                .context = sender};
            (void)bth_exchange_run_rounds(exchange, &settings, error);
        }
    }
    if (!exchange->is_over) {
        memset(exchange->to, 0, exchange->n * sizeof *exchange->to);
        (void)bth_exchange_tell(exchange, BTH_PEER_SILENT, NULL, error);
    }
}

int berth_joint_send(const void *ticket, size_t ticket_nbytes, size_t writer,
                     const berth_slice *slices, size_t n_slices, const berth_joint_object *object,
                     const berth_params *params, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    const double begin = bth_seconds();
    object_sender made = {.object = object, .params = params};
    bth_trace_scope traced = {0};

    if (!object || !params || !params->exchange)
        return bth_fail_argument(error, "the object is NULL, or there is no exchange");
    if (bth_ticket_read(ticket, ticket_nbytes, &made.ticket, error) == 0 &&
        writer >= made.ticket.n_writers)
        (void)bth_fail_argument(error, "there is no writer %zu, the save has %u writers", writer,
                                made.ticket.n_writers);
    if (error->code != BERTH_OK) {
        bth_ticket_free_all(&made.ticket);
        return error->code;
    }
    bth_lock_initialize(&made.sums_lock);
    made.exchange = (bth_exchange){.function = params->exchange,
                                   .context = params->exchange_context,
                                   .n = made.ticket.n_writers,
                                   .number = (uint32_t)writer};
    if (bth_exchange_allocate(&made.exchange, error) == 0) {
        if (bth_config_copy_for_operation(params, &made.config, error) == 0)
            bth_trace_enter(&traced, made.config.trace, "joint send", made.ticket.path, begin);
        sender_send(&made, slices, n_slices, error);
    }
    const double end = bth_seconds();
    const bool has_base = *bth_base_choose(params, &made.config) != '\0';
    berth_stats stats = {.method = "sent",
                         .reason = "an object",
                         .requested_nbytes = made.total_nbytes,
                         .moved_nbytes = atomic_load(&made.sent_nbytes),
                         .n_requests = atomic_load(&made.n_sent),
                         .disk_seconds = (double)atomic_load(&made.send_nanoseconds) * 1e-9,
                         .transfer_seconds = end - begin,
                         .total_seconds = end - begin,
                         .base_reason = has_base ? BTH_BASE_ONLY_PATHS : NULL};
    if (params->stats)
        *params->stats = stats;
    bth_trace_leave(&traced, end, &stats, error);
    (void)bth_error_prefix(error, made.ticket.path);
    bth_slice_parts_free_all(&made.parts);
    bth_release(made.exchange.to);
    bth_release(made.owners.begins);
    bth_release(made.sums);
    bth_lock_destroy(&made.sums_lock);
    bth_ticket_free_all(&made.ticket);
    return error->code;
}
