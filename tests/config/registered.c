/* SPDX-License-Identifier: BSD-3-Clause */
/* Options of a framework, watches, own configurations, and the patch of a block. */
#include <berth.h>
#include <berth/config.h>
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/options.h"
#include "tests/support/support.h"

static berth_error error;
static char logged[1000];

static void log_line(void *context, const char *message)
{
    (void)context;
    (void)snprintf(logged + strlen(logged), sizeof logged - strlen(logged), "%s\n", message);
}

static void forget_environment(void)
{
    (void)clearenv();
    bth_config_forget_environment();
    berth_set_log(log_line, NULL);
}
TestSuite(registered, .init = forget_environment);
TestSuite(watches, .init = forget_environment);
TestSuite(own, .init = forget_environment);
TestSuite(scopes, .init = forget_environment);

static const berth_option_row trainer[] = {
    {.name = "interval",
     .type = "int",
     .minimum = 1,
     .maximum = 1000,
     .initial = "10",
     .unit = "steps",
     .aliases = "ckpt_interval",
     .help = "Steps between checkpoints.",
     .classes = BERTH_CLASS_SPEED},
    {.name = "keep",
     .type = "enum",
     .choices = "all | last",
     .initial = "last",
     .classes = BERTH_CLASS_ACCEPTANCE},
    {.name = "budget",
     .type = "bytes",
     .maximum = INT64_C(1) << 40,
     .initial = "4GB",
     .classes = BERTH_CLASS_SPEED},
    {.name = "strict", .type = "bool", .initial = "on", .classes = BERTH_CLASS_BYTES},
    {.name = "log",
     .type = "flags",
     .choices = "quiet | loud | times",
     .initial = "quiet",
     .classes = BERTH_CLASS_SPEED}};
enum { N_TRAINER = sizeof trainer / sizeof *trainer };

/* A successor must be there before: two calls. */
static void register_trainer(void)
{
    static const berth_option_row old[] = {{.name = "every", .successor = "trainer.interval"}};

    assert_ok(berth_config_register("trainer", trainer, N_TRAINER, &error));
    assert_ok(berth_config_register("old_trainer", old, 1, &error));
}

static void expect(const char *name, const char *value, const char *source)
{
    berth_option option;

    assert_ok(berth_config_describe(NULL, name, &option, &error));
    cr_assert_str_eq(option.value, value);
    cr_assert_str_eq(option.source, source);
}

Test(registered, behave_as_the_library_s_own)
{
    berth_option option;

    expect("io.threads", "0", "default");
    (void)setenv("BERTH_TRAINER_BUDGET", "1MiB", 1);
    (void)setenv("BERTH_FORCE_TRAINER_KEEP", "all", 1);
    register_trainer();
    expect("trainer.interval", "10", "default");
    expect("trainer.budget", "1MiB", "environment BERTH_TRAINER_BUDGET");
    expect("trainer.keep", "all", "force BERTH_FORCE_TRAINER_KEEP");
    assert_ok(berth_config_set("ckpt_interval", "20", NULL, &error));
    assert_ok(berth_config_patch("trainer.interval=30 trainer.log=loud,times", &error));
    expect("trainer.interval", "30", "patch");
    expect("trainer.log", "loud,times", "patch");
    assert_ok(berth_config_unpatch(&error));
    expect("trainer.interval", "20", "program");
    cr_assert_eq(berth_config_set("trainer.interval", "0", NULL, &error), BERTH_E_OPTION);
    cr_assert_str_eq(error.message, "trainer.interval = 0: must be 1 to 1000, in digits (set by "
                                    "the program)");
    assert_ok(berth_config_describe(NULL, "trainer.interval", &option, &error));
    cr_assert_str_eq(option.unit, "steps");
    cr_assert_str_eq(option.help, "Steps between checkpoints.");
    cr_assert_str_eq(option.bounds, "1 to 1000");
    cr_assert_str_eq(option.initial, "10");
    cr_assert_eq(option.classes, BERTH_CLASS_SPEED);
    cr_assert(option.number == 20 && !option.is_default);
}

Test(registered, are_in_texts_and_hashes)
{
    char text[200];
    uint64_t before;

    register_trainer();
    before = berth_config_hash(NULL, BERTH_CLASS_ACCEPTANCE);
    assert_ok(berth_config_parse("trainer.strict=off\ntrainer.interval=5\n", NULL, &error));
    cr_assert_gt(berth_config_print(NULL, BERTH_CONFIG_VARIABLES, text, sizeof text, &error), 0);
    cr_assert_str_eq(text, "BERTH_TRAINER_INTERVAL=5\nBERTH_TRAINER_STRICT=off\n");
    cr_assert_eq(berth_config_hash(NULL, BERTH_CLASS_ACCEPTANCE), before);
    assert_ok(berth_config_set("trainer.keep", "all", NULL, &error));
    cr_assert_neq(berth_config_hash(NULL, BERTH_CLASS_ACCEPTANCE), before);
}

Test(registered, of_a_bad_variable_fail_every_operation)
{
    expect("io.threads", "0", "default");
    (void)setenv("BERTH_TRAINER_INTERVAL", "often", 1);
    register_trainer();
    cr_assert_null(berth_config_new(&error));
    cr_assert_eq(error.code, BERTH_E_OPTION);
    cr_assert_str_eq(error.message, "trainer.interval = often: must be 1 to 1000, in digits "
                                    "(BERTH_TRAINER_INTERVAL in the environment)");
    expect("trainer.interval", "10", "default");
}

Test(registered, under_a_deprecated_name_set_the_successor_and_are_logged_once)
{
    berth_option option;

    register_trainer();
    assert_ok(berth_config_set("old_trainer.every", "7", NULL, &error));
    assert_ok(berth_config_patch("old_trainer.every=8", &error));
    expect("trainer.interval", "8", "patch");
    assert_ok(berth_config_unpatch(&error));
    expect("trainer.interval", "7", "program");
    cr_assert_str_eq(logged, "old_trainer.every is deprecated: use trainer.interval\n");
    assert_ok(berth_config_describe(NULL, "old_trainer.every", &option, &error));
    cr_assert_str_eq(option.name, "old_trainer.every");
    cr_assert_str_eq(option.successor, "trainer.interval");
    cr_assert_str_eq(option.value, "7");
}

Test(registered, twice_are_the_same_or_refused)
{
    register_trainer();
    register_trainer();
    cr_assert_eq(berth_config_register("trainer", trainer, 2, &error), BERTH_E_ARGUMENT);
    cr_assert_str_eq(error.message, "section trainer: has other options already");
}

#define ROW(row_type, row_initial, row_classes, ...)                                               \
    {                                                                                              \
        .type = (row_type), .initial = (row_initial), .classes = (row_classes), .maximum = 9,      \
        __VA_ARGS__                                                                                \
    }
#define INT_ROW(...) ROW("int", "1", BERTH_CLASS_SPEED, __VA_ARGS__)

Test(registered, are_refused_if_they_are_malformed)
{
    static const struct {
        const char *section;
        berth_option_row row;
        int code;
        const char *sentence;
    } rows[] = {
        {"Trainer", INT_ROW(.name = "a"), BERTH_E_ARGUMENT,
         "section Trainer: must be 1 to 20 of a-z, 0-9 and _, beginning with a letter, and not "
         "force, config, debug or trace"},
        {"force", INT_ROW(.name = "a"), BERTH_E_ARGUMENT,
         "section force: must be 1 to 20 of a-z, 0-9 and _, beginning with a letter, and not "
         "force, config, debug or trace"},
        {"io", INT_ROW(.name = "a"), BERTH_E_ARGUMENT, "section io: has other options already"},
        {"save_use", INT_ROW(.name = "pinned_memory_for_d2h"), BERTH_E_ARGUMENT,
         "save_use.pinned_memory_for_d2h: the name, or BERTH_SAVE_USE_PINNED_MEMORY_FOR_D2H, is an "
         "option already"},
        {"t", INT_ROW(.name = "a-b"), BERTH_E_ARGUMENT,
         "t.a-b: a name must be 1 to 32 of a-z, 0-9 and _, beginning with a letter"},
        {"t", INT_ROW(.name = "a", .aliases = "debug"), BERTH_E_ARGUMENT,
         "debug: the name, or BERTH_DEBUG, is an option already"},
        {"t", ROW("float", "1", BERTH_CLASS_SPEED, .name = "a"), BERTH_E_ARGUMENT,
         "t.a: type float: must be bool, enum, int, bytes or flags"},
        {"t", ROW("enum", "1", BERTH_CLASS_SPEED, .name = "a"), BERTH_E_ARGUMENT,
         "t.a: type enum has no choices"},
        {"t", ROW("enum", "1", BERTH_CLASS_SPEED, .name = "a", .choices = "x"), BERTH_E_ARGUMENT,
         "t.a: choices x: must be 2 or more, of less than 64 bytes together"},
        {"t", ROW("enum", "1", BERTH_CLASS_SPEED, .name = "a", .choices = "x | $(y)"),
         BERTH_E_ARGUMENT, "t.a: choice $(y): only letters, digits, _, . and -"},
        {"t", INT_ROW(.name = "a", .minimum = 10), BERTH_E_ARGUMENT,
         "t.a: bounds 10 to 9: the minimum must be 0 or more, and at most the maximum"},
        {"t", INT_ROW(.name = "a", .minimum = -1), BERTH_E_ARGUMENT,
         "t.a: bounds -1 to 9: the minimum must be 0 or more, and at most the maximum"},
        {"t", ROW("int", "10", BERTH_CLASS_SPEED, .name = "a"), BERTH_E_OPTION,
         "t.a = 10: must be 0 to 9, in digits (the default)"},
        {"t", ROW("int", NULL, BERTH_CLASS_SPEED, .name = "a"), BERTH_E_ARGUMENT,
         "t.a: no default"},
        {"t", ROW("int", "1", 8, .name = "a"), BERTH_E_ARGUMENT,
         "t.a: classes 8: must be some of BERTH_CLASS_..."},
        {"t", INT_ROW(.name = "a", .successor = "t.b"), BERTH_E_ARGUMENT,
         "t.a: successor t.b: must be an option that is registered before"},
    };
    uint64_t before = berth_config_hash(NULL, BERTH_CLASS_ALL);

    test_memory_watch();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_assert_eq(berth_config_register(rows[i].section, &rows[i].row, 1, &error), rows[i].code,
                     "row %zu: %s", i, error.message);
        cr_assert_str_eq(error.message, rows[i].sentence);
    }
    cr_assert_eq(test_memory_seen().live_nbytes, 0);
    test_memory_unwatch();
    cr_assert_eq(berth_config_hash(NULL, BERTH_CLASS_ALL), before);
    cr_assert_eq(berth_config_register("t", NULL, 1, &error), BERTH_E_ARGUMENT);
}

Test(registered, are_all_there_or_none)
{
    berth_option_row two[2] = {trainer[0], trainer[0]}, many[129];
    char names[129][16];

    cr_assert_eq(berth_config_register("t", two, 2, &error), BERTH_E_ARGUMENT);
    cr_assert_str_eq(error.message, "t.interval: the name, or BERTH_T_INTERVAL, is an option "
                                    "already");
    cr_assert_eq(berth_config_set("t.interval", "1", NULL, &error), BERTH_E_OPTION);
    for (int i = 0; i < 129; i++) {
        many[i] = (berth_option_row)INT_ROW(.name = names[i]);
        (void)snprintf(names[i], sizeof names[i], "a%d", i);
    }
    cr_assert_eq(berth_config_register("t", many, 129, &error), BERTH_E_ARGUMENT);
    cr_assert_str_eq(error.message, "section t: 129 options: there is room for 128 more");
    assert_ok(berth_config_register("t", many, 128, &error));
    expect("t.a127", "1", "default");
}

Test(registered, that_find_no_memory_change_nothing)
{
    for (size_t i = 1; i <= 9; i++) {
        test_memory_watch();
        test_memory_refuse(i, true);
        cr_assert_eq(berth_config_register("trainer", trainer, 3, &error), BERTH_E_MEMORY, "%zu",
                     i);
        cr_assert_eq(test_memory_seen().live_nbytes, 0);
        test_memory_unwatch();
    }
    register_trainer();
}

/* ---- watches ---- */

static void write_change(void *context, const berth_option *option)
{
    char *text = context;

    (void)snprintf(text + strlen(text), 400 - strlen(text), "%s=%s (%s)\n", option->name,
                   option->value, option->source);
}

static void set_again(void *context, const berth_option *option)
{
    const char next[] = {(char)('1' + option->number), '\0'};

    (void)context;
    if (option->number < 5)
        (void)berth_config_set("io.threads", next, NULL, NULL);
}

Test(watches, are_told_what_changes)
{
    char one[400] = "", all[400] = "";

    assert_ok(berth_config_watch("io.threads", write_change, one, &error));
    assert_ok(berth_config_watch(NULL, write_change, all, &error));
    assert_ok(berth_config_set("io.threads", "3", NULL, &error));
    assert_ok(berth_config_set("io.threads", "3", NULL, &error));
    assert_ok(berth_config_patch("io.threads=4 load.mmap=off", &error));
    assert_ok(berth_config_unpatch(&error));
    assert_ok(berth_config_parse("load.mmap=off\n", NULL, &error));
    assert_ok(berth_config_reset(NULL, &error));
    cr_assert_str_eq(one, "io.threads=3 (program)\nio.threads=4 (patch)\nio.threads=3 "
                          "(program)\nio.threads=0 (default)\n");
    cr_assert_str_eq(all, "io.threads=3 (program)\nload.mmap=off (patch)\nio.threads=4 "
                          "(patch)\nload.mmap=on (default)\nio.threads=3 (program)\nload.mmap=off "
                          "(program)\nload.mmap=on (default)\nio.threads=0 (default)\n");
    one[0] = all[0] = '\0';
    assert_ok(berth_config_watch("io.threads", NULL, one, &error));
    assert_ok(berth_config_watch(NULL, NULL, all, &error));
    assert_ok(berth_config_set("io.threads", "3", NULL, &error));
    cr_assert(!one[0] && !all[0]);
}

Test(watches, may_set_options)
{
    assert_ok(berth_config_watch("io.threads", set_again, NULL, &error));
    assert_ok(berth_config_set("io.threads", "1", NULL, &error));
    expect("io.threads", "5", "program");
}

Test(watches, are_limited_and_need_an_option)
{
    char text[400] = "";

    cr_assert_eq(berth_config_watch("io.treads", write_change, text, &error), BERTH_E_OPTION);
    for (int i = 0; i < 64; i++)
        assert_ok(berth_config_watch("debug", write_change, text, &error));
    cr_assert_eq(berth_config_watch("debug", write_change, text, &error), BERTH_E_ARGUMENT);
    cr_assert_str_eq(error.message, "64 functions watch options already");
    assert_ok(berth_config_watch("debug", NULL, text, &error));
    assert_ok(berth_config_watch("debug", write_change, text, &error));
}

/* ---- own configurations ---- */

Test(own, are_read)
{
    berth_config *a = berth_config_new(&error), *b = berth_config_new(&error);
    berth_option option;

    assert_ok(berth_config_apply(b, "load.mmap=off io.threads=3", &error));
    assert_ok(berth_config_describe(b, "io.threads", &option, &error));
    cr_assert_str_eq(option.value, "3");
    cr_assert_str_eq(option.source, "configuration");
    cr_assert(option.number == 3 && !option.is_default);
    assert_ok(berth_config_describe(a, "io.threads", &option, &error));
    cr_assert(option.is_default);
    assert_ok(berth_config_describe(NULL, "io.threads", &option, &error));
    cr_assert_str_eq(option.source, "default");
    cr_assert_eq(berth_config_describe(a, "debug", NULL, &error), BERTH_E_ARGUMENT);
    berth_config_free(a);
    berth_config_free(b);
}

Test(own, made_before_a_registration_have_its_defaults)
{
    berth_config *config = berth_config_new(&error);
    berth_option option;

    register_trainer();
    assert_ok(berth_config_describe(config, "trainer.interval", &option, &error));
    cr_assert_str_eq(option.value, "10");
    assert_ok(berth_config_apply(config, "trainer.keep=all", &error));
    assert_ok(berth_config_describe(config, "trainer.interval", &option, &error));
    cr_assert_str_eq(option.value, "10");
    assert_ok(berth_config_describe(config, "trainer.keep", &option, &error));
    cr_assert_str_eq(option.value, "all");
    berth_config_free(config);
}

/* ---- the patch of a block ---- */

static int leave_by_return(void)
{
    BERTH_WITH_CONFIG("io.threads=2")
    {
        BERTH_WITH_CONFIG("load.mmap=off")
        {
            expect("io.threads", "2", "patch");
            expect("load.mmap", "off", "patch");
            return 7;
        }
    }
    return 0;
}

Test(scopes, end_however_they_are_left)
{
    int n_runs = 0;

    cr_assert_eq(leave_by_return(), 7);
    expect("io.threads", "0", "default");
    for (int i = 0; i < 3; i++)
        BERTH_WITH_CONFIG("io.threads=4")
        {
            n_runs++;
            if (i == 1)
                break;
            expect("io.threads", "4", "patch");
        }
    cr_assert_eq(n_runs, 3);
    expect("io.threads", "0", "default");
    cr_assert_eq(berth_config_unpatch(&error), BERTH_E_ARGUMENT);
}

Test(scopes, that_are_refused_fail_what_runs_in_them)
{
    struct berth_config config;
    berth_config *own = berth_config_new(&error);
    int n_runs = 0;

    BERTH_WITH_CONFIG("io.treads=4")
    {
        berth_error failed = {0};
        n_runs++;
        BERTH_WITH_CONFIG("io.threads=no")
        {
            cr_assert_eq(bth_config_copy_for_operation(NULL, &config, &failed), BERTH_E_OPTION);
        }
        cr_assert_str_eq(failed.message,
                         "io.treads: no such option; the nearest is io.threads (in a patch)");
        failed = (berth_error){0};
        cr_assert_eq(
            bth_config_copy_for_operation(&(berth_params){.config = own}, &config, &failed),
            BERTH_E_OPTION);
    }
    cr_assert_eq(n_runs, 1);
    cr_assert_eq(bth_config_copy_for_operation(NULL, &config, &(berth_error){0}), 0);
    berth_config_free(own);
}
