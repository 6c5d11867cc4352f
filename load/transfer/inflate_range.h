/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef BTH_LOAD_TRANSFER_INFLATE_RANGE_H
#define BTH_LOAD_TRANSFER_INFLATE_RANGE_H

#include "load/transfer/transfer.h"

/*
 * Inflates the one range of the request to its memory; for a scan, only sums it. Compares the CRC,
 * but not for a scan. Beside the range's own memory it needs 170 KiB, whatever its size is (Z12).
 */
int bth_request_inflate_range(bth_transfer *transfer, const bth_request *request,
                              berth_error *error);

#endif
