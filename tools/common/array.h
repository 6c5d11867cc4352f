/* SPDX-License-Identifier: BSD-3-Clause */
/* Arrays that grow. */
#ifndef BERTH_TOOLS_ARRAY_H
#define BERTH_TOOLS_ARRAY_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Makes room for one more item behind n of them; array: the address of the array's pointer. False:
 * no memory, which is printed.
 */
bool array_reserve(void *array, size_t n, size_t *capacity, size_t item_nbytes);

#endif
