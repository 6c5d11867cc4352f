/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/device_copy.h"

#include <stdint.h>
#include <string.h>

#ifdef __SSE2__ /* all of x86-64 */
#include <emmintrin.h>

#define LINE_NBYTES ((size_t)64)

/* `to` is aligned to 16 bytes. */
static void stream_line(uint8_t *to, const uint8_t *from)
{
    for (size_t i = 0; i < LINE_NBYTES; i += 16)
        _mm_stream_si128((__m128i *)(void *)(to + i),
                         _mm_loadu_si128((const __m128i *)(const void *)(from + i)));
}

void bth_copy_for_device(void *to, const void *from, size_t nbytes)
{
    uint8_t *out = to;
    const uint8_t *in = from;
    size_t head = (LINE_NBYTES - ((uintptr_t)out & (LINE_NBYTES - 1))) & (LINE_NBYTES - 1);

    if (head > nbytes)
        head = nbytes;
    memcpy(out, in, head);
    size_t at = head;
    for (; nbytes - at >= LINE_NBYTES; at += LINE_NBYTES)
        stream_line(out + at, in + at);
    memcpy(out + at, in + at, nbytes - at);
    _mm_sfence(); /* these stores are not ordered otherwise */
}

#else

void bth_copy_for_device(void *to, const void *from, size_t nbytes)
{
    memcpy(to, from, nbytes);
}

#endif
