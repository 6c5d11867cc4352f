/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The id's numbers against a C++ program: a std::unordered_set<std::string> of libstdc++ 12, whose
 * names it combined as PyTorch does. tests/peers compares whole files with PyTorch's.
 */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "format/serialization_id.h"
#include "tests/support/support.h"

/* data/0, data/1, ...: at each number where the set grows, and a large one. */
static const struct {
    size_t n;
    uint64_t hash;
} sets[] = {
    {0, UINT64_C(0x0000000000000000)},      {1, UINT64_C(0x069d37088f175a44)},
    {12, UINT64_C(0x3e9ffb2dcad0b20b)},     {13, UINT64_C(0x26b4651a6202623c)},
    {14, UINT64_C(0x6120f936efc581db)},     {29, UINT64_C(0xab28fae1dd4cbf14)},
    {30, UINT64_C(0x358795d008b20c24)},     {59, UINT64_C(0x3a164ededed648f2)},
    {60, UINT64_C(0x0e52f42165afdeec)},     {127, UINT64_C(0xb144338950af214c)},
    {128, UINT64_C(0x7c7188cf3e8ec5e0)},    {257, UINT64_C(0x80ce96c5c77f67b1)},
    {258, UINT64_C(0x229c9e4f756b7f6f)},    {541, UINT64_C(0x637d87dfc86a7cae)},
    {542, UINT64_C(0x61b5f4c044bdd46d)},    {1110, UINT64_C(0xcc940e504f78e347)},
    {2358, UINT64_C(0x40684ae0810971fc)},   {5088, UINT64_C(0x1edd3448dea0cee6)},
    {10274, UINT64_C(0xbaedb0907e77615c)},  {20754, UINT64_C(0x23b88feba5b8f7f3)},
    {42044, UINT64_C(0x5f17a83b03f88c6f)},  {85230, UINT64_C(0x31dd3bebe76c36ef)},
    {100000, UINT64_C(0xc25a7136c6e79507)}, {172934, UINT64_C(0x1bb062145a76d09a)},
};

/* Of the first n bytes of `letters`. */
static const char letters[] = "\xff"
                              "abcdefghijklmnopqrstuvwxyz";
static const uint64_t by_length[] = {
    UINT64_C(0x553e9390bc7da427), UINT64_C(0xced6872e478943c4), UINT64_C(0x8480c412e5556447),
    UINT64_C(0x1bd23c0c2ef0f540), UINT64_C(0xd86e809e3e11d2ae), UINT64_C(0x58d18e526b511413),
    UINT64_C(0xa3839475e789c6d0), UINT64_C(0x6f8275fc55db49aa), UINT64_C(0x43c3aef5cc11dd83),
    UINT64_C(0x8edfbbec0f934a4a), UINT64_C(0x4c48ea731906ac93), UINT64_C(0x3995d5656dd04041),
    UINT64_C(0xa50183ec528f2c3d), UINT64_C(0xf85e034d5a472d16), UINT64_C(0x878fac5186e9d9be),
    UINT64_C(0xe2c1da3ac9dae0e5), UINT64_C(0x7910ecff951214de), UINT64_C(0x64ce2a5a8e57f0c9),
};

static void begin_names(bth_id_names *names, size_t n)
{
    berth_error error;

    bth_error_clear(&error);
    assert_ok(bth_id_names_begin(names, n, &error));
}

Test(serialization_id, names_come_in_the_order_of_an_unordered_set)
{
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        bth_id_names names;
        begin_names(&names, sets[i].n);
        for (size_t j = 0; j < sets[i].n; j++) {
            char name[32];
            int nbytes = snprintf(name, sizeof name, "data/%zu", j);
            bth_id_names_add(&names, name, (size_t)nbytes);
        }
        uint64_t hash = bth_id_names_hash(&names);
        cr_expect_eq(hash, sets[i].hash, "%zu names: 0x%016" PRIx64, sets[i].n, hash);
        bth_id_names_free_all(&names);
    }
}

Test(serialization_id, names_of_every_length)
{
    for (size_t n = 0; n < sizeof by_length / sizeof *by_length; n++) {
        bth_id_names names;
        begin_names(&names, 1);
        bth_id_names_add(&names, letters, n);
        uint64_t hash = bth_id_names_hash(&names);
        cr_expect_eq(hash, by_length[n], "%zu bytes: 0x%016" PRIx64, n, hash);
        bth_id_names_free_all(&names);
    }
}

Test(serialization_id, data_that_begin_as_a_descriptor_count_too)
{
    static const uint8_t descriptor[] = "PK\7\10\4\3\2\1", other[] = "PK\3\4\4\3\2\1";
    uint64_t alone = bth_id_combine(7, 0x12345678);

    cr_expect_eq(bth_id_combine(0, 1), UINT64_C(0x9e3779ba));
    cr_expect_eq(bth_id_combine_record(7, other, 8, 0x12345678), alone);
    cr_expect_eq(bth_id_combine_record(7, descriptor, 7, 0x12345678), alone);
    cr_expect_eq(bth_id_combine_record(7, descriptor, 8, 0x12345678),
                 bth_id_combine(bth_id_combine(7, 0x01020304), 0x12345678));
    cr_expect_eq(bth_id_combine_record(7, descriptor, 0, 0), 7,
                 "an empty record has no descriptor");
}

Test(serialization_id, numbers_have_20_digits_each)
{
    char digits[BTH_ID_NBYTES + 1] = {0};

    bth_id_write(UINT64_MAX, 42, digits);
    cr_expect_str_eq(digits, "1844674407370955161500000000000000000042");
}

/* W6 */
Test(serialization_id, no_memory_is_a_clean_error_wherever_it_happens)
{
    struct test_refusals each = {0};
    while (test_refuse_next(&each)) {
        bth_id_names names;
        berth_error error;
        bth_error_clear(&error);
        int status = bth_id_names_begin(&names, 100, &error);
        bth_id_names_free_all(&names);
        cr_expect_eq(status, test_memory_refused() ? BERTH_E_MEMORY : 0);
    }
    cr_expect_eq(each.nth, 5);
}
