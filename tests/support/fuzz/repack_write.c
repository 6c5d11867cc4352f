/* SPDX-License-Identifier: BSD-3-Clause */
#include "format/checksum.h"
#include "tests/support/fuzz/repack_archive.h"

#define MAX_EXTRA_NBYTES 8192

static const uint8_t zeros[256];

static void put_field(struct image *out, uint16_t id, const void *bytes, size_t n)
{
    put_number(out, id, 2);
    put_number(out, n, 2);
    put_bytes(out, bytes, n);
}

/* Info-ZIP's, the same name again. */
static void put_unicode_path(struct image *out, const struct repack_entry *entry)
{
    put_number(out, 0x7075, 2);
    put_number(out, 5 + entry->name_nbytes, 2);
    put_number(out, 1, 1);
    put_number(out, bth_crc32(0, entry->name, entry->name_nbytes), 4);
    put_bytes(out, entry->name, entry->name_nbytes);
}

/* What tools write that says nothing of names and sizes; the directory's time is shorter. */
static void put_foreign_fields(struct image *out, const struct repack_entry *entry, unsigned kind,
                               bool is_local)
{
    if (kind == 1 || kind == 2 || kind == 7)
        put_field(out, 0x5455, zeros, is_local ? 9 : 5);
    if (kind == 2)
        put_field(out, 0x7875, "\1\4\0\0\0\0\4\0\0\0", 11);
    if (kind == 3)
        put_field(out, 0x000a, zeros, 32);
    if (kind == 4)
        put_unicode_path(out, entry);
    if (kind == 5)
        put_field(out, 0xcafe, zeros, 0);
    if (kind == 6)
        put_field(out, 0x6666, zeros, 5);
    if (kind == 7)
        put_field(out, 0x4246, zeros, 3);
}

static bool entry_tells_late(const struct repack_entry *entry)
{
    return entry->flags & REPACK_DESCRIPTOR && entry->is_told_late;
}

static void put_local_extra(struct image *out, const struct repack_entry *entry, size_t at)
{
    const uint64_t sizes[] = {1, 16, entry_tells_late(entry) ? 0 : entry->n,
                              entry_tells_late(entry) ? 0 : entry->nbytes};

    if (entry->is_wide_local)
        put_numbers(out, "2288", sizes);
    put_foreign_fields(out, entry, entry->local_extra, true);
    if (entry->alignment == 0)
        return;
    size_t n = (at + out->nbytes + 4) % entry->alignment;
    put_number(out, 0x4246, 2);
    n = (n ? entry->alignment - n : 0) + entry->more_padding;
    put_number(out, n, 2);
    for (; n > 0; n--)
        put_number(out, 'Z', 1);
}

static void put_descriptor(struct image *out, const struct repack_entry *entry)
{
    const uint64_t values[] = {0x08074b50, entry->crc32, entry->nbytes, entry->n};
    const char *widths = entry->descriptor < 2 ? "4444" : "4488";

    if (!(entry->flags & REPACK_DESCRIPTOR))
        return;
    if (entry->descriptor & 1)
        put_numbers(out, widths + 1, values + 1);
    else
        put_numbers(out, widths, values);
}

static void lie_tell(struct image *out, size_t at, const uint8_t *lie)
{
    if (lie[1] && at + lie[0] < out->nbytes)
        out->bytes[at + lie[0]] ^= lie[1];
}

static void put_local(struct image *out, struct repack_entry *entry)
{
    uint8_t bytes[MAX_EXTRA_NBYTES];
    struct image extra = {.bytes = bytes, .most = sizeof bytes};
    bool is_late = entry_tells_late(entry);
    uint64_t size = is_late ? 0 : entry->n, compressed = is_late ? 0 : entry->nbytes;

    put_bytes(out, zeros, entry->gap);
    entry->header_at = out->nbytes;
    put_local_extra(&extra, entry, out->nbytes + 30 + entry->name_nbytes);
    const uint64_t header[] = {0x04034b50,
                               20,
                               entry->flags,
                               entry->method,
                               entry->time,
                               is_late ? 0 : entry->crc32,
                               entry->is_wide_local ? SATURATED : compressed,
                               entry->is_wide_local ? SATURATED : size,
                               entry->name_nbytes,
                               extra.nbytes};
    put_numbers(out, "4222444422", header);
    put_bytes(out, entry->name, entry->name_nbytes);
    put_bytes(out, extra.bytes, extra.nbytes);
    entry->data_at = out->nbytes;
    put_bytes(out, entry->data, entry->nbytes);
    put_descriptor(out, entry);
    put_bytes(out, zeros, entry->gap_behind);
    out->is_full = out->is_full || extra.is_full;
    lie_tell(out, entry->header_at, entry->local_lie);
    lie_tell(out, entry->data_at + entry->nbytes, entry->descriptor_lie);
}

static void put_central_extra(struct image *out, const struct repack_entry *entry)
{
    const uint64_t wide[] = {entry->n, entry->nbytes, entry->header_at};
    unsigned n = (entry->wide_central & 1) + (entry->wide_central >> 1 & 1) +
                 (entry->wide_central >> 2 & 1) + entry->has_surplus;

    put_foreign_fields(out, entry, entry->central_extra, false);
    if (n == 0)
        return;
    put_number(out, 1, 2);
    put_number(out, 8 * n, 2);
    for (unsigned i = 0; i < 3; i++)
        if (entry->wide_central & 1u << i)
            put_number(out, wide[i], 8);
    if (entry->has_surplus)
        put_number(out, 0, 8);
}

static void put_central(struct image *out, struct repack_entry *entry)
{
    uint8_t bytes[MAX_EXTRA_NBYTES];
    struct image extra = {.bytes = bytes, .most = sizeof bytes};
    unsigned wide = entry->wide_central;

    entry->central_at = out->nbytes;
    put_central_extra(&extra, entry);
    const uint64_t header[] = {0x02014b50,
                               entry->made_by,
                               20,
                               entry->flags,
                               entry->method,
                               entry->time,
                               entry->crc32,
                               wide & 2 ? SATURATED : entry->nbytes,
                               wide & 1 ? SATURATED : entry->n,
                               entry->name_nbytes,
                               extra.nbytes,
                               entry->comment_nbytes,
                               0,
                               0,
                               entry->attributes,
                               wide & 4 ? SATURATED : entry->header_at};
    put_numbers(out, "4222244442222244", header);
    put_bytes(out, entry->name, entry->name_nbytes);
    put_bytes(out, extra.bytes, extra.nbytes);
    put_bytes(out, zeros, entry->comment_nbytes);
    lie_tell(out, entry->central_at, entry->central_lie);
}

static void put_end(struct image *out, const struct repack_archive *archive, size_t n, size_t begin)
{
    uint64_t end = out->nbytes, size = end - begin;
    const uint64_t wide[] = {0x06064b50, 44,   0x31e, 45,         0, 0,   n,
                             n,          size, begin, 0x07064b50, 0, end, 1};
    const uint64_t small[] = {0x06054b50, 0, 0, n, n, size, begin, archive->comment_nbytes};

    if (archive->has_wide_end)
        put_numbers(out, "48224488884484", wide);
    put_numbers(out, "42222442", small);
    put_bytes(out, zeros, archive->comment_nbytes);
}

static void entry_rename_top(struct repack_entry *entry, const char *top)
{
    const char *slash = *top ? memchr(entry->name, '/', entry->name_nbytes) : NULL;
    char name[MAX_NAME_NBYTES];

    if (!slash)
        return;
    size_t rest = entry->name_nbytes - (size_t)(slash - entry->name), n = strlen(top);
    if (n + rest >= sizeof name)
        return;
    memcpy(name, top, n);
    memcpy(name + n, slash, rest);
    memcpy(entry->name, name, n + rest);
    entry->name_nbytes = (uint32_t)(n + rest);
}

static void archive_put(struct repack_archive *archive, struct image *out)
{
    size_t begin, n = 0;

    for (size_t i = 0; i < archive->n; i++) {
        entry_rename_top(&archive->entries[i], archive->top);
        if (!archive->entries[i].is_dropped)
            put_local(out, &archive->entries[i]);
    }
    begin = out->nbytes;
    for (size_t i = 0; i < archive->n; i++) {
        struct repack_entry *entry = &archive->entries[archive->listed[i]];
        if (entry->is_dropped || entry->is_hidden)
            continue;
        put_central(out, entry);
        n++;
    }
    put_end(out, archive, n, begin);
}

static void archive_tell_lies(const struct repack_archive *archive, struct image *out)
{
    const struct repack_entry *entry = &archive->entries[archive->image_lie[0] % archive->n];

    lie_tell(out, entry->header_at, archive->image_lie + 1);
    if (archive->end_lie[1] && archive->end_lie[0] < out->nbytes)
        out->bytes[out->nbytes - 1 - archive->end_lie[0]] ^= archive->end_lie[1];
}

void repack_archive_write(struct repack_archive *archive, struct image *out)
{
    archive_put(archive, out);
    archive_tell_lies(archive, out);
}
