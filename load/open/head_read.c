/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * data.pkl comes first and tells its own end; the small records follow it. So the head of the file
 * is enough to find them (FORMAT.md 5). They are read here without a directory, each against its
 * own local header and descriptor. Whatever is not as expected is no verdict yet: the caller then
 * asks the directory, which is read strictly and gives the exact sentence.
 */
#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/checksum.h"
#include "format/layout.h"
#include "format/pickle/pickle.h"
#include "format/zip/small_records.h"
#include "format/zip/zip_fields.h"
#include "format/zip/zip_write.h"
#include "load/checkpoint.h"

/* Enough for the small records and the first storage's header, where the head ends among them. */
#define AHEAD_NBYTES 4096

/* A record met in the head, as its own local header describes it. */
typedef struct met_record {
    bth_zip_local local;
    uint64_t header_offset;
} met_record;

/* *met is false if there is no local header at `at`, or one that cannot be read by itself. */
static int meet(bth_window *window, uint64_t at, met_record *record, bool *met, berth_error *error)
{
    const uint8_t *bytes;

    *met = false;
    record->header_offset = at;
    if (window->reader->nbytes - at < BTH_ZIP_LOCAL_NBYTES) /* what ends there lies in the file */
        return 0;
    if (bth_window_get(window, at, BTH_ZIP_LOCAL_NBYTES, AHEAD_NBYTES, &bytes, error) < 0)
        return error->code;
    size_t nbytes = bth_zip_local_nbytes(bytes);
    if (memcmp(bytes, "PK\3\4", 4) != 0 || nbytes > window->reader->nbytes - at)
        return 0;
    if (bth_window_get(window, at, nbytes, AHEAD_NBYTES, &bytes, error) < 0)
        return error->code;
    if (bth_zip_read_local(bytes, nbytes, at, &record->local, error) < 0)
        bth_error_clear(error); /* the directory will tell */
    else
        *met = record->local.method == BTH_ZIP_STORED &&
               (record->local.flags & ~(BTH_ZIP_FLAG_DESCRIPTOR | BTH_ZIP_FLAG_UTF8)) == 0;
    return 0;
}

static bool has_name(const met_record *record, const char *archive, const char *name)
{
    size_t archive_nbytes = strlen(archive), name_nbytes = strlen(name);

    return record->local.name_nbytes == archive_nbytes + 1 + name_nbytes &&
           memcmp(record->local.name, archive, archive_nbytes) == 0 &&
           record->local.name[archive_nbytes] == '/' &&
           memcmp(record->local.name + archive_nbytes + 1, name, name_nbytes) == 0;
}

/*
 * Whether the descriptor at `bytes` is the one PyTorch writes for data of this size; its CRC is
 * that of the data, or 0: not computed (Z6, Z10).
 */
static bool is_descriptor(const uint8_t *bytes, uint32_t nbytes, uint64_t data_nbytes,
                          uint32_t crc32, uint32_t *recorded)
{
    bth_place place = {
        .nbytes = data_nbytes, .zip64_nbytes = nbytes == 24 ? 12 : 0, .descriptor_nbytes = nbytes};
    uint8_t expected[24];

    *recorded = crc32;
    bth_zip_write_descriptor(&place, crc32, expected);
    if (memcmp(bytes, expected, nbytes) == 0)
        return true;
    *recorded = 0;
    bth_zip_write_descriptor(&place, 0, expected);
    return memcmp(bytes, expected, nbytes) == 0;
}

/* What the local header itself says of sizes and CRC must be true, or left open by bit 3 (Z5). */
static bool agrees(const bth_zip_local *local, uint64_t nbytes, uint32_t crc32)
{
    bool has_descriptor = local->flags & BTH_ZIP_FLAG_DESCRIPTOR;
    bool no_size = local->nbytes == 0 && local->compressed_nbytes == 0 && has_descriptor;
    bool no_crc = local->crc32 == 0;

    return (no_size || (local->nbytes == nbytes && local->compressed_nbytes == nbytes)) &&
           (no_crc || local->crc32 == crc32);
}

/*
 * A record whose data are `nbytes` at `data`: *good if header and descriptor agree with that; then
 * *small is filled and *next is the offset behind it.
 */
static int finish(bth_window *window, const met_record *record, uint64_t nbytes, uint32_t crc32,
                  bth_small *small, uint64_t *next, bool *good, berth_error *error)
{
    uint64_t end = record->local.data_offset + nbytes;
    uint32_t descriptor_nbytes = 0, recorded = record->local.crc32;
    const uint8_t *bytes;

    *good = agrees(&record->local, nbytes, crc32);
    if (*good && record->local.flags & BTH_ZIP_FLAG_DESCRIPTOR) {
        descriptor_nbytes = record->local.has_zip64 ? 24 : 16;
        *good = window->reader->nbytes - end >= descriptor_nbytes;
        if (*good &&
            bth_window_get(window, end, descriptor_nbytes, AHEAD_NBYTES, &bytes, error) < 0)
            return error->code;
        *good = *good && is_descriptor(bytes, descriptor_nbytes, nbytes, crc32, &recorded) &&
                (record->local.crc32 == 0 || record->local.crc32 == recorded);
    }
    *next = end + descriptor_nbytes;
    *small = (bth_small){.present = *good,
                         .header_offset = record->header_offset,
                         .data_offset = record->local.data_offset,
                         .nbytes = nbytes,
                         .crc32 = recorded,
                         .flags = record->local.flags};
    return 0;
}

/* The bytes of a small text by its own grammar: digits, or little, or big. */
static size_t text_nbytes(int which, const uint8_t *bytes, size_t nbytes)
{
    size_t n = 0;

    if (which == BTH_BYTEORDER)
        return nbytes >= 6 && memcmp(bytes, "little", 6) == 0 ? 6
               : nbytes >= 3 && memcmp(bytes, "big", 3) == 0  ? 3
                                                              : 0;
    while (n < nbytes && bytes[n] >= '0' && bytes[n] <= '9')
        n++;
    return n;
}

/*
 * Reads one of the small texts if it is the next record; else leaves everything. One that is next
 * but is not as PyTorch writes it must not be taken for one that is not there: that is a reason.
 */
static int read_text(berth_checkpoint *checkpoint, bth_window *window, int which, uint64_t *cursor,
                     bool *found, const char **reason, berth_error *error)
{
    met_record record;
    const uint8_t *bytes;
    uint64_t next = 0;
    uint8_t text[24];

    if (meet(window, *cursor, &record, found, error) < 0)
        return error->code;
    *found = *found && has_name(&record, checkpoint->contents.archive, bth_small_names[which]);
    if (!*found)
        return 0;
    uint64_t left = window->reader->nbytes - record.local.data_offset;
    size_t n = left < sizeof text ? (size_t)left : sizeof text;
    if (bth_window_get(window, record.local.data_offset, n, AHEAD_NBYTES, &bytes, error) < 0)
        return error->code;
    n = text_nbytes(which, bytes, n);
    memcpy(text, bytes, n);
    if (finish(window, &record, n, bth_crc32(0, text, n), &checkpoint->contents.small[which], &next,
               found, error) < 0)
        return error->code;
    if (!*found) {
        *reason = "a small record after data.pkl is not as PyTorch writes it";
        return 0;
    }
    *cursor = next;
    return bth_small_take(checkpoint, which, text, n, record.local.data_offset, error);
}

/* Z11 */
int bth_small_take(berth_checkpoint *checkpoint, int which, const uint8_t *bytes, size_t nbytes,
                   uint64_t offset, berth_error *error)
{
    uint32_t number = 0;
    bool little = false;

    if (which == BTH_BYTEORDER) {
        if (bth_record_byteorder(bytes, nbytes, offset, &little, error) < 0)
            return error->code;
        checkpoint->contents.byteorder_recorded = true;
        checkpoint->contents.is_big = !little;
        return 0;
    }
    if (which == BTH_STORAGE_ALIGNMENT) {
        (void)bth_record_alignment(bytes, nbytes, offset, &number, error);
        checkpoint->contents.storage_alignment = number;
    } else {
        (void)bth_record_format_version(bytes, nbytes, offset, &number, error);
        checkpoint->contents.format_version = number;
    }
    return error->code;
}

/* The first record names the archive; *archive stays NULL if it is not "<archive>/data.pkl". */
static int take_archive(const met_record *record, char **archive, berth_error *error)
{
    static const char suffix[] = "/data.pkl";
    size_t n = record->local.name_nbytes, tail = sizeof suffix - 1;

    if (n <= tail || memcmp(record->local.name + n - tail, suffix, tail) != 0 ||
        memchr(record->local.name, '/', n - tail) || memchr(record->local.name, 0, n))
        return 0;
    *archive = bth_duplicate(record->local.name, n - tail);
    return *archive ? 0 : bth_fail_memory(error, n);
}

/* The pickle's own end, with as much of the head as that takes. 0 bytes: it has none here. */
static int find_extent(berth_checkpoint *checkpoint, bth_window *window, const bth_zip_local *local,
                       size_t *extent, berth_error *error)
{
    bth_pickle_rules rules = {.inert = checkpoint->config.load_unknown_globals == BTH_UNKNOWN_INERT,
                              .record = bth_small_names[BTH_DATA_PKL],
                              .base_offset = local->data_offset};
    uint64_t file_nbytes = window->reader->nbytes;

    *extent = 0;
    checkpoint->contents.survey = (bth_pickle_survey){0};
    for (;;) {
        int result = BERTH_E_TRUNCATED;
        if (window->head_nbytes > local->data_offset)
            result = bth_pickle_look(window->head + local->data_offset,
                                     window->head_nbytes - local->data_offset, &rules,
                                     &checkpoint->contents.survey, error);
        if (result == 0) {
            *extent = checkpoint->contents.survey.extent;
            return 0;
        }
        bth_error_clear(error);
        if (result == BERTH_E_TRUNCATED && window->head_nbytes < file_nbytes) {
            if (bth_window_grow_head(window, 4 * window->head_nbytes, error) < 0)
                return error->code;
            continue;
        }
        return 0;
    }
}

static int read_pickle_record(berth_checkpoint *checkpoint, bth_window *window, uint64_t *next,
                              const char **reason, berth_error *error)
{
    met_record record;
    bool good;
    size_t extent;

    if (meet(window, 0, &record, &good, error) < 0)
        return error->code;
    if (good && take_archive(&record, &checkpoint->contents.archive, error) < 0)
        return error->code;
    if (!good || !checkpoint->contents.archive) {
        *reason = "the first record is not a stored data.pkl";
        return 0;
    }
    if (find_extent(checkpoint, window, &record.local, &extent, error) < 0)
        return error->code;
    *reason = "data.pkl does not tell its own end";
    if (extent == 0)
        return 0;
    uint32_t crc32 = bth_crc32(0, window->head + record.local.data_offset, extent);
    if (finish(window, &record, extent, crc32, &checkpoint->contents.small[BTH_DATA_PKL], next,
               &good, error) < 0)
        return error->code;
    if (good)
        *reason = NULL;
    return 0;
}

int bth_head_read(berth_checkpoint *checkpoint, bth_window *window, uint64_t *next_offset,
                  const char **reason, berth_error *error)
{
    bool found;

    *reason = NULL;
    if (read_pickle_record(checkpoint, window, next_offset, reason, error) < 0 || *reason)
        return error->code;
    for (int which = BTH_FORMAT_VERSION; which < BTH_N_SMALL; which++) {
        if (read_text(checkpoint, window, which, next_offset, &found, reason, error) < 0 || *reason)
            return error->code;
        if (which == BTH_FORMAT_VERSION && (!found || checkpoint->contents.format_version < 1)) {
            *reason = found ? "its .format_version is 0" : "no .format_version follows data.pkl";
            return 0;
        }
        /* It may be behind the storages (FORMAT.md 1), or nowhere: the directory knows. */
        if (which == BTH_BYTEORDER && !found)
            *reason = "no byteorder lies before the storages";
    }
    return 0;
}
