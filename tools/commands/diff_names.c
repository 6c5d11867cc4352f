/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>

#include "tools/commands/diff.h"
#include "tools/common/report.h"

bool value_is_flat(const berth_value *value)
{
    berth_value *key, *item;
    size_t n = 0, i = 0;

    for (; berth_dict_at(value, i, &key, &item); i++) {
        const char *text = berth_as_text(key, &n);
        if (!text || strlen(text) != n || !berth_as_tensor(item))
            return false;
    }
    return i > 0;
}

static int compare_named(const void *left, const void *right)
{
    const named_value *a = left, *b = right;

    return strcmp(a->name, b->name);
}

static int name_list_add(name_list *list, const char *name, const berth_value *value)
{
    named_value *added = &list->items[list->n];

    *added = (named_value){strdup(name), value, list->n};
    if (!added->name)
        return print_trouble("out of memory");
    list->n++;
    return 0;
}

/* Whether it is a part of a sparse or nested tensor: "['a'].indices". */
static bool path_is_of_part(const char *path)
{
    size_t n = strlen(path);

    return n > 0 && path[n - 1] != ']';
}

/* Names as `berth convert` writes them; keys of a flat dict are names as they are. */
static int name_list_make(name_list *list, berth_checkpoint *checkpoint)
{
    const berth_value *root = berth_root(checkpoint);
    bool is_flat = value_is_flat(root);
    size_t n = is_flat ? berth_value_count(root) : berth_tensor_count(checkpoint), long_nbytes = 0;
    berth_named_tensor found;
    berth_error error;
    int code = 0;

    list->items = calloc(n + 1, sizeof *list->items);
    if (!list->items)
        return print_trouble("out of memory");
    for (size_t i = 0; i < n && !code; i++) {
        berth_value *key, *item;
        if (is_flat && berth_dict_at(root, i, &key, &item))
            code = name_list_add(list, berth_as_text(key, NULL), item);
        else if (berth_tensor_at(checkpoint, i, &found, &error) < 0)
            code = fail(&error);
        else if (!path_is_of_part(found.path) &&
                 !(code = check_total_of_long_names(&long_nbytes, strlen(found.name))))
            code = name_list_add(list, found.name, found.value);
    }
    qsort(list->items, list->n, sizeof *list->items, compare_named);
    return code;
}

/* The first nbytes of the prefix. */
static const berth_value *name_list_find_behind(const name_list *list, const char *prefix,
                                                size_t nbytes, const char *name)
{
    size_t low = 0, high = list->n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const char *here = list->items[middle].name;
        int order = strncmp(here, prefix, nbytes);
        if (order == 0)
            order = strcmp(here + nbytes, name);
        if (order == 0)
            return list->items[middle].value;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static const berth_value *name_list_find(const name_list *list, const char *prefix,
                                         const char *name)
{
    return name_list_find_behind(list, prefix, strlen(prefix), name);
}

static bool name_list_has_all_behind(const name_list *list, const char *prefix, size_t nbytes,
                                     const name_list *others)
{
    size_t i = 0;

    while (i < others->n && name_list_find_behind(list, prefix, nbytes, others->items[i].name))
        i++;
    return i == others->n;
}

/* The first prefix that `longer` has before all names of the other; allocated. NULL: none, or no
 * memory. */
static char *name_list_find_prefix(const name_list *longer, const name_list *shorter)
{
    enum { MAX_TRIED = 16 }; /* P3 */
    const char *first = shorter->n > 0 ? shorter->items[0].name : "";
    const named_value *found = NULL;
    size_t n_first = strlen(first), n_tried = 0;

    for (size_t i = 0; n_first > 0 && i < longer->n && n_tried < MAX_TRIED; i++) {
        const char *name = longer->items[i].name;
        size_t n = strlen(name);
        if (n < n_first + 2 || name[n - n_first - 1] != '.' ||
            strcmp(name + n - n_first, first) != 0)
            continue;
        n_tried++;
        if ((!found || longer->items[i].at < found->at) &&
            name_list_has_all_behind(longer, name, n - n_first, shorter))
            found = &longer->items[i];
    }
    return found ? strndup(found->name, strlen(found->name) - n_first) : NULL;
}

/* *n_common: how many of the flat one's names the other has. Whether some are not keys of its root.
 */
static bool other_has_some_deeper(const name_list *flat, const name_list *other,
                                  const berth_value *other_root, size_t *n_common)
{
    size_t n_keys = 0;

    *n_common = 0;
    for (size_t i = 0; i < flat->n; i++) {
        *n_common += name_list_find(other, "", flat->items[i].name) != NULL;
        n_keys += berth_as_tensor(berth_dict_get(other_root, flat->items[i].name)) != NULL;
    }
    return *n_common > n_keys;
}

static int name_pairs_fill(name_pairs *made)
{
    const int longer = made->longer;
    const name_list *long_ones = &made->lists[longer], *short_ones = &made->lists[1 - longer];
    size_t n_prefix = strlen(made->prefix);

    made->pairs = calloc(long_ones->n + short_ones->n + 1, sizeof *made->pairs);
    if (!made->pairs)
        return print_trouble("out of memory");
    for (size_t i = 0; i < short_ones->n; i++) {
        const named_value *each = &short_ones->items[i];
        const berth_value *other = name_list_find(long_ones, made->prefix, each->name);
        made->pairs[made->n++] = (named_pair){each->name, longer == 0 ? other : each->value,
                                              longer == 0 ? each->value : other};
    }
    for (size_t i = 0; i < long_ones->n; i++) {
        const named_value *each = &long_ones->items[i];
        if (strncmp(each->name, made->prefix, n_prefix) != 0 ||
            !name_list_find(short_ones, "", each->name + n_prefix))
            made->pairs[made->n++] = (named_pair){each->name, longer == 0 ? each->value : NULL,
                                                  longer == 0 ? NULL : each->value};
    }
    return 0;
}

int name_pairs_make(name_pairs *made, berth_checkpoint *const checkpoints[2], int flat)
{
    const name_list *of_flat = &made->lists[flat], *of_other = &made->lists[1 - flat];
    size_t n_common = 0;

    *made = (name_pairs){.longer = 1 - flat};
    int code = name_list_make(&made->lists[0], checkpoints[0]);
    if (!code)
        code = name_list_make(&made->lists[1], checkpoints[1]);
    if (code)
        return code;
    if (other_has_some_deeper(of_flat, of_other, berth_root(checkpoints[1 - flat]), &n_common)) {
        made->prefix = strdup("");
        code = made->prefix ? 0 : print_trouble("out of memory");
    } else if (n_common == 0) {
        made->prefix = name_list_find_prefix(of_other, of_flat);
        if (!made->prefix && (made->prefix = name_list_find_prefix(of_flat, of_other)))
            made->longer = flat;
    }
    return !code && made->prefix ? name_pairs_fill(made) : code;
}

void name_pairs_free(name_pairs *made)
{
    for (int i = 0; i < 2; i++) {
        for (size_t k = 0; k < made->lists[i].n; k++)
            free(made->lists[i].items[k].name);
        free(made->lists[i].items);
    }
    free(made->pairs);
    free(made->prefix);
}
