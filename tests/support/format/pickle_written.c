/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/format/pickle_written.h"
#include "tests/support/tree_scene.h"

bth_pickled must_write(const berth_value *value)
{
    berth_error error;
    bth_pickled pickled;
    bth_error_clear(&error);
    cr_assert_not_null(value);
    cr_assert_eq(bth_pickle_write(value, false, &pickled, &error), BERTH_OK, "%s", error.message);
    return pickled;
}

void check_pickled(const berth_value *value, const char *expected, size_t nbytes)
{
    bth_pickled pickled = must_write(value);
    for (size_t i = 0; i < nbytes && i < pickled.nbytes; i++)
        cr_assert_eq(pickled.bytes[i], (uint8_t)expected[i], "byte %zu is 0x%02x, not 0x%02x", i,
                     pickled.bytes[i], (uint8_t)expected[i]);
    cr_assert_eq(pickled.nbytes, nbytes);
    bth_pickled_free(&pickled);
}

void check_pickled_sum(const berth_value *value, size_t n, size_t nbytes, uint32_t crc32)
{
    bth_pickled pickled = must_write(value);
    cr_expect_eq(pickled.nbytes, nbytes, "%zu items: %zu bytes, not %zu", n, pickled.nbytes,
                 nbytes);
    cr_expect_eq(bth_crc32(0, pickled.bytes, pickled.nbytes), crc32, "%zu items", n);
    bth_pickled_free(&pickled);
}

void check_write_refused(const berth_value *value, bool foreign, int code, const char *message)
{
    berth_error error;
    bth_pickled pickled;
    bth_error_clear(&error);
    cr_assert_not_null(value);
    cr_expect_eq(bth_pickle_write(value, foreign, &pickled, &error), code);
    cr_expect_str_eq(error.message, message);
    cr_expect_null(pickled.bytes);
    bth_pickled_free(&pickled);
}

berth_value *make_text(const char *string)
{
    return berth_make_str(tree, string, strlen(string));
}

berth_value *list_of(size_t n, berth_value *const *items)
{
    berth_value *list = berth_make_list(tree);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(berth_list_append(list, items[i]), 0);
    return list;
}
