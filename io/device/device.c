/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/device/device.h"

#include <assert.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/lock.h"
#include "berth/device.h"
#include "io/device/device_driver.h"

#define DEVICES_MAX 64
#define KINDS_MAX 2

/* One driver for each kind of device; NULL after the last. */
static const bth_device_driver *drivers[KINDS_MAX + 1] = {
#ifdef BERTH_HAS_CUDA
    &bth_cuda_driver,
#endif
    NULL};

/*
 * The open devices of this process. They are never closed: all libraries of a process share a
 * driver and its contexts, and to open one takes seconds.
 */
static struct {
    bth_lock lock;      /* held while a device is opened */
    atomic_int process; /* the one that has open devices, or opens the first; 0: none */
    bool is_lost;       /* a thread of the parent was opening a device at the fork */
    unsigned n;
    bth_device_handle devices[KINDS_MAX][DEVICES_MAX];
} opened;

/* 0 if the driver's result is 0; else an error: "cuda:0: what failed: the driver's text (NAME)". */
__attribute__((format(printf, 4, 5))) static int device_check_result(bth_device_handle *device,
                                                                     int result, berth_error *error,
                                                                     const char *format, ...)
{
    bth_driver_result described;
    char failed[256];
    va_list arguments;

    if (result == 0)
        return 0;
    va_start(arguments, format);
    (void)vsnprintf(failed, sizeof failed, format, arguments);
    va_end(arguments);
    atomic_store(&device->is_doubted, true);
    device->driver->describe(result, &described);
    const char *what_next = described.is_sticky ? ", and the process must be started again" : "";
    return bth_fail_status(error, described.code, "%s: %s%s: %s", device->name, failed, what_next,
                           described.text);
}

/* ---- opening ---- */

static int device_open_locked(bth_device_handle *device, berth_error *error)
{
    unsigned n = 0;

    if (device->driver->load(error) < 0)
        return bth_error_prefix(error, device->name);
    if (device_check_result(device, device->driver->count(&n), error, "devices cannot be counted") <
        0)
        return error->code;
    if (device->ordinal >= n)
        return bth_fail_status(error, BERTH_E_DEVICE,
                               "%s: there is no such device, the driver has %u", device->name, n);
    if (device->is_open &&
        device->driver->check(device, atomic_exchange(&device->is_doubted, false)) == 0)
        return 0;
    if (device_check_result(device, device->driver->open(device), error, "cannot be opened") < 0)
        return error->code;
    opened.n += !device->is_open;
    device->is_open = true;
    return 0;
}

static int device_fail_forked(const bth_device_handle *device, berth_error *error)
{
    return bth_fail_status(error, BERTH_E_DEVICE,
                           "%s: this process was forked from one that had opened a device, and "
                           "devices do not survive that",
                           device->name);
}

void bth_device_register(const bth_device_driver *driver)
{
    size_t kind = 0;

    while (drivers[kind])
        kind++;
    assert(kind < KINDS_MAX && opened.n == 0);
    drivers[kind] = driver;
}

int bth_device_open(const char *name, bth_device_handle **device, berth_error *error)
{
    bth_device_handle wanted = {0}, *place;
    size_t kind = 0, length = name ? strcspn(name, ":") : 0;

    *device = NULL;
    if (!name)
        return bth_fail_argument(error, "the name of the device is NULL");
    while (drivers[kind] && (strlen(drivers[kind]->kind) != length ||
                             strncmp(drivers[kind]->kind, name, length) != 0))
        kind++;
    /* Digits as they are printed: no sign, no leading zero. */
    const char *digits = name[length] ? name + length + 1 : "0";
    bool is_name = *digits != '\0';
    for (const char *at = digits; *at && is_name; at++) {
        is_name =
            *at >= '0' && *at <= '9' && (*digits != '0' || at == digits) && wanted.ordinal <= 99999;
        wanted.ordinal = wanted.ordinal * 10 + (unsigned)(*at - '0');
    }
#ifndef BERTH_HAS_CUDA
    if (is_name && !drivers[kind] && length == 4 && strncmp(name, "cuda", 4) == 0)
        return bth_fail_status(error, BERTH_E_UNAVAILABLE,
                               "%s: this library was built without support for CUDA devices", name);
#endif
    if (!is_name || !drivers[kind])
        return bth_fail_argument(
            error, "%s: not the name of a device; devices are cuda:0, cuda:1 and so on", name);
    wanted.driver = drivers[kind];
    (void)snprintf(wanted.name, sizeof wanted.name, "%s:%u", wanted.driver->kind, wanted.ordinal);
    if (wanted.ordinal >= DEVICES_MAX)
        return bth_fail_status(error, BERTH_E_DEVICE,
                               "%s: there is no such device, at most %d are used", wanted.name,
                               DEVICES_MAX);
    place = &opened.devices[kind][wanted.ordinal];
    /* X11: a child does not use devices if its parent had one, or was opening one. */
    if (bth_lock_acquire(&opened.lock) == BTH_LOCK_TORN)
        opened.is_lost = true;
    if (opened.is_lost || (opened.n > 0 && !bth_device_is_of_this_process(&wanted)))
        (void)device_fail_forked(&wanted, error);
    else {
        atomic_store(&opened.process, (int)getpid());
        if (!place->is_open)
            *place = wanted;
        if (device_open_locked(place, error) == 0)
            *device = place;
        if (opened.n == 0)
            atomic_store(&opened.process, 0);
    }
    bth_lock_release(&opened.lock);
    return error->code;
}

const char *bth_device_name(const bth_device_handle *device)
{
    return device->name;
}

bool bth_device_is_same_kind(const bth_device_handle *a, const bth_device_handle *b)
{
    return a->driver == b->driver;
}

bool bth_device_is_of_this_process(const bth_device_handle *device)
{
    (void)device; /* one process opens all devices */
    return atomic_load(&opened.process) == (int)getpid();
}

int bth_device_check_process(const bth_device_handle *device, berth_error *error)
{
    if (bth_device_is_of_this_process(device))
        return 0;
    return device_fail_forked(device, error);
}

/* ---- lives ---- */

unsigned bth_device_life(const bth_device_handle *device)
{
    return atomic_load(&device->life);
}

bool bth_device_life_is_over(const bth_device_handle *device, unsigned life)
{
    return !bth_device_is_of_this_process(device) || life != bth_device_life(device) ||
           device->driver->check(device, false) != 0;
}

int bth_device_check_life(bth_device_handle *device, unsigned life, berth_error *error)
{
    if (bth_device_check_process(device, error) < 0)
        return error->code;
    if (life != bth_device_life(device))
        return bth_fail_status(error, BERTH_E_DEVICE,
                               "%s: its context died and was opened again: all data in it is lost",
                               device->name);
    return device_check_result(device, device->driver->check(device, false), error,
                               "its context died");
}

/* Calls the driver if this process may use the device, and reports a failure. */
#define DEVICE_CALL(device, error, call, ...)                                                      \
    (bth_device_check_process(device, error) < 0                                                   \
         ? (error)->code                                                                           \
         : device_check_result(device, (device)->driver->call, error, __VA_ARGS__))

/* The same for a stream or an event, whose context may have died. */
#define OBJECT_CALL(object, error, call, ...)                                                      \
    (bth_device_check_life((object)->device, (object)->life, error) < 0                            \
         ? (error)->code                                                                           \
         : device_check_result((object)->device, (object)->device->driver->call, error,            \
                               __VA_ARGS__))

/* ---- memory ---- */

int bth_device_allocate_memory(bth_device_handle *device, size_t nbytes, uintptr_t *address,
                               berth_error *error)
{
    *address = 0;
    if (nbytes == 0)
        return 0;
    return DEVICE_CALL(device, error, allocate(device, nbytes, address),
                       "%zu bytes of device memory cannot be allocated", nbytes);
}

void bth_device_release_memory(bth_device_handle *device, uintptr_t address)
{
    if (address != 0 && bth_device_is_of_this_process(device))
        (void)device->driver->release(device, address);
}

int bth_device_find_memory_owner(bth_device_handle *device, uintptr_t address,
                                 bth_memory_owner *owner, berth_error *error)
{
    *owner = (bth_memory_owner){0};
    return DEVICE_CALL(device, error, find(device, address, owner),
                       "the owner of the memory at 0x%zx cannot be found", (size_t)address);
}

int bth_device_check_memory(bth_device_handle *device, uintptr_t address, size_t nbytes,
                            berth_error *error)
{
    bth_memory_owner owner;

    if (nbytes == 0)
        return 0;
    if (nbytes - 1 > UINTPTR_MAX - address)
        return bth_fail_argument(error, "%s: %zu bytes at 0x%zx end beyond the address space",
                                 device->name, nbytes, (size_t)address);
    const uintptr_t ends[] = {address, address + (nbytes - 1)};
    for (size_t i = 0; i < 2; i++) {
        if (bth_device_find_memory_owner(device, ends[i], &owner, error) < 0)
            return error->code;
        if (owner.kind != BTH_MEMORY_DEVICE)
            return bth_fail_argument(
                error, "%s: %zu bytes at 0x%zx are not this device's memory, or not any more",
                device->name, nbytes, (size_t)address);
        if (owner.ordinal != device->ordinal)
            return bth_fail_argument(error, "%s: %zu bytes at 0x%zx are memory of %s:%u",
                                     device->name, nbytes, (size_t)address, device->driver->kind,
                                     owner.ordinal);
    }
    return 0;
}

int bth_pinned_allocate(bth_device_handle *device, size_t nbytes, void **bytes, berth_error *error)
{
    *bytes = NULL;
    return DEVICE_CALL(device, error, pin(device, nbytes, bytes),
                       "%zu bytes of pinned memory cannot be allocated", nbytes);
}

void bth_pinned_release(bth_device_handle *device, void *bytes)
{
    if (bytes && bth_device_is_of_this_process(device))
        (void)device->driver->unpin(device, bytes);
}

int bth_pinned_register(bth_device_handle *device, void *bytes, size_t nbytes, berth_error *error)
{
    return DEVICE_CALL(device, error, register_pinned(device, bytes, nbytes),
                       "%zu bytes cannot be pinned", nbytes);
}

void bth_pinned_unregister(bth_device_handle *device, void *bytes)
{
    if (bth_device_is_of_this_process(device))
        (void)device->driver->unregister_pinned(device, bytes);
}

/* ---- streams ---- */

int bth_device_stream_open(bth_device_handle *device, bth_device_stream *stream, berth_error *error)
{
    *stream = (bth_device_stream){.device = device, .life = bth_device_life(device)};
    return DEVICE_CALL(device, error, open_stream(device, &stream->native),
                       "a stream cannot be created");
}

void bth_device_stream_close(bth_device_stream *stream)
{
    if (stream->native && !bth_device_life_is_over(stream->device, stream->life))
        (void)stream->device->driver->close_stream(stream->device, stream->native);
    *stream = (bth_device_stream){0};
}

int bth_device_begin_copy_to_host(bth_device_stream *stream, void *to, uintptr_t from,
                                  size_t nbytes, berth_error *error)
{
    if (nbytes == 0)
        return 0;
    return OBJECT_CALL(stream, error,
                       copy_to_host(stream->device, stream->native, to, from, nbytes),
                       "%zu bytes cannot be copied to the host", nbytes);
}

int bth_device_begin_copy_to_device(bth_device_stream *stream, uintptr_t to, const void *from,
                                    size_t nbytes, berth_error *error)
{
    if (nbytes == 0)
        return 0;
    return OBJECT_CALL(stream, error,
                       copy_to_device(stream->device, stream->native, to, from, nbytes),
                       "%zu bytes cannot be copied to the device", nbytes);
}

int bth_device_stream_wait(bth_device_stream *stream, berth_error *error)
{
    return OBJECT_CALL(stream, error, wait_stream(stream->device, stream->native), "copies failed");
}

int bth_device_stream_wait_for_event(bth_device_stream *stream, void *native_event,
                                     berth_error *error)
{
    return OBJECT_CALL(stream, error, wait_for(stream->device, stream->native, native_event),
                       "a stream cannot wait for an event");
}

int bth_device_copy_to_host_and_wait(bth_device_handle *device, void *to, uintptr_t from,
                                     size_t nbytes, void *ready, berth_error *error)
{
    bth_device_stream stream;

    if (bth_device_stream_open(device, &stream, error) < 0)
        return error->code;
    if ((!ready || bth_device_stream_wait_for_event(&stream, ready, error) == 0) &&
        bth_device_begin_copy_to_host(&stream, to, from, nbytes, error) == 0)
        (void)bth_device_stream_wait(&stream, error);
    bth_device_stream_close(&stream);
    return error->code;
}

/* ---- events ---- */

int bth_device_event_open(bth_device_handle *device, bth_device_event *event, berth_error *error)
{
    *event = (bth_device_event){.device = device, .life = bth_device_life(device)};
    return DEVICE_CALL(device, error, open_event(device, &event->native),
                       "an event cannot be created");
}

void bth_device_event_close(bth_device_event *event)
{
    if (event->native && !bth_device_life_is_over(event->device, event->life))
        (void)event->device->driver->close_event(event->device, event->native);
    *event = (bth_device_event){0};
}

int bth_device_event_record(bth_device_event *event, bth_device_stream *stream, berth_error *error)
{
    return OBJECT_CALL(event, error, record(event->device, event->native, stream->native),
                       "an event cannot be recorded");
}

int bth_device_event_wait(bth_device_event *event, berth_error *error)
{
    return OBJECT_CALL(event, error, wait_event(event->device, event->native), "copies failed");
}

/* ---- device memory for programs that do not allocate it otherwise ---- */

int berth_device_memory_new(const char *device, size_t nbytes, uintptr_t *address,
                            berth_error *error)
{
    bth_device_handle *handle;

    BTH_ERROR_BEGIN(error);
    *address = 0;
    if (bth_device_open(device, &handle, error) < 0)
        return error->code;
    return bth_device_allocate_memory(handle, nbytes, address, error);
}

void berth_device_memory_free(const char *device, uintptr_t address)
{
    bth_device_handle *handle;
    berth_error error;

    bth_error_clear(&error);
    if (address != 0 && bth_device_open(device, &handle, &error) == 0)
        bth_device_release_memory(handle, address);
}

int berth_device_memory_copy(const char *device, uintptr_t address, void *bytes, size_t nbytes,
                             berth_copy_direction direction, berth_error *error)
{
    bth_device_handle *handle;
    bth_device_stream stream;

    BTH_ERROR_BEGIN(error);
    if (direction != BERTH_TO_DEVICE && direction != BERTH_FROM_DEVICE)
        return bth_fail_argument(error, "invalid direction %d", (int)direction);
    if (bth_device_open(device, &handle, error) < 0 ||
        bth_device_check_memory(handle, address, nbytes, error) < 0)
        return error->code;
    if (direction == BERTH_FROM_DEVICE)
        return bth_device_copy_to_host_and_wait(handle, bytes, address, nbytes, NULL, error);
    if (bth_device_stream_open(handle, &stream, error) < 0)
        return error->code;
    if (bth_device_begin_copy_to_device(&stream, address, bytes, nbytes, error) == 0)
        (void)bth_device_stream_wait(&stream, error);
    bth_device_stream_close(&stream);
    return error->code;
}

/* ---- for the core ---- */

const bth_device_functions bth_wing_device = {
    .open = bth_device_open,
    .name = bth_device_name,
    .life = bth_device_life,
    .check_life = bth_device_check_life,
    .check_memory = bth_device_check_memory,
    .copy_to_host_and_wait = bth_device_copy_to_host_and_wait,
};
