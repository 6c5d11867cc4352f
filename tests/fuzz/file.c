/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Whole files: any bytes, opened in every way, asked for everything; what is accepted is one
 * reading, however it is found.
 */
#include "tests/fuzz/archive.h"

#define N_WAYS 4

static void check_one_way(const uint8_t *bytes, size_t nbytes, size_t way)
{
    switch (way) {
    case 0:
        (void)check_opening(bytes, nbytes, "load.check=directory");
        check_by_reads(bytes, nbytes, "load.check=directory");
        return;
    case 1:
        (void)check_opening(bytes, nbytes, "load.check=none load.unknown_globals=inert");
        (void)check_opening(bytes, nbytes,
                            "load.check=data load.mmap=off load.unknown_globals=inert");
        return;
    case 2:
        (void)check_opening(bytes, nbytes, "load.check=headers load.calculate_storage_offsets=off");
        check_by_reads(bytes, nbytes, "load.check=headers load.calculate_storage_offsets=off");
        return;
    default:
        check_readings(bytes, nbytes, "load.unknown_globals=refuse");
    }
}

/* A fuzzer has many inputs: one way an input, always the same. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t nbytes)
{
    size_t first = berth_crc32(0, bytes, nbytes) % N_WAYS, n = IS_FUZZER ? 1 : N_WAYS;

    for (size_t i = 0; i < n; i++)
        check_one_way(bytes, nbytes, (first + i) % N_WAYS);
    return 0;
}

static size_t mutate(uint8_t *bytes, size_t nbytes, size_t most, unsigned number)
{
    return mutate_archive(bytes, nbytes, most, number);
}

static void make_seeds(void)
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
