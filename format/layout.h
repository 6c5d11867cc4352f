/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The layout: the position of every byte of a checkpoint, computed from names, sizes and an
 * alignment (FORMAT.md section 2). A save writes by it, a load finds records by it and checks them.
 */
#ifndef BTH_FORMAT_LAYOUT_H
#define BTH_FORMAT_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#define BTH_ZIP_LOCAL_NBYTES 30           /* local header without name and extra fields */
#define BTH_ZIP_CENTRAL_NBYTES 46         /* central directory entry without name and extra */
#define BTH_ZIP_END_NBYTES (56 + 20 + 22) /* ZIP64 end record, its locator, end record */
#define BTH_MAX_ALIGNMENT_READ 65536
/* The newest version of the archive that PyTorch reads. */
#define BTH_MAX_VERSION_READ 10

/* A field of 16 or 32 bits with this value: the zip64 field has the number. */
#define BTH_ZIP_SATURATED16 0xFFFFu
#define BTH_ZIP_SATURATED32 0xFFFFFFFFu

/* The layout entry of one record. All offsets are bytes from the start of the file. */
typedef struct bth_layout_entry {
    uint64_t header_offset;
    uint64_t data_offset;
    uint64_t nbytes;            /* of the data */
    uint64_t next_offset;       /* the next header, or the directory */
    uint32_t name_nbytes;       /* full name, with the top folder */
    uint32_t zip64_nbytes;      /* of the zip64 extra field: 0, 12, 20 or 28 */
    uint32_t padding_nbytes;    /* 'Z's in the padding extra, whose header is 4 more */
    uint32_t descriptor_nbytes; /* 0, 16 or 24 */
} bth_layout_entry;

/* Computes the entry of a record whose local header begins at `cursor`. alignment: 1 to
 * BTH_MAX_ALIGNMENT_READ, any number. -1: a sum exceeds 63 bits, or a length its field. */
int bth_layout_entry_compute(uint64_t cursor, size_t name_nbytes, uint64_t nbytes,
                             uint32_t alignment, bth_layout_entry *entry);

/* The size of the record's entry in the central directory. */
uint64_t bth_layout_central_entry_nbytes(const bth_layout_entry *entry);

#endif
