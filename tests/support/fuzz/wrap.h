/* SPDX-License-Identifier: BSD-3-Clause */
/* A pickle in an archive that has just the storages that it names. */
#ifndef TESTS_SUPPORT_FUZZ_WRAP_H
#define TESTS_SUPPORT_FUZZ_WRAP_H

#include "tests/support/fuzz/properties.h"

#define MAX_STORAGE_NBYTES 65536

struct memory_file {
    uint8_t bytes[8 << 20];
    size_t nbytes;
};

/* False: the storages are too many, or too large, for a test, or their keys make no names. */
bool wrap(const uint8_t *bytes, size_t nbytes, const berth_tree *tree, struct memory_file *file);

#endif
