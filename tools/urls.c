/* SPDX-License-Identifier: BSD-3-Clause */
/* Inputs that are URLs, by adapters/curl. */
#include <stdlib.h>
#include <string.h>

#include "adapters/curl/berth_curl.h"
#include "tools/shared.h"

/* Words that are URLs. Each is opened once: all reads of it see one object. */
typedef struct url_input {
    char *word;
    char *shown; /* its address stands for the URL */
    berth_source source;
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
        free(first);
    }
}

static int signal_came(void *context)
{
    (void)context;
    return caught_signal_code_or(0);
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

/* Most of the time is waiting: more workers than for a disk. */
static int open_url(url_input *input, berth_error *error)
{
    const berth_url_params params = {.cancelled = signal_came};

    if (option_is_default("io.threads"))
        (void)berth_config_set("io.threads", "8", NULL);
    return berth_source_url(input->word, &params, &input->source, error);
}

int find_source(const char *path, berth_source *source, berth_error *error)
{
    url_input *input = find_input(path);

    if (input && !input->source.read && open_url(input, error) < 0)
        return error->code;
    *source = input ? input->source : berth_from_path(path);
    return 0;
}

/* The caller's configuration stays as it is. */
static int open_tuned(const berth_source *source, const berth_params *params,
                      berth_checkpoint **checkpoint, berth_error *error)
{
    berth_params own = params ? *params : (berth_params){0};
    berth_config *config = own.config ? NULL : berth_config_new(error);
    int code = config ? berth_source_url_tune(source, config, error) : 0;

    if (config)
        own.config = config;
    if (code == 0 && own.config)
        code = berth_open_source(source, &own, checkpoint, error);
    else
        code = code ? code : BERTH_E_MEMORY;
    berth_config_free(config);
    return code;
}

int open_file_or_url(const char *path, const berth_params *params, berth_checkpoint **checkpoint,
                     berth_error *error)
{
    berth_error unseen = {.offset = BERTH_NO_OFFSET};
    berth_source source;

    if (!find_input(path))
        return berth_open(path, params, checkpoint, error);
    *checkpoint = NULL;
    error = error ? error : &unseen;
    int code = find_source(path, &source, error);
    return code ? code : open_tuned(&source, params, checkpoint, error);
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
