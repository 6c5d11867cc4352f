/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The parts of the adapter:
 *
 *   names.c        what is a URL, and what messages show of it
 *   libcurl.c      the functions of libcurl, opened at run time
 *   address.c      a URL -> what libcurl gets
 *   aws.c          keys and regions of S3, from the environment and files
 *   connections.c  easy handles, for any number of threads
 *   answer.c       what a server answers to one request, checked
 *   attempts.c     asks again what can pass, after a pause
 *   range.c        one range: requests until all of it is there
 *   request.c      one request of S3 that is not a range: a part, a list
 *   ends.c         the tail and the head of an object -> what an open will read
 *   url.c          the source
 *   upload.c       an object that is written: its parts, from any number of threads
 *   joint_url.c    an object that many processes write: an upload, and a joint save
 *   uploads_left.c what killed uploads have left in a bucket
 *   without.c      stands for all but names.c where libcurl's headers are missing
 *
 * Names across files begin with bcurl_.
 */
#ifndef BCURL_URL_H
#define BCURL_URL_H

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "adapters/curl/names.h"

/* Requests of this size find most directories; larger ones take time. */
#define BCURL_END_NBYTES ((uint64_t)1 << 20)
/* A server that sends less within the deadline is too slow. */
#define BCURL_PROGRESS_NBYTES ((uint64_t)64 << 10)
/* An object of a server without ranges is kept whole, if it has no more. */
#define BCURL_WHOLE_MAX_NBYTES ((uint64_t)64 << 20)

/* ---- libcurl.c ---- */

typedef struct bcurl_functions {
    CURL *(*easy_init)(void);
    CURLcode (*easy_setopt)(CURL *handle, CURLoption option, ...);
    CURLcode (*easy_perform)(CURL *handle);
    CURLcode (*easy_getinfo)(CURL *handle, CURLINFO info, ...);
    void (*easy_cleanup)(CURL *handle);
    const char *(*easy_strerror)(CURLcode code);
    CURLSH *(*share_init)(void);
    CURLSHcode (*share_setopt)(CURLSH *share, CURLSHoption option, ...);
    CURLSHcode (*share_cleanup)(CURLSH *share);
    struct curl_slist *(*slist_append)(struct curl_slist *list, const char *text);
    void (*slist_free_all)(struct curl_slist *list);
    CURLcode (*global_init)(long flags);
    curl_version_info_data *(*version_info)(CURLversion age);
} bcurl_functions;

extern bcurl_functions bcurl;

/* Opens libcurl, the first time. Returns 0 or a status. */
int bcurl_need_library(berth_error *error);
/* Whether it signs requests to S3 rightly. */
bool bcurl_can_sign(void);

/* ---- errors ---- */

/* Sets the error. Returns its status. */
int bcurl_fail(berth_error *error, berth_status status, int system_errno, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Puts "name: " before the message. Returns the status. */
int bcurl_name_error(berth_error *error, const char *name);

/* ---- address.c ---- */

typedef struct bcurl_address {
    char *url;   /* for libcurl; may have credentials in it */
    char *shown; /* for messages (U1) */
    bool is_s3;
    char *key, *secret, *token; /* of S3; key NULL: requests are not signed */
    char *signature;            /* CURLOPT_AWS_SIGV4; constant, as the others are not */
} bcurl_address;

/* Percent-encoded, which the caller frees; slashes too, or not. NULL: no memory. */
char *bcurl_encode(const char *text, bool with_slashes);
int bcurl_address_make(const char *text, bcurl_address *address, berth_error *error);
/* The same of a bucket: what follows it is *prefix, which the caller frees, and may be empty. */
int bcurl_address_make_bucket(const char *text, bcurl_address *address, char **prefix,
                              berth_error *error);
void bcurl_address_free(bcurl_address *address);

/* ---- aws.c ---- */

typedef struct bcurl_aws {
    char *key, *secret, *token; /* NULL: none */
    char *region;
    char *endpoint; /* NULL: Amazon's */
} bcurl_aws;

int bcurl_aws_find(bcurl_aws *aws, berth_error *error);
void bcurl_aws_free(bcurl_aws *aws);
/* Overwrites a secret, and frees it. */
void bcurl_free_secret(char *text);

/* ---- connections.c ---- */

enum { BCURL_TAG_NBYTES = 256 };
enum { BCURL_ID_NBYTES = 3073 }; /* of an upload, encoded: 1,024 characters */
enum { BCURL_N_LOCKS = 16, BCURL_N_WALKS = 16 };

typedef struct bcurl_block {
    uint8_t *bytes;
    uint64_t at, nbytes;
} bcurl_block;

/* Reads that follow each other, as of one worker. */
typedef struct bcurl_walk {
    uint64_t next_offset; /* the end of its last read */
    uint64_t last_read;   /* the number of that read; 0: there is no walk */
    bcurl_block ahead;    /* read ahead for the next ones */
} bcurl_walk;

/* What one process has open of an object; a child after a fork begins with a new one. */
typedef struct bcurl_connections {
    pid_t pid;
    pthread_mutex_t lock; /* of all below */
    CURLSH *share;        /* names of hosts, sessions of TLS */
    pthread_mutex_t share_locks[BCURL_N_LOCKS];
    berth_error failure; /* the last one; code 0: none */
    bcurl_walk walks[BCURL_N_WALKS];
    uint64_t n_reads;
} bcurl_connections;

/* An object that is read. All but the connections is constant once it is open. */
typedef struct bcurl_url {
    bcurl_address address;   /* its credentials: under the connections' lock */
    berth_url_params params; /* deadline_seconds is set */
    _Atomic(bcurl_connections *) connections;
    /* What the first answer said. */
    bool is_pinned;
    uint64_t nbytes;
    unsigned n_renewed; /* how often credentials were read again; under the connections' lock */
    char etag[BCURL_TAG_NBYTES], modified[64]; /* "": it said nothing */
    bcurl_block tail, head;                    /* of one that is read */
    uint64_t head_nbytes;                      /* load.head_nbytes; 0: unknown */
} bcurl_url;

/* Those of this process. NULL: no memory. */
bcurl_connections *bcurl_connections_of(bcurl_url *url);
void bcurl_connections_free(bcurl_connections *all);
/* A handle with all options but those of one request. NULL: no memory. */
CURL *bcurl_handle_take(bcurl_url *url, bcurl_connections *all);
void bcurl_handle_give(bcurl_connections *all, CURL *handle);
/* Without SIGPIPE, which some libraries of TLS cause. */
CURLcode bcurl_perform(CURL *handle);

/* ---- answer.c ---- */

/* For how long no BCURL_PROGRESS_NBYTES have come, or gone. */
typedef struct bcurl_wait {
    double since; /* seconds */
    uint64_t nbytes;
    const char *verb;   /* what the server did with them: "sent", "took" */
    bool is_unanswered; /* the request is sent, and nothing has come */
} bcurl_wait;

/* What a request asks for, and what has come. */
typedef struct bcurl_range {
    bcurl_url *url;
    uint8_t *bytes;  /* memory for nbytes; of a whole object: grows */
    uint64_t offset; /* of the object */
    uint64_t nbytes; /* of the first request: at most */
    uint64_t done_nbytes;
    bool is_from_end; /* until the first answer */
    bool is_whole;    /* the server sent the whole object instead of a range */
    bcurl_wait wait;
} bcurl_range;

typedef enum bcurl_use {
    BCURL_UNCHECKED,
    BCURL_BYTES,
    BCURL_WHOLE,
    BCURL_TEXT,
    BCURL_REFUSED
} bcurl_use;

/* One answer. */
typedef struct bcurl_answer {
    bcurl_url *url;
    bcurl_range *range; /* NULL: none was asked for: any body is a text */
    bcurl_wait *wait;
    berth_error *error; /* why it was refused */
    bcurl_use use;
    int status;
    bool has_range, has_length;
    uint64_t first, last, total; /* of Content-Range */
    uint64_t length;             /* Content-Length */
    uint64_t received_nbytes;
    char etag[BCURL_TAG_NBYTES], modified[64], region[32], crc32[16];
    bool is_redirected;     /* an answer of this request was a redirect */
    bool is_repeated;       /* of a request of an upload: it was not the first try */
    bool has_bad_validator; /* an ETag or a time that is too long or no text, or two different */
    bcurl_block *kept;      /* NULL, or where a text is kept whole, and ends with a NUL */
    char text[8192];        /* the beginning of a body that says why not */
    size_t text_nbytes;
    double next_check; /* seconds; when to ask whether the caller cancels */
} bcurl_answer;

/* Callbacks of libcurl; context: the answer. */
size_t bcurl_answer_header(char *data, size_t size, size_t n, void *context);
size_t bcurl_answer_body(char *data, size_t size, size_t n, void *context);
curl_socket_t bcurl_answer_socket(void *context, curlsocktype purpose, struct curl_sockaddr *to);
int bcurl_answer_progress(void *context, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d);
/* What the answer is for, also if it has no body. */
bcurl_use bcurl_answer_check(bcurl_answer *answer);
/* Sets the error of an answer that is no range. Returns the status. */
int bcurl_answer_refuse(const bcurl_answer *answer, berth_error *error);
bool bcurl_is_cancelled(const bcurl_url *url);
bcurl_wait bcurl_wait_begin(const char *verb);
/* Whether the deadline has passed without progress; sets the error. */
bool bcurl_wait_is_late(const bcurl_wait *wait, const bcurl_url *url, berth_error *error);
/* The text between <name> and </name>, if it has no quotes, entities and ends of lines. "": none.
 */
void bcurl_answer_find(const bcurl_answer *answer, const char *name, char *value, size_t room);
double bcurl_seconds(void);

/* ---- attempts.c ---- */

typedef enum bcurl_outcome { BCURL_DONE, BCURL_AGAIN, BCURL_FAILED } bcurl_outcome;

/* Requests for one thing, until it is there, or there is no hope. */
typedef struct bcurl_attempts {
    bcurl_url *url;
    bcurl_connections *connections;
    bcurl_wait *wait;
    bcurl_answer answer;
    CURL *handle;
    char text[CURL_ERROR_SIZE];
    int n_tries;        /* without progress */
    unsigned n_renewed; /* of the credentials that signed the request */
    const char *step;   /* for messages; NULL: it has no name */
    berth_error *error;
} bcurl_attempts;

/* What is asked, and what an answer means. */
typedef struct bcurl_asking {
    /* Sets the options of the handle that this request needs. Returns its headers. */
    struct curl_slist *(*prepare)(bcurl_attempts *attempts, void *context);
    /* The error is that of this request; AGAIN: it may pass. */
    bcurl_outcome (*judge)(bcurl_attempts *attempts, void *context);
    void *context;
} bcurl_asking;

/* Returns 0 or a status. The error names the object. */
int bcurl_attempts_run(bcurl_attempts *attempts, const bcurl_asking *asking, berth_error *error);
/* Whether an answer with this status may be another one in a while. */
bool bcurl_status_can_pass(int status);
/* Has the request signed, and adds the headers that this needs. hash: of its body, as they say it.
 */
struct curl_slist *bcurl_request_sign(bcurl_attempts *all, struct curl_slist *list,
                                      const char *hash);

/* ---- request.c ---- */

enum { BCURL_MAX_HEADERS = 6 };

typedef struct bcurl_request {
    const char *step;           /* for messages */
    const char *method, *query; /* query: encoded, names in order; NULL: none */
    const void *body;
    uint64_t nbytes;
    char headers[BCURL_MAX_HEADERS][BCURL_TAG_NBYTES + 64]; /* "": none */
    bool waits_long;   /* for its answer: the server puts an object together */
    bcurl_block *kept; /* as in bcurl_answer; the caller frees its bytes */
} bcurl_request;

/* Sends it, until there is an answer 2xx that tells no error. Returns 0 or a status. */
int bcurl_request_send(bcurl_url *url, const bcurl_request *request, bcurl_answer *answer,
                       berth_error *error);

/* ---- upload.c ---- */

/* An upload whose parts are sent by many processes. */
typedef struct bcurl_many {
    const char *id;       /* as in a query; NULL: it is to be begun, even if it has one part */
    uint64_t part_nbytes; /* 0: as the params say */
} bcurl_many;

/* As berth_upload_begin. many: NULL: of this process alone. With an id the upload is another
 * process's: berth_upload_finish and _end leave it as it is. */
int bcurl_upload_begin(const char *url, uint64_t nbytes, const berth_upload_params *params,
                       const bcurl_many *many, berth_upload **upload, berth_error *error);
/* The id is the upload's. */
void bcurl_upload_describe(const berth_upload *upload, bcurl_many *many);
/* What one that was begun elsewhere has sent, as lines; the caller frees it. NULL: no memory. */
char *bcurl_upload_print_sent(berth_upload *upload);
int bcurl_upload_add_sent(berth_upload *upload, const char *text, berth_error *error);
/* An error tells what has failed, and more: what is left of it. */
void bcurl_tell_more(berth_error *error, const char *more);

/* ---- range.c ---- */

/* Gets all of the range. The first one of an object pins it. Returns 0 or a status. */
int bcurl_range_get(bcurl_range *range, berth_error *error);

/* ---- url.c ---- */

/* Sets params.deadline_seconds from the option, unless it is set. Returns 0 or a status. */
int bcurl_url_find_deadline(bcurl_url *url, berth_error *error);

/* ---- ends.c ---- */

/* Gets the ends of an object: tail, head, nbytes, head_nbytes. Returns 0 or a status. */
int bcurl_ends_get(bcurl_url *url, berth_error *error);

#endif
