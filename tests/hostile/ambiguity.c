/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Archives that readers of zip are known to read in different ways. The recipes in
 * tests/hostile/ambiguity/ make them, one file for each kind. Each archive is refused with its
 * message, or read in one way, by every reader: berth_open at every load.check, with offsets
 * computed or from the directory, from memory, a file or a function; as an archive; by
 * verification; by the command; with debug mode and without. The result of each reader is written
 * after each recipe.
 *
 * BERTH_UPDATE=1 writes there what is said now: to be read with care before it is kept.
 * BERTH_KEEP=folder only puts the archives there. BERTH_LONG=1 asks all subcommands.
 */
#include <dirent.h>
#include <sys/wait.h>

#include "tests/support/hostile/recipe.h"
#include "tests/support/hostile/ways.h"
#include "tests/support/scene.h"

#define FOLDER "tests/hostile/ambiguity"

static size_t n_refused, n_read, n_readings;
/* Of those that are refused: what load.check=directory, the default, opens, and lists. */
static size_t n_opened, n_listed;
/* What load.check=directory reads as repacked files. */
static size_t n_repacked;

static void set_up(void)
{
    begin_scene("variant.pt");
}

TestSuite(ambiguity, .init = set_up, .fini = end_scene);

/* One variant: what it is called, its archive, what each way says of it. */
struct variant {
    char name[256];
    const uint8_t *bytes;
    size_t nbytes;
    said says[N_WAYS];
    bool is_repacked; /* the sample was repacked before the recipe was followed */
};

/* ---- what must hold whatever a variant is ---- */

/* Whoever checks more refuses more, and all that read it read the same. */
static void expect_one_reading(const struct variant *variant)
{
    /* load.check=none goes by the layout alone, and says in its help what that cannot notice. */
    for (int way = OPEN_DIRECTORY; way < N_WAYS; way++)
        cr_expect_null(strstr(variant->says[way], "OTHERWISE"), "%s: %s: %s", variant->name,
                       way_names[way], variant->says[way]);
    for (int way = 0; way < N_IN_FOURS; way++)
        for (int more = way + 1; more < (way / 4 + 1) * 4; more++)
            if (is_read(variant->says[more]) &&
                !(way == OPEN_NONE && is_repacked(variant->says[more])))
                cr_expect_str_eq(variant->says[way], variant->says[more], "%s: %s: %s",
                                 variant->name, way_names[way], variant->says[way]);
    /* The strictest of each kind agree about an archive that follows the layout. */
    if (is_read(variant->says[OPEN_DATA])) {
        cr_expect(is_read(variant->says[OFF_DATA]), "%s", variant->name);
        cr_expect(is_read(variant->says[ARCHIVE_DATA]), "%s", variant->name);
    }
    cr_expect_eq(is_read(variant->says[OPEN_DATA]), is_read(variant->says[VERIFY]), "%s: %s",
                 variant->name, variant->says[VERIFY]);
    /* Z13: debug mode refuses what was repacked. */
    cr_expect_eq(is_read(variant->says[VERIFY]) && !is_repacked(variant->says[VERIFY]),
                 is_read(variant->says[VERIFY_DEBUG]), "%s: %s", variant->name,
                 variant->says[VERIFY_DEBUG]);
}

/* What debug mode says; it never checks less than load.check=headers. */
static const char *says_debug_mode(const struct variant *variant, int check)
{
    if (is_repacked(variant->says[OPEN_HEADERS]))
        return variant->says[VERIFY_DEBUG];
    return variant->says[check > OPEN_HEADERS ? check : OPEN_HEADERS];
}

/* Z13: as debug mode does; without local headers, which are not read, by the layout alone. */
static void expect_refused_on_request(const struct variant *variant)
{
    said text;

    for (int check = OPEN_DIRECTORY; check <= OPEN_DATA; check++) {
        verdict_on_bytes(text, variant->bytes, variant->nbytes, check_options[check],
                         "load.repacked=refuse", false);
        cr_expect_eq(is_read(text),
                     is_read(variant->says[check]) && !is_repacked(variant->says[check]),
                     "%s: %s, load.repacked=refuse: %s", variant->name, way_names[check], text);
    }
    n_readings += 3;
}

/* From wherever the bytes come; and in debug mode as with load.check=headers at least. */
static void expect_the_same_by_other_ways(const struct variant *variant)
{
    said text, says;

    for (int check = 0; check < 4; check++) {
        bool debug = check < OPEN_HEADERS;
        const char *strict = says_debug_mode(variant, check);
        verdict_on_bytes(text, variant->bytes, variant->nbytes, check_options[check], "", true);
        cr_expect_str_eq(text, strict, "%s: %s in debug mode: %s", variant->name, way_names[check],
                         text);
        verdict_on_pieces(text, variant->bytes, variant->nbytes, check_options[check], true);
        cr_expect_str_eq(text, strict, "%s: %s by pieces: %s", variant->name, way_names[check],
                         text);
        verdict_on_file(text, path, check_options[check], false);
        /* A storage that is read, not mapped, is summed when it is asked for. */
        (void)snprintf(says, sizeof says, "%s", variant->says[check]);
        remove_opened_mark(says);
        remove_opened_mark(text);
        cr_expect_str_eq(text, says, "%s: %s of a file: %s", variant->name, way_names[check], text);
        verdict_on_archive(text, variant->bytes, variant->nbytes, check_options[check], true);
        cr_expect_str_eq(text, variant->says[ARCHIVE_NONE + (debug ? 2 : check)],
                         "%s: the archive, %s, in debug mode: %s", variant->name,
                         check_options[check], text);
    }
    n_readings += 16 + N_WAYS;
}

static void expect_command(const struct variant *variant, const char *words, const char *more,
                           bool debug, const char *says)
{
    bool lists = strcmp(words, "ls") == 0 || strcmp(words, "info") == 0; /* Z12: inflates nothing */
    said text, expected;
    int code = run_command(text, words, path, more, debug);

    (void)snprintf(expected, sizeof expected, "%s", lists && is_opened_only(says) ? "read" : says);
    remove_opened_mark(expected);
    cr_expect(is_read(expected) ? is_read(text) : strcmp(text, expected) == 0, "%s: berth %s%s: %s",
              variant->name, words, debug ? " in debug mode" : "", text);
    cr_expect_eq(code == 0, is_read(expected), "%s: berth %s: %d", variant->name, words, code);
    n_readings++;
}

/* Records are taken over, as an archive's are read, whatever they say; or refused with a sentence.
 */
static void expect_copy(const struct variant *variant, const char *out, bool debug)
{
    said text;
    int code = run_command(text, "copy", path, out, debug);

    cr_expect_leq(code, 1, "%s: berth copy: %s", variant->name, text);
    cr_expect(code == 1 || is_read(variant->says[debug ? ARCHIVE_HEADERS : ARCHIVE_DIRECTORY]),
              "%s: berth copy takes over what an archive's reader refuses", variant->name);
    n_readings++;
}

/* The command says what the function behind it says. */
static void expect_commands(const struct variant *variant)
{
    char other[4096], *out = test_path(folder, "out.pt");

    for (int debug = 0; debug < 2 && *command_path(); debug++) {
        const char *opened =
            debug ? says_debug_mode(variant, OPEN_HEADERS) : variant->says[OPEN_DIRECTORY];
        expect_command(variant, "ls", "", debug, opened);
        expect_command(variant, "verify", "", debug, variant->says[debug ? VERIFY_DEBUG : VERIFY]);
        if (!getenv("BERTH_LONG") || strcmp(getenv("BERTH_LONG"), "1") != 0)
            continue;
        (void)snprintf(other, sizeof other, "%s", path);
        expect_command(variant, "info", "", debug, opened);
        expect_command(variant, "diff", other, debug, opened);
        expect_command(variant, "convert", out, debug, opened);
        expect_copy(variant, out, debug);
    }
    free(out);
}

/* ---- what each way says, as text ---- */

/* The names of the ways that say what `way` says; four of a kind are "open", "off", "archive". */
static void name_ways(const struct variant *variant, int way, char *names, size_t nbytes)
{
    static const char *const fours[] = {"open", "off", "archive"};
    size_t n = 0;

    for (int i = 0; i < N_WAYS; i++) {
        int same = 0;
        for (int j = i; i % 4 == 0 && i < N_IN_FOURS && j < i + 4; j++)
            same += strcmp(variant->says[j], variant->says[way]) == 0;
        if (strcmp(variant->says[i], variant->says[way]) == 0)
            n += (size_t)snprintf(names + n, nbytes - n, " %s",
                                  same == 4 ? fours[i / 4] : way_names[i]);
        i += same == 4 ? 3 : 0;
    }
}

/* A line a sentence, with who says it. */
static char *tell(const struct variant *variant)
{
    char *text = NULL, names[512];
    size_t nbytes;
    FILE *out = open_memstream(&text, &nbytes);

    for (int way = 0; way < N_WAYS; way++) {
        bool is_told = false;
        for (int before = 0; before < way; before++)
            is_told = is_told || strcmp(variant->says[before], variant->says[way]) == 0;
        if (is_told)
            continue;
        name_ways(variant, way, names, sizeof names);
        (void)fprintf(out, ">%s: %s\n", names, variant->says[way]);
    }
    (void)fclose(out);
    return text;
}

/* ---- the files of recipes ---- */

/* Asks everybody; returns what is said, malloc's. */
static char *try_variant(struct variant *variant)
{
    test_write_file(path, variant->bytes, variant->nbytes);
    for (int way = 0; way < N_WAYS; way++)
        ask_way(variant->says[way], (enum way)way, variant->bytes, variant->nbytes, path);
    expect_one_reading(variant);
    expect_the_same_by_other_ways(variant);
    expect_refused_on_request(variant);
    if (!variant->is_repacked)
        expect_commands(variant);
    n_repacked += is_repacked(variant->says[OPEN_DIRECTORY]);
    bool refused = !is_read(variant->says[ARCHIVE_DATA]);
    n_read += !refused;
    n_refused += refused;
    n_opened += refused && is_read(variant->says[OPEN_DIRECTORY]);
    n_listed += refused && is_read(variant->says[ARCHIVE_DIRECTORY]);
    return tell(variant);
}

static void keep(const struct variant *variant, const char *into)
{
    char name[320];

    (void)snprintf(name, sizeof name, "%.200s.pt", variant->name);
    for (char *at = name; *at; at++)
        *at = *at == '/' || *at == ' ' ? '-' : *at;
    char *kept = test_path(into, name);
    test_write_file(kept, variant->bytes, variant->nbytes);
    free(kept);
}

/* NULL: it was only to be kept. */
static char *make_variant(struct recipe *recipe, const char *name, const char *kind,
                          const char *repacked)
{
    static struct variant variant;
    const char *into = getenv("BERTH_KEEP");

    render(recipe);
    /* Blocks of the C library end where the bytes do: the sanitizer sees a read beyond. */
    uint8_t *bytes = malloc(recipe->file.n);
    memcpy(bytes, recipe->file.bytes, recipe->file.n);
    (void)snprintf(variant.name, sizeof variant.name, "%s%s: %s", kind, repacked, name);
    variant.bytes = bytes;
    variant.nbytes = recipe->file.n;
    variant.is_repacked = *repacked;
    if (into)
        keep(&variant, into);
    char *text = into ? NULL : try_variant(&variant);
    free(bytes);
    return text;
}

/* ---- the same lies in repacked files (Z13) ---- */

/* The sample as other tools write it again: their headers, another order, a folder, a foreign file.
 */
static const struct {
    const char *name;
    const char *lines[5];
} repackings[] = {
    {", zipped again", {"repacked"}},
    {", reordered", {"repacked", "swap data.pkl version", "swap data/0 data/2"}},
    {", reordered as PyTorch writes", {"swap data/0 data/1", "swap .format_version byteorder"}},
    {", with more entries",
     {"repacked", "add data/ ''", "add .DS_Store 'Bud1'", "swap .DS_Store data/1"}},
};

static void try_repacked(const char *lines, const char *name, const char *kind)
{
    for (size_t i = 0; i < sizeof repackings / sizeof *repackings; i++) {
        struct recipe recipe;
        char *copy = strdup(lines), *at = copy;
        begin_recipe(&recipe);
        recipe.is_lenient = true;
        for (size_t j = 0; j < 5 && repackings[i].lines[j]; j++)
            follow(&recipe, repackings[i].lines[j]);
        while (*at)
            follow(&recipe, strsep(&at, "\n"));
        free(make_variant(&recipe, name, kind, repackings[i].name));
        free(copy);
        end_recipe(&recipe);
    }
}

/*
 * A block: "== name", a recipe's lines, and the lines that begin with '>'. *at moves behind it;
 * what is to be kept of it goes to `out`.
 */
static void try_block(char **at, const char *kind, FILE *out)
{
    struct recipe recipe;
    char *expected = NULL, *followed = NULL, name[200];
    size_t nbytes, followed_nbytes;
    FILE *lines = open_memstream(&expected, &nbytes);
    FILE *steps = open_memstream(&followed, &followed_nbytes);

    begin_recipe(&recipe);
    (void)snprintf(name, sizeof name, "%s", strsep(at, "\n") + 3);
    (void)fprintf(out, "== %s\n", name);
    while (*at && **at && **at != '\n') {
        char *line = strsep(at, "\n");
        if (*line == '>') {
            (void)fprintf(lines, "%s\n", line);
            continue;
        }
        (void)fprintf(out, "%s\n", line);
        (void)fprintf(steps, "%s\n", line);
        follow(&recipe, line);
    }
    (void)fclose(lines);
    (void)fclose(steps);
    char *text = make_variant(&recipe, name, kind, "");
    try_repacked(followed, name, kind);
    (void)fputs(text ? text : expected, out);
    if (text && !getenv("BERTH_UPDATE"))
        cr_expect_str_eq(text, expected, "%s: %s: says\n%s", kind, name, text);
    free(text);
    free(expected);
    free(followed);
    end_recipe(&recipe);
}

static void try_file(const char *name)
{
    char *file = test_path(FOLDER, name), *kept = NULL, kind[64];
    size_t nbytes;
    char *text = (char *)test_read_file(file, &nbytes), *at = text;
    FILE *out = open_memstream(&kept, &nbytes);

    (void)snprintf(kind, sizeof kind, "%.*s", (int)strcspn(name, "."), name);
    while (at && *at) {
        if (strncmp(at, "== ", 3) == 0)
            try_block(&at, kind, out);
        else
            (void)fprintf(out, "%s\n", strsep(&at, "\n"));
    }
    (void)fclose(out);
    if (getenv("BERTH_UPDATE"))
        test_write_file(file, kept, strlen(kept));
    free(kept);
    free(text);
    free(file);
}

static int is_recipes(const struct dirent *entry)
{
    return strstr(entry->d_name, ".txt") != NULL;
}

Test(ambiguity, every_variant_is_refused_or_read_in_one_way)
{
    struct dirent **entries;
    int n = scandir(FOLDER, &entries, is_recipes, alphasort);

    cr_assert_geq(n, 14);
    for (int i = 0; i < n; i++) {
        try_file(entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    if (getenv("BERTH_KEEP"))
        return;
    printf("ambiguity variants: %zu of %d kinds, %zu refused, of these %zu only from "
           "load.check=headers or data on (%zu as archives), %zu read in one way, %zu of them as "
           "repacked files; "
           "%zu readings%s\n",
           n_refused + n_read, n, n_refused, n_opened, n_listed, n_read, n_repacked, n_readings,
           *command_path() ? "" : ", without the command");
    cr_assert_geq(n_refused + n_read, 150);
}
