/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What tests of saves from devices share: storages on two simulated devices and in main memory, and
 * the file that they must become.
 */
#ifndef TESTS_SUPPORT_DEVICE_STORAGES_H
#define TESTS_SUPPORT_DEVICE_STORAGES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tests/simulated/simulated.h"
#include "tests/support/support.h"

enum { SCENE_N = 7 };

/* Simulated, or a real one, or twice the same, before scene_begin. */
extern const char *scene_devices[3];

typedef struct device_scene {
    float *host[SCENE_N];
    uintptr_t address[SCENE_N];
    bth_device_handle *device[SCENE_N]; /* NULL: the host */
    berth_tree *tree;
    berth_value *state; /* from the devices */
    uint8_t *expected;  /* saved from the host, with the same locations */
    size_t expected_nbytes;
} device_scene;

/* Copies, and waits. */
void scene_put(bth_device_handle *device, uintptr_t to, const void *bytes, size_t nbytes);
size_t scene_nbytes(size_t i);

/* A state_dict over the devices' memory, or over the host's with the same locations. */
berth_value *scene_value(const device_scene *scene, berth_tree *tree, bool on_devices, void *ready);

/* What the host's bytes become, under the configuration in force. */
void scene_expect(device_scene *scene);
void scene_begin(device_scene *scene);

/* Frees the devices' memory. */
void scene_release(device_scene *scene);
void scene_end(device_scene *scene);

#endif
