/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/image.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/trace.h"
#include "format/checksum.h"
#include "format/values/value.h"
#include "format/zip/zip.h"
#include "io/memory_region.h"
#include "save/staging_slots.h"

/* ---- what lies where ---- */

size_t bth_plan_find_record_by_offset(const berth_plan *plan, uint64_t offset)
{
    size_t low = 0, high = plan->n_records;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (plan->records[middle].layout.next_offset > offset)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

size_t bth_plan_find_directory_entry(const berth_plan *plan, uint64_t offset)
{
    size_t low = 0, high = plan->n_records;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (plan->records[middle].central_offset <= offset)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The bytes of .data/serialization_id, which need the names and the CRCs of all other records. */

void bth_image_compute_id(bth_image *image)
{
    const berth_plan *plan = image->plan;
    size_t id = plan->id_index;
    uint64_t crc32s = 0;

    if (id == BTH_NO_RECORD)
        return;
    for (size_t i = 0; i < id; i++)
        crc32s = bth_id_combine_record(crc32s, image->starts[i], plan->records[i].layout.nbytes,
                                       bth_image_crc32(image, i));
    bth_id_write(image->names_hash, crc32s, image->id);
    if (!image->sums)
        return;
    atomic_store(&image->sums[id].crc32, bth_crc32(0, image->id, sizeof image->id));
    atomic_store(&image->sums[id].missing_nbytes, 0);
}

/* ---- a record's data, in the byte order of the file ---- */

/* In the machine's byte order. */
static int record_read_unswapped(const berth_plan *plan, size_t i, uint8_t *out, size_t nbytes,
                                 uint64_t at, berth_error *error)
{
    const bth_plan_record *record = &plan->records[i];
    const char *name = bth_plan_record_name(plan, i);
    const uint8_t *data = record->data;

    if (!data && record->storage) {
        const berth_storage *storage = bth_storage_resolve_view(record->storage, &at);
        data = storage->data;
        if (!data && !storage->read)
            return bth_fail(error, BERTH_E_ARGUMENT, name, BERTH_NO_OFFSET,
                            "the storage has no bytes");
        if (!data) {
            (void)storage->read(storage, out, nbytes, at, error);
            return bth_error_add_record(error, name);
        }
    }
    if (data) {
        memcpy(out, data + at, nbytes);
        return 0;
    }
    int failure = record->read(record->context, out, nbytes, at);
    if (failure == 0)
        return 0;
    bth_fail_errno(error, failure < 0 ? -failure : failure, name, record->layout.data_offset + at,
                   "the caller's read failed");
    error->code = BERTH_E_CALLBACK;
    return error->code;
}

const uint8_t *bth_record_data_address(const berth_plan *plan, size_t i, uint64_t at)
{
    const bth_plan_record *record = &plan->records[i];
    const berth_storage *storage = record->storage;

    if (record->swap_nbytes > 1)
        return NULL;
    if (record->data)
        return (const uint8_t *)record->data + at;
    if (!storage)
        return NULL;
    storage = bth_storage_resolve_view(storage, &at);
    return storage->data ? (const uint8_t *)storage->data + at : NULL;
}

int bth_record_data_read(const berth_plan *plan, size_t i, uint8_t *out, size_t nbytes, uint64_t at,
                         berth_error *error)
{
    size_t unit = plan->records[i].swap_nbytes;
    uint8_t element[16] = {0};

    if (unit <= 1)
        return record_read_unswapped(plan, i, out, nbytes, at, error);
    while (nbytes > 0) { /* whole elements, or a share of one, which a tile's border cuts */
        size_t cut = (size_t)(at % unit);
        bool is_share = cut > 0 || nbytes < unit;
        size_t n = is_share ? (size_t)bth_min(nbytes, unit - cut) : nbytes - nbytes % unit;
        size_t read_nbytes = is_share ? unit : n;
        uint8_t *to = is_share ? element : out;
        if (record_read_unswapped(plan, i, to, read_nbytes, at - cut, error) < 0)
            return error->code;
        bth_swap_bytes(to, to, read_nbytes, unit);
        if (is_share)
            memcpy(out, element + cut, n);
        out += n;
        at += n;
        nbytes -= n;
    }
    return 0;
}

/*
 * Bytes are copied and summed in blocks, while they are in the cache: 8.0 GB/s in blocks of 16 KiB,
 * 7.5 of 256 KiB, 7.0 of 1 MiB. A caller's function gets larger ones.
 */
#define BLOCK_NBYTES ((size_t)16 * 1024)
#define BLOCKS_PER_TIMED 16
#define CALLBACK_BLOCK_NBYTES ((size_t)256 * 1024)
#define MIN_STREAMED_NBYTES ((size_t)64 * 1024)
/* Smaller shares are summed with their neighbours, where a tile is. */
#define MIN_SPAN_NBYTES ((size_t)16 * 1024)

/* ---- tiles ---- */

bool bth_tile_intersect_range(const bth_tile *tile, bth_range range, bth_range *share)
{
    uint64_t begin = bth_max(range.offset, tile->offset);
    uint64_t end = bth_min(range.offset + range.nbytes, tile->offset + tile->nbytes);

    if (begin >= end)
        return false;
    *share = (bth_range){.offset = begin, .nbytes = end - begin};
    return true;
}

static uint32_t tile_sum_bytes(const bth_tile *tile, uint32_t crc32, uint64_t begin, uint64_t end)
{
    return bth_crc32(crc32, tile->bytes + (begin - tile->offset), (size_t)(end - begin));
}

uint32_t bth_tile_sum_range(const bth_tile *tile, uint64_t begin, uint64_t end)
{
    uint32_t crc32 = 0;

    for (size_t i = 0; i < sizeof tile->spans / sizeof *tile->spans; i++) {
        const bth_range *span = &tile->spans[i].range;
        if (span->nbytes == 0 || span->offset < begin || span->offset + span->nbytes > end)
            continue;
        crc32 = tile_sum_bytes(tile, crc32, begin, span->offset);
        crc32 = bth_crc32_combine(crc32, tile->spans[i].crc32, span->nbytes);
        begin = span->offset + span->nbytes;
    }
    return tile_sum_bytes(tile, crc32, begin, end);
}

/* A share of data is rendered and summed: all before it in the tile is there, too. */
static void tile_add_share_to_span(bth_tile *tile, bth_range share)
{
    bth_range *span = &tile->spans[tile->n_spans].range;
    uint32_t *crc32 = &tile->spans[tile->n_spans].crc32;

    if (span->nbytes == 0) {
        *span = share;
        *crc32 = tile->crc32;
        return;
    }
    *crc32 = tile_sum_bytes(tile, *crc32, span->offset + span->nbytes, share.offset);
    *crc32 = bth_crc32_combine(*crc32, tile->crc32, share.nbytes);
    span->nbytes = share.offset + share.nbytes - span->offset;
}

/* Copies the tile's share of bytes that lie at `offset` in the file. */
static void tile_copy_bytes_in(bth_tile *tile, uint64_t offset, const uint8_t *bytes,
                               uint64_t nbytes)
{
    bth_range share;

    if (bth_tile_intersect_range(tile, (bth_range){.offset = offset, .nbytes = nbytes}, &share))
        memcpy(tile->bytes + (share.offset - tile->offset), bytes + (share.offset - offset),
               (size_t)share.nbytes);
}

/* ---- images ---- */

/* Keeps what the id needs of rendered bytes, which go to `range` of the file, in record i's data.
 * What lies behind a zero-copy range is too far from the start. */
static void image_keep_start(bth_image *image, size_t i, const uint8_t *bytes, bth_range range)
{
    uint64_t at = range.offset - image->plan->records[i].layout.data_offset;

    if (!image->starts || at >= BTH_ID_START_NBYTES)
        return;
    memcpy(image->starts[i] + at, bytes, (size_t)bth_min(range.nbytes, BTH_ID_START_NBYTES - at));
}

/* If the caller has set the CRC of a record, which is complete, refuses another one. */
static int image_check_crc32(const bth_image *image, size_t i, berth_error *error)
{
    const bth_plan_record *record = &image->plan->records[i];
    uint32_t computed = bth_image_crc32(image, i);

    if (record->crc32 == 0 || record->no_crc32 || computed == record->crc32)
        return 0;
    return bth_fail(error, BERTH_E_CHECKSUM, bth_plan_record_name(image->plan, i), BERTH_NO_OFFSET,
                    "the bytes to be saved have CRC 0x%08" PRIx32 ", and should have 0x%08" PRIx32,
                    computed, record->crc32);
}

int bth_image_begin(bth_image *image, const bth_present *present, size_t n_present,
                    berth_error *error)
{
    const berth_plan *plan = image->plan;
    bth_id_names names = {0};

    if (plan->compute_crc32) {
        image->sums = bth_allocate(plan->n_records * sizeof *image->sums);
        if (!image->sums)
            return bth_fail_memory(error, plan->n_records * sizeof *image->sums);
        for (size_t i = 0; i < plan->n_records; i++) {
            const bth_plan_record *record = &plan->records[i];
            atomic_init(&image->sums[i].missing_nbytes,
                        record->is_summed ? 0 : record->layout.nbytes);
            atomic_init(&image->sums[i].crc32, record->is_summed ? record->crc32 : 0);
        }
    }
    for (size_t i = 0; image->sums && i < n_present; i++) {
        size_t record = present[i].record;
        bth_sum *sum = &image->sums[record];
        if (plan->records[record].is_summed)
            continue;
        atomic_fetch_xor(&sum->crc32, present[i].crc32);
        if (atomic_fetch_sub(&sum->missing_nbytes, present[i].range.nbytes) ==
                present[i].range.nbytes &&
            image_check_crc32(image, record, error) < 0)
            return error->code;
    }
    if (plan->id_index == BTH_NO_RECORD)
        return 0;
    image->starts = bth_allocate(plan->n_records * sizeof *image->starts);
    if (!image->starts)
        return bth_fail_memory(error, plan->n_records * sizeof *image->starts);
    for (size_t i = 0; i < n_present; i++) {
        uint64_t start_nbytes = bth_min(present[i].range.nbytes, sizeof present[i].start);
        image_keep_start(image, present[i].record, present[i].start,
                         (bth_range){present[i].range.offset, start_nbytes});
    }
    if (bth_id_names_begin(&names, plan->id_index, error) == 0) {
        for (size_t i = 0; i < plan->id_index; i++) {
            const char *name = bth_plan_record_name(plan, i);
            bth_id_names_add(&names, name, strlen(name));
        }
        image->names_hash = bth_id_names_hash(&names);
    }
    bth_id_names_free_all(&names);
    return error->code;
}

uint32_t bth_image_crc32(const bth_image *image, size_t i)
{
    return image->sums ? atomic_load(&image->sums[i].crc32) : 0;
}

bool bth_image_crc32_is_complete(const bth_image *image, size_t i)
{
    return !image->sums || atomic_load(&image->sums[i].missing_nbytes) == 0;
}

/*
 * Adds what it can of a share of record i to the tile's zero-copy ranges: *range. Returns NULL, or
 * why all of it must be copied.
 */
static const char *image_add_zero_copy(const bth_image *image, bth_tile *tile, size_t i,
                                       const bth_range *share, bth_range *range)
{
    const bth_output_constraints *constraints = &image->constraints;
    const bth_plan_record *record = &image->plan->records[i];
    uint64_t mask = constraints->block_nbytes - 1;
    uint64_t begin = (share->offset + mask) & ~mask;
    uint64_t end = (share->offset + share->nbytes) & ~mask;

    if (constraints->min_zero_copy_nbytes == 0)
        return "the output takes one piece at a time: copied to a buffer";
    if (begin >= end || end - begin < constraints->min_zero_copy_nbytes ||
        tile->n_zero_copies == BTH_MAX_ZERO_COPIES)
        return "small: copied to a buffer with its neighbours";
    const uint8_t *bytes =
        bth_record_data_address(image->plan, i, begin - record->layout.data_offset);
    if (!bytes)
        return record->swap_nbytes > 1 ? "save.byteorder differs: swapped in a buffer"
                                       : "not in memory: read to a buffer";
    if (((uintptr_t)bytes & (constraints->memory_alignment - 1)) != 0)
        return "its memory is not aligned as its offset in the file: copied to a buffer";
    if (constraints->large_pages_only &&
        !bth_pages_are_large(image->pages, bytes, (size_t)(end - begin)))
        return "its memory is not in large pages: copied to a buffer";
    *range = (bth_range){.offset = begin, .nbytes = end - begin};
    tile->zero_copies[tile->n_zero_copies++] = (bth_zero_copy){.range = *range, .bytes = bytes};
    return NULL;
}

/* Adds bytes to the CRC of the record's share. A clock costs as much as a block: few are timed. */
static void image_add_bytes_to_share_crc32(const bth_image *image, bth_tile *tile,
                                           const uint8_t *bytes, size_t nbytes)
{
    if (!image->sums || tile->is_summed)
        return;
    bool is_block = nbytes <= BLOCK_NBYTES;
    bool is_timed = !is_block || tile->n_blocks++ % BLOCKS_PER_TIMED == 0;
    double begin = is_timed ? bth_seconds() : 0;
    tile->crc32 = bth_crc32(tile->crc32, bytes, nbytes);
    if (!is_timed)
        return;
    double end = bth_seconds();
    tile->crc32_seconds += (end - begin) * (is_block ? BLOCKS_PER_TIMED : 1);
    BTH_TRACE(.category = "sum", .name = is_block ? "CRC-32 (one of several)" : "CRC-32",
              .begin_seconds = begin, .end_seconds = end);
}

#define LINE_NBYTES ((size_t)64)

void bth_copy_bypassing_caches(void *to, const void *from, size_t nbytes)
{
#ifdef __SSE2__ /* all of x86-64 */
    uint8_t *out = to;
    const uint8_t *in = from;
    size_t head = (LINE_NBYTES - ((uintptr_t)out & (LINE_NBYTES - 1))) & (LINE_NBYTES - 1);

    if (head > nbytes)
        head = nbytes;
    memcpy(out, in, head);
    size_t at = head;
    for (; nbytes - at >= LINE_NBYTES; at += LINE_NBYTES)
        for (size_t i = at; i < at + LINE_NBYTES; i += 16) /* to addresses aligned to 16 bytes */
            _mm_stream_si128((__m128i *)(void *)(out + i),
                             _mm_loadu_si128((const __m128i *)(const void *)(in + i)));
    memcpy(out + at, in + at, nbytes - at);
    _mm_sfence(); /* these stores are not ordered otherwise */
#else
    memcpy(to, from, nbytes);
#endif
}

/*
 * Copies bytes [begin, end) of the file, of record i's data, into the tile, swaps and sums them, a
 * block after the other, while it is in the cache. Large ranges for a disk go past the cache: half
 * the processor time, and 1.2 times faster (1 GiB through four buffers).
 */
static int image_copy_and_sum_data_range(const bth_image *image, bth_tile *tile, size_t i,
                                         uint64_t begin, uint64_t end, berth_error *error)
{
    const bth_plan_record *record = &image->plan->records[i];
    uint64_t at = begin - record->layout.data_offset;

    if (begin == end)
        return 0;
    uint8_t *out = tile->bytes + (begin - tile->offset);
    const uint8_t *from = bth_record_data_address(image->plan, i, at);
    if (tile->slot && bth_staging_slot_can_copy(image->plan, i, end - begin, at)) {
        from = tile->slot->buffer->bytes + (begin - tile->offset);
        if (bth_wing_slots.wait_for_record(tile->slot, i, error) < 0)
            return error->code;
    }
    bool is_streamed =
        from != out && image->constraints.block_nbytes > 1 && end - begin >= MIN_STREAMED_NBYTES;
    uint64_t block_nbytes = from ? BLOCK_NBYTES : CALLBACK_BLOCK_NBYTES;
    for (uint64_t done = 0; done < end - begin; done += block_nbytes) {
        size_t n = (size_t)bth_min(end - begin - done, block_nbytes);
        uint8_t *to = out + done;
        if (!from && bth_record_data_read(image->plan, i, to, n, at + done, error) < 0)
            return error->code;
        if (from && record->swap_nbytes > 1)
            bth_swap_bytes(to, from + done, n, record->swap_nbytes);
        if (!from || record->swap_nbytes > 1) {
            image_add_bytes_to_share_crc32(image, tile, to, n);
            continue;
        }
        image_add_bytes_to_share_crc32(image, tile, from + done, n);
        if (is_streamed)
            bth_copy_bypassing_caches(to, from + done, n);
        else if (to != from + done)
            memcpy(to, from + done, n);
    }
    return 0;
}

/*
 * Adds the CRC of bytes [at, at + nbytes) of record i. True: that completes it. The CRC of a record
 * is the XOR of its parts' CRCs, each shifted over the bytes behind it, so parts come in any order.
 */
static bool image_add_crc32(bth_image *image, size_t i, uint32_t crc32, uint64_t nbytes,
                            uint64_t at)
{
    bth_sum *sum = &image->sums[i];
    const bth_plan_record *record = &image->plan->records[i];
    uint64_t after_nbytes = record->layout.nbytes - at - nbytes;

    if (nbytes ==
        record->layout.nbytes) { /* of one share: a barrier would cost as much as its sum */
        atomic_store_explicit(&sum->crc32, record->no_crc32 ? 0 : crc32, memory_order_relaxed);
        atomic_store_explicit(&sum->missing_nbytes, 0, memory_order_release);
        return true;
    }
    if (!record->no_crc32) {
        if (after_nbytes > 0)
            crc32 = bth_crc32_combine(crc32, 0, after_nbytes);
        atomic_fetch_xor(&sum->crc32, crc32);
    }
    return atomic_fetch_sub(&sum->missing_nbytes, nbytes) == nbytes;
}

/* Renders the record's data. *completed: the tile has completed its CRC. If the caller has set that
 * CRC, refuses other bytes. */
static int image_render_data(bth_image *image, bth_tile *tile, size_t i, bool *completed,
                             berth_error *error)
{
    const bth_plan_record *record = &image->plan->records[i];
    bth_range data = bth_plan_data_range(image->plan, i), share;
    const char *none = NULL, *why_copied = NULL;

    if (!bth_tile_intersect_range(tile, data, &share) ||
        (image->without_storages && record->storage))
        return 0;
    uint64_t at = share.offset - data.offset, end = share.offset + share.nbytes;
    uint8_t *out = tile->bytes + (share.offset - tile->offset);
    if (i == image->plan->id_index) {
        memcpy(out, image->id + at, (size_t)share.nbytes);
        return 0;
    }
    bth_range zero_copy = {.offset = end};
    tile->crc32 = 0;
    tile->is_summed = record->is_summed;
    if (!record->device)
        why_copied = image_add_zero_copy(image, tile, i, &share, &zero_copy);
    /* Shares at the ends of large records are small: the reason of the rest stays. */
    if (why_copied && image->storage_stats && share.nbytes >= MIN_STREAMED_NBYTES)
        atomic_store(&image->storage_stats[i].why_copied, why_copied);
    else if (why_copied && image->storage_stats)
        (void)atomic_compare_exchange_strong(&image->storage_stats[i].why_copied, &none,
                                             why_copied);
    /* What lies before the zero-copy range, the range, what lies behind it. */
    if (image_copy_and_sum_data_range(image, tile, i, share.offset, zero_copy.offset, error) < 0)
        return error->code;
    image_keep_start(image, i, out, (bth_range){share.offset, zero_copy.offset - share.offset});
    if (zero_copy.nbytes > 0) {
        const uint8_t *bytes = tile->zero_copies[tile->n_zero_copies - 1].bytes;
        image_keep_start(image, i, bytes, zero_copy);
        image_add_bytes_to_share_crc32(image, tile, bytes, (size_t)zero_copy.nbytes);
    }
    if (image_copy_and_sum_data_range(image, tile, i, zero_copy.offset + zero_copy.nbytes, end,
                                      error) < 0)
        return error->code;
    if (image->sums && !record->is_summed && share.nbytes >= MIN_SPAN_NBYTES)
        tile_add_share_to_span(tile, share);
    *completed = image->sums && !record->is_summed &&
                 image_add_crc32(image, i, tile->crc32, share.nbytes, at);
    return *completed ? image_check_crc32(image, i, error) : 0;
}

void bth_image_put_descriptor(const bth_image *image, bth_tile *tile, size_t i)
{
    uint8_t bytes[BTH_MAX_DESCRIPTOR_NBYTES];
    bth_range range = bth_plan_descriptor_range(image->plan, i);

    assert(bth_image_crc32_is_complete(image, i));
    bth_zip_write_descriptor(&image->plan->records[i].layout, bth_image_crc32(image, i), bytes);
    tile_copy_bytes_in(tile, range.offset, bytes, range.nbytes);
}

int bth_image_render(bth_image *image, bth_tile *tile, berth_error *error)
{
    const berth_plan *plan = image->plan;
    uint64_t tile_end = tile->offset + tile->nbytes;
    uint8_t end[BTH_ZIP_END_NBYTES];

    tile->n_zero_copies = 0;
    tile->spans[0].range.nbytes = tile->spans[1].range.nbytes = tile->n_spans = 0;
    tile->incomplete = BTH_NO_RECORD;
    tile->completed = BTH_NO_RECORD;
    for (size_t i = bth_plan_find_record_by_offset(plan, tile->offset);
         bth_plan_begins_before(plan, i, tile_end); i++) {
        bth_range header = bth_plan_header_range(plan, i);
        bth_range descriptor = bth_plan_descriptor_range(plan, i), share;
        bool completed = false;
        if (bth_tile_intersect_range(tile, header, &share)) {
            bth_zip_write_local(&plan->records[i].layout, bth_plan_record_full_name(plan, i),
                                tile->scratch);
            tile_copy_bytes_in(tile, header.offset, tile->scratch, header.nbytes);
        }
        if (image_render_data(image, tile, i, &completed, error) < 0)
            return error->code;
        share.nbytes = 0;
        (void)bth_tile_intersect_range(tile, descriptor, &share);
        if (share.nbytes > 0 && bth_image_crc32_is_complete(image, i))
            bth_image_put_descriptor(image, tile, i);
        else if (share.nbytes > 0) {
            tile->incomplete = i;
            tile->n_spans = 1;
        }
        if (completed && share.nbytes < descriptor.nbytes)
            tile->completed = i;
    }
    if (tile_end <= plan->directory_offset)
        return 0;
    for (size_t i = bth_plan_find_directory_entry(plan, tile->offset);
         i < plan->n_records && plan->records[i].central_offset < tile_end; i++) {
        const bth_plan_record *record = &plan->records[i];
        bth_zip_write_central(&record->layout, bth_plan_record_full_name(plan, i),
                              bth_image_crc32(image, i), tile->scratch);
        tile_copy_bytes_in(tile, record->central_offset, tile->scratch,
                           bth_layout_central_entry_nbytes(&record->layout));
    }
    bth_zip_write_end(plan->n_records, plan->directory_offset, plan->directory_nbytes, end);
    tile_copy_bytes_in(tile, plan->directory_offset + plan->directory_nbytes, end, sizeof end);
    return 0;
}

/* A planned file without the bytes of its storages, rendered where it is wanted. */

int berth_plan_read(const berth_plan *plan, void *buffer, size_t nbytes, uint64_t offset,
                    berth_error *error)
{
    bth_tile tile = {.offset = offset, .nbytes = nbytes, .bytes = buffer};
    bth_image image = {.plan = plan, .without_storages = true, .constraints = {.block_nbytes = 1}};

    BTH_ERROR_BEGIN(error);
    if (!plan)
        return bth_fail_argument(error, "the plan is NULL");
    if (!plan->pickled.bytes && !plan->header)
        return bth_fail_argument(error, "the plan is of records, which the caller has");
    if (offset > plan->nbytes || nbytes > plan->nbytes - offset)
        return bth_fail_argument(error, "%zu bytes from byte %llu on are not inside a file of %llu",
                                 nbytes, (unsigned long long)offset,
                                 (unsigned long long)plan->nbytes);
    if (nbytes == 0)
        return 0;
    if (!buffer)
        return bth_fail_argument(error, "the buffer is NULL");
    tile.scratch = bth_allocate(plan->max_header_nbytes);
    if (!tile.scratch)
        return bth_fail_memory(error, plan->max_header_nbytes);
    memset(buffer, 0, nbytes);
    memset(image.id, '0', sizeof image.id);
    (void)bth_image_render(&image, &tile, error);
    bth_release(tile.scratch);
    return error->code;
}
