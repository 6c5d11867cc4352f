/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Attributes that a tensor may be given (P5): names that are the tensor's own, where PyTorch sets
 * another thing than an attribute, are neither read nor written. tests/peers/attributes.py has all
 * names of the installed PyTorch.
 */
#include "format/values/value.h"
#include "tests/support/format/pickle_assembler.h"

#define PARAMETER(state)                                                                           \
    "GLOBAL torch._utils _rebuild_parameter_with_state MARK" TENSOR "NEWFALSE" NO_HOOKS state      \
    "TUPLE !REDUCE STOP"
#define FROM_TYPE(state)                                                                           \
    "GLOBAL torch._tensor _rebuild_from_type_v2 MARK GLOBAL torch._utils _rebuild_tensor GLOBAL "  \
    "torch Tensor MARK" FLOATS "0 6 TUPLE1 1 TUPLE1 TUPLE " state "TUPLE !REDUCE STOP"

/* Where a name can stand: %s, of a Parameter and a tensor, in the dict and for the slots. */
static const char *const places[] = {
    PARAMETER("EMPTY_DICT '%s' NONE SETITEM "),
    PARAMETER("NONE EMPTY_DICT '%s' NONE SETITEM TUPLE2 "),
    FROM_TYPE("EMPTY_DICT 'a' 1 SETITEM '%s' NONE SETITEM "),
    FROM_TYPE("EMPTY_DICT '%s' NONE SETITEM NONE TUPLE2 "),
    FROM_TYPE("EMPTY_DICT 'a' 1 SETITEM EMPTY_DICT '%s' NONE SETITEM TUPLE2 "),
};
#define N_PLACES (sizeof places / sizeof *places)

/* Some of the table, its ends, and what Python looks up. */
static const char *const own[] = {
    "H",
    "T",
    "_backward_hooks",
    "_cdata",
    "_grad",
    "_version",
    "data",
    "grad",
    "device",
    "grad_dtype",
    "imag",
    "is_cpu",
    "is_xpu",
    "mT",
    "real",
    "output_nr",
    "retains_grad",
    "requires_grad",
    "shape",
    "volatile",
    "__class__",
    "ndim",
    "names",
    "is_ort",
    "_has_grad_dtype_override",
    "__dict__",
    "__slots__",
    "__len__",
    "__x__",
    "__",
    "____",
};
static const char *const free_names[] = {
    "a", "_is_param", "dat", "datas", "Data", "_data", "G",   "I",    "volatil",
    "w", "__x",       "x__", "_x_",   "_",    "Grad",  "tag", "size", "_metadata"};
#define N(names) (sizeof(names) / sizeof *(names))

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
static void fill(char *text, size_t nbytes, const char *place, const char *name)
{
    cr_assert_lt(snprintf(text, nbytes, place, name), (int)nbytes);
}
#pragma GCC diagnostic pop

Test(tensor_attributes, the_tensors_own_are_not_read_P5)
{
    for (size_t i = 0; i < N_PLACES; i++) {
        for (size_t j = 0; j < N(own); j++) {
            char source[1000], sentence[200];
            fill(source, sizeof source, places[i], own[j]);
            (void)snprintf(
                sentence, sizeof sentence,
                "%s with the attribute %s, which is the tensor's own: PyTorch would set that",
                i < 2 ? "torch._utils _rebuild_parameter_with_state"
                      : "torch._tensor _rebuild_from_type_v2",
                own[j]);
            refuses(source, sentence);
        }
    }
}

Test(tensor_attributes, all_others_are_read)
{
    for (size_t i = 0; i < N_PLACES; i++) {
        for (size_t j = 0; j < N(free_names); j++) {
            char source[1000];
            fill(source, sizeof source, places[i], free_names[j]);
            ACCEPTS(read, source);
            cr_expect_eq(berth_value_kind(read.root), BERTH_KIND_SUBCLASS);
            free_reading(&read);
        }
    }
}

Test(tensor_attributes, a_name_that_goes_on_behind_a_nul_is_another)
{
    ACCEPTS(read, FROM_TYPE("EMPTY_DICT BINUNICODE 0x6461746100 NONE SETITEM ")); /* data, NUL */
    cr_expect_eq(berth_value_kind(read.root), BERTH_KIND_SUBCLASS);
    free_reading(&read);
}

/* setattr takes nothing else. */
Test(tensor_attributes, names_are_str)
{
#define WITH "torch._tensor _rebuild_from_type_v2 with an attribute whose name is "
    refuses(FROM_TYPE("EMPTY_DICT 1 NONE SETITEM "), WITH "an int, not a str");
    refuses(FROM_TYPE("NONE EMPTY_DICT NONE NONE SETITEM TUPLE2 "), WITH "None, not a str");
    refuses(FROM_TYPE("EMPTY_DICT GLOBAL _codecs encode 'data' 'latin1' TUPLE2 REDUCE 1 SETITEM "),
            WITH "bytes, not a str");
}

/* PyTorch takes what is in it at that time. */
Test(tensor_attributes, the_dict_they_came_in_grows_no_more)
{
#define GROWS "a dict grows after another object was built from it"
#define LATER(state, object)                                                                       \
    "EMPTY_DICT BINPUT 0 'a' 1 SETITEM BINPUT 1 " object state                                     \
    " REDUCE BINGET 0 'data' 1 !SETITEM STOP"
#define TYPE                                                                                       \
    "GLOBAL torch._tensor _rebuild_from_type_v2 MARK GLOBAL torch._utils _rebuild_tensor GLOBAL "  \
    "torch Tensor MARK" FLOATS "0 6 TUPLE1 1 TUPLE1 TUPLE "
    refuses_as(BERTH_E_UNSUPPORTED, LATER("BINGET 0 TUPLE", TYPE), "SETITEM: " GROWS);
    refuses_as(BERTH_E_UNSUPPORTED, LATER("BINGET 0 NONE TUPLE2 TUPLE", TYPE), "SETITEM: " GROWS);
    refuses_as(BERTH_E_UNSUPPORTED, LATER("NONE BINGET 0 TUPLE2 TUPLE", TYPE), "SETITEM: " GROWS);
    refuses_as(BERTH_E_UNSUPPORTED,
               "GLOBAL collections OrderedDict EMPTY_TUPLE REDUCE EMPTY_DICT BINPUT 0 BUILD BINGET "
               "0 'a' 1 !SETITEM STOP",
               "SETITEM: " GROWS);
    /* Many may share it as it is. */
    ACCEPTS(read, "EMPTY_DICT BINPUT 0 'a' 1 SETITEM " TYPE "BINGET 0 TUPLE REDUCE " TYPE
                  "BINGET 0 TUPLE REDUCE TUPLE2 TUPLE2 STOP");
    free_reading(&read);
}

/* It was looked at as what Counter takes, which does not care about names. */
Test(tensor_attributes, a_dict_that_was_used_before_is_looked_at)
{
    refuses("GLOBAL collections Counter EMPTY_DICT 'data' 1 SETITEM BINPUT 0 TUPLE1 REDUCE " TYPE
            "BINGET 0 TUPLE !REDUCE STOP",
            "torch._tensor _rebuild_from_type_v2 with the attribute data, which is the tensor's "
            "own: PyTorch would set that");
}

/* What PyTorch makes of both has no attributes, or is no Parameter. */
Test(tensor_attributes, a_parameter_is_neither_around_nor_within_them)
{
    refuses(
        "GLOBAL torch._utils _rebuild_parameter " TYPE "EMPTY_DICT TUPLE REDUCE NEWTRUE" NO_HOOKS
        "TUPLE3 !REDUCE STOP",
        "torch._utils _rebuild_parameter wants a tensor as argument 1, got tensor with attributes");
    refuses("GLOBAL torch._tensor _rebuild_from_type_v2 MARK GLOBAL torch._utils "
            "_rebuild_parameter GLOBAL torch Tensor " TENSOR "NEWTRUE" NO_HOOKS
            "TUPLE3 EMPTY_DICT TUPLE !REDUCE STOP",
            "torch._tensor _rebuild_from_type_v2 wants a _rebuild function and torch Tensor as "
            "first arguments");
}

/* ---- writing ---- */

static int save_with(berth_value *state, bool of_parameter, bool is_slots, berth_error *error)
{
    static const float number;
    berth_tree *tree = bth_value_tree(state);
    bth_pickled pickled;
    berth_value *pair[] = {berth_make_none(tree), state};
    berth_value *tensor =
        berth_make_tensor(tree, &(berth_tensor){.dtype = BERTH_FLOAT32, .data = &number});
    if (of_parameter)
        tensor = berth_make_parameter(tree, tensor, true);
    bth_error_clear(error);
    int code = bth_pickle_write(
        berth_make_subclass(tree, tensor, is_slots ? berth_make_tuple(tree, pair, 2) : state),
        false, &pickled, error);
    if (code == 0)
        bth_pickled_free(&pickled);
    return code;
}

Test(tensor_attributes, the_tensors_own_are_not_written_P5)
{
    berth_error error;
    for (size_t j = 0; j < 4 * N(own); j++) {
        const char *name = own[j / 4];
        char sentence[200];
        berth_tree *tree = berth_tree_new(NULL);
        berth_value *state = berth_make_dict(tree, BERTH_KIND_DICT);
        cr_expect_eq(save_with(state, j & 1, j & 2, &error), 0, "%s", error.message);
        berth_dict_set(state, name, berth_make_none(tree));
        cr_expect_eq(save_with(state, j & 1, j & 2, &error), BERTH_E_UNSUPPORTED, "%s", name);
        (void)snprintf(sentence, sizeof sentence,
                       "data.pkl: a tensor cannot be saved with the attribute %s, which is the "
                       "tensor's own: PyTorch would set that",
                       name);
        cr_expect_str_eq(error.message, sentence);
        berth_tree_free(tree);
    }
}

Test(tensor_attributes, all_others_are_written)
{
    berth_error error;
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *state = berth_make_dict(tree, BERTH_KIND_DICT);
    for (size_t j = 0; j < N(free_names); j++)
        berth_dict_set(state, free_names[j], berth_make_none(tree));
    cr_expect_eq(save_with(state, false, false, &error), 0, "%s", error.message);
    cr_expect_eq(save_with(state, true, true, &error), 0, "%s", error.message);
    berth_dict_set_value(state, berth_make_int(tree, 1), state);
    FAILS(save_with(state, false, false, &error), BERTH_E_UNSUPPORTED,
          "data.pkl: a tensor cannot be saved with an attribute whose name is an int, not a str");
    berth_tree_free(tree);
}

/* What was read and found good is looked at again once it is changed. */
Test(tensor_attributes, a_copy_of_what_was_read_can_be_changed)
{
    berth_error error;
    ACCEPTS(read, FROM_TYPE("EMPTY_DICT 'a' 1 SETITEM "));
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *state =
        berth_value_part(berth_value_copy(tree, read.root, BERTH_COPY_COMPACT), BERTH_PART_STATE);
    cr_assert_eq(berth_value_count(state), 1);
    cr_expect_eq(save_with(state, false, false, &error), 0, "%s", error.message);
    cr_assert_eq(berth_dict_set(state, "data", berth_make_none(tree)), 0);
    cr_expect_eq(save_with(state, false, false, &error), BERTH_E_UNSUPPORTED);
    berth_tree_free(tree);
    free_reading(&read);
}

/* ---- P3 ---- */

Test(tensor_attributes, a_dict_of_many_tensors_is_looked_at_once_P3, .timeout = 60)
{
    struct pickle pickle = {0};
    assemble(&pickle, TYPE "EMPTY_DICT MARK");
    for (unsigned i = 0; i < 30000; i++) { /* a new name each time */
        char name[4] = {(char)('!' + i % 90), (char)('!' + i / 90 % 90), (char)('!' + i / 8100), 0};
        put(&pickle, "U\003", 2);
        put(&pickle, name, 3);
        assemble(&pickle, "NONE");
    }
    assemble(&pickle,
             "SETITEMS TUPLE BINPUT 1 GLOBAL torch._tensor _rebuild_from_type_v2 BINPUT 0 MARK");
    assemble_times(&pickle, "BINGET 0 BINGET 1 REDUCE", 200000);
    assemble(&pickle, "TUPLE TUPLE3 TUPLE2 STOP");
    struct reading read = read_by(&pickle, NO_RULES);
    cr_expect_eq(read.code, 0, "%s", read.error.message);
    free_reading(&read);
    free(pickle.bytes);
}
