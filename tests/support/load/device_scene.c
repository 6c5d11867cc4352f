/* SPDX-License-Identifier: BSD-3-Clause */
#include <berth/config.h>
#include <berth/device.h>

#include "tests/support/load/device_scene.h"

static const struct part all_parts[N_PARTS] = {{1, BERTH_FLOAT32, "simulated:0"},
                                               {500000, BERTH_FLOAT32, "simulated:0"},
                                               {300, BERTH_INT16, "cpu"},
                                               {700, BERTH_INT64, "simulated:0"},
                                               {100001, BERTH_UINT8, "simulated:1"},
                                               {0, BERTH_FLOAT32, "simulated:1"},
                                               {60000, BERTH_INT64, "cpu"},
                                               {6, BERTH_FLOAT64, "simulated:1"},
                                               {33334, BERTH_INT16, "simulated:0"}};

const struct part *parts = all_parts;
size_t n_parts = N_PARTS;
uint32_t *words[N_PARTS];

int64_t numel_of(size_t i)
{
    return (int64_t)(parts[i].n_words * 4 / berth_dtype_nbytes(parts[i].dtype));
}

void save_parts(const char *options)
{
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    char name[32];

    patch(options);
    for (size_t i = 0; i < n_parts; i++) {
        const int64_t numel = numel_of(i);
        berth_storage *storage = berth_storage_new(tree, parts[i].dtype, words[i],
                                                   parts[i].n_words * 4, parts[i].location);
        const berth_tensor tensor = {
            .dtype = parts[i].dtype, .rank = 1, .shape = &numel, .storage = storage};
        (void)snprintf(name, sizeof name, "part%zu", i);
        berth_dict_set(root, name, berth_make_tensor(tree, &tensor));
    }
    assert_ok(berth_save(path, root, NULL, &error));
    cr_assert_eq(berth_config_unpatch(NULL), 0);
    berth_tree_free(tree);
}

void begin_devices(void)
{
    begin_model_scene();
    for (size_t i = 0; i < n_parts; i++) {
        words[i] = malloc((parts[i].n_words + 1) * 4);
        for (size_t k = 0; k < parts[i].n_words; k++)
            words[i][k] = (uint32_t)(k * 2654435761u + i);
    }
    save_parts("save.storage_alignment=64");
    bth_simulated_set(NULL);
}

void close_all(void)
{
    close_opened();
    bth_staging_free_kept();
    bth_simulated_live live = bth_simulated_seen();
    cr_expect_eq(live.memory_nbytes, 0);
    cr_expect_eq(live.pinned_nbytes, 0);
    cr_expect_eq(live.n_streams, 0);
    cr_expect_eq(live.n_events, 0);
}

void end_devices(void)
{
    bth_system_restore();
    close_all();
    for (size_t i = 0; i < n_parts; i++)
        free(words[i]);
    end_scene();
}

void place_all(const berth_storage_rule *rule)
{
    assert_ok(berth_set_storage_rules(checkpoint, rule, 1, &error));
}

void open_as_they_were(const char *options)
{
    open_as(options);
    place_all(&as_they_were);
}

void load_as_they_were(const char *options)
{
    open_as_they_were(options);
    (void)fetched(NULL);
}

bth_device_handle *device_named(const char *name)
{
    bth_device_handle *device;

    assert_ok(bth_device_open(name, &device, &error));
    return device;
}

uintptr_t address_at(size_t i)
{
    uintptr_t address;

    assert_ok(berth_tensor_device_address(checkpoint, tensor_at(i), &address, &error));
    return address;
}

void expect_bytes(const char *name, uintptr_t address, size_t i)
{
    size_t nbytes = parts[i].n_words * 4;
    uint8_t *bytes = malloc(nbytes + 1);

    assert_ok(
        bth_device_copy_to_host_and_wait(device_named(name), bytes, address, nbytes, NULL, &error));
    cr_expect_eq(memcmp(bytes, words[i], nbytes), 0, "part%zu on %s", i, name);
    free(bytes);
}

void expect_part(size_t i, const char *place)
{
    cr_expect_str_eq(stats_at(i).device, place, "part%zu", i);
    if (strcmp(place, "cpu") == 0) {
        const void *data = berth_tensor_data(checkpoint, tensor_at(i), &error);
        cr_assert_not_null(data, "%s", error.message);
        cr_expect_eq(memcmp(data, words[i], parts[i].n_words * 4), 0, "part%zu", i);
        return;
    }
    uintptr_t address = address_at(i);
    cr_expect_eq(address % (parts[i].n_words * 4 > 65536 ? 512 : 64), 0);
    cr_expect_eq(address == 0, parts[i].n_words == 0);
    expect_bytes(place, address, i);
}

void expect_all_as_they_were(void)
{
    for (size_t i = 0; i < n_parts; i++)
        expect_part(i, parts[i].location);
}
