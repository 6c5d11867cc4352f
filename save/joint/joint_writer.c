/* SPDX-License-Identifier: BSD-3-Clause */
/* One writer of a joint save: its slices go to the file, and it gets a receipt. */
#include "save/joint/joint_writer.h"

#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/trace.h"
#include "format/values/value.h"
#include "io/file.h"
#include "save/commit.h"
#include "save/save_operation.h"

/* Buffers for writing a window; both windows and messages beside them have up to 36 MiB. */
#define WINDOW_BUFFERS_NBYTES ((uint64_t)8 << 20)
/* Of all writers: the most that goes to a coordinator though it could be exchanged. */
#define MAX_FRAGMENTS_NBYTES ((uint64_t)16 << 20)

typedef struct joint_writer {
    bth_ticket ticket;
    uint32_t number;
    const berth_params *params;
    bth_exchange exchange; /* n 0: there is none, or it could not begin */
    bth_slice_parts parts; /* of slices; then of windows, too */
    bth_middles_file file;
    uint8_t *kept; /* fragments of the windows' parts, head and tail of each */
    size_t kept_nbytes;
    size_t kept_room;
    uint8_t *receipt;
    size_t receipt_nbytes;
    uint64_t done_nbytes; /* for progress: runs that were sent, and middles */
    uint64_t total_nbytes;
    berth_stats stats;
    double begin_seconds;
    bth_trace_scope traced;
} joint_writer;

/* ---- progress ---- */

/* The run counts what others write as done. */
static int writer_report_progress(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    const joint_writer *writer = context;

    (void)total_nbytes;
    return writer->params->progress(writer->params->progress_context,
                                    writer->done_nbytes + done_nbytes, writer->total_nbytes);
}

static int writer_report_sent(void *context, uint64_t nbytes, berth_error *error)
{
    joint_writer *writer = context;

    writer->done_nbytes += nbytes;
    if (writer->params->progress && writer_report_progress(writer, 0, 0) != 0)
        return bth_fail_status(error, BERTH_E_CANCELLED, "cancelled");
    return 0;
}

/* ---- windows ---- */

static int writer_write_window(void *context, const bth_joint_window *window, berth_error *error)
{
    static const bth_middles_limits limits = {.memory_nbytes = WINDOW_BUFFERS_NBYTES};
    joint_writer *writer = context;
    bth_slice_parts *parts = &writer->parts;
    size_t before = parts->n;

    if (bth_joint_window_append_parts(window, parts, error) < 0 ||
        bth_middles_write(&writer->file, parts->parts + before, parts->n - before, &limits,
                          &writer->stats, error) < 0)
        return error->code;
    /* Keeps the fragments: the window is used again for other bytes. */
    for (size_t i = before; i < parts->n; i++) {
        bth_slice_part *part = &parts->parts[i];
        bth_joint_split split = bth_joint_part_split(&writer->ticket, &part->part);
        size_t head = (size_t)split.head_nbytes, tail = (size_t)split.tail_nbytes;
        uint8_t *kept = bth_items_grow(writer->kept, writer->kept_nbytes, head + tail,
                                       &writer->kept_room, 1, error);
        if (!kept)
            return error->code;
        memcpy(kept + writer->kept_nbytes, part->bytes, head);
        memcpy(kept + writer->kept_nbytes + head, part->bytes + part->part.nbytes - tail, tail);
        part->kept_at = writer->kept_nbytes;
        part->bytes = NULL;
        writer->kept = kept;
        writer->kept_nbytes += head + tail;
    }
    return 0;
}

/* ---- writing ---- */

/* exchanges: any writer wants it. The windows' parts come behind the slices'. */
static int writer_write_and_sync(joint_writer *writer, bool exchanges, berth_error *error)
{
    const bool reports = writer->params && writer->params->progress;
    const bth_middles_limits limits = {.progress = reports ? writer_report_progress : NULL,
                                       .progress_context = writer};
    double begin = bth_seconds(), end;
    berth_stats *stats = &writer->stats;
    size_t n = writer->parts.n;
    bool is_synced; /* if not, the coordinator tells */

    if (bth_middles_file_open(&writer->file, error) < 0)
        return error->code;
    if (exchanges) {
        const bth_rounds_settings settings = {.ticket = &writer->ticket,
                                              .large_pages = writer->file.config.io_large_pages,
                                              .parts = &writer->parts,
                                              .write = writer_write_window,
                                              .report = writer_report_sent,
                                              .context = writer};
        (void)bth_exchange_run_rounds(&writer->exchange, &settings, error);
    }
    if (error->code == BERTH_OK)
        (void)bth_middles_write(&writer->file, writer->parts.parts, n, &limits, stats, error);
    end = bth_seconds();
    stats->transfer_seconds = end - begin;
    BTH_TRACE(.category = "stage", .name = "transfer", .begin_seconds = begin, .end_seconds = end);
    stats->limited_by = bth_stats_find_slowest_stage(stats);
    begin = bth_seconds();
    if (error->code == BERTH_OK)
        (void)bth_commit_sync_file(writer->file.fd, writer->ticket.durability, &is_synced, error);
    end = bth_seconds();
    stats->sync_seconds = end - begin;
    BTH_TRACE(.category = "stage", .name = "sync", .begin_seconds = begin, .end_seconds = end);
    return error->code;
}

/* ---- from begin to end ---- */

/* What decides bytes, and what "done" means, is the ticket's. */
static void writer_begin(joint_writer *writer, const void *bytes, size_t nbytes, size_t number,
                         berth_error *error)
{
    const berth_params *params = writer->params;
    struct berth_config *config = &writer->file.config;
    bth_ticket *ticket = &writer->ticket;

    if (bth_ticket_read(bytes, nbytes, ticket, error) == 0 && number >= ticket->n_writers)
        (void)bth_fail_argument(error, "there is no writer %zu, the save has %u writers", number,
                                ticket->n_writers);
    writer->number = (uint32_t)number;
    writer->file.ticket = ticket;
    if (error->code == BERTH_OK && bth_config_copy_for_operation(params, config, error) == 0) {
        bth_trace_enter(&writer->traced, config->trace, "joint write", ticket->path,
                        writer->begin_seconds);
        config->save_compute_crc32 = ticket->compute_crc32;
        config->save_durability = ticket->durability;
    }
    /* Also after an error, so that the others get to know of it. */
    const uint32_t n = ticket->n_writers;
    if (params && params->exchange && number < n && n <= BERTH_MAX_WRITERS) {
        writer->exchange = (bth_exchange){.function = params->exchange,
                                          .context = params->exchange_context,
                                          .n = n,
                                          .number = writer->number};
        (void)bth_exchange_allocate(&writer->exchange, error);
    }
}

/* Finds what is written and what is exchanged; then writes it. */
static void writer_write(joint_writer *writer, const berth_slice *slices, size_t n_slices,
                         berth_error *error)
{
    const bth_ticket *ticket = &writer->ticket;
    const bool can_exchange = writer->exchange.to != NULL;
    bth_slice_parts *parts = &writer->parts;
    bool exchanges = false;

    if (error->code == BERTH_OK &&
        bth_slice_parts_make(ticket, slices, n_slices, can_exchange, parts, error) == 0)
        bth_chains_make(ticket, parts);
    if (can_exchange) {
        /* Few fragments go to the coordinator instead: that costs less than the rounds. */
        uint64_t nbytes = bth_fragments_count_nbytes(ticket, parts);
        bool wants = parts->n_boxes > 0 || nbytes > MAX_FRAGMENTS_NBYTES / writer->exchange.n;
        (void)bth_exchange_begin(&writer->exchange, ticket, wants, &exchanges, error);
    }
    if (error->code == BERTH_OK && exchanges)
        (void)bth_fragments_take(ticket, parts, error);
    if (error->code == BERTH_OK) {
        for (size_t i = 0; i < parts->n_boxes; i++)
            writer->total_nbytes += parts->boxes[i].n_runs * parts->boxes[i].run_nbytes;
        for (size_t i = 0; i < parts->n_fragments; i++)
            writer->total_nbytes += parts->fragments[i].part.nbytes;
        writer->stats.requested_nbytes = writer->total_nbytes;
        for (size_t i = 0; i < parts->n; i++)
            writer->stats.requested_nbytes += parts->parts[i].part.nbytes;
        writer->total_nbytes += bth_middles_count_nbytes(ticket, parts->parts, parts->n);
        if (writer_write_and_sync(writer, exchanges, error) == 0) {
            bth_slice_parts_sort(parts);
            (void)bth_receipt_write(ticket, writer->number, parts->parts, parts->n, writer->kept,
                                    &writer->receipt, &writer->receipt_nbytes, error);
        }
    }
    if (can_exchange && !writer->exchange.is_over)
        (void)bth_exchange_tell(&writer->exchange, BTH_PEER_SILENT, NULL, error);
}

int berth_joint_write(const void *ticket, size_t ticket_nbytes, size_t writer,
                      const berth_slice *slices, size_t n_slices, const berth_params *params,
                      void **receipt, size_t *receipt_nbytes, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    BTH_HOLD_FILE_LIMIT();
    joint_writer made = {.params = params,
                         .file = {.fd = -1, .file = {.fd = -1, .direct = {.fd = -1}}},
                         .begin_seconds = bth_seconds(),
                         .stats = {.method = "buffered", .reason = "nothing was written"}};

    if (!receipt || !receipt_nbytes)
        return bth_fail_argument(error, "receipt or receipt_nbytes is NULL");
    *receipt = NULL;
    *receipt_nbytes = 0;
    writer_begin(&made, ticket, ticket_nbytes, writer, error);
    writer_write(&made, slices, n_slices, error);
    double end_seconds = bth_seconds();
    made.stats.total_seconds = end_seconds - made.begin_seconds;
    if (params && params->stats)
        *params->stats = made.stats;
    bth_trace_leave(&made.traced, end_seconds, &made.stats, error);
    if (error->code == BERTH_OK) {
        *receipt = made.receipt;
        *receipt_nbytes = made.receipt_nbytes;
        made.receipt = NULL;
    } else if (made.ticket.path)
        (void)bth_error_prefix(error, made.ticket.path);
    bth_middles_file_close(&made.file);
    bth_release(made.exchange.to);
    bth_slice_parts_free_all(&made.parts);
    bth_release(made.kept);
    bth_release(made.receipt);
    bth_ticket_free_all(&made.ticket);
    return error->code;
}
