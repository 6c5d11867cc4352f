/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/fuzz/plain.h"

uint32_t u16_at(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8;
}

uint32_t u32_at(const uint8_t *bytes)
{
    return u16_at(bytes) | u16_at(bytes + 2) << 16;
}

uint64_t u64_at(const uint8_t *bytes)
{
    return u32_at(bytes) | (uint64_t)u32_at(bytes + 4) << 32;
}

bool is_signature(const uint8_t *bytes, const char *signature)
{
    return bytes[0] == 'P' && memcmp(bytes, signature, 4) == 0;
}

/* The last classic end record that ends where the bytes do; false: none, or one of a huge file. */
static bool find_directory(const uint8_t *bytes, size_t nbytes, size_t *begin, size_t *end,
                           size_t *end_at)
{
    for (size_t at = nbytes < 22 ? 0 : nbytes - 22 + 1; at-- > 0;) {
        if (!is_signature(bytes + at, "PK\5\6") || u16_at(bytes + at + 20) != nbytes - at - 22)
            continue;
        uint64_t size = u32_at(bytes + at + 12), offset = u32_at(bytes + at + 16);
        bool is_large = at >= 76 && is_signature(bytes + at - 20, "PK\6\7");
        if (is_large && size == SATURATED)
            size = u64_at(bytes + at - 76 + 40);
        if (is_large && offset == SATURATED)
            offset = u64_at(bytes + at - 76 + 48);
        *end_at = at;
        *begin = (size_t)offset;
        *end = (size_t)(offset + size);
        return offset <= at && size <= at - offset;
    }
    return false;
}

/* The next value of the entry's ZIP64 field, where its own one is saturated; too large: as it is.
 */
static uint32_t wide(const uint8_t *bytes, size_t nbytes, uint32_t field, size_t *at)
{
    if (field != SATURATED || nbytes - *at < 8)
        return field;
    uint64_t value = u64_at(bytes + *at);
    *at += 8;
    return value < SATURATED ? (uint32_t)value : SATURATED;
}

static void take_wide(const uint8_t *extra, size_t nbytes, struct part *part)
{
    uint32_t header_at = (uint32_t)part->header_at;

    while (nbytes >= 4 && u16_at(extra + 2) <= nbytes - 4) {
        size_t n = u16_at(extra + 2), at = 0;
        if (u16_at(extra) == 1) {
            part->n = wide(extra + 4, n, part->n, &at);
            part->nbytes = wide(extra + 4, n, part->nbytes, &at);
            part->header_at = wide(extra + 4, n, header_at, &at);
            return;
        }
        extra += 4 + n;
        nbytes -= 4 + n;
    }
}

/* The next entry, at `at`, and how long it is; 0: not one that can be taken. */
static size_t take_part(const uint8_t *bytes, size_t nbytes, size_t at, size_t end,
                        struct parts *parts)
{
    struct part *part = &parts->list[parts->n];

    if (end - at < 46 || memcmp(bytes + at, "PK\1\2", 4) != 0)
        return 0;
    size_t name_nbytes = u16_at(bytes + at + 28), extra_nbytes = u16_at(bytes + at + 30);
    size_t length = 46 + name_nbytes + extra_nbytes + u16_at(bytes + at + 32);
    *part = (struct part){.name_nbytes = (uint32_t)name_nbytes,
                          .flags = u16_at(bytes + at + 8),
                          .method = u16_at(bytes + at + 10),
                          .crc32 = u32_at(bytes + at + 16),
                          .nbytes = u32_at(bytes + at + 20),
                          .n = u32_at(bytes + at + 24),
                          .central_at = at,
                          .central_nbytes = length,
                          .header_at = u32_at(bytes + at + 42)};
    if (length > end - at || nbytes < 30)
        return 0;
    parts->is_beyond = name_nbytes >= MAX_NAME_NBYTES;
    if (parts->is_beyond)
        return 0;
    take_wide(bytes + at + 46 + name_nbytes, extra_nbytes, part);
    if (part->header_at > nbytes - 30)
        return 0;
    memcpy(part->name, bytes + at + 46, name_nbytes);
    const uint8_t *header = bytes + part->header_at;
    part->at = part->header_at + 30 + u16_at(header + 26) + u16_at(header + 28);
    parts->is_beyond = part->at > nbytes || part->nbytes > nbytes - part->at;
    if (parts->is_beyond)
        return 0;
    part->data = bytes + part->at;
    return length;
}

bool take_apart(const uint8_t *bytes, size_t nbytes, struct parts *parts)
{
    size_t at, end;

    parts->n = 0;
    parts->is_whole = parts->is_beyond = false;
    if (!find_directory(bytes, nbytes, &at, &end, &parts->end_at))
        return false;
    parts->begin = at;
    while (at < end && parts->n < MAX_PARTS) {
        size_t length = take_part(bytes, nbytes, at, end, parts);
        if (length == 0)
            return parts->n > 0;
        at += length;
        parts->n++;
    }
    parts->is_whole = at == end;
    parts->is_beyond = at < end;
    return parts->n > 0;
}

bool is_folder_part(const struct part *part)
{
    return part->name_nbytes > 0 && part->name[part->name_nbytes - 1] == '/';
}

const struct part *find_part(const struct parts *parts, const char *record)
{
    size_t n = strlen(record);

    for (size_t i = 0; i < parts->n; i++) {
        const struct part *part = &parts->list[i];
        const char *slash = memchr(part->name, '/', part->name_nbytes);
        if (slash && strlen(slash + 1) == n && memcmp(slash + 1, record, n) == 0)
            return part;
    }
    return NULL;
}

/* By the polynomial, a byte at a time. */
static uint32_t plain_crc32(const uint8_t *bytes, size_t nbytes)
{
    static uint32_t table[256];
    uint32_t crc = ~UINT32_C(0);

    for (uint32_t i = 0; table[255] == 0 && i < 256; i++) {
        uint32_t value = i;
        for (int bit = 0; bit < 8; bit++)
            value = value >> 1 ^ (value & 1 ? UINT32_C(0xEDB88320) : 0);
        table[i] = value;
    }
    for (size_t i = 0; i < nbytes; i++)
        crc = crc >> 8 ^ table[(crc ^ bytes[i]) & 0xff];
    return ~crc;
}

bool is_whole_crc(const struct part *part)
{
    return part->method != 0 || part->crc32 == 0 ||
           plain_crc32(part->data, part->nbytes) == part->crc32;
}

/* Z1 to Z3: numbers of the end records say the same, and the directory ends where they begin. */
static void check_plain_end(const uint8_t *bytes, const struct parts *parts, size_t end)
{
    size_t at = parts->end_at, n = parts->n;
    const uint8_t *small = bytes + at;
    bool is_large = at >= 76 && is_signature(bytes + at - 20, "PK\6\7");

    MUST(u32_at(small + 4) == 0 && u16_at(small + 8) == u16_at(small + 10), "Z3: the end record");
    MUST(u16_at(small + 10) == n || (is_large && u16_at(small + 10) == 0xffff), "Z3: %zu entries",
         n);
    MUST(end == at - (is_large ? 76 : 0), "Z3: the directory ends at byte %zu, not %zu", end, at);
    if (!is_large) {
        MUST(at < 56 || !is_signature(bytes + at - 56, "PK\6\6"), "Z2: no locator");
        return;
    }
    const uint8_t *large = small - 76, *locator = small - 20;
    uint64_t size = u32_at(small + 12), offset = u32_at(small + 16);
    MUST(is_signature(large, "PK\6\6") && u64_at(large + 4) == 44 && u64_at(large + 16) == 0 &&
             u64_at(large + 24) == n && u64_at(large + 32) == n,
         "Z2, Z3: the ZIP64 end record");
    MUST((size == SATURATED || size == u64_at(large + 40)) &&
             u64_at(large + 40) == end - parts->begin,
         "Z2: sizes of the directory");
    MUST((offset == SATURATED || offset == u64_at(large + 48)) &&
             u64_at(large + 48) == parts->begin,
         "Z2: offsets of the directory");
    MUST(u32_at(locator + 4) == 0 && u64_at(locator + 8) == at - 76 && u32_at(locator + 16) == 1,
         "Z2: the locator");
}

/* A Unicode path: its version, the CRC of the name, the name. */
static bool is_name_again(const uint8_t *path, size_t nbytes, const struct part *part)
{
    return nbytes == 5 + part->name_nbytes && path[0] == 1 &&
           memcmp(path + 5, part->name, part->name_nbytes) == 0 &&
           u32_at(path + 1) == plain_crc32((const uint8_t *)part->name, part->name_nbytes);
}

/* Z4: fields to the last byte; one of ZIP64 of just what is saturated; no second name. */
static void check_plain_extra(const uint8_t *central, const struct part *part)
{
    size_t nbytes = u16_at(central + 30), needed = 0, n_large = 0;
    const uint8_t *extra = central + 46 + part->name_nbytes;

    needed += u32_at(central + 20) == SATURATED ? 8 : 0;
    needed += u32_at(central + 24) == SATURATED ? 8 : 0;
    needed += u32_at(central + 42) == SATURATED ? 8 : 0;
    while (nbytes > 0) {
        MUST(nbytes >= 4 && u16_at(extra + 2) <= nbytes - 4, "Z4: %s: extra fields", part->name);
        size_t n = u16_at(extra + 2);
        MUST(u16_at(extra) != 0x7075 || is_name_again(extra + 4, n, part), "Z4: %s: a second name",
             part->name);
        MUST(u16_at(extra) != 1 || n == needed, "Z4: %s: ZIP64 of %zu bytes", part->name, n);
        n_large += u16_at(extra) == 1;
        extra += 4 + n;
        nbytes -= 4 + n;
    }
    MUST(n_large <= 1 && (needed == 0 || n_large == 1), "Z4: %s: %zu ZIP64 fields", part->name,
         n_large);
}

/* Z4, Z8, Z9: one entry of the directory by itself, and against the others. */
static void check_plain_entry(const uint8_t *bytes, const struct parts *parts, size_t i)
{
    const struct part *part = &parts->list[i];
    const uint8_t *central = bytes + part->central_at;
    const char *slash = memchr(part->name, '/', part->name_nbytes);
    size_t top = slash ? (size_t)(slash - part->name) + 1 : 0;

    check_plain_extra(central, part);
    MUST(u16_at(central + 34) == 0, "Z3: %s: on another disk", part->name);
    MUST(!(part->flags & 0x2061), "Z9: %s: flags %x", part->name, (unsigned)part->flags);
    MUST(part->method == 0 || part->method == 8, "Z9: %s", part->name);
    MUST(part->method != 0 || part->nbytes == part->n, "Z9: %s: two sizes", part->name);
    MUST(part->method == 0 || part->n <= UINT64_C(1032) * part->nbytes, "Z12: %s: unfolds too much",
         part->name);
    MUST(!is_folder_part(part) || part->nbytes == 0, "Z8: %s: a folder of bytes", part->name);
    MUST(top > 1 && memcmp(part->name, parts->list[0].name, top) == 0, "Z8: %s: another top",
         part->name);
    for (size_t k = 0; k < i; k++)
        MUST(parts->list[k].name_nbytes != part->name_nbytes || is_folder_part(part) ||
                 memcmp(parts->list[k].name, part->name, part->name_nbytes) != 0,
             "Z8: %s: twice", part->name);
}

/* Z5: what a local header says is what the directory says, or with bit 3 nothing. */
static void check_plain_local(const uint8_t *bytes, const struct part *part)
{
    const uint8_t *header = bytes + part->header_at;
    uint32_t sum = u32_at(header + 14), nbytes = u32_at(header + 18), n = u32_at(header + 22);
    bool is_late = part->flags & 8;

    MUST(is_signature(header, "PK\3\4") && u16_at(header + 6) == part->flags &&
             u16_at(header + 8) == part->method,
         "Z5: %s: local header", part->name);
    MUST(u16_at(header + 26) == part->name_nbytes &&
             memcmp(header + 30, part->name, part->name_nbytes) == 0,
         "Z5: %s: the local header's name", part->name);
    MUST(sum == part->crc32 || (is_late && sum == 0), "Z5: %s: CRC", part->name);
    MUST(nbytes == part->nbytes || nbytes == SATURATED || (is_late && nbytes == 0),
         "Z5: %s: size in the file", part->name);
    MUST(n == part->n || n == SATURATED || (is_late && n == 0), "Z5: %s: size", part->name);
}

/* Z6, Z7: what lies between data and the next header is a descriptor, and only with bit 3. */
static void check_plain_descriptor(const uint8_t *bytes, const struct part *part, size_t next_at)
{
    MUST(part->at + part->nbytes <= next_at, "Z7: %s reaches into the next", part->name);
    size_t n = next_at - part->at - part->nbytes, skipped = n % 8 == 0 ? 4 : 0;
    const uint8_t *at = part->data + part->nbytes;

    (void)bytes;
    if (!(part->flags & 8)) {
        MUST(n == 0, "Z7: %zu bytes after %s", n, part->name);
        return;
    }
    MUST(n == 12 || n == 16 || n == 20 || n == 24, "Z6: %s: %zu bytes", part->name, n);
    MUST(skipped == 0 || is_signature(at, "PK\7\10"), "Z6: %s: signature", part->name);
    at += skipped;
    bool is_large = n >= 20;
    MUST(u32_at(at) == part->crc32, "Z6: %s: CRC", part->name);
    MUST((is_large ? u64_at(at + 4) : u32_at(at + 4)) == part->nbytes &&
             (is_large ? u64_at(at + 12) : u32_at(at + 8)) == part->n,
         "Z6: %s: sizes", part->name);
}

/* The order in which they lie. */
static void sort_parts(const struct parts *parts, size_t *order)
{
    for (size_t i = 0; i < parts->n; i++) {
        size_t k = i;
        for (; k > 0 && parts->list[order[k - 1]].header_at > parts->list[i].header_at; k--)
            order[k] = order[k - 1];
        order[k] = i;
    }
}

bool is_storage_part(const struct part *part)
{
    const char *slash = memchr(part->name, '/', part->name_nbytes);

    return slash && strncmp(slash, "/data/", 6) == 0 && slash[6];
}

bool check_plain(const uint8_t *bytes, size_t nbytes, struct parts *parts, enum looked looked)
{
    size_t order[MAX_PARTS] = {0}; /* gcc does not see that sort_parts fills it */

    if (!take_apart(bytes, nbytes, parts) || !parts->is_whole) {
        MUST(parts->is_beyond, "Z2, Z3: no entry %zu where the end record has the directory",
             parts->n);
        return false;
    }
    const struct part *last = &parts->list[parts->n - 1];
    check_plain_end(bytes, parts, last->central_at + last->central_nbytes);
    sort_parts(parts, order);
    MUST(parts->list[order[0]].header_at == 0, "Z7: bytes before the first entry");
    for (size_t i = 0; i < parts->n; i++) {
        const struct part *part = &parts->list[order[i]];
        check_plain_entry(bytes, parts, i);
        if (looked == AT_SMALL && is_storage_part(part))
            continue;
        check_plain_local(bytes, part);
        check_plain_descriptor(
            bytes, part, i + 1 < parts->n ? parts->list[order[i + 1]].header_at : parts->begin);
        if (looked == AT_DATA && !is_storage_part(part))
            MUST(is_whole_crc(part), "Z10: %s: its CRC", part->name);
    }
    return true;
}

uint64_t layout_at(const struct part *part, uint64_t alignment)
{
    uint64_t at = part->header_at + 30 + part->name_nbytes + 4;

    return at + (alignment - at % alignment) % alignment;
}

uint64_t plain_number(const struct parts *parts, const char *record, uint64_t otherwise)
{
    const struct part *part = find_part(parts, record);
    uint64_t number = 0;

    for (uint32_t i = 0; part && i < part->nbytes; i++)
        if (part->data[i] >= '0' &&
            part->data[i] <= '9') /* else white space around it, or a plus */
            number = number * 10 + part->data[i] - '0';
    return part ? number : otherwise;
}
