/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What PyTorch has of a device, for the simulated ones: memory, a current stream for each device,
 * events on it, and work that it does later. Linked into a copy of the package's module.
 */
#include "config/error.h"
#include "tests/simulated/simulated.h"

#define SHOWN __attribute__((visibility("default")))
#define N_DEVICES 2

static bth_device_handle *devices[N_DEVICES];
static bth_device_stream streams[N_DEVICES];

static bth_device_handle *device_at(int ordinal)
{
    static const char *const NAMES[N_DEVICES] = {"simulated:0", "simulated:1"};
    berth_error error = {0};

    if (!devices[ordinal] &&
        (bth_device_open(NAMES[ordinal], &devices[ordinal], &error) < 0 ||
         bth_device_stream_open(devices[ordinal], &streams[ordinal], &error) < 0))
        devices[ordinal] = NULL;
    return devices[ordinal];
}

SHOWN uintptr_t stand_in_allocate(int ordinal, size_t nbytes)
{
    uintptr_t address = 0;
    berth_error error = {0};

    (void)bth_device_allocate_memory(device_at(ordinal), nbytes, &address, &error);
    return address;
}

/* As PyTorch's allocator: the memory may come back at once, for work of the same stream. */
SHOWN void stand_in_free(int ordinal, uintptr_t address)
{
    bth_device_release_memory(device_at(ordinal), address);
}

/* What a kernel does: the bytes get there when the current stream comes to it. They must live. */
SHOWN int stand_in_write_later(int ordinal, uintptr_t address, const void *bytes, size_t nbytes)
{
    berth_error error = {0};

    device_at(ordinal);
    return bth_device_copy_to_device(&streams[ordinal], address, bytes, nbytes, &error);
}

/* As cudaMemcpyAsync on the current stream, and a wait. */
SHOWN int stand_in_copy(int ordinal, uintptr_t address, void *bytes, size_t nbytes, bool to_device)
{
    berth_error error = {0};

    device_at(ordinal);
    (void)(to_device ? bth_device_copy_to_device(&streams[ordinal], address, bytes, nbytes, &error)
                     : bth_device_copy_to_host(&streams[ordinal], bytes, address, nbytes, &error));
    return error.code == 0 ? bth_device_stream_wait(&streams[ordinal], &error) : error.code;
}

SHOWN void stand_in_hold(int ordinal, bool is_held)
{
    device_at(ordinal);
    bth_simulated_hold(&streams[ordinal], is_held);
}

/* The driver's event, recorded on the current stream. */
SHOWN void *stand_in_event(int ordinal)
{
    bth_device_event event;
    berth_error error = {0};

    if (bth_device_event_open(device_at(ordinal), &event, &error) < 0 ||
        bth_device_event_record(&event, &streams[ordinal], &error) < 0)
        return NULL;
    return event.native;
}

SHOWN void stand_in_event_close(int ordinal, void *native)
{
    bth_device_event event = {
        .device = devices[ordinal], .native = native, .life = bth_device_life(devices[ordinal])};

    bth_device_event_close(&event);
}

/* The nth copy from now on cannot be asked for; 0: none fails. */
SHOWN void stand_in_fail_copy(unsigned nth)
{
    bth_simulated_fail(BTH_SIMULATED_COPY, nth, BTH_SIMULATED_ONCE);
}

/* How much more each device has room for. */
SHOWN void stand_in_limit(uint64_t memory_nbytes)
{
    const bth_simulated_machine machine = {
        .n_devices = N_DEVICES, .memory_nbytes = memory_nbytes, .pinned_nbytes = UINT64_MAX};

    bth_simulated_set(&machine);
}

SHOWN uint64_t stand_in_n_copies(void)
{
    return bth_simulated_n_calls(BTH_SIMULATED_COPY);
}

SHOWN unsigned stand_in_n_events(void)
{
    return bth_simulated_seen().n_events;
}
