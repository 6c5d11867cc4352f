/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What is a URL, and what messages show of it. U1: user, password, query and fragment are shown
 * nowhere: a query can be a signature.
 */
#include <stdio.h>
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

/* A key of S3 may have any character: its address has no query. It has no user either; if there is
 * one, it is refused, and not shown. */
char *berth_url_shown(const char *url)
{
    size_t scheme = bcurl_scheme_nbytes(url);
    bool is_s3 = scheme == strlen("s3://");
    const char *host = url + scheme, *end = host + strcspn(host, is_s3 ? "" : "?#");
    const char *authority_end = host + strcspn(host, is_s3 ? "/" : "/?#");
    char *text = NULL;

    for (const char *at = host; at < authority_end; at++)
        if (*at == '@')
            host = at + 1;
    int n = asprintf(&text, "%.*s%.*s", (int)scheme, url, (int)(end - host), host);
    return n < 0 ? NULL : text;
}
