/* SPDX-License-Identifier: BSD-3-Clause */
#include <criterion/criterion.h>

#include "format/checksum.h"

Test(checksum, the_check_value_of_the_polynomial)
{
    cr_expect_eq(bth_crc32(0, "123456789", 9), 0xCBF43926);
}

Test(checksum, pieces_give_the_sum_of_the_whole)
{
    uint32_t crc = bth_crc32(0, "1234", 4);
    crc = bth_crc32(crc, "", 0);
    cr_expect_eq(bth_crc32(crc, "56789", 5), 0xCBF43926);
}

Test(checksum, nothing_leaves_a_sum_as_it_is)
{
    cr_expect_eq(bth_crc32(0xCBF43926, NULL, 0), 0xCBF43926);
    cr_expect_eq(bth_crc32(0, NULL, 0), 0);
}

Test(checksum, combining_equals_summing_on)
{
    uint32_t a = bth_crc32(0, "1234", 4), b = bth_crc32(0, "56789", 5);
    cr_expect_eq(bth_crc32_combine(a, b, 5), 0xCBF43926);
    cr_expect_eq(bth_crc32_combine(a, 0, 0), a);
    cr_expect_eq(bth_crc32_combine(0, b, 5), b);
}

/* Zeros doubled up to 2^32 of them: one less has CRC 0, as a file of PyTorch's showed. */
Test(checksum, combining_knows_lengths_beyond_32_bits)
{
    uint32_t crc = bth_crc32(0, "", 1), all_but_one = 0;
    for (uint64_t nbytes = 1; nbytes < (uint64_t)1 << 32; nbytes *= 2) {
        all_but_one = bth_crc32_combine(all_but_one, crc, nbytes);
        crc = bth_crc32_combine(crc, crc, nbytes);
    }
    cr_expect_eq(all_but_one, 0);
    cr_expect_eq(crc, bth_crc32(0, "", 1));
    cr_expect_neq(bth_crc32_combine(0xCBF43926, crc, (uint64_t)1 << 32),
                  bth_crc32_combine(0xCBF43926, crc, 0));
}
