/* SPDX-License-Identifier: BSD-3-Clause */
/* A hash table by address, with open addressing; at most half full. */
#include "adapters/python/native/native.h"

#define MIN_SLOTS 64
#define MANY_SLOTS 131072       /* to move them takes 2 ms and more */
#define MOST_RESERVED (1 << 18) /* keys: 16 MiB, and no page that is not used */

static size_t map_first(const bpy_map *map, const void *key)
{
    uint64_t hash = (uint64_t)(uintptr_t)key * 0x9e3779b97f4a7c15u; /* 2^64 / the golden ratio */
    return (size_t)(hash >> 32) & (map->n_slots - 1);
}

static bpy_map_slot *map_slot(const bpy_map *map, const void *key)
{
    size_t i = map_first(map, key);
    while (map->slots[i].key && map->slots[i].key != key)
        i = (i + 1) & (map->n_slots - 1);
    return &map->slots[i];
}

void *bpy_map_get(const bpy_map *map, const void *key)
{
    return map->n_slots ? map_slot(map, key)->value : NULL;
}

static void map_move(const bpy_map *from, bpy_map *to)
{
    for (size_t i = 0; i < from->n_slots; i++)
        if (from->slots[i].key)
            *map_slot(to, from->slots[i].key) = from->slots[i];
}

/*
 * A map belongs to one walk, so that other threads may run meanwhile.
 * Returns: whether there was memory.
 */
static bool map_resize(bpy_map *map, size_t n_slots)
{
    bpy_map larger = {.n_slots = n_slots, .n = map->n};
    larger.slots = PyMem_Calloc(larger.n_slots, sizeof *larger.slots);
    if (!larger.slots)
        return false;
    if (map->n_slots < MANY_SLOTS) {
        map_move(map, &larger);
    } else {
        Py_BEGIN_ALLOW_THREADS;
        map_move(map, &larger);
        Py_END_ALLOW_THREADS;
        bpy_walk_held();
    }
    PyMem_Free(map->slots);
    *map = larger;
    return true;
}

static bool map_grow(bpy_map *map)
{
    return map_resize(map, map->n_slots ? 2 * map->n_slots : MIN_SLOTS);
}

void bpy_map_reserve(bpy_map *map, size_t n)
{
    size_t n_slots = map->n_slots ? map->n_slots : MIN_SLOTS;
    size_t n_keys = map->n + (n < MOST_RESERVED ? n : MOST_RESERVED);
    while (n_slots < 2 * n_keys)
        n_slots *= 2;
    if (n_slots > map->n_slots)
        (void)map_resize(map, n_slots);
}

int bpy_map_set(bpy_map *map, const void *key, void *value)
{
    if (2 * map->n >= map->n_slots && !map_grow(map)) {
        PyErr_NoMemory();
        return -1;
    }
    bpy_map_slot *slot = map_slot(map, key);
    map->n += slot->key == NULL;
    *slot = (bpy_map_slot){key, value};
    return 0;
}

void bpy_map_free(bpy_map *map)
{
    PyMem_Free(map->slots);
    *map = (bpy_map){0};
}
