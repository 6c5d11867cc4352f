/* SPDX-License-Identifier: BSD-3-Clause */
#include <berth/device.h>

#include "tests/support/save/device_storages.h"

const char *scene_devices[3] = {"simulated:0", "simulated:1", "cpu"};

/* Elements of float32, and on which of these they lie. */
static const struct {
    size_t n, device;
} scene_parts[SCENE_N] = {{1, 0}, {70000, 0}, {300, 2}, {33333, 1}, {0, 1}, {20000, 2}, {5, 1}};

static void scene_must(int status, const berth_error *error)
{
    if (status < 0)
        test_give_up("%s", error->message);
}

void scene_put(bth_device_handle *device, uintptr_t to, const void *bytes, size_t nbytes)
{
    bth_device_stream stream;
    berth_error error;

    bth_error_clear(&error);
    scene_must(bth_device_stream_open(device, &stream, &error), &error);
    scene_must(bth_device_begin_copy_to_device(&stream, to, bytes, nbytes, &error), &error);
    scene_must(bth_device_stream_wait(&stream, &error), &error);
    bth_device_stream_close(&stream);
}

size_t scene_nbytes(size_t i)
{
    return scene_parts[i].n * sizeof(float);
}

static const char *scene_location(size_t i)
{
    return scene_devices[scene_parts[i].device];
}

static void scene_fill(device_scene *scene, size_t i)
{
    berth_error error;

    bth_error_clear(&error);
    scene->host[i] = malloc(scene_nbytes(i) + 1);
    for (size_t j = 0; j < scene_parts[i].n; j++)
        scene->host[i][j] = (float)(j * 7 + i) * 0.37f;
    if (strcmp(scene_location(i), "cpu") == 0)
        return;
    scene_must(bth_device_open(scene_location(i), &scene->device[i], &error), &error);
    scene_must(
        bth_device_allocate_memory(scene->device[i], scene_nbytes(i), &scene->address[i], &error),
        &error);
    scene_put(scene->device[i], scene->address[i], scene->host[i], scene_nbytes(i));
}

berth_value *scene_value(const device_scene *scene, berth_tree *tree, bool on_devices, void *ready)
{
    berth_value *state = berth_make_dict(tree, BERTH_KIND_ORDERED_DICT);

    for (size_t i = 0; i < SCENE_N; i++) {
        const int64_t n = (int64_t)scene_parts[i].n;
        char name[16];
        berth_storage *storage =
            on_devices && scene->device[i]
                ? berth_device_storage_new(tree, BERTH_FLOAT32, scene->address[i], scene_nbytes(i),
                                           scene_location(i), ready)
                : berth_storage_new(tree, BERTH_FLOAT32, scene->host[i], scene_nbytes(i),
                                    scene_location(i));
        const berth_tensor tensor = {
            .dtype = BERTH_FLOAT32, .rank = 1, .shape = &n, .storage = storage};
        (void)snprintf(name, sizeof name, "part%zu", i);
        berth_dict_set(state, name, berth_make_tensor(tree, &tensor));
    }
    return state;
}

void scene_expect(device_scene *scene)
{
    berth_error error;
    void *bytes;
    berth_tree *tree = berth_tree_new(&error);

    berth_free(scene->expected);
    scene_must(berth_save_to(TO_MEMORY(&bytes, &scene->expected_nbytes),
                             OF_VALUE(scene_value(scene, tree, false, NULL)), NAMED("archive"),
                             &error),
               &error);
    scene->expected = bytes;
    berth_tree_free(tree);
}

void scene_begin(device_scene *scene)
{
    berth_error error;

    *scene = (device_scene){0};
    for (size_t i = 0; i < SCENE_N; i++)
        scene_fill(scene, i);
    scene->tree = berth_tree_new(&error);
    scene->state = scene_value(scene, scene->tree, true, NULL);
    scene_must(berth_tree_error(scene->tree, &error), &error);
    scene_expect(scene);
}

void scene_release(device_scene *scene)
{
    for (size_t i = 0; i < SCENE_N; i++) {
        if (scene->device[i])
            bth_device_release_memory(scene->device[i], scene->address[i]);
        scene->address[i] = 0;
    }
}

void scene_end(device_scene *scene)
{
    scene_release(scene);
    berth_tree_free(scene->tree);
    berth_free(scene->expected);
    for (size_t i = 0; i < SCENE_N; i++)
        free(scene->host[i]);
}
