/* SPDX-License-Identifier: BSD-3-Clause */
/* Inputs that are URLs, by adapters/curl. */
#include <stdlib.h>
#include <string.h>

#include "adapters/curl/berth_curl.h"
#include "tools/shared.h"

/* Those that are open: all reads of one URL see one object. They stay until the process ends. */
static struct url_input {
    char *url;
    berth_source source;
} * inputs;
static size_t n_inputs;

static void free_inputs(void)
{
    for (size_t i = 0; i < n_inputs; i++) {
        berth_source_url_free(&inputs[i].source);
        free(inputs[i].url);
    }
    free(inputs);
    inputs = NULL;
    n_inputs = 0;
}

static int signal_came(void *context)
{
    (void)context;
    return caught_signal_code_or(0);
}

static struct url_input *find_input(const char *url)
{
    for (size_t i = 0; i < n_inputs; i++)
        if (strcmp(inputs[i].url, url) == 0)
            return &inputs[i];
    return NULL;
}

/* Room for one more; NULL: no memory. */
static struct url_input *new_input(const char *url)
{
    struct url_input *more = realloc(inputs, (n_inputs + 1) * sizeof *inputs);

    if (!more)
        return NULL;
    if (!inputs)
        (void)atexit(free_inputs);
    inputs = more;
    more[n_inputs] = (struct url_input){.url = strdup(url)};
    return more[n_inputs].url ? &more[n_inputs] : NULL;
}

int find_source(const char *path, berth_source *source, berth_error *error)
{
    const berth_url_params params = {.cancelled = signal_came};

    if (!berth_is_url(path)) {
        *source = berth_from_path(path);
        return 0;
    }
    struct url_input *input = find_input(path);
    if (!input && !(input = new_input(path))) {
        *error = (berth_error){.code = BERTH_E_MEMORY, .message = "out of memory"};
        return error->code;
    }
    if (!input->source.read && berth_source_url(path, &params, &input->source, error) < 0) {
        free(input->url);
        return error->code;
    }
    if (input == &inputs[n_inputs])
        n_inputs++;
    *source = input->source;
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

int open_input(const char *path, const berth_params *params, berth_checkpoint **checkpoint,
               berth_error *error)
{
    berth_error unseen;
    berth_source source;

    if (!berth_is_url(path))
        return berth_open(path, params, checkpoint, error);
    *checkpoint = NULL;
    error = error ? error : &unseen;
    int code = find_source(path, &source, error);
    return code ? code : open_tuned(&source, params, checkpoint, error);
}

void explain_url(berth_error *error)
{
    for (size_t i = 0; i < n_inputs && error->code == BERTH_E_CALLBACK; i++)
        if (strstr(error->message, inputs[i].source.name))
            (void)berth_source_url_explain(&inputs[i].source, error);
}

bool url_failed(const char *path, berth_error *error)
{
    const struct url_input *input = find_input(path);

    *error = (berth_error){.code = BERTH_E_CALLBACK};
    return input && berth_source_url_explain(&input->source, error) != BERTH_E_CALLBACK;
}
