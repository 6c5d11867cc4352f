/* SPDX-License-Identifier: BSD-3-Clause */
/* Keys and regions, where the tools of AWS look for them, in their order. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/curl/url.h"

void bcurl_free_secret(char *text)
{
    if (text)
        explicit_bzero(text, strlen(text));
    free(text);
}

void bcurl_aws_free(bcurl_aws *aws)
{
    bcurl_free_secret(aws->key);
    bcurl_free_secret(aws->secret);
    bcurl_free_secret(aws->token);
    free(aws->region);
    free(aws->endpoint);
    memset(aws, 0, sizeof *aws);
}

static const char *variable(const char *name)
{
    const char *value = getenv(name);

    return value && *value ? value : NULL;
}

static const char *first_variable(const char *name, const char *otherwise)
{
    const char *value = variable(name);

    return value ? value : variable(otherwise);
}

/* Sets *text unless it is set, or there is nothing to copy. */
static void copy_if_missing(char **text, const char *value)
{
    if (!*text && value)
        *text = strdup(value);
}

/* ---- files ---- */

static char *trim(char *text)
{
    size_t n;

    text += strspn(text, " \t\r\n");
    n = strlen(text);
    while (n > 0 && strchr(" \t\r\n", text[n - 1]))
        text[--n] = '\0';
    return text;
}

/* Whether a line begins the section: [name], in ~/.aws/config [profile name]. */
static bool line_begins_profile(char *line, const char *profile)
{
    char *end = strchr(line, ']');

    if (!end)
        return false;
    *end = '\0';
    char *name = trim(line + 1);
    if (strncmp(name, "profile", 7) == 0 && (name[7] == ' ' || name[7] == '\t'))
        name = trim(name + 7);
    return strcmp(name, profile) == 0;
}

static void aws_take_setting(bcurl_aws *aws, const char *name, const char *value)
{
    if (strcmp(name, "aws_access_key_id") == 0)
        copy_if_missing(&aws->key, value);
    else if (strcmp(name, "aws_secret_access_key") == 0)
        copy_if_missing(&aws->secret, value);
    else if (strcmp(name, "aws_session_token") == 0)
        copy_if_missing(&aws->token, value);
    else if (strcmp(name, "region") == 0)
        copy_if_missing(&aws->region, value);
    else if (strcmp(name, "endpoint_url") == 0)
        copy_if_missing(&aws->endpoint, value);
}

static void aws_read_file(bcurl_aws *aws, FILE *file, const char *profile)
{
    char *line = NULL;
    size_t room = 0;
    bool is_ours = false;

    while (getline(&line, &room, file) >= 0) {
        char *text = trim(line), *equals = strchr(text, '=');
        if (*text == '[') {
            is_ours = line_begins_profile(text, profile);
        } else if (is_ours && equals && *text != '#' && *text != ';' && text == line) {
            *equals = '\0';
            aws_take_setting(aws, trim(text), trim(equals + 1));
        }
    }
    if (line)
        explicit_bzero(line, room);
    free(line);
}

/* A file that is not there, or cannot be read, says nothing. */
static void aws_read_path(bcurl_aws *aws, const char *path_variable, const char *below_home,
                          const char *profile)
{
    const char *path = variable(path_variable), *home = variable("HOME");
    char text[4096];

    if (!path && home && snprintf(text, sizeof text, "%s/%s", home, below_home) < (int)sizeof text)
        path = text;
    FILE *file = path ? fopen(path, "re") : NULL;
    if (!file)
        return;
    aws_read_file(aws, file, profile);
    (void)fclose(file);
}

/* ---- all of it ---- */

/* A key and its secret belong together: those of one place, never half of each. */
static void aws_drop_half_of_pair(bcurl_aws *aws)
{
    if (aws->key && aws->secret)
        return;
    bcurl_free_secret(aws->key);
    bcurl_free_secret(aws->secret);
    bcurl_free_secret(aws->token);
    aws->key = aws->secret = aws->token = NULL;
}

static void aws_read_environment(bcurl_aws *aws)
{
    copy_if_missing(&aws->region, first_variable("AWS_REGION", "AWS_DEFAULT_REGION"));
    copy_if_missing(&aws->endpoint, first_variable("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"));
    copy_if_missing(&aws->key, variable("AWS_ACCESS_KEY_ID"));
    copy_if_missing(&aws->secret, variable("AWS_SECRET_ACCESS_KEY"));
    copy_if_missing(&aws->token, variable("AWS_SESSION_TOKEN"));
    aws_drop_half_of_pair(aws);
}

static void aws_read_profile(bcurl_aws *aws)
{
    const char *profile = first_variable("AWS_PROFILE", "AWS_DEFAULT_PROFILE");
    bcurl_aws found = {0};

    aws_read_path(&found, "AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials",
                  profile ? profile : "default");
    aws_drop_half_of_pair(&found);
    aws_read_path(&found, "AWS_CONFIG_FILE", ".aws/config", profile ? profile : "default");
    aws_drop_half_of_pair(&found);
    copy_if_missing(&aws->region, found.region);
    copy_if_missing(&aws->endpoint, found.endpoint);
    if (!aws->key) {
        copy_if_missing(&aws->key, found.key);
        copy_if_missing(&aws->secret, found.secret);
        copy_if_missing(&aws->token, found.token);
    }
    bcurl_aws_free(&found);
}

int bcurl_aws_find(bcurl_aws *aws, berth_error *error)
{
    memset(aws, 0, sizeof *aws);
    aws_read_environment(aws);
    aws_read_profile(aws);
    copy_if_missing(&aws->region, "us-east-1");
    if (!aws->region || !aws->key != !aws->secret)
        return bcurl_fail(error, BERTH_E_MEMORY, 0, "out of memory");
    return 0;
}
