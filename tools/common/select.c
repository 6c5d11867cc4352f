/* SPDX-License-Identifier: BSD-3-Clause */
/* Some of the values of a checkpoint: --only, --without and --root. */
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/array.h"
#include "tools/common/non_tensor_values.h"
#include "tools/common/options.h"
#include "tools/common/report.h"
#include "tools/common/select.h"

/* ---- options ---- */

enum { KEY_ONLY = 768, KEY_WITHOUT, KEY_ROOT };

static const struct argp_option glob_options[] = {
    {"only", KEY_ONLY, "GLOB", 0,
     "only values whose name, or the part of it before a dot, matches: model, 'model.layers.*'; * "
     "matches dots, too. Can be repeated",
     2},
    {"without", KEY_WITHOUT, "GLOB", 0, "no values whose name, or the part before a dot, matches",
     2},
    {0}};

static const struct argp_option root_options[] = {
    {"root", KEY_ROOT, "PATH", 0, "only the value of this name or path; it becomes the whole", 2},
    {0}};

static void globs_add(globs *all, char *pattern, struct argp_state *state)
{
    if (all->n == MAX_GLOBS)
        print_usage_error_and_exit(state, "more than %d patterns", MAX_GLOBS);
    else
        all->patterns[all->n++] = pattern;
}

static error_t selection_parse(int key, char *word, struct argp_state *state)
{
    selection *selected = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &selected->common;
        return 0;
    case KEY_ONLY:
        globs_add(&selected->only, word, state);
        return 0;
    case KEY_WITHOUT:
        globs_add(&selected->without, word, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t root_parse(int key, char *word, struct argp_state *state)
{
    selection *selected = state->input;

    if (key == ARGP_KEY_INIT)
        state->child_inputs[0] = selected;
    if (key != KEY_ROOT)
        return key == ARGP_KEY_INIT ? 0 : ARGP_ERR_UNKNOWN;
    selected->root = word;
    return 0;
}

static const struct argp globs_argp = {
    glob_options, selection_parse, NULL, NULL, common_children, NULL, NULL};
const struct argp_child selection_children[] = {{&globs_argp, 0, NULL, 0}, {0}};

static const struct argp root_argp = {root_options,       root_parse, NULL, NULL,
                                      selection_children, NULL,       NULL};
const struct argp_child selection_and_root_children[] = {{&root_argp, 0, NULL, 0}, {0}};

/* ---- names ---- */

/* Whether a pattern matches the name, or a part of it that ends at a dot at or behind `from`. */
static bool globs_match(globs *all, char *name, size_t from)
{
    enum { MAX_PARTS_NBYTES = 4096 }; /* P3: names can have millions of dots */
    size_t n = strlen(name);
    bool matches = false;

    for (char *dot = name + from; n <= MAX_PARTS_NBYTES && !matches && (dot = strchr(dot, '.'));
         dot++) {
        *dot = '\0';
        for (size_t i = 0; i < all->n; i++)
            if (fnmatch(all->patterns[i], name, 0) == 0)
                matches = all->is_used[i] = true;
        *dot = '.';
    }
    for (size_t i = 0; i < all->n; i++)
        if (fnmatch(all->patterns[i], name, 0) == 0)
            matches = all->is_used[i] = true;
    return matches;
}

bool selection_has_globs(const selection *selected)
{
    return selected->only.n || selected->without.n;
}

bool selection_is_all(const selection *selected)
{
    return !selection_has_globs(selected) && !selected->root;
}

bool selection_has_name(selection *selected, const char *name)
{
    char *text = selection_has_globs(selected) ? strdup(name) : NULL;
    bool has = !text || ((selected->only.n == 0 || globs_match(&selected->only, text, 0)) &&
                         !globs_match(&selected->without, text, 0));

    free(text);
    return has;
}

bool selection_needs(selection *selected, const char *name)
{
    const char *root = selected->root ? selected->root : "";
    size_t n_root = strlen(root), n = strlen(name);

    if (strchr(root, '[') || (strncmp(root, name, n) == 0 && root[n] == '.'))
        return true; /* a path, which is not compared; or it leads into the value */
    if (strncmp(name, root, n_root) != 0 || (n_root && name[n_root] && name[n_root] != '.'))
        return false;
    name += n_root + (n_root && name[n_root]);
    n = strlen(name);
    for (size_t i = 0; i < selected->only.n; i++) /* a pattern for something inside of it */
        if (strncmp(selected->only.patterns[i], name, n) == 0 &&
            selected->only.patterns[i][n] == '.')
            return true;
    return !*name || selection_has_name(selected, name);
}

static int globs_check_used(const globs *all, const char *option, const char *path)
{
    int code = 0;

    for (size_t i = 0; i < all->n; i++)
        if (!all->is_used[i]) {
            (void)print_trouble("%s: %s '%s' matches nothing", path, option, all->patterns[i]);
            code = EXIT_NO;
        }
    return code;
}

int selection_check_used(const selection *selected, const char *path)
{
    int code = globs_check_used(&selected->only, "--only", path);
    int other = globs_check_used(&selected->without, "--without", path);

    return code ? code : other;
}

/* ---- values ---- */

/* A container whose items are chosen. */
typedef struct level {
    berth_value *value;
    size_t name_nbytes; /* of its name */
    size_t n_visited;   /* items */
    size_t first;       /* of its chosen items, in the stack of items */
    bool is_wanted;     /* its name, or that of a container around it, matches --only */
} level;

typedef struct item {
    berth_value *key; /* of a dict; else NULL */
    berth_value *value;
} item;

typedef struct chooser {
    selection *selected;
    berth_tree *tree;          /* it has the copy of all values */
    repeated_values *repeated; /* notes: what was made of a container, or &nothing */
    level *levels;
    item *items;
    size_t n_levels, levels_capacity, n_items, items_capacity;
    char *name; /* of the value at hand */
    size_t long_nbytes;
    berth_value *root;
} chooser;

static char nothing; /* was chosen of a container */

static int chooser_push_item(chooser *c, berth_value *key, berth_value *value)
{
    if (c->n_levels == 0) {
        c->root = value;
        return 0;
    }
    if (!array_reserve(&c->items, c->n_items, &c->items_capacity, sizeof *c->items))
        return EXIT_TROUBLE;
    c->items[c->n_items++] = (item){key, value};
    return 0;
}

/* Makes the name of the next item of the container on top. */
static int chooser_set_name(chooser *c, const berth_value *key)
{
    const level *top = &c->levels[c->n_levels - 1];
    char number[24], *made = NULL;
    const char *step = number;

    snprintf(number, sizeof number, "%zu", top->n_visited - 1);
    if (berth_value_kind(key) == BERTH_KIND_STR)
        step = berth_as_text(key, NULL);
    else if (key)
        step = made = leaf_text(key);
    size_t nbytes = top->name_nbytes + (step ? strlen(step) : 0) + 2;
    char *name = step ? realloc(c->name, nbytes) : NULL;
    if (name) {
        c->name = name;
        snprintf(name + top->name_nbytes, nbytes - top->name_nbytes, "%s%s",
                 c->n_levels > 1 ? "." : "", step);
    }
    free(made);
    return name ? check_total_of_long_names(&c->long_nbytes, nbytes)
                : print_trouble("out of memory");
}

/* Goes to the next item of the container on top; *key: of a dict, else NULL. */
static int chooser_next_item(chooser *c, berth_value **key)
{
    *key = NULL;
    if (c->n_levels == 0)
        return 0;
    level *top = &c->levels[c->n_levels - 1];
    (void)berth_dict_at(top->value, top->n_visited++, key, NULL);
    return chooser_set_name(c, *key);
}

/* Whether the value at hand is wanted by --only, and whether it is unwanted by --without. */
static void chooser_match_name(chooser *c, bool *is_wanted, bool *is_unwanted)
{
    const level *top = c->n_levels ? &c->levels[c->n_levels - 1] : NULL;
    size_t from = top && top->name_nbytes ? top->name_nbytes + 1 : 0;

    *is_wanted = c->selected->only.n == 0 || (top && top->is_wanted) ||
                 (top && globs_match(&c->selected->only, c->name, from));
    *is_unwanted = top && globs_match(&c->selected->without, c->name, from);
}

static bool value_has_items(const berth_value *value)
{
    berth_kind kind = berth_value_kind(value);

    return kind >= BERTH_KIND_LIST && kind <= BERTH_KIND_COUNTER && berth_value_count(value) > 0;
}

static int chooser_enter(void *context, const berth_walk *walk, const berth_value *entered)
{
    chooser *c = context;
    berth_value *value = (berth_value *)(uintptr_t)entered; /* of our own tree */
    berth_value *key;
    bool is_wanted, is_unwanted;
    int code = chooser_next_item(c, &key);

    (void)walk;
    if (code)
        return code;
    chooser_match_name(c, &is_wanted, &is_unwanted);
    if (!is_unwanted && value_has_items(value)) {
        if (!array_reserve(&c->levels, c->n_levels, &c->levels_capacity, sizeof *c->levels))
            return EXIT_TROUBLE;
        c->levels[c->n_levels++] = (level){.value = value,
                                           .name_nbytes = strlen(c->name),
                                           .first = c->n_items,
                                           .is_wanted = is_wanted};
        return 0;
    }
    void **note = repeated_values_note(c->repeated, value);
    if (note)
        *note = &nothing;
    if (!is_unwanted && is_wanted)
        code = chooser_push_item(c, key, value);
    return code ? code : BERTH_WALK_SKIP;
}

/* A container of the same kind with the chosen items. NULL: no memory. */
static berth_value *make_container(berth_tree *tree, const level *top, const item *items, size_t n)
{
    berth_kind kind = berth_value_kind(top->value);
    berth_value *state = berth_value_part(top->value, BERTH_PART_STATE);

    if (kind == BERTH_KIND_TUPLE) {
        berth_value **in_order = calloc(n, sizeof *in_order), *tuple;
        if (!in_order)
            return NULL;
        for (size_t i = 0; i < n; i++)
            in_order[i] = items[i].value;
        tuple = berth_make_tuple(tree, in_order, n);
        free(in_order);
        return tuple;
    }
    berth_value *made =
        kind == BERTH_KIND_LIST ? berth_make_list(tree) : berth_make_dict(tree, kind);
    for (size_t i = 0; made && i < n; i++)
        if (kind == BERTH_KIND_LIST ? berth_list_append(made, items[i].value) < 0
                                    : berth_dict_set_value(made, items[i].key, items[i].value) < 0)
            return NULL;
    if (made && state && berth_value_set_state(made, state) < 0)
        return NULL;
    return made;
}

/* *made: the container on top as it becomes; NULL: nothing of it was chosen. */
static int chooser_make_top(chooser *c, berth_value **made)
{
    const level *top = &c->levels[c->n_levels - 1];
    const item *items = c->items + top->first;
    size_t n = c->n_items - top->first, count = berth_value_count(top->value), n_same = 0;
    berth_value *old = NULL;

    for (size_t i = 0; n == count && i < n; i++) {
        if (!berth_dict_at(top->value, i, NULL, &old))
            old = berth_value_at(top->value, i);
        n_same += items[i].value == old;
    }
    *made = NULL;
    if (n_same == count)
        *made = top->value;
    else if (n > 0 && !(*made = make_container(c->tree, top, items, n)))
        return print_trouble("out of memory");
    return 0;
}

static int chooser_leave(void *context, const berth_walk *walk, const berth_value *value)
{
    chooser *c = context;
    berth_value *made, *key = NULL;
    int code = chooser_make_top(c, &made);

    (void)walk;
    if (code)
        return code;
    void **note = repeated_values_note(c->repeated, value);
    if (note)
        *note = made ? (void *)made : &nothing;
    c->n_items = c->levels[--c->n_levels].first;
    const level *top = c->n_levels ? &c->levels[c->n_levels - 1] : NULL;
    if (top)
        (void)berth_dict_at(top->value, top->n_visited - 1, &key, NULL);
    return made ? chooser_push_item(c, key, made) : 0;
}

/* A container that is there again is what was made of it, or whole if its name is wanted. */
static int chooser_alias(void *context, const berth_walk *walk, const berth_value *again)
{
    chooser *c = context;
    berth_value *value = (berth_value *)(uintptr_t)again, *key;
    void **note = value_has_items(value) ? repeated_values_note(c->repeated, value) : NULL;
    bool is_wanted, is_unwanted;
    int code = chooser_next_item(c, &key);

    (void)walk;
    if (code)
        return code;
    chooser_match_name(c, &is_wanted, &is_unwanted);
    if (note && !*note)
        return print_trouble("\"%s\" is inside of itself: nothing can be left out of it", c->name);
    if (note && *note != &nothing && (!is_wanted || c->selected->without.n))
        value = *note;
    else if (!is_wanted)
        return 0;
    return is_unwanted ? 0 : chooser_push_item(c, key, value);
}

static int chooser_run(chooser *c, const berth_value *root)
{
    const berth_walker walker = {.flags = BERTH_WALK_ITEMS,
                                 .enter = chooser_enter,
                                 .leave = chooser_leave,
                                 .alias = chooser_alias,
                                 .context = c};

    c->repeated = repeated_values_find(root);
    c->name = strdup("");
    int code = c->repeated && c->name ? berth_value_walk(root, &walker, NULL) : BERTH_E_MEMORY;
    repeated_values_free(c->repeated);
    free(c->levels);
    free(c->items);
    free(c->name);
    return code < 0 ? print_trouble("out of memory") : code;
}

int select_root(const selection *selected, const berth_checkpoint *checkpoint,
                const berth_value **value)
{
    berth_error error;

    *value =
        selected->root ? berth_find(checkpoint, selected->root, &error) : berth_root(checkpoint);
    return *value ? 0 : fail(&error);
}

int select_values(selection *selected, const char *path, berth_tree **tree,
                  const berth_value **value)
{
    chooser c = {.selected = selected};
    berth_error error;

    *tree = NULL;
    if (!selection_has_globs(selected))
        return 0;
    c.tree = *tree = berth_tree_new(&error);
    const berth_value *copy = c.tree ? berth_value_copy(c.tree, *value, 0) : NULL;
    if (!copy && c.tree)
        (void)berth_tree_error(c.tree, &error);
    if (!copy)
        return fail(&error);
    int code = chooser_run(&c, copy);
    if (code == 0)
        code = selection_check_used(selected, path);
    if (code == 0 && !c.root) {
        (void)print_trouble("%s: nothing is left", path);
        code = EXIT_NO;
    }
    *value = c.root;
    return code;
}
