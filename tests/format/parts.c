/* SPDX-License-Identifier: BSD-3-Clause */
/* Parts of sparse and nested tensors whose ranks are too low: nothing outside a shape is read (T4).
 */
#include "format/values/value.h"
#include "tests/support/support.h"
#include "tests/support/tree_scene.h"

#include <criterion/criterion.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const int64_t zeros[8];

TestSuite(parts, .init = begin_tree, .fini = end_tree);

static berth_value *longs(int32_t rank, const int64_t *shape)
{
    return test_tensor(tree, BERTH_INT64, zeros, rank, shape);
}

static berth_value *of_length(int64_t n)
{
    return longs(1, &n);
}

static void expect_misfit(berth_layout_kind layout, const int64_t *shape, int32_t rank,
                          berth_value *compressed, berth_value *plain, berth_value *values)
{
    berth_error error;
    berth_value *parts[] = {compressed, plain, values};

    cr_expect_null(bth_sparse_adopt(tree, layout, shape, rank, parts, false));
    berth_tree_error(tree, &error);
    cr_expect_str_eq(error.message, "the parts of a sparse tensor do not fit its shape");
}

/* A shape with no memory before it (at the begin of the second page), or behind it (at its end). */
static int64_t *shape_by_a_wall(size_t rank, bool before)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *pages =
        mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    cr_assert_neq(pages, MAP_FAILED);
    cr_assert_eq(mprotect(pages, page, PROT_NONE), 0);
    cr_assert_eq(mprotect(pages + 2 * page, page, PROT_NONE), 0);
    uint8_t *shape = before ? pages + page : pages + 2 * page - rank * sizeof(int64_t);
    return memcpy(shape, zeros, rank * sizeof(int64_t));
}

Test(parts, nothing_before_a_shape_is_read_for_indices_without_dimensions)
{
    expect_misfit(BERTH_SPARSE_CSR, shape_by_a_wall(2, true), 2, longs(0, NULL), longs(0, NULL),
                  of_length(1));
}

Test(parts, nothing_behind_a_shape_is_read_for_values_without_dimensions)
{
    expect_misfit(BERTH_SPARSE_CSR, shape_by_a_wall(1, false), 1, of_length(1), of_length(0),
                  longs(0, NULL));
}
