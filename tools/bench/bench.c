/* SPDX-License-Identifier: BSD-3-Clause */
/* What benchmarks share: options, one run and what it takes, files and the page cache. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters/curl/berth_curl.h"
#include "tools/bench/bench.h"
#include "tools/common/inputs.h"
#include "tools/common/options.h"
#include "tools/common/outputs.h"
#include "tools/common/progress.h"
#include "tools/common/report.h"

/* ---- options of save and load ---- */

enum { KEY_SIZE = 512, KEY_TENSORS, KEY_DEVICE };

static const struct argp_option options_of_both[] = {
    {"size", KEY_SIZE, "NBYTES", 0, "without FILE: bytes of all tensors, e.g. 4GiB (2GiB)", 1},
    {"tensors", KEY_TENSORS, "N", 0, "without FILE: how many tensors (one for each 64 MiB)", 1},
    {"device", KEY_DEVICE, "NAME", 0, "where the tensors are: cuda:0, simulated:0, or cpu (cpu)",
     1},
    {0}};

static error_t bench_parse(int key, char *word, struct argp_state *state)
{
    enum { MAX_TENSORS = 50000000 };
    bench_options *options = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->common;
        return 0;
    case KEY_SIZE:
        options->nbytes = parse_nbytes(word, "--size", state);
        options->is_sized = true;
        return 0;
    case KEY_TENSORS:
        options->n_tensors = parse_count(word, MAX_TENSORS, "--tensors", state);
        options->is_sized = true;
        return 0;
    case KEY_DEVICE:
        options->device = strcmp(word, "cpu") == 0 ? NULL : word;
        return 0;
    case ARGP_KEY_SUCCESS:
        if (options->words.n && options->is_sized)
            print_usage_error_and_exit(
                state, "FILE has tensors of its own: --size and --tensors do not apply");
        if (!options->nbytes)
            options->nbytes = UINT64_C(2) << 30;
        return 0;
    default:
        return parse_positional(key, word, state, &options->words);
    }
}

static const struct argp bench_argp = {options_of_both, bench_parse, NULL, NULL,
                                       common_children, NULL,        NULL};

const struct argp_child bench_children[] = {{&bench_argp, 0, NULL, 0}, {0}};

/* ---- one run ---- */

/* The number after "field:" in a file of lines; 0 if there is none. */
static uint64_t proc_read_field(const char *path, const char *field)
{
    FILE *file = fopen(path, "re");
    size_t n = strlen(field);
    uint64_t value = 0;
    char line[256];

    if (!file)
        return 0;
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, field, n) && line[n] == ':') {
            value = strtoull(line + n + 1, NULL, 10);
            break;
        }
    (void)fclose(file);
    return value;
}

static void memory_reset_peak(void)
{
    int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        return;
    if (write(fd, "5", 1) != 1) /* "5": resets VmHWM, see proc(5) */
        fputs("berth: cannot reset the peak of memory: it includes earlier work\n", stderr);
    close(fd);
}

void bench_run_begin_memory_and_disk(bench_run *run)
{
    memory_reset_peak();
    run->peak_nbytes = proc_read_field("/proc/self/status", "VmRSS") * 1024;
    run->written_nbytes = proc_read_field("/proc/self/io", "write_bytes");
    run->fetched_nbytes = proc_read_field("/proc/self/io", "read_bytes");
}

void bench_run_end_memory_and_disk(bench_run *run)
{
    uint64_t before = run->peak_nbytes, peak = proc_read_field("/proc/self/status", "VmHWM") * 1024;

    run->peak_nbytes = peak > before ? peak - before : 0;
    run->written_nbytes = proc_read_field("/proc/self/io", "write_bytes") - run->written_nbytes;
    run->fetched_nbytes = proc_read_field("/proc/self/io", "read_bytes") - run->fetched_nbytes;
}

void bench_run_add_phase_seconds(bench_run *run, int i, double seconds)
{
    run->phase_seconds[i] = seconds;
    run->seconds += seconds;
}

uint64_t available_memory_nbytes(void)
{
    uint64_t kib = proc_read_field("/proc/meminfo", "MemAvailable");

    return kib ? kib * 1024 : UINT64_MAX;
}

static double bench_run_rate(const bench_run *run)
{
    return run->seconds > 0 ? (double)run->nbytes / run->seconds / 1073741824.0 : 0;
}

json_t *bench_run_json(const bench_run *run)
{
    json_t *phases = json_object();

    for (size_t i = 0; run->phases[i]; i++)
        json_object_set_new(phases, run->phases[i], json_real(run->phase_seconds[i]));
    return json_pack("{s:f,s:f,s:I,s:o,s:I,s:I,s:I}", "GiB_per_s", bench_run_rate(run), "seconds",
                     run->seconds, "nbytes", (json_int_t)run->nbytes, "phases", phases,
                     "peak_nbytes", (json_int_t)run->peak_nbytes, "written_nbytes",
                     (json_int_t)run->written_nbytes, "fetched_nbytes",
                     (json_int_t)run->fetched_nbytes);
}

void bench_run_print(const bench_run *run)
{
    printf("%.2f GiB/s: %.4f s\n", bench_run_rate(run), run->seconds);
    for (size_t i = 0; run->phases[i]; i++)
        printf("  %-9s %.4f s\n", run->phases[i], run->phase_seconds[i]);
}

/* ---- files ---- */

int bench_check_file(const positional *words)
{
    const char *path = words->n ? words->words[0] : NULL;

    if (path && berth_is_url(path))
        return print_trouble("%s: berth bench needs a file: `berth copy` brings it here", path);
    if (path && refuse_empty(path))
        return EXIT_TROUBLE;
    return path ? check_is_one_file(path) : 0;
}

int bench_folder_make(bench_folder *folder)
{
    strcpy(folder->folder, "berth-bench-XXXXXX");
    if (!mkdtemp(folder->folder)) {
        int code = errno;
        folder->folder[0] = '\0';
        return print_trouble("cannot make a folder in the current one: %s", strerror(code));
    }
    snprintf(folder->path, sizeof folder->path, "%s/bench.pt", folder->folder);
    return 0;
}

int bench_folder_remove(const bench_folder *folder)
{
    if (!folder->folder[0])
        return 0;
    if (unlink(folder->path) != 0 && errno != ENOENT)
        return print_trouble("%s could not be removed: %s", folder->path, strerror(errno));
    if (rmdir(folder->folder) != 0)
        return print_trouble("%s could not be removed: %s", folder->folder, strerror(errno));
    return 0;
}

static int file_evict(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return print_trouble("%s: %s", path, strerror(errno));
    /* The kernel evicts only clean pages. The caller counts the pages that stay. */
    int code = fdatasync(fd) != 0 && errno != EINVAL && errno != EROFS ? errno : 0;
    if (!code)
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    return code ? print_trouble("%s: %s", path, strerror(code)) : 0;
}

/* Stops on a signal. */
static int file_warm(const char *path)
{
    enum { AT_ONCE = 4 << 20 };
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *buffer = malloc(AT_ONCE);
    int code = 0;
    ssize_t n = 1;

    if (fd < 0)
        code = print_trouble("%s: %s", path, strerror(errno));
    else if (!buffer)
        code = print_trouble("out of memory");
    while (!code && n > 0 && !caught_signal_code_or(0)) {
        n = read(fd, buffer, AT_ONCE);
        if (n < 0 && errno != EINTR)
            code = print_trouble("%s: %s", path, strerror(errno));
    }
    free(buffer);
    if (fd >= 0)
        close(fd);
    return code;
}

/* The part of a mapped range that is in the page cache; -1: unknown. */
static double map_cached_part(void *map, size_t nbytes, size_t page_nbytes)
{
    enum { AT_ONCE = 1 << 16 };
    static unsigned char present[AT_ONCE];
    size_t n_pages = (nbytes + page_nbytes - 1) / page_nbytes, found = 0;

    for (size_t first = 0; first < n_pages; first += AT_ONCE) {
        size_t n = n_pages - first < AT_ONCE ? n_pages - first : AT_ONCE;
        if (mincore((char *)map + first * page_nbytes, n * page_nbytes, present) != 0)
            return -1;
        for (size_t i = 0; i < n; i++)
            found += present[i] & 1;
    }
    return (double)found / (double)n_pages;
}

/* The part of a file that is in the page cache, 0 to 1; -1: unknown. */
static double file_cached_part(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    double part = -1;

    /* If the caller neither owns the file nor may write it, mincore reports all pages. */
    if (fd >= 0 && fstat(fd, &status) == 0 && status.st_size > 0 &&
        (status.st_uid == geteuid() || access(path, W_OK) == 0)) {
        size_t nbytes = (size_t)status.st_size;
        void *map = mmap(NULL, nbytes, PROT_READ, MAP_SHARED, fd, 0);
        if (map != MAP_FAILED) {
            part = map_cached_part(map, nbytes, (size_t)sysconf(_SC_PAGESIZE));
            munmap(map, nbytes);
        }
    }
    if (fd >= 0)
        close(fd);
    return part;
}

int bench_cache_set_and_measure(bench_cache *cache, const char *path)
{
    int code = cache->is_cold ? file_evict(path) : file_warm(path);

    cache->before = file_cached_part(path);
    return code;
}

bool bench_cache_was_cold(const bench_cache *cache)
{
    return cache->is_cold && cache->before >= 0 && cache->before <= 0.01;
}

json_t *bench_cache_part_json(const bench_cache *cache)
{
    return cache->before < 0 ? json_null() : json_real(cache->before);
}
