/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A dict of tensors as files of a size and their index, as save_pretrained of transformers writes
 * them. Tensors that share a storage stay together. The index comes last (D5).
 * Source: huggingface_hub/serialization/_base.py, split_state_dict_into_shards_factory.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/commands/convert.h"
#include "tools/common/inputs.h"
#include "tools/common/outputs.h"
#include "tools/common/progress.h"
#include "tools/common/report.h"

#define SAFETENSORS_INDEX ".safetensors.index.json"
#define BIN_INDEX ".bin.index.json"

int shards_choose_format(const char *index, bool *to_safetensors)
{
    *to_safetensors = has_extension(index, SAFETENSORS_INDEX);
    if (*to_safetensors || has_extension(index, BIN_INDEX))
        return 0;
    return print_trouble("%s: the name of an index must end in " SAFETENSORS_INDEX " or " BIN_INDEX
                         ": it sets the format of its files",
                         index);
}

/* ---- what goes to which file ---- */

typedef struct shard_item {
    const char *name;
    berth_value *value; /* in the tree of the files */
    const berth_tensor *tensor;
    size_t order;    /* in the dict */
    size_t first;    /* of those that share its storage */
    uint64_t nbytes; /* of all of these, if it is the first */
    size_t shard;    /* from 1 */
    bool is_tie;     /* another name of the tensor of an item */
} shard_item;

typedef struct writing {
    const shards_to_write *in;
    berth_tree *tree;
    shard_item *items; /* in the dict's order */
    size_t n, n_left_out;
    size_t n_shards;
    uint64_t total_nbytes; /* of all tensors, as written */
    berth_stats stats;     /* summed */
    uint64_t done_nbytes;  /* of the files that are written */
    progress bar;
} writing;

/* name: NULL: its key is no text. */
static int writing_fail_item(const writing *w, const char *name)
{
    const char *quote = name ? "\"" : "";

    return print_trouble(
        "%s: %s%.200s%s is no tensor: the files of an index hold a dict of tensors; "
        "--root chooses one, --tensors-only leaves other values out",
        w->in->index, quote, name ? name : "a value", quote);
}

/* A name that JSON can say, whole. */
static bool is_name_of_index(const char *name, size_t nbytes)
{
    json_t *text = name && strlen(name) == nbytes ? json_string(name) : NULL;

    json_decref(text);
    return text != NULL;
}

static int writing_add_item(writing *w, const berth_value *key, berth_value *value)
{
    size_t nbytes = 0;
    const berth_value *inner = value;
    const char *name = berth_value_kind(key) == BERTH_KIND_STR ? berth_as_text(key, &nbytes) : NULL;

    while (berth_value_kind(inner) == BERTH_KIND_PARAMETER ||
           berth_value_kind(inner) == BERTH_KIND_SUBCLASS)
        inner = berth_value_part(inner, BERTH_PART_INNER);
    const berth_tensor *tensor = berth_as_tensor(inner);
    if (tensor && !is_name_of_index(name, nbytes))
        return print_trouble("%s: a tensor's key is no text that JSON can hold", w->in->index);
    if (tensor && tensor->storage) {
        w->items[w->n] =
            (shard_item){.name = name, .value = value, .tensor = tensor, .order = w->n};
        w->n++;
        return 0;
    }
    w->n_left_out++;
    return w->in->tensors_only ? 0 : writing_fail_item(w, name);
}

/* Copies all values in one call, which keeps what they share. */
static int writing_list_items(writing *w)
{
    berth_error error;
    berth_value *key, *value, *copy = NULL;
    int code = 0;

    w->tree = berth_tree_new(&error);
    if (w->tree)
        copy = berth_value_copy(w->tree, w->in->value, w->in->compact ? BERTH_COPY_COMPACT : 0);
    if (!copy)
        return fail(&error);
    w->items = calloc(berth_value_count(copy) + 1, sizeof *w->items);
    if (!w->items)
        return print_trouble("out of memory");
    if (!berth_dict_at(copy, 0, NULL, NULL))
        return print_trouble("%s: the value is no dict of tensors; --root chooses one",
                             w->in->index);
    for (size_t i = 0; !code && berth_dict_at(copy, i, &key, &value); i++)
        code = writing_add_item(w, key, value);
    if (!code && w->n == 0)
        code = print_trouble("%s: there are no tensors", w->in->index);
    return code;
}

/* Order of what tensors view; 0: they are one, as berth_of_safetensors takes it. */
static int compare_views(const berth_tensor *a, const berth_tensor *b)
{
    if (a->storage != b->storage)
        return a->storage > b->storage ? 1 : -1;
    if (a->storage_offset != b->storage_offset)
        return a->storage_offset > b->storage_offset ? 1 : -1;
    if (a->dtype != b->dtype || a->rank != b->rank)
        return a->dtype == b->dtype ? a->rank - b->rank : (int)a->dtype - (int)b->dtype;
    uint32_t bits = BERTH_CONJ | BERTH_NEG;
    if ((a->flags & bits) != (b->flags & bits))
        return (a->flags & bits) > (b->flags & bits) ? 1 : -1;
    int order = memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape);
    return order ? order : memcmp(a->stride, b->stride, (size_t)a->rank * sizeof *a->stride);
}

static int compare_items(const void *left, const void *right)
{
    const shard_item *a = *(const shard_item *const *)left, *b = *(const shard_item *const *)right;
    int order = compare_views(a->tensor, b->tensor);

    return order ? order : strcmp(a->name, b->name);
}

/*
 * Sets for n items of one storage, sorted, where the first of them is; returns the bytes that they
 * take in their file. Of tied tensors a safetensors file holds the first by name; an empty one is
 * tied to none, and "format" is a text that means something else.
 */
static uint64_t group_measure(const writing *w, shard_item *const *group, size_t n)
{
    size_t first = group[0]->order;
    uint64_t nbytes = 0;

    for (size_t i = 0; i < n; i++) {
        group[i]->is_tie = i > 0 && !w->in->copy_ties && berth_tensor_numel(group[i]->tensor) > 0 &&
                           strcmp(group[i]->name, "format") != 0 &&
                           compare_views(group[i]->tensor, group[i - 1]->tensor) == 0;
        nbytes += group[i]->is_tie ? 0 : berth_tensor_nbytes(group[i]->tensor);
        first = group[i]->order < first ? group[i]->order : first;
    }
    for (size_t i = 0; i < n; i++)
        group[i]->first = first;
    return w->in->to_safetensors ? nbytes
                                 : berth_storage_get_info(group[0]->tensor->storage)->nbytes;
}

/* Finds the tensors that share a storage, and sets their sizes at the first of them. */
static int writing_group(writing *w)
{
    shard_item **sorted = calloc(w->n, sizeof *sorted);

    if (!sorted)
        return print_trouble("out of memory");
    for (size_t i = 0; i < w->n; i++)
        sorted[i] = &w->items[i];
    qsort(sorted, w->n, sizeof *sorted, compare_items);
    for (size_t i = 0, n; i < w->n; i += n) {
        for (n = 1; i + n < w->n && sorted[i + n]->tensor->storage == sorted[i]->tensor->storage;)
            n++;
        uint64_t nbytes = group_measure(w, sorted + i, n);
        w->items[sorted[i]->first].nbytes = nbytes;
    }
    free(sorted);
    return 0;
}

/* The items from `from` on, before `end`, that are not in a file yet, go to the next one. */
static void writing_close_shard(writing *w, size_t from, size_t end)
{
    w->n_shards++;
    for (size_t i = from; i < end; i++)
        if (w->items[i].shard == 0 && w->items[i].first == i)
            w->items[i].shard = w->n_shards;
}

/*
 * As huggingface_hub does: a tensor that is too large alone has a file of its own at once, before
 * that of the smaller ones that are being collected.
 */
static void writing_choose_shards(writing *w)
{
    uint64_t max = w->in->max_nbytes ? w->in->max_nbytes : 5000000000, filled = 0;
    size_t from = 0;
    bool is_empty = true;

    for (size_t i = 0; i < w->n; i++) {
        shard_item *item = &w->items[i];
        if (item->first != i)
            continue;
        w->total_nbytes += item->nbytes;
        if (item->nbytes > max) {
            item->shard = ++w->n_shards;
            continue;
        }
        if (!is_empty && filled + item->nbytes > max) {
            writing_close_shard(w, from, i);
            from = i;
            filled = 0;
        }
        filled += item->nbytes;
        is_empty = false;
    }
    if (!is_empty)
        writing_close_shard(w, from, w->n);
    for (size_t i = 0; i < w->n; i++)
        w->items[i].shard = w->items[w->items[i].first].shard;
}

/* ---- files ---- */

/* The path of a file, "model-00001-of-00002.bin", allocated. NULL: no memory. */
static char *shard_file_path(const writing *w, size_t shard)
{
    const char *index = w->in->index;
    const char *suffix = w->in->to_safetensors ? SAFETENSORS_INDEX : BIN_INDEX;
    char *path;

    return asprintf(&path, "%.*s-%05zu-of-%05zu%s", (int)(strlen(index) - strlen(suffix)), index,
                    shard, w->n_shards, w->in->to_safetensors ? ".safetensors" : ".bin") < 0
               ? NULL
               : path;
}

static int writing_report_progress(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    writing *w = context;

    (void)total_nbytes;
    return progress_report(&w->bar, w->done_nbytes + done_nbytes, w->total_nbytes);
}

static void writing_add_stats(writing *w, const berth_stats *stats)
{
    w->done_nbytes += stats->requested_nbytes;
    w->stats.plan_seconds += stats->plan_seconds;
    w->stats.transfer_seconds += stats->transfer_seconds;
    w->stats.sync_seconds += stats->sync_seconds;
    w->stats.total_seconds += stats->total_seconds;
    w->stats.requested_nbytes += stats->requested_nbytes;
    w->stats.n_records += stats->n_records;
    w->stats.n_storages += stats->n_storages;
}

static int writing_save(writing *w, const char *path, const berth_value *dict)
{
    uint32_t flags = w->in->copy_ties ? BERTH_COPY_TIES : 0;
    const berth_content content = w->in->to_safetensors
                                      ? berth_of_safetensors(dict, w->in->metadata, flags)
                                      : berth_of_value(dict);
    const berth_target target = berth_to_path(path);
    berth_stats stats = {0};
    const berth_params params = {
        .progress = writing_report_progress, .progress_context = w, .stats = &stats};
    berth_error error;
    int status = berth_save_to(&target, &content, &params, &error);

    writing_add_stats(w, &stats);
    return status < 0 ? fail(&error) : 0;
}

static int writing_save_shard(writing *w, size_t shard, const berth_value *dict)
{
    char *path = shard_file_path(w, shard);
    int code = path ? check_in_place_output_is_not_read(path) : print_trouble("out of memory");

    if (!code)
        code = writing_save(w, path, dict);

    if (code && shard > 1)
        (void)print_trouble("%s: %zu of %zu files were written, and no index", w->in->index,
                            shard - 1, w->n_shards);
    free(path);
    return code;
}

static int writing_save_shards(writing *w)
{
    berth_value **dicts = calloc(w->n_shards, sizeof *dicts);
    int code = 0;

    if (!dicts)
        return print_trouble("out of memory");
    for (size_t i = 0; i < w->n_shards; i++)
        dicts[i] = berth_make_dict(w->tree, BERTH_KIND_DICT);
    for (size_t i = 0; i < w->n; i++) /* the tree remembers a failure */
        (void)berth_dict_set(dicts[w->items[i].shard - 1], w->items[i].name, w->items[i].value);
    for (size_t i = 0; i < w->n_shards && !code; i++)
        code = writing_save_shard(w, i + 1, dicts[i]);
    free(dicts);
    return code;
}

/* ---- the index ---- */

/* The text of the index, which the caller frees. NULL: no memory. */
static char *writing_index_text(const writing *w)
{
    json_t *map = json_object();
    char *text = NULL;
    bool is_whole = map != NULL;

    for (size_t i = 0; i < w->n && is_whole; i++) {
        if (w->items[i].is_tie && w->in->to_safetensors)
            continue;
        char *path = shard_file_path(w, w->items[i].shard);
        const char *slash = path ? strrchr(path, '/') : NULL;
        is_whole = path && json_object_set_new_nocheck(map, w->items[i].name,
                                                       text_json(slash ? slash + 1 : path)) == 0;
        free(path);
    }
    if (!is_whole) {
        json_decref(map);
        return NULL;
    }
    json_t *index = json_pack("{s:{s:I},s:o}", "metadata", "total_size",
                              (json_int_t)w->total_nbytes, "weight_map", map);
    char *dumped = json_dumps(index, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_ENSURE_ASCII);
    if (dumped && asprintf(&text, "%s\n", dumped) < 0)
        text = NULL;
    free(dumped);
    json_decref(index);
    return text;
}

static int writing_write_index(const writing *w)
{
    char *text = writing_index_text(w);

    if (!text)
        return print_trouble("out of memory");
    int code = save_bytes(w->in->index, text, strlen(text));
    free(text);
    return code;
}

int shards_write(const shards_to_write *shards)
{
    writing w = {.in = shards};
    berth_stats unused = {0};
    berth_params params;

    progress_begin(&w.bar, "convert", shards->options, &params, &unused);
    int code = writing_list_items(&w);
    if (!code)
        code = writing_group(&w);
    if (!code) {
        writing_choose_shards(&w);
        code = writing_save_shards(&w);
    }
    if (!code)
        code = writing_write_index(&w);
    progress_finish(&w.bar);
    if (!code && w.n_left_out && !shards->options->quiet)
        (void)print_trouble("%s: left out %zu values that are no tensors", shards->index,
                            w.n_left_out);
    berth_tree_free(w.tree);
    free(w.items);
    return print_stats_if_requested(shards->options, &w.stats, code);
}
