/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * berth bench rows: the speed of reading rows of a table that is larger than the row cache. Batches
 * come by tickets, or with --passes by gathers.
 */
#include <berth/config.h>
#include <berth/rows.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/bench.h"
#include "tools/commands/commands.h"
#include "tools/common/options.h"
#include "tools/common/progress.h"
#include "tools/common/report.h"

enum {
    KEY_SIZE = 256,
    KEY_ROW,
    KEY_BATCH,
    KEY_BATCHES,
    KEY_IDS,
    KEY_CACHE,
    KEY_WARM,
    KEY_PASSES,
    KEY_CHECK
};
enum { REQUEST, WAIT, USE };
enum { GATHER, USE_GATHERED };

static const char *const ticket_phases[] = {"request", "wait", "use", NULL};
static const char *const gather_phases[] = {"gather", "use", NULL};

typedef struct rows_bench {
    common common;
    positional words;
    /* From the options: */
    uint64_t size, row_size, cache_nbytes;
    size_t n_ids, n_batches; /* in a batch; number of batches */
    const char *ids_path;    /* NULL: random ids */
    bool is_sized;
    uint64_t n_passes; /* of a gather; 0: tickets */
    bool is_checked;
    /* The table. */
    bench_folder folder; /* of its file, if the benchmark made it */
    const char *path;
    berth_checkpoint *checkpoint;
    const berth_tensor *tensor;
    int64_t n_rows;
    size_t row_nbytes;
    int64_t *ids; /* n_batches times n_ids */
    /* The run. */
    bench_cache cache;
    bench_run run;
    berth_rows *rows;
    const void **pointers;     /* of tickets, */
    uint8_t *output;           /* or of gathers */
    berth_ticket ticket, next; /* of the batch in use, and of the one after it */
    double since, phase_seconds[3];
    uint64_t sum; /* of all bytes of all rows */
    uint64_t
        placed_sum;  /* the same, but each row counts by its place: proves that they are right */
    size_t n_summed; /* rows */
    berth_rows_stats stats;
} rows_bench;

static const struct argp_option own_options[] = {
    {"size", KEY_SIZE, "NBYTES", 0, "without FILE: size of the table (1GiB)", 1},
    {"row", KEY_ROW, "NBYTES", 0, "without FILE: size of a row, a multiple of 4 (512)", 1},
    {"batch", KEY_BATCH, "N", 0, "rows in a batch (4,096)", 1},
    {"batches", KEY_BATCHES, "N", 0, "number of batches (16)", 1},
    {"ids", KEY_IDS, "FILE", 0, "the rows to read, as 64-bit integers (random ones)", 1},
    {"cache", KEY_CACHE, "NBYTES", 0, "memory for rows (half the table)", 1},
    {"passes", KEY_PASSES, "N", 0,
     "copy the rows of each batch by one call, in N passes, even if the cache has no room for them",
     1},
    {"check", KEY_CHECK, NULL, 0, "then compare every row with the file", 1},
    {"warm", KEY_WARM, NULL, 0, "first read the file into the page cache, do not evict it", 1},
    {0}};

static error_t bench_rows_parse(int key, char *word, struct argp_state *state)
{
    enum { MAX_IDS = 1 << 24, MAX_BATCHES = 1 << 16, MAX_ROW_NBYTES = 1 << 20, MAX_PASSES = 4096 };
    rows_bench *bench = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &bench->common;
        return 0;
    case KEY_SIZE:
        bench->size = parse_nbytes(word, "--size", state);
        bench->is_sized = true;
        return 0;
    case KEY_ROW:
        bench->row_size = parse_count(word, MAX_ROW_NBYTES, "--row", state);
        bench->is_sized = true;
        return 0;
    case KEY_BATCH:
        bench->n_ids = (size_t)parse_count(word, MAX_IDS, "--batch", state);
        return 0;
    case KEY_BATCHES:
        bench->n_batches = (size_t)parse_count(word, MAX_BATCHES, "--batches", state);
        return 0;
    case KEY_IDS:
        bench->ids_path = word;
        return 0;
    case KEY_CACHE:
        bench->cache_nbytes = parse_nbytes(word, "--cache", state);
        return 0;
    case KEY_PASSES:
        bench->n_passes = parse_count(word, MAX_PASSES, "--passes", state);
        return 0;
    case KEY_CHECK:
        bench->is_checked = true;
        return 0;
    case KEY_WARM:
        bench->cache.is_cold = false;
        return 0;
    case ARGP_KEY_SUCCESS:
        if (bench->row_size % 4 || bench->size < bench->row_size)
            print_usage_error_and_exit(state,
                                       "--row: %llu is not a multiple of 4 that fits the table",
                                       (unsigned long long)bench->row_size);
        if (bench->words.n && bench->is_sized)
            print_usage_error_and_exit(
                state, "FILE has a table of its own: --size and --row do not apply");
        return 0;
    default:
        return parse_positional(key, word, state, &bench->words);
    }
}

/* ---- the table, and the ids ---- */

static int rows_make_file(rows_bench *bench)
{
    bench_tensors tensors = {0};
    int code = bench_tensors_list_table(&tensors, bench->size / bench->row_size, bench->row_size);

    if (code == 0)
        code = bench_tensors_make_file(&tensors, &bench->folder, &bench->common);
    bench_tensors_free(&tensors);
    bench->path = bench->folder.path;
    return code;
}

/* The largest tensor of two dimensions. */
static int rows_open_and_find_table(rows_bench *bench)
{
    uint64_t max_nbytes = 0;
    berth_named_tensor named;
    berth_error error;

    if (berth_open(bench->path, NULL, &bench->checkpoint, &error) < 0)
        return fail(&error);
    for (size_t i = 0; i < berth_tensor_count(bench->checkpoint); i++) {
        if (berth_tensor_at(bench->checkpoint, i, &named, &error) < 0)
            return fail(&error);
        const berth_tensor *tensor = named.tensor;
        if (!tensor || tensor->rank != 2 || !tensor->storage ||
            !berth_tensor_is_contiguous(tensor) || berth_tensor_nbytes(tensor) <= max_nbytes)
            continue;
        max_nbytes = berth_tensor_nbytes(tensor);
        bench->tensor = tensor;
        bench->n_rows = tensor->shape[0];
        bench->row_nbytes = (size_t)(max_nbytes / (uint64_t)tensor->shape[0]);
    }
    return bench->tensor
               ? 0
               : print_trouble("%s: there is no contiguous tensor of two dimensions", bench->path);
}

static int rows_read_ids(rows_bench *bench)
{
    size_t n = bench->n_ids * bench->n_batches;
    FILE *file = fopen(bench->ids_path, "rbe");

    if (!file)
        return print_trouble("%s: %s", bench->ids_path, strerror(errno));
    size_t n_read = fread(bench->ids, sizeof *bench->ids, n, file);
    (void)fclose(file);
    return n_read == n
               ? 0
               : print_trouble("%s: it holds only %zu of %zu ids", bench->ids_path, n_read, n);
}

static int rows_prepare_ids(rows_bench *bench)
{
    bench->ids = calloc(bench->n_ids * bench->n_batches, sizeof *bench->ids);
    if (bench->n_passes)
        bench->output = malloc(bench->n_ids * bench->row_nbytes);
    else
        bench->pointers = calloc(bench->n_ids, sizeof *bench->pointers);
    if (!bench->ids || (!bench->pointers && !bench->output))
        return print_trouble("out of memory");
    if (bench->output) /* its pages are not counted with the memory of the rows */
        memset(bench->output, 0xff, bench->n_ids * bench->row_nbytes);
    if (bench->ids_path)
        return rows_read_ids(bench);
    uint64_t x = UINT64_C(88172645463325252); /* xorshift64 */
    for (size_t i = 0; i < bench->n_ids * bench->n_batches; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        bench->ids[i] = (int64_t)((x >> 11) % (uint64_t)bench->n_rows);
    }
    return 0;
}

/* ---- running ---- */

static void rows_add_row(rows_bench *bench, const void *row)
{
    const uint8_t *at = row;
    size_t nbytes = bench->row_nbytes;
    uint64_t sum = 0, word;

    for (; nbytes >= sizeof word; at += sizeof word, nbytes -= sizeof word) {
        memcpy(&word, at, sizeof word);
        sum += word;
    }
    while (nbytes-- > 0)
        sum += *at++;
    bench->sum += sum;
    bench->placed_sum += (sum + 1) * (2 * bench->n_summed++ + 1);
}

static void rows_end_phase(rows_bench *bench, int phase)
{
    double time = seconds_now();

    bench->phase_seconds[phase] += time - bench->since;
    bench->since = time;
}

static int rows_prefetch_batch(rows_bench *bench, size_t batch)
{
    berth_error error;

    bench->next = 0;
    if (batch < bench->n_batches &&
        berth_rows_prefetch(bench->rows, 0, bench->ids + batch * bench->n_ids, bench->n_ids,
                            &bench->next, &error) < 0)
        return fail(&error);
    rows_end_phase(bench, REQUEST);
    return 0;
}

/* Requests the next batch before it uses this one. */
static int rows_sum_batch_and_prefetch_next(rows_bench *bench, size_t batch)
{
    berth_error error;

    bench->ticket = bench->next;
    int code = rows_prefetch_batch(bench, batch + 1);
    if (code != 0)
        return code;
    if (berth_rows_wait(bench->rows, bench->ticket, bench->pointers, &error) < 0)
        return fail(&error);
    rows_end_phase(bench, WAIT);
    for (size_t i = 0; i < bench->n_ids; i++)
        rows_add_row(bench, bench->pointers[i]);
    berth_rows_release(bench->rows, bench->ticket, NULL);
    rows_end_phase(bench, USE);
    return 0;
}

/* Where one gather lies among all batches, for progress. */
typedef struct gather_place {
    const berth_params *all;
    uint64_t before_nbytes, total_nbytes;
} gather_place;

static int gather_report_progress(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    const gather_place *place = context;

    (void)total_nbytes;
    return place->all->progress(place->all->progress_context, place->before_nbytes + done_nbytes,
                                place->total_nbytes);
}

static int rows_gather_and_sum_batch(rows_bench *bench, size_t batch, const berth_params *all)
{
    uint64_t batch_nbytes = (uint64_t)bench->n_ids * bench->row_nbytes;
    gather_place place = {all, batch * batch_nbytes, bench->n_batches * batch_nbytes};
    const berth_params params = {.progress = gather_report_progress, .progress_context = &place};
    const berth_rows_part part = {
        .ids = bench->ids + batch * bench->n_ids, .n = bench->n_ids, .output = bench->output};
    berth_error error;

    if (berth_rows_gather(bench->rows, &part, 1, &params, &error) < 0)
        return fail(&error);
    rows_end_phase(bench, GATHER);
    for (size_t i = 0; i < bench->n_ids; i++)
        rows_add_row(bench, bench->output + i * bench->row_nbytes);
    rows_end_phase(bench, USE_GATHERED);
    return 0;
}

static int rows_make_cache(rows_bench *bench)
{
    /* The cache and its scratch, an eighth of it, share the memory. */
    const berth_rows_limits limits = {.cache_nbytes = bench->cache_nbytes / 9 * 8};
    char option[64];
    size_t table;
    berth_error error;

    /* As many passes as asked for, even if they are small. */
    snprintf(option, sizeof option, "load.rows_passes=%llu load.rows_min_pass_ids=1",
             (unsigned long long)bench->n_passes);
    if ((bench->n_passes && berth_config_patch(option, &error) < 0) ||
        berth_rows_new(&limits, NULL, &bench->rows, &error) < 0 ||
        berth_rows_add(bench->rows, bench->checkpoint, bench->tensor, &table, &error) < 0)
        return fail(&error);
    return 0;
}

static int rows_sum_all_batches(rows_bench *bench, const berth_params *params)
{
    uint64_t batch_nbytes = (uint64_t)bench->n_ids * bench->row_nbytes;
    int code = rows_make_cache(bench);

    if (code == 0 && !bench->n_passes)
        code = rows_prefetch_batch(bench, 0);
    for (size_t i = 0; i < bench->n_batches && code == 0; i++) {
        code = bench->n_passes ? rows_gather_and_sum_batch(bench, i, params)
                               : rows_sum_batch_and_prefetch_next(bench, i);
        if (code == 0 && params->progress(params->progress_context, (i + 1) * batch_nbytes,
                                          bench->n_batches * batch_nbytes))
            code = EXIT_TROUBLE;
    }
    if (bench->rows)
        berth_rows_get_stats(bench->rows, &bench->stats, NULL);
    return code;
}

/* Memory and disk are measured around the rows alone. */
static int rows_run_once(rows_bench *bench)
{
    berth_params params;
    progress bar;

    progress_begin(&bar, "rows", &bench->common, &params, NULL);
    bench_run_begin_memory_and_disk(&bench->run);
    bench->since = seconds_now();
    int code = rows_sum_all_batches(bench, &params);
    bench_run_end_memory_and_disk(&bench->run);
    progress_finish(&bar);
    berth_rows_free(bench->rows);
    for (int i = 0; bench->run.phases[i]; i++)
        bench_run_add_phase_seconds(&bench->run, i, bench->phase_seconds[i]);
    return code;
}

/* Sums the same rows again, from a map of the file, and compares. */
static int rows_check(rows_bench *bench)
{
    uint64_t sum = bench->sum, placed_sum = bench->placed_sum;
    berth_error error;

    bench->sum = bench->placed_sum = bench->n_summed = 0;
    const uint8_t *rows = berth_tensor_data(bench->checkpoint, bench->tensor, &error);
    if (!rows)
        return fail(&error);
    for (size_t i = 0; i < bench->n_ids * bench->n_batches; i++)
        rows_add_row(bench, rows + (size_t)bench->ids[i] * bench->row_nbytes);
    if (sum != bench->sum || placed_sum != bench->placed_sum)
        return print_trouble("%s: the rows are not those of the file", bench->path);
    return 0;
}

static int rows_prepare_and_run(rows_bench *bench)
{
    int code = bench->path ? 0 : rows_make_file(bench);

    if (code == 0)
        code = rows_open_and_find_table(bench);
    if (code == 0)
        code = rows_prepare_ids(bench);
    if (code == 0)
        code = bench_cache_set_and_measure(&bench->cache, bench->path);
    bench->run.nbytes = (uint64_t)bench->n_ids * bench->n_batches * bench->row_nbytes;
    if (!bench->cache_nbytes)
        bench->cache_nbytes = (uint64_t)bench->n_rows * bench->row_nbytes / 2;
    if (code == 0 && !caught_signal_code_or(0))
        code = rows_run_once(bench);
    if (code == 0 && bench->is_checked && !caught_signal_code_or(0))
        code = rows_check(bench);
    if (bench_folder_remove(&bench->folder) != 0)
        code = EXIT_TROUBLE;
    return caught_signal_code_or(code);
}

/* ---- the report ---- */

static json_t *rows_stats_json(const berth_rows_stats *stats)
{
    return json_pack(
        "{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "unique", (json_int_t)stats->n_unique,
        "hits", (json_int_t)stats->n_hits, "misses", (json_int_t)stats->n_misses, "conflicts",
        (json_int_t)stats->n_conflicts, "evictions", (json_int_t)stats->n_evictions, "reads",
        (json_int_t)stats->n_reads, "merged", (json_int_t)stats->n_merged, "requested_nbytes",
        (json_int_t)stats->requested_nbytes, "read_nbytes", (json_int_t)stats->read_nbytes,
        "passes", (json_int_t)stats->n_passes, "streamed", (json_int_t)stats->n_streamed);
}

static int rows_print_json_report(const rows_bench *bench)
{
    json_t *report = bench_run_json(&bench->run);
    char sum[24];

    snprintf(sum, sizeof sum, "%llx", (unsigned long long)bench->sum);
    json_object_update_new(report,
                           json_pack("{s:I,s:I,s:I,s:I,s:b,s:o,s:s,s:o,s:b}", "n_ids",
                                     (json_int_t)bench->n_ids * (json_int_t)bench->n_batches,
                                     "row_nbytes", (json_int_t)bench->row_nbytes, "table_nbytes",
                                     (json_int_t)bench->n_rows * (json_int_t)bench->row_nbytes,
                                     "cache_nbytes", (json_int_t)bench->cache_nbytes, "cold",
                                     bench_cache_was_cold(&bench->cache), "resident_before",
                                     bench_cache_part_json(&bench->cache), "sum", sum, "cache",
                                     rows_stats_json(&bench->stats), "checked", bench->is_checked));
    return print_json(report);
}

static void rows_print_cache(const berth_rows_stats *stats)
{
    char requested[32], read[32];

    fprintf(stderr,
            "rows: %llu requested, %llu distinct, %llu hits (%llu awaited), %llu misses, %llu "
            "conflicts, %llu evictions; %llu past the cache, in %llu passes\n"
            "bytes: %s requested, %s read in %llu requests; lines: %llu of %llu bytes\n",
            (unsigned long long)stats->n_ids, (unsigned long long)stats->n_unique,
            (unsigned long long)stats->n_hits, (unsigned long long)stats->n_awaited,
            (unsigned long long)stats->n_misses, (unsigned long long)stats->n_conflicts,
            (unsigned long long)stats->n_evictions, (unsigned long long)stats->n_streamed,
            (unsigned long long)stats->n_passes, human_nbytes(stats->requested_nbytes, requested),
            human_nbytes(stats->read_nbytes, read), (unsigned long long)stats->n_reads,
            (unsigned long long)stats->n_lines, (unsigned long long)stats->line_nbytes);
}

static int rows_print_text_report(const rows_bench *bench)
{
    const berth_rows_stats *stats = &bench->stats;
    char table[32], memory[32];

    printf("%zu batches of %zu rows of %zu bytes, of %s; memory: %s\n", bench->n_batches,
           bench->n_ids, bench->row_nbytes,
           human_nbytes((uint64_t)bench->n_rows * bench->row_nbytes, table),
           human_nbytes(bench->cache_nbytes, memory));
    bench_run_print(&bench->run);
    printf("distinct rows: %llu, %llu of them in the cache; reads: %llu, %llu of them of several "
           "rows\n",
           (unsigned long long)stats->n_unique, (unsigned long long)stats->n_hits,
           (unsigned long long)stats->n_reads, (unsigned long long)stats->n_merged);
    if (bench->common.stats)
        rows_print_cache(stats);
    return finish_output(EXIT_YES);
}

const struct argp bench_rows_argp = {
    .options = own_options,
    .parser = bench_rows_parse,
    .args_doc = "[FILE]",
    .doc =
        "Read rows of a table in batches, as a model reads embeddings, with less memory than the "
        "table needs; print how long each phase took. The next batch is requested before the "
        "previous one is used; with --passes, each batch is copied by a gather. The table is the "
        "largest tensor of two dimensions in FILE; without "
        "FILE, it is a new file of random bytes, which is removed at the end. First the file is "
        "evicted from the page cache.",
    .children = common_children};

int run_bench_rows(int argc, char **argv)
{
    rows_bench bench = {.words = {.max = 1},
                        .size = UINT64_C(1) << 30,
                        .row_size = 512,
                        .n_ids = 4096,
                        .n_batches = 16,
                        .cache = {.is_cold = true},
                        .run = {.phases = ticket_phases}};
    berth_params params;
    progress bar;

    parse_options(&bench_rows_argp, argc, argv, &bench);
    int code = bench_check_file(&bench.words);
    if (code)
        return code;
    bench.path = bench.words.n ? bench.words.words[0] : NULL;
    if (bench.n_passes)
        bench.run.phases = gather_phases;
    /* From here on a signal only cancels, so that the file is removed. */
    progress_begin(&bar, "rows", &bench.common, &params, NULL);
    code = rows_prepare_and_run(&bench);
    if (code == EXIT_YES)
        code = bench.common.json ? rows_print_json_report(&bench) : rows_print_text_report(&bench);
    berth_close(bench.checkpoint);
    free(bench.ids);
    free((void *)bench.pointers);
    free(bench.output);
    return caught_signal_code_or(code);
}
