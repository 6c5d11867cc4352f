/* SPDX-License-Identifier: BSD-3-Clause */
/* A checkpoint that was opened against what the plain reader finds in the same bytes. */
#ifndef TESTS_SUPPORT_FUZZ_AS_PLAIN_H
#define TESTS_SUPPORT_FUZZ_AS_PLAIN_H

#include "berth.h"
#include "tests/support/fuzz/plain.h"

bool is_subbyte(const berth_tensor *tensor);

/* The first byte of its storage in the file; where it has elements. */
uint64_t storage_at(const berth_named_tensor *named);

/*
 * Z1 to Z11, T1, T5: archive and tensors are what a plain reader finds by its own sums and places,
 * as far as the opening has looked.
 */
void check_as_plain(berth_checkpoint *checkpoint, const uint8_t *bytes, size_t nbytes,
                    const char *options);

#endif
