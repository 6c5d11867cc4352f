/* SPDX-License-Identifier: BSD-3-Clause */
/* berth_value_walk: what is met, in which order, and by which path. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "format/names/names.h"
#include "format/values/value.h"
#include "tests/support/support.h"
#include "tests/support/tree_scene.h"

TestSuite(walk, .init = begin_tree, .fini = end_tree);

static berth_value *text(const char *characters)
{
    return berth_make_str(tree, characters, strlen(characters));
}

static berth_value *longs(int32_t rank, const int64_t *shape)
{
    static const int64_t numbers[4];

    return berth_make_tensor(
        tree, &(berth_tensor){.dtype = BERTH_INT64, .rank = rank, .shape = shape, .data = numbers});
}

/* What was called, a line each: "+path", "-path", "=path". */
typedef struct events {
    char lines[2048];
    const char *skipped, *ended; /* paths */
    const berth_value *root;
} events;

static int note(events *seen, char sign, const berth_walk *walk, const berth_value *value)
{
    const char *path = berth_walk_path(walk);
    size_t n = strlen(seen->lines);
    bth_names *names;
    berth_error error;

    bth_error_clear(&error);
    cr_assert_lt(n + strlen(path) + 3, sizeof seen->lines);
    snprintf(seen->lines + n, sizeof seen->lines - n, "%c%s\n", sign, path);
    /* The path leads there. */
    cr_assert_eq(bth_names_new(seen->root, &names, &error), 0);
    cr_expect_eq(bth_names_find_value(names, path, &error), value, "%s", path);
    bth_names_free(names);
    if (seen->ended && strcmp(path, seen->ended) == 0)
        return 17;
    return seen->skipped && strcmp(path, seen->skipped) == 0 ? BERTH_WALK_SKIP : 0;
}

static int enter(void *context, const berth_walk *walk, const berth_value *value)
{
    return note(context, '+', walk, value);
}

static int leave(void *context, const berth_walk *walk, const berth_value *value)
{
    return note(context, '-', walk, value);
}

static int alias(void *context, const berth_walk *walk, const berth_value *value)
{
    return note(context, '=', walk, value);
}

static int walk_value(const berth_value *value, uint32_t flags, events *seen)
{
    const berth_walker walker = {
        .flags = flags, .enter = enter, .leave = leave, .alias = alias, .context = seen};
    berth_error error;

    seen->root = value;
    return berth_value_walk(value, &walker, &error);
}

static berth_value *sample(void)
{
    berth_value *root = berth_make_dict(tree, BERTH_KIND_ORDERED_DICT),
                *list = berth_make_list(tree);
    berth_value *state = berth_make_dict(tree, BERTH_KIND_DICT);

    berth_list_append(list, berth_make_int(tree, 1));
    berth_list_append(list, text("b"));
    berth_list_append(list, root);
    berth_dict_set(root, "a", list);
    berth_dict_set_value(root, berth_make_int(tree, 7), list);
    berth_dict_set(state, "s", berth_make_none(tree));
    berth_value_set_state(root, state);
    return root;
}

Test(walk, values_are_entered_once_and_left)
{
    events seen = {.lines = ""};

    cr_expect_eq(walk_value(sample(), 0, &seen), 0);
    cr_expect_str_eq(seen.lines, "+\n+['a']\n+['a'][0]\n-['a'][0]\n+['a'][1]\n-['a'][1]\n"
                                 "=['a'][2]\n-['a']\n=[7]\n+.__dict__\n+.__dict__['s']\n"
                                 "-.__dict__['s']\n-.__dict__\n-\n");
}

Test(walk, items_alone_are_walked_on_request)
{
    events seen = {.lines = "", .skipped = "['a'][1]"};

    cr_expect_eq(walk_value(sample(), BERTH_WALK_ITEMS, &seen), 0);
    cr_expect_str_eq(seen.lines, "+\n+['a']\n+['a'][0]\n-['a'][0]\n+['a'][1]\n=['a'][2]\n-['a']\n"
                                 "=[7]\n-\n");
}

Test(walk, a_function_passes_over_values_and_ends_the_walk)
{
    events skipping = {.skipped = "['a']"}, ending = {.ended = "['a'][1]"};

    cr_expect_eq(walk_value(sample(), 0, &skipping), 0);
    cr_expect_str_eq(skipping.lines, "+\n+['a']\n=[7]\n+.__dict__\n+.__dict__['s']\n"
                                     "-.__dict__['s']\n-.__dict__\n-\n");
    cr_expect_eq(walk_value(sample(), 0, &ending), 17);
    cr_expect_str_eq(ending.lines, "+\n+['a']\n+['a'][0]\n-['a'][0]\n+['a'][1]\n");
}

Test(walk, parts_of_tensors_and_objects_are_walked)
{
    const int64_t two[] = {1, 1}, one = 1;
    berth_value *parts[] = {longs(2, two), longs(1, &one)}, *root = berth_make_list(tree);
    berth_value *item = text("x"), *set = berth_make_set(tree);
    berth_value *call = bth_call_new(tree, bth_global_new(tree, "m", 1, "C", 1, true),
                                     berth_make_tuple(tree, &item, 1), false);
    events seen = {.lines = ""};

    berth_list_append(
        root, berth_make_parameter(
                  tree, berth_make_sparse(tree, BERTH_SPARSE_COO, &one, 1, parts, true), true));
    bth_call_extend(call, &parts[0], 1, false);
    berth_list_append(root, call);
    berth_set_add(set, text("only"));
    berth_list_append(root, set);
    cr_expect_eq(walk_value(root, 0, &seen), 0);
    cr_expect_str_eq(seen.lines, "+\n+[0]\n+[0].data\n+[0].data.indices\n-[0].data.indices\n"
                                 "+[0].data.values\n-[0].data.values\n-[0].data\n-[0]\n"
                                 "+[1]\n+[1][0]\n-[1][0]\n+[1].list_items\n=[1].list_items[0]\n"
                                 "-[1].list_items\n+[1].callable\n-[1].callable\n-[1]\n"
                                 "+[2]\n+[2][0]\n-[2][0]\n-[2]\n-\n");
}

/* P3 */
static int count_and_measure(void *context, const berth_walk *walk, const berth_value *value)
{
    size_t *seen = context;

    (void)value;
    if (++seen[0] % 100000 == 0)
        seen[1] = strlen(berth_walk_path(walk));
    return 0;
}

Test(walk, a_million_levels_need_no_stack)
{
    berth_value *root = berth_make_list(tree), *list = root;
    size_t seen[2] = {0};
    berth_error error;

    for (int i = 1; i < 1000000; i++, list = bth_value_item(list, 0))
        berth_list_append(list, berth_make_list(tree));
    cr_expect_eq(berth_value_walk(
                     root, &(berth_walker){.enter = count_and_measure, .context = seen}, &error),
                 0);
    cr_expect_eq(seen[0], 1000000);
    cr_expect_eq(seen[1], 3 * 999999);
}

static int show_end(void *context, const berth_walk *walk, const berth_value *value)
{
    (void)value;
    snprintf(context, 8, "%.7s", berth_walk_path(walk));
    return 0;
}

Test(walk, a_path_beyond_16_mib_is_not_written_out)
{
    char *key = calloc(1, (17 << 20) + 1), shown[8];
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    const berth_walker walker = {.enter = show_end, .leave = show_end, .context = shown};
    berth_error error;

    memset(key, 'a', 17 << 20);
    berth_dict_set(root, key, berth_make_int(tree, 1));
    cr_expect_eq(
        berth_value_walk(root, &(berth_walker){.enter = show_end, .context = shown}, &error), 0);
    cr_expect_str_eq(shown, "...");
    cr_expect_eq(berth_value_walk(root, &walker, &error), 0);
    cr_expect_str_eq(shown, "", "the root's again");
    free(key);
}

Test(walk, bad_arguments_are_refused)
{
    const berth_walker none = {.flags = 0}, unknown = {.flags = 2}, newer = {.reserved = {0, 1}};
    const berth_value *value = berth_make_none(tree);
    berth_error error;

    FAILS(berth_value_walk(NULL, &none, &error), BERTH_E_ARGUMENT, "the value is NULL");
    FAILS(berth_value_walk(value, NULL, &error), BERTH_E_ARGUMENT, "the walker is NULL");
    FAILS(berth_value_walk(value, &unknown, &error), BERTH_E_ARGUMENT,
          "unknown flags 0x2 of a walk");
    FAILS_SAYING(berth_value_walk(value, &newer, &error), BERTH_E_ARGUMENT,
                 "berth_walker: reserved[1] is not 0");
    cr_expect_eq(berth_value_walk(sample(), &none, NULL), 0, "no function, no error");
}

static int ask_path(void *context, const berth_walk *walk, const berth_value *value)
{
    (void)context, (void)value;
    return berth_walk_path(walk)[0] == 'x';
}

Test(walk, no_memory_ends_it)
{
    const berth_walker walker = {.enter = ask_path, .leave = ask_path, .alias = ask_path};
    int code = BERTH_E_MEMORY;
    berth_error error;
    uint64_t n = 0;

    berth_tree_free(tree);
    test_memory_watch();
    tree = berth_tree_new(NULL);
    berth_value *root = sample();
    while (code == BERTH_E_MEMORY && n < 100) {
        test_memory_refuse(++n, false);
        code = berth_value_walk(root, &walker, &error);
        cr_expect_eq(error.code, code);
    }
    test_memory_refuse(0, false);
    cr_expect_eq(code, 0);
    cr_expect_geq(n, 4, "what was met, the stack, the path");
    berth_tree_free(tree);
    cr_expect_eq(test_memory_seen().live_nbytes, 0);
    test_memory_unwatch();
    tree = NULL;
}
