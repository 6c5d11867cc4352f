/* SPDX-License-Identifier: BSD-3-Clause */
/* berth clean: what killed saves have left in a folder, or in a bucket of S3. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/curl/berth_curl.h"
#include "tools/commands/commands.h"
#include "tools/common/options.h"
#include "tools/common/outputs.h"
#include "tools/common/progress.h"
#include "tools/common/report.h"
#include "tools/common/urls.h"

#define DAY_SECONDS 86400.0

typedef struct clean_options {
    common common;
    positional words;
    bool remove;
    double min_age_seconds;
} clean_options;

static const struct argp_option own_options[] = {
    {"remove", 'r', NULL, 0, "remove dead ones, and old ones whose state is unknown", 1},
    {"older-than", 'o', "AGE", 0,
     "a file is old when its last write was AGE ago: 90s, 30m, 12h, 1d (1d)", 1},
    {0}};

static const struct {
    const char *unit;
    double seconds;
} units[] = {{"s", 1}, {"m", 60}, {"h", 3600}, {"d", DAY_SECONDS}};
enum { N_UNITS = sizeof units / sizeof *units };

/* "90", "90s", "30m", "12h", "1d". */
static bool parse_age(const char *text, double *seconds)
{
    char *end;

    if (text[0] < '0' || text[0] > '9')
        return false;
    double number = strtod(text, &end);
    for (size_t i = 0; i < N_UNITS; i++)
        if (strcmp(*end ? end : "s", units[i].unit) == 0) {
            *seconds = number * units[i].seconds;
            return true;
        }
    return false;
}

static error_t clean_parse(int key, char *word, struct argp_state *state)
{
    clean_options *options = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->common;
        return 0;
    case 'r':
        options->remove = true;
        return 0;
    case 'o':
        if (!parse_age(word, &options->min_age_seconds))
            print_usage_error_and_exit(
                state, "--older-than: '%s' is not an age such as 90s, 30m, 12h or 1d", word);
        return 0;
    default:
        return parse_positional(key, word, state, &options->words);
    }
}

/* ---- what was found ---- */

typedef struct found_temporaries {
    const clean_options *options;
    json_t *list; /* with --json */
    bool is_url;
    size_t n, n_removed;
    uint64_t nbytes, removed_nbytes;
    int code;
} found_temporaries;

static void temporary_count_and_print(void *context, const berth_temporary *found)
{
    static const char *const states[] = {[BERTH_TEMPORARY_ALIVE] = "alive",
                                         [BERTH_TEMPORARY_DEAD] = "dead",
                                         [BERTH_TEMPORARY_UNKNOWN] = "unknown"};
    found_temporaries *all = context;
    const char *state = states[found->state];
    char nbytes[32], age[32], name[4 * 1024 + 1]; /* a key of S3 has at most 1,024 bytes */
    size_t unit = N_UNITS - 1;                    /* of its age: the largest that fits */

    while (unit > 0 && found->age_seconds < units[unit].seconds)
        unit--;
    all->n++;
    all->nbytes += found->nbytes;
    if (found->removed) {
        all->n_removed++;
        all->removed_nbytes += found->nbytes;
    }
    if (all->list)
        json_array_append_new(all->list,
                              json_pack("{s:o,s:I,s:f,s:s,s:o,s:b}", "name", text_json(found->name),
                                        "nbytes", (json_int_t)found->nbytes, "age_seconds",
                                        found->age_seconds, "state", state, "owner",
                                        text_json(found->owner), "removed", found->removed));
    else if (!all->options->common.quiet) {
        snprintf(age, sizeof age, "%.1f %s", found->age_seconds / units[unit].seconds,
                 units[unit].unit);
        (void)berth_show_text(found->name, strlen(found->name), BERTH_TEXT_PLAIN, name,
                              sizeof name);
        printf("%-50s %10s  %8s  %s%s\n", name,
               all->is_url ? "" : human_nbytes(found->nbytes, nbytes), age, state,
               found->removed ? ", removed" : "");
    }
    if (found->error)
        all->code = print_trouble("%s: %s", all->options->words.words[0], found->error->message);
}

static int temporaries_print_json_or_total(found_temporaries *all)
{
    char nbytes[32], removed[32];

    if (all->list)
        return print_json(json_pack("{s:o}", "temporaries", all->list));
    if (!all->options->common.quiet)
        all->is_url ? printf("%zu uploads; %zu removed\n", all->n, all->n_removed)
                    : printf("%zu temporaries, %s; %zu removed, %s\n", all->n,
                             human_nbytes(all->nbytes, nbytes), all->n_removed,
                             human_nbytes(all->removed_nbytes, removed));
    return finish_output(EXIT_YES);
}

const struct argp clean_argp = {
    .options = own_options,
    .parser = clean_parse,
    .args_doc = "FOLDER|s3://BUCKET/PREFIX",
    .doc =
        "List the temporary files of saves in a folder: name, size, time since the last write, "
        "and whether the save is alive, dead or unknown (on another host or in another "
        "container). --remove removes the dead, and the unknown ones that are old. It never "
        "removes one whose save is alive. Of S3: the uploads below the prefix that have not ended, "
        "of whatever program; whether it still runs is unknown.",
    .children = common_children};

/* Returns 0 or a status. */
static int temporaries_find(const char *word, const clean_options *options, found_temporaries *all,
                            berth_error *error)
{
    const berth_url_params params = {.cancelled = signal_came};
    uint32_t flags = options->remove ? BERTH_CLEAN_REMOVE : 0;

    if (all->is_url)
        return berth_clean_uploads(kept_word(word), flags, options->min_age_seconds, &params,
                                   temporary_count_and_print, all, error);
    return berth_clean_temporaries(word, flags, options->min_age_seconds, temporary_count_and_print,
                                   all, error);
}

int run_clean(int argc, char **argv)
{
    clean_options options = {.words = {.min = 1, .max = 1}, .min_age_seconds = DAY_SECONDS};
    found_temporaries all = {.options = &options};
    berth_error error;

    parse_options(&clean_argp, argc, argv, &options);
    if (options.common.stats)
        return print_trouble("--stats does not apply: nothing is saved or loaded");
    all.is_url = is_written_url(options.words.words[0]);
    if (!all.is_url && check_written_path(options.words.words[0]))
        return EXIT_TROUBLE;
    if (options.common.json && !(all.list = json_array()))
        return print_trouble("out of memory");
    if (temporaries_find(options.words.words[0], &options, &all, &error) < 0) {
        json_decref(all.list);
        return fail(&error);
    }
    int code = temporaries_print_json_or_total(&all);
    return all.code ? all.code : code;
}
