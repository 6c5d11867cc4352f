/* SPDX-License-Identifier: BSD-3-Clause */
/* The simulated machine: its state, its faults, its table of functions. */
#include "io/simulated.h"

#include <string.h>

#include "io/simulated_inner.h"

#define UNASKED                                                                                    \
    {                                                                                              \
        .n_devices = 2, .memory_nbytes = UINT64_MAX, .pinned_nbytes = UINT64_MAX                   \
    }

struct simulated_state berth_simulated = {.changed = PTHREAD_COND_INITIALIZER, .machine = UNASKED};

/* ---- control ---- */

void berth_simulated_set(const berth_simulated_machine *machine)
{
    static const berth_simulated_machine unasked = UNASKED;

    (void)berth_lock_take(&berth_simulated.lock);
    berth_simulated.machine = machine ? *machine : unasked;
    if (berth_simulated.machine.n_devices > SIMULATED_MOST_DEVICES)
        berth_simulated.machine.n_devices = SIMULATED_MOST_DEVICES;
    berth_simulated.fail_at = 0;
    berth_simulated.n_random = berth_simulated.machine.seed;
    memset(berth_simulated.n_calls, 0, sizeof berth_simulated.n_calls);
    memset(berth_simulated.is_lost, 0, sizeof berth_simulated.is_lost);
    berth_lock_give(&berth_simulated.lock);
}

void berth_simulated_reset(unsigned ordinal)
{
    (void)berth_lock_take(&berth_simulated.lock);
    berth_simulated_forget(ordinal);
    berth_simulated.is_destroyed[ordinal] = true;
    berth_simulated.is_lost[ordinal] = false;
    berth_lock_give(&berth_simulated.lock);
}

void berth_simulated_fail(berth_simulated_call call, uint64_t nth, berth_simulated_fault fault)
{
    (void)berth_lock_take(&berth_simulated.lock);
    berth_simulated.failing = call;
    berth_simulated.fail_at = nth ? berth_simulated.n_calls[call] + nth : 0;
    berth_simulated.fault = fault;
    berth_lock_give(&berth_simulated.lock);
}

uint64_t berth_simulated_n_calls(berth_simulated_call call)
{
    (void)berth_lock_take(&berth_simulated.lock);
    uint64_t n = berth_simulated.n_calls[call];
    berth_lock_give(&berth_simulated.lock);
    return n;
}

berth_simulated_live berth_simulated_seen(void)
{
    (void)berth_lock_take(&berth_simulated.lock);
    berth_simulated_live live = berth_simulated.live;
    berth_lock_give(&berth_simulated.lock);
    return live;
}

/* ---- faults ---- */

int berth_simulated_state_of(unsigned ordinal)
{
    if (berth_simulated.is_destroyed[ordinal])
        return SIMULATED_CONTEXT_IS_DESTROYED;
    return berth_simulated.is_lost[ordinal] ? SIMULATED_ILLEGAL_ADDRESS : SIMULATED_OK;
}

int berth_simulated_begin(berth_simulated_call call, unsigned ordinal)
{
    uint64_t n = ++berth_simulated.n_calls[call];
    bool is_due =
        berth_simulated.fail_at > 0 && call == berth_simulated.failing &&
        (n == berth_simulated.fail_at ||
         (n > berth_simulated.fail_at && berth_simulated.fault == BERTH_SIMULATED_FOR_EVER));

    if (is_due && berth_simulated.fault == BERTH_SIMULATED_LOST)
        berth_simulated.is_lost[ordinal] = true;
    if (!is_due || berth_simulated.is_lost[ordinal] || berth_simulated.is_destroyed[ordinal])
        return berth_simulated_state_of(ordinal);
    return call == BERTH_SIMULATED_ALLOCATE || call == BERTH_SIMULATED_PIN ? SIMULATED_OUT_OF_MEMORY
                                                                           : SIMULATED_FAILED;
}

/* splitmix64 */
uint64_t berth_simulated_lateness(void)
{
    uint64_t latest = berth_simulated.machine.latest_nanoseconds;
    uint64_t mixed = berth_simulated.n_random += UINT64_C(0x9E3779B97F4A7C15);

    mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94D049BB133111EB);
    mixed ^= mixed >> 31;
    return latest ? mixed % latest : 0;
}

/* ---- the driver ---- */

static int load(berth_error *error)
{
    (void)error;
    return 0;
}

#define KNOWN(result, its_text, its_code)                                                          \
    [SIMULATED_##result] = {.name = "SIMULATED_" #result, .text = (its_text), .code = (its_code)}

static void describe(int result, berth_driver_result *told)
{
    static const berth_driver_result known[SIMULATED_N_RESULTS] = {
        KNOWN(OUT_OF_MEMORY, "out of memory", BERTH_E_MEMORY),
        KNOWN(INVALID_VALUE, "invalid argument", BERTH_E_DEVICE),
        KNOWN(NOT_SUPPORTED, "operation not supported", BERTH_E_UNSUPPORTED),
        KNOWN(NO_THREAD, "no thread can be started", BERTH_E_SYSTEM),
        KNOWN(FAILED, "unspecified failure", BERTH_E_DEVICE),
        KNOWN(ILLEGAL_ADDRESS, "an illegal memory access was encountered", BERTH_E_DEVICE),
        KNOWN(CONTEXT_IS_DESTROYED, "context is destroyed", BERTH_E_DEVICE)};

    *told = (berth_driver_result){.text = "simulated error", .code = BERTH_E_DEVICE};
    if (result > 0 && result < SIMULATED_N_RESULTS)
        *told = known[result];
}

static int count(unsigned *n)
{
    (void)berth_lock_take(&berth_simulated.lock);
    *n = berth_simulated.machine.n_devices;
    berth_lock_give(&berth_simulated.lock);
    return SIMULATED_OK;
}

static int open_device(berth_device_handle *device)
{
    bool *is_destroyed = &berth_simulated.is_destroyed[device->ordinal];

    (void)berth_lock_take(&berth_simulated.lock);
    bool was_destroyed = *is_destroyed;
    *is_destroyed = false;
    int result = berth_simulated_begin(BERTH_SIMULATED_OPEN, device->ordinal);
    *is_destroyed = was_destroyed && result != SIMULATED_OK;
    if (result == SIMULATED_OK)
        atomic_fetch_add(&device->life, 1);
    berth_lock_give(&berth_simulated.lock);
    return result;
}

static int look(const berth_device_handle *device, bool closely)
{
    (void)berth_lock_take(&berth_simulated.lock);
    bool is_looked_at = closely || berth_simulated.is_destroyed[device->ordinal];
    int result = is_looked_at ? berth_simulated_state_of(device->ordinal) : SIMULATED_OK;
    berth_lock_give(&berth_simulated.lock);
    return result;
}

static int allocate(berth_device_handle *device, size_t nbytes, uintptr_t *address)
{
    (void)berth_lock_take(&berth_simulated.lock);
    int result = berth_simulated_begin(BERTH_SIMULATED_ALLOCATE, device->ordinal);
    if (result == SIMULATED_OK)
        result = berth_simulated_allocate(device->ordinal, nbytes, address);
    berth_lock_give(&berth_simulated.lock);
    return result;
}

/* Works on a lost device as well: else tests could not tell its leaks. */
static int free_range(uintptr_t address, bool is_pinned, bool is_registered)
{
    (void)berth_lock_take(&berth_simulated.lock);
    int result = berth_simulated_free(address, is_pinned, is_registered);
    berth_lock_give(&berth_simulated.lock);
    return result;
}

static int release(berth_device_handle *device, uintptr_t address)
{
    (void)device;
    return free_range(address, false, false);
}

static int find(berth_device_handle *device, uintptr_t address, berth_memory_place *place)
{
    (void)berth_lock_take(&berth_simulated.lock);
    int result = berth_simulated_begin(BERTH_SIMULATED_FIND, device->ordinal);
    const struct simulated_range *range = berth_simulated_range_at(address, 1);
    place->kind = !range             ? BERTH_MEMORY_PAGEABLE
                  : range->is_pinned ? BERTH_MEMORY_PINNED
                                     : BERTH_MEMORY_DEVICE;
    place->ordinal = range ? range->ordinal : 0;
    berth_lock_give(&berth_simulated.lock);
    return result;
}

static int pin(berth_device_handle *device, size_t nbytes, void **bytes)
{
    (void)berth_lock_take(&berth_simulated.lock);
    int result = berth_simulated_begin(BERTH_SIMULATED_PIN, device->ordinal);
    if (result == SIMULATED_OK)
        result = berth_simulated_pin(device->ordinal, nbytes, bytes);
    berth_lock_give(&berth_simulated.lock);
    return result;
}

static int unpin(berth_device_handle *device, void *bytes)
{
    (void)device;
    return free_range((uintptr_t)bytes, true, false);
}

static int enlist(berth_device_handle *device, void *bytes, size_t nbytes)
{
    (void)berth_lock_take(&berth_simulated.lock);
    int result = berth_simulated_begin(BERTH_SIMULATED_PIN, device->ordinal);
    if (result == SIMULATED_OK)
        result = berth_simulated_register(device->ordinal, bytes, nbytes);
    berth_lock_give(&berth_simulated.lock);
    return result;
}

static int delist(berth_device_handle *device, void *bytes)
{
    (void)device;
    return free_range((uintptr_t)bytes, true, true);
}

const berth_device_driver berth_simulated_driver = {
    .kind = "simulated",
    .load = load,
    .describe = describe,
    .count = count,
    .open = open_device,
    .look = look,
    .allocate = allocate,
    .release = release,
    .find = find,
    .pin = pin,
    .unpin = unpin,
    .enlist = enlist,
    .delist = delist,
    .open_stream = berth_simulated_open_stream,
    .close_stream = berth_simulated_close_stream,
    .copy_to_host = berth_simulated_copy_to_host,
    .copy_to_device = berth_simulated_copy_to_device,
    .wait_stream = berth_simulated_wait_stream,
    .open_event = berth_simulated_open_event,
    .close_event = berth_simulated_close_event,
    .record = berth_simulated_record,
    .wait_event = berth_simulated_wait_event,
    .query_event = berth_simulated_query_event,
    .wait_for = berth_simulated_wait_for,
};
