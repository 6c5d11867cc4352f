/* SPDX-License-Identifier: BSD-3-Clause */
/* berth map: where the bytes of a file lie. Shared by its sources. */
#ifndef BERTH_TOOLS_MAP_H
#define BERTH_TOOLS_MAP_H

#include <berth/more.h>

#include <stdio.h>

/* What bytes are. The first nine share the file among them; the others lie over them. */
typedef enum part_kind {
    PART_HEADER,
    PART_PADDING,
    PART_PICKLE,
    PART_STORAGE,
    PART_UNUSED,
    PART_RECORD,
    PART_DESCRIPTOR,
    PART_DIRECTORY,
    PART_GAP,
    PART_N_KINDS,
    PART_SHARED = PART_N_KINDS, /* a storage with several tensors */
    PART_EXTENT,
    PART_CACHED,
    PART_PARTLY_CACHED
} part_kind;

/* One name in JSON, one letter in the terminal, one text in a legend, for each of the first nine.
 */
extern const char *const part_kind_names[PART_N_KINDS];
extern const char part_kind_letters[PART_N_KINDS];
extern const char *const part_kind_texts[PART_N_KINDS];

#define PART_NO_STORAGE SIZE_MAX

/* A range of the file. */
typedef struct map_part {
    uint64_t offset, nbytes;
    part_kind kind;
    size_t index;     /* of the storage, or PART_NO_STORAGE; of an extent */
    uint64_t address; /* of an extent: on the disk */
    const char *name; /* of a record; NULL */
} map_part;

/* A growing list of parts, in the file's order once it is sorted. */
typedef struct map_parts {
    map_part *parts;
    size_t n, capacity;
    bool no_memory; /* one could not be added */
} map_parts;

typedef struct map_storage {
    const berth_storage *storage;
    uint64_t offset; /* of its record's data; BERTH_NO_OFFSET: nothing in the file tells it */
    uint64_t nbytes; /* inflated, if it is deflated */
    uint64_t used_nbytes;
    berth_dtype dtype;
    bool is_deflated;
    size_t n_tensors;
    char *first_name; /* of a tensor; NULL: no tensor views it */
} map_storage;

typedef struct map {
    const char *path;
    berth_source source;
    int fd; /* -1: a URL, or a file that cannot be opened */
    uint64_t nbytes;
    uint64_t behind_nbytes; /* of further objects of the legacy format */
    berth_archive *archive; /* NULL: no zip */
    berth_archive_info info;
    berth_checkpoint *checkpoint; /* NULL: only records were asked for */
    const char *container;
    size_t n_tensors;
    map_storage *storages; /* by offset; those without one come last */
    size_t n_storages;
    map_parts parts;   /* share the file */
    map_parts shared;  /* storages with several tensors */
    bool has_extents;  /* the file system tells them */
    bool has_cache;    /* the kernel tells it */
    map_parts extents; /* holes are left out */
    size_t n_extents;  /* as the file system counts them; neighbours on the disk are one part */
    map_parts cached;  /* pages in memory */
    uint64_t cached_nbytes;
    uint64_t kinds[PART_N_KINDS];       /* bytes of each */
    uint64_t dtypes[BERTH_DTYPE_COUNT]; /* bytes of PART_STORAGE of each */
} map;

/* ---- map_read.c ---- */

/* What the kernel tells of the file. Called before the file is read, which fills the page cache. */
void map_read_disk(map *m);
/*
 * Reads what the file has; source, fd, nbytes and path are set. Returns 0, or an exit code after
 * printing why.
 */
int map_read(map *m, bool records_only, berth_stats *stats);
void map_free(map *m);
/* The first part that ends behind `offset`. */
size_t map_parts_find(const map_parts *all, uint64_t offset);
/* The dtype of a storage's bytes. */
berth_dtype map_part_dtype(const map *m, const map_part *part);
size_t map_count_shared(const map *m);
/* How many lines a picture of it needs: 1 to max_rows. */
size_t map_n_rows(const map *m, size_t max_rows);

/* ---- map_svg.c ---- */

/* Writes the picture. */
void map_print_svg(const map *m, FILE *out);

#endif
