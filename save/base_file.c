/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/base_file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory.h"
#include "config/option_row.h"
#include "format/checksum.h"
#include "format/zip/zip.h"
#include "io/file.h"
#include "io/memory_region.h"
#include "io/syscalls.h"
#include "save/image.h"

/* Shorter clones cost more than their bytes: a call, and an extent in the metadata of the file. */
#define MIN_CLONE_NBYTES ((uint64_t)64 * 1024)
/* Neighbours are cloned by one call, with what lies between them, which nobody looks at. */
#define MAX_GAP_NBYTES ((uint64_t)64 * 1024)
_Static_assert(MIN_CLONE_NBYTES >= MAX_GAP_NBYTES, "a record and its header are longer than a gap");
/* What was read is compared while it is in the cache. */
#define PIECE_NBYTES BTH_LARGE_PAGE_NBYTES
/* More is cloned by several calls, so that a cancel is noticed. */
#define MAX_CLONE_NBYTES ((uint64_t)1 << 30)

/* ---- open ---- */

static bool record_can_be_cloned(const berth_plan *plan, size_t i)
{
    const bth_plan_record *record = &plan->records[i];

    return record->layout.nbytes >= MIN_CLONE_NBYTES && !record->no_crc32 &&
           bth_plan_record_is_storage(plan, i);
}

static const char *plan_reason(const berth_plan *plan)
{
    size_t i = 0;

    if (plan->is_plain)
        return "only zip archives have checksums, by which equal storages are found";
    if (!plan->compute_crc32)
        return "save.compute_crc32=off: equal storages are found by their checksums";
    while (i < plan->n_records && !record_can_be_cloned(plan, i))
        i++;
    return i < plan->n_records ? NULL : "no storage has 64 KiB";
}

/* Clones to the file `to`. NULL: it is done. */
static const char *clone_range(int base, int to, uint64_t from, bth_range range)
{
    struct file_clone_range asked = {.src_fd = base,
                                     .src_offset = from,
                                     .src_length = range.nbytes,
                                     .dest_offset = range.offset};
    int result;

    BTH_REPEAT(result, bth_system.ioctl(to, FICLONERANGE, &asked));
    if (result == 0)
        return NULL;
    switch (errno) {
    case EXDEV:
        return "the base is on another file system";
    case EOPNOTSUPP:
    case ENOTTY:
    case ENOSYS:
        return "the file system cannot share blocks";
    case ENOSPC:
    case EDQUOT:
        return "the file system has no room to share blocks";
    default: /* EINVAL: cut meanwhile, or of other attributes, such as chattr +C of btrfs */
        return "the file system refuses to share blocks of the base";
    }
}

/* Where no file has bytes. Behind the end of the base there may be some at any moment: it grows. */
#define BEYOND_FILES ((uint64_t)1 << 62)

/* Asks for a range that the base has not: what shares blocks says so (EINVAL), and nothing is
 * cloned. */
static const char *base_ask_file_system(const bth_base *base, int to)
{
    const char *reason =
        clone_range(base->fd, to, BEYOND_FILES, (bth_range){0, base->block_nbytes});

    return reason && errno != EINVAL ? reason : NULL;
}

const char *bth_base_choose(const berth_params *params, const struct berth_config *config)
{
    return params && params->base ? params->base : bth_option_text(config->save_base);
}

void bth_base_open(bth_base *base, const char *path, const berth_plan *plan,
                   const bth_output_file *to)
{
    struct statfs system;
    berth_error why;

    *base = (bth_base){.fd = -1, .reason = plan_reason(plan)};
    if (base->reason)
        return;
    bth_error_clear(&why);
    if (bth_file_open(path, &base->fd, &base->nbytes, &why) < 0) {
        base->reason = why.system_errno == ENOENT   ? "the base does not exist"
                       : why.system_errno == EACCES ? "the base may not be read"
                       : why.system_errno != 0      ? "the base cannot be opened"
                                                    : "the base is no regular file";
        return;
    }
    if (bth_system.fstatfs(to->fd, &system) == 0 && system.f_bsize > 0 &&
        system.f_bsize <= BTH_MAX_DIRECT_BLOCK_NBYTES &&
        ((uint64_t)system.f_bsize & ((uint64_t)system.f_bsize - 1)) == 0)
        base->block_nbytes = (uint32_t)system.f_bsize;
    if (base->block_nbytes == 0)
        base->reason = "the file system does not tell its blocks";
    else if (base->nbytes < base->block_nbytes)
        base->reason = "the base is empty, or smaller than a block";
    else
        base->reason = base_ask_file_system(base, to->fd);
    if (to->began_direct)
        base->block_nbytes = (uint32_t)bth_max(base->block_nbytes, to->direct.block_nbytes);
    if (base->reason)
        bth_base_free(base);
}

void bth_base_free(bth_base *base)
{
    bth_file_close(base->fd);
    base->fd = -1;
    bth_release(base->ranges);
    bth_release(base->present);
    base->ranges = NULL;
    base->present = NULL;
    base->parts = (bth_run_parts){0};
}

/* ---- what the base has ---- */

#define NO_NUMBER UINT32_MAX
#define NOWHERE UINT64_MAX

/* The data of a record of the base, as its directory tells them. */
typedef struct base_extent {
    uint64_t nbytes;
    uint64_t phase; /* its offset modulo the block */
    uint32_t crc32;
    uint32_t number; /* the N of data/N; NO_NUMBER: it has another name */
    uint64_t offset;
} base_extent;

typedef struct base_extents {
    base_extent *items;
    size_t n;
} base_extents;

/* In this order they are first. */
static int extent_compare_numbers(const void *left, const void *right)
{
    const base_extent *a = left, *b = right;

    return (a->number > b->number) - (a->number < b->number);
}

/* In this order, when all of the same names were tried. */
static int extent_compare_sums(const void *left, const void *right)
{
    const base_extent *a = left, *b = right;

    if (a->nbytes != b->nbytes)
        return a->nbytes < b->nbytes ? -1 : 1;
    if (a->phase != b->phase)
        return a->phase < b->phase ? -1 : 1;
    if (a->crc32 != b->crc32)
        return a->crc32 < b->crc32 ? -1 : 1;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

/* The first extent that is not below these, in the order of sums; NULL: all are. */
static const base_extent *extents_find(const base_extents *extents, uint64_t nbytes, uint64_t phase,
                                       uint32_t crc32, uint64_t offset)
{
    const base_extent wanted = {.nbytes = nbytes, .phase = phase, .crc32 = crc32, .offset = offset};
    size_t low = 0, high = extents->n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (extent_compare_sums(&extents->items[middle], &wanted) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < extents->n ? &extents->items[low] : NULL;
}

static uint32_t name_number(const char *name)
{
    uint32_t number = 0;

    if (strncmp(name, "data/", 5) != 0 || strlen(name + 5) - 1 >= 9)
        return NO_NUMBER;
    for (name += 5; *name >= '0' && *name <= '9'; name++)
        number = number * 10 + (uint32_t)(*name - '0');
    return *name == '\0' ? number : NO_NUMBER;
}

/* Where the data of an entry lie, if its file has the layout: what follows is known, and no header
 * is read. If it has not, the bytes there are others, and are not shared. False: nowhere. */
static bool entry_find_extent(const bth_zip_entry *entry, uint32_t block_nbytes,
                              base_extent *extent)
{
    bth_layout_entry layout;

    if (entry->method != BTH_ZIP_STORED || entry->nbytes < MIN_CLONE_NBYTES ||
        bth_layout_entry_compute(entry->header_offset, entry->name_nbytes, entry->nbytes, 1,
                                 &layout) < 0)
        return false;
    uint64_t behind = entry->flags & BTH_ZIP_FLAG_DESCRIPTOR ? layout.descriptor_nbytes : 0;
    if (entry->next_offset < entry->nbytes + behind ||
        entry->next_offset - entry->nbytes - behind <= entry->header_offset)
        return false;
    uint64_t offset = entry->next_offset - entry->nbytes - behind;
    *extent = (base_extent){.nbytes = entry->nbytes,
                            .phase = offset & (block_nbytes - 1),
                            .crc32 = entry->crc32,
                            .number = name_number(entry->record),
                            .offset = offset};
    return true;
}

/* Reads the directory: the reader refuses what is not a whole zip archive (Z1 to Z9). */
static int base_read_directory(const bth_base *base, bth_zip_directory *directory,
                               berth_error *error)
{
    size_t tail_nbytes = (size_t)bth_min(base->nbytes, BTH_ZIP_TAIL_NBYTES);
    uint8_t *bytes = bth_allocate(tail_nbytes);
    bth_zip_end end = {0};

    if (!bytes)
        return bth_fail_memory(error, tail_nbytes);
    if (bth_file_read(base->fd, bytes, tail_nbytes, base->nbytes - tail_nbytes, error) == 0)
        bth_zip_find_end(bytes, tail_nbytes, base->nbytes, &end, error);
    bth_release(bytes);
    if (error->code != BERTH_OK)
        return error->code;
    bytes = bth_allocate((size_t)bth_max(end.directory_nbytes, 1));
    if (!bytes)
        return bth_fail_memory(error, end.directory_nbytes);
    if (bth_file_read(base->fd, bytes, (size_t)end.directory_nbytes, end.directory_offset, error) ==
        0)
        bth_zip_read_directory(bytes, &end, directory, error);
    bth_release(bytes);
    return error->code;
}

static const char *base_find_extents(const bth_base *base, base_extents *extents)
{
    bth_zip_directory directory = {0};
    berth_error error;

    bth_error_clear(&error);
    if (base_read_directory(base, &directory, &error) < 0)
        return error.code == BERTH_E_MEMORY ? "no memory for the directory of the base"
               : error.system_errno != 0    ? "the base cannot be read"
                                            : "the base is no zip archive, or no whole one";
    extents->items = bth_allocate(bth_array_nbytes(directory.n_entries + 1, sizeof(base_extent)));
    for (size_t i = 0; extents->items && i < directory.n_entries; i++)
        extents->n += entry_find_extent(&directory.entries[i], base->block_nbytes,
                                        &extents->items[extents->n]);
    bth_zip_free_directory(&directory);
    if (!extents->items)
        return "no memory for the directory of the base";
    qsort(extents->items, extents->n, sizeof *extents->items, extent_compare_numbers);
    return NULL;
}

/* ---- candidates ---- */

/* A record that the base may have. */
typedef struct base_candidate {
    size_t record;
    bth_range data;         /* in the new file, as all ranges here */
    bth_range blocks;       /* whole ones of it */
    bth_range whole;        /* storage, of which the record is a part, or all */
    uint64_t first_piece;   /* of its pieces, which end at multiples of piece_nbytes */
    uint64_t from;          /* where the whole storage may begin in the base; NOWHERE: not known */
    uint64_t tried;         /* there it was others; NOWHERE: none was tried */
    bool is_to_sum;         /* to find it by its CRC */
    _Atomic uint32_t crc32; /* of the pieces so far, each shifted to its position */
    _Atomic bool has_equal; /* pieces */
    _Atomic bool is_other;  /* a piece was, before any was equal: no more are compared */
} base_candidate;

typedef struct base_piece {
    bool is_equal; /* its whole blocks are */
    /* Of these blocks, as of bth_present. */
    uint32_t crc32;
    uint8_t start[BTH_ID_START_NBYTES];
} base_piece;

typedef struct base_cloning {
    bth_base *base;
    const bth_base_work *work;
    const berth_plan *plan; /* of the work */
    int clones;        /* a file that only this process has: clones lie there as in the new file */
    bth_direct direct; /* to read them; fd -1: through the page cache */
    base_candidate *candidates;
    size_t n_candidates;
    uint64_t piece_nbytes; /* whole blocks */
    uint64_t n_pieces;
    base_piece *pieces;
    uint8_t *allocated;
    uint8_t *buffers;      /* in it, aligned: for each worker one piece or, if it copies, two */
    bool has_size;         /* a storage of the base has that of one here, */
    bool has_other_offset; /* but at an offset that does not fit */
    bool has_clones;
    bool copies; /* some of the caller's bytes are not in memory, or in another order */
    _Atomic uint64_t compared_nbytes;
    bth_pool_watch watch;
    void *watch_context;
    bool is_cancelled; /* once the watch has said so: it may not say it again */
} base_cloning;

static bth_range range_intersect(bth_range a, bth_range b)
{
    uint64_t begin = bth_max(a.offset, b.offset);
    uint64_t end = bth_min(a.offset + a.nbytes, b.offset + b.nbytes);

    return (bth_range){begin, begin < end ? end - begin : 0};
}

static bth_range candidate_piece(const base_cloning *cloning, const base_candidate *candidate,
                                 uint64_t piece)
{
    uint64_t nbytes = cloning->piece_nbytes;
    uint64_t number = candidate->data.offset / nbytes + piece - candidate->first_piece;

    return range_intersect((bth_range){number * nbytes, nbytes}, candidate->data);
}

static base_candidate *cloning_find_candidate(const base_cloning *cloning, uint64_t piece)
{
    size_t low = 0, high = cloning->n_candidates;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (cloning->candidates[middle].first_piece <= piece)
            low = middle;
        else
            high = middle;
    }
    return &cloning->candidates[low];
}

/* Records that this process writes, and that have whole blocks. */
static const char *cloning_list_candidates(base_cloning *cloning)
{
    const berth_plan *plan = cloning->plan;
    const bth_range all = {0, plan->tail_offset};
    const bth_run_parts *own = &cloning->work->own;
    const bth_range *range = own->ranges ? own->ranges : &all;
    const bth_range *end = range + (own->ranges ? own->n_ranges : 1);
    uint64_t mask = cloning->base->block_nbytes - 1;
    bool has_device = false;

    cloning->candidates =
        bth_allocate_zeroed(bth_array_nbytes(plan->n_records + 1, sizeof *cloning->candidates));
    if (!cloning->candidates)
        return "no memory for the candidates";
    for (size_t i = 0; i < plan->n_records; i++) {
        bth_range data = bth_plan_data_range(plan, i);
        uint64_t first = bth_round_up(data.offset, mask + 1);
        uint64_t last = (data.offset + data.nbytes) & ~mask;
        if (!record_can_be_cloned(plan, i) || first >= last)
            continue;
        while (range < end && range->offset + range->nbytes <= first)
            range++;
        if (range == end || range->offset > first || range->offset + range->nbytes < last)
            continue;
        has_device |= plan->records[i].device != 0;
        if (plan->records[i].device)
            continue;
        cloning->candidates[cloning->n_candidates++] =
            (base_candidate){.record = i,
                             .data = data,
                             .blocks = {first, last - first},
                             .whole = cloning->work->wholes ? cloning->work->wholes[i] : data,
                             .from = NOWHERE,
                             .tried = NOWHERE};
        cloning->copies |= !bth_record_data_address(plan, i, 0);
    }
    return cloning->n_candidates > 0 ? NULL
           : has_device ? "storages on a device are not compared; a snapshot copies them first"
                        : "no storage of 64 KiB is written here";
}

/* Cuts the candidates into pieces, and allocates. */
static const char *cloning_prepare(base_cloning *cloning, const struct berth_config *config,
                                   unsigned *n_workers)
{
    uint64_t block_nbytes = cloning->base->block_nbytes, limit = (uint64_t)config->io_memory_nbytes;
    uint64_t n_copies = cloning->copies ? 2 : 1;
    uint64_t nbytes = bth_min(bth_workers_chunk_nbytes(config), PIECE_NBYTES) / n_copies;
    bth_pages pages = {.wanted = config->io_large_pages};

    if (limit > 0 && (nbytes + block_nbytes) * n_copies > limit)
        nbytes = limit / n_copies - bth_min(limit / n_copies, block_nbytes);
    nbytes &= ~(block_nbytes - 1);
    if (nbytes == 0)
        return "io.memory_nbytes is too little to compare";
    cloning->piece_nbytes = nbytes;
    for (size_t i = 0; i < cloning->n_candidates; i++) {
        base_candidate *candidate = &cloning->candidates[i];
        candidate->first_piece = cloning->n_pieces;
        cloning->n_pieces += (candidate->data.offset + candidate->data.nbytes - 1) / nbytes -
                             candidate->data.offset / nbytes + 1;
    }
    *n_workers = bth_workers_choose_count(config, BTH_WORKERS_WAIT, cloning->n_pieces,
                                          (nbytes + block_nbytes) * n_copies);
    uint64_t alignment =
        nbytes < BTH_LARGE_PAGE_NBYTES || limit > 0 ? block_nbytes : BTH_LARGE_PAGE_NBYTES;
    uint64_t memory_nbytes = *n_workers * nbytes * n_copies + alignment;
    cloning->base->memory_nbytes = memory_nbytes;
    cloning->pieces =
        bth_allocate_zeroed(bth_array_nbytes(cloning->n_pieces, sizeof *cloning->pieces));
    cloning->allocated = bth_allocate((size_t)memory_nbytes);
    if (!cloning->pieces || !cloning->allocated)
        return "no memory to compare";
    uintptr_t at = (uintptr_t)cloning->allocated;
    cloning->buffers = cloning->allocated + (bth_round_up(at, alignment) - at);
    if (alignment >= BTH_LARGE_PAGE_NBYTES)
        bth_pages_choose(&pages, cloning->buffers, (size_t)(memory_nbytes - alignment));
    return NULL;
}

/* A file without a name, and for its owner alone (X1). */
static const char *cloning_open_clones(base_cloning *cloning)
{
    const char *unused;

    BTH_REPEAT(cloning->clones,
               bth_system.openat(cloning->work->folder, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (cloning->clones < 0)
        return errno == EMFILE || errno == ENFILE
                   ? "no descriptor is left for a file to compare in"
                   : "its folder has no files without a name, to compare in";
    if (cloning->work->to->began_direct)
        (void)bth_direct_open(cloning->clones, O_RDONLY, &cloning->direct, &unused);
    return NULL;
}

/* ---- sums ---- */

/* The caller's bytes of a range of the file: where they are, or a copy. NULL: the error is set. */
static const uint8_t *cloning_get_bytes(const base_cloning *cloning, size_t record, bth_range range,
                                        uint8_t *copy, berth_error *error)
{
    uint64_t at = range.offset - cloning->plan->records[record].layout.data_offset;
    const uint8_t *bytes = bth_record_data_address(cloning->plan, record, at);

    if (bytes ||
        bth_record_data_read(cloning->plan, record, copy, (size_t)range.nbytes, at, error) < 0)
        return bytes;
    return copy;
}

static uint8_t *cloning_buffer(const base_cloning *cloning, unsigned worker)
{
    return cloning->buffers + worker * cloning->piece_nbytes * (cloning->copies ? 2 : 1);
}

/* Of bytes of a record, shifted over the rest of its data. */
static uint32_t candidate_sum(const base_candidate *candidate, const uint8_t *bytes,
                              bth_range range)
{
    uint64_t behind = candidate->data.offset + candidate->data.nbytes - range.offset - range.nbytes;
    uint32_t crc32 = bth_crc32(0, bytes, (size_t)range.nbytes);

    return behind > 0 ? bth_crc32_combine(crc32, 0, behind) : crc32;
}

static int cloning_sum_piece(void *context, uint64_t task, unsigned worker, berth_error *error)
{
    base_cloning *cloning = context;
    base_candidate *candidate = cloning_find_candidate(cloning, task);
    bth_range piece = candidate_piece(cloning, candidate, task);

    if (!candidate->is_to_sum)
        return 0;
    const uint8_t *bytes = cloning_get_bytes(cloning, candidate->record, piece,
                                             cloning_buffer(cloning, worker), error);
    if (!bytes)
        return error->code;
    atomic_fetch_xor(&candidate->crc32, candidate_sum(candidate, bytes, piece));
    return 0;
}

/* ---- where they may be ---- */

/* By their names and sizes. False: nothing is to be tried. */
static bool cloning_choose_by_name(base_cloning *cloning, const base_extents *extents)
{
    bool has_any = false;

    for (size_t i = 0; i < cloning->n_candidates; i++) {
        base_candidate *candidate = &cloning->candidates[i];
        const base_extent wanted = {
            .number = name_number(bth_plan_record_name(cloning->plan, candidate->record))};
        const base_extent *found = wanted.number == NO_NUMBER
                                       ? NULL
                                       : bsearch(&wanted, extents->items, extents->n, sizeof wanted,
                                                 extent_compare_numbers);
        if (!found || found->nbytes != candidate->whole.nbytes)
            continue;
        cloning->has_size = true;
        if (found->phase != (candidate->whole.offset & (cloning->base->block_nbytes - 1))) {
            cloning->has_other_offset = true;
            continue;
        }
        candidate->from = found->offset;
        has_any = true;
    }
    return has_any;
}

/* Of those that were not found so: what may be found by its CRC. False: nothing. */
static bool cloning_choose_to_sum(base_cloning *cloning, base_extents *extents)
{
    uint64_t mask = cloning->base->block_nbytes - 1;
    bool has_any = false;

    qsort(extents->items, extents->n, sizeof *extents->items, extent_compare_sums);
    for (size_t i = 0; i < cloning->n_candidates; i++) {
        base_candidate *candidate = &cloning->candidates[i];
        uint64_t nbytes = candidate->data.nbytes, phase = candidate->data.offset & mask;
        candidate->tried = candidate->from;
        candidate->from = NOWHERE;
        if (atomic_load(&candidate->has_equal))
            continue;
        const base_extent *extent = extents_find(extents, nbytes, 0, 0, 0);
        if (!extent || extent->nbytes != nbytes)
            continue;
        cloning->has_size = true;
        extent = extents_find(extents, nbytes, phase, 0, 0);
        candidate->is_to_sum = extent && extent->nbytes == nbytes && extent->phase == phase;
        has_any |= candidate->is_to_sum;
        cloning->has_other_offset |= !candidate->is_to_sum;
    }
    return has_any;
}

/*
 * By their sums, which become the plan's if the bytes are in memory, but for one that is not what
 * the caller said: the run sums that record again, and refuses it. What a function reads may be
 * other bytes the next time: the run sums what it writes, and adds what is present.
 */
static bool cloning_choose_by_sum(base_cloning *cloning, const base_extents *extents)
{
    uint64_t mask = cloning->base->block_nbytes - 1;
    bool has_any = false;

    for (size_t i = 0; i < cloning->n_candidates; i++) {
        base_candidate *candidate = &cloning->candidates[i];
        bth_plan_record *record = &cloning->work->plan->records[candidate->record];
        uint64_t nbytes = candidate->data.nbytes, phase = candidate->data.offset & mask;
        uint32_t crc32 = atomic_load(&candidate->crc32);
        if (!candidate->is_to_sum || (record->crc32 != 0 && record->crc32 != crc32))
            continue;
        if (bth_record_data_address(cloning->plan, candidate->record, 0)) {
            record->crc32 = crc32;
            record->is_summed = true;
        }
        const base_extent *extent = extents_find(extents, nbytes, phase, crc32, 0);
        if (extent && extent->offset == candidate->tried)
            extent = extents_find(extents, nbytes, phase, crc32, candidate->tried + 1);
        if (!extent || extent->nbytes != nbytes || extent->phase != phase || extent->crc32 != crc32)
            continue;
        candidate->from = extent->offset;
        atomic_store(&candidate->is_other, false);
        has_any = true;
    }
    return has_any;
}

/* ---- clones ---- */

static int cloning_watch(void *context)
{
    base_cloning *cloning = context;

    cloning->is_cancelled = cloning->is_cancelled || cloning->watch(cloning->watch_context) != 0;
    return cloning->is_cancelled;
}

/* A stretch of the new file, and where it is cloned from. */
typedef struct clone_run {
    bth_range range;
    uint64_t from;
} clone_run;

static const char *clone_run_do(base_cloning *cloning, const clone_run *run, int from, int to)
{
    if (cloning_watch(cloning) != 0)
        return "cancelled";
    return clone_range(from, to, run->from, run->range);
}

/* Adds a range to the run. False: it does not follow. */
static bool clone_run_extend(clone_run *run, bth_range range, uint64_t from, uint64_t max_gap)
{
    if (run->range.nbytes == 0)
        *run = (clone_run){range, from};
    else if (range.offset - run->range.offset - run->range.nbytes > max_gap ||
             from - run->from != range.offset - run->range.offset ||
             run->range.nbytes >= MAX_CLONE_NBYTES)
        return false;
    run->range.nbytes = range.offset + range.nbytes - run->range.offset;
    return true;
}

/* Clones the whole blocks of all candidates, neighbours by one call. After a failure no more: those
 * are compared with whatever is there. What an earlier call found equal lies in no gap, and stays.
 */
static const char *cloning_clone_all(base_cloning *cloning)
{
    clone_run run = {{0, 0}, 0};
    const char *reason = NULL;

    for (size_t i = 0; i < cloning->n_candidates && !reason; i++) {
        const base_candidate *candidate = &cloning->candidates[i];
        uint64_t from = candidate->from + (candidate->blocks.offset - candidate->whole.offset);
        if (candidate->from == NOWHERE ||
            clone_run_extend(&run, candidate->blocks, from, MAX_GAP_NBYTES))
            continue;
        reason = clone_run_do(cloning, &run, cloning->base->fd, cloning->clones);
        run = (clone_run){candidate->blocks, from};
    }
    if (run.range.nbytes > 0 && !reason)
        reason = clone_run_do(cloning, &run, cloning->base->fd, cloning->clones);
    cloning->has_clones = true;
    return reason;
}

/* ---- comparing ---- */

/* False: not read, and then not shared. */
static bool cloning_read(const base_cloning *cloning, bth_range range, uint8_t *bytes)
{
    size_t done_nbytes = 0, nbytes = (size_t)range.nbytes;
    bool is_refused = false;
    berth_error error;

    bth_error_clear(&error);
    if (cloning->direct.fd >= 0 && bth_direct_read(&cloning->direct, bytes, nbytes, range.offset,
                                                   &done_nbytes, &is_refused, &error) < 0)
        return false;
    return done_nbytes == nbytes ||
           bth_file_read(cloning->clones, bytes, nbytes, range.offset, &error) == 0;
}

static int cloning_compare_piece(void *context, uint64_t task, unsigned worker, berth_error *error)
{
    base_cloning *cloning = context;
    base_candidate *candidate = cloning_find_candidate(cloning, task);
    base_piece *piece = &cloning->pieces[task];
    uint8_t *buffer = cloning_buffer(cloning, worker);
    bth_range blocks =
        range_intersect(candidate_piece(cloning, candidate, task), candidate->blocks);

    if (candidate->from == NOWHERE || piece->is_equal || atomic_load(&candidate->is_other) ||
        blocks.nbytes == 0 || !cloning_read(cloning, blocks, buffer))
        return 0;
    const uint8_t *bytes = cloning_get_bytes(cloning, candidate->record, blocks,
                                             buffer + cloning->piece_nbytes, error);
    if (!bytes)
        return error->code;
    atomic_fetch_add(&cloning->compared_nbytes, blocks.nbytes);
    if (memcmp(bytes, buffer, (size_t)blocks.nbytes) != 0) { /* W12 */
        if (!atomic_load(&candidate->has_equal))
            atomic_store(&candidate->is_other, true);
        return 0;
    }
    piece->is_equal = true;
    atomic_store(&candidate->has_equal, true);
    memcpy(piece->start, buffer, sizeof piece->start);
    /* Of what the file will have: the caller's may be others the next time. */
    if (!cloning->plan->records[candidate->record].is_summed)
        piece->crc32 = candidate_sum(candidate, buffer, blocks);
    return 0;
}

/* Clones and compares what was chosen. */
static int cloning_try(base_cloning *cloning, unsigned n_workers, berth_error *error)
{
    cloning->base->reason = cloning_clone_all(cloning);
    return bth_pool_run(n_workers, cloning->n_pieces, cloning_compare_piece, cloning_watch, cloning,
                        error);
}

/* ---- what is left to write ---- */

/* Names, and all that is not a storage, decide where storages lie. */
#define OTHER_OFFSETS                                                                              \
    "storages lie at offsets that differ modulo the block: save.storage_alignment=4096 prevents "  \
    "that"

/*
 * Clones what is equal into the new file. After a failure no more. What a call that has failed may
 * have changed is made a hole again: a write there would need a copy, for which nothing is
 * reserved.
 */
static const char *cloning_share(base_cloning *cloning)
{
    int to = cloning->work->to->fd;
    clone_run run = {{0, 0}, 0};
    const char *reason = NULL;
    uint64_t first = 0; /* piece of the run */

    for (uint64_t i = 0; i <= cloning->n_pieces && !reason; i++) {
        bth_range blocks = {UINT64_MAX, 0};
        if (i < cloning->n_pieces && !cloning->pieces[i].is_equal)
            continue;
        if (i < cloning->n_pieces) {
            const base_candidate *candidate = cloning_find_candidate(cloning, i);
            blocks = range_intersect(candidate_piece(cloning, candidate, i), candidate->blocks);
            if (clone_run_extend(&run, blocks, blocks.offset, 0))
                continue;
        }
        if (run.range.nbytes > 0 && (reason = clone_run_do(cloning, &run, cloning->clones, to))) {
            (void)bth_system.fallocate(to, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                       (off_t)run.range.offset, (off_t)run.range.nbytes);
            for (; first < cloning->n_pieces; first++)
                cloning->pieces[first].is_equal = false;
        }
        run = (clone_run){blocks, blocks.offset};
        first = i;
    }
    return reason;
}

/* What is equal is present; of the work's ranges the rest is left. */
static int cloning_make_parts(const base_cloning *cloning, bth_base *base, berth_stats *stats,
                              berth_error *error)
{
    const bth_range all = {0, cloning->plan->tail_offset};
    const bth_run_parts *own = &cloning->work->own;
    const bth_range *own_ranges = own->ranges ? own->ranges : &all;
    size_t n_own = own->ranges ? own->n_ranges : 1, n_ranges = 0, n_present = own->n_present;
    size_t n = (size_t)cloning->n_pieces + n_own + n_present;
    uint64_t piece = 0;

    base->present = bth_allocate(bth_array_nbytes(n, sizeof *base->present));
    base->ranges = bth_allocate(bth_array_nbytes(n, sizeof *base->ranges));
    if (!base->ranges || !base->present)
        return bth_fail_memory(error, bth_array_nbytes(n, sizeof *base->present));
    if (n_present > 0)
        memcpy(base->present, own->present, n_present * sizeof *base->present);
    for (size_t i = 0; i < n_own; i++) {
        uint64_t at = own_ranges[i].offset, end = at + own_ranges[i].nbytes;
        size_t first = n_present;
        for (; piece < cloning->n_pieces; piece++) {
            const base_candidate *candidate = cloning_find_candidate(cloning, piece);
            bth_range blocks =
                range_intersect(candidate_piece(cloning, candidate, piece), candidate->blocks);
            const base_piece *found = &cloning->pieces[piece];
            if (candidate->blocks.offset >= end)
                break;
            if (!found->is_equal)
                continue;
            stats->shared_nbytes += blocks.nbytes;
            if (n_present > first && blocks.offset == at &&
                base->present[n_present - 1].record == candidate->record) {
                base->present[n_present - 1].range.nbytes += blocks.nbytes;
                base->present[n_present - 1].crc32 ^= found->crc32;
            } else {
                if (blocks.offset > at)
                    base->ranges[n_ranges++] = (bth_range){at, blocks.offset - at};
                base->present[n_present] = (bth_present){
                    .record = candidate->record, .range = blocks, .crc32 = found->crc32};
                memcpy(base->present[n_present++].start, found->start, sizeof found->start);
            }
            at = blocks.offset + blocks.nbytes;
        }
        if (at < end)
            base->ranges[n_ranges++] = (bth_range){at, end - at};
    }
    if (n_present > own->n_present)
        base->parts = (bth_run_parts){base->ranges, n_ranges, base->present, n_present};
    return 0;
}

static int work_reserve_range(const bth_base_work *work, uint64_t begin, uint64_t end,
                              berth_error *error)
{
    int to = work->to->fd, result;

    BTH_REPEAT(result, bth_system.fallocate(to, 0, (off_t)begin, (off_t)(end - begin)));
    if (result == 0 || (errno != ENOSPC && errno != EDQUOT))
        return 0;
    return bth_fail_no_space(error, errno, NULL, BERTH_NO_OFFSET,
                             bth_output_file_own_and_free_room(to), work->plan->nbytes, 0);
}

/*
 * Room for what is left to write (W1). One call for all of the file asks XFS for the room of all,
 * with what is shared; if there is not so much, or others write the rest, each range is asked for.
 */
static int work_reserve(const bth_base_work *work, const bth_run_parts *left, berth_error *error)
{
    const berth_plan *plan = work->plan;
    berth_error ignored;

    bth_error_clear(&ignored);
    if (!work->wholes && work_reserve_range(work, 0, plan->nbytes, &ignored) == 0)
        return 0;
    if (!left->ranges)
        return work_reserve_range(work, 0, plan->nbytes, error);
    for (size_t i = 0; i < left->n_ranges; i++) {
        uint64_t end = left->ranges[i].offset + left->ranges[i].nbytes;
        if (work_reserve_range(work, left->ranges[i].offset,
                               end == plan->tail_offset ? plan->nbytes : end, error) < 0)
            return error->code;
    }
    return 0;
}

static const char *cloning_reason(const base_cloning *cloning)
{
    return cloning->has_clones         ? "the bytes of the base are others"
           : cloning->has_other_offset ? OTHER_OFFSETS
           : cloning->has_size     ? "no storage has the name or the checksum of one of the base"
           : cloning->work->wholes ? "the base has no storage of the same name and size"
                                   : "no storage of the base has the same size";
}

int bth_base_clone(bth_base *base, const bth_base_work *work, const struct berth_config *config,
                   bth_pool_watch watch, void *context, berth_stats *stats, berth_error *error)
{
    base_cloning cloning = {.base = base,
                            .work = work,
                            .plan = work->plan,
                            .clones = -1,
                            .direct.fd = -1,
                            .watch = watch,
                            .watch_context = context};
    base_extents extents = {0};
    unsigned n_workers = 1;

    base->parts = work->own;
    base->reason = cloning_list_candidates(&cloning);
    if (!base->reason)
        base->reason = base_find_extents(base, &extents);
    if (!base->reason)
        base->reason = cloning_prepare(&cloning, config, &n_workers);
    if (!base->reason)
        base->reason = cloning_open_clones(&cloning);
    bool is_possible = !base->reason;
    if (is_possible && cloning_choose_by_name(&cloning, &extents))
        (void)cloning_try(&cloning, n_workers, error);
    /* The CRC of a storage of which a record is a part is not known. */
    if (is_possible && !base->reason && error->code == BERTH_OK && !work->wholes &&
        cloning_choose_to_sum(&cloning, &extents) &&
        bth_pool_run(n_workers, cloning.n_pieces, cloning_sum_piece, cloning_watch, &cloning,
                     error) == 0 &&
        cloning_choose_by_sum(&cloning, &extents))
        (void)cloning_try(&cloning, n_workers, error);
    if (is_possible && error->code == BERTH_OK) {
        const char *reason = cloning_share(&cloning);
        base->reason = base->reason ? base->reason : reason;
        (void)cloning_make_parts(&cloning, base, stats, error);
        if (!base->reason && stats->shared_nbytes == 0)
            base->reason = cloning_reason(&cloning);
    }
    /* A quota counts what is shared in each file: without this one first. */
    bth_direct_close(&cloning.direct);
    bth_file_close(cloning.clones);
    if (cloning.is_cancelled && error->code == BERTH_OK)
        (void)bth_fail_status(error, BERTH_E_CANCELLED, "cancelled");
    if (error->code == BERTH_OK)
        (void)work_reserve(work, &base->parts, error);
    stats->compared_nbytes += atomic_load(&cloning.compared_nbytes);
    bth_release(cloning.candidates);
    bth_release(cloning.pieces);
    bth_release(cloning.allocated);
    bth_release(extents.items);
    bth_file_close(base->fd);
    base->fd = -1;
    return error->code;
}
