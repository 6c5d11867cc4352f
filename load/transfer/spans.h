/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How storages are brought together: neighbours in the file form spans, which are cut into chunks
 * for workers. What is read goes to one region of memory, that mirrors the spans: a byte's address
 * is its offset plus a constant, a multiple of the block. So chunks land where they stay, for
 * direct reads too, whatever the alignment of storages in the file. What goes to a device has no
 * such region: each chunk comes to a buffer of its own, to where it would lie in the region modulo
 * a chunk's size. Pure arithmetic.
 */
#ifndef BTH_LOAD_TRANSFER_SPANS_H
#define BTH_LOAD_TRANSFER_SPANS_H

#include "format/values/value.h"
#include "io/device.h"
#include "load/transfer/io_method.h"

/*
 * Bytes between two storages that are read rather than jumped over. A request of its own costs a
 * disk 10 microseconds and more, even if others go on beside it, in which it moves as many.
 */
#define BTH_GAP_NBYTES 32768

/* A storage that is to be brought: no view, not empty. */
typedef struct bth_item {
    const berth_storage *storage;
    bth_way way;
    uint8_t *memory; /* where it lies, or will */
    uint8_t shift;   /* T5: it is moved down by so many bytes once it is read; of one that goes to
                        a device: its elements lie so in the file, no chunk may cut any */
    bool fell_back;  /* a direct read of it was refused */
    uint32_t crc32;  /* computed, if asked for */
    uint64_t region_at;        /* of its first byte, as read; then, in memory made on its device */
    bth_device_handle *device; /* where it goes; NULL: to the host */
    uintptr_t address;         /* there; 0: nobody made room yet */
    unsigned life;             /* of the device, in which that is its memory */
    void *ready;               /* an event that is waited for there (X17); NULL: none */
    bool is_ours;              /* in memory that is made for it */
} bth_item;

/* What one worker brings at a time. */
typedef struct bth_chunk {
    uint64_t offset; /* in the file */
    uint32_t nbytes;
    berth_load_method method;
    bool fell_back;
    uint8_t *memory;   /* to a device: whoever brings it says where */
    uint32_t phase;    /* how far into a buffer of chunk_nbytes it belongs */
    size_t first_item; /* items with bytes here: [first_item, end_item) */
    size_t end_item;
    uint32_t head_crc32; /* of the bytes here of an item that began before */
} bth_chunk;

typedef struct bth_spans {
    bth_item *items; /* in the file's order */
    size_t n_items;
    uint64_t chunk_nbytes;  /* a multiple of block_nbytes */
    uint32_t block_nbytes;  /* of direct reads; at least BTH_MEMORY_ALIGNMENT */
    uint64_t region_nbytes; /* result: memory for what is read */
    uint64_t n_chunks;      /* result */
    uint64_t chunks_nbytes; /* result: of all chunks */
} bth_spans;

/* Where storages lie in memory at least: a processor's line. */
#define BTH_MEMORY_ALIGNMENT 64

/* Fills the results, and each item's region_at. False: more than can be addressed. */
bool bth_spans_measure(bth_spans *spans);
/*
 * Fills n_chunks chunks, and the memory of items that are read. `region` holds region_nbytes, at a
 * multiple of block_nbytes; NULL: all that is read goes to devices. `mapped` is the address of the
 * file's first byte, where items are mapped.
 */
void bth_spans_cut(bth_spans *spans, uint8_t *region, const uint8_t *mapped, bth_chunk *chunks);

#endif
