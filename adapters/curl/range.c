/* SPDX-License-Identifier: BSD-3-Clause */
/* One range: asked for again, from where it broke off, until all of it is there. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/curl/url.h"

typedef unsigned long long ull;

/* S3 requires it. libcurl before 8 does not send it by itself with a GET. */
#define HASH_OF_NOTHING "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

/* If-Match needs a strong ETag (RFC 9110 13.1.1); a weak one is only compared. */
static struct curl_slist *range_prepare(bcurl_attempts *all, void *context)
{
    bcurl_range *range = context;
    struct curl_slist *list = NULL;
    char line[BCURL_TAG_NBYTES + 64];

    if (range->is_whole) /* what is kept whole has no ranges: it begins again */
        range->done_nbytes = 0;
    if (range->is_from_end)
        (void)snprintf(line, sizeof line, "-%llu", (ull)range->nbytes);
    else
        (void)snprintf(line, sizeof line, "%llu-%llu", (ull)range->offset + range->done_nbytes,
                       (ull)range->offset + range->nbytes - 1);
    (void)bcurl.easy_setopt(all->handle, CURLOPT_RANGE, line);
    if (all->url->etag[0] == '"' && snprintf(line, sizeof line, "If-Match: %s", all->url->etag) > 0)
        list = bcurl.slist_append(list, line);
    return bcurl_request_sign(all, list, HASH_OF_NOTHING);
}

static bcurl_outcome range_judge(bcurl_attempts *all, void *context)
{
    bcurl_range *range = context;
    const bcurl_answer *answer = &all->answer;

    switch (bcurl_answer_check(&all->answer)) {
    case BCURL_WHOLE:
        range->nbytes = range->done_nbytes;
        range->url->is_pinned = true;
        range->url->nbytes = range->nbytes;
        return BCURL_DONE;
    case BCURL_TEXT:
        if (answer->status == 416 && answer->total == 0 && range->nbytes == 0)
            return BCURL_DONE;
        (void)bcurl_answer_refuse(answer, all->error);
        if (answer->status == 416 && range->is_from_end) {
            range->is_from_end =
                false; /* rclone's server has no end that is longer than the object */
            return BCURL_AGAIN;
        }
        return bcurl_status_can_pass(answer->status) ? BCURL_AGAIN : BCURL_FAILED;
    case BCURL_BYTES:
        if (range->done_nbytes == range->nbytes)
            return BCURL_DONE;
        (void)bcurl_fail(all->error, BERTH_E_SYSTEM, EPROTO,
                         "the server ends a range %llu bytes too early",
                         (ull)(range->nbytes - range->done_nbytes));
        return BCURL_AGAIN;
    default:
        return BCURL_FAILED;
    }
}

int bcurl_range_get(bcurl_range *range, berth_error *error)
{
    const bcurl_asking asking = {range_prepare, range_judge, range};
    bcurl_attempts all = {.url = range->url, .wait = &range->wait, .answer = {.range = range}};

    range->wait = bcurl_wait_begin("sent");
    return bcurl_attempts_run(&all, &asking, error);
}
