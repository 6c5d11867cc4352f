/* SPDX-License-Identifier: BSD-3-Clause */
/* berth map: where the bytes of a file lie, in the terminal, as JSON or as a picture. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters/curl/berth_curl.h"
#include "tools/commands/commands.h"
#include "tools/common/inputs.h"
#include "tools/common/options.h"
#include "tools/common/outputs.h"
#include "tools/common/report.h"
#include "tools/common/urls.h"
#include "tools/map/map.h"

typedef struct map_options {
    common common;
    positional words;
    const char *out; /* of the picture; NULL: the terminal */
    bool records_only;
} map_options;

static const struct argp_option own_options[] = {
    {"output", 'o', "FILE", 0,
     "write a picture: SVG with tooltips, for any browser; -: standard output", 1},
    {"records", 'r', NULL, 0, "only the records of the archive, of any zip that PyTorch writes", 1},
    {0}};

static error_t map_parse(int key, char *word, struct argp_state *state)
{
    map_options *options = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->common;
        return 0;
    case 'o':
        options->out = keep_url(word); /* U1 */
        return 0;
    case 'r':
        options->records_only = true;
        return 0;
    default:
        return parse_positional(key, word, state, &options->words);
    }
}

/* ---- in the terminal ---- */

enum { MARGIN = 16, MAX_ROWS = 16, MIN_COLUMNS = 24, MAX_COLUMNS = 400, N_DTYPE_LETTERS = 26 };

/* What is printed, and the letters of its dtypes. */
typedef struct map_text {
    const map *m;
    size_t n_columns; /* of the bar */
    char letters[BERTH_DTYPE_COUNT];
    berth_dtype by_letter[N_DTYPE_LETTERS];
    unsigned n_letters;
} map_text;

static size_t terminal_columns(void)
{
    const char *columns = getenv("COLUMNS");
    size_t n = columns ? strtoul(columns, NULL, 10) : 0;
    struct winsize size;

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        n = size.ws_col;
    else if (n == 0)
        n = 80;
    return n < MIN_COLUMNS ? MIN_COLUMNS : n > MAX_COLUMNS ? MAX_COLUMNS : n;
}

/* A for the dtype with most bytes, B for the next one; all from Z on share it. */
static void text_choose_letters(map_text *text)
{
    bool chosen[BERTH_DTYPE_COUNT] = {false};

    for (unsigned n = 0; n < BERTH_DTYPE_COUNT; n++) {
        unsigned best = 0;
        for (unsigned i = 1; i < BERTH_DTYPE_COUNT; i++)
            if (!chosen[i] && (chosen[best] || text->m->dtypes[i] > text->m->dtypes[best]))
                best = i;
        if (chosen[best] || text->m->dtypes[best] == 0)
            return;
        chosen[best] = true;
        text->letters[best] = (char)('A' + (n < N_DTYPE_LETTERS ? n : N_DTYPE_LETTERS - 1));
        if (n < N_DTYPE_LETTERS)
            text->by_letter[text->n_letters++] = (berth_dtype)best;
    }
}

static colour letter_colour(char letter)
{
    static const colour dtypes[] = {BLUE, GREEN, MAGENTA, YELLOW};

    if (letter >= 'A' && letter <= 'Z')
        return dtypes[(size_t)(letter - 'A') % (sizeof dtypes / sizeof *dtypes)];
    return letter == '-' || letter == '?' ? RED : letter == 'p' ? BOLD : FAINT;
}

/* The letter of most bytes of [begin, end). */
static char text_cell(const map_text *text, uint64_t begin, uint64_t end)
{
    const map_parts *all = &text->m->parts;
    uint64_t nbytes[128] = {0};
    char found = ' ';

    for (size_t i = map_parts_find(all, begin); i < all->n && all->parts[i].offset < end; i++) {
        const map_part *part = &all->parts[i];
        uint64_t from = part->offset > begin ? part->offset : begin;
        uint64_t to = part->offset + part->nbytes < end ? part->offset + part->nbytes : end;
        berth_dtype dtype = map_part_dtype(text->m, part);
        bool has_dtype = part->kind == PART_STORAGE && part->index != PART_NO_STORAGE &&
                         dtype < BERTH_DTYPE_COUNT;
        char letter = part_kind_letters[part->kind];
        if (has_dtype)
            letter = text->letters[dtype];
        nbytes[(size_t)letter] += to - from;
        if (found == ' ' || nbytes[(size_t)letter] > nbytes[(size_t)found])
            found = letter;
    }
    return found;
}

/* '=': all of it is in memory, '-': some, ' ': nothing. */
static char text_cache_cell(const map *m, uint64_t begin, uint64_t end)
{
    size_t i = map_parts_find(&m->cached, begin);

    if (i == m->cached.n || m->cached.parts[i].offset >= end)
        return ' ';
    const map_part *part = &m->cached.parts[i];
    return part->kind == PART_CACHED && part->offset <= begin && part->offset + part->nbytes >= end
               ? '='
               : '-';
}

static void print_row(const map_text *text, uint64_t begin, uint64_t row_nbytes)
{
    const map *m = text->m;
    bool is_partly_cached = m->has_cache && m->cached_nbytes > 0 && m->cached_nbytes < m->nbytes;
    int n_lines = is_partly_cached ? 2 : 1;
    char letter, before = 0;

    printf("%14" PRIu64 "  ", begin);
    for (int line = 0; line < n_lines; line++) {
        if (line > 0)
            printf("%s%14s  ", paint(FAINT), "in memory");
        for (size_t i = 0; i < text->n_columns; i++) {
            uint64_t from =
                begin + (uint64_t)((double)row_nbytes / (double)text->n_columns * (double)i);
            uint64_t to =
                begin + (uint64_t)((double)row_nbytes / (double)text->n_columns * (double)(i + 1));
            to = to > from ? to : from + 1;
            if (from >= m->nbytes || from >= begin + row_nbytes)
                break;
            to = to < m->nbytes ? to : m->nbytes;
            if (line > 0)
                letter = text_cache_cell(m, from, to);
            else
                letter = text_cell(text, from, to);
            if (line == 0 && letter != before)
                printf("%s%s", paint(PLAIN), paint(letter_colour(letter)));
            before = letter;
            putchar(letter);
        }
        printf("%s\n", paint(PLAIN));
    }
}

static void print_legend(const map *m, char letter, const char *what, uint64_t nbytes)
{
    char human[32];

    printf("%s%c%s %-16s %12s %6.2f %%\n", paint(letter_colour(letter)), letter, paint(PLAIN), what,
           human_nbytes(nbytes, human), m->nbytes ? 100.0 * (double)nbytes / (double)m->nbytes : 0);
}

static void print_facts(const map *m)
{
    char nbytes[32];
    size_t n_shared = map_count_shared(m);

    if (n_shared > 0)
        printf("%zu storage%s ha%s several tensors\n", n_shared, n_shared == 1 ? "" : "s",
               n_shared == 1 ? "s" : "ve");
    if (m->kinds[PART_UNUSED] > 0)
        printf("%s that no tensor uses; `berth convert --compact` leaves them out\n",
               human_nbytes(m->kinds[PART_UNUSED], nbytes));
    if (m->has_extents)
        printf("%zu extent%s on disk\n", m->n_extents, m->n_extents == 1 ? "" : "s");
    if (m->has_cache)
        printf("in the page cache: %s, %.2f %%\n", human_nbytes(m->cached_nbytes, nbytes),
               m->nbytes ? 100.0 * (double)m->cached_nbytes / (double)m->nbytes : 0);
}

static int print_map(const map *m)
{
    map_text text = {.m = m, .n_columns = terminal_columns() - MARGIN - 1};
    size_t n_rows = map_n_rows(m, MAX_ROWS);
    uint64_t row_nbytes = m->nbytes / n_rows + 1;
    char nbytes[32];

    text_choose_letters(&text);
    printf("%s, %s, %zu storage%s, %zu tensor%s\n", human_nbytes(m->nbytes, nbytes), m->container,
           m->n_storages, m->n_storages == 1 ? "" : "s", m->n_tensors,
           m->n_tensors == 1 ? "" : "s");
    for (size_t i = 0; i < n_rows && i * row_nbytes < m->nbytes; i++)
        print_row(&text, i * row_nbytes, row_nbytes);
    for (unsigned i = 0; i < text.n_letters; i++)
        print_legend(m, (char)('A' + i), berth_dtype_name(text.by_letter[i]),
                     m->dtypes[text.by_letter[i]]);
    for (unsigned i = 0; i < PART_N_KINDS; i++)
        if (i != PART_STORAGE && m->kinds[i] > 0)
            print_legend(m, part_kind_letters[i], part_kind_texts[i], m->kinds[i]);
    print_facts(m);
    return finish_output(EXIT_YES);
}

/* ---- as JSON ---- */

static json_t *offset_json(uint64_t offset)
{
    return offset == BERTH_NO_OFFSET ? json_null() : json_integer((json_int_t)offset);
}

static json_t *part_json(const map *m, const map_part *part)
{
    json_t *object = json_pack("{s:s,s:I,s:I}", "kind", part_kind_names[part->kind], "offset",
                               (json_int_t)part->offset, "nbytes", (json_int_t)part->nbytes);

    if (part->name)
        json_object_set_new(object, "record", text_json(part->name));
    if (part->index != PART_NO_STORAGE)
        json_object_set_new(object, "storage", json_integer((json_int_t)part->index));
    if (part->kind == PART_STORAGE && part->index != PART_NO_STORAGE)
        json_object_set_new(object, "dtype",
                            json_string(berth_dtype_name(map_part_dtype(m, part))));
    return object;
}

static json_t *storage_json(const map_storage *storage)
{
    const berth_storage_info *info = berth_storage_get_info(storage->storage);

    return json_pack("{s:o,s:o,s:I,s:I,s:s,s:b,s:I,s:o}", "key", text_json(info->key), "offset",
                     offset_json(storage->offset), "nbytes", (json_int_t)storage->nbytes,
                     "used_nbytes", (json_int_t)storage->used_nbytes, "dtype",
                     berth_dtype_name(storage->dtype), "deflated", storage->is_deflated, "tensors",
                     (json_int_t)storage->n_tensors, "first_tensor",
                     storage->first_name ? text_json(storage->first_name) : json_null());
}

static json_t *totals_json(const map *m)
{
    json_t *totals = json_object(), *dtypes = json_object();

    for (unsigned i = 0; i < PART_N_KINDS; i++)
        json_object_set_new(totals, part_kind_names[i], json_integer((json_int_t)m->kinds[i]));
    for (unsigned i = 0; i < BERTH_DTYPE_COUNT; i++)
        if (m->dtypes[i] > 0)
            json_object_set_new(dtypes, berth_dtype_name((berth_dtype)i),
                                json_integer((json_int_t)m->dtypes[i]));
    json_object_set_new(totals, "dtypes", dtypes);
    return totals;
}

static json_t *extents_json(const map *m)
{
    json_t *array = json_array();

    if (!m->has_extents) {
        json_decref(array);
        return json_null();
    }
    for (size_t i = 0; i < m->extents.n; i++) {
        const map_part *part = &m->extents.parts[i];
        json_array_append_new(array, json_pack("{s:I,s:I,s:I}", "offset", (json_int_t)part->offset,
                                               "nbytes", (json_int_t)part->nbytes, "disk_offset",
                                               (json_int_t)part->address));
    }
    return array;
}

static json_t *page_cache_json(const map *m)
{
    json_t *array = json_array();

    if (!m->has_cache) {
        json_decref(array);
        return json_null();
    }
    for (size_t i = 0; i < m->cached.n; i++) {
        const map_part *part = &m->cached.parts[i];
        json_array_append_new(array, json_pack("{s:I,s:I,s:b}", "offset", (json_int_t)part->offset,
                                               "nbytes", (json_int_t)part->nbytes, "whole",
                                               part->kind == PART_CACHED));
    }
    return json_pack("{s:I,s:o}", "nbytes", (json_int_t)m->cached_nbytes, "ranges", array);
}

static json_t *map_json(const map *m)
{
    json_t *parts = json_array(), *storages = json_array();

    for (size_t i = 0; i < m->parts.n; i++)
        json_array_append_new(parts, part_json(m, &m->parts.parts[i]));
    for (size_t i = 0; i < m->n_storages; i++)
        json_array_append_new(storages, storage_json(&m->storages[i]));
    return json_pack("{s:o,s:s,s:I,s:I,s:o,s:o,s:o,s:o,s:o}", "file", text_json(m->path),
                     "container", m->container, "nbytes", (json_int_t)m->nbytes, "tensors",
                     (json_int_t)m->n_tensors, "totals", totals_json(m), "storages", storages,
                     "parts", parts, "extents", extents_json(m), "page_cache", page_cache_json(m));
}

/* ---- as a picture ---- */

static int make_picture(const map *m, const char *out)
{
    char *bytes = NULL;
    size_t nbytes = 0;
    FILE *memory = open_memstream(&bytes, &nbytes);

    if (!memory)
        return print_trouble("out of memory");
    map_print_svg(m, memory);
    int code =
        fclose(memory) == 0 ? save_bytes(out, bytes, nbytes) : print_trouble("out of memory");
    free(bytes);
    return code;
}

/* ---- the command ---- */

const struct argp map_argp = {
    .options = own_options,
    .parser = map_parse,
    .args_doc = "FILE",
    .doc =
        "Show where the bytes of a checkpoint lie: headers, padding, the pickle, storages by "
        "dtype, "
        "bytes that no tensor uses, the directory; storages that several tensors share; extents on "
        "the "
        "disk and what of the file is in the page cache, where the system tells. In the terminal a "
        "letter stands for what most of its bytes are. In a picture (-o map.svg) parts that are "
        "too "
        "narrow are drawn as one; its metadata have the offset, size, dtype and number of tensors "
        "of "
        "every storage. FILE can be a URL: only what `berth ls` requests is read.",
    .children = common_children};

/*
 * Opened for the kernel's answers; the library says what is wrong with a file that cannot be. Of a
 * URL there is neither a disk nor a page cache.
 */
static int map_open_file(map *m)
{
    berth_error error;
    struct stat status;

    if (find_source(m->path, &m->source, &error) < 0)
        return fail(&error);
    if (berth_is_url(m->path)) {
        m->nbytes = m->source.nbytes;
        return 0;
    }
    m->fd = open(m->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (m->fd < 0 || fstat(m->fd, &status) < 0 || !S_ISREG(status.st_mode))
        return 0;
    m->nbytes = (uint64_t)status.st_size;
    map_read_disk(m);
    return 0;
}

int run_map(int argc, char **argv)
{
    map_options options = {.words = {.min = 1, .max = 1}};
    berth_stats stats = {0};
    map m = {.fd = -1};

    parse_options(&map_argp, argc, argv, &options);
    if (options.out && is_standard(options.out) && options.common.json)
        return print_trouble("--json and the picture cannot both go to standard output");
    m.path = input_path(options.words.words[0]);
    if (!m.path ||
        (options.out && ((!is_standard(options.out) && check_written_path(options.out)) ||
                         check_output_is_another_file(m.path, options.out))))
        return EXIT_TROUBLE;
    int code = check_is_one_file(m.path);
    if (code == EXIT_YES)
        code = map_open_file(&m);
    if (code == EXIT_YES)
        code = map_read(&m, options.records_only, &stats);
    if (code == EXIT_YES && options.out)
        code = make_picture(&m, options.out);
    if (code == EXIT_YES && options.common.json)
        code = print_json(map_json(&m));
    else if (code == EXIT_YES && !options.out)
        code = print_map(&m);
    map_free(&m);
    if (m.fd >= 0)
        (void)close(m.fd);
    return code == EXIT_YES && options.common.stats ? (print_stats(&stats), code) : code;
}
