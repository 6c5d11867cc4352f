/* SPDX-License-Identifier: BSD-3-Clause */
/* How a prefetch begins and ends: which bytes, in which way, in which passes. */
#include <errno.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/values/tensor.h"
#include "io/free_memory.h"
#include "io/pool.h"
#include "io/readahead.h"
#include "io/syscalls.h"
#include "io/workers.h"
#include "load/checkpoint.h"
#include "load/selection.h"
#include "load/storages_load.h"

/* Where io.threads says nothing: they wait more than they work. */
#define MOST_MEASURED_HELPERS 4
/* A pass with less than that is too short for the system's own reading ahead. */
#define LEAST_PASS_READAHEADS 4

typedef unsigned long long ull;

/* ---- which bytes ---- */

bool bth_prefetch_place(const berth_tensor *tensor, uint64_t *offset, uint64_t *end)
{
    const berth_storage *storage = tensor->storage;
    uint64_t nbytes, elements = (uint64_t)bth_dtype_elements(tensor->dtype);

    if (!bth_tensor_extent(tensor, &nbytes) || nbytes == 0)
        return false;
    uint64_t base = storage->root ? storage->root->offset + storage->root_offset : storage->offset;
    *offset =
        base + (uint64_t)tensor->storage_offset / elements * berth_dtype_nbytes(tensor->dtype);
    *end = base + nbytes;
    return true;
}

bool bth_prefetch_place_part(const berth_tensor *tensor, int64_t first, int64_t n, uint64_t *offset,
                             uint64_t *end)
{
    size_t item_nbytes = berth_dtype_nbytes(tensor->dtype);

    if (n == 0 || !bth_prefetch_place(tensor, offset, end))
        return false;
    if (!berth_tensor_is_contiguous(tensor) || bth_dtype_elements(tensor->dtype) > 1)
        return true;
    *offset += (uint64_t)first * item_nbytes;
    *end = *offset + (uint64_t)n * item_nbytes;
    return true;
}

typedef struct gathering {
    berth_checkpoint *checkpoint;
    bth_prefetch_range *ranges;
    size_t n, capacity;
    bool any_mapped;
    const char *reason; /* why the last that is not mapped is not */
} gathering;

static int add(gathering *all, uint64_t offset, uint64_t nbytes, berth_error *error)
{
    if (all->n == all->capacity) {
        size_t capacity = all->capacity ? 2 * all->capacity : 16;
        void *more = bth_reallocate(all->ranges, capacity * sizeof *all->ranges);
        if (!more)
            return bth_fail_memory(error, capacity * sizeof *all->ranges);
        all->ranges = more;
        all->capacity = capacity;
    }
    all->ranges[all->n++] = (bth_prefetch_range){.offset = offset, .nbytes = nbytes};
    return 0;
}

/* Whether the page cache is of use for a storage: it is mapped, or not memory yet, and will not be
 * read past it. What it has become counts before what it would become. */
static bool is_worth_it(gathering *all, const berth_storage *root)
{
    berth_checkpoint *checkpoint = all->checkpoint;
    bth_conditions conditions = {0};

    bth_checkpoint_lock(checkpoint);
    bth_access_describe(&checkpoint->source.access, &conditions);
    bth_choice choice = bth_storage_choose(checkpoint, &checkpoint->config, &conditions, root);
    const uint8_t *memory = atomic_load(&checkpoint->storages.stored[root->index].memory);
    bool is_on_device =
        checkpoint->storages.placed && checkpoint->storages.placed[root->index].is_there;
    bool is_mapped = memory
                         ? bth_map_holds(&checkpoint->source.access.map, memory)
                         : conditions.is_file && choice.method == BERTH_LOAD_MAP && !is_on_device;
    bth_checkpoint_unlock(checkpoint);
    all->any_mapped = all->any_mapped || is_mapped;
    if (is_mapped)
        return true;
    all->reason = is_on_device                   ? "it is on a device"
                  : memory && conditions.is_file ? "it is memory of its own already"
                                                 : choice.reason;
    return conditions.is_file && !memory && !is_on_device && choice.method != BERTH_LOAD_DIRECT;
}

/* Of a view of a few rows, only those. */
static int add_tensor(void *context, const berth_tensor *tensor, berth_error *error)
{
    const berth_storage *storage = tensor->storage;
    uint64_t offset, end;

    if (!bth_prefetch_place(tensor, &offset, &end) ||
        !is_worth_it(context, storage->root ? storage->root : storage))
        return 0;
    return add(context, offset, end - offset, error);
}

static int add_storages(gathering *all, berth_error *error)
{
    for (size_t i = 0; i < all->checkpoint->storages.n && error->code == 0; i++) {
        const berth_storage *storage = bth_tree_storage(all->checkpoint->contents.tree, i);
        if (!storage->root && is_worth_it(all, storage))
            (void)add(all, storage->offset, storage->nbytes, error);
    }
    return error->code;
}

/* ---- plan ---- */

/* The way that the options name, as far as the storages have it. */
static int choose(berth_prefetch *prefetch, const gathering *all, const struct berth_config *config,
                  berth_error *error)
{
    berth_checkpoint *checkpoint = prefetch->checkpoint;
    bool is_off = config->load_prefetch == BTH_PREFETCH_OFF;
    const uint8_t *address = NULL;

    prefetch->kind = is_off ? BTH_PREFETCH_POPULATE : (int)config->load_prefetch;
    prefetch->reason = is_off ? "load.prefetch does not say" : "load.prefetch says so";
    if (all->n == 0) {
        prefetch->kind = BTH_PREFETCH_OFF;
        prefetch->reason = all->reason ? all->reason : "there are no bytes";
        return 0;
    }
    prefetch->readahead_nbytes = bth_readahead_nbytes(checkpoint->source.reader.fd, "");
    bth_checkpoint_lock(checkpoint);
    if (all->any_mapped)
        (void)bth_access_map(&checkpoint->source.access, (int)checkpoint->config.load_mmap_flags,
                             all->ranges[0].offset, &address, error);
    bth_checkpoint_unlock(checkpoint);
    if (address)
        prefetch->map = &checkpoint->source.access.map;
    else if (prefetch->kind != BTH_PREFETCH_READ) {
        prefetch->kind = BTH_PREFETCH_READ;
        prefetch->reason = all->any_mapped ? "the file cannot be mapped" : all->reason;
    }
    return error->code;
}

/* The first tensor with bytes from this place of the file on. NULL: none, or no memory. */
static char *name_of_first(berth_checkpoint *checkpoint, uint64_t offset)
{
    const bth_names *names;
    uint64_t least = UINT64_MAX, at, end;
    size_t found = SIZE_MAX;
    char *name = NULL, *path = NULL;
    berth_error unasked;

    bth_error_clear(&unasked);
    names = bth_checkpoint_names(checkpoint, &unasked);
    for (size_t i = 0; names && i < bth_names_count(names); i++) {
        const berth_tensor *tensor = berth_as_tensor(bth_names_value(names, i));
        if (!tensor || !tensor->storage || !bth_prefetch_place(tensor, &at, &end))
            continue;
        if (end > offset && at < least) {
            least = at;
            found = i;
        }
    }
    if (found != SIZE_MAX && bth_names_text(names, found, &name, &path, &unasked) == 0)
        bth_release(path);
    return name;
}

static int fail_budget(const berth_prefetch *prefetch, const struct berth_config *config,
                       uint64_t offset, uint64_t missing_nbytes, berth_error *error)
{
    char *name = name_of_first(prefetch->checkpoint, offset);

    (void)bth_fail(error, BERTH_E_MEMORY, NULL, offset,
                   "the first window of a prefetch, of tensor %s, does not fit into "
                   "io.memory_nbytes=%llu (%llu bytes missing)",
                   name ? name : "?", (ull)config->io_memory_nbytes, (ull)missing_nbytes);
    bth_release(name);
    return error->code;
}

/*
 * Pages that are waited for bring as much around them as the device reads ahead. Where that is a
 * window or more, it is the fastest way: in large pages. But it goes beyond the window, which short
 * passes have no room for; and where it is less, a window would take many turns of waiting.
 */
static void choose_requests(berth_prefetch *prefetch)
{
    const bth_prefetch_plan *all = &prefetch->plan;

    prefetch->is_short = prefetch->readahead_nbytes > all->pass_nbytes / LEAST_PASS_READAHEADS;
    prefetch->is_announced =
        prefetch->kind != BTH_PREFETCH_ADVISE &&
        (prefetch->is_short || prefetch->readahead_nbytes < all->window_nbytes);
}

/* Takes the ranges over, and divides them into passes. */
static int plan(berth_prefetch *prefetch, const gathering *all, const struct berth_config *config,
                berth_error *error)
{
    bool is_advice = prefetch->kind == BTH_PREFETCH_ADVISE;
    uint64_t window_nbytes = (uint64_t)config->load_prefetch_window_nbytes;
    uint64_t file_nbytes = prefetch->checkpoint->source.reader.nbytes;
    uint64_t first_offset = UINT64_MAX, missing_nbytes;
    const bth_prefetch_limits limits = {
        .page_nbytes = (uint64_t)sysconf(_SC_PAGESIZE),
        .n_passes = (uint64_t)config->load_prefetch_passes,
        .min_pass_nbytes = (uint64_t)config->load_prefetch_min_pass_nbytes,
        /* Of one over more than the device reads ahead, no more than that comes. */
        .window_nbytes = is_advice && window_nbytes > prefetch->readahead_nbytes
                             ? prefetch->readahead_nbytes
                             : window_nbytes,
        .natural_window_nbytes =
            is_advice ? prefetch->readahead_nbytes : bth_workers_chunk_nbytes(config),
        .memory_nbytes = (uint64_t)config->io_memory_nbytes,
        .available_nbytes = bth_free_memory("")};

    for (size_t i = 0; i < all->n; i++)
        if (all->ranges[i].nbytes > 0 && all->ranges[i].offset < first_offset)
            first_offset = all->ranges[i].offset;
    bth_prefetch_line_up(&prefetch->plan, all->ranges, all->n, limits.page_nbytes, file_nbytes);
    if (!bth_prefetch_divide(&prefetch->plan, &limits, &missing_nbytes))
        return fail_budget(prefetch, config, first_offset, missing_nbytes, error);
    choose_requests(prefetch);
    return 0;
}

static unsigned count_helpers(const berth_prefetch *prefetch, const struct berth_config *config)
{
    uint64_t n = (uint64_t)config->io_threads;
    uint64_t n_windows;

    if (prefetch->plan.nbytes == 0)
        return 0;
    if (n == 0)
        n = bth_pool_measure();
    if (config->io_threads == 0 && n > MOST_MEASURED_HELPERS)
        n = MOST_MEASURED_HELPERS;
    n_windows = (prefetch->plan.nbytes - 1) / prefetch->plan.window_nbytes + 1;
    return (unsigned)(n < n_windows ? n : n_windows);
}

/* ---- what holds for all of a prefetch's pages ---- */

static void advise_all(const berth_prefetch *prefetch, int advice)
{
    const bth_prefetch_plan *all = &prefetch->plan;

    for (size_t i = 0; prefetch->map && i < all->n_ranges; i++)
        (void)bth_map_advise(prefetch->map, all->ranges[i].offset, all->ranges[i].nbytes, advice);
}

static void unlock(const berth_prefetch *prefetch, size_t n_ranges)
{
    for (size_t i = 0; i < n_ranges; i++)
        (void)bth_system.munlock((uint8_t *)prefetch->map->base + prefetch->plan.ranges[i].offset,
                                 prefetch->plan.ranges[i].nbytes);
}

/* Pages are locked when they come: what cannot be is told before anything is brought. */
static int lock(berth_prefetch *prefetch, berth_error *error)
{
    struct rlimit limit = {0};

    if (prefetch->kind != BTH_PREFETCH_POPULATE)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                        "only what is mapped and populated can be locked: %s", prefetch->reason);
    for (size_t i = 0; i < prefetch->plan.n_ranges; i++) {
        const bth_prefetch_range *range = &prefetch->plan.ranges[i];
        uint8_t *address = (uint8_t *)prefetch->map->base + range->offset;
        if (bth_system.mlock2(address, range->nbytes, MLOCK_ONFAULT) == 0)
            continue;
        int failure = errno;
        unlock(prefetch, i);
        (void)bth_system.getrlimit(RLIMIT_MEMLOCK, &limit);
        return bth_fail_errno(error, failure, NULL, range->offset,
                              "%llu bytes cannot be locked in memory, RLIMIT_MEMLOCK is %llu",
                              (ull)range->nbytes, (ull)limit.rlim_cur);
    }
    return 0;
}

/* ---- begin and end ---- */

static void enlist(berth_prefetch *prefetch)
{
    bth_prefetches *all = &prefetch->checkpoint->prefetches;

    bth_prefetches_lock(all);
    prefetch->next = all->first;
    all->first = prefetch;
    bth_lock_give(&all->lock);
}

static void delist(berth_prefetch *prefetch)
{
    bth_prefetches *all = &prefetch->checkpoint->prefetches;
    berth_prefetch **at = &all->first;

    bth_prefetches_lock(all);
    while (*at && *at != prefetch)
        at = &(*at)->next;
    if (*at)
        *at = prefetch->next;
    bth_lock_give(&all->lock);
}

static void release(berth_prefetch *prefetch)
{
    bth_release(prefetch->helpers);
    bth_release(prefetch->plan.ranges);
    bth_release(prefetch);
}

/* The ranges are taken over, also on failure: NULL. */
static berth_prefetch *begin(const gathering *all, const struct berth_config *config,
                             uint32_t flags, berth_error *error)
{
    berth_prefetch *prefetch = bth_allocate_zeroed(sizeof *prefetch);

    if (!prefetch) {
        bth_release(all->ranges);
        (void)bth_fail_memory(error, sizeof *prefetch);
        return NULL;
    }
    prefetch->checkpoint = all->checkpoint;
    prefetch->process = bth_process();
    prefetch->flags = flags;
    prefetch->plan.ranges = all->ranges;
    bth_error_clear(&prefetch->error);
    if (choose(prefetch, all, config, error) < 0 || plan(prefetch, all, config, error) < 0 ||
        (flags & BERTH_PREFETCH_LOCK && lock(prefetch, error) < 0)) {
        release(prefetch);
        return NULL;
    }
    if (flags & BERTH_PREFETCH_SWEEP)
        advise_all(prefetch, MADV_SEQUENTIAL);
    enlist(prefetch);
    if (bth_prefetch_start(prefetch, count_helpers(prefetch, config), error) < 0) {
        berth_prefetch_free(prefetch);
        return NULL;
    }
    return prefetch;
}

/* ---- selections ---- */

static berth_prefetch *begin_selected(berth_checkpoint *checkpoint, const berth_selection *what,
                                      uint32_t flags, const struct berth_config *config,
                                      berth_error *error)
{
    bool is_everything = !what || (!what->pattern && what->n_tensors == 0);
    gathering all = {.checkpoint = checkpoint};

    if (is_everything)
        (void)add_storages(&all, error);
    else
        (void)bth_selection_visit(checkpoint, what, add_tensor, &all, error);
    if (error->code == 0)
        return begin(&all, config, flags, error);
    bth_release(all.ranges);
    return NULL;
}
int berth_prefetch_begin(berth_checkpoint *checkpoint, const berth_selection *what, uint32_t flags,
                         const berth_params *call, berth_prefetch **prefetch, berth_error *error)
{
    struct berth_config config;

    BTH_ERROR_BEGIN(error);
    if (prefetch)
        *prefetch = NULL;
    if (!checkpoint || !prefetch)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                        "berth_prefetch_begin needs a checkpoint and a place for the prefetch");
    if (flags & ~(BERTH_PREFETCH_LOCK | BERTH_PREFETCH_SWEEP))
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "unknown flags 0x%x",
                        flags & ~(BERTH_PREFETCH_LOCK | BERTH_PREFETCH_SWEEP));
    if (bth_config_resolve(call, &config, error) < 0)
        return error->code;
    *prefetch = begin_selected(checkpoint, what, flags, &config, error);
    return error->code < 0 ? bth_error_prefix(error, checkpoint->source.reader.name) : 0;
}

int bth_prefetch_begin_own(berth_checkpoint *checkpoint, berth_error *error)
{
    if (checkpoint->config.load_prefetch == BTH_PREFETCH_OFF)
        return 0;
    checkpoint->prefetches.own = begin_selected(checkpoint, NULL, 0, &checkpoint->config, error);
    return error->code;
}

void berth_prefetch_free(berth_prefetch *prefetch)
{
    BTH_HOLD_CANCEL(true);
    if (!prefetch)
        return;
    if (!bth_prefetch_is_ours(prefetch)) { /* X11: its locked pages are not locked here, either */
        release(prefetch);
        return;
    }
    bth_prefetch_stop(prefetch);
    delist(prefetch);
    if (prefetch->flags & BERTH_PREFETCH_SWEEP)
        advise_all(prefetch, MADV_NORMAL);
    if (prefetch->flags & BERTH_PREFETCH_LOCK)
        unlock(prefetch, prefetch->plan.n_ranges);
    /* A failure that nobody has heard of. */
    if (!prefetch->is_told && prefetch->error.code != BERTH_OK)
        bth_log("%s", prefetch->error.message);
    release(prefetch);
}
