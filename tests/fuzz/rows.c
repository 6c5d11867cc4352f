/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Requests for rows: any bytes as the limits of a cache, its tables, and what is asked of it, in
 * any order, ids that are none and tickets that are over too. Rows are the table's bytes as long as
 * their ticket lives; memory is what the limits say.
 */
#include <berth/config.h>
#include <berth/rows.h>

#include "tests/support/fuzz/target.h"
#include "tests/support/support.h"

#include <errno.h>

#define N_ROWS 200
#define MAX_TICKETS 32
#define MAX_IDS 64
#define MAX_LINES 8000 /* of 8 bytes, of a cache */

/* ---- a file with three tables ---- */

static const size_t row_nbytes[] = {4, 64, 1000};
static uint8_t elements[3][N_ROWS * 1000];

struct tables {
    void *bytes;
    size_t nbytes;
    berth_checkpoint *checkpoint;
    unsigned n_reads, fails_at; /* 0: none */
};

static struct tables tables;

static int read_tables(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    struct tables *file = context;

    MUST(offset <= file->nbytes && nbytes <= file->nbytes - offset, "a read beyond the file");
    if (++file->n_reads == file->fails_at)
        return EIO;
    memcpy(buffer, (uint8_t *)file->bytes + offset, nbytes);
    return 0;
}

static void make_tables(void)
{
    static const char *const names[] = {"a", "b", "c"};
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_error error;

    for (size_t i = 0; i < 3; i++) {
        const int64_t shape[] = {N_ROWS, (int64_t)row_nbytes[i]};
        for (size_t k = 0; k < N_ROWS * row_nbytes[i]; k++)
            elements[i][k] = (uint8_t)(k * 7 + k / row_nbytes[i] * 13 + i);
        berth_dict_set(root, names[i], test_tensor(tree, BERTH_UINT8, elements[i], 2, shape));
    }
    MUST(berth_save_to(TO_MEMORY(&tables.bytes, &tables.nbytes), OF_VALUE(root), NULL, &error) == 0,
         "%s", error.message);
    berth_tree_free(tree);
    const berth_source source = {
        .name = "tables", .nbytes = tables.nbytes, .read = read_tables, .context = &tables};
    MUST(berth_open_source(&source, NULL, &tables.checkpoint, &error) == 0, "%s", error.message);
    /* Names are looked up by an index that the first who asks makes. */
    MUST(berth_find_tensor(tables.checkpoint, "a", NULL), "no table");
}

/* ---- what is asked, by the bytes of an input ---- */

struct asked {
    const uint8_t *bytes;
    size_t nbytes, at;
};

/* 0 when they are used up. */
static unsigned next(struct asked *asked)
{
    return asked->at < asked->nbytes ? asked->bytes[asked->at++] : 0;
}

/* A request that lives. */
struct request {
    berth_ticket ticket; /* 0: none */
    size_t table, n;
    int64_t ids[MAX_IDS];
    const void *pointers[MAX_IDS]; /* NULL until they were looked up */
};

struct scene {
    berth_rows *rows;
    size_t n_tables;
    size_t of_table[3]; /* which of the file's tables each is */
    struct request requests[MAX_TICKETS];
};

static void check_sentence(int result, const berth_error *error)
{
    MUST((result < 0) == (error->message[0] != 0) && is_clean_text(error->message), "%d: %s",
         result, error->message);
}

/* Rows stay where they are, and as they are, while their ticket lives. */
static void check_request(const struct scene *scene, const struct request *request)
{
    if (!request->ticket)
        return;
    size_t table = scene->of_table[request->table], n = row_nbytes[table];
    for (size_t i = 0; i < request->n; i++)
        MUST(!request->pointers[i] || memcmp(request->pointers[i],
                                             elements[table] + (size_t)request->ids[i] * n, n) == 0,
             "row %lld of table %zu has other bytes", (long long)request->ids[i], table);
}

static void add_table(struct scene *scene, struct asked *asked)
{
    static const char *const names[] = {"a", "b", "c"};
    size_t which = next(asked) % 3, table;
    berth_error error;

    if (scene->n_tables == 3)
        return;
    int result =
        berth_rows_add(scene->rows, tables.checkpoint,
                       berth_find_tensor(tables.checkpoint, names[which], NULL), &table, &error);
    check_sentence(result, &error);
    if (result == 0) {
        MUST(table == scene->n_tables, "table %zu", table);
        scene->of_table[scene->n_tables++] = which;
    }
}

static void prefetch(struct scene *scene, struct asked *asked)
{
    struct request *request = &scene->requests[next(asked) % MAX_TICKETS];
    berth_error error;
    bool is_valid = true;

    if (request->ticket)
        return;
    *request = (struct request){.table = next(asked) % 4, .n = next(asked) % (MAX_IDS + 1)};
    unsigned first = next(asked), step = next(asked);
    for (size_t i = 0; i < request->n; i++) {
        unsigned id = step ? (first + (unsigned)i * step) % 256 : next(asked);
        request->ids[i] = id < 250 ? (int64_t)(id % N_ROWS) : (int64_t)id - 253;
        is_valid = is_valid && request->ids[i] >= 0 && request->ids[i] < N_ROWS;
        if (id == 255)
            request->ids[i] = INT64_MIN;
        is_valid = is_valid && id != 255;
    }
    int result = berth_rows_prefetch(scene->rows, request->table, request->ids, request->n,
                                     &request->ticket, &error);
    check_sentence(result, &error);
    MUST((result == 0) == (request->ticket != 0), "%d", result);
    MUST(result < 0 || (is_valid && request->table < scene->n_tables), "it was no request");
}

static void look_up(struct scene *scene, struct asked *asked)
{
    struct request *request = &scene->requests[next(asked) % MAX_TICKETS];
    const void *pointers[MAX_IDS];
    berth_error error;

    int result = berth_rows_wait(scene->rows, request->ticket, pointers, &error);
    check_sentence(result, &error);
    MUST(request->ticket || result == BERTH_E_ARGUMENT, "a ticket that is none: %d", result);
    for (size_t i = 0; result == 0 && i < request->n; i++) {
        MUST(!request->pointers[i] || request->pointers[i] == pointers[i], "a row has moved");
        request->pointers[i] = pointers[i];
    }
    if (result == 0)
        check_request(scene, request);
}

static void release(struct scene *scene, struct asked *asked)
{
    struct request *request = &scene->requests[next(asked) % MAX_TICKETS];
    berth_error error;

    check_request(scene, request);
    int result = berth_rows_release(scene->rows, request->ticket, &error);
    check_sentence(result, &error);
    MUST((result == 0) == (request->ticket != 0), "%d", result);
    request->ticket = 0;
}

/* ---- gathers ---- */

enum { WIDE_NBYTES = 1008, FILLER = 0xee };

/* One part of a gather: what is asked for, and whether it can be had. */
struct gathered {
    int64_t ids[MAX_IDS];
    int32_t narrow[MAX_IDS];
    uint8_t output[MAX_IDS * WIDE_NBYTES];
    bool is_valid;
};

static berth_rows_part ask_for_part(const struct scene *scene, struct asked *asked,
                                    struct gathered *gathered)
{
    unsigned flags = next(asked);
    berth_rows_part part = {.table = next(asked) % 4,
                            .ids = flags & 1 ? (void *)gathered->narrow : gathered->ids,
                            .n = next(asked) % (MAX_IDS + 1),
                            .output = gathered->output,
                            .stride_nbytes = flags & 2 ? WIDE_NBYTES : 0,
                            .ids_are_32_bit = flags & 1,
                            .pruned_to_zero = flags & 4};
    unsigned first = next(asked), step = next(asked);

    gathered->is_valid = part.table < scene->n_tables;
    for (size_t i = 0; i < part.n; i++) {
        unsigned id = step ? (first + (unsigned)i * step) % 256 : next(asked);
        gathered->ids[i] = id < 250    ? (int64_t)(id % N_ROWS)
                           : id == 255 ? INT32_MIN
                                       : (int64_t)id - 253;
        gathered->narrow[i] = (int32_t)gathered->ids[i];
        bool is_row = gathered->ids[i] >= 0 && gathered->ids[i] < N_ROWS;
        gathered->is_valid &= is_row || (part.pruned_to_zero && gathered->ids[i] == -1);
    }
    memset(gathered->output, FILLER, sizeof gathered->output);
    return part;
}

/* Rows where they belong, zeros for pruned ids, and nothing else touched. */
static void check_output(const struct scene *scene, const berth_rows_part *part,
                         const struct gathered *gathered)
{
    static const uint8_t zeros[1000];
    size_t table = scene->of_table[part->table], n = row_nbytes[table], end = 0;

    for (size_t i = 0; i < part->n; i++) {
        size_t at = i * (part->stride_nbytes ? part->stride_nbytes : n);
        const uint8_t *row =
            gathered->ids[i] < 0 ? zeros : elements[table] + (size_t)gathered->ids[i] * n;
        MUST(memcmp(gathered->output + at, row, n) == 0, "row %lld of table %zu has other bytes",
             (long long)gathered->ids[i], table);
        for (; end < at; end++)
            MUST(gathered->output[end] == FILLER, "byte %zu between rows was written", end);
        end = at + n;
    }
    MUST(end == sizeof gathered->output || gathered->output[end] == FILLER, "a byte too many");
}

static void gather(struct scene *scene, struct asked *asked)
{
    static struct gathered gathered[2];
    berth_rows_part parts[2];
    berth_rows_gather_estimate estimate;
    berth_error error;
    char options[64];
    size_t n_parts = next(asked) % 3;
    bool is_valid = true;

    snprintf(options, sizeof options, "load.rows_min_pass_ids=1 load.rows_passes=%u",
             next(asked) % 20);
    for (size_t p = 0; p < n_parts; p++) {
        parts[p] = ask_for_part(scene, asked, &gathered[p]);
        is_valid &= gathered[p].is_valid;
    }
    MUST(berth_config_patch(options, &error) == 0, "%s", error.message);
    int estimated = berth_rows_estimate(scene->rows, parts, n_parts, NULL, &estimate, &error);
    check_sentence(estimated, &error);
    int result = berth_rows_gather(scene->rows, parts, n_parts, NULL, &error);
    check_sentence(result, &error);
    MUST(berth_config_unpatch(NULL) == 0, "a patch");
    MUST(result < 0 || (is_valid && estimated == 0), "it was no gather");
    MUST(is_valid || result == BERTH_E_ARGUMENT, "%d: %s", result, error.message);
    for (size_t p = 0; p < n_parts; p++)
        if (result == 0)
            check_output(scene, &parts[p], &gathered[p]);
        else
            MUST(result != BERTH_E_ARGUMENT || gathered[p].output[0] == FILLER,
                 "a byte was written");
}

static void check_stats(struct scene *scene)
{
    berth_rows_stats stats;
    size_t n = 0;

    MUST(berth_rows_get_stats(scene->rows, &stats, NULL) == 0, "no statistics");
    for (size_t i = 0; i < MAX_TICKETS; i++)
        n += scene->requests[i].ticket != 0;
    MUST(stats.n_tickets == n && stats.n_hits + stats.n_misses == stats.n_unique &&
             stats.n_unique <= stats.n_ids,
         "%llu tickets, not %zu", (unsigned long long)stats.n_tickets, n);
}

static void carry_out(struct scene *scene, struct asked *asked)
{
    static void (*const steps[])(struct scene *, struct asked *) = {
        prefetch, prefetch, look_up, look_up, release, release, add_table, gather};
    berth_error error;

    while (asked->at < asked->nbytes) {
        unsigned what = next(asked) % 10;
        if (what < 8)
            steps[what](scene, asked);
        else if (what == 8)
            check_sentence(berth_rows_wait(scene->rows,
                                           scene->requests[next(asked) % MAX_TICKETS].ticket, NULL,
                                           &error),
                           &error);
        else
            tables.fails_at = tables.n_reads + 1 + next(asked);
        check_stats(scene);
    }
    for (size_t i = 0; i < MAX_TICKETS; i++)
        check_request(scene, &scene->requests[i]);
}

void check_input(const uint8_t *bytes, size_t nbytes)
{
    struct asked asked = {bytes, nbytes, 0};
    static struct scene scene;
    berth_error error;

    count_memory_from_now();
    if (!tables.bytes)
        make_tables();
    scene = (struct scene){0};
    tables.fails_at = tables.n_reads = 0;
    size_t before_nbytes = live_nbytes;
    unsigned lines = next(&asked) | next(&asked) << 8, slots = next(&asked) | next(&asked) << 8;
    /* Not far more than all tables hold: it is cleared each time. */
    berth_rows_limits limits = {.cache_nbytes = lines % MAX_LINES * 8,
                                .scratch_nbytes = slots % MAX_LINES * 4,
                                .ways = next(&asked) % 80};
    most_nbytes = live_nbytes;
    MUST(berth_config_patch(next(&asked) % 2 ? "io.threads=1" : "io.threads=1 io.chunk_nbytes=1",
                            &error) == 0,
         "%s", error.message);
    check_sentence(berth_rows_new(&limits, NULL, &scene.rows, &error), &error);
    MUST(berth_config_unpatch(NULL) == 0, "a patch");
    if (scene.rows)
        carry_out(&scene, &asked);
    uint64_t most = limits.cache_nbytes +
                    (limits.scratch_nbytes ? limits.scratch_nbytes : limits.cache_nbytes / 8 + 1);
    MUST(most_nbytes - before_nbytes <= most + 65536 + MAX_TICKETS * (1024 + 20 * MAX_IDS),
         "%zu bytes of memory, the limits are %llu", most_nbytes - before_nbytes,
         (unsigned long long)most);
    berth_rows_free(scene.rows);
    MUST(live_nbytes == before_nbytes, "%zu bytes leak", live_nbytes - before_nbytes);
}

size_t mutate(uint8_t *bytes, size_t nbytes, size_t most, unsigned number)
{
    (void)number;
    if (nbytes > 0 && random_below(2)) {
        bytes[random_below(nbytes)] = (uint8_t)random_below(random_below(2) ? 10 : 256);
        return nbytes;
    }
    return LLVMFuzzerMutate(bytes, nbytes, most);
}

void make_seeds(void)
{
    for (unsigned i = 0; i < 40; i++) {
        uint8_t bytes[400] = {0, (uint8_t)(i * 4), 0, (uint8_t)(i % 8), (uint8_t)(i % 20), 1};
        char name[16];

        random_begin(i);
        for (size_t k = 6; k < sizeof bytes; k++)
            bytes[k] = (uint8_t)random_below(k % 3 ? 10 : 256);
        bytes[6] = 6; /* the first step: a table */
        snprintf(name, sizeof name, "steps-%u", i);
        seed(name, bytes, sizeof bytes);
    }
    seed_folder("tests/fuzz/found/rows", "");
}

#ifndef BERTH_FUZZER

Test(requests_for_rows, keep_all_properties)
{
    cr_assert_geq(replay_seeds(100), 40);
}
#endif
