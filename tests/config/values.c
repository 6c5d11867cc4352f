/* SPDX-License-Identifier: BSD-3-Clause */
/* What each option takes, and the sentences for what it does not take. */
#include <berth.h>
#include <berth/config.h>
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "config/options.h"
#include "tests/support/support.h"

static void forget_environment(void)
{
    (void)clearenv();
}
TestSuite(values, .init = forget_environment);

static berth_error error;

static const char *got(const char *name)
{
    static berth_option option;

    assert_ok(berth_config_describe(NULL, name, &option, &error));
    return option.value;
}

static void expect_set(const char *name, const char *value, const char *printed)
{
    assert_ok(berth_config_set(name, value, NULL, &error));
    cr_assert_str_eq(got(name), printed);
}

static void expect_code(int code, const char *name, const char *value, const char *sentence)
{
    char before[64];

    strcpy(before, got(name));
    cr_assert_eq(berth_config_set(name, value, NULL, &error), code);
    cr_assert_str_eq(error.message, sentence);
    cr_assert_str_eq(got(name), before);
}

static void expect_refused(const char *name, const char *value, const char *sentence)
{
    expect_code(BERTH_E_OPTION, name, value, sentence);
}

Test(values, bools_have_many_spellings)
{
    static const char *const on[] = {"on", "1", "true", "True", "yes", "ON"};
    static const char *const off[] = {"off", "0", "false", "False", "no"};

    for (size_t i = 0; i < sizeof on / sizeof *on; i++)
        expect_set("debug", on[i], "on");
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        expect_set("load.mmap", off[i], "off");
    expect_refused(
        "load.mmap", "",
        "load.mmap = : must be off | on, or 0 | 1, false | true, no | yes (set by the program)");
    expect_refused(
        "load.mmap", "2",
        "load.mmap = 2: must be off | on, or 0 | 1, false | true, no | yes (set by the program)");
}

Test(values, enums_take_their_choices_only)
{
    expect_set("save.durability", "none", "none");
    expect_set("save.durability", "file", "file");
    expect_refused("save.durability", "ful",
                   "save.durability = ful: must be none | file | full (set by the program)");
    expect_refused("save.durability", "fulll",
                   "save.durability = fulll: must be none | file | full (set by the program)");
    expect_refused("save.durability", "|",
                   "save.durability = |: must be none | file | full (set by the program)");
}

Test(values, numbers_are_bounded)
{
    expect_set("io.threads", "0", "0");
    expect_set("io.threads", "1024", "1024");
    expect_refused(
        "io.threads", "1025",
        "io.threads = 1025: must be 0 to 1024, 0: measured, in digits (set by the program)");
    expect_refused(
        "io.threads", "-1",
        "io.threads = -1: must be 0 to 1024, 0: measured, in digits (set by the program)");
    expect_refused(
        "io.threads", "1K",
        "io.threads = 1K: must be 0 to 1024, 0: measured, in digits (set by the program)");
    expect_refused(
        "io.threads", "1 ",
        "io.threads = 1 : must be 0 to 1024, 0: measured, in digits (set by the program)");
}

Test(values, of_alignments_are_powers_of_two)
{
    for (int alignment = 1; alignment <= 32768; alignment *= 2) {
        char text[12];
        (void)snprintf(text, sizeof text, "%d", alignment);
        expect_set("save.storage_alignment", text, text);
    }
    expect_set("save.storage_alignment", "4096", "4096");
    expect_set("save.storage_alignment", "4KiB", "4096");
    expect_refused("save.storage_alignment", "48",
                   "save.storage_alignment = 48: must be 1 to 32768, a power of two, written as "
                   "64, 512 or 4KiB (set by the program)");
    expect_refused("save.storage_alignment", "0",
                   "save.storage_alignment = 0: must be 1 to 32768, a power of two, written as "
                   "64, 512 or 4KiB (set by the program)");
    expect_refused("save.storage_alignment", "65536",
                   "save.storage_alignment = 65536: must be 1 to 32768, a power of two, written as "
                   "64, 512 or 4KiB (set by the program)");
}

Test(values, of_bytes_have_units)
{
    expect_set("io.chunk_nbytes", "1", "1");
    expect_set("io.chunk_nbytes", "1024", "1KiB");
    expect_set("io.chunk_nbytes", "3K", "3KiB");
    expect_set("io.chunk_nbytes", "3KiB", "3KiB");
    expect_set("io.chunk_nbytes", "1536K", "1536KiB");
    expect_set("io.chunk_nbytes", "2M", "2MiB");
    expect_set("io.chunk_nbytes", "2MiB", "2MiB");
    expect_set("io.chunk_nbytes", "1G", "1GiB");
    expect_set("io.memory_nbytes", "7GiB", "7GiB");
    expect_set("io.memory_nbytes", "1500", "1500");
    expect_set("io.memory_nbytes", "4GB", "3906250KiB");
    expect_set("io.memory_nbytes", "4GiB", "4GiB");
    expect_set("io.memory_nbytes", "4gb", "3906250KiB");
    expect_set("io.memory_nbytes", "2kb", "2000");
    expect_set("io.memory_nbytes", "2t", "2TiB");
    expect_set("io.memory_nbytes", "1TB", "976562500KiB");
    expect_set("io.memory_nbytes", "512B", "512");
}

Test(values, of_bytes_that_wrap_are_refused)
{
    static const char *const texts[] = {"18446744073709551616",
                                        "18446744073709551617",
                                        "36893488147419103240",
                                        "18014398509481984K",
                                        "17179869184GiB",
                                        "17179869185G",
                                        "9223372036854775808",
                                        "1T",
                                        "1KBB",
                                        "KiB",
                                        "0x10",
                                        "1.5M",
                                        "1 M"};
    char sentence[300];

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        (void)snprintf(sentence, sizeof sentence,
                       "io.chunk_nbytes = %s: must be 0 to 1GiB, 0: measured, written as 4096, "
                       "64KiB or 4GB (set by the program)",
                       texts[i]);
        expect_refused("io.chunk_nbytes", texts[i], sentence);
    }
}

Test(values, of_flags_are_joined)
{
    expect_set("load.mmap_flags", "shared", "shared");
    expect_set("load.mmap_flags", "populate", "private,populate");
    expect_set("load.mmap_flags", "private,populate", "private,populate");
    expect_set("load.mmap_flags", "shared|populate", "shared,populate");
    expect_set("load.mmap_flags", "populate+shared", "shared,populate");
    expect_set("load.mmap_flags", "private", "private");
    expect_refused("load.mmap_flags", "private,shared",
                   "load.mmap_flags = private,shared: must be private | shared | populate | huge, "
                   "joined by commas (set by the program)");
    expect_refused("load.mmap_flags", "shared,",
                   "load.mmap_flags = shared,: must be private | shared | populate | huge, joined "
                   "by commas (set by the program)");
}

Test(values, are_shown_as_integers_too)
{
    static const struct {
        const char *name, *text;
        int64_t number;
    } rows[] = {{"debug", "on", 1},
                {"load.check", "data", BTH_CHECK_DATA},
                {"load.mmap_flags", "private,populate", BTH_MMAP_POPULATE},
                {"io.chunk_nbytes", "64KiB", 65536}};
    berth_option option;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_ok(berth_config_set(rows[i].name, rows[i].text, NULL, &error));
        assert_ok(berth_config_describe(NULL, rows[i].name, &option, &error));
        cr_assert_eq(option.number, rows[i].number, "%s", rows[i].name);
    }
}

Test(values, names_that_are_none_are_refused)
{
    berth_option option;

    cr_assert_eq(berth_config_set("save.metod", "auto", NULL, &error), BERTH_E_OPTION);
    cr_assert_str_eq(error.message, "save.metod: no such option; the nearest is save.method");
    cr_assert_eq(berth_config_set("durability", "full", NULL, &error), BERTH_E_OPTION);
    cr_assert_str_eq(error.message, "durability: no such option; the nearest is save.durability");
    cr_assert_eq(berth_config_set("laod.mmap", "on", NULL, &error), BERTH_E_OPTION);
    cr_assert_str_eq(error.message, "laod.mmap: no such option; the nearest is load.mmap");
    cr_assert_eq(berth_config_set("trainer.interval", "1", NULL, &error), BERTH_E_OPTION);
    cr_assert_str_eq(error.message, "trainer.interval: no such option");
    cr_assert_eq(berth_config_set("Debug", "on", NULL, &error), BERTH_E_OPTION);
    cr_assert_eq(berth_config_describe(NULL, "", &option, &error), BERTH_E_OPTION);
    cr_assert_eq(berth_config_describe(NULL, "SAVE_METHOD", &option, &error), BERTH_E_OPTION);
    cr_assert_eq(berth_config_reset("save", &error), BERTH_E_OPTION);
    cr_assert_eq(berth_config_describe(NULL, "save.", &option, &error), BERTH_E_OPTION);
    cr_assert_eq(berth_config_describe(NULL, NULL, &option, NULL), BERTH_E_OPTION);
    cr_assert_eq(berth_config_set("debug", NULL, NULL, &error), BERTH_E_ARGUMENT);
}

Test(values, texts_are_names_that_fit_a_line)
{
    static char longest[4095 + 1], longer[4096 + 1];
    static const char *const bad[] = {"a#b", "a\nb", " a", "a ", "a\x7f", "a\xc2\x9b", longer};
    berth_option option;

    memset(longest, 'x', sizeof longest - 1);
    memset(longer, 'x', sizeof longer - 1);
    assert_ok(berth_config_set("trace", longest, NULL, &error));
    assert_ok(berth_config_describe(NULL, "trace", &option, &error));
    cr_assert_str_eq(option.text, longest);
    cr_assert_eq(strlen(option.value), sizeof option.value - 1, "it is cut");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_assert_eq(berth_config_set("trace", bad[i], NULL, &error), BERTH_E_OPTION, "%s", bad[i]);
        cr_assert(strstr(error.message, "must be a text of at most 4095 bytes, without #"), "%s",
                  error.message);
    }
    /* Equal texts have one number. */
    assert_ok(berth_config_set("trace", "a.json", NULL, &error));
    assert_ok(berth_config_describe(NULL, "trace", &option, &error));
    int64_t number = option.number;
    assert_ok(berth_config_set("trace", "b.json", NULL, &error));
    assert_ok(berth_config_set("trace", "a.json", NULL, &error));
    assert_ok(berth_config_describe(NULL, "trace", &option, &error));
    cr_assert_eq(option.number, number);
    assert_ok(berth_config_describe(NULL, "debug", &option, &error));
    cr_assert_null(option.text);
}

Test(values, every_option_is_described)
{
    static const char *const units[] = {"",        "bytes", "threads", "passes",
                                        "buffers", "ids",   "seconds"};
    berth_option option;

    for (size_t i = 0; berth_config_name(i); i++) {
        bool unit_is_known = false;
        cr_assert_eq(berth_config_describe(NULL, berth_config_name(i), &option, &error), 0);
        cr_assert(*option.name && *option.type && *option.bounds);
        cr_assert_eq(*option.initial == '\0', strcmp(option.type, "text") == 0);
        cr_assert_gt(strlen(option.help), 20, "%s", option.name);
        cr_assert_eq(option.help[strlen(option.help) - 1], '.', "%s", option.name);
        cr_assert_str_eq(option.source, "default");
        cr_assert_str_eq(option.value, option.initial);
        for (size_t k = 0; k < sizeof units / sizeof *units; k++)
            unit_is_known |= strcmp(option.unit, units[k]) == 0;
        cr_assert(unit_is_known, "%s", option.unit);
        cr_assert_eq(berth_config_set(option.name, option.initial, NULL, &error), 0);
    }
    cr_assert_str_eq(berth_config_name(0), "debug");
    cr_assert(berth_config_name(38) && !berth_config_name(39) && !berth_config_name(SIZE_MAX));
}

Test(values, have_the_documented_defaults)
{
    static const char *const rows[][2] = {{"debug", "off"},
                                          {"trace", ""},
                                          {"save.compute_crc32", "on"},
                                          {"save.storage_alignment", "64"},
                                          {"save.use_pinned_memory_for_d2h", "on"},
                                          {"save.byteorder", "native"},
                                          {"save.method", "auto"},
                                          {"save.durability", "full"},
                                          {"save.replace", "auto"},
                                          {"save.readers", "all"},
                                          {"save.base", ""},
                                          {"save.if_match", ""},
                                          {"load.calculate_storage_offsets", "on"},
                                          {"load.check", "directory"},
                                          {"load.repacked", "accept"},
                                          {"load.inflate", "on"},
                                          {"load.endianness", "little"},
                                          {"load.head_nbytes", "1MiB"},
                                          {"load.mmap", "on"},
                                          {"load.method", "auto"},
                                          {"load.reuse", "auto"},
                                          {"load.mmap_flags", "private"},
                                          {"load.prefetch", "off"},
                                          {"load.prefetch_passes", "0"},
                                          {"load.prefetch_min_pass_nbytes", "0"},
                                          {"load.prefetch_window_nbytes", "0"},
                                          {"load.rows_passes", "0"},
                                          {"load.rows_min_pass_ids", "65536"},
                                          {"load.unknown_globals", "refuse"},
                                          {"load.old_text", "utf8"},
                                          {"load.tied_names", "off"},
                                          {"io.threads", "0"},
                                          {"io.chunk_nbytes", "0"},
                                          {"io.numa", "local"},
                                          {"io.large_pages", "auto"},
                                          {"io.memory_nbytes", "0"},
                                          {"io.url_deadline", "300"},
                                          {"device.staging_nbytes", "0"},
                                          {"device.staging_buffers", "0"}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_assert_str_eq(berth_config_name(i), rows[i][0]);
        cr_assert_str_eq(got(rows[i][0]), rows[i][1]);
    }
}

Test(values, in_a_snapshot_stand_for_the_choices_that_the_code_names)
{
    struct berth_config config;

    assert_ok(berth_config_parse("save.byteorder=big\nsave.durability=file\nload.check=data\n"
                                 "save.replace=in_place\n"
                                 "load.method=read\nload.unknown_globals=inert\n"
                                 "load.old_text=latin1\n"
                                 "load.repacked=refuse\n"
                                 "load.endianness=big\nload.mmap_flags=shared,populate\n",
                                 NULL, &error));
    cr_assert_eq(bth_config_copy_for_operation(NULL, &config, &error), 0);
    cr_assert_eq(config.save_byteorder, BTH_BYTEORDER_BIG);
    cr_assert_eq(config.save_method, BTH_SAVE_AUTO);
    cr_assert_eq(config.save_durability, BTH_DURABILITY_FILE);
    cr_assert_eq(config.save_replace, BTH_REPLACE_IN_PLACE);
    cr_assert_eq(config.load_check, BTH_CHECK_DATA);
    cr_assert_eq(config.load_method, BERTH_LOAD_READ);
    cr_assert_eq(config.load_unknown_globals, BTH_UNKNOWN_INERT);
    cr_assert_eq(config.load_old_text, BTH_OLD_TEXT_LATIN1);
    cr_assert_eq(config.load_repacked, BTH_REPACKED_REFUSE);
    cr_assert_eq(config.load_endianness, BTH_BYTEORDER_BIG);
    cr_assert_eq(config.load_mmap_flags, BTH_MMAP_SHARED | BTH_MMAP_POPULATE);
    cr_assert_eq(config.load_prefetch, BTH_PREFETCH_OFF);
    cr_assert_eq(config.io_numa, BTH_NUMA_LOCAL);
    cr_assert_eq(config.io_large_pages, BTH_LARGE_PAGES_AUTO);
}
