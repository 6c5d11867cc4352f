/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A DCP directory as a set: the value that dcp_to_torch_save would save. planner_data has the path
 * of each name in it: texts are keys of dicts, numbers are positions in lists.
 * Source: torch/distributed/checkpoint/_nested_dict.py, format_utils.py.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/dcp.h"

enum { MAX_DEPTH = 100 };

/* ---- the value's structure, as JSON: objects, lists, and the number of an entry ---- */

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
        return dcp_refuse(o->d, "\"%.200s\" is item %zu of a list that has no others", name, index);
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

/* ---- values ---- */

/* Values without storages own all that they need: their piece is closed. */
static int set_add_bytes(file_set *s, dcp_entry *entry, berth_value **value)
{
    berth_checkpoint *checkpoint;
    berth_error error;

    if (dcp_piece_open(&entry->piece, &checkpoint, &error) < 0)
        return fail(&error);
    *value = berth_value_copy(set_tree(s), berth_root(checkpoint), 0);
    if (!*value || !berth_storage_next(checkpoint, NULL)) {
        berth_close(checkpoint);
        return 0;
    }
    int code = set_add_checkpoint(s, checkpoint);
    return code ? code : set_add_copied(s, *value, berth_root(checkpoint), checkpoint);
}

static int set_add_tensor(file_set *s, dcp_entry *entry, berth_value **value)
{
    const berth_tensor tensor = {
        .dtype = entry->dtype, .rank = entry->rank, .shape = entry->shape, .data = BERTH_ELSEWHERE};

    *value = berth_make_tensor(set_tree(s), &tensor);
    const berth_tensor *made = berth_as_tensor(*value);
    return made ? set_add_storage(s, made->storage, dcp_entry_read, entry) : 0;
}

/* The value of an item of the outline. Containers are empty at first. */
static int make_item(file_set *s, const dcp *d, const json_t *item, berth_value **value)
{
    if (json_is_object(item))
        *value = berth_make_dict(set_tree(s));
    else if (json_is_array(item))
        *value = berth_make_list(set_tree(s));
    else if (json_is_null(item))
        *value = berth_make_none(set_tree(s));
    else {
        dcp_entry *entry = &d->entries[json_integer_value(item)];
        return entry->is_bytes ? set_add_bytes(s, entry, value) : set_add_tensor(s, entry, value);
    }
    return 0;
}

/* A container of the outline, and the value that becomes it. */
typedef struct filling {
    const json_t *from;
    berth_value *to;
} filling;

typedef struct filling_queue {
    filling *items;
    size_t n, capacity;
} filling_queue;

static int queue_add(filling_queue *queue, const json_t *from, berth_value *to)
{
    if (queue->n == queue->capacity) {
        size_t capacity = queue->capacity * 2 + 16;
        filling *grown = realloc(queue->items, capacity * sizeof *grown);
        if (!grown)
            return print_trouble("out of memory");
        queue->items = grown;
        queue->capacity = capacity;
    }
    queue->items[queue->n++] = (filling){from, to};
    return 0;
}

/* `key` NULL: appends to a list. A failure of the tree is found when the set is opened. */
static int fill_item(file_set *s, const dcp *d, filling_queue *queue, berth_value *into,
                     const char *key, const json_t *item)
{
    berth_value *value = NULL;
    int code = make_item(s, d, item, &value);

    if (code)
        return code;
    (void)(key ? berth_dict_set(into, key, value) : berth_list_append(into, value));
    return json_is_object(item) || json_is_array(item) ? queue_add(queue, item, value) : 0;
}

static int fill_container(file_set *s, const dcp *d, filling_queue *queue, filling f)
{
    int code = 0;

    if (json_is_array(f.from))
        for (size_t i = 0; i < json_array_size(f.from) && !code; i++)
            code = fill_item(s, d, queue, f.to, NULL, json_array_get(f.from, i));
    else
        for (void *at = json_object_iter((json_t *)(uintptr_t)f.from); at && !code;
             at = json_object_iter_next((json_t *)(uintptr_t)f.from, at))
            code =
                fill_item(s, d, queue, f.to, json_object_iter_key(at), json_object_iter_value(at));
    return code;
}

static int set_fill(file_set *s, const dcp *d, const json_t *outline_root)
{
    berth_value *root = berth_make_dict(set_tree(s));
    filling_queue queue = {0};
    int code = queue_add(&queue, outline_root, root);

    set_root(s, root);
    for (size_t i = 0; i < queue.n && !code; i++)
        code = fill_container(s, d, &queue, queue.items[i]);
    free(queue.items);
    return code;
}

static void set_tell_dcp_facts(file_set *s, const dcp *d)
{
    set_facts facts = {.container = "DCP directory", .n_files = json_object_size(d->files) + 1};
    const char *name;
    json_t *nbytes;

    for (size_t i = 0; i < d->n_entries; i++)
        facts.n_pieces += d->entries[i].is_bytes + d->entries[i].n_chunks;
    json_object_foreach(d->files, name, nbytes)
    {
        facts.nbytes += (uint64_t)json_integer_value(nbytes);
    }
    set_tell_facts(s, &facts);
}

int dcp_set_make(const char *path, file_set **made)
{
    file_set *s = *made = set_new(path);
    dcp *d = NULL;
    int code = s ? dcp_read(path, &d) : EXIT_TROUBLE;

    if (s)
        set_own(s, d, dcp_free);
    outline o = {.d = d, .root = json_object()};
    if (!code)
        o.n_items_left = 4 * d->n_entries + 65536;
    for (size_t i = 0; !code && i < d->n_entries; i++)
        code = outline_add(&o, i);
    if (!code) {
        set_tell_dcp_facts(s, d);
        code = set_fill(s, d, o.root);
    }
    json_decref(o.root);
    return code;
}
