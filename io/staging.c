/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/staging.h"

#include "config/error.h"
#include "config/lock.h"
#include "config/memory.h"
#include "io/direct.h"
#include "io/pages.h"
#include "io/syscalls.h"

#define MOST_KEPT 64

/*
 * Pinned for all devices of a kind, and so the process's, like the devices. In a forked child none
 * of them is there, but another's memory may be: no ring is opened, nothing is freed.
 */
static struct {
    bth_lock lock;
    unsigned n;
    bth_staging_buffer buffers[MOST_KEPT];
} kept;

/* ---- one buffer ---- */

/* Where memory that is there cannot be pinned, the driver's own has to do. */
static int take_from_driver(bth_device_handle *device, bth_staging_buffer *buffer,
                            berth_error *error)
{
    void *bytes;

    bth_error_clear(error);
    if (bth_pinned_allocate(device, buffer->nbytes, &bytes, error) < 0)
        return error->code;
    buffer->bytes = bytes;
    return 0;
}

/*
 * DONTFORK: after a fork the first write to a page gives the writer another one, while a device
 * goes on with the old.
 */
static int make_buffer(bth_device_handle *device, bool is_pinned, bth_staging_buffer *buffer,
                       berth_error *error)
{
    if (bth_region_new(buffer->nbytes, BTH_DIRECT_MOST_BLOCK_NBYTES, false, &buffer->region,
                       error) < 0)
        return error->code;
    buffer->bytes = buffer->region.bytes;
    buffer->device = is_pinned ? device : NULL;
    buffer->life = is_pinned ? bth_device_life(device) : 0;
    if (!is_pinned)
        return 0;
    (void)bth_system.madvise(buffer->bytes, buffer->nbytes, MADV_DONTFORK);
    if (bth_pinned_register(device, buffer->bytes, buffer->nbytes, error) == 0)
        return 0;
    bth_region_free(&buffer->region);
    if (error->code == BERTH_E_UNSUPPORTED)
        return take_from_driver(device, buffer, error);
    return error->code;
}

/* X18: what was pinned in a context that died is not pinned any more, and the driver's own gone. */
static bool is_pinned_still(const bth_staging_buffer *buffer)
{
    return buffer->device && !bth_device_is_gone(buffer->device, buffer->life);
}

static void free_buffer(bth_staging_buffer *buffer)
{
    bool is_pinned = is_pinned_still(buffer);

    if (is_pinned && !buffer->region.base)
        bth_pinned_release(buffer->device, buffer->bytes);
    else if (is_pinned)
        bth_pinned_unregister(buffer->device, buffer->bytes);
    bth_region_free(&buffer->region);
}

/* ---- what is kept ---- */

/* X11: a list that is half changed is none; there is nothing in a child's that it could use. */
static void take_lock(void)
{
    if (bth_lock_take(&kept.lock) == BTH_LOCK_TORN)
        kept.n = 0;
}

/* One of this kind and size, if there is one. */
static bool take_kept(bth_device_handle *device, bth_staging_buffer *buffer)
{
    bool is_found = false;

    take_lock();
    for (unsigned i = 0; i < kept.n && !is_found; i++) {
        const bth_staging_buffer *each = &kept.buffers[i];
        if (!bth_device_is_akin(each->device, device) || each->nbytes != buffer->nbytes)
            continue;
        is_found = true;
        *buffer = *each;
        kept.buffers[i] = kept.buffers[--kept.n];
    }
    bth_lock_give(&kept.lock);
    return is_found;
}

static bool keep(const bth_staging_buffer *buffer)
{
    take_lock();
    bool is_kept = kept.n < MOST_KEPT;
    if (is_kept)
        kept.buffers[kept.n++] = *buffer;
    bth_lock_give(&kept.lock);
    return is_kept;
}

/* Frees those that are of no use to a ring of this kind and size; NULL: all. */
static void drop_kept(bth_device_handle *device, size_t nbytes)
{
    take_lock();
    for (unsigned i = 0; i < kept.n;) {
        bth_staging_buffer *each = &kept.buffers[i];
        if (device && (!bth_device_is_akin(each->device, device) ||
                       (each->nbytes == nbytes && is_pinned_still(each)))) {
            i++;
            continue;
        }
        if (bth_device_is_usable(each->device))
            free_buffer(each);
        *each = kept.buffers[--kept.n];
    }
    bth_lock_give(&kept.lock);
}

uint64_t bth_staging_kept_nbytes(void)
{
    uint64_t nbytes = 0;

    take_lock();
    for (unsigned i = 0; i < kept.n; i++)
        nbytes += kept.buffers[i].nbytes;
    bth_lock_give(&kept.lock);
    return nbytes;
}

void bth_staging_trim(void)
{
    drop_kept(NULL, 0);
}

/* ---- the ring ---- */

static int plan(const bth_staging_need *need, bth_staging *ring, berth_error *error)
{
    const size_t page_nbytes = BTH_LARGE_PAGE_NBYTES;

    if (need->buffer_nbytes == 0 || need->buffer_nbytes > PTRDIFF_MAX - 2 * page_nbytes ||
        need->n_buffers == 0 || need->n_buffers > BTH_STAGING_MOST_BUFFERS)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                        "%u staging buffers of %zu bytes", need->n_buffers, need->buffer_nbytes);
    ring->buffer_nbytes = (need->buffer_nbytes + page_nbytes - 1) / page_nbytes * page_nbytes;
    uint64_t most = need->most_nbytes ? need->most_nbytes / ring->buffer_nbytes : UINT64_MAX;
    if (most == 0)
        return bth_fail(error, BERTH_E_MEMORY, NULL, BERTH_NO_OFFSET,
                        "a staging buffer takes %zu bytes, io.memory_nbytes leaves %llu (%llu "
                        "bytes missing)",
                        ring->buffer_nbytes, (unsigned long long)need->most_nbytes,
                        (unsigned long long)(ring->buffer_nbytes - need->most_nbytes));
    ring->n_buffers = need->n_buffers < most ? need->n_buffers : (unsigned)most;
    return 0;
}

/* Fewer do as well; without the first one nothing does. */
static int fill(bth_staging *ring, berth_error *error)
{
    unsigned n = 0;

    for (; n < ring->n_buffers; n++) {
        bth_staging_buffer *buffer = &ring->buffers[n];
        buffer->nbytes = ring->buffer_nbytes;
        if (!(ring->is_pinned && take_kept(ring->device, buffer)) &&
            make_buffer(ring->device, ring->is_pinned, buffer, error) < 0)
            break;
        buffer->next = ring->free;
        ring->free = buffer;
    }
    if (n == 0)
        return error->code;
    if (n < ring->n_buffers)
        bth_log("%u staging buffers instead of %u: %s", n, ring->n_buffers, error->message);
    ring->n_buffers = n;
    bth_error_clear(error);
    return 0;
}

int bth_staging_open(bth_device_handle *device, const bth_staging_need *need, bth_staging *ring,
                     berth_error *error)
{
    *ring = (bth_staging){.device = device, .is_pinned = device && need->is_pinned};
    if (plan(need, ring, error) < 0 ||
        (ring->is_pinned && bth_device_check_usable(device, error) < 0))
        goto fail;
    if (ring->is_pinned)
        drop_kept(device, ring->buffer_nbytes);
    ring->buffers = bth_allocate_zeroed(ring->n_buffers * sizeof *ring->buffers);
    if (!ring->buffers) {
        (void)bth_fail_memory(error, ring->n_buffers * sizeof *ring->buffers);
        goto fail;
    }
    if (fill(ring, error) < 0)
        goto fail;
    pthread_mutex_init(&ring->lock, NULL);
    pthread_cond_init(&ring->given, NULL);
    return 0;
fail:
    bth_release(ring->buffers);
    *ring = (bth_staging){0};
    return error->code;
}

/* In a forked child the buffers are not there, and what may lie in their place is another's. */
void bth_staging_close(bth_staging *ring)
{
    bool is_here = !ring->is_pinned || bth_device_is_usable(ring->device);

    if (!ring->buffers)
        return;
    for (unsigned i = 0; i < ring->n_buffers && is_here; i++)
        if (!is_pinned_still(&ring->buffers[i]) || !keep(&ring->buffers[i]))
            free_buffer(&ring->buffers[i]);
    pthread_cond_destroy(&ring->given);
    pthread_mutex_destroy(&ring->lock);
    bth_release(ring->buffers);
    *ring = (bth_staging){0};
}

/* With the lock held. */
static bth_staging_buffer *pop(bth_staging *ring)
{
    bth_staging_buffer *buffer = ring->is_stopped ? NULL : ring->free;

    if (buffer)
        ring->free = buffer->next;
    return buffer;
}

bth_staging_buffer *bth_staging_take(bth_staging *ring)
{
    pthread_mutex_lock(&ring->lock);
    while (!ring->free && !ring->is_stopped)
        pthread_cond_wait(&ring->given, &ring->lock);
    bth_staging_buffer *buffer = pop(ring);
    pthread_mutex_unlock(&ring->lock);
    return buffer;
}

bth_staging_buffer *bth_staging_try(bth_staging *ring)
{
    pthread_mutex_lock(&ring->lock);
    bth_staging_buffer *buffer = pop(ring);
    pthread_mutex_unlock(&ring->lock);
    return buffer;
}

void bth_staging_give(bth_staging *ring, bth_staging_buffer *buffer)
{
    pthread_mutex_lock(&ring->lock);
    buffer->next = ring->free;
    ring->free = buffer;
    pthread_cond_signal(&ring->given);
    pthread_mutex_unlock(&ring->lock);
}

void bth_staging_stop(bth_staging *ring)
{
    pthread_mutex_lock(&ring->lock);
    ring->is_stopped = true;
    pthread_cond_broadcast(&ring->given);
    pthread_mutex_unlock(&ring->lock);
}
