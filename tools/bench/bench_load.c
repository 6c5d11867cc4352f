/* SPDX-License-Identifier: BSD-3-Clause */
/* berth bench load: the speed of loading a checkpoint, or only of opening it. */
#include <berth/config.h>
#include <berth/device.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/bench/bench.h"
#include "tools/commands/commands.h"
#include "tools/common/options.h"
#include "tools/common/progress.h"
#include "tools/common/report.h"

/* ---- one load, by phases ---- */

/* The file that is loaded. */
typedef struct load_subject {
    const char *path;
    const char *device; /* where its storages go; NULL: to main memory */
    uint64_t nbytes;    /* of its storages */
    uint64_t file_nbytes;
    uint64_t pickle_nbytes; /* 0: the legacy format, without data.pkl */
    size_t n_tensors;
    size_t n_storages;
} load_subject;

enum { LOAD_OPEN, LOAD_NAMES, LOAD_TRANSFER, LOAD_TOUCH, LOAD_N_PHASES };

/* One load: its objects, which load_once frees, and its figures. */
typedef struct load_result {
    berth_checkpoint *checkpoint;
    struct tensor_storage *tensor_storages; /* each tensor's storage */
    size_t n_tensor_storages;
    berth_stats open, fetch;
    const char *method, *reason;
    double phases[LOAD_N_PHASES];
    uint64_t touched_nbytes;
    uint64_t sum; /* of all touched bytes: the compiler must not remove the reads */
} load_result;

typedef struct tensor_storage {
    const berth_storage *storage;
    uint64_t offset; /* of the tensor, in the file */
    const uint8_t *data;
    uint64_t nbytes;
    bool is_mapped;
} tensor_storage;

static int load_subject_read_info(load_subject *subject)
{
    berth_checkpoint *checkpoint;
    berth_archive *archive;
    berth_record record;
    berth_error error;
    berth_info info;

    if (berth_open(subject->path, NULL, &checkpoint, &error) < 0)
        return fail(&error);
    int code = berth_get_info(checkpoint, &info, &error) < 0 ? fail(&error) : 0;
    berth_close(checkpoint);
    if (code != 0)
        return code;
    subject->nbytes = info.storages_nbytes;
    subject->file_nbytes = info.nbytes;
    subject->n_tensors = info.n_tensors;
    subject->n_storages = info.n_storages;
    const berth_source source = berth_from_path(subject->path);
    if (berth_archive_open(&source, NULL, &archive, NULL, NULL) == 0) {
        if (berth_archive_find(archive, "data.pkl", &record, NULL) == 0)
            subject->pickle_nbytes = record.nbytes;
        berth_archive_close(archive);
    }
    return 0;
}

/* ---- phases ---- */

/* In the file's order; those of one storage are neighbours. */
static int tensor_storage_compare_offsets(const void *left, const void *right)
{
    const tensor_storage *a = left, *b = right;

    return (a->offset > b->offset) - (a->offset < b->offset);
}

static int load_list_storage_of_each_tensor(load_result *result, bool in_order)
{
    size_t n = berth_tensor_count(result->checkpoint), long_nbytes = 0;
    berth_named_tensor named;
    berth_error error;

    result->tensor_storages = calloc(n + 1, sizeof *result->tensor_storages);
    if (!result->tensor_storages)
        return print_trouble("out of memory (%zu tensors)", n);
    for (size_t i = 0; i < n; i++) {
        if (berth_tensor_at(result->checkpoint, i, &named, &error) < 0)
            return fail(&error);
        if (check_total_of_long_names(&long_nbytes, strlen(named.name)))
            return EXIT_TROUBLE;
        if (!named.tensor || !named.tensor->storage)
            continue; /* meta: it has no bytes */
        tensor_storage *entry = &result->tensor_storages[result->n_tensor_storages++];
        entry->storage = named.tensor->storage;
        entry->offset = named.offset;
        entry->nbytes = berth_storage_get_info(named.tensor->storage)->nbytes;
    }
    if (result->n_tensor_storages && in_order)
        qsort(result->tensor_storages, result->n_tensor_storages, sizeof *result->tensor_storages,
              tensor_storage_compare_offsets);
    return 0;
}

/* Gets a storage's address, and with_method: whether it is mapped; loads it if necessary. */
static int load_get_address(load_result *result, tensor_storage *entry, bool with_method)
{
    berth_storage_stats stats = {.method = ""};
    berth_error error;

    entry->data = berth_storage_data(result->checkpoint, entry->storage, &error);
    if (!entry->data || (with_method && berth_storage_get_stats(result->checkpoint, entry->storage,
                                                                &stats, &error) < 0))
        return fail(&error);
    entry->is_mapped = !strcmp(stats.method, "map");
    return 0;
}

static int load_get_addresses(load_result *result, bool with_methods)
{
    int code = 0;

    for (size_t i = 0; i < result->n_tensor_storages && code == 0; i++)
        code = load_get_address(result, &result->tensor_storages[i], with_methods);
    return code;
}

static int load_all_storages(load_result *result, const berth_params *params)
{
    berth_params own = *params;
    berth_error error;

    own.stats = &result->fetch;
    int code = berth_load(result->checkpoint, NULL, &own, &error) < 0 ? fail(&error) : 0;
    result->method = result->fetch.method;
    result->reason = result->fetch.reason;
    return code;
}

/* Reads every byte. Eight sums, so that memory is the limit, not addition. */
static uint64_t bytes_sum(const uint8_t *bytes, size_t nbytes)
{
    uint64_t sums[8] = {0}, words[8];

    for (; nbytes >= sizeof words; bytes += sizeof words, nbytes -= sizeof words) {
        memcpy(words, bytes, sizeof words);
        for (int i = 0; i < 8; i++)
            sums[i] += words[i];
    }
    for (; nbytes > 0; nbytes--)
        sums[0] += *bytes++;
    return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

static int load_sum_bytes_of_storage(load_result *result, const tensor_storage *entry,
                                     const berth_params *params, uint64_t total)
{
    enum { AT_ONCE = 16 << 20 };

    for (uint64_t at = 0; at < entry->nbytes; at += AT_ONCE) {
        uint64_t left = entry->nbytes - at;
        size_t n = left < AT_ONCE ? (size_t)left : AT_ONCE;
        result->sum += bytes_sum(entry->data + at, n);
        result->touched_nbytes += n;
        if (params->progress(params->progress_context, result->touched_nbytes, total))
            return EXIT_TROUBLE;
    }
    return 0;
}

/* Reads each storage once, in the file's order. Getting its address reports the progress to a
 * prefetch (load.prefetch). */
static int load_sum_bytes_of_mapped_storages(load_result *result, const berth_params *params,
                                             uint64_t total)
{
    const berth_storage *last = NULL;
    int code = 0;

    for (size_t i = 0; i < result->n_tensor_storages && code == 0; i++) {
        tensor_storage *entry = &result->tensor_storages[i];
        if (entry->storage == last)
            continue;
        last = entry->storage;
        if (!entry->data)
            code = load_get_address(result, entry, true);
        if (code == 0 && entry->is_mapped)
            code = load_sum_bytes_of_storage(result, entry, params, total);
    }
    return code;
}

/* ---- all of it ---- */

static double seconds_since_and_restart(double *since)
{
    double time = seconds_now(), seconds = time - *since;

    *since = time;
    return seconds;
}

static int load_run(const load_subject *subject, const berth_params *params, bool only_open,
                    load_result *result)
{
    berth_params own = *params;
    double since = seconds_now();
    berth_error error;

    *result = (load_result){0};
    own.stats = &result->open;
    int code = berth_open(subject->path, &own, &result->checkpoint, &error);
    result->phases[LOAD_OPEN] = seconds_since_and_restart(&since);
    result->method = result->open.method;
    result->reason = result->open.reason;
    if (code < 0)
        return fail(&error);
    code = load_list_storage_of_each_tensor(result, !only_open);
    result->phases[LOAD_NAMES] = seconds_since_and_restart(&since);
    if (code)
        return code;
    bool is_mapped = result->method && !strcmp(result->method, "map");
    if (only_open) {
        code = is_mapped ? load_get_addresses(result, false) : 0;
    } else if (subject->device) { /* storages there have no address here */
        const berth_storage_rule rule = {.device = subject->device};
        code = berth_set_storage_rules(result->checkpoint, &rule, 1, &error) < 0
                   ? fail(&error)
                   : load_all_storages(result, params);
    } else if (option_is("load.prefetch", "off")) {
        code = load_all_storages(result, params);
        code = code ? code : load_get_addresses(result, true);
    }
    result->phases[LOAD_TRANSFER] = seconds_since_and_restart(&since);
    if (code == 0 && !only_open && !subject->device)
        code = load_sum_bytes_of_mapped_storages(result, params, subject->nbytes);
    result->phases[LOAD_TOUCH] = seconds_since_and_restart(&since);
    return code;
}

static int load_measure_open_from_memory(const void *bytes, size_t nbytes, double *seconds)
{
    berth_checkpoint *checkpoint = NULL;
    berth_error error;
    berth_config *config = berth_config_new(&error);

    if (!config || berth_config_apply(config, "load.check=none", &error) < 0) {
        berth_config_free(config);
        return fail(&error);
    }
    const berth_params params = {.config = config};
    const berth_source source = berth_from_memory(bytes, nbytes);
    *seconds = seconds_now();
    int code = berth_open_source(&source, &params, &checkpoint, &error);
    *seconds = seconds_now() - *seconds;
    berth_close(checkpoint);
    berth_config_free(config);
    return code < 0 ? fail(&error) : 0;
}

static int load_measure_parsing(const load_subject *subject, double *seconds)
{
    size_t nbytes = (size_t)subject->file_nbytes;
    int fd = open(subject->path, O_RDONLY | O_CLOEXEC);
    int code;

    if (fd < 0)
        return print_trouble("%s: %s", subject->path, strerror(errno));
    void *map = mmap(NULL, nbytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) {
        code = print_trouble("%s: %s", subject->path, strerror(errno));
    } else {
        /* The first time loads the pages; the second time is measured. */
        code = load_measure_open_from_memory(map, nbytes, seconds);
        code = code ? code : load_measure_open_from_memory(map, nbytes, seconds);
        munmap(map, nbytes);
    }
    close(fd);
    return code;
}

/* ---- options ---- */

enum { KEY_COLD = 256, KEY_WARM, KEY_OPEN };

typedef struct load_bench {
    bench_options options;
    bool is_warm; /* --warm was given */
    bool only_open;
    bench_folder folder; /* of the file, if this made it */
    bench_cache cache;
    load_subject subject;
    bench_run run;
    double parse_seconds; /* of data.pkl alone, with --open; -1: not measured */
    load_result loaded;
    char check[16], prefetch[16];
} load_bench;

static const struct argp_option own_options[] = {
    {"cold", KEY_COLD, NULL, 0, "first evict the file from the page cache", 1},
    {"warm", KEY_WARM, NULL, 0, "first read the file into the page cache: the default", 1},
    {"open", KEY_OPEN, NULL, 0, "only open it, and get each tensor's name and address", 1},
    {0}};

static const char *const load_phases[] = {"open", "names", "transfer", "touch", NULL};
static const char *const open_phases[] = {"open", "names", "addresses", NULL};

static error_t bench_load_parse(int key, char *word, struct argp_state *state)
{
    load_bench *bench = state->input;

    (void)word;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &bench->options;
        return 0;
    case KEY_COLD:
        bench->cache.is_cold = true;
        return 0;
    case KEY_WARM:
        bench->is_warm = true;
        return 0;
    case KEY_OPEN:
        bench->only_open = true;
        return 0;
    case ARGP_KEY_SUCCESS:
        if (bench->cache.is_cold && bench->is_warm)
            print_usage_error_and_exit(state, "--cold and --warm exclude each other");
        if (bench->only_open && bench->options.device)
            print_usage_error_and_exit(state,
                                       "--open moves nothing to a device: --device does not apply");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- running ---- */

static int load_make_file(load_bench *bench)
{
    bench_tensors tensors = {0};
    int code =
        bench_tensors_list_equal_sizes(&tensors, bench->options.n_tensors, bench->options.nbytes);

    if (code == 0)
        code = bench_tensors_make_file(&tensors, &bench->folder, &bench->options.common);
    bench_tensors_free(&tensors);
    bench->subject.path = bench->folder.path;
    return code;
}

/* Memory and disk are measured around the load alone. */
static int load_once(load_bench *bench)
{
    bench_run *run = &bench->run;
    berth_params params;
    progress bar;

    progress_begin(&bar, "load", &bench->options.common, &params, NULL);
    bench_run_begin_memory_and_disk(run);
    int code = load_run(&bench->subject, &params, bench->only_open, &bench->loaded);
    bench_run_end_memory_and_disk(run);
    progress_finish(&bar);
    for (int i = 0; run->phases[i]; i++)
        bench_run_add_phase_seconds(run, i, bench->loaded.phases[i]);
    free(bench->loaded.tensor_storages);
    berth_close(bench->loaded.checkpoint);
    return code;
}

static int load_prepare_and_run(load_bench *bench)
{
    uintptr_t nothing;
    berth_error error;
    int code = 0;

    /* The first opening of a device in a process is slow. */
    if (bench->options.device &&
        berth_device_memory_new(bench->options.device, 0, &nothing, &error) < 0)
        code = fail(&error);
    if (code == 0 && !bench->subject.path)
        code = load_make_file(bench);
    if (code == 0)
        code = load_subject_read_info(&bench->subject);
    bench->run.nbytes = bench->subject.nbytes;
    if (code == 0)
        code = bench_cache_set_and_measure(&bench->cache, bench->subject.path);
    if (code == 0 && !caught_signal_code_or(0))
        code = load_once(bench);
    if (code == 0 && bench->only_open && bench->subject.pickle_nbytes)
        code = load_measure_parsing(&bench->subject, &bench->parse_seconds);
    if (bench_folder_remove(&bench->folder) != 0)
        code = EXIT_TROUBLE;
    return caught_signal_code_or(code);
}

/* ---- the report ---- */

static void load_warn_page_cache(const load_bench *bench)
{
    const char *path = bench->subject.path;
    double part = bench->cache.before;

    if (bench->options.common.quiet)
        return;
    if (part < 0)
        fprintf(stderr, "berth: %s: cannot measure how much of it was in the page cache\n", path);
    else if (bench->cache.is_cold && !bench_cache_was_cold(&bench->cache))
        fprintf(stderr, "berth: %s: cannot be evicted: %.0f %% stayed in the page cache\n", path,
                part * 100);
    else if (!bench->cache.is_cold && part < 0.99)
        fprintf(stderr, "berth: %s: only %.0f %% of it was in the page cache\n", path, part * 100);
}

/* False: only the opening has statistics. */
static bool load_has_transfer_stats(const load_result *result)
{
    return result->fetch.n_storages > 0;
}

static const char *load_device_name(const load_bench *bench)
{
    return bench->subject.device ? bench->subject.device : "cpu";
}

/* One object, also with --stats. */
static int load_print_json_report(const load_bench *bench)
{
    const load_result *loaded = &bench->loaded;
    json_t *report = bench_run_json(&bench->run);

    json_object_update_new(
        report,
        json_pack("{s:I,s:I,s:I,s:s,s:s,s:s,s:s,s:s,s:b,s:o,s:I,s:I,s:I}", "file_nbytes",
                  (json_int_t)bench->subject.file_nbytes, "tensors",
                  (json_int_t)bench->subject.n_tensors, "storages",
                  (json_int_t)bench->subject.n_storages, "device", load_device_name(bench),
                  "method", loaded->method, "reason", loaded->reason, "check", bench->check,
                  "prefetch", bench->prefetch, "cold", bench_cache_was_cold(&bench->cache),
                  "resident_before", bench_cache_part_json(&bench->cache), "open_requests",
                  (json_int_t)loaded->open.n_requests, "n_requests",
                  (json_int_t)loaded->open.n_requests + (json_int_t)loaded->fetch.n_requests,
                  "moved_nbytes",
                  (json_int_t)loaded->open.moved_nbytes + (json_int_t)loaded->fetch.moved_nbytes));
    if (bench->parse_seconds >= 0)
        json_object_set_new(report, "parse",
                            json_pack("{s:f,s:I}", "seconds", bench->parse_seconds, "nbytes",
                                      (json_int_t)bench->subject.pickle_nbytes));
    if (bench->options.common.stats)
        json_object_set_new(
            report, "stats",
            stats_json(load_has_transfer_stats(loaded) ? &loaded->fetch : &loaded->open));
    return print_json(report);
}

static int load_print_text_report(const load_bench *bench)
{
    const load_result *loaded = &bench->loaded;
    char size[32], peak[32];

    printf("%zu tensors, %s to %s; %s (%s), check %s, %s\n", bench->subject.n_tensors,
           human_nbytes(bench->subject.nbytes, size), load_device_name(bench), loaded->method,
           loaded->reason, bench->check,
           bench_cache_was_cold(&bench->cache) ? "cold"
           : bench->cache.is_cold              ? "not fully evicted"
                                               : "warm");
    bench_run_print(&bench->run);
    printf("requests: %llu, %llu of them to open it; memory: %s at most\n",
           (unsigned long long)loaded->open.n_requests + loaded->fetch.n_requests,
           (unsigned long long)loaded->open.n_requests, human_nbytes(bench->run.peak_nbytes, peak));
    if (bench->parse_seconds >= 0)
        printf("parsing data.pkl, from memory: %.4f s, %.0f MB/s\n", bench->parse_seconds,
               (double)bench->subject.pickle_nbytes / bench->parse_seconds / 1e6);
    if (bench->options.common.stats)
        print_stats(load_has_transfer_stats(loaded) ? &loaded->fetch : &loaded->open);
    return finish_output(EXIT_YES);
}

const struct argp bench_load_argp = {
    .options = own_options,
    .parser = bench_load_parse,
    .args_doc = "[FILE]",
    .doc = "Load FILE, or a new file of random bytes, once; print how long each phase took. If the "
           "file is mapped, the phase touch reads every byte. Options that matter: --set "
           "load.method=read, load.check=data, load.prefetch=populate, io.threads=1. "
           "tools/bench/load compares with other programs.",
    .children = bench_children};

int run_bench_load(int argc, char **argv)
{
    load_bench bench = {.options = {.words = {.max = 1}}, .parse_seconds = -1};
    berth_params params;
    progress bar;

    parse_options(&bench_load_argp, argc, argv, &bench);
    int code = bench_check_file(&bench.options.words);
    if (code)
        return code;
    option_copy_value("load.check", bench.check, sizeof bench.check);
    option_copy_value("load.prefetch", bench.prefetch, sizeof bench.prefetch);
    if (option_is("debug", "on") && strcmp(bench.check, "data") != 0)
        (void)snprintf(bench.check, sizeof bench.check, "headers (debug)");
    bench.run.phases = bench.only_open ? open_phases : load_phases;
    bench.subject.path = bench.options.words.n ? bench.options.words.words[0] : NULL;
    bench.subject.device = bench.options.device;
    /* From here on a signal only cancels, so that the file is removed. */
    progress_begin(&bar, "load", &bench.options.common, &params, NULL);
    code = load_prepare_and_run(&bench);
    if (code == EXIT_YES) {
        load_warn_page_cache(&bench);
        code = bench.options.common.json ? load_print_json_report(&bench)
                                         : load_print_text_report(&bench);
    }
    return caught_signal_code_or(code);
}
