/* SPDX-License-Identifier: BSD-3-Clause */
/* Which layer wins, what an operation gets, and what a bad variable does. */
#include <berth.h>
#include <berth/config.h>
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/option_row.h"
#include "config/options.h"
#include "tests/support/support.h"

static berth_error error;

static void forget_environment(void)
{
    (void)clearenv();
    bth_config_forget_environment();
}
TestSuite(layers, .init = forget_environment);
TestSuite(variables, .init = forget_environment);
TestSuite(patches, .init = forget_environment);

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

static void patch(const char *assignments)
{
    assert_ok(berth_config_patch(assignments, &error));
}

static void unpatch(void)
{
    assert_ok(berth_config_unpatch(&error));
}

/* ---- precedence ---- */

Test(layers, each_wins_over_those_below_it)
{
    expect("io.threads", "0", "default");
    variable("BERTH_IO_THREADS", "1");
    expect("io.threads", "1", "environment BERTH_IO_THREADS");
    set("io.threads", "2");
    expect("io.threads", "2", "program");
    patch("io.threads=3");
    expect("io.threads", "3", "patch");
    variable("BERTH_FORCE_IO_THREADS", "4");
    expect("io.threads", "4", "force BERTH_FORCE_IO_THREADS");

    (void)unsetenv("BERTH_FORCE_IO_THREADS");
    bth_config_forget_environment();
    expect("io.threads", "3", "patch");
    unpatch();
    expect("io.threads", "2", "program");
    cr_assert_eq(berth_config_reset("io.threads", &error), 0);
    expect("io.threads", "1", "environment BERTH_IO_THREADS");
}

Test(layers, reset_of_one_leaves_the_others)
{
    set("io.threads", "2");
    set("load.mmap", "off");
    cr_assert_eq(berth_config_reset("io.threads", &error), 0);
    expect("io.threads", "0", "default");
    expect("load.mmap", "off", "program");
    cr_assert_eq(berth_config_reset(NULL, &error), 0);
    expect("load.mmap", "on", "default");
}

Test(layers, a_value_equal_to_the_default_is_still_set)
{
    variable("BERTH_LOAD_MMAP", "0");
    set("load.mmap", "on");
    expect("load.mmap", "on", "program");
}

Test(layers, an_alias_stands_for_its_target_everywhere)
{
    set("crc32_options", "off");
    expect("save.compute_crc32", "off", "program");
    expect("crc32_options", "off", "program");
    patch("default_load_endianness=big");
    expect("load.endianness", "big", "patch");
    variable("BERTH_DEFAULT_MMAP_OPTIONS", "shared");
    expect("load.mmap_flags", "shared", "environment BERTH_DEFAULT_MMAP_OPTIONS");
    variable("BERTH_FORCE_CRC32_OPTIONS", "1");
    expect("crc32_options", "on", "force BERTH_FORCE_CRC32_OPTIONS");
    cr_assert_eq(berth_config_reset("crc32_options", &error), 0);
}

Test(layers, pytorch_s_older_setters_set_what_they_became)
{
    cr_assert_eq(berth_set_crc32_options(false, &error), 0);
    expect("save.compute_crc32", "off", "program");
    cr_assert_eq(berth_set_default_mmap_options("shared", &error), 0);
    expect("load.mmap_flags", "shared", "program");
    cr_assert_eq(berth_set_default_load_endianness("native", &error), 0);
    expect("load.endianness", "native", "program");
    cr_assert_eq(berth_set_default_load_endianness("middle", &error), BERTH_E_OPTION);
    cr_assert_str_eq(
        error.message,
        "load.endianness = middle: must be native | little | big (set by the program)");
}

/* ---- what an operation gets ---- */

Test(layers, an_operation_gets_one_snapshot)
{
    struct berth_config config;

    set("io.threads", "2");
    cr_assert_eq(bth_config_copy_for_operation(NULL, &config, &error), 0);
    set("io.threads", "3");
    cr_assert_eq(config.io_threads, 2);
}

Test(layers, debug_raises_the_check_to_headers_and_never_lowers_it)
{
    struct berth_config config;

    set("load.check", "none");
    cr_assert_eq(bth_config_copy_for_operation(NULL, &config, &error), 0);
    cr_assert_eq(config.load_check, BTH_CHECK_NONE);
    set("debug", "on");
    cr_assert_eq(bth_config_copy_for_operation(NULL, &config, &error), 0);
    cr_assert_eq(config.load_check, BTH_CHECK_HEADERS);
    expect("load.check", "none", "program");
    set("load.check", "data");
    cr_assert_eq(bth_config_copy_for_operation(NULL, &config, &error), 0);
    cr_assert_eq(config.load_check, BTH_CHECK_DATA);
}

Test(layers, a_call_may_bring_its_own)
{
    struct berth_config config;

    set("io.threads", "2");
    berth_config *own = berth_config_new(&error);
    cr_assert_eq(berth_config_apply(own, "load.check=none crc32_options=off", &error), 0);
    set("io.threads", "5");
    patch("load.check=data");
    cr_assert_eq(bth_config_copy_for_operation(&(berth_params){.config = own}, &config, &error), 0);
    cr_assert_eq(config.load_check, BTH_CHECK_NONE);
    cr_assert_eq(config.save_compute_crc32, 0);
    cr_assert_eq(config.io_threads, 2, "a copy of what was in force");
    cr_assert_eq(bth_config_copy_for_operation(&(berth_params){.config = NULL}, &config, &error),
                 0);
    cr_assert_eq(config.io_threads, 5);
    variable("BERTH_FORCE_IO_THREADS", "7");
    cr_assert_eq(bth_config_copy_for_operation(&(berth_params){.config = own}, &config, &error), 0);
    cr_assert_eq(config.io_threads, 7, "forced wins over everything");
    cr_assert_eq(config.load_check, BTH_CHECK_NONE);
    berth_config_free(own);
}

Test(layers, one_s_own_configuration_is_changed_all_or_nothing)
{
    struct berth_config config;
    berth_config *own = berth_config_new(&error);

    cr_assert_eq(berth_config_apply(own, "io.threads=3 io.chunk_nbytes=2GiB", &error),
                 BERTH_E_OPTION);
    cr_assert_str_eq(error.message,
                     "io.chunk_nbytes = 2GiB: must be 0 to 1GiB, 0: measured, written as 4096, "
                     "64KiB or 4GB (in a configuration of its own)");
    error = (berth_error){0};
    cr_assert_eq(bth_config_copy_for_operation(&(berth_params){.config = own}, &config, &error), 0);
    cr_assert_eq(config.io_threads, 0);
    cr_assert_eq(berth_config_apply(NULL, "debug=on", &error), BERTH_E_ARGUMENT);
    berth_config_free(own);
    berth_config_free(NULL);
}

/* ---- the environment ---- */

Test(variables, is_read_once)
{
    expect("io.threads", "0", "default");
    (void)setenv("BERTH_IO_THREADS", "5", 1);
    expect("io.threads", "0", "default");
    bth_config_forget_environment();
    expect("io.threads", "5", "environment BERTH_IO_THREADS");
}

Test(variables, has_a_name_for_every_option)
{
    berth_option option;
    char name[80], forced[80], source[100];

    for (size_t i = 0; berth_config_name(i); i++) {
        cr_assert_eq(berth_config_describe(NULL, berth_config_name(i), &option, &error), 0);
        (void)snprintf(name, sizeof name, "BERTH_%s", option.name);
        (void)snprintf(forced, sizeof forced, "BERTH_FORCE_%s", option.name);
        for (char *c = name; *c; c++)
            *c = *c == '.' ? '_' : (char)(*c >= 'a' && *c <= 'z' ? *c - 32 : *c);
        for (char *c = forced; *c; c++)
            *c = *c == '.' ? '_' : (char)(*c >= 'a' && *c <= 'z' ? *c - 32 : *c);
        variable(name, option.initial);
        (void)snprintf(source, sizeof source, "environment %s", name);
        expect(option.name, option.initial, source);
        variable(forced, option.initial);
        (void)snprintf(source, sizeof source, "force %s", forced);
        expect(option.name, option.initial, source);
    }
}

Test(variables, turns_debug_on_by_either_name)
{
    variable("TORCH_SERIALIZATION_DEBUG", "1");
    expect("debug", "on", "environment TORCH_SERIALIZATION_DEBUG");
    variable("BERTH_SERIALIZATION_DEBUG", "0");
    expect("debug", "off", "environment BERTH_SERIALIZATION_DEBUG");
    variable("BERTH_DEBUG", "1");
    expect("debug", "on", "environment BERTH_DEBUG");
    variable("BERTH_FORCE_SERIALIZATION_DEBUG", "off");
    expect("debug", "off", "force BERTH_FORCE_SERIALIZATION_DEBUG");
}

Test(variables, of_pytorch_counts_only_where_it_is_1)
{
    static const char *const others[] = {"", "0", "2", "01", "1 ", "on", "true", "maybe", "1\n"};

    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        forget_environment();
        variable("TORCH_SERIALIZATION_DEBUG", others[i]);
        expect("debug", "off", "default");
    }
}

Test(variables, of_two_names_the_option_s_own_wins)
{
    /* In both orders, as the order of variables is anyone's. */
    variable("BERTH_CRC32_OPTIONS", "on");
    variable("BERTH_SAVE_COMPUTE_CRC32", "off");
    expect("save.compute_crc32", "off", "environment BERTH_SAVE_COMPUTE_CRC32");
    forget_environment();
    variable("BERTH_SAVE_COMPUTE_CRC32", "off");
    variable("BERTH_CRC32_OPTIONS", "on");
    expect("save.compute_crc32", "off", "environment BERTH_SAVE_COMPUTE_CRC32");
}

static void expect_every_operation_to_fail(int code, const char *sentence)
{
    struct berth_config config;
    berth_option option;

    variable("BERTH_IO_THREADS", "7");
    for (int round = 0; round < 2; round++) {
        cr_assert_eq(bth_config_copy_for_operation(NULL, &config, &(berth_error){0}), code);
        berth_error asked = {0};
        (void)bth_config_copy_for_operation(NULL, &config, &asked);
        cr_assert_str_eq(asked.message, sentence);
        cr_assert_null(berth_config_new(&error));
        cr_assert_str_eq(error.message, sentence);
        cr_assert_eq(error.code, code);
        cr_assert_eq(berth_config_describe(NULL, "io.threads", &option, &error), 0);
        cr_assert_str_eq(option.value, "7", "what is valid is shown");
        cr_assert_eq(berth_config_print(NULL, BERTH_CONFIG_PORTABLE, NULL, 0, &error), code);
        cr_assert_str_eq(error.message, sentence);
        cr_assert_eq(berth_config_hash(NULL, BERTH_CLASS_ALL), 0);
    }
}

Test(variables, with_a_bad_value_fails_by_variable_value_and_bounds)
{
    variable("BERTH_SAVE_STORAGE_ALIGNMENT", "48");
    expect_every_operation_to_fail(
        BERTH_E_OPTION, "save.storage_alignment = 48: must be 1 to 32768, a power of two, written "
                        "as 64, 512 or 4KiB (BERTH_SAVE_STORAGE_ALIGNMENT in the environment)");
    forget_environment();
    variable("BERTH_FORCE_LOAD_CHECK", "");
    expect_every_operation_to_fail(BERTH_E_OPTION,
                                   "load.check = : must be none | directory | headers | data "
                                   "(BERTH_FORCE_LOAD_CHECK in the environment)");
}

Test(variables, with_a_bad_value_of_a_name_that_does_not_count_fails_too)
{
    variable("BERTH_SAVE_COMPUTE_CRC32", "off");
    variable("BERTH_CRC32_OPTIONS", "perhaps");
    expect_every_operation_to_fail(
        BERTH_E_OPTION, "save.compute_crc32 = perhaps: must be off | on, or 0 | 1, false | true, "
                        "no | yes (BERTH_CRC32_OPTIONS in the environment)");
}

Test(variables, with_a_mistyped_name_fails)
{
    static const char *const names[][2] = {{"BERTH_SAVE_METOD", "BERTH_SAVE_METHOD"},
                                           {"BERTH_IO_THREAD", "BERTH_IO_THREADS"},
                                           {"BERTH_SAVE_METHOD_", "BERTH_SAVE_METHOD"},
                                           {"BERTH_FORCE_IO_TREADS", "BERTH_FORCE_IO_THREADS"},
                                           {"BERTH_FORCE_LAOD_MMAP", "BERTH_FORCE_LOAD_MMAP"}};
    char sentence[200];

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        forget_environment();
        variable(names[i][0], "auto");
        (void)snprintf(sentence, sizeof sentence,
                       "%s in the environment: no such option; the nearest is %s", names[i][0],
                       names[i][1]);
        expect_every_operation_to_fail(BERTH_E_OPTION, sentence);
    }
}

Test(variables, of_others_is_left_alone)
{
    variable("BERTH_HOME", "x");
    variable("BERTH", "x");
    variable("BERTHA_SAVE_METHOD", "x");
    variable("TORCH_SERIALIZATION_DEBUGGER", "x");
    variable("SAVE_METHOD", "x");
    expect("save.method", "auto", "default");
}

/* ---- patches ---- */

Test(patches, nest)
{
    patch("io.threads=1 load.mmap=off");
    patch("  io.threads=2\n");
    expect("io.threads", "2", "patch");
    expect("load.mmap", "off", "patch");
    patch("");
    unpatch();
    unpatch();
    expect("io.threads", "1", "patch");
    unpatch();
    expect("io.threads", "0", "default");
    expect("load.mmap", "on", "default");
}

Test(patches, take_what_is_set_inside_them_and_undo_it)
{
    set("io.threads", "1");
    patch("io.threads=2");
    set("io.threads", "3");
    expect("io.threads", "3", "patch");
    set("io.threads", "4");
    expect("io.threads", "4", "patch");
    cr_assert_eq(berth_config_parse("io.threads=5\nload.mmap=off\n", NULL, &error), 0);
    expect("io.threads", "5", "patch");
    expect("load.mmap", "off", "program");
    unpatch();
    expect("io.threads", "1", "program");
    expect("load.mmap", "off", "program");
}

Test(program, says_where_it_has_a_value_from)
{
    char source[] = "--set";

    cr_assert_eq(berth_config_set("io.threads", "3", source, &error), 0);
    memset(source, 'x', sizeof source - 1); /* the library has copied it */
    cr_assert_eq(berth_config_parse("load.mmap=on\n", "file x.conf", &error), 0);
    expect("io.threads", "3", "--set");
    expect("load.mmap", "on", "file x.conf"); /* also of a value that is the default */
    cr_assert_eq(berth_config_set("io.threads", "3", NULL, &error), 0);
    expect("io.threads", "3", "program");
    cr_assert_eq(berth_config_set("io.threads", "x", "--set", &error), BERTH_E_OPTION);
    cr_assert(strstr(error.message, "(--set)"), "%s", error.message);
    patch("load.mmap=off");
    expect("load.mmap", "off", "patch");
    cr_assert_eq(berth_config_set("load.mmap", "on", "--set", &error), 0);
    expect("load.mmap", "on", "patch");
    unpatch();
    expect("load.mmap", "on", "file x.conf");
    cr_assert_eq(berth_config_reset(NULL, &error), 0);
    expect("load.mmap", "on", "default");
}

/* A source for each step would take all texts that options can have. */
Test(program, keeps_so_many_different_sources)
{
    char source[32];

    cr_assert_eq(berth_config_set("load.mmap", "off", "--set", &error), 0);
    for (int i = 0; i < 5000; i++) {
        (void)snprintf(source, sizeof source, "step %d", i);
        cr_assert_eq(berth_config_set("io.threads", "3", source, &error), 0);
        if (i == 1000)
            expect("io.threads", "3", "step 1000");
    }
    expect("io.threads", "3", "program");
    cr_assert_eq(berth_config_parse("io.threads=4", "--set", &error), 0);
    expect("io.threads", "4", "--set");
    cr_assert_lt(bth_option_count_texts(), 5000);
}

Test(patches, take_it_where_they_have_the_option)
{
    patch("io.threads=1 load.check=none");
    patch("load.mmap=off");
    patch("load.check=data");
    set("io.threads", "2");
    set("load.check", "headers");
    expect("io.threads", "2", "patch");
    expect("load.check", "headers", "patch");
    unpatch();
    expect("load.check", "none", "patch");
    unpatch();
    expect("io.threads", "2", "patch");
    unpatch();
    expect("io.threads", "0", "default");
    expect("load.check", "directory", "default");
}

Test(patches, are_reset_inside_and_undone)
{
    variable("BERTH_IO_THREADS", "6");
    set("io.threads", "1");
    set("load.mmap", "off");
    patch("io.threads=2 load.check=data");
    cr_assert_eq(berth_config_reset("io.threads", &error), 0);
    expect("io.threads", "6", "patch");
    cr_assert_eq(berth_config_reset(NULL, &error), 0);
    expect("load.check", "directory", "patch");
    expect("load.mmap", "on", "default");
    unpatch();
    expect("io.threads", "1", "program");
}

Test(patches, are_balanced)
{
    cr_assert_eq(berth_config_unpatch(&error), BERTH_E_ARGUMENT);
    cr_assert_str_eq(error.message, "this thread has no patch to undo");
    patch("debug=on");
    unpatch();
    cr_assert_eq(berth_config_unpatch(&error), BERTH_E_ARGUMENT);
}

Test(patches, are_made_all_or_nothing)
{
    static const char *const rows[][2] = {
        {"io.threads=3 io.treads=4",
         "io.treads: no such option; the nearest is io.threads (in a patch)"},
        {"io.threads=3 load.mmap", "load.mmap: not of the form name=value (in a patch)"},
        {"io.threads=3 load.mmap=",
         "load.mmap = : must be off | on, or 0 | 1, false | true, no | yes (in a patch)"},
        {"io.threads=3 load.mmap = on", "load.mmap: not of the form name=value (in a patch)"},
        {"io.threads=3 =", ": no such option (in a patch)"}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_assert_eq(berth_config_patch(rows[i][0], &error), BERTH_E_OPTION);
        cr_assert_str_eq(error.message, rows[i][1]);
        expect("io.threads", "0", "default");
        cr_assert_eq(berth_config_unpatch(&error), BERTH_E_ARGUMENT, "nothing to undo");
    }
    cr_assert_eq(berth_config_patch(NULL, &error), BERTH_E_ARGUMENT);
}

Test(patches, that_find_no_memory_change_nothing)
{
    patch("io.threads=1");
    test_memory_watch();
    test_memory_refuse(1, true);
    cr_assert_eq(berth_config_patch("io.threads=2", &error), BERTH_E_MEMORY);
    test_memory_unwatch();
    expect("io.threads", "1", "patch");
    unpatch();
    expect("io.threads", "0", "default");
}

static void *look_and_leave_patches(void *context)
{
    bool *is_as_expected = context;
    berth_option option;
    berth_error own;

    *is_as_expected = berth_config_unpatch(&own) == BERTH_E_ARGUMENT &&
                      berth_config_describe(NULL, "io.threads", &option, &own) == 0 &&
                      strcmp(option.value, "9") == 0 && strcmp(option.source, "program") == 0;
    for (int i = 0; i < 3; i++)
        *is_as_expected &= berth_config_patch("io.threads=5", &own) == 0;
    return NULL;
}

Test(patches, belong_to_their_thread_and_end_with_it)
{
    pthread_t thread;
    bool is_as_expected = false;

    set("io.threads", "9");
    test_memory_watch();
    patch("io.threads=1");
    cr_assert_eq(pthread_create(&thread, NULL, look_and_leave_patches, &is_as_expected), 0);
    (void)pthread_join(thread, NULL);
    cr_assert(is_as_expected);
    expect("io.threads", "1", "patch");
    unpatch();
    cr_assert_eq(test_memory_seen().n_allocations, 4);
    cr_assert_eq(test_memory_seen().live_nbytes, 0, "what the thread left is freed");
    test_memory_unwatch();
}
