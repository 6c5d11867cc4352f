/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * An archive as a plain reader takes it apart: by the directory alone, as other readers do; and
 * what must be so of one that Berth accepts, by this reader's own sums and offsets. Nothing of
 * Berth's is called here: what is wrong there is not wrong here in the same way.
 */
#ifndef TESTS_SUPPORT_FUZZ_PLAIN_H
#define TESTS_SUPPORT_FUZZ_PLAIN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PARTS 64
#define MAX_NAME_NBYTES 96
#define SATURATED UINT32_MAX

/* Stops at once, so that a fuzzer keeps the input; `what` names the property. */
#define MUST(condition, ...)                                                                       \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: does not hold: %s: ", __FILE__, __LINE__, #condition);         \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

struct part {
    char name[MAX_NAME_NBYTES]; /* whole, with the top folder */
    uint32_t name_nbytes;
    uint32_t flags;
    uint32_t method;
    uint32_t crc32; /* as the directory has it */
    uint32_t n;     /* bytes before they were deflated */
    size_t central_at, central_nbytes;
    size_t header_at, at;
    uint32_t nbytes; /* in the file */
    const uint8_t *data;
    /* How it is written otherwise than it should be, if it is put together again. */
    uint32_t more_padding;
    uint32_t gap; /* bytes behind it */
    bool is_told; /* sizes and sum in the local header, without a descriptor */
};

struct parts {
    struct part list[MAX_PARTS];
    size_t n;
    size_t begin, end_at; /* of the directory, and the end record */
    bool is_whole;        /* every entry was taken */
    bool is_beyond;       /* not, for there is no room, or a local header leads out of the file */
};

/* ---- taken apart ---- */

uint32_t u16_at(const uint8_t *bytes);
uint32_t u32_at(const uint8_t *bytes);
uint64_t u64_at(const uint8_t *bytes);

/* Looks at one byte before it calls: this is asked at every byte. */
bool is_signature(const uint8_t *bytes, const char *signature);

/* False: there is nothing to take. The parts' data stay where they are. */
bool take_apart(const uint8_t *bytes, size_t nbytes, struct parts *parts);
bool is_folder_part(const struct part *part);

/* The part of the record of that name in the top folder; NULL: none. */
const struct part *find_part(const struct parts *parts, const char *record);

/* ---- what must be so of an archive that was accepted ---- */

bool is_whole_crc(const struct part *part);

/* What an opening has looked at. */
enum looked {
    AT_SMALL,   /* directory, and records that are no storages */
    AT_HEADERS, /* all headers and descriptors */
    AT_DATA     /* every byte of these; of a storage once it is handed out */
};
bool is_storage_part(const struct part *part);

/*
 * All parts by themselves and as neighbours (Z1 to Z10). False: this reader cannot take it apart.
 */
bool check_plain(const uint8_t *bytes, size_t nbytes, struct parts *parts, enum looked looked);
/* Where the layout of PyTorch's writer puts the data of a record (FORMAT.md 2). */
uint64_t layout_at(const struct part *part, uint64_t alignment);

/* The decimal number that is all of a record; without one: `otherwise`. */
uint64_t plain_number(const struct parts *parts, const char *record, uint64_t otherwise);

#endif
