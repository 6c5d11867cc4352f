/* SPDX-License-Identifier: BSD-3-Clause */
/* Sets: a planned file, whose storages are read from where their bytes lie. */
#include <berth/config.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/array.h"
#include "tools/common/options.h"
#include "tools/common/report.h"
#include "tools/common/set.h"

/* Where the bytes of one storage are. */
typedef struct place {
    const berth_storage *storage; /* of the set's tree */
    set_read_function read;       /* or NULL, then: */
    void *context;
    berth_checkpoint *checkpoint; /* it has them, as `original` */
    const berth_storage *original;
} place;

/* A storage in the planned file. */
typedef struct extent {
    uint64_t offset, nbytes;
    place from;
} extent;

struct file_set {
    const char *path;
    set_facts facts;
    berth_tree *tree;
    berth_value *root;
    void *owned;
    void (*free_owned)(void *);
    place *places; /* of the tree's own storages; by address once it is opened */
    size_t n_places, places_capacity;
    berth_checkpoint **checkpoints;
    size_t n_checkpoints, checkpoints_capacity;
    berth_plan *plan;
    extent *extents; /* in the file's order */
    size_t n_extents;
};

/* ---- the first error ---- */

static pthread_mutex_t first_error_lock = PTHREAD_MUTEX_INITIALIZER;
static berth_error first_error;

static void set_first_error(const berth_error *error)
{
    (void)pthread_mutex_lock(&first_error_lock);
    if (first_error.code == BERTH_OK || error->code == BERTH_OK)
        first_error = *error;
    (void)pthread_mutex_unlock(&first_error_lock);
}

bool set_read_error(berth_error *error)
{
    (void)pthread_mutex_lock(&first_error_lock);
    *error = first_error;
    (void)pthread_mutex_unlock(&first_error_lock);
    return error->code != BERTH_OK;
}

/* ---- making ---- */

typedef struct storage_list {
    const berth_storage **storages;
    size_t n, capacity;
} storage_list;

static int list_storage(void *context, const berth_walk *walk, const berth_value *value)
{
    storage_list *list = context;
    const berth_tensor *tensor = berth_as_tensor(value);
    const berth_storage *storage = tensor ? tensor->storage : berth_as_storage(value);

    (void)walk;
    if (!storage)
        return 0;
    if (!array_reserve(&list->storages, list->n, &list->capacity, sizeof *list->storages))
        return EXIT_TROUBLE;
    list->storages[list->n++] = storage;
    return 0;
}

/* The storages of a value in the order of the walk, as often as they are met. */
static int list_storages(const berth_value *value, storage_list *list)
{
    const berth_walker walker = {.enter = list_storage, .context = list};

    *list = (storage_list){0};
    int code = berth_value_walk(value, &walker, NULL);
    return code < 0 ? print_trouble("out of memory") : code;
}

file_set *set_new(const char *path)
{
    file_set *s = calloc(1, sizeof *s);
    berth_error error;

    if (!s) {
        (void)print_trouble("out of memory");
        return NULL;
    }
    s->path = path;
    s->tree = berth_tree_new(&error);
    if (s->tree)
        return s;
    (void)fail(&error);
    free(s);
    return NULL;
}

void set_own(file_set *s, void *owned, void (*free_owned)(void *owned))
{
    s->owned = owned;
    s->free_owned = free_owned;
}

void set_free(file_set *s)
{
    if (!s)
        return;
    berth_plan_free(s->plan);
    berth_tree_free(s->tree);
    for (size_t i = 0; i < s->n_checkpoints; i++)
        berth_close(s->checkpoints[i]);
    free(s->checkpoints);
    free(s->places);
    free(s->extents);
    if (s->free_owned)
        s->free_owned(s->owned);
    free(s);
    set_first_error(&(berth_error){0});
}

berth_tree *set_tree(file_set *s)
{
    return s->tree;
}

void set_tell_facts(file_set *s, const set_facts *facts)
{
    s->facts = *facts;
}

const set_facts *set_get_facts(const file_set *s)
{
    return &s->facts;
}

void set_root(file_set *s, berth_value *root)
{
    s->root = root;
}

static int set_add_place(file_set *s, const place *added)
{
    if (!array_reserve(&s->places, s->n_places, &s->places_capacity, sizeof *s->places))
        return EXIT_TROUBLE;
    s->places[s->n_places++] = *added;
    return 0;
}

int set_add_storage(file_set *s, const berth_storage *storage, set_read_function read,
                    void *context)
{
    return set_add_place(s, &(place){.storage = storage, .read = read, .context = context});
}

int set_add_checkpoint(file_set *s, berth_checkpoint *checkpoint)
{
    if (!array_reserve(&s->checkpoints, s->n_checkpoints, &s->checkpoints_capacity,
                       sizeof *s->checkpoints)) {
        berth_close(checkpoint);
        return EXIT_TROUBLE;
    }
    s->checkpoints[s->n_checkpoints++] = checkpoint;
    return 0;
}

int set_add_copied(file_set *s, const berth_value *copy, const berth_value *original,
                   berth_checkpoint *checkpoint)
{
    storage_list ours, theirs = {0};
    int code = list_storages(copy, &ours);

    if (!code)
        code = list_storages(original, &theirs);
    for (size_t i = 0; !code && i < ours.n && i < theirs.n; i++) {
        const place added = {
            .storage = ours.storages[i], .checkpoint = checkpoint, .original = theirs.storages[i]};
        /* Views of storages, which only files from before PyTorch 1.6 have, become whole in a copy.
         */
        code = berth_storage_get_info(added.storage)->nbytes !=
                       berth_storage_get_info(added.original)->nbytes
                   ? print_trouble("%s: a file of it is from before PyTorch 1.6, with views of "
                                   "storages: `berth convert` writes it anew",
                                   s->path)
                   : set_add_place(s, &added);
    }
    free(ours.storages);
    free(theirs.storages);
    return code;
}

/* ---- which storage of the planned file is which ---- */

static int compare_places(const void *left, const void *right)
{
    const place *a = left, *b = right;

    return (a->storage > b->storage) - (a->storage < b->storage);
}

/* The storages of the planned file; it names them data/0, data/1, ... in its order. */
static int set_list_extents(file_set *s, size_t n_records)
{
    berth_record record;

    s->extents = calloc(n_records + 1, sizeof *s->extents);
    if (!s->extents)
        return print_trouble("out of memory");
    for (size_t i = 0; i < n_records; i++)
        if (berth_plan_at(s->plan, i, &record) == 0 && strncmp(record.name, "data/", 5) == 0)
            s->extents[s->n_extents++] = (extent){.offset = record.offset, .nbytes = record.nbytes};
    return 0;
}

static int set_fail_unmatched(const file_set *s)
{
    return print_trouble("%s: its values and those of the planned file differ: please report this",
                         s->path);
}

/* Notes where the bytes of a storage of the planned file are. */
static int set_match_storage(file_set *s, const berth_storage *planned, const berth_storage *ours)
{
    const berth_storage_info *info = berth_storage_get_info(planned);
    size_t number = strtoul(info->key, NULL, 10);
    const place key = {.storage = ours};
    const place *found =
        s->n_places ? bsearch(&key, s->places, s->n_places, sizeof key, compare_places) : NULL;

    if (!found || number >= s->n_extents || s->extents[number].nbytes != info->nbytes)
        return set_fail_unmatched(s);
    s->extents[number].from = *found;
    return 0;
}

/* Both values are equal: the same storages are met in the same order. */
static int set_match(file_set *s, const berth_value *planned)
{
    storage_list ours, theirs = {0};
    int code = list_storages(s->root, &ours);

    if (s->n_places)
        qsort(s->places, s->n_places, sizeof *s->places, compare_places);
    if (!code)
        code = list_storages(planned, &theirs);
    if (!code && ours.n != theirs.n)
        code = set_fail_unmatched(s);
    for (size_t i = 0; !code && i < ours.n; i++)
        code = set_match_storage(s, theirs.storages[i], ours.storages[i]);
    free(ours.storages);
    free(theirs.storages);
    return code;
}

/* ---- reading ---- */

/* Any bytes of a storage of a checkpoint: its elements as bytes. */
static int read_checkpoint_storage(const place *from, void *buffer, size_t nbytes, uint64_t offset,
                                   berth_error *error)
{
    const int64_t shape = (int64_t)berth_storage_get_info(from->original)->nbytes, stride = 1;
    const berth_tensor bytes = {.dtype = BERTH_UINT8,
                                .rank = 1,
                                .shape = &shape,
                                .stride = &stride,
                                .storage = (berth_storage *)(uintptr_t)from->original};

    return berth_tensor_read(from->checkpoint, &bytes, (int64_t)offset, (int64_t)nbytes, buffer,
                             error);
}

static int extent_read(const extent *e, void *buffer, size_t nbytes, uint64_t offset,
                       berth_error *error)
{
    if (!e->from.storage) {
        memset(buffer, 0, nbytes); /* only while it is being opened: nothing is kept of it */
        return 0;
    }
    return e->from.read ? e->from.read(e->from.context, buffer, nbytes, offset, error)
                        : read_checkpoint_storage(&e->from, buffer, nbytes, offset, error);
}

/* The first extent that ends behind the offset. */
static size_t set_find_extent(const file_set *s, uint64_t offset)
{
    size_t low = 0, high = s->n_extents;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (s->extents[middle].offset + s->extents[middle].nbytes > offset)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Reads the planned file: the source of its checkpoint. */
static int set_read(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    const file_set *s = context;
    uint8_t *out = buffer;
    berth_error error;
    int code = 0;

    for (size_t i = set_find_extent(s, offset); nbytes > 0 && code == 0;) {
        const extent *e = i < s->n_extents ? &s->extents[i] : NULL;
        bool is_inside = e && e->offset <= offset;
        uint64_t left = !e          ? nbytes
                        : is_inside ? e->offset + e->nbytes - offset
                                    : e->offset - offset;
        size_t n = left < nbytes ? (size_t)left : nbytes;
        code = n == 0      ? 0 /* an empty storage */
               : is_inside ? extent_read(e, out, n, offset - e->offset, &error)
                           : berth_plan_read(s->plan, out, n, offset, &error);
        i += is_inside && n == left;
        out += n;
        offset += n;
        nbytes -= n;
    }
    if (code == 0)
        return 0;
    set_first_error(&error);
    return error.system_errno ? error.system_errno : EIO;
}

/* ---- opening ---- */

/* As a plan and a checkpoint need it: bytes in this machine's order, and none read ahead. */
static berth_config *set_make_config(berth_error *error)
{
    berth_config *config = berth_config_new(error);

    if (config && berth_config_apply(config,
                                     "save.byteorder=native save.compute_crc32=off "
                                     "load.endianness=native load.prefetch=off "
                                     "load.check=directory",
                                     error) == 0)
        return config;
    berth_config_free(config);
    return NULL;
}

/* Nothing stays in memory of what is read. */
static int set_plan_and_open(file_set *s, const berth_params *params, berth_checkpoint **checkpoint,
                             berth_error *error)
{
    const berth_content content = berth_of_value(s->root);
    berth_params own = params ? *params : (berth_params){0};
    berth_plan_info info = {.nbytes = 0};
    berth_config *config = set_make_config(error);

    own.config = config;
    s->plan = config ? berth_plan_new(NULL, &content, &own, &info, error) : NULL;
    int code = s->plan ? set_list_extents(s, info.n_records) : error->code;
    if (code == 0) {
        const berth_source source = berth_from_function(set_read, s, info.nbytes, s->path);
        code = berth_open_source(&source, &own, checkpoint, error);
    }
    berth_config_free(config);
    return code;
}

int set_open(file_set *s, const berth_params *params, berth_checkpoint **checkpoint)
{
    berth_error error;
    int code = berth_tree_error(s->tree, &error);

    *checkpoint = NULL;
    if (code == 0)
        code = set_plan_and_open(s, params, checkpoint, &error);
    if (code < 0)
        return fail(&error);
    if (!code)
        code = set_match(s, berth_root(*checkpoint));
    /* As berth_open does it of a file. */
    if (!code && option_is("load.check", "data") &&
        berth_tensor_check_indices(*checkpoint, berth_root(*checkpoint), NULL, &error) < 0)
        code = fail(&error);
    return code;
}
