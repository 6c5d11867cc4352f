/* SPDX-License-Identifier: BSD-3-Clause */
/* What sets options: words and lines of text, variables, a file. config/options.c orders the
 * layers. */
#include "config/layers.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"

void bth_layer_apply(const bth_layer *layer, struct berth_config *config)
{
    for (size_t i = 0, count = bth_option_count(); i < count; i++) {
        const bth_option_row *row = bth_option_at(i);
        if (layer->source[i])
            *bth_option_field(config, row) = bth_option_value(&layer->values, row);
    }
}

const bth_option_row *bth_option_use(const bth_option_row *row, bth_notes *notes)
{
    static atomic_bool is_noted[BTH_MAX_OPTIONS];

    if (!row->successor)
        return row;
    if (!atomic_exchange(&is_noted[bth_option_index(row)], true))
        bth_notes_add(notes, "%s is deprecated: use %s", row->name, row->successor->name);
    return row->successor;
}

/* ---- assignments ---- */

#define SPACE " \t\n\v\f\r"

typedef struct text_line {
    const char *text; /* without white space at the ends and comments */
    size_t n;
    size_t number; /* from 1; 0 of a word, and before the first line */
} text_line;

/* Drops white space at both ends. */
static void text_trim(const char **text, size_t *n)
{
    for (; *n > 0 && strchr(SPACE, **text); --*n)
        ++*text;
    while (*n > 0 && strchr(SPACE, (*text)[*n - 1]))
        --*n;
}

static int line_divide(const text_line *line, const char **name, size_t *name_n, const char **value,
                       size_t *value_n, const char *source, berth_error *error)
{
    const char *equals = memchr(line->text, '=', line->n);

    if (!equals)
        return bth_fail_status(error, BERTH_E_OPTION, "%.*s: not of the form name=value (%s)",
                               (int)(line->n < 100 ? line->n : 100), line->text, source);
    *name = line->text;
    *name_n = (size_t)(equals - line->text);
    *value = equals + 1;
    *value_n = line->n - *name_n - 1;
    text_trim(name, name_n);
    text_trim(value, value_n);
    return 0;
}

/* The next line that is not empty, or the next word. */
static bool text_next(const char **at, bool are_lines, text_line *line)
{
    if (!are_lines) {
        line->text = *at + strspn(*at, SPACE);
        line->n = strcspn(line->text, SPACE);
        *at = line->text + line->n;
        return line->n > 0;
    }
    while (**at) {
        line->number++;
        line->text = *at;
        line->n = strcspn(*at, "#\n");
        *at += strcspn(*at, "\n");
        *at += **at == '\n';
        text_trim(&line->text, &line->n);
        if (line->n > 0)
            return true;
    }
    return false;
}

static void layer_note_unknown(const char *name, size_t n, const char *where, bth_notes *notes)
{
    char nearest[BTH_NEAREST_TEXT_NBYTES];

    bth_option_print_nearest(name, n, nearest);
    bth_notes_add(notes, "%.*s: no such option%s; it is skipped (%s)", (int)(n < 64 ? n : 64), name,
                  nearest, where);
}

int bth_layer_parse(bth_layer *layer, const char *text, bool are_lines, const char *source,
                    berth_error *error)
{
    bth_notes notes = {0};
    text_line line = {0};

    if (!text && are_lines)
        return bth_fail_argument(error, "the text is NULL");
    if (!text)
        return bth_fail_argument(error, "the assignments are NULL (in a %s)", source);
    while (error->code == BERTH_OK && text_next(&text, are_lines, &line)) {
        char nearest[BTH_NEAREST_TEXT_NBYTES], where[40];
        const char *name, *value;
        size_t name_n, value_n;
        if (are_lines)
            (void)snprintf(where, sizeof where, "in line %zu", line.number);
        else
            (void)snprintf(where, sizeof where, "in a %s", source);
        if (line_divide(&line, &name, &name_n, &value, &value_n, where, error) < 0)
            break;
        const bth_option_row *row = bth_option_find(name, name_n, false, NULL);
        if (row) {
            row = bth_option_use(row, &notes);
            layer->source[bth_option_index(row)] = source;
            (void)bth_option_parse(row, value, value_n, where,
                                   bth_option_field(&layer->values, row), error);
        } else if (are_lines) {
            layer_note_unknown(name, name_n, where, &notes);
        } else {
            bth_option_print_nearest(name, name_n, nearest);
            (void)bth_fail_status(error, BERTH_E_OPTION, "%.*s: no such option%s (%s)",
                                  (int)(name_n < 100 ? name_n : 100), name, nearest, where);
        }
    }
    bth_notes_log(&notes);
    return error->code;
}

/* ---- the environment ---- */

/* One reading. */
typedef struct reading {
    bth_environment *environment;
    size_t first;
    unsigned ranks[2][BTH_MAX_OPTIONS]; /* of the variables that set the values, so far */
    bth_notes *notes;
} reading;

/* ---- variables ---- */

/* PyTorch's name for `debug` ranks behind all of ours. */
#define TORCH_DEBUG "TORCH_SERIALIZATION_DEBUG"
#define TORCH_RANK 100

typedef struct variable {
    const char *name;
    size_t name_n;
    const char *value;
    size_t value_n;
    bool is_forced;
    const bth_option_row *row; /* NULL: it sets no option */
    unsigned rank;             /* of several variables for one option, the lowest rank counts */
} variable;

/* Skips the prefix, if the variable's name begins with it. */
static bool variable_skip_prefix(const char **name, size_t *n, const char *prefix)
{
    size_t prefix_n = strlen(prefix);

    if (*n < prefix_n || memcmp(*name, prefix, prefix_n) != 0)
        return false;
    *name += prefix_n;
    *n -= prefix_n;
    return true;
}

/* Finds the option that a variable sets. */
static int variable_identify(const char *entry, variable *found, bth_notes *notes,
                             berth_error *error)
{
    size_t n = strcspn(entry, "=");
    const char *rest = entry;
    char text[80];

    *found = (variable){.name = entry, .name_n = n, .value = entry[n] ? entry + n + 1 : entry + n};
    found->value_n = strlen(found->value);
    if (variable_skip_prefix(&rest, &n, TORCH_DEBUG)) {
        if (n == 0 && strcmp(found->value, "1") == 0) /* PyTorch ignores all other values */
            found->row = bth_option_find("debug", strlen("debug"), false, NULL);
        found->rank = TORCH_RANK;
        return 0;
    }
    if (!variable_skip_prefix(&rest, &n, "BERTH_"))
        return 0;
    found->is_forced = variable_skip_prefix(&rest, &n, "FORCE_");
    found->row = bth_option_find(rest, n, true, &found->rank);
    /* A variable that begins like an option and is none: near to one, it is a mistake; else perhaps
     * an option of another version, or of a framework that has not registered it yet. */
    if (found->row || (!found->is_forced && !bth_variable_name_has_section(rest, n)))
        return 0;
    const bth_option_row *nearest = bth_option_find_nearest(rest, n, true);
    int name_n = (int)(found->name_n < 100 ? found->name_n : 100);
    if (!nearest) {
        bth_notes_add(notes, "%.*s in the environment: no such option; it is ignored", name_n,
                      found->name);
        return 0;
    }
    bth_option_print_variable(nearest, text, sizeof text);
    return bth_fail_status(error, BERTH_E_OPTION,
                           "%.*s in the environment: no such option; the nearest is BERTH_%s%s",
                           name_n, found->name, found->is_forced ? "FORCE_" : "", text);
}

static int reading_add_value(reading *into, const variable *found, const char *where,
                             const char *source, berth_error *error)
{
    const bth_option_row *row = bth_option_use(found->row, into->notes);
    size_t i = bth_option_index(row);
    bth_environment *environment = into->environment;
    bth_layer *layer = found->is_forced ? &environment->force : &environment->plain;
    char *own_source = environment->sources[found->is_forced][i];
    unsigned *rank = &into->ranks[found->is_forced][i];
    int64_t value;

    if (i < into->first)
        return 0;
    if (bth_option_parse(row, found->value, found->value_n, where, &value, error) < 0)
        return error->code;
    /* If a name occurs twice, the first counts, as for getenv. */
    if (layer->source[i] && *rank <= found->rank)
        return 0;
    layer->source[i] = own_source;
    *rank = found->rank;
    *bth_option_field(&layer->values, row) = value;
    (void)snprintf(own_source, sizeof environment->sources[0][i], "%s", source);
    return 0;
}

/* ---- the file ---- */

#define FILE_VARIABLE "BERTH_CONFIG="
#define MAX_FILE_NBYTES ((size_t)1 << 20)

/* What the file held, for options that are registered later. */
static char *file_text;

/* The text of a file of at most MAX_FILE_NBYTES. NULL after an error. */
static char *file_read(const char *path, berth_error *error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    size_t n = 0;
    ssize_t got = 0;

    if (fd < 0)
        return bth_fail_system(error, errno, "%.300s: cannot be opened", path), NULL;
    char *text = bth_allocate(MAX_FILE_NBYTES + 1);
    while (text && n <= MAX_FILE_NBYTES &&
           ((got = read(fd, text + n, MAX_FILE_NBYTES + 1 - n)) > 0 || (got < 0 && errno == EINTR)))
        n += got > 0 ? (size_t)got : 0;
    if (!text)
        (void)bth_fail_memory(error, MAX_FILE_NBYTES + 1);
    else if (got < 0)
        (void)bth_fail_system(error, errno, "%.300s: cannot be read", path);
    else if (n > MAX_FILE_NBYTES)
        (void)bth_fail_status(error, BERTH_E_OPTION,
                              "%.300s: larger than 1 MiB, so it holds no options", path);
    else if (memchr(text, 0, n))
        (void)bth_fail_status(error, BERTH_E_OPTION, "%.300s: byte %zu is zero, so it is no text",
                              path, strnlen(text, n));
    else
        text[n] = '\0';
    (void)close(fd);
    if (error->code != BERTH_OK) {
        bth_release(text);
        return NULL;
    }
    char *kept = bth_reallocate(text, n + 1);
    return kept ? kept : text;
}

/* The first line with a mistake is the error; what follows is read nevertheless. */
static void reading_add_file(reading *into, const char *path, berth_error *error)
{
    text_line line = {0};
    berth_error own = {0};

    if (into->first == 0) {
        bth_release(file_text);
        file_text = file_read(path, &own);
    }
    for (const char *at = file_text; at && text_next(&at, true, &line);) {
        /* Later lines of one option count more, and variables more than lines. */
        variable found = {.rank = UINT_MAX - (unsigned)line.number};
        char where[200], source[80];
        (void)snprintf(where, sizeof where, "in line %zu of %.150s", line.number, path);
        (void)snprintf(source, sizeof source, "file %.60s:%zu", path, line.number);
        if (line_divide(&line, &found.name, &found.name_n, &found.value, &found.value_n, where,
                        &own) < 0)
            continue;
        found.row = bth_option_find(found.name, found.name_n, false, NULL);
        if (found.row)
            (void)reading_add_value(into, &found, where, source, &own);
        else if (into->first == 0)
            layer_note_unknown(found.name, found.name_n, where, into->notes);
    }
    if (own.code != BERTH_OK && error->code == BERTH_OK) {
        (void)bth_error_prefix(&own, "BERTH_CONFIG in the environment");
        *error = own;
    }
}

int bth_environment_read(char *const *variables, size_t first, bth_environment *environment,
                         bth_notes *notes, berth_error *error)
{
    reading into = {.environment = environment, .first = first, .notes = notes};
    bool has_file = false;

    if (first == 0)
        memset(environment, 0, sizeof *environment);
    for (; variables && *variables; variables++) {
        const char *entry = *variables;
        if (strncmp(entry, FILE_VARIABLE, strlen(FILE_VARIABLE)) == 0) {
            if (!has_file && entry[strlen(FILE_VARIABLE)] != '\0')
                reading_add_file(&into, entry + strlen(FILE_VARIABLE), error);
            has_file = true;
            continue;
        }
        char where[96], source[80];
        bth_notes unused = {0};
        berth_error unused_error = {0};
        variable found;
        bool is_first = first == 0; /* mistakes are reported once */
        if (variable_identify(entry, &found, is_first ? notes : &unused,
                              is_first ? error : &unused_error) < 0 ||
            !found.row)
            continue;
        (void)snprintf(where, sizeof where, "%.*s in the environment", (int)found.name_n,
                       found.name);
        (void)snprintf(source, sizeof source, "%s %.*s", found.is_forced ? "force" : "environment",
                       (int)found.name_n, found.name);
        (void)reading_add_value(&into, &found, where, source, error);
    }
    return error->code;
}
