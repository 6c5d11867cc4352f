/* SPDX-License-Identifier: BSD-3-Clause */
/* The central directory (FORMAT.md section 3), entry by entry. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/zip/zip.h"

/* Which bytes of the file belong to which entry (Z7). */

static uint64_t ranges_header_offset(const bth_zip_directory *directory, size_t i)
{
    return directory->entries[directory->by_offset[i]].header_offset;
}

static void ranges_swap(bth_zip_directory *directory, size_t i, size_t j)
{
    size_t swapped = directory->by_offset[i];
    directory->by_offset[i] = directory->by_offset[j];
    directory->by_offset[j] = swapped;
}

/* A heap sort: no order of entries makes it slow. Entries at the same offset are refused anyway. */
static void ranges_sort(bth_zip_directory *directory)
{
    size_t end = directory->n_entries + directory->n_folders;
    for (size_t begin = end / 2; end > 1;) {
        if (begin > 0)
            begin--;
        else
            ranges_swap(directory, 0, --end);
        for (size_t root = begin, child; (child = 2 * root + 1) < end; root = child) {
            if (child + 1 < end &&
                ranges_header_offset(directory, child) < ranges_header_offset(directory, child + 1))
                child++;
            if (ranges_header_offset(directory, root) >= ranges_header_offset(directory, child))
                break;
            ranges_swap(directory, root, child);
        }
    }
}

/* Sets directory->by_offset and each next_offset; refuses entries whose headers and data overlap
 * according to the directory (Z7). */
static int zip_order_and_check_overlap(bth_zip_directory *directory, uint64_t directory_offset,
                                       berth_error *error)
{
    size_t n = directory->n_entries + directory->n_folders;
    bool is_ordered = true;
    for (size_t i = 0; i < n; i++) {
        directory->by_offset[i] = i;
        is_ordered &=
            i == 0 || ranges_header_offset(directory, i - 1) <= ranges_header_offset(directory, i);
    }
    if (!is_ordered)
        ranges_sort(directory);
    for (size_t i = 0; i < n; i++) {
        bth_zip_entry *entry = &directory->entries[directory->by_offset[i]];
        entry->next_offset = i + 1 < n ? ranges_header_offset(directory, i + 1) : directory_offset;
        uint64_t needed = BTH_ZIP_LOCAL_NBYTES + entry->name_nbytes + entry->compressed_nbytes;
        if (needed > entry->next_offset - entry->header_offset)
            return bth_fail(error, BERTH_E_ARCHIVE, entry->record, entry->header_offset,
                            "header, name and data need %" PRIu64
                            " bytes, but the next entry begins at byte %" PRIu64,
                            needed, entry->next_offset);
    }
    return BERTH_OK;
}

int bth_zip_check_no_gaps(const bth_zip_directory *directory, const bth_zip_end *end, size_t first,
                          uint64_t at, berth_error *error)
{
    for (size_t i = first; i < directory->n_entries + directory->n_folders; i++) {
        const bth_zip_entry *entry = &directory->entries[directory->by_offset[i]];
        if (entry->header_offset != at)
            return bth_fail(error, BERTH_E_ARCHIVE, entry->record, entry->header_offset,
                            i > 0 ? "the entry before it ends at byte %" PRIu64
                                  : "the first entry, but the archive begins at byte %" PRIu64,
                            at);
        if (bth_zip_find_entry_end(entry, &at, error) < 0)
            return error->code;
    }
    if (at != end->directory_offset)
        return bth_fail(error, BERTH_E_ARCHIVE, NULL, end->directory_offset,
                        "the directory begins here, but the last entry ends at byte %" PRIu64, at);
    return BERTH_OK;
}

/* One entry as the file has it. */
typedef struct zip_central {
    bth_zip_entry kept; /* its sizes and offset: of the zip64 field if their own are saturated */
    uint64_t at;        /* byte of the file */
    uint32_t signature;
    uint16_t extra_nbytes;
    uint16_t comment_nbytes;
    uint16_t disk;
    uint8_t version_needed; /* 45: 4.5; the byte above it, a system, is not read */
    uint32_t attributes;    /* those of MS-DOS in the low bits, those of Unix in the high ones */
    const uint8_t *name;
    const uint8_t *extra;
} zip_central;

#define ENTRY_FAIL(entry, error, code, ...)                                                        \
    bth_fail(error, code, (entry)->kept.record, (entry)->at, __VA_ARGS__)

/* Z4: checks the signature and the lengths. Behind the entry there must be room for the fixed
 * fields of n_after more entries; so all names fit the memory that was allocated for them. */
static int entry_read(bth_cursor *cursor, size_t number, size_t n_after, zip_central *entry,
                      berth_error *error)
{
    entry->signature = bth_cursor_u32(cursor);
    bth_cursor_u16(cursor); /* version made by */
    entry->version_needed = (uint8_t)bth_cursor_u16(cursor);
    entry->kept.flags = bth_cursor_u16(cursor);
    entry->kept.method = bth_cursor_u16(cursor);
    bth_cursor_u32(cursor); /* time and date */
    entry->kept.crc32 = bth_cursor_u32(cursor);
    entry->kept.compressed_nbytes = bth_cursor_u32(cursor);
    entry->kept.nbytes = bth_cursor_u32(cursor);
    entry->kept.name_nbytes = bth_cursor_u16(cursor);
    entry->extra_nbytes = bth_cursor_u16(cursor);
    entry->comment_nbytes = bth_cursor_u16(cursor);
    entry->disk = bth_cursor_u16(cursor);
    bth_cursor_u16(cursor); /* internal attributes */
    entry->attributes = bth_cursor_u32(cursor);
    entry->kept.header_offset = bth_cursor_u32(cursor);
    if (entry->signature != BTH_ZIP_CENTRAL_SIGNATURE)
        return ENTRY_FAIL(entry, error, BERTH_E_ARCHIVE,
                          "entry %zu of the directory begins with 0x%08" PRIx32 ", not 0x%08x",
                          number, entry->signature, BTH_ZIP_CENTRAL_SIGNATURE);
    size_t left = bth_cursor_left(cursor);
    entry->name = bth_cursor_bytes(cursor, entry->kept.name_nbytes);
    entry->extra = bth_cursor_bytes(cursor, entry->extra_nbytes);
    bth_cursor_bytes(cursor, entry->comment_nbytes);
    if (!cursor->good || bth_cursor_left(cursor) / BTH_ZIP_CENTRAL_NBYTES < n_after)
        return ENTRY_FAIL(entry, error, BERTH_E_ARCHIVE,
                          "name, extra fields and comment of entry %zu have %u + %d + %d bytes, "
                          "but the directory has only %zu for them and %zu more entries",
                          number, entry->kept.name_nbytes, entry->extra_nbytes,
                          entry->comment_nbytes, left, n_after);
    return BERTH_OK;
}

/* Z4: at most one zip64 field, of exactly the size that the saturated fields need. */
static int entry_read_extra(zip_central *entry, berth_error *error)
{
    bth_cursor cursor = bth_cursor_make(entry->extra, entry->extra_nbytes);
    const bth_zip_header header = {entry->name, entry->kept.name_nbytes, entry->kept.record,
                                   entry->at};
    uint64_t *fields[] = {&entry->kept.nbytes, &entry->kept.compressed_nbytes,
                          &entry->kept.header_offset};
    unsigned needed = 0;
    bth_zip_extra extra;
    bool seen = false;
    int more;
    for (size_t i = 0; i < 3; i++)
        needed += *fields[i] == BTH_ZIP_SATURATED32 ? 8 : 0;
    while ((more = bth_zip_next_extra(&cursor, &extra, &header, error)) > 0) {
        if (extra.id != BTH_ZIP_EXTRA_ZIP64)
            continue;
        if (seen)
            return ENTRY_FAIL(entry, error, BERTH_E_ARCHIVE, "a second ZIP64 extra field");
        if (extra.nbytes != needed)
            return ENTRY_FAIL(entry, error, BERTH_E_ARCHIVE,
                              "a ZIP64 extra field of %d bytes, where %u are needed", extra.nbytes,
                              needed);
        bth_cursor zip64 = bth_cursor_make(extra.bytes, extra.nbytes);
        for (size_t i = 0; i < 3; i++)
            if (*fields[i] == BTH_ZIP_SATURATED32)
                *fields[i] = bth_cursor_u64(&zip64);
        seen = true;
    }
    if (more == 0 && needed > 0 && !seen)
        return ENTRY_FAIL(entry, error, BERTH_E_ARCHIVE,
                          "no ZIP64 extra field, but %u bytes of one are needed", needed);
    return more;
}

/* Z9: what can be read. Other readers also refuse versions that do not exist yet. Z3: one disk. Z7:
 * header, name and data lie before the directory. Z8: folders are empty; a slash at the end means
 * folder, and attributes must not contradict that. PyTorch and others follow the attributes: they
 * read nothing, or make a link. */
static int entry_check(const zip_central *entry, uint64_t directory_offset, bool is_folder,
                       berth_error *error)
{
    uint64_t needed = BTH_ZIP_LOCAL_NBYTES + (uint64_t)entry->kept.name_nbytes;
    uint64_t room = entry->kept.header_offset < directory_offset
                        ? directory_offset - entry->kept.header_offset
                        : 0;
    uint32_t unix_type = entry->attributes >> 28;
    if (entry->version_needed > BTH_ZIP_LAST_VERSION)
        return ENTRY_FAIL(entry, error, BERTH_E_UNSUPPORTED,
                          "needs version %d.%d of the format; the last is %d.%d",
                          entry->version_needed / 10, entry->version_needed % 10,
                          BTH_ZIP_LAST_VERSION / 10, BTH_ZIP_LAST_VERSION % 10);
    if (entry->kept.flags & (BTH_ZIP_FLAG_ENCRYPTED | BTH_ZIP_FLAG_STRONG | BTH_ZIP_FLAG_MASKED))
        return ENTRY_FAIL(entry, error, BERTH_E_UNSUPPORTED, BTH_ZIP_REFUSED_ENCRYPTION "%04x)",
                          entry->kept.flags);
    if (entry->kept.flags & BTH_ZIP_FLAG_PATCH)
        return ENTRY_FAIL(entry, error, BERTH_E_UNSUPPORTED, "patch data (flags 0x%04x)",
                          entry->kept.flags);
    if (entry->kept.method != BTH_ZIP_STORED && entry->kept.method != BTH_ZIP_DEFLATED)
        return ENTRY_FAIL(entry, error, BERTH_E_UNSUPPORTED,
                          BTH_ZIP_REFUSED_METHOD "%d; only stored (0) and deflated (8) can be read",
                          entry->kept.method);
    if (entry->kept.method == BTH_ZIP_DEFLATED && /* Z12 */
        entry->kept.compressed_nbytes < entry->kept.nbytes / BTH_DEFLATE_MAX_RATIO +
                                            (entry->kept.nbytes % BTH_DEFLATE_MAX_RATIO != 0))
        return ENTRY_FAIL(entry, error, BERTH_E_ARCHIVE,
                          "deflated from %" PRIu64 " bytes to %" PRIu64
                          ": nothing is deflated more than %d to 1",
                          entry->kept.nbytes, entry->kept.compressed_nbytes, BTH_DEFLATE_MAX_RATIO);
    if (entry->kept.method == BTH_ZIP_STORED && entry->kept.compressed_nbytes != entry->kept.nbytes)
        return ENTRY_FAIL(entry, error, BERTH_E_ARCHIVE,
                          "stored, but its compressed size is %" PRIu64 " and its size %" PRIu64,
                          entry->kept.compressed_nbytes, entry->kept.nbytes);
    if (entry->disk != 0)
        return ENTRY_FAIL(entry, error, BERTH_E_ARCHIVE, "lies on disk %d; only 0 can be read",
                          entry->disk);
    if (room < needed || entry->kept.compressed_nbytes > room - needed)
        return ENTRY_FAIL(entry, error, BERTH_E_ARCHIVE,
                          "a header at byte %" PRIu64 " and %" PRIu64
                          " bytes of data do not fit before the directory at byte %" PRIu64,
                          entry->kept.header_offset, entry->kept.compressed_nbytes,
                          directory_offset);
    if (is_folder && (entry->kept.nbytes != 0 || entry->kept.compressed_nbytes != 0))
        return ENTRY_FAIL(entry, error, BERTH_E_ARCHIVE,
                          "a folder with %" PRIu64 " bytes of data, %" PRIu64 " in the file",
                          entry->kept.nbytes, entry->kept.compressed_nbytes);
    if (unix_type != 0 && unix_type != (is_folder ? BTH_ZIP_UNIX_FOLDER : BTH_ZIP_UNIX_FILE))
        return ENTRY_FAIL(entry, error, BERTH_E_ARCHIVE,
                          "its name is that of a %s, but its attributes say Unix type 0%02" PRIo32,
                          is_folder ? "folder" : "record", unix_type);
    if (!is_folder && (entry->attributes & BTH_ZIP_DOS_FOLDER))
        return ENTRY_FAIL(entry, error, BERTH_E_ARCHIVE,
                          "its name is that of a record, but its attributes say folder");
    return BERTH_OK;
}

/* Folders fill the array of entries from its end. */
static int directory_read_entries(const uint8_t *bytes, const bth_zip_end *end,
                                  bth_zip_directory *directory, berth_error *error)
{
    bth_cursor cursor = bth_cursor_make(bytes, (size_t)end->directory_nbytes);
    char *names_at = directory->names;
    uint16_t folder_flags = 0; /* of the entry that set the top folder */
    for (size_t i = 0; i < end->n_entries; i++) {
        zip_central entry = {.at = end->directory_offset + cursor.at};
        size_t n_after = (size_t)end->n_entries - i - 1;
        if (entry_read(&cursor, i, n_after, &entry, error) < 0 ||
            bth_zip_check_name(entry.name, entry.kept.name_nbytes,
                               (entry.kept.flags & BTH_ZIP_FLAG_UTF8) != 0, true, entry.at,
                               error) < 0)
            return error->code;
        /* Z8: all under one top folder, that of the first entry. Info-ZIP and macOS write a
         * folder's name in UTF-8 without the mark. Readers that take it for code page 437 must
         * still see one folder. */
        const char *name = (const char *)entry.name;
        const char *slash = memchr(name, '/', entry.kept.name_nbytes);
        if (!slash)
            return ENTRY_FAIL(&entry, error, BERTH_E_ARCHIVE,
                              "'%.*s' lies in no top folder; a checkpoint's records share one",
                              (int)entry.kept.name_nbytes, name);
        size_t length = (size_t)(slash - name);
        if (!directory->archive) {
            memcpy(names_at, name, length);
            names_at[length] = '\0';
            directory->archive = names_at;
            directory->archive_nbytes = (uint32_t)length;
            folder_flags = entry.kept.flags;
            names_at += length + 1;
        }
        if (length != directory->archive_nbytes || memcmp(name, directory->archive, length) != 0)
            return ENTRY_FAIL(&entry, error, BERTH_E_ARCHIVE,
                              "'%.*s' does not lie in the top folder '%s' of the entries before it",
                              (int)entry.kept.name_nbytes, name, directory->archive);
        bool is_ascii = true;
        for (const char *at = directory->archive; *at; at++)
            is_ascii = is_ascii && (uint8_t)*at < 0x80;
        if (!is_ascii && ((folder_flags ^ entry.kept.flags) & BTH_ZIP_FLAG_UTF8))
            return ENTRY_FAIL(
                &entry, error, BERTH_E_ARCHIVE,
                "the top folder '%s' is marked as UTF-8 (flag bit 11) in some entries only",
                directory->archive);
        memcpy(names_at, name, entry.kept.name_nbytes);
        names_at[entry.kept.name_nbytes] = '\0';
        entry.kept.name = names_at;
        entry.kept.record = names_at + directory->archive_nbytes + 1;
        names_at += entry.kept.name_nbytes + 1;
        bool is_folder = name[entry.kept.name_nbytes - 1] == '/';
        if (entry_read_extra(&entry, error) < 0 ||
            entry_check(&entry, end->directory_offset, is_folder, error) < 0)
            return error->code;
        directory->entries[directory->n_entries + (is_folder ? n_after : 0)] = entry.kept;
        directory->n_entries += !is_folder;
        directory->n_folders += is_folder;
    }
    /* Z3: the entries fill the directory; this also finds a count that is too small by 65,536. */
    if (bth_cursor_left(&cursor) > 0)
        return bth_fail(error, BERTH_E_ARCHIVE, NULL, end->directory_offset + cursor.at,
                        "%zu bytes of the directory follow its %" PRIu64 " entries",
                        bth_cursor_left(&cursor), end->n_entries);
    return BERTH_OK;
}

int bth_zip_read_directory(const uint8_t *bytes, const bth_zip_end *end,
                           bth_zip_directory *directory, berth_error *error)
{
    bth_zip_directory made = {0};
    *directory = made;
    if (end->n_entries == 0)
        return bth_fail(error, BERTH_E_ARCHIVE, NULL, end->directory_offset,
                        "an archive without records");
    if (end->n_entries > end->directory_nbytes / BTH_ZIP_CENTRAL_NBYTES)
        return bth_fail(error, BERTH_E_ARCHIVE, NULL, end->directory_offset,
                        "%" PRIu64 " entries do not fit a directory of %" PRIu64 " bytes",
                        end->n_entries, end->directory_nbytes);
    /* Memory in proportion to the directory: all bytes but the fixed fields can be names, and the
     * top folder is a part of the first one. */
    size_t n = (size_t)end->n_entries;
    size_t names_nbytes = (size_t)end->directory_nbytes - n * BTH_ZIP_CENTRAL_NBYTES;
    size_t entries_nbytes = bth_array_nbytes(n, sizeof *made.entries);
    size_t by_offset_nbytes = bth_array_nbytes(n, sizeof *made.by_offset);
    made.entries = bth_allocate_zeroed(entries_nbytes);
    made.by_offset = bth_allocate(by_offset_nbytes);
    if (names_nbytes < SIZE_MAX / 4) /* n is less than a 46th: the sum fits, in 32 bits too */
        made.names = bth_allocate(2 * names_nbytes + n + 1);
    if (!made.entries || !made.by_offset || !made.names) {
        (void)bth_fail_memory(error, (uint64_t)entries_nbytes + by_offset_nbytes +
                                         2 * (uint64_t)names_nbytes + n + 1);
        goto cleanup;
    }
    if (directory_read_entries(bytes, end, &made, error) < 0 ||
        zip_order_and_check_overlap(&made, end->directory_offset, error) < 0 ||
        bth_zip_index_names(&made, error) < 0)
        goto cleanup;
    *directory = made;
    return BERTH_OK;

cleanup:
    bth_zip_free_directory(&made);
    return error->code;
}

void bth_zip_free_directory(bth_zip_directory *directory)
{
    bth_release(directory->entries);
    bth_release(directory->by_offset);
    bth_release(directory->names);
    bth_release(directory->index);
    *directory = (bth_zip_directory){0};
}
