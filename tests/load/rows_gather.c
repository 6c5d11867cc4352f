/* SPDX-License-Identifier: BSD-3-Clause */
/* Gathers: rows of any number of ids, in passes, through a cache of any size. */
#include <berth/config.h>

#include "tests/support/load/rows_scene.h"

TestSuite(rows_gather, .fini = end_rows);

#define GUARD 0x5A

/* Ids that repeat, some far more often than others; -1 now and then if `pruned`. */
static void draw_ids(int64_t *ids, size_t n, int64_t n_rows, bool pruned, uint64_t state)
{
    for (size_t i = 0; i < n; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        ids[i] = (int64_t)((state >> 33) % (uint64_t)(state & 1 << 20 ? n_rows : 3));
        if (pruned && (state >> 40) % 9 == 0)
            ids[i] = -1;
    }
}

/* Output of a part, with guards between and behind the rows. */
static void make_output(berth_rows_part *part, size_t row_nbytes)
{
    size_t stride = part->stride_nbytes ? (size_t)part->stride_nbytes : row_nbytes;

    part->output = malloc(part->n * stride + 1);
    memset(part->output, GUARD, part->n * stride + 1);
}

static void expect_output_untouched(const berth_rows_part *part, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++)
        cr_assert_eq(((const uint8_t *)part->output)[i], GUARD, "byte %zu", i);
}

/* Every byte: rows, zeros of pruned ids, guards. */
static void expect_output(const struct scene *of, const berth_rows_part *part, const int64_t *ids)
{
    size_t row_nbytes = (size_t)of->n_columns * sizeof(float);
    size_t stride = part->stride_nbytes ? (size_t)part->stride_nbytes : row_nbytes;
    const uint8_t *at = part->output;
    float element;

    for (size_t i = 0; i < part->n; i++, at += stride) {
        for (int64_t k = 0; k < of->n_columns; k++) {
            memcpy(&element, at + (size_t)k * sizeof element, sizeof element);
            cr_assert_eq(element, ids[i] < 0 ? 0 : table_element(ids[i], k), "id %d of %zu", (int)i,
                         part->n);
        }
        for (size_t k = row_nbytes; k < stride; k++)
            cr_assert_eq(at[k], GUARD, "between the rows");
    }
    cr_assert_eq(*at, GUARD, "behind the rows");
}

/* Gathers ids of the scene's table, and looks at every byte. */
static void gather_ids(struct scene *of, const int64_t *ids, size_t n)
{
    berth_rows_part part = {.table = of->table, .ids = ids, .n = n, .pruned_to_zero = true};

    make_output(&part, (size_t)of->n_columns * sizeof(float));
    assert_ok(berth_rows_gather(of->rows, &part, 1, NULL, &error));
    expect_output(of, &part, ids);
    free(part.output);
}

/* ---- what comes ---- */

Test(rows_gather, any_number_of_passes_threads_and_lines_gives_the_same)
{
    enum { N = 20000 };
    static const char *const options[] = {
        "io.threads=1",
        "io.threads=3",
        "",
        "io.threads=1 io.chunk_nbytes=1",
    };
    static const char *const passes[] = {"", "load.rows_passes=2",
                                         "load.rows_passes=12 load.rows_min_pass_ids=1",
                                         "load.rows_passes=4096 load.rows_min_pass_ids=100"};
    static const uint64_t caches[] = {3000, 40000, 900000};
    static int64_t ids[N];

    for (size_t o = 0; o < 4; o++)
        for (size_t c = 0; c < 3; c++) {
            const berth_rows_limits limits = {.cache_nbytes = caches[c]};
            begin_rows_with(&limits, 5000, 16, "", options[o]);
            for (size_t p = 0; p < 4; p++) {
                patch(passes[p]);
                draw_ids(ids, N, 5000, p % 2, o * 100 + c * 10 + p);
                gather_ids(scene, ids, N);
                gather_ids(scene, ids, 1);
                cr_assert_eq(berth_config_unpatch(NULL), 0);
            }
            berth_rows_stats stats = rows_stats_of(scene);
            cr_expect_eq(stats.n_tickets, 0);
            cr_expect_eq(stats.n_requests, 8);
            cr_expect_eq(stats.n_hits + stats.n_misses, stats.n_unique);
            cr_expect(stats.n_streamed > 0 || c == 2, "cache %zu", c);
            cr_expect_gt(stats.n_passes, 4 + 12 + 150);
            end_rows();
        }
}

/* The whole of rows_gather.c runs in one list if it can: more than the tickets of one go. */
Test(rows_gather, more_distinct_rows_than_live_at_a_time)
{
    enum { N = 200000 };
    int64_t *ids = malloc(N * sizeof *ids);
    const berth_rows_limits limits = {.cache_nbytes = 1 << 20};

    begin_rows_with(&limits, N, 2, "", "io.threads=3");
    for (int64_t i = 0; i < N; i++)
        ids[i] = i * 77773 % N;
    gather_ids(scene, ids, N);
    cr_expect_eq(rows_stats_of(scene).n_unique, N);
    cr_expect_eq(rows_stats_of(scene).n_passes, 1);
    gather_ids(scene, ids, N);
    cr_expect_gt(rows_stats_of(scene).n_hits, 10000, "lines of the first are still there");
    free(ids);
}

Test(rows_gather, many_tables_in_one_request_with_ids_of_both_widths)
{
    static const int64_t ids[] = {1, 0, 9, -1, 5, 9};
    static const int32_t narrow[] = {1, 0, 9, -1, 5, 9};
    static const char *const passes[] = {"", "load.rows_passes=7 load.rows_min_pass_ids=1"};
    const berth_rows_limits limits = {.cache_nbytes = 2000, .scratch_nbytes = 2000, .ways = 4};
    begin_rows_with(&limits, 10, 7, "", "io.threads=2");
    struct scene other = {.rows = scene->rows, .n_columns = 30};

    make_source(&other.source, 10, 30, "save.byteorder=big");
    other.checkpoint = open_source(&other.source);
    assert_ok(berth_rows_add(scene->rows, other.checkpoint,
                             berth_find_tensor(other.checkpoint, "table", NULL), &other.table,
                             &error));
    struct scene *const tables[] = {scene, &other};
    for (size_t p = 0; p < 2; p++) {
        berth_rows_part parts[600]; /* more than the tickets of one go */
        patch(passes[p]);
        for (size_t i = 0; i < 600; i++) {
            struct scene *of = tables[i % 2];
            parts[i] = (berth_rows_part){.table = of->table,
                                         .ids = i % 3 ? (const void *)ids : narrow,
                                         .n = i % 7,
                                         .stride_nbytes = i % 5 ? 0 : 129,
                                         .ids_are_32_bit = i % 3 == 0,
                                         .pruned_to_zero = true};
            make_output(&parts[i], (size_t)of->n_columns * sizeof(float));
        }
        assert_ok(berth_rows_gather(scene->rows, parts, 600, NULL, &error));
        for (size_t i = 0; i < 600; i++) {
            expect_output(tables[i % 2], &parts[i], ids);
            free(parts[i].output);
        }
        cr_assert_eq(berth_config_unpatch(NULL), 0);
    }
    end_rows();
    berth_close(other.checkpoint);
    free(other.source.bytes);
}

Test(rows_gather, of_nothing)
{
    const berth_rows_part empty = {0};
    begin_rows(4, 1, "io.threads=1");

    assert_ok(berth_rows_gather(scene->rows, NULL, 0, NULL, &error));
    assert_ok(berth_rows_gather(scene->rows, &empty, 1, NULL, &error));
    cr_expect_eq(scene->source.n_reads, 0);
    static const int64_t pruned[] = {-1, -1};
    gather_ids(scene, pruned, 2);
    cr_expect_eq(scene->source.n_reads, 0);
}

/* ---- what is read ---- */

Test(rows_gather, a_row_is_read_once_whatever_the_number_of_passes)
{
    enum { N = 30000 };
    static const char *const passes[] = {"load.rows_passes=1", "load.rows_passes=12"};
    const berth_rows_limits limits = {.cache_nbytes = 3000, .scratch_nbytes = 200000};
    int64_t *ids = malloc(N * sizeof *ids);
    uint64_t nbytes[2];

    for (int64_t i = 0; i < N; i++)
        ids[i] = i * 7919 % 6000;
    for (size_t p = 0; p < 2; p++) {
        begin_rows_with(&limits, 6000, 16, "", "io.threads=1");
        patch("load.rows_min_pass_ids=1");
        patch(passes[p]);
        gather_ids(scene, ids, N);
        cr_assert_eq(berth_config_unpatch(NULL), 0);
        cr_assert_eq(berth_config_unpatch(NULL), 0);
        cr_expect_eq(rows_stats_of(scene).n_passes, p ? 12 : 1);
        nbytes[p] = scene->source.read_nbytes;
        end_rows();
    }
    cr_expect_eq(nbytes[0], 6000 * 64);
    cr_expect_eq(nbytes[1], nbytes[0]);
    free(ids);
}

Test(rows_gather, a_batch_four_times_the_cache_is_served_and_fills_it_once)
{
    static int64_t ids[200];
    begin_rows(50, 1, "io.threads=1");

    for (int64_t i = 0; i < 200; i++)
        ids[i] = i * 2;
    gather_ids(scene, ids, 200);
    berth_rows_stats stats = rows_stats_of(scene);
    cr_expect_eq(stats.n_streamed, 200 - stats.n_lines);
    cr_expect_eq(stats.n_evictions, 0);
    gather_ids(scene, ids, 200);
    cr_expect_eq(rows_stats_of(scene).n_hits, stats.n_lines, "what is in the cache stays there");
}

/* Tickets keep their rows, and the gather goes past them; then the ticket's rows are hits. */
Test(rows_gather, beside_live_tickets_that_hold_the_whole_cache)
{
    static const int64_t held[] = {1, 2, 3, 4}, ids[] = {9, 1, 8, 2, 1};
    const void *pointers[4];
    begin_rows(4, 1, "io.threads=2");

    berth_ticket ticket = prefetch_rows(scene, held, 4);
    assert_ok(berth_rows_wait(scene->rows, ticket, pointers, &error));
    gather_ids(scene, ids, 5);
    expect_rows(scene, ticket, held, 4);
    cr_expect_eq(rows_stats_of(scene).n_hits, 2);
    cr_expect_eq(rows_stats_of(scene).n_streamed, 2);
    release_rows(scene, ticket);
}

/* ---- memory ---- */

/* Kilobytes of this process, as the system counts them. */
static uint64_t status_kib(const char *field)
{
    FILE *file = fopen("/proc/self/status", "re");
    uint64_t kib = 0;
    char line[256];

    cr_assert(file);
    while (fgets(line, sizeof line, file))
        if (strncmp(line, field, strlen(field)) == 0)
            kib = strtoull(line + strlen(field) + 1, NULL, 10);
    fclose(file);
    return kib;
}

static void reset_peak(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "we");

    cr_assert(file && fputs("5", file) >= 0 && fclose(file) == 0);
}

Test(rows_gather, needs_no_more_memory_than_the_estimate_which_keeps_the_promise)
{
    enum { N = 2000000 };
    static const unsigned passes[] = {12, 4, 2, 1};
    const berth_rows_limits limits = {.cache_nbytes = 30000};
    int64_t *ids = malloc(N * sizeof *ids);
    uint8_t *output = malloc(N * 8);
    berth_rows_gather_estimate estimate;
    char options[60];

    memset(output, GUARD, N * 8);
    draw_ids(ids, N, 100000, false, 3);
    begin_rows_with(&limits, 100000, 2, "", "io.threads=1");
    const berth_rows_part unread = {.table = scene->table, .n = N},
                          part = {.table = scene->table, .ids = ids, .n = N, .output = output};
    for (size_t p = 0; p < 4; p++) {
        (void)snprintf(options, sizeof options, "load.rows_passes=%u", passes[p]);
        patch(options);
        assert_ok(berth_rows_estimate(scene->rows, &unread, 1, NULL, &estimate, &error));
        cr_expect_eq(estimate.n_passes, passes[p]);
        cr_expect_eq(estimate.n_ids, N);
        cr_expect_eq(estimate.output_nbytes, N * 8);
        cr_expect_leq(estimate.memory_nbytes, 20 * N / passes[p] + (2 << 20));
        reset_peak();
        uint64_t before_kib = status_kib("VmRSS");
        assert_ok(berth_rows_gather(scene->rows, &part, 1, NULL, &error));
        uint64_t used_nbytes = (status_kib("VmHWM") - before_kib) * 1024;
        cr_expect_leq(used_nbytes, 20 * N / passes[p] + (2 << 20), "%u passes: %llu bytes",
                      passes[p], (unsigned long long)used_nbytes);
        cr_expect_geq(used_nbytes, 12 * N / passes[p], "%u passes: only %llu bytes", passes[p],
                      (unsigned long long)used_nbytes);
        cr_assert_eq(berth_config_unpatch(NULL), 0);
    }
    free(output);
    free(ids);
}

Test(rows_gather, makes_as_many_passes_as_the_memory_limit_asks_for)
{
    const berth_rows_limits limits = {.cache_nbytes = 100000, .scratch_nbytes = 10000};
    begin_rows_with(&limits, 5000, 2, "", "io.threads=1");
    const berth_rows_part part = {.table = scene->table, .n = 1000000};
    berth_rows_gather_estimate estimate;

    patch("io.memory_nbytes=5MiB");
    assert_ok(berth_rows_estimate(scene->rows, &part, 1, NULL, &estimate, &error));
    cr_expect_eq(estimate.n_passes, 5);
    cr_expect_leq(estimate.memory_nbytes, (5 << 20) - 110000);
    cr_assert_eq(berth_config_unpatch(NULL), 0);
    patch("io.memory_nbytes=5MiB load.rows_passes=2");
    FAILS_SAYING(berth_rows_estimate(scene->rows, &part, 1, NULL, &estimate, &error),
                 BERTH_E_MEMORY, "a pass of 500000 of 1000000 ids needs ");
    cr_expect(
        strstr(error.message, ", but io.memory_nbytes=5242880 leaves 5132880 beside the cache: "),
        "%s", error.message);
    cr_expect(strstr(error.message, " bytes are missing; set load.rows_passes or "
                                    "load.rows_min_pass_ids so that passes are smaller"),
              "%s", error.message);
    cr_expect_eq(estimate.n_ids, 0);
    cr_expect_eq(berth_rows_gather(scene->rows, &part, 1, NULL, &error), BERTH_E_MEMORY);
    cr_assert_eq(berth_config_unpatch(NULL), 0);
    patch("io.memory_nbytes=1000");
    cr_expect_eq(berth_rows_estimate(scene->rows, &part, 1, NULL, &estimate, &error),
                 BERTH_E_MEMORY, "less than the cache");
    cr_assert_eq(berth_config_unpatch(NULL), 0);
}

/* ---- errors ---- */

Test(rows_gather, a_bad_part_is_named_and_no_byte_is_written)
{
    static const int64_t ids[] = {1, 2, 3, 4}, high[] = {1, 2, 1000, 3}, low[] = {-1, 1, -2, 3};
    static const int32_t narrow[] = {1, -1, 3, 2};
    static uint8_t output[400];
    begin_rows(4, 2, "io.threads=1");
    const struct {
        berth_rows_part part;
        const char *message;
    } cases[] = {
        {{.ids = high, .n = 4},
         "part 1: counted: id 1000, number 2 of the part, is no row of table, which has 1000"},
        {{.ids = low, .n = 4},
         "part 1: counted: id -1, number 0 of the part, is no row of table, which has 1000"},
        {{.ids = low, .n = 4, .pruned_to_zero = true},
         "part 1: counted: id -2, number 2 of the part, is no row of table, which has 1000"},
        {{.ids = narrow, .n = 4, .ids_are_32_bit = true},
         "part 1: counted: id -1, number 1 of the part, is no row of table, which has 1000"},
        {{.table = 7, .ids = ids, .n = 4}, "part 1: there is no table 7, the cache has 1"},
        {{.n = 1}, "part 1: the ids, or the output, are NULL"},
        {{.ids = ids, .n = 4, .stride_nbytes = 63},
         "part 1: stride_nbytes=63, but the rows have 64 bytes"},
        {{.ids = ids, .n = SIZE_MAX / 2},
         "part 1: 9223372036854775807 rows of 64 bytes are too many"},
        {{.ids = ids, .n = 4, .reserved = {1}},
         "part 1: berth_rows_part: reserved[0] is not 0: a newer library may know its meaning, "
         "0.2.0 does not"},
    };

    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        berth_rows_part parts[2] = {{.ids = ids, .n = 4, .output = output}, cases[k].part};
        make_output(&parts[0], 64);
        uint8_t *first = parts[0].output;
        parts[1].output = cases[k].part.ids ? output : NULL;
        memset(output, GUARD, sizeof output);
        FAILS(berth_rows_gather(scene->rows, parts, 2, NULL, &error), BERTH_E_ARGUMENT,
              cases[k].message);
        expect_output_untouched(&parts[0], 4 * 64 + 1);
        expect_output_untouched(&(berth_rows_part){.output = output}, sizeof output);
        free(first);
    }
    cr_expect_eq(berth_rows_gather(NULL, NULL, 0, NULL, &error), BERTH_E_ARGUMENT);
    FAILS(berth_rows_gather(scene->rows, NULL, 1, NULL, &error), BERTH_E_ARGUMENT,
          "the parts are NULL");
    FAILS(berth_rows_estimate(scene->rows, NULL, 0, NULL, NULL, &error), BERTH_E_ARGUMENT,
          "the pointer for the estimate is NULL");
    cr_expect_eq(rows_stats_of(scene).n_requests, 0);
    cr_expect_eq(scene->source.n_reads, 0);
}

/* W8 */
Test(rows_gather, that_cannot_be_read_is_an_error_and_the_next_one_is_good)
{
    enum { N = 3000 };
    static const char *const options[] = {"io.threads=1", "io.threads=4"};
    static int64_t ids[N];
    static uint8_t output[N * 64];

    draw_ids(ids, N, 1000, false, 1);
    for (size_t o = 0; o < 2; o++) {
        begin_rows(16, 2, options[o]);
        const berth_rows_part part = {.table = scene->table, .ids = ids, .n = N, .output = output};
        scene->source.is_broken = true;
        cr_expect_eq(berth_rows_gather(scene->rows, &part, 1, NULL, &error), BERTH_E_CALLBACK);
        cr_expect_str_eq(error.record, "data/0");
        cr_expect_neq(error.offset, BERTH_NO_OFFSET);
        cr_expect(strstr(error.message, "counted: \"table\": data/0 at byte "), "%s",
                  error.message);
        scene->source.is_broken = false;
        cr_expect_eq(rows_stats_of(scene).n_tickets, 0);
        gather_ids(scene, ids, N);
        end_rows();
    }
}

/* Rows that a ticket is reading are awaited; if they are lost, the gather fails too. */
Test(rows_gather, awaits_what_a_ticket_reads)
{
    static const int64_t held[] = {1, 500}, ids[] = {500, 2, 500};
    uint8_t output[3 * 64];
    begin_rows(8, 4, "io.threads=1");
    const berth_rows_part part = {.table = scene->table, .ids = ids, .n = 3, .output = output};

    berth_ticket ticket = prefetch_rows(scene, held, 2);
    gather_ids(scene, ids, 3);
    cr_expect_eq(rows_stats_of(scene).n_awaited, 1);
    release_rows(scene, ticket);
    static const int64_t more[] = {600, 601}, awaited[] = {601, 1};
    const berth_rows_part second = {.table = part.table, .ids = awaited, .n = 2, .output = output};
    scene->source.is_broken = true;
    ticket = prefetch_rows(scene, more, 2);
    cr_expect_eq(berth_rows_gather(scene->rows, &second, 1, NULL, &error), BERTH_E_CALLBACK);
    scene->source.is_broken = false;
    release_rows(scene, ticket);
    gather_ids(scene, awaited, 2);
}

/* ---- progress ---- */

struct seen {
    uint64_t done_nbytes, total_nbytes;
    unsigned n, cancel_at; /* 0: never */
};

static int see(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    struct seen *seen = context;

    cr_expect_gt(done_nbytes, seen->done_nbytes);
    seen->done_nbytes = done_nbytes;
    seen->total_nbytes = total_nbytes;
    return ++seen->n == seen->cancel_at;
}

Test(rows_gather, reports_progress_and_can_be_cancelled)
{
    enum { N = 2000 };
    static int64_t ids[N];
    static uint8_t output[N * 64];
    struct seen seen = {0};
    const berth_params params = {.progress = see, .progress_context = &seen};
    begin_rows(16, 2, "io.threads=1");
    const berth_rows_part part = {
        .table = scene->table, .ids = ids, .n = N, .output = output, .pruned_to_zero = true};

    draw_ids(ids, N, 1000, true, 5);
    patch("load.rows_passes=10 load.rows_min_pass_ids=1");
    assert_ok(berth_rows_gather(scene->rows, &part, 1, &params, &error));
    cr_expect_eq(seen.done_nbytes, N * 64);
    cr_expect_eq(seen.total_nbytes, N * 64);
    cr_expect_geq(seen.n, 10);
    for (unsigned at = 1; at <= 3; at++) {
        seen = (struct seen){.cancel_at = at};
        FAILS(berth_rows_gather(scene->rows, &part, 1, &params, &error), BERTH_E_CANCELLED,
              "cancelled");
        cr_expect_eq(seen.n, at);
        cr_expect_eq(rows_stats_of(scene).n_tickets, 0);
    }
    cr_assert_eq(berth_config_unpatch(NULL), 0);
    gather_ids(scene, ids, N);
}
