/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A file of tensors that were on two simulated devices and on the host, opened with options, and
 * what of it is where.
 */
#ifndef TESTS_SUPPORT_DEVICE_SCENE_H
#define TESTS_SUPPORT_DEVICE_SCENE_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/device/staging_buffers.h"
#include "io/syscalls.h"
#include "load/checkpoint.h"
#include "tests/simulated/simulated.h"
#include "tests/support/opened.h"

/* Tensors "part0" ... of so many words, as elements of several widths. */
struct part {
    size_t n_words;
    berth_dtype dtype;
    const char *location;
};

#define N_PARTS 9
extern const struct part *parts; /* these; or a test's own, fewer ones, before begin_devices */
extern size_t n_parts;
extern uint32_t *words[N_PARTS];

static const berth_storage_rule as_they_were = {.device = BERTH_DEVICE_SAVED};

int64_t numel_of(size_t i);
void save_parts(const char *options);
void begin_devices(void);

/* A device that was lost does not free its memory: whoever loses one sets the machine up anew. */
void close_all(void);
void end_devices(void);
void place_all(const berth_storage_rule *rule);
/* Opens the file, with each storage to go where it was; `load_` loads all of them, too. */
void open_as_they_were(const char *options);
void load_as_they_were(const char *options);
bth_device_handle *device_named(const char *name);
uintptr_t address_at(size_t i);

/* The bytes at an address of a device are part i's. */
void expect_bytes(const char *name, uintptr_t address, size_t i);

/* Part i is at `place`: each byte, and what is said of it. */
void expect_part(size_t i, const char *place);
void expect_all_as_they_were(void);

#endif
