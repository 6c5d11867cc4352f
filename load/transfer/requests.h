/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Ranges of a source become requests: neighbours are coalesced, and cut for workers. Bytes for
 * memory of the library go to one region that mirrors the file: the address of a byte is its offset
 * plus a constant, a multiple of the block. So every request, also a direct read, writes to the
 * final address, wherever the ranges are in the file. Other uses have no region. Pure arithmetic.
 */
#ifndef BTH_LOAD_TRANSFER_REQUESTS_H
#define BTH_LOAD_TRANSFER_REQUESTS_H

#include <assert.h>
#include <stdatomic.h>

#include "format/zip/zip.h"
#include "io/devices.h"
#include "io/memory_region.h"
#include "load/transfer/method_choice.h"

/* Gaps up to this size are read: another request costs a disk 10 microseconds or more, the time in
 * which it moves this many bytes. */
#define BTH_GAP_NBYTES 32768

/* The system reads no part of a page from a disk. */
#define BTH_PAGE_NBYTES UINT64_C(4096)

/* Direct reads of shorter ranges read more than a twentieth beside them: they end at blocks. */
#define BTH_DIRECT_EXACT_MIN_NBYTES (40 * BTH_PAGE_NBYTES)

/* The alignment of ranges in memory: a line of the processor's cache. */
#define BTH_MEMORY_ALIGNMENT 64

static inline uint64_t bth_divide_up(uint64_t n, uint64_t by)
{
    assert(by > 0);
    return n / by + (n % by != 0);
}

/* For qsort: of structs whose first member is an offset, by that. */
static inline int bth_compare_offsets(const void *a, const void *b)
{
    uint64_t first = *(const uint64_t *)a, second = *(const uint64_t *)b;

    return (first > second) - (first < second);
}

/* The device target of a range. */
typedef struct bth_range_target {
    bth_device_handle *device; /* NULL: it goes to the host */
    uintptr_t address;         /* 0: memory is made for it */
    unsigned life;             /* of the device, in which the address is valid */
    void *ready;               /* an event: copies wait for it (X17); NULL: none */
    bool is_ours;              /* memory was made for it */
} bth_range_target;

/* Bytes that are moved or summed. Only a checksum scan has empty ranges, with surroundings. */
typedef struct bth_range {
    const void *owner;             /* for the functions of the transfer's caller */
    uint64_t offset;               /* in the source */
    uint64_t nbytes;               /* of a deflated one: when it is inflated */
    const bth_zip_entry *deflated; /* NULL: it is stored. Else its method is READ, shift is 0, and
                                      it is one request */
    uint64_t inflated_from;        /* of a deflated one: its first byte when it is inflated */
    uint64_t before_nbytes;        /* surroundings that a scan checks, too: before */
    uint32_t after_nbytes;         /* and after */
    bth_choice choice;
    uint8_t unit;    /* bytes that are reversed together; 0, 1: none */
    uint8_t shift;   /* T5: after the read it is moved down by this many bytes. To a device: the
                        distance of its offset from a whole element; no request cuts one */
    uint8_t *memory; /* its address, now or later; BTH_USE_CALLER: the caller's, */
    bool is_new;     /* which nobody has touched, of a large page or more; then also: */
    bth_pages_front front;
    uint64_t region_at; /* of its first byte in the region; later: in memory made on its device */
    bth_range_target target;
    /* Results: */
    bool fell_back;        /* a direct read of it was refused */
    atomic_bool is_unread; /* a request for bytes of it failed, and the transfer went on */
    uint32_t crc32;        /* with_crc32 */
} bth_range;

/* Where its bytes are in the source, with its surroundings: */
static inline uint64_t bth_range_surroundings_begin(const bth_range *range)
{
    return range->offset - range->before_nbytes;
}
static inline uint64_t bth_range_surroundings_end(const bth_range *range)
{
    uint64_t nbytes = range->deflated ? range->deflated->compressed_nbytes : range->nbytes;

    return range->offset + nbytes + range->after_nbytes;
}

/* The bytes that one worker moves at a time. */
typedef struct bth_request {
    uint64_t offset; /* in the source */
    uint64_t nbytes; /* below 2^32, unless it is deflated */
    berth_load_method method;
    bool fell_back;
    bool is_deflated;   /* its range is */
    uint8_t *memory;    /* NULL: the run chooses a buffer */
    uint32_t phase;     /* its offset in a buffer of chunk_nbytes */
    size_t first_range; /* ranges with bytes here: [first_range, end_range) */
    size_t end_range;
    uint32_t head_crc32; /* of the bytes here of a range that began before */
} bth_request;

typedef struct bth_requests {
    bth_range *ranges; /* in the order of the source */
    size_t n_ranges;
    bth_use use;            /* of all of them */
    bool is_separate;       /* no ranges are coalesced: there is no buffer to read them to */
    uint64_t gap_nbytes;    /* longer gaps are not read; 0: BTH_GAP_NBYTES. It is not for short
                               direct reads */
    uint64_t chunk_nbytes;  /* the longest request; a multiple of block_nbytes */
    uint32_t block_nbytes;  /* of direct reads; at least BTH_MEMORY_ALIGNMENT */
    uint64_t region_nbytes; /* result: memory for what is read */
    uint64_t n_requests;    /* result */
    uint64_t nbytes;        /* result: of all requests */
} bth_requests;

/* Fills the results, and each range's region_at. False: more than can be addressed. */
bool bth_requests_measure(bth_requests *requests);
/* Fills n_requests requests, and the memory of ranges that stay in memory. `region` holds
 * region_nbytes, at a multiple of block_nbytes; NULL: there is none. `mapped`: the source's first
 * byte, where ranges are mapped. */
void bth_requests_cut(const bth_requests *requests, uint8_t *region, const uint8_t *mapped,
                      bth_request *list);

#endif
