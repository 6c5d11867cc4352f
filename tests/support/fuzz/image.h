/* SPDX-License-Identifier: BSD-3-Clause */
/* The bytes of a file that is written from its beginning to its end. */
#ifndef TESTS_SUPPORT_FUZZ_IMAGE_H
#define TESTS_SUPPORT_FUZZ_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct image {
    uint8_t *bytes;
    size_t nbytes, most;
    bool is_full; /* something did not fit */
};

void put_bytes(struct image *out, const void *bytes, size_t n);
void put_number(struct image *out, uint64_t value, size_t width);
/* Numbers of these widths, one a digit: "4224" is the form of a header. */
void put_numbers(struct image *out, const char *widths, const uint64_t *values);

#endif
