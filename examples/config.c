/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Options: a framework shows Berth's options as its own. --help lists them, --checkpoint-NAME=VALUE
 * sets one: --checkpoint-save.durability=file.
 */
#include <berth.h>
#include <stdio.h>
#include <string.h>

static const char prefix[] = "--checkpoint-";

static int print_help(void)
{
    berth_error error;
    berth_option option;

    printf("usage: config [--help] [%sNAME=VALUE ...]\n\nOptions of checkpoints:\n", prefix);
    for (size_t i = 0; berth_config_name(i); i++) {
        if (berth_config_describe(berth_config_name(i), &option, &error) < 0) {
            fprintf(stderr, "%s\n", error.message);
            return 1;
        }
        printf("  %s%s=%s\n      %s Default: %s.\n", prefix, option.name,
               *option.bounds ? option.bounds : option.type, option.help, option.initial);
    }
    return 0;
}

/* "--checkpoint-NAME=VALUE" */
static int set_option(const char *word)
{
    char name[64];
    berth_error error;
    const char *begin = word + strlen(prefix), *equals = strchr(begin, '=');

    if (strncmp(word, prefix, strlen(prefix)) != 0 || !equals ||
        (size_t)(equals - begin) >= sizeof name) {
        fprintf(stderr, "%s: unknown option; --help lists them\n", word);
        return 2;
    }
    memcpy(name, begin, (size_t)(equals - begin));
    name[equals - begin] = '\0';
    if (berth_config_set(name, equals + 1, &error) < 0) {
        fprintf(stderr, "%s\n", error.message);
        return 2;
    }
    return 0;
}

int main(int argc, char **argv)
{
    char text[4096];
    berth_error error;

    for (int i = 1; i < argc; i++) {
        int code = strcmp(argv[i], "--help") == 0 ? print_help() : set_option(argv[i]);
        if (code != 0 || strcmp(argv[i], "--help") == 0)
            return code;
    }
    /* What a training job would write beside its results. */
    if (berth_config_print(NULL, BERTH_CONFIG_CHANGED, text, sizeof text, &error) < 0) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    printf("changed options:\n%s", text);
    return 0;
}
