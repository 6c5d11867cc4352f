/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Whole files: any bytes, opened in every way, asked for everything, saved again. As a Criterion
 * program it replays tests/data; as a fuzzer (-DBERTH_FUZZER -fsanitize=fuzzer) it changes them,
 * and makes the sums of what it changed right again, so that it gets behind them.
 * A fuzzer is built of this file and all sources of the rooms (config, format, io, save, load),
 * with clang -D_GNU_SOURCE -DBERTH_FUZZER -fsanitize=fuzzer,address,undefined -I. … -ldeflate -lz.
 */
#include "tests/fuzz/properties.h"

#include "format/checksum.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t nbytes);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t nbytes)
{
    (void)check_opening(bytes, nbytes, "load.check=directory");
    (void)check_opening(bytes, nbytes, "load.check=none load.unknown_globals=inert");
    (void)check_opening(bytes, nbytes, "load.check=headers load.calculate_storage_offsets=off");
    (void)check_opening(bytes, nbytes, "load.check=data load.mmap=off load.unknown_globals=inert");
    check_by_reads(bytes, nbytes, "load.check=directory");
    check_by_reads(bytes, nbytes, "load.check=headers load.calculate_storage_offsets=off");
    check_readings(bytes, nbytes, "load.unknown_globals=refuse");
    return 0;
}

#ifdef BERTH_FUZZER

size_t LLVMFuzzerMutate(uint8_t *bytes, size_t nbytes, size_t most_nbytes);
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t nbytes, size_t most, unsigned seed);

static uint32_t u32_at(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

static void put_u32(uint8_t *bytes, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
}

/* The sums of every entry that the directory lists: there, and in the descriptor. */
static void mend_sums(uint8_t *bytes, size_t nbytes)
{
    for (size_t at = 0; at + 46 <= nbytes; at++) {
        if (memcmp(bytes + at, "PK\1\2", 4) != 0)
            continue;
        uint64_t header = u32_at(bytes + at + 42), size = u32_at(bytes + at + 24);
        if (header + 30 > nbytes)
            continue;
        uint64_t data = header + 30 + (u32_at(bytes + header + 26) & 0xffff) +
                        (u32_at(bytes + header + 26) >> 16);
        if (data + size + 16 > nbytes || u32_at(bytes + at + 16) == 0)
            continue;
        uint32_t crc = berth_crc32(0, bytes + data, size);
        put_u32(bytes + at + 16, crc);
        if (memcmp(bytes + data + size, "PK\7\10", 4) == 0)
            put_u32(bytes + data + size + 4, crc);
    }
}

/* Changes one byte or number of a record's data or of any structure, in place: nothing moves. */
static void change_in_place(uint8_t *bytes, size_t nbytes, unsigned seed)
{
    static const uint8_t telling[] = {0, 1, 0x7f, 0x80, 0xff, 'R', 'Q', '.', 't', '(', 'h', 'q'};
    size_t at = (size_t)(((uint64_t)seed * 2654435761u >> 8) % nbytes);

    /* Most bytes of a small file are padding and payload: prefer what is not. */
    for (size_t i = 0; i < 200 && (bytes[at] == 'Z' || bytes[at] == 0); i++)
        at = (at + 1) % nbytes;
    switch (seed % 4) {
    case 0:
        bytes[at] = telling[(seed >> 20) % sizeof telling];
        break;
    case 1:
        bytes[at] = (uint8_t)(bytes[at] ^ 1u << (seed >> 20) % 8);
        break;
    case 2:
        bytes[at] = (uint8_t)(bytes[at] + ((seed >> 20) % 9) - 4);
        break;
    default:
        bytes[at] = bytes[(seed >> 8) % nbytes];
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t nbytes, size_t most, unsigned seed)
{
    if (nbytes == 0 || seed % 8 == 7)
        nbytes = LLVMFuzzerMutate(bytes, nbytes, most);
    else
        for (unsigned i = 0; i <= (seed >> 3) % 3; i++)
            change_in_place(bytes, nbytes, (seed + i) * 1103515245u + 12345u);
    if (nbytes > 0 && (seed >> 5) % 4 != 0)
        mend_sums(bytes, nbytes);
    return nbytes;
}

#else

#include <criterion/criterion.h>
#include <dirent.h>

/* Of the folder that the tests run in: the root of the project. */
static int replay(const char *folder)
{
    DIR *opened = opendir(folder);
    struct dirent *entry;
    int n = 0;

    while (opened && (entry = readdir(opened))) {
        char path[512];
        static uint8_t bytes[1 << 20];
        if (!strstr(entry->d_name, ".pt"))
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        FILE *file = fopen(path, "rb");
        cr_assert(file, "%s", path);
        size_t nbytes = fread(bytes, 1, sizeof bytes, file);
        cr_assert(nbytes < sizeof bytes, "%s is larger than this test reads", path);
        fclose(file);
        LLVMFuzzerTestOneInput(bytes, nbytes);
        n++;
    }
    if (opened)
        closedir(opened);
    return n;
}

Test(files, of_pytorch_keep_all_properties)
{
    cr_assert_eq(replay("tests/data/torch"), 9);
}

Test(files, of_older_pytorch_keep_all_properties)
{
    cr_assert_eq(replay("tests/data/old"), 14);
}
#endif
