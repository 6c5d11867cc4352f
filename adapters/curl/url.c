/* SPDX-License-Identifier: BSD-3-Clause */
/* The source: what is kept of the object's ends, and requests for all else. */
#include <berth/config.h>
#include <berth/more.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/curl/url.h"

/* A read that goes on where another ended is one of a walk: so much is read at once. */
#define AHEAD_NBYTES ((uint64_t)1 << 20)
/* How far a walk may skip: over the elements of small tensors. */
#define SKIP_NBYTES ((uint64_t)4 << 10)
#define N_THREADS 8

/* A part of the object, and the memory for it. */
typedef struct part {
    uint8_t *bytes;
    uint64_t offset, nbytes;
} part;

/* ---- what is in memory ---- */

/* Copies what the block has of the part's beginning. */
static void part_take_front(part *wanted, const bcurl_block *block)
{
    if (wanted->offset < block->at || wanted->offset - block->at >= block->nbytes)
        return;
    uint64_t from = wanted->offset - block->at, n = block->nbytes - from;
    n = n < wanted->nbytes ? n : wanted->nbytes;
    memcpy(wanted->bytes, block->bytes + from, n);
    wanted->bytes += n;
    wanted->offset += n;
    wanted->nbytes -= n;
}

/* Copies what the block, which reaches to the object's end, has of the part's end. */
static void part_take_back(part *wanted, const bcurl_block *block)
{
    uint64_t end = wanted->offset + wanted->nbytes;

    if (wanted->nbytes == 0 || block->nbytes == 0 || end <= block->at)
        return;
    uint64_t begin = wanted->offset > block->at ? wanted->offset : block->at;
    memcpy(wanted->bytes + (begin - wanted->offset), block->bytes + (begin - block->at),
           end - begin);
    wanted->nbytes = begin - wanted->offset;
}

/* ---- reading ahead ---- */

/* The walk that a read goes on with; else the one that was used longest ago, which ends. */
static bcurl_walk *connections_find_walk(bcurl_connections *all, uint64_t offset)
{
    bcurl_walk *oldest = all->walks;

    for (size_t i = 0; i < BCURL_N_WALKS; i++) {
        bcurl_walk *walk = &all->walks[i];
        if (walk->last_read > 0 && offset >= walk->next_offset &&
            offset - walk->next_offset <= SKIP_NBYTES)
            return walk;
        if (walk->last_read < oldest->last_read)
            oldest = walk;
    }
    oldest->last_read = 0;
    return oldest;
}

/* Copies what was read ahead, for any walk. Returns whether the rest is to be read with more. */
static bool connections_take_ahead(bcurl_connections *all, part *wanted)
{
    (void)pthread_mutex_lock(&all->lock);
    bcurl_walk *walk = connections_find_walk(all, wanted->offset);
    bool goes_on = walk->last_read > 0 && wanted->nbytes < AHEAD_NBYTES;
    walk->last_read = ++all->n_reads;
    walk->next_offset = wanted->offset + wanted->nbytes;
    for (size_t i = 0; i < BCURL_N_WALKS; i++)
        part_take_front(wanted, &all->walks[i].ahead);
    (void)pthread_mutex_unlock(&all->lock);
    return goes_on;
}

/* Takes the block; next_offset: where the walk is. */
static void connections_keep_ahead(bcurl_connections *all, bcurl_block *block, uint64_t next_offset)
{
    uint8_t *freed = block->bytes;

    (void)pthread_mutex_lock(&all->lock);
    for (size_t i = 0; i < BCURL_N_WALKS; i++) {
        bcurl_walk *walk = &all->walks[i];
        if (freed == block->bytes && walk->last_read > 0 && walk->next_offset == next_offset) {
            freed = walk->ahead.bytes;
            walk->ahead = *block;
        }
    }
    (void)pthread_mutex_unlock(&all->lock);
    free(freed);
}

static int url_get(bcurl_url *url, const part *wanted, berth_error *error)
{
    bcurl_range range = {
        .url = url, .bytes = wanted->bytes, .offset = wanted->offset, .nbytes = wanted->nbytes};

    return bcurl_range_get(&range, error);
}

/* More than is wanted; the rest is for the next reads. */
static int url_get_ahead(bcurl_url *url, bcurl_connections *all, part *wanted, berth_error *error)
{
    uint64_t left = url->nbytes - wanted->offset;
    part more = {NULL, wanted->offset, left < AHEAD_NBYTES ? left : AHEAD_NBYTES};

    more.bytes = malloc(more.nbytes);
    if (!more.bytes)
        return url_get(url, wanted, error);
    bcurl_block block = {more.bytes, more.offset, more.nbytes};
    if (url_get(url, &more, error) < 0) {
        free(more.bytes);
        return error->code;
    }
    part_take_front(wanted, &block);
    connections_keep_ahead(all, &block, wanted->offset + wanted->nbytes);
    return 0;
}

/* ---- the source ---- */

static int errno_of(const berth_error *error)
{
    return error->system_errno ? error->system_errno : EIO;
}

static bool connections_have_changed_object(bcurl_connections *all)
{
    (void)pthread_mutex_lock(&all->lock);
    bool changed = all->failure.system_errno == ESTALE;
    (void)pthread_mutex_unlock(&all->lock);
    return changed;
}

static int url_read(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    bcurl_url *url = context;
    bcurl_connections *all = bcurl_connections_of(url);
    part wanted = {buffer, offset, nbytes};
    berth_error error = {0};

    if (!all)
        return ENOMEM;
    if (offset > url->nbytes || nbytes > url->nbytes - offset)
        return EINVAL;
    part_take_front(&wanted, &url->head);
    part_take_back(&wanted, &url->tail);
    if (wanted.nbytes == 0)
        return 0;
    if (connections_have_changed_object(all))
        return ESTALE;
    bool goes_on = connections_take_ahead(all, &wanted);
    if (wanted.nbytes == 0)
        return 0;
    int status = goes_on ? url_get_ahead(url, all, &wanted, &error) : url_get(url, &wanted, &error);
    return status == 0 ? 0 : errno_of(&error);
}

static void url_free(bcurl_url *url)
{
    bcurl_connections_free(atomic_load(&url->connections));
    bcurl_address_free(&url->address);
    free(url->tail.bytes);
    free(url->head.bytes);
    free(url);
}

static int params_check(const berth_url_params *params, berth_error *error)
{
    for (size_t i = 0; params && i < sizeof params->reserved / sizeof *params->reserved; i++)
        if (params->reserved[i] != 0)
            return bcurl_fail(error, BERTH_E_ARGUMENT, 0, "berth_url_params.reserved must be 0");
    return 0;
}

/* The option is that of the caller's thread: workers may see another. */
int bcurl_url_find_deadline(bcurl_url *url, berth_error *error)
{
    berth_option option;

    if (url->params.deadline_seconds > 0)
        return 0;
    int status = berth_config_describe(NULL, "io.url_deadline", &option, error);
    if (status == 0)
        url->params.deadline_seconds = (uint64_t)option.number;
    return status;
}

static int url_open(bcurl_url *url, const char *text, berth_error *error)
{
    if (bcurl_url_find_deadline(url, error) < 0)
        return error->code;
    if (bcurl_need_library(error) < 0 || bcurl_address_make(text, &url->address, error) < 0)
        return error->code;
    return bcurl_ends_get(url, error);
}

/* A URL of which nothing is hidden can be given to the command. */
static berth_source url_make_source(bcurl_url *url, const char *text)
{
    const char *shown = url->address.shown;
    berth_source source = berth_from_function(url_read, url, url->nbytes, shown);

    source.path = shown && strcmp(shown, text) == 0 ? shown : NULL;
    return source;
}

int berth_source_url(const char *text, const berth_url_params *params, berth_source *source,
                     berth_error *error)
{
    berth_error own = {.offset = BERTH_NO_OFFSET};
    bcurl_url *url = calloc(1, sizeof *url);

    memset(source, 0, sizeof *source);
    if (!url)
        return bcurl_fail(error, BERTH_E_MEMORY, 0, "out of memory");
    if (params)
        url->params = *params;
    if (params_check(params, &own) == 0 && url_open(url, text, &own) == 0)
        *source = url_make_source(url, text);
    else
        url_free(url);
    if (error)
        *error = own;
    return own.code;
}

/* The object of a source that berth_source_url made; NULL: another. */
static bcurl_url *source_url(const berth_source *source)
{
    return source && source->kind == BERTH_SOURCE_FUNCTION && source->read == url_read
               ? source->context
               : NULL;
}

int berth_source_url_tune(const berth_source *source, berth_config *config, berth_error *error)
{
    const bcurl_url *url = source_url(source);
    berth_option threads;
    char text[64];

    if (!url)
        return 0;
    int status = berth_config_describe(config, "io.threads", &threads, error);
    if (status == 0 && threads.number == 0) {
        (void)snprintf(text, sizeof text, "io.threads=%d", N_THREADS);
        status = berth_config_apply(config, text, error);
    }
    if (status < 0 || url->head_nbytes == 0)
        return status;
    (void)snprintf(text, sizeof text, "load.head_nbytes=%" PRIu64, url->head_nbytes);
    return berth_config_apply(config, text, error);
}

int berth_source_url_explain(const berth_source *source, berth_error *error)
{
    bcurl_url *url = source_url(source);
    bcurl_connections *all = url ? bcurl_connections_of(url) : NULL;

    if (!error || !all || error->code != BERTH_E_CALLBACK)
        return error ? error->code : 0;
    (void)pthread_mutex_lock(&all->lock);
    if (all->failure.code != BERTH_OK) {
        uint64_t offset = error->offset;
        *error = all->failure;
        error->offset = offset;
    }
    (void)pthread_mutex_unlock(&all->lock);
    return error->code;
}

void berth_source_url_free(berth_source *source)
{
    bcurl_url *url = source_url(source);

    if (url)
        url_free(url);
    if (source)
        memset(source, 0, sizeof *source);
}
