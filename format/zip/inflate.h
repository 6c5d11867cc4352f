/* SPDX-License-Identifier: BSD-3-Clause */
/* Raw deflate of the small records of archives that another tool zipped again (Z9). Pure. */
#ifndef BTH_FORMAT_ZIP_INFLATE_H
#define BTH_FORMAT_ZIP_INFLATE_H

#include "format/zip/zip_read.h"

/* Caps: data.pkl of 10,000 tensors has 1 MB and deflates 4 to 1. */
#define BTH_INFLATE_MAX_NBYTES (256u << 20)
#define BTH_INFLATE_MAX_RATIO 64
#define BTH_INFLATE_FREE_NBYTES 65536 /* below this much no ratio is asked */

/* Whether the entry's sizes stay below the caps; to be asked before memory for it is allocated. */
int bth_inflate_check(const bth_zip_entry *entry, berth_error *error);

/*
 * Inflates entry->compressed_nbytes bytes at `in` to exactly entry->nbytes at `out`. Both must
 * come out even. Checks the caps again; not the CRC.
 */
int bth_inflate(const bth_zip_entry *entry, const uint8_t *in, uint8_t *out, berth_error *error);

#endif
