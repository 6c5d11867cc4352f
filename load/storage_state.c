/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The life of a storage: its state from opening to closing, and in a child that was forked; how it
 * is loaded; reading it from memory, a device or the file; the verdict on its CRC.
 */
#include "load/storage_state.h"

#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/trace.h"
#include "format/values/value.h"
#include "load/errors_with_names.h"

/* The largest alignment of any dtype, and the largest element whose bytes are swapped. */
#define UNIT_MAX 8

typedef unsigned long long ull;

/* ---- begin and end ---- */

/* Whether the file does not name a dtype for it. */
static bool storage_may_hold_any_dtype(const berth_storage *storage)
{
    return storage->dtype == BERTH_DTYPE_NONE || storage->dtype == BERTH_UINT8;
}

/* T5. Views with elements of one byte do not count. */
static void storage_add_swap_unit_of_dtype(bth_storage_state *stored, berth_dtype dtype)
{
    size_t unit = dtype == BERTH_DTYPE_NONE ? 1 : bth_dtype_swap_nbytes(dtype);

    if (unit > 1 && stored->unit > 1 && stored->unit != unit)
        stored->is_ambiguous = true;
    if (unit > stored->unit)
        stored->unit = (uint8_t)unit;
}

/* Through this hook save/ reads storages of a checkpoint without including load/. */
static int storage_read_for_save(const berth_storage *storage, void *buffer, size_t nbytes,
                                 uint64_t offset, berth_error *error)
{
    bth_storage_state *stored = storage->context;

    (void)bth_storage_read(stored->checkpoint, storage, buffer, nbytes, offset, error);
    return bth_error_in_checkpoint(stored->checkpoint, error);
}

int bth_storages_initialize_states(berth_checkpoint *checkpoint, berth_error *error)
{
    bth_contents *contents = &checkpoint->contents;
    bth_storages *storages = &checkpoint->storages;
    const bth_zip_directory *directory = &contents->container.directory;
    bool is_foreign = contents->is_big != (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
    bool any_untyped = false;

    storages->n = bth_tree_n_storages(contents->tree);
    if (storages->n == 0)
        return 0;
    storages->stored = bth_tree_allocate(contents->tree, storages->n * sizeof *storages->stored);
    if (!storages->stored)
        return bth_fail_memory(error, storages->n * sizeof *storages->stored);
    for (size_t i = 0; i < storages->n; i++) {
        berth_storage *storage = bth_tree_storage(contents->tree, i);
        storages->stored[i] = (bth_storage_state){.checkpoint = checkpoint, .unit = 1};
        storage->context = &storages->stored[i];
        storage->read = storage_read_for_save;
    }
    for (size_t i = 0; contents->n_deflated > 0 && i < directory->n_entries; i++) { /* Z12 */
        const bth_zip_entry *entry = &directory->entries[i];
        if (entry->method != BTH_ZIP_DEFLATED || strncmp(entry->record, "data/", 5) != 0)
            continue;
        const berth_storage *storage =
            bth_tree_find_storage(contents->tree, entry->record + 5, strlen(entry->record + 5));
        if (storage)
            storages->stored[storage->index].deflated = entry;
    }
    /* Foreign byte order. The class of a storage sets its unit; if the class has no dtype, the
     * tensors that view the storage do. */
    for (size_t i = 0; is_foreign && i < storages->n; i++) {
        const berth_storage *storage = bth_tree_storage(contents->tree, i);
        storage_add_swap_unit_of_dtype(&storages->stored[i], storage->dtype);
        if (storage_may_hold_any_dtype(storage)) {
            storage_add_swap_unit_of_dtype(&storages->stored[i], storage->element);
            any_untyped = true;
        }
    }
    if (!any_untyped)
        return 0;
    if (bth_names_new(contents->root, &contents->names, error) < 0)
        return error->code;
    for (size_t i = 0; i < bth_names_tensor_count(contents->names); i++) {
        const berth_tensor *tensor = berth_as_tensor(bth_names_tensor_value(contents->names, i));
        if (tensor && tensor->storage && storage_may_hold_any_dtype(tensor->storage))
            storage_add_swap_unit_of_dtype(&storages->stored[tensor->storage->index],
                                           tensor->dtype);
    }
    return 0;
}

void bth_storages_free_memory_and_map(berth_checkpoint *checkpoint)
{
    for (bth_kept_region *kept = checkpoint->storages.regions, *next; kept; kept = next) {
        next = kept->next;
        bth_region_free(&kept->region);
        bth_release(kept);
    }
    checkpoint->storages.regions = NULL;
    if (checkpoint->storages.device_memory)
        bth_wing_to_device.free_memory(checkpoint->storages.device_memory);
    checkpoint->storages.device_memory = NULL;
    bth_release(checkpoint->storages.targets);
    checkpoint->storages.targets = NULL;
    checkpoint->storages.stored = NULL;
    bth_access_close_direct(&checkpoint->source.access);
    bth_map_free(&checkpoint->source.access.map);
}

/* X11. */
void bth_checkpoint_reset_after_fork(berth_checkpoint *checkpoint, bth_lock_state state)
{
    bth_storages *storages = &checkpoint->storages;
    size_t n = storages->stored ? storages->n : 0;
    uint64_t n_forks = bth_fork_count();

    /* No thread of the child loads storages or waits for them. */
    (void)pthread_cond_init(&storages->finished, NULL);
    for (size_t i = 0; i < n; i++) {
        storages->stored[i].is_loading = false;
        storages->stored[i].n_waiting = 0;
    }
    /* Regions that were filled while the process was forked: direct reads that ended then may be
     * missing here. They are done again. */
    for (const bth_kept_region *kept = storages->regions; kept && kept->n_forks == n_forks;
         kept = kept->next)
        for (size_t i = 0; i < n; i++) {
            uintptr_t memory = (uintptr_t)atomic_load(&storages->stored[i].memory);
            if (memory - (uintptr_t)kept->region.bytes < kept->nbytes)
                atomic_store(&storages->stored[i].memory, NULL);
        }
    /* A fork copies the table of descriptors before memory: of a descriptor that the parent opened
     * in between, the child has the number only. So it opens its own. */
    bth_access *access = &checkpoint->source.access;
    if (state == BTH_LOCK_TORN || access->direct_n_forks == n_forks)
        access->direct_is_tried = false;
    /*
     * A thread of the parent was changing something, maybe one of these. No one knows which parts
     * are whole: all are dropped, not freed, and made again when they are needed. All other state
     * under the lock changes by one store, which was done or not.
     */
    if (state == BTH_LOCK_TORN) {
        access->map = (bth_map){0};
        access->file_system_is_known = false;
        if (!checkpoint->contents.container.known)
            checkpoint->contents.container = (bth_container){0};
        checkpoint->contents.counts.known = false;
        checkpoint->shown_name = (bth_name_text){0};
        checkpoint->shown_path = (bth_name_text){0};
    }
    atomic_store(&checkpoint->process, bth_process_unique_number());
}

/* ---- how it is loaded ---- */

size_t bth_storage_alignment(const berth_storage *storage)
{
    /* An untyped storage can be viewed as each dtype. */
    return storage_may_hold_any_dtype(storage) ? UNIT_MAX : bth_dtype_swap_nbytes(storage->dtype);
}

int bth_storage_fail_ambiguous_swap(const berth_storage *storage, berth_error *error)
{
    return bth_fail(error, BERTH_E_UNSUPPORTED, NULL, storage->offset,
                    "it is in the other byte order, and viewed as elements of different width: "
                    "which bytes to swap is not known");
}

bth_storage_target bth_storage_get_target(berth_checkpoint *checkpoint, const berth_storage *root)
{
    bth_storage_target target = {0};

    bth_checkpoint_lock(checkpoint);
    if (checkpoint->storages.targets)
        target = checkpoint->storages.targets[root->index];
    bth_checkpoint_unlock(checkpoint);
    return target;
}

/* T5: a storage that cannot be used in place is read, even if another method was chosen. */
bth_choice bth_storage_choose(berth_checkpoint *checkpoint, const struct berth_config *config,
                              bth_conditions *conditions, const berth_storage *root)
{
    const bth_storage_state *stored = &checkpoint->storages.stored[root->index];
    berth_load_method requested =
        stored->chosen_by ? stored->chosen : (berth_load_method)config->load_method;
    uintptr_t address =
        (uintptr_t)checkpoint->source.reader.memory + root->offset; /* maps: page-aligned */
    bool is_aligned = address % bth_storage_alignment(root) == 0;

    if (stored->deflated)
        return bth_choice_for_deflated();
    bth_choice choice = bth_access_choose(&checkpoint->source.access, config, conditions, requested,
                                          stored->chosen_by);
    if (choice.method != BERTH_LOAD_MAP || (stored->unit <= 1 && is_aligned))
        return choice;
    return (bth_choice){BERTH_LOAD_READ, stored->unit > 1 ? "it is in the other byte order"
                                                          : "it is not aligned for its elements"};
}

bool bth_storage_will_be_mapped(berth_checkpoint *checkpoint, const berth_storage *root)
{
    bth_conditions conditions = {0};

    bth_checkpoint_lock(checkpoint);
    bth_access_set_known_conditions(&checkpoint->source.access, &conditions);
    bth_choice choice = bth_storage_choose(checkpoint, &checkpoint->config, &conditions, root);
    bth_checkpoint_unlock(checkpoint);
    return choice.method == BERTH_LOAD_MAP;
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

int bth_storage_load_and_get_memory(berth_checkpoint *checkpoint, const berth_storage *storage,
                                    const uint8_t **memory, berth_error *error)
{
    bth_storage_state *stored = &checkpoint->storages.stored[storage->index];
    const berth_storage *root = bth_storage_root(storage);
    bth_load_request request = {.config = &checkpoint->config};

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

/* ---- deflated (Z12), as `zip -r` makes them: never mapped, and inflated as a whole ---- */

const bth_zip_entry *bth_storage_deflated_record(const berth_storage *storage)
{
    const bth_storage_state *stored = bth_storage_root(storage)->context;

    return stored->deflated;
}

int bth_storage_check_may_inflate(const berth_checkpoint *checkpoint, const berth_storage *root,
                                  const char *what, berth_error *error)
{
    if (!checkpoint->storages.stored[root->index].deflated)
        return 0;
    if (what)
        return bth_fail(error, BERTH_E_UNSUPPORTED, NULL, root->offset,
                        "it is deflated: %s; `berth convert` writes a file where it is not", what);
    if (checkpoint->config.load_inflate)
        return 0;
    return bth_fail(error, BERTH_E_UNSUPPORTED, NULL, root->offset,
                    "it is deflated: load.inflate=on inflates it, and `berth convert` writes a "
                    "file where it is not");
}

/* ---- the verdict on its CRC (Z10) ---- */

/* Compares the CRC of the nbytes that were read with the one in the parsed directory. Keeps the
 * verdict. BERTH_E_CHECKSUM: they differ. */
static int storage_check_crc32(berth_checkpoint *checkpoint, const berth_storage *storage,
                               uint64_t nbytes, uint32_t crc32, berth_error *error)
{
    berth_crc_verdict verdict = BERTH_CRC_UNCHECKED;
    const bth_zip_entry *entry;
    bool present = false;

    if (!bth_contents_are_zip(&checkpoint->contents)) /* only a zip has CRCs */
        verdict = BERTH_CRC_ABSENT;
    else if (bth_storage_entry(&checkpoint->contents, storage, &entry, error) == 0 &&
             entry->nbytes == nbytes) /* T1: else the recorded CRC is of more bytes */
        verdict = bth_zip_compare_crc(entry, crc32, &present, error) < 0 ? BERTH_CRC_BAD
                  : present                                              ? BERTH_CRC_GOOD
                                                                         : BERTH_CRC_ABSENT;
    bth_checkpoint_lock(checkpoint);
    checkpoint->storages.stored[storage->index].crc32 = (uint8_t)verdict;
    bth_checkpoint_unlock(checkpoint);
    return error->code;
}

int bth_ranges_check_crc32s(berth_checkpoint *checkpoint, const bth_transfer *transfer,
                            berth_error *error)
{
    for (size_t i = 0; i < transfer->requests.n_ranges; i++) {
        const bth_range *range = &transfer->requests.ranges[i];
        if (!transfer->with_crc32 && !range->deflated)
            continue;
        if (storage_check_crc32(checkpoint, range->owner, range->nbytes, range->crc32, error) < 0)
            return bth_error_in_storage(checkpoint, range->owner, error);
    }
    return 0;
}

int bth_storage_verify(berth_checkpoint *checkpoint, const berth_storage *root, berth_error *error)
{
    bth_scan scan = {.through_cache = true};
    bth_scan_record record = {.offset = root->offset};

    bth_checkpoint_lock(checkpoint);
    uint8_t verdict = checkpoint->storages.stored[root->index].crc32;
    (void)bth_contents_ensure_directory(&checkpoint->contents, &checkpoint->source.reader, error);
    bth_checkpoint_unlock(checkpoint);
    bool is_deflated = checkpoint->storages.stored[root->index].deflated; /* compared later */
    if (error->code < 0 || verdict == BERTH_CRC_GOOD || verdict == BERTH_CRC_ABSENT || is_deflated)
        return error->code;
    if (bth_contents_are_zip(&checkpoint->contents)) {
        if (bth_storage_entry(&checkpoint->contents, root, &record.entry, error) < 0)
            return error->code;
        record.nbytes = record.entry->nbytes;
        if (bth_scan_records(&checkpoint->source.reader, &checkpoint->config, &scan, &record, 1,
                             error) < 0)
            return error->code;
    }
    return storage_check_crc32(checkpoint, root, record.nbytes, record.crc32, error);
}

/* ---- reading it ---- */

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
    return bth_read_range(
        &checkpoint->source.reader, &config,
        (bth_range){.offset = root->offset + offset, .nbytes = nbytes, .memory = buffer},
        checkpoint->prefetches.own != NULL, error);
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

/* Reads from memory or the device if it is loaded, else from the file, in this machine's order. Of
 * a deflated one in the file: the whole. */
static int storage_read_loaded_or_file(berth_checkpoint *checkpoint, const berth_storage *root,
                                       void *buffer, size_t nbytes, uint64_t offset,
                                       berth_error *error)
{
    const bth_storage_state *stored = &checkpoint->storages.stored[root->index];
    bth_reader *reader = &checkpoint->source.reader;
    /* Memory first: the caller may have changed the bytes there. */
    const uint8_t *memory = bth_storage_memory_or_null(checkpoint, root->index);

    if (memory && bth_read_is_long(&checkpoint->config, nbytes)) {
        bth_checkpoint_lock(checkpoint);
        bool is_mapped = bth_map_holds(&checkpoint->source.access.map, memory);
        bth_checkpoint_unlock(checkpoint);
        return bth_copy_range(reader, &checkpoint->config, memory + offset, is_mapped, buffer,
                              nbytes, root->offset + offset, error);
    }
    if (memory) {
        memcpy(buffer, memory + offset, nbytes);
        return 0;
    }
    bth_storage_target target = bth_storage_get_target(checkpoint, root);
    const bth_range_target *there = &target.range;
    if (target.is_there) {
        /* The caller may have freed its device memory by now. */
        if (bth_wing_device.check_life(there->device, there->life, error) < 0 ||
            bth_wing_device.check_memory(there->device, there->address, (size_t)root->nbytes,
                                         error) < 0)
            return error->code;
        return bth_wing_device.copy_to_host_and_wait(
            there->device, buffer, there->address + (uintptr_t)offset, nbytes, NULL, error);
    }
    if (stored->is_ambiguous)
        return bth_storage_fail_ambiguous_swap(root, error);
    if (stored->deflated) {
        nbytes = (size_t)root->nbytes;
        if (bth_storage_check_may_inflate(checkpoint, root, NULL, error) < 0 ||
            bth_read_range(reader, &checkpoint->config,
                           (bth_range){.offset = stored->deflated->data_offset,
                                       .nbytes = nbytes,
                                       .deflated = stored->deflated,
                                       .memory = buffer},
                           false, error) < 0)
            return error->code;
        if (stored->unit > 1)
            bth_swap_bytes(buffer, buffer, nbytes - nbytes % stored->unit, stored->unit);
        return 0;
    }
    if (checkpoint->config.load_check >= BTH_CHECK_DATA &&
        bth_storage_verify(checkpoint, root, error) < 0)
        return error->code;
    if (stored->unit <= 1)
        return storage_read_plain(checkpoint, root, buffer, nbytes, offset, error);
    /* Whole units are swapped in the buffer; the range may begin and end inside a unit. */
    size_t unit = stored->unit, head = (unit - offset % unit) % unit;
    uint8_t *bytes = buffer;
    head = head < nbytes ? head : nbytes;
    size_t tail = (nbytes - head) % unit, middle = nbytes - head - tail;
    if (head > 0 &&
        storage_read_part_of_swap_unit(reader, root, unit, bytes, head, offset, error) < 0)
        return error->code;
    if (storage_read_plain(checkpoint, root, bytes + head, middle, offset + head, error) < 0)
        return error->code;
    bth_swap_bytes(bytes + head, bytes + head, middle, unit);
    if (tail == 0)
        return 0;
    return storage_read_part_of_swap_unit(reader, root, unit, bytes + head + middle, tail,
                                          offset + head + middle, error);
}

int bth_storage_read(berth_checkpoint *checkpoint, const berth_storage *storage, void *buffer,
                     size_t nbytes, uint64_t offset, berth_error *error)
{
    bth_trace_scope traced = {0};
    const berth_storage *root = bth_storage_root(storage);
    uint64_t begin = storage->root_offset;
    const bth_zip_entry *deflated = checkpoint->storages.stored[root->index].deflated;
    bool is_part = nbytes > 0 && nbytes != root->nbytes, names_storage = false;
    const uint8_t *memory;

    if (checkpoint->config.trace != 0)
        bth_trace_enter_outermost(&traced, checkpoint->config.trace, "read",
                                  checkpoint->source.reader.name);
    if (offset > storage->nbytes || nbytes > storage->nbytes - offset)
        (void)bth_fail_argument(
            error, "%llu bytes from byte %llu on were requested, but the storage has %llu",
            (ull)nbytes, (ull)offset, (ull)storage->nbytes);
    else if (deflated && is_part && /* Z12: it cannot be read in parts */
             bth_storage_load_and_get_memory(checkpoint, root, &memory, error) < 0)
        names_storage = true;
    else if (nbytes > 0)
        (void)storage_read_loaded_or_file(checkpoint, root, buffer, nbytes, begin + offset, error);
    if (error->code < 0 && !names_storage)
        (void)bth_error_in_storage(checkpoint, root, error);
    bth_trace_leave_lazily(&traced);
    return error->code;
}

/* ---- statistics, and errors of transfers ---- */

int bth_range_add_storage_to_error(void *context, const bth_range *range, berth_error *error)
{
    return bth_error_in_storage(context, range->owner, error);
}

void bth_stats_add_transfer(berth_stats *stats, const bth_transfer *transfer)
{
    if (!stats)
        return;
    stats->moved_nbytes += atomic_load(&transfer->moved_nbytes);
    stats->n_requests += atomic_load(&transfer->n_reads);
    stats->disk_seconds += (double)atomic_load(&transfer->disk_nanoseconds) * 1e-9;
    stats->render_seconds += (double)atomic_load(&transfer->render_nanoseconds) * 1e-9;
    stats->crc32_seconds += (double)atomic_load(&transfer->crc32_nanoseconds) * 1e-9;
    bth_pages_describe(&transfer->pages, stats);
}

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
    stats->device = device ? bth_wing_device.name(device) : "cpu";
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
