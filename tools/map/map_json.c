/* SPDX-License-Identifier: BSD-3-Clause */
/* berth map --json: all that a map has, as numbers. */
#include "tools/common/report.h"
#include "tools/map/map.h"

static json_t *offset_json(uint64_t offset)
{
    return offset == BERTH_NO_OFFSET ? json_null() : json_integer((json_int_t)offset);
}

static json_t *part_json(const map *m, const map_part *part)
{
    json_t *object = json_pack("{s:s,s:I,s:I}", "kind", part_kind_names[part->kind], "offset",
                               (json_int_t)part->offset, "nbytes", (json_int_t)part->nbytes);

    if (part->name)
        json_object_set_new(object, "record", text_json(part->name));
    if (part->index != PART_NO_STORAGE)
        json_object_set_new(object, "storage", json_integer((json_int_t)part->index));
    if (part->kind == PART_STORAGE && part->index != PART_NO_STORAGE)
        json_object_set_new(object, "dtype",
                            json_string(berth_dtype_name(map_part_dtype(m, part))));
    return object;
}

static json_t *storage_json(const map_storage *storage)
{
    const berth_storage_info *info = berth_storage_get_info(storage->storage);

    return json_pack("{s:o,s:o,s:I,s:I,s:s,s:b,s:I,s:o}", "key", text_json(info->key), "offset",
                     offset_json(storage->offset), "nbytes", (json_int_t)storage->nbytes,
                     "used_nbytes", (json_int_t)storage->used_nbytes, "dtype",
                     berth_dtype_name(storage->dtype), "deflated", storage->is_deflated, "tensors",
                     (json_int_t)storage->n_tensors, "first_tensor",
                     storage->first_name ? text_json(storage->first_name) : json_null());
}

static json_t *totals_json(const map *m)
{
    json_t *totals = json_object(), *dtypes = json_object();

    for (unsigned i = 0; i < PART_N_KINDS; i++)
        json_object_set_new(totals, part_kind_names[i], json_integer((json_int_t)m->kinds[i]));
    for (unsigned i = 0; i < BERTH_DTYPE_COUNT; i++)
        if (m->dtypes[i] > 0)
            json_object_set_new(dtypes, berth_dtype_name((berth_dtype)i),
                                json_integer((json_int_t)m->dtypes[i]));
    json_object_set_new(totals, "dtypes", dtypes);
    return totals;
}

static json_t *extents_json(const map *m)
{
    json_t *array = json_array();

    if (!m->has_extents) {
        json_decref(array);
        return json_null();
    }
    for (size_t i = 0; i < m->extents.n; i++) {
        const map_part *part = &m->extents.parts[i];
        json_array_append_new(array, json_pack("{s:I,s:I,s:I}", "offset", (json_int_t)part->offset,
                                               "nbytes", (json_int_t)part->nbytes, "disk_offset",
                                               (json_int_t)part->address));
    }
    return array;
}

static json_t *page_cache_json(const map *m)
{
    json_t *array = json_array();

    if (!m->has_cache) {
        json_decref(array);
        return json_null();
    }
    for (size_t i = 0; i < m->cached.n; i++) {
        const map_part *part = &m->cached.parts[i];
        json_array_append_new(array, json_pack("{s:I,s:I,s:b}", "offset", (json_int_t)part->offset,
                                               "nbytes", (json_int_t)part->nbytes, "whole",
                                               part->kind == PART_CACHED));
    }
    return json_pack("{s:I,s:o}", "nbytes", (json_int_t)m->cached_nbytes, "ranges", array);
}

json_t *map_json(const map *m)
{
    json_t *parts = json_array(), *storages = json_array();

    for (size_t i = 0; i < m->parts.n; i++)
        json_array_append_new(parts, part_json(m, &m->parts.parts[i]));
    for (size_t i = 0; i < m->n_storages; i++)
        json_array_append_new(storages, storage_json(&m->storages[i]));
    return json_pack("{s:o,s:s,s:I,s:I,s:o,s:o,s:o,s:o,s:o}", "file", text_json(m->path),
                     "container", m->container, "nbytes", (json_int_t)m->nbytes, "tensors",
                     (json_int_t)m->n_tensors, "totals", totals_json(m), "storages", storages,
                     "parts", parts, "extents", extents_json(m), "page_cache", page_cache_json(m));
}
