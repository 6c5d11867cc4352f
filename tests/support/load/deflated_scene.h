/* SPDX-License-Identifier: BSD-3-Clause */
/* The sample of archive.h, zipped again with records that are deflated, as `zip -r` makes it (Z12).
 */
#ifndef TESTS_SUPPORT_DEFLATED_SCENE_H
#define TESTS_SUPPORT_DEFLATED_SCENE_H

#include "tests/support/load/archive.h"
#include "tests/support/support.h"

#define LARGE_NBYTES ((size_t)8 << 20)

/* The records of the sample, in its order; those that begin with `prefix` are deflated. */
void zip_again(const char *prefix);
/* Where in the file the data of a record begin. */
size_t data_of_record(const char *name);

/* The sample with deflated storages. */
void begin_deflated(void);
/* In its place: "large", 8 MiB of zeros, and "few" and "more", 1000 and 999 bytes; all deflated. */
void begin_large(void);

const berth_tensor *tensor_named(const char *name);
/* `error` is this one. */
void expect_error(int code, const char *message);

#endif
