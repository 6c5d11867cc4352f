/* SPDX-License-Identifier: BSD-3-Clause */
/* Copying for a device copies, and nothing beside. */
#include <criterion/criterion.h>
#include <stdint.h>
#include <string.h>

#include "save/image.h"

#define ROOM 1024

Test(copy, for_a_device_is_a_copy_at_any_place_and_of_any_size)
{
    _Alignas(64) static uint8_t to[ROOM], from[ROOM], expected[ROOM];

    for (size_t i = 0; i < ROOM; i++)
        from[i] = (uint8_t)(i * 31 + i / 7);
    for (size_t to_at = 0; to_at < 70; to_at++)
        for (size_t from_at = 0; from_at < 70; from_at += 3)
            for (size_t n = 0; n <= 400; n += n < 140 ? 1 : 37) {
                memset(to, 0xEE, ROOM);
                memset(expected, 0xEE, ROOM);
                memcpy(expected + to_at, from + from_at, n);
                bth_copy_bypassing_caches(to + to_at, from + from_at, n);
                cr_assert_arr_eq(to, expected, ROOM, "%zu bytes, %zu to %zu", n, from_at, to_at);
            }
}
