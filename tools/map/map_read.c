/* SPDX-License-Identifier: BSD-3-Clause */
/* What a file is made of: its storages, its parts (each byte belongs to one), the disk, memory. */
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/common/array.h"
#include "tools/common/report.h"
#include "tools/common/urls.h"
#include "tools/map/map.h"

/* ---- parts ---- */

const char *const part_kind_names[PART_N_KINDS] = {
    "header", "padding", "pickle", "storage", "unused", "record", "descriptor", "directory", "gap"};
const char part_kind_letters[PART_N_KINDS] = {'h', '.', 'p', 'S', '-', 'r', 's', 'd', '?'};
const char *const part_kind_texts[PART_N_KINDS] = {
    "headers",       "padding",     "pickle",    "storages",     "no tensor uses",
    "other records", "descriptors", "directory", "nothing known"};

static void map_parts_add(map_parts *all, map_part part)
{
    if (!all->no_memory)
        all->no_memory = !array_reserve(&all->parts, all->n, &all->capacity, sizeof part);
    if (!all->no_memory)
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

/* The bytes that one tensor needs of its storage. */
typedef struct map_use {
    uint64_t begin, end; /* in the file */
} map_use;

/* ---- storages, and what tensors need of them ---- */

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

static size_t map_find_storage(const map *m, uint64_t offset)
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
    size_t long_nbytes = 0;
    berth_named_tensor named;
    berth_error error;

    for (size_t i = 0; i < m->n_tensors; i++) {
        if (berth_tensor_at(m->checkpoint, i, &named, &error) < 0)
            return fail(&error);
        if (check_total_of_long_names(&long_nbytes, strlen(named.name)))
            return EXIT_TROUBLE;
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

static int map_list_storages(map *m, map_use **uses, size_t *n_uses)
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

static void map_add_storage_parts(map *m, size_t storage, const map_use **use, const map_use *end)
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

/* ---- the disk, and the page cache ---- */

enum { EXTENTS_AT_ONCE = 256, MAX_EXTENTS = 1 << 16, PAGES_AT_ONCE = 1 << 16 };

/* One that goes on where the last one ends, in the file and on the disk, is a part of it. */
static void map_add_extent(map *m, const struct fiemap_extent *extent)
{
    map_part *last = m->extents.n ? &m->extents.parts[m->extents.n - 1] : NULL;
    map_part part = {.offset = extent->fe_logical,
                     .nbytes = extent->fe_length,
                     .kind = PART_EXTENT,
                     .index = m->extents.n,
                     .address = extent->fe_physical};

    if (part.offset >= m->nbytes)
        return;
    if (part.nbytes > m->nbytes - part.offset)
        part.nbytes = m->nbytes - part.offset;
    m->n_extents++;
    if (last && last->offset + last->nbytes == part.offset &&
        last->address + last->nbytes == part.address)
        last->nbytes += part.nbytes;
    else
        map_parts_add(&m->extents, part);
}

/* Some file systems have no FIEMAP: tmpfs, overlays of it, many over a network. */
static void map_read_extents(map *m)
{
    struct fiemap *list = calloc(1, sizeof *list + EXTENTS_AT_ONCE * sizeof(struct fiemap_extent));
    uint64_t at = 0;
    bool is_last = false;

    while (list && !is_last && m->n_extents < MAX_EXTENTS) {
        memset(list, 0, sizeof *list);
        list->fm_start = at;
        list->fm_length = m->nbytes - at;
        list->fm_extent_count = EXTENTS_AT_ONCE;
        if (at >= m->nbytes || ioctl(m->fd, FS_IOC_FIEMAP, list) < 0)
            break;
        m->has_extents = true;
        is_last = list->fm_mapped_extents == 0;
        for (uint32_t i = 0; i < list->fm_mapped_extents; i++) {
            const struct fiemap_extent *extent = &list->fm_extents[i];
            map_add_extent(m, extent);
            is_last |= (extent->fe_flags & FIEMAP_EXTENT_LAST) != 0;
            at = extent->fe_logical + extent->fe_length;
        }
    }
    free(list);
}

/*
 * The pages of one unit. A picture shows no single page of a large file, so it is cut into units.
 */
static void map_add_unit(map *m, uint64_t offset, uint64_t nbytes, uint64_t cached_nbytes)
{
    part_kind kind = cached_nbytes == nbytes ? PART_CACHED : PART_PARTLY_CACHED;
    map_part *last = m->cached.n ? &m->cached.parts[m->cached.n - 1] : NULL;

    m->cached_nbytes += cached_nbytes;
    if (cached_nbytes == 0)
        return;
    if (last && last->kind == kind && last->offset + last->nbytes == offset)
        last->nbytes += nbytes;
    else
        map_parts_add(&m->cached, (map_part){.offset = offset, .nbytes = nbytes, .kind = kind});
}

static uint64_t count_cached(const unsigned char *pages, uint64_t nbytes, uint64_t page_nbytes)
{
    uint64_t cached = 0;

    for (uint64_t at = 0; at < nbytes; at += page_nbytes)
        if (pages[at / page_nbytes] & 1)
            cached += nbytes - at < page_nbytes ? nbytes - at : page_nbytes;
    return cached;
}

static void map_read_page_cache(map *m)
{
    enum { MAX_UNITS = 8192 };
    static unsigned char pages[PAGES_AT_ONCE];
    uint64_t page_nbytes = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t unit_nbytes = (m->nbytes / MAX_UNITS / page_nbytes + 1) * page_nbytes;
    struct stat status;

    /* Since Linux 5.2 mincore is correct only for callers who own the file or may write it. */
    if (m->nbytes == 0 || unit_nbytes / page_nbytes > PAGES_AT_ONCE || fstat(m->fd, &status) != 0 ||
        (status.st_uid != geteuid() && faccessat(AT_FDCWD, m->path, W_OK, AT_EACCESS) != 0))
        return;
    char *bytes = mmap(NULL, (size_t)m->nbytes, PROT_NONE, MAP_SHARED, m->fd, 0);
    if (bytes == MAP_FAILED) // NOLINT(performance-no-int-to-ptr): the system's own constant
        return;
    m->has_cache = true;
    for (uint64_t at = 0; at < m->nbytes && m->has_cache; at += unit_nbytes) {
        uint64_t n = m->nbytes - at < unit_nbytes ? m->nbytes - at : unit_nbytes;
        m->has_cache = mincore(bytes + at, (size_t)n, pages) == 0;
        if (m->has_cache)
            map_add_unit(m, at, n, count_cached(pages, n, page_nbytes));
    }
    (void)munmap(bytes, (size_t)m->nbytes);
}

void map_read_disk(map *m)
{
    map_read_page_cache(m);
    map_read_extents(m);
}

/* ---- zip ---- */

static uint64_t little_endian(const uint8_t *bytes, int n)
{
    uint64_t number = 0;

    for (int i = n - 1; i >= 0; i--)
        number = number << 8 | bytes[i];
    return number;
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

    if (!bytes || (m->source.read ? m->source.read(m->source.context, bytes, n, m->nbytes - n) != 0
                                  : pread(m->fd, bytes, n, (off_t)(m->nbytes - n)) != (ssize_t)n))
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
    berth_record *records = calloc(m->info.n_records + 1, sizeof *records);
    for (*n = 0; records && *n < m->info.n_records; (*n)++)
        (void)berth_archive_at(m->archive, *n, &records[*n]);
    if (records)
        qsort(records, *n, sizeof *records, compare_records);
    return records;
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
    enum { FIXED_NBYTES = 30, MAX_DESCRIPTOR_NBYTES = 24 };
    map *m = walk->m;
    /* The local header without the extra fields: PyTorch aligns the data with one. */
    uint64_t header_end = record->header_offset + FIXED_NBYTES + strlen(record->name) +
                          (walk->folder_nbytes ? walk->folder_nbytes + 1 : 0);
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
    size_t n;
    berth_record *records = map_sorted_records(m, &n);
    uint64_t directory = map_find_directory(m);

    if (!records)
        return print_trouble("out of memory");
    walk.folder_nbytes = strlen(m->info.name);
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
        open_archive(m->path, records_only ? params : NULL, &m->archive, &m->info, &error) < 0)
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
    return no_memory ? EXIT_TROUBLE : 0; /* it was told */
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
