/* SPDX-License-Identifier: BSD-3-Clause */
/* The file of a joint save: its seal, and what a writer writes to it. */
#include "save/joint/joint_writer.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/checksum.h"
#include "format/values/value.h"
#include "io/file.h"
#include "io/syscalls.h"
#include "save/commit.h"

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
int bth_middles_file_open(bth_middles_file *file, berth_error *error)
{
    const bth_ticket *ticket = file->ticket;
    uint8_t seal[SEAL_NBYTES], found[SEAL_NBYTES];
    uint64_t nbytes;
    int folder;

    BTH_REPEAT(folder,
               bth_system.openat(AT_FDCWD, ticket->folder, O_PATH | O_DIRECTORY | O_CLOEXEC, 0));
    if (folder < 0)
        return bth_fail_system(error, errno, "its folder %s cannot be opened", ticket->folder);
    BTH_REPEAT(file->fd, bth_system.openat(folder, ticket->temporary,
                                           O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0));
    int failure = errno;
    bth_file_close(folder);
    if (file->fd < 0 && failure == ENOENT)
        return bth_fail_system(error, failure,
                               "the save of this ticket has ended: its temporary %s is gone",
                               ticket->temporary);
    if (file->fd < 0)
        return bth_fail_system(error, failure, "its temporary %s cannot be opened",
                               ticket->temporary);
    if (bth_file_size(file->fd, &nbytes, error) < 0)
        return error->code;
    seal_make(ticket->identity, seal);
    if (nbytes < ticket->file_nbytes ||
        bth_file_read(file->fd, found, sizeof found, 0, error) < 0 ||
        memcmp(seal, found, sizeof seal) != 0) {
        bth_error_clear(error);
        return bth_fail_argument(error, "the ticket is of another save than the one that writes %s",
                                 ticket->temporary);
    }
    nbytes = ticket->file_nbytes & ~(uint64_t)(BTH_MAX_DIRECT_BLOCK_NBYTES - 1);
    file->output = bth_output_file_begin(&file->file, file->fd, nbytes, &file->config);
    if (file->output.constraints.block_nbytes <= ticket->block_nbytes)
        return 0;
    bth_direct_close(&file->file.direct);
    file->config.save_method = BTH_SAVE_BUFFERED;
    file->output = bth_output_file_begin(&file->file, file->fd, nbytes, &file->config);
    file->file.reason = "direct writes here need larger blocks than the save has";
    return 0;
}

void bth_middles_file_close(bth_middles_file *file)
{
    bth_direct_close(&file->file.direct);
    bth_file_close(file->fd);
}

/* ---- a plan of middles ---- */

/* One call of bth_middles_write. */
typedef struct middles {
    const bth_ticket *ticket;
    berth_plan *plan;     /* a record for each middle; for that of a chained part, the storage's */
    uint32_t *crc32s;     /* of each */
    bth_range *ranges;    /* middles; those of chained parts are one range */
    bth_present *present; /* heads of chained parts, which the coordinator writes */
    bth_run_parts run;
    uint8_t *block; /* for one head; NULL: none was needed yet */
} middles;

static int middles_add(middles *made, bth_slice_part *slice, berth_error *error)
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
    made->present = bth_allocate(bth_array_nbytes(n + 1, sizeof *made->present));
    if (!made->ranges || !made->crc32s || !made->present)
        return bth_fail_memory(error, bth_array_nbytes(n + 1, sizeof *made->present));
    for (size_t i = 0; i < n; i++)
        if (middles_add(made, &parts[i], error) < 0)
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

/* ---- writing ---- */

/* The CRC of a record, as the share that the middle has in the storage's. */
static void middles_put_crc32s(const middles *made, bth_slice_part *parts, size_t n)
{
    const bth_ticket *ticket = made->ticket;
    size_t record = 0;

    for (size_t i = 0; i < n; i++) {
        bth_joint_part *part = &parts[i].part;
        const bth_ticket_storage *storage = &ticket->storages[part->storage];
        bth_range middle = bth_joint_part_split(ticket, part).middle;
        if (middle.nbytes == 0)
            continue;
        uint32_t crc32 = made->crc32s[record++];
        uint64_t behind = storage->data_offset + storage->nbytes - middle.offset - middle.nbytes;
        if (bth_joint_part_is_chained(part))
            part->crc32 ^= crc32; /* it is that of the head */
        else if (behind > 0 && ticket->compute_crc32)
            part->crc32 = bth_crc32_combine(crc32, 0, behind);
        else
            part->crc32 = crc32;
    }
}

int bth_middles_write(bth_middles_file *file, bth_slice_part *parts, size_t n,
                      const bth_middles_limits *limits, berth_stats *stats, berth_error *error)
{
    middles made = {.ticket = file->ticket,
                    .plan = bth_plan_new(file->ticket->archive, &file->config, n, error)};

    if (made.plan && middles_make(&made, parts, n, error) == 0 && made.plan->n_records > 0) {
        bth_run_settings settings = bth_run_settings_of(&file->config, made.plan, &file->output);
        berth_stats own = {0};
        settings.parts = made.run;
        settings.crc32s = made.crc32s;
        settings.read_back = false; /* the coordinator does */
        settings.progress = limits->progress;
        settings.progress_context = limits->progress_context;
        if (limits->memory_nbytes > 0)
            settings.memory_nbytes = bth_min(limits->memory_nbytes, settings.memory_nbytes);
        if (bth_run(made.plan, &file->output, &settings, &own, error) == 0)
            middles_put_crc32s(&made, parts, n);
        stats->moved_nbytes += own.moved_nbytes;
        stats->n_requests += own.n_requests;
        stats->render_seconds += own.render_seconds;
        stats->crc32_seconds += own.crc32_seconds;
        stats->disk_seconds += own.disk_seconds;
        stats->memory_nbytes = bth_max(stats->memory_nbytes, own.memory_nbytes);
        stats->method = bth_output_file_method(&file->file, &stats->reason);
    }
    berth_plan_free(made.plan);
    bth_release(made.ranges);
    bth_release(made.crc32s);
    bth_release(made.present);
    bth_release(made.block);
    return error->code;
}

uint64_t bth_middles_count_nbytes(const bth_ticket *ticket, const bth_slice_part *parts, size_t n)
{
    uint64_t nbytes = 0, end = 0;

    for (size_t i = 0; i < n; i++) {
        const bth_joint_part *part = &parts[i].part;
        bth_joint_split split = bth_joint_part_split(ticket, part);
        nbytes += split.middle.nbytes;
        if (part->is_chained_before)
            nbytes += split.middle.offset - end;
        else if (part->is_chained_behind)
            nbytes += split.head_nbytes;
        end = split.middle.offset + split.middle.nbytes;
    }
    return nbytes;
}
