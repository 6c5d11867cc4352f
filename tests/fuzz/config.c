/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Configurations: any bytes as an environment, as assignments, as portable text, and as values of
 * each option by itself. What is taken is printed, and taken again as the same.
 */
#include <berth/config.h>

#include "tests/support/fuzz/target.h"

#include "config/layers.h"

#define MAX_VARIABLES 64
#define MAX_TEXT_NBYTES 8192

static void check_result(int result, const berth_error *error)
{
    MUST(result == (int)error->code && (result < 0) == (error->message[0] != 0), "%d: %s", result,
         error->message);
    MUST(is_clean_text(error->message), "not one line of UTF-8: %s", error->message);
    MUST(result == 0 || error->code == BERTH_E_OPTION || error->code == BERTH_E_UNAVAILABLE, "%s",
         error->message);
}

/*
 * Every value that was taken is one that its row allows, and its text is that value again. What set
 * it has a name.
 */
static void check_layer(const bth_layer *layer)
{
    for (size_t i = 0; i < bth_option_count(); i++) {
        const bth_option_row *row = bth_option_at(i);
        int64_t value = bth_option_value(&layer->values, row), again;
        char text[BTH_OPTION_TEXT_NBYTES];
        berth_error error = {0};

        if (!layer->source[i])
            continue;
        MUST(layer->source[i][0] && is_clean_text(layer->source[i]), "%s is set by nothing",
             row->name);
        MUST(bth_option_value_is_in_bounds(row, value), "%s", row->name);
        const char *whole = bth_option_whole_text(row, value, text);
        MUST((whole != text || strlen(text) < sizeof text) &&
                 bth_option_parse(row, whole, strlen(whole), "by a test", &again, &error) == 0 &&
                 again == value,
             "%s=%s is not taken again: %s", row->name, whole, error.message);
    }
}

static bool is_same_layer(const bth_layer *a, const bth_layer *b)
{
    for (size_t i = 0; i < bth_option_count(); i++) {
        const bth_option_row *row = bth_option_at(i);
        if (!a->source[i] != !b->source[i] ||
            (a->source[i] &&
             bth_option_value(&a->values, row) != bth_option_value(&b->values, row)))
            return false;
    }
    return true;
}

/* Bytes divided by NULs: variables. Not BERTH_CONFIG: it would open files by any name. */
static void check_environment(char *text, size_t nbytes)
{
    char *variables[MAX_VARIABLES + 1];
    static bth_environment environment;
    bth_notes notes = {0};
    size_t n = 0;
    berth_error error = {0};

    for (size_t at = 0; at < nbytes && n < MAX_VARIABLES; at += strlen(text + at) + 1)
        if (strncmp(text + at, "BERTH_CONFIG=", 13) != 0)
            variables[n++] = text + at;
    variables[n] = NULL;
    int result = bth_environment_read(variables, 0, &environment, &notes, &error);
    check_result(result, &error);
    if (result < 0)
        return;
    check_layer(&environment.plain);
    check_layer(&environment.force);
}

static bool has_text(const bth_layer *layer)
{
    for (size_t i = 0; i < bth_option_count(); i++)
        if (layer->source[i] && bth_option_at(i)->kind == BTH_OPTION_TEXT)
            return true;
    return false;
}

/*
 * Text as lines and as words; one is the other where nothing but the space between differs. In a
 * line, an option that is a text goes to the end: "trace=a save.workers=2" is one option, or two.
 */
static void check_text(const char *text)
{
    bth_layer lines = {0}, words = {0};
    berth_error error = {0}, words_error = {0};
    int result = bth_layer_parse(&lines, text, true, "lines", &error);
    int words_result = bth_layer_parse(&words, text, false, "patch", &words_error);

    check_result(result, &error);
    check_result(words_result, &words_error);
    if (result == 0)
        check_layer(&lines);
    if (words_result == 0)
        check_layer(&words);
    bool may_differ =
        strchr(text, '#') || (strpbrk(text, " \t") && (has_text(&lines) || has_text(&words)));
    if (result == 0 && words_result == 0 && !may_differ)
        MUST(is_same_layer(&lines, &words), "lines and words differ");
}

/* A configuration is printed in its forms, and these give it again; its hash says so too. */
static void check_forms(const char *text)
{
    static char printed[16384];
    berth_error error;
    berth_config *config = berth_config_new(&error), *again = berth_config_new(NULL);

    MUST(config && again, "%s", error.message);
    check_result(berth_config_apply(config, text, &error), &error);
    for (int i = 0; i < 2; i++) {
        berth_config_form form = i == 0 ? BERTH_CONFIG_PORTABLE : BERTH_CONFIG_CHANGED;
        int64_t n = berth_config_print(config, form, printed, sizeof printed, &error);
        MUST(n >= 0 && (size_t)n < sizeof printed && strlen(printed) == (size_t)n, "%lld",
             (long long)n);
        MUST(berth_config_apply(again, printed, &error) == 0, "%s", error.message);
        MUST(form == BERTH_CONFIG_CHANGED || berth_config_hash(config, BERTH_CLASS_ALL) ==
                                                 berth_config_hash(again, BERTH_CLASS_ALL),
             "printed and read again, it is another");
    }
    MUST(berth_config_print(config, BERTH_CONFIG_CODE, NULL, 0, &error) >= 0, "%s", error.message);
    berth_config_free(config);
    berth_config_free(again);
}

/* The thread's and the program's values: what is set is in force, all or nothing. */
static void check_in_force(const char *text)
{
    uint64_t before = berth_config_hash(NULL, BERTH_CLASS_ALL);
    berth_error error;

    int result = berth_config_patch(text, &error);
    check_result(result, &error);
    if (result == 0)
        MUST(berth_config_unpatch(&error) == 0, "%s", error.message);
    MUST(berth_config_hash(NULL, BERTH_CLASS_ALL) == before,
         "a patch that is gone, or refused, changes something");
    result = berth_config_parse(text, NULL, &error);
    check_result(result, &error);
    MUST(result == 0 || berth_config_hash(NULL, BERTH_CLASS_ALL) == before,
         "refused text changes something");
    MUST(berth_config_reset(NULL, &error) == 0 &&
             berth_config_hash(NULL, BERTH_CLASS_ALL) == before,
         "%s", error.message);
}

/* The text as the value of each option, and as a name. */
static void check_values(const char *text)
{
    berth_error error;

    for (size_t i = 0; berth_config_name(i); i++) {
        berth_option option;
        MUST(berth_config_describe(NULL, berth_config_name(i), &option, &error) == 0, "%s",
             error.message);
        int result = berth_config_set(option.name, text, NULL, &error);
        check_result(result, &error);
        if (result == 0) {
            MUST(berth_config_describe(NULL, option.name, &option, &error) == 0 &&
                     berth_config_set(option.name, option.value, NULL, &error) == 0,
                 "%s=%s: %s", option.name, option.value, error.message);
            MUST(berth_config_reset(option.name, &error) == 0, "%s", error.message);
        }
    }
    check_result(berth_config_set(text, "off", NULL, &error), &error);
    (void)berth_config_reset(NULL, &error);
}

void check_input(const uint8_t *bytes, size_t nbytes)
{
    if (nbytes > MAX_TEXT_NBYTES)
        return;
    char *text = malloc(nbytes + 1);
    memcpy(text, bytes, nbytes);
    text[nbytes] = '\0';
    count_memory_from_now();
    size_t before_nbytes = live_nbytes;
    int64_t before_texts = bth_option_count_texts(); /* each is kept */
    double since = processor_seconds();
    unsigned kind = kind_of(bytes, nbytes, 4);
    if (IS_CHECKED(kind, 0))
        check_environment(text, nbytes);
    if (IS_CHECKED(kind, 1))
        check_text(text);
    if (IS_CHECKED(kind, 2))
        check_forms(text);
    if (IS_CHECKED(kind, 3))
        check_in_force(text);
    if (IS_CHECKED(kind, 3) && nbytes < 64)
        check_values(text);
    check_time(since, nbytes);
    MUST((live_nbytes == before_nbytes || bth_option_count_texts() > before_texts) &&
             most_nbytes - before_nbytes <= 65536,
         "%zu bytes leak, of %zu", live_nbytes - before_nbytes, most_nbytes - before_nbytes);
    free(text);
}

/* ---- changed by words ---- */

static const char *const telling[] = {"on",
                                      "off",
                                      "0",
                                      "1",
                                      "-1",
                                      "64KiB",
                                      "1MiB",
                                      "16 GiB",
                                      "9223372036854775807",
                                      "auto",
                                      "private|populate",
                                      "shared",
                                      "huge",
                                      "map",
                                      "read",
                                      "direct",
                                      "BERTH_",
                                      "BERTH_FORCE_",
                                      "=",
                                      "#",
                                      "TORCH_SERIALIZATION_DEBUG=1",
                                      "serialization_debug"};

static size_t insert(uint8_t *bytes, size_t nbytes, size_t most, const char *word)
{
    size_t n = strlen(word), at = random_below(nbytes + 1);

    if (nbytes + n > most)
        return nbytes;
    memmove(bytes + at + n, bytes + at, nbytes - at);
    memcpy(bytes + at, word, n);
    return nbytes + n;
}

/* "BERTH_SAVE_METHOD=": the name of an option as a variable has it, or as it is. */
static size_t insert_name(uint8_t *bytes, size_t nbytes, size_t most)
{
    const bth_option_row *row = bth_option_at(random_below(bth_option_count()));
    bool is_variable = random_below(2) > 0;
    char name[100];

    snprintf(name, sizeof name, "%s%s=", is_variable ? "BERTH_" : "", row->name);
    for (char *at = name; *at && is_variable; at++)
        *at = *at == '.' ? '_' : (char)(*at >= 'a' && *at <= 'z' ? *at - 'a' + 'A' : *at);
    return insert(bytes, nbytes, most, name);
}

size_t mutate(uint8_t *bytes, size_t nbytes, size_t most, unsigned number)
{
    static const char between[] = "\n\0 |";

    switch (number % 6) {
    case 0:
        return insert_name(bytes, nbytes, most);
    case 1:
        return insert(bytes, nbytes, most, telling[random_below(sizeof telling / sizeof *telling)]);
    case 2:
        if (nbytes > 0)
            bytes[random_below(nbytes)] = (uint8_t)between[random_below(4)];
        return nbytes;
    default:
        return LLVMFuzzerMutate(bytes, nbytes, most);
    }
}

void make_seeds(void)
{
    static const char environment[] =
        "BERTH_SAVE_METHOD=direct\0BERTH_FORCE_LOAD_CHECK=data\0PATH=/bin";
    static const char text_of_all[] = "# all\nload.check=data # now\n\nsave.compute_crc32=off\n";

    for (size_t i = 0; i < bth_option_count(); i++) {
        const bth_option_row *row = bth_option_at(i);
        char value[BTH_OPTION_TEXT_NBYTES], text[200];

        bth_option_print(row, row->initial, value);
        int n = snprintf(text, sizeof text, "%s=%s\n", row->name, value);
        seed(row->name, text, (size_t)n);
    }
    for (size_t i = 0; i < sizeof telling / sizeof *telling; i++) {
        char name[32];
        snprintf(name, sizeof name, "word-%zu", i);
        seed(name, telling[i], strlen(telling[i]));
    }
    seed("environment", environment, sizeof environment - 1);
    seed("text", text_of_all, sizeof text_of_all - 1);
    seed_folder("tests/fuzz/found/config", "");
}

#ifndef BERTH_FUZZER

Test(configurations, keep_all_properties)
{
    cr_assert_geq(replay_seeds(40), bth_option_count() + 2);
}
#endif
