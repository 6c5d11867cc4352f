/* SPDX-License-Identifier: BSD-3-Clause */
/* Debug mode: a save reads its own directory, headers and descriptors back. */
#ifndef BTH_SAVE_READBACK_H
#define BTH_SAVE_READBACK_H

#include "save/image.h"
#include "save/output.h"

/*
 * Reads what was written as strictly as any other file, and compares every entry with the plan, and
 * its CRC with the computed one. A difference is BERTH_E_OFFSETS, or the reader's error.
 */
int bth_readback(bth_image *image, const bth_output *output, berth_error *error);

#endif
