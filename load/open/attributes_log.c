/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Debug mode tells which attributes a file gives its tensors (P5). They are names that no PyTorch
 * that was tried has for itself; a newer one can, and would then set another thing than an
 * attribute.
 */
#include <stdio.h>

#include "base/error.h"
#include "format/values/value.h"
#include "load/open/open_steps.h"

enum { MAX_SHOWN = 8 };

/* The different names, as keys. */
typedef struct attribute_names {
    berth_tree *tree;
    berth_value *names;
} attribute_names;

/* Each name is a str (P5). */
static void attribute_names_add(attribute_names *found, const berth_value *attributes)
{
    for (size_t i = 0; i < berth_value_count(attributes); i++) {
        size_t nbytes;
        const char *text = berth_as_text(bth_value_key(attributes, i), &nbytes);
        (void)berth_dict_set_value(found->names, berth_make_str(found->tree, text, nbytes),
                                   berth_make_none(found->tree));
    }
}

/* A state is a dict, or one and a second one for slots. Inert classes can have anything. */
static int attribute_names_add_of_value(void *context, const berth_walk *walk,
                                        const berth_value *value)
{
    const berth_value *state = berth_value_part(value, BERTH_PART_STATE);
    (void)walk;
    if (berth_value_kind(value) != BERTH_KIND_SUBCLASS || berth_value_part(value, BERTH_PART_TYPE))
        return 0;
    if (berth_value_kind(state) != BERTH_KIND_TUPLE)
        attribute_names_add(context, state);
    for (size_t i = 0; berth_value_kind(state) == BERTH_KIND_TUPLE && i < 2; i++)
        attribute_names_add(context, bth_value_item(state, i));
    return 0;
}

static void attribute_names_log(const berth_value *names, const char *file)
{
    char shown[MAX_SHOWN * 42] = "", more[40] = "";
    size_t n = berth_value_count(names), at = 0;
    for (size_t i = 0; i < n && i < MAX_SHOWN; i++)
        at += (size_t)snprintf(shown + at, sizeof shown - at, "%s%.40s", i ? ", " : "",
                               berth_as_text(bth_value_key(names, i), NULL));
    if (n > MAX_SHOWN)
        (void)snprintf(more, sizeof more, " and %zu more", n - MAX_SHOWN);
    if (n > 0)
        bth_log("%s: tensors have the attributes %s%s, which no known PyTorch has for itself", file,
                shown, more);
}

int bth_contents_log_attribute_names(const bth_contents *contents, const char *file,
                                     berth_error *error)
{
    attribute_names found = {.tree = berth_tree_new(error)};
    berth_walker walker = {.enter = attribute_names_add_of_value, .context = &found};

    if (!found.tree)
        return error->code;
    found.names = berth_make_dict(found.tree, BERTH_KIND_DICT);
    if (berth_value_walk(contents->root, &walker, error) == 0 &&
        berth_tree_error(found.tree, error) == 0)
        attribute_names_log(found.names, file);
    berth_tree_free(found.tree);
    return error->code;
}
