/* SPDX-License-Identifier: BSD-3-Clause */
/* Loads to devices that fail: each with its sentence, nothing left behind, and nothing half there.
 */
#include <berth/device.h>

#include "tests/support/load/device_scene.h"

#include <sys/wait.h>

TestSuite(device_failures, .init = begin_devices, .fini = end_devices);

/* The message, which names the file, without it. */
static const char *told(int status)
{
    size_t length = strlen(path);

    cr_assert_lt(status, 0);
    cr_assert_eq(error.code, status);
    if (strncmp(error.message, path, length) != 0)
        return error.message;
    return error.message + length + 2;
}

static int fetch(void)
{
    return berth_load(checkpoint, NULL, NULL, &error);
}

static void expect_nothing(void)
{
    for (size_t i = 0; i < N_PARTS; i++)
        if (parts[i].n_words > 0)
            cr_expect_str_eq(stats_at(i).method, "none", "part%zu", i);
    cr_expect_eq(bth_simulated_seen().memory_nbytes, 0);
    cr_expect_eq(bth_simulated_seen().n_streams, 0);
}

/* ---- places ---- */

static int place_at(const char *place)
{
    const berth_storage_rule rules[] = {{.pattern = "part0", .device = "simulated:0"},
                                        {.pattern = "part1", .device = place}};

    return berth_set_storage_rules(checkpoint, rules, 2, &error);
}

Test(device_failures, places_that_there_are_not_change_none)
{
    open_as("");
    cr_expect_str_eq(told(place_at("simulated:7")),
                     "\"part1\": data/1: simulated:7: there is no such device, the driver has 2");
    cr_expect_eq(error.code, BERTH_E_DEVICE);
    cr_expect_str_eq(
        told(place_at("mps:0")),
        "\"part1\": data/1: mps:0: not the name of a device; devices are cuda:0, cuda:1 and so on");
    cr_expect_eq(error.code, BERTH_E_ARGUMENT);
    cr_expect_str_eq(stats_at(0).device, "cpu");
    cr_expect_str_eq(told(berth_set_storage_rules(NULL, NULL, 0, &error)),
                     "berth_set_storage_rules needs a checkpoint and rules");
    cr_expect_str_eq(told(berth_set_storage_rules(checkpoint, NULL, 1, &error)),
                     "berth_set_storage_rules needs a checkpoint and rules");
}

Test(device_failures, a_machine_without_devices_says_so)
{
    static const bth_simulated_machine none = {.n_devices = 0};

    bth_simulated_set(&none);
    open_as("");
    cr_expect_str_eq(told(place_at("simulated:0")),
                     "\"part0\": data/0: simulated:0: there is no such device, the driver has 0");
    bth_simulated_set(NULL);
    bth_simulated_fail(BTH_SIMULATED_OPEN, 1, BTH_SIMULATED_FOR_EVER);
    cr_expect_str_eq(
        told(place_at("simulated:1")),
        "\"part0\": data/0: simulated:0: cannot be opened: unspecified failure (SIMULATED_FAILED)");
}

static int say(void *context, const berth_storage *storage, berth_storage_choice *placement)
{
    const berth_storage_choice *said = context;

    if (berth_storage_get_info(storage)->nbytes != 4 * 700)
        return 0;
    if (!said)
        return 5; /* EIO */
    *placement = *said;
    return 0;
}

static int choose_said(berth_storage_choice *said)
{
    const berth_storage_rule rule = {.choose = say, .context = said};

    return berth_set_storage_rules(checkpoint, &rule, 1, &error);
}

Test(device_failures, memory_that_cannot_be_it_is_refused)
{
    bth_device_handle *device = device_named("simulated:1");
    berth_storage_choice said = {
        .device = "simulated:1", .address = (uintptr_t)&said, .nbytes = 2800};
    char text[200];

    open_as("");
    (void)snprintf(text, sizeof text,
                   "\"part3\": data/3: simulated:1: 2800 bytes at 0x%zx are not this device's "
                   "memory, or not any more",
                   (size_t)said.address);
    cr_expect_str_eq(told(choose_said(&said)), text);
    cr_expect_eq(error.code, BERTH_E_ARGUMENT);
    said.device = "cpu";
    cr_expect_str_eq(told(choose_said(&said)),
                     "\"part3\": data/3: an address must be on a device, not on \"cpu\": "
                     "berth_load_into fills memory of the host");
    said.device = NULL;
    cr_expect_str_eq(told(choose_said(&said)),
                     "\"part3\": data/3: the caller's function set device to NULL");
    cr_expect_str_eq(told(choose_said(NULL)),
                     "\"part3\": data/3: the caller's function failed: Input/output error");
    cr_expect_eq(error.code, BERTH_E_CALLBACK);
    cr_expect_eq(error.system_errno, EIO);

    cr_assert_eq(bth_device_allocate_memory(device, 2800, &said.address, &error), 0);
    said = (berth_storage_choice){.device = "simulated:1", .address = said.address, .nbytes = 2799};
    cr_expect_str_eq(told(choose_said(&said)), "\"part3\": data/3: simulated:1: the memory at the "
                                               "address has 2799 bytes, but 2800 are needed");
    said = (berth_storage_choice){.device = "simulated:0", .address = said.address, .nbytes = 2800};
    (void)snprintf(text, sizeof text,
                   "\"part3\": data/3: simulated:0: 2800 bytes at 0x%zx are memory of simulated:1",
                   (size_t)said.address);
    cr_expect_str_eq(told(choose_said(&said)), text);

    /* Freed before the bytes come, and after. */
    said.device = "simulated:1";
    assert_ok(choose_said(&said));
    bth_device_release_memory(device, said.address);
    (void)snprintf(text, sizeof text,
                   "\"part3\": data/3: simulated:1: 2800 bytes at 0x%zx are not this device's "
                   "memory, or not any more",
                   (size_t)said.address);
    cr_expect_str_eq(told(fetch()), text);
    expect_nothing();
    cr_assert_eq(bth_device_allocate_memory(device, 2800, &said.address, &error), 0);
    assert_ok(choose_said(&said));
    (void)fetched(NULL);
    bth_device_release_memory(device, said.address);
    (void)snprintf(text, sizeof text,
                   "\"part3\": data/3: simulated:1: 2800 bytes at 0x%zx are not this device's "
                   "memory, or not any more",
                   (size_t)said.address);
    cr_expect_str_eq(
        told(berth_tensor_read(checkpoint, tensor_at(3), 0, numel_of(3), words[0], &error)), text);
}

Test(device_failures, the_host_has_no_address_of_what_is_there)
{
    uintptr_t address = 1;

    open_as_they_were("");
    for (int round = 0; round < 2; round++) {
        cr_expect_null(berth_tensor_data(checkpoint, tensor_at(1), &error));
        cr_expect_str_eq(
            told(error.code),
            "\"part1\": data/1: it is on simulated:0, where the host cannot follow an address: "
            "berth_tensor_device_address returns that address, berth_tensor_read copies the bytes");
        cr_expect_null(berth_storage_data(checkpoint, tensor_at(1)->storage, &error));
        (void)fetched(NULL);
    }
    cr_expect_str_eq(told(berth_tensor_device_address(checkpoint, tensor_at(2), &address, &error)),
                     "\"part2\": data/2: it is in the memory of the host: call berth_tensor_data");
    cr_expect_eq(address, 0);
    cr_expect_str_eq(told(berth_tensor_device_address(checkpoint, tensor_at(1), NULL, &error)),
                     "the pointer for the address is NULL");
    cr_expect_str_eq(told(berth_tensor_device_address(NULL, tensor_at(1), &address, &error)),
                     "the checkpoint or the storage is NULL");
}

/* ---- bytes that are bad ---- */

Test(device_failures, bytes_that_are_not_those_that_were_saved_do_not_count)
{
    size_t nbytes;
    uint64_t offset;

    open_as("");
    offset = tensor_at(1)->storage->offset + 1999999;
    uint8_t *bytes = test_read_file(path, &nbytes);
    bytes[offset] ^= 1;
    test_write_file(path, bytes, nbytes);
    free(bytes);
    open_as_they_were("io.chunk_nbytes=65536 load.mmap=off");
    int status = berth_load(checkpoint, NULL, only("load.check=data", NULL), &error);
    cr_expect_eq(status, BERTH_E_CHECKSUM, "%s", error.message);
    cr_expect_str_eq(error.record, "data/1");
    expect_nothing();
    cr_expect_eq(stats_at(1).crc32, BERTH_CRC_BAD);

    /* What is good comes. */
    const berth_selection rest = {.pattern = "part[034578]"};
    (void)fetched(&rest);
    expect_part(3, "simulated:0");
}

/* Z10: berth_open found the CRCs good, but the bytes are read once more, into the ring. */
Test(device_failures, bytes_that_changed_since_open_are_found_in_the_ring)
{
    static const char *const options[] = {"load.check=data", "load.check=data load.mmap=off"};
    size_t nbytes;

    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        uint8_t *bytes = test_read_file(path, &nbytes);
        open_as(options[i]);
        cr_expect_eq(stats_at(1).crc32, i == 0 ? BERTH_CRC_GOOD : BERTH_CRC_UNCHECKED);
        place_all(&as_they_were);
        const uint64_t at = tensor_at(1)->storage->offset + 1999999;
        bytes[at] ^= 1;
        test_write_file(path, bytes, nbytes);
        cr_expect_eq(berth_load(checkpoint, NULL, NULL, &error), BERTH_E_CHECKSUM, "%s: %s",
                     options[i], error.message);
        cr_expect_str_eq(error.record, "data/1");
        expect_nothing();
        bytes[at] ^= 1;
        test_write_file(path, bytes, nbytes);
        free(bytes);
    }
}

Test(device_failures, a_file_that_became_shorter_is_an_error)
{
    static const berth_storage_rule all = {.device = "simulated:1"};

    open_as("io.chunk_nbytes=65536 io.threads=1");
    place_all(&all);
    uint64_t offset = tensor_at(1)->storage->offset + 100000;
    cr_assert_eq(truncate(path, (off_t)offset), 0);
    cr_expect_eq(fetch(), BERTH_E_TRUNCATED, "%s", error.message);
    cr_expect_eq(error.offset, offset);
    cr_expect_str_eq(error.record, "data/1");
    expect_nothing();
}

/* ---- what there is not enough of ---- */

Test(device_failures, without_room_for_all_buffers_fewer_do)
{
    static const bth_simulated_machine machine = {
        .n_devices = 2, .memory_nbytes = UINT64_MAX, .pinned_nbytes = 5 << 20};

    bth_simulated_set(&machine);
    open_as_they_were("io.threads=4 io.chunk_nbytes=65536");
    berth_stats stats = fetched(NULL);
    cr_expect_geq(stats.memory_nbytes, 2 * 2097152);
    cr_expect_lt(stats.memory_nbytes, 3 * 2097152);
    expect_all_as_they_were();
}

Test(device_failures, without_room_for_one_the_bytes_are_told)
{
    static const bth_simulated_machine machine = {
        .n_devices = 2, .memory_nbytes = UINT64_MAX, .pinned_nbytes = 1 << 20};

    bth_simulated_set(&machine);
    open_as_they_were("");
    cr_expect_str_eq(
        told(fetch()),
        "simulated:0: 4194304 bytes cannot be pinned: out of memory (SIMULATED_OUT_OF_MEMORY)");
    cr_expect_eq(error.code, BERTH_E_MEMORY);
    expect_nothing();
    open_as_they_were("io.memory_nbytes=1MiB");
    cr_expect_str_eq(told(fetch()), "a staging buffer needs 2097152 bytes, io.memory_nbytes leaves "
                                    "1048576 (1048576 bytes missing)");
    bth_simulated_set(NULL);
    load_as_they_were("");
}

Test(device_failures, without_room_on_the_device_the_bytes_are_told)
{
    static const bth_simulated_machine machine = {
        .n_devices = 2, .memory_nbytes = 2000000, .pinned_nbytes = UINT64_MAX};

    bth_simulated_set(&machine);
    open_as_they_were("");
    cr_expect_str_eq(told(fetch()), "simulated:0: 2137304 bytes of device memory cannot be "
                                    "allocated: out of memory (SIMULATED_OUT_OF_MEMORY)");
    cr_expect_eq(error.code, BERTH_E_MEMORY);
    expect_nothing();
    bth_simulated_set(NULL);
    (void)fetched(NULL);
    expect_all_as_they_were();
}

/* ---- devices that fail ---- */

Test(device_failures, a_lost_device_ends_the_load_and_not_the_process)
{
    uint64_t nths[] = {1, 7, 0};

    load_as_they_were("io.chunk_nbytes=65536 io.threads=3");
    nths[2] = bth_simulated_n_calls(BTH_SIMULATED_WORK);
    cr_assert_gt(nths[2], 7);
    /* With the last copy it shows only when that is waited for. */
    for (size_t k = 0; k < 3; k++) {
        bth_simulated_set(NULL);
        open_as_they_were("io.chunk_nbytes=65536 io.threads=3");
        bth_simulated_fail(BTH_SIMULATED_WORK, nths[k], BTH_SIMULATED_LOST);
        uintptr_t address;
        FAILS_SAYING(k ? fetch()
                       : berth_tensor_device_address(checkpoint, tensor_at(1), &address, &error),
                     BERTH_E_DEVICE, "(SIMULATED_ILLEGAL_ADDRESS)");
        for (size_t i = 0; i < N_PARTS; i++)
            if (parts[i].n_words > 0)
                cr_expect_str_eq(stats_at(i).method, "none");
        cr_expect_eq(bth_simulated_seen().n_streams, 0);
        bth_simulated_set(NULL);
        (void)fetched(NULL);
        expect_all_as_they_were();
    }
}

static void expect_gone(const char *sentence)
{
    char text[200];
    uintptr_t address = 1;

    (void)snprintf(text, sizeof text, "\"part1\": data/1: simulated:0: %s", sentence);
    cr_expect_str_eq(told(berth_tensor_read(checkpoint, tensor_at(1), 0, 1, words[5], &error)),
                     text);
    cr_expect_str_eq(told(berth_tensor_device_address(checkpoint, tensor_at(1), &address, &error)),
                     text);
    cr_expect_eq(error.code, BERTH_E_DEVICE);
    cr_expect_eq(address, 0);
}

/* X18 */
Test(device_failures, what_was_in_a_context_that_died_is_gone_and_the_device_goes_on)
{
    load_as_they_were("");
    cr_assert_gt(bth_staging_kept_nbytes(), 0);
    bth_simulated_reset(0);
    expect_gone("its context died: context is destroyed (SIMULATED_CONTEXT_IS_DESTROYED)");
    expect_part(4, "simulated:1");
    (void)device_named("simulated:0");
    expect_gone("its context died and was opened again: all data in it is lost");
    load_as_they_were(""); /* closes the one before */
    expect_all_as_they_were();
}

Test(device_failures, a_device_that_was_reset_before_the_load_is_opened_anew)
{
    open_as_they_were("");
    bth_simulated_reset(0);
    bth_simulated_reset(1);
    (void)fetched(NULL);
    expect_all_as_they_were();
}

static int cancel(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    uint64_t *total = context;

    (void)done_nbytes;
    *total = total_nbytes;
    return 1;
}

Test(device_failures, a_cancelled_load_leaves_nothing)
{
    uint64_t total = 0;
    const berth_params call = {.progress = cancel, .progress_context = &total};

    open_as_they_were("io.chunk_nbytes=65536 io.threads=1");
    cr_expect_eq(berth_load(checkpoint, NULL, &call, &error), BERTH_E_CANCELLED);
    cr_expect_gt(total, 4 * 600000);
    expect_nothing();
}

/* In a child, that exits with the number of what was not as it must be. */
static int act_as_child(void)
{
    const berth_selection host = {.pattern = "part2"};

    if (fetch() != BERTH_E_DEVICE || !strstr(error.message, "this process was forked"))
        return 1;
    if (berth_tensor_read(checkpoint, tensor_at(0), 0, 1, words[5], &error) != BERTH_E_DEVICE)
        return 2;
    if (berth_load(checkpoint, &host, NULL, &error) < 0)
        return 3;
    berth_close(checkpoint);
    return 0;
}

Test(device_failures, devices_do_not_survive_a_fork)
{
    const berth_selection first = {.pattern = "part0"};

    open_as_they_were("");
    (void)fetched(&first);
    test_in_child(act_as_child);
    (void)fetched(NULL);
    expect_all_as_they_were();
}
