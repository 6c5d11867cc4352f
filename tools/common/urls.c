/* SPDX-License-Identifier: BSD-3-Clause */
/* Inputs that are URLs, by adapters/curl. */
#include <berth/config.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "adapters/curl/berth_curl.h"
#include "tools/common/options.h"
#include "tools/common/progress.h"
#include "tools/common/report.h"
#include "tools/common/urls.h"

/* Words that are URLs. Each is opened once: all reads of it see one object. */
typedef struct url_input {
    char *word;
    char *shown; /* its address stands for the URL */
    char *owned; /* the word, if no command line has it; else NULL */
    berth_source source;
    berth_error failure; /* why it cannot be opened; code 0: not known */
    struct url_input *next;
} url_input;

static url_input *inputs;

static void free_inputs(void)
{
    while (inputs) {
        url_input *first = inputs;
        inputs = first->next;
        berth_source_url_free(&first->source);
        free(first->shown);
        free(first->owned);
        free(first);
    }
}

/* U1: what follows the scheme is not shown, as there can be a password in it. */
int check_scheme(const char *word)
{
    size_t n = strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-");

    if (n == 0 || strncmp(word + n, "://", 3) != 0 || berth_is_url(word) || access(word, F_OK) == 0)
        return 0;
    return print_trouble("%.*s://: of URLs, only those with https://, http:// and s3:// are read",
                         n < 32 ? (int)n : 32, word);
}

char *keep_url(char *word)
{
    url_input *input = berth_is_url(word) ? calloc(1, sizeof *input) : NULL;

    if (!input)
        return word;
    if (!inputs)
        (void)atexit(free_inputs);
    *input = (url_input){.word = word, .shown = berth_url_shown(word), .next = inputs};
    inputs = input;
    return input->shown ? input->shown : word;
}

static url_input *find_input(const char *path)
{
    url_input *input = inputs;

    while (input && input->shown != path)
        input = input->next;
    return input;
}

const char *kept_word(const char *word)
{
    const url_input *input = find_input(word);

    return input ? input->word : word;
}

char *keep_url_beside(const char *path, const char *name)
{
    const url_input *other = find_input(path);
    char *word = other ? berth_url_beside(other->word, name) : NULL;

    if (!word)
        return NULL;
    char *shown = keep_url(word);
    if (shown == word) { /* no memory */
        free(word);
        return NULL;
    }
    inputs->owned = word;
    return shown;
}

/* ---- opening ---- */

/* Most of the time is waiting: more workers than for a disk. */
static int open_url(url_input *input, berth_error *error)
{
    const berth_url_params params = {.cancelled = signal_came};

    option_set_default("io.threads", "8");
    return berth_source_url(input->word, &params, &input->source, error);
}

int find_source(const char *path, berth_source *source, berth_error *error)
{
    url_input *input = find_input(path);

    if (input && !input->source.read && !input->failure.code)
        (void)open_url(input, &input->failure);
    if (input && input->failure.code < 0) {
        *error = input->failure;
        return input->failure.code;
    }
    *source = input ? input->source : berth_from_path(path);
    return 0;
}

/* ---- several at once ---- */

typedef struct opening_urls {
    char *const *paths;
    size_t n;
    atomic_size_t next;
} opening_urls;

/* What fails is remembered, and told when the URL is asked for. */
static void *opening_urls_run(void *context)
{
    opening_urls *opening = context;
    berth_source source;
    berth_error error;

    for (size_t i; (i = atomic_fetch_add(&opening->next, 1)) < opening->n;)
        (void)find_source(opening->paths[i], &source, &error);
    return NULL;
}

void open_urls(char *const *paths, size_t n)
{
    enum { MAX_THREADS = 7 }; /* beside this one */
    pthread_t threads[MAX_THREADS];
    opening_urls opening = {.paths = paths, .n = n};
    size_t n_threads = 0;

    while (n_threads < MAX_THREADS && n_threads + 1 < n &&
           pthread_create(&threads[n_threads], NULL, opening_urls_run, &opening) == 0)
        n_threads++;
    (void)opening_urls_run(&opening);
    while (n_threads > 0)
        (void)pthread_join(threads[--n_threads], NULL);
}

/* ---- as files ---- */

int read_url(const char *path, uint64_t max_nbytes, char **bytes, uint64_t *nbytes)
{
    berth_source source;
    berth_error error;

    *bytes = NULL;
    *nbytes = 0;
    if (find_source(path, &source, &error) < 0)
        return fail(&error);
    if (source.nbytes > max_nbytes)
        return print_trouble("%s: has more than %d MiB", path, (int)(max_nbytes >> 20));
    *bytes = malloc(source.nbytes + 1);
    if (!*bytes)
        return print_trouble("out of memory");
    *nbytes = source.nbytes;
    if (source.read && source.read(source.context, *bytes, source.nbytes, 0) == 0)
        return 0;
    free(*bytes);
    *bytes = NULL;
    return url_failed(path, &error) ? fail(&error) : print_trouble("out of memory");
}

/* What a call gets, with a configuration that is right for the source unless the caller has one. */
typedef struct tuned {
    berth_params params;
    berth_config *config; /* its own; NULL: the caller's */
} tuned;

static int tuned_make(const berth_source *source, const berth_params *params, tuned *made,
                      berth_error *error)
{
    *made = (tuned){.params = params ? *params : (berth_params){0}};
    if (made->params.config)
        return 0;
    made->config = berth_config_new(error);
    made->params.config = made->config;
    return made->config ? berth_source_url_tune(source, made->config, error) : (int)error->code;
}

int open_file_or_url(const char *path, const berth_params *params, berth_checkpoint **checkpoint,
                     berth_error *error)
{
    berth_error unseen = {.offset = BERTH_NO_OFFSET};
    berth_source source;
    tuned call = {0};

    *checkpoint = NULL;
    error = error ? error : &unseen;
    if (!find_input(path))
        return berth_open(path, params, checkpoint, error);
    int code = find_source(path, &source, error);
    if (code == 0)
        code = tuned_make(&source, params, &call, error);
    if (code == 0)
        code = berth_open_source(&source, &call.params, checkpoint, error);
    berth_config_free(call.config);
    return code;
}

int open_archive(const char *path, const berth_params *params, berth_archive **archive,
                 berth_archive_info *info, berth_error *error)
{
    berth_source source;
    tuned call = {0};

    *archive = NULL;
    int code = find_source(path, &source, error);
    if (code == 0 && !find_input(path))
        return berth_archive_open(&source, params, archive, info, error);
    if (code == 0)
        code = tuned_make(&source, params, &call, error);
    if (code == 0)
        code = berth_archive_open(&source, &call.params, archive, info, error);
    berth_config_free(call.config);
    return code;
}

void explain_url(berth_error *error)
{
    for (const url_input *at = inputs; at && error->code == BERTH_E_CALLBACK; at = at->next)
        if (at->source.name && strstr(error->message, at->source.name))
            (void)berth_source_url_explain(&at->source, error);
}

bool url_failed(const char *path, berth_error *error)
{
    const url_input *input = find_input(path);

    *error = (berth_error){.code = BERTH_E_CALLBACK};
    return input && berth_source_url_explain(&input->source, error) != BERTH_E_CALLBACK;
}
