/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A small file cut at every byte, and with every single bit of what is no element flipped: each is
 * refused with a sentence, or reads the same values (One reading), at every level of checking, with
 * memory in proportion to the file (P3).
 */
#include "tests/load/builder.h"
#include "tests/support/support.h"

/* The C library's blocks end where the bytes do: a read beyond is seen by the sanitizer. */
static uint8_t *exact_copy(const uint8_t *bytes, size_t nbytes)
{
    uint8_t *copy = malloc(nbytes > 0 ? nbytes : 1);

    if (nbytes > 0)
        memcpy(copy, bytes, nbytes);
    return copy;
}

/* Refused with a whole error, or the sample's values. True if refused. */
static bool try_broken(const uint8_t *bytes, size_t nbytes, const char *options, const char *what,
                       size_t at)
{
    berth_checkpoint *checkpoint;
    berth_error error;

    if (open_with(bytes, nbytes, options, NULL, &checkpoint, &error) < 0) {
        cr_expect_lt(error.code, 0);
        cr_expect_neq(error.code, BERTH_E_MEMORY, "%s %zu: %s", what, at, error.message);
        cr_expect_eq(strncmp(error.message, "memory: ", 8), 0, "%s %zu: \"%s\"", what, at,
                     error.message);
        cr_expect_gt(strlen(error.message), 20, "%s %zu: \"%s\"", what, at, error.message);
        return true;
    }
    char *text = describe(checkpoint);
    cr_expect_str_eq(text, sample_text, "%s %zu with %s", what, at, options);
    free(text);
    berth_close(checkpoint);
    return false;
}

static void cut_everywhere(const uint8_t *file, size_t nbytes, const char *options, bool may_read)
{
    for (size_t cut = 0; cut < nbytes; cut++) {
        uint8_t *copy = exact_copy(file, cut);
        bool refused = try_broken(copy, cut, options, "cut at", cut);
        cr_expect(refused || may_read, "cut at %zu: read with %s", cut, options);
        free(copy);
    }
}

Test(broken, a_file_cut_at_any_byte_is_refused)
{
    static const char *const options[] = {"load.check=directory", "debug=on", "load.check=data",
                                          "load.calculate_storage_offsets=off"};
    size_t nbytes;
    uint8_t *file = build_sample(true, &nbytes);

    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        cut_everywhere(file, nbytes, options[i], false);
    free(file);
}

Test(broken, a_cut_directory_is_not_missed_where_it_is_not_asked)
{
    size_t nbytes;
    uint8_t *file = build_sample(true, &nbytes);

    cut_everywhere(file, nbytes, "load.check=none", true);
    free(file);
}

/* Whether a byte is an element, and so changes a value if it is flipped. */
static bool is_element(const struct archive *archive, uint64_t at)
{
    uint64_t cursor = 0;

    for (size_t i = 0; i < archive->n; i++) {
        berth_place place = place_record(&archive->records[i], NULL, cursor, 64);
        if (strncmp(archive->records[i].name, "data/", 5) == 0 && at >= place.data_offset &&
            at - place.data_offset < place.nbytes)
            return true;
        cursor = place.next_offset;
    }
    return false;
}

/* Where the directory begins. */
static uint64_t directory_of(const struct archive *archive)
{
    uint64_t cursor = 0;

    for (size_t i = 0; i < archive->n; i++)
        cursor = place_record(&archive->records[i], NULL, cursor, 64).next_offset;
    return cursor;
}

static size_t flip_everywhere(const struct archive *archive, const char *options, bool directory)
{
    size_t nbytes, n_refused = 0;
    uint8_t *file = build(archive, 64, true, NULL, &nbytes);
    uint8_t *copy = exact_copy(file, nbytes);
    size_t end = directory ? nbytes : directory_of(archive);

    for (size_t at = 0; at < end; at++)
        for (int bit = 0; bit < 8 && !is_element(archive, at); bit++) {
            copy[at] ^= (uint8_t)(1 << bit);
            n_refused += try_broken(copy, nbytes, options, "flipped in byte", at);
            copy[at] ^= (uint8_t)(1 << bit);
        }
    free(copy);
    free(file);
    return n_refused;
}

static void flip_sample(const char *options, bool directory)
{
    struct archive archive = sample();
    size_t n_refused = flip_everywhere(&archive, options, directory);

    /* At least every bit of the pickle. */
    cr_expect_geq(n_refused, 8 * archive.pickled.nbytes);
    free_archive(&archive);
}

Test(broken, a_flipped_bit_with_nothing_compared)
{
    flip_sample("load.check=none", false);
}

Test(broken, a_flipped_bit_with_the_directory_compared)
{
    flip_sample("load.check=directory", true);
}

Test(broken, a_flipped_bit_in_debug_mode)
{
    flip_sample("debug=on", true);
}

Test(broken, a_flipped_bit_with_offsets_from_the_directory)
{
    flip_sample("load.calculate_storage_offsets=off", true);
    flip_sample("load.calculate_storage_offsets=off load.check=none", false);
}

Test(broken, a_flipped_bit_with_everything_compared)
{
    flip_sample("load.check=data", true);
}

/* The sample as PyTorch wrote it before 2.7: its byte order must not get lost either. */
Test(broken, a_flipped_bit_in_an_older_file)
{
    struct archive archive = sample();

    remove_record(&archive, ".format_version");
    remove_record(&archive, ".storage_alignment");
    flip_everywhere(&archive, "load.endianness=big", true);
    flip_everywhere(&archive, "load.endianness=big load.check=none", false);
    flip_everywhere(&archive, "load.endianness=big debug=on", true);
    free_archive(&archive);
}

Test(broken, a_flipped_bit_of_an_element_is_found_by_its_crc)
{
    struct archive archive = sample();
    size_t nbytes;
    uint8_t *file = build(&archive, 64, true, NULL, &nbytes);

    for (size_t at = 0; at < nbytes; at++) {
        if (!is_element(&archive, at))
            continue;
        file[at] ^= 1;
        cr_expect(try_broken(file, nbytes, "load.check=data", "flipped in byte", at));
        file[at] ^= 1;
    }
    free(file);
    free_archive(&archive);
}

/* P3: memory follows the bytes that are there, not what they claim. */
Test(broken, no_broken_file_makes_a_load_take_much_memory)
{
    struct archive archive = sample();
    size_t nbytes;
    uint8_t *file = build(&archive, 64, true, NULL, &nbytes);
    berth_config *config = berth_config_new(NULL);
    berth_call call = {.config = config};

    free_archive(&archive);
    for (size_t at = 0; at < nbytes; at++) {
        berth_checkpoint *checkpoint;
        file[at] = (uint8_t)~file[at];
        test_memory_watch();
        if (berth_open_memory(file, nbytes, &call, &checkpoint, NULL) == 0)
            berth_close(checkpoint);
        struct test_memory seen = test_memory_seen();
        test_memory_unwatch();
        cr_expect_leq(seen.peak_nbytes, 64 * nbytes + 65536, "byte %zu: %zu bytes", at,
                      (size_t)seen.peak_nbytes);
        cr_expect_eq(seen.live_nbytes, 0, "byte %zu", at);
        file[at] = (uint8_t)~file[at];
    }
    berth_config_free(config);
    free(file);
}

static uint8_t *find_name(uint8_t *from, uint8_t *end, const char *name)
{
    uint8_t *found = memmem(from, (size_t)(end - from), name, strlen(name));

    cr_assert_not_null(found);
    return found;
}

/* Z9: what a deflated record claims to become is not believed. */
Test(broken, a_deflated_pickle_that_claims_to_be_huge_takes_no_memory)
{
    static const uint8_t claimed[4] = {0, 0, 0, 0x0c}; /* 192 MiB */
    size_t nbytes;
    uint8_t *bytes = test_read_file("tests/data/torch/deflated-pickle.pt", &nbytes);
    uint8_t *local = find_name(bytes, bytes + nbytes, "small/data.pkl") - 30;
    uint8_t *central = find_name(local + 44, bytes + nbytes, "small/data.pkl") - 46;
    berth_config *config = berth_config_new(NULL);
    berth_call call = {.config = config};
    berth_checkpoint *checkpoint;
    berth_error error;

    memcpy(local + 22, claimed, 4);
    memcpy(central + 24, claimed, 4);
    cr_assert_eq(berth_config_apply(config, "load.calculate_storage_offsets=off", NULL), 0);
    test_memory_watch();
    cr_expect_eq(berth_open_memory(bytes, nbytes, &call, &checkpoint, &error), BERTH_E_UNSUPPORTED);
    cr_expect_leq(test_memory_seen().largest_nbytes, 64 * nbytes + 65536);
    test_memory_unwatch();
    cr_expect_str_eq(error.record, "data.pkl");
    cr_expect_str_eq(error.message,
                     "memory: data.pkl at byte 44: deflated from 201326592 bytes to 538, more than "
                     "64 to 1: unpack the archive and zip it again with `zip -0 -r`");
    berth_config_free(config);
    free(bytes);
}
