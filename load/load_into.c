/* SPDX-License-Identifier: BSD-3-Clause */
/* The public side of loading to the caller's memory: many storages or tensors at once, and slices.
 */
#include <stdlib.h>
#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/values/value.h"
#include "io/clock.h"
#include "load/storages_load.h"
#include "load/transfer/read_into.h"

typedef unsigned long long ull;

/* One load. Ranges are what the engine reads; the rest is read one by one. */
struct load_into {
    berth_checkpoint *checkpoint;
    const berth_params *params;
    struct berth_config config;
    const berth_destination *destinations;
    size_t n;
    bth_range *ranges;
    size_t n_ranges;
    const berth_destination **rest;
    size_t n_rest;
    uint64_t asked_nbytes;
};

static const berth_storage *storage_root(const berth_storage *storage)
{
    return storage->root ? storage->root : storage;
}

static int range_name(void *context, const bth_range *range, berth_error *error)
{
    return bth_error_in_storage(context, range->owner, error);
}

/* ---- what is asked for ---- */

static uint64_t destination_needed_nbytes(const berth_destination *destination)
{
    return destination->storage ? destination->storage->nbytes
                                : berth_tensor_nbytes(destination->tensor);
}

static int destination_check(const struct load_into *into, size_t i, berth_error *error)
{
    const berth_destination *destination = &into->destinations[i];

    if (BTH_CHECK_RESERVED(berth_destination, destination, error) < 0)
        return error->code;
    if (!destination->storage == !destination->tensor)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "destination %zu has %s", i,
                        destination->storage ? "a storage and a tensor"
                                             : "neither storage nor tensor");
    int result = destination->storage
                     ? bth_checkpoint_check_storage(into->checkpoint, destination->storage, error)
                     : bth_checkpoint_check_tensor(into->checkpoint, destination->tensor, error);
    if (result < 0)
        return result;
    uint64_t nbytes = destination_needed_nbytes(destination);
    if (destination->nbytes < nbytes || (!destination->address && nbytes > 0))
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                        "destination %zu has memory of %llu bytes, %llu are needed", i,
                        destination->address ? (ull)destination->nbytes : 0, (ull)nbytes);
    return 0;
}

/* Its bytes as one range of the file; false: it has no such range, or is in memory already. */
static bool destination_range(const struct load_into *into, const berth_destination *destination,
                              bth_range *range)
{
    const berth_tensor *tensor = destination->tensor;
    const berth_storage *storage = tensor ? tensor->storage : destination->storage;
    const berth_storage *root = storage_root(storage);
    const bth_stored *stored = &into->checkpoint->storages.stored[root->index];
    uint64_t offset = 0;

    if (tensor &&
        (!berth_tensor_is_contiguous(tensor) || !bth_tensor_begins_at_byte(tensor, &offset)))
        return false;
    offset += storage->root ? storage->root_offset : 0;
    *range = (bth_range){.owner = root,
                         .offset = root->offset + offset,
                         .nbytes = destination_needed_nbytes(destination),
                         .unit = stored->unit,
                         .memory = destination->address};
    return offset % stored->unit == 0 &&
           (range->nbytes % stored->unit == 0 || offset + range->nbytes == root->nbytes) &&
           !stored->is_ambiguous && !bth_storage_found(into->checkpoint, root->index) &&
           !bth_storage_placed(into->checkpoint, root).is_there;
}

/* Z10: the sum of a whole storage is computed on the way; that of a part must be known before. */
static bool range_is_summed_later(const struct load_into *into, const bth_range *range)
{
    const berth_storage *root = range->owner;

    return into->config.load_check < BTH_CHECK_DATA || range->nbytes == root->nbytes;
}

static int compare_ranges(const void *a, const void *b)
{
    const bth_range *first = a, *second = b;

    return (first->offset > second->offset) - (first->offset < second->offset);
}

/* Fills ranges and rest. Of ranges that overlap the later ones are copied from the earlier ones'
 * source once more: two of them may begin in one place. */
static void load_into_divide(struct load_into *into)
{
    for (size_t i = 0; i < into->n; i++) {
        const berth_destination *destination = &into->destinations[i];
        uint64_t nbytes = destination_needed_nbytes(destination);
        bth_range *range = &into->ranges[into->n_ranges];
        into->asked_nbytes += nbytes;
        if (nbytes == 0)
            continue;
        if (destination_range(into, destination, range) && range_is_summed_later(into, range)) {
            into->n_ranges++;
            continue;
        }
        into->rest[into->n_rest++] = destination;
    }
    qsort(into->ranges, into->n_ranges, sizeof *into->ranges, compare_ranges);
}

/* ---- the engine ---- */

/* The ranges that do not overlap an earlier one, to the front; the others behind them. */
static size_t load_into_separate(struct load_into *into)
{
    size_t n = 0, n_others = 0;
    uint64_t end = 0;
    bth_range *others = into->ranges + into->n_ranges;

    for (size_t i = 0; i < into->n_ranges; i++) {
        bth_range range = into->ranges[i];
        if (range.offset < end) {
            others[n_others++] = range;
            continue;
        }
        end = range.offset + range.nbytes;
        into->ranges[n++] = range;
    }
    return n;
}

static int load_into_check_crc32s(const struct load_into *into, size_t n, berth_error *error)
{
    for (size_t i = 0; i < n && into->config.load_check >= BTH_CHECK_DATA; i++)
        if (bth_storage_check_crc32(into->checkpoint, into->ranges[i].owner, into->ranges[i].crc32,
                                    error) < 0)
            return bth_error_in_storage(into->checkpoint, into->ranges[i].owner, error);
    return 0;
}

static int load_into_need_directory(const struct load_into *into, berth_error *error)
{
    berth_checkpoint *checkpoint = into->checkpoint;

    if (into->config.load_check < BTH_CHECK_DATA)
        return 0;
    bth_checkpoint_lock(checkpoint);
    (void)bth_contents_need_directory(&checkpoint->contents, &checkpoint->source.reader, error);
    bth_checkpoint_unlock(checkpoint);
    return error->code;
}

static int load_into_run(struct load_into *into, bth_transfer *transfer, berth_error *error)
{
    berth_checkpoint *checkpoint = into->checkpoint;
    size_t n = load_into_separate(into);

    *transfer =
        (bth_transfer){.config = &into->config,
                       .params = into->params,
                       .calls = {.context = checkpoint, .name = range_name},
                       .with_crc32 = into->config.load_check >= BTH_CHECK_DATA,
                       .requests = {.ranges = into->ranges, .n_ranges = n, .use = BTH_USE_CALLER}};
    if (load_into_need_directory(into, error) < 0 ||
        bth_transfer_once(transfer, &checkpoint->source.reader, checkpoint->prefetches.own != NULL,
                          error) < 0 ||
        load_into_check_crc32s(into, n, error) < 0)
        return error->code;
    /* Overlapping ranges, and what no single range has. */
    for (size_t i = 0; i < into->n_ranges - n; i++) {
        const bth_range *range = &into->ranges[into->n_ranges + i];
        const berth_storage *root = range->owner;
        if (bth_storage_read(checkpoint, root, range->memory, (size_t)range->nbytes,
                             range->offset - root->offset, error) < 0)
            return error->code;
    }
    for (size_t i = 0; i < into->n_rest; i++) {
        const berth_destination *rest = into->rest[i];
        int result = rest->tensor
                         ? bth_tensor_read(checkpoint, rest->tensor, 0,
                                           berth_tensor_numel(rest->tensor), rest->address, error)
                         : bth_storage_read(checkpoint, rest->storage, rest->address,
                                            (size_t)rest->storage->nbytes, 0, error);
        if (result < 0)
            return result;
    }
    return 0;
}

static void load_into_stats(const struct load_into *into, const bth_transfer *transfer,
                            double begin_seconds)
{
    berth_stats *stats = into->params ? into->params->stats : NULL;
    bth_choice choice = {.reason = "every byte was read alone"};

    if (!stats)
        return;
    if (transfer->requests.n_ranges > 0)
        choice = transfer->requests.ranges[0].choice;
    stats->method = bth_choice_name(choice, false, false);
    stats->reason = choice.reason ? choice.reason : "nothing was read";
    stats->total_seconds = bth_seconds() - begin_seconds;
    stats->disk_seconds = (double)atomic_load(&transfer->disk_nanoseconds) * 1e-9;
    stats->render_seconds = (double)atomic_load(&transfer->render_nanoseconds) * 1e-9;
    stats->crc32_seconds = (double)atomic_load(&transfer->crc32_nanoseconds) * 1e-9;
    stats->asked_nbytes = into->asked_nbytes;
    stats->moved_nbytes = atomic_load(&transfer->moved_nbytes);
    stats->n_requests = atomic_load(&transfer->n_reads);
    stats->n_storages = stats->n_records = into->n;
    stats->calculated_offsets = into->checkpoint->contents.calculated_offsets;
}

/* ---- the public function ---- */

static int load_into(struct load_into *into, berth_error *error)
{
    double begin_seconds = bth_seconds();
    size_t nbytes = (into->n + 1) * (2 * sizeof *into->ranges + sizeof *into->rest);
    bth_transfer transfer = {0};

    for (size_t i = 0; i < into->n; i++)
        if (destination_check(into, i, error) < 0)
            return error->code;
    into->ranges = bth_allocate(nbytes);
    if (!into->ranges)
        return bth_fail_memory(error, nbytes);
    into->rest = (const berth_destination **)(void *)(into->ranges + 2 * (into->n + 1));
    load_into_divide(into);
    (void)load_into_run(into, &transfer, error);
    load_into_stats(into, &transfer, begin_seconds);
    bth_release(into->ranges);
    return error->code;
}

int berth_load_into(berth_checkpoint *checkpoint, const berth_destination *destinations, size_t n,
                    const berth_params *params, berth_error *error)
{
    struct load_into into = {
        .checkpoint = checkpoint, .params = params, .destinations = destinations, .n = n};

    BTH_ERROR_BEGIN(error);
    bth_stats_begin(params);
    if (!checkpoint || (!destinations && n > 0) || n > SIZE_MAX / (4 * sizeof(bth_range)))
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                        "berth_load_into needs a checkpoint and n destinations");
    into.config = checkpoint->config;
    if ((params && BTH_CHECK_RESERVED(berth_params, params, error) < 0) ||
        (params && params->config && bth_config_resolve(params, &into.config, error) < 0) ||
        load_into(&into, error) < 0)
        return bth_error_prefix(error, checkpoint->source.reader.name);
    return 0;
}
