/* SPDX-License-Identifier: BSD-3-Clause */
/* Between the steps of a recipe (repack.c) and the bytes that they lead to (repack_write.c). */
#ifndef TESTS_SUPPORT_FUZZ_REPACK_ARCHIVE_H
#define TESTS_SUPPORT_FUZZ_REPACK_ARCHIVE_H

#include "tests/support/fuzz/image.h"
#include "tests/support/fuzz/plain.h"

#define REPACK_MAX_ENTRIES MAX_PARTS
#define REPACK_DESCRIPTOR 8u
#define REPACK_UTF8 0x800u

/* One entry, and how it is written. */
struct repack_entry {
    char name[MAX_NAME_NBYTES];
    uint32_t name_nbytes;
    const uint8_t *data;
    uint32_t nbytes; /* in the file */
    uint32_t n, crc32, flags, method;
    uint32_t time, made_by, attributes, comment_nbytes;
    uint32_t alignment; /* of its data, by an extra field of padding; 0: none */
    uint32_t more_padding;
    uint32_t gap, gap_behind; /* bytes before its header, and behind it: lies */
    unsigned local_extra, central_extra;
    unsigned descriptor;              /* its form, where flags say that it has one */
    bool is_wide_local, is_told_late; /* sizes in ZIP64; sizes and sum only in the descriptor */
    unsigned wide_central;      /* fields of the directory in ZIP64: size 1, other 2, place 4 */
    bool has_surplus;           /* one value more there than these fields need */
    bool is_dropped, is_hidden; /* it lies nowhere; it lies there, and is not listed */
    size_t header_at, data_at, central_at;
    /* A byte of its header, its entry of the directory and its descriptor: changed by what. */
    uint8_t local_lie[2], central_lie[2], descriptor_lie[2];
};

struct repack_archive {
    struct repack_entry entries[REPACK_MAX_ENTRIES]; /* as they lie in the file */
    size_t n;
    uint8_t listed[REPACK_MAX_ENTRIES]; /* as the directory has them */
    char top[MAX_NAME_NBYTES];
    uint32_t comment_nbytes;
    bool has_wide_end;
    uint8_t end_lie[2], image_lie[3];
    bool is_honest;
};

/* Writes all of it, and then tells the lies. */
void repack_archive_write(struct repack_archive *archive, struct image *out);

#endif
