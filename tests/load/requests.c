/* SPDX-License-Identifier: BSD-3-Clause */
/* How storages are read together: arithmetic on any arrangement of them. */
#include "load/transfer/requests.h"

#include <criterion/criterion.h>
#include <stdlib.h>

#define MAX_RANGES 40

static bth_range ranges[MAX_RANGES];
static bth_requests requests;
static bth_request *list;

/* Addresses are never touched. */
#define REGION ((uint8_t *)(uintptr_t)0x10000000000)
#define MAPPED ((const uint8_t *)(uintptr_t)0x7000000000000)

static void begin(uint32_t block_nbytes)
{
    requests =
        (bth_requests){.ranges = ranges, .chunk_nbytes = 65536, .block_nbytes = block_nbytes};
}

static void add(uint64_t offset, uint64_t nbytes, berth_load_method method, uint8_t shift)
{
    ranges[requests.n_ranges++] =
        (bth_range){.offset = offset, .nbytes = nbytes, .choice.method = method, .shift = shift};
}

static void cut(void)
{
    free(list);
    cr_assert(bth_requests_measure(&requests));
    list = calloc(requests.n_requests + 1, sizeof *list);
    bth_requests_cut(&requests, REGION, MAPPED, list);
}

static void finish(void)
{
    free(list);
}

TestSuite(requests, .fini = finish);

Test(requests, of_one_storage_is_exactly_it)
{
    begin(64);
    add(1003, 77, BERTH_LOAD_READ, 0);
    cut();
    cr_expect_eq(requests.n_requests, 1);
    cr_expect_eq(list[0].offset, 1003);
    cr_expect_eq(list[0].nbytes, 77);
    cr_expect_eq(requests.region_nbytes, 1003 % 64 + 77);
    cr_expect_eq((uintptr_t)ranges[0].memory % 64, 1003 % 64);
}

Test(requests, of_direct_reads_are_whole_blocks)
{
    begin(4096);
    add(5000, 100, BERTH_LOAD_DIRECT, 0);
    cut();
    cr_expect_eq(list[0].offset, 4096);
    cr_expect_eq(list[0].nbytes, 4096);
    cr_expect_eq((uintptr_t)list[0].memory % 4096, 0);
    cr_expect_eq(ranges[0].memory, list[0].memory + 904);
}

Test(requests, join_neighbours_of_one_method_over_small_gaps)
{
    begin(64);
    add(1000, 100, BERTH_LOAD_READ, 0);
    add(1100 + BTH_GAP_NBYTES, 100, BERTH_LOAD_READ, 0);
    add(1300 + BTH_GAP_NBYTES, 100, BERTH_LOAD_MAP, 0);
    add(1500 + BTH_GAP_NBYTES, 100, BERTH_LOAD_READ, 0);
    add(1601 + 2 * BTH_GAP_NBYTES, 100, BERTH_LOAD_READ, 0);
    cut();
    cr_expect_eq(requests.n_requests, 4);
    cr_expect_eq(list[0].nbytes, 200 + BTH_GAP_NBYTES);
    cr_expect_eq(list[0].end_range, 2);
    cr_expect_eq(list[1].memory, MAPPED + 1300 + BTH_GAP_NBYTES);
    cr_expect_eq(ranges[2].memory, list[1].memory);
}

/* T5: what is moved down must not fall upon the one before it. */
Test(requests, leave_room_for_what_is_moved_down)
{
    begin(64);
    add(64, 3, BERTH_LOAD_READ, 0);
    add(67, 8, BERTH_LOAD_READ, 3);
    add(82, 8, BERTH_LOAD_READ, 2); /* 7 bytes before it */
    cut();
    cr_expect_eq(requests.n_requests, 2);
    cr_expect_eq(list[1].offset, 67);
    cr_expect_geq(ranges[1].memory - 3, ranges[0].memory + 3);
    cr_expect_eq((uintptr_t)ranges[1].memory % 64, 3);
}

/* A file cannot say it, but nothing here may break by it. */
Test(requests, of_what_overlaps_are_apart)
{
    begin(64);
    add(100, 1000, BERTH_LOAD_READ, 0);
    add(600, 1000, BERTH_LOAD_READ, 0);
    cut();
    cr_expect_eq(requests.n_requests, 2);
    cr_expect_geq(ranges[1].memory, ranges[0].memory + 1000);
}

Test(requests, beyond_what_can_be_addressed_are_refused)
{
    begin(64);
    add(0, (uint64_t)1 << 62, BERTH_LOAD_READ, 0);
    add((uint64_t)1 << 62, (uint64_t)1 << 62, BERTH_LOAD_READ, 0);
    cr_expect_not(bth_requests_measure(&requests));
}

/* ---- any arrangement ---- */

static void add_at_random(void)
{
    static const berth_load_method methods[] = {BERTH_LOAD_READ, BERTH_LOAD_READ, BERTH_LOAD_DIRECT,
                                                BERTH_LOAD_MAP};
    uint64_t at = (uint64_t)(rand() % 10000);

    begin(rand() % 2 ? 4096 : 65536);
    for (int n = 1 + rand() % MAX_RANGES; n > 0; n--) {
        uint64_t nbytes = 1 + (uint64_t)(rand() % (rand() % 3 ? 3000 : 300000));
        berth_load_method method = methods[rand() % 4];
        add(at, nbytes, method, method == BERTH_LOAD_MAP ? 0 : (uint8_t)(at % 8));
        at += nbytes + (uint64_t)(rand() % (rand() % 3 ? 100 : 100000));
    }
}

static void check_request(const bth_request *request)
{
    cr_assert_gt(request->nbytes, 0);
    cr_assert_leq(request->nbytes, requests.chunk_nbytes);
    cr_assert_leq(request->first_range, request->end_range);
    if (request->method == BERTH_LOAD_MAP) {
        cr_assert_eq(request->memory, MAPPED + request->offset);
        return;
    }
    uint64_t at = (uint64_t)(request->memory - REGION);
    cr_assert_leq(at + request->nbytes, requests.region_nbytes);
    cr_assert_eq(at % requests.block_nbytes, request->offset % requests.block_nbytes);
    cr_assert_leq(at / requests.chunk_nbytes, (at + request->nbytes - 1) / requests.chunk_nbytes);
    cr_assert_eq(at / requests.chunk_nbytes, (at + request->nbytes - 1) / requests.chunk_nbytes,
                 "a large page is one worker's");
    if (request->method == BERTH_LOAD_DIRECT)
        cr_assert_eq((request->offset | request->nbytes) % requests.block_nbytes, 0);
}

/* Every byte of a range is moved once, to where the range lies. */
static void check_range(size_t i)
{
    const bth_range *range = &ranges[i];
    uint64_t begin_offset = range->offset, end = begin_offset + range->nbytes;
    uint64_t next = begin_offset;

    for (uint64_t k = 0; k < requests.n_requests; k++) {
        const bth_request *request = &list[k];
        if (i < request->first_range || i >= request->end_range)
            continue;
        uint64_t from = request->offset > begin_offset ? request->offset : begin_offset;
        uint64_t to =
            request->offset + request->nbytes < end ? request->offset + request->nbytes : end;
        cr_assert_lt(from, to, "a range is of a request if it has bytes there");
        cr_assert_eq(from, next);
        cr_assert_eq(request->method, range->choice.method);
        cr_assert_eq(range->memory + (from - begin_offset),
                     request->memory + (from - request->offset));
        next = to;
    }
    cr_assert_eq(next, end);
}

Test(requests, bring_every_byte_once_to_where_it_belongs)
{
    srand(7);
    for (int round = 0; round < 400; round++) {
        uint64_t nbytes = 0;
        add_at_random();
        cut();
        for (uint64_t k = 0; k < requests.n_requests; k++) {
            check_request(&list[k]);
            nbytes += list[k].nbytes;
        }
        cr_assert_eq(nbytes, requests.nbytes);
        cr_assert_eq(list[requests.n_requests].nbytes, 0, "no more than were counted");
        for (size_t i = 0; i < requests.n_ranges; i++)
            check_range(i);
        /* Places in memory, after moving down, follow each other. */
        const uint8_t *free_from = REGION;
        for (size_t i = 0; i < requests.n_ranges; i++) {
            if (ranges[i].choice.method == BERTH_LOAD_MAP)
                continue;
            cr_assert_geq(ranges[i].memory - ranges[i].shift, free_from);
            free_from = ranges[i].memory + ranges[i].nbytes;
        }
    }
}

/* ---- to devices ---- */

/* Handles are compared, never looked into. */
static bth_device_handle *const devices[] = {(bth_device_handle *)(uintptr_t)64,
                                             (bth_device_handle *)(uintptr_t)128};

static void make_staged(void)
{
    for (size_t i = 0; i < requests.n_ranges; i++) {
        ranges[i].target.device = devices[rand() % 4 == 0];
        if (ranges[i].choice.method == BERTH_LOAD_MAP || ranges[i].shift > 0)
            ranges[i].choice.method = BERTH_LOAD_READ;
        if (rand() % 2)
            ranges[i].shift = 0; /* nothing of it is swapped */
    }
    free(list);
    cr_assert(bth_requests_measure(&requests));
    list = calloc(requests.n_requests, sizeof *list);
    bth_requests_cut(&requests, NULL, NULL, list);
}

static void check_staged(const bth_request *request)
{
    const bth_range *first = &ranges[request->first_range];

    cr_assert_null(request->memory);
    cr_assert_leq(request->phase + request->nbytes, requests.chunk_nbytes, "it fits its buffer");
    if (request->method == BERTH_LOAD_DIRECT)
        cr_assert_eq((request->phase | request->offset) % requests.block_nbytes, 0);
    for (size_t i = request->first_range; i < request->end_range; i++) {
        cr_assert_eq(ranges[i].target.device, first->target.device, "one device");
        if (ranges[i].shift == 0)
            continue;
        cr_assert_eq(request->end_range, request->first_range + 1, "alone");
        cr_assert_eq((request->offset - ranges[i].offset) % 64, 0, "no element is cut");
        cr_assert_eq(request->phase % 64, 0, "its elements are aligned");
    }
}

Test(requests, to_devices_fit_buffers_and_cut_no_element)
{
    srand(11);
    for (int round = 0; round < 400; round++) {
        add_at_random();
        requests.use = BTH_USE_DEVICE;
        make_staged();
        for (uint64_t k = 0; k < requests.n_requests; k++)
            check_staged(&list[k]);
        for (size_t i = 0; i < requests.n_ranges; i++) {
            uint64_t come = 0, begin = ranges[i].offset;
            uint64_t end = begin + ranges[i].nbytes;
            for (uint64_t k = 0; k < requests.n_requests; k++) {
                if (i < list[k].first_range || i >= list[k].end_range)
                    continue;
                uint64_t from = list[k].offset > begin ? list[k].offset : begin;
                uint64_t to = list[k].offset + list[k].nbytes;
                come += (to < end ? to : end) - from;
            }
            cr_assert_eq(come, ranges[i].nbytes);
        }
    }
}
