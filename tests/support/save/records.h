/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What tests of saving share: a few records of awkward sizes, and the file that they must become.
 */
#ifndef TESTS_SUPPORT_RECORDS_H
#define TESTS_SUPPORT_RECORDS_H

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "base/error.h"
#include "base/fnv.h"
#include "config/options.h"
#include "format/checksum.h"
#include "format/zip/zip.h"
#include "save/temporary.h"
#include "tests/support/format/composed.h"
#include "tests/support/support.h"

#define N_SAMPLES 9

/* Bytes that repeat nowhere near. */
uint8_t *sample_bytes(size_t nbytes);

/* The name of a temporary of a target in its folder. Allocated. */
char *temporary_path(const char *folder, const char *target, int slot);

/* What a save leaves that is killed: of this process's number, but of one that started earlier. */
void leave_temporary(const char *path);

/* All of one block of bytes; empty ones, small ones, and some that span many tiles. */
void sample_records(const uint8_t *bytes, berth_new_record records[N_SAMPLES]);

#define SAMPLE_NBYTES (20000 + N_SAMPLES * 13)

/* The file that these records must become; every name is "archive/…". */
void compose(composed *file, const berth_new_record *records, size_t n_records, uint32_t alignment,
             bool compute_crc32);

/* What is in force with these assignments. */
struct berth_config config_of(const char *assignments);

#endif
