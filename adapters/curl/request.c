/* SPDX-License-Identifier: BSD-3-Clause */
/* One request of S3 that is not a range: a part, the beginning and the end of an upload. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/curl/url.h"

/* A part has a signed checksum, which says more of it than a second sum would. */
#define NOT_HASHED "UNSIGNED-PAYLOAD"
#define EXPECT_MILLISECONDS 200L
#define STALL_SECONDS 30L

typedef struct sent_request {
    const bcurl_request *request;
    char *address; /* with the query */
} sent_request;

static struct curl_slist *request_prepare(bcurl_attempts *all, void *context)
{
    const sent_request *sent = context;
    const bcurl_request *request = sent->request;
    CURL *handle = all->handle;
    struct curl_slist *list = NULL;
    bool has_body = request->body != NULL;

    all->wait->nbytes = 0;
    (void)bcurl.easy_setopt(handle, CURLOPT_URL, sent->address);
    (void)bcurl.easy_setopt(handle, CURLOPT_HTTPGET, 1L);
    (void)bcurl.easy_setopt(handle, CURLOPT_NOBODY, strcmp(request->method, "HEAD") == 0 ? 1L : 0L);
    if (has_body) {
        (void)bcurl.easy_setopt(handle, CURLOPT_POSTFIELDS, request->body);
        (void)bcurl.easy_setopt(handle, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->nbytes);
        list = bcurl.slist_append(list, "Content-Type: application/octet-stream");
    }
    (void)bcurl.easy_setopt(handle, CURLOPT_CUSTOMREQUEST, request->method);
    (void)bcurl.easy_setopt(handle, CURLOPT_EXPECT_100_TIMEOUT_MS, EXPECT_MILLISECONDS);
    (void)bcurl.easy_setopt(handle, CURLOPT_LOW_SPEED_TIME,
                            request->waits_long ? 0 : STALL_SECONDS);
    for (size_t i = 0; i < BCURL_MAX_HEADERS; i++)
        if (request->headers[i][0])
            list = bcurl.slist_append(list, request->headers[i]);
    return bcurl_request_sign(all, list, NOT_HASHED);
}

/* It answers: this is the right address. The first request of an upload is alone. */
static void note_answer(bcurl_url *url)
{
    if (!url->is_pinned)
        url->is_pinned = true;
}

/* S3 can find out that it fails when it has said 200 already: then the body says so. */
static bcurl_outcome request_judge(bcurl_attempts *all, void *context)
{
    const bcurl_answer *answer = &all->answer;
    char code[64];

    (void)context;
    bcurl_answer_find(answer, "Code", code, sizeof code);
    if (answer->status / 100 == 2 && !strstr(answer->text, "<Error>"))
        return BCURL_DONE;
    note_answer(all->url);
    (void)bcurl_answer_refuse(answer, all->error);
    if (answer->status / 100 == 2)
        return strcmp(code, "InternalError") == 0 || strcmp(code, "SlowDown") == 0 ||
                       strcmp(code, "ServiceUnavailable") == 0 ||
                       strcmp(code, "RequestTimeout") == 0
                   ? BCURL_AGAIN
                   : BCURL_FAILED;
    return bcurl_status_can_pass(answer->status) || strcmp(code, "RequestTimeout") == 0
               ? BCURL_AGAIN
               : BCURL_FAILED;
}

int bcurl_request_send(bcurl_url *url, const bcurl_request *request, bcurl_answer *answer,
                       berth_error *error)
{
    bcurl_wait wait = bcurl_wait_begin("took");
    bcurl_attempts all = {
        .url = url, .wait = &wait, .step = request->step, .answer = {.kept = request->kept}};
    sent_request sent = {.request = request};
    const bcurl_asking asking = {request_prepare, request_judge, &sent};

    memset(answer, 0, sizeof *answer);
    if (asprintf(&sent.address, "%s%s%s", url->address.url, request->query ? "?" : "",
                 request->query ? request->query : "") < 0)
        return bcurl_fail(error, BERTH_E_MEMORY, ENOMEM, "out of memory");
    int status = bcurl_attempts_run(&all, &asking, error);
    if (status == 0)
        note_answer(url);
    *answer = all.answer;
    answer->is_repeated = all.n_tries > 0;
    bcurl_free_secret(sent.address);
    return status;
}
