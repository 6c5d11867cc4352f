/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/fuzz/image.h"

#include <string.h>

void put_bytes(struct image *out, const void *bytes, size_t n)
{
    if (n > out->most - out->nbytes) {
        out->is_full = true;
        return;
    }
    if (n > 0)
        memcpy(out->bytes + out->nbytes, bytes, n);
    out->nbytes += n;
}

void put_number(struct image *out, uint64_t value, size_t width)
{
    uint8_t bytes[8];

    for (size_t i = 0; i < width; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
    put_bytes(out, bytes, width);
}

void put_numbers(struct image *out, const char *widths, const uint64_t *values)
{
    for (size_t i = 0; widths[i]; i++)
        put_number(out, values[i], (size_t)(widths[i] - '0'));
}
