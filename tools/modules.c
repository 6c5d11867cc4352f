/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Pickled torch.nn.Modules, of which nothing is run: what their state_dict() would give.
 * Source: torch.nn.Module._save_to_state_dict: parameters, then buffers that are persistent, then
 * those of its modules, by names that dots join. Extra states and hooks would need the class.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/set.h"

/* P3: modules can share modules, so that a small file has names without end. */
enum { MAX_NAMES_NBYTES = 64 << 20, VISIT_NBYTES = 64 };

/* A module, and the beginning of its names: "", or with a dot at the end. */
typedef struct visit {
    const berth_value *module;
    char *prefix;
} visit;

typedef struct visits {
    visit *items;
    size_t n, capacity, nbytes;
} visits;

static const berth_value *module_part(const berth_value *value, const char *name)
{
    bool is_object = berth_value_kind(value) == BERTH_KIND_CALL;

    return is_object ? berth_dict_get(berth_value_part(value, BERTH_PART_STATE), name) : NULL;
}

static bool is_module(const berth_value *value)
{
    static const char *const parts[] = {"_parameters", "_buffers", "_modules"};

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const berth_value *part = module_part(value, parts[i]);
        berth_kind kind = berth_value_kind(part);
        if (!part || (kind != BERTH_KIND_DICT && kind != BERTH_KIND_ORDERED_DICT))
            return false;
    }
    return true;
}

/* What is done so far, in bytes. Returns 0, or an exit code after printing why; so do all below. */
static int visits_count(visits *all, size_t nbytes)
{
    all->nbytes += nbytes;
    if (all->nbytes <= MAX_NAMES_NBYTES)
        return 0;
    (void)print_trouble("the names of its modules take more than %d MiB: Berth does not write them",
                        MAX_NAMES_NBYTES >> 20);
    return EXIT_NO;
}

static int visits_push(visits *all, const berth_value *module, const char *prefix, const char *key)
{
    visit added = {.module = module};
    int code = visits_count(all, strlen(prefix) + strlen(key) + VISIT_NBYTES);

    if (code)
        return code;
    if (!array_reserve(&all->items, all->n, &all->capacity, sizeof *all->items))
        return EXIT_TROUBLE;
    if (asprintf(&added.prefix, "%s%s%s", prefix, key, *key ? "." : "") < 0)
        return print_trouble("out of memory");
    all->items[all->n++] = added;
    return 0;
}

static bool set_has_text(const berth_value *set, const char *text)
{
    for (size_t i = 0; i < berth_value_count(set); i++) {
        const char *each = berth_as_text(berth_value_at(set, i), NULL);
        if (each && strcmp(each, text) == 0)
            return true;
    }
    return false;
}

/* Parameters or buffers; `left_out`: the names of those that are not persistent, or NULL. */
static int add_tensors(berth_value *dict, visits *all, const visit *at, const char *part,
                       const berth_value *left_out)
{
    const berth_value *tensors = module_part(at->module, part);
    berth_value *key, *value;
    char *name;
    int code = 0;

    for (size_t i = 0; !code && berth_dict_at(tensors, i, &key, &value); i++) {
        const char *text = berth_as_text(key, NULL);
        code = visits_count(all, 1 + berth_value_count(left_out));
        if (code || !text || berth_value_kind(value) == BERTH_KIND_NONE ||
            set_has_text(left_out, text))
            continue;
        if (berth_value_kind(value) == BERTH_KIND_PARAMETER)
            value = berth_value_part(value, BERTH_PART_INNER);
        code = visits_count(all, strlen(at->prefix) + strlen(text));
        if (!code && asprintf(&name, "%s%s", at->prefix, text) < 0)
            code = print_trouble("out of memory");
        if (code)
            continue;
        (void)berth_dict_set(dict, name, value); /* the tree remembers a failure */
        free(name);
    }
    return code;
}

static int push_modules(visits *all, const visit *at)
{
    const berth_value *modules = module_part(at->module, "_modules");
    berth_value *key, *value;
    int code = 0;

    for (size_t i = berth_value_count(modules); i-- > 0 && !code;) { /* the first is taken first */
        (void)berth_dict_at(modules, i, &key, &value);
        const char *text = berth_as_text(key, NULL);
        if (text && is_module(value))
            code = visits_push(all, value, at->prefix, text);
    }
    return code;
}

static int state_dict_make(berth_tree *tree, const berth_value *module, berth_value **dict)
{
    visits all = {0};
    int code = visits_push(&all, module, "", "");

    *dict = berth_make_dict(tree, BERTH_KIND_ORDERED_DICT);
    while (!code && all.n > 0) {
        visit at = all.items[--all.n];
        code = add_tensors(*dict, &all, &at, "_parameters", NULL);
        if (!code)
            code = add_tensors(*dict, &all, &at, "_buffers",
                               module_part(at.module, "_non_persistent_buffers_set"));
        if (!code)
            code = push_modules(&all, &at);
        free(at.prefix);
    }
    while (all.n > 0)
        free(all.items[--all.n].prefix);
    free(all.items);
    return code;
}

/* ---- all of a value ---- */

typedef struct dict_list {
    const berth_value **items;
    size_t n, capacity;
} dict_list;

static int list_dict(void *context, const berth_walk *walk, const berth_value *value)
{
    dict_list *dicts = context;
    berth_kind kind = berth_value_kind(value);

    (void)walk;
    if (kind == BERTH_KIND_CALL)
        return BERTH_WALK_SKIP;
    if (kind != BERTH_KIND_DICT && kind != BERTH_KIND_ORDERED_DICT)
        return 0;
    if (!array_reserve(&dicts->items, dicts->n, &dicts->capacity, sizeof *dicts->items))
        return EXIT_TROUBLE;
    dicts->items[dicts->n++] = value;
    return 0;
}

static int dict_replace_modules(berth_tree *tree, berth_value *dict)
{
    berth_value *key, *value, *made;
    int code = 0;

    for (size_t i = 0; !code && berth_dict_at(dict, i, &key, &value); i++)
        if (is_module(value)) {
            code = state_dict_make(tree, value, &made);
            (void)berth_dict_set_value(dict, key, made);
        }
    return code;
}

static int replace_modules(berth_tree *tree, berth_value **root)
{
    dict_list dicts = {0};
    const berth_walker walker = {.flags = BERTH_WALK_ITEMS, .enter = list_dict, .context = &dicts};

    if (is_module(*root))
        return state_dict_make(tree, *root, root);
    int code = berth_value_walk(*root, &walker, NULL);
    if (code < 0)
        code = print_trouble("out of memory");
    for (size_t i = 0; i < dicts.n && !code; i++)
        code = dict_replace_modules(tree, (berth_value *)(uintptr_t)dicts.items[i]);
    free(dicts.items);
    return code;
}

int modules_to_state_dicts(berth_tree **tree, const berth_value **value)
{
    berth_error error;

    *tree = berth_tree_new(&error);
    if (!*tree)
        return fail(&error);
    berth_value *root = berth_value_copy(*tree, *value, 0);
    int code = root ? replace_modules(*tree, &root) : 0;
    if (!code && berth_tree_error(*tree, &error) < 0)
        code = fail(&error);
    *value = root;
    return code;
}

bool value_has_modules(const berth_value *value)
{
    berth_value *item;

    for (size_t i = 0; berth_dict_at(value, i, NULL, &item); i++)
        if (is_module(item))
            return true;
    return is_module(value);
}
