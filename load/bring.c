/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/bring.h"

#include <stdio.h>

#include "config/error.h"
#include "config/memory.h"
#include "io/clock.h"
#include "io/file.h"
#include "io/free_memory.h"
#include "load/chunks.h"
#include "load/to_device.h"

/* For less, nobody is asked whether there is memory. */
#define LEAST_CHECKED_NBYTES ((uint64_t)16 * 1024 * 1024)

typedef unsigned long long ull;

/* What an empty storage's address is: one that may be asked for, and read 0 bytes from. */
static const _Alignas(BTH_MEMORY_ALIGNMENT) uint8_t no_bytes[BTH_MEMORY_ALIGNMENT];

/*
 * One of two rounds of bringing. The first claims what nobody else has, brings or waits for. The
 * second claims the rest at once, when others are through with all of it: where they failed, it is
 * this thread's turn. Nothing is handed out before both are done: all or nothing.
 *
 * Who waits holds what the first round claimed, but nobody waits for ever: what a first round
 * leaves was taken, or wanted, by one that had begun before, so that those who wait only ever wait
 * for earlier ones; and a second round waits no more once it has claimed.
 */
struct round {
    berth_checkpoint *checkpoint;
    bth_bringing *how;
    bool is_second;
    bth_facts facts;
    bth_spans spans;            /* of what goes to the host, */
    bth_spans staged;           /* and to devices */
    const berth_storage **rest; /* left to the second round */
    size_t n_rest;
    bool with_crc32;    /* CRCs are asked for, and not known of all */
    const uint8_t *map; /* the file's first byte, if any item is mapped */
    bth_kept_region *region;
    bth_device_memory_list *device_memory;
};

/* ---- under the mutex: what is to be brought, and how ---- */

static bool is_there(const berth_checkpoint *checkpoint, const berth_storage *root)
{
    return atomic_load(&checkpoint->stored[root->index].memory) ||
           (checkpoint->placed && checkpoint->placed[root->index].is_there);
}

/* Whether it is left to others, who bring it or waited first. */
static bool is_taken(const struct round *round, const berth_storage *root)
{
    const bth_stored *stored = &round->checkpoint->stored[root->index];

    return stored->is_coming || (!round->is_second && stored->n_waiting > 0);
}

static bool is_wanted(const struct round *round, const berth_storage *root)
{
    return !is_there(round->checkpoint, root) && !is_taken(round, root);
}

/* What a fetch looks at before it decides. */
static void measure(struct round *round, const berth_storage *const *roots, size_t n)
{
    bth_facts *facts = &round->facts;
    uint64_t begin = UINT64_MAX, end = 0;

    facts->at_once = round->how->at_once;
    facts->residency = BTH_PAGE_CACHE_UNKNOWN;
    facts->free_nbytes = UINT64_MAX;
    if (!facts->at_once)
        return;
    for (size_t i = 0; i < n; i++) {
        if (!is_wanted(round, roots[i]) || roots[i]->nbytes == 0)
            continue;
        facts->asked_nbytes += roots[i]->nbytes;
        begin = roots[i]->offset < begin ? roots[i]->offset : begin;
        end = roots[i]->offset + roots[i]->nbytes;
    }
    if (facts->asked_nbytes >= LEAST_CHECKED_NBYTES)
        facts->free_nbytes = bth_free_memory("");
    if (facts->is_file && facts->file_system != BTH_REMOTE && facts->file_system != BTH_IN_MEMORY &&
        begin < end)
        facts->residency = bth_page_cache_probe(round->checkpoint->reader.fd, begin, end - begin);
}

/* Nothing more is to be done for it. */
static void hand_out(bth_stored *stored, const char *method, const char *reason,
                     const uint8_t *memory)
{
    stored->method = method;
    stored->reason = reason;
    atomic_store(&stored->memory, memory);
}

/* The way of a storage, and the map, if it is mapped: that it cannot be may be seen only now. */
static int find_way(struct round *round, const berth_storage *root, bth_way *way,
                    berth_error *error)
{
    const struct berth_config *config = round->how->config;

    *way = bth_storage_way(round->checkpoint, config, &round->facts, root);
    if (way->method != BERTH_LOAD_MAP || round->map)
        return 0;
    if (bth_need_map(round->checkpoint, root->offset, &round->map, error) < 0)
        return error->code;
    round->facts.cannot_map = !round->map;
    if (!round->map)
        *way = bth_storage_way(round->checkpoint, config, &round->facts, root);
    return 0;
}

static bool wants_crc32(struct round *round, const bth_stored *stored)
{
    bool wants = round->how->with_crc32 && stored->crc32 != BERTH_CRC_GOOD &&
                 stored->crc32 != BERTH_CRC_ABSENT;

    round->with_crc32 = round->with_crc32 || wants;
    return wants;
}

/* What goes to a device. T5: there it is aligned, but in the file its elements may not be. */
static void claim_placed(struct round *round, const berth_storage *root, bth_placed *placed)
{
    bth_stored *stored = &round->checkpoint->stored[root->index];

    if (root->nbytes == 0) {
        placed->is_there = true;
        stored->method = "memory";
        stored->reason = "it is empty";
        return;
    }
    bth_item item = {.storage = root,
                     .device = placed->device,
                     .address = placed->address,
                     .life = placed->life,
                     .ready = placed->ready};
    round->facts.to_device = true;
    item.way = bth_storage_way(round->checkpoint, round->how->config, &round->facts, root);
    round->facts.to_device = false;
    item.shift = (uint8_t)(stored->unit > 1 ? root->offset % stored->unit : 0);
    if (item.shift > 0)
        item.way = (bth_way){BERTH_LOAD_READ, "it is not aligned for its elements"};
    /* Z10: what was summed before is read once more, and may be different by now. */
    round->with_crc32 =
        round->with_crc32 || (round->how->with_crc32 && stored->crc32 != BERTH_CRC_ABSENT);
    round->staged.items[round->staged.n_items++] = item;
}

static int claim_one(struct round *round, const berth_storage *root, berth_error *error)
{
    bth_placed *placed = round->checkpoint->placed;
    bth_stored *stored = &round->checkpoint->stored[root->index];
    bth_way way;

    if (stored->is_ambiguous)
        return bth_fail_ambiguous(root, error);
    if (placed && placed[root->index].device) {
        claim_placed(round, root, &placed[root->index]);
        return 0;
    }
    if (root->nbytes == 0) {
        hand_out(stored, "memory", "it is empty", no_bytes);
        return 0;
    }
    if (find_way(round, root, &way, error) < 0)
        return error->code;
    if (!wants_crc32(round, stored) && way.method == BERTH_LOAD_MAP && !round->how->at_once) {
        hand_out(stored, round->facts.is_memory ? "memory" : "map", way.reason,
                 round->map + root->offset);
        return 0;
    }
    size_t shift = way.method == BERTH_LOAD_MAP ? 0 : root->offset % bth_storage_alignment(root);
    round->spans.items[round->spans.n_items++] =
        (bth_item){.storage = root, .way = way, .shift = (uint8_t)shift};
    return 0;
}

/* Who wants an address of the host's gets an error, whether it has been brought or not. */
static int check_place(const struct round *round, const berth_storage *root, berth_error *error)
{
    const bth_placed *placed = round->checkpoint->placed;

    if (round->how->to_devices || !placed || !placed[root->index].device)
        return 0;
    return bth_fail_on_device(placed[root->index].device, error);
}

static void set_coming(const struct round *round, const bth_spans *spans, bool is_coming)
{
    for (size_t i = 0; i < spans->n_items; i++)
        round->checkpoint->stored[spans->items[i].storage->index].is_coming = is_coming;
}

static void set_waiting(const struct round *round, int change)
{
    for (size_t i = 0; i < round->n_rest; i++)
        round->checkpoint->stored[round->rest[i]->index].n_waiting += change;
}

/* Until nobody brings any of them: then they are memory, or it failed. */
static void wait_for_others(berth_checkpoint *checkpoint, const berth_storage *const *roots,
                            size_t n)
{
    for (size_t i = 0; i < n;) {
        if (!checkpoint->stored[roots[i]->index].is_coming) {
            i++;
            continue;
        }
        (void)pthread_cond_wait(&checkpoint->settled, &checkpoint->lock.mutex);
        i = 0; /* it was unlocked meanwhile */
    }
}

/* What is of no use where some of it cannot be claimed. */
static void claim_all(struct round *round, const berth_storage *const *roots, size_t n,
                      berth_error *error)
{
    for (size_t i = 0; i < n && error->code == 0; i++) {
        if (check_place(round, roots[i], error) < 0 ||
            (is_wanted(round, roots[i]) && claim_one(round, roots[i], error) < 0))
            (void)bth_error_in_storage(round->checkpoint, roots[i], error);
        else if (!is_there(round->checkpoint, roots[i]) && is_taken(round, roots[i]))
            round->rest[round->n_rest++] = roots[i];
    }
    if (error->code < 0)
        round->spans.n_items = round->staged.n_items = round->n_rest = 0;
}

/* Fills the round's items. They are this thread's, until they are settled. */
static int claim(struct round *round, const berth_storage *const *roots, size_t n,
                 berth_error *error)
{
    berth_checkpoint *checkpoint = round->checkpoint;

    bth_checkpoint_lock(checkpoint);
    if (round->is_second)
        wait_for_others(checkpoint, roots, n);
    bth_know_source(checkpoint, &round->facts);
    measure(round, roots, n);
    if (round->how->with_crc32)
        (void)bth_checkpoint_need_directory(checkpoint, error);
    claim_all(round, roots, n, error);
    set_coming(round, &round->spans, true);
    set_coming(round, &round->staged, true);
    set_waiting(round, 1);
    bth_checkpoint_unlock(checkpoint);
    return error->code;
}

/* ---- without it: memory, and the work ---- */

/* A name for what a storage holds: a tensor that views it, or nothing. */
static void name_of(const berth_checkpoint *checkpoint, const berth_storage *root, char *text,
                    size_t text_nbytes)
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
 * it, and kills who then fills it.
 */
static int check_memory(const struct round *round, berth_error *error)
{
    const bth_spans *spans = &round->spans;
    uint64_t nbytes = spans->region_nbytes;
    char name[100];
    size_t i = 0;

    if (nbytes < LEAST_CHECKED_NBYTES)
        return 0;
    uint64_t free_nbytes = round->facts.at_once ? round->facts.free_nbytes : bth_free_memory("");
    if (nbytes <= free_nbytes)
        return 0;
    while (i + 1 < spans->n_items &&
           (spans->items[i].way.method == BERTH_LOAD_MAP ||
            spans->items[i].region_at + spans->items[i].storage->nbytes <= free_nbytes))
        i++;
    const berth_storage *storage = spans->items[i].storage;
    name_of(round->checkpoint, storage, name, sizeof name);
    (void)bth_fail(error, BERTH_E_MEMORY, NULL, storage->offset,
                   "there is no memory%s: of %llu bytes needed, %llu are missing", name,
                   (ull)nbytes, (ull)(nbytes - free_nbytes));
    return bth_error_in_storage(round->checkpoint, storage, error);
}

static int make_region(struct round *round, berth_error *error)
{
    const bth_spans *spans = &round->spans;

    if (spans->region_nbytes == 0)
        return 0;
    if (check_memory(round, error) < 0)
        return error->code;
    round->region = bth_allocate_zeroed(sizeof *round->region);
    if (!round->region)
        return bth_fail_memory(error, sizeof *round->region);
    return bth_region_new(spans->region_nbytes, spans->block_nbytes,
                          round->how->config->io_numa == BTH_NUMA_INTERLEAVE,
                          &round->region->region, error);
}

/* Z10: the CRCs of what has come. */
static int check_crc32s(const struct round *round, const bth_spans *spans, berth_error *error)
{
    for (size_t i = 0; round->with_crc32 && i < spans->n_items; i++) {
        const bth_item *item = &spans->items[i];
        berth_crc_verdict verdict;
        (void)bth_storage_check_crc32(round->checkpoint, item->storage, item->crc32, &verdict,
                                      error);
        bth_checkpoint_lock(round->checkpoint);
        round->checkpoint->stored[item->storage->index].crc32 = (uint8_t)verdict;
        bth_checkpoint_unlock(round->checkpoint);
    }
    return error->code;
}

static void count(struct round *round, const bth_chunks *work)
{
    bth_bringing *how = round->how;

    how->moved_nbytes += atomic_load(&work->moved_nbytes);
    how->n_requests += atomic_load(&work->n_requests);
    how->disk_seconds += (double)atomic_load(&work->disk_nanoseconds) * 1e-9;
    how->render_seconds += (double)atomic_load(&work->render_nanoseconds) * 1e-9;
    how->crc32_seconds += (double)atomic_load(&work->crc32_nanoseconds) * 1e-9;
}

static bth_chunks begin_work(struct round *round, bth_spans *spans)
{
    return (bth_chunks){.checkpoint = round->checkpoint,
                        .config = round->how->config,
                        .call = round->how->call,
                        .with_crc32 = round->with_crc32,
                        .spans = spans};
}

static int cut_chunks(bth_chunks *work, uint8_t *region, const uint8_t *map, berth_error *error)
{
    size_t nbytes = work->spans->n_chunks * sizeof *work->chunks;

    work->chunks = bth_allocate(nbytes);
    if (!work->chunks)
        return bth_fail_memory(error, nbytes);
    bth_spans_cut(work->spans, region, map, work->chunks);
    return 0;
}

static int bring_to_host(struct round *round, berth_error *error)
{
    bth_chunks work = begin_work(round, &round->spans);

    work.behind_nbytes = round->staged.chunks_nbytes;
    if (round->spans.n_items == 0)
        return 0;
    if (make_region(round, error) < 0 ||
        cut_chunks(&work, round->region ? round->region->region.bytes : NULL, round->map, error) <
            0)
        return error->code;
    if (bth_chunks_run(&work, error) == 0)
        (void)check_crc32s(round, &round->spans, error);
    bth_release(work.chunks);
    count(round, &work);
    return error->code;
}

static int bring_to_devices(struct round *round, berth_error *error)
{
    bth_to_device to = {.work = begin_work(round, &round->staged)};

    to.work.before_nbytes = round->spans.chunks_nbytes;
    if (round->staged.n_items == 0)
        return 0;
    if (cut_chunks(&to.work, NULL, NULL, error) < 0)
        return error->code;
    if (bth_to_device_run(&to, error) == 0)
        (void)check_crc32s(round, &round->staged, error);
    bth_release(to.work.chunks);
    count(round, &to.work);
    round->device_memory = to.memory;
    round->how->device_seconds += to.device_seconds;
    round->how->memory_nbytes += to.staging_nbytes;
    for (size_t i = 0; i < round->staged.n_items && error->code == 0; i++)
        round->how->device_nbytes += round->staged.items[i].storage->nbytes;
    return error->code;
}

static int bring_items(struct round *round, berth_error *error)
{
    double begin_seconds = bth_seconds();

    BTH_HOLD_CANCEL(true);
    if (!bth_spans_measure(&round->spans) || !bth_spans_measure(&round->staged))
        return bth_fail_memory(error, UINT64_MAX);
    if (bring_to_host(round, error) == 0)
        (void)bring_to_devices(round, error);
    round->how->transfer_seconds += bth_seconds() - begin_seconds;
    return error->code;
}

/* ---- under it again: handed out, or given back ---- */

static void publish(const struct round *round, const bth_item *item)
{
    size_t index = item->storage->index;
    bth_stored *stored = &round->checkpoint->stored[index];
    bool is_mapped = item->way.method == BERTH_LOAD_MAP;

    if (is_mapped)
        stored->method = round->facts.is_memory ? "memory" : "map";
    else if (item->way.method == BERTH_LOAD_READ)
        stored->method = "read";
    else
        stored->method = item->fell_back ? "direct, then read" : "direct";
    stored->reason = item->fell_back ? "a direct read was refused" : item->way.reason;
    stored->moved_nbytes = is_mapped ? 0 : item->storage->nbytes;
    if (!item->device) {
        atomic_store(&stored->memory, item->memory);
        return;
    }
    round->checkpoint->placed[index].address = item->address;
    round->checkpoint->placed[index].life = item->life;
    round->checkpoint->placed[index].ready = NULL; /* the caller may have destroyed it */
    round->checkpoint->placed[index].is_there = true;
}

/* Memory is the checkpoint's from now on, or given back. */
static void settle_memory(struct round *round, bool is_good)
{
    berth_checkpoint *checkpoint = round->checkpoint;
    bth_device_memory_list **last = &round->device_memory;

    if (!is_good) {
        bth_kept_region_free(round->region);
        bth_device_memory_list_free(round->device_memory);
    } else {
        if (round->region) {
            round->region->nbytes = round->spans.region_nbytes;
            round->region->n_forks = bth_forks();
            round->region->next = checkpoint->regions;
            checkpoint->regions = round->region;
            round->how->memory_nbytes += round->spans.region_nbytes;
        }
        while (*last)
            last = &(*last)->next;
        *last = checkpoint->device_memory;
        checkpoint->device_memory = round->device_memory;
    }
    round->region = NULL;
    round->device_memory = NULL;
}

static void settle_round(struct round *round, bool is_good)
{
    set_coming(round, &round->spans, false);
    set_coming(round, &round->staged, false);
    set_waiting(round, -1);
    settle_memory(round, is_good); /* first: a child looks at memory to see what it cannot trust */
    for (size_t i = 0; i < round->spans.n_items && is_good; i++)
        publish(round, &round->spans.items[i]);
    for (size_t i = 0; i < round->staged.n_items && is_good; i++)
        publish(round, &round->staged.items[i]);
}

static void settle(struct round *first, struct round *second, bool is_good)
{
    berth_checkpoint *checkpoint = first->checkpoint;

    if (first->spans.n_items + first->staged.n_items + first->n_rest == 0)
        return;
    bth_checkpoint_lock(checkpoint);
    settle_round(first, is_good);
    settle_round(second, is_good);
    (void)pthread_cond_broadcast(&checkpoint->settled);
    bth_checkpoint_unlock(checkpoint);
}

static void prepare(const struct round *round, bth_spans *spans, uint64_t chunk_nbytes)
{
    spans->block_nbytes = BTH_MEMORY_ALIGNMENT;
    for (size_t i = 0; i < spans->n_items; i++)
        if (spans->items[i].way.method == BERTH_LOAD_DIRECT)
            spans->block_nbytes = round->checkpoint->direct.block_nbytes;
    spans->chunk_nbytes = chunk_nbytes - chunk_nbytes % BTH_DIRECT_MOST_BLOCK_NBYTES;
}

static int bring_round(struct round *round, const berth_storage *const *roots, size_t n,
                       berth_error *error)
{
    if (claim(round, roots, n, error) < 0 || round->spans.n_items + round->staged.n_items == 0)
        return error->code;
    prepare(round, &round->spans, bth_chunk_nbytes(round->how->config));
    prepare(round, &round->staged, bth_staged_nbytes(round->how->config));
    return bring_items(round, error);
}

/* `items`: room for twice n, either to the host or to a device; `rest`: for n. */
static void bring(struct round *first, bth_item *items, const berth_storage **rest,
                  const berth_storage *const *roots, size_t n, berth_error *error)
{
    struct round second = {.checkpoint = first->checkpoint, .how = first->how, .is_second = true};

    first->spans.items = items;
    first->staged.items = items + n;
    first->rest = rest;
    if (bring_round(first, roots, n, error) == 0 && first->n_rest > 0) {
        BTH_HOLD_CANCEL(true);
        second.spans.items = first->spans.items + first->spans.n_items;
        second.staged.items = first->staged.items + first->staged.n_items;
        (void)bring_round(&second, rest, first->n_rest, error);
    }
    settle(first, &second, error->code == 0);
}

int bth_bring(berth_checkpoint *checkpoint, bth_bringing *how, const berth_storage *const *roots,
              size_t n, berth_error *error)
{
    struct round first = {.checkpoint = checkpoint, .how = how};
    const berth_storage *one;
    bth_item few[2];

    if (n <= 1) {
        bring(&first, few, &one, roots, n, error);
        return error->code;
    }
    size_t nbytes = n * (2 * sizeof *few + sizeof one);
    bth_item *items = bth_allocate(nbytes);
    if (!items)
        return bth_fail_memory(error, nbytes);
    bring(&first, items, (const berth_storage **)(void *)(items + 2 * n), roots, n, error);
    bth_release(items);
    return error->code;
}
