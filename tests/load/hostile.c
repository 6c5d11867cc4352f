/* SPDX-License-Identifier: BSD-3-Clause */
/* Files made to be misread: each was, once. Found by tests/fuzz and by hand. */
#include "tests/support/load/archive.h"

/* ---- small records (Z11, one reading) ---- */

/* Behind the storages it changes nothing of the layout (tests/load/byteorder.c). */
Test(hostile, a_byteorder_among_the_storages_moves_them)
{
    struct archive archive = sample();
    size_t nbytes;

    remove_record(&archive, "byteorder");
    add_text(&archive, "byteorder", NATIVE_BYTEORDER);
    swap_records(&archive, "byteorder", "data/1");
    uint8_t *file = build(&archive, 64, true, NULL, &nbytes);
    expect_failure(
        file, nbytes, "load.check=directory", BERTH_E_OFFSETS,
        "memory: data/1 at byte 872: the layout puts its header here, right after data/0; the "
        "directory has it at byte 1400; load.calculate_storage_offsets=off reads it there");
    free(file);
    free_archive(&archive);
}

Test(hostile, an_alignment_behind_the_storages_is_not_overlooked)
{
    struct archive archive = sample();
    size_t nbytes;

    remove_record(&archive, ".storage_alignment");
    add_text(&archive, ".storage_alignment", "64");
    uint8_t *file = build(&archive, 64, true, NULL, &nbytes);
    expect_failure(file, nbytes, "load.check=headers", BERTH_E_OFFSETS,
                   "memory: .storage_alignment at byte 1400: the directory has it here, but the "
                   "layout has it before the storages; load.calculate_storage_offsets=off reads it "
                   "here");
    free(file);
    free_archive(&archive);
}

/* Without storages nothing follows by arithmetic that would not fit. */
Test(hostile, a_byteorder_that_is_no_word_is_not_taken_for_a_missing_one)
{
    struct archive archive = {0};
    size_t nbytes;

    add_record(&archive, "data.pkl", "\x80\x02K\x01.", 5);
    add_text(&archive, ".format_version", "1");
    add_text(&archive, ".storage_alignment", "64");
    add_text(&archive, "byteorder", "middle");
    uint8_t *file = build(&archive, 64, true, NULL, &nbytes);
    static const char *const options[] = {"load.check=none", "load.check=directory",
                                          "load.check=headers"};
    for (size_t i = 0; i < 3; i++)
        expect_failure(file, nbytes, options[i], BERTH_E_ARCHIVE,
                       "memory: byteorder at byte 448: 'middle' (6 bytes) is neither 'little' nor "
                       "'big'");
    free(file);
}
