/* SPDX-License-Identifier: BSD-3-Clause */
/* Prefetches: who goes along with them, waits for them and asks what they did. */
#include <unistd.h>

#include "config/error.h"
#include "format/values/tensor.h"
#include "io/clock.h"
#include "load/checkpoint.h"

/* ---- from any thread ---- */

/* Where the page ends that holds the last byte before `end`. */
static uint64_t position_of(const berth_prefetch *prefetch, uint64_t end)
{
    uint64_t page_nbytes = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t more = (page_nbytes - end % page_nbytes) % page_nbytes;

    return bth_prefetch_position(&prefetch->plan, more > UINT64_MAX - end ? end : end + more);
}

/* Under the lock: the consumer's are the first `position` bytes of the plan, or more. */
static void let_go_on(berth_prefetch *prefetch, uint64_t position)
{
    if (position <= prefetch->consumed)
        return;
    prefetch->consumed = position;
    (void)pthread_cond_broadcast(&prefetch->checkpoint->prefetches.changed);
}

/* Under the lock: waits for those bytes. */
static int wait_for(berth_prefetch *prefetch, uint64_t position, berth_error *error)
{
    bth_prefetches *all = &prefetch->checkpoint->prefetches;
    double begin_seconds = bth_seconds();

    while (bth_prefetch_frontier(prefetch) < position && !prefetch->is_cancelled)
        (void)pthread_cond_wait(&all->changed, &all->lock.mutex);
    prefetch->stats.wait_seconds += bth_seconds() - begin_seconds;
    if (bth_prefetch_frontier(prefetch) >= position)
        return 0;
    prefetch->is_told = true;
    if (prefetch->error.code == BERTH_OK) {
        (void)bth_fail(error, BERTH_E_CANCELLED, NULL, BERTH_NO_OFFSET, "cancelled");
        return bth_error_prefix(error, prefetch->checkpoint->source.reader.name);
    }
    *error = prefetch->error;
    return error->code;
}

/* The consumer is at bytes of the file that end there. */
static int advance_to(berth_prefetch *prefetch, uint64_t end, berth_error *error)
{
    bth_prefetches *all = &prefetch->checkpoint->prefetches;
    uint64_t position = position_of(prefetch, end);

    bth_prefetches_lock(all);
    let_go_on(prefetch, position);
    (void)wait_for(prefetch, position, error);
    bth_lock_give(&all->lock);
    return error->code;
}

bool bth_prefetch_is_ours(const berth_prefetch *prefetch)
{
    return prefetch->process == bth_process();
}

static int check(const berth_prefetch *prefetch, berth_error *error)
{
    if (!prefetch)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "the prefetch is NULL");
    return bth_prefetch_is_ours(prefetch) ? 0 : bth_fail_forked(error, "prefetch");
}

static int check_part(const berth_tensor *tensor, int64_t first, int64_t n, berth_error *error)
{
    int64_t numel = berth_tensor_numel(tensor);

    if (first >= 0 && n >= 0 && first <= numel && n <= numel - first)
        return 0;
    return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                    "%lld elements from %lld on are meant, the tensor has %lld", (long long)n,
                    (long long)first, (long long)numel);
}

int berth_prefetch_advance(berth_prefetch *prefetch, const berth_tensor *tensor, berth_error *error)
{
    uint64_t offset, end;

    BTH_ERROR_BEGIN(error);
    if (check(prefetch, error) < 0)
        return error->code;
    if (bth_checkpoint_check_tensor(prefetch->checkpoint, tensor, error) < 0)
        return bth_error_prefix(error, prefetch->checkpoint->source.reader.name);
    return bth_prefetch_place(tensor, &offset, &end) ? advance_to(prefetch, end, error) : 0;
}

int berth_prefetch_advance_part(berth_prefetch *prefetch, const berth_tensor *tensor, int64_t first,
                                int64_t n, berth_error *error)
{
    uint64_t offset, end;

    BTH_ERROR_BEGIN(error);
    if (check(prefetch, error) < 0)
        return error->code;
    if (bth_checkpoint_check_tensor(prefetch->checkpoint, tensor, error) < 0 ||
        check_part(tensor, first, n, error) < 0)
        return bth_error_prefix(error, prefetch->checkpoint->source.reader.name);
    return bth_prefetch_place_part(tensor, first, n, &offset, &end)
               ? advance_to(prefetch, end, error)
               : 0;
}

int berth_prefetch_wait(berth_prefetch *prefetch, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    return check(prefetch, error) < 0 ? error->code : advance_to(prefetch, UINT64_MAX, error);
}

void berth_prefetch_cancel(berth_prefetch *prefetch)
{
    BTH_HOLD_CANCEL(true);
    if (!prefetch || !bth_prefetch_is_ours(prefetch))
        return;
    bth_prefetches *all = &prefetch->checkpoint->prefetches;
    bth_prefetches_lock(all);
    prefetch->is_cancelled = true;
    (void)pthread_cond_broadcast(&all->changed);
    bth_lock_give(&all->lock);
}

/* ---- what it has done ---- */

static const char *method_of(const berth_prefetch *prefetch)
{
    static const char *const names[][2] = {
        [BTH_PREFETCH_OFF] = {"none", "none"},
        [BTH_PREFETCH_ADVISE] = {"advise", "advise, then read"},
        [BTH_PREFETCH_POPULATE] = {"populate", "populate, then read"},
        [BTH_PREFETCH_READ] = {"read", "read"},
    };

    return names[prefetch->kind][prefetch->has_fallen_back];
}

int berth_prefetch_get_stats(berth_prefetch *prefetch, berth_prefetch_stats *stats,
                             berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (!prefetch || !stats)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                        "there is no prefetch, or no place for its statistics");
    if (check(prefetch, error) < 0)
        return error->code;
    const bth_prefetch_plan *all = &prefetch->plan;
    bth_prefetches *siblings = &prefetch->checkpoint->prefetches;
    bth_prefetches_lock(siblings);
    uint64_t begun = prefetch->begun, done = bth_prefetch_frontier(prefetch);
    *stats = prefetch->stats;
    uint64_t others = stats->resident_nbytes + stats->shared_nbytes; /* counted before it is done */
    stats->brought_nbytes = prefetch->done_nbytes > others ? prefetch->done_nbytes - others : 0;
    stats->method = method_of(prefetch);
    stats->reason = prefetch->has_fallen_back ? "the system refused an advice" : prefetch->reason;
    bth_lock_give(&siblings->lock);
    stats->n_passes = all->n_passes;
    stats->pass_nbytes = all->pass_nbytes;
    stats->window_nbytes = all->window_nbytes;
    stats->asked_nbytes = all->nbytes;
    stats->n_threads = prefetch->n_helpers;
    if (all->pass_nbytes == 0)
        return 0;
    stats->n_passes_begun = (begun + all->pass_nbytes - 1) / all->pass_nbytes;
    stats->n_passes_done = done == all->nbytes ? all->n_passes : done / all->pass_nbytes;
    return 0;
}

/* ---- load.prefetch ---- */

void bth_prefetches_begin(bth_prefetches *prefetches)
{
    bth_lock_begin(&prefetches->lock);
    (void)pthread_cond_init(&prefetches->changed, NULL);
    prefetches->is_ready = true;
}

void bth_prefetches_end(bth_prefetches *prefetches)
{
    if (!prefetches->is_ready)
        return;
    berth_prefetch_free(prefetches->own);
    if (bth_lock_is_ours(&prefetches->lock)) {
        (void)pthread_cond_destroy(&prefetches->changed);
        bth_lock_end(&prefetches->lock);
    }
    prefetches->is_ready = false;
}

void bth_prefetch_pass_by(berth_checkpoint *checkpoint, uint64_t end)
{
    berth_prefetch *own = checkpoint->prefetches.own;

    if (!own || !bth_prefetch_is_ours(own))
        return;
    bth_prefetches_lock(&checkpoint->prefetches);
    let_go_on(own, position_of(own, end));
    bth_lock_give(&checkpoint->prefetches.lock);
}
