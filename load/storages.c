/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The storages of a checkpoint: which bytes of them are swapped, their memory, which lives as long
 * as the checkpoint, and ranges of them. storages_load.c loads them.
 */
#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/values/value.h"
#include "io/clock.h"
#include "io/file.h"
#include "load/storages_load.h"
#include "load/transfer/checksum_scan.h"
#include "load/transfer/read_into.h"

/* The widest element whose bytes are swapped. */
#define UNIT_MAX 8

typedef unsigned long long ull;

/* ---- which bytes are reversed (T5) ---- */

static bool checkpoint_is_foreign(const berth_checkpoint *checkpoint)
{
    return checkpoint->contents.is_big != (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}

/* An untyped storage is swapped by the dtype that views it; bytes beside it do not count. */
static void storage_set_unit(bth_stored *stored, berth_dtype dtype)
{
    size_t unit = dtype == BERTH_DTYPE_NONE ? 1 : bth_dtype_swap_nbytes(dtype);

    if (unit > 1 && stored->unit > 1 && stored->unit != unit)
        stored->is_ambiguous = true;
    if (unit > stored->unit)
        stored->unit = (uint8_t)unit;
}

/* Foreign order: each storage's unit, from its class, or from all tensors that view it. */
static int storages_set_units(berth_checkpoint *checkpoint, berth_error *error)
{
    bool any_open = false;

    for (size_t i = 0; i < checkpoint->storages.n; i++) {
        const berth_storage *storage = bth_tree_storage(checkpoint->contents.tree, i);
        storage_set_unit(&checkpoint->storages.stored[i], storage->dtype);
        if (bth_storage_is_untyped(storage)) {
            storage_set_unit(&checkpoint->storages.stored[i], storage->element);
            any_open = true;
        }
    }
    if (!any_open)
        return 0;
    if (bth_names_new(checkpoint->contents.root, &checkpoint->contents.names, error) < 0)
        return error->code;
    for (size_t i = 0; i < bth_names_count(checkpoint->contents.names); i++) {
        const berth_tensor *tensor =
            berth_as_tensor(bth_names_value(checkpoint->contents.names, i));
        if (tensor && tensor->storage && bth_storage_is_untyped(tensor->storage))
            storage_set_unit(&checkpoint->storages.stored[tensor->storage->index], tensor->dtype);
    }
    return 0;
}

/* ---- checksums ---- */

/* Its verdict, from now on. */
static int storage_set_verdict(berth_checkpoint *checkpoint, const berth_storage *root,
                               const bth_zip_entry *entry, uint32_t crc32, berth_error *error)
{
    berth_crc_verdict verdict = BERTH_CRC_ABSENT; /* the legacy format has none */
    bool present = false;

    if (entry && bth_zip_check_crc(entry, crc32, &present, error) < 0)
        verdict = BERTH_CRC_BAD;
    else if (present)
        verdict = BERTH_CRC_GOOD;
    bth_checkpoint_lock(checkpoint);
    checkpoint->storages.stored[root->index].crc32 = (uint8_t)verdict;
    bth_checkpoint_unlock(checkpoint);
    return error->code;
}

int bth_verify_storage(berth_checkpoint *checkpoint, const berth_storage *root, berth_error *error)
{
    bth_scan scan = {.through_cache = true};
    bth_scan_record record = {.offset = root->offset};

    bth_checkpoint_lock(checkpoint);
    uint8_t verdict = checkpoint->storages.stored[root->index].crc32;
    (void)bth_contents_need_directory(&checkpoint->contents, &checkpoint->source.reader, error);
    bth_checkpoint_unlock(checkpoint);
    if (error->code < 0 || root->nbytes == 0 || verdict == BERTH_CRC_GOOD ||
        verdict == BERTH_CRC_ABSENT)
        return error->code;
    if (checkpoint->contents.is_legacy)
        return storage_set_verdict(checkpoint, root, NULL, 0, error);
    if (bth_storage_entry(&checkpoint->contents, root, &record.entry, error) < 0)
        return error->code;
    record.nbytes = record.entry->nbytes;
    if (bth_scan_records(&checkpoint->source.reader, &checkpoint->config, &scan, &record, 1,
                         error) < 0)
        return error->code;
    return storage_set_verdict(checkpoint, root, record.entry, record.crc32, error);
}

/* ---- reading ---- */

static const berth_storage *storage_root(const berth_storage *storage, uint64_t *offset)
{
    if (!storage->root)
        return storage;
    *offset += storage->root_offset;
    return storage->root;
}

/* As they are in the file. */
static int storage_read_plain(berth_checkpoint *checkpoint, const berth_storage *root,
                              uint8_t *buffer, size_t nbytes, uint64_t offset, berth_error *error)
{
    const bth_stored *stored = &checkpoint->storages.stored[root->index];

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

/* A part of one unit. */
static int storage_read_part_of_unit(bth_reader *reader, const berth_storage *root, size_t unit,
                                     uint8_t *buffer, size_t nbytes, uint64_t offset,
                                     berth_error *error)
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

/* Swapped bytes of any range: whole units where they belong, and the parts at its ends. */
static int storage_read_swapped(berth_checkpoint *checkpoint, const berth_storage *root,
                                size_t unit, uint8_t *buffer, size_t nbytes, uint64_t offset,
                                berth_error *error)
{
    bth_reader *reader = &checkpoint->source.reader;
    size_t head = (size_t)((unit - offset % unit) % unit);

    head = head < nbytes ? head : nbytes;
    size_t tail = (nbytes - head) % unit, middle = nbytes - head - tail;
    if (head > 0 && storage_read_part_of_unit(reader, root, unit, buffer, head, offset, error) < 0)
        return error->code;
    if (storage_read_plain(checkpoint, root, buffer + head, middle, offset + head, error) < 0)
        return error->code;
    bth_swap_bytes(buffer + head, buffer + head, middle, unit);
    if (tail == 0)
        return 0;
    return storage_read_part_of_unit(reader, root, unit, buffer + head + middle, tail,
                                     offset + head + middle, error);
}

/* Bytes of a storage that is no view, in this machine's order, from the file. */
static int storage_read_root(berth_checkpoint *checkpoint, const berth_storage *root, void *buffer,
                             size_t nbytes, uint64_t offset, berth_error *error)
{
    const bth_stored *stored = &checkpoint->storages.stored[root->index];

    if (stored->is_ambiguous)
        return bth_fail_ambiguous(root, error);
    if (checkpoint->config.load_check >= BTH_CHECK_DATA &&
        bth_verify_storage(checkpoint, root, error) < 0)
        return error->code;
    if (stored->unit > 1)
        return storage_read_swapped(checkpoint, root, stored->unit, buffer, nbytes, offset, error);
    return storage_read_plain(checkpoint, root, buffer, nbytes, offset, error);
}

/* From a device. Memory of the caller's may be freed by now. */
static int storage_read_from_device(const bth_placed *placed, const berth_storage *root,
                                    void *buffer, size_t nbytes, uint64_t offset,
                                    berth_error *error)
{
    if (bth_device_check_life(placed->device, placed->life, error) < 0 ||
        bth_device_check(placed->device, placed->address, (size_t)root->nbytes, error) < 0)
        return error->code;
    return bth_device_read(placed->device, buffer, placed->address + (uintptr_t)offset, nbytes,
                           NULL, error);
}

static bool storage_is_mapped(berth_checkpoint *checkpoint, const uint8_t *memory)
{
    bth_checkpoint_lock(checkpoint);
    bool holds = bth_map_holds(&checkpoint->source.access.map, memory);
    bth_checkpoint_unlock(checkpoint);
    return holds;
}

/* From what it has become, wherever that is, or else from the file. */
static int storage_read_anywhere(berth_checkpoint *checkpoint, const berth_storage *root,
                                 void *buffer, size_t nbytes, uint64_t offset, berth_error *error)
{
    /* Whoever has its memory may have written to it: then that is what the storage holds. */
    const uint8_t *memory = bth_storage_found(checkpoint, root->index);

    if (memory && bth_read_is_long(&checkpoint->config, nbytes))
        return bth_copy_range(&checkpoint->source.reader, &checkpoint->config, memory + offset,
                              storage_is_mapped(checkpoint, memory), buffer, nbytes,
                              root->offset + offset, error);
    if (memory) {
        memcpy(buffer, memory + offset, nbytes);
        return 0;
    }
    bth_placed placed = bth_storage_placed(checkpoint, root);
    if (placed.is_there)
        return storage_read_from_device(&placed, root, buffer, nbytes, offset, error);
    return storage_read_root(checkpoint, root, buffer, nbytes, offset, error);
}

int bth_storage_read(berth_checkpoint *checkpoint, const berth_storage *storage, void *buffer,
                     size_t nbytes, uint64_t offset, berth_error *error)
{
    if (offset > storage->nbytes || nbytes > storage->nbytes - offset)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                        "%llu bytes at %llu of a storage of %llu are asked for", (ull)nbytes,
                        (ull)offset, (ull)storage->nbytes);
    const berth_storage *root = storage_root(storage, &offset);
    if (nbytes == 0 || storage_read_anywhere(checkpoint, root, buffer, nbytes, offset, error) == 0)
        return 0;
    return bth_error_in_storage(checkpoint, root, error);
}

/* The hook of berth_storage: who saves the tree again knows nothing of load/. */
static int storage_read_hook(const berth_storage *storage, void *buffer, size_t nbytes,
                             uint64_t offset, berth_error *error)
{
    bth_stored *stored = storage->context;
    berth_checkpoint *checkpoint = stored->checkpoint;

    if (bth_storage_read(checkpoint, storage, buffer, nbytes, offset, error) < 0)
        return bth_error_prefix(error, checkpoint->source.reader.name);
    return 0;
}

/* ---- where it lies ---- */

/* How storages become memory when they are asked for one by one, as far as it is the same for all.
 */
void bth_storages_method(berth_checkpoint *checkpoint, const char **method, const char **reason)
{
    bth_conditions conditions = {0};

    bth_checkpoint_lock(checkpoint);
    bth_access_describe(&checkpoint->source.access, &conditions);
    bth_checkpoint_unlock(checkpoint);
    bth_choice choice = bth_choose(&checkpoint->config, &conditions,
                                   (berth_load_method)checkpoint->config.load_method, NULL);
    *method = bth_choice_name(choice, conditions.is_memory, false);
    *reason = choice.reason;
}

int bth_storage_memory(berth_checkpoint *checkpoint, const berth_storage *storage,
                       const uint8_t **memory, berth_error *error)
{
    bth_stored *stored = &checkpoint->storages.stored[storage->index];
    const berth_storage *root = storage->root ? storage->root : storage;
    bth_load_request request = {.config = &checkpoint->config,
                                .with_crc32 = checkpoint->config.load_check >= BTH_CHECK_DATA};

    BTH_HOLD_CANCEL(request.with_crc32); /* the directory may be read */
    *memory = bth_storage_found(checkpoint, storage->index);
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

bool bth_storage_is_at_hand(berth_checkpoint *checkpoint, const berth_storage *storage)
{
    const berth_storage *root = storage->root ? storage->root : storage;
    bth_conditions conditions = {0};

    if (bth_storage_found(checkpoint, root->index))
        return true;
    if (bth_storage_placed(checkpoint, root).device)
        return false;
    bth_checkpoint_lock(checkpoint);
    bth_access_describe(&checkpoint->source.access, &conditions);
    bth_choice choice = bth_storage_choose(checkpoint, &checkpoint->config, &conditions, root);
    bth_checkpoint_unlock(checkpoint);
    return choice.method == BERTH_LOAD_MAP;
}

/* ---- what became of them ---- */

int berth_storage_get_stats(berth_checkpoint *checkpoint, const berth_storage *storage,
                            berth_storage_stats *stats, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (!stats)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                        "there is no place for the statistics");
    *stats =
        (berth_storage_stats){.method = "none", .reason = "nobody asked for it", .place = "cpu"};
    if (bth_checkpoint_check_storage(checkpoint, storage, error) < 0)
        return checkpoint ? bth_error_prefix(error, checkpoint->source.reader.name) : error->code;
    const berth_storage *root = storage->root ? storage->root : storage;
    const bth_stored *stored = &checkpoint->storages.stored[root->index];
    const bth_device_handle *device = bth_storage_placed(checkpoint, root).device;
    bth_checkpoint_lock(checkpoint);
    stats->place = device ? bth_device_name(device) : "cpu";
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

int bth_storages_begin(berth_checkpoint *checkpoint, berth_error *error)
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
        checkpoint->storages.stored[i] = (bth_stored){.checkpoint = checkpoint, .unit = 1};
        storage->context = &checkpoint->storages.stored[i];
        storage->read = storage_read_hook;
    }
    checkpoint->contents.is_foreign = checkpoint_is_foreign(checkpoint);
    return checkpoint->contents.is_foreign ? storages_set_units(checkpoint, error) : 0;
}

void bth_storages_end(berth_checkpoint *checkpoint)
{
    for (bth_kept_region *kept = checkpoint->storages.regions, *next; kept; kept = next) {
        next = kept->next;
        bth_kept_region_free(kept);
    }
    checkpoint->storages.regions = NULL;
    bth_device_memory_list_free(checkpoint->storages.device_memory);
    checkpoint->storages.device_memory = NULL;
    bth_release(checkpoint->storages.placed);
    checkpoint->storages.placed = NULL;
    checkpoint->storages.stored = NULL;
    bth_access_end(&checkpoint->source.access);
}
