/* SPDX-License-Identifier: BSD-3-Clause */
/* A slice finds its tensor in a ticket by the name and by the path of berth_tensor_at, and no
 * other. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/names/names.h"
#include "io/syscalls.h"
#include "save/joint/joint_ticket.h"
#include "tests/support/scene.h"

enum { MAX_TENSORS = 64 };

static berth_error error;
static berth_tree *tree;
static berth_value *outline;
static berth_joint_info info;
static berth_joint *joint;
static bth_ticket ticket;
static int64_t n_tensors; /* the first has 1 byte, the second 2, and so on */

/* Keys at the root. Some look like the names and the paths of what lies deeper. */
static const char *const keys[] = {
    "weight", "a.b",      "c.0", "",       "it's",        "a\"b",     "both'\"", "x']['y", "a']['b",
    "['c']",  "[weight]", ".h",  "line\n", "back\\slash", "\xc3\xa9", "['",      "']",     "['']"};

static berth_value *new_tensor(void)
{
    return test_vector(tree, BERTH_UINT8, BERTH_ELSEWHERE, ++n_tensors);
}

/* Of the indices ['s'].indices, which have as many bytes as "['", "s.indices" and "']". */
static berth_value *new_sparse(void)
{
    const int64_t shape[] = {1, ++n_tensors};
    berth_value *parts[] = {test_tensor(tree, BERTH_INT64, BERTH_ELSEWHERE, 2, shape),
                            test_vector(tree, BERTH_UINT8, BERTH_ELSEWHERE, n_tensors)};

    return berth_make_sparse(tree, BERTH_SPARSE_COO, (const int64_t[]){100}, 1, parts, false);
}

/* {key: tensor, ..., "a": {"b": tensor, "it's": tensor, 7: tensor}, "c": [tensor, [tensor]],
 * "first": the tensor that was made first, "s": sparse, "again": the first} */
static void make_outline(void)
{
    berth_value *dict, *list, *inner, *first = new_tensor();

    outline = berth_make_dict(tree, BERTH_KIND_DICT);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        berth_dict_set(outline, keys[i], new_tensor());
    berth_dict_set(outline, "a", dict = berth_make_dict(tree, BERTH_KIND_DICT));
    berth_dict_set(dict, "b", new_tensor());
    berth_dict_set(dict, "it's", new_tensor());
    berth_dict_set_value(dict, berth_make_int(tree, 7), new_tensor());
    berth_dict_set(outline, "c", list = berth_make_list(tree));
    berth_list_append(list, new_tensor());
    berth_list_append(list, inner = berth_make_list(tree));
    berth_list_append(inner, new_tensor());
    berth_dict_set(outline, "first", first);
    berth_dict_set(outline, "s", new_sparse());
    berth_dict_set(outline, "again", first);
}

static void begin(void)
{
    assert_ok(berth_joint_begin(path, outline, 1, NULL, &joint, &info, &error));
    assert_ok(bth_ticket_read(info.ticket, info.ticket_nbytes, &ticket, &error));
}

static void set_up(void)
{
    begin_model_scene();
    tree = berth_tree_new(NULL);
}

static void tear_down(void)
{
    bth_ticket_free_all(&ticket);
    berth_joint_abort(joint);
    berth_tree_free(tree);
    end_scene();
}

TestSuite(joint_names, .init = set_up, .fini = tear_down);

/* The bytes of the tensors that are found; 0: none is. */
static void find(const char *const *names, size_t n, uint64_t *found)
{
    berth_slice *slices = calloc(n, sizeof *slices);
    size_t *at;

    for (size_t i = 0; i < n; i++)
        slices[i].name = names[i];
    assert_ok(bth_ticket_find_tensors_of_slices(&ticket, slices, n, &at, &error));
    for (size_t i = 0; i < n; i++) {
        bth_ticket_tensor tensor = {0};
        found[i] = at[i] != BTH_NO_TENSOR && bth_ticket_next_tensor(&ticket, &at[i], &tensor)
                       ? ticket.storages[tensor.storage].nbytes
                       : 0;
    }
    bth_release(at);
    free(slices);
}

Test(joint_names, each_tensor_by_its_name_and_its_path)
{
    char *texts[2 * MAX_TENSORS];
    const char *names[4 * MAX_TENSORS];
    uint64_t found[4 * MAX_TENSORS];
    bth_names *all;
    size_t n;

    make_outline();
    begin();
    assert_ok(bth_names_new(outline, &all, &error));
    n = bth_names_tensor_count(all);
    cr_assert_eq(n, (size_t)n_tensors + 2);
    for (size_t i = 0; i < n; i++) {
        assert_ok(bth_names_allocate_tensor_name_and_path(all, i, &texts[2 * i], &texts[2 * i + 1],
                                                          &error));
        for (size_t j = 0; j < 4; j++) /* twice, forwards and backwards */
            names[j < 2 ? 2 * i + j : 4 * n - 1 - (2 * i + j - 2)] = texts[2 * i + j % 2];
    }
    find(names, 4 * n, found);
    for (size_t i = 0; i < 4 * n; i++) {
        size_t tensor = (i < 2 * n ? i : 4 * n - 1 - i) / 2;
        cr_assert_eq(found[i],
                     berth_tensor_nbytes(berth_as_tensor(bth_names_tensor_value(all, tensor))),
                     "%s: %d", names[i], (int)found[i]);
    }
    for (size_t i = 0; i < 2 * n; i++)
        bth_release(texts[i]);
    bth_names_free(all);
}

/* A name that two tensors have, and texts that are nearly a path. So many as the hash table would
 * have slots if it could be full. */
Test(joint_names, nothing_by_other_texts, .timeout = 60)
{
    static const char *const others[16] = {
        "a.b",      "c.0",       "",           "['a.it's']", "['it's']",      "[\"weight\"]",
        "weight']", "['c.1.0']", "['c']['0']", "['x']['y']", "['s.indices']", "[",
        "[']",      "['c']",     "['line\n']", "a"};
    uint64_t found[16];

    make_outline();
    begin();
    find(others, 16, found);
    for (size_t i = 0; i < 16; i++)
        cr_assert_eq(found[i], 0, "%s", others[i]);
}

/* The root can be the tensor. A slice without a name finds nothing. */
Test(joint_names, of_the_root)
{
    const char *names[] = {"", "['']", NULL};
    uint64_t found[3];

    outline = new_tensor();
    begin();
    find(names, 3, found);
    cr_assert_eq(found[0], 1);
    cr_assert_eq(found[1], 0);
    cr_assert_eq(found[2], 0);
}

/* Keys that are written alike: NaNs, and tuples that are long. */
static void set_alike(bool is_long, char number, berth_value *value)
{
    char text[300];
    berth_value *key = berth_make_float(tree, (double)NAN), *part;

    memset(text, 'n', sizeof text);
    text[sizeof text - 1] = number;
    if (is_long) {
        part = berth_make_str(tree, text, sizeof text);
        key = berth_make_tuple(tree, &part, 1);
    }
    cr_assert_eq(berth_dict_set_value(outline, key, value), 0);
}

/* No slice could name the second tensor. One tensor can be there twice. */
Test(joint_names, of_two_tensors_with_one_path)
{
    char says[100];

    for (int is_long = 0; is_long < 2; is_long++) {
        berth_value *tensor = new_tensor();
        outline = berth_make_dict(tree, BERTH_KIND_DICT);
        set_alike(is_long, '1', tensor);
        set_alike(is_long, '2', tensor);
        begin();
        bth_ticket_free_all(&ticket);
        berth_joint_abort(joint);
        set_alike(is_long, '3', new_tensor());
        cr_assert_eq(berth_joint_begin(path, outline, 1, NULL, &joint, NULL, &error),
                     BERTH_E_AMBIGUOUS);
        (void)snprintf(says, sizeof says, "model.pt: %s: two tensors of the outline have this path",
                       is_long ? "[('...)]" : "[nan]");
        cr_assert(strstr(error.message, says), "%s", error.message);
    }
}

/* Nor are two views of one storage the same tensor if one thing differs. */
Test(joint_names, of_two_views_with_one_path)
{
    static const struct {
        int64_t offset, shape[2], stride[2];
        int32_t rank;
        berth_dtype dtype;
    } views[] = {{0, {2, 2}, {2, 1}, 2, BERTH_UINT32}, {4, {2, 2}, {2, 1}, 2, BERTH_UINT32},
                 {0, {2, 2}, {1, 2}, 2, BERTH_UINT32}, {0, {2, 4}, {4, 1}, 2, BERTH_UINT32},
                 {0, {2}, {1}, 1, BERTH_UINT32},       {0, {2, 2}, {2, 1}, 2, BERTH_UINT16}};
    berth_storage *storage = berth_storage_new(tree, BERTH_DTYPE_NONE, BERTH_ELSEWHERE, 64, "cpu");

    for (size_t i = 0; i < sizeof views / sizeof *views; i++) {
        outline = berth_make_dict(tree, BERTH_KIND_DICT);
        for (size_t k = 0; k < 2; k++)
            set_alike(false, '1',
                      berth_make_tensor(tree, &(berth_tensor){.dtype = views[k * i].dtype,
                                                              .rank = views[k * i].rank,
                                                              .shape = views[k * i].shape,
                                                              .stride = views[k * i].stride,
                                                              .storage_offset = views[k * i].offset,
                                                              .storage = storage}));
        cr_expect_eq(berth_joint_begin(path, outline, 1, NULL, &joint, NULL, &error),
                     i == 0 ? 0 : BERTH_E_AMBIGUOUS, "%zu: %s", i, error.message);
        berth_joint_abort(joint);
    }
}

/* An explicit path has the form of one, and is not beside another one. */
Test(joint_names, of_a_lie)
{
    static const char *const lies[][2] = {{"[\"it's\"]", "x"}, {"it's", "["}};

    make_outline();
    begin();
    for (size_t i = 0; i < 2; i++) {
        bth_ticket lying;
        uint8_t *copy = malloc(info.ticket_nbytes);
        memcpy(copy, info.ticket, info.ticket_nbytes);
        uint8_t *at = memmem(copy, info.ticket_nbytes, lies[i][0], strlen(lies[i][0]) + 1);
        cr_assert_not_null(at);
        *at = (uint8_t)*lies[i][1];
        bth_blob_put_end(copy, info.ticket_nbytes);
        bth_error_clear(&error);
        cr_assert_eq(bth_ticket_read(copy, info.ticket_nbytes, &lying, &error), BERTH_E_ARGUMENT);
        cr_assert(strstr(error.message, "the ticket is invalid: a tensor"), "%s", error.message);
        bth_ticket_free_all(&lying);
        free(copy);
    }
}

static ssize_t readlinkat_outside(int in, const char *name, char *text, size_t nbytes)
{
    (void)in, (void)name, (void)nbytes;
    return (ssize_t)strlen(strcpy(text, "(unreachable)/x"));
}

/* A folder outside of this process's root has no path for others. */
Test(joint_names, of_a_folder_without_a_path)
{
    outline = berth_make_dict(tree, BERTH_KIND_DICT);
    bth_system.readlinkat = readlinkat_outside;
    cr_expect_eq(berth_joint_begin(path, outline, 1, NULL, &joint, &info, &error),
                 BERTH_E_ARGUMENT);
    cr_expect(strstr(error.message, "its folder has no path"), "%s", error.message);
    bth_system_restore();
}
