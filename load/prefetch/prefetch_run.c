/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The threads of a prefetch. They claim window after window in the file's order, as far as the
 * consumer lets them, and load each by the prefetch's method.
 */
#include <errno.h>

#include "config/error.h"
#include "config/memory.h"
#include "io/file.h"
#include "io/page_cache.h"
#include "io/syscalls.h"
#include "io/thread.h"
#include "load/prefetch/prefetch_state.h"

#define SCRATCH_NBYTES ((size_t)64 << 10)

typedef unsigned long long ull;

void bth_prefetches_lock(bth_prefetches *prefetches)
{
    if (bth_lock_take(&prefetches->lock) == BTH_LOCK_OURS)
        return;
    (void)pthread_cond_init(&prefetches->changed, NULL);
    prefetches->first = NULL;
}

/* ---- positions ---- */

/*
 * What the system may read by itself beyond a window whose pages are waited for: the rest of one
 * read-ahead, and the next. A pass that is too short for that does without.
 */
static uint64_t readahead_beyond(const berth_prefetch *prefetch)
{
    return 2 * prefetch->readahead_nbytes;
}

static uint64_t prefetch_beyond(const berth_prefetch *prefetch)
{
    bool is_exact = prefetch->kind == BTH_PREFETCH_ADVISE || prefetch->is_short;

    return is_exact ? 0 : readahead_beyond(prefetch);
}

/* Under the lock: what may be claimed ends here. */
static uint64_t claim_limit(const berth_prefetch *prefetch)
{
    uint64_t left = prefetch->plan.nbytes - prefetch->consumed;
    uint64_t ahead = prefetch->plan.pass_nbytes;

    return prefetch->consumed + (ahead < left ? ahead - prefetch_beyond(prefetch) : left);
}

uint64_t bth_prefetch_frontier(const berth_prefetch *prefetch)
{
    uint64_t position = prefetch->begun;

    for (unsigned i = 0; i < prefetch->n_helpers; i++) {
        const bth_prefetch_range *window = &prefetch->helpers[i].window;
        if (window->nbytes > 0 && window->position < position)
            position = window->position;
    }
    return position;
}

/* ---- one window ---- */

/* F1, F2: behind the file's end, pages of a map hold no bytes. */
static int window_check_size(berth_checkpoint *checkpoint, const bth_prefetch_range *window,
                             berth_error *error)
{
    const bth_reader *reader = &checkpoint->source.reader;
    uint64_t nbytes;

    if (bth_file_size(reader->fd, &nbytes, error) < 0)
        return error->code;
    if (window->offset > nbytes || window->nbytes > nbytes - window->offset)
        return bth_fail(error, BERTH_E_TRUNCATED, NULL, window->offset,
                        "the file had %llu bytes when it was opened, and now has %llu",
                        (ull)reader->nbytes, (ull)nbytes);
    return 0;
}

/* 0 where the system does not say: loading again what is there costs little. */
static uint64_t resident_count_in(const berth_prefetch *prefetch, const bth_prefetch_range *window)
{
    uint64_t nbytes = 0;

    (void)bth_page_cache_nbytes(prefetch->checkpoint->source.reader.fd, prefetch->map,
                                window->offset, window->nbytes, &nbytes);
    return nbytes;
}

/* Makes the device begin with all of the window, before its pages are touched. */
static void window_announce(const berth_prefetch *prefetch, const bth_prefetch_range *window,
                            uint64_t *n_requests)
{
    int fd = prefetch->checkpoint->source.reader.fd;
    uint64_t step = prefetch->readahead_nbytes;

    for (uint64_t at = 0; at < window->nbytes; at += step) {
        uint64_t left = window->nbytes - at;
        uint64_t nbytes = left < step ? left : step;
        ++*n_requests;
        if (bth_system.posix_fadvise(fd, (off_t)(window->offset + at), (off_t)nbytes,
                                     POSIX_FADV_WILLNEED) != 0)
            return; /* it only gets slower */
    }
}

/* Reads into memory of our own, which fills the page cache. */
static int window_read(bth_prefetch_helper *helper, uint64_t *n_requests, berth_error *error)
{
    const bth_prefetch_range *window = &helper->window;
    int fd = helper->prefetch->checkpoint->source.reader.fd;
    uint8_t scratch[SCRATCH_NBYTES];

    for (uint64_t at = 0; at < window->nbytes; at += SCRATCH_NBYTES) {
        uint64_t left = window->nbytes - at;
        size_t nbytes = left < SCRATCH_NBYTES ? (size_t)left : SCRATCH_NBYTES;
        ++*n_requests;
        if (bth_file_read(fd, scratch, nbytes, window->offset + at, error) < 0)
            return error->code;
    }
    return 0;
}

/*
 * Whether reading may do what an advice could not: this kernel does not know the advice, or has no
 * resources for it. Not if the bytes themselves cannot be had.
 */
static bool may_fall_back(int failure)
{
    return failure != ENOMEM && failure != EFAULT && failure != EIO && failure != EHWPOISON;
}

/* Loads the window by one advice, or reads it if the system refuses the advice. */
static int window_advise(bth_prefetch_helper *helper, int advice, uint64_t *n_requests,
                         berth_error *error)
{
    berth_prefetch *prefetch = helper->prefetch;
    const bth_prefetch_range *window = &helper->window;
    int failure = bth_map_advise(prefetch->map, window->offset, window->nbytes, advice);

    ++*n_requests;
    if (failure == 0)
        return 0;
    if (may_fall_back(failure)) {
        atomic_store(&prefetch->has_fallen_back, true);
        return window_read(helper, n_requests, error);
    }
    if (window_check_size(prefetch->checkpoint, window, error) < 0)
        return error->code;
    return bth_fail_errno(error, failure == EFAULT ? EIO : failure, NULL, window->offset,
                          "%llu bytes cannot be loaded into memory", (ull)window->nbytes);
}

/* Leaves alone what is in memory already, but populate still makes it present in the map. */
static int window_load(bth_prefetch_helper *helper, uint64_t *n_requests, berth_error *error)
{
    const berth_prefetch *prefetch = helper->prefetch;
    const bth_prefetch_range *window = &helper->window;
    bool is_populate = prefetch->kind == BTH_PREFETCH_POPULATE;

    if (!is_populate || prefetch->is_announced) {
        bool is_there = resident_count_in(prefetch, window) == window->nbytes;
        if (is_there && !is_populate)
            return 0;
        if (!is_there && prefetch->is_announced)
            window_announce(prefetch, window, n_requests);
    }
    if (is_populate)
        return window_advise(helper, MADV_POPULATE_READ, n_requests, error);
    if (prefetch->kind == BTH_PREFETCH_ADVISE)
        return window_advise(helper, MADV_WILLNEED, n_requests, error);
    return window_read(helper, n_requests, error);
}

/* ---- claims, under the lock ---- */

/*
 * Whether there is a window to claim. One that is short only because of the limit is left until the
 * limit has moved, unless the consumer waits for it: small steps would make small requests.
 */
static bool window_find(const berth_prefetch *prefetch, bth_prefetch_range *window)
{
    const bth_prefetch_plan *plan = &prefetch->plan;
    uint64_t limit = claim_limit(prefetch);

    if (prefetch->begun >= limit)
        return false;
    *window = bth_prefetch_window(plan, prefetch->begun, limit);
    return window->nbytes == plan->window_nbytes || prefetch->begun + window->nbytes < limit ||
           limit == plan->nbytes || prefetch->begun < prefetch->consumed;
}

/* What both ranges have; no bytes: nothing. */
static bth_prefetch_range range_overlap(const bth_prefetch_range *a, const bth_prefetch_range *b)
{
    uint64_t a_end = a->offset + a->nbytes, b_end = b->offset + b->nbytes;
    uint64_t begin = a->offset > b->offset ? a->offset : b->offset;
    uint64_t end = a_end < b_end ? a_end : b_end;

    return (bth_prefetch_range){.offset = begin, .nbytes = end > begin ? end - begin : 0};
}

/* What another prefetch of this checkpoint is loading of these bytes; no bytes: nothing. */
static bth_prefetch_range loading_elsewhere(const berth_prefetch *prefetch,
                                            const bth_prefetch_range *window)
{
    const berth_prefetch *other = prefetch->checkpoint->prefetches.first;
    bth_prefetch_range shared = {0};

    for (; other; other = other->next)
        for (unsigned i = 0; other != prefetch && i < other->n_helpers; i++) {
            const bth_prefetch_helper *helper = &other->helpers[i];
            if (helper->is_loading && shared.nbytes == 0)
                shared = range_overlap(&helper->window, window);
        }
    return shared;
}

/*
 * Counts what is in memory before this prefetch can have loaded it: also beyond the window, as far
 * as the system may read by itself.
 */
static void resident_count(berth_prefetch *prefetch)
{
    uint64_t end = prefetch->begun + readahead_beyond(prefetch);

    while (prefetch->counted < end && prefetch->counted < prefetch->plan.nbytes) {
        bth_prefetch_range next = bth_prefetch_window(&prefetch->plan, prefetch->counted, end);
        prefetch->stats.resident_nbytes += resident_count_in(prefetch, &next);
        prefetch->counted += next.nbytes;
    }
}

static void ahead_count(berth_prefetch *prefetch)
{
    uint64_t end = prefetch->begun + prefetch_beyond(prefetch);

    if (end > prefetch->plan.nbytes)
        end = prefetch->plan.nbytes;
    if (end > prefetch->consumed && end - prefetch->consumed > prefetch->stats.peak_ahead_nbytes)
        prefetch->stats.peak_ahead_nbytes = end - prefetch->consumed;
}

/* Waits for other prefetches that load the same bytes. Returns how many were still missing. */
static uint64_t others_wait(berth_prefetch *prefetch, const bth_prefetch_range *window)
{
    bth_prefetches *all = &prefetch->checkpoint->prefetches;
    bth_prefetch_range shared = loading_elsewhere(prefetch, window);
    uint64_t nbytes = 0;

    for (; shared.nbytes > 0 && !prefetch->is_cancelled;
         shared = loading_elsewhere(prefetch, window)) {
        nbytes += shared.nbytes - resident_count_in(prefetch, &shared);
        (void)pthread_cond_wait(&all->changed, &all->lock.mutex);
    }
    return nbytes < window->nbytes ? nbytes : window->nbytes;
}

/* The same while there are other prefetches, which load bytes at the same time. */
static void shared_count(berth_prefetch *prefetch, const bth_prefetch_range *window)
{
    bool is_counted = prefetch->counted > window->position;

    if (prefetch->counted < prefetch->begun)
        prefetch->counted = prefetch->begun;
    uint64_t shared_nbytes = others_wait(prefetch, window);
    uint64_t resident_nbytes = is_counted ? 0 : resident_count_in(prefetch, window);
    prefetch->stats.shared_nbytes += shared_nbytes;
    if (resident_nbytes > shared_nbytes)
        prefetch->stats.resident_nbytes += resident_nbytes - shared_nbytes;
}

/* Claims the next window, once the consumer lets it and no other prefetch loads it. False: none. */
static bool helper_claim(bth_prefetch_helper *helper)
{
    berth_prefetch *prefetch = helper->prefetch;
    bth_prefetches *all = &prefetch->checkpoint->prefetches;
    bth_prefetch_range window;

    while (!prefetch->is_cancelled && prefetch->begun < prefetch->plan.nbytes &&
           !window_find(prefetch, &window))
        (void)pthread_cond_wait(&all->changed, &all->lock.mutex);
    if (prefetch->is_cancelled || prefetch->begun >= prefetch->plan.nbytes)
        return false;
    helper->window = window;
    prefetch->begun += window.nbytes;
    ahead_count(prefetch);
    if (all->first == prefetch && !prefetch->next)
        resident_count(prefetch);
    else
        shared_count(prefetch, &window);
    helper->is_loading = !prefetch->is_cancelled;
    return helper->is_loading;
}

/* Records what became of a window. */
static void helper_finish(bth_prefetch_helper *helper, uint64_t n_requests,
                          const berth_error *error)
{
    berth_prefetch *prefetch = helper->prefetch;

    prefetch->stats.n_requests += n_requests;
    if (error->code < 0) { /* and the frontier stays before this window */
        if (prefetch->error.code == BERTH_OK) {
            prefetch->error = *error;
            (void)bth_error_prefix(&prefetch->error, prefetch->checkpoint->source.reader.name);
        }
        prefetch->is_cancelled = true;
    } else {
        prefetch->done_nbytes += helper->window.nbytes;
        helper->window.nbytes = 0;
    }
    helper->is_loading = false;
    (void)pthread_cond_broadcast(&prefetch->checkpoint->prefetches.changed);
}

static void *helper_run(void *argument)
{
    bth_prefetch_helper *helper = argument;
    berth_prefetch *prefetch = helper->prefetch;
    bth_prefetches *all = &prefetch->checkpoint->prefetches;
    berth_error error;

    bth_thread_begin();
    bth_error_clear(&error);
    bth_prefetches_lock(all);
    while (helper_claim(helper)) {
        uint64_t n_requests = 0;
        bth_lock_give(&all->lock);
        if (window_check_size(prefetch->checkpoint, &helper->window, &error) == 0)
            (void)window_load(helper, &n_requests, &error);
        bth_prefetches_lock(all);
        helper_finish(helper, n_requests, &error);
    }
    (void)pthread_cond_broadcast(&all->changed);
    bth_lock_give(&all->lock);
    return NULL;
}

/* ---- begin and end ---- */

void bth_prefetch_cancel(berth_prefetch *prefetch)
{
    prefetch->is_cancelled = true;
    (void)pthread_cond_broadcast(&prefetch->checkpoint->prefetches.changed);
}

void bth_prefetch_stop(berth_prefetch *prefetch)
{
    bth_prefetches *all = &prefetch->checkpoint->prefetches;

    bth_prefetches_lock(all);
    bth_prefetch_cancel(prefetch);
    bth_lock_give(&all->lock);
    for (unsigned i = 0; i < prefetch->n_helpers; i++)
        (void)pthread_join(prefetch->helpers[i].thread, NULL);
}

int bth_prefetch_start(berth_prefetch *prefetch, unsigned n_helpers, berth_error *error)
{
    bth_prefetches *all = &prefetch->checkpoint->prefetches;

    if (n_helpers == 0)
        return 0;
    prefetch->helpers = bth_allocate_zeroed(n_helpers * sizeof *prefetch->helpers);
    if (!prefetch->helpers)
        return bth_fail_memory(error, n_helpers * sizeof *prefetch->helpers);
    bth_prefetches_lock(all); /* they begin once all have started */
    for (unsigned i = 0; i < n_helpers && error->code == 0; i++) {
        prefetch->helpers[i].prefetch = prefetch;
        int failure =
            bth_thread_start(&prefetch->helpers[i].thread, helper_run, &prefetch->helpers[i]);
        if (failure != 0)
            (void)bth_fail_errno(error, failure, NULL, BERTH_NO_OFFSET,
                                 "thread %u of %u of the prefetch cannot be started", i + 1,
                                 n_helpers);
        else
            prefetch->n_helpers = i + 1;
    }
    bth_lock_give(&all->lock);
    return error->code;
}
