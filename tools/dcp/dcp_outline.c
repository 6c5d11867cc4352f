/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Where the values of a DCP directory lie in the whole. planner_data has a path for each name:
 * texts are keys of dicts, numbers are positions in lists. The outline is JSON: objects, lists, and
 * numbers of entries.
 * Source: set_element of torch/distributed/checkpoint/_nested_dict.py and _traverse.py.
 */
#include <string.h>

#include "tools/common/report.h"
#include "tools/dcp/dcp.h"

enum { MAX_DEPTH = 100 };

typedef struct outline {
    const dcp *d;
    json_t *root;
    size_t n_items_left; /* of lists: a number in a path is no reason for a long list */
} outline;

/* What lies at a step of a container; NULL: nothing yet. */
static json_t *container_get(const json_t *container, const char *key, size_t index)
{
    json_t *found = key ? json_object_get(container, key) : json_array_get(container, index);

    return json_is_null(found) ? NULL : found;
}

/* Returns 0, or an exit code after printing why. */
static int outline_put(outline *o, const char *name, json_t *container, const char *key,
                       size_t index, json_t *item)
{
    int failed = 0;

    if (key)
        return json_object_set_new_nocheck(container, key, item) < 0
                   ? print_trouble("out of memory")
                   : 0;
    size_t n = json_array_size(container);
    if (index >= n && index - n >= o->n_items_left) {
        json_decref(item);
        return dcp_refuse(o->d, "\"%.200s\" is item %zu of a list, far behind its others", name,
                          index);
    }
    for (; n <= index && !failed; n++, o->n_items_left--)
        failed = json_array_append_new(container, json_null());
    if (json_array_set_new(container, index, item) < 0 || failed)
        return print_trouble("out of memory");
    return 0;
}

/* One step of a path: a text, or a number that is not negative. */
static bool read_step(const berth_value *step, const char **key, size_t *index)
{
    size_t nbytes = 0;
    int64_t number = 0;

    *key = berth_value_kind(step) == BERTH_KIND_STR ? berth_as_text(step, &nbytes) : NULL;
    if (*key)
        return strlen(*key) == nbytes;
    if (!berth_as_int(step, &number) || number < 0)
        return false;
    *index = (size_t)number;
    return true;
}

static int outline_refuse_path(const outline *o, const char *name)
{
    return dcp_refuse(o->d, "the path of \"%.200s\" in planner_data does not fit the others", name);
}

/* Goes down one step, where a dict or a list must be. */
static int outline_descend(outline *o, const char *name, json_t **at, const berth_value *step,
                           const berth_value *next)
{
    const char *key;
    size_t index = 0;

    if (!read_step(step, &key, &index) || (key ? !json_is_object(*at) : !json_is_array(*at)))
        return outline_refuse_path(o, name);
    json_t *found = container_get(*at, key, index);
    if (!found) {
        found = berth_value_kind(next) == BERTH_KIND_STR ? json_object() : json_array();
        int code = outline_put(o, name, *at, key, index, found);
        if (code)
            return code;
    }
    *at = found;
    return 0;
}

static int outline_add_at_path(outline *o, size_t i, const berth_value *path)
{
    const char *name = o->d->entries[i].name, *key = NULL;
    size_t n = berth_value_count(path), index = 0;
    json_t *at = o->root;
    int code = 0;

    if (n == 0 || n > MAX_DEPTH)
        return outline_refuse_path(o, name);
    for (size_t k = 0; k + 1 < n && !code; k++)
        code = outline_descend(o, name, &at, berth_value_at(path, k), berth_value_at(path, k + 1));
    if (code)
        return code;
    if (!read_step(berth_value_at(path, n - 1), &key, &index) ||
        (key ? !json_is_object(at) : !json_is_array(at)) || container_get(at, key, index))
        return outline_refuse_path(o, name);
    return outline_put(o, name, at, key, index, json_integer((json_int_t)i));
}

static int outline_add(outline *o, size_t i)
{
    const char *name = o->d->entries[i].name;
    const berth_value *path = berth_dict_get(o->d->planner, name);

    if (berth_value_kind(path) == BERTH_KIND_TUPLE || berth_value_kind(path) == BERTH_KIND_LIST)
        return outline_add_at_path(o, i, path);
    if (container_get(o->root, name, 0))
        return outline_refuse_path(o, name);
    return outline_put(o, name, o->root, name, 0, json_integer((json_int_t)i));
}

int dcp_make_outline(dcp *d)
{
    outline o = {.d = d, .root = json_object(), .n_items_left = 4 * d->n_entries + 65536};
    int code = o.root ? 0 : print_trouble("out of memory");

    d->outline = o.root;
    for (size_t i = 0; !code && i < d->n_entries; i++)
        code = outline_add(&o, i);
    return code;
}
