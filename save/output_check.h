/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Debug mode: the output check stands in front of an output, also of one that cannot be read back.
 * Every byte is checked before it leaves: headers, data offsets, descriptors, directory and end
 * records are compared with the plan, and read as strictly as those of any other file; the data are
 * summed again, and their CRC is compared with the one that is written behind them. So a tensor
 * that changes while it is saved is found. Where no CRC is computed, data are only counted.
 *
 * Writes come in any order and from any thread; if the output takes them in order, the order is
 * checked, too. Memory: a few words for each record, and the headers and other parts that one write
 * has begun and another will end: at most two for each worker and each deferred block (run.c).
 */
#ifndef BTH_SAVE_OUTPUT_CHECK_H
#define BTH_SAVE_OUTPUT_CHECK_H

#include "save/image.h"

typedef struct bth_output_check bth_output_check;

/* `plan` and what `output` points to must live as long as this. NULL on failure. */
bth_output_check *bth_output_check_new(const berth_plan *plan, const bth_output *output,
                                       berth_error *error);
/* The same output with the check before it. */
bth_output bth_output_check_get_output(bth_output_check *check);
/* Reads what another process has written into the output, and counts it as written. */
int bth_output_check_read_present(bth_output_check *check, const bth_present *present,
                                  berth_error *error);
/* When all is written: BERTH_E_OFFSETS if a part is missing. */
int bth_output_check_finish(const bth_output_check *check, berth_error *error);
void bth_output_check_free(bth_output_check *check); /* NULL: nothing */

/* Debug mode: reads headers, descriptors, directory and end back, where the output can be read.
 * BERTH_E_OFFSETS: they are not the bytes of the plan and of the image's CRCs, which are complete.
 */
int bth_readback_check_headers_and_directory(const bth_image *image, const bth_output *output,
                                             berth_error *error);

/* ---- parts of the file: what each byte belongs to by the plan ---- */

typedef enum bth_file_part_kind {
    BTH_PART_HEADER,
    BTH_PART_DATA,
    BTH_PART_DESCRIPTOR,
    BTH_PART_ENTRY,   /* of a record, in the directory */
    BTH_PART_END,     /* the end records */
    BTH_PART_PADDING, /* behind the file: zeros up to a whole block */
} bth_file_part_kind;

typedef struct bth_file_part {
    bth_file_part_kind kind;
    size_t record; /* n_records of the plan: the end, the padding */
    bth_range range;
} bth_file_part;

/* The part that holds the byte at `offset`. */
bth_file_part bth_file_part_find(const berth_plan *plan, uint64_t offset);

#endif
