/* SPDX-License-Identifier: BSD-3-Clause */
/* Prefetches: chooses the bytes, the method and the passes; the public functions, and
 * load.prefetch. */
#include "load/prefetch/prefetch.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "format/values/value.h"
#include "io/file_system.h"
#include "io/page_cache.h"
#include "io/syscalls.h"
#include "io/thread_pool.h"
#include "load/errors_with_names.h"
#include "load/selection.h"
#include "load/storage_state.h"

/* If no window size is set, windows are parts of a pass, but not shorter than this. */
#define WINDOW_MIN_NBYTES (UINT64_C(128) << 10)
#define WINDOWS_PER_PASS 4
/* Used even if the machine reports less free memory. */
#define MEASURED_MIN_NBYTES (UINT64_C(4) << 20)
/* A pass shorter than this many times the readahead has no room for the system's readahead. */
#define PASS_MIN_READAHEADS 4

typedef unsigned long long ull;

static uint64_t pages_round_down(uint64_t n, uint64_t page_nbytes)
{
    return n - n % page_nbytes;
}

/* Saturates at the last page that fits the number. */
static uint64_t pages_round_up(uint64_t n, uint64_t page_nbytes)
{
    uint64_t more = (page_nbytes - n % page_nbytes) % page_nbytes;

    return more > UINT64_MAX - n ? pages_round_down(UINT64_MAX, page_nbytes) : n + more;
}

static uint64_t range_end(const bth_prefetch_range *range)
{
    return range->offset + range->nbytes;
}

void bth_prefetch_take_ranges(bth_prefetch_plan *plan, bth_prefetch_range *ranges, size_t n,
                              uint64_t page_nbytes, uint64_t file_nbytes)
{
    size_t n_kept = 0;

    if (n > 1)
        qsort(ranges, n, sizeof *ranges, bth_compare_offsets);
    for (size_t i = 0; i < n; i++) {
        uint64_t offset = ranges[i].offset;
        uint64_t nbytes = bth_min(ranges[i].nbytes, UINT64_MAX - offset);
        uint64_t begin = pages_round_down(bth_min(offset, file_nbytes), page_nbytes);
        uint64_t end = bth_min(pages_round_up(offset + nbytes, page_nbytes), file_nbytes);
        bth_prefetch_range *last = n_kept > 0 ? &ranges[n_kept - 1] : NULL;
        if (nbytes == 0 || end <= begin)
            continue;
        if (!last || begin > range_end(last))
            ranges[n_kept++] = (bth_prefetch_range){.offset = begin, .nbytes = end - begin};
        else if (end > range_end(last))
            last->nbytes = end - last->offset;
    }
    plan->ranges = ranges;
    plan->n_ranges = n_kept;
    plan->nbytes = 0;
    for (size_t i = 0; i < n_kept; i++) {
        ranges[i].position = plan->nbytes;
        plan->nbytes += ranges[i].nbytes;
    }
}

/* ---- passes and windows ---- */

/* The set number of passes, or as few as fit; none shorter than min_pass_nbytes, because many short
 * passes cost time. The memory limit has priority. */
bool bth_prefetch_choose_pass_and_window(bth_prefetch_plan *plan, const bth_prefetch_limits *limits,
                                         uint64_t *missing_nbytes)
{
    uint64_t page_nbytes = limits->page_nbytes, memory_nbytes = limits->memory_nbytes;
    uint64_t window = pages_round_up(bth_max(limits->window_nbytes, 1), page_nbytes);
    uint64_t needed = bth_min(window, pages_round_up(plan->nbytes, page_nbytes));

    *missing_nbytes = 0;
    if (plan->nbytes == 0)
        return true;
    if (memory_nbytes && memory_nbytes < needed) {
        *missing_nbytes = needed - memory_nbytes;
        return false;
    }
    /* The maximum of bytes ahead of the consumer, in whole pages. */
    uint64_t budget =
        memory_nbytes ? memory_nbytes : bth_max(limits->available_nbytes / 2, MEASURED_MIN_NBYTES);
    budget = bth_max(pages_round_down(budget, page_nbytes), page_nbytes);
    uint64_t n_passes = limits->n_passes ? limits->n_passes : bth_divide_up(plan->nbytes, budget);
    uint64_t pass = bth_max(bth_divide_up(plan->nbytes, n_passes), limits->min_pass_nbytes);
    pass = pages_round_up(bth_min(pass, plan->nbytes), page_nbytes);
    if (memory_nbytes || !limits->n_passes)
        pass = bth_min(pass, budget);
    if (!limits->window_nbytes) {
        uint64_t part = bth_max(pass / WINDOWS_PER_PASS, WINDOW_MIN_NBYTES);
        part = bth_min(limits->natural_window_nbytes, part);
        window = pages_round_up(bth_max(part, 1), page_nbytes);
    }
    plan->pass_nbytes = pass;
    plan->n_passes = bth_divide_up(plan->nbytes, pass);
    plan->window_nbytes = bth_min(window, pass);
    return true;
}

/* ---- positions ---- */

/* The first range that ends after a byte of the file, or of the line; n_ranges: none. */
static size_t plan_find_range_ending_after(const bth_prefetch_plan *plan, uint64_t at, bool on_line)
{
    size_t low = 0, high = plan->n_ranges;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const bth_prefetch_range *range = &plan->ranges[middle];
        if ((on_line ? range->position + range->nbytes : range_end(range)) <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

uint64_t bth_prefetch_position(const bth_prefetch_plan *plan, uint64_t offset)
{
    size_t i = plan_find_range_ending_after(plan, offset, false);

    if (i == plan->n_ranges)
        return plan->nbytes;
    const bth_prefetch_range *range = &plan->ranges[i];
    return range->position + (offset > range->offset ? offset - range->offset : 0);
}

bth_prefetch_range bth_prefetch_find_next_window(const bth_prefetch_plan *plan, uint64_t position,
                                                 uint64_t limit)
{
    uint64_t end = bth_min(limit, plan->nbytes);

    if (position >= end)
        return (bth_prefetch_range){.position = position};
    const bth_prefetch_range *range =
        &plan->ranges[plan_find_range_ending_after(plan, position, true)];
    uint64_t before = position - range->position;
    uint64_t nbytes = bth_min(end - position, plan->window_nbytes);
    return (bth_prefetch_range){.offset = range->offset + before,
                                .nbytes = bth_min(nbytes, range->nbytes - before),
                                .position = position};
}

/* The file range of elements [first, first + n) of a contiguous tensor. If n < 0, and for any other
 * tensor: of all elements. False: it has no bytes there: it is empty, or deflated. */
static bool prefetch_tensor_extent(const berth_tensor *tensor, int64_t first, int64_t n,
                                   uint64_t *offset, uint64_t *end)
{
    uint64_t nbytes, elements = (uint64_t)bth_dtype_elements_per_item(tensor->dtype);
    size_t item_nbytes = berth_dtype_nbytes(tensor->dtype);

    if (n == 0 || !bth_tensor_compute_end_in_storage(tensor, &nbytes) || nbytes == 0 ||
        bth_storage_deflated_record(tensor->storage))
        return false;
    *offset = bth_storage_root(tensor->storage)->offset + tensor->storage->root_offset;
    *end = *offset + nbytes;
    *offset += (uint64_t)tensor->storage_offset / elements * item_nbytes;
    if (n > 0 && elements == 1 && berth_tensor_is_contiguous(tensor)) {
        *offset += (uint64_t)first * item_nbytes;
        *end = *offset + (uint64_t)n * item_nbytes;
    }
    return true;
}

/* The ranges of a selection. */
typedef struct prefetch_ranges {
    berth_checkpoint *checkpoint;
    bth_prefetch_range *items;
    size_t n, capacity;
    const berth_storage *first; /* in the file's order */
    bool any_mapped;
    const char *reason; /* why the last unmapped storage is not mapped */
} prefetch_ranges;

static int prefetch_add_range(prefetch_ranges *ranges, const berth_storage *root, uint64_t offset,
                              uint64_t nbytes, berth_error *error)
{
    if (nbytes == 0)
        return 0;
    void *items = bth_items_grow(ranges->items, ranges->n, 1, &ranges->capacity,
                                 sizeof *ranges->items, error);
    if (!items)
        return error->code;
    ranges->items = items;
    if (!ranges->first || root->offset < ranges->first->offset)
        ranges->first = root;
    ranges->items[ranges->n++] = (bth_prefetch_range){.offset = offset, .nbytes = nbytes};
    return 0;
}

/* Whether a storage is read through the page cache: it is mapped, or it is not in memory yet and
 * will not be read directly. If it is loaded, the method that was used counts, not the choice. */
static bool prefetch_storage_uses_page_cache(prefetch_ranges *ranges, const berth_storage *root)
{
    berth_checkpoint *checkpoint = ranges->checkpoint;
    bth_conditions conditions = {0};

    bth_checkpoint_lock(checkpoint);
    bth_access_set_known_conditions(&checkpoint->source.access, &conditions);
    bth_choice choice = bth_storage_choose(checkpoint, &checkpoint->config, &conditions, root);
    const uint8_t *memory = atomic_load(&checkpoint->storages.stored[root->index].memory);
    const bth_storage_target *targets = checkpoint->storages.targets;
    bool is_deflated = checkpoint->storages.stored[root->index].deflated;
    bool is_on_device = targets && targets[root->index].is_there;
    bool is_mapped = memory ? bth_map_holds(&checkpoint->source.access.map, memory)
                            : choice.method == BERTH_LOAD_MAP;
    bth_checkpoint_unlock(checkpoint);
    if (conditions.is_file && is_mapped && !is_on_device) {
        ranges->any_mapped = true;
        return true;
    }
    ranges->reason = is_on_device                   ? "it is on a device"
                     : memory && conditions.is_file ? "it is memory of its own already"
                                                    : choice.reason;
    return conditions.is_file && !memory && !is_on_device && !is_deflated &&
           choice.method != BERTH_LOAD_DIRECT;
}

/* Adds only the rows that the tensor views. */
static int prefetch_add_tensor(void *context, const berth_tensor *tensor, berth_error *error)
{
    const berth_storage *storage = tensor->storage;
    const berth_storage *root = storage->root ? storage->root : storage;
    uint64_t offset, end;

    if (!prefetch_tensor_extent(tensor, 0, -1, &offset, &end) ||
        !prefetch_storage_uses_page_cache(context, root))
        return 0;
    return prefetch_add_range(context, root, offset, end - offset, error);
}

/* ---- method and plan ---- */

/* Sets the method of the options, if the storages allow it. */
static int prefetch_choose_method_and_map(berth_prefetch *prefetch, const prefetch_ranges *ranges,
                                          const struct berth_config *config, berth_error *error)
{
    berth_checkpoint *checkpoint = prefetch->checkpoint;
    bool is_off = config->load_prefetch == BTH_PREFETCH_OFF;
    const uint8_t *address = NULL;

    /*
     * Beside 200 ms of other work, a cold file of 256 MiB on a virtual disk, medians: populate is
     * done 0.02 s later, advise 0.08 s, read 0.11 s (tools/bench/load --cases startup).
     */
    prefetch->kind = is_off ? BTH_PREFETCH_POPULATE : (int)config->load_prefetch;
    prefetch->reason = is_off ? "populate is the default" : "load.prefetch sets it";
    if (ranges->n == 0) {
        prefetch->kind = BTH_PREFETCH_OFF;
        prefetch->reason = ranges->reason ? ranges->reason : "there are no bytes";
        return 0;
    }
    prefetch->readahead_nbytes = bth_disk_readahead_nbytes(checkpoint->source.reader.fd, "");
    bth_checkpoint_lock(checkpoint);
    if (ranges->any_mapped)
        (void)bth_access_map(&checkpoint->source.access, (int)checkpoint->config.load_mmap_flags,
                             ranges->items[0].offset, &address, error);
    bth_checkpoint_unlock(checkpoint);
    if (address)
        prefetch->map = &checkpoint->source.access.map;
    else if (prefetch->kind != BTH_PREFETCH_READ) {
        prefetch->kind = BTH_PREFETCH_READ;
        prefetch->reason = ranges->any_mapped ? "the file cannot be mapped" : ranges->reason;
    }
    return error->code;
}

/* Divides the ranges into passes. The plan owns them. */
static int prefetch_divide_into_passes(berth_prefetch *prefetch, const prefetch_ranges *ranges,
                                       const struct berth_config *config, berth_error *error)
{
    bth_prefetch_plan *plan = &prefetch->plan;
    bool is_advice = prefetch->kind == BTH_PREFETCH_ADVISE;
    uint64_t window_nbytes = (uint64_t)config->load_prefetch_window_nbytes;
    uint64_t natural_nbytes =
        is_advice ? prefetch->readahead_nbytes : bth_workers_chunk_nbytes(config);
    uint64_t missing_nbytes;

    /* For one advice the device reads ahead no more than this. */
    if (is_advice && window_nbytes > prefetch->readahead_nbytes)
        window_nbytes = prefetch->readahead_nbytes;
    const bth_prefetch_limits limits = {.page_nbytes = (uint64_t)sysconf(_SC_PAGESIZE),
                                        .n_passes = (uint64_t)config->load_prefetch_passes,
                                        .min_pass_nbytes =
                                            (uint64_t)config->load_prefetch_min_pass_nbytes,
                                        .window_nbytes = window_nbytes,
                                        .natural_window_nbytes = natural_nbytes,
                                        .memory_nbytes = (uint64_t)config->io_memory_nbytes,
                                        .available_nbytes = bth_free_memory_nbytes("")};
    bth_prefetch_take_ranges(plan, ranges->items, ranges->n, limits.page_nbytes,
                             prefetch->checkpoint->source.reader.nbytes);
    if (!bth_prefetch_choose_pass_and_window(plan, &limits, &missing_nbytes)) {
        assert(ranges->first); /* a plan without bytes needs no memory */
        (void)bth_fail(error, BERTH_E_MEMORY, NULL, ranges->first->offset,
                       "io.memory_nbytes=%llu is too small for one window of a prefetch: %llu "
                       "bytes are missing",
                       (ull)config->io_memory_nbytes, (ull)missing_nbytes);
        return bth_error_in_storage(ranges->checkpoint, ranges->first, error);
    }
    /* When a page is touched, the system reads it with the device's readahead around it, in large
     * pages. If that is a window or more, it is the fastest method; but short passes have no room
     * for what is beyond the window. If it is less, there would be many waits. */
    prefetch->is_short = prefetch->readahead_nbytes > plan->pass_nbytes / PASS_MIN_READAHEADS;
    prefetch->requests_readahead =
        !is_advice && (prefetch->is_short || prefetch->readahead_nbytes < plan->window_nbytes);
    return 0;
}

/* ---- all pages ---- */

static void prefetch_advise_pages(const berth_prefetch *prefetch, int advice)
{
    const bth_prefetch_plan *plan = &prefetch->plan;

    for (size_t i = 0; prefetch->map && i < plan->n_ranges; i++)
        (void)bth_system.madvise((uint8_t *)prefetch->map->address + plan->ranges[i].offset,
                                 plan->ranges[i].nbytes, advice);
}

static void prefetch_unlock_pages(const berth_prefetch *prefetch, size_t n_ranges)
{
    for (size_t i = 0; i < n_ranges; i++)
        (void)bth_system.munlock((uint8_t *)prefetch->map->address +
                                     prefetch->plan.ranges[i].offset,
                                 prefetch->plan.ranges[i].nbytes);
}

/* Pages are locked when they are loaded. Fails before that if they cannot be locked. */
static int prefetch_lock_pages(berth_prefetch *prefetch, berth_error *error)
{
    struct rlimit limit = {0};

    if (prefetch->kind != BTH_PREFETCH_POPULATE)
        return bth_fail_argument(error, "only what is mapped and populated can be locked: %s",
                                 prefetch->reason);
    for (size_t i = 0; i < prefetch->plan.n_ranges; i++) {
        const bth_prefetch_range *range = &prefetch->plan.ranges[i];
        uint8_t *address = (uint8_t *)prefetch->map->address + range->offset;
        if (bth_system.mlock2(address, range->nbytes, MLOCK_ONFAULT) == 0)
            continue;
        int failure = errno;
        prefetch_unlock_pages(prefetch, i);
        (void)bth_system.getrlimit(RLIMIT_MEMLOCK, &limit);
        return bth_fail_errno(error, failure, NULL, range->offset,
                              "%llu bytes cannot be locked in memory, RLIMIT_MEMLOCK is %llu",
                              (ull)range->nbytes, (ull)limit.rlim_cur);
    }
    return 0;
}

/* ---- begin and end ---- */

/* X11: a child has no threads for its parent's prefetches. */
static bool prefetch_is_of_this_process(const berth_prefetch *prefetch)
{
    return prefetch->process == bth_process_unique_number();
}

static void prefetch_free_memory(berth_prefetch *prefetch)
{
    bth_release(prefetch->helpers);
    bth_release(prefetch->plan.ranges);
    bth_release(prefetch);
}

/* Nothing is loaded until everything is chosen. NULL: it failed. */
static berth_prefetch *prefetch_create_and_start(berth_checkpoint *checkpoint,
                                                 const berth_selection *selection, uint32_t flags,
                                                 const struct berth_config *config,
                                                 berth_error *error)
{
    prefetch_ranges ranges = {.checkpoint = checkpoint};
    berth_prefetch *prefetch = bth_allocate_zeroed(sizeof *prefetch);
    unsigned n_helpers = 0;

    if (!prefetch)
        return bth_fail_memory(error, sizeof *prefetch), NULL;
    *prefetch = (berth_prefetch){
        .checkpoint = checkpoint, .process = bth_process_unique_number(), .flags = flags};
    if (!selection || BTH_CHECK_RESERVED(berth_selection, selection, error) == 0) {
        if (selection && (selection->pattern || selection->n_tensors > 0))
            (void)bth_selection_visit(checkpoint, selection, prefetch_add_tensor, &ranges, error);
        else
            for (size_t i = 0; i < checkpoint->storages.n && error->code == 0; i++) {
                const berth_storage *storage = bth_tree_storage(checkpoint->contents.tree, i);
                if (!storage->root && prefetch_storage_uses_page_cache(&ranges, storage))
                    (void)prefetch_add_range(&ranges, storage, storage->offset, storage->nbytes,
                                             error);
            }
    }
    prefetch->plan.ranges = ranges.items;
    if (error->code < 0 || prefetch_choose_method_and_map(prefetch, &ranges, config, error) < 0 ||
        prefetch_divide_into_passes(prefetch, &ranges, config, error) < 0 ||
        (flags & BERTH_PREFETCH_LOCK && prefetch_lock_pages(prefetch, error) < 0)) {
        prefetch_free_memory(prefetch);
        return NULL;
    }
    if (flags & BERTH_PREFETCH_SEQUENTIAL)
        prefetch_advise_pages(prefetch, MADV_SEQUENTIAL);
    if (prefetch->plan.nbytes > 0) {
        bool is_rotating = bth_disk_is_rotating(checkpoint->source.reader.fd, "");
        uint64_t n_windows = bth_divide_up(prefetch->plan.nbytes, prefetch->plan.window_nbytes);
        n_helpers = bth_workers_choose_count(
            config, is_rotating ? BTH_WORKERS_ROTATING : BTH_WORKERS_PREFETCH, n_windows, 0);
    }
    if (bth_prefetch_start(prefetch, n_helpers, error) < 0) {
        berth_prefetch_free(prefetch);
        return NULL;
    }
    return prefetch;
}

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
    *prefetch = prefetch_create_and_start(checkpoint, what, flags, &config, error);
    return error->code < 0 ? bth_error_prefix(error, checkpoint->source.reader.name) : 0;
}

void berth_prefetch_free(berth_prefetch *prefetch)
{
    BTH_HOLD_CANCEL(true);
    if (!prefetch)
        return;
    if (prefetch_is_of_this_process(prefetch)) { /* X11: a child does not inherit locks of pages */
        bth_prefetches *all = &prefetch->checkpoint->prefetches;
        berth_prefetch **at = &all->first;
        bth_prefetches_lock(all);
        prefetch->is_stopped = true;
        (void)pthread_cond_broadcast(&all->changed);
        bth_lock_release(&all->lock);
        for (unsigned i = 0; i < prefetch->n_helpers; i++)
            (void)pthread_join(prefetch->helpers[i].thread, NULL);
        bth_prefetches_lock(all);
        while (*at && *at != prefetch)
            at = &(*at)->next;
        if (*at)
            *at = prefetch->next;
        bth_lock_release(&all->lock);
        if (prefetch->flags & BERTH_PREFETCH_SEQUENTIAL)
            prefetch_advise_pages(prefetch, MADV_NORMAL);
        if (prefetch->flags & BERTH_PREFETCH_LOCK)
            prefetch_unlock_pages(prefetch, prefetch->plan.n_ranges);
        /* The error was not returned to any caller: logs it. */
        if (!prefetch->is_reported && prefetch->error.code != BERTH_OK)
            bth_log("%s", prefetch->error.message);
    }
    prefetch_free_memory(prefetch);
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

/* Under the lock: all bytes before this position are loaded. */
static uint64_t prefetch_loaded_position(const berth_prefetch *prefetch)
{
    uint64_t position = prefetch->begun;

    for (unsigned i = 0; i < prefetch->n_helpers; i++) {
        const bth_prefetch_range *window = &prefetch->helpers[i].window;
        if (window->nbytes > 0 && window->position < position)
            position = window->position;
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
    while (prefetch_loaded_position(prefetch) < position && !prefetch->is_stopped)
        (void)pthread_cond_wait(&all->changed, &all->lock.mutex);
    prefetch->stats.wait_seconds += bth_seconds() - begin_seconds;
    if (prefetch_loaded_position(prefetch) < position) {
        prefetch->is_reported = true;
        *error = prefetch->error;
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
    if (!tensor && first == 0 && n < 0)
        return prefetch_consume_to_offset_and_wait(prefetch, UINT64_MAX, error);
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
    assert(tensor); /* it was checked */
    if (!prefetch_tensor_extent(tensor, first, n, &offset, &end))
        return 0;
    return prefetch_consume_to_offset_and_wait(prefetch, end, error);
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
    uint64_t begun = prefetch->begun, done = prefetch_loaded_position(prefetch);
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
        prefetch_create_and_start(checkpoint, NULL, 0, &checkpoint->config, error);
    return error->code;
}

static void prefetch_consume_own(berth_prefetch *own, const berth_tensor *tensor, int64_t first,
                                 int64_t n)
{
    bth_prefetches *all = &own->checkpoint->prefetches;
    uint64_t offset, end;

    if (!prefetch_is_of_this_process(own) ||
        !prefetch_tensor_extent(tensor, first, n, &offset, &end))
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
