/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Checkpoints built record by record, by the layout or with one lie in it; opened from memory with
 * named options; and a text of all values, to compare readings.
 */
#ifndef TESTS_SUPPORT_ARCHIVE_H
#define TESTS_SUPPORT_ARCHIVE_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "berth.h"
#include "format/checksum.h"
#include "format/layout.h"
#include "format/pickle/pickle.h"
#include "format/zip/zip.h"
#include "tests/support/format/composed.h"
#include "tests/support/support.h"

#define MAX_RECORDS 24
#define N_SAMPLE_STORAGES 3

struct archive {
    struct record records[MAX_RECORDS];
    size_t n;
    bth_pickled pickled;
    berth_tree *tree;
};

/* The sample is of this machine's own order. */
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define NATIVE_BYTEORDER "big"
#define OTHER_BYTEORDER "little"
#else
#define NATIVE_BYTEORDER "little"
#define OTHER_BYTEORDER "big"
#endif

static const float sample_weight[6] = {0, 1, 2, 3, 4, 5};
static const int64_t sample_bias[3] = {-1, 0, 1};
static const uint16_t sample_words[2] = {1, 65535};

void add_record(struct archive *archive, const char *name, const void *bytes, uint64_t nbytes);
void add_text(struct archive *archive, const char *name, const char *text);
struct record *find_record(struct archive *archive, const char *name);
void remove_record(struct archive *archive, const char *name);
void swap_records(struct archive *archive, const char *a, const char *b);
berth_tree *sample_tree(berth_value **root);

/* All records that PyTorch writes for the sample, in its order. */
struct archive sample(void);
void free_archive(struct archive *archive);

/* The whole file, by malloc; `lie` may be NULL. */
uint8_t *build(const struct archive *archive, uint32_t alignment, bool with_crc,
               const struct lie *lie, size_t *nbytes);

/* A record's entry in the directory of a built file. */
uint8_t *find_entry(uint8_t *file, size_t nbytes, const char *record);

/* The sample without lies. */
uint8_t *build_sample(bool with_crc, size_t *nbytes);

/* ---- opening ---- */

/* Opens bytes with these options alone ("load.check=none …"), whatever the environment says. */
int open_with(const void *bytes, size_t nbytes, const char *options, berth_stats *stats,
              berth_checkpoint **checkpoint, berth_error *error);

/* The text of all values of a dict of tensors and ints: what a reader can see of them. */
char *describe(berth_checkpoint *checkpoint);

/* The same of the sample. */
extern const char sample_text[];

/* The checkpoint has the sample's values. */
void expect_sample_values(berth_checkpoint *checkpoint);
/* The file opens with these options, and gives the sample's values. */
void expect_sample(const void *bytes, size_t nbytes, const char *options);

/* Opening fails with this code and sentence. */
void expect_failure(const void *bytes, size_t nbytes, const char *options, int code,
                    const char *message);

/* The elements of a tensor of n floats, at most 64. */
void expect_floats(berth_checkpoint *checkpoint, const char *name, const float *expected,
                   int64_t n);

#endif
