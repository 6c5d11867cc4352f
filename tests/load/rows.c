/* SPDX-License-Identifier: BSD-3-Clause */
/* Rows of tables through a bounded cache: what comes, what is read for it, and what is refused. */
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "config/options.h"
#include "load/rows.h"
#include "tests/load/builder.h"
#include "tests/support/support.h"

/* A table's element: row, then column. */
static float element(int64_t row, int64_t column)
{
    return (float)row + (float)column / 256;
}

/* ---- a file in memory, behind a source that counts, waits or fails ---- */

struct source {
    uint8_t *bytes;
    size_t nbytes;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_shut; /* who reads waits */
    bool is_broken;
    unsigned n_reads;
    uint64_t read_nbytes;
};

static int source_read(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    struct source *source = context;

    pthread_mutex_lock(&source->lock);
    source->n_reads++;
    source->read_nbytes += nbytes;
    while (source->is_shut)
        pthread_cond_wait(&source->changed, &source->lock);
    bool fails = source->is_broken;
    pthread_mutex_unlock(&source->lock);
    if (!fails)
        memcpy(buffer, source->bytes + offset, nbytes);
    return fails ? EIO : 0;
}

static void set_shut(struct source *source, bool is_shut)
{
    pthread_mutex_lock(&source->lock);
    source->is_shut = is_shut;
    pthread_cond_broadcast(&source->changed);
    pthread_mutex_unlock(&source->lock);
}

/* ---- one table, one cache ---- */

struct scene {
    struct source source;
    berth_checkpoint *checkpoint;
    berth_rows *rows;
    size_t table;
    int64_t n_columns;
};

static void patch(const char *options)
{
    berth_error error;

    cr_assert_eq(berth_config_patch(options, &error), 0, "%s", error.message);
}

static void make_source(struct source *source, int64_t n_rows, int64_t n_columns,
                        const char *options)
{
    const int64_t shape[] = {n_rows, n_columns};
    float *elements = malloc((size_t)(n_rows * n_columns) * sizeof *elements + 1);
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_dict(tree);
    void *saved;
    berth_error error;

    for (int64_t i = 0; i < n_rows * n_columns; i++)
        elements[i] = element(i / n_columns, i % n_columns);
    berth_dict_set(root, "other", berth_str(tree, "x", 1));
    berth_dict_set(
        root, "table",
        berth_tensor_value(
            tree,
            &(berth_tensor){.dtype = BERTH_FLOAT32, .rank = 2, .shape = shape, .data = elements}));
    patch(options);
    cr_assert_eq(berth_save_memory(&saved, &source->nbytes, NULL, root, NULL, &error), 0, "%s",
                 error.message);
    cr_assert_eq(berth_config_unpatch(NULL), 0);
    source->bytes = malloc(source->nbytes);
    memcpy(source->bytes, saved, source->nbytes);
    berth_free(saved);
    berth_tree_free(tree);
    free(elements);
    pthread_mutex_init(&source->lock, NULL);
    pthread_cond_init(&source->changed, NULL);
}

static berth_checkpoint *open_source(struct source *source)
{
    const berth_source from = {
        .nbytes = source->nbytes, .name = "counted", .read = source_read, .context = source};
    berth_checkpoint *checkpoint;
    berth_error error;

    cr_assert_eq(berth_open_source(&from, NULL, &checkpoint, &error), 0, "%s", error.message);
    return checkpoint;
}

/* A cache of one set of `ways` lines and `n_slots` slots, for rows of 16 columns: 64 bytes. */
static berth_rows_limits limits_of(unsigned ways, unsigned n_slots)
{
    return (berth_rows_limits){.cache_nbytes = ways * (64 + BERTH_ROWS_LINE_NOTES),
                               .scratch_nbytes = n_slots * (64 + BERTH_ROWS_SLOT_NOTES),
                               .ways = ways};
}

static struct scene *begin_with(const berth_rows_limits *limits, int64_t n_rows, int64_t n_columns,
                                const char *saved_with, const char *options)
{
    struct scene *scene = calloc(1, sizeof *scene);
    berth_error error;

    scene->n_columns = n_columns;
    make_source(&scene->source, n_rows, n_columns, saved_with);
    scene->checkpoint = open_source(&scene->source);
    patch(options);
    cr_assert_eq(berth_rows_new(limits, NULL, &scene->rows, &error), 0, "%s", error.message);
    cr_assert_eq(berth_config_unpatch(NULL), 0);
    cr_assert_eq(berth_rows_add(scene->rows, scene->checkpoint,
                                berth_find_tensor(scene->checkpoint, "table"), &scene->table,
                                &error),
                 0, "%s", error.message);
    scene->source.n_reads = 0;
    scene->source.read_nbytes = 0;
    return scene;
}

static struct scene *begin(unsigned ways, unsigned n_slots, const char *options)
{
    const berth_rows_limits limits = limits_of(ways, n_slots);
    char all[100];

    /* A scratch of nothing but slots. */
    (void)snprintf(all, sizeof all, "%s io.chunk_nbytes=1", options);
    return begin_with(&limits, 1000, 16, "", all);
}

static void end(struct scene *scene)
{
    berth_rows_free(scene->rows);
    berth_close(scene->checkpoint);
    free(scene->source.bytes);
    free(scene);
}

static berth_ticket prefetch(struct scene *scene, const int64_t *ids, size_t n)
{
    berth_ticket ticket;
    berth_error error;

    cr_assert_eq(berth_rows_prefetch(scene->rows, scene->table, ids, n, &ticket, &error), 0, "%s",
                 error.message);
    cr_assert_neq(ticket, 0);
    return ticket;
}

static void expect_rows(struct scene *scene, berth_ticket ticket, const int64_t *ids, size_t n)
{
    const void **pointers = malloc((n + 1) * sizeof *pointers);
    berth_error error;

    cr_assert_eq(berth_rows_lookup(scene->rows, ticket, pointers, &error), 0, "%s", error.message);
    for (size_t i = 0; i < n; i++) {
        const float *row = pointers[i];
        cr_assert_eq((uintptr_t)row % 4, 0);
        for (int64_t k = 0; k < scene->n_columns; k++)
            cr_assert_eq(row[k], element(ids[i], k), "id %d, column %d: %g", (int)ids[i], (int)k,
                         (double)row[k]);
    }
    free(pointers);
}

static void release(struct scene *scene, berth_ticket ticket)
{
    berth_error error;

    cr_assert_eq(berth_rows_release(scene->rows, ticket, &error), 0, "%s", error.message);
}

static void use(struct scene *scene, const int64_t *ids, size_t n)
{
    berth_ticket ticket = prefetch(scene, ids, n);

    expect_rows(scene, ticket, ids, n);
    release(scene, ticket);
}

static berth_rows_stats stats_of(struct scene *scene)
{
    berth_rows_stats stats;

    cr_assert_eq(berth_rows_stats_of(scene->rows, &stats, NULL), 0);
    return stats;
}

/* ---- what comes ---- */

Test(rows, come_in_the_order_of_the_ids_repeated_or_not)
{
    static const int64_t ids[] = {999, 0, 7, 7, 0, 500, 999, 7};
    struct scene *scene = begin(16, 16, "io.threads=1");

    use(scene, ids, 8);
    use(scene, ids + 2, 1);
    berth_rows_stats stats = stats_of(scene);
    cr_expect_eq(stats.n_ids, 9);
    cr_expect_eq(stats.n_unique, 5);
    cr_expect_eq(stats.n_hits, 1);
    cr_expect_eq(stats.n_misses, 4);
    cr_expect_eq(stats.n_requests, 2);
    cr_expect_eq(stats.asked_nbytes, 4 * 64);
    end(scene);
}

Test(rows, any_number_of_threads_and_sets_gives_the_same)
{
    static const char *const options[] = {"io.threads=1", "io.threads=2", "io.threads=7", ""};
    static const unsigned ways[] = {1, 5, 0, 64};
    int64_t ids[300];

    for (size_t k = 0; k < 4; k++) {
        const berth_rows_limits limits = {.cache_nbytes = 70000, .ways = ways[k]};
        struct scene *scene = begin_with(&limits, 3000, 16, "", options[k]);
        uint64_t state = k;
        for (int round = 0; round < 60; round++) {
            for (size_t i = 0; i < 300; i++) {
                state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
                ids[i] = (int64_t)((state >> 33) % 3000);
            }
            use(scene, ids, 300);
        }
        cr_expect_gt(stats_of(scene).n_evictions, 0);
        cr_expect_eq(stats_of(scene).n_tickets, 0);
        end(scene);
    }
}

Test(rows, of_any_length_lie_at_multiples_of_it_or_of_64)
{
    static const int64_t columns[] = {1, 2, 3, 4, 15, 16, 17, 100, 5000};
    static const size_t alignments[] = {8, 8, 16, 16, 64, 64, 64, 64, 64};
    static const int64_t ids[] = {9, 3, 4, 0};
    const void *pointers[4];

    for (size_t k = 0; k < sizeof columns / sizeof *columns; k++) {
        const berth_rows_limits limits = {.cache_nbytes = 400000, .scratch_nbytes = 100000};
        struct scene *scene = begin_with(&limits, 10, columns[k], "", "io.threads=2");
        berth_ticket ticket = prefetch(scene, ids, 4);
        expect_rows(scene, ticket, ids, 4);
        cr_assert_eq(berth_rows_lookup(scene->rows, ticket, pointers, NULL), 0);
        for (size_t i = 0; i < 4; i++)
            cr_expect_eq((uintptr_t)pointers[i] % alignments[k], 0, "%d columns", (int)columns[k]);
        end(scene);
    }
}

/* T5 */
Test(rows, are_in_this_machines_order_and_aligned_whatever_the_file_is)
{
    static const char *const saved_with[] = {"save.byteorder=big", "save.storage_alignment=1",
                                             "save.byteorder=big save.storage_alignment=1"};
    static const int64_t ids[] = {9, 3, 4, 5, 0, 2999, 2998};

    for (size_t k = 0; k < 3; k++) {
        const berth_rows_limits limits = {.cache_nbytes = 100000};
        struct scene *scene = begin_with(&limits, 3000, 9, saved_with[k], "io.threads=2");
        use(scene, ids, 7);
        end(scene);
    }
}

Test(rows, an_empty_request_has_a_ticket_too)
{
    struct scene *scene = begin(4, 1, "io.threads=1");
    berth_ticket ticket = prefetch(scene, NULL, 0);

    cr_expect_eq(berth_rows_wait(scene->rows, ticket, NULL), 0);
    cr_expect_eq(berth_rows_lookup(scene->rows, ticket, NULL, NULL), 0);
    release(scene, ticket);
    end(scene);
}

Test(rows, several_tables_of_several_checkpoints_share_one_cache)
{
    static const int64_t ids[] = {1, 0, 9, 5};
    const berth_rows_limits limits = {.cache_nbytes = 20000, .scratch_nbytes = 4000};
    struct scene *scene = begin_with(&limits, 10, 7, "", "io.threads=2");
    struct scene other = {.rows = scene->rows, .n_columns = 30};
    struct scene third = {.rows = scene->rows, .n_columns = 3};

    use(scene, ids, 4);
    make_source(&other.source, 10, 30, "save.byteorder=big");
    other.checkpoint = open_source(&other.source);
    make_source(&third.source, 10, 3, "");
    third.checkpoint = open_source(&third.source);
    cr_assert_eq(berth_rows_add(scene->rows, other.checkpoint,
                                berth_find_tensor(other.checkpoint, "table"), &other.table, NULL),
                 0);
    cr_assert_eq(berth_rows_add(scene->rows, third.checkpoint,
                                berth_find_tensor(third.checkpoint, "table"), &third.table, NULL),
                 0);
    cr_expect_eq(scene->table, 0);
    cr_expect_eq(other.table, 1);
    cr_expect_eq(third.table, 2);
    cr_expect_eq(stats_of(scene).line_nbytes, 128, "of the longest rows");
    berth_ticket tickets[] = {prefetch(scene, ids, 4), prefetch(&other, ids, 4),
                              prefetch(&third, ids, 4)};
    expect_rows(scene, tickets[0], ids, 4);
    expect_rows(&other, tickets[1], ids, 4);
    expect_rows(&third, tickets[2], ids, 4);
    for (size_t i = 0; i < 3; i++)
        release(scene, tickets[i]);
    use(&other, ids, 4);
    use(scene, ids, 4);
    end(scene);
    berth_close(other.checkpoint), berth_close(third.checkpoint);
    free(other.source.bytes), free(third.source.bytes);
}

/* What was asked for and written to is what the storage holds. */
Test(rows, of_a_storage_that_is_memory_come_from_there)
{
    static const int64_t id = 3;
    struct scene *scene = begin(4, 1, "io.threads=1");
    const berth_tensor *tensor = berth_find_tensor(scene->checkpoint, "table");
    const void *pointer;

    float *data = (float *)(uintptr_t)berth_tensor_data(scene->checkpoint, tensor, NULL);
    data[3 * 16] = 77;
    scene->source.n_reads = 0;
    berth_ticket ticket = prefetch(scene, &id, 1);
    cr_assert_eq(berth_rows_lookup(scene->rows, ticket, &pointer, NULL), 0);
    cr_expect_eq(*(const float *)pointer, 77);
    cr_expect_eq(scene->source.n_reads, 0);
    end(scene);
}

/* ---- what is read ---- */

Test(rows, neighbours_come_in_one_read_and_hits_in_none)
{
    static const int64_t ids[] = {5, 8, 6, 900, 7, 10};
    const berth_rows_limits limits = {.cache_nbytes = 20000, .scratch_nbytes = 4000};
    struct scene *scene = begin_with(&limits, 1000, 16, "", "io.threads=1");

    use(scene, ids, 6);
    cr_expect_eq(scene->source.n_reads, 2, "5 to 10, and 900");
    cr_expect_eq(scene->source.read_nbytes, 6 * 64 + 64);
    berth_rows_stats stats = stats_of(scene);
    cr_expect_eq(stats.n_reads, 2);
    cr_expect_eq(stats.n_merged, 1);
    cr_expect_eq(stats.asked_nbytes, 6 * 64);
    cr_expect_eq(stats.read_nbytes, 7 * 64);
    use(scene, ids, 6);
    cr_expect_eq(scene->source.n_reads, 2);
    end(scene);
}

Test(rows, that_two_tickets_ask_for_are_read_once)
{
    static const int64_t first[] = {1, 500}, second[] = {500, 900};
    struct scene *scene = begin(8, 4, "io.threads=3");

    set_shut(&scene->source, true);
    berth_ticket one = prefetch(scene, first, 2), two = prefetch(scene, second, 2);
    cr_expect_eq(stats_of(scene).n_awaited, 1);
    set_shut(&scene->source, false);
    expect_rows(scene, two, second, 2);
    expect_rows(scene, one, first, 2);
    cr_expect_eq(scene->source.n_reads, 3);
    release(scene, one);
    expect_rows(scene, two, second, 2);
    release(scene, two);
    end(scene);
}

/* Nobody waits for the first ticket: who waits for the second reads for both. */
Test(rows, without_threads_are_read_by_who_waits_whoever_asked)
{
    static const int64_t first[] = {1, 500}, second[] = {500, 900};
    struct scene *scene = begin(8, 4, "io.threads=1");
    berth_ticket one = prefetch(scene, first, 2), two = prefetch(scene, second, 2);

    cr_expect_eq(scene->source.n_reads, 0);
    expect_rows(scene, two, second, 2);
    cr_expect_eq(scene->source.n_reads, 3);
    release(scene, two);
    release(scene, one);
    end(scene);
}

Test(rows, are_read_by_threads_while_nobody_waits)
{
    static const int64_t ids[] = {1, 500, 900};
    struct scene *scene = begin(8, 4, "io.threads=2");
    berth_ticket ticket = prefetch(scene, ids, 3);

    while (stats_of(scene).n_reads < 3)
        usleep(1000);
    expect_rows(scene, ticket, ids, 3);
    release(scene, ticket);
    end(scene);
}

Test(rows, released_before_they_are_there_are_read_and_kept)
{
    static const int64_t ids[] = {1, 500, 900};
    struct scene *scene = begin(8, 4, "io.threads=1");

    release(scene, prefetch(scene, ids, 3));
    cr_expect_eq(scene->source.n_reads, 3);
    use(scene, ids, 3);
    cr_expect_eq(scene->source.n_reads, 3);
    end(scene);
}

/* ---- who stays, who goes ---- */

Test(rows, touched_longest_ago_make_room)
{
    struct scene *scene = begin(4, 1, "io.threads=1");
    int64_t id;

    for (id = 0; id < 4; id++)
        use(scene, &id, 1);
    id = 0, use(scene, &id, 1);
    id = 100, use(scene, &id, 1); /* in the place of 1 */
    cr_expect_eq(stats_of(scene).n_evictions, 1);
    cr_expect_eq(scene->source.n_reads, 5);
    id = 0, use(scene, &id, 1);
    cr_expect_eq(scene->source.n_reads, 5);
    id = 1, use(scene, &id, 1);
    cr_expect_eq(scene->source.n_reads, 6);
    end(scene);
}

Test(rows, that_live_tickets_hold_stay_and_others_go_to_the_scratch)
{
    static const int64_t held[] = {1, 2, 3, 4}, others[] = {10, 20};
    struct scene *scene = begin(4, 2, "io.threads=2");
    berth_ticket holder = prefetch(scene, held, 4);

    for (int round = 0; round < 3; round++)
        use(scene, others, 2);
    berth_rows_stats stats = stats_of(scene);
    cr_expect_eq(stats.n_conflicts, 6);
    cr_expect_eq(stats.n_evictions, 0);
    cr_expect_eq(stats.n_hits, 0, "rows of the scratch are their ticket's alone");
    expect_rows(scene, holder, held, 4);
    release(scene, holder);
    use(scene, others, 2);
    cr_expect_eq(stats_of(scene).n_evictions, 2);
    end(scene);
}

Test(rows, that_find_no_room_are_busy_and_nothing_changes)
{
    static const int64_t held[] = {1, 2, 3, 4}, others[] = {10, 20, 30, 2};
    struct scene *scene = begin(5, 1, "io.threads=2");
    berth_ticket holder = prefetch(scene, held, 4), ticket = 99;
    berth_error error;
    int64_t free_one = 50;

    use(scene, &free_one, 1);
    cr_expect_eq(berth_rows_prefetch(scene->rows, scene->table, others, 4, &ticket, &error),
                 BERTH_E_BUSY);
    cr_expect_str_eq(error.message,
                     "counted: 1 of 4 rows of table find no place, 64 bytes are missing: live "
                     "tickets hold the others");
    cr_expect_eq(ticket, 0);
    berth_rows_stats stats = stats_of(scene);
    cr_expect_eq(stats.n_tickets, 1);
    cr_expect_eq(stats.n_refused, 1);
    cr_expect_eq(stats.n_evictions, 0);
    unsigned n_reads = scene->source.n_reads;
    use(scene, &free_one, 1);
    cr_expect_eq(scene->source.n_reads, n_reads, "what was there still is");
    use(scene, others, 2);
    expect_rows(scene, holder, held, 4);
    release(scene, holder);
    use(scene, others, 4);
    end(scene);
}

Test(rows, more_than_ever_find_room_are_told_from_busy)
{
    static const int64_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct scene *scene = begin(4, 2, "io.threads=1");
    berth_ticket ticket;
    berth_error error;

    cr_expect_eq(berth_rows_prefetch(scene->rows, scene->table, ids, 8, &ticket, &error),
                 BERTH_E_MEMORY);
    cr_expect_str_eq(error.message,
                     "counted: 2 of 8 rows of table find no place, 128 bytes are missing: cache "
                     "and scratch are too small for one request of so many");
    use(scene, ids, 6);
    end(scene);
}

/* ---- errors ---- */

Test(rows, an_id_that_is_no_row_is_named_and_nothing_is_held)
{
    static const struct {
        int64_t ids[3];
        const char *message;
    } cases[] = {
        {{1, 2, 1000},
         "counted: id 1000, number 2 of the request, is no row of table, which has 1000"},
        {{1, -1, 1000},
         "counted: id -1, number 1 of the request, is no row of table, which has 1000"},
        {{INT64_MIN, 0, 0},
         "counted: id -9223372036854775808, number 0 of the request, is no row of table, which "
         "has 1000"},
        {{INT64_MAX, 0, 0},
         "counted: id 9223372036854775807, number 0 of the request, is no row of table, which "
         "has 1000"},
    };
    struct scene *scene = begin(4, 2, "io.threads=1");

    for (size_t k = 0; k < 4; k++) {
        berth_ticket ticket = 99;
        berth_error error;
        cr_expect_eq(
            berth_rows_prefetch(scene->rows, scene->table, cases[k].ids, 3, &ticket, &error),
            BERTH_E_ARGUMENT);
        cr_expect_str_eq(error.message, cases[k].message);
        cr_expect_eq(ticket, 0);
    }
    cr_expect_eq(stats_of(scene).n_tickets, 0);
    cr_expect_eq(stats_of(scene).n_misses, 0);
    end(scene);
}

Test(rows, a_ticket_ends_once)
{
    static const int64_t ids[] = {1, 2};
    struct scene *scene = begin(4, 2, "io.threads=1");
    berth_ticket old = prefetch(scene, ids, 2);
    const void *pointers[2];
    berth_error error;
    char expected[100];

    release(scene, old);
    (void)snprintf(expected, sizeof expected,
                   "ticket %llu is none of the live ones: unknown, or released",
                   (unsigned long long)old);
    cr_expect_eq(berth_rows_release(scene->rows, old, &error), BERTH_E_ARGUMENT);
    cr_expect_str_eq(error.message, expected);
    berth_ticket new = prefetch(scene, ids, 2); /* in the place of the old one */
    cr_expect_neq(new, old);
    cr_expect_eq(berth_rows_release(scene->rows, old, &error), BERTH_E_ARGUMENT);
    cr_expect_eq(berth_rows_wait(scene->rows, old, &error), BERTH_E_ARGUMENT);
    cr_expect_eq(berth_rows_lookup(scene->rows, old, pointers, &error), BERTH_E_ARGUMENT);
    cr_expect_str_eq(error.message, expected);
    cr_expect_eq(berth_rows_release(scene->rows, 0, NULL), BERTH_E_ARGUMENT);
    cr_expect_eq(berth_rows_release(scene->rows, UINT64_MAX, NULL), BERTH_E_ARGUMENT);
    expect_rows(scene, new, ids, 2);
    release(scene, new);
    end(scene);
}

Test(rows, tickets_that_are_never_released_end_with_the_cache)
{
    static const char *const options[] = {"io.threads=1", "io.threads=4"};
    static const int64_t ids[] = {1, 100, 200, 300, 400, 500};

    for (size_t k = 0; k < 2; k++) {
        test_memory_watch();
        struct scene *scene = begin(16, 2, options[k]);
        prefetch(scene, ids, 6);
        prefetch(scene, ids, 3);
        for (int64_t id = 600; id < 620; id++) /* more than one lot of places */
            prefetch(scene, &id, 0);
        end(scene);
        cr_expect_eq(test_memory_seen().live_nbytes, 0);
        test_memory_unwatch();
    }
}

Test(rows, that_cannot_be_read_are_an_error_and_not_kept)
{
    static const int64_t ids[] = {1, 500};
    struct scene *scene = begin(8, 4, "io.threads=1");
    const void *pointers[2];
    berth_error error;

    scene->source.is_broken = true;
    berth_ticket ticket = prefetch(scene, ids, 2);
    cr_expect_eq(berth_rows_wait(scene->rows, ticket, &error), BERTH_E_CALLBACK);
    char expected[200];
    uint64_t offset = berth_find_tensor(scene->checkpoint, "table")->storage->offset + 64;
    (void)snprintf(expected, sizeof expected,
                   "counted: data/0 at byte %llu: the source did not read 64 bytes: Input/output "
                   "error",
                   (unsigned long long)offset);
    cr_expect_str_eq(error.message, expected);
    cr_expect_eq(error.offset, offset);
    cr_expect_str_eq(error.record, "data/0");
    cr_expect_eq(berth_rows_lookup(scene->rows, ticket, pointers, &error), BERTH_E_CALLBACK);
    cr_expect_str_eq(error.message, expected, "as often as it is asked");
    release(scene, ticket);
    scene->source.is_broken = false;
    use(scene, ids, 2);
    end(scene);
}

/* W8: the others have their rows all the same. */
Test(rows, that_another_ticket_could_not_read_fail_for_both)
{
    static const int64_t good[] = {7}, first[] = {1, 500}, second[] = {500, 900}, third[] = {7, 8};
    struct scene *scene = begin(8, 4, "io.threads=1");
    berth_error error;

    use(scene, good, 1);
    scene->source.is_broken = true;
    berth_ticket one = prefetch(scene, first, 2), two = prefetch(scene, second, 2);
    berth_ticket three = prefetch(scene, good, 1);
    cr_expect_eq(berth_rows_wait(scene->rows, one, &error), BERTH_E_CALLBACK);
    scene->source.is_broken = false;
    cr_expect_eq(berth_rows_wait(scene->rows, two, &error), BERTH_E_CALLBACK);
    expect_rows(scene, three, good, 1);
    use(scene, third, 2);
    /* While the lost rows are still held. */
    use(scene, first, 2);
    release(scene, one), release(scene, two), release(scene, three);
    use(scene, second, 2);
    end(scene);
}

/* ---- limits ---- */

static int new_rows(uint64_t cache_nbytes, uint64_t scratch_nbytes, unsigned ways,
                    const char *options, berth_error *error)
{
    const berth_rows_limits limits = {
        .cache_nbytes = cache_nbytes, .scratch_nbytes = scratch_nbytes, .ways = ways};
    berth_rows *rows;

    patch(options);
    int status = berth_rows_new(&limits, NULL, &rows, error);
    cr_assert_eq(berth_config_unpatch(NULL), 0);
    cr_expect_eq(!rows, status < 0);
    berth_rows_free(rows);
    return status;
}

Test(rows, limits_that_cannot_be_are_refused_at_once)
{
    berth_error error;
    berth_rows *rows;

    cr_expect_eq(new_rows(4000, 96, 0, "io.memory_nbytes=4096", &error), 0);
    cr_expect_eq(new_rows(4000, 97, 0, "io.memory_nbytes=4096", &error), BERTH_E_MEMORY);
    cr_expect_str_eq(error.message, "a cache of 4000 bytes and a scratch of 97, but "
                                    "io.memory_nbytes=4096: 1 bytes are missing");
    cr_expect_eq(new_rows(4096, 0, 0, "io.memory_nbytes=4096", &error), BERTH_E_MEMORY,
                 "scratch is not for nothing");
    cr_expect_eq(new_rows(0, 1000, 0, "", &error), BERTH_E_ARGUMENT);
    cr_expect_str_eq(error.message, "there are no limits, or a cache of 0 bytes");
    cr_expect_eq(new_rows(1000, 1000, 65, "", &error), BERTH_E_ARGUMENT);
    cr_expect_str_eq(error.message, "a set has at most 64 ways, not 65");
    cr_expect_eq(new_rows(UINT64_MAX, 5, 0, "", &error), BERTH_E_MEMORY);
    cr_expect_eq(new_rows(UINT64_MAX / 2, 5, 0, "", &error), BERTH_E_MEMORY);
    cr_expect_eq(berth_rows_new(NULL, NULL, &rows, &error), BERTH_E_ARGUMENT);
    cr_expect_null(rows);
    cr_expect_eq(berth_rows_new(NULL, NULL, NULL, &error), BERTH_E_ARGUMENT);
    berth_rows_free(NULL);
}

Test(rows, limits_too_small_for_a_table_name_it_and_the_bytes_missing)
{
    static const struct {
        berth_rows_limits limits;
        const char *message;
    } cases[] = {
        {{.cache_nbytes = 83, .scratch_nbytes = 1000},
         "counted: table has rows of 64 bytes: cache_nbytes=83 is too small, 1 bytes are missing"},
        {{.cache_nbytes = 335, .scratch_nbytes = 1000, .ways = 4},
         "counted: table has rows of 64 bytes: cache_nbytes=335 is too small, 1 bytes are missing"},
        {{.cache_nbytes = 336, .scratch_nbytes = 67, .ways = 4},
         "counted: table has rows of 64 bytes: scratch_nbytes=67 is too small, 1 bytes are "
         "missing"},
        {{.cache_nbytes = 336, .scratch_nbytes = 68, .ways = 4}, NULL},
    };
    struct scene *scene = begin(4, 2, "io.threads=1");
    const berth_tensor *tensor = berth_find_tensor(scene->checkpoint, "table");

    for (size_t k = 0; k < 4; k++) {
        berth_rows *rows;
        berth_error error;
        size_t table;
        cr_assert_eq(berth_rows_new(&cases[k].limits, NULL, &rows, NULL), 0);
        int status = berth_rows_add(rows, scene->checkpoint, tensor, &table, &error);
        cr_expect_eq(status, cases[k].message ? BERTH_E_MEMORY : 0);
        cr_expect_str_eq(error.message, cases[k].message ? cases[k].message : "");
        berth_rows_free(rows);
    }
    end(scene);
}

Test(rows, a_table_with_longer_rows_waits_until_no_ticket_is_live)
{
    static const int64_t ids[] = {1, 2};
    const berth_rows_limits limits = {.cache_nbytes = 20000, .scratch_nbytes = 4000};
    struct scene *scene = begin_with(&limits, 10, 16, "", "io.threads=1");
    struct scene other = {.rows = scene->rows, .n_columns = 17};
    berth_error error;

    make_source(&other.source, 10, 17, "");
    other.checkpoint = open_source(&other.source);
    const berth_tensor *tensor = berth_find_tensor(other.checkpoint, "table");
    berth_ticket ticket = prefetch(scene, ids, 2);
    cr_expect_eq(berth_rows_add(scene->rows, other.checkpoint, tensor, &other.table, &error),
                 BERTH_E_BUSY);
    cr_expect_str_eq(error.message, "counted: 1 live tickets hold rows, and a table with longer "
                                    "ones needs other lines");
    expect_rows(scene, ticket, ids, 2);
    release(scene, ticket);
    cr_expect_eq(berth_rows_add(scene->rows, other.checkpoint, tensor, &other.table, &error), 0);
    use(&other, ids, 2);
    use(scene, ids, 2);
    end(scene);
    berth_close(other.checkpoint);
    free(other.source.bytes);
}

Test(rows, of_what_has_none_are_refused)
{
    static const int64_t flat[] = {160}, two[] = {10, 16}, transposed[] = {1, 10}, none[] = {10, 0};
    struct scene *scene = begin(4, 2, "io.threads=1");
    const berth_tensor *table = berth_find_tensor(scene->checkpoint, "table");
    berth_tree *tree = berth_tree_new(NULL);
    berth_error error;
    size_t number;
    berth_tensor tensors[] = {*table, *table, *table, *table, *table, *table};
    static const struct {
        int code;
        const char *message;
    } expected[] = {
        {BERTH_E_ARGUMENT, "counted: rows are those of a tensor of 2 dimensions, this one has 1"},
        {BERTH_E_UNSUPPORTED, "counted: the tensor is not contiguous: its rows do not lie one "
                              "after the other"},
        {BERTH_E_ARGUMENT, "counted: rows of no elements"},
        {BERTH_E_UNSUPPORTED, "counted: rows of quint4x2 elements"},
        {BERTH_E_ARGUMENT, "counted: a meta tensor has no data"},
        {BERTH_E_ARGUMENT, "counted: the storage is of another checkpoint or tree"},
    };

    tensors[0].rank = 1, tensors[0].shape = flat;
    tensors[1].shape = two, tensors[1].stride = transposed;
    tensors[2].shape = none;
    tensors[3].dtype = BERTH_QUINT4X2;
    tensors[4].flags = BERTH_META;
    tensors[5].storage = berth_storage_new(tree, BERTH_FLOAT32, sample_weight, 24, NULL);
    for (size_t k = 0; k < 6; k++) {
        cr_expect_eq(berth_rows_add(scene->rows, scene->checkpoint, &tensors[k], &number, &error),
                     expected[k].code, "%s", error.message);
        cr_expect_str_eq(error.message, expected[k].message);
    }
    cr_expect_eq(berth_rows_add(scene->rows, scene->checkpoint, NULL, &number, &error),
                 BERTH_E_ARGUMENT);
    cr_expect_eq(berth_rows_add(scene->rows, NULL, table, &number, &error), BERTH_E_ARGUMENT);
    cr_expect_eq(berth_rows_add(NULL, scene->checkpoint, table, &number, &error), BERTH_E_ARGUMENT);
    berth_tree_free(tree);
    end(scene);
}

Test(rows, a_part_of_a_tensor_is_a_table_too)
{
    static const int64_t shape[] = {10, 32}, ids[] = {0, 9};
    struct scene *scene =
        begin_with(&(berth_rows_limits){.cache_nbytes = 10000, .scratch_nbytes = 1000}, 100, 16, "",
                   "io.threads=1");
    berth_tensor part = *berth_find_tensor(scene->checkpoint, "table");
    static const int64_t stride[] = {32, 1};
    const void *pointers[2];
    berth_ticket ticket;

    part.shape = shape, part.stride = stride;
    part.storage_offset += 50 * 16; /* ten rows of 32 from row 50 of 16 on */
    cr_assert_eq(berth_rows_add(scene->rows, scene->checkpoint, &part, &scene->table, NULL), 0);
    cr_assert_eq(berth_rows_prefetch(scene->rows, scene->table, ids, 2, &ticket, NULL), 0);
    cr_assert_eq(berth_rows_lookup(scene->rows, ticket, pointers, NULL), 0);
    cr_expect_eq(((const float *)pointers[0])[0], element(50, 0));
    cr_expect_eq(((const float *)pointers[1])[31], element(69, 15));
    part.storage_offset += 50 * 16; /* T2: past the end */
    berth_error error;
    cr_expect_eq(berth_rows_add(scene->rows, scene->checkpoint, &part, &scene->table, &error),
                 BERTH_E_TENSOR);
    end(scene);
}

Test(rows, of_an_empty_table_there_are_none)
{
    static const int64_t id = 0;
    struct scene *scene = begin_with(&(berth_rows_limits){.cache_nbytes = 10000}, 0, 16, "", "");
    berth_ticket ticket;
    berth_error error;

    cr_expect_eq(berth_rows_prefetch(scene->rows, scene->table, &id, 1, &ticket, &error),
                 BERTH_E_ARGUMENT);
    release(scene, prefetch(scene, NULL, 0));
    cr_expect_eq(berth_rows_prefetch(scene->rows, 1, &id, 1, &ticket, &error), BERTH_E_ARGUMENT);
    cr_expect_str_eq(error.message, "there is no table 1, the cache has 1");
    cr_expect_eq(berth_rows_prefetch(scene->rows, 0, NULL, 1, &ticket, &error), BERTH_E_ARGUMENT);
    cr_expect_eq(berth_rows_prefetch(scene->rows, 0, &id, 1, NULL, &error), BERTH_E_ARGUMENT);
    cr_expect_eq(berth_rows_prefetch(NULL, 0, &id, 1, &ticket, &error), BERTH_E_ARGUMENT);
    end(scene);
}
