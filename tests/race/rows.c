/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Many threads with one row cache, under the thread sanitizer: overlapping tickets of two tables,
 * in a cache that evicts all the time, finds conflicts and is busy; and gathers in passes. Every
 * row is looked at.
 */
#include <berth.h>
#include <berth/config.h>
#include <berth/rows.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/race.h"

#define N_ROWS 2000
#define N_THREADS 6
#define N_ROUNDS 120
#define MAX_IDS 40

static const int64_t n_columns[] = {20, 7};

static berth_rows *rows;
static atomic_uint n_busy, n_failed, n_done;
static uint8_t *file;
static size_t file_nbytes;
static atomic_uint n_reads;
static unsigned fail_every; /* 0: no read fails */
static atomic_bool is_slow;

static float element(size_t table, int64_t row, int64_t column)
{
    return (float)(row * 32 + column) + (float)table / 2;
}

static void save(void)
{
    static float elements[2][N_ROWS * 20];
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_list(tree);
    void *saved;
    berth_error error;

    for (size_t t = 0; t < 2; t++) {
        const int64_t shape[] = {N_ROWS, n_columns[t]};
        for (int64_t i = 0; i < N_ROWS * n_columns[t]; i++)
            elements[t][i] = element(t, i / n_columns[t], i % n_columns[t]);
        berth_list_append(root, test_tensor(tree, BERTH_FLOAT32, elements[t], 2, shape));
    }
    expect(berth_save_to(TO_MEMORY(&saved, &file_nbytes), OF_VALUE(root), NULL, &error) == 0,
           error.message);
    file = saved;
    berth_tree_free(tree);
}

static int read_some(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    (void)context;
    if (atomic_load(&is_slow))
        (void)usleep(2000);
    if (fail_every && atomic_fetch_add(&n_reads, 1) % fail_every == fail_every - 1)
        return EIO;
    memcpy(buffer, file + offset, nbytes);
    return 0;
}

static uint64_t next(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

/* A request of rows that other threads want too: low numbers come more often. */
struct request {
    size_t table, n;
    int64_t ids[MAX_IDS];
    berth_ticket ticket;
};

static bool ask(struct request *request, uint64_t *state)
{
    berth_error error;

    request->table = next(state) % 2;
    request->n = next(state) % MAX_IDS;
    for (size_t i = 0; i < request->n; i++)
        request->ids[i] = (int64_t)(next(state) % (next(state) % 4 ? 60 : N_ROWS));
    int status = berth_rows_prefetch(rows, request->table, request->ids, request->n,
                                     &request->ticket, &error);
    expect(status == 0 || status == BERTH_E_BUSY, error.message);
    atomic_fetch_add(&n_busy, status < 0);
    return status == 0;
}

static void look(const struct request *request)
{
    const void *pointers[MAX_IDS];
    berth_error error;

    int status = berth_rows_wait(rows, request->ticket, pointers, &error);
    expect(status == 0 || (fail_every && status == BERTH_E_CALLBACK), error.message);
    atomic_fetch_add(status < 0 ? &n_failed : &n_done, 1);
    for (size_t i = 0; status == 0 && i < request->n; i++)
        for (int64_t k = 0; k < n_columns[request->table]; k++)
            expect(((const float *)pointers[i])[k] == element(request->table, request->ids[i], k),
                   "a row is another's");
}

/* Rows of both tables at once, in passes of 16 ids. */
static void gather(uint64_t *state)
{
    int64_t ids[2][MAX_IDS];
    float output[2][MAX_IDS * 20];
    berth_error error;

    for (size_t i = 0; i < MAX_IDS; i++)
        for (size_t t = 0; t < 2; t++)
            ids[t][i] = (int64_t)(next(state) % (next(state) % 4 ? 60 : N_ROWS));
    const berth_rows_part parts[] = {
        {.table = 0, .ids = ids[0], .n = MAX_IDS, .output = output[0]},
        {.table = 1, .ids = ids[1], .n = MAX_IDS, .output = output[1]}};
    expect(berth_config_patch("load.rows_passes=5 load.rows_min_pass_ids=16", &error) == 0,
           error.message);
    int status = berth_rows_gather(rows, parts, 2, NULL, &error);
    expect(berth_config_unpatch(NULL) == 0, "no patch");
    expect(status == 0 || (fail_every && status == BERTH_E_CALLBACK), error.message);
    for (size_t t = 0; status == 0 && t < 2; t++)
        for (int64_t i = 0; i < MAX_IDS * n_columns[t]; i++)
            expect(output[t][i] == element(t, ids[t][i / n_columns[t]], i % n_columns[t]),
                   "a gathered row is another's");
}

/* Up to two tickets of each thread are live; some are released unseen. */
static void *use(void *context)
{
    uint64_t state = (uint64_t)(uintptr_t)context;
    struct request kept = {0};
    berth_rows_stats stats;

    for (int round = 0; round < N_ROUNDS; round++) {
        struct request request;
        bool asked = ask(&request, &state);
        if (next(&state) % 4 == 0)
            gather(&state);
        if (kept.ticket && next(&state) % 8)
            look(&kept);
        if (kept.ticket)
            expect(berth_rows_release(rows, kept.ticket, NULL) == 0, "a ticket was not live");
        kept.ticket = 0;
        if (asked)
            kept = request;
        expect(berth_rows_get_stats(rows, &stats, NULL) == 0, "no statistics");
    }
    if (kept.ticket)
        expect(berth_rows_release(rows, kept.ticket, NULL) == 0, "a ticket was not live");
    return NULL;
}

static void *wait_for(void *context)
{
    const berth_ticket *ticket = context;
    berth_error error;

    int status = berth_rows_wait(rows, *ticket, NULL, &error);
    expect(status == 0 || status == BERTH_E_ARGUMENT, error.message);
    return NULL;
}

/* One ticket, waited for by many and released meanwhile, while its rows are still on their way. */
static void share_a_ticket(int64_t first)
{
    const int64_t ids[] = {first, first + 100, first + 200, first + 300, first + 400};
    pthread_t threads[N_THREADS];
    berth_ticket ticket;

    atomic_store(&is_slow, true);
    expect(berth_rows_prefetch(rows, 0, ids, 5, &ticket, NULL) == 0, "no ticket");
    for (int i = 0; i < N_THREADS; i++)
        expect(pthread_create(&threads[i], NULL, wait_for, &ticket) == 0, "no thread");
    expect(berth_rows_release(rows, ticket, NULL) == 0, "a ticket was not live");
    for (int i = 0; i < N_THREADS; i++)
        (void)pthread_join(threads[i], NULL);
    atomic_store(&is_slow, false);
}

static void add_tables(berth_checkpoint *checkpoint)
{
    berth_error error;

    for (size_t t = 0; t < 2; t++) {
        size_t table;
        const berth_tensor *tensor = berth_find_tensor(checkpoint, t ? "1" : "0", NULL);
        expect(berth_rows_add(rows, checkpoint, tensor, &table, &error) == 0, error.message);
        expect(table == t, "another table");
    }
}

static void share(const char *options, unsigned ways)
{
    const berth_rows_limits limits = {.cache_nbytes = 15000, .scratch_nbytes = 3000, .ways = ways};
    const berth_source source = {.nbytes = file_nbytes, .read = read_some};
    pthread_t threads[N_THREADS];
    berth_checkpoint *checkpoint;
    berth_error error;

    expect(berth_open_source(&source, NULL, &checkpoint, &error) == 0, error.message);
    expect(berth_config_patch(options, &error) == 0, error.message);
    expect(berth_rows_new(&limits, NULL, &rows, &error) == 0, error.message);
    expect(berth_config_unpatch(&error) == 0, error.message);
    add_tables(checkpoint);
    for (int i = 0; i < N_THREADS; i++)
        expect(pthread_create(&threads[i], NULL, use, (void *)(uintptr_t)(i + 1)) == 0,
               "no thread");
    for (int i = 0; i < N_THREADS; i++)
        (void)pthread_join(threads[i], NULL);
    for (int64_t first = 1000; !fail_every && first < 1005; first++)
        share_a_ticket(first);
    berth_rows_stats stats;
    expect(berth_rows_get_stats(rows, &stats, NULL) == 0, "no statistics");
    expect(stats.n_tickets == 0 && stats.n_evictions > 0 && stats.n_conflicts > 0 &&
               stats.n_hits > 0,
           "the cache was too easy");
    berth_rows_free(rows);
    berth_close(checkpoint);
}

int main(void)
{
    save();
    share("io.threads=1", 4);
    share("io.threads=4", 4);
    share("", 2);
    expect(atomic_load(&n_busy) > 0, "nobody was busy");
    fail_every = 50; /* opening a checkpoint takes fewer */
    share("io.threads=4", 8);
    expect(atomic_load(&n_failed) > 0 && atomic_load(&n_done) > 0, "reads fail, and do not");
    berth_free(file);
    return 0;
}
