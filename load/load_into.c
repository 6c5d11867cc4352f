/* SPDX-License-Identifier: BSD-3-Clause */
/* berth_load_into: many storages or tensors to the caller's memory. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/trace.h"
#include "format/values/value.h"
#include "load/errors_with_names.h"
#include "load/storage_state.h"
#include "load/transfer/transfer.h"

typedef unsigned long long ull;

/* A destination, and the file offset of its first byte. */
struct into_part {
    uint64_t offset;
    const berth_destination *destination;
};

/* One call. One transfer reads `ranges`; destinations in `rest` are read one by one. */
struct load_into {
    berth_checkpoint *checkpoint;
    const berth_params *params;
    struct berth_config config;
    const berth_destination *destinations;
    size_t n;
    bth_range *ranges;
    size_t n_ranges;
    struct into_part *rest;
    size_t n_rest;
    uint64_t requested_nbytes;
};

/* ---- destinations ---- */

static uint64_t destination_needed_nbytes(const berth_destination *destination)
{
    return destination->storage ? destination->storage->nbytes
                                : berth_tensor_nbytes(destination->tensor);
}

static const berth_storage *destination_storage(const berth_destination *destination)
{
    return destination->tensor ? destination->tensor->storage : destination->storage;
}

static int destination_check(const struct load_into *into, const berth_destination *destination,
                             berth_error *error)
{
    if (BTH_CHECK_RESERVED(berth_destination, destination, error) < 0)
        return error->code;
    if (!destination->storage == !destination->tensor)
        return bth_fail_argument(error, destination->storage
                                            ? "a storage and a tensor are given"
                                            : "neither storage nor tensor is given");
    int result =
        destination->storage
            ? bth_checkpoint_check_caller_storage(into->checkpoint, destination->storage, error)
            : bth_checkpoint_check_caller_tensor(into->checkpoint, destination->tensor, error);
    if (result < 0)
        return result;
    uint64_t nbytes = destination_needed_nbytes(destination);
    if (destination->is_new > 1)
        return bth_fail_argument(error, "is_new is %llu, and must be 0 or 1",
                                 (ull)destination->is_new);
    if (destination->nbytes < nbytes || (!destination->address && nbytes > 0))
        return bth_fail_argument(error, "its memory has %llu bytes, %llu are needed",
                                 destination->address ? (ull)destination->nbytes : 0, (ull)nbytes);
    return 0;
}

/* *offset: its first byte in the storage. False: it is not one range of the storage. */
static bool destination_is_range(const berth_destination *destination, uint64_t *offset)
{
    const berth_tensor *tensor = destination->tensor;

    *offset = 0;
    return !tensor ||
           (bth_tensor_begins_at_whole_byte(tensor, offset) && berth_tensor_is_contiguous(tensor));
}

/* False: the transfer cannot read it, or it is already in memory. */
static bool destination_make_range(const struct load_into *into,
                                   const berth_destination *destination, bth_range *range)
{
    const berth_storage *storage = destination_storage(destination);
    const berth_storage *root = bth_storage_root(storage);
    const bth_storage_state *stored = &into->checkpoint->storages.stored[root->index];
    uint64_t offset;

    if (!destination_is_range(destination, &offset))
        return false;
    offset += storage->root_offset;
    if (stored->deflated && (destination_needed_nbytes(destination) != root->nbytes ||
                             !into->checkpoint->config.load_inflate))
        return false; /* Z12: only a whole one can be inflated in place */
    *range = (bth_range){.owner = root,
                         .deflated = stored->deflated,
                         .offset = root->offset + offset,
                         .nbytes = destination_needed_nbytes(destination),
                         .unit = stored->unit,
                         .memory = destination->address,
                         .is_new = destination->is_new &&
                                   destination_needed_nbytes(destination) >= BTH_LARGE_PAGE_NBYTES};
    /* Z10: the transfer computes the CRC of a whole storage; that of a part must be known before.
     */
    return (into->config.load_check < BTH_CHECK_DATA || range->nbytes == root->nbytes) &&
           offset % stored->unit == 0 &&
           (range->nbytes % stored->unit == 0 || offset + range->nbytes == root->nbytes) &&
           !stored->is_ambiguous && !bth_storage_memory_or_null(into->checkpoint, root->index) &&
           !bth_storage_get_target(into->checkpoint, root).is_there;
}

/*
 * Sorts those that have bytes in the file's order: to `ranges` if one transfer can read them, which
 * is without overlaps; else to `rest`.
 */
static void load_into_sort_destinations(struct load_into *into)
{
    size_t n = 0;
    uint64_t end = 0;

    for (size_t i = 0; i < into->n; i++) {
        const berth_destination *destination = &into->destinations[i];
        const berth_storage *storage = destination_storage(destination);
        uint64_t nbytes = destination_needed_nbytes(destination), offset;
        if (nbytes == 0)
            continue;
        (void)destination_is_range(destination, &offset);
        offset += bth_storage_root(storage)->offset + storage->root_offset;
        into->rest[n++] = (struct into_part){offset, destination};
        into->requested_nbytes += nbytes;
    }
    qsort(into->rest, n, sizeof *into->rest, bth_compare_offsets);
    for (size_t i = 0; i < n; i++) {
        bth_range *range = &into->ranges[into->n_ranges];
        if (destination_make_range(into, into->rest[i].destination, range) &&
            range->offset >= end) {
            end = bth_range_surroundings_end(range);
            into->n_ranges++;
        } else
            into->rest[into->n_rest++] = into->rest[i];
    }
}

static int load_into_read(struct load_into *into, bth_transfer *transfer, berth_error *error)
{
    berth_checkpoint *checkpoint = into->checkpoint;
    bool checks_data = into->config.load_check >= BTH_CHECK_DATA;

    *transfer = (bth_transfer){
        .config = &into->config,
        .params = into->params,
        .calls = {.context = checkpoint, .name = bth_range_add_storage_to_error},
        .with_crc32 = checks_data,
        .requests = {.ranges = into->ranges, .n_ranges = into->n_ranges, .use = BTH_USE_CALLER}};
    if (checks_data) {
        bth_checkpoint_lock(checkpoint);
        (void)bth_contents_ensure_directory(&checkpoint->contents, &checkpoint->source.reader,
                                            error);
        bth_checkpoint_unlock(checkpoint);
    }
    if (error->code < 0 ||
        bth_transfer_once(transfer, &checkpoint->source.reader, checkpoint->prefetches.own != NULL,
                          error) < 0 ||
        bth_ranges_check_crc32s(checkpoint, transfer, error) < 0)
        return error->code;
    for (size_t i = 0; i < into->n_rest && error->code == 0; i++) {
        const berth_destination *destination = into->rest[i].destination;
        const berth_storage *storage = destination_storage(destination);
        const berth_storage *root = bth_storage_root(storage);
        uint64_t offset;
        /* Z10, also where the checkpoint was opened without it. */
        if (checks_data && !bth_storage_memory_or_null(checkpoint, root->index) &&
            bth_storage_verify(checkpoint, root, error) < 0)
            return bth_error_in_storage(checkpoint, root, error);
        if (destination_is_range(destination, &offset))
            (void)bth_storage_read(checkpoint, storage, destination->address,
                                   (size_t)destination_needed_nbytes(destination), offset, error);
        else
            (void)bth_tensor_read(checkpoint, destination->tensor, 0,
                                  berth_tensor_numel(destination->tensor), destination->address,
                                  error);
    }
    return error->code;
}

int berth_load_into(berth_checkpoint *checkpoint, const berth_destination *destinations, size_t n,
                    const berth_params *params, berth_error *error)
{
    struct load_into into = {
        .checkpoint = checkpoint, .params = params, .destinations = destinations, .n = n};
    size_t nbytes = (n + 1) * (sizeof *into.ranges + sizeof *into.rest);
    double begin_seconds = bth_seconds();
    bth_transfer transfer = {0};
    bth_traced_call traced;

    BTH_ERROR_BEGIN(error);
    bth_params_initialize_stats(params);
    if (!checkpoint || (!destinations && n > 0) || n > SIZE_MAX / (2 * sizeof(bth_range)))
        return bth_fail_argument(error, "berth_load_into needs a checkpoint and n destinations");
    if (bth_checkpoint_choose_call_config(checkpoint, params, &into.config, error) < 0)
        return bth_error_in_checkpoint(checkpoint, error);
    for (size_t i = 0; i < n; i++)
        if (destination_check(&into, &destinations[i], error) < 0) {
            (void)bth_error_in_tensor(checkpoint, destinations[i].tensor, error);
            (void)bth_error_prefix_index(error, "destination", i);
            return bth_error_in_checkpoint(checkpoint, error);
        }
    into.ranges = bth_allocate(nbytes);
    if (!into.ranges) {
        (void)bth_fail_memory(error, nbytes);
        return bth_error_in_checkpoint(checkpoint, error);
    }
    into.rest = (struct into_part *)(void *)(into.ranges + n + 1);
    load_into_sort_destinations(&into);
    into.params = bth_traced_call_begin(&traced, into.config.trace, "load into memory",
                                        checkpoint->source.reader.name, begin_seconds, params);
    (void)load_into_read(&into, &transfer, error);
    berth_stats *stats = into.params ? into.params->stats : NULL;
    if (stats) {
        bth_choice choice = {.reason = "the destinations were read one by one"};
        if (into.n_ranges > 0)
            choice = into.ranges[0].choice;
        stats->method = bth_choice_method_name(choice, false, false);
        stats->reason = choice.reason ? choice.reason : "nothing was read";
        stats->total_seconds = bth_seconds() - begin_seconds;
        stats->requested_nbytes = into.requested_nbytes;
        stats->n_storages = stats->n_records = n;
        stats->calculated_offsets = checkpoint->contents.calculated_offsets;
        stats->repacked = checkpoint->contents.repacked;
        stats->behind_nbytes = checkpoint->contents.behind_nbytes;
        bth_stats_add_transfer(stats, &transfer);
    }
    bth_traced_call_end(&traced, 0, error);
    bth_release(into.ranges);
    return bth_error_in_checkpoint(checkpoint, error);
}
