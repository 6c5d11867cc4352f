/* SPDX-License-Identifier: BSD-3-Clause */
#include "format/checksum.h"

#include <libdeflate.h>
#include <zlib.h>

uint32_t bth_crc32(uint32_t crc, const void *bytes, size_t nbytes)
{
    /* For a NULL pointer libdeflate returns the initial value, not `crc`. */
    if (nbytes == 0)
        return crc;
    return libdeflate_crc32(crc, bytes, nbytes);
}

/* zlib never returns if the length is negative; the layout keeps lengths below 2^63. */
uint32_t bth_crc32_combine(uint32_t crc_a, uint32_t crc_b, uint64_t b_nbytes)
{
    z_off64_t length = (z_off64_t)(b_nbytes & INT64_MAX);
#ifdef Z_LARGE64
    return (uint32_t)crc32_combine64(crc_a, crc_b, length);
#else /* off_t has 64 bits everywhere, as with musl */
    return (uint32_t)crc32_combine(crc_a, crc_b, length);
#endif
}
