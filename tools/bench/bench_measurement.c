/* SPDX-License-Identifier: BSD-3-Clause */
/* One run of a benchmark: its time by phases, its memory, its traffic with disks. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/bench/bench.h"

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
