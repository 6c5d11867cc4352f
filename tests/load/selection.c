/* SPDX-License-Identifier: BSD-3-Clause */
/* Which tensors and storages a selection means. */
#include "load/selection.h"

#include "base/memory.h"
#include "format/values/value.h"
#include "tests/support/load/archive.h"

static void set_up(void)
{
    begin_sample();
    open_file("");
}

TestSuite(selection, .init = set_up, .fini = end_sample);

/* The keys of the storages meant, joined; or the status. */
static const char *keys_of(const berth_selection *selection)
{
    static char text[200];
    const berth_storage **storages;
    size_t n;

    error = (berth_error){0};
    if (bth_selection_list_storages(checkpoint, selection, &storages, &n, &error) < 0)
        return berth_status_name(error.code);
    text[0] = '\0';
    for (size_t i = 0; i < n; i++)
        (void)strcat(strcat(text, storages[i]->key), " ");
    bth_release(storages);
    return text;
}

Test(selection, of_nothing_means_everything)
{
    const berth_selection zeros = {0};

    cr_expect_str_eq(keys_of(NULL), "0 1 2 ");
    cr_expect_str_eq(keys_of(&zeros), "0 1 2 ");
}

Test(selection, by_pattern_goes_by_the_names_that_ls_shows)
{
    static const struct {
        const char *pattern, *keys;
    } cases[] = {
        {"weight", "0 "}, {"w*", "0 2 "}, {"*i[ag]*", "0 1 "}, {"?ias", "1 "}, {"*", "0 1 2 "}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_expect_str_eq(keys_of(&(berth_selection){.pattern = cases[i].pattern}), cases[i].keys,
                         "%s", cases[i].pattern);
}

Test(selection, that_fits_nothing_is_told)
{
    cr_expect_str_eq(keys_of(&(berth_selection){.pattern = "weigh"}), "BERTH_E_NOT_FOUND");
    cr_expect_str_eq(error.message, "no tensor has a name that fits \"weigh\"");
}

Test(selection, by_list_goes_with_the_pattern_and_counts_each_storage_once)
{
    const berth_tensor *tensors[] = {berth_find_tensor(checkpoint, "words", NULL),
                                     berth_find_tensor(checkpoint, "weight", NULL),
                                     berth_find_tensor(checkpoint, "words", NULL)};
    berth_selection selection = {.tensors = tensors, .n_tensors = 3};

    cr_expect_str_eq(keys_of(&selection), "0 2 ");
    selection.pattern = "bias";
    cr_expect_str_eq(keys_of(&selection), "0 1 2 ");
    selection.tensors = NULL;
    cr_expect_str_eq(keys_of(&selection), "BERTH_E_ARGUMENT");
    cr_expect_str_eq(error.message, "3 tensors are selected, but there is no list of them");
}

/* T2 */
Test(selection, of_tensors_that_are_not_the_checkpoint_s_is_refused)
{
    berth_tensor mine = *berth_find_tensor(checkpoint, "weight", NULL);
    const berth_tensor *tensors[] = {&mine};
    const berth_selection selection = {.tensors = tensors, .n_tensors = 1};

    cr_expect_str_eq(keys_of(&selection), "0 ");
    mine.storage_offset = 1;
    cr_expect_str_eq(keys_of(&selection), "BERTH_E_TENSOR");
    mine.flags |= BERTH_META;
    cr_expect_str_eq(keys_of(&selection), "BERTH_E_ARGUMENT");
    tensors[0] = NULL;
    cr_expect_str_eq(keys_of(&selection), "BERTH_E_ARGUMENT");
    cr_expect_str_eq(error.message, "selected tensor 0: the tensor is NULL");
}
