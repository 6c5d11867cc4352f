/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/bring.h"

#include <stdio.h>

#include "config/error.h"
#include "config/memory.h"
#include "io/clock.h"
#include "io/file.h"
#include "io/free_memory.h"
#include "load/chunks.h"
#include "load/method.h"

/* For less, nobody is asked whether there is memory. */
#define LEAST_CHECKED_NBYTES ((uint64_t)16 * 1024 * 1024)

typedef unsigned long long ull;

/* What an empty storage's address is: one that may be asked for, and read 0 bytes from. */
static const _Alignas(BERTH_MEMORY_ALIGNMENT) uint8_t no_bytes[BERTH_MEMORY_ALIGNMENT];

/* One round of bringing: what nobody else has or brings. */
struct round {
    berth_checkpoint *checkpoint;
    berth_bringing *how;
    berth_facts facts;
    berth_spans spans;
    bool must_wait;     /* some are being brought by others */
    bool with_crc32;    /* CRCs are asked for, and not known of all */
    const uint8_t *map; /* the file's first byte, if any item is mapped */
    berth_kept_region *region;
};

/* ---- under the mutex: what is to be brought, and how ---- */

static bool is_wanted(const berth_checkpoint *checkpoint, const berth_storage *root)
{
    const berth_stored *stored = &checkpoint->stored[root->index];

    return !atomic_load(&stored->memory) && !stored->is_coming;
}

/* What a fetch looks at before it decides. */
static void measure(struct round *round, const berth_storage *const *roots, size_t n)
{
    berth_facts *facts = &round->facts;
    uint64_t begin = UINT64_MAX, end = 0;

    facts->at_once = round->how->at_once;
    facts->residency = BERTH_RESIDENCY_UNKNOWN;
    facts->free_nbytes = UINT64_MAX;
    if (!facts->at_once)
        return;
    for (size_t i = 0; i < n; i++) {
        if (!is_wanted(round->checkpoint, roots[i]) || roots[i]->nbytes == 0)
            continue;
        facts->asked_nbytes += roots[i]->nbytes;
        begin = roots[i]->offset < begin ? roots[i]->offset : begin;
        end = roots[i]->offset + roots[i]->nbytes;
    }
    if (facts->asked_nbytes >= LEAST_CHECKED_NBYTES)
        facts->free_nbytes = berth_free_memory("");
    if (facts->is_file && facts->file_system != BERTH_REMOTE &&
        facts->file_system != BERTH_IN_MEMORY && begin < end)
        facts->residency = berth_residency_of(round->checkpoint->reader.fd, begin, end - begin);
}

/* Nothing more is to be done for it. */
static void hand_out(berth_stored *stored, const char *method, const char *reason,
                     const uint8_t *memory)
{
    stored->method = method;
    stored->reason = reason;
    atomic_store(&stored->memory, memory);
}

/* The way of a storage, and the map, if it is mapped: that it cannot be may be seen only now. */
static int find_way(struct round *round, const berth_storage *root, berth_way *way,
                    berth_error *error)
{
    const struct berth_config *config = round->how->config;

    *way = berth_storage_way(round->checkpoint, config, &round->facts, root);
    if (way->method != BERTH_LOAD_MAP || round->map)
        return 0;
    if (berth_need_map(round->checkpoint, root->offset, &round->map, error) < 0)
        return error->code;
    round->facts.cannot_map = !round->map;
    if (!round->map)
        *way = berth_storage_way(round->checkpoint, config, &round->facts, root);
    return 0;
}

static int claim_one(struct round *round, const berth_storage *root, berth_error *error)
{
    berth_stored *stored = &round->checkpoint->stored[root->index];
    berth_way way;

    if (stored->is_ambiguous)
        return berth_fail_ambiguous(root, error);
    if (root->nbytes == 0) {
        hand_out(stored, "memory", "it is empty", no_bytes);
        return 0;
    }
    if (find_way(round, root, &way, error) < 0)
        return error->code;
    bool wants_crc32 = round->how->with_crc32 && stored->crc32 != BERTH_CRC_GOOD &&
                       stored->crc32 != BERTH_CRC_ABSENT;
    round->with_crc32 = round->with_crc32 || wants_crc32;
    if (way.method == BERTH_LOAD_MAP && !round->how->at_once && !wants_crc32) {
        hand_out(stored, round->facts.is_memory ? "memory" : "map", way.reason,
                 round->map + root->offset);
        return 0;
    }
    size_t shift = way.method == BERTH_LOAD_MAP ? 0 : root->offset % berth_storage_alignment(root);
    round->spans.items[round->spans.n_items++] =
        (berth_item){.storage = root, .way = way, .shift = (uint8_t)shift};
    return 0;
}

/* Fills the round's items. They are this thread's, until they are settled. */
static int claim(struct round *round, const berth_storage *const *roots, size_t n,
                 berth_error *error)
{
    berth_checkpoint *checkpoint = round->checkpoint;

    round->must_wait = round->with_crc32 = false;
    round->spans.n_items = 0;
    (void)pthread_mutex_lock(&checkpoint->mutex);
    berth_know_source(checkpoint, &round->facts);
    measure(round, roots, n);
    if (round->how->with_crc32)
        (void)berth_checkpoint_need_directory(checkpoint, error);
    for (size_t i = 0; i < n && error->code == 0; i++) {
        if (is_wanted(checkpoint, roots[i])) {
            if (claim_one(round, roots[i], error) < 0)
                (void)berth_error_in_storage(checkpoint, roots[i], error);
        } else if (!atomic_load(&checkpoint->stored[roots[i]->index].memory))
            round->must_wait = true;
    }
    for (size_t i = 0; i < round->spans.n_items && error->code == 0; i++)
        checkpoint->stored[round->spans.items[i].storage->index].is_coming = true;
    (void)pthread_mutex_unlock(&checkpoint->mutex);
    return error->code;
}

/* ---- without it: memory, and the work ---- */

/* A name for what a storage holds: a tensor that views it, or nothing. */
static void name_of(const berth_checkpoint *checkpoint, const berth_storage *root, char *text,
                    size_t text_nbytes)
{
    berth_error unasked = {0};
    const berth_names *names = berth_checkpoint_names(checkpoint, &unasked);
    char *name, *path;

    text[0] = '\0';
    for (size_t i = 0; names && i < berth_names_count(names); i++) {
        const berth_tensor *tensor = berth_value_tensor(berth_names_value(names, i));
        if (!tensor || !tensor->storage ||
            (tensor->storage != root && tensor->storage->root != root))
            continue;
        if (berth_names_text(names, i, &name, &path, &unasked) == 0) {
            (void)snprintf(text, text_nbytes, " for \"%.80s\"", name);
            berth_release(name);
            berth_release(path);
        }
        return;
    }
}

/* Before anything is read: names the first that does not fit, and what is missing. */
static int check_memory(const struct round *round, berth_error *error)
{
    const berth_spans *spans = &round->spans;
    uint64_t nbytes = spans->region_nbytes;
    char name[100];
    size_t i = 0;

    if (nbytes < LEAST_CHECKED_NBYTES)
        return 0;
    uint64_t free_nbytes = round->facts.at_once ? round->facts.free_nbytes : berth_free_memory("");
    if (nbytes <= free_nbytes)
        return 0;
    while (i + 1 < spans->n_items &&
           (spans->items[i].way.method == BERTH_LOAD_MAP ||
            spans->items[i].region_at + spans->items[i].storage->nbytes <= free_nbytes))
        i++;
    const berth_storage *storage = spans->items[i].storage;
    name_of(round->checkpoint, storage, name, sizeof name);
    (void)berth_fail(error, BERTH_E_MEMORY, NULL, storage->offset,
                     "there is no memory%s: of %llu bytes needed, %llu are missing", name,
                     (ull)nbytes, (ull)(nbytes - free_nbytes));
    return berth_error_in_storage(round->checkpoint, storage, error);
}

static int make_region(struct round *round, berth_error *error)
{
    const berth_spans *spans = &round->spans;

    if (spans->region_nbytes == 0)
        return 0;
    if (check_memory(round, error) < 0)
        return error->code;
    round->region = berth_allocate_zeroed(sizeof *round->region);
    if (!round->region)
        return berth_fail_memory(error, sizeof *round->region);
    return berth_region_new(spans->region_nbytes, spans->block_nbytes,
                            round->how->config->io_numa == BERTH_NUMA_INTERLEAVE,
                            &round->region->region, error);
}

/* Z10: the CRCs of what has come. */
static int check_crc32s(const struct round *round, berth_error *error)
{
    for (size_t i = 0; round->with_crc32 && i < round->spans.n_items; i++) {
        const berth_item *item = &round->spans.items[i];
        berth_crc_verdict verdict;
        (void)berth_storage_check_crc32(round->checkpoint, item->storage, item->crc32, &verdict,
                                        error);
        (void)pthread_mutex_lock(&round->checkpoint->mutex);
        round->checkpoint->stored[item->storage->index].crc32 = (uint8_t)verdict;
        (void)pthread_mutex_unlock(&round->checkpoint->mutex);
    }
    return error->code;
}

static int bring_items(struct round *round, berth_error *error)
{
    berth_spans *spans = &round->spans;
    berth_chunks work = {.checkpoint = round->checkpoint,
                         .config = round->how->config,
                         .call = round->how->call,
                         .with_crc32 = round->with_crc32,
                         .spans = spans};
    double begin_seconds = berth_seconds();

    if (!berth_spans_measure(spans))
        return berth_fail_memory(error, UINT64_MAX);
    if (make_region(round, error) < 0)
        return error->code;
    work.chunks = berth_allocate(spans->n_chunks * sizeof *work.chunks);
    if (!work.chunks)
        return berth_fail_memory(error, spans->n_chunks * sizeof *work.chunks);
    berth_spans_cut(spans, round->region ? round->region->region.bytes : NULL, round->map,
                    work.chunks);
    if (berth_chunks_run(&work, error) == 0)
        (void)check_crc32s(round, error);
    berth_release(work.chunks);
    round->how->transfer_seconds += berth_seconds() - begin_seconds;
    round->how->moved_nbytes += atomic_load(&work.moved_nbytes);
    round->how->n_requests += atomic_load(&work.n_requests);
    round->how->memory_nbytes += error->code == 0 ? spans->region_nbytes : 0;
    return error->code;
}

/* ---- under it again: handed out, or given back ---- */

static void publish(const struct round *round, const berth_item *item)
{
    berth_stored *stored = &round->checkpoint->stored[item->storage->index];
    bool is_mapped = item->way.method == BERTH_LOAD_MAP;

    if (is_mapped)
        stored->method = round->facts.is_memory ? "memory" : "map";
    else if (item->way.method == BERTH_LOAD_READ)
        stored->method = "read";
    else
        stored->method = item->fell_back ? "direct, then read" : "direct";
    stored->reason = item->fell_back ? "a direct read was refused" : item->way.reason;
    stored->moved_nbytes = is_mapped ? 0 : item->storage->nbytes;
    atomic_store(&stored->memory, item->memory);
}

static void settle(struct round *round, bool is_good)
{
    berth_checkpoint *checkpoint = round->checkpoint;

    (void)pthread_mutex_lock(&checkpoint->mutex);
    for (size_t i = 0; i < round->spans.n_items; i++) {
        const berth_item *item = &round->spans.items[i];
        checkpoint->stored[item->storage->index].is_coming = false;
        if (is_good)
            publish(round, item);
    }
    if (is_good && round->region) {
        round->region->next = checkpoint->regions;
        checkpoint->regions = round->region;
    } else
        berth_kept_region_free(round->region);
    round->region = NULL;
    (void)pthread_cond_broadcast(&checkpoint->settled);
    (void)pthread_mutex_unlock(&checkpoint->mutex);
}

/* Until nobody brings any of them: then they are memory, or it failed and is this thread's turn. */
static void wait_for_others(berth_checkpoint *checkpoint, const berth_storage *const *roots,
                            size_t n)
{
    (void)pthread_mutex_lock(&checkpoint->mutex);
    for (size_t i = 0; i < n; i++)
        while (checkpoint->stored[roots[i]->index].is_coming)
            (void)pthread_cond_wait(&checkpoint->settled, &checkpoint->mutex);
    (void)pthread_mutex_unlock(&checkpoint->mutex);
}

static void prepare(struct round *round)
{
    uint64_t chunk_nbytes = berth_chunk_nbytes(round->how->config);
    uint32_t block_nbytes = BERTH_MEMORY_ALIGNMENT;

    for (size_t i = 0; i < round->spans.n_items; i++)
        if (round->spans.items[i].way.method == BERTH_LOAD_DIRECT)
            block_nbytes = round->checkpoint->direct.block_nbytes;
    round->spans.block_nbytes = block_nbytes;
    round->spans.chunk_nbytes = chunk_nbytes - chunk_nbytes % BERTH_DIRECT_MOST_BLOCK_NBYTES;
}

int berth_bring(berth_checkpoint *checkpoint, berth_bringing *how,
                const berth_storage *const *roots, size_t n, berth_error *error)
{
    berth_item one, *items = &one;
    struct round round = {.checkpoint = checkpoint, .how = how};

    if (n > 1)
        items = berth_allocate(n * sizeof *items);
    if (!items)
        return berth_fail_memory(error, n * sizeof *items);
    do {
        round.facts = (berth_facts){0};
        round.map = NULL;
        round.spans = (berth_spans){.items = items};
        if (claim(&round, roots, n, error) == 0 && round.spans.n_items > 0) {
            prepare(&round);
            (void)bring_items(&round, error);
            settle(&round, error->code == 0);
        }
        if (error->code == 0 && round.must_wait)
            wait_for_others(checkpoint, roots, n);
    } while (error->code == 0 && round.must_wait);
    if (items != &one)
        berth_release(items);
    return error->code;
}
