/* SPDX-License-Identifier: BSD-3-Clause */
/* Devices as a program sees them, by the simulated ones, which are there everywhere. */
#include <berth.h>
#include <berth/config.h>
#include <berth/device.h>
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/support.h"

static berth_error error;

#define expect_good(call) assert_ok((call))

static uintptr_t memory_of(const char *device, void *bytes, size_t nbytes)
{
    uintptr_t address;

    expect_good(berth_device_memory_new(device, nbytes, &address, &error));
    expect_good(berth_device_memory_copy(device, address, bytes, nbytes, BERTH_TO_DEVICE, &error));
    return address;
}

Test(api_devices, what_is_written_to_a_device_is_read_back_from_any_place_in_it)
{
    uint8_t bytes[1000], back[1000] = {0};

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 7 + 1);
    uintptr_t address = memory_of("simulated", bytes, sizeof bytes);
    expect_good(
        berth_device_memory_copy("simulated:0", address + 10, bytes, 5, BERTH_TO_DEVICE, &error));
    memcpy(bytes + 10, bytes, 5);
    expect_good(
        berth_device_memory_copy("simulated:0", address + 3, back, 900, BERTH_FROM_DEVICE, &error));
    cr_expect_arr_eq(back, bytes + 3, 900);
    berth_device_memory_free("simulated:0", address);
}

Test(api_devices, no_bytes_are_at_address_0_and_need_no_freeing)
{
    uintptr_t address = 1;

    expect_good(berth_device_memory_new("simulated:1", 0, &address, &error));
    cr_expect_eq(address, 0);
    expect_good(berth_device_memory_copy("simulated:1", 0, NULL, 0, BERTH_TO_DEVICE, &error));
    expect_good(berth_device_memory_copy("simulated:1", 0, NULL, 0, BERTH_FROM_DEVICE, &error));
    berth_device_memory_free("simulated:1", 0);
    berth_device_memory_free(NULL, 0);
}

Test(api_devices, what_is_not_the_devices_memory_is_refused_before_it_is_touched)
{
    char text[] = "of the host", expected[200];
    uintptr_t address = memory_of("simulated:0", text, sizeof text);

    cr_expect_eq(
        berth_device_memory_copy("simulated:1", address, text, 4, BERTH_FROM_DEVICE, &error),
        BERTH_E_ARGUMENT);
    (void)snprintf(expected, sizeof expected,
                   "simulated:1: 4 bytes at 0x%zx are memory of simulated:0", (size_t)address);
    cr_expect_str_eq(error.message, expected);
    berth_device_memory_free("simulated:0", address);
    cr_expect_eq(berth_device_memory_copy("simulated:0", address, text, 4, BERTH_TO_DEVICE, &error),
                 BERTH_E_ARGUMENT);
    (void)snprintf(expected, sizeof expected,
                   "simulated:0: 4 bytes at 0x%zx are not this device's memory, or not any more",
                   (size_t)address);
    cr_expect_str_eq(error.message, expected);
    cr_expect_eq(berth_device_memory_copy("simulated:0", (uintptr_t)&text, text, sizeof text,
                                          BERTH_FROM_DEVICE, &error),
                 BERTH_E_ARGUMENT);
    cr_expect_str_eq(text, "of the host");
}

Test(api_devices, a_name_of_no_device_is_refused)
{
    uintptr_t address = 1;

    FAILS(berth_device_memory_new("cpu", 1, &address, &error), BERTH_E_ARGUMENT,
          "cpu: not the name of a device; devices are cuda:0, cuda:1 and so on");
    cr_expect_eq(address, 0);
    FAILS(berth_device_memory_new("simulated:9", 1, &address, &error), BERTH_E_DEVICE,
          "simulated:9: there is no such device, the driver has 2");
    FAILS(berth_device_memory_new(NULL, 1, &address, &error), BERTH_E_ARGUMENT,
          "the name of the device is NULL");
    berth_device_memory_free("cpu", 5);
}

/* What a program does that has tensors on a device and nothing else of this library. */
Test(api_devices, tensors_on_a_device_are_saved_and_come_back_as_bytes)
{
    float weight[6] = {1, -2, 3.5f, 0, 1e30f, 6};
    const int64_t shape[2] = {2, 3};
    void *file;
    size_t nbytes;
    berth_checkpoint *checkpoint;
    uintptr_t address = memory_of("simulated:1", weight, sizeof weight);
    berth_tree *tree = berth_tree_new(&error);
    berth_value *state = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_storage *storage =
        berth_device_storage_new(tree, BERTH_FLOAT32, address, sizeof weight, "simulated:1", NULL);

    berth_dict_set(state, "weight",
                   berth_make_tensor(tree, &(berth_tensor){.dtype = BERTH_FLOAT32,
                                                           .rank = 2,
                                                           .shape = shape,
                                                           .storage = storage}));
    expect_good(berth_save_to(TO_MEMORY(&file, &nbytes), OF_VALUE(state), NAMED("model"), &error));
    berth_device_memory_free("simulated:1", address);
    berth_tree_free(tree);
    expect_good(berth_open_source(FROM_MEMORY(file, nbytes), NULL, &checkpoint, &error));
    const berth_tensor *tensor = berth_find_tensor(checkpoint, "weight", NULL);
    cr_expect_str_eq(berth_storage_get_info(tensor->storage)->location, "simulated:1");
    cr_expect_arr_eq(berth_tensor_data(checkpoint, tensor, &error), weight, sizeof weight);
    berth_close(checkpoint);
    berth_free(file);
}

/* ---- what GPUDirect Storage would need ---- */

enum { BLOCK = 4096, N_SIZES = 40 };

/* Sizes around those where a descriptor, a header or padding begins another block. */
static berth_value *state_of_many_sizes(berth_tree *tree, uint8_t *bytes)
{
    berth_value *state = berth_make_dict(tree, BERTH_KIND_DICT);
    char name[16];

    for (int i = 0; i < N_SIZES; i++) {
        const int64_t n = (i % 4) * BLOCK + (i < N_SIZES / 2 ? i * 9 : BLOCK - i * 5);
        (void)snprintf(name, sizeof name, "t%d", i);
        berth_dict_set(state, name, test_vector(tree, BERTH_UINT8, bytes, n));
    }
    return state;
}

/* Requests of whole blocks at multiples of a block: none has bytes of two storages, or of none. */
Test(api_devices, storages_aligned_to_4096_are_whole_blocks_apart)
{
    static uint8_t bytes[4 * BLOCK];
    berth_record record;
    uint64_t free_from = 0;
    int n_storages = 0;
    berth_tree *tree = berth_tree_new(&error);

    expect_good(berth_config_patch("save.storage_alignment=4096", &error));
    berth_plan_info info;
    berth_plan *plan =
        berth_plan_new(NULL, OF_VALUE(state_of_many_sizes(tree, bytes)), NULL, &info, &error);
    cr_assert_not_null(plan, "%s", error.message);
    for (size_t i = 0; berth_plan_at(plan, i, &record) == 0; i++) {
        if (strncmp(record.name, "data/", 5) != 0)
            continue;
        cr_expect_eq(record.offset % BLOCK, 0, "%s at %zu", record.name, (size_t)record.offset);
        cr_expect_geq(record.offset, free_from, "%s", record.name);
        free_from = record.offset + (record.nbytes + BLOCK - 1) / BLOCK * BLOCK;
        cr_expect_leq(free_from, info.nbytes, "%s", record.name);
        n_storages++;
    }
    cr_expect_eq(n_storages, N_SIZES);
    berth_plan_free(plan);
    berth_tree_free(tree);
    expect_good(berth_config_unpatch(&error));
}
