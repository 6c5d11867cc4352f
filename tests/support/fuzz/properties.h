/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What must hold of every file, whatever is in it: shared by the fuzz targets, which build it into
 * a fuzzer and, as Criterion programs, replay files.
 */
#ifndef TESTS_SUPPORT_FUZZ_PROPERTIES_H
#define TESTS_SUPPORT_FUZZ_PROPERTIES_H

#include <locale.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <wchar.h>

#include "berth.h"
#include "format/checksum.h"
#include "tests/support/fuzz/as_plain.h"

/* P3: bytes of memory that a file may cost, beside a fixed part. */
#define MEMORY_PER_BYTE 64
#define MEMORY_FIXED ((size_t)256 << 10)
/* Elements that are read of a tensor: an expanded one has more than any file. */
#define MAX_ELEMENTS 4096

/* ---- what is checked of an input ---- */

/* One of n kinds of checks, always the same for an input: a fuzzer has many inputs. */
unsigned kind_of(const uint8_t *bytes, size_t nbytes, unsigned n);

/* A fuzzer makes the checks of one kind, a replay those of all. */
#ifdef BERTH_FUZZER
#define IS_CHECKED(kind, wanted) ((kind) == (wanted))
#else
#define IS_CHECKED(kind, wanted) ((void)(kind), true)
#endif

/* ---- memory is counted ---- */

extern size_t live_nbytes, most_nbytes;

void *count_memory(void *context, void *pointer, size_t nbytes);
void count_memory_from_now(void);

/* ---- time is counted ---- */

double processor_seconds(void);
void check_time(double since, size_t nbytes);

/* ---- one opened file ---- */

/* One line of UTF-8, without controls: iconv's verdict would do, this is C's own. */
bool is_clean_text(const char *text);

struct span {
    const uint8_t *bytes;
    size_t nbytes;
};

/* Whether an opening that checks something went well, since this was last set to false. */
extern bool is_accepted;

/*
 * Memory, not a pool: what is counted must not depend on threads. `span`: if not NULL, the bytes
 * come by reads of a few at a time.
 */
int open_span_as(const uint8_t *bytes, size_t nbytes, struct span *span, const char *options,
                 berth_checkpoint **opened, berth_error *error);
int open_memory_with(const uint8_t *bytes, size_t nbytes, const char *options,
                     berth_checkpoint **opened, berth_error *error);
/* The first elements of a tensor; false: its bytes cannot be had. */
bool read_first(berth_checkpoint *checkpoint, const berth_tensor *tensor, uint8_t *buffer,
                size_t *nbytes);

/* The same tensors, wherever they lie: of the same names, shapes and elements. */
void check_same_tensors(berth_checkpoint *a, berth_checkpoint *b);
/* One reading: tensors of the same names at the same bytes with the same shapes and elements. */
void check_same_reading(berth_checkpoint *a, berth_checkpoint *b);

/* ---- all of it ---- */

/* Opens with options, and if that goes, asks for everything. True: it opened. */
bool check_opening(const uint8_t *bytes, size_t nbytes, const char *options);

/*
 * However the bytes come, it is the same reading; and with every header looked at, the same
 * sentence. (With fewer, the first storage's is looked at only where the head has it.)
 */
void check_by_reads(const uint8_t *bytes, size_t nbytes, const char *options);

/*
 * What calculated offsets and every check accept, the directory reads too, and the same; without
 * any check, too, unless the checks were needed to see that offsets cannot be calculated.
 */
void check_readings(const uint8_t *bytes, size_t nbytes, const char *options);

#endif
