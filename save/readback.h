/* SPDX-License-Identifier: BSD-3-Clause */
/* debug: a save reads its own directory, headers and descriptors back. */
#ifndef BERTH_SAVE_READBACK_H
#define BERTH_SAVE_READBACK_H

#include "save/image.h"
#include "save/output.h"

/*
 * Reads what was written as strictly as a stranger's file, and compares every entry with the plan
 * and its CRC with what was summed. A difference is BERTH_E_OFFSETS, or what the reader says.
 */
int berth_readback(const berth_image *image, const berth_output *output, berth_error *error);

#endif
