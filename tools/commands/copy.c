/* SPDX-License-Identifier: BSD-3-Clause */
/* berth copy: copies records, in a new layout if options say so. */
#include <berth/config.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/commands/commands.h"
#include "tools/common/inputs.h"
#include "tools/common/nearest.h"
#include "tools/common/options.h"
#include "tools/common/outputs.h"
#include "tools/common/progress.h"
#include "tools/common/report.h"
#include "tools/common/select.h"
#include "tools/common/urls.h"

typedef struct copy copy;

typedef struct copy_options {
    selection selected;
    positional words;
    const char *base; /* NULL: as save.base says */
} copy_options;

static const struct argp_option own_options[] = {BASE_OPTION, {0}};

static error_t copy_parse(int key, char *word, struct argp_state *state)
{
    copy_options *options = state->input;

    if (key == ARGP_KEY_INIT) {
        state->child_inputs[0] = &options->selected;
        return 0;
    }
    if (key == 'b') {
        options->base = word;
        return 0;
    }
    return parse_positional(key, word, state, &options->words);
}

/* One record that is copied: where it is read from. */
typedef struct copied_record {
    copy *copy;
    berth_record record;
} copied_record;

struct copy {
    berth_archive *archive;
    berth_archive_info info;
    copied_record *sources;
    berth_new_record *records;
    size_t n_records;
    atomic_bool is_unreadable; /* reported once, though several threads read */
    berth_error why;           /* after that, when all threads have ended */
    char alignment[24];        /* text of a new `.storage_alignment` */
};

static int copy_read_record(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    copied_record *source = context;
    berth_error error;

    if (berth_archive_read(source->copy->archive, &source->record, buffer, nbytes, offset,
                           &error) == 0)
        return 0;
    if (!atomic_exchange(&source->copy->is_unreadable, true))
        source->copy->why = error;
    return error.system_errno ? error.system_errno : EIO;
}

/* The save reports only that its source failed. Adds the file, the record and the byte. */
static void copy_restore_read_error(copy *c, const char *out, berth_error *error)
{
    if (error->code != BERTH_E_CALLBACK || !atomic_load(&c->is_unreadable))
        return;
    *error = c->why;
    if (error->system_errno)
        (void)snprintf(error->message, sizeof error->message,
                       "%.300s; %.200s is unchanged: try again, or use another copy of the file",
                       c->why.message, out);
}

/* The save says that it was given bad bytes: they are the source's. */
static void copy_blame_source(const copy *c, const char *in, berth_error *error)
{
    const berth_error was = *error;
    char word[200];

    for (size_t i = 0; error->code == BERTH_E_CHECKSUM && i < c->n_records; i++) {
        if (strcmp(c->records[i].name, was.record) != 0)
            continue;
        bool is_word = print_word(in, word, sizeof word);
        (void)snprintf(error->message, sizeof error->message,
                       "%.200s: %.100s: its bytes do not have the CRC 0x%08x of the directory: "
                       "`berth verify%s%s` lists all such records",
                       in, was.record, c->records[i].crc32, is_word ? " " : "", word);
    }
}

/* Reads a small text record into a buffer; false if there is none. */
static bool archive_read_text(berth_archive *archive, const char *name, char *text, size_t nbytes)
{
    berth_record record;

    if (berth_archive_find(archive, name, &record, NULL) < 0 || record.nbytes >= nbytes)
        return false;
    if (berth_archive_read(archive, &record, text, (size_t)record.nbytes, 0, NULL) < 0)
        return false;
    text[record.nbytes] = '\0';
    return true;
}

/* The layout of the copy: that of the file, unless an option is set. */
static int copy_choose_alignment(copy *c, const char *in, berth_config *config, berth_error *error)
{
    char text[24], assignment[64];

    if (!option_is_default("save.storage_alignment")) {
        option_copy_value("save.storage_alignment", c->alignment, sizeof c->alignment);
        return 0;
    }
    if (!archive_read_text(c->archive, ".storage_alignment", text, sizeof text))
        return 0;
    /* Only digits: a space in the text of the file would begin another assignment. */
    if (!text[0] || text[strspn(text, "0123456789")] != '\0')
        strcpy(text, "0");
    snprintf(assignment, sizeof assignment, "save.storage_alignment=%s", text);
    if (berth_config_apply(config, assignment, error) < 0)
        snprintf(error->message, sizeof error->message,
                 "%.300s: .storage_alignment: Berth cannot write its alignment, %s; choose "
                 "another one: --set save.storage_alignment=64",
                 in, text);
    return error->code;
}

static int copy_list_all_records(copy *c, berth_error *error)
{
    bool keep_crc = option_is_default("save.compute_crc32");

    c->n_records = c->info.n_records;
    c->sources = calloc(c->n_records + 1, sizeof *c->sources);
    c->records = calloc(c->n_records + 1, sizeof *c->records);
    if (!c->sources || !c->records) {
        error->code = BERTH_E_MEMORY;
        snprintf(error->message, sizeof error->message, "out of memory");
        return error->code;
    }
    for (size_t i = 0; i < c->n_records; i++) {
        copied_record *source = &c->sources[i];
        source->copy = c;
        berth_archive_at(c->archive, i, &source->record);
        c->records[i] = (berth_new_record){.name = source->record.name,
                                           .nbytes = source->record.nbytes,
                                           .read = copy_read_record,
                                           .context = source,
                                           .no_crc32 = keep_crc && !source->record.crc32,
                                           .crc32 = source->record.crc32};
        if (c->alignment[0] && !strcmp(source->record.name, ".storage_alignment")) {
            c->records[i].read = NULL;
            c->records[i].data = c->alignment;
            c->records[i].nbytes = strlen(c->alignment);
            c->records[i].crc32 = 0;
        }
    }
    return 0;
}

/* Whether save.byteorder asks for another order than the file's: then elements are swapped. */
static bool copy_changes_byteorder(copy *c)
{
    const uint16_t probe = 1;
    char wanted[16], recorded[16] = "little";

    if (option_is_default("save.byteorder"))
        return false;
    option_copy_value("save.byteorder", wanted, sizeof wanted);
    archive_read_text(c->archive, "byteorder", recorded, sizeof recorded);
    if (!strcmp(wanted, "native"))
        return strcmp(*(const uint8_t *)&probe ? "little" : "big", recorded) != 0;
    return strcmp(wanted, recorded) != 0;
}

/* A copy of deflated storages is made of what is inflated: it gets a layout of its own. */
static bool copy_has_deflated_storages(copy *c)
{
    berth_record record;

    for (size_t i = 0; berth_archive_at(c->archive, i, &record) == 0; i++)
        if (record.method != 0 && strncmp(record.name, "data/", 5) == 0)
            return true;
    return false;
}

/* Values are laid out with the file's own alignment, as records are. */
static berth_config *copy_new_layout_config(copy *c, const char *in, berth_error *error)
{
    berth_config *config = berth_config_new(error);

    if (config && copy_choose_alignment(c, in, config, error) < 0) {
        berth_config_free(config);
        config = NULL;
    }
    return config;
}

/* NULL if PyTorch could not open a file of that name: the save then uses the path. */
static const char *copy_choose_archive_name(const copy *c)
{
    enum { MAX_NBYTES = 510 };

    return strlen(c->info.name) > MAX_NBYTES ? NULL : c->info.name;
}

/* The chosen values, all by default. A number above 0 is an exit code: why was printed. */
static int copy_save_values(const char *in, const char *out, berth_checkpoint *checkpoint,
                            copy_options *options, const berth_params *params, berth_error *error)
{
    const berth_value *value;
    berth_tree *tree = NULL;
    berth_info info;
    int code = select_root(&options->selected, checkpoint, &value);

    if (code == 0)
        code = select_values(&options->selected, in, &tree, &value);
    const berth_content content = berth_of_value(value);
    if (code == 0)
        code = save_output(out, &content, params, error);
    if (code == 0 && !options->selected.common.quiet &&
        berth_get_info(checkpoint, &info, NULL) == 0 && info.n_unknown_records)
        (void)print_trouble("%s: left out %zu records that are not part of a checkpoint", in,
                            info.n_unknown_records);
    berth_tree_free(tree);
    return code;
}

/*
 * Copies through the values: swapping bytes needs the dtypes, inflated storages a new layout, and
 * some of the values a new pickle. The result is as copy_save_values'.
 */
static int copy_values(copy *c, const char *in, const char *out, berth_params *params,
                       copy_options *options, berth_error *error)
{
    berth_checkpoint *checkpoint = NULL;
    berth_config *config = copy_new_layout_config(c, in, error);
    option_set_default("load.check", "data"); /* as in `berth convert` */
    int code = config ? open_file_or_url(in, NULL, &checkpoint, error) : (int)error->code;
    if (code == 0) {
        params->config = config;
        params->archive_name = copy_choose_archive_name(c);
        code = copy_save_values(in, out, checkpoint, options, params, error);
    }
    berth_close(checkpoint);
    berth_config_free(config);
    return code;
}

/*
 * Records keep their order. If the file says that its offsets can be calculated, but its storages
 * are not in the pickle's order, readers that calculate would misread the copy.
 */
static int copy_check_calculated_offsets(copy *c, const char *in, berth_error *error)
{
    berth_checkpoint *checkpoint = NULL;
    berth_record record;

    if (berth_archive_find(c->archive, ".format_version", &record, NULL) < 0)
        return 0;
    berth_config *config = berth_config_new(error);
    if (!config ||
        berth_config_apply(
            config,
            "load.calculate_storage_offsets=on load.check=directory load.repacked=refuse "
            "load.unknown_globals=inert",
            error) < 0) {
        berth_config_free(config);
        return error->code;
    }
    const berth_params params = {.config = config};
    int code = open_file_or_url(in, &params, &checkpoint, error);
    berth_close(checkpoint);
    berth_config_free(config);
    if (code != BERTH_E_OFFSETS)
        return 0; /* other archives, too, are copied as they are */
    snprintf(error->message, sizeof error->message,
             "%.400s: its records are not at the calculated offsets; PyTorch could misread a copy: "
             "`berth convert` writes a correct file",
             in);
    return code;
}

static int copy_records(copy *c, const char *in, const char *out, berth_params *params,
                        berth_error *error)
{
    berth_config *config = copy_new_layout_config(c, in, error);

    if (!config)
        return error->code;
    int code = copy_check_calculated_offsets(c, in, error);
    if (code == 0)
        code = copy_list_all_records(c, error);
    if (code == 0) {
        const berth_content content =
            berth_of_records(c->records, c->n_records, BERTH_RECORDS_COMPLETE);
        params->config = config;
        params->archive_name = copy_choose_archive_name(c);
        code = save_output(out, &content, params, error);
        if (code < 0) {
            copy_restore_read_error(c, out, error);
            copy_blame_source(c, in, error);
            code = error->code;
        }
    }
    berth_config_free(config);
    return code;
}

const struct argp copy_argp = {
    .options = own_options,
    .parser = copy_parse,
    .args_doc = "IN OUT",
    .doc = "Copy a checkpoint record by record. A file that Berth or PyTorch 2.13 wrote "
           "stays the same, byte for byte, unless options change its layout: --set "
           "save.storage_alignment=4096, save.compute_crc32=off, save.byteorder=... The "
           "archive's name inside is kept.\n\n"
           "A record that does not match its checksum is refused, because the copy "
           "would get a checksum that matches; with save.compute_crc32=off it is "
           "copied, without a checksum. If storages are compressed, the copy is written "
           "anew, without compression. Any other repacked file, and the legacy format, "
           "are refused: `berth convert` reads them.\n\n"
           "--only, --without and --root copy some of the values, written anew; in a "
           "list or tuple the others move up. Nobody can read a new file who could not "
           "read IN, unless --set save.readers=all.",
    .children = selection_and_root_children};

int run_copy(int argc, char **argv)
{
    copy_options options = {.words = {.min = 2, .max = 2}};
    const common *shared = &options.selected.common;
    copy c = {0};
    berth_stats stats = {0};
    berth_error error;
    berth_params params;
    progress bar;

    parse_options(&copy_argp, argc, argv, &options);
    const char *out = options.words.words[1], *in = input_path(options.words.words[0]);
    if (!in || check_output(out, shared) || check_in_place_output_has_name(in, out))
        return EXIT_TROUBLE;
    if (check_is_one_file(in))
        return EXIT_NO;
    if (open_archive(in, NULL, &c.archive, &c.info, &error) < 0)
        return fail(&error);
    if (check_in_place_output_is_not_read(out)) {
        berth_archive_close(c.archive);
        return EXIT_TROUBLE;
    }
    register_remark_printer(shared);
    note_input(is_standard(options.words.words[0]) ? "-" : in);
    limit_readers_of(out);
    progress_begin(&bar, "copy", shared, &params, &stats);
    params.base = options.base;
    bool by_value = copy_changes_byteorder(&c) || copy_has_deflated_storages(&c) ||
                    !selection_is_all(&options.selected);
    int code = by_value ? copy_values(&c, in, out, &params, &options, &error)
                        : copy_records(&c, in, out, &params, &error);
    progress_finish(&bar);
    int exit_status = code < 0 ? fail(&error) : code;
    exit_status = print_stats_if_requested(shared, &stats, exit_status);
    free(c.sources);
    free(c.records);
    berth_archive_close(c.archive);
    return exit_status;
}
