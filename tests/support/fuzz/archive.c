/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/fuzz/archive.h"
#include "tests/support/fuzz/repack_archive.h"

#define MAX_ARCHIVE_NBYTES ((size_t)1 << 18)

/* How an archive is written; zeros: without sums, as small as can be. */
struct style {
    uint32_t alignment;   /* 0: no padding */
    bool has_descriptors; /* else sizes and sums are in the local header */
    bool has_sums;
    bool has_large_end;    /* the ZIP64 end record and its locator, as PyTorch writes them */
    unsigned large_fields; /* of the directory's entries, in ZIP64: size 1, other 2, place 4 */
    bool has_surplus;      /* these fields have one value more than they need */
};

static const struct style style_of_pytorch = {64, true, true, true, 0, false};

/* Data of changed parts: they are longer than where they were. */
struct room {
    uint8_t bytes[MAX_ARCHIVE_NBYTES];
    size_t nbytes;
};

/* The bytes, or 0 where they are more than `most`. */
static size_t put_together(const struct parts *parts, const struct style *style, uint8_t *bytes,
                           size_t most)
{
    static struct repack_archive archive;
    struct image out = {.bytes = bytes, .most = most};

    archive = (struct repack_archive){.n = parts->n, .has_wide_end = style->has_large_end};
    for (size_t i = 0; i < parts->n; i++) {
        const struct part *part = &parts->list[i];
        bool is_late = style->has_descriptors && part->nbytes > 0 && !part->is_told;
        uint32_t sum = part->method == 0 ? bth_crc32(0, part->data, part->nbytes) : part->crc32;
        struct repack_entry *entry = &archive.entries[i];
        *entry = (struct repack_entry){.name_nbytes = part->name_nbytes,
                                       .data = part->data,
                                       .nbytes = part->nbytes,
                                       .n = part->method == 0 ? part->nbytes : part->n,
                                       .crc32 = style->has_sums ? sum : 0,
                                       .flags = REPACK_UTF8 | (is_late ? REPACK_DESCRIPTOR : 0),
                                       .method = part->method,
                                       .alignment = style->alignment,
                                       .more_padding = part->more_padding,
                                       .gap_behind = part->gap,
                                       .is_told_late = is_late,
                                       .wide_central = style->large_fields,
                                       .has_surplus = style->has_surplus};
        memcpy(entry->name, part->name, part->name_nbytes);
        archive.listed[i] = (uint8_t)i;
    }
    repack_archive_write(&archive, &out);
    return out.is_full ? 0 : out.nbytes;
}

static void change_name(struct part *part)
{
    static const char *const telling[] = {"a/data.pkl",
                                          "a/byteorder",
                                          "a/data/0",
                                          "a/data/1",
                                          "a/data/00",
                                          "a/.format_version",
                                          "a/.storage_alignment",
                                          "a/version",
                                          "a/.data/serialization_id",
                                          "b/data/0",
                                          "a/",
                                          "a/../data/0",
                                          "a/data\\0",
                                          "A/data/0",
                                          "a/constants.pkl",
                                          "archive/data.pkl"};

    if (random_below(2)) {
        const char *name = telling[random_below(sizeof telling / sizeof *telling)];
        part->name_nbytes = (uint32_t)strlen(name);
        memcpy(part->name, name, part->name_nbytes);
        return;
    }
    part->name_nbytes =
        (uint32_t)LLVMFuzzerMutate((uint8_t *)part->name, part->name_nbytes, MAX_NAME_NBYTES - 1);
}

/* Pickles by their opcodes; else bytes by bytes. What was deflated gets no sum: nobody knows it. */
static void change_data(struct part *part, struct room *room, unsigned number)
{
    uint8_t *data = room->bytes + room->nbytes;
    size_t left = sizeof room->bytes - room->nbytes, most = part->nbytes + 64 + random_below(512);

    if (part->nbytes > left)
        return;
    if (part->nbytes > 0)
        memcpy(data, part->data, part->nbytes);
    most = most < left ? most : left;
    bool is_pickle = part->nbytes > 1 && data[0] == 0x80 && part->method == 0;
    size_t n = is_pickle && random_below(4) ? mutate_pickle(data, part->nbytes, most, number)
                                            : LLVMFuzzerMutate(data, part->nbytes, most);
    part->data = data;
    part->nbytes = (uint32_t)n;
    part->crc32 = 0;
    room->nbytes += n;
}

/* A storage of another length: as often by one, or by an element, as by anything. */
static void change_length(struct part *part, struct room *room)
{
    size_t left = sizeof room->bytes - room->nbytes, n = part->nbytes;
    size_t few = (size_t)1 << random_below(5);

    switch (random_below(4)) {
    case 0:
        n -= n < few ? n : few;
        break;
    case 1:
        n += few;
        break;
    case 2:
        n = 0;
        break;
    default:
        n = random_below(2 * n + 64);
    }
    if (n > left || part->nbytes > left)
        return;
    memset(room->bytes + room->nbytes, 0, n);
    if (part->nbytes > 0 && n > 0)
        memcpy(room->bytes + room->nbytes, part->data, n < part->nbytes ? n : part->nbytes);
    part->data = room->bytes + room->nbytes;
    part->nbytes = (uint32_t)n;
    room->nbytes += n;
}

/* The pickle rather than any other. */
static struct part *some_part(struct parts *parts)
{
    for (size_t i = 0; i < parts->n && random_below(2); i++)
        if (memmem(parts->list[i].name, parts->list[i].name_nbytes, "data.pkl", 8))
            return &parts->list[i];
    return &parts->list[random_below(parts->n)];
}

static void change_parts(struct parts *parts, struct room *room, unsigned number)
{
    struct part *one = some_part(parts), *other = some_part(parts), kept;

    switch (random_below(14)) {
    case 0:
        change_name(one);
        break;
    case 1:
        change_length(one, room);
        break;
    case 2:
        if (parts->n > 1)
            *one = parts->list[--parts->n];
        break;
    case 3:
        if (parts->n < MAX_PARTS)
            parts->list[parts->n++] = *one;
        break;
    case 4:
        kept = *one;
        *one = *other;
        *other = kept;
        break;
    case 5:
        one->method = one->method == 0 ? 8 : 0;
        break;
    case 6:
        one->more_padding = (uint32_t)(random_below(2) ? 1 : 1 + random_below(130));
        break;
    case 7:
        one->gap = (uint32_t)(random_below(2) ? 1 : 1 + random_below(65));
        one->is_told = random_below(2);
        break;
    default:
        change_data(one, room, number);
    }
}

static struct style some_style(void)
{
    static const uint32_t alignments[] = {0, 1, 2, 16, 64, 64, 64, 100, 256, 4096};
    struct style style = style_of_pytorch;

    if (random_below(4))
        return style;
    style.alignment = alignments[random_below(sizeof alignments / sizeof *alignments)];
    style.has_descriptors = random_below(4) > 0;
    style.has_sums = random_below(4) > 0;
    style.has_large_end = random_below(2) > 0;
    style.large_fields = random_below(4) ? 0 : (unsigned)random_below(8);
    style.has_surplus = random_below(16) == 0;
    return style;
}

/* The sums of every entry that the directory lists: there, and in the descriptor. */
static void mend_sums(uint8_t *bytes, size_t nbytes)
{
    for (size_t at = 0; at + 46 <= nbytes; at++) {
        if (!is_signature(bytes + at, "PK\1\2"))
            continue;
        uint64_t header = u32_at(bytes + at + 42), size = u32_at(bytes + at + 24);
        if (header + 30 > nbytes)
            continue;
        uint64_t data = header + 30 + u16_at(bytes + header + 26) + u16_at(bytes + header + 28);
        if (data + size + 16 > nbytes || u32_at(bytes + at + 16) == 0)
            continue;
        uint32_t crc = bth_crc32(0, bytes + data, size);
        bth_put_u32(bytes + at + 16, crc);
        if (memcmp(bytes + data + size, "PK\7\10", 4) == 0)
            bth_put_u32(bytes + data + size + 4, crc);
    }
}

/* One byte or number of any structure: nothing moves. */
static void change_in_place(uint8_t *bytes, size_t nbytes)
{
    static const uint8_t telling[] = {0, 1, 0x7f, 0x80, 0xff, 'R', 'Q', '.', 't', '(', 'h', 'q'};
    size_t at = random_below(nbytes);

    /* Most bytes of a small file are padding and payload: prefer what is not. */
    for (size_t i = 0; i < 200 && (bytes[at] == 'Z' || bytes[at] == 0); i++)
        at = (at + 1) % nbytes;
    switch (random_below(4)) {
    case 0:
        bytes[at] = telling[random_below(sizeof telling)];
        break;
    case 1:
        bytes[at] = (uint8_t)(bytes[at] ^ 1u << random_below(8));
        break;
    case 2:
        bytes[at] = (uint8_t)(bytes[at] + random_below(9) - 4);
        break;
    default:
        bytes[at] = bytes[random_below(nbytes)];
    }
}

/* A number of `width` bytes that is another one: as often one less or more as anything. */
static void break_number(uint8_t *bytes, size_t width)
{
    static const uint64_t telling[] = {0, 1, 8, UINT16_MAX, UINT32_MAX, UINT64_MAX};
    uint64_t value = 0;

    for (size_t i = width; i-- > 0;)
        value = value << 8 | bytes[i];
    switch (random_below(5)) {
    case 0:
        value++;
        break;
    case 1:
        value--;
        break;
    case 2:
        value ^= UINT64_C(1) << random_below(8 * width);
        break;
    case 3:
        value = telling[random_below(sizeof telling / sizeof *telling)];
        break;
    default:
        value += random_below(129) - 64;
    }
    for (size_t i = 0; i < width; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
}

/* One of the fields whose widths these are, one a digit; 0: nothing is there. */
static void break_field(uint8_t *bytes, size_t at, size_t nbytes, const char *widths)
{
    size_t k = random_below(strlen(widths));

    for (size_t i = 0; i < k; i++)
        at += (size_t)(widths[i] - '0');
    size_t width = (size_t)(widths[k] - '0');
    if (at <= nbytes && width <= nbytes - at)
        break_number(bytes + at, width);
}

/* A byte of a record, of a small one rather than of a storage; its sum is not mended. */
static void break_data(uint8_t *bytes, const struct parts *parts)
{
    const struct part *part = &parts->list[random_below(parts->n)];

    for (int i = 0; i < 4 && (part->nbytes == 0 || is_storage_part(part)); i++)
        part = &parts->list[random_below(parts->n)];
    if (part->nbytes > 0)
        break_number(bytes + part->at + random_below(part->nbytes), 1);
}

/*
 * One fact of an archive where all agree: a field of a header, a descriptor, the directory or an
 * end record, a letter of a name, or a byte of data. Nothing moves, nothing else is mended.
 */
static void break_one(uint8_t *bytes, size_t nbytes)
{
    static struct parts parts;

    if (!take_apart(bytes, nbytes, &parts))
        return;
    const struct part *part = &parts.list[random_below(parts.n)];
    size_t name_at = random_below(2) ? part->header_at + 30 : part->central_at + 46;
    switch (random_below(10)) {
    case 0:
        break_field(bytes, part->header_at, nbytes, "4222224442222");
        break;
    case 1:
        break_field(bytes, part->central_at, nbytes, "42222224442222244");
        break;
    case 2:
        break_field(bytes, part->at + part->nbytes, nbytes, "4444");
        break;
    case 3:
        break_field(bytes, parts.end_at, nbytes, "42222442");
        break;
    case 4: /* ZIP64: the end record, and its locator */
        if (parts.end_at >= 76)
            break_field(bytes, parts.end_at - 76, nbytes, "48224488884484");
        break;
    case 5:
        break_field(bytes, name_at + random_below(part->name_nbytes), nbytes, "1");
        break;
    case 6: /* the first extra field, of ZIP64 maybe */
        break_field(bytes, name_at + part->name_nbytes, nbytes, "22888");
        break;
    default:
        break_data(bytes, &parts);
    }
}

/* Taken apart, changed, put together again; 0: it cannot be taken apart, or put together. */
static size_t rebuild(uint8_t *bytes, size_t nbytes, size_t most, unsigned number, size_t n_changes)
{
    static struct parts parts;
    static struct room room;
    static uint8_t built[MAX_ARCHIVE_NBYTES];

    if (!take_apart(bytes, nbytes, &parts))
        return 0;
    const struct style style = some_style();
    room.nbytes = 0;
    for (size_t i = 0; i < n_changes; i++)
        change_parts(&parts, &room, number);
    size_t n = put_together(&parts, &style, built, most < sizeof built ? most : sizeof built);
    memcpy(bytes, built, n);
    return n;
}

/* A few bytes less or more: a stream from before 1.6 ends with its last storage. */
static size_t change_end(uint8_t *bytes, size_t nbytes, size_t most)
{
    size_t few = (size_t)1 << random_below(5);

    if (random_below(2))
        return nbytes - (few < nbytes ? few : 0);
    if (few > most - nbytes)
        return nbytes;
    memset(bytes + nbytes, 0, few);
    return nbytes + few;
}

size_t mutate_archive(uint8_t *bytes, size_t nbytes, size_t most, unsigned number)
{
    size_t n_changes = random_below(4), n;

    if (nbytes == 0 || random_below(16) == 0)
        return LLVMFuzzerMutate(bytes, nbytes, most);
    /* All right but for one fact, in one of four. */
    if (random_below(4) > 0 && (n = rebuild(bytes, nbytes, most, number, n_changes)) > 0) {
        nbytes = n;
        if (n_changes == 0)
            break_one(bytes, nbytes);
        if (random_below(4))
            return nbytes;
    }
    if (random_below(8) == 0)
        return change_end(bytes, nbytes, most);
    for (size_t i = 1 + random_below(3); i-- > 0;)
        change_in_place(bytes, nbytes);
    if (random_below(4))
        mend_sums(bytes, nbytes);
    return nbytes;
}
