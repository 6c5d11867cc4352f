/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/joint/joint_middles.h"

#include <stdio.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/values/value.h"
#include "io/file.h"
#include "save/joint/joint_file.h"

/* ---- the file ---- */

/*
 * The file has its size already: whole blocks before its end are never padded. Where direct writes
 * need larger blocks than the coordinator's, they could write bytes of others.
 */
int bth_middles_file_open(bth_middles_file *file, berth_error *error)
{
    const bth_ticket *ticket = file->ticket;
    uint64_t nbytes = ticket->file_nbytes & ~(uint64_t)(BTH_MAX_DIRECT_BLOCK_NBYTES - 1);

    if (bth_joint_file_open(ticket, &file->fd, error) < 0)
        return error->code;
    file->output = bth_output_file_begin(&file->file, file->fd, nbytes, &file->config, false);
    if (file->output.constraints.block_nbytes <= ticket->block_nbytes)
        return 0;
    bth_direct_close(&file->file.direct);
    file->config.save_method = BTH_SAVE_BUFFERED;
    file->output = bth_output_file_begin(&file->file, file->fd, nbytes, &file->config, false);
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
    berth_plan *plan;  /* a record for each middle */
    bth_range *ranges; /* the middles */
    uint32_t *crc32s;  /* of each */
} middles;

static int middles_add(middles *made, bth_slice_part *part, berth_error *error)
{
    const bth_ticket_storage *storage = &made->ticket->storages[part->part.storage];
    bth_joint_split split = bth_joint_part_split(made->ticket, &part->part);
    const bth_plan_record content = {.data = part->bytes + split.head_nbytes,
                                     .swap_nbytes = (uint8_t)storage->swap_nbytes};
    size_t i = made->plan->n_records;
    char name[32];

    if (split.middle.nbytes == 0)
        return 0;
    (void)snprintf(name, sizeof name, "data/%u", storage->record);
    if (bth_plan_add_part(made->plan, name, split.middle, &content, error) < 0)
        return error->code;
    made->ranges[i] = split.middle;
    return bth_record_data_read(made->plan, i, part->part.start, sizeof part->part.start, 0, error);
}

static int middles_make(middles *made, const struct berth_config *config, bth_slice_part *parts,
                        size_t n, berth_error *error)
{
    made->plan = bth_plan_new("joint", config, n, error);
    if (!made->plan)
        return error->code;
    made->plan->is_parts = true;
    made->ranges = bth_allocate(bth_array_nbytes(n + 1, sizeof *made->ranges));
    made->crc32s = bth_allocate_zeroed(bth_array_nbytes(n + 1, sizeof *made->crc32s));
    if (!made->ranges || !made->crc32s)
        return bth_fail_memory(error, bth_array_nbytes(n + 1, sizeof *made->ranges));
    for (size_t i = 0; i < n; i++)
        if (middles_add(made, &parts[i], error) < 0)
            return error->code;
    return made->plan->n_records > 0 ? bth_plan_close(made->plan, error) : 0;
}

static void middles_free_all(middles *made)
{
    berth_plan_free(made->plan);
    bth_release(made->ranges);
    bth_release(made->crc32s);
}

/* ---- writing ---- */

static void stats_add(berth_stats *sum, const berth_stats *stats)
{
    sum->moved_nbytes += stats->moved_nbytes;
    sum->n_requests += stats->n_requests;
    sum->render_seconds += stats->render_seconds;
    sum->crc32_seconds += stats->crc32_seconds;
    sum->disk_seconds += stats->disk_seconds;
    sum->memory_nbytes = bth_max(sum->memory_nbytes, stats->memory_nbytes);
}

static int middles_run(const middles *made, bth_middles_file *file,
                       const bth_middles_limits *limits, berth_stats *stats, berth_error *error)
{
    bth_run_settings settings = bth_run_settings_of(&file->config, made->plan, &file->output);
    berth_stats own = {0};

    settings.parts.ranges = made->ranges;
    settings.parts.n_ranges = made->plan->n_records;
    settings.crc32s = made->crc32s;
    settings.read_back = false; /* the coordinator does */
    settings.progress = limits->progress;
    settings.progress_context = limits->progress_context;
    if (limits->memory_nbytes > 0)
        settings.memory_nbytes = bth_min(limits->memory_nbytes, settings.memory_nbytes);
    (void)bth_run(made->plan, &file->output, &settings, &own, error);
    stats_add(stats, &own);
    stats->method = bth_output_file_method(&file->file, &stats->reason);
    return error->code;
}

int bth_middles_write(bth_middles_file *file, bth_slice_part *parts, size_t n,
                      const bth_middles_limits *limits, berth_stats *stats, berth_error *error)
{
    middles made = {.ticket = file->ticket};
    size_t middle = 0;

    if (middles_make(&made, &file->config, parts, n, error) == 0 && made.plan->n_records > 0)
        (void)middles_run(&made, file, limits, stats, error);
    for (size_t i = 0; error->code == BERTH_OK && i < n; i++)
        if (bth_joint_part_split(file->ticket, &parts[i].part).middle.nbytes > 0)
            parts[i].part.crc32 = made.crc32s[middle++];
    middles_free_all(&made);
    return error->code;
}

uint64_t bth_middles_count_nbytes(const bth_ticket *ticket, const bth_slice_part *parts, size_t n)
{
    uint64_t nbytes = 0;

    for (size_t i = 0; i < n; i++)
        nbytes += bth_joint_part_split(ticket, &parts[i].part).middle.nbytes;
    return nbytes;
}
