/* SPDX-License-Identifier: BSD-3-Clause */
/* A DCP directory as a set: the value that dcp_to_torch_save would save. */
#include <stdlib.h>

#include "tools/dcp.h"

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
        *value = berth_make_dict(set_tree(s), BERTH_KIND_DICT);
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
    if (!array_reserve(&queue->items, queue->n, &queue->capacity, sizeof *queue->items))
        return EXIT_TROUBLE;
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
    berth_value *root = berth_make_dict(set_tree(s), BERTH_KIND_DICT);
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
    if (!code) {
        set_tell_dcp_facts(s, d);
        code = set_fill(s, d, d->outline);
    }
    return code;
}
