/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/format/names_scene.h"

#include "base/error.h"
#include "base/memory.h"
#include "tests/support/support.h"

#include <criterion/criterion.h>

bth_names *names;

static struct told_name told;

static void release_names(void)
{
    bth_release(told.name);
    bth_release(told.path);
    told = (struct told_name){0};
    bth_names_free(names);
    names = NULL;
}

void end_names(void)
{
    release_names();
    end_tree();
}

berth_value *tensor(void)
{
    static const float one;
    return test_vector(tree, BERTH_FLOAT32, &one, 1);
}

void walk(const berth_value *root)
{
    berth_error error = {0};

    release_names();
    assert_ok(berth_tree_error(tree, &error));
    assert_ok(bth_names_new(root, &names, &error));
}

struct told_name tell_name(size_t i)
{
    berth_error error = {0};

    bth_release(told.name);
    bth_release(told.path);
    assert_ok(bth_names_allocate_tensor_name_and_path(names, i, &told.name, &told.path, &error));
    return told;
}

const berth_value *find(const char *name, berth_error *error)
{
    bth_error_clear(error);
    return bth_names_find_value(names, name, error);
}

void expect_found(const char *name, const berth_value *value)
{
    berth_error error;

    cr_expect_eq(find(name, &error), value, "%s: %s", name, error.message);
    cr_expect_eq(error.code, BERTH_OK);
}

void expect_not_found(const char *name, int code, const char *sentence)
{
    berth_error error;

    cr_expect_null(find(name, &error), "%s", name);
    FAILS(error.code, code, sentence);
}
