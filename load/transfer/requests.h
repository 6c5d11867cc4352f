/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Ranges of a source become requests: neighbours are coalesced, and cut for workers. What is read
 * to memory of the library goes to one region that mirrors the file: the address of a byte is its
 * offset plus a constant, a multiple of the block. So every request lands in place, direct reads
 * too, however the ranges lie in the file. Other uses have no region. Pure arithmetic.
 */
#ifndef BTH_LOAD_TRANSFER_REQUESTS_H
#define BTH_LOAD_TRANSFER_REQUESTS_H

#include <stdatomic.h>

#include "io/device.h"
#include "load/transfer/choice.h"

/*
 * Bytes between two ranges that are read rather than jumped over. A request of its own costs a disk
 * 10 microseconds and more, even beside others; in that time it moves as many.
 */
#define BTH_GAP_NBYTES 32768

/* The least alignment of ranges in memory: a line of the processor's cache. */
#define BTH_MEMORY_ALIGNMENT 64

/* Where a range goes on a device. */
typedef struct bth_range_target {
    bth_device_handle *device; /* NULL: it goes to the host */
    uintptr_t address;         /* 0: memory is made for it */
    unsigned life;             /* of the device, in which the address is valid */
    void *ready;               /* an event that is waited for before a copy (X17); NULL: none */
    bool is_ours;              /* memory was made for it */
} bth_range_target;

/* Bytes that are moved or summed. Not empty, but a checksum scan has empty ones with surroundings.
 */
typedef struct bth_range {
    const void *owner; /* for the functions of the transfer's caller */
    uint64_t offset;   /* in the source */
    uint64_t nbytes;
    uint64_t before_nbytes; /* surroundings that are looked at, too: before */
    uint32_t after_nbytes;  /* and behind */
    bth_choice choice;
    uint8_t unit;    /* bytes that are reversed together; 0, 1: none */
    uint8_t shift;   /* T5: once read, it is moved down by so many bytes. To a device: so far is its
                        offset from a whole element; no request may cut one */
    uint8_t *memory; /* where it lies, or will; BTH_USE_CALLER: the caller's address */
    uint64_t region_at; /* of its first byte in the region; then, in memory made on its device */
    bth_range_target target;
    /* Results: */
    bool fell_back;        /* a direct read of it was refused */
    atomic_bool is_unread; /* a request with bytes of it failed, and the transfer went on */
    uint32_t crc32;        /* if asked for */
} bth_range;

/* With its surroundings: */
static inline uint64_t bth_range_begin(const bth_range *range)
{
    return range->offset - range->before_nbytes;
}
static inline uint64_t bth_range_end(const bth_range *range)
{
    return range->offset + range->nbytes + range->after_nbytes;
}

/* What one worker moves at a time. */
typedef struct bth_request {
    uint64_t offset; /* in the source */
    uint32_t nbytes;
    berth_load_method method;
    bool fell_back;
    uint8_t *memory;    /* NULL: the run chooses a buffer */
    uint32_t phase;     /* how far into a buffer of chunk_nbytes it belongs */
    size_t first_range; /* ranges with bytes here: [first_range, end_range) */
    size_t end_range;
    uint32_t head_crc32; /* of the bytes here of a range that began before */
} bth_request;

typedef struct bth_requests {
    bth_range *ranges; /* in the order of the source */
    size_t n_ranges;
    bth_use use;            /* of all of them */
    bool is_separate;       /* no ranges are coalesced: there is no buffer to read them to */
    uint64_t chunk_nbytes;  /* the longest request; a multiple of block_nbytes */
    uint32_t block_nbytes;  /* of direct reads; at least BTH_MEMORY_ALIGNMENT */
    uint64_t region_nbytes; /* result: memory for what is read */
    uint64_t n_requests;    /* result */
    uint64_t nbytes;        /* result: of all requests */
} bth_requests;

/* Fills the results, and each range's region_at. False: more than can be addressed. */
bool bth_requests_measure(bth_requests *requests);
/*
 * Fills n_requests requests, and the memory of ranges that stay in memory. `region` holds
 * region_nbytes, at a multiple of block_nbytes; NULL: there is none. `mapped` is the address of the
 * source's first byte, where ranges are mapped.
 */
void bth_requests_cut(const bth_requests *requests, uint8_t *region, const uint8_t *mapped,
                      bth_request *list);

#endif
