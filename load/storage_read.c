/* SPDX-License-Identifier: BSD-3-Clause */
/* The storages of a checkpoint: byte swaps, ranges of them, their memory, statistics. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/values/value.h"
#include "io/trace/trace.h"
#include "load/checkpoint.h"
#include "load/transfer/checksum_scan.h"

/* The largest element whose bytes are swapped. */
#define UNIT_MAX 8

typedef unsigned long long ull;

/* ---- which bytes are swapped (T5) ---- */

/* Views with elements of one byte do not count. */
static void storage_add_swap_unit_of_dtype(bth_storage_state *stored, berth_dtype dtype)
{
    size_t unit = dtype == BERTH_DTYPE_NONE ? 1 : bth_dtype_swap_nbytes(dtype);

    if (unit > 1 && stored->unit > 1 && stored->unit != unit)
        stored->is_ambiguous = true;
    if (unit > stored->unit)
        stored->unit = (uint8_t)unit;
}

/* Only for foreign byte order. The class of a storage sets its unit; if the class has no dtype, the
 * tensors that view the storage do. */
static int storages_set_swap_units(berth_checkpoint *checkpoint, berth_error *error)
{
    bool any_untyped = false;

    for (size_t i = 0; i < checkpoint->storages.n; i++) {
        const berth_storage *storage = bth_tree_storage(checkpoint->contents.tree, i);
        storage_add_swap_unit_of_dtype(&checkpoint->storages.stored[i], storage->dtype);
        if (bth_storage_is_untyped(storage)) {
            storage_add_swap_unit_of_dtype(&checkpoint->storages.stored[i], storage->element);
            any_untyped = true;
        }
    }
    if (!any_untyped)
        return 0;
    if (bth_names_new(checkpoint->contents.root, &checkpoint->contents.names, error) < 0)
        return error->code;
    for (size_t i = 0; i < bth_names_tensor_count(checkpoint->contents.names); i++) {
        const berth_tensor *tensor =
            berth_as_tensor(bth_names_tensor_value(checkpoint->contents.names, i));
        if (tensor && tensor->storage && bth_storage_is_untyped(tensor->storage))
            storage_add_swap_unit_of_dtype(&checkpoint->storages.stored[tensor->storage->index],
                                           tensor->dtype);
    }
    return 0;
}

/* ---- ranges ---- */

int bth_storage_verify(berth_checkpoint *checkpoint, const berth_storage *root, berth_error *error)
{
    bth_scan scan = {.through_cache = true};
    bth_scan_record record = {.offset = root->offset};

    bth_checkpoint_lock(checkpoint);
    uint8_t verdict = checkpoint->storages.stored[root->index].crc32;
    (void)bth_contents_need_directory(&checkpoint->contents, &checkpoint->source.reader, error);
    bth_checkpoint_unlock(checkpoint);
    bool is_deflated = checkpoint->storages.stored[root->index].deflated; /* compared later */
    if (error->code < 0 || root->nbytes == 0 || verdict == BERTH_CRC_GOOD ||
        verdict == BERTH_CRC_ABSENT || is_deflated)
        return error->code;
    if (bth_contents_are_zip(&checkpoint->contents)) {
        if (bth_storage_entry(&checkpoint->contents, root, &record.entry, error) < 0)
            return error->code;
        record.nbytes = record.entry->nbytes;
        if (bth_scan_records(&checkpoint->source.reader, &checkpoint->config, &scan, &record, 1,
                             error) < 0)
            return error->code;
    }
    return bth_storage_check_crc32(checkpoint, root, record.nbytes, record.crc32, error);
}

/* In the file's byte order. */
static int storage_read_plain(berth_checkpoint *checkpoint, const berth_storage *root,
                              uint8_t *buffer, size_t nbytes, uint64_t offset, berth_error *error)
{
    const bth_storage_state *stored = &checkpoint->storages.stored[root->index];

    if (!bth_read_is_long(&checkpoint->config, nbytes))
        return bth_reader_read(&checkpoint->source.reader, buffer, nbytes, root->offset + offset,
                               error);
    struct berth_config config = checkpoint->config;
    bth_checkpoint_lock(checkpoint);
    if (stored->chosen_by)
        config.load_method = stored->chosen;
    bth_checkpoint_unlock(checkpoint);
    return bth_read_range(&checkpoint->source.reader, &config, checkpoint->prefetches.own != NULL,
                          buffer, nbytes, root->offset + offset, error);
}

/* A part of one swapped unit. */
static int storage_read_part_of_swap_unit(bth_reader *reader, const berth_storage *root,
                                          size_t unit, uint8_t *buffer, size_t nbytes,
                                          uint64_t offset, berth_error *error)
{
    uint8_t whole[UNIT_MAX];
    uint64_t start = offset - offset % unit;
    size_t have = root->nbytes - start < unit ? (size_t)(root->nbytes - start) : unit;

    if (bth_reader_read(reader, whole, have, root->offset + start, error) < 0)
        return error->code;
    if (have == unit)
        bth_swap_bytes(whole, whole, unit, unit);
    memcpy(buffer, whole + (offset - start), nbytes);
    return 0;
}

/* Whole units are swapped in the buffer; the range may begin and end inside a unit. */
static int storage_read_swapped(berth_checkpoint *checkpoint, const berth_storage *root,
                                size_t unit, uint8_t *buffer, size_t nbytes, uint64_t offset,
                                berth_error *error)
{
    bth_reader *reader = &checkpoint->source.reader;
    size_t head = (size_t)((unit - offset % unit) % unit);

    head = head < nbytes ? head : nbytes;
    size_t tail = (nbytes - head) % unit, middle = nbytes - head - tail;
    if (head > 0 &&
        storage_read_part_of_swap_unit(reader, root, unit, buffer, head, offset, error) < 0)
        return error->code;
    if (storage_read_plain(checkpoint, root, buffer + head, middle, offset + head, error) < 0)
        return error->code;
    bth_swap_bytes(buffer + head, buffer + head, middle, unit);
    if (tail == 0)
        return 0;
    return storage_read_part_of_swap_unit(reader, root, unit, buffer + head + middle, tail,
                                          offset + head + middle, error);
}

/* Reads from the file, in this machine's order. */
static int storage_read_from_file(berth_checkpoint *checkpoint, const berth_storage *root,
                                  void *buffer, size_t nbytes, uint64_t offset, berth_error *error)
{
    const bth_storage_state *stored = &checkpoint->storages.stored[root->index];

    if (stored->is_ambiguous)
        return bth_storage_fail_ambiguous_swap(root, error);
    if (stored->deflated)
        return bth_storage_inflate_into(checkpoint, root, buffer, error);
    if (checkpoint->config.load_check >= BTH_CHECK_DATA &&
        bth_storage_verify(checkpoint, root, error) < 0)
        return error->code;
    if (stored->unit > 1)
        return storage_read_swapped(checkpoint, root, stored->unit, buffer, nbytes, offset, error);
    return storage_read_plain(checkpoint, root, buffer, nbytes, offset, error);
}

/* The caller may have freed its device memory by now. */
static int storage_read_from_device(const bth_range_target *target, const berth_storage *root,
                                    void *buffer, size_t nbytes, uint64_t offset,
                                    berth_error *error)
{
    if (bth_device_check_life(target->device, target->life, error) < 0 ||
        bth_device_check_memory(target->device, target->address, (size_t)root->nbytes, error) < 0)
        return error->code;
    return bth_device_copy_to_host_and_wait(
        target->device, buffer, target->address + (uintptr_t)offset, nbytes, NULL, error);
}

static bool memory_is_in_map(berth_checkpoint *checkpoint, const uint8_t *memory)
{
    bth_checkpoint_lock(checkpoint);
    bool holds = bth_map_holds(&checkpoint->source.access.map, memory);
    bth_checkpoint_unlock(checkpoint);
    return holds;
}

/* Reads from memory or the device if it is loaded, else from the file. */
static int storage_read_loaded_or_file(berth_checkpoint *checkpoint, const berth_storage *root,
                                       void *buffer, size_t nbytes, uint64_t offset,
                                       berth_error *error)
{
    /* Memory first: the caller may have changed the bytes there. */
    const uint8_t *memory = bth_storage_memory_or_null(checkpoint, root->index);

    if (memory && bth_read_is_long(&checkpoint->config, nbytes))
        return bth_copy_range(&checkpoint->source.reader, &checkpoint->config, memory + offset,
                              memory_is_in_map(checkpoint, memory), buffer, nbytes,
                              root->offset + offset, error);
    if (memory) {
        memcpy(buffer, memory + offset, nbytes);
        return 0;
    }
    bth_storage_target target = bth_storage_get_target(checkpoint, root);
    if (target.is_there)
        return storage_read_from_device(&target.range, root, buffer, nbytes, offset, error);
    return storage_read_from_file(checkpoint, root, buffer, nbytes, offset, error);
}

static int storage_read_range(berth_checkpoint *checkpoint, const berth_storage *storage,
                              void *buffer, size_t nbytes, uint64_t offset, berth_error *error)
{
    const berth_storage *root = bth_storage_root(storage);
    uint64_t begin = storage->root ? storage->root_offset : 0;

    if (offset > storage->nbytes || nbytes > storage->nbytes - offset)
        (void)bth_fail_argument(
            error, "%llu bytes from byte %llu on were requested, but the storage has %llu",
            (ull)nbytes, (ull)offset, (ull)storage->nbytes);
    else if (bth_storage_load_if_deflated(checkpoint, root, nbytes, error) < 0)
        return error->code;
    else if (nbytes == 0 || storage_read_loaded_or_file(checkpoint, root, buffer, nbytes,
                                                        begin + offset, error) == 0)
        return 0;
    return bth_error_in_storage(checkpoint, root, error);
}

int bth_storage_read(berth_checkpoint *checkpoint, const berth_storage *storage, void *buffer,
                     size_t nbytes, uint64_t offset, berth_error *error)
{
    bth_trace_scope traced = {0};

    if (checkpoint->config.trace == 0)
        return storage_read_range(checkpoint, storage, buffer, nbytes, offset, error);
    bth_trace_enter_outermost(&traced, checkpoint->config.trace, "read",
                              checkpoint->source.reader.name);
    (void)storage_read_range(checkpoint, storage, buffer, nbytes, offset, error);
    bth_trace_leave_lazily(&traced);
    return error->code;
}

/* Through this hook save/ reads storages of a checkpoint without including load/. */
static int storage_read_for_save(const berth_storage *storage, void *buffer, size_t nbytes,
                                 uint64_t offset, berth_error *error)
{
    bth_storage_state *stored = storage->context;

    if (bth_storage_read(stored->checkpoint, storage, buffer, nbytes, offset, error) < 0)
        return bth_error_in_checkpoint(stored->checkpoint, error);
    return 0;
}

/* ---- memory ---- */

int bth_storage_load_and_get_memory(berth_checkpoint *checkpoint, const berth_storage *storage,
                                    const uint8_t **memory, berth_error *error)
{
    bth_storage_state *stored = &checkpoint->storages.stored[storage->index];
    const berth_storage *root = bth_storage_root(storage);
    bth_load_request request = {.config = &checkpoint->config};

    /* load.check=data may read the directory. */
    BTH_HOLD_CANCEL(checkpoint->config.load_check >= BTH_CHECK_DATA);
    *memory = bth_storage_memory_or_null(checkpoint, storage->index);
    if (*memory)
        return 0;
    if (bth_storages_load(checkpoint, &request, &root, 1, error) < 0)
        return error->code;
    if (root != storage) /* A view lies in its root's memory. */
        atomic_store(&stored->memory,
                     atomic_load(&checkpoint->storages.stored[root->index].memory) +
                         storage->root_offset);
    *memory = atomic_load(&stored->memory);
    return 0;
}

bool bth_storage_is_loaded_or_will_be_mapped(berth_checkpoint *checkpoint,
                                             const berth_storage *storage)
{
    const berth_storage *root = bth_storage_root(storage);

    if (bth_storage_memory_or_null(checkpoint, root->index))
        return true;
    return !bth_storage_get_target(checkpoint, root).range.device &&
           bth_storage_will_be_mapped(checkpoint, root);
}

/* ---- statistics ---- */

int berth_storage_get_stats(berth_checkpoint *checkpoint, const berth_storage *storage,
                            berth_storage_stats *stats, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (!stats)
        return bth_fail_argument(error, "the pointer for the statistics is NULL");
    *stats =
        (berth_storage_stats){.method = "none", .reason = "it is not loaded yet", .device = "cpu"};
    if (bth_checkpoint_check_caller_storage(checkpoint, storage, error) < 0)
        return bth_error_in_checkpoint(checkpoint, error);
    const berth_storage *root = bth_storage_root(storage);
    const bth_storage_state *stored = &checkpoint->storages.stored[root->index];
    const bth_device_handle *device = bth_storage_get_target(checkpoint, root).range.device;
    bth_checkpoint_lock(checkpoint);
    stats->device = device ? bth_device_name(device) : "cpu";
    stats->nbytes = root->nbytes;
    stats->crc32 = (berth_crc_verdict)stored->crc32;
    stats->moved_nbytes = stored->moved_nbytes;
    if (stored->method) {
        stats->method = stored->method;
        stats->reason = stored->reason;
    }
    bth_checkpoint_unlock(checkpoint);
    return 0;
}

/* ---- begin and end ---- */

int bth_storages_initialize_states(berth_checkpoint *checkpoint, berth_error *error)
{
    size_t n = bth_tree_n_storages(checkpoint->contents.tree);

    checkpoint->storages.n = n;
    if (n == 0)
        return 0;
    checkpoint->storages.stored =
        bth_tree_allocate(checkpoint->contents.tree, n * sizeof *checkpoint->storages.stored);
    if (!checkpoint->storages.stored)
        return bth_fail_memory(error, n * sizeof *checkpoint->storages.stored);
    for (size_t i = 0; i < n; i++) {
        berth_storage *storage = bth_tree_storage(checkpoint->contents.tree, i);
        checkpoint->storages.stored[i] = (bth_storage_state){.checkpoint = checkpoint, .unit = 1};
        storage->context = &checkpoint->storages.stored[i];
        storage->read = storage_read_for_save;
    }
    bth_storages_set_deflated(checkpoint);
    bool is_foreign = checkpoint->contents.is_big != (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
    return is_foreign ? storages_set_swap_units(checkpoint, error) : 0;
}

void bth_storages_free_memory_and_map(berth_checkpoint *checkpoint)
{
    for (bth_kept_region *kept = checkpoint->storages.regions, *next; kept; kept = next) {
        next = kept->next;
        bth_kept_region_free(kept);
    }
    checkpoint->storages.regions = NULL;
    bth_device_memory_list_free(checkpoint->storages.device_memory);
    checkpoint->storages.device_memory = NULL;
    bth_release(checkpoint->storages.targets);
    checkpoint->storages.targets = NULL;
    checkpoint->storages.stored = NULL;
    bth_access_close(&checkpoint->source.access);
}
