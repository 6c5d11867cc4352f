/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/transfer/requests.h"

#include <assert.h>

#include "base/memory.h"

/* Ranges that are read together. */
struct coalesced {
    size_t first, end; /* ranges */
    berth_load_method method;
    uint64_t offset, nbytes; /* in the source */
    uint64_t at;             /* in the region; without one: in the source */
};

/* T5: its requests begin at whole elements. Z12: a deflated one is one request. */
static bool range_is_never_coalesced(const bth_range *range)
{
    return range->deflated || (range->target.device && range->shift > 0);
}

/* Whether a range is read together with the one before it, and the gap between them, up to a
 * length. Moving it down needs room. */
static bool requests_can_coalesce(const bth_requests *requests, const bth_range *before,
                                  const bth_range *range)
{
    uint64_t end = bth_range_surroundings_end(before), begin = bth_range_surroundings_begin(range);
    bool is_short_direct =
        range->choice.method == BERTH_LOAD_DIRECT && range->nbytes < BTH_DIRECT_EXACT_MIN_NBYTES;
    uint64_t gap_nbytes =
        requests->gap_nbytes == 0 || is_short_direct ? BTH_GAP_NBYTES : requests->gap_nbytes;

    if (range->target.device != before->target.device || range_is_never_coalesced(range) ||
        range_is_never_coalesced(before))
        return false;
    return range->choice.method == before->choice.method && begin >= end &&
           begin - end >= range->shift && begin - end <= gap_nbytes;
}

static struct coalesced coalesce_ranges_from(const bth_requests *requests, size_t first)
{
    const bth_range *ranges = requests->ranges;
    struct coalesced all = {.first = first,
                            .end = first + 1,
                            .method = ranges[first].choice.method,
                            .offset = bth_range_surroundings_begin(&ranges[first])};

    while (!requests->is_separate && all.end < requests->n_ranges &&
           requests_can_coalesce(requests, &ranges[all.end - 1], &ranges[all.end]))
        all.end++;
    if (ranges[first].deflated) {
        all.nbytes = ranges[first].nbytes;
        return all;
    }
    uint64_t end = bth_range_surroundings_end(&ranges[all.end - 1]);
    if (all.method == BERTH_LOAD_DIRECT) {
        uint64_t block_nbytes = requests->block_nbytes;
        all.offset -= all.offset % block_nbytes;
        end += (block_nbytes - end % block_nbytes) % block_nbytes;
    }
    all.nbytes = end - all.offset;
    return all;
}

/* Appends it to the region, and sets its position. */
static bool coalesced_append_to_region(const bth_requests *requests, struct coalesced *all,
                                       uint64_t *region_nbytes)
{
    bool has_region = requests->use == BTH_USE_MEMORY || requests->use == BTH_USE_DEVICE;
    uint64_t block_nbytes = requests->block_nbytes;
    uint64_t begin;

    all->at = all->offset;
    if (all->method == BERTH_LOAD_MAP || !has_region)
        return true;
    uint64_t phase =
        range_is_never_coalesced(&requests->ranges[all->first]) ? 0 : all->offset % block_nbytes;
    if (!bth_try_add(*region_nbytes, (block_nbytes - *region_nbytes % block_nbytes) % block_nbytes,
                     &begin) ||
        !bth_try_add(begin, phase, &all->at) || !bth_try_add(all->at, all->nbytes, region_nbytes))
        return false;
    return *region_nbytes <= PTRDIFF_MAX;
}

bool bth_requests_measure(bth_requests *requests)
{
    assert(requests->chunk_nbytes % requests->block_nbytes == 0);
    requests->region_nbytes = requests->n_requests = requests->nbytes = 0;
    for (size_t first = 0; first < requests->n_ranges;) {
        struct coalesced all = coalesce_ranges_from(requests, first);
        if (!coalesced_append_to_region(requests, &all, &requests->region_nbytes))
            return false;
        for (; first < all.end; first++)
            requests->ranges[first].region_at =
                all.at + (requests->ranges[first].offset - all.offset);
        uint64_t nbytes = all.at % requests->chunk_nbytes + all.nbytes;
        requests->n_requests += requests->ranges[all.first].deflated
                                    ? 1
                                    : bth_divide_up(nbytes, requests->chunk_nbytes);
        requests->nbytes += all.nbytes;
    }
    return true;
}

void bth_requests_cut(const bth_requests *requests, uint8_t *region, const uint8_t *mapped,
                      bth_request *list)
{
    const uint64_t chunk_nbytes = requests->chunk_nbytes;
    bth_range *ranges = requests->ranges;
    uint64_t region_nbytes = 0;

    for (size_t i = 0; i < requests->n_ranges;) {
        struct coalesced all = coalesce_ranges_from(requests, i);
        uint8_t *base = all.method == BERTH_LOAD_MAP ? (uint8_t *)(uintptr_t)mapped : region;
        size_t first = i, end = i;
        (void)coalesced_append_to_region(requests, &all, &region_nbytes); /* measured: it fits */
        for (; i < all.end && requests->use == BTH_USE_MEMORY; i++)
            ranges[i].memory = base ? base + ranges[i].region_at : NULL;
        i = all.end;
        if (ranges[first].deflated) {
            *list++ = (bth_request){.offset = all.offset,
                                    .nbytes = all.nbytes,
                                    .method = all.method,
                                    .is_deflated = true,
                                    .memory = base ? base + all.at : NULL,
                                    .first_range = first,
                                    .end_range = all.end};
            continue;
        }
        for (uint64_t done = 0; done < all.nbytes; done += list++->nbytes) {
            /* They end at multiples of their size in the region, so no two share a large page. */
            uint64_t phase = (all.at + done) % chunk_nbytes;
            uint64_t nbytes = bth_min(chunk_nbytes - phase, all.nbytes - done);
            uint64_t begin = all.offset + done;
            while (first < all.end && bth_range_surroundings_end(&ranges[first]) <= begin)
                first++;
            while (end < all.end && bth_range_surroundings_begin(&ranges[end]) < begin + nbytes)
                end++;
            *list = (bth_request){.offset = begin,
                                  .nbytes = nbytes,
                                  .method = all.method,
                                  .memory = base ? base + all.at + done : NULL,
                                  .phase = (uint32_t)phase,
                                  .first_range = first,
                                  .end_range = end};
        }
    }
}
