/* SPDX-License-Identifier: BSD-3-Clause */
/* A DCP directory as a set: the value that dcp_to_torch_save would save. */
#include <stdlib.h>
#include <string.h>

#include "tools/common/array.h"
#include "tools/common/report.h"
#include "tools/common/select.h"
#include "tools/common/set.h"
#include "tools/dcp/dcp.h"

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

/* What a set is made of. */
typedef struct making {
    file_set *set;
    const dcp *dcp;
    selection *selected;
} making;

/* The value of an item of the outline. Containers are empty at first. */
static int make_item(const making *m, const char *name, const json_t *item, berth_value **value)
{
    file_set *s = m->set;

    if (json_is_object(item))
        *value = berth_make_dict(set_tree(s), BERTH_KIND_DICT);
    else if (json_is_array(item))
        *value = berth_make_list(set_tree(s));
    else if (json_is_null(item))
        *value = berth_make_none(set_tree(s));
    else {
        dcp_entry *entry = &m->dcp->entries[json_integer_value(item)];
        if (!entry->is_bytes)
            return set_add_tensor(s, entry, value);
        if (selection_needs(m->selected, name))
            return set_add_bytes(s, entry, value);
        *value = berth_make_none(set_tree(s));
    }
    return 0;
}

/* A container of the outline, and the value that becomes it. */
typedef struct filling {
    const json_t *from;
    berth_value *to;
    char *name; /* with a dot behind it, unless it is the root */
} filling;

typedef struct filling_queue {
    const making *making;
    filling *items;
    size_t n, capacity;
    size_t long_nbytes;
} filling_queue;

/* Takes the name. */
static int queue_add(filling_queue *queue, const json_t *from, berth_value *to, char *name)
{
    if (!array_reserve(&queue->items, queue->n, &queue->capacity, sizeof *queue->items)) {
        free(name);
        return EXIT_TROUBLE;
    }
    queue->items[queue->n++] = (filling){from, to, name};
    return 0;
}

/* `key` NULL: appends to a list. A failure of the tree is found when the set is opened. */
static int fill_item(filling_queue *queue, filling f, const char *key, size_t i, const json_t *item)
{
    bool is_container = json_is_object(item) || json_is_array(item);
    berth_value *value = NULL;
    char *name = NULL;

    int nbytes = key ? asprintf(&name, "%s%s%s", f.name, key, is_container ? "." : "")
                     : asprintf(&name, "%s%zu%s", f.name, i, is_container ? "." : "");
    if (nbytes < 0)
        return print_trouble("out of memory");
    int code = check_total_of_long_names(&queue->long_nbytes, (size_t)nbytes);
    if (!code)
        code = make_item(queue->making, name, item, &value);
    if (!code)
        (void)(key ? berth_dict_set(f.to, key, value) : berth_list_append(f.to, value));
    if (!code && is_container)
        return queue_add(queue, item, value, name);
    free(name);
    return code;
}

static int fill_container(filling_queue *queue, filling f)
{
    int code = 0;

    if (json_is_array(f.from))
        for (size_t i = 0; i < json_array_size(f.from) && !code; i++)
            code = fill_item(queue, f, NULL, i, json_array_get(f.from, i));
    else
        for (void *at = json_object_iter((json_t *)(uintptr_t)f.from); at && !code;
             at = json_object_iter_next((json_t *)(uintptr_t)f.from, at))
            code = fill_item(queue, f, json_object_iter_key(at), 0, json_object_iter_value(at));
    return code;
}

static int set_fill(const making *m)
{
    berth_value *root = berth_make_dict(set_tree(m->set), BERTH_KIND_DICT);
    filling_queue queue = {.making = m};
    char *name = strdup("");
    int code =
        name ? queue_add(&queue, m->dcp->outline, root, name) : print_trouble("out of memory");

    set_root(m->set, root);
    for (size_t i = 0; i < queue.n && !code; i++)
        code = fill_container(&queue, queue.items[i]);
    for (size_t i = 0; i < queue.n; i++)
        free(queue.items[i].name);
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

int dcp_set_make(const char *path, selection *selected, file_set **made)
{
    file_set *s = *made = set_new(path);
    dcp *d = NULL;
    int code = s ? dcp_read(path, NULL, &d) : EXIT_TROUBLE;

    if (s)
        set_own(s, d, dcp_free);
    if (!code) {
        set_tell_dcp_facts(s, d);
        code = set_fill(&(making){s, d, selected});
    }
    return code;
}
