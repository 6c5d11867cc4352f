/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What killed uploads have left in a bucket: parts of objects that nobody completes. They cost as
 * objects do, and no listing of objects shows them.
 *
 * Source: https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListMultipartUploads.html.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "adapters/curl/url.h"

/* What the server sends at a time. */
#define MAX_UPLOADS "200"

typedef struct left_uploads {
    bcurl_url url; /* of the bucket */
    char *prefix;  /* encoded */
    bcurl_block list;
    char *key_marker, *id_marker; /* encoded: where the list goes on; NULL: at its beginning */
    bool is_truncated;
    double min_age_seconds;
    bool removes;
    berth_temporary_function found;
    void *context;
} left_uploads;

/* The text between <name> and </name>, from `from` to `end`, which the caller frees. NULL: none. */
static char *xml_find(const char *from, const char *end, const char *name)
{
    char tag[64];
    int n = snprintf(tag, sizeof tag, "<%s>", name);
    const char *begin = memmem(from, (size_t)(end - from), tag, (size_t)n);
    const char *stop = begin ? memchr(begin + n, '<', (size_t)(end - begin) - (size_t)n) : NULL;

    return stop ? strndup(begin + n, (size_t)(stop - begin) - (size_t)n) : NULL;
}

/* Percent-encoded text as it is, in its own memory. */
static void decode_percents(char *text)
{
    char *to = text;

    for (const char *at = text; *at; at++, to++) {
        char digits[3] = "", *end;
        if (*at == '%')
            memcpy(digits, at + 1, strnlen(at + 1, 2));
        unsigned long value = strtoul(digits, &end, 16);
        if (end == digits + 2) {
            *to = (char)value;
            at += 2;
        } else if (*at == '+')
            *to = ' ';
        else
            *to = *at;
    }
    *to = '\0';
}

/* The same of what XML cannot have in a text. */
static void decode_entities(char *text)
{
    static const struct {
        const char *entity;
        char is;
    } all[] = {{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};
    char *to = text;

    for (const char *at = text; *at; at++, to++) {
        *to = *at;
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            if (strncmp(at, all[i].entity, strlen(all[i].entity)) == 0) {
                *to = all[i].is;
                at += strlen(all[i].entity) - 1;
                break;
            }
    }
    *to = '\0';
}

/* A key, which the caller frees: percent-encoded, if the server does what it was asked for. */
static char *left_find_key(const left_uploads *all, const char *from, const char *end,
                           const char *name)
{
    char *key = xml_find(from, end, name);

    if (key)
        decode_entities(key);
    if (key && strstr((const char *)all->list.bytes, "<EncodingType>url<"))
        decode_percents(key);
    return key;
}

static int left_refuse(const left_uploads *all, const char *what, berth_error *error)
{
    return bcurl_fail(error, BERTH_E_SYSTEM, EPROTO, "%s: the server's answer is %s",
                      all->url.address.shown, what);
}

static int left_ask(left_uploads *all, berth_error *error)
{
    bcurl_request request = {.step = "listing uploads", .method = "GET", .kept = &all->list};
    bcurl_answer answer;
    char *query = NULL;
    bool goes_on = all->key_marker != NULL;

    if (asprintf(&query, "encoding-type=url%s%s&max-uploads=" MAX_UPLOADS "&prefix=%s%s%s&uploads=",
                 goes_on ? "&key-marker=" : "", goes_on ? all->key_marker : "", all->prefix,
                 goes_on ? "&upload-id-marker=" : "", goes_on ? all->id_marker : "") < 0)
        return bcurl_fail(error, BERTH_E_MEMORY, ENOMEM, "out of memory");
    request.query = query;
    int status = bcurl_request_send(&all->url, &request, &answer, error);
    free(query);
    if (status == 0 && all->list.nbytes == 0) /* what is there is the list before */
        return left_refuse(all, "no list of uploads", error);
    return status;
}

static int left_remove(left_uploads *all, const char *key, const char *id, berth_error *error)
{
    bcurl_request request = {.step = "removing an upload", .method = "DELETE"};
    char *encoded_key = bcurl_encode(key, false), *encoded_id = bcurl_encode(id, true);
    char *bucket = all->url.address.url, *query = NULL;
    bcurl_answer answer;

    if (encoded_key && encoded_id && asprintf(&query, "uploadId=%s", encoded_id) >= 0 &&
        asprintf(&all->url.address.url, "%s%s", bucket, encoded_key) >= 0) {
        request.query = query;
        (void)bcurl_request_send(&all->url, &request, &answer, error);
        bcurl_free_secret(all->url.address.url);
    } else
        (void)bcurl_fail(error, BERTH_E_MEMORY, ENOMEM, "out of memory");
    all->url.address.url = bucket;
    free(encoded_key);
    free(encoded_id);
    free(query);
    return error->code;
}

/* Its age in seconds; 0: the server does not say, and nothing is old. */
static double upload_age(const char *initiated)
{
    struct tm when = {0};
    struct timespec now;

    if (!initiated || !strptime(initiated, "%Y-%m-%dT%H:%M:%S", &when))
        return 0;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    double age = (double)now.tv_sec - (double)timegm(&when);
    return age > 0 ? age : 0;
}

static void left_tell(left_uploads *all, const char *from, const char *end)
{
    berth_error error = {.offset = BERTH_NO_OFFSET};
    char *key = left_find_key(all, from, end, "Key"), *id = xml_find(from, end, "UploadId");
    char *initiated = xml_find(from, end, "Initiated");
    berth_temporary upload = {.name = key,
                              .owner = "",
                              .state = BERTH_TEMPORARY_UNKNOWN,
                              .age_seconds = upload_age(initiated)};

    if (key && id) {
        if (all->removes && upload.age_seconds >= all->min_age_seconds)
            upload.removed = left_remove(all, key, id, &error) == 0;
        upload.error = error.code < 0 ? &error : NULL;
        all->found(all->context, &upload);
    }
    free(key);
    free(id);
    free(initiated);
}

/* The uploads of one answer, and where the next one begins. */
static int left_read(left_uploads *all, berth_error *error)
{
    const char *at = (const char *)all->list.bytes, *end = at + all->list.nbytes;
    const char *first = strstr(at, "<Upload>"), *head_end = first ? first : end;
    char *truncated = xml_find(at, head_end, "IsTruncated");
    char *key = left_find_key(all, at, head_end, "NextKeyMarker");
    char *id = xml_find(at, head_end, "NextUploadIdMarker");

    char *key_marker = key && *key ? bcurl_encode(key, true) : NULL;
    char *id_marker = key_marker && id ? bcurl_encode(id, true) : NULL;

    all->is_truncated = truncated && strcmp(truncated, "true") == 0;
    bool stands = all->is_truncated && id_marker && all->id_marker &&
                  strcmp(key_marker, all->key_marker) == 0 &&
                  strcmp(id_marker, all->id_marker) == 0;
    free(all->key_marker);
    free(all->id_marker);
    all->key_marker = key_marker;
    all->id_marker = id_marker;
    free(truncated);
    free(key);
    free(id);
    if (!strstr(at, "<ListMultipartUploadsResult") || (all->is_truncated && !all->id_marker))
        return left_refuse(all, "no list of uploads", error);
    if (stands) /* U4 */
        return left_refuse(all, "a list of uploads that goes on where it began", error);
    for (at = first; at; at = strstr(at, "<Upload>")) {
        const char *stop = strstr(at, "</Upload>");
        left_tell(all, at, stop ? stop : end);
        at += strlen("<Upload>");
    }
    return 0;
}

int berth_clean_uploads(const char *url, uint32_t flags, double min_age_seconds,
                        const berth_url_params *params, berth_temporary_function found,
                        void *context, berth_error *error)
{
    berth_error own = {.offset = BERTH_NO_OFFSET};
    left_uploads all = {.min_age_seconds = min_age_seconds,
                        .removes = (flags & BERTH_CLEAN_REMOVE) != 0,
                        .found = found,
                        .context = context};
    char *prefix = NULL;

    if (params)
        all.url.params = *params;
    if (bcurl_url_find_deadline(&all.url, &own) == 0 && bcurl_need_library(&own) == 0 &&
        bcurl_address_make_bucket(url, &all.url.address, &prefix, &own) == 0) {
        all.prefix = bcurl_encode(prefix, true);
        if (!all.url.address.is_s3)
            (void)bcurl_fail(&own, BERTH_E_UNSUPPORTED, 0, "only s3:// has uploads");
        else if (!all.prefix)
            (void)bcurl_fail(&own, BERTH_E_MEMORY, ENOMEM, "out of memory");
        else
            do {
                (void)left_ask(&all, &own);
            } while (own.code == 0 && left_read(&all, &own) == 0 && all.is_truncated);
    }
    bcurl_connections_free(atomic_load(&all.url.connections));
    bcurl_address_free(&all.url.address);
    free(prefix);
    free(all.prefix);
    free(all.list.bytes);
    free(all.key_marker);
    free(all.id_marker);
    if (error)
        *error = own;
    return own.code;
}
