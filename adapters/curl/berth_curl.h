/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Berth reads from the network: https://, http:// and s3://, and writes to s3://, by libcurl.
 * Berth's library itself has no network; this adapter makes a berth_source, and everything that
 * opens a source takes it:
 *
 *     berth_source source;
 *     if (berth_source_url("https://host/model.pt", NULL, &source, &error) < 0) ...
 *     if (berth_open_source(&source, NULL, &checkpoint, &error) < 0)
 *         berth_source_url_explain(&source, &error); // why, in the words of HTTP
 *     ...
 *     berth_close(checkpoint);
 *     berth_source_url_free(&source);
 *
 * libcurl.so.4 is opened at the first call, so programs run without it. Link with libberth_curl and
 * libberth. docs/urls.md says what servers must do, and what the environment sets.
 */
#ifndef BERTH_CURL_H
#define BERTH_CURL_H

#include <berth/joint.h>
#include <berth/more.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How a URL is read. All zeros are the defaults. */
typedef struct berth_url_params {
    /* Called now and then while bytes are waited for, on the thread that waits; not 0: stop. May be
       NULL. */
    int (*cancelled)(void *context);
    void *context;
    uint64_t deadline_seconds; /* for 64 KiB, or the end of a range; 0: io.url_deadline */
    uint64_t reserved[3];      /* 0 */
} berth_url_params;

/* Whether a text begins with https://, http:// or s3://, in any case. */
bool berth_is_url(const char *text);

/*
 * What may be shown of a URL: without user, password, query and fragment, whatever is in them.
 * Where a '@' stands behind the host, `***` stands for all that is before it; where one stands
 * behind a '?' or '#', for the whole address.
 * Returns: a text that the caller frees; NULL: no memory.
 */
char *berth_url_shown(const char *url);

/*
 * The URL of a file in the folder of another one, or below it: the name stands in the place of what
 * follows the last slash of the path. It is percent-encoded but for its slashes; in S3, where a key
 * has its characters as they are, it is not. User and password stay; the query, which can be a
 * signature of that one object, does not.
 * Parameters: url: berth_is_url says yes to it. name: no part of it is "", "." or "..".
 * Returns: a text that the caller frees; NULL: no memory.
 * Threads: any.
 */
char *berth_url_beside(const char *url, const char *name);

/*
 * Makes a source of a URL. The object is asked for its end first; then, if that is a zip directory,
 * for the head that an open reads. So opening takes two requests where the directory is smaller
 * than 950 KiB, else three; one where the object has no more than 1 MiB. The object is pinned: if
 * it changes later, reading fails. Parameters: url: UTF-8. params: NULL: the defaults. Lifetime:
 * the texts may go. *source must be freed by berth_source_url_free, after what was opened from it
 * is closed. Its name is the URL without user, password, query and fragment. Errors:
 * BERTH_E_UNAVAILABLE: there is no libcurl, or it is too old. BERTH_E_NOT_FOUND: no such object.
 * BERTH_E_SYSTEM: it cannot be read: system_errno is EACCES: not allowed; ETIMEDOUT: a server did
 * not answer, or was slower than the deadline; EPROTO: the server breaks the rules of HTTP;
 * ENOTSUP: it serves no ranges, and the object is large; else EIO. BERTH_E_CANCELLED.
 * BERTH_E_ARGUMENT: this is no URL. Threads: any. The source may be read from several threads at
 * once. A child after a fork makes connections of its own.
 */
BERTH_MUST_CHECK int berth_source_url(const char *url, const berth_url_params *params,
                                      berth_source *source, berth_error *error);

/*
 * Sets the options that make opening cheap and reading parallel: load.head_nbytes to what is there
 * already, and io.threads to 8 unless it is set.
 * Parameters: config: the caller's, for berth_params.
 * Errors: as for berth_config_apply.
 */
int berth_source_url_tune(const berth_source *source, berth_config *config, berth_error *error);

/*
 * After a call has failed: if reading the source was the reason (BERTH_E_CALLBACK), replaces the
 * error by the source's own: a changed object (ESTALE), a status of HTTP, a connection that broke.
 * Parameters: error: of the failed call; NULL: does nothing.
 * Returns: the error's status.
 * Threads: any.
 */
int berth_source_url_explain(const berth_source *source, berth_error *error);

/*
 * Frees a source that berth_source_url made, and closes its connections.
 * Parameters: source: NULL, or one that was not made: does nothing.
 */
void berth_source_url_free(berth_source *source);

/* ---- writing ---- */

/* How an object is written. All zeros are the defaults. */
typedef struct berth_upload_params {
    int (*cancelled)(void *context); /* as in berth_url_params */
    void *context;
    uint64_t deadline_seconds; /* for 64 KiB, or an answer; 0: io.url_deadline */
    uint64_t part_nbytes; /* 5 MiB to 5 GiB; 0: 8 MiB, more where 10,000 parts are not enough */
    const char *if_match; /* the ETag of the object that is replaced; "none": there must be none;
                             "": whatever is there; NULL: save.if_match */
    uint64_t reserved[4]; /* 0 */
} berth_upload_params;

/*
 * Saves to s3://BUCKET/KEY, as berth_save_to does to a path: the same bytes. The object appears
 * whole, or not at all; an old one stays until then. An object of more than one part is a multipart
 * upload, whose parts are sent by io.threads workers (8, unless it is set). Memory: two parts a
 * worker, of which io.memory_nbytes allows as many as fit, one at least. Each part is sent with its
 * CRC-32, and the object with its own, so that the server compares both.
 * Parameters: url: UTF-8; the name in the archive is that of its last part, without extension.
 * params, upload_params: NULL: the defaults.
 * Errors: as for berth_save_to, and: BERTH_E_UNSUPPORTED: another URL than of S3. BERTH_E_BUSY: a
 * condition of upload_params does not hold. BERTH_E_NOT_FOUND: there is no such bucket.
 * BERTH_E_SYSTEM, _UNAVAILABLE, _CANCELLED: as for berth_source_url. BERTH_E_CHECKSUM: a tensor
 * changed while it was saved, and the server refused it. What was sent is removed; if that fails,
 * too, the message says that it is left.
 * Threads: any.
 */
BERTH_MUST_CHECK int berth_save_url(const char *url, const berth_content *content,
                                    const berth_params *params,
                                    const berth_upload_params *upload_params, berth_error *error);

/* An object that is being written. */
typedef struct berth_upload berth_upload;

/*
 * The same in steps, for a save on a thread of its own, or bytes of another kind.
 * Parameters: nbytes: of the object; 0: the save tells it, to which the sink is given.
 * Lifetime: *upload is the caller's until berth_upload_end; NULL on failure. The texts may go.
 * Errors: as for berth_save_url.
 * Threads: any.
 */
BERTH_MUST_CHECK int berth_upload_begin(const char *url, uint64_t nbytes,
                                        const berth_upload_params *params, berth_upload **upload,
                                        berth_error *error);

/*
 * Where its bytes go: each once, in any order, from any number of threads. A save (berth_save_to,
 * berth_save_begin) takes its steps: it begins the upload, if that has no size yet, puts the object
 * in its place when all is sent, and removes what was sent if it fails. An upload is of one save.
 * Lifetime: that of the upload.
 */
const berth_sink *berth_upload_sink(const berth_upload *upload);

/*
 * Puts the object in its place, after the sink has got all bytes; after a save that has done so,
 * does nothing. If it is cancelled when this has begun, the server's answer is waited for 20
 * seconds longer (5 if there is one part), as it alone tells what became of it.
 * Errors: as for berth_save_url. The old object stays, unless the server has not said what it did.
 * Threads: any, one at a time, when no other one uses the sink.
 */
BERTH_MUST_CHECK int berth_upload_finish(berth_upload *upload, berth_error *error);

/* As berth_source_url_explain, after a save to the sink has failed. */
int berth_upload_explain(berth_upload *upload, berth_error *error);

/*
 * Ends an upload, and frees it. If the object is not in its place, removes what was sent.
 * Parameters: upload: NULL: does nothing. No thread may use it any more. In a child after a fork it
 * stays the parent's.
 * Errors: what was sent could not be removed.
 */
int berth_upload_end(berth_upload *upload, berth_error *error);

/* ---- writing by many processes ---- */

/*
 * One object by many processes, as the joint saves of berth/joint.h write one file: the same
 * outlines, slices, writers and exchange, which they must have. The coordinator is writer 0:
 *
 *     berth_joint_url_begin(url, outline, 4, NULL, NULL, &joint, &info, &error)  // info.ticket: to
 * all berth_joint_url_write(ticket, nbytes, 0, joint, slices, 1, &params, NULL, &receipt, &n,
 * &error) berth_joint_url_add_receipt(joint, writer, receipt, n, &error)  // one of each, its own,
 * too berth_joint_url_finish(joint, &error)
 *
 * and each other writer calls berth_joint_url_write, with joint NULL, at the same time. Each has
 * credentials of its own, as for berth_save_url. It is always a multipart upload; each part is sent
 * by one writer, with its CRC-32. Whatever fails or dies before berth_joint_url_finish, the old
 * object stays. A coordinator that is killed leaves the upload, for berth_clean_uploads.
 */
typedef struct berth_joint_url berth_joint_url;

/*
 * Begins the upload, in the coordinator.
 * Parameters: as for berth_joint_begin and berth_save_url.
 * Lifetime: the outline and what params points to must live until the end. *joint is the caller's
 * until berth_joint_url_finish or _abort; NULL on failure. info->ticket lives as long.
 * Errors: as for berth_joint_begin_object and berth_save_url.
 */
BERTH_MUST_CHECK int berth_joint_url_begin(const char *url, const berth_value *outline,
                                           size_t n_writers, const berth_params *params,
                                           const berth_upload_params *upload_params,
                                           berth_joint_url **joint, berth_joint_info *info,
                                           berth_error *error);

/*
 * Sends this writer's parts, together with all others, as berth_joint_send does. It sends to the
 * URL of the ticket: do not take one from a stranger.
 * Parameters: joint: of writer 0; NULL for the others. upload_params: cancelled, its context and
 * deadline_seconds are used, but not of writer 0, whose berth_joint_url_begin had them.
 * Lifetime: *receipt is the caller's, to be freed by free(); NULL on failure.
 * Errors: as for berth_joint_send and berth_save_url. Without the exchange having been called, if
 * the ticket is invalid, or the URL is: the others must be told (berth_joint_write).
 */
BERTH_MUST_CHECK int berth_joint_url_write(const void *ticket, size_t ticket_nbytes, size_t writer,
                                           berth_joint_url *joint, const berth_slice *slices,
                                           size_t n_slices, const berth_params *params,
                                           const berth_upload_params *upload_params, char **receipt,
                                           size_t *receipt_nbytes, berth_error *error);

/* Adds the receipt of one writer, in any order. Errors: BERTH_E_ARGUMENT: it is none. */
BERTH_MUST_CHECK int berth_joint_url_add_receipt(berth_joint_url *joint, size_t writer,
                                                 const void *receipt, size_t nbytes,
                                                 berth_error *error);

/*
 * Puts the object in its place, as berth_upload_finish does. Frees `joint`, on failure, too; then
 * what was sent is removed.
 */
BERTH_MUST_CHECK int berth_joint_url_finish(berth_joint_url *joint, berth_error *error);

/* Gives up, removes what was sent, and frees `joint` (NULL: does nothing). Errors: it could not be
 * removed. No writer may be sending any more. */
int berth_joint_url_abort(berth_joint_url *joint, berth_error *error);

/*
 * Reports the uploads that were begun below s3://BUCKET/PREFIX and have not ended, as
 * berth_clean_temporaries reports files: those of killed saves, and of any other program.
 * Parameters: url: the prefix may be empty, or a whole key. flags: 0 or BERTH_CLEAN_REMOVE, which
 * removes those that began min_age_seconds ago or earlier. params: NULL: the defaults. found: of
 * each upload: its key as name, its age, BERTH_TEMPORARY_UNKNOWN; no size, as S3 tells none.
 * Errors: as for berth_save_url.
 * Threads: any. `found` is called on the calling thread.
 */
int berth_clean_uploads(const char *url, uint32_t flags, double min_age_seconds,
                        const berth_url_params *params, berth_temporary_function found,
                        void *context, berth_error *error);

#ifdef __cplusplus
}
#endif

#endif
