/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What is a URL, and what messages show of it. U1: user, password, query and fragment are shown
 * nowhere: a query can be a signature.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "adapters/curl/names.h"

size_t bcurl_scheme_nbytes(const char *text)
{
    static const char *const schemes[] = {"https://", "http://", "s3://"};

    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
        if (strncasecmp(text, schemes[i], strlen(schemes[i])) == 0)
            return strlen(schemes[i]);
    return 0;
}

bool berth_is_url(const char *text)
{
    return text && bcurl_scheme_nbytes(text) > 0;
}

/* Whether a host and a port stand there, and nothing that a password could begin with. */
static bool is_host(const char *text, size_t nbytes)
{
    const char *end = text + nbytes, *name_end = memchr(text, ']', nbytes);
    const char *colon = name_end ? name_end + 1 : memchr(text, ':', nbytes);

    if (!colon || colon == end)
        return true;
    return *colon == ':' && strspn(colon + 1, "0123456789") >= (size_t)(end - colon - 1);
}

/*
 * S3 has no user; if there is one, the address is refused. A key may have any character, so it has
 * no query, and its '@' is one of a password only if a user stands before the first slash.
 */
static size_t s3_hidden_nbytes(const char *bucket)
{
    const char *at = strrchr(bucket, '@');
    size_t n = strcspn(bucket, "/");

    if (!memchr(bucket, ':', n) && !memchr(bucket, '@', n))
        return 0;
    return at ? (size_t)(at - bucket) + 1 : strlen(bucket);
}

bool bcurl_may_hide_password(const char *text)
{
    const char *scheme_end = strstr(text, "://");
    const char *host = scheme_end ? scheme_end + 3 : text, *at = strrchr(host, '@');
    size_t n = strcspn(host, "/?#");

    return at ? at >= host + n : !is_host(host, n);
}

/*
 * A '@' behind the host can be the end of a password with '/', '?' or '#' in it: what stands before
 * it is hidden. Behind a '?' it can be in a query as well: then nothing is shown.
 */
char *berth_url_shown(const char *url)
{
    size_t scheme = bcurl_scheme_nbytes(url);
    const char *host = url + scheme, *end = host + strcspn(host, "?#"), *at = strrchr(host, '@');
    const char *hidden = bcurl_may_hide_password(url) ? "***" : "";
    char *text = NULL;

    if (scheme == strlen("s3://")) {
        hidden = "";
        end = host + strlen(host);
        host += s3_hidden_nbytes(host);
    } else if (*hidden) {
        host = at && at < end ? at : end;
    } else if (at)
        host = at + 1;
    int n = asprintf(&text, "%.*s%s%.*s", (int)scheme, url, hidden, (int)(end - host), host);
    return n < 0 ? NULL : text;
}

char *berth_url_beside(const char *url, const char *name)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/";
    size_t scheme = bcurl_scheme_nbytes(url);
    bool is_s3 = scheme == strlen("s3://");
    const char *host = url + scheme;
    size_t nbytes = strcspn(host, is_s3 ? "" : "?#");
    const char *slash = memrchr(host, '/', nbytes);
    size_t folder_nbytes = scheme + (slash ? (size_t)(slash - host) : nbytes);
    char *beside = malloc(folder_nbytes + 1 + 3 * strlen(name) + 1), *to = beside;

    if (!beside)
        return NULL;
    memcpy(to, url, folder_nbytes);
    to += folder_nbytes;
    for (*to++ = '/'; *name; name++)
        if (is_s3 || strchr(plain, *name))
            *to++ = *name;
        else
            to += sprintf(to, "%%%02X", (unsigned)(unsigned char)*name);
    *to = '\0';
    return beside;
}
