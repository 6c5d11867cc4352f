/* SPDX-License-Identifier: BSD-3-Clause */
/* The end records of a zip (FORMAT.md section 3): which bytes are the directory. */
#include <inttypes.h>

#include "base/error.h"
#include "format/zip/zip.h"

/* The end of the file. */
typedef struct zip_tail {
    const uint8_t *bytes;
    size_t nbytes;
    uint64_t file_at; /* of bytes[0] */
} zip_tail;

static bool tail_has_signature_at(const zip_tail *tail, size_t at, uint32_t signature)
{
    bth_cursor cursor = bth_cursor_make(tail->bytes + at, tail->nbytes - at);
    return bth_cursor_u32(&cursor) == signature; /* 0 if it is cut off, which is no signature */
}

static uint16_t comment_nbytes_at(const zip_tail *tail, size_t at)
{
    bth_cursor cursor = bth_cursor_make(tail->bytes + at + 20, 2);
    return bth_cursor_u16(&cursor);
}

/* The last end record's signature before `before`, or SIZE_MAX. */
static size_t end_find_last(const zip_tail *tail, size_t before)
{
    const uint8_t *found;
    while ((found = memrchr(tail->bytes, 'P', before))) {
        before = (size_t)(found - tail->bytes);
        if (tail_has_signature_at(tail, before, BTH_ZIP_END_SIGNATURE))
            return before;
    }
    return SIZE_MAX;
}

/* Z1: readers that search backwards take the last signature, so it must be an end record whose
 * comment ends with the file. For readers that search forwards it must be the only one. */
static int end_find_record(const zip_tail *tail, size_t *found, berth_error *error)
{
    bool has_room = tail->nbytes >= BTH_ZIP_END_RECORD_NBYTES;
    size_t at =
        has_room ? end_find_last(tail, tail->nbytes - BTH_ZIP_END_RECORD_NBYTES + 1) : SIZE_MAX;
    if (at == SIZE_MAX) {
        size_t cut = end_find_last(tail, tail->nbytes);
        if (cut == SIZE_MAX)
            return bth_fail_status(error, BERTH_E_ARCHIVE,
                                   "no end record: not a zip archive, or cut off" BTH_CUT_OFF);
        return bth_fail(error, BERTH_E_ARCHIVE, NULL, tail->file_at + cut,
                        "the end record is cut off: %zu of its %d bytes are there" BTH_CUT_OFF,
                        tail->nbytes - cut, BTH_ZIP_END_RECORD_NBYTES);
    }
    uint16_t comment = comment_nbytes_at(tail, at);
    size_t follow = tail->nbytes - at - BTH_ZIP_END_RECORD_NBYTES;
    if (comment != follow)
        return bth_fail(error, BERTH_E_ARCHIVE, NULL, tail->file_at + at,
                        "the end record announces a comment of %d bytes, but %zu follow", comment,
                        follow);
    *found = at;
    while ((at = end_find_last(tail, at)) != SIZE_MAX)
        if (comment_nbytes_at(tail, at) == tail->nbytes - at - BTH_ZIP_END_RECORD_NBYTES)
            return bth_fail(error, BERTH_E_ARCHIVE, NULL, tail->file_at + at,
                            "a second end record, beside the one at byte %" PRIu64,
                            tail->file_at + *found);
    return BERTH_OK;
}

/* The end record's numbers, or the ZIP64 end record's: the same fields in two widths. Z3: one disk,
 * one count. */
static int end_read_fields(const zip_tail *tail, size_t at, bool is_wide, bth_zip_end *end,
                           berth_error *error)
{
    const char *what = is_wide ? "the ZIP64 end record" : "the end record";
    size_t disk_width = is_wide ? 4 : 2, count_width = is_wide ? 8 : 2, width = is_wide ? 8 : 4;
    size_t nbytes = is_wide ? BTH_ZIP_END64_RECORD_NBYTES : BTH_ZIP_END_RECORD_NBYTES;
    bth_cursor cursor = bth_cursor_make(tail->bytes + at + 4, nbytes - 4);
    uint64_t size = is_wide ? bth_cursor_u64(&cursor) : 0;
    if (is_wide)
        bth_cursor_u32(&cursor); /* versions */
    uint32_t disk = (uint32_t)bth_cursor_integer(&cursor, disk_width);
    uint32_t directory_disk = (uint32_t)bth_cursor_integer(&cursor, disk_width);
    uint64_t n_entries_here = bth_cursor_integer(&cursor, count_width);
    end->n_entries = bth_cursor_integer(&cursor, count_width);
    end->directory_nbytes = bth_cursor_integer(&cursor, width);
    end->directory_offset = bth_cursor_integer(&cursor, width);
    if (is_wide && size != nbytes - 12)
        return bth_fail(error, BERTH_E_ARCHIVE, NULL, tail->file_at + at,
                        "the ZIP64 end record's size is %" PRIu64 ", not %zu", size, nbytes - 12);
    if (disk != 0 || directory_disk != 0)
        return bth_fail(error, BERTH_E_ARCHIVE, NULL, tail->file_at + at,
                        "%s names disks %" PRIu32 " and %" PRIu32 "; only 0 can be read", what,
                        disk, directory_disk);
    if (n_entries_here != end->n_entries)
        return bth_fail(error, BERTH_E_ARCHIVE, NULL, tail->file_at + at,
                        "%s has two counts of entries, %" PRIu64 " and %" PRIu64, what,
                        n_entries_here, end->n_entries);
    return BERTH_OK;
}

/* Z2: whether there is a locator, which points to the ZIP64 end record directly before it. */
static int end_detect_end64_and_locator(const zip_tail *tail, size_t end_at, bool *there,
                                        berth_error *error)
{
    const size_t both_nbytes = BTH_ZIP_END64_RECORD_NBYTES + BTH_ZIP_LOCATOR_NBYTES;
    const size_t distances[] = {BTH_ZIP_END64_RECORD_NBYTES, both_nbytes};
    size_t at = end_at - BTH_ZIP_LOCATOR_NBYTES;
    *there = end_at >= BTH_ZIP_LOCATOR_NBYTES &&
             tail_has_signature_at(tail, at, BTH_ZIP_LOCATOR_SIGNATURE);
    if (!*there) {
        for (size_t i = 0; i < 2; i++)
            if (end_at >= distances[i] &&
                tail_has_signature_at(tail, end_at - distances[i], BTH_ZIP_END64_SIGNATURE))
                return bth_fail(error, BERTH_E_ARCHIVE, NULL, tail->file_at + end_at - distances[i],
                                "a ZIP64 end record without a locator");
        return BERTH_OK;
    }
    if (end_at < both_nbytes ||
        !tail_has_signature_at(tail, end_at - both_nbytes, BTH_ZIP_END64_SIGNATURE))
        return bth_fail(error, BERTH_E_ARCHIVE, NULL, tail->file_at + at,
                        "a ZIP64 locator without a ZIP64 end record directly before it");
    bth_cursor cursor = bth_cursor_make(tail->bytes + at + 4, BTH_ZIP_LOCATOR_NBYTES - 4);
    uint32_t disk = bth_cursor_u32(&cursor);
    uint64_t offset = bth_cursor_u64(&cursor);
    uint32_t n_disks = bth_cursor_u32(&cursor);
    uint64_t end64_at = tail->file_at + end_at - both_nbytes;
    if (disk != 0 || n_disks != 1)
        return bth_fail(error, BERTH_E_ARCHIVE, NULL, tail->file_at + at,
                        "the ZIP64 locator names disk %" PRIu32 " of %" PRIu32
                        "; only 0 of 1 can be read",
                        disk, n_disks);
    if (offset != end64_at)
        return bth_fail(error, BERTH_E_ARCHIVE, NULL, tail->file_at + at,
                        "the ZIP64 locator points to byte %" PRIu64
                        ", but the ZIP64 end record is at byte %" PRIu64,
                        offset, end64_at);
    return BERTH_OK;
}

int bth_zip_find_end(const uint8_t *tail_bytes, size_t tail_nbytes, uint64_t file_nbytes,
                     bth_zip_end *end, berth_error *error)
{
    if (tail_nbytes < BTH_ZIP_TAIL_NBYTES && tail_nbytes < file_nbytes)
        return bth_fail_status(error, BERTH_E_TRUNCATED,
                               "the last %zu bytes do not suffice to find the end record",
                               tail_nbytes);
    /* The result must not depend on further bytes either. */
    size_t beyond = tail_nbytes > BTH_ZIP_TAIL_NBYTES ? tail_nbytes - BTH_ZIP_TAIL_NBYTES : 0;
    zip_tail tail = {tail_bytes + beyond, tail_nbytes - beyond, file_nbytes - tail_nbytes + beyond};
    bth_zip_end classic, wide;
    size_t end_at = 0;
    bool has_end64 = false;
    if (end_find_record(&tail, &end_at, error) < 0 ||
        end_read_fields(&tail, end_at, false, &classic, error) < 0 ||
        end_detect_end64_and_locator(&tail, end_at, &has_end64, error) < 0)
        return error->code;
    uint64_t at = tail.file_at + end_at;
    wide = classic;
    if (has_end64) {
        end_at -= BTH_ZIP_END64_RECORD_NBYTES + BTH_ZIP_LOCATOR_NBYTES;
        if (end_read_fields(&tail, end_at, true, &wide, error) < 0)
            return error->code;
        /* Z2: each field of the end record equals the ZIP64 field, or is saturated. */
        const struct {
            uint64_t classic, saturated, wide;
            const char *what;
        } pairs[] = {
            {classic.n_entries, BTH_ZIP_SATURATED16, wide.n_entries, "number of entries"},
            {classic.directory_nbytes, BTH_ZIP_SATURATED32, wide.directory_nbytes,
             "directory size"},
            {classic.directory_offset, BTH_ZIP_SATURATED32, wide.directory_offset,
             "directory offset"},
        };
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
            if (pairs[i].classic != pairs[i].wide && pairs[i].classic != pairs[i].saturated)
                return bth_fail(error, BERTH_E_ARCHIVE, NULL, at,
                                "the end record's %s is %" PRIu64
                                ", the ZIP64 end record's %" PRIu64,
                                pairs[i].what, pairs[i].classic, pairs[i].wide);
        at = tail.file_at + end_at;
    }
    *end = wide;
    /* Z3: the directory lies inside the file and ends where the end records begin. */
    if (end->directory_offset > at || end->directory_nbytes != at - end->directory_offset)
        return bth_fail(error, BERTH_E_ARCHIVE, NULL, at,
                        "the end records begin here, but the directory has %" PRIu64
                        " bytes from byte %" PRIu64,
                        end->directory_nbytes, end->directory_offset);
    return BERTH_OK;
}
