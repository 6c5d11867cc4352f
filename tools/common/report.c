/* SPDX-License-Identifier: BSD-3-Clause */
/* Errors and output that all subcommands share. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters/curl/berth_curl.h"
#include "tools/common/nearest.h"
#include "tools/common/options.h"
#include "tools/common/progress.h"
#include "tools/common/report.h"
#include "tools/common/set.h"
#include "tools/common/urls.h"

bool is_shown_as_it_is(const char *text)
{
    size_t n = strlen(text);

    return berth_show_text(text, n, BERTH_TEXT_PLAIN, NULL, 0) == n;
}

static void print_shown_part(FILE *out, const char *text, size_t n, berth_text_form form)
{
    char part[512];
    size_t nbytes = berth_show_text(text, n, form, part, sizeof part);
    char *whole = nbytes < sizeof part ? part : malloc(nbytes + 1);

    if (whole && whole != part)
        (void)berth_show_text(text, n, form, whole, nbytes + 1);
    fputs(whole ? whole : part, out);
    if (whole != part)
        free(whole);
}

void print_shown(FILE *out, const char *text)
{
    print_shown_part(out, text, strlen(text), BERTH_TEXT_PLAIN);
}

bool error_is_of_missing_file(const berth_error *error)
{
    return error->code == BERTH_E_NOT_FOUND && error->system_errno != 0;
}

int exit_code(const berth_error *error)
{
    switch (error->code) {
    case BERTH_E_CANCELLED:
        return caught_signal_code_or(EXIT_TROUBLE);
    case BERTH_E_NOT_FOUND:
        return error_is_of_missing_file(error) ? EXIT_TROUBLE : EXIT_NO; /* else: no such name */
    case BERTH_E_AMBIGUOUS:
    case BERTH_E_NOT_CHECKPOINT:
    case BERTH_E_ARCHIVE:
    case BERTH_E_PICKLE:
    case BERTH_E_FORBIDDEN:
    case BERTH_E_TENSOR:
    case BERTH_E_OFFSETS:
    case BERTH_E_CHECKSUM:
    case BERTH_E_TRUNCATED:
    case BERTH_E_UNSUPPORTED:
        return EXIT_NO;
    default:
        return EXIT_TROUBLE;
    }
}

int fail(const berth_error *failure)
{
    berth_error own, *error = &own;

    if (failure->code != BERTH_E_CALLBACK || !set_read_error(&own))
        own = *failure;
    explain_url(error);
    if (error->system_errno == EPIPE) { /* a reader that stops early ends us silently */
        (void)signal(SIGPIPE, SIG_DFL);
        (void)raise(SIGPIPE);
    }
    (void)fflush(stdout);
    fputs("berth: ", stderr);
    print_shown(stderr, error->message);
    fputc('\n', stderr);
    return exit_code(error);
}

/* Cut to fit, but not inside a character. */
__attribute__((format(printf, 3, 0))) static void
format_message(char *text, size_t room, const char *format, va_list arguments)
{
    size_t n = room - 1;

    if (vsnprintf(text, room, format, arguments) < (int)room)
        return;
    while (n > 0 && room - n < 4 && ((unsigned char)text[n - 1] & 0xc0) == 0x80)
        n--;
    n -= n > 0 && (unsigned char)text[n - 1] >= 0xc0;
    memcpy(text + (n < room - 4 ? n : room - 4), "...", 4);
}

int print_trouble(const char *format, ...)
{
    char text[1024];
    va_list arguments;

    (void)fflush(stdout);
    /* If nobody reads standard error, the command goes on. */
    void (*before)(int) = signal(SIGPIPE, SIG_IGN);
    va_start(arguments, format);
    format_message(text, sizeof text, format, arguments);
    va_end(arguments);
    fputs("berth: ", stderr);
    print_shown(stderr, text);
    fputc('\n', stderr);
    (void)signal(SIGPIPE, before);
    return EXIT_TROUBLE;
}

/* ---- several objects in one file ---- */

static bool is_quiet;

void be_quiet(void)
{
    is_quiet = true;
}

void print_behind(FILE *out, const char *path, uint64_t file_nbytes, uint64_t behind_nbytes)
{
    char word[512];

    fprintf(out,
            "%" PRIu64 " bytes of further objects, which torch.save wrote to the same file; Berth "
            "reads the first, as torch.load of a path does",
            behind_nbytes);
    if (!berth_is_url(path) && print_word(path, word, sizeof word))
        fprintf(out, ": `tail -c +%" PRIu64 " %s >NEW.pt` makes a file of the others",
                file_nbytes - behind_nbytes + 1, word);
}

void tell_behind(const char *path, berth_checkpoint *checkpoint, uint64_t behind_nbytes)
{
    berth_info info;

    if (is_quiet || behind_nbytes == 0 || berth_get_info(checkpoint, &info, NULL) < 0)
        return;
    (void)fflush(stdout);
    fputs("berth: ", stderr);
    print_shown(stderr, path);
    fputs(": behind what is read: ", stderr);
    print_behind(stderr, path, info.nbytes, info.behind_nbytes);
    fputc('\n', stderr);
}

static void print_remark(void *context, const char *message)
{
    (void)context;
    (void)print_trouble("%s", message);
}

void register_remark_printer(const common *options)
{
    if (!options->quiet)
        berth_set_log(print_remark, NULL);
}

int finish_output(int code)
{
    if (fflush(stdout) != 0 || ferror(stdout))
        return print_trouble("standard output: %s", strerror(errno));
    return code;
}

json_t *text_json(const char *text)
{
    json_t *string = json_string(text);
    char safe[512];

    if (string)
        return string;
    (void)berth_show_text(text, strlen(text), BERTH_TEXT_PLAIN, safe, sizeof safe);
    return json_string(safe);
}

json_t *json_ints(const int64_t *numbers, int32_t n)
{
    json_t *array = json_array();

    for (int32_t i = 0; i < n; i++)
        json_array_append_new(array, json_integer(numbers[i]));
    return array;
}

int print_json(json_t *value)
{
    char *text = value ? json_dumps(value, JSON_INDENT(2) | JSON_ENCODE_ANY) : NULL;

    json_decref(value);
    if (!text)
        return print_trouble("out of memory");
    /* Escapes what JSON allows in strings, and terminals would obey; no string has a new line. */
    for (char *line = text, *end; *line; line = end) {
        end = line + strcspn(line, "\n");
        print_shown_part(stdout, line, (size_t)(end - line), BERTH_TEXT_JSON);
        if (*end) {
            putchar('\n');
            end++;
        }
    }
    free(text);
    putchar('\n');
    return finish_output(EXIT_YES);
}

/* Without a method the library did not move the bytes, and knows no requests. */
void print_stats(const berth_stats *stats)
{
    char requested[32], moved[32];
    double speed = (double)stats->requested_nbytes / 1073741824.0;

    fprintf(stderr, "seconds: %.6f in all, %.6f planning, %.6f moving, %.6f syncing\n",
            stats->total_seconds, stats->plan_seconds, stats->transfer_seconds,
            stats->sync_seconds);
    if (stats->limited_by)
        fprintf(stderr,
                "of moving, by all workers: %.6f devices, %.6f rendering (%.6f CRCs), %.6f disk; "
                "limited by: %s\n",
                stats->device_seconds, stats->render_seconds, stats->crc32_seconds,
                stats->disk_seconds, stats->limited_by);
    fprintf(stderr, "bytes: %s requested, ", human_nbytes(stats->requested_nbytes, requested));
    if (stats->method)
        fprintf(stderr, "%s moved in %llu requests, ", human_nbytes(stats->moved_nbytes, moved),
                (unsigned long long)stats->n_requests);
    fprintf(stderr, "%.2f GiB/s\nrecords: %llu, storages: %llu",
            stats->total_seconds > 0 ? speed / stats->total_seconds : 0.0,
            (unsigned long long)stats->n_records, (unsigned long long)stats->n_storages);
    if (stats->method)
        fprintf(stderr, ", method: %s (%s)", stats->method, stats->reason);
    if (stats->placed)
        fprintf(stderr, ", %s%s%s", stats->placed, stats->durability ? ", durability: " : "",
                stats->durability ? stats->durability : "");
    if (stats->shared_nbytes || stats->base_reason)
        fprintf(stderr, "\nshared with the base: %s of %s compared%s%s",
                human_nbytes(stats->shared_nbytes, moved),
                human_nbytes(stats->compared_nbytes, requested), stats->base_reason ? ": " : "",
                stats->base_reason ? stats->base_reason : "");
    if (stats->repacked)
        fprintf(stderr, "\nrepacked: %s", REPACKED_ADVICE);
    fputc('\n', stderr);
}

json_t *stats_json(const berth_stats *stats)
{
    json_t *report =
        json_pack("{s:f,s:f,s:f,s:f,s:f,s:I,s:I,s:I}", "plan_seconds", stats->plan_seconds,
                  "copy_seconds", stats->copy_seconds, "transfer_seconds", stats->transfer_seconds,
                  "sync_seconds", stats->sync_seconds, "total_seconds", stats->total_seconds,
                  "requested_nbytes", (json_int_t)stats->requested_nbytes, "n_records",
                  (json_int_t)stats->n_records, "n_storages", (json_int_t)stats->n_storages);

    if (stats->placed)
        json_object_set_new(report, "placed", json_string(stats->placed));
    if (stats->durability)
        json_object_set_new(report, "durability", json_string(stats->durability));
    if (stats->shared_nbytes || stats->base_reason)
        json_object_update_new(
            report, json_pack("{s:I,s:I,s:s?}", "shared_nbytes", (json_int_t)stats->shared_nbytes,
                              "compared_nbytes", (json_int_t)stats->compared_nbytes, "base_reason",
                              stats->base_reason));
    if (stats->repacked)
        json_object_set_new(report, "repacked", json_true());
    if (stats->limited_by)
        json_object_update_new(
            report, json_pack("{s:f,s:f,s:f,s:f,s:s}", "device_seconds", stats->device_seconds,
                              "render_seconds", stats->render_seconds, "crc32_seconds",
                              stats->crc32_seconds, "disk_seconds", stats->disk_seconds,
                              "limited_by", stats->limited_by));
    if (stats->method)
        json_object_update_new(report, json_pack("{s:I,s:I,s:I,s:I,s:s,s:s}", "device_nbytes",
                                                 (json_int_t)stats->device_nbytes, "moved_nbytes",
                                                 (json_int_t)stats->moved_nbytes, "n_requests",
                                                 (json_int_t)stats->n_requests, "memory_nbytes",
                                                 (json_int_t)stats->memory_nbytes, "method",
                                                 stats->method, "reason", stats->reason));
    return report;
}

int print_stats_if_requested(const common *options, const berth_stats *stats, int code)
{
    if (!options->stats)
        return code;
    if (!options->json) {
        print_stats(stats);
        return code;
    }
    int printed = print_json(json_pack("{s:o}", "stats", stats_json(stats)));
    return code == EXIT_YES ? printed : code;
}

const char *human_nbytes(uint64_t nbytes, char *buffer)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double amount = (double)nbytes;
    size_t unit = 0;

    while (amount >= 1024 && unit < sizeof units / sizeof units[0] - 1) {
        amount /= 1024;
        unit++;
    }
    snprintf(buffer, 32, unit ? "%.1f %s" : "%.0f %s", amount, units[unit]);
    return buffer;
}

void shape_text(const berth_tensor *tensor, char *text, size_t nbytes)
{
    size_t n = (size_t)snprintf(text, nbytes, "[");

    for (int32_t i = 0; i < tensor->rank && n < nbytes; i++)
        n +=
            (size_t)snprintf(text + n, nbytes - n, i ? ", %" PRId64 : "%" PRId64, tensor->shape[i]);
    if (n < nbytes)
        snprintf(text + n, nbytes - n, "]");
}

void shorten(char *text)
{
    enum { SHOWN_NBYTES = 400 };
    size_t n = strlen(text), at = SHOWN_NBYTES;

    if (n <= SHOWN_NBYTES)
        return;
    while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80)
        at--; /* not within a character */
    memcpy(text + at, "...", 4);
}

enum { LONG_NBYTES = 1024, MAX_NBYTES = 16 << 20 };

bool are_long_names_too_many(size_t *counted, size_t nbytes)
{
    if (nbytes > LONG_NBYTES)
        *counted += nbytes;
    return *counted > MAX_NBYTES;
}

int check_total_of_long_names(size_t *counted, size_t nbytes)
{
    if (!are_long_names_too_many(counted, nbytes))
        return 0;
    return print_trouble(
        "names above %d bytes take more than %d MiB in all: Berth does not list them", LONG_NBYTES,
        MAX_NBYTES >> 20);
}

/* ---- colours of standard output ---- */

static enum { BY_TERMINAL, ALWAYS, NEVER } when;

bool colour_set(const char *word)
{
    static const char *const words[] = {
        [BY_TERMINAL] = "auto", [ALWAYS] = "always", [NEVER] = "never"};

    for (unsigned i = BY_TERMINAL; i <= NEVER; i++)
        if (!strcmp(word, words[i])) {
            when = i;
            return true;
        }
    return false;
}

/* Source of NO_COLOR: https://no-color.org */
static bool terminal_has_colours(void)
{
    const char *no_colour = getenv("NO_COLOR"), *terminal = getenv("TERM");

    return isatty(STDOUT_FILENO) && !(no_colour && *no_colour) && terminal &&
           strcmp(terminal, "dumb") != 0;
}

const char *paint(colour chosen)
{
    static const char *const escapes[] = {
        [PLAIN] = "\033[0m",  [BOLD] = "\033[1m",  [FAINT] = "\033[2m",   [RED] = "\033[31m",
        [GREEN] = "\033[32m", [BLUE] = "\033[36m", [YELLOW] = "\033[33m", [MAGENTA] = "\033[35m"};

    if (when == BY_TERMINAL)
        when = terminal_has_colours() ? ALWAYS : NEVER;
    return when == ALWAYS ? escapes[chosen] : "";
}

void print_painted(colour chosen, const char *text)
{
    fputs(paint(chosen), stdout);
    print_shown(stdout, text);
    fputs(paint(PLAIN), stdout);
}
