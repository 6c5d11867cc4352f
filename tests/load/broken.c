/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A small file cut at every byte: refused with a sentence (One reading), at every level of
 * checking, with memory in proportion to the file (P3). Flipped bits: tests/hostile/flips.c.
 */
#include "tests/support/load/archive.h"
#include "tests/support/sources.h"
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

/* P3: memory follows the bytes that are there, not what they claim. */
Test(broken, no_broken_file_makes_a_load_take_much_memory)
{
    struct archive archive = sample();
    size_t nbytes;
    uint8_t *file = build(&archive, 64, true, NULL, &nbytes);
    berth_config *config = berth_config_new(NULL);
    berth_params call = {.config = config};

    free_archive(&archive);
    for (size_t at = 0; at < nbytes; at++) {
        berth_checkpoint *checkpoint;
        file[at] = (uint8_t)~file[at];
        test_memory_watch();
        if (test_open_memory(file, nbytes, &call, &checkpoint, NULL) == 0)
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
    berth_params call = {.config = config};
    berth_checkpoint *checkpoint;
    berth_error error;

    memcpy(local + 22, claimed, 4);
    memcpy(central + 24, claimed, 4);
    cr_assert_eq(berth_config_apply(config, "load.calculate_storage_offsets=off", NULL), 0);
    test_memory_watch();
    cr_expect_eq(test_open_memory(bytes, nbytes, &call, &checkpoint, &error), BERTH_E_UNSUPPORTED);
    cr_expect_leq(test_memory_seen().largest_nbytes, 64 * nbytes + 65536);
    test_memory_unwatch();
    cr_expect_str_eq(error.record, "data.pkl");
    cr_expect_str_eq(error.message,
                     "memory: data.pkl at byte 44: deflated from 201326592 bytes to 538, more than "
                     "64 to 1: unpack the archive and zip it again with `zip -0 -r`");
    berth_config_free(config);
    free(bytes);
}
