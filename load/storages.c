/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How a storage's bytes become memory: looked at where they lie (a map of the file, or the caller's
 * own memory), or read into memory of our own; and how long that lives: as long as the checkpoint.
 */
#include <stdio.h>
#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/tensor.h"
#include "io/file.h"
#include "io/pool.h"
#include "load/checkpoint.h"

#define MEMORY_ALIGNMENT 64
/* io.chunk_nbytes = 0. A multiple of every unit whose bytes are swapped. */
#define CHUNK_NBYTES (UINT64_C(4) << 20)
#define LEAST_CHUNK_NBYTES 65536
/* The widest element that has to be aligned: what an untyped storage may be viewed as. */
#define WIDEST_UNIT 8

typedef unsigned long long ull;

/* What an empty storage's address is: one that may be asked for, and read 0 bytes from. */
static const _Alignas(MEMORY_ALIGNMENT) uint8_t no_bytes[MEMORY_ALIGNMENT];

/* ---- which bytes are reversed (T5) ---- */

static bool is_foreign(const berth_checkpoint *checkpoint)
{
    return checkpoint->is_big != (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}

/* Whether the class in the file leaves open what the elements are: bytes, or anything (v3). */
static bool is_open(const berth_storage *storage)
{
    return storage->dtype == BERTH_DTYPE_NONE || storage->dtype == BERTH_UINT8;
}

/* An untyped storage is swapped by the dtype that views it; bytes beside it do not count. */
static void settle(berth_stored *stored, berth_dtype dtype)
{
    size_t unit = dtype == BERTH_DTYPE_NONE ? 1 : berth_dtype_swap_nbytes(dtype);

    if (unit > 1 && stored->unit > 1 && stored->unit != unit)
        stored->is_ambiguous = true;
    if (unit > stored->unit)
        stored->unit = (uint8_t)unit;
}

/* Foreign order: each storage's unit, from its class, or from all tensors that view it. */
static int settle_units(berth_checkpoint *checkpoint, berth_error *error)
{
    bool any_open = false;

    for (size_t i = 0; i < checkpoint->n_storages; i++) {
        const berth_storage *storage = berth_tree_storage(checkpoint->tree, i);
        settle(&checkpoint->stored[i], storage->dtype);
        if (is_open(storage)) {
            settle(&checkpoint->stored[i], storage->element);
            any_open = true;
        }
    }
    if (!any_open)
        return 0;
    if (berth_names_new(checkpoint->root, &checkpoint->names, error) < 0)
        return error->code;
    for (size_t i = 0; i < berth_names_count(checkpoint->names); i++) {
        const berth_tensor *tensor = berth_value_tensor(berth_names_value(checkpoint->names, i));
        if (tensor && tensor->storage && is_open(tensor->storage))
            settle(&checkpoint->stored[tensor->storage->index], tensor->dtype);
    }
    return 0;
}

/* ---- reading ---- */

static const berth_storage *root_of(const berth_storage *storage, uint64_t *offset)
{
    if (!storage->root)
        return storage;
    *offset += storage->root_offset;
    return storage->root;
}

/* The record of a storage; of a stream, where it has none, its key. */
static int in_storage(const berth_checkpoint *checkpoint, const berth_storage *storage,
                      berth_error *error)
{
    char record[sizeof error->record];

    (void)snprintf(record, sizeof record, checkpoint->is_stream ? "storage %s" : "data/%s",
                   storage->key);
    return berth_error_in(error, record);
}

static int fail_ambiguous(const berth_storage *storage, berth_error *error)
{
    return berth_fail(error, BERTH_E_UNSUPPORTED, NULL, storage->offset,
                      "it is in the other byte order, and viewed as elements of different width: "
                      "which bytes to swap is not known");
}

/* Swapped bytes of any range: whole units are read around it. */
static int read_swapped(berth_reader *reader, const berth_storage *root, size_t unit,
                        uint8_t *buffer, size_t nbytes, uint64_t offset, berth_error *error)
{
    uint8_t bounce[4096];

    while (nbytes > 0) {
        uint64_t start = offset - offset % unit;
        size_t have =
            root->nbytes - start < sizeof bounce ? (size_t)(root->nbytes - start) : sizeof bounce;
        if (berth_reader_read(reader, bounce, have, root->offset + start, error) < 0)
            return error->code;
        berth_swap_bytes(bounce, bounce, have - have % unit, unit);
        size_t n = have - (size_t)(offset - start);
        if (n > nbytes)
            n = nbytes;
        memcpy(buffer, bounce + (offset - start), n);
        buffer += n;
        offset += n;
        nbytes -= n;
    }
    return 0;
}

/* Bytes of a storage that is no view, in this machine's order, from the file. */
static int read_root(berth_checkpoint *checkpoint, const berth_storage *root, void *buffer,
                     size_t nbytes, uint64_t offset, berth_error *error)
{
    const berth_stored *stored = &checkpoint->stored[root->index];

    if (stored->is_ambiguous)
        return fail_ambiguous(root, error);
    if (stored->unit > 1)
        return read_swapped(&checkpoint->reader, root, stored->unit, buffer, nbytes, offset, error);
    return berth_reader_read(&checkpoint->reader, buffer, nbytes, root->offset + offset, error);
}

int berth_storage_read(berth_checkpoint *checkpoint, const berth_storage *storage, void *buffer,
                       size_t nbytes, uint64_t offset, berth_error *error)
{
    if (offset > storage->nbytes || nbytes > storage->nbytes - offset)
        return berth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                          "%llu bytes at %llu of a storage of %llu are asked for", (ull)nbytes,
                          (ull)offset, (ull)storage->nbytes);
    const berth_storage *root = root_of(storage, &offset);
    /* Whoever has its memory may have written to it: then that is what the storage holds. */
    const uint8_t *memory = atomic_load(&checkpoint->stored[root->index].memory);
    if (memory && nbytes > 0)
        memcpy(buffer, memory + offset, nbytes);
    if (memory || read_root(checkpoint, root, buffer, nbytes, offset, error) == 0)
        return 0;
    return in_storage(checkpoint, root, error);
}

/* The hook of berth_storage: who saves the tree again knows nothing of load/. */
static int read_hook(const berth_storage *storage, void *buffer, size_t nbytes, uint64_t offset,
                     berth_error *error)
{
    berth_stored *stored = storage->context;
    berth_checkpoint *checkpoint = stored->checkpoint;

    if (berth_storage_read(checkpoint, storage, buffer, nbytes, offset, error) < 0)
        return berth_error_prefix(error, checkpoint->reader.name);
    return 0;
}

/* ---- memory of our own ---- */

typedef struct reading {
    berth_checkpoint *checkpoint;
    const berth_storage *root;
    uint8_t *memory;
    uint64_t chunk_nbytes;
} reading;

static int read_chunk(void *context, uint64_t task, unsigned worker, berth_error *error)
{
    const reading *job = context;
    uint64_t offset = task * job->chunk_nbytes;
    uint64_t left = job->root->nbytes - offset;
    size_t nbytes = left < job->chunk_nbytes ? (size_t)left : (size_t)job->chunk_nbytes;
    size_t unit = job->checkpoint->stored[job->root->index].unit;

    (void)worker;
    if (berth_reader_read(&job->checkpoint->reader, job->memory + offset, nbytes,
                          job->root->offset + offset, error) < 0)
        return error->code;
    if (unit > 1)
        berth_swap_bytes(job->memory + offset, job->memory + offset, nbytes - nbytes % unit, unit);
    return 0;
}

/* Reads a whole storage, in parallel chunks if it is long, and swaps what must be. */
static int read_all(berth_checkpoint *checkpoint, const berth_storage *root, uint8_t *memory,
                    berth_error *error)
{
    uint64_t chunk_nbytes = berth_chunk_nbytes(&checkpoint->config);
    uint64_t n_chunks = root->nbytes / chunk_nbytes + (root->nbytes % chunk_nbytes != 0);
    reading job = {
        .checkpoint = checkpoint, .root = root, .memory = memory, .chunk_nbytes = chunk_nbytes};

    return berth_pool_run(berth_n_workers(&checkpoint->config, n_chunks), n_chunks, read_chunk,
                          NULL, &job, error);
}

/* Aligned memory that the checkpoint releases. nbytes are those of a storage that is really there.
 */
static uint8_t *allocate_aligned(berth_stored *stored, uint64_t nbytes, berth_error *error)
{
    uint8_t *bytes = nbytes <= PTRDIFF_MAX ? berth_allocate(nbytes + MEMORY_ALIGNMENT) : NULL;

    if (!bytes) {
        (void)berth_fail_memory(error, nbytes);
        return NULL;
    }
    stored->owned = bytes;
    return bytes + (MEMORY_ALIGNMENT - (uintptr_t)bytes % MEMORY_ALIGNMENT) % MEMORY_ALIGNMENT;
}

static void disown(berth_stored *stored)
{
    berth_release(stored->owned);
    stored->owned = NULL;
}

uint64_t berth_chunk_nbytes(const struct berth_config *config)
{
    uint64_t nbytes = config->io_chunk_nbytes ? (uint64_t)config->io_chunk_nbytes : CHUNK_NBYTES;

    return nbytes < LEAST_CHUNK_NBYTES ? LEAST_CHUNK_NBYTES : nbytes - nbytes % WIDEST_UNIT;
}

unsigned berth_n_workers(const struct berth_config *config, uint64_t n_tasks)
{
    uint64_t n = config->io_threads ? (uint64_t)config->io_threads : berth_pool_measure();
    uint64_t chunk_nbytes = berth_chunk_nbytes(config);

    if (config->io_memory_nbytes && n > (uint64_t)config->io_memory_nbytes / chunk_nbytes)
        n = (uint64_t)config->io_memory_nbytes / chunk_nbytes;
    if (n > n_tasks)
        n = n_tasks;
    return n > 1 ? (unsigned)n : 0; /* one is the caller's own thread */
}

/* ---- where it lies ---- */

/* Whether storages are mapped, and in words why, or why not. */
static bool is_mapped(const berth_checkpoint *checkpoint, const char **reason)
{
    const char *text = checkpoint->config.load_method == BERTH_LOAD_MAP ? "load.method=map"
                                                                        : "the source is a file";
    bool mapped = false;

    if (checkpoint->reader.fd < 0)
        text = "the source is no file";
    else if (checkpoint->map_is_refused)
        text = "the file cannot be mapped";
    else if (!checkpoint->config.load_mmap)
        text = "load.mmap=off";
    else if (checkpoint->config.load_method == BERTH_LOAD_READ)
        text = "load.method=read";
    else
        mapped = true;
    if (reason)
        *reason = text;
    return mapped;
}

void berth_storages_method(const berth_checkpoint *checkpoint, const char **method,
                           const char **reason)
{
    *method = is_mapped(checkpoint, reason) ? "map" : "read";
    if (checkpoint->reader.memory) {
        *method = "memory";
        *reason = "the source is memory";
    }
}

/*
 * The map of the whole file, made with the first storage. Where it cannot be made and nobody
 * insists on one (file systems without mmap, limits of address space), storages are read from then
 * on.
 */
static int make_map(berth_checkpoint *checkpoint, berth_error *error)
{
    const berth_reader *reader = &checkpoint->reader;

    if (checkpoint->map.base ||
        berth_map_file(reader->fd, 0, reader->nbytes, (int)checkpoint->config.load_mmap_flags,
                       &checkpoint->map, error) == 0)
        return 0;
    if (checkpoint->config.load_method != BERTH_LOAD_AUTO || error->system_errno == 0)
        return error->code;
    berth_log("%s: storages are read, not mapped: %s", reader->name, error->message);
    berth_error_clear(error);
    checkpoint->map_is_refused = true;
    return 0;
}

/* A storage in the map, or NULL if there is none; the file's size is looked at each time (F1). */
static int map_storage(berth_checkpoint *checkpoint, const berth_storage *root,
                       const uint8_t **memory, berth_error *error)
{
    berth_reader *reader = &checkpoint->reader;
    uint64_t nbytes;

    if (make_map(checkpoint, error) < 0)
        return error->code;
    if (!checkpoint->map.base)
        return 0;
    if (berth_file_size(reader->fd, &nbytes, error) < 0)
        return error->code;
    if (nbytes < reader->nbytes)
        return berth_fail(error, BERTH_E_TRUNCATED, NULL, root->offset,
                          "the file had %llu bytes when it was opened, and now has %llu",
                          (ull)reader->nbytes, (ull)nbytes);
    *memory = (const uint8_t *)checkpoint->map.address + root->offset;
    return 0;
}

/* Whether elements can be used there; a complex number is two of its halves. */
static bool is_aligned(const void *memory, const berth_storage *storage)
{
    size_t unit = is_open(storage) ? WIDEST_UNIT : berth_dtype_swap_nbytes(storage->dtype);

    return (uintptr_t)memory % unit == 0;
}

/* Where a storage can be used as it lies: *memory, else NULL. */
static int look(berth_checkpoint *checkpoint, const berth_storage *root, const uint8_t **memory,
                berth_error *error)
{
    *memory = NULL;
    if (checkpoint->stored[root->index].unit > 1)
        return 0; /* T5: swapped in memory of our own */
    if (checkpoint->reader.memory)
        *memory = checkpoint->reader.memory + root->offset;
    else if (is_mapped(checkpoint, NULL) && map_storage(checkpoint, root, memory, error) < 0)
        return error->code;
    if (*memory && !is_aligned(*memory, root))
        *memory = NULL; /* T5: copied */
    return 0;
}

/* Under the mutex: makes the memory of a storage that is no view. */
static int make_memory(berth_checkpoint *checkpoint, const berth_storage *root, berth_error *error)
{
    berth_stored *stored = &checkpoint->stored[root->index];
    const uint8_t *memory = no_bytes;

    if (atomic_load(&stored->memory))
        return 0;
    if (stored->is_ambiguous)
        return fail_ambiguous(root, error);
    if (root->nbytes > 0 && look(checkpoint, root, &memory, error) < 0)
        return error->code;
    if (!memory) {
        uint8_t *own = allocate_aligned(stored, root->nbytes, error);
        if (!own)
            return error->code;
        if (read_all(checkpoint, root, own, error) < 0) {
            disown(stored);
            return error->code;
        }
        memory = own;
    }
    atomic_store(&stored->memory, memory);
    return 0;
}

int berth_storage_memory(berth_checkpoint *checkpoint, const berth_storage *storage,
                         const uint8_t **memory, berth_error *error)
{
    berth_stored *stored = &checkpoint->stored[storage->index];

    *memory = atomic_load(&stored->memory);
    if (*memory)
        return 0;
    (void)pthread_mutex_lock(&checkpoint->mutex);
    const berth_storage *root = storage->root ? storage->root : storage;
    /* A view lies in its root's memory. */
    if (make_memory(checkpoint, root, error) == 0 && root != storage)
        atomic_store(&stored->memory,
                     atomic_load(&checkpoint->stored[root->index].memory) + storage->root_offset);
    (void)pthread_mutex_unlock(&checkpoint->mutex);
    *memory = atomic_load(&stored->memory);
    return *memory ? 0 : in_storage(checkpoint, root, error);
}

bool berth_storage_is_at_hand(berth_checkpoint *checkpoint, const berth_storage *storage)
{
    uint64_t offset = 0;
    const berth_storage *root = root_of(storage, &offset);

    return atomic_load(&checkpoint->stored[root->index].memory) || checkpoint->reader.memory ||
           is_mapped(checkpoint, NULL);
}

/* ---- begin and end ---- */

int berth_storages_begin(berth_checkpoint *checkpoint, berth_error *error)
{
    size_t n = checkpoint->n_storages;

    if (n == 0)
        return 0;
    checkpoint->stored = berth_allocate_zeroed(n * sizeof *checkpoint->stored);
    if (!checkpoint->stored)
        return berth_fail_memory(error, n * sizeof *checkpoint->stored);
    for (size_t i = 0; i < n; i++) {
        berth_storage *storage = berth_tree_storage(checkpoint->tree, i);
        checkpoint->stored[i].checkpoint = checkpoint;
        checkpoint->stored[i].unit = 1;
        storage->context = &checkpoint->stored[i];
        storage->read = read_hook;
    }
    return is_foreign(checkpoint) ? settle_units(checkpoint, error) : 0;
}

void berth_storages_end(berth_checkpoint *checkpoint)
{
    for (size_t i = 0; checkpoint->stored && i < checkpoint->n_storages; i++)
        disown(&checkpoint->stored[i]);
    berth_release(checkpoint->stored);
    checkpoint->stored = NULL;
    berth_map_free(&checkpoint->map);
}
