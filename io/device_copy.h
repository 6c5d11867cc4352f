/* SPDX-License-Identifier: BSD-3-Clause */
/* Copies into buffers that a device reads next. */
#ifndef BTH_IO_DEVICE_COPY_H
#define BTH_IO_DEVICE_COPY_H

#include <stddef.h>

/*
 * memcpy for bytes that no processor reads again. It writes past the processor's caches if it can,
 * so that the processor need not fetch the target's lines first.
 */
void bth_copy_for_device(void *to, const void *from, size_t nbytes);

#endif
