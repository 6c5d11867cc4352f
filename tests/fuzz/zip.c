/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Zip directories: any bytes as an archive, its records alone. What is accepted is one reading: a
 * reader that looks at the directory alone, as other tools do, sees the same (Z1 to Z10).
 */
#include <berth/config.h>

#include "tests/support/fuzz/archive.h"

#include "tests/support/format/zip_builder.h"
#include "tests/support/support.h"

#define PIECE_NBYTES 7

/* ---- the reader by itself ---- */

/* Z7: header, data and descriptor of each entry lie in the file, before the directory, in order. */
static void check_places(const bth_zip_directory *directory, uint64_t limit)
{
    uint64_t at = 0;

    for (size_t i = 0; i < directory->n_entries + directory->n_folders; i++) {
        const bth_zip_entry *entry = &directory->entries[directory->by_offset[i]];
        MUST(entry->header_offset >= at && entry->data_offset >= entry->header_offset + 30 &&
                 entry->data_offset <= limit &&
                 entry->compressed_nbytes <= limit - entry->data_offset &&
                 entry->end_offset >= entry->data_offset + entry->compressed_nbytes &&
                 entry->end_offset <= limit && entry->next_offset <= limit,
             "%s: at %llu to %llu of %llu", entry->name, (unsigned long long)entry->header_offset,
             (unsigned long long)entry->end_offset, (unsigned long long)limit);
        at = entry->end_offset;
    }
}

/* Z8: clean names under one top folder, each found by itself alone. */
static void check_zip_names(const bth_zip_directory *directory)
{
    for (size_t i = 0; i < directory->n_entries; i++) {
        const bth_zip_entry *entry = &directory->entries[i];
        size_t top = directory->archive_nbytes;
        MUST(is_clean_text(entry->name) && strlen(entry->name) == entry->name_nbytes, "%s",
             entry->name);
        MUST(memcmp(entry->name, directory->archive, top) == 0 && entry->name[top] == '/' &&
                 entry->record == entry->name + top + 1,
             "%s is not under %s", entry->name, directory->archive);
        MUST(bth_zip_find(directory, entry->record, strlen(entry->record)) == entry,
             "%s finds another", entry->name);
    }
}

/* Other readers' reading: the same names, sizes and places; and all that must be so by theirs. */
static void check_against_others(const uint8_t *bytes, size_t nbytes,
                                 const bth_zip_directory *directory)
{
    static struct parts parts;
    size_t n = directory->n_entries + directory->n_folders;

    if (!check_plain(bytes, nbytes, &parts, AT_HEADERS))
        return;
    MUST(parts.n == n, "%zu entries, others see %zu", n, parts.n);
    for (size_t i = 0, k = 0; i < parts.n; i++) {
        const struct part *part = &parts.list[i];
        if (is_folder_part(part))
            continue;
        while (k < directory->n_entries && directory->entries[k].header_offset != part->header_at)
            k++;
        MUST(k < directory->n_entries, "others see %.*s", (int)part->name_nbytes, part->name);
        const bth_zip_entry *entry = &directory->entries[k];
        MUST(entry->name_nbytes == part->name_nbytes &&
                 memcmp(entry->name, part->name, part->name_nbytes) == 0 &&
                 entry->data_offset == part->at && entry->compressed_nbytes == part->nbytes &&
                 entry->nbytes == part->n && entry->method == part->method &&
                 entry->crc32 == part->crc32,
             "%s: others see something else", entry->name);
    }
}

/* True: every check of format/ passes. */
static bool check_reader(uint8_t *bytes, size_t nbytes)
{
    const test_zip zip = {.bytes = bytes, .nbytes = nbytes};
    bth_zip_directory directory;
    berth_error error;

    count_memory_from_now();
    size_t before_nbytes = live_nbytes;
    double since = processor_seconds();
    bool is_read = test_zip_read(&zip, 0, &directory, &error) == 0;
    check_time(since, nbytes);
    MUST(most_nbytes - before_nbytes <= MEMORY_PER_BYTE * nbytes + 65536,
         "P3: %zu bytes of memory for an archive of %zu", most_nbytes - before_nbytes, nbytes);
    MUST(is_clean_text(error.message) && is_read == (error.message[0] == 0), "%s", error.message);
    if (is_read) {
        is_accepted = true;
        check_places(&directory, nbytes);
        check_zip_names(&directory);
        check_against_others(bytes, nbytes, &directory);
        bth_zip_free_directory(&directory);
    }
    MUST(live_nbytes == before_nbytes, "%zu bytes leak", live_nbytes - before_nbytes);
    return is_read;
}

/* ---- as an archive ---- */

static berth_archive *open_archive(const uint8_t *bytes, size_t nbytes, const char *options,
                                   berth_error *error)
{
    berth_config *config = berth_config_new(error);
    berth_params call = {.config = config};
    berth_archive *archive;

    MUST(config && berth_config_apply(config, "io.threads=1", error) == 0 &&
             berth_config_apply(config, options, error) == 0,
         "%s", error->message);
    int result = berth_archive_open(FROM_MEMORY(bytes, nbytes), &call, &archive, NULL, error);
    berth_config_free(config);
    MUST((result < 0) == (archive == NULL) && result == (int)error->code &&
             is_clean_text(error->message),
         "%s", error->message);
    return archive;
}

/* A record in one piece and in small ones: the same bytes, or the same refusal. */
static void check_record(berth_archive *archive, const berth_record *record, size_t nbytes)
{
    static uint8_t whole[65536], piece[PIECE_NBYTES];
    berth_error error;

    MUST(record->header_offset < record->offset && record->offset <= nbytes &&
             (record->method != 0 || record->nbytes <= nbytes - record->offset),
         "%s", record->name);
    size_t n = record->nbytes < sizeof whole ? (size_t)record->nbytes : sizeof whole;
    bool is_read = berth_archive_read(archive, record, whole, n, 0, &error) == 0;
    MUST(is_read == (error.message[0] == 0), "%s", error.message);
    for (size_t at = 0; at < n && at < 4 * PIECE_NBYTES; at += PIECE_NBYTES) {
        size_t some = n - at < PIECE_NBYTES ? n - at : PIECE_NBYTES;
        if (berth_archive_read(archive, record, piece, some, at, &error) == 0 && is_read)
            MUST(memcmp(whole + at, piece, some) == 0, "%s: other bytes by pieces", record->name);
    }
    MUST(berth_archive_read(archive, record, piece, 1, record->nbytes, &error) < 0,
         "%s: a byte behind its end", record->name);
}

/* The record's bytes are where others find them; its header may be one that nobody looked at. */
static void check_against_part(berth_archive *archive, const berth_record *record,
                               const struct parts *parts, bool has_looked)
{
    static uint8_t read[65536];
    const struct part *part = find_part(parts, record->name);
    uint64_t alignment = plain_number(parts, ".storage_alignment", 64);

    MUST(part && part->n == record->nbytes && part->crc32 == record->crc32 &&
             part->method == record->method && part->header_at == record->header_offset,
         "%s: others see something else", record->name);
    MUST(record->offset == part->at ||
             (!has_looked && record->offset == layout_at(part, alignment)),
         "%s: at byte %llu, not %zu", record->name, (unsigned long long)record->offset, part->at);
    if (record->method == 0 && record->offset == part->at && part->n <= sizeof read &&
        berth_archive_read(archive, record, read, part->n, 0, NULL) == 0)
        MUST(memcmp(read, part->data, part->n) == 0, "%s: other bytes than the file", record->name);
}

static bool check_archive(const uint8_t *bytes, size_t nbytes, const char *options)
{
    static struct parts parts;
    bool has_looked = strstr(options, "headers") != NULL;
    berth_error error;

    count_memory_from_now();
    size_t before_nbytes = live_nbytes;
    double since = processor_seconds();
    berth_archive *archive = open_archive(bytes, nbytes, options, &error);
    check_time(since, nbytes);
    MUST(most_nbytes - before_nbytes <= MEMORY_PER_BYTE * nbytes + MEMORY_FIXED,
         "%s: %zu bytes of memory for an archive of %zu", options, most_nbytes - before_nbytes,
         nbytes);
    bool is_plain = archive && (has_looked ? check_plain(bytes, nbytes, &parts, AT_HEADERS)
                                           : take_apart(bytes, nbytes, &parts) && parts.is_whole);
    berth_record record, found;
    for (size_t i = 0; berth_archive_at(archive, i, &record) == 0; i++) {
        MUST(berth_archive_find(archive, record.name, &found, &error) == 0 &&
                 found.offset == record.offset && found.nbytes == record.nbytes,
             "%s: %s", record.name, error.message);
        check_record(archive, &record, nbytes);
        if (is_plain)
            check_against_part(archive, &record, &parts, has_looked);
    }
    berth_archive_close(archive);
    MUST(live_nbytes == before_nbytes, "%zu bytes leak", live_nbytes - before_nbytes);
    return archive != NULL;
}

void check_input(const uint8_t *bytes, size_t nbytes)
{
    uint8_t *own = malloc(nbytes + (nbytes == 0));

    memcpy(own, bytes, nbytes);
    bool is_read = check_reader(own, nbytes);
    free(own);
    /* What is refused, nearly all of it, is opened now and then: that it is refused there, too. */
    if (!is_read && !IS_CHECKED(kind_of(bytes, nbytes, 4), 0))
        return;
    bool is_opened = check_archive(bytes, nbytes, "load.check=headers");
    MUST(!is_read || is_opened, "its parts are read, it does not open");
    if (is_opened)
        MUST(check_archive(bytes, nbytes, "load.check=directory"), "opens with more checks alone");
}

size_t mutate(uint8_t *bytes, size_t nbytes, size_t most, unsigned number)
{
    return mutate_archive(bytes, start_over(bytes, nbytes, most), most, number);
}

/* ---- seeds ---- */

static void seed_archives(void)
{
    static const char large[] = "\1\0\20\0\5\0\0\0\0\0\0\0\5\0\0\0\0\0\0\0";
    test_entry entries[2] = {test_stored("m/a", "hello", 5), test_stored("m/b", "", 0)};
    test_zip zip = test_zip_small();

    seed("small", zip.bytes, zip.nbytes);
    test_zip_free(&zip);
    zip = test_zip_new_foreign(entries, 2);
    seed("foreign", zip.bytes, zip.nbytes);
    test_zip_free(&zip);
    entries[0].local_extra = large;
    entries[0].local_extra_nbytes = sizeof large - 1;
    entries[0].local_compressed = entries[0].local_size = BTH_ZIP_SATURATED32;
    zip = test_zip_new_foreign(entries, 2);
    seed("zip64", zip.bytes, zip.nbytes);
    test_zip_free(&zip);
    seed("folder", "PK\5\6\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 22);
}

/* Z7: an entry that lies in another one's data: each by itself is right. */
static void seed_overlap(void)
{
    static const char inner_data[] = "hello";
    test_entry inner = test_stored("m/b", inner_data, sizeof inner_data - 1);
    test_zip within = test_zip_new_foreign(&inner, 1);
    test_entry entries[2] = {test_stored("m/a", (const char *)within.bytes, within.directory_at),
                             inner};
    test_zip zip = test_zip_new_foreign(entries, 2);
    const size_t at = zip.header_at[1], n = zip.directory_at - at;

    test_zip_put(&zip, zip.central_at[1] + CENTRAL_HEADER_OFFSET, zip.data_at[0], 4);
    test_zip_put(&zip, zip.end_at + END_DIRECTORY_OFFSET, at, 4);
    test_zip_remove(&zip, at, n);
    seed("overlap", zip.bytes, zip.nbytes);
    test_zip_free(&zip);
    test_zip_free(&within);
}

void make_seeds(void)
{
    seed_archives();
    seed_overlap();
    seed_folder("tests/data/torch", ".pt");
    seed_folder("tests/data/old", "zip.pth");
    seed_folder("tests/data/old", ".pt");
    seed_folder("tests/fuzz/found/zip", "");
}

#ifndef BERTH_FUZZER

Test(archives, keep_all_properties)
{
    cr_assert_geq(replay_seeds(400), 19);
}
#endif
