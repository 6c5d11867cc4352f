/* SPDX-License-Identifier: BSD-3-Clause */
/* How storages are read together: arithmetic on any arrangement of them. */
#include "load/transfer/spans.h"

#include <criterion/criterion.h>
#include <stdlib.h>

#define MOST_ITEMS 40

static berth_storage storages[MOST_ITEMS];
static bth_item items[MOST_ITEMS];
static bth_spans spans;
static bth_chunk *chunks;

/* Addresses are never touched. */
#define REGION ((uint8_t *)(uintptr_t)0x10000000000)
#define MAPPED ((const uint8_t *)(uintptr_t)0x7000000000000)

static void begin(uint32_t block_nbytes)
{
    spans = (bth_spans){.items = items, .chunk_nbytes = 65536, .block_nbytes = block_nbytes};
}

static void add(uint64_t offset, uint64_t nbytes, berth_load_method method, uint8_t shift)
{
    storages[spans.n_items] = (berth_storage){.offset = offset, .nbytes = nbytes};
    items[spans.n_items] =
        (bth_item){.storage = &storages[spans.n_items], .way.method = method, .shift = shift};
    spans.n_items++;
}

static void cut(void)
{
    free(chunks);
    cr_assert(bth_spans_measure(&spans));
    chunks = calloc(spans.n_chunks + 1, sizeof *chunks);
    bth_spans_cut(&spans, REGION, MAPPED, chunks);
}

static void finish(void)
{
    free(chunks);
}

TestSuite(spans, .fini = finish);

Test(spans, of_one_storage_is_exactly_it)
{
    begin(64);
    add(1003, 77, BERTH_LOAD_READ, 0);
    cut();
    cr_expect_eq(spans.n_chunks, 1);
    cr_expect_eq(chunks[0].offset, 1003);
    cr_expect_eq(chunks[0].nbytes, 77);
    cr_expect_eq(spans.region_nbytes, 1003 % 64 + 77);
    cr_expect_eq((uintptr_t)items[0].memory % 64, 1003 % 64);
}

Test(spans, of_direct_reads_are_whole_blocks)
{
    begin(4096);
    add(5000, 100, BERTH_LOAD_DIRECT, 0);
    cut();
    cr_expect_eq(chunks[0].offset, 4096);
    cr_expect_eq(chunks[0].nbytes, 4096);
    cr_expect_eq((uintptr_t)chunks[0].memory % 4096, 0);
    cr_expect_eq(items[0].memory, chunks[0].memory + 904);
}

Test(spans, join_neighbours_of_one_method_over_small_gaps)
{
    begin(64);
    add(1000, 100, BERTH_LOAD_READ, 0);
    add(1100 + BTH_GAP_NBYTES, 100, BERTH_LOAD_READ, 0);
    add(1300 + BTH_GAP_NBYTES, 100, BERTH_LOAD_MAP, 0);
    add(1500 + BTH_GAP_NBYTES, 100, BERTH_LOAD_READ, 0);
    add(1601 + 2 * BTH_GAP_NBYTES, 100, BERTH_LOAD_READ, 0);
    cut();
    cr_expect_eq(spans.n_chunks, 4);
    cr_expect_eq(chunks[0].nbytes, 200 + BTH_GAP_NBYTES);
    cr_expect_eq(chunks[0].end_item, 2);
    cr_expect_eq(chunks[1].memory, MAPPED + 1300 + BTH_GAP_NBYTES);
    cr_expect_eq(items[2].memory, chunks[1].memory);
}

/* T5: what is moved down must not fall upon the one before it. */
Test(spans, leave_room_for_what_is_moved_down)
{
    begin(64);
    add(64, 3, BERTH_LOAD_READ, 0);
    add(67, 8, BERTH_LOAD_READ, 3);
    add(82, 8, BERTH_LOAD_READ, 2); /* 7 bytes before it */
    cut();
    cr_expect_eq(spans.n_chunks, 2);
    cr_expect_eq(chunks[1].offset, 67);
    cr_expect_geq(items[1].memory - 3, items[0].memory + 3);
    cr_expect_eq((uintptr_t)items[1].memory % 64, 3);
}

/* A file cannot say it, but nothing here may break by it. */
Test(spans, of_what_overlaps_are_apart)
{
    begin(64);
    add(100, 1000, BERTH_LOAD_READ, 0);
    add(600, 1000, BERTH_LOAD_READ, 0);
    cut();
    cr_expect_eq(spans.n_chunks, 2);
    cr_expect_geq(items[1].memory, items[0].memory + 1000);
}

Test(spans, beyond_what_can_be_addressed_are_refused)
{
    begin(64);
    add(0, (uint64_t)1 << 62, BERTH_LOAD_READ, 0);
    add((uint64_t)1 << 62, (uint64_t)1 << 62, BERTH_LOAD_READ, 0);
    cr_expect_not(bth_spans_measure(&spans));
}

/* ---- any arrangement ---- */

static void add_at_random(void)
{
    static const berth_load_method methods[] = {BERTH_LOAD_READ, BERTH_LOAD_READ, BERTH_LOAD_DIRECT,
                                                BERTH_LOAD_MAP};
    uint64_t at = (uint64_t)(rand() % 10000);

    begin(rand() % 2 ? 4096 : 65536);
    for (int n = 1 + rand() % MOST_ITEMS; n > 0; n--) {
        uint64_t nbytes = 1 + (uint64_t)(rand() % (rand() % 3 ? 3000 : 300000));
        berth_load_method method = methods[rand() % 4];
        add(at, nbytes, method, method == BERTH_LOAD_MAP ? 0 : (uint8_t)(at % 8));
        at += nbytes + (uint64_t)(rand() % (rand() % 3 ? 100 : 100000));
    }
}

static void check_chunk(const bth_chunk *chunk)
{
    cr_assert_gt(chunk->nbytes, 0);
    cr_assert_leq(chunk->nbytes, spans.chunk_nbytes);
    cr_assert_leq(chunk->first_item, chunk->end_item);
    if (chunk->method == BERTH_LOAD_MAP) {
        cr_assert_eq(chunk->memory, MAPPED + chunk->offset);
        return;
    }
    uint64_t at = (uint64_t)(chunk->memory - REGION);
    cr_assert_leq(at + chunk->nbytes, spans.region_nbytes);
    cr_assert_eq(at % spans.block_nbytes, chunk->offset % spans.block_nbytes);
    cr_assert_leq(at / spans.chunk_nbytes, (at + chunk->nbytes - 1) / spans.chunk_nbytes);
    cr_assert_eq(at / spans.chunk_nbytes, (at + chunk->nbytes - 1) / spans.chunk_nbytes,
                 "a large page is one worker's");
    if (chunk->method == BERTH_LOAD_DIRECT)
        cr_assert_eq((chunk->offset | chunk->nbytes) % spans.block_nbytes, 0);
}

/* Every byte of an item is brought once, to where the item lies. */
static void check_item(size_t i)
{
    const bth_item *item = &items[i];
    uint64_t begin_offset = item->storage->offset, end = begin_offset + item->storage->nbytes;
    uint64_t next = begin_offset;

    for (uint64_t k = 0; k < spans.n_chunks; k++) {
        const bth_chunk *chunk = &chunks[k];
        if (i < chunk->first_item || i >= chunk->end_item)
            continue;
        uint64_t from = chunk->offset > begin_offset ? chunk->offset : begin_offset;
        uint64_t to = chunk->offset + chunk->nbytes < end ? chunk->offset + chunk->nbytes : end;
        cr_assert_lt(from, to, "an item is a chunk's if it has bytes there");
        cr_assert_eq(from, next);
        cr_assert_eq(chunk->method, item->way.method);
        cr_assert_eq(item->memory + (from - begin_offset), chunk->memory + (from - chunk->offset));
        next = to;
    }
    cr_assert_eq(next, end);
}

Test(spans, bring_every_byte_once_to_where_it_belongs)
{
    srand(7);
    for (int round = 0; round < 400; round++) {
        uint64_t nbytes = 0;
        add_at_random();
        cut();
        for (uint64_t k = 0; k < spans.n_chunks; k++) {
            check_chunk(&chunks[k]);
            nbytes += chunks[k].nbytes;
        }
        cr_assert_eq(nbytes, spans.chunks_nbytes);
        cr_assert_eq(chunks[spans.n_chunks].nbytes, 0, "no more than were counted");
        for (size_t i = 0; i < spans.n_items; i++)
            check_item(i);
        /* Places in memory, after moving down, follow each other. */
        const uint8_t *free_from = REGION;
        for (size_t i = 0; i < spans.n_items; i++) {
            if (items[i].way.method == BERTH_LOAD_MAP)
                continue;
            cr_assert_geq(items[i].memory - items[i].shift, free_from);
            free_from = items[i].memory + items[i].storage->nbytes;
        }
    }
}

/* ---- to devices ---- */

/* Handles are compared, never looked into. */
static bth_device_handle *const devices[] = {(bth_device_handle *)(uintptr_t)64,
                                             (bth_device_handle *)(uintptr_t)128};

static void make_staged(void)
{
    for (size_t i = 0; i < spans.n_items; i++) {
        items[i].device = devices[rand() % 4 == 0];
        if (items[i].way.method == BERTH_LOAD_MAP || items[i].shift > 0)
            items[i].way.method = BERTH_LOAD_READ;
        if (rand() % 2)
            items[i].shift = 0; /* nothing of it is swapped */
    }
    free(chunks);
    cr_assert(bth_spans_measure(&spans));
    chunks = calloc(spans.n_chunks, sizeof *chunks);
    bth_spans_cut(&spans, NULL, NULL, chunks);
}

static void check_staged(const bth_chunk *chunk)
{
    const bth_item *first = &items[chunk->first_item];

    cr_assert_null(chunk->memory);
    cr_assert_leq(chunk->phase + chunk->nbytes, spans.chunk_nbytes, "it fits its buffer");
    if (chunk->method == BERTH_LOAD_DIRECT)
        cr_assert_eq((chunk->phase | chunk->offset) % spans.block_nbytes, 0);
    for (size_t i = chunk->first_item; i < chunk->end_item; i++) {
        cr_assert_eq(items[i].device, first->device, "one device");
        if (items[i].shift == 0)
            continue;
        cr_assert_eq(chunk->end_item, chunk->first_item + 1, "alone");
        cr_assert_eq((chunk->offset - items[i].storage->offset) % 64, 0, "no element is cut");
        cr_assert_eq(chunk->phase % 64, 0, "its elements are aligned");
    }
}

Test(spans, to_devices_fit_buffers_and_cut_no_element)
{
    srand(11);
    for (int round = 0; round < 400; round++) {
        add_at_random();
        make_staged();
        for (uint64_t k = 0; k < spans.n_chunks; k++)
            check_staged(&chunks[k]);
        for (size_t i = 0; i < spans.n_items; i++) {
            uint64_t come = 0, begin = items[i].storage->offset;
            uint64_t end = begin + items[i].storage->nbytes;
            for (uint64_t k = 0; k < spans.n_chunks; k++) {
                if (i < chunks[k].first_item || i >= chunks[k].end_item)
                    continue;
                uint64_t from = chunks[k].offset > begin ? chunks[k].offset : begin;
                uint64_t to = chunks[k].offset + chunks[k].nbytes;
                come += (to < end ? to : end) - from;
            }
            cr_assert_eq(come, items[i].storage->nbytes);
        }
    }
}
