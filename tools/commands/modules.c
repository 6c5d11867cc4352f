/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Pickled torch.nn.Modules, of which nothing is run: what their state_dict() would give.
 * Source: torch.nn.Module._save_to_state_dict: parameters, then buffers that are persistent, then
 * those of its modules, by names that dots join. Extra states and hooks would need the class.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/commands/convert.h"
#include "tools/common/array.h"
#include "tools/common/report.h"

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

/* A state_dict, and what it takes the place of: the value under a key, or the whole (dict NULL). */
typedef struct replacement {
    berth_value *dict, *key, *made;
} replacement;

/* How all of a value is done. */
typedef struct modules {
    berth_tree *tree;
    const berth_value **dicts;
    replacement *replacements;
    const berth_value *
        *written; /* modules of which a state_dict has the tensors, as often as met */
    size_t n_dicts, n_replacements, n_written;
    size_t names_nbytes; /* of all that was visited */
    size_t dicts_capacity, replacements_capacity, written_capacity;
} modules;

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
    const berth_value *children = module_part(at->module, "_modules");
    berth_value *key, *value;
    int code = 0;

    for (size_t i = berth_value_count(children); i-- > 0 && !code;) { /* the first is taken first */
        (void)berth_dict_at(children, i, &key, &value);
        const char *text = berth_as_text(key, NULL);
        if (text && is_module(value))
            code = visits_push(all, value, at->prefix, text);
    }
    return code;
}

static int modules_make_state_dict(modules *all, const berth_value *module, berth_value **dict)
{
    visits todo = {.nbytes = all->names_nbytes};
    int code = visits_push(&todo, module, "", "");

    *dict = berth_make_dict(all->tree, BERTH_KIND_ORDERED_DICT);
    while (!code && todo.n > 0) {
        visit at = todo.items[--todo.n];
        if (array_reserve(&all->written, all->n_written, &all->written_capacity,
                          sizeof *all->written))
            all->written[all->n_written++] = at.module;
        else
            code = EXIT_TROUBLE;
        if (!code)
            code = add_tensors(*dict, &todo, &at, "_parameters", NULL);
        if (!code)
            code = add_tensors(*dict, &todo, &at, "_buffers",
                               module_part(at.module, "_non_persistent_buffers_set"));
        if (!code)
            code = push_modules(&todo, &at);
        free(at.prefix);
    }
    while (todo.n > 0)
        free(todo.items[--todo.n].prefix);
    free(todo.items);
    all->names_nbytes = todo.nbytes;
    return code;
}

/* ---- all of a value ---- */

static int list_dict(void *context, const berth_walk *walk, const berth_value *value)
{
    modules *all = context;
    berth_kind kind = berth_value_kind(value);

    (void)walk;
    if (kind == BERTH_KIND_CALL)
        return BERTH_WALK_SKIP;
    if (kind != BERTH_KIND_DICT && kind != BERTH_KIND_ORDERED_DICT)
        return 0;
    if (!array_reserve(&all->dicts, all->n_dicts, &all->dicts_capacity, sizeof *all->dicts))
        return EXIT_TROUBLE;
    all->dicts[all->n_dicts++] = value;
    return 0;
}

static int modules_replace(modules *all, berth_value *dict, berth_value *key,
                           const berth_value *module)
{
    if (!array_reserve(&all->replacements, all->n_replacements, &all->replacements_capacity,
                       sizeof *all->replacements))
        return EXIT_TROUBLE;
    replacement *added = &all->replacements[all->n_replacements++];
    *added = (replacement){dict, key, NULL};
    return modules_make_state_dict(all, module, &added->made);
}

static int modules_replace_in_dicts(modules *all)
{
    berth_value *key, *value;
    int code = 0;

    for (size_t n = 0; n < all->n_dicts; n++) {
        berth_value *dict = (berth_value *)(uintptr_t)all->dicts[n]; /* of our own tree */
        for (size_t i = 0; !code && berth_dict_at(dict, i, &key, &value); i++)
            if (is_module(value))
                code = modules_replace(all, dict, key, value);
    }
    return code;
}

static int modules_replace_all(modules *all, berth_value *root)
{
    const berth_walker walker = {.flags = BERTH_WALK_ITEMS, .enter = list_dict, .context = all};

    if (is_module(root))
        return modules_replace(all, NULL, NULL, root);
    int code = berth_value_walk(root, &walker, NULL);
    if (code < 0)
        code = print_trouble("out of memory");
    return code ? code : modules_replace_in_dicts(all);
}

/* ---- what is no part of a state_dict ---- */

/* Modules that are met and were not written, in written ones or elsewhere; the paths of some. */
typedef struct others {
    const modules *all;
    size_t depth; /* of written modules */
    size_t n_left_out, n_kept;
    char left_out[512], kept[512];
} others;

static int compare_addresses(const void *left, const void *right)
{
    const berth_value *const *a = left, *const *b = right;

    return (*a > *b) - (*a < *b);
}

static bool others_is_written(const others *o, const berth_value *value)
{
    return o->all->n_written > 0 &&
           bsearch(&value, o->all->written, o->all->n_written, sizeof value, compare_addresses);
}

/* A path, without what the names of a state_dict do not have. */
static void others_add_path(char *texts, size_t room, size_t n, const berth_walk *walk)
{
    enum { MAX_SHOWN = 3, MAX_NBYTES = 150 };
    static const char *const between[] = {".__dict__['_modules']", ".__dict__"};
    size_t at = strlen(texts), begin = at;

    if (n == MAX_SHOWN)
        (void)snprintf(texts + at, room - at, ", ...");
    if (n >= MAX_SHOWN)
        return;
    const char *path = berth_walk_path(walk);
    at += (size_t)snprintf(texts + at, room - at, "%s", n ? ", " : "");
    while (*path && at - begin < MAX_NBYTES) {
        size_t skipped = 0;
        for (size_t i = 0; i < sizeof between / sizeof *between && !skipped; i++)
            if (strncmp(path, between[i], strlen(between[i])) == 0)
                skipped = strlen(between[i]);
        if (!skipped)
            texts[at++] = *path++;
        path += skipped;
    }
    (void)snprintf(texts + at, room - at, "%s", *path ? "..." : "");
}

static int others_enter(void *context, const berth_walk *walk, const berth_value *value)
{
    others *o = context;

    if (!is_module(value))
        return 0;
    if (others_is_written(o, value)) {
        o->depth++;
        return 0;
    }
    if (o->depth > 0)
        others_add_path(o->left_out, sizeof o->left_out, o->n_left_out++, walk);
    else
        others_add_path(o->kept, sizeof o->kept, o->n_kept++, walk);
    return BERTH_WALK_SKIP;
}

static int others_leave(void *context, const berth_walk *walk, const berth_value *value)
{
    others *o = context;

    (void)walk;
    o->depth -= others_is_written(o, value);
    return 0;
}

static int modules_tell_others(modules *all, const char *path, const berth_value *root)
{
    others o = {.all = all};
    const berth_walker walker = {.enter = others_enter, .leave = others_leave, .context = &o};

    if (all->n_written > 0)
        qsort(all->written, all->n_written, sizeof *all->written, compare_addresses);
    if (berth_value_walk(root, &walker, NULL) < 0)
        return print_trouble("out of memory");
    if (o.n_left_out > 0)
        (void)print_trouble("%s: left out %zu module%s in lists, dicts and objects, as PyTorch's "
                            "state_dict() does: %s",
                            path, o.n_left_out, o.n_left_out == 1 ? "" : "s", o.left_out);
    if (o.n_kept > 0)
        (void)print_trouble("%s: %zu module%s in lists and objects, not in dicts, %s as pickled: "
                            "%s; --root takes one out",
                            path, o.n_kept, o.n_kept == 1 ? "" : "s",
                            o.n_kept == 1 ? "stays" : "stay", o.kept);
    return 0;
}

int modules_to_state_dicts(const char *path, bool quietly, berth_tree **tree,
                           const berth_value **value)
{
    berth_error error;
    modules all = {.tree = *tree = berth_tree_new(&error)};

    if (!all.tree)
        return fail(&error);
    berth_value *root = berth_value_copy(all.tree, *value, 0);
    int code = root ? modules_replace_all(&all, root) : 0;
    if (root && !code && !quietly)
        code = modules_tell_others(&all, path, root);
    for (size_t i = 0; !code && i < all.n_replacements; i++) {
        const replacement *each = &all.replacements[i];
        if (each->dict)
            (void)berth_dict_set_value(each->dict, each->key, each->made);
        else
            root = each->made;
    }
    if (!code && berth_tree_error(all.tree, &error) < 0)
        code = fail(&error);
    free(all.dicts);
    free(all.replacements);
    free(all.written);
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
