/* SPDX-License-Identifier: BSD-3-Clause */
/* berth bench rows: how fast rows of a table come that has no room in memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench_rows.h"

enum {
    KEY_SIZE = 256,
    KEY_ROW,
    KEY_BATCH,
    KEY_BATCHES,
    KEY_IDS,
    KEY_CACHE,
    KEY_WAY,
    KEY_WARM,
    KEY_ROUNDS
};

typedef struct rows_options {
    common common;
    positional words;
    uint64_t size, row_nbytes, batch, batches, cache_nbytes, rounds;
    const char *ids, *way;
    bool is_warm, is_sized;
} rows_options;

typedef struct rows_bench {
    const rows_options *options;
    bench_folder folder; /* of the table, if this made it */
    rows_subject subject;
    bench_rounds rounds;
    rows_round last;
    uint64_t peak_nbytes, fetched_nbytes;
    double residency; /* before the rounds: the most if cold, else the least */
} rows_bench;

static const struct argp_option own_options[] = {
    {"size", KEY_SIZE, "NBYTES", 0, "of the table that is made (1GiB)", 1},
    {"row", KEY_ROW, "NBYTES", 0, "of one of its rows, a multiple of 4 (512)", 1},
    {"batch", KEY_BATCH, "N", 0, "rows asked for at a time (4,096)", 1},
    {"batches", KEY_BATCHES, "N", 0, "how many of them (16)", 1},
    {"ids", KEY_IDS, "KIND", 0,
     "uniform: any row as likely as another, the default; zipf: the kth most wanted row 1/k as "
     "often as the first",
     1},
    {"cache", KEY_CACHE, "NBYTES", 0, "memory for rows (half the table)", 1},
    {"way", KEY_WAY, "NAME", 0,
     "cache: berth_rows, the default; pread: one read a row; map: faults; random: faults in a map "
     "that is told so",
     1},
    {"warm", KEY_WARM, NULL, 0, "read the file before, instead of evicting it", 1},
    {"rounds", KEY_ROUNDS, "N", 0, "measure so often (3)", 1},
    {0}};

static const char *const phases[] = {"ask", "wait", "use", NULL};

static uint64_t parse_size(const char *word, const char *what, struct argp_state *state)
{
    uint64_t nbytes = 0;

    if (!parse_nbytes(word, &nbytes) || !nbytes)
        usage_error(state, "%s wants bytes such as 1GiB, not '%s'", what, word);
    return nbytes;
}

static error_t parse(int key, char *word, struct argp_state *state)
{
    enum { MOST_IDS = 1 << 24, MOST_ROW_NBYTES = 1 << 20 };
    rows_options *options = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->common;
        return 0;
    case KEY_SIZE:
        options->size = parse_size(word, "--size", state);
        options->is_sized = true;
        return 0;
    case KEY_ROW:
        options->row_nbytes = parse_count(word, MOST_ROW_NBYTES, "--row", state);
        options->is_sized = true;
        return 0;
    case KEY_BATCH:
        options->batch = parse_count(word, MOST_IDS, "--batch", state);
        return 0;
    case KEY_BATCHES:
        options->batches = parse_count(word, 1 << 16, "--batches", state);
        return 0;
    case KEY_IDS:
        options->ids = word;
        return 0;
    case KEY_CACHE:
        options->cache_nbytes = parse_size(word, "--cache", state);
        return 0;
    case KEY_WAY:
        options->way = word;
        return 0;
    case KEY_WARM:
        options->is_warm = true;
        return 0;
    case KEY_ROUNDS:
        options->rounds = parse_count(word, BENCH_MOST_ROUNDS, "--rounds", state);
        return 0;
    case ARGP_KEY_SUCCESS:
        if (strcmp(options->ids, "uniform") != 0 && strcmp(options->ids, "zipf") != 0)
            usage_error(state, "--ids wants uniform or zipf, not '%s'", options->ids);
        if (!find_rows_way(options->way))
            usage_error(state, "--way wants cache, pread, map or random, not '%s'", options->way);
        if (options->row_nbytes % 4 || options->size / options->row_nbytes < 1)
            usage_error(state, "--row wants a multiple of 4 that fits the table, not %llu",
                        (unsigned long long)options->row_nbytes);
        if (options->words.n && options->is_sized)
            usage_error(state, "a file has its own table: --size and --row do not apply");
        return 0;
    default:
        return take_positional(key, word, state, &options->words);
    }
}

/* ---- the table ---- */

static int make_file(rows_bench *bench)
{
    const rows_options *options = bench->options;
    bench_tensor *table = calloc(1, sizeof *table);
    bench_tensors tensors = {.items = table};

    if (!table)
        return trouble("out of memory");
    tensors.n = 1;
    *table = (bench_tensor){.name = "table", .dtype = BERTH_FLOAT32, .rank = 2};
    table->shape[0] = (int64_t)(options->size / options->row_nbytes);
    table->shape[1] = (int64_t)(options->row_nbytes / 4);
    table->nbytes = (size_t)table->shape[0] * (size_t)options->row_nbytes;
    tensors.nbytes = table->nbytes;
    int code = bench_tensors_fill(&tensors, NULL);
    if (code == 0)
        code = bench_folder_make(&bench->folder);
    if (code == 0)
        code = bench_tensors_save(&tensors, bench->folder.path, &options->common);
    bench_tensors_free(&tensors);
    bench->subject.path = bench->folder.path;
    return code;
}

/* The largest tensor of two dimensions. */
static int find_table(rows_subject *subject)
{
    uint64_t most_nbytes = 0;
    berth_named_tensor named;
    berth_error error;

    if (berth_open(subject->path, NULL, &subject->checkpoint, &error) < 0)
        return fail(&error);
    for (size_t i = 0; i < berth_tensor_count(subject->checkpoint); i++) {
        if (berth_tensor_at(subject->checkpoint, i, &named, &error) < 0)
            return fail(&error);
        const berth_tensor *tensor = named.tensor;
        if (!tensor || tensor->rank != 2 || !tensor->storage ||
            !berth_tensor_is_contiguous(tensor) || berth_tensor_nbytes(tensor) <= most_nbytes)
            continue;
        most_nbytes = berth_tensor_nbytes(tensor);
        subject->tensor = tensor;
        subject->offset = named.offset;
        subject->n_rows = tensor->shape[0];
        subject->row_nbytes = (size_t)(most_nbytes / (uint64_t)tensor->shape[0]);
    }
    return subject->tensor
               ? 0
               : trouble("%s: there is no contiguous tensor of two dimensions", subject->path);
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state >> 11;
}

/*
 * A rank from 1 to n, of which each doubling is as likely as any other: what Zipf's law with
 * exponent 1 says, in steps of two.
 */
static uint64_t zipf_rank(uint64_t n, uint64_t *random)
{
    uint64_t octaves = 1, rank = n + 1;

    while (octaves < 63 && n >> octaves)
        octaves++;
    while (rank > n) {
        uint64_t first = UINT64_C(1) << next_random(random) % octaves;
        rank = first + next_random(random) % first;
    }
    return rank;
}

/* The same ones whichever way rows are taken; what is wanted often lies anywhere in the table. */
static int draw_ids(rows_bench *bench)
{
    const rows_options *options = bench->options;
    rows_subject *subject = &bench->subject;
    uint64_t n = options->batch * options->batches, random = UINT64_C(88172645463325252);
    uint64_t n_rows = (uint64_t)subject->n_rows;
    bool is_zipf = !strcmp(options->ids, "zipf");

    subject->n_ids = (size_t)options->batch;
    subject->n_batches = (size_t)options->batches;
    subject->ids = calloc((size_t)n, sizeof *subject->ids);
    if (!subject->ids)
        return trouble("out of memory");
    for (uint64_t i = 0; i < n; i++) {
        uint64_t id = next_random(&random);
        if (is_zipf)
            id = zipf_rank(n_rows, &random) * UINT64_C(11400714819323198485) >> 1;
        subject->ids[i] = (int64_t)(id % n_rows);
    }
    return 0;
}

/* ---- running ---- */

static int set_cache(rows_bench *bench)
{
    bool is_warm = bench->options->is_warm;
    int code = is_warm ? file_warm(bench->subject.path) : file_evict(bench->subject.path);
    double part = file_residency(bench->subject.path);

    if (bench->rounds.n == 0 || part < 0 ||
        (is_warm ? part < bench->residency : part > bench->residency))
        bench->residency = part;
    return code;
}

static int run_round(rows_bench *bench)
{
    bench_round *round = &bench->rounds.items[bench->rounds.n];
    rows_round *last = &bench->last;
    berth_params call;
    progress bar;
    char what[48];

    double begin = seconds_now();
    int code = set_cache(bench);
    round->before_seconds = seconds_now() - begin;
    if (code != 0 || signal_code(0))
        return code;
    snprintf(what, sizeof what, "rows, round %zu", bench->rounds.n + 1);
    progress_begin(&bar, what, &bench->options->common, &call, NULL);
    *last = (rows_round){0};
    reset_peak();
    uint64_t resident = resident_nbytes(), fetched = fetched_nbytes();
    code = find_rows_way(bench->options->way)(&bench->subject, &call, last);
    uint64_t peak = peak_nbytes();
    bench->fetched_nbytes += fetched_nbytes() - fetched;
    if (peak > resident && peak - resident > bench->peak_nbytes)
        bench->peak_nbytes = peak - resident;
    progress_end(&bar);
    for (int i = 0; i < ROWS_N_PHASES; i++) {
        round->phases[i] = last->phases[i];
        round->seconds += last->phases[i];
    }
    bench->rounds.n += code == 0;
    return code;
}

static int run_rounds(rows_bench *bench)
{
    const rows_options *options = bench->options;
    rows_subject *subject = &bench->subject;
    int code = find_table(subject);

    if (code == 0)
        code = draw_ids(bench);
    if (code == 0)
        code = bench_rounds_begin(&bench->rounds, options->rounds);
    bench->rounds.nbytes = options->batch * options->batches * subject->row_nbytes;
    subject->cache_nbytes = options->cache_nbytes
                                ? options->cache_nbytes
                                : (uint64_t)subject->n_rows * subject->row_nbytes / 2;
    for (uint64_t i = 0; i < options->rounds && code == 0 && !signal_code(0); i++)
        code = run_round(bench);
    return signal_code(code);
}

/* ---- telling ---- */

static json_t *cache_json(const berth_rows_stats *stats)
{
    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "unique", (json_int_t)stats->n_unique,
                     "hits", (json_int_t)stats->n_hits, "misses", (json_int_t)stats->n_misses,
                     "conflicts", (json_int_t)stats->n_conflicts, "evictions",
                     (json_int_t)stats->n_evictions, "reads", (json_int_t)stats->n_reads, "merged",
                     (json_int_t)stats->n_merged, "asked_nbytes", (json_int_t)stats->asked_nbytes,
                     "read_nbytes", (json_int_t)stats->read_nbytes);
}

static int print_report(const rows_bench *bench)
{
    const rows_options *options = bench->options;
    const rows_subject *subject = &bench->subject;
    json_t *report = bench_rounds_json(&bench->rounds);
    bool is_cold = !options->is_warm && bench->residency >= 0 && bench->residency <= 0.01;
    /* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): no report without a round */
    uint64_t fetched = bench->fetched_nbytes / bench->rounds.n;
    char sum[24];

    snprintf(sum, sizeof sum, "%llx", (unsigned long long)bench->last.sum);
    json_object_update_new(
        report,
        json_pack(
            "{s:s,s:s,s:I,s:I,s:I,s:I,s:b,s:o,s:I,s:I,s:s}", "way", options->way, "ids",
            options->ids, "n_ids", (json_int_t)subject->n_ids * (json_int_t)subject->n_batches,
            "row_nbytes", (json_int_t)subject->row_nbytes, "table_nbytes",
            (json_int_t)subject->n_rows * (json_int_t)subject->row_nbytes, "cache_nbytes",
            (json_int_t)subject->cache_nbytes, "cold", is_cold, "resident_before",
            bench->residency < 0 ? json_null() : json_real(bench->residency), "fetched_nbytes",
            (json_int_t)fetched, "peak_nbytes", (json_int_t)bench->peak_nbytes, "sum", sum));
    if (!strcmp(options->way, "cache"))
        json_object_set_new(report, "cache", cache_json(&bench->last.stats));
    return print_json(report);
}

/* Of the last round; only a cache has them. */
static void print_cache(const berth_rows_stats *stats)
{
    char asked[32], read[32];

    fprintf(stderr,
            "rows: %llu asked for, %llu distinct, %llu hits (%llu awaited), %llu misses, %llu "
            "conflicts, %llu evictions\n"
            "bytes: %s asked for, %s read in %llu requests; lines: %llu of %llu bytes\n",
            (unsigned long long)stats->n_ids, (unsigned long long)stats->n_unique,
            (unsigned long long)stats->n_hits, (unsigned long long)stats->n_awaited,
            (unsigned long long)stats->n_misses, (unsigned long long)stats->n_conflicts,
            (unsigned long long)stats->n_evictions, human_nbytes(stats->asked_nbytes, asked),
            human_nbytes(stats->read_nbytes, read), (unsigned long long)stats->n_reads,
            (unsigned long long)stats->n_lines, (unsigned long long)stats->line_nbytes);
}

static int report_text(const rows_bench *bench)
{
    const rows_subject *subject = &bench->subject;
    const berth_rows_stats *stats = &bench->last.stats;
    char table[32], memory[32];

    printf("%zu batches of %zu %s rows of %zu bytes, of %s; way: %s, memory: %s\n",
           subject->n_batches, subject->n_ids, bench->options->ids, subject->row_nbytes,
           human_nbytes((uint64_t)subject->n_rows * subject->row_nbytes, table),
           bench->options->way, human_nbytes(subject->cache_nbytes, memory));
    bench_rounds_print(&bench->rounds);
    if (stats->n_unique)
        printf("of %llu distinct rows %llu were there; %llu reads, %llu of them of several rows\n",
               (unsigned long long)stats->n_unique, (unsigned long long)stats->n_hits,
               (unsigned long long)stats->n_reads, (unsigned long long)stats->n_merged);
    if (stats->n_unique && bench->options->common.stats)
        print_cache(stats);
    return finish_output(EXIT_YES);
}

int run_bench_rows(int argc, char **argv)
{
    static const struct argp argp = {
        own_options,
        parse,
        "[FILE]",
        "Take rows of a table by the batch, as embeddings are used, with less memory than the "
        "table has; each batch is asked for before the one before it is used. FILE: its largest "
        "tensor of two dimensions. Without FILE one is made in the current folder, and removed. "
        "Before each round the file is evicted from the page cache.",
        common_children,
        NULL,
        NULL};
    rows_options options = {.words = {.most = 1},
                            .size = UINT64_C(1) << 30,
                            .row_nbytes = 512,
                            .batch = 4096,
                            .batches = 16,
                            .rounds = 3,
                            .ids = "uniform",
                            .way = "cache"};
    rows_bench bench = {.options = &options,
                        .rounds = {.phases = phases, .before = "prepare_seconds"}};
    berth_params call;
    progress bar;
    int code = 0;

    argp_parse(&argp, argc, argv, 0, NULL, &options);
    /* From here on a signal only cancels: what was made is removed before this ends. */
    progress_begin(&bar, "rows", &options.common, &call, NULL);
    bench.subject.path = options.words.words[0];
    if (!bench.subject.path)
        code = make_file(&bench);
    if (code == 0)
        code = run_rounds(&bench);
    if (bench_folder_remove_file(&bench.folder) != 0 || bench_folder_remove(&bench.folder) != 0)
        code = EXIT_TROUBLE;
    if (code == EXIT_YES)
        code = options.common.json ? print_report(&bench) : report_text(&bench);
    berth_close(bench.subject.checkpoint);
    free(bench.subject.ids);
    bench_rounds_free(&bench.rounds);
    return signal_code(code);
}
