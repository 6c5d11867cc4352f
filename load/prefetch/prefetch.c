/* SPDX-License-Identifier: BSD-3-Clause */
/* Public functions of prefetches, and load.prefetch. */
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "load/errors_with_names.h"
#include "load/prefetch/prefetch.h"
#include "load/storage_state.h"

/* X11: a child has no threads for its parent's prefetches. */
static bool prefetch_is_of_this_process(const berth_prefetch *prefetch)
{
    return prefetch->process == bth_process_unique_number();
}

/* ---- begin and end ---- */

int berth_prefetch_begin(berth_checkpoint *checkpoint, const berth_selection *what, uint32_t flags,
                         const berth_params *params, berth_prefetch **prefetch, berth_error *error)
{
    const uint32_t known = BERTH_PREFETCH_LOCK | BERTH_PREFETCH_SEQUENTIAL;
    struct berth_config config;

    BTH_ERROR_BEGIN(error);
    if (prefetch)
        *prefetch = NULL;
    if (!checkpoint || !prefetch)
        return bth_fail_argument(
            error, "berth_prefetch_begin needs a checkpoint and a pointer for the prefetch");
    if (flags & ~known)
        return bth_fail_argument(error, "unknown flags 0x%x", flags & ~known);
    if (bth_config_copy_for_operation(params, &config, error) < 0)
        return error->code;
    *prefetch = bth_prefetch_create_and_start(checkpoint, what, flags, &config, error);
    return error->code < 0 ? bth_error_prefix(error, checkpoint->source.reader.name) : 0;
}

void berth_prefetch_free(berth_prefetch *prefetch)
{
    BTH_HOLD_CANCEL(true);
    if (prefetch && prefetch_is_of_this_process(prefetch))
        bth_prefetch_end(prefetch);
    else /* X11: a child does not inherit the locks of pages */
        bth_prefetch_free_memory(prefetch);
}

void berth_prefetch_cancel(berth_prefetch *prefetch)
{
    BTH_HOLD_CANCEL(true);
    if (prefetch && prefetch_is_of_this_process(prefetch))
        bth_prefetch_cancel(prefetch);
}

/* ---- the consumer's progress ---- */

/* Under the lock: the consumer has used all bytes before `end` in the file, or waits for them.
 * Returns the position after the page that holds the last of them. */
static uint64_t prefetch_consume_to_offset(berth_prefetch *prefetch, uint64_t end)
{
    uint64_t page_nbytes = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t more = (page_nbytes - end % page_nbytes) % page_nbytes;
    uint64_t position =
        bth_prefetch_position(&prefetch->plan, more > UINT64_MAX - end ? end : end + more);

    if (position > prefetch->consumed) {
        prefetch->consumed = position;
        (void)pthread_cond_broadcast(&prefetch->checkpoint->prefetches.changed);
    }
    return position;
}

/* Waits until the bytes before `end` in the file are loaded. */
static int prefetch_consume_to_offset_and_wait(berth_prefetch *prefetch, uint64_t end,
                                               berth_error *error)
{
    bth_prefetches *all = &prefetch->checkpoint->prefetches;
    double begin_seconds = bth_seconds();

    bth_prefetches_lock(all);
    uint64_t position = prefetch_consume_to_offset(prefetch, end);
    while (bth_prefetch_loaded_position(prefetch) < position && !prefetch->is_cancelled)
        (void)pthread_cond_wait(&all->changed, &all->lock.mutex);
    prefetch->stats.wait_seconds += bth_seconds() - begin_seconds;
    if (bth_prefetch_loaded_position(prefetch) < position) {
        prefetch->is_reported = true;
        *error = prefetch->error;
        if (error->code == BERTH_OK) {
            (void)bth_fail(error, BERTH_E_CANCELLED, NULL, BERTH_NO_OFFSET, "cancelled");
            (void)bth_error_prefix(error, prefetch->checkpoint->source.reader.name);
        }
    }
    bth_lock_release(&all->lock);
    return error->code;
}

static int prefetch_check_handle(const berth_prefetch *prefetch, berth_error *error)
{
    if (!prefetch)
        return bth_fail_argument(error, "the prefetch is NULL");
    return prefetch_is_of_this_process(prefetch) ? 0 : bth_fail_forked(error, "prefetch");
}

int berth_prefetch_advance(berth_prefetch *prefetch, const berth_tensor *tensor, int64_t first,
                           int64_t n, berth_error *error)
{
    uint64_t offset, end;

    BTH_ERROR_BEGIN(error);
    if (prefetch_check_handle(prefetch, error) < 0)
        return error->code;
    if (bth_checkpoint_check_caller_tensor(prefetch->checkpoint, tensor, error) == 0) {
        int64_t numel = berth_tensor_numel(tensor);
        if (n < 0 && first >= 0 && first <= numel)
            n = numel - first;
        if (first < 0 || n < 0 || first > numel || n > numel - first)
            (void)bth_fail_argument(error,
                                    "%lld elements from element %lld on were requested, but the "
                                    "tensor has %lld",
                                    (long long)n, (long long)first, (long long)numel);
    }
    if (bth_error_in_tensor(prefetch->checkpoint, tensor, error) < 0)
        return bth_error_prefix(error, prefetch->checkpoint->source.reader.name);
    if (!bth_prefetch_tensor_extent(tensor, first, n, &offset, &end))
        return 0;
    return prefetch_consume_to_offset_and_wait(prefetch, end, error);
}

int berth_prefetch_wait(berth_prefetch *prefetch, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (prefetch_check_handle(prefetch, error) < 0)
        return error->code;
    return prefetch_consume_to_offset_and_wait(prefetch, UINT64_MAX, error);
}

int berth_prefetch_get_stats(berth_prefetch *prefetch, berth_prefetch_stats *stats,
                             berth_error *error)
{
    static const char *const methods[][2] = {
        [BTH_PREFETCH_OFF] = {"none", "none"},
        [BTH_PREFETCH_ADVISE] = {"advise", "advise, then read"},
        [BTH_PREFETCH_POPULATE] = {"populate", "populate, then read"},
        [BTH_PREFETCH_READ] = {"read", "read"},
    };

    BTH_ERROR_BEGIN(error);
    if (!stats)
        return bth_fail_argument(error, "the pointer for the statistics is NULL");
    if (prefetch_check_handle(prefetch, error) < 0)
        return error->code;
    const bth_prefetch_plan *plan = &prefetch->plan;
    bth_prefetches *all = &prefetch->checkpoint->prefetches;
    bth_prefetches_lock(all);
    uint64_t begun = prefetch->begun, done = bth_prefetch_loaded_position(prefetch);
    *stats = prefetch->stats;
    uint64_t others = stats->resident_nbytes + stats->shared_nbytes; /* counted before it is done */
    stats->loaded_nbytes = prefetch->done_nbytes > others ? prefetch->done_nbytes - others : 0;
    stats->method = methods[prefetch->kind][prefetch->has_fallen_back];
    stats->reason = prefetch->has_fallen_back ? "the system refused an advice" : prefetch->reason;
    bth_lock_release(&all->lock);
    stats->n_passes = plan->n_passes;
    stats->pass_nbytes = plan->pass_nbytes;
    stats->window_nbytes = plan->window_nbytes;
    stats->requested_nbytes = plan->nbytes;
    stats->n_threads = prefetch->n_helpers;
    if (plan->pass_nbytes == 0)
        return 0;
    stats->n_passes_begun = (begun + plan->pass_nbytes - 1) / plan->pass_nbytes;
    stats->n_passes_done = done == plan->nbytes ? plan->n_passes : done / plan->pass_nbytes;
    return 0;
}

/* ---- load.prefetch ---- */

static int prefetch_begin_own(berth_checkpoint *checkpoint, berth_error *error)
{
    checkpoint->prefetches.own =
        bth_prefetch_create_and_start(checkpoint, NULL, 0, &checkpoint->config, error);
    return error->code;
}

static void prefetch_consume_own(berth_prefetch *own, const berth_storage *storage,
                                 const berth_tensor *tensor, int64_t first, int64_t n)
{
    bth_prefetches *all = &own->checkpoint->prefetches;
    uint64_t end = bth_storage_root(storage)->offset + storage->root_offset + storage->nbytes;
    uint64_t offset;

    if (tensor ? !bth_prefetch_tensor_extent(tensor, first, n, &offset, &end)
               : bth_storage_deflated_record(storage) != NULL)
        return;
    if (!prefetch_is_of_this_process(own))
        return;
    bth_prefetches_lock(all);
    (void)prefetch_consume_to_offset(own, end);
    bth_lock_release(&all->lock);
}

const bth_prefetch_functions bth_wing_prefetch = {
    .begin = prefetch_begin_own,
    .end = berth_prefetch_free,
    .consume = prefetch_consume_own,
};
