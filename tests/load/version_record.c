/* SPDX-License-Identifier: BSD-3-Clause */
/* The record "version", which PyTorch needs: what it says, and files without it (Z11). */
#include "tests/support/load/archive.h"

TestSuite(version_record, .init = begin_sample, .fini = end_sample);

/* Of a rare file whose directory has the offsets, too. */
Test(version_record, a_bad_version_of_a_file_with_a_longer_record)
{
    read_file("torch/longer-record.pt");
    uint8_t *name = memmem(file, file_nbytes, "/version", 8);
    cr_assert_not_null(name);
    uint8_t *version = memmem(name, file_nbytes - (size_t)(name - file), "3\n", 2);
    cr_assert_not_null(version);
    *version = '0';
    cr_expect_lt(open_bytes(file, file_nbytes, ""), 0);
    cr_expect_not_null(strstr(error.message, "version at byte "), "%s", error.message);
}

/* PyTorch refuses them when it opens a file, whichever of the two names the record has. */
Test(version_record, versions_that_pytorch_does_not_read)
{
    static const char *const options[] = {"", "load.check=headers",
                                          "load.calculate_storage_offsets=off"};
    static const char *const names[] = {"version", ".data/version"};
    static const char *const good[] = {"1",  "3\n", "10\n", "3\r\n",   "3 \t\n\n",
                                       " 3", "+3",  "03",   "\v+0010 "};
    static const char *const bad[] = {"",
                                      "0",
                                      "11\n",
                                      "x",
                                      "-1",
                                      "3x",
                                      "3.0",
                                      "+",
                                      "++3",
                                      "0x3",
                                      "3 1",
                                      "\n",
                                      "1234567890123456"};
    static const char end[] = "is no decimal number from 1 to 10";

    remove_record("version");
    for (size_t k = 0; k < 2 * 3; k++) {
        for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
            add_text(names[k / 3], good[i]);
            build(NULL);
            expect_sample(options[k % 3]);
            remove_record(names[k / 3]);
        }
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            add_text(names[k / 3], bad[i]);
            build(NULL);
            cr_expect_eq(open_bytes(file, file_nbytes, options[k % 3]), BERTH_E_ARCHIVE, "%s",
                         bad[i]);
            cr_expect_str_eq(error.record, names[k / 3]);
            cr_expect_not_null(strstr(error.message, end), "%s", error.message);
            remove_record(names[k / 3]);
        }
    }
    add_text("version", "12345678901234567");
    build(NULL);
    cr_expect_eq(open_bytes(file, file_nbytes, ""), BERTH_E_ARCHIVE);
    cr_expect_not_null(strstr(error.message, "17 bytes are no decimal number"), "%s",
                       error.message);
}

/* With and without another record behind the storages; load.check=none looks at no directory. */
Test(version_record, archives_without_a_version)
{
    static const char *const options[] = {"", "load.check=headers", "load.check=data",
                                          "load.calculate_storage_offsets=off"};
    static const char says[] = "memory: no record 'version', which PyTorch needs";

    remove_record("version");
    for (size_t more = 0; more < 2; more++) {
        build(NULL);
        for (size_t i = 0; i < sizeof options / sizeof *options; i++)
            expect_failure(options[i], BERTH_E_ARCHIVE, says);
        expect_sample("load.check=none");
        if (more == 0)
            remove_record(".data/serialization_id");
    }
    add_text("more", "of");
    build(NULL);
    expect_failure("", BERTH_E_ARCHIVE, says);
}
