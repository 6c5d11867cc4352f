/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What an open will read, guessed from the object's end, so that it takes few requests. Nothing is
 * decided here: a wrong guess costs a request, and Berth checks all that it reads.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "adapters/curl/url.h"

/* An open reads so much before the directory, because it calculates where that begins. */
#define BEFORE_DIRECTORY_NBYTES ((uint64_t)128 << 10)
/* The header of the first storage. */
#define FIRST_HEADER_NBYTES 256
/* More is left to the open itself, which checks sizes first. */
#define MAX_NBYTES ((uint64_t)64 << 20)

enum { END_NBYTES = 22, END64_NBYTES = 56, LOCATOR_NBYTES = 20, ENTRY_NBYTES = 46 };

static uint64_t number(const uint8_t *bytes, size_t n)
{
    uint64_t value = 0;

    while (n-- > 0)
        value = value << 8 | bytes[n];
    return value;
}

static bool is_signed(const uint8_t *bytes, uint8_t third, uint8_t fourth)
{
    return bytes[0] == 'P' && bytes[1] == 'K' && bytes[2] == third && bytes[3] == fourth;
}

/* ---- the directory (FORMAT.md 3) ---- */

/* The end record in the tail; NULL: none. */
static const uint8_t *tail_find_end(const bcurl_block *tail)
{
    for (uint64_t n = END_NBYTES; n <= tail->nbytes && n <= END_NBYTES + UINT16_MAX; n++) {
        const uint8_t *at = tail->bytes + (tail->nbytes - n);
        if (is_signed(at, 5, 6) && number(at + 20, 2) == n - END_NBYTES)
            return at;
    }
    return NULL;
}

/* The end record of zip64, by the locator before the other; NULL: none in the tail. */
static const uint8_t *tail_find_end64(const bcurl_block *tail, const uint8_t *end)
{
    if (end - tail->bytes < LOCATOR_NBYTES || !is_signed(end - LOCATOR_NBYTES, 6, 7))
        return NULL;
    uint64_t offset = number(end - LOCATOR_NBYTES + 8, 8);
    if (offset < tail->at || offset - tail->at > tail->nbytes ||
        tail->nbytes - (offset - tail->at) < END64_NBYTES)
        return NULL;
    const uint8_t *end64 = tail->bytes + (offset - tail->at);
    return is_signed(end64, 6, 6) ? end64 : NULL;
}

/* Finds bytes [*at, *at + *nbytes) of the directory. */
static bool tail_find_directory(const bcurl_block *tail, uint64_t total, uint64_t *at,
                                uint64_t *nbytes)
{
    const uint8_t *end = tail_find_end(tail);

    if (!end)
        return false;
    const uint8_t *end64 = tail_find_end64(tail, end);
    *nbytes = end64 ? number(end64 + 40, 8) : number(end + 12, 4);
    *at = end64 ? number(end64 + 48, 8) : number(end + 16, 4);
    return *at <= total && *nbytes <= total - *at && *nbytes <= MAX_NBYTES;
}

/* The offset of an entry's local header, which zip64 may put into an extra field. */
static uint64_t entry_offset(const uint8_t *entry, size_t name, size_t extra)
{
    const uint8_t *field = entry + ENTRY_NBYTES + name, *end = field + extra;
    uint64_t offset = number(entry + 42, 4);

    if (offset != UINT32_MAX)
        return offset;
    size_t before = number(entry + 24, 4) == UINT32_MAX ? 8 : 0;
    before += number(entry + 20, 4) == UINT32_MAX ? 8 : 0;
    for (; end - field >= 4; field += 4 + number(field + 2, 2)) {
        uint64_t n = number(field + 2, 2);
        if (n > (uint64_t)(end - field - 4))
            break;
        if (number(field, 2) == 1 && n >= before + 8)
            return number(field + 4 + before, 8);
    }
    return UINT64_MAX;
}

static bool name_is_storage(const uint8_t *name, size_t nbytes)
{
    return memmem(name, nbytes, "/data/", 6) != NULL;
}

/* The end of what an open reads at the front: where the first storage begins. */
static uint64_t directory_head_end(const uint8_t *directory, uint64_t nbytes, uint64_t directory_at)
{
    uint64_t first = directory_at;

    while (nbytes >= ENTRY_NBYTES && is_signed(directory, 1, 2)) {
        size_t name = number(directory + 28, 2), extra = number(directory + 30, 2);
        uint64_t all = ENTRY_NBYTES + name + extra + number(directory + 32, 2);
        if (all > nbytes)
            break;
        uint64_t offset = entry_offset(directory, name, extra);
        if (name_is_storage(directory + ENTRY_NBYTES, name) && offset < first)
            first = offset;
        directory += all;
        nbytes -= all;
    }
    return first;
}

/* ---- blocks ---- */

/* Gets bytes [offset, offset + nbytes) into a new block. */
static int block_get(bcurl_url *url, uint64_t offset, uint64_t nbytes, bcurl_block *block,
                     berth_error *error)
{
    bcurl_range range = {.url = url, .bytes = malloc(nbytes), .offset = offset, .nbytes = nbytes};

    *block = (bcurl_block){range.bytes, offset, nbytes};
    if (!range.bytes) {
        (void)bcurl_fail(error, BERTH_E_MEMORY, 0, "out of memory");
        return BERTH_E_MEMORY;
    }
    return bcurl_range_get(&range, error);
}

/* Gets the bytes from `offset` to the tail, and puts them before it. */
static int tail_extend(bcurl_url *url, uint64_t offset, berth_error *error)
{
    bcurl_block more, both;

    if (offset >= url->tail.at)
        return 0;
    if (block_get(url, offset, url->tail.at - offset, &more, error) == 0) {
        both = (bcurl_block){realloc(more.bytes, more.nbytes + url->tail.nbytes), offset,
                             more.nbytes + url->tail.nbytes};
        if (both.bytes) {
            memcpy(both.bytes + more.nbytes, url->tail.bytes, url->tail.nbytes);
            free(url->tail.bytes);
            url->tail = both;
            return 0;
        }
        (void)bcurl_fail(error, BERTH_E_MEMORY, 0, "out of memory");
    }
    free(more.bytes);
    return error->code;
}

/* Gets the head, up to the tail at most. */
static int head_get(bcurl_url *url, uint64_t nbytes, berth_error *error)
{
    if (nbytes > url->tail.at)
        nbytes = url->tail.at;
    if (nbytes == 0 || nbytes > MAX_NBYTES)
        return 0;
    url->head_nbytes = nbytes;
    return block_get(url, 0, nbytes, &url->head, error);
}

/* ---- all of it ---- */

/* The first request: the end of the object, or its beginning. It pins the object. */
static int first_get(bcurl_url *url, bool is_from_end, bcurl_block *block, berth_error *error)
{
    bcurl_range range = {.url = url,
                         .bytes = malloc(BCURL_END_NBYTES),
                         .nbytes = BCURL_END_NBYTES,
                         .is_from_end = is_from_end};

    if (!range.bytes)
        return bcurl_fail(error, BERTH_E_MEMORY, 0, "out of memory");
    (void)bcurl_range_get(&range, error);
    *block = (bcurl_block){range.bytes, range.offset, range.nbytes};
    return error->code;
}

static int zip_ends_get(bcurl_url *url, berth_error *error)
{
    uint64_t at, nbytes, from;

    if (first_get(url, true, &url->tail, error) < 0 || url->tail.at == 0 ||
        !tail_find_directory(&url->tail, url->nbytes, &at, &nbytes))
        return error->code;
    from = at > BEFORE_DIRECTORY_NBYTES ? at - BEFORE_DIRECTORY_NBYTES : 0;
    if (from < url->tail.at && url->tail.at - from > MAX_NBYTES)
        return 0;
    if (at < url->tail.at && tail_extend(url, from, error) < 0)
        return error->code;
    uint64_t end = directory_head_end(url->tail.bytes + (at - url->tail.at), nbytes, at);
    return head_get(url, end + FIRST_HEADER_NBYTES, error);
}

/* Its header is at the front: 8 bytes with its length, then JSON. */
static int safetensors_ends_get(bcurl_url *url, berth_error *error)
{
    bcurl_block *head = &url->head, more;

    if (first_get(url, false, head, error) < 0 || head->nbytes < 8)
        return error->code;
    uint64_t nbytes = number(head->bytes, 8);
    if (nbytes > MAX_NBYTES || nbytes + 8 <= head->nbytes || nbytes + 8 > url->nbytes)
        return 0;
    nbytes += 8 - head->nbytes;
    if (block_get(url, head->nbytes, nbytes, &more, error) == 0) {
        uint8_t *bytes = realloc(head->bytes, head->nbytes + nbytes);
        if (bytes) {
            memcpy(bytes + head->nbytes, more.bytes, nbytes);
            head->bytes = bytes;
            head->nbytes += nbytes;
        }
    }
    free(more.bytes);
    url->head_nbytes = head->nbytes;
    return error->code;
}

int bcurl_ends_get(bcurl_url *url, berth_error *error)
{
    static const char extension[] = ".safetensors";
    size_t n = strlen(url->address.shown), m = sizeof extension - 1;

    if (n > m && strcasecmp(url->address.shown + n - m, extension) == 0)
        return safetensors_ends_get(url, error);
    return zip_ends_get(url, error);
}
