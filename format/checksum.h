/* SPDX-License-Identifier: BSD-3-Clause */
/* CRC-32 of zip: libdeflate sums, zlib combines. Thread-safe. */
#ifndef BTH_FORMAT_CHECKSUM_H
#define BTH_FORMAT_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* Continues a CRC (0 to start) over more bytes. */
uint32_t bth_crc32(uint32_t crc, const void *bytes, size_t nbytes);
/* The CRC of a then b, from the CRC of each and the length of b, below 2^63. */
uint32_t bth_crc32_combine(uint32_t crc_a, uint32_t crc_b, uint64_t b_nbytes);

#endif
