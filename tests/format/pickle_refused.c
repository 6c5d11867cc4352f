/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What cannot be read again is not written: attributes as no reader takes them (P5), more than a
 * pickle of protocol 2 can number or count. The error names data.pkl.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/pickle/pickle_emitter.h"
#include "format/values/value.h"
#include "tests/support/support.h"
#include "tests/support/tree_scene.h"

static const float numbers[2];

TestSuite(pickle_refused, .init = begin_tree, .fini = end_tree);

static berth_value *tensor(void)
{
    return test_tensor(tree, BERTH_FLOAT32, numbers, 1, (const int64_t[]){2});
}

/* NULL: it is written, and read again. */
static void expect_written(const berth_value *value, const char *message)
{
    bth_pickled pickled;
    berth_error error;
    berth_value *root;
    bth_pickle_rules rules = {.record = "data.pkl"};

    bth_error_clear(&error);
    int code = bth_pickle_write(value, false, &pickled, &error);
    if (message) {
        cr_expect_eq(code, BERTH_E_UNSUPPORTED, "%d", code);
        cr_expect_str_eq(error.message, message);
        if (code == 0)
            bth_pickled_free(&pickled);
        return;
    }
    assert_ok(code);
    berth_tree *read = berth_tree_new(NULL);
    cr_expect_eq(bth_pickle_read(pickled.bytes, pickled.nbytes, &rules, read, &root, &error), 0,
                 "%s", error.message);
    berth_tree_free(read);
    bth_pickled_free(&pickled);
}

static berth_value *with_state(berth_value *value, berth_value *state)
{
    cr_assert_eq(berth_value_set_state(value, state), 0);
    return value;
}

Test(pickle_refused, attributes_of_tensors_that_no_reader_takes)
{
    static const char tensors[] = "data.pkl: a tensor cannot be saved with attributes of its own: "
                                  "berth_make_subclass gives it some";
    static const char parameters[] = "data.pkl: a Parameter cannot be saved with attributes of its "
                                     "own: berth_make_subclass gives it some";
    berth_value *state = berth_make_dict(tree, BERTH_KIND_DICT);

    expect_written(berth_make_subclass(tree, tensor(), state), NULL);
    expect_written(berth_make_subclass(tree, berth_make_parameter(tree, tensor(), true), state),
                   NULL);
    expect_written(berth_make_parameter(tree, berth_make_subclass(tree, tensor(), state), true),
                   "data.pkl: a Parameter cannot be saved around a tensor with attributes: PyTorch "
                   "would lose them");
    expect_written(with_state(tensor(), state), tensors);
    expect_written(with_state(berth_make_parameter(tree, tensor(), true), state), parameters);
    /* Those of what is inside would be lost. */
    expect_written(berth_make_subclass(tree, with_state(tensor(), state), state), tensors);
    expect_written(berth_make_parameter(tree, with_state(tensor(), state), true), tensors);
    expect_written(berth_make_subclass(
                       tree, with_state(berth_make_parameter(tree, tensor(), true), state), state),
                   parameters);
}

Test(pickle_refused, attributes_of_tensors_are_dicts_or_pairs_of_them)
{
    berth_value *dict = berth_make_dict(tree, BERTH_KIND_DICT), *none = berth_make_none(tree),
                *list = berth_make_list(tree);
    berth_value *pairs[][3] = {
        {dict, none}, {none, dict}, {dict, list}, {list, dict}, {dict, dict, dict}};

    expect_written(berth_make_subclass(tree, tensor(), none), NULL);
    expect_written(berth_make_subclass(tree, tensor(), berth_make_tuple(tree, pairs[0], 2)), NULL);
    expect_written(berth_make_subclass(tree, tensor(), berth_make_tuple(tree, pairs[1], 2)), NULL);
    expect_written(berth_make_subclass(tree, tensor(), list),
                   "data.pkl: attributes of a tensor cannot be saved as a list: they are a dict");
    static const char tuples[] =
        "data.pkl: attributes of a tensor cannot be saved as a tuple: they are a dict";
    expect_written(berth_make_subclass(tree, tensor(), berth_make_tuple(tree, pairs[2], 2)),
                   tuples);
    expect_written(berth_make_subclass(tree, tensor(), berth_make_tuple(tree, pairs[3], 2)),
                   tuples);
    expect_written(berth_make_subclass(tree, tensor(), berth_make_tuple(tree, pairs[4], 3)),
                   tuples);
    expect_written(berth_make_subclass(tree, tensor(), berth_make_tuple(tree, pairs[0], 1)),
                   tuples);
}

Test(pickle_refused, attributes_of_an_ordered_dict_are_a_dict)
{
    expect_written(with_state(berth_make_dict(tree, BERTH_KIND_ORDERED_DICT),
                              berth_make_dict(tree, BERTH_KIND_DICT)),
                   NULL);
    expect_written(
        with_state(berth_make_dict(tree, BERTH_KIND_ORDERED_DICT), berth_make_list(tree)),
        "data.pkl: attributes of an OrderedDict cannot be saved as a list: they are a dict");
    expect_written(
        with_state(berth_make_dict(tree, BERTH_KIND_ORDERED_DICT), berth_make_none(tree)),
        "data.pkl: attributes of an OrderedDict cannot be saved as None: they are a dict");
}

/* As if so many objects had been written. */
Test(pickle_refused, more_objects_than_can_be_numbered)
{
    berth_error error = {0};
    bth_emitter emitter = {.error = &error, .n_memo = BTH_MEMO_OPEN - 1};
    uint32_t slot = 0;

    bth_emit_memoize(&emitter, &slot);
    cr_expect_eq(error.code, BERTH_E_UNSUPPORTED);
    cr_expect_str_eq(error.message,
                     "data.pkl: more objects than a pickle of protocol 2 can number");
    cr_expect_eq(slot, 0);
    cr_expect_eq(emitter.out.nbytes, 0);
}

/* Bytes above 127 are two each as text. */
Test(pickle_refused, text_that_is_too_long)
{
    if (sizeof(size_t) < 8)
        cr_skip_test("in 32 bits no text is so long");
    berth_error error = {0};
    bth_emitter emitter = {.error = &error};

    bth_emit_text(&emitter, "", (size_t)UINT32_MAX + 1, NULL);
    cr_expect_eq(error.code, BERTH_E_UNSUPPORTED);
    cr_expect_str_eq(
        error.message,
        "data.pkl: text of 4294967296 bytes: pickle protocol 2 holds at most 4294967295");
    cr_expect_eq(emitter.out.nbytes, 0);
}
