/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/format/zip_builder.h"
#include <criterion/criterion.h>

void expect_refused(test_zip zip, int code, const char *sentence)
{
    bth_zip_directory directory;
    berth_error error;
    int result = test_zip_read(&zip, 0, &directory, &error);

    cr_expect_eq(result, code, "%s instead of %s", berth_status_name(result),
                 berth_status_name(code));
    cr_expect_str_eq(error.message, sentence, "says\n  %s\ninstead of\n  %s", error.message,
                     sentence);
    bth_zip_free_directory(&directory);
    test_zip_free(&zip);
}

void expect_read(test_zip zip, size_t n_entries)
{
    bth_zip_directory directory;
    berth_error error;
    int result = test_zip_read(&zip, 0, &directory, &error);

    cr_expect_eq(result, 0, "%s", error.message);
    cr_expect_eq(directory.n_entries, n_entries, "%zu records", directory.n_entries);
    bth_zip_free_directory(&directory);
    test_zip_free(&zip);
}
