/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Berth reads from the network: https://, http:// and s3://, by libcurl. Berth's library itself has
 * no network; this adapter makes a berth_source, and everything that opens a source takes it:
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

#include <berth.h>
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

#ifdef __cplusplus
}
#endif

#endif
