/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A small file cut at every byte: refused with a sentence (One reading), at every level of
 * checking, with memory in proportion to the file (P3). Flipped bits: tests/hostile/flips.c.
 */
#include <berth/config.h>

#include "tests/support/load/archive.h"

TestSuite(broken, .init = begin_sample, .fini = end_sample);

/* Refused with a whole error, or, where that may be, the sample's values. */
static void cut_everywhere(const char *options, bool may_read)
{
    for (size_t cut = 0; cut < file_nbytes; cut++) {
        /* The C library's blocks end where the bytes do: a read beyond is seen by the sanitizer. */
        uint8_t *copy = memcpy(malloc(cut > 0 ? cut : 1), file, cut);
        if (open_bytes(copy, cut, options) == 0) {
            cr_expect(may_read, "cut at %zu: read with %s", cut, options);
            expect_sample_values();
            close_opened();
        } else {
            cr_expect_lt(error.code, 0);
            cr_expect_neq(error.code, BERTH_E_MEMORY, "cut at %zu: %s", cut, error.message);
            cr_expect_eq(strncmp(error.message, "memory: ", 8), 0, "cut at %zu: \"%s\"", cut,
                         error.message);
            cr_expect_gt(strlen(error.message), 20, "cut at %zu: \"%s\"", cut, error.message);
        }
        free(copy);
    }
}

Test(broken, a_file_cut_at_any_byte_is_refused)
{
    static const char *const options[] = {"load.check=directory", "debug=on", "load.check=data",
                                          "load.calculate_storage_offsets=off"};

    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        cut_everywhere(options[i], false);
}

Test(broken, a_cut_directory_is_not_missed_where_it_is_not_asked)
{
    cut_everywhere("load.check=none", true);
}

/* P3: memory follows the bytes that are there, not what they claim. */
Test(broken, no_broken_file_makes_a_load_take_much_memory)
{
    berth_config *config = berth_config_new(NULL);
    berth_params call = {.config = config};

    for (size_t at = 0; at < file_nbytes; at++) {
        file[at] = (uint8_t)~file[at];
        test_memory_watch();
        if (berth_open_source(FROM_MEMORY(file, file_nbytes), &call, &checkpoint, NULL) == 0)
            close_opened();
        struct test_memory seen = test_memory_seen();
        test_memory_unwatch();
        cr_expect_leq(seen.peak_nbytes, 64 * file_nbytes + 65536, "byte %zu: %zu bytes", at,
                      (size_t)seen.peak_nbytes);
        cr_expect_eq(seen.live_nbytes, 0, "byte %zu", at);
        file[at] = (uint8_t)~file[at];
    }
    berth_config_free(config);
}

static uint8_t *find_name(uint8_t *from, const char *name)
{
    uint8_t *found = memmem(from, (size_t)(file + file_nbytes - from), name, strlen(name));

    cr_assert_not_null(found);
    return found;
}

/* Z9, Z12: what a deflated record claims to become is not believed. */
Test(broken, a_deflated_pickle_that_claims_to_be_huge_takes_no_memory)
{
    static const uint8_t claimed[4] = {0, 0, 8, 0}; /* 512 KiB */
    const berth_params *call = only("load.calculate_storage_offsets=off", NULL);

    read_file("torch/deflated-pickle.pt");
    uint8_t *local = find_name(file, "small/data.pkl") - 30;
    uint8_t *central = find_name(local + 44, "small/data.pkl") - 46;
    memcpy(local + 22, claimed, 4);
    memcpy(central + 24, claimed, 4);
    test_memory_watch();
    cr_expect_eq(berth_open_source(FROM_MEMORY(file, file_nbytes), call, &checkpoint, &error),
                 BERTH_E_UNSUPPORTED);
    cr_expect_leq(test_memory_seen().largest_nbytes, 64 * file_nbytes + 65536);
    test_memory_unwatch();
    cr_expect_str_eq(error.record, "data.pkl");
    cr_expect_str_eq(
        error.message,
        "memory: data.pkl at byte 44: deflated from 524288 bytes to 538, more than 64 to 1: unpack "
        "the archive and zip it again with `zip -0 -r`, which compresses nothing");
}
