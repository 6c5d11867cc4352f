/* SPDX-License-Identifier: BSD-3-Clause */
/* One writer of a joint save: its slices go to the file, and it gets a receipt. */
#include <stdio.h>
#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/values/value.h"
#include "io/clock.h"
#include "io/file.h"
#include "io/trace.h"
#include "save/commit.h"
#include "save/joint/joint_file.h"
#include "save/joint/joint_slices.h"
#include "save/save_operation.h"

typedef struct joint_writer {
    bth_ticket ticket;
    uint32_t number;
    struct berth_config config;
    const berth_params *params;
    bth_slice_parts parts;
    uint8_t *receipt;
    size_t receipt_nbytes;
    uint8_t *fragments; /* in the receipt */
    berth_plan *plan;   /* a record for each middle */
    bth_range *ranges;  /* the middles */
    uint32_t *crc32s;   /* of each */
    uint64_t middle_nbytes;
    int fd;
    bth_output_file file;
    berth_stats stats;
    double begin_seconds;
    bth_trace_scope traced;
} joint_writer;

/* ---- fragments ---- */

static uint8_t *writer_put_fragment(const bth_ticket_storage *storage, uint8_t *out,
                                    const uint8_t *bytes, uint64_t nbytes)
{
    if (nbytes > 0)
        bth_swap_bytes(out, bytes, (size_t)nbytes, storage->swap_nbytes);
    return out + nbytes;
}

static void writer_put_fragments(joint_writer *writer)
{
    uint8_t *out = writer->fragments;

    for (size_t i = 0; i < writer->parts.n; i++) {
        const struct bth_slice_part *part = &writer->parts.parts[i];
        const bth_ticket_storage *storage = &writer->ticket.storages[part->part.storage];
        bth_joint_split split = bth_joint_part_split(&writer->ticket, &part->part);
        const uint8_t *tail = part->bytes + (part->part.nbytes - split.tail_nbytes);
        out = writer_put_fragment(storage, out, part->bytes, split.head_nbytes);
        out = writer_put_fragment(storage, out, tail, split.tail_nbytes);
    }
}

static int writer_begin_receipt(joint_writer *writer, berth_error *error)
{
    uint64_t nbytes = 0;

    for (size_t i = 0; i < writer->parts.n; i++) {
        const bth_joint_part *part = &writer->parts.parts[i].part;
        bth_joint_split split = bth_joint_part_split(&writer->ticket, part);
        nbytes += split.head_nbytes + split.tail_nbytes;
        writer->stats.requested_nbytes += part->nbytes;
    }
    if (bth_receipt_new(&writer->ticket, writer->number, writer->parts.n, nbytes, &writer->receipt,
                        &writer->receipt_nbytes, &writer->fragments, error) < 0)
        return error->code;
    writer_put_fragments(writer);
    return 0;
}

/* ---- the plan of the middles ---- */

static int writer_add_middle(joint_writer *writer, struct bth_slice_part *part, berth_error *error)
{
    const bth_ticket_storage *storage = &writer->ticket.storages[part->part.storage];
    bth_joint_split split = bth_joint_part_split(&writer->ticket, &part->part);
    const bth_plan_record content = {.data = part->bytes + split.head_nbytes,
                                     .swap_nbytes = (uint8_t)storage->swap_nbytes};
    size_t i = writer->plan->n_records;
    char name[32];

    if (split.middle.nbytes == 0)
        return 0;
    (void)snprintf(name, sizeof name, "data/%u", storage->record);
    if (bth_plan_add_part(writer->plan, name, split.middle, &content, error) < 0)
        return error->code;
    writer->ranges[i] = split.middle;
    writer->middle_nbytes += split.middle.nbytes;
    return bth_record_data_read(writer->plan, i, part->part.start, sizeof part->part.start, 0,
                                error);
}

static int writer_make_plan(joint_writer *writer, berth_error *error)
{
    size_t n = writer->parts.n;

    writer->plan = bth_plan_new("joint", &writer->config, n, error);
    if (!writer->plan)
        return error->code;
    writer->plan->is_parts = true;
    writer->ranges = bth_allocate(bth_array_nbytes(n + 1, sizeof *writer->ranges));
    writer->crc32s = bth_allocate_zeroed(bth_array_nbytes(n + 1, sizeof *writer->crc32s));
    if (!writer->ranges || !writer->crc32s)
        return bth_fail_memory(error, bth_array_nbytes(n + 1, sizeof *writer->ranges));
    for (size_t i = 0; i < n; i++)
        if (writer_add_middle(writer, &writer->parts.parts[i], error) < 0)
            return error->code;
    return writer->plan->n_records > 0 ? bth_plan_close(writer->plan, error) : 0;
}

/* ---- writing ---- */

/* The run counts what others write as done. */
static int writer_report_progress(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    const joint_writer *writer = context;

    (void)total_nbytes;
    return writer->params->progress(writer->params->progress_context, done_nbytes,
                                    writer->middle_nbytes);
}

/*
 * The file has its size already: whole blocks before its end are never padded. Where direct writes
 * need larger blocks than the coordinator's, they could write bytes of others.
 */
static bth_output writer_begin_output(joint_writer *writer)
{
    uint64_t nbytes = writer->ticket.file_nbytes & ~(uint64_t)(BTH_MAX_DIRECT_BLOCK_NBYTES - 1);
    bth_output output =
        bth_output_file_begin(&writer->file, writer->fd, nbytes, &writer->config, false);

    if (output.constraints.block_nbytes <= writer->ticket.block_nbytes)
        return output;
    bth_direct_close(&writer->file.direct);
    writer->config.save_method = BTH_SAVE_BUFFERED;
    output = bth_output_file_begin(&writer->file, writer->fd, nbytes, &writer->config, false);
    writer->file.reason = "direct writes here need larger blocks than the save has";
    return output;
}

static int writer_write_middles(joint_writer *writer, berth_error *error)
{
    bth_output output = writer_begin_output(writer);
    bth_run_settings settings = bth_run_settings_of(&writer->config, writer->plan, &output);

    settings.parts.ranges = writer->ranges;
    settings.parts.n_ranges = writer->plan->n_records;
    settings.crc32s = writer->crc32s;
    settings.read_back = false; /* the coordinator does */
    settings.progress = writer->params && writer->params->progress ? writer_report_progress : NULL;
    settings.progress_context = writer;
    return bth_run(writer->plan, &output, &settings, &writer->stats, error);
}

static int writer_write_and_sync(joint_writer *writer, berth_error *error)
{
    double begin = bth_seconds(), end;
    berth_stats *stats = &writer->stats;

    if (bth_joint_file_open(&writer->ticket, &writer->fd, error) < 0)
        return error->code;
    if (writer->plan->n_records > 0) {
        (void)writer_write_middles(writer, error);
        stats->method = bth_output_file_method(&writer->file, &stats->reason);
    }
    end = bth_seconds();
    stats->transfer_seconds = end - begin;
    BTH_TRACE(.category = "stage", .name = "transfer", .begin_seconds = begin, .end_seconds = end);
    stats->limited_by = bth_stats_find_slowest_stage(stats);
    begin = bth_seconds();
    if (error->code == BERTH_OK)
        (void)bth_commit_sync_file(writer->fd, writer->ticket.durability, error);
    end = bth_seconds();
    stats->sync_seconds = end - begin;
    BTH_TRACE(.category = "stage", .name = "sync", .begin_seconds = begin, .end_seconds = end);
    return error->code;
}

static int writer_complete_receipt(joint_writer *writer, berth_error *error)
{
    size_t n = writer->parts.n, middle = 0;
    bth_joint_part *parts = bth_allocate(bth_array_nbytes(n + 1, sizeof *parts));

    if (!parts)
        return bth_fail_memory(error, bth_array_nbytes(n + 1, sizeof *parts));
    for (size_t i = 0; i < n; i++) {
        parts[i] = writer->parts.parts[i].part;
        if (bth_joint_part_split(&writer->ticket, &parts[i]).middle.nbytes > 0)
            parts[i].crc32 = writer->crc32s[middle++];
    }
    bth_receipt_complete(writer->receipt, writer->receipt_nbytes, parts, n);
    bth_release(parts);
    return 0;
}

/* ---- from begin to end ---- */

/* What decides bytes, and what "done" means, is the ticket's. */
static int writer_begin(joint_writer *writer, const void *ticket, size_t ticket_nbytes,
                        size_t number, berth_error *error)
{
    if (bth_config_copy_for_operation(writer->params, &writer->config, error) < 0 ||
        bth_ticket_read(ticket, ticket_nbytes, &writer->ticket, error) < 0)
        return error->code;
    if (number >= writer->ticket.n_writers)
        return bth_fail_argument(error, "there is no writer %zu, the save has %u writers", number,
                                 writer->ticket.n_writers);
    bth_trace_enter(&writer->traced, writer->config.trace, "joint write", writer->ticket.path,
                    writer->begin_seconds);
    writer->number = (uint32_t)number;
    writer->config.save_compute_crc32 = writer->ticket.compute_crc32;
    writer->config.save_durability = writer->ticket.durability;
    return 0;
}

static int writer_write(joint_writer *writer, const berth_slice *slices, size_t n_slices,
                        berth_error *error)
{
    if (bth_slice_parts_make(&writer->ticket, slices, n_slices, &writer->parts, error) < 0 ||
        writer_begin_receipt(writer, error) < 0 || writer_make_plan(writer, error) < 0 ||
        writer_write_and_sync(writer, error) < 0)
        return error->code;
    return writer_complete_receipt(writer, error);
}

static void writer_free_all(joint_writer *writer)
{
    bth_direct_close(&writer->file.direct);
    bth_file_close(writer->fd);
    berth_plan_free(writer->plan);
    bth_release(writer->ranges);
    bth_release(writer->crc32s);
    bth_release(writer->parts.parts);
    bth_release(writer->receipt);
    bth_ticket_free_all(&writer->ticket);
}

static int writer_end(joint_writer *writer, void **receipt, size_t *receipt_nbytes,
                      berth_error *error)
{
    double end_seconds = bth_seconds();

    writer->stats.total_seconds = end_seconds - writer->begin_seconds;
    if (writer->params && writer->params->stats)
        *writer->params->stats = writer->stats;
    bth_trace_leave(&writer->traced, end_seconds, &writer->stats, error);
    if (error->code == BERTH_OK) {
        *receipt = writer->receipt;
        *receipt_nbytes = writer->receipt_nbytes;
        writer->receipt = NULL;
    } else if (writer->ticket.path)
        (void)bth_error_prefix(error, writer->ticket.path);
    writer_free_all(writer);
    return error->code;
}

int berth_joint_write(const void *ticket, size_t ticket_nbytes, size_t writer,
                      const berth_slice *slices, size_t n_slices, const berth_params *params,
                      void **receipt, size_t *receipt_nbytes, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    BTH_HOLD_FILE_LIMIT();
    joint_writer made = {.params = params,
                         .fd = -1,
                         .file = {.fd = -1, .direct = {.fd = -1}},
                         .begin_seconds = bth_seconds(),
                         .stats = {.method = "buffered", .reason = "nothing was written"}};

    if (!receipt || !receipt_nbytes)
        return bth_fail_argument(error, "receipt or receipt_nbytes is NULL");
    *receipt = NULL;
    *receipt_nbytes = 0;
    if (writer_begin(&made, ticket, ticket_nbytes, writer, error) == 0)
        (void)writer_write(&made, slices, n_slices, error);
    return writer_end(&made, receipt, receipt_nbytes, error);
}
