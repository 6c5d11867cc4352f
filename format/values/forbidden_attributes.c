/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The names of attributes that a file must not set in a tensor (P5). PyTorch sets all attributes of
 * a state by setattr (torch/_utils.py _set_obj_state): `data` replaces the elements,
 * `requires_grad` a flag, `__class__` the type, and others raise. No tensor saves them: they are
 * not in its __dict__.
 *
 * forbidden_attributes.def has the names of all PyTorchs that were tried. Any other name is kept:
 * programs tag Parameters, also with leading underscores. Names like __this__ are Python's, and all
 * refused.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/values/node.h"

static const char *const names[] = {
#define ATTRIBUTE(name, versions) name,
#include "format/values/forbidden_attributes.def"
#undef ATTRIBUTE
};

static int attribute_compare(const void *name, const void *row)
{
    return strcmp(name, *(const char *const *)row);
}

static bool attribute_is_of_tensor(const char *name, size_t nbytes)
{
    if (nbytes >= 2 && memcmp(name, "__", 2) == 0 && memcmp(name + nbytes - 2, "__", 2) == 0)
        return true;
    return strlen(name) == nbytes && /* no NUL within */
           bsearch(name, names, sizeof names / sizeof *names, sizeof *names, attribute_compare);
}

/* For one dict of a state, or None. Many tensors can share it, so it is checked once (P3). */
static bool attributes_dict_is_allowed(const berth_value *attributes, char *problem,
                                       size_t problem_nbytes)
{
    if (attributes && attributes->flags & BTH_NODE_ATTRIBUTES)
        return true;
    for (size_t i = 0; i < berth_value_count(attributes); i++) {
        const berth_value *key = bth_value_key(attributes, i);
        size_t nbytes = 0;
        const char *name = berth_as_text(key, &nbytes);
        if (bth_node_kind(key) != BERTH_KIND_STR)
            (void)snprintf(problem, problem_nbytes, "an attribute whose name is %s, not a str",
                           bth_kind_phrase(bth_node_kind(key)));
        else if (attribute_is_of_tensor(name, nbytes))
            (void)snprintf(problem, problem_nbytes,
                           "the attribute %.80s, which is the tensor's own: PyTorch would set that",
                           name);
        else
            continue;
        return false;
    }
    return true;
}

bool bth_state_attributes_are_allowed(const berth_value *state, char *problem, size_t nbytes)
{
    if (bth_node_kind(state) != BERTH_KIND_TUPLE)
        return attributes_dict_is_allowed(state, problem, nbytes);
    return attributes_dict_is_allowed(bth_value_item(state, 0), problem, nbytes) &&
           attributes_dict_is_allowed(bth_value_item(state, 1), problem, nbytes);
}
