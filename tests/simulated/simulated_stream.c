/* SPDX-License-Identifier: BSD-3-Clause */
/* Streams of the simulated devices: a thread each, that does what was asked of it one by one. */
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "io/thread_pool.h"
#include "tests/simulated/simulated_inner.h"

/*
 * Recording moves an event on; waiting means the record that was the last when the wait was asked
 * for. Closed while work still refers to it, it goes with the last of that.
 */
struct event {
    uint64_t n_recorded, reached;
    unsigned n_uses;
    bool is_closed;
};

enum kind { TO_HOST, TO_DEVICE, RECORD, WAIT };

struct work {
    struct work *next;
    enum kind kind;
    uintptr_t device, host;
    size_t nbytes;
    bool is_pinned; /* the host's side */
    struct event *event;
    uint64_t number; /* of the record */
};

struct stream {
    pthread_t thread;
    unsigned ordinal;
    bool is_held, is_closing;
    struct work *first, **last; /* the one being done is the first */
    uint64_t n_asked, n_done;
};

/* ---- the thread ---- */

static void drop_event(struct event *event)
{
    if (event->is_closed && event->n_uses == 0)
        bth_release(event);
}

static bool can_begin(const struct stream *stream)
{
    const struct work *work = stream->first;

    if (!work || stream->is_held)
        return false;
    return work->kind != WAIT || work->event->reached >= work->number ||
           bth_simulated.is_lost[stream->ordinal];
}

static void sleep_for(uint64_t nanoseconds)
{
    struct timespec time = {.tv_sec = (time_t)(nanoseconds / 1000000000),
                            .tv_nsec = (long)(nanoseconds % 1000000000)};

    if (nanoseconds == 0)
        return;
    bth_lock_release(&bth_simulated.lock);
    (void)nanosleep(&time, NULL);
    (void)bth_lock_acquire(&bth_simulated.lock);
}

/* Marks memory as being copied, or not any more: then it can be freed. */
static void mark(uintptr_t address, bool is_begin)
{
    struct simulated_range *range = bth_simulated_range_at(address, 1);

    if (range)
        range->n_copies += is_begin ? 1u : -1u;
}

/* Memory is looked up when the copy is made: what was freed meanwhile loses the device. */
static bool is_legal(const struct work *work, unsigned ordinal)
{
    const struct simulated_range *device = bth_simulated_range_at(work->device, work->nbytes);
    const struct simulated_range *host = bth_simulated_range_at(work->host, work->nbytes);

    return device && !device->is_pinned && device->ordinal == ordinal &&
           (!work->is_pinned || (host && host->is_pinned));
}

/*
 * The bytes move without the lock: a host that touches them at the same time is seen by the thread
 * sanitizer.
 */
static void copy(const struct work *work)
{
    const struct simulated_range *device = bth_simulated_range_at(work->device, work->nbytes);
    uint8_t *bytes = device->bytes + (work->device - device->address);

    mark(work->device, true);
    mark(work->host, true);
    bth_lock_release(&bth_simulated.lock);
    if (work->kind == TO_HOST)
        memcpy((void *)work->host, bytes, work->nbytes);
    else
        memcpy(bytes, (const void *)work->host, work->nbytes);
    (void)bth_lock_acquire(&bth_simulated.lock);
    mark(work->device, false);
    mark(work->host, false);
}

static void do_work(const struct stream *stream, struct work *work)
{
    bool *is_lost = &bth_simulated.is_lost[stream->ordinal];

    if (work->kind == RECORD && work->event->reached < work->number)
        work->event->reached = work->number;
    if (work->event) {
        work->event->n_uses--;
        drop_event(work->event);
        return;
    }
    if (*is_lost)
        return;
    if (bth_simulated_begin(BTH_SIMULATED_WORK, stream->ordinal) == SIMULATED_OK &&
        is_legal(work, stream->ordinal))
        copy(work);
    else
        *is_lost = true;
}

static void *run(void *argument)
{
    struct stream *stream = argument;

    bth_thread_disable_cancel();
    (void)bth_lock_acquire(&bth_simulated.lock);
    for (;;) {
        while (!can_begin(stream) && !(stream->is_closing && !stream->first))
            pthread_cond_wait(&bth_simulated.changed, &bth_simulated.lock.mutex);
        if (!stream->first)
            break;
        sleep_for(bth_simulated_lateness());
        struct work *work = stream->first;
        do_work(stream, work);
        stream->first = work->next;
        if (!work->next)
            stream->last = &stream->first;
        stream->n_done++;
        bth_release(work);
        pthread_cond_broadcast(&bth_simulated.changed);
    }
    bth_lock_release(&bth_simulated.lock);
    return NULL;
}

/* ---- opening and closing ---- */

static int start(struct stream *stream, unsigned ordinal)
{
    int result = bth_simulated_begin(BTH_SIMULATED_OPEN_STREAM, ordinal);

    if (result != SIMULATED_OK)
        return result;
    *stream = (struct stream){.ordinal = ordinal};
    stream->last = &stream->first;
    if (bth_thread_start(&stream->thread, run, stream) != 0)
        return SIMULATED_NO_THREAD;
    bth_simulated.live.n_streams++;
    return SIMULATED_OK;
}

int bth_simulated_open_stream(bth_device_handle *device, void **opened)
{
    struct stream *stream = bth_allocate(sizeof *stream);

    if (!stream)
        return SIMULATED_OUT_OF_MEMORY;
    (void)bth_lock_acquire(&bth_simulated.lock);
    int result = start(stream, device->ordinal);
    bth_lock_release(&bth_simulated.lock);
    if (result != SIMULATED_OK) {
        bth_release(stream);
        return result;
    }
    *opened = stream;
    return SIMULATED_OK;
}

int bth_simulated_close_stream(bth_device_handle *device, void *opened)
{
    struct stream *stream = opened;

    (void)device;
    (void)bth_lock_acquire(&bth_simulated.lock);
    stream->is_held = false;
    stream->is_closing = true;
    bth_simulated.live.n_streams--;
    pthread_cond_broadcast(&bth_simulated.changed);
    bth_lock_release(&bth_simulated.lock);
    pthread_join(stream->thread, NULL);
    bth_release(stream);
    return SIMULATED_OK;
}

void bth_simulated_hold(bth_device_stream *stream, bool is_held)
{
    struct stream *held = stream->native;

    (void)bth_lock_acquire(&bth_simulated.lock);
    held->is_held = is_held;
    pthread_cond_broadcast(&bth_simulated.changed);
    bth_lock_release(&bth_simulated.lock);
}

/* ---- asking ---- */

/* With the lock held: queues a copy of this work. */
static int ask(struct stream *stream, const struct work *asked)
{
    struct work *work = bth_allocate(sizeof *work);

    if (!work)
        return SIMULATED_OUT_OF_MEMORY;
    *work = *asked;
    if (work->event)
        work->event->n_uses++;
    *stream->last = work;
    stream->last = &work->next;
    stream->n_asked++;
    pthread_cond_broadcast(&bth_simulated.changed);
    return SIMULATED_OK;
}

/* With the lock held: until all that was asked so far is done, or the device is lost. */
static int wait_for_work(struct stream *stream)
{
    uint64_t n = stream->n_asked;

    while (stream->n_done < n)
        pthread_cond_wait(&bth_simulated.changed, &bth_simulated.lock.mutex);
    return bth_simulated_state_of(stream->ordinal);
}

/* Memory of the host that is not pinned the driver copies by itself, and comes back then. */
static int ask_copy(struct stream *stream, struct work *work)
{
    int result;

    (void)bth_lock_acquire(&bth_simulated.lock);
    const struct simulated_range *host = bth_simulated_range_at(work->host, work->nbytes);
    work->is_pinned = host && host->is_pinned;
    result = bth_simulated_begin(BTH_SIMULATED_COPY, stream->ordinal);
    if (result == SIMULATED_OK)
        result = ask(stream, work);
    if (result == SIMULATED_OK && !work->is_pinned)
        result = wait_for_work(stream);
    bth_lock_release(&bth_simulated.lock);
    return result;
}

int bth_simulated_copy_to_host(bth_device_handle *device, void *stream, void *to, uintptr_t from,
                               size_t nbytes)
{
    struct work work = {.kind = TO_HOST, .device = from, .host = (uintptr_t)to, .nbytes = nbytes};

    (void)device;
    return ask_copy(stream, &work);
}

int bth_simulated_copy_to_device(bth_device_handle *device, void *stream, uintptr_t to,
                                 const void *from, size_t nbytes)
{
    struct work work = {.kind = TO_DEVICE, .device = to, .host = (uintptr_t)from, .nbytes = nbytes};

    (void)device;
    return ask_copy(stream, &work);
}

int bth_simulated_wait_stream(bth_device_handle *device, void *stream)
{
    (void)bth_lock_acquire(&bth_simulated.lock);
    int result = bth_simulated_begin(BTH_SIMULATED_WAIT, device->ordinal);
    if (result == SIMULATED_OK)
        result = wait_for_work(stream);
    bth_lock_release(&bth_simulated.lock);
    return result;
}

/* ---- events ---- */

int bth_simulated_open_event(bth_device_handle *device, void **opened)
{
    (void)bth_lock_acquire(&bth_simulated.lock);
    int result = bth_simulated_begin(BTH_SIMULATED_OPEN_EVENT, device->ordinal);
    struct event *event = result == SIMULATED_OK ? bth_allocate_zeroed(sizeof *event) : NULL;
    if (result == SIMULATED_OK && !event)
        result = SIMULATED_OUT_OF_MEMORY;
    bth_simulated.live.n_events += event != NULL;
    *opened = event;
    bth_lock_release(&bth_simulated.lock);
    return result;
}

int bth_simulated_close_event(bth_device_handle *device, void *opened)
{
    struct event *event = opened;

    (void)device;
    (void)bth_lock_acquire(&bth_simulated.lock);
    bth_simulated.live.n_events--;
    event->is_closed = true;
    drop_event(event);
    bth_lock_release(&bth_simulated.lock);
    return SIMULATED_OK;
}

int bth_simulated_record(bth_device_handle *device, void *opened, void *stream)
{
    struct event *event = opened;

    (void)bth_lock_acquire(&bth_simulated.lock);
    int result = bth_simulated_begin(BTH_SIMULATED_RECORD, device->ordinal);
    if (result == SIMULATED_OK)
        result =
            ask(stream,
                &(struct work){.kind = RECORD, .event = event, .number = event->n_recorded + 1});
    if (result == SIMULATED_OK)
        event->n_recorded++;
    bth_lock_release(&bth_simulated.lock);
    return result;
}

int bth_simulated_wait_for(bth_device_handle *device, void *stream, void *opened)
{
    struct event *event = opened;

    (void)bth_lock_acquire(&bth_simulated.lock);
    int result = bth_simulated_begin(BTH_SIMULATED_RECORD, device->ordinal);
    if (result == SIMULATED_OK)
        result =
            ask(stream, &(struct work){.kind = WAIT, .event = event, .number = event->n_recorded});
    bth_lock_release(&bth_simulated.lock);
    return result;
}

int bth_simulated_wait_event(bth_device_handle *device, void *opened)
{
    struct event *event = opened;

    (void)bth_lock_acquire(&bth_simulated.lock);
    int result = bth_simulated_begin(BTH_SIMULATED_WAIT, device->ordinal);
    uint64_t number = event->n_recorded;
    while (result == SIMULATED_OK && event->reached < number) {
        pthread_cond_wait(&bth_simulated.changed, &bth_simulated.lock.mutex);
        result = bth_simulated_state_of(device->ordinal);
    }
    bth_lock_release(&bth_simulated.lock);
    return result;
}

bool bth_simulated_has_come(const bth_device_event *opened)
{
    const struct event *event = opened->native;

    (void)bth_lock_acquire(&bth_simulated.lock);
    bool has_come = event->reached >= event->n_recorded;
    bth_lock_release(&bth_simulated.lock);
    return has_come;
}
