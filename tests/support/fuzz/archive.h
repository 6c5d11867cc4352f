/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * An archive in its parts (plain.h): changed, and put together again with every sum, size and
 * offset right, so that a change gets behind the checks of these; and now and then one fact broken
 * after that, so that the check of that one alone can see it.
 */
#ifndef TESTS_SUPPORT_FUZZ_ARCHIVE_H
#define TESTS_SUPPORT_FUZZ_ARCHIVE_H

#include "format/bytes.h"
#include "format/checksum.h"
#include "tests/support/fuzz/pickles.h"
#include "tests/support/fuzz/target.h"

size_t mutate_archive(uint8_t *bytes, size_t nbytes, size_t most, unsigned number);

#endif
