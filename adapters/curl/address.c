/* SPDX-License-Identifier: BSD-3-Clause */
/* What libcurl gets. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "adapters/curl/url.h"

static const char unreserved[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";

static char *print(const char *format, ...) __attribute__((format(printf, 1, 2)));

static char *print(const char *format, ...)
{
    va_list arguments;
    char *text = NULL;

    va_start(arguments, format);
    int n = vasprintf(&text, format, arguments);
    va_end(arguments);
    return n < 0 ? NULL : text;
}

/* ---- http and https ---- */

/* Control characters would end a header. The text itself is not shown: it may hold a password. */
static int check_characters(const char *text, berth_error *error)
{
    for (const char *at = text; *at; at++)
        if ((unsigned char)*at <= ' ' || *at == 0x7f)
            return bcurl_fail(
                error, BERTH_E_ARGUMENT, 0,
                "a URL has no spaces or control characters: character %zu; a space is "
                "written %%20",
                (size_t)(at - text) + 1);
    return 0;
}

static int address_make_http(const char *text, bcurl_address *address, berth_error *error)
{
    if (check_characters(text, error) < 0)
        return error->code;
    address->url = strdup(text);
    address->shown = berth_url_shown(text);
    return 0;
}

/* ---- S3 ---- */

char *bcurl_encode(const char *text, bool with_slashes)
{
    char *encoded = malloc(3 * strlen(text) + 1), *to = encoded;

    for (; encoded && *text; text++)
        if ((*text == '/' && !with_slashes) || strchr(unreserved, *text))
            *to++ = *text;
        else
            to += sprintf(to, "%%%02X", (unsigned)(unsigned char)*text);
    if (encoded)
        *to = '\0';
    return encoded;
}

/* Whether the bucket can be a part of the host's name, under the certificate of *.s3.…com. */
static bool bucket_is_label(const char *bucket, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++)
        if (!strchr("abcdefghijklmnopqrstuvwxyz0123456789-", bucket[i]))
            return false;
    return nbytes <= 63 && bucket[0] != '-' && bucket[nbytes - 1] != '-';
}

static char *s3_url(const bcurl_aws *aws, const char *bucket, size_t nbytes, const char *key)
{
    const char *domain = strncmp(aws->region, "cn-", 3) == 0 ? "amazonaws.com.cn" : "amazonaws.com";
    int n = (int)nbytes;

    if (aws->endpoint) {
        size_t end = strlen(aws->endpoint);
        while (end > 0 && aws->endpoint[end - 1] == '/')
            end--;
        return print("%.*s/%.*s/%s", (int)end, aws->endpoint, n, bucket, key);
    }
    if (bucket_is_label(bucket, nbytes))
        return print("https://%.*s.s3.%s.%s/%s", n, bucket, aws->region, domain, key);
    return print("https://s3.%s.%s/%.*s/%s", aws->region, domain, n, bucket, key);
}

static int check_aws(const bcurl_aws *aws, berth_error *error)
{
    if (aws->region[strspn(aws->region, unreserved)])
        return bcurl_fail(error, BERTH_E_ARGUMENT, 0, "the region of AWS is not a name");
    if (aws->endpoint &&
        (bcurl_scheme_nbytes(aws->endpoint) < 7 || aws->endpoint[strcspn(aws->endpoint, "@?#")]))
        return bcurl_fail(error, BERTH_E_ARGUMENT, 0,
                          "AWS_ENDPOINT_URL must be http:// or https://, a host, and no more");
    if (aws->key && !bcurl_can_sign())
        return bcurl_fail(error, BERTH_E_UNAVAILABLE, 0,
                          "libcurl signs requests to S3 from 7.88 on, this is %s",
                          bcurl.version_info(CURLVERSION_NOW)->version);
    return aws->endpoint ? check_characters(aws->endpoint, error) : 0;
}

static int address_sign(bcurl_address *address, bcurl_aws *aws)
{
    address->key = aws->key;
    address->secret = aws->secret;
    address->token = aws->token;
    aws->key = aws->secret = aws->token = NULL;
    address->signature = print("aws:amz:%s:s3", aws->region);
    return 0;
}

static int address_make_s3(const char *text, bcurl_address *address, berth_error *error)
{
    const char *bucket = text + bcurl_scheme_nbytes(text);
    size_t nbytes = strcspn(bucket, "/");
    bcurl_aws aws;

    if (nbytes == 0 || strspn(bucket, unreserved) < nbytes || bucket[nbytes] == '\0' ||
        bucket[nbytes + 1] == '\0')
        return bcurl_fail(error, BERTH_E_ARGUMENT, 0, "an address of S3 is s3://BUCKET/KEY");
    if (bcurl_aws_find(&aws, error) == 0 && check_aws(&aws, error) == 0) {
        char *key = bcurl_encode(bucket + nbytes + 1, false);
        address->is_s3 = true;
        address->shown = berth_url_shown(text);
        address->url = key ? s3_url(&aws, bucket, nbytes, key) : NULL;
        if (aws.key)
            (void)address_sign(address, &aws);
        free(key);
    }
    bcurl_aws_free(&aws);
    return error->code;
}

int bcurl_address_make_bucket(const char *text, bcurl_address *address, char **prefix,
                              berth_error *error)
{
    size_t scheme = bcurl_scheme_nbytes(text), n = scheme + strcspn(text + scheme, "/");
    char *url = NULL;

    *prefix = strdup(text[n] ? text + n + 1 : "");
    /* A key stands in for what follows the bucket, and is cut off. */
    if (!*prefix || asprintf(&url, "%.*s/k", (int)n, text) < 0)
        return bcurl_fail(error, BERTH_E_MEMORY, 0, "out of memory");
    if (bcurl_address_make(url, address, error) == 0 && address->is_s3 && address->url) {
        address->url[strlen(address->url) - 1] = '\0';
        free(address->shown);
        address->shown = berth_url_shown(text);
    }
    free(url);
    return error->code;
}

/* ---- both ---- */

int bcurl_address_make(const char *text, bcurl_address *address, berth_error *error)
{
    size_t n = text ? bcurl_scheme_nbytes(text) : 0;

    memset(address, 0, sizeof *address);
    if (n == 0)
        return bcurl_fail(error, BERTH_E_ARGUMENT, 0,
                          "a URL begins with https://, http:// or s3://");
    if (n == strlen("s3://"))
        (void)address_make_s3(text, address, error);
    else
        (void)address_make_http(text, address, error);
    if (error->code == BERTH_OK &&
        (!address->url || !address->shown || (address->key && !address->signature)))
        (void)bcurl_fail(error, BERTH_E_MEMORY, 0, "out of memory");
    return error->code;
}

void bcurl_address_free(bcurl_address *address)
{
    bcurl_free_secret(address->url);
    free(address->shown);
    bcurl_free_secret(address->key);
    bcurl_free_secret(address->secret);
    bcurl_free_secret(address->token);
    free(address->signature);
}
