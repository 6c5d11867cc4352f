/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/device/staging_buffers.h"

#include <string.h>

#include "base/error.h"
#include "base/lock.h"
#include "base/memory.h"
#include "io/direct.h"
#include "io/memory_region.h"
#include "io/syscalls.h"

#define KEPT_MAX 64

/*
 * Pinned buffers for the next operation, of any device of the same kind. In a forked child they do
 * not exist, and other memory may be at their addresses: there nothing is opened or freed.
 */
static struct {
    bth_lock lock;
    unsigned n;
    bth_staging_buffer buffers[KEPT_MAX];
} kept;

/* ---- one buffer ---- */

/* DONTFORK: after a fork, the first process that writes to a page gets a copy, while the device
 * goes on with the old page. */
static int staging_buffer_new(bth_staging *ring, bth_staging_buffer *buffer, berth_error *error)
{
    bth_device_handle *device = ring->device;
    bool is_pinned = ring->is_pinned;
    void *bytes;

    if (bth_region_new(buffer->nbytes, BTH_MAX_DIRECT_BLOCK_NBYTES, false, &ring->pages,
                       &buffer->region, error) < 0)
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
    if (error->code != BERTH_E_UNSUPPORTED)
        return error->code;
    bth_error_clear(error); /* the driver cannot pin existing memory */
    (void)bth_pinned_allocate(device, buffer->nbytes, &bytes, error);
    buffer->bytes = bytes;
    return error->code;
}

/* X18: after its context died, memory is no longer pinned, and memory of the driver is gone. */
static bool staging_buffer_is_pinned(const bth_staging_buffer *buffer)
{
    return buffer->device && !bth_device_life_is_over(buffer->device, buffer->life);
}

static void staging_buffer_free(bth_staging_buffer *buffer)
{
    bool is_pinned = staging_buffer_is_pinned(buffer);

    if (is_pinned && !buffer->region.base)
        bth_pinned_release(buffer->device, buffer->bytes);
    else if (is_pinned)
        bth_pinned_unregister(buffer->device, buffer->bytes);
    bth_region_free(&buffer->region);
}

/* ---- kept buffers ---- */

/* X11: forgets a list that was being changed at a fork; a child cannot use its buffers anyway. */
static void kept_buffers_lock_and_drop_torn(void)
{
    if (bth_lock_acquire(&kept.lock) == BTH_LOCK_TORN)
        kept.n = 0;
}

/* Gets a buffer for this kind of device, of this size. False: there is none. */
static bool kept_buffers_take(bth_device_handle *device, bth_staging_buffer *buffer)
{
    bool is_found = false;

    kept_buffers_lock_and_drop_torn();
    for (unsigned i = 0; i < kept.n && !is_found; i++) {
        const bth_staging_buffer *each = &kept.buffers[i];
        if (!bth_device_is_same_kind(each->device, device) || each->nbytes != buffer->nbytes)
            continue;
        is_found = true;
        *buffer = *each;
        kept.buffers[i] = kept.buffers[--kept.n];
    }
    bth_lock_release(&kept.lock);
    return is_found;
}

/* Frees the buffers of this kind of device that have another size, or are not pinned any more;
 * NULL: all buffers. */
static void kept_buffers_free_unsuitable(bth_device_handle *device, size_t nbytes)
{
    kept_buffers_lock_and_drop_torn();
    for (unsigned i = 0; i < kept.n;) {
        bth_staging_buffer *each = &kept.buffers[i];
        if (device && (!bth_device_is_same_kind(each->device, device) ||
                       (each->nbytes == nbytes && staging_buffer_is_pinned(each)))) {
            i++;
            continue;
        }
        if (bth_device_is_of_this_process(each->device))
            staging_buffer_free(each);
        *each = kept.buffers[--kept.n];
    }
    bth_lock_release(&kept.lock);
}

uint64_t bth_staging_kept_nbytes(void)
{
    uint64_t nbytes = 0;

    kept_buffers_lock_and_drop_torn();
    for (unsigned i = 0; i < kept.n; i++)
        nbytes += kept.buffers[i].nbytes;
    bth_lock_release(&kept.lock);
    return nbytes;
}

void bth_staging_free_kept(void)
{
    kept_buffers_free_unsuitable(NULL, 0);
}

/* ---- the buffers of one operation ---- */

int bth_staging_open(bth_device_handle *device, const bth_staging_need *need, bth_staging *ring,
                     berth_error *error)
{
    const size_t page_nbytes = BTH_LARGE_PAGE_NBYTES;
    unsigned n = 0;

    *ring = (bth_staging){.device = device,
                          .is_pinned = device && need->is_pinned,
                          .pages.wanted = need->large_pages};
    if (need->buffer_nbytes == 0 || need->buffer_nbytes > PTRDIFF_MAX - 2 * page_nbytes ||
        need->n_buffers == 0 || need->n_buffers > BTH_MAX_STAGING_BUFFERS) {
        (void)bth_fail_argument(error, "%u staging buffers of %zu bytes are not possible",
                                need->n_buffers, need->buffer_nbytes);
        goto fail;
    }
    ring->buffer_nbytes = (need->buffer_nbytes + page_nbytes - 1) / page_nbytes * page_nbytes;
    uint64_t max = need->max_nbytes ? need->max_nbytes / ring->buffer_nbytes : UINT64_MAX;
    if (max == 0) {
        (void)bth_fail_status(
            error, BERTH_E_MEMORY,
            "a staging buffer needs %zu bytes, io.memory_nbytes leaves %llu (%llu bytes missing)",
            ring->buffer_nbytes, (unsigned long long)need->max_nbytes,
            (unsigned long long)(ring->buffer_nbytes - need->max_nbytes));
        goto fail;
    }
    ring->n_buffers = need->n_buffers < max ? need->n_buffers : (unsigned)max;
    if (ring->is_pinned && bth_device_check_process(device, error) < 0)
        goto fail;
    if (ring->is_pinned)
        kept_buffers_free_unsuitable(device, ring->buffer_nbytes);
    ring->buffers = bth_allocate_zeroed(ring->n_buffers * sizeof *ring->buffers);
    if (!ring->buffers) {
        (void)bth_fail_memory(error, ring->n_buffers * sizeof *ring->buffers);
        goto fail;
    }
    for (; n < ring->n_buffers; n++) {
        bth_staging_buffer *buffer = &ring->buffers[n];
        buffer->nbytes = ring->buffer_nbytes;
        if (!(ring->is_pinned && kept_buffers_take(ring->device, buffer)) &&
            staging_buffer_new(ring, buffer, error) < 0)
            break;
    }
    if (n == 0)
        goto fail;
    if (n < ring->n_buffers) /* fewer buffers are enough */
        bth_log("%u staging buffers instead of %u: %s", n, ring->n_buffers, error->message);
    ring->n_buffers = n;
    bth_error_clear(error);
    return 0;
fail:
    bth_release(ring->buffers);
    *ring = (bth_staging){0};
    return error->code;
}

void bth_staging_close(bth_staging *ring)
{
    bool is_here = !ring->is_pinned || bth_device_is_of_this_process(ring->device);

    if (!ring->buffers)
        return;
    for (unsigned i = 0; i < ring->n_buffers && is_here; i++) {
        bool is_kept = false;
        if (staging_buffer_is_pinned(&ring->buffers[i])) {
            kept_buffers_lock_and_drop_torn();
            is_kept = kept.n < KEPT_MAX;
            if (is_kept)
                kept.buffers[kept.n++] = ring->buffers[i];
            bth_lock_release(&kept.lock);
        }
        if (!is_kept)
            staging_buffer_free(&ring->buffers[i]);
    }
    bth_release(ring->buffers);
    *ring = (bth_staging){0};
}
