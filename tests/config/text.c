/* SPDX-License-Identifier: BSD-3-Clause */
/* Configurations as text, as code, as a hash. */
#include <berth.h>
#include <berth/config.h>
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/options.h"
#include "tests/support/support.h"

static berth_error error;

static void forget_environment(void)
{
    (void)clearenv();
    bth_config_forget_environment();
}
TestSuite(text, .init = forget_environment);

static const char changes[] =
    "debug=on\nsave.storage_alignment=4096\nload.mmap_flags=shared,populate\nload.unknown_globals="
    "inert\nio.chunk_nbytes=1000003\nio.memory_nbytes=3GiB\n";

static char *printed(const berth_config *config, berth_config_form form)
{
    static char text[4096];
    int64_t n = berth_config_print(config, form, text, sizeof text, &error);

    cr_assert_geq(n, 0, "%s", error.message);
    cr_assert_eq((size_t)n, strlen(text));
    return text;
}

static void load(const char *text)
{
    assert_ok(berth_config_parse(text, NULL, &error));
}

Test(text, of_defaults_has_nothing_changed)
{
    cr_assert_str_eq(printed(NULL, BERTH_CONFIG_CHANGED), "");
    cr_assert_str_eq(printed(NULL, BERTH_CONFIG_CODE), "");
}

Test(text, of_changes_reads_back)
{
    load(changes);
    cr_assert_str_eq(printed(NULL, BERTH_CONFIG_CHANGED), changes);
    cr_assert_eq(berth_config_reset(NULL, &error), 0);
    cr_assert_str_eq(printed(NULL, BERTH_CONFIG_CHANGED), "");
}

Test(text, in_portable_form_is_complete_and_reads_back)
{
    char portable[4096];
    size_t n_lines = 0;

    load(changes);
    strcpy(portable, printed(NULL, BERTH_CONFIG_PORTABLE));
    for (const char *at = portable; (at = strchr(at, '\n')); at++)
        n_lines++;
    cr_assert(berth_config_name(n_lines - 1) && !berth_config_name(n_lines));
    /* Whatever is set otherwise: the text brings all of it. */
    (void)setenv("BERTH_LOAD_CHECK", "data", 1);
    bth_config_forget_environment();
    cr_assert_eq(berth_config_reset(NULL, &error), 0);
    cr_assert_eq(berth_config_set("io.threads", "7", NULL, &error), 0);
    load(portable);
    cr_assert_str_eq(printed(NULL, BERTH_CONFIG_PORTABLE), portable);
}

Test(text, tells_what_is_in_force_whoever_set_it)
{
    (void)setenv("BERTH_LOAD_CHECK", "data", 1);
    (void)setenv("BERTH_FORCE_IO_THREADS", "2", 1);
    bth_config_forget_environment();
    cr_assert_eq(berth_config_set("io.threads", "7", NULL, &error), 0);
    cr_assert_eq(berth_config_patch("debug=on", &error), 0);
    cr_assert_str_eq(printed(NULL, BERTH_CONFIG_CHANGED),
                     "debug=on\nload.check=data\nio.threads=2\n");
    cr_assert_eq(berth_config_unpatch(&error), 0);
}

Test(text, of_a_file_name_comes_back_from_every_form)
{
    static const char name[] = "/tmp/a \"b\\c\" %p \xff '$x'.json";
    berth_option option;

    assert_ok(berth_config_set("trace", name, NULL, &error));
    cr_assert_str_eq(
        printed(NULL, BERTH_CONFIG_CODE),
        "berth_config_set(\"trace\", \"/tmp/a \\\"b\\\\c\\\" %p \xff '$x'.json\", NULL, "
        "&error);\n");
    const char *variable = printed(NULL, BERTH_CONFIG_VARIABLES);
    cr_assert_eq(strncmp(variable, "BERTH_TRACE=", 12), 0);
    cr_assert_eq(strncmp(variable + 12, name, strlen(name)), 0);
    static char lines[1000];
    strcpy(lines, printed(NULL, BERTH_CONFIG_PORTABLE));
    uint64_t hash = berth_config_hash(NULL, BERTH_CLASS_ALL);
    assert_ok(berth_config_set("trace", "", NULL, &error));
    cr_assert_neq(berth_config_hash(NULL, BERTH_CLASS_ALL), hash);
    load(lines);
    assert_ok(berth_config_describe(NULL, "trace", &option, &error));
    cr_assert_str_eq(option.text, name);
    cr_assert_eq(berth_config_hash(NULL, BERTH_CLASS_ALL), hash);
}

Test(text, as_code_makes_the_same_changes)
{
    berth_config *config = berth_config_new(&error);

    cr_assert_eq(berth_config_apply(config, "save.method=buffered io.chunk_nbytes=64K", &error), 0);
    cr_assert_str_eq(printed(config, BERTH_CONFIG_CODE),
                     "berth_config_set(\"save.method\", \"buffered\", NULL, "
                     "&error);\nberth_config_set(\"io.chunk_nbytes\", \"64KiB\", NULL, &error);\n");
    berth_config_free(config);
}

Test(text, that_does_not_fit_is_counted_and_cut)
{
    char few[6] = "xxxxx", none[1] = "x";
    berth_config *config = berth_config_new(&error);

    cr_assert_eq(berth_config_apply(config, "debug=on io.threads=3", &error), 0);
    cr_assert_eq(berth_config_print(config, BERTH_CONFIG_CHANGED, few, sizeof few, &error), 22);
    cr_assert_str_eq(few, "debug");
    cr_assert_eq(berth_config_print(config, BERTH_CONFIG_CHANGED, none, 1, &error), 22);
    cr_assert_str_eq(none, "");
    cr_assert_eq(berth_config_print(config, BERTH_CONFIG_CHANGED, NULL, 0, &error), 22);
    cr_assert_eq(berth_config_print(config, (berth_config_form)9, NULL, 0, &error),
                 BERTH_E_ARGUMENT);
    cr_assert_str_eq(error.message, "a configuration cannot be printed in form 9");
    berth_config_free(config);
}

Test(text, may_have_comments_and_room)
{
    load("# by hand\n\n  io.threads = 3   # three\r\n\tload.mmap=off");
    cr_assert_str_eq(printed(NULL, BERTH_CONFIG_CHANGED), "load.mmap=off\nio.threads=3\n");
    load("");
    cr_assert_str_eq(printed(NULL, BERTH_CONFIG_CHANGED), "load.mmap=off\nio.threads=3\n");
}

Test(text, that_is_bad_names_its_line_and_changes_nothing)
{
    static const char *const rows[][2] = {
        {"io.threads=3\nload.mmap", "load.mmap: not of the form name=value (in line 2)"},
        {"io.threads=3\nload.mmap=#off",
         "load.mmap = : must be off | on, or 0 | 1, false | true, no | yes (in line 2)"}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_assert_eq(berth_config_parse(rows[i][0], NULL, &error), BERTH_E_OPTION);
        cr_assert_str_eq(error.message, rows[i][1]);
        cr_assert_str_eq(printed(NULL, BERTH_CONFIG_CHANGED), "");
    }
    cr_assert_eq(berth_config_parse(NULL, NULL, &error), BERTH_E_ARGUMENT);
}

static char logged[400];

static void log_line(void *context, const char *message)
{
    (void)context;
    (void)snprintf(logged + strlen(logged), sizeof logged - strlen(logged), "%s\n", message);
}

Test(text, of_another_version_is_read_without_what_is_unknown)
{
    berth_set_log(log_line, NULL);
    load("io.threads=3\nio.treads=4\nnew.option=x\nload.mmap=off\n");
    cr_assert_str_eq(printed(NULL, BERTH_CONFIG_CHANGED), "load.mmap=off\nio.threads=3\n");
    cr_assert_str_eq(logged, "io.treads: no such option; the nearest is io.threads; it is skipped "
                             "(in line 2)\nnew.option: no such option; it is skipped (in line "
                             "3)\n");
}

Test(text, as_variables_makes_a_child_the_same)
{
    (void)setenv("BERTH_LOAD_CHECK", "data", 1);
    bth_config_forget_environment();
    load("load.check=directory\nload.mmap_flags=shared,populate\n");
    cr_assert_str_eq(printed(NULL, BERTH_CONFIG_VARIABLES),
                     "BERTH_LOAD_CHECK=directory\nBERTH_LOAD_MMAP_FLAGS=shared,populate\n");
}

Test(text, has_a_hash_of_each_class)
{
    static const struct {
        const char *assignment;
        uint32_t changed;
    } rows[] = {{"save.storage_alignment=4096", BERTH_CLASS_BYTES},
                {"load.check=data", BERTH_CLASS_ACCEPTANCE},
                {"io.threads=3", BERTH_CLASS_SPEED},
                {"load.calculate_storage_offsets=off", BERTH_CLASS_ACCEPTANCE | BERTH_CLASS_SPEED}};
    static const uint32_t classes[] = {BERTH_CLASS_BYTES, BERTH_CLASS_ACCEPTANCE, BERTH_CLASS_SPEED,
                                       BERTH_CLASS_ALL};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t k = 0; k < sizeof classes / sizeof *classes; k++) {
            berth_config *config = berth_config_new(&error);
            cr_assert_eq(berth_config_apply(config, rows[i].assignment, &error), 0);
            cr_assert_eq(berth_config_hash(config, classes[k]) !=
                             berth_config_hash(NULL, classes[k]),
                         (rows[i].changed & classes[k]) != 0, "%s", rows[i].assignment);
            berth_config_free(config);
        }
}

Test(text, has_a_hash_that_stays)
{
    berth_config *a = berth_config_new(&error), *b = berth_config_new(&error);
    uint64_t hash = UINT64_C(0xCBF29CE484222325);

    /* Changes only with options.def. */
    cr_assert_eq(berth_config_hash(a, BERTH_CLASS_ALL), UINT64_C(0x48BA76E4B63C301D), "%#llx",
                 (unsigned long long)berth_config_hash(a, BERTH_CLASS_ALL));
    for (const char *at = printed(a, BERTH_CONFIG_PORTABLE); *at; at++)
        hash = (hash ^ (unsigned char)*at) * UINT64_C(0x100000001B3);
    cr_assert_eq(berth_config_hash(a, BERTH_CLASS_ALL), hash, "FNV-1a of the portable text");
    cr_assert_eq(berth_config_hash(NULL, BERTH_CLASS_ALL), hash);
    cr_assert_eq(berth_config_apply(b, "io.threads=1", &error), 0);
    cr_assert_neq(berth_config_hash(b, BERTH_CLASS_ALL), hash);
    cr_assert_eq(berth_config_apply(b, "io.threads=0", &error), 0);
    cr_assert_eq(berth_config_hash(b, BERTH_CLASS_ALL), hash);
    berth_config_free(a);
    berth_config_free(b);
}
