/* SPDX-License-Identifier: BSD-3-Clause */
/* The progress bar, and the signals that cancel. */
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/common/options.h"
#include "tools/common/progress.h"
#include "tools/common/report.h"

/* A signal handler can only use globals. Atomic: threads that read a URL look at it, too. */
static atomic_int caught;

/* Nanoseconds; 0: no signal came yet. */
static _Atomic int64_t caught_at;

/*
 * ^C twice kills, but not at once: what the first one cancels removes its temporary meanwhile. A
 * closing terminal sends two SIGHUPs, from the kernel and from the shell: they never kill.
 */
static void set_caught_signal(int number)
{
    enum { PATIENCE_SECONDS = 1 };
    int64_t first = 0;
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    int64_t now = (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
    if (atomic_compare_exchange_strong(&caught_at, &first, now)) {
        caught = number;
        return;
    }
    if (number == SIGHUP || now - first < PATIENCE_SECONDS * INT64_C(1000000000))
        return;
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

int caught_signal_code_or(int otherwise)
{
    int number = caught;

    return number ? 128 + number : otherwise;
}

int signal_came(void *context)
{
    (void)context;
    return caught_signal_code_or(0);
}

double seconds_now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

int print_cancelled(const char *path)
{
    (void)print_trouble("%s: cancelled", path);
    return caught_signal_code_or(EXIT_TROUBLE);
}

double progress_elapsed_seconds(const progress *p)
{
    return seconds_now() - p->begin;
}

void progress_begin_without_signals(progress *p, const char *what, const common *options,
                                    berth_params *params, berth_stats *stats)
{
    *p = (progress){.what = what, .visible = !options->quiet && isatty(STDERR_FILENO)};
    p->begin = p->last = seconds_now();
    memset(params, 0, sizeof *params);
    params->progress = progress_report;
    params->progress_context = p;
    params->stats = stats;
}

void progress_begin(progress *p, const char *what, const common *options, berth_params *params,
                    berth_stats *stats)
{
    static const int cancelling[] = {SIGHUP, SIGINT, SIGTERM}; /* X14 */
    struct sigaction before, action = {.sa_handler = set_caught_signal};

    for (size_t i = 0; i < sizeof cancelling / sizeof *cancelling; i++) {
        /* An ignored signal stays ignored: nohup, or a shell's &. */
        if (sigaction(cancelling[i], NULL, &before) != 0 || before.sa_handler != SIG_IGN)
            sigaction(cancelling[i], &action, NULL);
    }
    /* A closed standard error must not kill a save, which would leave its temporary file. */
    (void)signal(SIGPIPE, SIG_IGN);
    progress_begin_without_signals(p, what, options, params, stats);
}

static void progress_draw(progress *p, double seconds, uint64_t done, uint64_t total)
{
    enum { WIDTH = 30 };
    char bar[WIDTH + 1], done_text[32], total_text[32];
    double part = total ? (double)done / (double)total : 1;
    double speed = (double)done / seconds;
    int filled = (int)(part * WIDTH);

    memset(bar, '#', (size_t)filled);
    memset(bar + filled, '.', (size_t)(WIDTH - filled));
    bar[WIDTH] = '\0';
    fprintf(stderr, "\r%s [%s] %3.0f%%  %s of %s  %.2f GiB/s  %.0f s left \033[K", p->what, bar,
            part * 100, human_nbytes(done, done_text), human_nbytes(total, total_text),
            speed / 1073741824.0, speed > 0 ? (double)(total - done) / speed : 0.0);
    (void)fflush(stderr);
    p->drawn = true;
}

int progress_report(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    progress *p = context;
    double time = seconds_now();

    if (p->visible && time - p->begin > 0.5 && time - p->last > 0.1) {
        p->last = time;
        progress_draw(p, time - p->begin, done_nbytes < total_nbytes ? done_nbytes : total_nbytes,
                      total_nbytes);
    }
    return caught;
}

void progress_finish(progress *p)
{
    if (p->drawn)
        fputs("\r\033[K", stderr);
    (void)signal(SIGPIPE, SIG_DFL);
}
