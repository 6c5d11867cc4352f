/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Parts of the file: what each byte belongs to by the plan, and what it must be. Debug mode
 * compares parts on their way to the output (output_check.c), and parts that were read back.
 */
#ifndef BTH_SAVE_FILE_PART_H
#define BTH_SAVE_FILE_PART_H

#include "format/zip/zip.h"
#include "save/plan.h"

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
bth_file_part bth_file_part_of_header(const berth_plan *plan, size_t i);
bth_file_part bth_file_part_of_descriptor(const berth_plan *plan, size_t i);
bth_file_part bth_file_part_of_entry(const berth_plan *plan, size_t i);
bth_file_part bth_file_part_of_end(const berth_plan *plan);

/* The bytes of `scratch`, which has room for any header, descriptor, entry, and for the end. */
size_t bth_file_part_scratch_nbytes(const berth_plan *plan);

/*
 * Compares a header, a descriptor, an entry or the end with what the plan and the record's CRC make
 * of it. BERTH_E_OFFSETS; the error names the first byte that differs.
 */
int bth_file_part_compare_bytes(const berth_plan *plan, const bth_file_part *part, uint32_t crc32,
                                const uint8_t *bytes, uint8_t *scratch, berth_error *error);

/* Reads a header, a descriptor or an entry as strictly as that of any other file, and compares what
 * the reader finds with the plan. BERTH_E_OFFSETS, or the reader's error. */
int bth_file_part_read_and_compare(const berth_plan *plan, const bth_file_part *part,
                                   uint32_t crc32, const uint8_t *bytes, berth_error *error);

/* Compares what the reader found in the directory about record i. */
int bth_file_part_compare_entry(const berth_plan *plan, size_t i, uint32_t crc32,
                                const bth_zip_entry *entry, berth_error *error);

/* Compares one number that the reader found. An error that is set already stays. */
int bth_file_part_compare_number(const char *name, const char *what, uint64_t written,
                                 uint64_t planned, berth_error *error);

#endif
