/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A directory that is what the layout renders is not taken apart; any other is, with the same
 * result as if all were (One reading). Verification takes each apart, and so tells what that is.
 */
#include <berth/config.h>
#include <fcntl.h>
#include <unistd.h>

#include "format/bytes.h"
#include "load/checkpoint.h"
#include "tests/support/load/archive.h"

TestSuite(listing, .init = begin_sample_file, .fini = end_sample_file);

/* ---- both ways ---- */

struct outcome {
    int code;
    char message[sizeof((berth_error *)0)->message];
    bool is_parsed; /* the directory */
    berth_info info;
};

static struct outcome open_one_way(bool parsed)
{
    struct outcome outcome = {0};
    const berth_params *call = only("load.check=directory", NULL);
    const berth_source source = berth_from_path(path);

    error = (berth_error){0};
    outcome.code = parsed ? bth_checkpoint_open(&source, call->config, call, &checkpoint, &error)
                          : berth_open(path, call, &checkpoint, &error);
    (void)snprintf(outcome.message, sizeof outcome.message, "%s", error.message);
    if (outcome.code == 0) {
        outcome.is_parsed = checkpoint->contents.container.known;
        cr_assert_eq(berth_get_info(checkpoint, &outcome.info, NULL), 0);
        outcome.info.archive = NULL; /* freed by now */
        close_opened();
    }
    return outcome;
}

/* Whether it was parsed without need; the rest must be the same. */
static bool same_both_ways(const char *what, size_t at)
{
    struct outcome short_way = open_one_way(false), long_way = open_one_way(true);

    cr_assert_eq(short_way.code, long_way.code, "%s %zu: %s, but %s", what, at, short_way.message,
                 long_way.message);
    cr_expect_str_eq(short_way.message, long_way.message, "%s %zu", what, at);
    cr_expect_eq(short_way.info.n_records, long_way.info.n_records, "%s %zu", what, at);
    cr_expect_eq(short_way.info.n_unknown_records, long_way.info.n_unknown_records);
    cr_expect_eq(short_way.info.n_crc32, long_way.info.n_crc32, "%s %zu", what, at);
    cr_expect(long_way.is_parsed || long_way.code < 0);
    return short_way.is_parsed;
}

/* ---- what is rendered ---- */

Test(listing, of_a_plain_file_is_not_taken_apart)
{
    for (int with_crc = 0; with_crc < 2; with_crc++) {
        build_with(64, with_crc, NULL);
        test_write_file(path, file, file_nbytes);
        cr_expect_not(same_both_ways("plain", 0));
        struct outcome outcome = open_one_way(false);
        cr_expect_eq(outcome.info.n_records, 9);
        cr_expect_eq(outcome.info.n_unknown_records, 0);
        cr_expect_eq(outcome.info.n_crc32, with_crc ? 9 : 0);
    }
}

Test(listing, needs_no_request_of_its_own)
{
    berth_stats stats;
    berth_params call = {.stats = &stats};
    berth_info info;

    patch("debug=off load.check=directory");
    cr_assert_eq(berth_open(path, &call, &checkpoint, NULL), 0);
    cr_expect_eq(stats.n_records, 9);
    uint64_t n_requests = stats.n_requests;
    cr_assert_eq(berth_get_info(checkpoint, &info, NULL), 0);
    bth_params_set_checkpoint_stats(checkpoint, &call);
    cr_expect_eq(stats.n_requests, n_requests);
    cr_expect_eq(info.n_records, 9);
    berth_config_unpatch(NULL);
}

/* ---- what is not ---- */

/* Every bit of the directory and of what follows it. */
Test(listing, with_one_bit_wrong_is_judged_as_if_it_were_taken_apart)
{
    size_t n_parsed = 0,
           begin = file_nbytes - BTH_ZIP_END_NBYTES - 9 * (BTH_ZIP_CENTRAL_NBYTES + 12);

    int fd = open(path, O_WRONLY | O_CLOEXEC);
    for (size_t bit = 8 * begin; bit < 8 * file_nbytes; bit++) {
        uint8_t wrong = (uint8_t)(file[bit / 8] ^ 1 << bit % 8);
        cr_assert_eq(pwrite(fd, &wrong, 1, (off_t)(bit / 8)), 1);
        n_parsed += same_both_ways("bit", bit);
        cr_assert_eq(pwrite(fd, &file[bit / 8], 1, (off_t)(bit / 8)), 1);
    }
    cr_expect_gt(n_parsed, 0); /* dates, versions: told otherwise, but the same */
    close(fd);
}

/* Opens the file both ways; whether it was parsed. The sample is as it was again. */
static bool written(const char *what)
{
    test_write_file(path, file, file_nbytes);
    bool is_parsed = same_both_ways(what, 0);
    begin_sample();
    return is_parsed;
}

/* The same of a sample with a change. */
static bool changed(void (*change)(void), const struct lie *lie)
{
    if (change)
        change();
    build(lie);
    return written(lie ? lie->record : "changed");
}

static void add_unknown(void)
{
    add_text("notes.txt", "mine");
}

static void add_unnamed_storage(void)
{
    add_text("data/99", "a storage that nothing names");
}

static void add_program(void)
{
    add_text("code/a.py", "1");
    add_text("constants.pkl", "1");
}

static void add_small_record_behind(void)
{
    remove_record("byteorder");
    add_text("byteorder", NATIVE_BYTEORDER);
}

static void leave_out_what_follows(void)
{
    remove_record("version");
    remove_record(".data/serialization_id");
}

static void leave_out_the_id(void)
{
    remove_record(".data/serialization_id");
}

static void leave_out_byteorder(void)
{
    remove_record("byteorder");
}

static void leave_out_a_storage(void)
{
    remove_record("data/2");
}

Test(listing, with_other_records_is_taken_apart)
{
    cr_expect(changed(add_unknown, NULL));
    cr_expect(changed(add_unnamed_storage, NULL));
    (void)changed(add_program, NULL);
    (void)changed(add_small_record_behind, NULL);
    (void)changed(leave_out_a_storage, NULL);
    cr_expect_not(changed(leave_out_what_follows, NULL));
    cr_expect(changed(leave_out_byteorder, NULL));
}

Test(listing, that_lies_is_taken_apart)
{
    static const char *const records[] = {"data.pkl", "byteorder", "data/0",
                                          "data/2",   "version",   ".data/serialization_id"};

    for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
        (void)changed(NULL, &(struct lie){.record = records[i], .gap = 64});
        (void)changed(NULL, &(struct lie){.record = records[i], .more_padding = 64});
        (void)changed(NULL, &(struct lie){.record = records[i], .directory_shift = 16});
        (void)changed(NULL, &(struct lie){.record = records[i], .directory_shift = -16});
        (void)changed(NULL, &(struct lie){.record = records[i], .directory_lie = 1});
        (void)changed(NULL, &(struct lie){.record = records[i], .unlisted = true});
    }
    (void)changed(leave_out_what_follows, &(struct lie){.record = "data/2", .more_padding = 16});
}

/* ---- files with bytes exchanged ---- */

/* Wherever one text stands, another one that is as long. */
static bool renamed(void (*change)(void), const char *from, const char *to)
{
    size_t n = strlen(from), n_found = 0;

    if (change)
        change();
    build(NULL);
    for (size_t at = 0; at + n <= file_nbytes; at++)
        if (memcmp(file + at, from, n) == 0) {
            memcpy(file + at, to, n);
            n_found++;
        }
    cr_assert_gt(n_found, 0);
    return written(to);
}

/* Z8 */
Test(listing, in_a_folder_of_a_bad_name_is_taken_apart)
{
    (void)renamed(NULL, "sample/", "sam\\le/");
    (void)renamed(leave_out_what_follows, "sample/", "sam\\le/");
    (void)renamed(leave_out_what_follows, "sample/", "sampl\x01/");
    (void)renamed(leave_out_what_follows, "sample/", "C:mple/");
    cr_expect_not(renamed(NULL, "sample/", "samp\xC3\xA4/"));
}

/* Z8 */
Test(listing, of_two_folders_is_taken_apart)
{
    (void)renamed(NULL, "sample/version", "simple/version");
    (void)renamed(leave_out_the_id, "sample/version", "simple/version");
}

/* The sample with its pickle's key `old` exchanged; its record, data/`old`, is called `name`. */
static bool with_key(char old, const char *key, const char *name)
{
    const uint8_t text[] = {'X', 1, 0, 0, 0, (uint8_t)old};
    const char record[] = {'d', 'a', 't', 'a', '/', old, 0};
    size_t n = strlen(key), at = 0;
    const uint8_t *pickle = sample.pickled.bytes;
    uint8_t *changed_pickle = malloc(sample.pickled.nbytes + n);

    while (memcmp(pickle + at, text, sizeof text) != 0)
        at++;
    memcpy(changed_pickle, pickle, at + 5);
    changed_pickle[at + 1] = (uint8_t)n;
    memcpy(changed_pickle + at + 5, key, n);
    memcpy(changed_pickle + at + 5 + n, pickle + at + 6, sample.pickled.nbytes - at - 6);
    set_record("data.pkl", changed_pickle, sample.pickled.nbytes + n - 1);
    find_record(record)->name = name;
    build(NULL);
    free(changed_pickle);
    return written(key);
}

/* Z8: a key that is no number has its name checked. */
Test(listing, of_other_keys)
{
    cr_expect_not(with_key('0', "7", "data/7"));
    cr_expect_not(with_key('0', "12345678901234567890", "data/12345678901234567890"));
    cr_expect(with_key('0', "123456789012345678901", "data/123456789012345678901"));
    cr_expect(with_key('0', "x", "data/x"));
    cr_expect(with_key('0', "7x", "data/7x"));
    (void)with_key('0', "7x", "data/7");
    (void)with_key('1', "7x", "data/7"); /* not the first, whose header is in the head */
    (void)with_key('0', "7\\", "data/7\\");
    (void)with_key('0', "..", "data/..");
}

/* Z3: the end records count one entry less than there are, or one has no part in their bytes. */
Test(listing, that_ends_elsewhere_than_its_last_entry_is_taken_apart)
{
    enum { LAST_NBYTES = BTH_ZIP_CENTRAL_NBYTES + sizeof "sample/data/2" - 1 };

    for (size_t more = 0; more <= LAST_NBYTES; more += LAST_NBYTES) {
        leave_out_what_follows();
        build(NULL);
        size_t end = file_nbytes - BTH_ZIP_END_NBYTES;
        file = realloc(file, file_nbytes + LAST_NBYTES);
        file_nbytes += more;
        bth_cursor cursor = bth_cursor_make(file + end + 40, 16);
        uint64_t directory_nbytes = bth_cursor_u64(&cursor), offset = bth_cursor_u64(&cursor);
        memmove(file + end + more - LAST_NBYTES, file + end - LAST_NBYTES, LAST_NBYTES);
        bth_zip_write_end(more ? 7 : 6, offset, directory_nbytes + more, file + end + more);
        (void)written(more ? "one more" : "one less");
    }
}

/* Files give archives their names: here n times 'a'. */
static void save_sample_named(size_t n)
{
    char name[256];
    berth_value *root;
    berth_tree *tree = sample_tree(&root);

    memset(name, 'a', n);
    (void)snprintf(name + n, sizeof name - n, ".pt");
    free(path);
    path = test_path(folder, name);
    cr_assert_eq(berth_save(path, root, NULL, NULL), 0);
    berth_tree_free(tree);
}

Test(listing, in_a_folder_of_a_long_name)
{
    for (size_t n = 210; n < 250; n++) {
        save_sample_named(n);
        cr_expect_eq(same_both_ways("long", n), n + strlen("/.storage_alignment") > 240, "%zu", n);
    }
}

/* Nothing is compared behind the directory: an entry is longer than all that follows it. */
Test(listing, that_ends_before_a_storage_of_a_long_name)
{
    size_t nbytes;

    save_sample_named(210);
    uint8_t *bytes = test_read_file(path, &nbytes);
    bth_cursor cursor = bth_cursor_make(bytes + nbytes - BTH_ZIP_END_NBYTES + 48, 8);
    uint64_t offset = bth_cursor_u64(&cursor);
    size_t at = offset;
    while (memcmp(bytes + at + BTH_ZIP_CENTRAL_NBYTES + 210, "/data/2", 7) != 0)
        at++;
    nbytes = at + BTH_ZIP_END_NBYTES;
    uint8_t *cut = malloc(nbytes); /* no byte more */
    memcpy(cut, bytes, at);
    bth_zip_write_end(6, offset, at - offset, cut + at);
    expect_failure_of(cut, nbytes, "load.check=directory", BERTH_E_ARCHIVE,
                      "memory: data/2: data.pkl names it, but the archive does not hold it");
    free(cut);
    free(bytes);
}

/* Z1: open did not ask for it. */
Test(listing, of_a_directory_that_cannot_be_read_fails_when_it_is_asked_for)
{
    berth_info info;

    file_nbytes--;
    open_file("load.check=none");
    FAILS(berth_get_info(checkpoint, &info, &error), BERTH_E_ARCHIVE,
          "memory: at byte 2178: the end record is cut off: 21 of its 22 bytes are "
          "there: a download or a save in place that did not end?");
}
