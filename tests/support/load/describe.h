/* SPDX-License-Identifier: BSD-3-Clause */
/* A text of all values, to compare readings. */
#ifndef TESTS_SUPPORT_DESCRIBE_H
#define TESTS_SUPPORT_DESCRIBE_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "berth.h"
#include "format/checksum.h"
#include "format/layout.h"
#include "format/pickle/pickle.h"
#include "format/zip/zip.h"
#include "tests/support/support.h"

/* The text of all values of a dict of tensors and ints: what a reader can see of them. */
char *describe(berth_checkpoint *checkpoint);

/* The same of the sample. */
extern const char sample_text[];

#endif
