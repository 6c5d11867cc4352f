/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A checkpoint's storages: which bytes of them are swapped, where they lie, ranges of them, and how
 * long their memory lives: as long as the checkpoint. What makes memory of them is in bring.c.
 */
#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/values/tensor.h"
#include "io/clock.h"
#include "io/file.h"
#include "load/transfer/bring.h"
#include "load/transfer/range.h"
#include "load/transfer/to_device.h"

/* The widest element that has to be aligned: what an untyped storage may be viewed as. */
#define WIDEST_UNIT 8

typedef unsigned long long ull;

/* ---- which bytes are reversed (T5) ---- */

static bool is_foreign(const berth_checkpoint *checkpoint)
{
    return checkpoint->contents.is_big != (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}

/* Whether the class in the file leaves open what the elements are: bytes, or anything (v3). */
static bool is_open(const berth_storage *storage)
{
    return storage->dtype == BERTH_DTYPE_NONE || storage->dtype == BERTH_UINT8;
}

/* An untyped storage is swapped by the dtype that views it; bytes beside it do not count. */
static void settle(bth_stored *stored, berth_dtype dtype)
{
    size_t unit = dtype == BERTH_DTYPE_NONE ? 1 : bth_dtype_swap_nbytes(dtype);

    if (unit > 1 && stored->unit > 1 && stored->unit != unit)
        stored->is_ambiguous = true;
    if (unit > stored->unit)
        stored->unit = (uint8_t)unit;
}

/* Foreign order: each storage's unit, from its class, or from all tensors that view it. */
static int settle_units(berth_checkpoint *checkpoint, berth_error *error)
{
    bool any_open = false;

    for (size_t i = 0; i < checkpoint->storages.n; i++) {
        const berth_storage *storage = bth_tree_storage(checkpoint->contents.tree, i);
        settle(&checkpoint->storages.stored[i], storage->dtype);
        if (is_open(storage)) {
            settle(&checkpoint->storages.stored[i], storage->element);
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
        if (tensor && tensor->storage && is_open(tensor->storage))
            settle(&checkpoint->storages.stored[tensor->storage->index], tensor->dtype);
    }
    return 0;
}

/* ---- on devices ---- */

bth_placed bth_storage_placed(berth_checkpoint *checkpoint, const berth_storage *root)
{
    bth_placed placed = {0};

    bth_checkpoint_lock(checkpoint);
    if (checkpoint->storages.placed)
        placed = checkpoint->storages.placed[root->index];
    bth_checkpoint_unlock(checkpoint);
    return placed;
}

int bth_fail_on_device(const bth_device_handle *device, berth_error *error)
{
    return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                    "its place is %s, where the host cannot follow an address: "
                    "berth_tensor_device_address tells it, berth_tensor_read copies from there",
                    bth_device_name(device));
}

/* ---- checksums ---- */

/* Its verdict, from now on. */
static int settle_storage(berth_checkpoint *checkpoint, const berth_storage *root,
                          const bth_zip_entry *entry, uint32_t crc32, berth_error *error)
{
    berth_crc_verdict verdict = BERTH_CRC_ABSENT; /* a stream has none */
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
    bth_sweep_order order = {.through_cache = true};
    bth_swept record = {.offset = root->offset};

    bth_checkpoint_lock(checkpoint);
    uint8_t verdict = checkpoint->storages.stored[root->index].crc32;
    (void)bth_contents_need_directory(&checkpoint->contents, &checkpoint->source.reader, error);
    bth_checkpoint_unlock(checkpoint);
    if (error->code < 0 || root->nbytes == 0 || verdict == BERTH_CRC_GOOD ||
        verdict == BERTH_CRC_ABSENT)
        return error->code;
    if (checkpoint->contents.is_stream)
        return settle_storage(checkpoint, root, NULL, 0, error);
    if (bth_storage_entry(&checkpoint->contents, root, &record.entry, error) < 0)
        return error->code;
    record.nbytes = record.entry->nbytes;
    if (bth_sweep(&checkpoint->source.reader, &checkpoint->config, &order, &record, 1, error) < 0)
        return error->code;
    return settle_storage(checkpoint, root, record.entry, record.crc32, error);
}

/* ---- reading ---- */

static const berth_storage *root_of(const berth_storage *storage, uint64_t *offset)
{
    if (!storage->root)
        return storage;
    *offset += storage->root_offset;
    return storage->root;
}

int bth_fail_ambiguous(const berth_storage *storage, berth_error *error)
{
    return bth_fail(error, BERTH_E_UNSUPPORTED, NULL, storage->offset,
                    "it is in the other byte order, and viewed as elements of different width: "
                    "which bytes to swap is not known");
}

/* As they are in the file. */
static int read_plain(berth_checkpoint *checkpoint, const berth_storage *root, uint8_t *buffer,
                      size_t nbytes, uint64_t offset, berth_error *error)
{
    const bth_stored *stored = &checkpoint->storages.stored[root->index];

    if (!bth_range_is_long(&checkpoint->config, nbytes))
        return bth_reader_read(&checkpoint->source.reader, buffer, nbytes, root->offset + offset,
                               error);
    struct berth_config config = checkpoint->config;
    bth_checkpoint_lock(checkpoint);
    if (stored->chosen_by)
        config.load_method = stored->chosen;
    bth_checkpoint_unlock(checkpoint);
    return bth_range_read(&checkpoint->source.reader, &config, checkpoint->prefetches.own != NULL,
                          buffer, nbytes, root->offset + offset, error);
}

/* A part of one unit. */
static int read_part(bth_reader *reader, const berth_storage *root, size_t unit, uint8_t *buffer,
                     size_t nbytes, uint64_t offset, berth_error *error)
{
    uint8_t whole[WIDEST_UNIT];
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
static int read_swapped(berth_checkpoint *checkpoint, const berth_storage *root, size_t unit,
                        uint8_t *buffer, size_t nbytes, uint64_t offset, berth_error *error)
{
    bth_reader *reader = &checkpoint->source.reader;
    size_t head = (size_t)((unit - offset % unit) % unit);

    head = head < nbytes ? head : nbytes;
    size_t tail = (nbytes - head) % unit, middle = nbytes - head - tail;
    if (head > 0 && read_part(reader, root, unit, buffer, head, offset, error) < 0)
        return error->code;
    if (read_plain(checkpoint, root, buffer + head, middle, offset + head, error) < 0)
        return error->code;
    bth_swap_bytes(buffer + head, buffer + head, middle, unit);
    if (tail == 0)
        return 0;
    return read_part(reader, root, unit, buffer + head + middle, tail, offset + head + middle,
                     error);
}

/* Bytes of a storage that is no view, in this machine's order, from the file. */
static int read_root(berth_checkpoint *checkpoint, const berth_storage *root, void *buffer,
                     size_t nbytes, uint64_t offset, berth_error *error)
{
    const bth_stored *stored = &checkpoint->storages.stored[root->index];

    if (stored->is_ambiguous)
        return bth_fail_ambiguous(root, error);
    if (checkpoint->config.load_check >= BTH_CHECK_DATA &&
        bth_verify_storage(checkpoint, root, error) < 0)
        return error->code;
    if (stored->unit > 1)
        return read_swapped(checkpoint, root, stored->unit, buffer, nbytes, offset, error);
    return read_plain(checkpoint, root, buffer, nbytes, offset, error);
}

/* From a device. Memory of the caller's may be freed by now. */
static int read_placed(const bth_placed *placed, const berth_storage *root, void *buffer,
                       size_t nbytes, uint64_t offset, berth_error *error)
{
    if (bth_device_check_life(placed->device, placed->life, error) < 0 ||
        bth_device_check(placed->device, placed->address, (size_t)root->nbytes, error) < 0)
        return error->code;
    return bth_device_read(placed->device, buffer, placed->address + (uintptr_t)offset, nbytes,
                           NULL, error);
}

/* From what it has become, wherever that is, or else from the file. */
static int read_there(berth_checkpoint *checkpoint, const berth_storage *root, void *buffer,
                      size_t nbytes, uint64_t offset, berth_error *error)
{
    /* Whoever has its memory may have written to it: then that is what the storage holds. */
    const uint8_t *memory = bth_storage_found(checkpoint, root->index);

    if (memory && bth_range_is_long(&checkpoint->config, nbytes))
        return bth_range_copy(checkpoint, memory + offset, buffer, nbytes, root->offset + offset,
                              error);
    if (memory) {
        memcpy(buffer, memory + offset, nbytes);
        return 0;
    }
    bth_placed placed = bth_storage_placed(checkpoint, root);
    if (placed.is_there)
        return read_placed(&placed, root, buffer, nbytes, offset, error);
    return read_root(checkpoint, root, buffer, nbytes, offset, error);
}

int bth_storage_read(berth_checkpoint *checkpoint, const berth_storage *storage, void *buffer,
                     size_t nbytes, uint64_t offset, berth_error *error)
{
    if (offset > storage->nbytes || nbytes > storage->nbytes - offset)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                        "%llu bytes at %llu of a storage of %llu are asked for", (ull)nbytes,
                        (ull)offset, (ull)storage->nbytes);
    const berth_storage *root = root_of(storage, &offset);
    if (nbytes == 0 || read_there(checkpoint, root, buffer, nbytes, offset, error) == 0)
        return 0;
    return bth_error_in_storage(checkpoint, root, error);
}

/* The hook of berth_storage: who saves the tree again knows nothing of load/. */
static int read_hook(const berth_storage *storage, void *buffer, size_t nbytes, uint64_t offset,
                     berth_error *error)
{
    bth_stored *stored = storage->context;
    berth_checkpoint *checkpoint = stored->checkpoint;

    if (bth_storage_read(checkpoint, storage, buffer, nbytes, offset, error) < 0)
        return bth_error_prefix(error, checkpoint->source.reader.name);
    return 0;
}

/* ---- where it lies ---- */

void bth_know_source(berth_checkpoint *checkpoint, bth_facts *facts)
{
    const bth_reader *reader = &checkpoint->source.reader;

    if (!checkpoint->source.file_system_is_known && reader->fd >= 0)
        checkpoint->source.file_system = bth_file_system_of(reader->fd);
    checkpoint->source.file_system_is_known = true;
    facts->is_memory = reader->memory != NULL;
    facts->is_file = reader->fd >= 0;
    facts->cannot_map = checkpoint->source.map_is_refused;
    facts->file_system = checkpoint->source.file_system;
}

/* Tried when somebody first wants it. Why direct reads cannot be; NULL: they can. */
static const char *why_not_direct(berth_checkpoint *checkpoint)
{
    if (!checkpoint->source.direct_is_tried) {
        BTH_HOLD_CANCEL(true);
        checkpoint->source.direct_is_tried = true;
        checkpoint->source.direct.fd = -1;
        if (checkpoint->source.file_system == BTH_IN_MEMORY) /* some take it, and copy as ever */
            checkpoint->source.no_direct = "the file system is in memory";
        else if (bth_direct_open_reading(checkpoint->source.reader.fd, &checkpoint->source.direct,
                                         &checkpoint->source.no_direct))
            checkpoint->source.no_direct = NULL;
    }
    if (atomic_load(&checkpoint->source.direct_is_refused))
        checkpoint->source.no_direct = "a direct read was refused";
    return checkpoint->source.no_direct;
}

/* T5: what cannot be used as it lies is read, whatever was decided. */
static bth_way where_it_lies(const berth_checkpoint *checkpoint, const berth_storage *root,
                             bth_way way)
{
    uintptr_t address =
        (uintptr_t)checkpoint->source.reader.memory + root->offset; /* maps: page-aligned */

    if (way.method != BERTH_LOAD_MAP)
        return way;
    if (checkpoint->storages.stored[root->index].unit > 1)
        return (bth_way){BERTH_LOAD_READ, "it is in the other byte order"};
    if (address % bth_storage_alignment(root) != 0)
        return (bth_way){BERTH_LOAD_READ, "it is not aligned for its elements"};
    return way;
}

bth_way bth_storage_way(berth_checkpoint *checkpoint, const struct berth_config *config,
                        bth_facts *facts, const berth_storage *root)
{
    const bth_stored *stored = &checkpoint->storages.stored[root->index];
    berth_load_method asked =
        stored->chosen_by ? stored->chosen : (berth_load_method)config->load_method;
    bth_way way = bth_way_choose(config, facts, asked, stored->chosen_by);

    if (way.method == BERTH_LOAD_DIRECT && !facts->no_direct) {
        facts->no_direct = why_not_direct(checkpoint);
        way = bth_way_choose(config, facts, asked, stored->chosen_by);
    }
    return where_it_lies(checkpoint, root, way);
}

/* How storages become memory when they are asked for one by one, as far as it is the same for all.
 */
void bth_storages_method(berth_checkpoint *checkpoint, const char **method, const char **reason)
{
    static const char *const texts[] = {"", "map", "read", "direct"};
    bth_facts facts = {0};

    bth_checkpoint_lock(checkpoint);
    bth_know_source(checkpoint, &facts);
    bth_checkpoint_unlock(checkpoint);
    bth_way way = bth_way_choose(&checkpoint->config, &facts,
                                 (berth_load_method)checkpoint->config.load_method, NULL);
    *method = facts.is_memory ? "memory" : texts[way.method];
    *reason = way.reason;
}

/* Where it cannot be made (file systems without mmap, limits of address space), storages are read
 * from then on. */
static int make_map(berth_checkpoint *checkpoint, berth_error *error)
{
    const bth_reader *reader = &checkpoint->source.reader;

    if (checkpoint->source.map.base || checkpoint->source.map_is_refused ||
        bth_map_file(reader->fd, 0, reader->nbytes, (int)checkpoint->config.load_mmap_flags,
                     &checkpoint->source.map, error) == 0)
        return 0;
    if (error->system_errno == 0)
        return error->code;
    bth_log("%s: storages are read, not mapped: %s", reader->name, error->message);
    bth_error_clear(error);
    checkpoint->source.map_is_refused = true;
    return 0;
}

/* Of a file that is mapped. `offset` is what an error names. */
static int check_size(const bth_reader *reader, uint64_t offset, berth_error *error)
{
    uint64_t nbytes;

    if (bth_file_size(reader->fd, &nbytes, error) < 0)
        return error->code;
    if (nbytes >= reader->nbytes)
        return 0;
    return bth_fail(error, BERTH_E_TRUNCATED, NULL, offset,
                    "the file had %llu bytes when it was opened, and now has %llu",
                    (ull)reader->nbytes, (ull)nbytes);
}

int bth_need_map(berth_checkpoint *checkpoint, uint64_t offset, const uint8_t **map,
                 berth_error *error)
{
    const bth_reader *reader = &checkpoint->source.reader;

    *map = reader->memory;
    if (*map)
        return 0;
    if (make_map(checkpoint, error) < 0) {
        error->offset = offset; /* what is missing is the whole file's; what is meant, its own */
        return error->code;
    }
    if (!checkpoint->source.map.base)
        return 0;
    /* F1 */
    uint64_t tick = bth_tick();
    if (tick != checkpoint->source.sized_at && check_size(reader, offset, error) < 0)
        return error->code;
    checkpoint->source.sized_at = tick;
    *map = checkpoint->source.map.address;
    return 0;
}

size_t bth_storage_alignment(const berth_storage *storage)
{
    return is_open(storage) ? WIDEST_UNIT : bth_dtype_swap_nbytes(storage->dtype);
}

int bth_storage_memory(berth_checkpoint *checkpoint, const berth_storage *storage,
                       const uint8_t **memory, berth_error *error)
{
    bth_stored *stored = &checkpoint->storages.stored[storage->index];
    const berth_storage *root = storage->root ? storage->root : storage;
    bth_bringing how = {.config = &checkpoint->config,
                        .with_crc32 = checkpoint->config.load_check >= BTH_CHECK_DATA};

    BTH_HOLD_CANCEL(how.with_crc32); /* the directory may be read */
    *memory = bth_storage_found(checkpoint, storage->index);
    if (*memory)
        return 0;
    if (bth_bring(checkpoint, &how, &root, 1, error) < 0)
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
    bth_facts facts = {0};

    if (bth_storage_found(checkpoint, root->index))
        return true;
    if (bth_storage_placed(checkpoint, root).device)
        return false;
    bth_checkpoint_lock(checkpoint);
    bth_know_source(checkpoint, &facts);
    bth_way way = bth_storage_way(checkpoint, &checkpoint->config, &facts, root);
    bth_checkpoint_unlock(checkpoint);
    return way.method == BERTH_LOAD_MAP;
}

/* ---- what became of them ---- */

int bth_storage_check_crc32(berth_checkpoint *checkpoint, const berth_storage *storage,
                            uint32_t computed, berth_crc_verdict *verdict, berth_error *error)
{
    const bth_zip_entry *entry;
    bool present = false;

    *verdict = BERTH_CRC_ABSENT; /* a stream has none */
    if (checkpoint->contents.is_stream)
        return 0;
    *verdict = BERTH_CRC_UNCHECKED;
    if (bth_storage_entry(&checkpoint->contents, storage, &entry, error) < 0 ||
        entry->nbytes != storage->nbytes) /* T1: the CRC is of more bytes */
        return error->code;
    if (bth_zip_check_crc(entry, computed, &present, error) < 0)
        *verdict = BERTH_CRC_BAD;
    else
        *verdict = present ? BERTH_CRC_GOOD : BERTH_CRC_ABSENT;
    return error->code;
}

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
        storage->read = read_hook;
    }
    checkpoint->contents.is_foreign = is_foreign(checkpoint);
    return checkpoint->contents.is_foreign ? settle_units(checkpoint, error) : 0;
}

void bth_kept_region_free(bth_kept_region *kept)
{
    if (kept)
        bth_region_free(&kept->region);
    bth_release(kept);
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
    if (checkpoint->source.direct_is_tried)
        bth_direct_close(&checkpoint->source.direct);
    checkpoint->source.direct_is_tried = false;
    checkpoint->storages.stored = NULL;
    bth_map_free(&checkpoint->source.map);
}
