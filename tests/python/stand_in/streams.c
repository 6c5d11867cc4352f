/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What PyTorch has of a device, for the simulated ones: memory, a current stream for each device,
 * events on it, and work that it does later. Linked into a copy of the package's module.
 */
#include <string.h>

#include "base/error.h"
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

/* The block that was freed last, as PyTorch's allocator keeps it: for the next one of its size. */
static struct {
    uintptr_t address;
    size_t nbytes;
} kept[N_DEVICES];
static size_t sizes[1 << 16];
static uintptr_t addresses[1 << 16];
static size_t n_blocks;

SHOWN uintptr_t stand_in_allocate(int ordinal, size_t nbytes)
{
    uintptr_t address = kept[ordinal].address;
    berth_error error = {0};

    if (nbytes > 0 && kept[ordinal].nbytes == nbytes) {
        kept[ordinal].nbytes = 0;
        return address;
    }
    (void)bth_device_allocate_memory(device_at(ordinal), nbytes, &address, &error);
    addresses[n_blocks] = address;
    sizes[n_blocks++] = nbytes;
    return address;
}

/* The memory may come back at once, while the current stream still has work for it. */
SHOWN void stand_in_free(int ordinal, uintptr_t address)
{
    size_t i = n_blocks;

    if (address == 0)
        return;
    while (addresses[--i] != address)
        continue;
    if (kept[ordinal].nbytes > 0)
        bth_device_release_memory(device_at(ordinal), kept[ordinal].address);
    kept[ordinal].address = address;
    kept[ordinal].nbytes = sizes[i];
}

/*
 * What a kernel does: the bytes get there when the current stream comes to it. From pinned memory:
 * for other memory the driver would wait.
 */
SHOWN int stand_in_write_later(int ordinal, uintptr_t address, const void *bytes, size_t nbytes)
{
    static void *pinned; /* one such write at a time */
    berth_error error = {0};

    if (!pinned && bth_pinned_allocate(device_at(ordinal), 1 << 20, &pinned, &error) < 0)
        return error.code;
    memcpy(pinned, bytes, nbytes);
    return bth_device_begin_copy_to_device(&streams[ordinal], address, pinned, nbytes, &error);
}

/* As cudaMemcpyAsync on the current stream, and a wait. */
SHOWN int stand_in_copy(int ordinal, uintptr_t address, void *bytes, size_t nbytes, bool to_device)
{
    berth_error error = {0};

    device_at(ordinal);
    (void)(to_device
               ? bth_device_begin_copy_to_device(&streams[ordinal], address, bytes, nbytes, &error)
               : bth_device_begin_copy_to_host(&streams[ordinal], bytes, address, nbytes, &error));
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
