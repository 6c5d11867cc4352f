/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/base_file.h"

#include <errno.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/checksum.h"
#include "format/zip/zip.h"
#include "io/file.h"
#include "io/memory_region.h"
#include "io/syscalls.h"
#include "save/image.h"

/* Shorter clones cost more than their bytes: a call, and an extent in the metadata of the file. */
#define MIN_CLONE_NBYTES ((uint64_t)64 * 1024)
/* Neighbours are cloned by one call, with what lies between them, which is written afterwards. */
#define MAX_GAP_NBYTES ((uint64_t)64 * 1024)
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

/* NULL: it is cloned. */
static const char *base_clone_range(const bth_base *base, int to, uint64_t from, uint64_t offset,
                                    uint64_t nbytes)
{
    struct file_clone_range range = {
        .src_fd = base->fd, .src_offset = from, .src_length = nbytes, .dest_offset = offset};
    int result;

    BTH_REPEAT(result, bth_system.ioctl(to, FICLONERANGE, &range));
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

/*
 * X1: until they are found equal, blocks of the base are in the temporary. So long nobody but its
 * owner can open it, and that is who opened the base.
 */
static const char *base_hide_temporary(bth_base *base, int to)
{
    struct stat old, new;

    if (bth_system.fstat(base->fd, &old) < 0 || bth_system.fstat(to, &new) < 0)
        return "the base cannot be examined";
    if (new.st_uid != geteuid() && new.st_uid != old.st_uid)
        return "the new file belongs to another user";
    if ((new.st_mode & 077) != 0 && bth_system.fchmod(to, new.st_mode & 0700) < 0)
        return "the new file cannot be kept private while it is compared";
    base->hidden_mode = new.st_mode & 077 ? new.st_mode & 0777 : 0;
    return NULL;
}

static int base_show_temporary(bth_base *base, int to, berth_error *error)
{
    mode_t mode = base->hidden_mode;

    base->hidden_mode = 0;
    if (mode == 0 || bth_system.fchmod(to, mode) == 0)
        return 0;
    return bth_fail_system(error, errno, "the rights of its temporary file cannot be set");
}

/*
 * Takes blocks out of the temporary that are not shared, or not wholly. What is written there needs
 * no copy on write then, for which nothing was reserved. On btrfs, blocks that were reserved stay
 * in use as long as a part of them does.
 */
static int base_punch(int to, const bth_range *ranges, size_t n_ranges)
{
    for (size_t i = 0; i < n_ranges; i++)
        if (ranges[i].nbytes > 0 &&
            bth_system.fallocate(to, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                 (off_t)ranges[i].offset, (off_t)ranges[i].nbytes) < 0)
            return -1;
    return 0;
}

/* When a hole cannot be made: nothing is shared. */
static int base_give_up(bth_base *base, int to, berth_error *error)
{
    base->parts = (bth_run_parts){0};
    base->reason = "the file system cannot take blocks out of a file";
    return bth_system.ftruncate(to, 0) < 0 ? bth_fail_system(error, errno, "cannot be cut") : 0;
}

/* Asks for a range behind the end of the base: what shares blocks says that there is none (EINVAL),
 * and nothing is cloned. */
static const char *base_ask_file_system(const bth_base *base, int to)
{
    uint64_t behind = bth_round_up(base->nbytes, base->block_nbytes) + base->block_nbytes;
    const char *reason = base_clone_range(base, to, behind, 0, base->block_nbytes);

    return reason && errno != EINVAL ? reason : NULL;
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

/* The data of a record of the base, as its directory tells them. */
typedef struct base_extent {
    uint64_t nbytes;
    uint64_t phase; /* its offset modulo the block */
    uint32_t crc32;
    uint64_t offset;
} base_extent;

typedef struct base_extents {
    base_extent *items; /* sorted */
    size_t n;
} base_extents;

static int extent_compare(const void *left, const void *right)
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

/* The first extent that is not below these; NULL: all are. */
static const base_extent *extents_find(const base_extents *extents, uint64_t nbytes, uint64_t phase,
                                       uint32_t crc32)
{
    const base_extent wanted = {.nbytes = nbytes, .phase = phase, .crc32 = crc32};
    size_t low = 0, high = extents->n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (extent_compare(&extents->items[middle], &wanted) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < extents->n ? &extents->items[low] : NULL;
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
    qsort(extents->items, extents->n, sizeof *extents->items, extent_compare);
    return NULL;
}

/* ---- candidates ---- */

/* A storage that the base may have. */
typedef struct base_candidate {
    size_t record;
    bth_range data;            /* in the new file */
    uint64_t first_piece;      /* of its pieces, which end at multiples of piece_nbytes */
    _Atomic uint32_t crc32;    /* of the pieces so far, each shifted to its position */
    const base_extent *extent; /* of the same CRC; NULL: none is cloned */
} base_candidate;

typedef struct base_piece {
    bool is_equal; /* its whole blocks are cloned, and equal */
    /* Of these blocks, as of bth_present. */
    uint32_t crc32;
    uint8_t start[BTH_ID_START_NBYTES];
} base_piece;

typedef struct base_cloning {
    bth_base *base;
    const berth_plan *plan;
    const bth_output_file *to;
    bth_direct direct; /* to read the clones; fd -1: through the page cache */
    base_candidate *candidates;
    size_t n_candidates;
    uint64_t piece_nbytes; /* whole blocks */
    uint64_t n_pieces;
    base_piece *pieces;
    uint8_t *allocated;
    uint8_t *buffers;      /* in it, aligned: for each worker one piece or, if it copies, two */
    bool has_other_offset; /* a storage of the base has the size, at an offset that does not fit */
    bool copies;           /* some of the caller's bytes are not in memory, or in another order */
    _Atomic uint64_t compared_nbytes;
    bth_pool_watch watch;
    void *watch_context;
} base_cloning;

static bth_range range_intersect(bth_range a, bth_range b)
{
    uint64_t begin = bth_max(a.offset, b.offset);
    uint64_t end = bth_min(a.offset + a.nbytes, b.offset + b.nbytes);

    return (bth_range){begin, begin < end ? end - begin : 0};
}

static bth_range range_whole_blocks(bth_range range, uint64_t block_nbytes)
{
    uint64_t begin = bth_round_up(range.offset, block_nbytes);
    uint64_t end = (range.offset + range.nbytes) & ~(block_nbytes - 1);

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

/* Names, and all that is not a storage, decide where storages lie. */
#define OTHER_OFFSETS                                                                              \
    "storages lie at offsets that differ modulo the block: save.storage_alignment=4096 prevents "  \
    "that"

/* Storages for which the base has one of the same size, at an offset that fits. */
static const char *cloning_list_candidates(base_cloning *cloning, const base_extents *extents)
{
    const berth_plan *plan = cloning->plan;
    uint64_t mask = cloning->base->block_nbytes - 1;
    bool has_device = false, has_size = false;

    cloning->candidates =
        bth_allocate_zeroed(bth_array_nbytes(plan->n_records, sizeof *cloning->candidates));
    if (!cloning->candidates)
        return "no memory for the candidates";
    for (size_t i = 0; i < plan->n_records; i++) {
        bth_range data = bth_plan_data_range(plan, i);
        if (!record_can_be_cloned(plan, i))
            continue;
        has_device |= plan->records[i].device != 0;
        const base_extent *extent = extents_find(extents, data.nbytes, 0, 0);
        if (!extent || extent->nbytes != data.nbytes)
            continue;
        has_size = true;
        extent = extents_find(extents, data.nbytes, data.offset & mask, 0);
        if (plan->records[i].device || !extent || extent->nbytes != data.nbytes ||
            extent->phase != (data.offset & mask)) {
            cloning->has_other_offset |= !plan->records[i].device;
            continue;
        }
        cloning->candidates[cloning->n_candidates++] = (base_candidate){.record = i, .data = data};
        cloning->copies |= !bth_record_data_address(plan, i, 0);
    }
    if (cloning->n_candidates > 0)
        return NULL;
    return has_device ? "storages on a device are not compared; a snapshot copies them first"
           : has_size ? OTHER_OFFSETS
                      : "no storage of the base has the same size";
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
    const uint8_t *bytes = cloning_get_bytes(cloning, candidate->record, piece,
                                             cloning_buffer(cloning, worker), error);

    if (!bytes)
        return error->code;
    atomic_fetch_xor(&candidate->crc32, candidate_sum(candidate, bytes, piece));
    return 0;
}

/*
 * Finds the extents of the same CRC. The sums of what is in memory become the plan's, but for one
 * that is not what the caller said: the run sums that record again, and refuses it. What a function
 * reads may be other bytes the next time: the run sums what it writes, and adds what is present.
 */
static const char *cloning_choose(base_cloning *cloning, berth_plan *plan,
                                  const base_extents *extents)
{
    uint64_t mask = cloning->base->block_nbytes - 1;
    bool has_any = false;

    for (size_t i = 0; i < cloning->n_candidates; i++) {
        base_candidate *candidate = &cloning->candidates[i];
        bth_plan_record *record = &plan->records[candidate->record];
        uint64_t nbytes = candidate->data.nbytes, phase = candidate->data.offset & mask;
        uint32_t crc32 = atomic_load(&candidate->crc32);
        if (record->crc32 != 0 && record->crc32 != crc32)
            continue;
        if (bth_record_data_address(plan, candidate->record, 0)) {
            record->crc32 = crc32;
            record->is_summed = true;
        }
        const base_extent *extent = extents_find(extents, nbytes, phase, crc32);
        if (!extent || extent->nbytes != nbytes || extent->phase != phase || extent->crc32 != crc32)
            continue;
        candidate->extent = extent;
        has_any = true;
    }
    return has_any                     ? NULL
           : cloning->has_other_offset ? OTHER_OFFSETS
                                       : "no storage has the checksum of one of the base";
}

/* ---- clones ---- */

static int cloning_watch(void *context)
{
    const base_cloning *cloning = context;

    return cloning->watch(cloning->watch_context);
}

/* Candidates [first, end) are not cloned. */
static void cloning_drop(base_cloning *cloning, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++)
        cloning->candidates[i].extent = NULL;
}

/*
 * Clones the whole blocks of all candidates, neighbours by one call. After a failure no more: what
 * such a call has changed is written like all else.
 */
static const char *cloning_clone_all(base_cloning *cloning)
{
    bth_range run = {0}; /* of the new file; */
    uint64_t from = 0;   /* it begins there in the base, */
    size_t first = 0;    /* and with this candidate */
    const char *reason = NULL;

    for (size_t i = 0; i <= cloning->n_candidates && !reason; i++) {
        const base_candidate *candidate =
            i < cloning->n_candidates ? &cloning->candidates[i] : NULL;
        if (candidate &&
            (!candidate->extent ||
             range_whole_blocks(candidate->data, cloning->base->block_nbytes).nbytes == 0))
            continue;
        bth_range blocks = {0};
        uint64_t blocks_from = 0, end = run.offset + run.nbytes;
        if (candidate) {
            blocks = range_whole_blocks(candidate->data, cloning->base->block_nbytes);
            blocks_from = candidate->extent->offset + (blocks.offset - candidate->data.offset);
        }
        if (candidate && run.nbytes > 0 && blocks.offset - end <= MAX_GAP_NBYTES &&
            blocks_from - from == blocks.offset - run.offset && run.nbytes < MAX_CLONE_NBYTES) {
            run.nbytes = blocks.offset + blocks.nbytes - run.offset;
            continue;
        }
        if (run.nbytes > 0 && cloning_watch(cloning) != 0)
            reason = "cancelled";
        else if (run.nbytes > 0)
            reason = base_clone_range(cloning->base, cloning->to->fd, from, run.offset, run.nbytes);
        if (reason)
            cloning_drop(cloning, first, cloning->n_candidates);
        run = blocks;
        from = blocks_from;
        first = i;
    }
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
           bth_file_read(cloning->to->fd, bytes, nbytes, range.offset, &error) == 0;
}

static int cloning_compare_piece(void *context, uint64_t task, unsigned worker, berth_error *error)
{
    base_cloning *cloning = context;
    const base_candidate *candidate = cloning_find_candidate(cloning, task);
    base_piece *piece = &cloning->pieces[task];
    uint8_t *buffer = cloning_buffer(cloning, worker);
    bth_range blocks =
        range_whole_blocks(candidate_piece(cloning, candidate, task), cloning->base->block_nbytes);

    if (!candidate->extent || blocks.nbytes == 0 || !cloning_read(cloning, blocks, buffer))
        return 0;
    const uint8_t *bytes = cloning_get_bytes(cloning, candidate->record, blocks,
                                             buffer + cloning->piece_nbytes, error);
    if (!bytes)
        return error->code;
    piece->is_equal = memcmp(bytes, buffer, (size_t)blocks.nbytes) == 0; /* W12 */
    memcpy(piece->start, buffer, sizeof piece->start);
    if (piece->is_equal && !cloning->plan->records[candidate->record].is_summed)
        piece->crc32 = candidate_sum(candidate, buffer, blocks);
    atomic_fetch_add(&cloning->compared_nbytes, blocks.nbytes);
    return 0;
}

/* ---- what is left to write ---- */

/* What is equal is present; the ranges are all between, and have no block of the base any more. */
static int cloning_make_parts(const base_cloning *cloning, bth_base *base, berth_stats *stats,
                              berth_error *error)
{
    size_t n = (size_t)cloning->n_pieces + 1, n_ranges = 0, n_present = 0;
    uint64_t at = 0; /* where the range before ends */

    base->present = bth_allocate(bth_array_nbytes(n, sizeof *base->present));
    base->ranges = bth_allocate(bth_array_nbytes(n, sizeof *base->ranges));
    if (!base->ranges || !base->present)
        return bth_fail_memory(error, bth_array_nbytes(n, sizeof *base->present));
    for (uint64_t piece = 0; piece < cloning->n_pieces; piece++) {
        const base_candidate *candidate = cloning_find_candidate(cloning, piece);
        size_t record = candidate->record;
        bth_range blocks = range_whole_blocks(candidate_piece(cloning, candidate, piece),
                                              cloning->base->block_nbytes);
        const base_piece *found = &cloning->pieces[piece];
        if (!found->is_equal)
            continue;
        stats->shared_nbytes += blocks.nbytes;
        if (n_present > 0 && base->present[n_present - 1].record == record && blocks.offset == at) {
            base->present[n_present - 1].range.nbytes += blocks.nbytes;
            base->present[n_present - 1].crc32 ^= found->crc32;
        } else {
            if (blocks.offset > at)
                base->ranges[n_ranges++] = (bth_range){at, blocks.offset - at};
            base->present[n_present] =
                (bth_present){.record = record, .range = blocks, .crc32 = found->crc32};
            memcpy(base->present[n_present++].start, found->start, sizeof found->start);
        }
        at = blocks.offset + blocks.nbytes;
    }
    uint64_t end = bth_round_up(cloning->plan->nbytes, base->block_nbytes);
    base->ranges[n_ranges++] = (bth_range){at, end - at};
    if (base_punch(cloning->to->fd, base->ranges, n_ranges) < 0) {
        stats->shared_nbytes = 0;
        return base_give_up(base, cloning->to->fd, error);
    }
    base->ranges[n_ranges - 1].nbytes = cloning->plan->tail_offset - at;
    if (n_present > 0)
        base->parts = (bth_run_parts){base->ranges, n_ranges, base->present, n_present};
    return 0;
}

static void cloning_free(base_cloning *cloning)
{
    bth_direct_close(&cloning->direct);
    bth_release(cloning->candidates);
    bth_release(cloning->pieces);
    bth_release(cloning->allocated);
}

int bth_base_clone(bth_base *base, berth_plan *plan, const bth_output_file *to,
                   const struct berth_config *config, bth_pool_watch watch, void *context,
                   berth_stats *stats, berth_error *error)
{
    base_cloning cloning = {.base = base,
                            .plan = plan,
                            .to = to,
                            .direct.fd = -1,
                            .watch = watch,
                            .watch_context = context};
    base_extents extents = {0};
    unsigned n_workers = 1;
    const char *unused;

    base->reason = base_find_extents(base, &extents);
    if (!base->reason)
        base->reason = cloning_list_candidates(&cloning, &extents);
    if (!base->reason)
        base->reason = cloning_prepare(&cloning, config, &n_workers);
    if (!base->reason && bth_pool_run(n_workers, cloning.n_pieces, cloning_sum_piece, cloning_watch,
                                      &cloning, error) == 0)
        base->reason = cloning_choose(&cloning, plan, &extents);
    if (!base->reason && error->code == BERTH_OK) {
        if (to->began_direct)
            (void)bth_direct_open(to->fd, O_RDONLY, &cloning.direct, &unused);
        base->reason = base_hide_temporary(base, to->fd);
        if (!base->reason)
            base->reason = cloning_clone_all(&cloning);
        else
            cloning_drop(&cloning, 0, cloning.n_candidates);
        if (bth_pool_run(n_workers, cloning.n_pieces, cloning_compare_piece, cloning_watch,
                         &cloning, error) == 0)
            (void)cloning_make_parts(&cloning, base, stats, error);
        if (error->code == BERTH_OK)
            (void)base_show_temporary(base, to->fd, error);
        stats->compared_nbytes = atomic_load(&cloning.compared_nbytes);
        if (!base->reason && stats->shared_nbytes == 0)
            base->reason = "the bytes of the base are others, though their checksums are equal";
    }
    cloning_free(&cloning);
    bth_release(extents.items);
    bth_file_close(base->fd);
    base->fd = -1;
    return error->code;
}
