/* SPDX-License-Identifier: BSD-3-Clause */
/* One writer of a joint save: its slices go to the file, and it gets a receipt. */
#include "save/joint/joint_writer.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/trace.h"
#include "format/checksum.h"
#include "format/values/value.h"
#include "io/file.h"
#include "io/syscalls.h"
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
    struct berth_config config;
    int folder; /* of the new file */
    int fd;     /* of that file */
    bth_output_file file;
    bth_output output;
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

/* ---- the file ---- */

#define SEAL_TEXT "Berth: a joint save, not finished\n"
#define TEXT_NBYTES (sizeof SEAL_TEXT - 1)
#define SEAL_NBYTES (TEXT_NBYTES + BTH_JOINT_IDENTITY_NBYTES)

static void seal_make(const uint8_t identity[BTH_JOINT_IDENTITY_NBYTES], uint8_t seal[SEAL_NBYTES])
{
    memcpy(seal, SEAL_TEXT, TEXT_NBYTES);
    memcpy(seal + TEXT_NBYTES, identity, BTH_JOINT_IDENTITY_NBYTES);
}

/* Other hosts see what was written when the file is closed (NFS). */
int bth_joint_file_seal(int fd, const uint8_t identity[BTH_JOINT_IDENTITY_NBYTES],
                        berth_error *error)
{
    uint8_t seal[SEAL_NBYTES];

    seal_make(identity, seal);
    if (bth_file_write(fd, seal, sizeof seal, 0, error) < 0)
        return error->code;
    bool is_synced;
    return bth_commit_sync_file(fd, BTH_DURABILITY_NONE, &is_synced, error);
}

/*
 * J5: opens only the temporary of the ticket's save. The file has its size already: whole blocks
 * before its end are never padded. Where direct writes need larger blocks than the coordinator's,
 * they could write bytes of others.
 */
static int writer_open_file(joint_writer *writer, berth_error *error)
{
    const bth_ticket *ticket = &writer->ticket;
    struct berth_config *config = &writer->config;
    uint8_t seal[SEAL_NBYTES], found[SEAL_NBYTES];
    uint64_t nbytes;

    BTH_REPEAT(writer->folder,
               bth_system.openat(AT_FDCWD, ticket->folder, O_PATH | O_DIRECTORY | O_CLOEXEC, 0));
    if (writer->folder < 0)
        return bth_fail_system(error, errno, "its folder %s cannot be opened", ticket->folder);
    BTH_REPEAT(writer->fd, bth_system.openat(writer->folder, ticket->temporary,
                                             O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0));
    int failure = errno;
    if (writer->fd < 0 && failure == ENOENT)
        return bth_fail_system(error, failure,
                               "the save of this ticket has ended: its temporary %s is gone",
                               ticket->temporary);
    if (writer->fd < 0)
        return bth_fail_system(error, failure, "its temporary %s cannot be opened",
                               ticket->temporary);
    if (bth_file_size(writer->fd, &nbytes, error) < 0)
        return error->code;
    seal_make(ticket->identity, seal);
    if (nbytes < ticket->file_nbytes ||
        bth_file_read(writer->fd, found, sizeof found, 0, error) < 0 ||
        memcmp(seal, found, sizeof seal) != 0) {
        bth_error_clear(error);
        return bth_fail_argument(error, "the ticket is of another save than the one that writes %s",
                                 ticket->temporary);
    }
    nbytes = ticket->file_nbytes & ~(uint64_t)(BTH_MAX_DIRECT_BLOCK_NBYTES - 1);
    writer->output = bth_output_file_begin(&writer->file, writer->fd, nbytes, config);
    if (writer->output.constraints.block_nbytes <= ticket->block_nbytes)
        return 0;
    bth_direct_close(&writer->file.direct);
    config->save_method = BTH_SAVE_BUFFERED;
    writer->output = bth_output_file_begin(&writer->file, writer->fd, nbytes, config);
    writer->file.reason = "direct writes here need larger blocks than the save has";
    return 0;
}

/* ---- a plan of middles ---- */

/* What one call of writer_write_middles writes. */
typedef struct middles {
    const bth_ticket *ticket;
    berth_plan *plan;     /* a record for each middle; for that of a chained part, the storage's */
    uint32_t *crc32s;     /* of each */
    bth_range *wholes;    /* the data of the storage of each */
    bth_range *ranges;    /* middles; those of chained parts are one range */
    bth_present *present; /* heads of chained parts, which the coordinator writes */
    bth_run_parts run;
    uint8_t *block; /* for one head; NULL: none was needed yet */
} middles;

static int middles_add_part(middles *made, bth_slice_part *slice, berth_error *error)
{
    bth_joint_part *part = &slice->part;
    const bth_ticket_storage *storage = &made->ticket->storages[part->storage];
    bth_plan_record content = {.data = slice->bytes, .swap_nbytes = storage->swap_nbytes};
    bth_joint_split split = bth_joint_part_split(made->ticket, part);
    size_t i = made->plan->n_records, n = (size_t)bth_min(split.middle.nbytes, BTH_ID_START_NBYTES);
    size_t head_nbytes = (size_t)split.head_nbytes;
    bth_range *range = &made->ranges[made->run.n_ranges];
    bool is_chained = bth_joint_part_is_chained(part);
    uint64_t at = storage->data_offset - storage->header_nbytes, nbytes = storage->nbytes;
    char name[32];

    if (split.middle.nbytes == 0)
        return 0;
    (void)snprintf(name, sizeof name, "data/%u", storage->record);
    if (!is_chained) {
        content.data = slice->bytes + head_nbytes;
        content.is_part = true;
        at = split.middle.offset;
        nbytes = split.middle.nbytes;
    }
    if (bth_plan_add_at(made->plan, name, at, nbytes, &content, error) < 0)
        return error->code;
    made->wholes[i] = (bth_range){storage->data_offset, storage->nbytes};
    if (is_chained && head_nbytes > 0) {
        /* The descriptor of a storage needs the CRC of all of it. */
        if (!made->block)
            made->block = bth_allocate(made->ticket->block_nbytes);
        if (!made->block)
            return bth_fail_memory(error, made->ticket->block_nbytes);
        if (bth_record_data_read(made->plan, i, made->block, head_nbytes, 0, error) < 0)
            return error->code;
        if (made->plan->compute_crc32)
            part->crc32 = bth_crc32_combine(bth_crc32(0, made->block, head_nbytes), 0,
                                            storage->nbytes - head_nbytes);
        made->present[made->run.n_present++] = (bth_present){
            .record = i, .range = {storage->data_offset, head_nbytes}, .crc32 = part->crc32};
    }
    if (part->is_chained_before)
        range[-1].nbytes = split.middle.offset + split.middle.nbytes - range[-1].offset;
    else {
        *range = split.middle;
        made->run.n_ranges++;
    }
    return bth_record_data_read(made->plan, i, part->start, n, is_chained ? head_nbytes : 0, error);
}

/* made: its plan is empty. What lies behind the last range is the coordinator's. */
static int middles_make(middles *made, bth_slice_part *parts, size_t n, berth_error *error)
{
    berth_plan *plan = made->plan;

    plan->is_parts = true;
    plan->alignment = made->ticket->alignment;
    made->ranges = bth_allocate_zeroed(bth_array_nbytes(n + 1, sizeof *made->ranges));
    made->crc32s = bth_allocate_zeroed(bth_array_nbytes(n + 1, sizeof *made->crc32s));
    made->wholes = bth_allocate(bth_array_nbytes(n + 1, sizeof *made->wholes));
    made->present = bth_allocate(bth_array_nbytes(n + 1, sizeof *made->present));
    if (!made->ranges || !made->crc32s || !made->wholes || !made->present)
        return bth_fail_memory(error, bth_array_nbytes(n + 1, sizeof *made->present));
    for (size_t i = 0; i < n; i++)
        if (middles_add_part(made, &parts[i], error) < 0)
            return error->code;
    made->run.ranges = made->ranges;
    made->run.present = made->present;
    if (plan->n_records == 0)
        return 0;
    const bth_range *last = &made->ranges[made->run.n_ranges - 1];
    if (bth_plan_close(plan, error) == 0)
        plan->nbytes = plan->tail_offset = plan->directory_offset = last->offset + last->nbytes;
    return error->code;
}

/* ---- a base ---- */

static int writer_watch(void *context)
{
    const joint_writer *writer = context;

    return writer->params && writer->params->progress ? writer_report_progress(context, 0, 0) : 0;
}

/*
 * Blocks of the base instead of middles, or of what lies in them. Then room for the rest: the
 * coordinator may have left that to writers with a base, so that what is shared takes none.
 */
static int writer_share_with_base(joint_writer *writer, middles *made, bth_base *base,
                                  berth_error *error)
{
    const char *path = bth_base_choose(writer->params, &writer->config);
    const bth_base_work work = {.plan = made->plan,
                                .wholes = made->wholes,
                                .own = made->run,
                                .to = &writer->file,
                                .folder = writer->folder};

    if (!*path)
        return 0;
    bth_base_open(base, path, made->plan, &writer->file);
    base->block_nbytes = (uint32_t)bth_max(base->block_nbytes, made->ticket->block_nbytes); /* J2 */
    if (base->fd >= 0 && bth_base_clone(base, &work, &writer->config, writer_watch, writer,
                                        &writer->stats, error) == 0)
        made->run = base->parts;
    writer->stats.base_reason = base->reason;
    return error->code;
}

/* ---- writing ---- */

/*
 * Writes the middles of n parts, with what lies between chained ones: together they are whole
 * blocks, written in place. Puts their CRCs and first bytes into the parts, whose CRCs are 0.
 * Those of a window have less memory, and report no progress.
 */
static int writer_write_middles(joint_writer *writer, bth_slice_part *parts, size_t n,
                                bool is_window, berth_error *error)
{
    const berth_params *params = writer->params;
    berth_stats *stats = &writer->stats, own = {0};
    bth_base base = BTH_NO_BASE;
    middles made = {.ticket = &writer->ticket,
                    .plan = bth_plan_new(writer->ticket.archive, &writer->config, n, error)};

    if (made.plan && middles_make(&made, parts, n, error) == 0 && made.plan->n_records > 0 &&
        (is_window || writer_share_with_base(writer, &made, &base, error) == 0)) {
        bth_run_settings settings =
            bth_run_settings_of(&writer->config, made.plan, &writer->output);
        settings.parts = made.run;
        settings.crc32s = made.crc32s;
        settings.read_back = false; /* the coordinator does */
        if (is_window)
            settings.memory_nbytes = bth_min(WINDOW_BUFFERS_NBYTES, settings.memory_nbytes);
        else if (params && params->progress) {
            settings.progress = writer_report_progress;
            settings.progress_context = writer;
        }
        bool is_written = bth_run(made.plan, &writer->output, &settings, &own, error) == 0;
        /* The CRC of each record, as the share that the middle has in the storage's. */
        for (size_t i = 0, record = 0; is_written && i < n; i++) {
            bth_joint_part *part = &parts[i].part;
            const bth_ticket_storage *storage = &made.ticket->storages[part->storage];
            bth_range middle = bth_joint_part_split(made.ticket, part).middle;
            if (middle.nbytes == 0)
                continue;
            uint32_t crc32 = made.crc32s[record++];
            uint64_t behind =
                storage->data_offset + storage->nbytes - middle.offset - middle.nbytes;
            if (bth_joint_part_is_chained(part))
                part->crc32 ^= crc32; /* it is that of the head */
            else if (behind > 0 && made.ticket->compute_crc32)
                part->crc32 = bth_crc32_combine(crc32, 0, behind);
            else
                part->crc32 = crc32;
        }
        stats->moved_nbytes += own.moved_nbytes;
        stats->n_requests += own.n_requests;
        stats->render_seconds += own.render_seconds;
        stats->crc32_seconds += own.crc32_seconds;
        stats->disk_seconds += own.disk_seconds;
        stats->memory_nbytes =
            bth_max(stats->memory_nbytes, bth_max(own.memory_nbytes, base.memory_nbytes));
        stats->method = bth_output_file_method(&writer->file, &stats->reason);
    }
    berth_plan_free(made.plan);
    bth_base_free(&base);
    bth_release(made.ranges);
    bth_release(made.crc32s);
    bth_release(made.wholes);
    bth_release(made.present);
    bth_release(made.block);
    return error->code;
}

static int writer_write_window(void *context, const bth_joint_window *window, berth_error *error)
{
    joint_writer *writer = context;
    bth_slice_parts *parts = &writer->parts;
    size_t before = parts->n;

    if (bth_joint_window_append_parts(window, parts, error) < 0 ||
        writer_write_middles(writer, parts->parts + before, parts->n - before, true, error) < 0)
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

/* exchanges: any writer wants it. The windows' parts come behind the slices'. */
static int writer_write_and_sync(joint_writer *writer, bool exchanges, berth_error *error)
{
    double begin = bth_seconds();
    berth_stats *stats = &writer->stats;
    size_t n = writer->parts.n;
    bool is_synced; /* if not, the coordinator tells */

    if (writer_open_file(writer, error) < 0)
        return error->code;
    if (exchanges) {
        const bth_rounds_settings settings = {.ticket = &writer->ticket,
                                              .named = &writer->ticket,
                                              .window_nbytes = BTH_WINDOW_NBYTES,
                                              .n_windows = 2,
                                              .large_pages = writer->config.io_large_pages,
                                              .parts = &writer->parts,
                                              .write = writer_write_window,
                                              .report = writer_report_sent,
                                              .context = writer};
        (void)bth_exchange_run_rounds(&writer->exchange, &settings, error);
    }
    if (error->code == BERTH_OK)
        (void)writer_write_middles(writer, writer->parts.parts, n, false, error);
    stats->transfer_seconds = bth_operation_trace_stage("transfer", begin);
    stats->limited_by = bth_stats_find_slowest_stage(stats);
    begin = bth_seconds();
    if (error->code == BERTH_OK)
        (void)bth_commit_sync_file(writer->fd, writer->ticket.durability, &is_synced, error);
    stats->sync_seconds = bth_operation_trace_stage("sync", begin);
    return error->code;
}

/* ---- from begin to end ---- */

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
        uint64_t end = 0;
        for (size_t i = 0; i < parts->n; i++) {
            const bth_joint_part *part = &parts->parts[i].part;
            bth_joint_split split = bth_joint_part_split(ticket, part);
            writer->stats.requested_nbytes += part->nbytes;
            /* What the progress of writer_write_middles is in the end. */
            writer->total_nbytes += split.middle.nbytes;
            if (part->is_chained_before)
                writer->total_nbytes += split.middle.offset - end;
            else if (part->is_chained_behind)
                writer->total_nbytes += split.head_nbytes;
            end = split.middle.offset + split.middle.nbytes;
        }
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
    joint_writer made = {.number = (uint32_t)writer,
                         .params = params,
                         .folder = -1,
                         .fd = -1,
                         .file = {.fd = -1, .direct = {.fd = -1}},
                         .begin_seconds = bth_seconds(),
                         .stats = {.method = "buffered", .reason = "nothing was written"}};

    if (!receipt || !receipt_nbytes)
        return bth_fail_argument(error, "receipt or receipt_nbytes is NULL");
    *receipt = NULL;
    *receipt_nbytes = 0;
    if (bth_ticket_read(ticket, ticket_nbytes, &made.ticket, error) == 0 &&
        bth_ticket_is_of_object(&made.ticket))
        (void)bth_fail_argument(error, "the ticket is of an object: berth_joint_send writes it");
    else if (error->code == BERTH_OK && writer >= made.ticket.n_writers)
        (void)bth_fail_argument(error, "there is no writer %zu, the save has %u writers", writer,
                                made.ticket.n_writers);
    /* What decides bytes, and what "done" means, is the ticket's. */
    if (error->code == BERTH_OK &&
        bth_config_copy_for_operation(params, &made.config, error) == 0) {
        bth_trace_enter(&made.traced, made.config.trace, "joint write", made.ticket.path,
                        made.begin_seconds);
        made.config.save_compute_crc32 = made.ticket.compute_crc32;
        made.config.save_durability = made.ticket.durability;
    }
    /* Also after an error, so that the others get to know of it. */
    const uint32_t n = made.ticket.n_writers;
    if (params && params->exchange && writer < n && n <= BERTH_MAX_WRITERS) {
        made.exchange = (bth_exchange){.function = params->exchange,
                                       .context = params->exchange_context,
                                       .n = n,
                                       .number = made.number};
        (void)bth_exchange_allocate(&made.exchange, error);
    }
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
    bth_direct_close(&made.file.direct);
    bth_file_close(made.fd);
    bth_file_close(made.folder);
    bth_release(made.exchange.to);
    bth_slice_parts_free_all(&made.parts);
    bth_release(made.kept);
    bth_release(made.receipt);
    bth_ticket_free_all(&made.ticket);
    return error->code;
}
