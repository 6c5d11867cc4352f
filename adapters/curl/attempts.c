/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What can pass is tried again after a pause, which grows, and which chance changes so that many
 * clients do not come back at once.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "adapters/curl/url.h"

#define MAX_TRIES 6 /* without progress */
#define FIRST_PAUSE_SECONDS 0.25
#define MAX_PAUSE_SECONDS 60.0
#define STEP_NANOSECONDS 50000000

/* ---- one request ---- */

struct curl_slist *bcurl_request_sign(bcurl_attempts *all, struct curl_slist *list,
                                      const char *hash)
{
    const bcurl_address *address = &all->url->address;
    char line[16384]; /* tokens have some KiB */

    if (!address->signature)
        return list;
    (void)snprintf(line, sizeof line, "x-amz-content-sha256: %s", hash);
    list = bcurl.slist_append(list, line);
    (void)pthread_mutex_lock(&all->connections->lock);
    all->n_renewed = all->url->n_renewed;
    (void)bcurl.easy_setopt(all->handle, CURLOPT_AWS_SIGV4, address->signature);
    (void)bcurl.easy_setopt(all->handle, CURLOPT_USERNAME, address->key);
    (void)bcurl.easy_setopt(all->handle, CURLOPT_PASSWORD, address->secret);
    if (address->token &&
        snprintf(line, sizeof line, "X-Amz-Security-Token: %s", address->token) < (int)sizeof line)
        list = bcurl.slist_append(list, line);
    (void)pthread_mutex_unlock(&all->connections->lock);
    explicit_bzero(line, sizeof line);
    return list;
}

static CURLcode attempts_ask(bcurl_attempts *all, const bcurl_asking *asking)
{
    CURL *handle = all->handle;
    bcurl_range *range = all->answer.range;
    bcurl_block *kept = all->answer.kept;

    memset(&all->answer, 0, sizeof all->answer);
    all->answer.url = all->url;
    all->answer.range = range;
    all->answer.kept = kept;
    all->answer.wait = all->wait;
    all->answer.error = all->error;
    all->text[0] = '\0';
    struct curl_slist *headers = asking->prepare(all, asking->context);
    (void)bcurl.easy_setopt(handle, CURLOPT_HTTPHEADER, headers);
    (void)bcurl.easy_setopt(handle, CURLOPT_ERRORBUFFER, all->text);
    (void)bcurl.easy_setopt(handle, CURLOPT_HEADERFUNCTION, bcurl_answer_header);
    (void)bcurl.easy_setopt(handle, CURLOPT_HEADERDATA, &all->answer);
    (void)bcurl.easy_setopt(handle, CURLOPT_WRITEFUNCTION, bcurl_answer_body);
    (void)bcurl.easy_setopt(handle, CURLOPT_WRITEDATA, &all->answer);
    (void)bcurl.easy_setopt(handle, CURLOPT_OPENSOCKETFUNCTION, bcurl_answer_socket);
    (void)bcurl.easy_setopt(handle, CURLOPT_OPENSOCKETDATA, &all->answer);
    (void)bcurl.easy_setopt(handle, CURLOPT_XFERINFOFUNCTION, bcurl_answer_progress);
    (void)bcurl.easy_setopt(handle, CURLOPT_XFERINFODATA, &all->answer);
    CURLcode code = bcurl_perform(handle);
    (void)bcurl.easy_setopt(handle, CURLOPT_HTTPHEADER, NULL);
    (void)bcurl.easy_setopt(handle, CURLOPT_ERRORBUFFER, NULL);
    bcurl.slist_free_all(headers);
    return code;
}

/* ---- what came of it ---- */

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

bool bcurl_status_can_pass(int status)
{
    return status == 408 || status == 429 || status == 500 || status == 502 || status == 503 ||
           status == 504;
}

/*
 * U1: libcurl's text names hosts and proxies. It is shown if there is no password that one of them,
 * as libcurl reads it, can be a part of.
 */
static bool attempts_may_show_text(const bcurl_attempts *all)
{
    static const char *const proxies[] = {"http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy",
                                          "ALL_PROXY"};

    if (all->text[0] == '\0' || strpbrk(all->text, "@?") ||
        bcurl_may_hide_password(all->url->address.url))
        return false;
    for (size_t i = 0; i < sizeof proxies / sizeof *proxies; i++) {
        const char *proxy = getenv(proxies[i]);
        if (proxy && (strchr(proxy, '@') || bcurl_may_hide_password(proxy)))
            return false;
    }
    return true;
}

static bcurl_outcome attempts_fail_code(bcurl_attempts *all, CURLcode code)
{
    const char *text = attempts_may_show_text(all) ? all->text : bcurl.easy_strerror(code);
    int number = code == CURLE_OPERATION_TIMEDOUT ? ETIMEDOUT : EIO;

    if (code == CURLE_URL_MALFORMAT && bcurl_may_hide_password(all->url->address.url))
        text = "in the user and password of a URL, / is written %2F, ? %3F, # %23, @ %40";
    if (code == CURLE_UNSUPPORTED_PROTOCOL && strstr(all->text, "disabled"))
        text =
            "a redirect leads to another protocol, which is not followed: https goes only to https";
    (void)bcurl_fail(all->error, BERTH_E_SYSTEM, number, "%s", text);
    return BCURL_FAILED;
}

/* A proxy that refuses a tunnel will refuse the next one, too. */
static bool attempts_refused_by_proxy(const bcurl_attempts *all)
{
    long status = 0;

    (void)bcurl.easy_getinfo(all->handle, CURLINFO_HTTP_CONNECTCODE, &status);
    return status >= 400 && !bcurl_status_can_pass((int)status);
}

static bcurl_outcome attempts_judge_code(bcurl_attempts *all, CURLcode code)
{
    if (all->error->code != BERTH_OK) /* a callback of ours refused the answer */
        return BCURL_FAILED;
    if (code == CURLE_ABORTED_BY_CALLBACK) {
        (void)bcurl_fail(all->error, BERTH_E_CANCELLED, ECANCELED, "cancelled");
        return BCURL_FAILED;
    }
    (void)attempts_fail_code(all, code);
    if (attempts_refused_by_proxy(all))
        return BCURL_FAILED;
    return code_can_pass(code, all->url->is_pinned) ? BCURL_AGAIN : BCURL_FAILED;
}

/* ---- credentials that have expired ---- */

static bool is_other(const char *now, const char *before)
{
    return now ? !before || strcmp(now, before) != 0 : before != NULL;
}

/* Takes those that are found now, if they are others. The caller holds the lock. */
static bool url_renew(bcurl_url *url)
{
    bcurl_address *address = &url->address;
    const bcurl_address before = *address;
    berth_error ignored = {0};
    bcurl_aws aws;
    bool is_new = bcurl_aws_find(&aws, &ignored) == 0 && aws.key &&
                  (is_other(aws.key, before.key) || is_other(aws.secret, before.secret) ||
                   is_other(aws.token, before.token));

    if (is_new) {
        address->key = aws.key;
        address->secret = aws.secret;
        address->token = aws.token;
        aws.key = before.key;
        aws.secret = before.secret;
        aws.token = before.token;
        url->n_renewed++;
    }
    bcurl_aws_free(&aws);
    return is_new;
}

/* Whether there are others than those that signed the request: another thread may have read them.
 */
static bool attempts_renew(bcurl_attempts *all)
{
    char code[64];

    bcurl_answer_find(&all->answer, "Code", code, sizeof code);
    if (strcmp(code, "ExpiredToken") != 0 || !all->url->address.signature)
        return false;
    (void)pthread_mutex_lock(&all->connections->lock);
    bool is_new = all->n_renewed != all->url->n_renewed || url_renew(all->url);
    (void)pthread_mutex_unlock(&all->connections->lock);
    return is_new;
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
static bcurl_outcome attempts_sleep(const bcurl_attempts *all, double seconds)
{
    const struct timespec step = {0, STEP_NANOSECONDS};
    double end = bcurl_seconds() + seconds;

    while (bcurl_seconds() < end) {
        if (bcurl_is_cancelled(all->url)) {
            (void)bcurl_fail(all->error, BERTH_E_CANCELLED, ECANCELED, "cancelled");
            return BCURL_FAILED;
        }
        if (bcurl_wait_is_late(all->wait, all->url, all->error))
            return BCURL_FAILED;
        (void)nanosleep(&step, NULL);
    }
    return BCURL_AGAIN;
}

/* Decides whether to ask once more, and waits for it. */
static bcurl_outcome attempts_pause(bcurl_attempts *all)
{
    curl_off_t asked = 0;
    double seconds = FIRST_PAUSE_SECONDS;
    uint64_t deadline = all->url->params.deadline_seconds;

    if (all->answer.use == BCURL_BYTES && all->answer.received_nbytes >= BCURL_PROGRESS_NBYTES)
        all->n_tries = 0;
    for (int i = 0; i < all->n_tries; i++)
        seconds *= 2;
    if (++all->n_tries >= MAX_TRIES)
        return BCURL_FAILED;
    seconds *= chance();
    if (bcurl.easy_getinfo(all->handle, CURLINFO_RETRY_AFTER, &asked) == CURLE_OK &&
        (double)asked > seconds)
        seconds = (double)asked;
    if (seconds > MAX_PAUSE_SECONDS || asked > (curl_off_t)deadline) {
        (void)bcurl_fail(all->error, BERTH_E_SYSTEM, EIO,
                         "the server answers with status %d, and asks to come back in %lld seconds",
                         all->answer.status, (long long)asked);
        return BCURL_FAILED;
    }
    return attempts_sleep(all, seconds);
}

/* ---- all of it ---- */

/* For the message of a call that failed because of this. */
static void connections_note(bcurl_connections *connections, const berth_error *error)
{
    (void)pthread_mutex_lock(&connections->lock);
    if (connections->failure.system_errno != ESTALE)
        connections->failure = *error;
    (void)pthread_mutex_unlock(&connections->lock);
}

int bcurl_attempts_run(bcurl_attempts *all, const bcurl_asking *asking, berth_error *error)
{
    bcurl_connections *connections = bcurl_connections_of(all->url);
    bcurl_outcome outcome;

    all->error = error;
    all->connections = connections;
    all->handle = connections ? bcurl_handle_take(all->url, connections) : NULL;
    if (!all->handle)
        return bcurl_fail(error, BERTH_E_MEMORY, ENOMEM, "out of memory");
    do {
        memset(error, 0, sizeof *error);
        CURLcode code = attempts_ask(all, asking);
        outcome =
            code == CURLE_OK ? asking->judge(all, asking->context) : attempts_judge_code(all, code);
        if (outcome == BCURL_AGAIN || (outcome == BCURL_FAILED && attempts_renew(all)))
            outcome = attempts_pause(all);
    } while (outcome == BCURL_AGAIN);
    bcurl_handle_give(connections, all->handle);
    if (outcome == BCURL_DONE)
        return 0;
    if (all->step)
        (void)bcurl_name_error(error, all->step);
    (void)bcurl_name_error(error, all->url->address.shown);
    connections_note(connections, error);
    return error->code;
}
