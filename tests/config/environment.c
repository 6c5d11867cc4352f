/* SPDX-License-Identifier: BSD-3-Clause */
/* Unknown names in the environment, and the file that BERTH_CONFIG names. */
#include <berth.h>
#include <berth/config.h>
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/options.h"
#include "tests/support/support.h"

static berth_error error;

static void forget_environment(void)
{
    (void)clearenv();
    bth_config_forget_environment();
}
TestSuite(environment, .init = forget_environment);

static void variable(const char *name, const char *value)
{
    (void)setenv(name, value, 1);
    bth_config_forget_environment();
}

static void expect(const char *name, const char *value, const char *source)
{
    berth_option option;

    assert_ok(berth_config_describe(NULL, name, &option, &error));
    cr_assert_str_eq(option.value, value);
    cr_assert_str_eq(option.source, source);
}

static void set(const char *name, const char *value)
{
    assert_ok(berth_config_set(name, value, NULL, &error));
}

/* The log, one line after another. */
static char logged[2000];

static void log_line(void *context, const char *message)
{
    berth_option option;

    (void)context;
    cr_assert_eq(berth_config_describe(NULL, "debug", &option, NULL), 0, "the log may use options");
    strncat(logged, message, sizeof logged - strlen(logged) - 2);
    strcat(logged, "\n");
}

static void expect_logged(const char *lines)
{
    cr_assert_str_eq(logged, lines);
    logged[0] = '\0';
}

Test(environment, with_an_unknown_name_is_logged_once_and_ignored)
{
    static const char *const names[] = {"BERTH_LOAD_",  "BERTH_DEVICE_X",       "BERTH_FORCE_X",
                                        "BERTH_FORCE_", "BERTH_IO_QUEUE_DEPTH", "BERTH_FORCE_a.b"};
    char sentence[100];

    berth_set_log(log_line, NULL);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        forget_environment();
        variable(names[i], "1");
        expect("io.threads", "0", "default");
        expect("io.threads", "0", "default");
        (void)snprintf(sentence, sizeof sentence,
                       "%s in the environment: no such option; it is ignored\n", names[i]);
        expect_logged(sentence);
    }
}

Test(environment, with_many_unknown_names_logs_some)
{
    char name[40];

    berth_set_log(log_line, NULL);
    for (int i = 0; i < 20; i++) {
        (void)snprintf(name, sizeof name, "BERTH_DEVICE_%d", i);
        variable(name, "1");
    }
    expect("io.threads", "0", "default");
    cr_assert(strstr(logged, "12 more remarks about options are left out\n"), "%s", logged);
}

/* ---- the file that BERTH_CONFIG names ---- */

static const char config_path[] = "options.conf";

static void config_file(const char *bytes, size_t nbytes)
{
    FILE *file = fopen(config_path, "wb");

    cr_assert(file && fwrite(bytes, 1, nbytes, file) == nbytes && fclose(file) == 0);
    variable("BERTH_CONFIG", config_path);
}

Test(environment, names_a_file_of_options)
{
    static const char text[] = "# ours\nio.threads = 3\nload.mmap=off\nio.threads=4 # later\n"
                               "io.treads=9\nfuture.option=1\n";

    char *folder = test_folder_new();

    cr_assert_eq(chdir(folder), 0);
    berth_set_log(log_line, NULL);
    variable("BERTH_LOAD_MMAP", "on");
    config_file(text, sizeof text - 1);
    expect("io.threads", "4", "file options.conf:4");
    expect("load.mmap", "on", "environment BERTH_LOAD_MMAP");
    expect_logged("io.treads: no such option; the nearest is io.threads; it is skipped (in line 5 "
                  "of options.conf)\n"
                  "future.option: no such option; it is skipped (in line 6 of options.conf)\n");
    set("io.threads", "5");
    expect("io.threads", "5", "program");
    variable("BERTH_CONFIG", "");
    cr_assert_eq(berth_config_reset(NULL, &error), 0);
    expect("io.threads", "0", "default");
    test_folder_remove(folder);
}

static void expect_file_to_fail(int code, const char *bytes, size_t nbytes, const char *sentence)
{
    config_file(bytes, nbytes);
    cr_assert_null(berth_config_new(&error));
    cr_assert_eq(error.code, code, "%s", error.message);
    cr_assert_str_eq(error.message, sentence);
}

Test(environment, with_a_bad_file_fails_by_its_name_and_line)
{
    static char large[(1 << 20) + 1];

    char *folder = test_folder_new();

    cr_assert_eq(chdir(folder), 0);
    expect_file_to_fail(BERTH_E_OPTION, "debug=on\n\nload.mmap=2\n", 22,
                        "BERTH_CONFIG in the environment: load.mmap = 2: must be off | on, or 0 | "
                        "1, false | true, no | yes (in line 3 of options.conf)");
    expect("debug", "on", "file options.conf:1");
    expect_file_to_fail(BERTH_E_OPTION, "debug", 5,
                        "BERTH_CONFIG in the environment: debug: not of the form name=value (in "
                        "line 1 of options.conf)");
    expect_file_to_fail(BERTH_E_OPTION, "debug=on\0", 9,
                        "BERTH_CONFIG in the environment: options.conf: byte 8 is zero, so it is "
                        "no text");
    memset(large, '\n', sizeof large);
    expect_file_to_fail(BERTH_E_OPTION, large, sizeof large,
                        "BERTH_CONFIG in the environment: options.conf: larger than 1 MiB, so it "
                        "holds no options");
    variable("BERTH_CONFIG", "absent.conf");
    cr_assert_null(berth_config_new(&error));
    cr_assert_eq(error.code, BERTH_E_NOT_FOUND);
    cr_assert_str_eq(error.message, "BERTH_CONFIG in the environment: absent.conf: cannot be "
                                    "opened: No such file or directory");
    variable("BERTH_CONFIG", ".");
    cr_assert_null(berth_config_new(&error));
    cr_assert_eq(error.code, BERTH_E_SYSTEM);
    cr_assert_str_eq(error.message, "BERTH_CONFIG in the environment: .: cannot be read: Is a "
                                    "directory");
    test_folder_remove(folder);
}
