/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a server answers. U3: bytes count only if the answer says that they are those of the range,
 * of the object that was opened: its size, and its ETag or the time of its last change.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

#include "adapters/curl/url.h"

typedef unsigned long long ull;

#define CHECK_SECONDS 0.1
#define KEPT_MAX_NBYTES ((uint64_t)4 << 20)

double bcurl_seconds(void)
{
    struct timespec time;

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

bool bcurl_is_cancelled(const bcurl_url *url)
{
    return url->params.cancelled && url->params.cancelled(url->params.context) != 0;
}

bcurl_wait bcurl_wait_begin(const char *verb)
{
    return (bcurl_wait){.since = bcurl_seconds(), .verb = verb};
}

bool bcurl_wait_is_late(const bcurl_wait *wait, const bcurl_url *url, berth_error *error)
{
    uint64_t seconds = url->params.deadline_seconds;

    if (bcurl_seconds() < wait->since + (double)seconds)
        return false;
    (void)bcurl_fail(error, BERTH_E_SYSTEM, ETIMEDOUT,
                     "the server %s%s in %llu seconds: io.url_deadline=SECONDS waits longer",
                     wait->is_unanswered ? "has not answered" : wait->verb,
                     wait->is_unanswered ? "" : " less than 64 KiB", (ull)seconds);
    return true;
}

int bcurl_answer_progress(void *context, curl_off_t all, curl_off_t come, curl_off_t to_send,
                          curl_off_t sent)
{
    bcurl_answer *answer = context;
    bcurl_wait *wait = answer->wait;
    double now = bcurl_seconds();

    (void)all, (void)come;
    if (to_send > 0 && ((uint64_t)sent < wait->nbytes || /* sent again: not after a pause of ours */
                        (uint64_t)sent - wait->nbytes >= BCURL_PROGRESS_NBYTES)) {
        wait->nbytes = (uint64_t)sent;
        wait->since = now;
    }
    wait->is_unanswered = sent == to_send && answer->status < 200;
    if (now < answer->next_check)
        return 0;
    answer->next_check = now + CHECK_SECONDS;
    return bcurl_is_cancelled(answer->url) || bcurl_wait_is_late(wait, answer->url, answer->error);
}

/* Of this link alone: where clouds give credentials to whoever asks from the machine. */
static bool is_link_local(const struct sockaddr *address)
{
    static const uint8_t v4[] = {169, 254}, amazon[] = {0xfd, 0x00, 0x0e, 0xc2};
    static const uint8_t nat64[12] = {0x00, 0x64, 0xff,
                                      0x9b}; /* RFC 6052: it stands for an IPv4 address */
    struct sockaddr_in6 six;
    struct sockaddr_in four;

    if (address->sa_family == AF_INET) {
        memcpy(&four, address, sizeof four);
        return memcmp(&four.sin_addr, v4, sizeof v4) == 0;
    }
    if (address->sa_family != AF_INET6)
        return false;
    memcpy(&six, address, sizeof six);
    const uint8_t *bytes = six.sin6_addr.s6_addr;
    return (bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80) ||
           memcmp(bytes, amazon, sizeof amazon) == 0 ||
           ((IN6_IS_ADDR_V4MAPPED(&six.sin6_addr) || memcmp(bytes, nat64, sizeof nat64) == 0) &&
            memcmp(bytes + 12, v4, sizeof v4) == 0);
}

/* U2: libcurl calls it for each connection, when the address is known. */
curl_socket_t bcurl_answer_socket(void *context, curlsocktype purpose, struct curl_sockaddr *to)
{
    bcurl_answer *answer = context;

    (void)purpose;
    if ((answer->is_redirected || answer->status / 100 == 3) && is_link_local(&to->addr)) {
        (void)bcurl_fail(answer->error, BERTH_E_SYSTEM, EACCES,
                         "a redirect leads to a link-local address, which is not followed");
        return CURL_SOCKET_BAD;
    }
    return socket(to->family, to->socktype | SOCK_CLOEXEC, to->protocol);
}

/* ---- headers ---- */

/* The value, if the line has this name. NULL: another. */
static const char *header_value(const char *line, const char *name)
{
    size_t n = strlen(name);

    if (strncasecmp(line, name, n) != 0 || line[n] != ':')
        return NULL;
    return line + n + 1 + strspn(line + n + 1, " \t");
}

/* What does not fit is no value: two long ones would look the same. */
static void copy_value(char *to, size_t room, const char *value)
{
    if (strlen(value) < room)
        (void)snprintf(to, room, "%s", value);
}

/* It goes into headers of later requests, also to other hosts: a bare CR would end one there. */
static bool has_control_character(const char *value)
{
    while (*value && (unsigned char)*value >= ' ' && *value != 0x7f)
        value++;
    return *value != '\0';
}

/* What the object is known by is said once, and compared whole. */
static void answer_copy_validator(bcurl_answer *answer, char *to, size_t room, const char *value)
{
    bool is_another = *to && strcmp(to, value) != 0;

    answer->has_bad_validator |=
        is_another || strlen(value) >= room || has_control_character(value);
    copy_value(to, room, value);
}

/* Reads digits, and the character after them. False: it is another, or the number is too large. */
static bool read_number(const char **at, uint64_t *number, char after)
{
    const char *begin = *at;

    *number = 0;
    for (; **at >= '0' && **at <= '9'; (*at)++) {
        if (*number > (INT64_MAX - 9) / 10)
            return false;
        *number = 10 * *number + (uint64_t)(**at - '0');
    }
    return *at > begin && *(*at)++ == after;
}

/* "bytes 0-9/100", or of an object without such a range "bytes *" "/100". */
static void answer_read_range(bcurl_answer *answer, const char *value)
{
    answer->has_range = false; /* of two, the last one counts, whole */
    answer->total = UINT64_MAX;
    if (strncmp(value, "bytes ", 6) != 0)
        return;
    value += 6;
    if (value[0] == '*' && value[1] == '/') {
        value += 2;
        if (!read_number(&value, &answer->total, '\0'))
            answer->total = UINT64_MAX;
        return;
    }
    answer->has_range = read_number(&value, &answer->first, '-') &&
                        read_number(&value, &answer->last, '/') &&
                        read_number(&value, &answer->total, '\0') &&
                        answer->first <= answer->last && answer->last < answer->total;
}

static void answer_read_header(bcurl_answer *answer, const char *line)
{
    const char *value;

    if ((value = header_value(line, "Content-Range")) != NULL)
        answer_read_range(answer, value);
    else if ((value = header_value(line, "Content-Length")) != NULL)
        answer->has_length = read_number(&value, &answer->length, '\0');
    else if ((value = header_value(line, "ETag")) != NULL)
        answer_copy_validator(answer, answer->etag, sizeof answer->etag, value);
    else if ((value = header_value(line, "Last-Modified")) != NULL)
        answer_copy_validator(answer, answer->modified, sizeof answer->modified, value);
    else if ((value = header_value(line, "x-amz-bucket-region")) != NULL)
        copy_value(answer->region, sizeof answer->region, value);
    else if ((value = header_value(line, "x-amz-checksum-crc32")) != NULL)
        copy_value(answer->crc32, sizeof answer->crc32, value);
}

/* Each answer has a status line of its own: to a redirect, through a proxy, "100 Continue". */
static void answer_begin(bcurl_answer *answer, const char *line)
{
    const bcurl_answer before = *answer;
    const char *status = strchr(line, ' ');

    memset(answer, 0, sizeof *answer);
    answer->url = before.url;
    answer->range = before.range;
    answer->kept = before.kept;
    if (answer->kept)
        answer->kept->nbytes = 0;
    answer->wait = before.wait;
    answer->error = before.error;
    answer->next_check = before.next_check;
    answer->is_redirected = before.is_redirected || before.status / 100 == 3;
    answer->total = UINT64_MAX;
    answer->status = status ? (int)strtol(status, NULL, 10) : 0;
}

size_t bcurl_answer_header(char *data, size_t size, size_t n, void *context)
{
    bcurl_answer *answer = context;
    size_t nbytes = size * n, end = nbytes;
    char line[1024] = "";

    while (end > 0 && strchr(" \t\r\n", data[end - 1]))
        end--;
    bool is_cut = end >= sizeof line; /* a part of a number is another number */
    (void)snprintf(line, sizeof line, "%.*s", (int)(is_cut ? sizeof line - 1 : end), data);
    if (is_cut)
        answer->has_bad_validator |=
            header_value(line, "ETag") || header_value(line, "Last-Modified");
    else if (strncmp(line, "HTTP/", 5) == 0)
        answer_begin(answer, line);
    else
        answer_read_header(answer, line);
    return nbytes;
}

/* ---- is it what was asked for? ---- */

/* What the first answer did not say is not asked of others; what it said, each of them must say. */
static bool has_other(const char *pinned, const char *now)
{
    return *pinned && strcmp(pinned, now) != 0;
}

static bcurl_use answer_refuse_changed(const bcurl_answer *answer)
{
    (void)bcurl_fail(answer->error, BERTH_E_SYSTEM, ESTALE,
                     "the object changed while it was read: open it again");
    return BCURL_REFUSED;
}

static bcurl_use answer_refuse_lie(const bcurl_answer *answer, const char *what)
{
    (void)bcurl_fail(answer->error, BERTH_E_SYSTEM, EPROTO,
                     "the server breaks the rules of HTTP: %s", what);
    return BCURL_REFUSED;
}

static void answer_pin(const bcurl_answer *answer, uint64_t nbytes)
{
    bcurl_url *url = answer->url;

    url->is_pinned = true;
    url->nbytes = nbytes;
    memcpy(url->etag, answer->etag, sizeof url->etag);
    memcpy(url->modified, answer->modified, sizeof url->modified);
}

/* The first range is as long as the server says, within what was asked for. */
static bool answer_begin_first(const bcurl_answer *answer)
{
    bcurl_range *range = answer->range;
    uint64_t nbytes = answer->last - answer->first + 1;
    uint64_t wanted = range->nbytes < answer->total ? range->nbytes : answer->total;

    if (nbytes != wanted || answer->first != (range->is_from_end ? answer->total - wanted : 0))
        return false;
    range->offset = answer->first;
    range->nbytes = nbytes;
    range->is_from_end = false;
    answer_pin(answer, answer->total);
    return true;
}

static bool answer_is_range_asked_for(const bcurl_answer *answer)
{
    const bcurl_range *range = answer->range;

    if (!range->url->is_pinned)
        return answer_begin_first(answer);
    return answer->first == range->offset + range->done_nbytes &&
           answer->last == range->offset + range->nbytes - 1;
}

static bcurl_use answer_check_range(bcurl_answer *answer)
{
    const bcurl_url *url = answer->url;

    if (!answer->has_range)
        return answer_refuse_lie(answer, "a range (206) without a valid Content-Range");
    if (url->is_pinned && (answer->total != url->nbytes || has_other(url->etag, answer->etag) ||
                           has_other(url->modified, answer->modified)))
        return answer_refuse_changed(answer);
    if (answer->has_bad_validator)
        return answer_refuse_lie(answer, "two ETags or times of change, or one that is too long or "
                                         "has control characters");
    if (!answer_is_range_asked_for(answer))
        return answer_refuse_lie(answer, "Content-Range is not the range that was asked for");
    if (answer->has_length && answer->length != answer->last - answer->first + 1)
        return answer_refuse_lie(answer, "Content-Length does not fit Content-Range");
    return BCURL_BYTES;
}

/* The whole object instead of a range. */
static bcurl_use answer_check_whole(bcurl_answer *answer)
{
    bcurl_range *range = answer->range;

    if (range->url->is_pinned)
        return answer_refuse_lie(answer, "the whole object (200) instead of a range, after ranges");
    if (answer->has_length && answer->length > BCURL_WHOLE_MAX_NBYTES) {
        (void)bcurl_fail(
            answer->error, BERTH_E_SYSTEM, ENOTSUP,
            "the server serves no ranges, and the object has %llu bytes: download it, or "
            "use another server",
            (ull)answer->length);
        return BCURL_REFUSED;
    }
    range->is_whole = true;
    range->done_nbytes = 0;
    return BCURL_WHOLE;
}

/* A range with the status 200, as rclone's server sends it, is one: it says which. */
bcurl_use bcurl_answer_check(bcurl_answer *answer)
{
    if (answer->use != BCURL_UNCHECKED)
        return answer->use;
    if (answer->range && (answer->status == 206 || (answer->status == 200 && answer->has_range)))
        answer->use = answer_check_range(answer);
    else if (answer->range && answer->status == 200)
        answer->use = answer_check_whole(answer);
    else if (answer->range && answer->status == 416 && answer->total == 0 &&
             !answer->range->url->is_pinned) {
        answer->range->nbytes = answer->range->offset = 0; /* an empty object has no ranges */
        answer_pin(answer, 0);
        answer->use = BCURL_TEXT;
    } else
        answer->use = BCURL_TEXT;
    return answer->use;
}

/* ---- the body ---- */

static bool answer_grow_whole(bcurl_answer *answer, size_t nbytes)
{
    bcurl_range *range = answer->range;
    uint64_t needed = range->done_nbytes + nbytes;

    if (needed > BCURL_WHOLE_MAX_NBYTES) {
        (void)bcurl_fail(
            answer->error, BERTH_E_SYSTEM, ENOTSUP,
            "the server serves no ranges, and the object has more than %llu MiB: download "
            "it, or use another server",
            (ull)BCURL_WHOLE_MAX_NBYTES >> 20);
        return false;
    }
    if (needed <= range->nbytes)
        return true;
    uint64_t room = needed < BCURL_WHOLE_MAX_NBYTES / 2 ? 2 * needed : BCURL_WHOLE_MAX_NBYTES;
    uint8_t *bytes = realloc(range->bytes, room);
    if (!bytes) {
        (void)bcurl_fail(answer->error, BERTH_E_MEMORY, 0, "out of memory");
        return false;
    }
    range->bytes = bytes;
    range->nbytes = room;
    return true;
}

static bool answer_take_bytes(bcurl_answer *answer, const char *data, size_t nbytes)
{
    bcurl_range *range = answer->range;

    if (answer->use == BCURL_WHOLE && !answer_grow_whole(answer, nbytes))
        return false;
    if (nbytes > range->nbytes - range->done_nbytes) {
        (void)answer_refuse_lie(answer, "more bytes than the range has");
        return false;
    }
    memcpy(range->bytes + range->done_nbytes, data, nbytes);
    range->done_nbytes += nbytes;
    answer->received_nbytes += nbytes;
    answer->wait->nbytes += nbytes;
    if (answer->wait->nbytes >= BCURL_PROGRESS_NBYTES)
        *answer->wait = bcurl_wait_begin(answer->wait->verb);
    return true;
}

static bool answer_keep_text(const bcurl_answer *answer, const char *data, size_t nbytes)
{
    bcurl_block *kept = answer->kept;
    uint8_t *bytes = kept->nbytes + nbytes < KEPT_MAX_NBYTES
                         ? realloc(kept->bytes, kept->nbytes + nbytes + 1)
                         : NULL;

    if (!bytes) {
        (void)bcurl_fail(answer->error, BERTH_E_MEMORY, ENOMEM,
                         "the server's answer is too large, or there is no memory");
        return false;
    }
    memcpy(bytes + kept->nbytes, data, nbytes);
    kept->bytes = bytes;
    kept->nbytes += nbytes;
    bytes[kept->nbytes] = '\0';
    return true;
}

static void answer_take_text(bcurl_answer *answer, const char *data, size_t nbytes)
{
    size_t room = sizeof answer->text - 1 - answer->text_nbytes;

    nbytes = nbytes < room ? nbytes : room;
    memcpy(answer->text + answer->text_nbytes, data, nbytes);
    answer->text_nbytes += nbytes;
}

/* Of another length than nbytes: libcurl gives up. */
size_t bcurl_answer_body(char *data, size_t size, size_t n, void *context)
{
    bcurl_answer *answer = context;
    size_t nbytes = size * n;

    switch (bcurl_answer_check(answer)) {
    case BCURL_BYTES:
    case BCURL_WHOLE:
        return answer_take_bytes(answer, data, nbytes) ? nbytes : nbytes + 1;
    case BCURL_TEXT:
        answer_take_text(answer, data, nbytes);
        answer->received_nbytes += nbytes; /* a short text, so that the connection stays */
        if (answer->kept)
            return answer_keep_text(answer, data, nbytes) ? nbytes : nbytes + 1;
        return answer->received_nbytes <= 65536 ? nbytes : nbytes + 1;
    default:
        return nbytes + 1;
    }
}

/* ---- in words ---- */

void bcurl_answer_find(const bcurl_answer *answer, const char *name, char *value, size_t room)
{
    char tag[64];
    int tag_nbytes = snprintf(tag, sizeof tag, "<%s>", name);
    const char *begin = strstr(answer->text, tag);
    size_t n = begin ? strcspn(begin + tag_nbytes, "<>&\"\r\n") : 0;

    value[0] = '\0';
    if (n > 0 && n < room && begin[(size_t)tag_nbytes + n] == '<')
        (void)snprintf(value, room, "%.*s", (int)n, begin + tag_nbytes);
}

/* code: the word by which S3 says why. */
static const char *answer_advice(const bcurl_answer *answer, const char *code)
{
    const bcurl_address *address = &answer->url->address;

    if (!address->is_s3)
        return "is it the right user and password, or a URL whose signature has expired?";
    if (!address->signature)
        return "the request was not signed, because no credentials were found: set AWS_PROFILE, or "
               "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";
    if (strcmp(code, "RequestTimeTooSkewed") == 0)
        return "this machine's clock is wrong";
    if (strcmp(code, "ExpiredToken") == 0)
        return "the credentials have expired: get new ones";
    return "the request was signed: are these the right credentials, and the right AWS_REGION?";
}

static int answer_refuse_redirect(const bcurl_answer *answer, berth_error *error)
{
    bool is_name =
        answer->region[0] &&
        answer->region[strspn(answer->region, "abcdefghijklmnopqrstuvwxyz0123456789-")] == '\0';

    if (is_name)
        return bcurl_fail(error, BERTH_E_SYSTEM, EIO,
                          "the bucket is in the region %s: set AWS_REGION=%s", answer->region,
                          answer->region);
    return bcurl_fail(error, BERTH_E_SYSTEM, EIO, "status %d: a redirect that is not followed",
                      answer->status);
}

int bcurl_answer_refuse(const bcurl_answer *answer, berth_error *error)
{
    int status = answer->status;
    char word[62], code[64] = "";

    bcurl_answer_find(answer, "Code", word, sizeof word); /* by which S3 says why */
    if (word[strspn(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")])
        word[0] = '\0'; /* U1: this is a server that repeats what it was sent */
    if (*word)
        (void)snprintf(code, sizeof code, ", %s", word);
    if (answer->range && (status == 412 || (status == 416 && answer->url->is_pinned)))
        return (void)answer_refuse_changed(answer), error->code;
    if (status == 401 || status == 403 || status == 407 || strcmp(word, "ExpiredToken") == 0)
        return bcurl_fail(error, BERTH_E_SYSTEM, EACCES, "not allowed (status %d%s): %s", status,
                          code, answer_advice(answer, word));
    if (status == 404 || status == 410)
        return bcurl_fail(error, BERTH_E_NOT_FOUND, ENOENT, "there is no such %s (status %d%s)",
                          strcmp(word, "NoSuchBucket") == 0 ? "bucket" : "object", status, code);
    if (answer->url->address.is_s3 && (status / 100 == 3 || answer->region[0]))
        return answer_refuse_redirect(answer, error);
    return bcurl_fail(error, BERTH_E_SYSTEM, EIO, "the server answers with status %d%s", status,
                      code);
}
