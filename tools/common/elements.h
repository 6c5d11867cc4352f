/* SPDX-License-Identifier: BSD-3-Clause */
/* Elements of tensors: how many at a time, and as text. */
#ifndef BERTH_TOOLS_ELEMENTS_H
#define BERTH_TOOLS_ELEMENTS_H

#include <berth/more.h>
#include <stdio.h>

/*
 * How many elements to read at a time into a buffer of nbytes: 1 or more, at most all. Of kinds
 * that share a byte: all, because they are only read whole.
 */
int64_t elements_per_chunk(const berth_tensor *tensor, size_t nbytes);
/* The shortest text that reads back as the same number. */
void print_float(FILE *out, double number);
/* One element: a number, True or False, "(1.0, 2.0j)", or else its bytes. */
void print_element(FILE *out, berth_dtype dtype, const uint8_t *at);

#endif
