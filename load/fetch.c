/* SPDX-License-Identifier: BSD-3-Clause */
/* The public side of bringing many storages at once. */
#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "io/clock.h"
#include "load/selection.h"
#include "load/storages_load.h"

/* The method that all of them have, or "mixed". */
static void tell_methods(berth_checkpoint *checkpoint, const berth_storage *const *roots, size_t n,
                         berth_stats *stats)
{
    stats->method = "none";
    stats->reason = stats->asked_nbytes > 0 ? "nothing was brought" : "nothing was asked for";
    bth_checkpoint_lock(checkpoint);
    for (size_t i = 0; i < n; i++) {
        const bth_stored *stored = &checkpoint->storages.stored[roots[i]->index];
        if (roots[i]->nbytes == 0 || !stored->method)
            continue;
        if (strcmp(stats->method, "none") == 0) {
            stats->method = stored->method;
            stats->reason = stored->reason;
        } else if (strcmp(stats->method, stored->method) != 0) {
            stats->method = "mixed";
            stats->reason = "the statistics of each storage tell";
            break;
        }
    }
    bth_checkpoint_unlock(checkpoint);
}

static const char *limited_by(const bth_load_request *request)
{
    double device = request->device_seconds, render = request->render_seconds,
           disk = request->disk_seconds;

    if (request->moved_nbytes == 0)
        return NULL;
    if (device > render && device > disk)
        return "device";
    return render > disk ? "processor" : "disk";
}

static void fill_stats(berth_checkpoint *checkpoint, const bth_load_request *request,
                       const berth_storage *const *roots, size_t n, double begin_seconds)
{
    berth_stats *stats = request->params ? request->params->stats : NULL;

    if (!stats)
        return;
    *stats = (berth_stats){.total_seconds = bth_seconds() - begin_seconds,
                           .transfer_seconds = request->transfer_seconds,
                           .device_seconds = request->device_seconds,
                           .render_seconds = request->render_seconds,
                           .crc32_seconds = request->crc32_seconds,
                           .disk_seconds = request->disk_seconds,
                           .device_nbytes = request->device_nbytes,
                           .limited_by = limited_by(request),
                           .moved_nbytes = request->moved_nbytes,
                           .n_requests = request->n_requests,
                           .n_records = n,
                           .n_storages = n,
                           .memory_nbytes = request->memory_nbytes,
                           .calculated_offsets = checkpoint->contents.calculated_offsets};
    stats->plan_seconds = stats->total_seconds - stats->transfer_seconds;
    for (size_t i = 0; i < n; i++)
        stats->asked_nbytes += roots[i]->nbytes;
    tell_methods(checkpoint, roots, n, stats);
}

static int fetch(berth_checkpoint *checkpoint, const berth_selection *selection,
                 const berth_params *call, berth_error *error)
{
    double begin_seconds = bth_seconds();
    struct berth_config config = checkpoint->config;
    const berth_storage **roots = NULL;
    size_t n = 0;

    if (call && BTH_CHECK_RESERVED(berth_params, call, error) < 0)
        return error->code;
    if (call && call->config && bth_config_resolve(call, &config, error) < 0)
        return error->code;
    bth_load_request request = {.config = &config,
                                .params = call,
                                .at_once = true,
                                .to_devices = true,
                                .with_crc32 = config.load_check >= BTH_CHECK_DATA};
    if (bth_selection_storages(checkpoint, selection, &roots, &n, error) == 0)
        (void)bth_storages_load(checkpoint, &request, roots, n, error);
    fill_stats(checkpoint, &request, roots, n, begin_seconds);
    bth_release(roots);
    return error->code;
}

int berth_load(berth_checkpoint *checkpoint, const berth_selection *selection,
               const berth_params *call, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    bth_stats_begin(call);
    if (!checkpoint)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "there is no checkpoint");
    if (fetch(checkpoint, selection, call, error) < 0)
        (void)bth_error_prefix(error, checkpoint->source.reader.name);
    return error->code;
}
