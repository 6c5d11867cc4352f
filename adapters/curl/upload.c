/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * An object of S3 that is written. Its parts are filled by the threads of a save, in any order.
 * The thread that fills the last byte of a part sends it. When all are sent and the save has ended,
 * one more request puts the object together. So the object is there whole, or not at all (U6), and
 * a save that was cancelled before that has not replaced the old one.
 *
 * Source: https://docs.aws.amazon.com/AmazonS3/latest/API/, CreateMultipartUpload, UploadPart,
 * CompleteMultipartUpload, AbortMultipartUpload, PutObject; qfacts.html: limits of parts.
 */
#include <berth/config.h>
#include <berth/more.h>
#include <errno.h>
#include <inttypes.h>
#include <libdeflate.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "adapters/curl/url.h"

typedef unsigned long long ull;

#define MIB ((uint64_t)1 << 20)
#define MIN_PART_NBYTES (5 * MIB)
#define USUAL_PART_NBYTES (8 * MIB)
#define MAX_PART_NBYTES ((uint64_t)5 << 30)
#define MAX_PARTS 10000
#define N_THREADS 8
#define N_HELD 2     /* parts for each thread: one that it sends, one that waits for a checksum */
#define MAX_SPARE 16 /* new memory would be filled with zeros, page by page, for each part */
#define ABORT_SECONDS 20
#define PATIENT_SECONDS 5

typedef struct upload_part {
    const uint8_t *lent; /* all of it, in memory of the one that writes it; or NULL */
    uint8_t *bytes;      /* until it is sent; NULL: nothing of it has come, or it is lent */
    uint64_t come_nbytes, summed_nbytes;
    uint32_t crc32; /* of what is summed; where the rest is zeros */
    char *etag;     /* once it is sent */
} upload_part;

/* For requests whose answer is waited for a while, although the caller has cancelled. */
typedef struct upload_patience {
    int (*cancelled)(void *context); /* the caller's */
    void *context;
    double seconds, since; /* since it was cancelled; 0: it was not */
} upload_patience;

struct berth_upload {
    bcurl_url url;
    pid_t pid;
    uint64_t nbytes, part_nbytes;
    size_t n_parts;
    char id[BCURL_ID_NBYTES]; /* encoded; "": one request is enough, or it has ended */
    bool is_joined;           /* another process has begun it, and ends it */
    char condition[BCURL_TAG_NBYTES + 32];
    berth_sink sink;
    pthread_mutex_t lock; /* of all below */
    upload_part *parts;
    uint8_t *spare[MAX_SPARE]; /* memory of parts that are sent */
    size_t n_spare, n_sent;
    bool has_failed;
    berth_error failure; /* the first one; code 0: none, or one of the caller */
    upload_patience patience;
    bool has_begun, has_ended; /* with a size; well */
    bool is_saved;             /* a save has begun to write to it: one may */
    berth_error left;          /* what could not be removed; code 0: nothing */
};

/* ---- checksums ---- */

/* The four bytes of a CRC, the highest first, in base64. */
static void print_crc32(uint32_t crc, char text[9])
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint64_t bits = (uint64_t)crc << 4; /* six digits of six bits */

    for (int i = 0; i < 6; i++)
        text[i] = digits[bits >> (30 - 6 * i) & 63];
    memcpy(text + 6, "==", 3);
}

/* Of the whole object. The caller holds the lock, or is the last one. */
static uint32_t upload_crc32(const berth_upload *upload)
{
    uint32_t crc = upload->parts[0].crc32;

    for (size_t i = 1; i < upload->n_parts; i++)
        crc = (uint32_t)crc32_combine(crc, upload->parts[i].crc32,
                                      (z_off_t)upload->parts[i].come_nbytes);
    return crc;
}

static void request_add_header(bcurl_request *request, size_t at, const char *header)
{
    (void)snprintf(request->headers[at], sizeof request->headers[at], "%s", header);
}

static void request_add_crc32(bcurl_request *request, size_t at, uint32_t crc)
{
    char text[9];

    print_crc32(crc, text);
    (void)snprintf(request->headers[at], sizeof request->headers[at], "x-amz-checksum-crc32: %s",
                   text);
}

/* ---- the beginning ---- */

/* An ETag goes into headers and XML as the server gave it. */
static bool is_etag(const char *etag)
{
    size_t n = strlen(etag);

    return n > 0 && n < BCURL_TAG_NBYTES &&
           strspn(etag, "\"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                        "-_./+=:~") == n;
}

static int upload_is_given_up(void *context)
{
    upload_patience *patience = context;

    if (patience->since == 0 && patience->cancelled && patience->cancelled(patience->context) != 0)
        patience->since = bcurl_seconds();
    return patience->since > 0 && bcurl_seconds() > patience->since + patience->seconds;
}

/* Nobody knows what a request has done that was given up. */
static void upload_be_patient(berth_upload *upload, double seconds)
{
    berth_url_params *params = &upload->url.params;

    upload->patience = (upload_patience){params->cancelled, params->context, seconds, 0};
    params->cancelled = upload_is_given_up;
    params->context = &upload->patience;
}

static int upload_create(berth_upload *upload, berth_error *error)
{
    const bcurl_request request = {
        .step = "beginning the upload",
        .method = "POST",
        .query = "uploads=",
        .body = "",
        .headers = {"x-amz-checksum-algorithm: CRC32", "x-amz-checksum-type: FULL_OBJECT"}};
    bcurl_answer answer;
    char id[sizeof upload->id / 3];

    upload_be_patient(upload, PATIENT_SECONDS);
    int status = bcurl_request_send(&upload->url, &request, &answer, error);
    upload->url.params.cancelled = upload->patience.cancelled;
    upload->url.params.context = upload->patience.context;
    if (status < 0)
        return status;
    bcurl_answer_find(&answer, "UploadId", id, sizeof id);
    char *encoded = *id ? bcurl_encode(id, true) : NULL;
    if (!encoded)
        return bcurl_fail(error, BERTH_E_SYSTEM, EPROTO,
                          "%s: the server began an upload without an id (status %d)",
                          upload->url.address.shown, answer.status);
    (void)snprintf(upload->id, sizeof upload->id, "%s", encoded);
    free(encoded);
    if (upload->patience.since > 0)
        return bcurl_fail(error, BERTH_E_CANCELLED, ECANCELED, "cancelled");
    return 0;
}

static int upload_choose_parts(berth_upload *upload, uint64_t wanted, berth_error *error)
{
    uint64_t least = (upload->nbytes + MAX_PARTS - 1) / MAX_PARTS;

    upload->part_nbytes = wanted ? wanted : USUAL_PART_NBYTES;
    if (!wanted && upload->part_nbytes < least)
        upload->part_nbytes = (least + MIB - 1) / MIB * MIB;
    if (upload->part_nbytes < MIN_PART_NBYTES || upload->part_nbytes > MAX_PART_NBYTES ||
        upload->part_nbytes > SIZE_MAX / 2 || /* 32 bits */
        upload->part_nbytes < least)
        return bcurl_fail(error, BERTH_E_ARGUMENT, 0,
                          "parts of %llu bytes: S3 takes parts of 5 MiB to 5 GiB, and at most "
                          "%d of them, and the object has %llu bytes",
                          (ull)upload->part_nbytes, MAX_PARTS, (ull)upload->nbytes);
    upload->n_parts = (size_t)((upload->nbytes + upload->part_nbytes - 1) / upload->part_nbytes);
    upload->parts = calloc(upload->n_parts, sizeof *upload->parts);
    return upload->parts ? 0 : bcurl_fail(error, BERTH_E_MEMORY, ENOMEM, "out of memory");
}

/* The option is that of the caller's thread. */
static int upload_set_condition(berth_upload *upload, const char *if_match, berth_error *error)
{
    berth_option option;

    if (!if_match) {
        if (berth_config_describe(NULL, "save.if_match", &option, error) < 0)
            return error->code;
        if_match = option.text;
    }
    if (*if_match && !is_etag(if_match))
        return bcurl_fail(error, BERTH_E_ARGUMENT, 0,
                          "save.if_match: '%.100s' is no ETag, and not none", if_match);
    if (strcmp(if_match, "none") == 0)
        (void)snprintf(upload->condition, sizeof upload->condition, "If-None-Match: *");
    else if (*if_match)
        (void)snprintf(upload->condition, sizeof upload->condition, "If-Match: %s", if_match);
    return 0;
}

/* ---- the end ---- */

/*
 * Whether the object has the bytes of the upload: it has been put together by an earlier try, whose
 * answer was lost. Without a checksum nobody knows, and the error tells that: the object of the
 * step before in a training has as many bytes and parts.
 */
static bool upload_is_in_place(berth_upload *upload, berth_error *error)
{
    bcurl_request request = {.method = "HEAD", .headers = {"x-amz-checksum-mode: ENABLED"}};
    bcurl_answer answer;
    berth_error head;
    char crc[9];

    int status = bcurl_request_send(&upload->url, &request, &answer, &head);
    bool is_other = status == BERTH_E_NOT_FOUND ||
                    (status == 0 && answer.has_length && answer.length != upload->nbytes);
    print_crc32(upload_crc32(upload), crc);
    if (status == 0 && !is_other && *answer.crc32)
        return strcmp(answer.crc32, crc) == 0;
    if (!is_other)
        bcurl_tell_more(error, "nobody knows whether the object is the new one: its checksum is "
                               "not told");
    return false;
}

/*
 * The conditions of S3 speak of the object at the end, when it would be put in its place. Of a
 * request that was repeated, the first try may have put it there.
 */
static int upload_explain_condition(berth_upload *upload, const bcurl_answer *answer,
                                    berth_error *error)
{
    if (!upload->condition[0] || (answer->status != 412 && answer->status != 409))
        return error->code;
    (void)bcurl_fail(error, BERTH_E_BUSY, EEXIST,
                     upload->condition[3] == 'N'
                         ? "%s: there is an object already, which stays (status %d)"
                         : "%s: the object is another one than expected, and stays (status %d)",
                     upload->url.address.shown, answer->status);
    return answer->is_repeated && upload_is_in_place(upload, error) ? 0 : error->code;
}

/*
 * Bytes are summed while they are copied to the part. If they are others there, the server, which
 * says only that the sum is wrong, is right.
 */
static int upload_explain_sum(const berth_upload *upload, size_t i, const bcurl_answer *answer,
                              berth_error *error)
{
    const upload_part *part = &upload->parts[i];
    const uint8_t *bytes = part->lent ? part->lent : part->bytes;

    if (answer->status != 400 ||
        libdeflate_crc32(0, bytes, (size_t)part->come_nbytes) == part->crc32)
        return error->code;
    return bcurl_fail(error, BERTH_E_CHECKSUM, 0,
                      "%s: part %zu of %zu has other bytes than those that were summed; was a "
                      "tensor changed while it was saved?",
                      upload->url.address.shown, i + 1, upload->n_parts);
}

/* Of an object of one part. */
static int upload_put(berth_upload *upload, berth_error *error)
{
    const upload_part *part = &upload->parts[0];
    bcurl_request request = {
        .step = "the upload", .method = "PUT", .body = part->bytes, .nbytes = upload->nbytes};
    bcurl_answer answer;

    request_add_crc32(&request, 0, part->crc32);
    request_add_header(&request, 1, upload->condition);
    if (bcurl_request_send(&upload->url, &request, &answer, error) < 0) {
        (void)upload_explain_sum(upload, 0, &answer, error);
        return upload_explain_condition(upload, &answer, error);
    }
    if (!is_etag(answer.etag)) /* a proxy that wants a login answers 200, too */
        return bcurl_fail(error, BERTH_E_SYSTEM, EPROTO,
                          "%s: the server took the object without an ETag (status %d)",
                          upload->url.address.shown, answer.status);
    return 0;
}

/* The list of parts. NULL: no memory. */
static char *upload_print_parts(const berth_upload *upload)
{
    char *text = NULL, crc[9];
    size_t nbytes = 0;
    FILE *to = open_memstream(&text, &nbytes);

    if (!to)
        return NULL;
    (void)fputs("<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">", to);
    for (size_t i = 0; i < upload->n_parts; i++) {
        print_crc32(upload->parts[i].crc32, crc);
        (void)fprintf(to,
                      "<Part><ChecksumCRC32>%s</ChecksumCRC32><ETag>%s</ETag><PartNumber>%zu"
                      "</PartNumber></Part>",
                      crc, upload->parts[i].etag, i + 1);
    }
    (void)fputs("</CompleteMultipartUpload>", to);
    bool is_whole = !ferror(to);
    if (fclose(to) == 0 && is_whole)
        return text;
    free(text);
    return NULL;
}

/* Without the caller's wish to stop, which may be why it ends, and not for long. */
static int upload_abort(berth_upload *upload, berth_error *error)
{
    char query[sizeof upload->id + 16];
    const bcurl_request request = {
        .step = "removing what was sent", .method = "DELETE", .query = query};
    bcurl_answer answer;
    char code[64];

    (void)snprintf(query, sizeof query, "uploadId=%s", upload->id);
    upload->url.params.cancelled = NULL;
    if (upload->url.params.deadline_seconds > ABORT_SECONDS)
        upload->url.params.deadline_seconds = ABORT_SECONDS;
    int status = bcurl_request_send(&upload->url, &request, &answer, error);
    bcurl_answer_find(&answer, "Code", code, sizeof code);
    const berth_error why = *error;
    if (status == 0 || strcmp(code, "NoSuchUpload") == 0) {
        upload->id[0] = '\0';
        *error = (berth_error){.offset = BERTH_NO_OFFSET};
        return 0;
    }
    return bcurl_fail(error, why.code, why.system_errno,
                      "%.300s: it is left, and costs, until `berth clean --remove` removes it",
                      why.message);
}

/*
 * Nobody knows what became of the last request: it has ended the upload, or it cannot any more,
 * once that is removed. Which, the object tells: some stores answer that they have removed what has
 * ended.
 */
static bool upload_has_ended_well(berth_upload *upload, const bcurl_answer *answer,
                                  berth_error *error)
{
    berth_error ignored;
    char code[64];

    bcurl_answer_find(answer, "Code", code, sizeof code);
    if (strcmp(code, "NoSuchUpload") != 0 &&
        (answer->status / 100 == 4 || upload_abort(upload, &ignored) < 0))
        return false;
    return upload_is_in_place(upload, error);
}

static int upload_put_together(berth_upload *upload, berth_error *error)
{
    bcurl_request request = {.step = "completing the upload", .method = "POST", .waits_long = true};
    char query[sizeof upload->id + 16];
    char *list = upload_print_parts(upload);
    bcurl_answer answer;

    if (!list)
        return bcurl_fail(error, BERTH_E_MEMORY, ENOMEM, "out of memory");
    (void)snprintf(query, sizeof query, "uploadId=%s", upload->id);
    request.query = query;
    request.body = list;
    request.nbytes = strlen(list);
    request_add_crc32(&request, 0, upload_crc32(upload));
    request_add_header(&request, 1, "x-amz-checksum-type: FULL_OBJECT");
    (void)snprintf(request.headers[2], sizeof request.headers[2], "x-amz-mp-object-size: %" PRIu64,
                   upload->nbytes);
    request_add_header(&request, 3, upload->condition);
    int status = bcurl_request_send(&upload->url, &request, &answer, error);
    free(list);
    if (status == 0 && !strstr(answer.text, "CompleteMultipartUploadResult"))
        status = bcurl_fail(error, BERTH_E_SYSTEM, EPROTO,
                            "%s: the server does not say that the upload is complete (status %d)",
                            upload->url.address.shown, answer.status);
    if (status < 0 && !upload_has_ended_well(upload, &answer, error))
        return upload_explain_condition(upload, &answer, error);
    upload->id[0] = '\0';
    return 0;
}

int berth_upload_finish(berth_upload *upload, berth_error *error)
{
    berth_error own = {.offset = BERTH_NO_OFFSET};

    if (upload->pid != getpid()) /* X11: it is the parent's */
        (void)bcurl_fail(&own, BERTH_E_ARGUMENT, EBADF, "the upload is of the parent process");
    else if (upload->has_ended)
        ;
    else if (upload->has_failed || !upload->has_begun || upload->n_sent < upload->n_parts)
        own = upload->failure;
    else if (bcurl_is_cancelled(&upload->url))
        (void)bcurl_fail(&own, BERTH_E_CANCELLED, ECANCELED, "cancelled");
    else {
        upload_be_patient(upload, upload->id[0] ? ABORT_SECONDS : PATIENT_SECONDS);
        int status = upload->id[0] ? upload_put_together(upload, &own) : upload_put(upload, &own);
        if (status == 0)
            own = (berth_error){.offset = BERTH_NO_OFFSET};
        upload->has_ended = status == 0;
    }
    if (own.code == 0 && !upload->has_ended)
        (void)bcurl_fail(&own, BERTH_E_ARGUMENT, 0, "the upload has not got all of its bytes");
    if (error)
        *error = own;
    return own.code;
}

/* ---- parts ---- */

static uint64_t upload_part_nbytes(const berth_upload *upload, size_t i)
{
    uint64_t left = upload->nbytes - i * upload->part_nbytes;

    return left < upload->part_nbytes ? left : upload->part_nbytes;
}

static int upload_send_part(berth_upload *upload, size_t i, berth_error *error)
{
    upload_part *part = &upload->parts[i];
    char step[48];
    bcurl_request request = {.step = step,
                             .method = "PUT",
                             .body = part->lent ? part->lent : part->bytes,
                             .nbytes = upload_part_nbytes(upload, i)};
    char query[sizeof upload->id + 64];
    bcurl_answer answer;

    (void)snprintf(query, sizeof query, "partNumber=%zu&uploadId=%s", i + 1, upload->id);
    (void)snprintf(step, sizeof step, "part %zu of %zu", i + 1, upload->n_parts);
    request.query = query;
    request_add_crc32(&request, 0, part->crc32);
    if (bcurl_request_send(&upload->url, &request, &answer, error) < 0)
        return upload_explain_sum(upload, i, &answer, error);
    if (!is_etag(answer.etag))
        return bcurl_fail(error, BERTH_E_SYSTEM, EPROTO,
                          "%s: the server took part %zu without an ETag (status %d)",
                          upload->url.address.shown, i + 1, answer.status);
    part->etag = strdup(answer.etag);
    return part->etag ? 0 : bcurl_fail(error, BERTH_E_MEMORY, ENOMEM, "out of memory");
}

/* All of the part is there, and nobody else has it. */
static int upload_finish_part(berth_upload *upload, size_t i, berth_error *error)
{
    upload_part *part = &upload->parts[i];
    int status = 0;

    if (part->summed_nbytes < part->come_nbytes)
        part->crc32 =
            libdeflate_crc32(0, part->lent ? part->lent : part->bytes, (size_t)part->come_nbytes);
    if (upload->id[0])
        status = upload_send_part(upload, i, error);
    (void)pthread_mutex_lock(&upload->lock);
    upload->n_sent += status == 0;
    part->lent = NULL;
    if (upload->id[0] && part->bytes) { /* that of a single part is sent at the end */
        if (upload->n_spare < MAX_SPARE)
            upload->spare[upload->n_spare++] = part->bytes;
        else
            free(part->bytes);
        part->bytes = NULL;
    }
    (void)pthread_mutex_unlock(&upload->lock);
    return status;
}

/* Memory of the part, for bytes that come. NULL: no memory, or the upload has failed. */
static uint8_t *upload_find_bytes(berth_upload *upload, size_t i)
{
    upload_part *part = &upload->parts[i];

    (void)pthread_mutex_lock(&upload->lock);
    uint8_t *bytes = upload->has_failed ? NULL : part->bytes;
    if (!bytes && !upload->has_failed) {
        bytes = upload->n_spare > 0 ? upload->spare[--upload->n_spare]
                                    : malloc((size_t)upload_part_nbytes(upload, 0));
        part->bytes = bytes;
    }
    (void)pthread_mutex_unlock(&upload->lock);
    return bytes;
}

/* Whether these bytes were the last ones of the part. */
static bool upload_count(berth_upload *upload, size_t i, uint64_t nbytes)
{
    upload_part *part = &upload->parts[i];

    (void)pthread_mutex_lock(&upload->lock);
    part->come_nbytes += nbytes;
    bool is_whole = part->come_nbytes == upload_part_nbytes(upload, i) && !upload->has_failed;
    (void)pthread_mutex_unlock(&upload->lock);
    return is_whole;
}

static int upload_fail(berth_upload *upload, const berth_error *error, int number)
{
    (void)pthread_mutex_lock(&upload->lock);
    if (!upload->has_failed)
        upload->failure = *error;
    upload->has_failed = true;
    (void)pthread_mutex_unlock(&upload->lock);
    return number ? number : EIO;
}

/* Unless the upload has failed: then the first error stays. */
static int upload_fail_memory(berth_upload *upload)
{
    berth_error error;

    (void)bcurl_fail(&error, BERTH_E_MEMORY, ENOMEM,
                     "%s: no memory for a part of %llu bytes: fewer io.threads need less",
                     upload->url.address.shown, (ull)upload_part_nbytes(upload, 0));
    return upload_fail(upload, &error, ENOMEM);
}

static int upload_write(void *context, const void *buffer, size_t nbytes, uint64_t offset)
{
    berth_upload *upload = context;
    const uint8_t *from = buffer;
    berth_error error = {.offset = BERTH_NO_OFFSET};

    if (upload->pid != getpid()) /* X11: it is the parent's */
        return EBADF;
    if (offset > upload->nbytes || nbytes > upload->nbytes - offset)
        return upload_fail(upload, &error, EINVAL);
    while (nbytes > 0) {
        size_t i = (size_t)(offset / upload->part_nbytes);
        uint64_t at = offset % upload->part_nbytes, left = upload_part_nbytes(upload, i) - at;
        size_t n = nbytes < left ? nbytes : (size_t)left;
        bool is_lent = upload->id[0] && n == upload_part_nbytes(upload, i);
        uint8_t *bytes = is_lent ? NULL : upload_find_bytes(upload, i);
        if (!bytes && !is_lent)
            return upload_fail_memory(upload);
        if (is_lent)
            upload->parts[i].lent = from;
        else if (from != bytes + at)
            memcpy(bytes + at, from, n);
        if (upload_count(upload, i, n) && upload_finish_part(upload, i, &error) < 0)
            return upload_fail(upload, &error, error.system_errno);
        from += n;
        offset += n;
        nbytes -= n;
    }
    return 0;
}

/* ---- all of it ---- */

static void upload_release_bytes(berth_upload *upload)
{
    for (size_t i = 0; upload->parts && i < upload->n_parts; i++) {
        free(upload->parts[i].bytes);
        upload->parts[i].bytes = NULL;
    }
    while (upload->n_spare > 0)
        free(upload->spare[--upload->n_spare]);
}

static void upload_release(berth_upload *upload)
{
    bcurl_connections_free(atomic_load(&upload->url.connections));
    bcurl_address_free(&upload->url.address);
    upload_release_bytes(upload);
    for (size_t i = 0; upload->parts && i < upload->n_parts; i++)
        free(upload->parts[i].etag);
    free(upload->parts);
    (void)pthread_mutex_destroy(&upload->lock);
    free(upload);
}

/* Its size is known now. */
static int upload_begin(berth_upload *upload, uint64_t nbytes, bool is_of_parts, berth_error *error)
{
    upload->nbytes = nbytes;
    if (nbytes == 0)
        return bcurl_fail(error, BERTH_E_ARGUMENT, 0, "an upload has at least a byte");
    if (upload_choose_parts(upload, upload->part_nbytes, error) < 0)
        return error->code;
    upload->has_begun = true;
    return !upload->is_joined && (upload->n_parts > 1 || is_of_parts) ? upload_create(upload, error)
                                                                      : 0;
}

/* Without the size, if nbytes is 0. */
static int upload_open(berth_upload *upload, const char *text, uint64_t nbytes,
                       const berth_upload_params *params, const bcurl_many *many,
                       berth_error *error)
{
    upload->part_nbytes = many && many->part_nbytes ? many->part_nbytes : params->part_nbytes;
    for (size_t i = 0; i < sizeof params->reserved / sizeof *params->reserved; i++)
        if (params->reserved[i] != 0)
            return bcurl_fail(error, BERTH_E_ARGUMENT, 0, "berth_upload_params.reserved must be 0");
    if (upload_set_condition(upload, params->if_match, error) < 0 ||
        bcurl_url_find_deadline(&upload->url, error) < 0 || bcurl_need_library(error) < 0 ||
        bcurl_address_make(text, &upload->url.address, error) < 0)
        return error->code;
    if (!upload->url.address.is_s3)
        return bcurl_fail(error, BERTH_E_UNSUPPORTED, 0,
                          "%s: of URLs, only those with s3:// can be written",
                          upload->url.address.shown);
    if (many && many->id) {
        if (strlen(many->id) >= sizeof upload->id || !*many->id || strpbrk(many->id, "&?# "))
            return bcurl_fail(error, BERTH_E_ARGUMENT, 0, "this is no id of an upload");
        upload->is_joined = true;
        upload->url.is_pinned = true; /* the server has answered the one that began it */
        (void)snprintf(upload->id, sizeof upload->id, "%s", many->id);
    }
    return nbytes > 0 || many ? upload_begin(upload, nbytes, many != NULL, error) : 0;
}

/* ---- as a sink of a save ---- */

static int upload_step_begin(void *context, uint64_t nbytes, berth_sink_need *need)
{
    berth_upload *upload = context;
    berth_error error = {.offset = BERTH_NO_OFFSET};

    if (upload->pid != getpid())
        return EBADF;
    if (upload->is_saved)
        (void)bcurl_fail(&error, BERTH_E_ARGUMENT, EINVAL, "%s: an upload is of one save",
                         upload->url.address.shown);
    else if (upload->has_begun && upload->nbytes != nbytes)
        (void)bcurl_fail(&error, BERTH_E_ARGUMENT, 0,
                         "%s: the upload has %llu bytes, and the save %llu",
                         upload->url.address.shown, (ull)upload->nbytes, (ull)nbytes);
    upload->is_saved = true;
    if (error.code < 0 || (!upload->has_begun && upload_begin(upload, nbytes, false, &error) < 0)) {
        if (upload->failure.code == 0) /* the save before has left none */
            upload->failure = error;
        return upload_fail(upload, &error, error.system_errno);
    }
    *need = (berth_sink_need){
        .chunk_nbytes = upload->part_nbytes, .n_threads = N_THREADS, .n_chunks = N_HELD};
    return 0;
}

static void *upload_step_place(void *context, uint64_t offset, size_t nbytes)
{
    berth_upload *upload = context;
    size_t i = (size_t)(offset / upload->part_nbytes);
    uint64_t at = offset % upload->part_nbytes;

    if (upload->pid != getpid() || offset >= upload->nbytes ||
        nbytes > upload_part_nbytes(upload, i) - at)
        return NULL;
    uint8_t *bytes = upload_find_bytes(upload, i);
    if (!bytes)
        (void)upload_fail_memory(upload);
    return bytes ? bytes + at : NULL;
}

/* Of bytes that lie in one part, as their memory does. */
static void upload_step_sum(void *context, uint64_t offset, size_t nbytes, uint32_t crc32)
{
    berth_upload *upload = context;
    size_t i = (size_t)(offset / upload->part_nbytes);
    uint64_t behind = upload_part_nbytes(upload, i) - offset % upload->part_nbytes - nbytes;
    uint32_t shifted = (uint32_t)crc32_combine(crc32, 0, (z_off_t)behind);

    (void)pthread_mutex_lock(&upload->lock);
    upload->parts[i].crc32 ^= shifted;
    upload->parts[i].summed_nbytes += nbytes;
    (void)pthread_mutex_unlock(&upload->lock);
}

static int upload_step_finish(void *context)
{
    berth_error error;

    return berth_upload_finish(context, &error) < 0
               ? upload_fail(context, &error, error.system_errno)
               : 0;
}

static void upload_step_abort(void *context)
{
    berth_upload *upload = context;
    const berth_error none = {.offset = BERTH_NO_OFFSET};

    if (upload->pid != getpid())
        return;
    (void)upload_fail(upload, &none, 0); /* nothing more counts */
    if (!upload->id[0] || upload->is_joined)
        return;
    upload_release_bytes(upload); /* the request may need memory */
    (void)upload_abort(upload, &upload->left);
}

const berth_sink *berth_upload_sink(const berth_upload *upload)
{
    return &upload->sink;
}

int berth_upload_explain(berth_upload *upload, berth_error *error)
{
    (void)pthread_mutex_lock(&upload->lock);
    if (error && error->code == BERTH_E_CALLBACK && upload->failure.code < 0) {
        uint64_t offset = error->offset;
        *error = upload->failure;
        error->offset = offset;
    }
    (void)pthread_mutex_unlock(&upload->lock);
    return error ? error->code : 0;
}

int berth_upload_end(berth_upload *upload, berth_error *error)
{
    berth_error own = {.offset = BERTH_NO_OFFSET};

    if (!upload)
        return 0;
    if (upload->pid == getpid()) {
        if (upload->left.code == 0)
            upload_step_abort(upload);
        own = upload->left;
        upload_release(upload);
    }
    if (error)
        *error = own;
    return own.code;
}

void bcurl_tell_more(berth_error *error, const char *more)
{
    size_t n = strlen(error->message);

    if (n + 3 < sizeof error->message)
        (void)snprintf(error->message + n, sizeof error->message - n, "; %.300s", more);
}

int berth_upload_begin(const char *url, uint64_t nbytes, const berth_upload_params *params,
                       berth_upload **upload, berth_error *error)
{
    return bcurl_upload_begin(url, nbytes, params, NULL, upload, error);
}

int bcurl_upload_begin(const char *url, uint64_t nbytes, const berth_upload_params *params,
                       const bcurl_many *many, berth_upload **upload, berth_error *error)
{
    static const berth_upload_params defaults;
    static const berth_sink_steps steps = {upload_step_begin, upload_step_place, upload_step_sum,
                                           upload_step_finish, upload_step_abort};
    berth_error own = {.offset = BERTH_NO_OFFSET}, left;
    berth_upload *made = calloc(1, sizeof *made);

    *upload = NULL;
    if (!made)
        return bcurl_fail(error, BERTH_E_MEMORY, 0, "out of memory");
    params = params ? params : &defaults;
    made->pid = getpid();
    made->left.offset = BERTH_NO_OFFSET;
    made->sink = (berth_sink){.write = upload_write, .context = made, .steps = &steps};
    made->url.params = (berth_url_params){.cancelled = params->cancelled,
                                          .context = params->context,
                                          .deadline_seconds = params->deadline_seconds};
    (void)pthread_mutex_init(&made->lock, NULL);
    if (upload_open(made, url, nbytes, params, many, &own) == 0)
        *upload = made;
    else if (berth_upload_end(made, &left) < 0)
        bcurl_tell_more(&own, left.message);
    if (error)
        *error = own;
    return own.code;
}

/* ---- an upload of many processes ---- */

void bcurl_upload_describe(const berth_upload *upload, bcurl_many *many)
{
    *many = (bcurl_many){.id = upload->id, .part_nbytes = upload->part_nbytes};
}

char *bcurl_upload_print_sent(berth_upload *upload)
{
    char *text = NULL;
    size_t nbytes = 0;
    FILE *to = open_memstream(&text, &nbytes);

    for (size_t i = 0; to && upload->is_joined && i < upload->n_parts; i++)
        if (upload->parts[i].etag)
            (void)fprintf(to, "%zu %08" PRIx32 " %s\n", i + 1, upload->parts[i].crc32,
                          upload->parts[i].etag);
    bool is_whole = to && !ferror(to);
    if (to && fclose(to) == 0 && is_whole)
        return text;
    free(text);
    return NULL;
}

/* Bytes of another process: all is checked. */
int bcurl_upload_add_sent(berth_upload *upload, const char *text, berth_error *error)
{
    char etag[BCURL_TAG_NBYTES], *end;

    while (*text) {
        unsigned long number = strtoul(text, &end, 10), crc32 = strtoul(end, &end, 16);
        const char *tag = *end == ' ' ? end + 1 : end;
        size_t n = strcspn(tag, "\n");
        (void)snprintf(etag, sizeof etag, "%.*s", (int)(n < sizeof etag ? n : 0), tag);
        if (tag[n] != '\n' || number == 0 || number > upload->n_parts || !is_etag(etag))
            return bcurl_fail(error, BERTH_E_ARGUMENT, 0, "this is no receipt of parts");
        text = tag + n + 1;
        upload_part *part = &upload->parts[number - 1];
        if (part->etag)
            return bcurl_fail(error, BERTH_E_ARGUMENT, 0, "part %lu was sent twice", number);
        char *copy = strdup(etag);
        if (!copy)
            return bcurl_fail(error, BERTH_E_MEMORY, ENOMEM, "out of memory");
        part->etag = copy;
        part->crc32 = (uint32_t)crc32;
        part->come_nbytes = upload_part_nbytes(upload, number - 1);
        upload->n_sent++;
    }
    return 0;
}

int berth_save_url(const char *url, const berth_content *content, const berth_params *params,
                   const berth_upload_params *upload_params, berth_error *error)
{
    berth_error own = {.offset = BERTH_NO_OFFSET}, left;
    berth_upload *upload = NULL;

    if (berth_upload_begin(url, 0, upload_params, &upload, &own) == 0 && upload) {
        berth_target target = berth_to_sink(berth_upload_sink(upload));
        target.path = url;
        if (berth_save_to(&target, content, params, &own) < 0)
            (void)berth_upload_explain(upload, &own);
    }
    if (berth_upload_end(upload, &left) < 0 && own.code < 0)
        bcurl_tell_more(&own, left.message);
    if (error)
        *error = own;
    return own.code;
}
