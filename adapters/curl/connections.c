/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Easy handles. Each thread that reads takes one, and gives it back with its connection open. Those
 * of an object share names of hosts and sessions of TLS; libcurl does not let threads share
 * connections. Of all objects of the process only so many are kept open: a checkpoint can have
 * hundreds of files, and a process has few descriptors.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "adapters/curl/url.h"

#define BUFFER_NBYTES (512L << 10)
#define CONNECT_SECONDS 20L
#define STALL_SECONDS 30
#define MAX_REDIRECTS 10L

/* ---- those that wait, of all objects ---- */

enum { MAX_IDLE = 32 }; /* three descriptors each */

typedef struct idle_pool {
    pid_t pid;
    pthread_mutex_t lock; /* of all below */
    struct {
        bcurl_connections *owner;
        CURL *handle;
    } idle[MAX_IDLE]; /* the one that waits longest is first */
    size_t n;
} idle_pool;

static _Atomic(idle_pool *) pool_of_process;

/* X11: as bcurl_connections_of. Handles of the parent are its own. NULL: no memory. */
static idle_pool *pool_get(void)
{
    idle_pool *now = atomic_load(&pool_of_process);

    if (now && now->pid == getpid())
        return now;
    idle_pool *mine = calloc(1, sizeof *mine);
    if (!mine)
        return NULL;
    mine->pid = getpid();
    (void)pthread_mutex_init(&mine->lock, NULL);
    if (atomic_compare_exchange_strong(&pool_of_process, &now, mine))
        return mine;
    (void)pthread_mutex_destroy(&mine->lock);
    free(mine); /* another thread was first */
    return now;
}

/* The caller holds the lock. */
static CURL *pool_remove(idle_pool *pool, size_t i)
{
    CURL *handle = pool->idle[i].handle;

    pool->n--;
    memmove(&pool->idle[i], &pool->idle[i + 1], (pool->n - i) * sizeof *pool->idle);
    return handle;
}

/* The one of this owner that was used last; NULL: none. */
static CURL *pool_take(bcurl_connections *owner)
{
    idle_pool *pool = pool_get();
    CURL *handle = NULL;

    if (!pool)
        return NULL;
    (void)pthread_mutex_lock(&pool->lock);
    for (size_t i = pool->n; i > 0 && !handle; i--)
        if (pool->idle[i - 1].owner == owner)
            handle = pool_remove(pool, i - 1);
    (void)pthread_mutex_unlock(&pool->lock);
    return handle;
}

/* Closed under the lock: its owner, whose locks that needs, cannot go meanwhile. */
static void pool_give(bcurl_connections *owner, CURL *handle)
{
    idle_pool *pool = pool_get();

    if (!pool) {
        bcurl.easy_cleanup(handle);
        return;
    }
    (void)pthread_mutex_lock(&pool->lock);
    if (pool->n == MAX_IDLE)
        bcurl.easy_cleanup(pool_remove(pool, 0));
    pool->idle[pool->n].owner = owner;
    pool->idle[pool->n++].handle = handle;
    (void)pthread_mutex_unlock(&pool->lock);
}

/* ---- what those of an object share ---- */

static void share_lock(CURL *handle, curl_lock_data data, curl_lock_access access, void *context)
{
    bcurl_connections *all = context;

    (void)handle;
    (void)access;
    (void)pthread_mutex_lock(&all->share_locks[(unsigned)data % BCURL_N_LOCKS]);
}

static void share_unlock(CURL *handle, curl_lock_data data, void *context)
{
    bcurl_connections *all = context;

    (void)handle;
    (void)pthread_mutex_unlock(&all->share_locks[(unsigned)data % BCURL_N_LOCKS]);
}

static CURLSH *share_new(bcurl_connections *all)
{
    CURLSH *share = bcurl.share_init();

    if (!share)
        return NULL;
    (void)bcurl.share_setopt(share, CURLSHOPT_USERDATA, all);
    (void)bcurl.share_setopt(share, CURLSHOPT_LOCKFUNC, share_lock);
    (void)bcurl.share_setopt(share, CURLSHOPT_UNLOCKFUNC, share_unlock);
    (void)bcurl.share_setopt(share, CURLSHOPT_SHARE, CURL_LOCK_DATA_DNS);
    (void)bcurl.share_setopt(share, CURLSHOPT_SHARE, CURL_LOCK_DATA_SSL_SESSION);
    return share;
}

static bcurl_connections *connections_new(void)
{
    bcurl_connections *all = calloc(1, sizeof *all);

    if (!all)
        return NULL;
    all->pid = getpid();
    (void)pthread_mutex_init(&all->lock, NULL);
    for (size_t i = 0; i < BCURL_N_LOCKS; i++)
        (void)pthread_mutex_init(&all->share_locks[i], NULL);
    all->share = share_new(all);
    return all;
}

/* The handles of a parent are its own: a child neither uses nor closes them. */
void bcurl_connections_free(bcurl_connections *all)
{
    if (!all || all->pid != getpid())
        return;
    for (CURL *handle; (handle = pool_take(all)) != NULL;)
        bcurl.easy_cleanup(handle);
    if (all->share)
        (void)bcurl.share_cleanup(all->share);
    for (size_t i = 0; i < BCURL_N_LOCKS; i++)
        (void)pthread_mutex_destroy(&all->share_locks[i]);
    (void)pthread_mutex_destroy(&all->lock);
    for (size_t i = 0; i < BCURL_N_WALKS; i++)
        free(all->walks[i].ahead.bytes);
    free(all);
}

/* X11: a lock that a thread of the parent held at the fork is never waited for. */
bcurl_connections *bcurl_connections_of(bcurl_url *url)
{
    bcurl_connections *now = atomic_load(&url->connections);

    if (now && now->pid == getpid())
        return now;
    bcurl_connections *mine = connections_new();
    if (!mine)
        return NULL;
    if (atomic_compare_exchange_strong(&url->connections, &now, mine))
        return mine;
    bcurl_connections_free(mine); /* another thread was first */
    return now;
}

/* ---- options ---- */

static void handle_set_text(CURL *handle, CURLoption option, const char *name, const char *other)
{
    const char *value = getenv(name);

    if ((!value || !*value) && other)
        value = getenv(other);
    if (value && *value)
        (void)bcurl.easy_setopt(handle, option, value);
}

/* The places of certificates, as the command curl finds them; proxies are libcurl's own matter. */
static void handle_set_trust(CURL *handle)
{
    handle_set_text(handle, CURLOPT_CAINFO, "CURL_CA_BUNDLE", "SSL_CERT_FILE");
    handle_set_text(handle, CURLOPT_CAPATH, "SSL_CERT_DIR", NULL);
}

/*
 * U2: libcurl sends user and password to the first host alone. A token is a plain header, which it
 * would send on, so requests to S3 follow no redirect. From https only https is followed.
 */
static void handle_set_redirects(CURL *handle, const bcurl_address *address)
{
    bool is_https = strncasecmp(address->url, "https:", 6) == 0;
    long both = CURLPROTO_HTTP | CURLPROTO_HTTPS;

    (void)bcurl.easy_setopt(handle, CURLOPT_PROTOCOLS, both);
    (void)bcurl.easy_setopt(handle, CURLOPT_REDIR_PROTOCOLS,
                            is_https ? (long)CURLPROTO_HTTPS : both);
    (void)bcurl.easy_setopt(handle, CURLOPT_FOLLOWLOCATION, address->is_s3 ? 0L : 1L);
    (void)bcurl.easy_setopt(handle, CURLOPT_MAXREDIRS, MAX_REDIRECTS);
    (void)bcurl.easy_setopt(handle, CURLOPT_UNRESTRICTED_AUTH, 0L);
}

static CURL *handle_new(const bcurl_url *url, CURLSH *share)
{
    CURL *handle = bcurl.easy_init();

    if (!handle)
        return NULL;
    (void)bcurl.easy_setopt(handle, CURLOPT_URL, url->address.url);
    (void)bcurl.easy_setopt(handle, CURLOPT_USERAGENT, "berth/" BERTH_VERSION_STRING);
    (void)bcurl.easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
    (void)bcurl.easy_setopt(handle, CURLOPT_SHARE, share);
    (void)bcurl.easy_setopt(handle, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_2TLS);
    (void)bcurl.easy_setopt(handle, CURLOPT_ACCEPT_ENCODING, "identity");
    /* S3 tells an encoding with which an object was uploaded ("aws-chunked"); it is not encoded. */
    (void)bcurl.easy_setopt(handle, CURLOPT_HTTP_CONTENT_DECODING, 0L);
    (void)bcurl.easy_setopt(handle, CURLOPT_BUFFERSIZE, BUFFER_NBYTES);
    (void)bcurl.easy_setopt(handle, CURLOPT_UPLOAD_BUFFERSIZE, BUFFER_NBYTES);
    (void)bcurl.easy_setopt(handle, CURLOPT_TCP_KEEPALIVE, 1L);
    (void)bcurl.easy_setopt(handle, CURLOPT_CONNECTTIMEOUT, CONNECT_SECONDS);
    (void)bcurl.easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
    (void)bcurl.easy_setopt(handle, CURLOPT_LOW_SPEED_TIME, (long)STALL_SECONDS);
    (void)bcurl.easy_setopt(handle, CURLOPT_NOPROGRESS, 0L);
    handle_set_trust(handle);
    handle_set_redirects(handle, &url->address);
    if (url->address.is_s3) /* dots in a key are a part of its name */
        (void)bcurl.easy_setopt(handle, CURLOPT_PATH_AS_IS, 1L);
    return handle;
}

/* ---- taking and giving ---- */

CURL *bcurl_handle_take(bcurl_url *url, bcurl_connections *all)
{
    CURL *handle = pool_take(all);

    return handle ? handle : handle_new(url, all->share);
}

void bcurl_handle_give(bcurl_connections *all, CURL *handle)
{
    pool_give(all, handle);
}

/* A SIGPIPE of ours is taken away; one that was pending before stays. */
CURLcode bcurl_perform(CURL *handle)
{
    const struct timespec now = {0, 0};
    sigset_t pipe, pending, before;

    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    bool was_pending = sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
    (void)pthread_sigmask(SIG_BLOCK, &pipe, &before);
    CURLcode code = bcurl.easy_perform(handle);
    if (!was_pending)
        while (sigtimedwait(&pipe, NULL, &now) < 0 && errno == EINTR)
            ;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}
