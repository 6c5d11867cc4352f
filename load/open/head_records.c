/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * data.pkl comes first and shows its own end; the small records follow it. So the head of the file
 * is enough to find them (FORMAT.md 5). They are read here without the directory, and compared with
 * their own local headers and descriptors. If anything is unexpected, that is no error yet: the
 * caller then reads the directory, which is checked strictly and gives the exact message.
 */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/bytes.h"
#include "format/checksum.h"
#include "format/layout.h"
#include "format/zip/zip.h"
#include "load/open/open_steps.h"

/* Enough for the small records and the first storage's header, if the head ends before them. */
#define AHEAD_NBYTES 4096
#define TEXT_MAX_NBYTES 24
/* Bytes of a descriptor with a signature. */
#define CRC32_AT 4

/* A record in the head, as its own local header describes it. */
typedef struct head_record {
    bth_zip_local local;
    uint64_t header_offset;
    bool is_good; /* its local header and all bytes so far are as PyTorch writes them */
} head_record;

static int head_record_read_header(bth_opening *opening, uint64_t at, head_record *record,
                                   berth_error *error)
{
    const bth_zip_input input = bth_head_cache_input(&opening->cache);
    uint64_t left = opening->cache.reader->nbytes - at; /* the record ends within the file */
    bth_zip_local *local = &record->local;
    const uint8_t *bytes;

    *record = (head_record){.header_offset = at};
    if (left < BTH_ZIP_LOCAL_NBYTES)
        return 0;
    if (bth_head_cache_get_or_read(&opening->cache, at, BTH_ZIP_LOCAL_NBYTES, AHEAD_NBYTES, &bytes,
                                   error) < 0)
        return error->code;
    if (memcmp(bytes, "PK\3\4", 4) != 0 || bth_zip_local_nbytes(bytes) > left)
        return 0;
    if (bth_zip_fetch_and_parse_local(&input, at, AHEAD_NBYTES, local, error) == 0)
        record->is_good = local->method == BTH_ZIP_STORED &&
                          !(local->flags & ~(BTH_ZIP_FLAG_DESCRIPTOR | BTH_ZIP_FLAG_UTF8));
    else if (error->code == BERTH_E_ARCHIVE)
        bth_error_clear(error); /* reading the directory gives the message */
    return error->code;
}

/*
 * Compares header and descriptor with the record's nbytes of data (Z5, Z6). If they agree, keeps
 * the record, and *next is the offset after it. Else clears is_good. The recorded CRC must be that
 * of the data, or 0: not computed (Z10).
 */
static int head_record_check_and_keep(bth_opening *opening, head_record *record, int which,
                                      uint64_t nbytes, uint32_t crc32, uint64_t *next,
                                      berth_error *error)
{
    const bth_zip_local *local = &record->local;
    const bth_zip_input input = bth_head_cache_input(&opening->cache);
    uint64_t end = local->data_offset + nbytes, descriptor_nbytes = 0;
    if (local->flags & BTH_ZIP_FLAG_DESCRIPTOR) /* as PyTorch writes it */
        descriptor_nbytes = local->has_zip64 ? 24 : 16;
    bth_zip_entry entry = {.record = bth_small_names[which],
                           .flags = local->flags,
                           .crc32 = local->crc32,
                           .compressed_nbytes = nbytes,
                           .nbytes = nbytes,
                           .header_offset = record->header_offset,
                           .next_offset = end + descriptor_nbytes};
    const uint8_t *bytes;

    record->is_good = false;
    if (entry.next_offset > opening->cache.reader->nbytes)
        return 0;
    if (entry.next_offset > end) {
        if (bth_head_cache_get_or_read(&opening->cache, end, entry.next_offset - end, AHEAD_NBYTES,
                                       &bytes, error) < 0)
            return error->code;
        bth_cursor cursor = bth_cursor_make(bytes + CRC32_AT, sizeof entry.crc32);
        entry.crc32 = bth_cursor_u32(&cursor);
    }
    if (entry.crc32 != crc32 && entry.crc32 != 0)
        return 0;
    if (bth_zip_check_record(&input, AHEAD_NBYTES, &entry, error) == BERTH_E_ARCHIVE) {
        bth_error_clear(error);
        return 0;
    }
    record->is_good = true;
    *next = entry.next_offset;
    opening->contents->small[which] = entry;
    return error->code;
}

/* Z11 */
int bth_small_record_parse(bth_contents *contents, int which, const uint8_t *bytes, size_t nbytes,
                           uint64_t offset, berth_error *error)
{
    uint32_t number = 0;
    bool little = false;

    if (which == BTH_BYTEORDER) {
        if (bth_record_parse_byteorder(bytes, nbytes, offset, &little, error) < 0)
            return error->code;
        contents->byteorder_recorded = true;
        contents->is_big = !little;
    } else if (which == BTH_STORAGE_ALIGNMENT) {
        (void)bth_record_parse_alignment(bytes, nbytes, offset, &number, error);
        contents->storage_alignment = number;
    } else {
        (void)bth_record_parse_format_version(bytes, nbytes, offset, &number, error);
        contents->format_version = number;
    }
    return error->code;
}

/* ---- data.pkl ---- */

static int head_find_pickle_record(bth_opening *opening, uint64_t *next, const char **reason,
                                   berth_error *error)
{
    static const char suffix[] = "/data.pkl";
    const size_t n_suffix = sizeof suffix - 1;
    bth_head_cache *cache = &opening->cache;
    head_record record;

    if (head_record_read_header(opening, 0, &record, error) < 0)
        return error->code;
    const char *name = record.local.name;
    size_t n = record.is_good ? record.local.name_nbytes : 0;
    if (n <= n_suffix || memcmp(name + n - n_suffix, suffix, n_suffix) != 0 ||
        memchr(name, '/', n - n_suffix) || memchr(name, 0, n)) {
        *reason = "the first record is not a stored data.pkl";
        return 0;
    }
    opening->contents->archive = bth_duplicate_text(name, n - n_suffix);
    if (!opening->contents->archive)
        return bth_fail_memory(error, n);
    uint64_t at = record.local.data_offset;
    bth_pickle_rules rules = {.inert = opening->config->load_unknown_globals == BTH_UNKNOWN_INERT,
                              .record = bth_small_names[BTH_DATA_PKL],
                              .base_offset = at};
    bth_pickle_survey *survey = &opening->contents->survey;
    int result = BERTH_E_TRUNCATED;
    *survey = (bth_pickle_survey){0};
    for (;;) { /* extends the head until it holds the pickle's end */
        if (cache->head_nbytes > at)
            result = bth_pickle_find_end_and_fetches(cache->head + at, cache->head_nbytes - at,
                                                     &rules, survey, error);
        bth_error_clear(error);
        if (result != BERTH_E_TRUNCATED || cache->head_nbytes == cache->reader->nbytes)
            break;
        if (bth_head_cache_extend_head(cache, 4 * cache->head_nbytes, error) < 0)
            return error->code;
    }
    size_t extent = result == 0 ? survey->extent : 0;
    *reason = "data.pkl does not show its own end";
    if (extent == 0)
        return 0;
    uint32_t crc32 = bth_crc32(0, cache->head + at, extent);
    if (head_record_check_and_keep(opening, &record, BTH_DATA_PKL, extent, crc32, next, error) ==
            0 &&
        record.is_good)
        *reason = NULL;
    return error->code;
}

int bth_head_read(bth_opening *opening, uint64_t *next_offset, const char **reason,
                  berth_error *error)
{
    bth_contents *contents = opening->contents;

    *reason = NULL;
    if (head_find_pickle_record(opening, next_offset, reason, error) < 0 || *reason)
        return error->code;
    for (int which = BTH_FORMAT_VERSION; which < BTH_N_SMALL; which++) {
        head_record record;
        const uint8_t *bytes;
        uint8_t text[TEXT_MAX_NBYTES];
        if (head_record_read_header(opening, *next_offset, &record, error) < 0)
            return error->code;
        bool found = record.is_good && bth_zip_local_has_name(&record.local, contents->archive,
                                                              bth_small_names[which]);
        if (found) {
            uint64_t at = record.local.data_offset, left = opening->cache.reader->nbytes - at;
            size_t n = 0, most = left < sizeof text ? (size_t)left : sizeof text;
            if (bth_head_cache_get_or_read(&opening->cache, at, most, AHEAD_NBYTES, &bytes, error) <
                0)
                return error->code;
            /* Its length by its grammar: little, or big, or digits. */
            if (which != BTH_BYTEORDER)
                while (n < most && bytes[n] >= '0' && bytes[n] <= '9')
                    n++;
            else if (most >= 6 && memcmp(bytes, "little", 6) == 0)
                n = 6;
            else if (most >= 3 && memcmp(bytes, "big", 3) == 0)
                n = 3;
            memcpy(text, bytes, n);
            if (head_record_check_and_keep(opening, &record, which, n, bth_crc32(0, text, n),
                                           next_offset, error) < 0)
                return error->code;
            if (!record.is_good) { /* it must not count as absent */
                *reason = "a small record after data.pkl is not as PyTorch writes it";
                return 0;
            }
            if (bth_small_record_parse(contents, which, text, n, at, error) < 0)
                return error->code;
        }
        if (which == BTH_FORMAT_VERSION && (!found || contents->format_version < 1)) {
            *reason = found ? "its .format_version is 0" : "no .format_version follows data.pkl";
            return 0;
        }
        /* It may be after the storages (FORMAT.md 1), or missing: the directory decides. */
        if (which == BTH_BYTEORDER && !found)
            *reason = "no byteorder precedes the storages";
    }
    return 0;
}
