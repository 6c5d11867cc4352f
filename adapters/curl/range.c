/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One range: asked for again, from where it broke off, until all of it is there. What can pass is
 * tried again after a pause, which grows, and which chance changes so that many clients do not come
 * back at once.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "adapters/curl/url.h"

typedef unsigned long long ull;

#define MAX_TRIES 6 /* without progress */
#define FIRST_PAUSE_SECONDS 0.25
#define MAX_PAUSE_SECONDS 60.0
#define STEP_NANOSECONDS 50000000

/* One range, and how it has gone so far. */
typedef struct attempts {
    bcurl_range *range;
    CURL *handle;
    bcurl_answer answer;
    char text[CURL_ERROR_SIZE];
    int n_tries; /* without progress */
    berth_error *error;
} attempts;

/* ---- one request ---- */

/* S3 requires it. libcurl before 8 does not send it by itself with a GET. */
#define HASH_OF_NOTHING                                                                            \
    "x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

/* If-Match needs a strong ETag (RFC 9110 13.1.1); a weak one is only compared. */
static struct curl_slist *headers_new(const bcurl_url *url)
{
    struct curl_slist *list = NULL;
    char line[16384]; /* tokens have some KiB */

    if (url->etag[0] == '"' && snprintf(line, sizeof line, "If-Match: %s", url->etag) > 0)
        list = bcurl.slist_append(list, line);
    if (url->address.key)
        list = bcurl.slist_append(list, HASH_OF_NOTHING);
    if (url->address.token && snprintf(line, sizeof line, "X-Amz-Security-Token: %s",
                                       url->address.token) < (int)sizeof line)
        list = bcurl.slist_append(list, line);
    explicit_bzero(line, sizeof line);
    return list;
}

static void range_print(const bcurl_range *range, char *text, size_t room)
{
    if (range->is_from_end)
        (void)snprintf(text, room, "-%llu", (ull)range->nbytes);
    else
        (void)snprintf(text, room, "%llu-%llu", (ull)range->offset + range->done_nbytes,
                       (ull)range->offset + range->nbytes - 1);
}

static CURLcode attempts_ask(attempts *all)
{
    struct curl_slist *headers = headers_new(all->range->url);
    CURL *handle = all->handle;
    char asked[64];

    range_print(all->range, asked, sizeof asked);
    memset(&all->answer, 0, sizeof all->answer);
    all->answer.range = all->range;
    all->answer.error = all->error;
    all->text[0] = '\0';
    (void)bcurl.easy_setopt(handle, CURLOPT_RANGE, asked);
    (void)bcurl.easy_setopt(handle, CURLOPT_HTTPHEADER, headers);
    (void)bcurl.easy_setopt(handle, CURLOPT_ERRORBUFFER, all->text);
    (void)bcurl.easy_setopt(handle, CURLOPT_HEADERFUNCTION, bcurl_answer_header);
    (void)bcurl.easy_setopt(handle, CURLOPT_HEADERDATA, &all->answer);
    (void)bcurl.easy_setopt(handle, CURLOPT_WRITEFUNCTION, bcurl_answer_body);
    (void)bcurl.easy_setopt(handle, CURLOPT_WRITEDATA, &all->answer);
    (void)bcurl.easy_setopt(handle, CURLOPT_XFERINFOFUNCTION, bcurl_answer_progress);
    (void)bcurl.easy_setopt(handle, CURLOPT_XFERINFODATA, &all->answer);
    CURLcode code = bcurl_perform(handle);
    (void)bcurl.easy_setopt(handle, CURLOPT_HTTPHEADER, NULL);
    (void)bcurl.easy_setopt(handle, CURLOPT_ERRORBUFFER, NULL);
    bcurl.slist_free_all(headers);
    return code;
}

/* ---- what came of it ---- */

typedef enum outcome { DONE, AGAIN, FAILED } outcome;

/* Before the first answer it is more likely that the address is wrong. */
static bool code_can_pass(CURLcode code, bool is_pinned)
{
    switch (code) {
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
        return true;
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_COULDNT_CONNECT:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_SSL_CONNECT_ERROR:
        return is_pinned;
    default:
        return false;
    }
}

static bool status_can_pass(int status)
{
    return status == 408 || status == 429 || status == 500 || status == 502 || status == 503 ||
           status == 504;
}

/*
 * U1: libcurl's text names hosts and proxies. It is shown if there is no password that one of them,
 * as libcurl reads it, can be a part of.
 */
static bool attempts_may_show_text(const attempts *all)
{
    static const char *const proxies[] = {"http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy",
                                          "ALL_PROXY"};

    if (all->text[0] == '\0' || strpbrk(all->text, "@?") ||
        bcurl_may_hide_password(all->range->url->address.url))
        return false;
    for (size_t i = 0; i < sizeof proxies / sizeof *proxies; i++) {
        const char *proxy = getenv(proxies[i]);
        if (proxy && (strchr(proxy, '@') || bcurl_may_hide_password(proxy)))
            return false;
    }
    return true;
}

static outcome attempts_fail_code(attempts *all, CURLcode code)
{
    const char *text = attempts_may_show_text(all) ? all->text : bcurl.easy_strerror(code);
    int number = code == CURLE_OPERATION_TIMEDOUT ? ETIMEDOUT : EIO;

    if (code == CURLE_URL_MALFORMAT && bcurl_may_hide_password(all->range->url->address.url))
        text = "in the user and password of a URL, / is written %2F, ? %3F, # %23, @ %40";
    if (code == CURLE_UNSUPPORTED_PROTOCOL && strstr(all->text, "disabled"))
        text =
            "a redirect leads to another protocol, which is not followed: https goes only to https";
    (void)bcurl_fail(all->error, BERTH_E_SYSTEM, number, "%s", text);
    return FAILED;
}

/* A proxy that refuses a tunnel will refuse the next one, too. */
static bool attempts_refused_by_proxy(const attempts *all)
{
    long status = 0;

    (void)bcurl.easy_getinfo(all->handle, CURLINFO_HTTP_CONNECTCODE, &status);
    return status >= 400 && !status_can_pass((int)status);
}

static outcome attempts_judge_code(attempts *all, CURLcode code)
{
    if (all->error->code != BERTH_OK) /* a callback of ours refused the answer */
        return FAILED;
    if (code == CURLE_ABORTED_BY_CALLBACK) {
        (void)bcurl_fail(all->error, BERTH_E_CANCELLED, ECANCELED, "cancelled");
        return FAILED;
    }
    (void)attempts_fail_code(all, code);
    if (attempts_refused_by_proxy(all))
        return FAILED;
    return code_can_pass(code, all->range->url->is_pinned) ? AGAIN : FAILED;
}

static outcome attempts_judge_whole(attempts *all)
{
    all->range->nbytes = all->range->done_nbytes;
    all->range->url->is_pinned = true;
    all->range->url->nbytes = all->range->nbytes;
    return DONE;
}

static outcome attempts_judge_text(attempts *all)
{
    const bcurl_answer *answer = &all->answer;

    if (answer->status == 416 && answer->total == 0 && all->range->nbytes == 0)
        return DONE;
    (void)bcurl_answer_refuse(answer, all->error);
    return status_can_pass(answer->status) ? AGAIN : FAILED;
}

/* The error is that of this request; AGAIN: it may pass. */
static outcome attempts_judge(attempts *all, CURLcode code)
{
    const bcurl_range *range = all->range;

    if (code != CURLE_OK)
        return attempts_judge_code(all, code);
    switch (bcurl_answer_check(&all->answer)) {
    case BCURL_WHOLE:
        return attempts_judge_whole(all);
    case BCURL_TEXT:
        return attempts_judge_text(all);
    case BCURL_BYTES:
        if (range->done_nbytes == range->nbytes)
            return DONE;
        (void)bcurl_fail(all->error, BERTH_E_SYSTEM, EPROTO,
                         "the server ends a range %llu bytes too early",
                         (ull)(range->nbytes - range->done_nbytes));
        return AGAIN;
    default:
        return FAILED;
    }
}

/* ---- the pause ---- */

/* Between 0.5 and 1. */
static double chance(void)
{
    struct timespec time;

    (void)clock_gettime(CLOCK_REALTIME, &time);
    uint64_t mixed =
        ((uint64_t)time.tv_nsec ^ (uint64_t)(uintptr_t)&time) * UINT64_C(0x9e3779b97f4a7c15);
    return 0.5 + (double)(mixed >> 40) / (double)(1 << 25);
}

/* In steps, so that the caller can cancel. */
static outcome attempts_sleep(const attempts *all, double seconds)
{
    const struct timespec step = {0, STEP_NANOSECONDS};
    double end = bcurl_seconds() + seconds;

    while (bcurl_seconds() < end) {
        if (bcurl_is_cancelled(all->range->url)) {
            (void)bcurl_fail(all->error, BERTH_E_CANCELLED, ECANCELED, "cancelled");
            return FAILED;
        }
        if (bcurl_range_is_late(all->range, all->error))
            return FAILED;
        (void)nanosleep(&step, NULL);
    }
    return AGAIN;
}

/* Decides whether to ask once more, and waits for it. */
static outcome attempts_pause(attempts *all)
{
    curl_off_t asked = 0;
    double seconds = FIRST_PAUSE_SECONDS;
    uint64_t deadline = all->range->url->params.deadline_seconds;

    if (all->answer.use == BCURL_BYTES && all->answer.received_nbytes >= BCURL_PROGRESS_NBYTES)
        all->n_tries = 0;
    for (int i = 0; i < all->n_tries; i++)
        seconds *= 2;
    if (++all->n_tries >= MAX_TRIES)
        return FAILED;
    seconds *= chance();
    if (bcurl.easy_getinfo(all->handle, CURLINFO_RETRY_AFTER, &asked) == CURLE_OK &&
        (double)asked > seconds)
        seconds = (double)asked;
    if (seconds > MAX_PAUSE_SECONDS || asked > (curl_off_t)deadline) {
        (void)bcurl_fail(all->error, BERTH_E_SYSTEM, EIO,
                         "the server answers with status %d, and asks to come back in %lld seconds",
                         all->answer.status, (long long)asked);
        return FAILED;
    }
    return attempts_sleep(all, seconds);
}

/* ---- all of it ---- */

/* What is kept whole has no ranges: it begins again. */
static void range_begin_again(bcurl_range *range)
{
    if (range->is_whole)
        range->done_nbytes = 0;
}

static outcome attempts_run(attempts *all)
{
    outcome result;

    do {
        memset(all->error, 0, sizeof *all->error);
        range_begin_again(all->range);
        result = attempts_judge(all, attempts_ask(all));
        if (result == AGAIN)
            result = attempts_pause(all);
    } while (result == AGAIN);
    return result;
}

/* For the message of a call that failed because of this. */
static void connections_note(bcurl_connections *connections, const berth_error *error)
{
    (void)pthread_mutex_lock(&connections->lock);
    if (connections->failure.system_errno != ESTALE)
        connections->failure = *error;
    (void)pthread_mutex_unlock(&connections->lock);
}

int bcurl_range_get(bcurl_range *range, berth_error *error)
{
    bcurl_connections *connections = bcurl_connections_of(range->url);
    attempts all = {.range = range, .error = error};

    range->since = bcurl_seconds();
    range->since_nbytes = 0;

    all.handle = connections ? bcurl_handle_take(range->url, connections) : NULL;
    if (!all.handle)
        return bcurl_fail(error, BERTH_E_MEMORY, ENOMEM, "out of memory");
    bool is_done = attempts_run(&all) == DONE;
    bcurl_handle_give(connections, all.handle);
    if (is_done)
        return error->code;
    (void)bcurl_name_error(error, range->url->address.shown);
    connections_note(connections, error);
    return error->code;
}
