/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The threads of a prefetch. They claim windows in the file's order, up to the limit that the
 * consumer's progress sets, and load each by the prefetch's method.
 */
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/trace.h"
#include "io/file.h"
#include "io/page_cache.h"
#include "io/syscalls.h"
#include "io/thread_pool.h"
#include "load/checkpoint.h"
#include "load/prefetch/prefetch.h"

#define SCRATCH_NBYTES ((size_t)64 << 10)

void bth_prefetches_lock(bth_prefetches *prefetches)
{
    if (bth_lock_acquire(&prefetches->lock) == BTH_LOCK_OURS)
        return;
    (void)pthread_cond_init(&prefetches->changed, NULL);
    prefetches->first = NULL;
}

/* ---- positions ---- */

/* When pages of a window are touched, the system may read beyond it: the rest of one readahead, and
 * the next. In short passes it reads only the window. */
static uint64_t prefetch_nbytes_beyond_window(const berth_prefetch *prefetch)
{
    bool is_exact = prefetch->kind == BTH_PREFETCH_ADVISE || prefetch->is_short;

    return is_exact ? 0 : 2 * prefetch->readahead_nbytes;
}

/* ---- one window ---- */

/* 0 if the system does not report it: loading cached bytes again costs little. */
static uint64_t prefetch_window_count_cached(const berth_prefetch *prefetch,
                                             const bth_prefetch_range *window)
{
    uint64_t nbytes = 0;

    (void)bth_page_cache_nbytes(prefetch->checkpoint->source.reader.fd, prefetch->map,
                                window->offset, window->nbytes, &nbytes);
    return nbytes;
}

/* Loads the window by one advice, or reads it if the system refuses the advice. Skips one that is
 * already in the page cache; but populate still maps its pages. */
static int prefetch_window_load_by_method(bth_prefetch_helper *helper, berth_error *error)
{
    berth_prefetch *prefetch = helper->prefetch;
    const bth_reader *reader = &prefetch->checkpoint->source.reader;
    const bth_prefetch_range *window = &helper->window;
    bool is_populate = prefetch->kind == BTH_PREFETCH_POPULATE, is_done, is_there = true;
    uint8_t scratch[SCRATCH_NBYTES];

    if (bth_access_check_size(reader, window->offset + window->nbytes, window->offset, error) < 0)
        return error->code;
    if (!is_populate || prefetch->requests_readahead) {
        is_there = prefetch_window_count_cached(prefetch, window) == window->nbytes;
        if (is_there && !is_populate)
            return 0;
    }
    /* Starts reading the whole window, before its pages are touched. */
    for (uint64_t at = 0, step = prefetch->readahead_nbytes;
         prefetch->requests_readahead && !is_there && at < window->nbytes; at += step) {
        helper->n_requests++;
        if (bth_system.posix_fadvise(reader->fd, (off_t)(window->offset + at),
                                     (off_t)bth_min(window->nbytes - at, step),
                                     POSIX_FADV_WILLNEED) != 0)
            break; /* without it, loading is only slower */
    }
    if (prefetch->kind != BTH_PREFETCH_READ) {
        helper->n_requests++;
        if (bth_access_advise_mapped_bytes(
                reader, (const uint8_t *)prefetch->map->address + window->offset, window->nbytes,
                window->offset, is_populate ? MADV_POPULATE_READ : MADV_WILLNEED, &is_done,
                error) < 0 ||
            is_done)
            return error->code;
        atomic_store(&prefetch->has_fallen_back, true);
    }
    /* Reads into a buffer, which fills the page cache. */
    for (uint64_t at = 0; at < window->nbytes && error->code == 0; at += SCRATCH_NBYTES) {
        size_t nbytes = (size_t)bth_min(window->nbytes - at, SCRATCH_NBYTES);
        helper->n_requests++;
        (void)bth_file_read(reader->fd, scratch, nbytes, window->offset + at, error);
    }
    return error->code;
}

/* ---- claims, under the lock ---- */

/* Finds a window to claim, before the limit that the consumer sets. False also while the limit
 * makes the window short, unless the consumer waits for it: short windows make small requests. */
static bool prefetch_find_window_to_claim(const berth_prefetch *prefetch,
                                          bth_prefetch_range *window)
{
    const bth_prefetch_plan *plan = &prefetch->plan;
    uint64_t left = plan->nbytes - prefetch->consumed, ahead = left;

    if (plan->pass_nbytes < left)
        ahead = plan->pass_nbytes - prefetch_nbytes_beyond_window(prefetch);
    uint64_t limit = prefetch->consumed + ahead;
    *window = bth_prefetch_find_next_window(plan, prefetch->begun, limit);
    return window->nbytes == plan->window_nbytes || prefetch->begun + window->nbytes < limit ||
           limit == plan->nbytes || prefetch->begun < prefetch->consumed;
}

/* The part of these bytes that another prefetch of this checkpoint loads now; 0 bytes: none. */
static bth_prefetch_range prefetch_window_find_shared_range(const berth_prefetch *prefetch,
                                                            const bth_prefetch_range *window)
{
    const berth_prefetch *other = prefetch->checkpoint->prefetches.first;

    for (; other; other = other->next)
        for (unsigned i = 0; other != prefetch && i < other->n_helpers; i++) {
            const bth_prefetch_range *loaded = &other->helpers[i].window;
            uint64_t begin = bth_max(loaded->offset, window->offset);
            uint64_t end =
                bth_min(loaded->offset + loaded->nbytes, window->offset + window->nbytes);
            if (other->helpers[i].is_loading && end > begin)
                return (bth_prefetch_range){.offset = begin, .nbytes = end - begin};
        }
    return (bth_prefetch_range){0};
}

/* Counts cached bytes before this prefetch can have loaded them: of the window, and beyond it as
 * far as the system may read ahead. If other prefetches load bytes at the same time, counts only
 * the window, after they have loaded their part of it. */
static void prefetch_wait_and_count_cached(berth_prefetch *prefetch,
                                           const bth_prefetch_range *window)
{
    bth_prefetches *all = &prefetch->checkpoint->prefetches;
    bool is_alone = all->first == prefetch && !prefetch->next;
    uint64_t beyond = is_alone ? 2 * prefetch->readahead_nbytes : 0;
    uint64_t end = bth_min(prefetch->begun + beyond, prefetch->plan.nbytes);
    uint64_t at = prefetch->counted, resident_nbytes = 0, shared_nbytes = 0;

    prefetch->counted = bth_max(at, end);
    for (;;) { /* of what others load, counts what was still missing */
        bth_prefetch_range shared = prefetch_window_find_shared_range(prefetch, window);
        if (shared.nbytes == 0 || prefetch->is_stopped)
            break;
        shared_nbytes += shared.nbytes - prefetch_window_count_cached(prefetch, &shared);
        (void)pthread_cond_wait(&all->changed, &all->lock.mutex);
    }
    shared_nbytes = bth_min(shared_nbytes, window->nbytes);
    while (at < end) {
        bth_prefetch_range next = bth_prefetch_find_next_window(&prefetch->plan, at, end);
        resident_nbytes += prefetch_window_count_cached(prefetch, &next);
        at += next.nbytes;
    }
    prefetch->stats.shared_nbytes += shared_nbytes;
    if (resident_nbytes > shared_nbytes)
        prefetch->stats.resident_nbytes += resident_nbytes - shared_nbytes;
}

/* Waits until the next window may be claimed and no other prefetch loads it. False: none left. */
static bool prefetch_helper_claim_window(bth_prefetch_helper *helper)
{
    berth_prefetch *prefetch = helper->prefetch;
    bth_prefetches *all = &prefetch->checkpoint->prefetches;
    bth_prefetch_range window;

    while (!prefetch->is_stopped && prefetch->begun < prefetch->plan.nbytes &&
           !prefetch_find_window_to_claim(prefetch, &window))
        (void)pthread_cond_wait(&all->changed, &all->lock.mutex);
    if (prefetch->is_stopped || prefetch->begun >= prefetch->plan.nbytes)
        return false;
    helper->window = window;
    prefetch->begun += window.nbytes;
    uint64_t *peak = &prefetch->stats.peak_ahead_nbytes;
    uint64_t end =
        bth_min(prefetch->begun + prefetch_nbytes_beyond_window(prefetch), prefetch->plan.nbytes);
    if (end > prefetch->consumed)
        *peak = bth_max(*peak, end - prefetch->consumed);
    prefetch_wait_and_count_cached(prefetch, &window);
    helper->is_loading = !prefetch->is_stopped;
    return helper->is_loading;
}

static void *prefetch_helper_run(void *argument)
{
    bth_prefetch_helper *helper = argument;
    berth_prefetch *prefetch = helper->prefetch;
    bth_prefetches *all = &prefetch->checkpoint->prefetches;
    bth_trace_scope traced = {0};
    berth_error error;

    bth_thread_disable_cancel();
    bth_trace_enter(&traced, prefetch->checkpoint->config.trace, "prefetch",
                    prefetch->checkpoint->source.reader.name, bth_seconds());
    bth_error_clear(&error);
    bth_prefetches_lock(all);
    while (prefetch_helper_claim_window(helper)) {
        bth_lock_release(&all->lock);
        double begin_seconds = bth_trace_seconds();
        (void)prefetch_window_load_by_method(helper, &error);
        BTH_TRACE(.category = "prefetch", .name = "load window", .begin_seconds = begin_seconds,
                  .end_seconds = bth_seconds(), .offset = helper->window.offset,
                  .nbytes = helper->window.nbytes, .n_requests = helper->n_requests);
        bth_prefetches_lock(all);
        prefetch->stats.n_requests += helper->n_requests;
        helper->n_requests = 0;
        helper->is_loading = false;
        if (error.code == BERTH_OK) {
            prefetch->done_nbytes += helper->window.nbytes;
            helper->window.nbytes = 0;
        } else { /* the frontier stays before this window */
            prefetch->is_stopped = true;
            if (prefetch->error.code == BERTH_OK) {
                prefetch->error = error;
                (void)bth_error_prefix(&prefetch->error, prefetch->checkpoint->source.reader.name);
            }
        }
        (void)pthread_cond_broadcast(&all->changed);
    }
    (void)pthread_cond_broadcast(&all->changed);
    bth_lock_release(&all->lock);
    bth_trace_leave(&traced, bth_seconds(), NULL, &error);
    return NULL;
}

/* ---- begin and end ---- */

int bth_prefetch_start(berth_prefetch *prefetch, unsigned n_helpers, berth_error *error)
{
    bth_prefetches *all = &prefetch->checkpoint->prefetches;

    prefetch->helpers = bth_allocate_zeroed(n_helpers * sizeof *prefetch->helpers);
    if (n_helpers > 0 && !prefetch->helpers)
        return bth_fail_memory(error, n_helpers * sizeof *prefetch->helpers);
    bth_prefetches_lock(all); /* they wait for the lock until all have started */
    prefetch->next = all->first;
    all->first = prefetch;
    for (unsigned i = 0; i < n_helpers && error->code == 0; i++) {
        prefetch->helpers[i].prefetch = prefetch;
        int failure = bth_thread_start(&prefetch->helpers[i].thread, prefetch_helper_run,
                                       &prefetch->helpers[i]);
        if (failure != 0)
            (void)bth_fail_errno(error, failure, NULL, BERTH_NO_OFFSET,
                                 "thread %u of %u of the prefetch cannot be started", i + 1,
                                 n_helpers);
        else
            prefetch->n_helpers = i + 1;
    }
    bth_lock_release(&all->lock);
    return error->code;
}
