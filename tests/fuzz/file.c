/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Whole files: any bytes, opened in every way, asked for everything; what is accepted is one
 * reading, however it is found.
 */
#include "tests/support/fuzz/archive.h"

enum kind {
    BY_DIRECTORY,
    DIRECTORY_BY_READS,
    UNCHECKED,
    DATA,
    PLAIN,
    PLAIN_BY_READS,
    READINGS,
    N_KINDS
};

void check_input(const uint8_t *bytes, size_t nbytes)
{
    static const char plain[] = "load.check=headers load.calculate_storage_offsets=off";
    unsigned kind = kind_of(bytes, nbytes, N_KINDS);

    if (IS_CHECKED(kind, BY_DIRECTORY))
        (void)check_opening(bytes, nbytes, "load.check=directory");
    if (IS_CHECKED(kind, DIRECTORY_BY_READS))
        check_by_reads(bytes, nbytes, "load.check=directory");
    if (IS_CHECKED(kind, UNCHECKED))
        (void)check_opening(bytes, nbytes, "load.check=none load.unknown_globals=inert");
    if (IS_CHECKED(kind, DATA))
        (void)check_opening(bytes, nbytes,
                            "load.check=data load.mmap=off load.unknown_globals=inert");
    if (IS_CHECKED(kind, PLAIN))
        (void)check_opening(bytes, nbytes, plain);
    if (IS_CHECKED(kind, PLAIN_BY_READS))
        check_by_reads(bytes, nbytes, plain);
    if (IS_CHECKED(kind, READINGS))
        check_readings(bytes, nbytes, "load.unknown_globals=refuse");
}

size_t mutate(uint8_t *bytes, size_t nbytes, size_t most, unsigned number)
{
    return mutate_archive(bytes, start_over(bytes, nbytes, most), most, number);
}

void make_seeds(void)
{
    seed_folder("tests/data/torch", ".pt");
    seed_folder("tests/data/old", ".pt");
    seed_folder("tests/fuzz/found/file", "");
}

#ifndef BERTH_FUZZER

Test(files, keep_all_properties)
{
    cr_assert_geq(replay_seeds(60), 23);
}
#endif
