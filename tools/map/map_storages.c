/* SPDX-License-Identifier: BSD-3-Clause */
/* The storages of a file, and what its tensors need of them. */
#include <stdlib.h>
#include <string.h>

#include "tools/common/report.h"
#include "tools/map/map.h"

static int compare_offsets(const void *left, const void *right)
{
    const map_storage *a = left, *b = right;

    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    return a->nbytes < b->nbytes ? -1 : a->nbytes > b->nbytes; /* empty ones first */
}

static int compare_addresses(const void *left, const void *right)
{
    const map_storage *a = left, *b = right;

    return a->storage < b->storage ? -1 : a->storage > b->storage;
}

static int compare_uses(const void *left, const void *right)
{
    const map_use *a = left, *b = right;

    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

size_t map_find_storage(const map *m, uint64_t offset)
{
    size_t low = 0, high = m->n_storages;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (m->storages[middle].offset < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low < m->n_storages && m->storages[low].offset == offset ? low : PART_NO_STORAGE;
}

/* A view that only the legacy format has is no storage of the list: NULL. */
static map_storage *map_find_by_address(const map *m, const berth_storage *storage)
{
    const map_storage wanted = {.storage = storage};

    return bsearch(&wanted, m->storages, m->n_storages, sizeof *m->storages, compare_addresses);
}

/* From the first to the last byte that a tensor reads. */
static uint64_t tensor_extent_nbytes(const berth_tensor *tensor)
{
    uint64_t last = 0, nbytes = berth_tensor_nbytes(tensor);

    if (nbytes == 0)
        return 0;
    for (int32_t i = 0; i < tensor->rank; i++)
        last += (uint64_t)(tensor->shape[i] - 1) * (uint64_t)tensor->stride[i];
    if (last + 1 == (uint64_t)berth_tensor_numel(tensor)) /* also of several elements in a byte */
        return nbytes;
    return (last + 1) * berth_dtype_nbytes(tensor->dtype);
}

/* Notes a tensor in its storage. Returns 0 or an exit code. */
static int storage_add_tensor(map_storage *storage, const berth_named_tensor *named)
{
    const berth_tensor *tensor = named->tensor;

    if (storage->n_tensors++ == 0) {
        storage->first_name = strdup(named->name);
        if (!storage->first_name)
            return print_trouble("out of memory");
    }
    if (storage->dtype == BERTH_DTYPE_NONE)
        storage->dtype = tensor->dtype;
    if (named->offset != BERTH_NO_OFFSET && storage->offset == BERTH_NO_OFFSET)
        storage->offset =
            named->offset - (uint64_t)tensor->storage_offset * berth_dtype_nbytes(tensor->dtype);
    return 0;
}

/* Goes through all tensors. */
static int map_list_uses(map *m, map_use *uses, size_t *n_uses)
{
    berth_named_tensor named;
    berth_error error;

    for (size_t i = 0; i < m->n_tensors; i++) {
        if (berth_tensor_at(m->checkpoint, i, &named, &error) < 0)
            return fail(&error);
        map_storage *storage =
            named.tensor->storage ? map_find_by_address(m, named.tensor->storage) : NULL;
        if (storage && storage_add_tensor(storage, &named))
            return EXIT_TROUBLE;
        uint64_t nbytes = tensor_extent_nbytes(named.tensor);
        if (named.offset != BERTH_NO_OFFSET && nbytes > 0)
            uses[(*n_uses)++] = (map_use){.begin = named.offset, .end = named.offset + nbytes};
    }
    return 0;
}

/* Storages that no tensor views, or that are deflated: the directory tells where they are. */
static void map_find_records_of_storages(map *m)
{
    berth_record record;
    char name[256];

    for (size_t i = 0; m->archive && i < m->n_storages; i++) {
        map_storage *storage = &m->storages[i];
        snprintf(name, sizeof name, "data/%s", berth_storage_get_info(storage->storage)->key);
        if (storage->offset != BERTH_NO_OFFSET ||
            berth_archive_find(m->archive, name, &record, NULL) < 0)
            continue;
        storage->offset = record.offset;
        storage->is_deflated = record.method != 0;
    }
}

int map_list_storages(map *m, map_use **uses, size_t *n_uses)
{
    berth_info info;
    berth_error error;
    const berth_storage *storage = NULL;

    if (berth_get_info(m->checkpoint, &info, &error) < 0)
        return fail(&error);
    m->container = info.container;
    m->n_tensors = berth_tensor_count(m->checkpoint);
    m->storages = calloc(info.n_storages + 1, sizeof *m->storages);
    *uses = calloc(m->n_tensors + 1, sizeof **uses);
    if (!m->storages || !*uses)
        return print_trouble("out of memory");
    while (m->n_storages < info.n_storages &&
           (storage = berth_storage_next(m->checkpoint, storage)) != NULL) {
        const berth_storage_info *about = berth_storage_get_info(storage);
        m->storages[m->n_storages++] = (map_storage){.storage = storage,
                                                     .offset = BERTH_NO_OFFSET,
                                                     .nbytes = about->nbytes,
                                                     .dtype = about->dtype};
    }
    qsort(m->storages, m->n_storages, sizeof *m->storages, compare_addresses);
    int code = map_list_uses(m, *uses, n_uses);
    map_find_records_of_storages(m);
    qsort(m->storages, m->n_storages, sizeof *m->storages, compare_offsets);
    qsort(*uses, *n_uses, sizeof **uses, compare_uses);
    return code;
}

static void map_add_range_of_storage(map *m, size_t storage, part_kind kind, uint64_t begin,
                                     uint64_t end)
{
    map_part *last = m->parts.n ? &m->parts.parts[m->parts.n - 1] : NULL;

    if (kind == PART_STORAGE)
        m->storages[storage].used_nbytes += end - begin;
    if (last && last->kind == kind && last->index == storage &&
        last->offset + last->nbytes == begin)
        last->nbytes += end - begin;
    else if (begin < end)
        map_parts_add(
            &m->parts,
            (map_part){.offset = begin, .nbytes = end - begin, .kind = kind, .index = storage});
}

void map_add_storage_parts(map *m, size_t storage, const map_use **use, const map_use *end)
{
    const map_storage *at = &m->storages[storage];
    uint64_t done = at->offset, last = at->offset + at->nbytes;

    while (*use < end && (*use)->begin < at->offset)
        (*use)++;
    if (at->n_tensors == 0 && (*use == end || (*use)->begin >= last)) { /* itself a value: whole */
        map_add_range_of_storage(m, storage, PART_STORAGE, done, last);
        return;
    }
    for (; *use < end && (*use)->begin < last; (*use)++) {
        uint64_t use_end = (*use)->end < last ? (*use)->end : last;
        if ((*use)->begin > done) {
            map_add_range_of_storage(m, storage, PART_UNUSED, done, (*use)->begin);
            done = (*use)->begin;
        }
        if (use_end > done) {
            map_add_range_of_storage(m, storage, PART_STORAGE, done, use_end);
            done = use_end;
        }
    }
    map_add_range_of_storage(m, storage, PART_UNUSED, done, last);
}
