/* SPDX-License-Identifier: BSD-3-Clause */
/* The simulated machine: its state, its faults, its table of functions. */
#include "tests/simulated/simulated.h"

#include <stdio.h>
#include <string.h>

#include "tests/simulated/simulated_inner.h"

#define UNASKED                                                                                    \
    {                                                                                              \
        .n_devices = 2, .memory_nbytes = UINT64_MAX, .pinned_nbytes = UINT64_MAX                   \
    }

struct simulated_state bth_simulated = {.changed = PTHREAD_COND_INITIALIZER, .machine = UNASKED};

/* ---- control ---- */

void bth_simulated_set(const bth_simulated_machine *machine)
{
    static const bth_simulated_machine unasked = UNASKED;

    (void)bth_lock_acquire(&bth_simulated.lock);
    bth_simulated.machine = machine ? *machine : unasked;
    if (bth_simulated.machine.n_devices > SIMULATED_MAX_DEVICES)
        bth_simulated.machine.n_devices = SIMULATED_MAX_DEVICES;
    bth_simulated.fail_at = 0;
    bth_simulated.n_random = bth_simulated.machine.seed;
    memset(bth_simulated.n_calls, 0, sizeof bth_simulated.n_calls);
    memset(bth_simulated.is_lost, 0, sizeof bth_simulated.is_lost);
    bth_lock_release(&bth_simulated.lock);
}

void bth_simulated_reset(unsigned ordinal)
{
    (void)bth_lock_acquire(&bth_simulated.lock);
    bth_simulated_forget(ordinal);
    bth_simulated.is_destroyed[ordinal] = true;
    bth_simulated.is_lost[ordinal] = false;
    bth_lock_release(&bth_simulated.lock);
}

void bth_simulated_fail(bth_simulated_call call, uint64_t nth, bth_simulated_fault fault)
{
    (void)bth_lock_acquire(&bth_simulated.lock);
    bth_simulated.failing = call;
    bth_simulated.fail_at = nth ? bth_simulated.n_calls[call] + nth : 0;
    bth_simulated.fault = fault;
    bth_lock_release(&bth_simulated.lock);
}

uint64_t bth_simulated_n_calls(bth_simulated_call call)
{
    (void)bth_lock_acquire(&bth_simulated.lock);
    uint64_t n = bth_simulated.n_calls[call];
    bth_lock_release(&bth_simulated.lock);
    return n;
}

bth_simulated_live bth_simulated_seen(void)
{
    (void)bth_lock_acquire(&bth_simulated.lock);
    bth_simulated_live live = bth_simulated.live;
    bth_lock_release(&bth_simulated.lock);
    return live;
}

/* ---- faults ---- */

int bth_simulated_state_of(unsigned ordinal)
{
    if (bth_simulated.is_destroyed[ordinal])
        return SIMULATED_CONTEXT_IS_DESTROYED;
    return bth_simulated.is_lost[ordinal] ? SIMULATED_ILLEGAL_ADDRESS : SIMULATED_OK;
}

int bth_simulated_begin(bth_simulated_call call, unsigned ordinal)
{
    uint64_t n = ++bth_simulated.n_calls[call];
    bool is_due = bth_simulated.fail_at > 0 && call == bth_simulated.failing &&
                  (n == bth_simulated.fail_at ||
                   (n > bth_simulated.fail_at && bth_simulated.fault == BTH_SIMULATED_FOR_EVER));

    if (is_due && bth_simulated.fault == BTH_SIMULATED_LOST)
        bth_simulated.is_lost[ordinal] = true;
    if (!is_due || bth_simulated.is_lost[ordinal] || bth_simulated.is_destroyed[ordinal])
        return bth_simulated_state_of(ordinal);
    return call == BTH_SIMULATED_ALLOCATE || call == BTH_SIMULATED_PIN ? SIMULATED_OUT_OF_MEMORY
                                                                       : SIMULATED_FAILED;
}

/* splitmix64 */
uint64_t bth_simulated_lateness(void)
{
    uint64_t latest = bth_simulated.machine.latest_nanoseconds;
    uint64_t mixed = bth_simulated.n_random += UINT64_C(0x9E3779B97F4A7C15);

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
    [SIMULATED_##result] = {.text = its_text " (SIMULATED_" #result ")", .code = (its_code)}

static void describe(int result, bth_driver_result *told)
{
    static const bth_driver_result known[SIMULATED_N_RESULTS] = {
        KNOWN(OUT_OF_MEMORY, "out of memory", BERTH_E_MEMORY),
        KNOWN(INVALID_VALUE, "invalid argument", BERTH_E_DEVICE),
        KNOWN(NOT_SUPPORTED, "operation not supported", BERTH_E_UNSUPPORTED),
        KNOWN(NO_THREAD, "no thread can be started", BERTH_E_SYSTEM),
        KNOWN(FAILED, "unspecified failure", BERTH_E_DEVICE),
        KNOWN(ILLEGAL_ADDRESS, "an illegal memory access was encountered", BERTH_E_DEVICE),
        KNOWN(CONTEXT_IS_DESTROYED, "context is destroyed", BERTH_E_DEVICE)};

    *told = (bth_driver_result){.code = BERTH_E_DEVICE};
    if (result > 0 && result < SIMULATED_N_RESULTS)
        *told = known[result];
    else
        (void)snprintf(told->text, sizeof told->text, "simulated error %d", result);
}

static int count(unsigned *n)
{
    (void)bth_lock_acquire(&bth_simulated.lock);
    *n = bth_simulated.machine.n_devices;
    bth_lock_release(&bth_simulated.lock);
    return SIMULATED_OK;
}

static int open_device(bth_device_handle *device)
{
    bool *is_destroyed = &bth_simulated.is_destroyed[device->ordinal];

    (void)bth_lock_acquire(&bth_simulated.lock);
    bool was_destroyed = *is_destroyed;
    *is_destroyed = false;
    int result = bth_simulated_begin(BTH_SIMULATED_OPEN, device->ordinal);
    *is_destroyed = was_destroyed && result != SIMULATED_OK;
    if (result == SIMULATED_OK)
        atomic_fetch_add(&device->life, 1);
    bth_lock_release(&bth_simulated.lock);
    return result;
}

static int check(const bth_device_handle *device, bool thoroughly)
{
    (void)bth_lock_acquire(&bth_simulated.lock);
    bool is_looked_at = thoroughly || bth_simulated.is_destroyed[device->ordinal];
    int result = is_looked_at ? bth_simulated_state_of(device->ordinal) : SIMULATED_OK;
    bth_lock_release(&bth_simulated.lock);
    return result;
}

static int allocate(bth_device_handle *device, size_t nbytes, uintptr_t *address)
{
    (void)bth_lock_acquire(&bth_simulated.lock);
    int result = bth_simulated_begin(BTH_SIMULATED_ALLOCATE, device->ordinal);
    if (result == SIMULATED_OK)
        result = bth_simulated_allocate(device->ordinal, nbytes, address);
    bth_lock_release(&bth_simulated.lock);
    return result;
}

/* Works on a lost device as well: else tests could not tell its leaks. */
static int free_range(uintptr_t address, bool is_pinned, bool is_registered)
{
    (void)bth_lock_acquire(&bth_simulated.lock);
    int result = bth_simulated_free(address, is_pinned, is_registered);
    bth_lock_release(&bth_simulated.lock);
    return result;
}

static int release(bth_device_handle *device, uintptr_t address)
{
    (void)device;
    return free_range(address, false, false);
}

static int find(bth_device_handle *device, uintptr_t address, bth_memory_owner *owner)
{
    (void)bth_lock_acquire(&bth_simulated.lock);
    int result = bth_simulated_begin(BTH_SIMULATED_FIND, device->ordinal);
    const struct simulated_range *range = bth_simulated_range_at(address, 1);
    owner->kind = !range             ? BTH_MEMORY_PAGEABLE
                  : range->is_pinned ? BTH_MEMORY_PINNED
                                     : BTH_MEMORY_DEVICE;
    owner->ordinal = range ? range->ordinal : 0;
    bth_lock_release(&bth_simulated.lock);
    return result;
}

static int pin(bth_device_handle *device, size_t nbytes, void **bytes)
{
    (void)bth_lock_acquire(&bth_simulated.lock);
    int result = bth_simulated_begin(BTH_SIMULATED_PIN, device->ordinal);
    if (result == SIMULATED_OK)
        result = bth_simulated_pin(device->ordinal, nbytes, bytes);
    bth_lock_release(&bth_simulated.lock);
    return result;
}

static int unpin(bth_device_handle *device, void *bytes)
{
    (void)device;
    return free_range((uintptr_t)bytes, true, false);
}

static int register_pinned(bth_device_handle *device, void *bytes, size_t nbytes)
{
    (void)bth_lock_acquire(&bth_simulated.lock);
    int result = bth_simulated_begin(BTH_SIMULATED_PIN, device->ordinal);
    if (result == SIMULATED_OK)
        result = bth_simulated_register(device->ordinal, bytes, nbytes);
    bth_lock_release(&bth_simulated.lock);
    return result;
}

static int unregister_pinned(bth_device_handle *device, void *bytes)
{
    (void)device;
    return free_range((uintptr_t)bytes, true, true);
}

static const bth_device_driver driver = {
    .kind = "simulated",
    .load = load,
    .describe = describe,
    .count = count,
    .open = open_device,
    .check = check,
    .allocate = allocate,
    .release = release,
    .find = find,
    .pin = pin,
    .unpin = unpin,
    .register_pinned = register_pinned,
    .unregister_pinned = unregister_pinned,
    .open_stream = bth_simulated_open_stream,
    .close_stream = bth_simulated_close_stream,
    .copy_to_host = bth_simulated_copy_to_host,
    .copy_to_device = bth_simulated_copy_to_device,
    .wait_stream = bth_simulated_wait_stream,
    .open_event = bth_simulated_open_event,
    .close_event = bth_simulated_close_event,
    .record = bth_simulated_record,
    .wait_event = bth_simulated_wait_event,
    .wait_for = bth_simulated_wait_for,
};

/* Linking this file is all that a program must do for "simulated:0" to exist. */
__attribute__((constructor)) static void register_driver(void)
{
    bth_device_register(&driver);
}
