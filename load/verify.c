/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Every byte of every record, and its CRC: spans are cut into chunks, which workers sum in any
 * order; the sums are then combined in the file's order, so that the first bad record is the one
 * told.
 */
#include <stdatomic.h>
#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/checksum.h"
#include "io/pool.h"
#include "load/checkpoint.h"

/* Bytes of one record that lie in the file as they are. */
struct span {
    const berth_zip_entry *entry; /* NULL: a stream's storage, which has no CRC */
    uint64_t offset;
    uint64_t nbytes;
};

struct chunk {
    const struct span *span;
    uint64_t offset; /* in the file */
    uint32_t nbytes;
    uint32_t crc32; /* the worker's result */
};

typedef struct summing {
    berth_reader *reader;
    const berth_call *call;
    struct chunk *chunks;
    uint8_t **buffers; /* one a worker; NULL where the source is memory */
    uint64_t total_nbytes;
    atomic_uint_fast64_t done_nbytes;
} summing;

static int sum_chunk(void *context, uint64_t task, unsigned worker, berth_error *error)
{
    summing *job = context;
    struct chunk *chunk = &job->chunks[task];
    const uint8_t *bytes;

    if (job->reader->memory) {
        bytes = job->reader->memory + chunk->offset;
    } else {
        bytes = job->buffers[worker];
        if (berth_reader_read(job->reader, job->buffers[worker], chunk->nbytes, chunk->offset,
                              error) < 0)
            return berth_error_in(error,
                                  chunk->span->entry ? chunk->span->entry->record : "storages");
    }
    chunk->crc32 = berth_crc32(0, bytes, chunk->nbytes);
    atomic_fetch_add_explicit(&job->done_nbytes, chunk->nbytes, memory_order_relaxed);
    return 0;
}

static int watch(void *context)
{
    summing *job = context;

    if (!job->call || !job->call->progress)
        return 0;
    return job->call->progress(job->call->progress_context, atomic_load(&job->done_nbytes),
                               job->total_nbytes);
}

static void free_buffers(summing *job, unsigned n)
{
    for (unsigned i = 0; job->buffers && i < n; i++)
        berth_release(job->buffers[i]);
    berth_release(job->buffers);
}

static int make_buffers(summing *job, unsigned n, uint64_t nbytes, berth_error *error)
{
    if (job->reader->memory || nbytes == 0)
        return 0;
    job->buffers = berth_allocate_zeroed(n * sizeof *job->buffers);
    if (!job->buffers)
        return berth_fail_memory(error, n * sizeof *job->buffers);
    for (unsigned i = 0; i < n; i++) {
        job->buffers[i] = berth_allocate(nbytes);
        if (!job->buffers[i])
            return berth_fail_memory(error, nbytes);
    }
    return 0;
}

/* How many chunks the spans give, and the bytes of the longest. */
static uint64_t count_chunks(const struct span *spans, size_t n_spans, uint64_t chunk_nbytes,
                             uint64_t *longest)
{
    uint64_t n = 0;

    *longest = 0;
    for (size_t i = 0; i < n_spans; i++) {
        uint64_t nbytes = spans[i].nbytes < chunk_nbytes ? spans[i].nbytes : chunk_nbytes;
        n += spans[i].nbytes / chunk_nbytes + (spans[i].nbytes % chunk_nbytes != 0);
        if (nbytes > *longest)
            *longest = nbytes;
    }
    return n;
}

static void cut(const struct span *spans, size_t n_spans, uint64_t chunk_nbytes,
                struct chunk *chunks)
{
    for (size_t i = 0; i < n_spans; i++)
        for (uint64_t at = 0; at < spans[i].nbytes; at += chunk_nbytes) {
            uint64_t left = spans[i].nbytes - at;
            *chunks++ =
                (struct chunk){.span = &spans[i],
                               .offset = spans[i].offset + at,
                               .nbytes = (uint32_t)(left < chunk_nbytes ? left : chunk_nbytes)};
        }
}

/* Z10: one record's sum against the directory's. */
static int compare_sum(const struct span *span, uint32_t crc32, berth_verdict *verdict,
                       berth_error *error)
{
    bool present = false;

    if (span->entry && berth_zip_check_crc(span->entry, crc32, &present, error) < 0)
        return error->code;
    verdict->n_verified += present && span->nbytes > 0;
    verdict->n_unverified += !present && span->nbytes > 0;
    return 0;
}

static int compare_sums(const struct span *spans, size_t n_spans, const struct chunk *chunks,
                        uint64_t n_chunks, berth_verdict *verdict, berth_error *error)
{
    uint64_t at = 0;

    for (size_t i = 0; i < n_spans; i++) {
        uint32_t crc32 = 0;
        for (; at < n_chunks && chunks[at].span == &spans[i]; at++)
            crc32 = berth_crc32_combine(crc32, chunks[at].crc32, chunks[at].nbytes);
        if (compare_sum(&spans[i], crc32, verdict, error) < 0)
            return error->code;
    }
    return 0;
}

static int sum_spans(berth_reader *reader, const struct berth_config *config,
                     const berth_call *call, const struct span *spans, size_t n_spans,
                     berth_verdict *verdict, berth_error *error)
{
    uint64_t longest, chunk_nbytes = berth_chunk_nbytes(config);
    uint64_t n_chunks = count_chunks(spans, n_spans, chunk_nbytes, &longest);
    unsigned n_workers = berth_n_workers(config, n_chunks);
    unsigned n_buffers = n_workers > 0 ? n_workers : 1;
    summing job = {.reader = reader, .call = call, .total_nbytes = verdict->nbytes};

    atomic_init(&job.done_nbytes, 0);
    if (n_chunks > 0) {
        job.chunks = berth_allocate(n_chunks * sizeof *job.chunks);
        if (!job.chunks)
            return berth_fail_memory(error, n_chunks * sizeof *job.chunks);
        cut(spans, n_spans, chunk_nbytes, job.chunks);
    }
    if (make_buffers(&job, n_buffers, longest, error) == 0 &&
        berth_pool_run(n_workers, n_chunks, sum_chunk, watch, &job, error) == 0)
        (void)compare_sums(spans, n_spans, job.chunks, n_chunks, verdict, error);
    free_buffers(&job, n_buffers);
    berth_release(job.chunks);
    return error->code;
}

/* Deflated records are few and small: one after the other. */
static int verify_deflated(berth_reader *reader, const berth_zip_entry *entry,
                           berth_verdict *verdict, berth_error *error)
{
    struct span span = {.entry = entry, .nbytes = entry->nbytes};
    berth_window window;
    const uint8_t *bytes;
    uint8_t *owned;

    berth_window_begin(&window, reader);
    if (berth_container_bytes(entry, &window, &bytes, &owned, error) == 0)
        (void)compare_sum(&span, berth_crc32(0, bytes, entry->nbytes), verdict, error);
    berth_release(owned);
    berth_window_free(&window);
    return error->code;
}

int berth_verify_container(berth_reader *reader, const struct berth_config *config,
                           const berth_container *container, const berth_call *call,
                           berth_verdict *verdict, berth_error *error)
{
    const berth_zip_directory *directory = &container->directory;
    size_t n_spans = 0;
    struct span *spans = berth_allocate((directory->n_entries + 1) * sizeof *spans);

    if (!spans)
        return berth_fail_memory(error, (directory->n_entries + 1) * sizeof *spans);
    for (size_t i = 0; i < directory->n_entries && error->code == 0; i++) {
        const berth_zip_entry *entry = &directory->entries[i];
        verdict->n_records++;
        verdict->nbytes += entry->nbytes;
        if (entry->method != 0)
            (void)verify_deflated(reader, entry, verdict, error);
        else
            spans[n_spans++] = (struct span){
                .entry = entry, .offset = entry->data_offset, .nbytes = entry->nbytes};
    }
    if (error->code == 0)
        (void)sum_spans(reader, config, call, spans, n_spans, verdict, error);
    berth_release(spans);
    return error->code;
}

/* A stream has no CRCs; what can be shown is that all its bytes can be read. */
static int verify_stream(berth_checkpoint *checkpoint, const berth_call *call,
                         berth_verdict *verdict, berth_error *error)
{
    size_t n_spans = 0;
    struct span *spans = berth_allocate((checkpoint->n_storages + 1) * sizeof *spans);

    if (!spans)
        return berth_fail_memory(error, (checkpoint->n_storages + 1) * sizeof *spans);
    for (size_t i = 0; i < checkpoint->n_storages; i++) {
        const berth_storage *storage = berth_tree_storage(checkpoint->tree, i);
        if (storage->root)
            continue;
        verdict->n_records++;
        verdict->nbytes += storage->nbytes;
        spans[n_spans++] = (struct span){.offset = storage->offset, .nbytes = storage->nbytes};
    }
    (void)sum_spans(&checkpoint->reader, &checkpoint->config, call, spans, n_spans, verdict, error);
    berth_release(spans);
    return error->code;
}

int berth_verify_data(berth_checkpoint *checkpoint, const berth_call *call, berth_verdict *verdict,
                      berth_error *error)
{
    berth_verdict unasked;

    if (!verdict)
        verdict = &unasked;
    memset(verdict, 0, sizeof *verdict);
    verdict->n_storages = checkpoint->n_storages;
    if (checkpoint->is_stream)
        return verify_stream(checkpoint, call, verdict, error);
    return berth_verify_container(&checkpoint->reader, &checkpoint->config, &checkpoint->container,
                                  call, verdict, error);
}

int berth_verify(const char *path, const berth_call *call, berth_verdict *verdict,
                 berth_error *error)
{
    berth_checkpoint *checkpoint = NULL;
    struct berth_config config;

    BERTH_ERROR_BEGIN(error);
    if (verdict)
        memset(verdict, 0, sizeof *verdict);
    if (berth_config_resolve(call, &config, error) < 0)
        return error->code;
    /* Everything but the data is the business of open. */
    config.load_check = BERTH_CHECK_HEADERS;
    if (berth_checkpoint_open_path(path, &config, call, &checkpoint, error) < 0)
        return error->code;
    if (berth_verify_data(checkpoint, call, verdict, error) < 0)
        (void)berth_error_prefix(error, checkpoint->reader.name);
    berth_checkpoint_stats(checkpoint, call);
    berth_close(checkpoint);
    return error->code;
}
