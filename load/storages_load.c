/* SPDX-License-Identifier: BSD-3-Clause */
/* Loads storages, one when its memory is needed, or many at once. */
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/trace.h"
#include "io/page_cache.h"
#include "io/thread_pool.h"
#include "load/errors_with_names.h"
#include "load/storage_state.h"

/* For fewer bytes, free memory is not measured. */
#define MEASURED_MIN_NBYTES ((uint64_t)16 * 1024 * 1024)

typedef unsigned long long ull;

/* The wing's own definition, where it is linked, stands in its place. */
__attribute__((weak)) const bth_to_device_functions bth_wing_to_device;

/* The address of an empty storage: it is not NULL, and 0 bytes may be read from it. */
static const _Alignas(BTH_MEMORY_ALIGNMENT) uint8_t no_bytes[BTH_MEMORY_ALIGNMENT];

struct range_list {
    bth_range *ranges;
    size_t n;
};

/*
 * One of the two phases of a load. The first phase claims and loads all storages that no other
 * thread loads or waits for. The second phase waits until the other threads have finished. If they
 * failed, it claims and loads the storages that are still missing, all at once. Storages are
 * published when both phases have succeeded: all or none.
 *
 * While a thread waits it keeps the claims of its first phase. Still no two threads wait for each
 * other. A first phase leaves only storages that an earlier thread has claimed or waits for, so a
 * thread waits only for earlier threads. A second phase never waits after it has claimed.
 */
struct phase {
    berth_checkpoint *checkpoint;
    const bth_load_request *request;
    berth_stats *stats; /* the caller's, or NULL */
    bool is_second;
    bool checks_crc32; /* load.check=data */
    bth_conditions conditions;
    struct range_list host;     /* ranges that go to the host, */
    struct range_list device;   /* and to devices */
    const berth_storage **rest; /* left to the second phase */
    size_t n_rest;
    bool with_crc32;    /* CRCs are compared, and some are not known yet */
    const uint8_t *map; /* the file's first byte, if any range is mapped */
    bth_kept_region *region;
    bth_device_memory_list *device_memory;
};

static bth_storage_state *storage_get_state(const berth_checkpoint *checkpoint,
                                            const berth_storage *root)
{
    return &checkpoint->storages.stored[root->index];
}

/* NULL: it is loaded to the host. Under the lock. */
static bth_storage_target *storage_device_target(const berth_checkpoint *checkpoint,
                                                 const berth_storage *root)
{
    bth_storage_target *targets = checkpoint->storages.targets;

    return targets && targets[root->index].range.device ? &targets[root->index] : NULL;
}

/* ---- under the lock: claims ---- */

static bool storage_is_loaded(const berth_checkpoint *checkpoint, const berth_storage *root)
{
    const bth_storage_target *target = storage_device_target(checkpoint, root);

    return atomic_load(&storage_get_state(checkpoint, root)->memory) ||
           (target && target->is_there);
}

/* Whether other threads load it, or waited for it first. */
static bool phase_leaves_storage_to_others(const struct phase *phase, const berth_storage *root)
{
    const bth_storage_state *stored = storage_get_state(phase->checkpoint, root);

    return stored->is_loading || (!phase->is_second && stored->n_waiting > 0);
}

static void storage_publish(bth_storage_state *stored, const char *method, const char *reason,
                            const uint8_t *memory)
{
    stored->method = method;
    stored->reason = reason;
    atomic_store(&stored->memory, memory);
}

/*
 * Counts it: BERTH_E_MEMORY if with it there are more than io.memory_nbytes. Z12: the transfer
 * compares its CRC always.
 */
static int phase_claim_to_inflate(struct phase *phase, const berth_storage *root, bth_range range,
                                  berth_error *error)
{
    bth_storages *storages = &phase->checkpoint->storages;
    uint64_t max_nbytes = (uint64_t)phase->request->config->io_memory_nbytes, sum;

    if (bth_storage_check_may_inflate(phase->checkpoint, root, NULL, error) < 0)
        return error->code;
    if (!bth_try_add(storages->inflated_nbytes, root->nbytes, &sum))
        return bth_fail_memory(error, UINT64_MAX);
    if (max_nbytes > 0 && sum > max_nbytes)
        return bth_fail(error, BERTH_E_MEMORY, NULL, root->offset,
                        "io.memory_nbytes=%llu is too small to inflate its %llu bytes, beside "
                        "%llu bytes of other storages: %llu are missing",
                        (ull)max_nbytes, (ull)root->nbytes, (ull)storages->inflated_nbytes,
                        (ull)(sum - max_nbytes));
    storages->inflated_nbytes = sum;
    range.choice = bth_choice_for_deflated();
    phase->host.ranges[phase->host.n++] = range;
    return 0;
}

/* Maps the file if that is chosen. If mapping fails, chooses again. */
static int phase_claim_storage_for_host(struct phase *phase, const berth_storage *root,
                                        bth_range range, berth_error *error)
{
    berth_checkpoint *checkpoint = phase->checkpoint;
    bth_storage_state *stored = storage_get_state(checkpoint, root);
    const struct berth_config *config = phase->request->config;

    range.choice = bth_storage_choose(checkpoint, config, &phase->conditions, root);
    if (range.choice.method == BERTH_LOAD_MAP && !phase->map) {
        if (bth_access_map(&checkpoint->source.access, (int)checkpoint->config.load_mmap_flags,
                           root->offset, &phase->map, error) < 0)
            return error->code;
        phase->conditions.cannot_map = !phase->map;
        if (!phase->map)
            range.choice = bth_storage_choose(checkpoint, config, &phase->conditions, root);
    }
    bool is_mapped = range.choice.method == BERTH_LOAD_MAP;
    bool is_unchecked =
        phase->checks_crc32 && stored->crc32 != BERTH_CRC_GOOD && stored->crc32 != BERTH_CRC_ABSENT;
    phase->with_crc32 = phase->with_crc32 || is_unchecked;
    if (!is_unchecked && is_mapped && !phase->request->at_once) {
        storage_publish(stored, phase->conditions.is_memory ? "memory" : "map", range.choice.reason,
                        phase->map + root->offset);
        return 0;
    }
    range.shift = (uint8_t)(is_mapped ? 0 : root->offset % bth_storage_alignment(root));
    phase->host.ranges[phase->host.n++] = range;
    return 0;
}

/* Claims the storage, or leaves it to the second phase. Does nothing if it is loaded. */
static int phase_claim_storage(struct phase *phase, const berth_storage *root, berth_error *error)
{
    bth_storage_target *target = storage_device_target(phase->checkpoint, root);
    bth_storage_state *stored = storage_get_state(phase->checkpoint, root);

    if (target && !phase->request->at_once) /* even if it is loaded */
        return bth_fail_argument(
            error,
            "it is on %s, where the host cannot follow an address: "
            "berth_tensor_device_address returns that address, berth_tensor_read "
            "copies the bytes",
            bth_wing_device.name(target->range.device));
    if (storage_is_loaded(phase->checkpoint, root))
        return 0;
    if (phase_leaves_storage_to_others(phase, root)) {
        phase->rest[phase->n_rest++] = root;
        return 0;
    }
    if (stored->is_ambiguous)
        return bth_storage_fail_ambiguous_swap(root, error);
    if (target && bth_storage_check_may_inflate(phase->checkpoint, root,
                                                "it cannot be loaded to a device: load it to the "
                                                "host, and copy it from there",
                                                error) < 0)
        return error->code;
    if (root->nbytes == 0) {
        if (target)
            target->is_there = true;
        storage_publish(stored, "memory", "it is empty", target ? NULL : no_bytes);
        return 0;
    }
    bth_range range = {.owner = root,
                       .offset = root->offset,
                       .nbytes = root->nbytes,
                       .deflated = stored->deflated,
                       .unit = stored->unit};
    if (!target)
        return stored->deflated ? phase_claim_to_inflate(phase, root, range, error)
                                : phase_claim_storage_for_host(phase, root, range, error);
    range.target = target->range;
    phase->conditions.use = BTH_USE_DEVICE;
    range.choice =
        bth_storage_choose(phase->checkpoint, phase->request->config, &phase->conditions, root);
    phase->conditions.use = BTH_USE_MEMORY;
    /* T5: its address on the device is aligned; in the file its elements may not be. */
    range.shift = (uint8_t)(range.unit > 1 ? root->offset % range.unit : 0);
    if (range.shift > 0)
        range.choice = (bth_choice){BERTH_LOAD_READ, "it is not aligned for its elements"};
    /* Z10: sums it even if it was summed before: the file may have changed since. */
    if (phase->checks_crc32 && stored->crc32 != BERTH_CRC_ABSENT)
        phase->with_crc32 = true;
    phase->device.ranges[phase->device.n++] = range;
    return 0;
}

/* The storages that were claimed for the host are not loaded after all. */
static void phase_release_inflated(const struct phase *phase)
{
    for (size_t i = 0; i < phase->host.n; i++)
        if (phase->host.ranges[i].deflated)
            phase->checkpoint->storages.inflated_nbytes -= phase->host.ranges[i].nbytes;
}

/* Of the claimed storages, and of those that are left to the second phase. */
static void phase_mark_claims(const struct phase *phase, bool is_loading)
{
    for (size_t i = 0; i < phase->host.n; i++)
        storage_get_state(phase->checkpoint, phase->host.ranges[i].owner)->is_loading = is_loading;
    for (size_t i = 0; i < phase->device.n; i++)
        storage_get_state(phase->checkpoint, phase->device.ranges[i].owner)->is_loading =
            is_loading;
    for (size_t i = 0; i < phase->n_rest; i++)
        storage_get_state(phase->checkpoint, phase->rest[i])->n_waiting += is_loading ? 1 : -1;
}

/*
 * Fills the phase's ranges. They belong to this thread until they are published. After a failure
 * nothing is claimed.
 */
static int phase_lock_and_claim_storages(struct phase *phase, const berth_storage *const *roots,
                                         size_t n, berth_error *error)
{
    berth_checkpoint *checkpoint = phase->checkpoint;
    bth_access *access = &checkpoint->source.access;
    uint64_t begin = UINT64_MAX, end = 0, requested_nbytes = 0;
    const berth_storage *failed = NULL;

    bth_checkpoint_lock(checkpoint);
    for (size_t i = 0; phase->is_second && i < n;) { /* until no other thread loads any of them */
        if (!storage_get_state(checkpoint, roots[i])->is_loading) {
            i++;
            continue;
        }
        (void)pthread_cond_wait(&checkpoint->storages.finished, &checkpoint->lock.mutex);
        i = 0; /* again from the start: the wait released the lock */
    }
    bth_access_set_known_conditions(access, &phase->conditions);
    for (size_t i = 0; phase->request->at_once && i < n; i++) {
        if (roots[i]->nbytes == 0 || storage_is_loaded(checkpoint, roots[i]) ||
            phase_leaves_storage_to_others(phase, roots[i]))
            continue;
        requested_nbytes += roots[i]->nbytes;
        begin = bth_min(begin, roots[i]->offset);
        end = roots[i]->offset + roots[i]->nbytes;
    }
    if (phase->request->at_once)
        bth_access_measure(access, &phase->conditions, begin, end, requested_nbytes);
    if (phase->checks_crc32) {
        BTH_HOLD_CANCEL(true); /* it may be read */
        (void)bth_contents_ensure_directory(&checkpoint->contents, &checkpoint->source.reader,
                                            error);
    }
    for (size_t i = 0; i < n && error->code == 0; i++)
        if (phase_claim_storage(phase, roots[i], error) < 0)
            failed = roots[i];
    if (error->code < 0) {
        phase_release_inflated(phase);
        phase->host.n = phase->device.n = phase->n_rest = 0;
    }
    phase_mark_claims(phase, true);
    bth_checkpoint_unlock(checkpoint);
    return failed ? bth_error_in_storage(checkpoint, failed, error) : error->code;
}

/* ---- without the lock: memory, and the transfers ---- */

/*
 * Called before anything is read. The error names the first storage that does not fit. X15: refuses
 * only if even reclaiming all possible memory is not enough. The allocation itself proves nothing:
 * Linux grants it, and kills the process when it fills the memory.
 */
static int phase_check_free_memory(const struct phase *phase, uint64_t nbytes, berth_error *error)
{
    const struct range_list *host = &phase->host;
    size_t i = 0;

    if (nbytes < MEASURED_MIN_NBYTES)
        return 0;
    uint64_t free_nbytes =
        phase->request->at_once ? phase->conditions.free_nbytes : bth_free_memory_nbytes("");
    if (nbytes <= free_nbytes)
        return 0;
    while (i + 1 < host->n && (host->ranges[i].choice.method == BERTH_LOAD_MAP ||
                               host->ranges[i].region_at + host->ranges[i].nbytes <= free_nbytes))
        i++;
    const berth_storage *storage = host->ranges[i].owner;
    (void)bth_fail(error, BERTH_E_MEMORY, NULL, storage->offset,
                   "not enough memory: of %llu bytes needed, %llu are missing", (ull)nbytes,
                   (ull)(nbytes - free_nbytes));
    return bth_error_in_storage(phase->checkpoint, storage, error);
}

static bth_transfer phase_make_transfer(struct phase *phase, const struct range_list *list,
                                        bth_use use)
{
    return (bth_transfer){
        .access = &phase->checkpoint->source.access,
        .config = phase->request->config,
        .params = phase->request->params,
        .calls = {.context = phase->checkpoint, .name = bth_range_add_storage_to_error},
        .with_crc32 = phase->with_crc32,
        .is_cold = phase->conditions.at_once && phase->conditions.page_cache == BTH_PAGE_CACHE_COLD,
        .requests = {.ranges = list->ranges, .n_ranges = list->n, .use = use}};
}

static int phase_run_host(struct phase *phase, bth_transfer *transfer, berth_error *error)
{
    const bth_requests *requests = &transfer->requests;
    bool is_spread = phase->request->config->io_numa == BTH_NUMA_INTERLEAVE;

    if (phase->host.n == 0)
        return 0;
    if (requests->region_nbytes > 0) {
        if (phase_check_free_memory(phase, requests->region_nbytes, error) < 0)
            goto end;
        phase->region = bth_allocate_zeroed(sizeof *phase->region);
        if (!phase->region) {
            (void)bth_fail_memory(error, sizeof *phase->region);
            goto end;
        }
        phase->region->nbytes = requests->region_nbytes;
        if (bth_region_new(requests->region_nbytes, requests->block_nbytes, is_spread, NULL,
                           &phase->region->region, error) < 0)
            goto end;
    }
    if (bth_transfer_cut(transfer, phase->region ? phase->region->region.bytes : NULL, phase->map,
                         error) == 0 &&
        bth_transfer_run(transfer, error) == 0)
        (void)bth_ranges_check_crc32s(phase->checkpoint, transfer, error);
end:
    bth_stats_add_transfer(phase->stats, transfer);
    bth_transfer_end(transfer);
    return error->code;
}

static int phase_run(struct phase *phase, berth_error *error)
{
    bth_transfer host = phase_make_transfer(phase, &phase->host, BTH_USE_MEMORY);
    bth_to_device device = {.transfer = phase_make_transfer(phase, &phase->device, BTH_USE_DEVICE)};
    const struct berth_config *config = phase->request->config;
    uint64_t chunk_nbytes = bth_workers_chunk_nbytes(config);
    uint64_t staging_nbytes = (uint64_t)config->device_staging_nbytes;
    uint64_t memory_nbytes = (uint64_t)config->io_memory_nbytes;
    berth_stats *stats = phase->stats;
    double begin_seconds = bth_seconds();

    BTH_HOLD_CANCEL(true);
    /* The longest request to a device: what one staging buffer holds. */
    if (staging_nbytes && (staging_nbytes < chunk_nbytes || !config->io_chunk_nbytes))
        chunk_nbytes = bth_min(staging_nbytes, UINT32_MAX / 2);
    if (memory_nbytes && memory_nbytes < chunk_nbytes && chunk_nbytes > BTH_LARGE_PAGE_NBYTES)
        chunk_nbytes = BTH_LARGE_PAGE_NBYTES; /* the minimum size of a buffer */
    device.transfer.requests.chunk_nbytes = bth_max(
        chunk_nbytes - chunk_nbytes % BTH_MAX_DIRECT_BLOCK_NBYTES, BTH_MAX_DIRECT_BLOCK_NBYTES);
    if (bth_transfer_measure_requests(&host, error) < 0 ||
        bth_transfer_measure_requests(&device.transfer, error) < 0)
        return error->code;
    host.later_nbytes = device.transfer.requests.nbytes;
    device.transfer.earlier_nbytes = host.requests.nbytes;
    if (phase_run_host(phase, &host, error) == 0 && phase->device.n > 0) {
        if (bth_transfer_cut(&device.transfer, NULL, NULL, error) == 0 &&
            bth_wing_to_device.run(&device, error) == 0)
            (void)bth_ranges_check_crc32s(phase->checkpoint, &device.transfer, error);
        phase->device_memory = device.memory;
        if (stats) {
            bth_stats_add_transfer(stats, &device.transfer);
            stats->device_seconds += device.device_seconds;
            stats->memory_nbytes += device.staging_nbytes;
            for (size_t i = 0; i < phase->device.n && error->code == 0; i++)
                stats->device_nbytes += phase->device.ranges[i].nbytes;
        }
        bth_transfer_end(&device.transfer);
    }
    double end_seconds = bth_seconds();
    if (stats)
        stats->transfer_seconds += end_seconds - begin_seconds;
    BTH_TRACE(.category = "stage", .name = "transfer", .begin_seconds = begin_seconds,
              .end_seconds = end_seconds);
    return error->code;
}

/* ---- under the lock again: claims are published or dropped ---- */

static void phase_publish_range(const struct phase *phase, const bth_range *range)
{
    const berth_storage *root = range->owner;
    bth_storage_state *stored = storage_get_state(phase->checkpoint, root);
    bool is_mapped = range->choice.method == BERTH_LOAD_MAP;

    stored->moved_nbytes = is_mapped ? 0 : range->nbytes;
    storage_publish(
        stored,
        bth_choice_method_name(range->choice, phase->conditions.is_memory, range->fell_back),
        range->fell_back ? "a direct read was refused" : range->choice.reason,
        range->target.device ? NULL : range->memory);
    if (!range->target.device)
        return;
    bth_storage_target *target = &phase->checkpoint->storages.targets[root->index];
    target->range = range->target;
    target->range.ready = NULL; /* the caller may destroy it now */
    target->is_there = true;
}

/* The checkpoint owns the phase's memory from now on; after a failure it is freed. */
static void phase_publish_or_drop_claims(struct phase *phase, bool is_good)
{
    bth_storages *storages = &phase->checkpoint->storages;
    bth_device_memory_list **last = &phase->device_memory;

    phase_mark_claims(phase, false);
    if (!is_good) {
        if (phase->region)
            bth_region_free(&phase->region->region);
        bth_release(phase->region);
        if (phase->device_memory)
            bth_wing_to_device.free_memory(phase->device_memory);
        phase_release_inflated(phase);
        return;
    }
    /* Memory first: bth_checkpoint_reset_after_fork needs it in a child. */
    if (phase->region) {
        phase->region->n_forks = bth_fork_count();
        phase->region->next = storages->regions;
        storages->regions = phase->region;
        if (phase->stats)
            phase->stats->memory_nbytes += phase->region->nbytes;
    }
    while (*last)
        last = &(*last)->next;
    *last = storages->device_memory;
    storages->device_memory = phase->device_memory;
    for (size_t i = 0; i < phase->host.n; i++)
        phase_publish_range(phase, &phase->host.ranges[i]);
    for (size_t i = 0; i < phase->device.n; i++)
        phase_publish_range(phase, &phase->device.ranges[i]);
}

/* ---- the whole ---- */

static int phase_claim_and_run(struct phase *phase, const berth_storage *const *roots, size_t n,
                               berth_error *error)
{
    if (phase_lock_and_claim_storages(phase, roots, n, error) < 0 ||
        phase->host.n + phase->device.n == 0)
        return error->code;
    bth_trace_scope traced = {0};
    bth_trace_enter_outermost(&traced, phase->request->config->trace, "load storage",
                              phase->checkpoint->source.reader.name);
    (void)phase_run(phase, error);
    bth_trace_leave_lazily(&traced);
    return error->code;
}

int bth_storages_load(berth_checkpoint *checkpoint, const bth_load_request *request,
                      const berth_storage *const *roots, size_t n, berth_error *error)
{
    bth_range few[2], *ranges = few; /* for twice n: each storage goes to the host or a device */
    const berth_storage *one, **rest = &one;
    size_t nbytes = n * (2 * sizeof *ranges + sizeof *rest);

    if (n > 1) {
        ranges = bth_allocate(nbytes);
        if (!ranges)
            return bth_fail_memory(error, nbytes);
        rest = (const berth_storage **)(void *)(ranges + 2 * n);
    }
    struct phase first = {.checkpoint = checkpoint,
                          .request = request,
                          .stats = request->params ? request->params->stats : NULL,
                          .checks_crc32 = request->config->load_check >= BTH_CHECK_DATA,
                          .host.ranges = ranges,
                          .device.ranges = ranges + n,
                          .rest = rest};
    struct phase second = first;
    second.is_second = true;
    if (phase_claim_and_run(&first, roots, n, error) == 0 && first.n_rest > 0) {
        BTH_HOLD_CANCEL(true);
        second.host.ranges += first.host.n;
        second.device.ranges += first.device.n;
        (void)phase_claim_and_run(&second, rest, first.n_rest, error);
    }
    if (first.host.n + first.device.n + first.n_rest > 0) {
        bth_checkpoint_lock(checkpoint);
        phase_publish_or_drop_claims(&first, error->code == 0);
        phase_publish_or_drop_claims(&second, error->code == 0);
        (void)pthread_cond_broadcast(&checkpoint->storages.finished);
        bth_checkpoint_unlock(checkpoint);
    }
    if (n > 1)
        bth_release(ranges);
    return error->code;
}
