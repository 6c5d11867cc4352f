/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * An object that many processes write: the library's joint save to an object, and an upload of S3,
 * which the coordinator begins and ends. Its ticket is that of both:
 *
 *     "BerthUrl", u32 nbytes of the text, the text, a NUL, the ticket of the joint save
 *     text: bytes of the object, bytes of a part, id of the upload, the URL; a blank between them
 *
 * A receipt is a line for each part that its writer has sent: number, CRC-32, ETag.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/curl/url.h"

#define MAGIC "BerthUrl"
#define HEAD_NBYTES (sizeof MAGIC - 1 + 4)

struct berth_joint_url {
    berth_joint *joint;
    berth_upload *upload;
    char *ticket;
    size_t ticket_nbytes;
    size_t n_writers;
    bool *has_receipt; /* one a writer */
};

static int fail_memory(berth_error *error)
{
    return bcurl_fail(error, BERTH_E_MEMORY, 0, "out of memory");
}

/* ---- tickets ---- */

static int ticket_make(berth_joint_url *joint, const char *url, const berth_joint_info *info,
                       berth_error *error)
{
    bcurl_many many;
    char *text = NULL;

    bcurl_upload_describe(joint->upload, &many);
    int n = asprintf(&text, "%" PRIu64 " %" PRIu64 " %s %s", info->nbytes, many.part_nbytes,
                     many.id, url);
    if (n < 0)
        return fail_memory(error);
    joint->ticket_nbytes = HEAD_NBYTES + (size_t)n + 1 + info->ticket_nbytes;
    joint->ticket = malloc(joint->ticket_nbytes);
    if (joint->ticket) {
        char *to = joint->ticket;
        memcpy(to, MAGIC, sizeof MAGIC - 1);
        for (unsigned i = 0; i < 4; i++)
            to[sizeof MAGIC - 1 + i] = (char)((unsigned)n >> 8 * i & 255);
        memcpy(to + HEAD_NBYTES, text, (size_t)n + 1);
        memcpy(to + HEAD_NBYTES + n + 1, info->ticket, info->ticket_nbytes);
    }
    free(text);
    return joint->ticket ? 0 : fail_memory(error);
}

typedef struct read_ticket {
    const char *joint; /* the ticket of the joint save */
    size_t joint_nbytes;
    uint64_t nbytes;
    bcurl_many many;
    char id[BCURL_ID_NBYTES];
    const char *url;
} read_ticket;

/* Bytes of another process: all is checked. */
static int ticket_read(const void *bytes, size_t nbytes, read_ticket *ticket, berth_error *error)
{
    const char *from = bytes, *text = from ? from + HEAD_NBYTES : NULL;
    char *end;
    uint32_t n = 0;

    *ticket = (read_ticket){0};
    for (unsigned i = 0; from && nbytes > HEAD_NBYTES && i < 4; i++)
        n |= (uint32_t)(uint8_t)from[sizeof MAGIC - 1 + i] << 8 * i;
    if (n > 0 && n < nbytes - HEAD_NBYTES && memcmp(from, MAGIC, sizeof MAGIC - 1) == 0 &&
        memchr(text, 0, (size_t)n + 1) == text + n) {
        ticket->nbytes = strtoull(text, &end, 10);
        ticket->many.part_nbytes = strtoull(end, &end, 10);
        size_t id_nbytes = *end == ' ' ? strcspn(++end, " ") : 0;
        if (id_nbytes > 0 && id_nbytes < sizeof ticket->id && end[id_nbytes] == ' ') {
            memcpy(ticket->id, end, id_nbytes);
            ticket->many.id = ticket->id;
            ticket->url = end + id_nbytes + 1;
            ticket->joint = text + n + 1;
            ticket->joint_nbytes = nbytes - HEAD_NBYTES - n - 1;
            return 0;
        }
    }
    return bcurl_fail(error, BERTH_E_ARGUMENT, 0,
                      "these bytes are no ticket of a joint save to a URL");
}

/* ---- the coordinator ---- */

int berth_joint_url_abort(berth_joint_url *joint, berth_error *error)
{
    berth_error own = {.offset = BERTH_NO_OFFSET};

    if (joint) {
        berth_joint_abort(joint->joint);
        (void)berth_upload_end(joint->upload, &own);
        free(joint->ticket);
        free(joint->has_receipt);
        free(joint);
    }
    if (error)
        *error = own;
    return own.code;
}

int berth_joint_url_begin(const char *url, const berth_value *outline, size_t n_writers,
                          const berth_params *params, const berth_upload_params *upload_params,
                          berth_joint_url **joint, berth_joint_info *info, berth_error *error)
{
    const bcurl_many many = {0};
    berth_error own = {.offset = BERTH_NO_OFFSET}, left;
    berth_joint_url *made = calloc(1, sizeof *made);
    char *shown = url && berth_is_url(url) ? berth_url_shown(url) : NULL;
    berth_joint_info found = {0};

    *joint = NULL;
    if (!url || !berth_is_url(url))
        (void)bcurl_fail(&own, BERTH_E_ARGUMENT, 0, "this is no URL");
    else if (!made || !shown)
        (void)fail_memory(&own);
    else if (berth_joint_begin_object(shown, outline, n_writers, params, &made->joint, &found,
                                      &own) == 0 &&
             bcurl_upload_begin(url, found.nbytes, upload_params, &many, &made->upload, &own) ==
                 0 &&
             ticket_make(made, url, &found, &own) == 0) {
        made->n_writers = n_writers;
        made->has_receipt = calloc(n_writers, sizeof *made->has_receipt);
        if (!made->has_receipt)
            (void)fail_memory(&own);
    }
    free(shown);
    if (made && own.code == BERTH_OK) {
        found.ticket = made->ticket;
        found.ticket_nbytes = made->ticket_nbytes;
        *joint = made;
    } else {
        found = (berth_joint_info){0};
        if (berth_joint_url_abort(made, &left) < 0)
            bcurl_tell_more(&own, left.message);
    }
    if (info)
        *info = found;
    if (error)
        *error = own;
    return own.code;
}

int berth_joint_url_add_receipt(berth_joint_url *joint, size_t writer, const void *receipt,
                                size_t nbytes, berth_error *error)
{
    berth_error own = {.offset = BERTH_NO_OFFSET};
    char *text = malloc(nbytes + 1);

    if (!text)
        (void)fail_memory(&own);
    else if (writer >= joint->n_writers || joint->has_receipt[writer] ||
             (nbytes > 0 && memchr(receipt, 0, nbytes)))
        (void)bcurl_fail(&own, BERTH_E_ARGUMENT, 0,
                         "writer %zu has given a receipt already, or what is none", writer);
    else {
        joint->has_receipt[writer] = true;
        if (nbytes > 0)
            memcpy(text, receipt, nbytes);
        text[nbytes] = '\0';
        (void)bcurl_upload_add_sent(joint->upload, text, &own);
    }
    free(text);
    if (error)
        *error = own;
    return own.code;
}

int berth_joint_url_finish(berth_joint_url *joint, berth_error *error)
{
    berth_error own = {.offset = BERTH_NO_OFFSET}, left;

    for (size_t i = 0; i < joint->n_writers && own.code == BERTH_OK; i++)
        if (!joint->has_receipt[i])
            (void)bcurl_fail(&own, BERTH_E_ARGUMENT, 0, "writer %zu of %zu has given no receipt", i,
                             joint->n_writers);
    if (own.code == BERTH_OK && berth_upload_finish(joint->upload, &own) < 0)
        (void)berth_upload_explain(joint->upload, &own);
    if (berth_joint_url_abort(joint, &left) < 0 && own.code < 0)
        bcurl_tell_more(&own, left.message);
    if (error)
        *error = own;
    return own.code;
}

/* ---- a writer ---- */

int berth_joint_url_write(const void *ticket, size_t ticket_nbytes, size_t writer,
                          berth_joint_url *joint, const berth_slice *slices, size_t n_slices,
                          const berth_params *params, const berth_upload_params *upload_params,
                          char **receipt, size_t *receipt_nbytes, berth_error *error)
{
    berth_error own = {.offset = BERTH_NO_OFFSET};
    berth_upload_params how = upload_params ? *upload_params : (berth_upload_params){0};
    berth_upload *upload = joint ? joint->upload : NULL;
    read_ticket read;

    *receipt = NULL;
    *receipt_nbytes = 0;
    how.part_nbytes = 0;
    how.if_match = ""; /* that is the coordinator's */
    int status = ticket_read(ticket, ticket_nbytes, &read, &own);
    if (status == 0 && !joint)
        status = bcurl_upload_begin(read.url, read.nbytes, &how, &read.many, &upload, &own);
    if (status == 0) {
        const berth_joint_object object = {.sink = *berth_upload_sink(upload),
                                           .part_nbytes = read.many.part_nbytes,
                                           .joint = joint ? joint->joint : NULL};
        if (berth_joint_send(read.joint, read.joint_nbytes, writer, slices, n_slices, &object,
                             params, &own) < 0)
            (void)berth_upload_explain(upload, &own);
        else if (!(*receipt = bcurl_upload_print_sent(upload)))
            (void)fail_memory(&own);
        else
            *receipt_nbytes = strlen(*receipt);
    }
    if (!joint)
        (void)berth_upload_end(upload, NULL);
    if (error)
        *error = own;
    return own.code;
}
