/* SPDX-License-Identifier: BSD-3-Clause */
/* The parts of a file: each byte belongs to one. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/map.h"

const char *const part_kind_names[PART_N_KINDS] = {
    "header", "padding", "pickle", "storage", "unused", "record", "descriptor", "directory", "gap"};
const char part_kind_letters[PART_N_KINDS] = {'h', '.', 'p', 'S', '-', 'r', 's', 'd', '?'};
const char *const part_kind_texts[PART_N_KINDS] = {
    "headers",       "padding",     "pickle",    "storages",     "no tensor uses",
    "other records", "descriptors", "directory", "nothing known"};

void map_parts_add(map_parts *all, map_part part)
{
    if (all->n == all->capacity) {
        size_t capacity = all->capacity ? all->capacity * 2 : 64;
        map_part *parts = realloc(all->parts, capacity * sizeof *parts);
        if (!parts) {
            all->no_memory = true;
            return;
        }
        all->parts = parts;
        all->capacity = capacity;
    }
    all->parts[all->n++] = part;
}

size_t map_parts_find(const map_parts *all, uint64_t offset)
{
    size_t low = 0, high = all->n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (all->parts[middle].offset + all->parts[middle].nbytes <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

berth_dtype map_part_dtype(const map *m, const map_part *part)
{
    return part->kind == PART_STORAGE && part->index != PART_NO_STORAGE
               ? m->storages[part->index].dtype
               : BERTH_DTYPE_NONE;
}

/* Adds [begin, end), if there is something in it. */
static void map_add(map *m, part_kind kind, uint64_t begin, uint64_t end, const char *name)
{
    if (begin < end)
        map_parts_add(&m->parts, (map_part){.offset = begin,
                                            .nbytes = end - begin,
                                            .kind = kind,
                                            .index = PART_NO_STORAGE,
                                            .name = name});
}

/* ---- zip ---- */

static uint64_t little_endian(const uint8_t *bytes, int n)
{
    uint64_t number = 0;

    for (int i = n - 1; i >= 0; i--)
        number = number << 8 | bytes[i];
    return number;
}

static bool map_read_bytes(const map *m, uint8_t *bytes, uint64_t nbytes, uint64_t offset)
{
    if (m->source.read)
        return m->source.read(m->source.context, bytes, (size_t)nbytes, offset) == 0;
    return pread(m->fd, bytes, (size_t)nbytes, (off_t)offset) == (ssize_t)nbytes;
}

/*
 * Where the directory begins, as the end of the file tells; Berth has checked the file. 0: it is
 * not found.
 */
static uint64_t map_find_directory(const map *m)
{
    enum { END_NBYTES = 22, END64_NBYTES = 56, LOCATOR_NBYTES = 20, MAX_NBYTES = 65535 + 22 + 76 };
    uint64_t n = m->nbytes < MAX_NBYTES ? m->nbytes : MAX_NBYTES, offset = 0;
    uint8_t *bytes = malloc(n + 1);

    if (!bytes || !map_read_bytes(m, bytes, n, m->nbytes - n))
        n = 0;
    for (uint64_t at = n; at >= END_NBYTES && offset == 0; at--) {
        const uint8_t *end = bytes + at - END_NBYTES;
        if (memcmp(end, "PK\5\6", 4) != 0 || little_endian(end + 20, 2) != n - at)
            continue;
        offset = little_endian(end + 16, 4);
        const uint8_t *end64 = end - LOCATOR_NBYTES - END64_NBYTES;
        if (at >= END_NBYTES + LOCATOR_NBYTES + END64_NBYTES && !memcmp(end64, "PK\6\6", 4))
            offset = little_endian(end64 + 48, 8);
    }
    free(bytes);
    return offset;
}

static int compare_records(const void *left, const void *right)
{
    const berth_record *a = left, *b = right;

    return a->header_offset < b->header_offset ? -1 : a->header_offset > b->header_offset;
}

/* In the file's order; the caller frees them. */
static berth_record *map_sorted_records(const map *m, size_t *n)
{
    berth_archive_info info;

    (void)berth_archive_get_info(m->archive, &info);
    berth_record *records = calloc(info.n_records + 1, sizeof *records);
    for (*n = 0; records && *n < info.n_records; (*n)++)
        (void)berth_archive_at(m->archive, *n, &records[*n]);
    if (records)
        qsort(records, *n, sizeof *records, compare_records);
    return records;
}

/* The local header without the extra fields: PyTorch aligns the data with one. */
static uint64_t header_nbytes(const berth_record *record, size_t folder_nbytes)
{
    enum { FIXED_NBYTES = 30 };

    return FIXED_NBYTES + (folder_nbytes ? folder_nbytes + 1 : 0) + strlen(record->name);
}

/* What the parts of a zip are made of. */
typedef struct zip_walk {
    map *m;
    const map_use *use, *uses_end;
    size_t folder_nbytes;
} zip_walk;

/* `end`: where the next record, or the directory, begins. */
static void zip_add_data(zip_walk *walk, const berth_record *record, uint64_t end)
{
    map *m = walk->m;
    size_t storage = map_find_storage(m, record->offset);

    if (storage != PART_NO_STORAGE && record->method == 0) {
        map_add_storage_parts(m, storage, &walk->use, walk->uses_end);
        return;
    }
    if (storage != PART_NO_STORAGE) {
        map_parts_add(&m->parts, (map_part){.offset = record->offset,
                                            .nbytes = end - record->offset,
                                            .kind = PART_STORAGE,
                                            .index = storage});
        m->storages[storage].used_nbytes = m->storages[storage].nbytes;
        return;
    }
    map_add(m, strcmp(record->name, "data.pkl") ? PART_RECORD : PART_PICKLE, record->offset, end,
            record->name);
}

static void zip_add_record(zip_walk *walk, const berth_record *record, uint64_t end)
{
    enum { MAX_DESCRIPTOR_NBYTES = 24 };
    map *m = walk->m;
    uint64_t header_end = record->header_offset + header_nbytes(record, walk->folder_nbytes);
    /* Nobody tells how long deflated data are: with their descriptor they reach to the next. */
    bool is_stored = record->method == 0 && record->nbytes <= m->nbytes;
    uint64_t data_end = is_stored ? record->offset + record->nbytes : end;

    if (header_end > record->offset)
        header_end = record->offset;
    if (data_end > end)
        data_end = end;
    map_add(m, PART_HEADER, record->header_offset, header_end, record->name);
    map_add(m, PART_PADDING, header_end, record->offset, record->name);
    zip_add_data(walk, record, data_end);
    map_add(m, end - data_end <= MAX_DESCRIPTOR_NBYTES ? PART_DESCRIPTOR : PART_GAP, data_end, end,
            record->name);
}

static int map_add_zip(map *m, const map_use *uses, size_t n_uses)
{
    zip_walk walk = {.m = m, .use = uses, .uses_end = uses + n_uses};
    berth_archive_info info;
    size_t n;
    berth_record *records = map_sorted_records(m, &n);
    uint64_t directory = map_find_directory(m);

    if (!records)
        return print_trouble("out of memory");
    (void)berth_archive_get_info(m->archive, &info);
    walk.folder_nbytes = strlen(info.name);
    if (n > 0 && directory < records[n - 1].offset)
        directory = m->nbytes;
    for (size_t i = 0; i < n; i++)
        zip_add_record(&walk, &records[i], i + 1 < n ? records[i + 1].header_offset : directory);
    map_add(m, PART_DIRECTORY, directory, m->nbytes, NULL);
    free(records);
    return 0;
}

/* ---- other formats ---- */

/*
 * safetensors: a header, then the data. The legacy format: pickles, then the storages, each behind
 * its length.
 */
static void map_add_without_directory(map *m, const map_use *uses, size_t n_uses)
{
    const map_use *use = uses, *uses_end = uses + n_uses;
    bool is_pickled = strcmp(m->container, "safetensors") != 0;
    uint64_t done = 0;

    for (size_t i = 0; i < m->n_storages; i++) {
        const map_storage *storage = &m->storages[i];
        if (storage->offset == BERTH_NO_OFFSET || storage->nbytes == 0)
            continue;
        map_add(m, done == 0 && is_pickled ? PART_PICKLE : PART_HEADER, done, storage->offset,
                NULL);
        map_add_storage_parts(m, i, &use, uses_end);
        done = storage->offset + storage->nbytes;
    }
    map_add(m,
            done > 0     ? PART_GAP
            : is_pickled ? PART_PICKLE
                         : PART_HEADER,
            done, m->nbytes - m->behind_nbytes, NULL); /* what is behind becomes a gap */
}

/* ---- all ---- */

/* Parts may not overlap, nor leave bytes out: what no part has is a gap. */
static void map_close_gaps(map *m)
{
    map_parts given = m->parts;
    uint64_t done = 0;

    m->parts = (map_parts){.no_memory = given.no_memory};
    for (size_t i = 0; i < given.n; i++) {
        map_part part = given.parts[i];
        uint64_t end = part.offset + part.nbytes;
        map_add(m, PART_GAP, done, part.offset, NULL);
        part.offset = part.offset > done ? part.offset : done;
        end = end < m->nbytes ? end : m->nbytes;
        if (end <= part.offset)
            continue;
        part.nbytes = end - part.offset;
        map_parts_add(&m->parts, part);
        done = end;
    }
    map_add(m, PART_GAP, done, m->nbytes, NULL);
    free(given.parts);
}

static void map_add_totals(map *m)
{
    for (size_t i = 0; i < m->parts.n; i++) {
        const map_part *part = &m->parts.parts[i];
        m->kinds[part->kind] += part->nbytes;
        if (part->kind == PART_STORAGE && map_part_dtype(m, part) < BERTH_DTYPE_COUNT)
            m->dtypes[map_part_dtype(m, part)] += part->nbytes;
    }
    for (size_t i = 0; i < m->n_storages; i++)
        if (m->storages[i].n_tensors > 1 && m->storages[i].offset != BERTH_NO_OFFSET &&
            m->storages[i].nbytes > 0 && !m->storages[i].is_deflated)
            map_parts_add(&m->shared, (map_part){.offset = m->storages[i].offset,
                                                 .nbytes = m->storages[i].nbytes,
                                                 .kind = PART_SHARED,
                                                 .index = i});
}

size_t map_count_shared(const map *m)
{
    size_t n = 0;

    for (size_t i = 0; i < m->n_storages; i++)
        n += m->storages[i].n_tensors > 1;
    return n;
}

size_t map_n_rows(const map *m, size_t max_rows)
{
    enum { PARTS_PER_ROW = 8, MIN_ROW_NBYTES = 512 };
    size_t n = m->parts.n / PARTS_PER_ROW + 1;

    if (n > m->nbytes / MIN_ROW_NBYTES + 1)
        n = m->nbytes / MIN_ROW_NBYTES + 1;
    return n < max_rows ? n : max_rows;
}

/* A checkpoint that is a zip has records, too. */
static int map_open(map *m, bool records_only, const berth_params *params)
{
    berth_info info = {.n_records = 1};
    berth_error error;

    m->container = "zip";
    if (!records_only && (open_file_or_url(m->path, params, &m->checkpoint, &error) < 0 ||
                          berth_get_info(m->checkpoint, &info, &error) < 0))
        return fail(&error);
    m->behind_nbytes = info.behind_nbytes;
    tell_behind(m->path, m->checkpoint, info.behind_nbytes);
    if (info.n_records > 0 &&
        open_archive(m->path, records_only ? params : NULL, &m->archive, &error) < 0)
        return fail(&error);
    return 0;
}

int map_read(map *m, bool records_only, berth_stats *stats)
{
    const berth_params params = {.stats = stats};
    map_use *uses = NULL;
    size_t n_uses = 0;
    int code = map_open(m, records_only, &params);

    if (code == 0 && m->checkpoint)
        code = map_list_storages(m, &uses, &n_uses);
    if (code == 0 && m->archive)
        code = map_add_zip(m, uses, n_uses);
    else if (code == 0)
        map_add_without_directory(m, uses, n_uses);
    free(uses);
    if (code)
        return code;
    map_close_gaps(m);
    map_add_totals(m);
    bool no_memory =
        m->parts.no_memory || m->shared.no_memory || m->extents.no_memory || m->cached.no_memory;
    return no_memory ? print_trouble("out of memory") : 0;
}

void map_free(map *m)
{
    for (size_t i = 0; i < m->n_storages; i++)
        free(m->storages[i].first_name);
    free(m->storages);
    free(m->parts.parts);
    free(m->shared.parts);
    free(m->extents.parts);
    free(m->cached.parts);
    berth_archive_close(m->archive);
    berth_close(m->checkpoint);
}
