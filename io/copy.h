/* SPDX-License-Identifier: BSD-3-Clause */
/* Copying for a device. */
#ifndef BTH_IO_COPY_H
#define BTH_IO_COPY_H

#include <stddef.h>

/*
 * memcpy for bytes that no processor reads again: they go past its caches where it can do that, so
 * that lines which the device's side has just read need not be fetched back first.
 */
void bth_copy_for_device(void *to, const void *from, size_t nbytes);

#endif
