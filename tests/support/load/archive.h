/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Checkpoints built record by record, by the layout or with one lie in it; opened from memory with
 * named options; and a text of all values, to compare readings.
 */
#ifndef TESTS_SUPPORT_ARCHIVE_H
#define TESTS_SUPPORT_ARCHIVE_H

#include "tests/support/format/composed.h"
#include "tests/support/load/describe.h"
#include "tests/support/opened.h"

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

/* How a message ends that refuses a repacked file: with a path, as a word of a command line, and
 * without. */
#define REPACKED_WHY "; the file was repacked, which debug mode and load.repacked=refuse refuse: "
#define REPACKED_REFUSED_AT(file)                                                                  \
    REPACKED_WHY "`berth convert --set debug=off --set load.repacked=accept " file                 \
                 " NEW.pt` mends it"
#define REPACKED_REFUSED REPACKED_WHY "debug=off and load.repacked=accept read it"

static const float sample_weight[6] = {0, 1, 2, 3, 4, 5};
static const int64_t sample_bias[3] = {-1, 0, 1};
static const uint16_t sample_words[2] = {1, 65535};

/*
 * What a test builds and opens. There is one of each, because Criterion runs every test in a
 * process of its own: `sample` are the records, `file` the bytes that were built of them.
 */
extern struct archive sample;
extern uint8_t *file; /* malloc's */
extern size_t file_nbytes;

/* All records that PyTorch writes for the sample, in its order, and the file of them. */
void begin_sample(void);
void end_sample(void);
/* The same, and the file at `path`, in a folder of its own. */
void begin_sample_file(void);
void end_sample_file(void);

/* ---- records, and the file of them ---- */

/* Begins again, with these records alone: the pickle of a value, the version, a byte order. */
void begin_records(berth_tree *tree, const berth_value *root, const char *byteorder);

void add_record(const char *name, const void *bytes, uint64_t nbytes);
void add_text(const char *name, const char *text);
/* In front of the storages. */
void insert_text(const char *name, const char *text);
struct record *find_record(const char *name);
void set_record(const char *name, const void *bytes, uint64_t nbytes);
void set_text(const char *name, const char *text);
void remove_record(const char *name);
void swap_records(const char *a, const char *b);
berth_tree *sample_tree(berth_value **root);

/* The file, by the layout; `lie` may be NULL. */
void build(const struct lie *lie);
void build_with(uint32_t alignment, bool with_crc, const struct lie *lie);
/* A value saved with these options, in its place. Frees the value's tree. */
void save_file(berth_value *root, const char *options);
/* A file of tests/data/ in its place. */
void read_file(const char *name);

/* A record's entry in the directory of the file. */
uint8_t *find_entry(const char *record);

/* ---- opening ---- */

/* Opens bytes with these options alone, in the place of what was open. */
int open_bytes(const void *bytes, size_t nbytes, const char *options);
/* The same of the file: `open_file` must succeed. */
int try_file(const char *options);
void open_file(const char *options);

/* The checkpoint has the sample's values. */
void expect_sample_values(void);
/* The file opens with these options, and gives the sample's values. */
void expect_sample(const char *options);

/* Opening the file fails with this code and sentence. */
void expect_failure(const char *options, int code, const char *message);
/* The same of other bytes. */
void expect_failure_of(const void *bytes, size_t nbytes, const char *options, int code,
                       const char *message);

/*
 * W6: opens the file again and again; each allocation of it fails once. Each failure is
 * BERTH_E_MEMORY and leaves nothing. There are more than `min` of them.
 */
void expect_clean_failing_allocations(const char *options, uint64_t min);

/* The elements of a tensor of n floats, at most 64. */
void expect_floats(const char *name, const float *expected, int64_t n);
/* The data of a tensor; NULL, and `error`, where there is none. */
const void *data_of(const char *name);

#endif
