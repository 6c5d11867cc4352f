/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/transfer/spans.h"

#include "config/memory.h"

struct span {
    size_t first, end; /* items */
    berth_load_method method;
    uint64_t offset, nbytes; /* in the file */
    uint64_t at;             /* in the region; mapped: in the file */
};

static uint64_t end_of(const bth_item *item)
{
    return item->storage->offset + item->storage->nbytes;
}

/* T5: its chunks begin where its elements do. */
static bool is_apart(const bth_item *item)
{
    return item->device && item->shift > 0;
}

/* Whether an item is read along with the one before it. One that is moved down needs room for that.
 */
static bool follows(const bth_item *before, const bth_item *item)
{
    uint64_t end = end_of(before), offset = item->storage->offset;

    if (item->device != before->device || is_apart(item) || is_apart(before))
        return false;
    return item->way.method == before->way.method && offset >= end && offset - end >= item->shift &&
           offset - end <= BTH_GAP_NBYTES;
}

/* The span that begins with an item. */
static struct span span_from(const bth_spans *spans, size_t first)
{
    const bth_item *items = spans->items;
    struct span span = {.first = first,
                        .end = first + 1,
                        .method = items[first].way.method,
                        .offset = items[first].storage->offset};

    while (span.end < spans->n_items && follows(&items[span.end - 1], &items[span.end]))
        span.end++;
    uint64_t end = end_of(&items[span.end - 1]);
    if (span.method == BERTH_LOAD_DIRECT) {
        uint64_t block_nbytes = spans->block_nbytes;
        span.offset -= span.offset % block_nbytes;
        end += (block_nbytes - end % block_nbytes) % block_nbytes;
    }
    span.nbytes = end - span.offset;
    return span;
}

/* Its place behind what the region holds so far, which grows by it. */
static bool place(const bth_spans *spans, struct span *span, uint64_t *region_nbytes)
{
    uint64_t block_nbytes = spans->block_nbytes;
    uint64_t begin;

    span->at = span->offset;
    if (span->method == BERTH_LOAD_MAP)
        return true;
    uint64_t phase = is_apart(&spans->items[span->first]) ? 0 : span->offset % block_nbytes;
    if (!bth_add(*region_nbytes, (block_nbytes - *region_nbytes % block_nbytes) % block_nbytes,
                 &begin) ||
        !bth_add(begin, phase, &span->at) || !bth_add(span->at, span->nbytes, region_nbytes))
        return false;
    return *region_nbytes <= PTRDIFF_MAX;
}

/* Chunks end where the region has a multiple of their size: no large page is shared by two. */
static uint64_t chunk_at(const bth_spans *spans, const struct span *span, uint64_t done)
{
    uint64_t nbytes = spans->chunk_nbytes - (span->at + done) % spans->chunk_nbytes;
    uint64_t left = span->nbytes - done;

    return nbytes < left ? nbytes : left;
}

static uint64_t count_chunks(const bth_spans *spans, const struct span *span)
{
    uint64_t nbytes = span->at % spans->chunk_nbytes + span->nbytes;

    return nbytes / spans->chunk_nbytes + (nbytes % spans->chunk_nbytes != 0);
}

bool bth_spans_measure(bth_spans *spans)
{
    spans->region_nbytes = spans->n_chunks = spans->chunks_nbytes = 0;
    for (size_t first = 0; first < spans->n_items;) {
        struct span span = span_from(spans, first);
        if (!place(spans, &span, &spans->region_nbytes))
            return false;
        for (; first < span.end; first++)
            spans->items[first].region_at =
                span.at + (spans->items[first].storage->offset - span.offset);
        spans->n_chunks += count_chunks(spans, &span);
        spans->chunks_nbytes += span.nbytes;
    }
    return true;
}

/* The chunks of one span; returns what comes behind them. */
static bth_chunk *cut(const bth_spans *spans, const struct span *span, uint8_t *memory,
                      bth_chunk *chunk)
{
    size_t first = span->first, end = first;

    for (uint64_t done = 0; done < span->nbytes; done += chunk++->nbytes) {
        uint64_t nbytes = chunk_at(spans, span, done);
        uint64_t begin = span->offset + done;
        while (first < span->end && end_of(&spans->items[first]) <= begin)
            first++;
        while (end < span->end && spans->items[end].storage->offset < begin + nbytes)
            end++;
        *chunk = (bth_chunk){.offset = begin,
                             .nbytes = (uint32_t)nbytes,
                             .method = span->method,
                             .memory = memory ? memory + done : NULL,
                             .phase = (uint32_t)((span->at + done) % spans->chunk_nbytes),
                             .first_item = first,
                             .end_item = end};
    }
    return chunk;
}

void bth_spans_cut(bth_spans *spans, uint8_t *region, const uint8_t *mapped, bth_chunk *chunks)
{
    uint64_t region_nbytes = 0;

    for (size_t first = 0; first < spans->n_items;) {
        struct span span = span_from(spans, first);
        uint8_t *base = span.method == BERTH_LOAD_MAP ? (uint8_t *)(uintptr_t)mapped : region;
        (void)place(spans, &span, &region_nbytes); /* measured: it fits */
        chunks = cut(spans, &span, base ? base + span.at : NULL, chunks);
        for (; first < span.end; first++)
            spans->items[first].memory = base ? base + spans->items[first].region_at : NULL;
    }
}
