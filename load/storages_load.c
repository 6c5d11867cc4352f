/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/storages_load.h"

#include <stdio.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/values/value.h"
#include "io/clock.h"
#include "io/free_memory.h"

/* For less, free memory is not measured. */
#define MEASURED_MIN_NBYTES ((uint64_t)16 * 1024 * 1024)
/* The widest element that has to be aligned: what an untyped storage may be viewed as. */
#define WIDEST_UNIT 8

typedef unsigned long long ull;

/* The address of an empty storage: it is not NULL, and 0 bytes may be read from it. */
static const _Alignas(BTH_MEMORY_ALIGNMENT) uint8_t no_bytes[BTH_MEMORY_ALIGNMENT];

struct range_list {
    bth_range *ranges;
    size_t n;
};

/*
 * One of the two phases of a load. The first claims what no other thread has, loads or waits for.
 * The second waits until other threads are done with the rest, and then claims what is left at
 * once: where they failed, it is this thread's turn. Nothing is published before both are done: all
 * or nothing.
 *
 * A thread that waits holds what its first phase claimed, but none waits for ever: what a first
 * phase leaves was claimed, or wanted, by a thread that had begun before. So threads only wait for
 * earlier ones; and a second phase waits no more once it has claimed.
 */
struct phase {
    berth_checkpoint *checkpoint;
    bth_load_request *request;
    bool is_second;
    bth_conditions conditions;
    struct range_list host;     /* what goes to the host, */
    struct range_list device;   /* and to devices */
    const berth_storage **rest; /* left to the second phase */
    size_t n_rest;
    bool with_crc32;    /* CRCs are asked for, and not known of all */
    const uint8_t *map; /* the file's first byte, if any range is mapped */
    bth_kept_region *region;
    bth_device_memory_list *device_memory;
};

static const berth_storage *range_storage(const bth_range *range)
{
    return range->owner;
}

static bth_stored *storage_stored(const berth_checkpoint *checkpoint, const berth_storage *root)
{
    return &checkpoint->storages.stored[root->index];
}

/* ---- facts of one storage ---- */

bool bth_storage_is_untyped(const berth_storage *storage)
{
    return storage->dtype == BERTH_DTYPE_NONE || storage->dtype == BERTH_UINT8;
}

size_t bth_storage_alignment(const berth_storage *storage)
{
    return bth_storage_is_untyped(storage) ? WIDEST_UNIT : bth_dtype_swap_nbytes(storage->dtype);
}

/* ---- with the lock held: choices ---- */

/* T5: what cannot be used in place is read, whatever was chosen. */
static bth_choice storage_choice_in_place(const berth_checkpoint *checkpoint,
                                          const berth_storage *root, bth_choice choice)
{
    uintptr_t address =
        (uintptr_t)checkpoint->source.reader.memory + root->offset; /* maps: page-aligned */

    if (choice.method != BERTH_LOAD_MAP)
        return choice;
    if (storage_stored(checkpoint, root)->unit > 1)
        return (bth_choice){BERTH_LOAD_READ, "it is in the other byte order"};
    if (address % bth_storage_alignment(root) != 0)
        return (bth_choice){BERTH_LOAD_READ, "it is not aligned for its elements"};
    return choice;
}

bth_choice bth_storage_choose(berth_checkpoint *checkpoint, const struct berth_config *config,
                              bth_conditions *conditions, const berth_storage *root)
{
    const bth_stored *stored = storage_stored(checkpoint, root);
    berth_load_method asked =
        stored->chosen_by ? stored->chosen : (berth_load_method)config->load_method;
    bth_choice choice =
        bth_access_choose(&checkpoint->source.access, config, conditions, asked, stored->chosen_by);

    return storage_choice_in_place(checkpoint, root, choice);
}

/* The choice and the map, if it is mapped: that it cannot be may be known only now. */
static int phase_choose(struct phase *phase, const berth_storage *root, bth_choice *choice,
                        berth_error *error)
{
    const struct berth_config *config = phase->request->config;
    int flags = (int)phase->checkpoint->config.load_mmap_flags;

    *choice = bth_storage_choose(phase->checkpoint, config, &phase->conditions, root);
    if (choice->method != BERTH_LOAD_MAP || phase->map)
        return 0;
    if (bth_access_map(&phase->checkpoint->source.access, flags, root->offset, &phase->map, error) <
        0)
        return error->code;
    phase->conditions.cannot_map = !phase->map;
    if (!phase->map)
        *choice = bth_storage_choose(phase->checkpoint, config, &phase->conditions, root);
    return 0;
}

/* ---- with the lock held: claims ---- */

static bool storage_is_loaded(const berth_checkpoint *checkpoint, const berth_storage *root)
{
    return atomic_load(&storage_stored(checkpoint, root)->memory) ||
           (checkpoint->storages.placed && checkpoint->storages.placed[root->index].is_there);
}

/* Whether it is left to other threads, which load it or waited first. */
static bool phase_leaves(const struct phase *phase, const berth_storage *root)
{
    const bth_stored *stored = storage_stored(phase->checkpoint, root);

    return stored->is_coming || (!phase->is_second && stored->n_waiting > 0);
}

static bool phase_wants(const struct phase *phase, const berth_storage *root)
{
    return !storage_is_loaded(phase->checkpoint, root) && !phase_leaves(phase, root);
}

/* What a load at once looks at before it chooses. */
static void phase_measure(struct phase *phase, const berth_storage *const *roots, size_t n)
{
    bth_access *access = &phase->checkpoint->source.access;
    uint64_t begin = UINT64_MAX, end = 0, asked_nbytes = 0;

    bth_access_describe(access, &phase->conditions);
    phase->conditions.at_once = phase->request->at_once;
    if (!phase->request->at_once)
        return;
    for (size_t i = 0; i < n; i++) {
        if (!phase_wants(phase, roots[i]) || roots[i]->nbytes == 0)
            continue;
        asked_nbytes += roots[i]->nbytes;
        begin = roots[i]->offset < begin ? roots[i]->offset : begin;
        end = roots[i]->offset + roots[i]->nbytes;
    }
    bth_access_measure(access, &phase->conditions, begin, end, asked_nbytes);
}

/* Nothing more is to be done for it. */
static void storage_publish(bth_stored *stored, const char *method, const char *reason,
                            const uint8_t *memory)
{
    stored->method = method;
    stored->reason = reason;
    atomic_store(&stored->memory, memory);
}

static bool phase_wants_crc32(struct phase *phase, const bth_stored *stored)
{
    bool wants = phase->request->with_crc32 && stored->crc32 != BERTH_CRC_GOOD &&
                 stored->crc32 != BERTH_CRC_ABSENT;

    phase->with_crc32 = phase->with_crc32 || wants;
    return wants;
}

/* What goes to a device. T5: there it is aligned, but in the file its elements may not be. */
static void phase_claim_for_device(struct phase *phase, const berth_storage *root,
                                   bth_placed *placed)
{
    bth_stored *stored = storage_stored(phase->checkpoint, root);

    if (root->nbytes == 0) {
        placed->is_there = true;
        storage_publish(stored, "memory", "it is empty", NULL);
        return;
    }
    bth_range range = {.owner = root,
                       .offset = root->offset,
                       .nbytes = root->nbytes,
                       .unit = stored->unit,
                       .target = {.device = placed->device,
                                  .address = placed->address,
                                  .life = placed->life,
                                  .ready = placed->ready}};
    phase->conditions.use = BTH_USE_DEVICE;
    range.choice =
        bth_storage_choose(phase->checkpoint, phase->request->config, &phase->conditions, root);
    phase->conditions.use = BTH_USE_MEMORY;
    range.shift = (uint8_t)(stored->unit > 1 ? root->offset % stored->unit : 0);
    if (range.shift > 0)
        range.choice = (bth_choice){BERTH_LOAD_READ, "it is not aligned for its elements"};
    /* Z10: what was summed before is read once more, and may be different by now. */
    phase->with_crc32 =
        phase->with_crc32 || (phase->request->with_crc32 && stored->crc32 != BERTH_CRC_ABSENT);
    phase->device.ranges[phase->device.n++] = range;
}

static int phase_claim_one(struct phase *phase, const berth_storage *root, berth_error *error)
{
    bth_placed *placed = phase->checkpoint->storages.placed;
    bth_stored *stored = storage_stored(phase->checkpoint, root);
    bth_choice choice;

    if (stored->is_ambiguous)
        return bth_fail_ambiguous(root, error);
    if (placed && placed[root->index].device) {
        phase_claim_for_device(phase, root, &placed[root->index]);
        return 0;
    }
    if (root->nbytes == 0) {
        storage_publish(stored, "memory", "it is empty", no_bytes);
        return 0;
    }
    if (phase_choose(phase, root, &choice, error) < 0)
        return error->code;
    bool is_mapped = choice.method == BERTH_LOAD_MAP;
    if (!phase_wants_crc32(phase, stored) && is_mapped && !phase->request->at_once) {
        storage_publish(stored, phase->conditions.is_memory ? "memory" : "map", choice.reason,
                        phase->map + root->offset);
        return 0;
    }
    phase->host.ranges[phase->host.n++] =
        (bth_range){.owner = root,
                    .offset = root->offset,
                    .nbytes = root->nbytes,
                    .unit = stored->unit,
                    .choice = choice,
                    .shift = (uint8_t)(is_mapped ? 0 : root->offset % bth_storage_alignment(root))};
    return 0;
}

/* Who needs an address of the host's gets an error, whether it was loaded or not. */
static int phase_check_place(const struct phase *phase, const berth_storage *root,
                             berth_error *error)
{
    const bth_placed *placed = phase->checkpoint->storages.placed;

    if (phase->request->to_devices || !placed || !placed[root->index].device)
        return 0;
    return bth_fail_on_device(placed[root->index].device, error);
}

static void phase_set_coming(const struct phase *phase, bool is_coming)
{
    for (size_t i = 0; i < phase->host.n; i++)
        storage_stored(phase->checkpoint, range_storage(&phase->host.ranges[i]))->is_coming =
            is_coming;
    for (size_t i = 0; i < phase->device.n; i++)
        storage_stored(phase->checkpoint, range_storage(&phase->device.ranges[i]))->is_coming =
            is_coming;
}

static void phase_set_waiting(const struct phase *phase, int change)
{
    for (size_t i = 0; i < phase->n_rest; i++)
        storage_stored(phase->checkpoint, phase->rest[i])->n_waiting += change;
}

/* Until no thread loads any of them: then they are loaded, or it failed. */
static void wait_for_others(berth_checkpoint *checkpoint, const berth_storage *const *roots,
                            size_t n)
{
    for (size_t i = 0; i < n;) {
        if (!storage_stored(checkpoint, roots[i])->is_coming) {
            i++;
            continue;
        }
        (void)pthread_cond_wait(&checkpoint->storages.settled, &checkpoint->lock.mutex);
        i = 0; /* it was unlocked meanwhile */
    }
}

/* After an error nothing is claimed. */
static void phase_claim_all(struct phase *phase, const berth_storage *const *roots, size_t n,
                            berth_error *error)
{
    for (size_t i = 0; i < n && error->code == 0; i++) {
        if (phase_check_place(phase, roots[i], error) < 0 ||
            (phase_wants(phase, roots[i]) && phase_claim_one(phase, roots[i], error) < 0))
            (void)bth_error_in_storage(phase->checkpoint, roots[i], error);
        else if (!storage_is_loaded(phase->checkpoint, roots[i]) && phase_leaves(phase, roots[i]))
            phase->rest[phase->n_rest++] = roots[i];
    }
    if (error->code < 0)
        phase->host.n = phase->device.n = phase->n_rest = 0;
}

/* Fills the phase's ranges. They are this thread's, until they are published. */
static int phase_claim(struct phase *phase, const berth_storage *const *roots, size_t n,
                       berth_error *error)
{
    berth_checkpoint *checkpoint = phase->checkpoint;

    bth_checkpoint_lock(checkpoint);
    if (phase->is_second)
        wait_for_others(checkpoint, roots, n);
    phase_measure(phase, roots, n);
    if (phase->request->with_crc32)
        (void)bth_contents_need_directory(&checkpoint->contents, &checkpoint->source.reader, error);
    phase_claim_all(phase, roots, n, error);
    phase_set_coming(phase, true);
    phase_set_waiting(phase, 1);
    bth_checkpoint_unlock(checkpoint);
    return error->code;
}

/* ---- without the lock: memory, and the transfers ---- */

/* The name of a tensor that views the storage, or nothing. */
static void storage_describe(const berth_checkpoint *checkpoint, const berth_storage *root,
                             char *text, size_t text_nbytes)
{
    berth_error unasked = {0};
    const bth_names *names = bth_checkpoint_names(checkpoint, &unasked);
    char *name, *path;

    text[0] = '\0';
    for (size_t i = 0; names && i < bth_names_count(names); i++) {
        const berth_tensor *tensor = berth_as_tensor(bth_names_value(names, i));
        if (!tensor || !tensor->storage ||
            (tensor->storage != root && tensor->storage->root != root))
            continue;
        if (bth_names_text(names, i, &name, &path, &unasked) == 0) {
            (void)snprintf(text, text_nbytes, " for \"%.80s\"", name);
            bth_release(name);
            bth_release(path);
        }
        return;
    }
}

/*
 * Before anything is read: names the first that does not fit, and what is missing. X15: only what
 * exceeds all that could be reclaimed is refused. The allocation itself cannot decide: Linux grants
 * it, and kills the process that then fills it.
 */
static int phase_check_memory(const struct phase *phase, uint64_t nbytes, berth_error *error)
{
    const struct range_list *host = &phase->host;
    char name[100];
    size_t i = 0;

    if (nbytes < MEASURED_MIN_NBYTES)
        return 0;
    uint64_t free_nbytes =
        phase->request->at_once ? phase->conditions.free_nbytes : bth_free_memory("");
    if (nbytes <= free_nbytes)
        return 0;
    while (i + 1 < host->n && (host->ranges[i].choice.method == BERTH_LOAD_MAP ||
                               host->ranges[i].region_at + host->ranges[i].nbytes <= free_nbytes))
        i++;
    const berth_storage *storage = range_storage(&host->ranges[i]);
    storage_describe(phase->checkpoint, storage, name, sizeof name);
    (void)bth_fail(error, BERTH_E_MEMORY, NULL, storage->offset,
                   "there is no memory%s: of %llu bytes needed, %llu are missing", name,
                   (ull)nbytes, (ull)(nbytes - free_nbytes));
    return bth_error_in_storage(phase->checkpoint, storage, error);
}

static int phase_make_region(struct phase *phase, const bth_requests *requests, berth_error *error)
{
    bool is_spread = phase->request->config->io_numa == BTH_NUMA_INTERLEAVE;

    if (requests->region_nbytes == 0)
        return 0;
    if (phase_check_memory(phase, requests->region_nbytes, error) < 0)
        return error->code;
    phase->region = bth_allocate_zeroed(sizeof *phase->region);
    if (!phase->region)
        return bth_fail_memory(error, sizeof *phase->region);
    phase->region->nbytes = requests->region_nbytes;
    return bth_region_new(requests->region_nbytes, requests->block_nbytes, is_spread,
                          &phase->region->region, error);
}

/* Z10: the CRCs of what was loaded. */
static int phase_check_crc32s(const struct phase *phase, const struct range_list *list,
                              berth_error *error)
{
    for (size_t i = 0; phase->with_crc32 && i < list->n; i++)
        (void)bth_storage_check_crc32(phase->checkpoint, range_storage(&list->ranges[i]),
                                      list->ranges[i].crc32, error);
    return error->code;
}

static int phase_name(void *context, const bth_range *range, berth_error *error)
{
    const struct phase *phase = context;

    return bth_error_in_storage(phase->checkpoint, range_storage(range), error);
}

static bth_transfer phase_transfer(struct phase *phase, const struct range_list *list, bth_use use)
{
    return (bth_transfer){.access = &phase->checkpoint->source.access,
                          .config = phase->request->config,
                          .params = phase->request->params,
                          .calls = {.context = phase, .name = phase_name},
                          .with_crc32 = phase->with_crc32,
                          .requests = {.ranges = list->ranges, .n_ranges = list->n, .use = use}};
}

static void phase_count(struct phase *phase, bth_transfer *transfer)
{
    bth_load_request *request = phase->request;

    request->moved_nbytes += atomic_load(&transfer->moved_nbytes);
    request->n_requests += atomic_load(&transfer->n_reads);
    request->disk_seconds += (double)atomic_load(&transfer->disk_nanoseconds) * 1e-9;
    request->render_seconds += (double)atomic_load(&transfer->render_nanoseconds) * 1e-9;
    request->crc32_seconds += (double)atomic_load(&transfer->crc32_nanoseconds) * 1e-9;
    bth_transfer_end(transfer);
}

static int phase_run_host(struct phase *phase, bth_transfer *transfer, berth_error *error)
{
    if (phase->host.n == 0)
        return 0;
    if (phase_make_region(phase, &transfer->requests, error) == 0 &&
        bth_transfer_cut(transfer, phase->region ? phase->region->region.bytes : NULL, phase->map,
                         error) == 0 &&
        bth_transfer_run(transfer, error) == 0)
        (void)phase_check_crc32s(phase, &phase->host, error);
    phase_count(phase, transfer);
    return error->code;
}

static int phase_run_device(struct phase *phase, bth_to_device *to, berth_error *error)
{
    if (phase->device.n == 0)
        return 0;
    if (bth_transfer_cut(&to->transfer, NULL, NULL, error) == 0 &&
        bth_to_device_run(to, error) == 0)
        (void)phase_check_crc32s(phase, &phase->device, error);
    phase_count(phase, &to->transfer);
    phase->device_memory = to->memory;
    phase->request->device_seconds += to->device_seconds;
    phase->request->memory_nbytes += to->staging_nbytes;
    for (size_t i = 0; i < phase->device.n && error->code == 0; i++)
        phase->request->device_nbytes += phase->device.ranges[i].nbytes;
    return error->code;
}

static int phase_run(struct phase *phase, berth_error *error)
{
    bth_transfer host = phase_transfer(phase, &phase->host, BTH_USE_MEMORY);
    bth_to_device device = {.transfer = phase_transfer(phase, &phase->device, BTH_USE_DEVICE)};
    double begin_seconds = bth_seconds();

    BTH_HOLD_CANCEL(true);
    device.transfer.requests.chunk_nbytes = bth_staged_nbytes(phase->request->config);
    if (bth_transfer_prepare(&host, error) < 0 || bth_transfer_prepare(&device.transfer, error) < 0)
        return error->code;
    host.later_nbytes = device.transfer.requests.nbytes;
    device.transfer.earlier_nbytes = host.requests.nbytes;
    if (phase_run_host(phase, &host, error) == 0)
        (void)phase_run_device(phase, &device, error);
    phase->request->transfer_seconds += bth_seconds() - begin_seconds;
    return error->code;
}

/* ---- with the lock held again: published, or given back ---- */

static void phase_publish(const struct phase *phase, const bth_range *range)
{
    size_t index = range_storage(range)->index;
    bth_stored *stored = &phase->checkpoint->storages.stored[index];
    bool is_mapped = range->choice.method == BERTH_LOAD_MAP;

    stored->moved_nbytes = is_mapped ? 0 : range->nbytes;
    storage_publish(stored,
                    bth_choice_name(range->choice, phase->conditions.is_memory, range->fell_back),
                    range->fell_back ? "a direct read was refused" : range->choice.reason,
                    range->target.device ? NULL : range->memory);
    if (!range->target.device)
        return;
    bth_placed *placed = &phase->checkpoint->storages.placed[index];
    placed->address = range->target.address;
    placed->life = range->target.life;
    placed->ready = NULL; /* the caller may have destroyed it */
    placed->is_there = true;
}

/* Memory belongs to the checkpoint from now on, or is given back. */
static void phase_finish_memory(struct phase *phase, bool is_good)
{
    bth_storages *storages = &phase->checkpoint->storages;
    bth_device_memory_list **last = &phase->device_memory;

    if (!is_good) {
        bth_kept_region_free(phase->region);
        bth_device_memory_list_free(phase->device_memory);
        return;
    }
    if (phase->region) {
        phase->region->n_forks = bth_forks();
        phase->region->next = storages->regions;
        storages->regions = phase->region;
        phase->request->memory_nbytes += phase->region->nbytes;
    }
    while (*last)
        last = &(*last)->next;
    *last = storages->device_memory;
    storages->device_memory = phase->device_memory;
}

static void phase_finish(struct phase *phase, bool is_good)
{
    phase_set_coming(phase, false);
    phase_set_waiting(phase, -1);
    phase_finish_memory(phase, is_good); /* first: a child looks there for what it cannot trust */
    for (size_t i = 0; i < phase->host.n && is_good; i++)
        phase_publish(phase, &phase->host.ranges[i]);
    for (size_t i = 0; i < phase->device.n && is_good; i++)
        phase_publish(phase, &phase->device.ranges[i]);
}

static void load_finish(struct phase *first, struct phase *second, bool is_good)
{
    berth_checkpoint *checkpoint = first->checkpoint;

    if (first->host.n + first->device.n + first->n_rest == 0)
        return;
    bth_checkpoint_lock(checkpoint);
    phase_finish(first, is_good);
    phase_finish(second, is_good);
    (void)pthread_cond_broadcast(&checkpoint->storages.settled);
    bth_checkpoint_unlock(checkpoint);
}

/* ---- the whole ---- */

static int phase_load(struct phase *phase, const berth_storage *const *roots, size_t n,
                      berth_error *error)
{
    if (phase_claim(phase, roots, n, error) < 0 || phase->host.n + phase->device.n == 0)
        return error->code;
    return phase_run(phase, error);
}

/* `ranges`: room for twice n, either to the host or to a device; `rest`: for n. */
static void load_in_phases(struct phase *first, bth_range *ranges, const berth_storage **rest,
                           const berth_storage *const *roots, size_t n, berth_error *error)
{
    struct phase second = {
        .checkpoint = first->checkpoint, .request = first->request, .is_second = true};

    first->host.ranges = ranges;
    first->device.ranges = ranges + n;
    first->rest = rest;
    if (phase_load(first, roots, n, error) == 0 && first->n_rest > 0) {
        BTH_HOLD_CANCEL(true);
        second.host.ranges = first->host.ranges + first->host.n;
        second.device.ranges = first->device.ranges + first->device.n;
        (void)phase_load(&second, rest, first->n_rest, error);
    }
    load_finish(first, &second, error->code == 0);
}

int bth_storages_load(berth_checkpoint *checkpoint, bth_load_request *request,
                      const berth_storage *const *roots, size_t n, berth_error *error)
{
    struct phase first = {.checkpoint = checkpoint, .request = request};
    const berth_storage *one;
    bth_range few[2];

    if (n <= 1) {
        load_in_phases(&first, few, &one, roots, n, error);
        return error->code;
    }
    size_t nbytes = n * (2 * sizeof *few + sizeof one);
    bth_range *ranges = bth_allocate(nbytes);
    if (!ranges)
        return bth_fail_memory(error, nbytes);
    load_in_phases(&first, ranges, (const berth_storage **)(void *)(ranges + 2 * n), roots, n,
                   error);
    bth_release(ranges);
    return error->code;
}
