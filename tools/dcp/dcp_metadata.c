/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * `.metadata` of a DCP directory. It is a bare pickle; Berth reads it as the data.pkl of an archive
 * in memory, with load.unknown_globals=inert: its objects become nodes, and nothing is run (D1).
 * Source: torch/distributed/checkpoint/metadata.py.
 */
#include <berth/config.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/common/options.h"
#include "tools/common/report.h"
#include "tools/dcp/dcp.h"

bool is_dcp_directory(const char *path)
{
    struct stat status;
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK);
    bool is = folder >= 0 && fstatat(folder, ".metadata", &status, 0) == 0;

    if (folder >= 0)
        (void)close(folder);
    return is;
}

/* The first of its kind stays. */
static int dcp_note(const dcp *d, char **note, const char *text)
{
    if (!*note && asprintf(note, "%s/.metadata: %s", d->path, text) < 0) {
        *note = NULL;
        return print_trouble("out of memory");
    }
    return EXIT_NO;
}

int dcp_refuse(const dcp *d, const char *format, ...)
{
    char text[800];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (!d->notes)
        (void)print_trouble("%s/.metadata: %s", d->path, text);
    return d->notes ? dcp_note(d, &d->notes->broken, text) : EXIT_NO;
}

/* ---- the bytes ---- */

/* Returns the size, or -1 after setting errno. */
static ssize_t read_all(int fd, uint8_t *bytes, size_t nbytes)
{
    size_t at = 0;

    while (at < nbytes) {
        ssize_t n = read(fd, bytes + at, nbytes - at);
        if (n < 0 && errno != EINTR)
            return -1;
        if (n == 0)
            break;
        at += n > 0 ? (size_t)n : 0;
    }
    return (ssize_t)at;
}

/* *bytes: the caller frees them. */
static int dcp_read_bytes(const dcp *d, uint8_t **bytes, size_t *nbytes)
{
    enum { MAX_NBYTES = 256 << 20 }; /* so large is that of a million pieces */
    struct stat status;
    int fd = openat(d->folder, ".metadata", O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = -1;

    if (fd < 0 || fstat(fd, &status) < 0) {
        int code = print_trouble("%s/.metadata: %s", d->path, strerror(errno));
        if (fd >= 0)
            (void)close(fd);
        return code;
    }
    bool is_good = S_ISREG(status.st_mode) && status.st_size <= MAX_NBYTES;
    *bytes = is_good ? malloc((size_t)status.st_size + 1) : NULL;
    if (*bytes)
        n = read_all(fd, *bytes, (size_t)status.st_size);
    int failure = errno;
    (void)close(fd);
    *nbytes = n < 0 ? 0 : (size_t)n;
    if (!is_good)
        return dcp_refuse(d, "is no file of at most %d MiB", MAX_NBYTES >> 20);
    return n >= 0 ? 0 : print_trouble("%s/.metadata: %s", d->path, strerror(failure));
}

/* ---- the pickle ---- */

static int pickle_read(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    const dcp *d = context;

    memcpy(buffer, (const uint8_t *)d->pickle + offset, nbytes);
    return 0;
}

static int dcp_wrap_pickle(dcp *d, const uint8_t *bytes, size_t nbytes, const berth_params *params,
                           berth_error *error)
{
    const berth_new_record record = {.name = "data.pkl", .nbytes = nbytes, .data = bytes};
    const berth_content content = berth_of_records(&record, 1, 0);
    const berth_target target = berth_to_memory(&d->pickle, &d->pickle_nbytes);

    return berth_save_to(&target, &content, params, error);
}

/* ---- what it names ---- */

/* By their modules, "module name". */
static bool is_of_dcp(const char *text)
{
    return !strncmp(text, "torch.", 6) || !strncmp(text, "torch ", 6) ||
           !strncmp(text, "pathlib", 7) || !strncmp(text, "collections ", 12);
}

#define NAMES                                                                                      \
    "names %.200s, which no DCP directory needs; nothing was run "                                 \
    "(--set load.unknown_globals=inert passes over it)"

static void dcp_note_global(const dcp *d, const char *text)
{
    const char *space = strrchr(text, ' ');
    char module[256];

    snprintf(module, sizeof module, "%.*s", space ? (int)(space - text) : 0, text);
    globals_note(&d->notes->globals, module, space ? space + 1 : text);
}

/* Of a pickle that was not read to its end. Python 3.11.0 to 3.11.3 need getattr: it is passed
 * over. */
static void note_unread_global(void *context, const char *module, const char *name, bool is_allowed)
{
    char text[512];

    (void)is_allowed;
    snprintf(text, sizeof text, "%s %s", module, name);
    if (!is_of_dcp(text) && strcmp(text, "builtins getattr") != 0)
        dcp_note_global(context, text);
}

/* In the message the bytes are those of .metadata, not of the archive around it. */
static int dcp_fail_pickle(const dcp *d, const berth_error *error)
{
    enum { DATA_OFFSET = 64 }; /* of the first record, with any alignment up to 64 */
    const char *text = strstr(error->message, "data.pkl at byte ");
    const char *rest = text ? strchr(text, ':') : NULL;
    int code = exit_code(error);

    const berth_source source = berth_from_memory(d->pickle, d->pickle_nbytes);

    if (code == EXIT_NO && d->notes)
        (void)!berth_list_globals(&source, note_unread_global, (void *)(uintptr_t)d, NULL);
    if (rest && error->offset != BERTH_NO_OFFSET && error->offset >= DATA_OFFSET) {
        /* Each .metadata names a class of torch: that is not what is wrong. */
        const char *named = strstr(rest, "; it names the global torch.");
        int n = named ? (int)(named - rest) : (int)strlen(rest);
        bool is_cut = strstr(rest, " are left") && !strstr(rest, "did not end?");
        (void)dcp_refuse(d, "at byte %llu%.*s%s", (unsigned long long)(error->offset - DATA_OFFSET),
                         n, rest,
                         is_cut ? ": a download or a save in place that did not end?" : "");
        return code;
    }
    if (code == EXIT_NO && d->notes)
        return dcp_refuse(d, "%s", error->message);
    return fail(error);
}

static int dcp_open_pickle(dcp *d, const uint8_t *bytes, size_t nbytes, berth_error *error)
{
    berth_config *config = berth_config_new(error);
    const berth_params params = {.config = config};

    if (config &&
        berth_config_apply(config,
                           "load.unknown_globals=inert load.prefetch=off load.check=directory "
                           "save.byteorder=native save.storage_alignment=64",
                           error) == 0 &&
        dcp_wrap_pickle(d, bytes, nbytes, &params, error) == 0) {
        const berth_source source =
            berth_from_function(pickle_read, d, d->pickle_nbytes, d->pickle_name);
        if (berth_open_source(&source, &params, &d->metadata, error) < 0)
            d->metadata = NULL;
    }
    berth_config_free(config);
    return d->metadata ? 0 : dcp_fail_pickle(d, error);
}

/* ---- what is in it ---- */

/* "module name", of the class that a node was made of; "": it is none. */
static const char *object_class(const berth_value *value)
{
    const berth_value *class = berth_value_kind(value) == BERTH_KIND_CALL
                                   ? berth_value_part(value, BERTH_PART_INNER)
                                   : NULL;
    const char *text =
        berth_value_kind(class) == BERTH_KIND_GLOBAL ? berth_as_text(class, NULL) : NULL;

    return text ? text : "";
}

const berth_value *dcp_object(const berth_value *value, const char *class_name)
{
    const char *text = object_class(value), *space = strrchr(text, ' ');
    bool is = space && !strncmp(text, "torch.distributed.", 18) && !strcmp(space + 1, class_name);

    return is ? berth_value_part(value, BERTH_PART_STATE) : NULL;
}

/* getattr(a class of DCP, "MEMBER"), as Python 3.11.0 to 3.11.3 pickle a member of an Enum. */
static bool is_enum_member(const berth_value *call)
{
    const char *class = berth_as_text(berth_value_at(call, 0), NULL);
    const char *member = berth_as_text(berth_value_at(call, 1), NULL);

    return strcmp(object_class(call), "builtins getattr") == 0 && class && member &&
           strncmp(class, "torch.distributed.checkpoint.", 29) == 0 && *member != '_';
}

/*
 * What DCP writes names classes of torch and paths. Anything else would be run by Python; here it
 * is not, but such a file is not to be trusted. With load.unknown_globals=inert it is passed over.
 */
static int check_global(void *context, const berth_walk *walk, const berth_value *value)
{
    const char *text =
        berth_value_kind(value) == BERTH_KIND_GLOBAL ? berth_as_text(value, NULL) : NULL;
    const dcp *d = context;

    (void)walk;
    if (is_enum_member(value))
        return BERTH_WALK_SKIP;
    if (!text || is_of_dcp(text))
        return 0;
    if (!d->notes)
        return dcp_refuse(d, NAMES, text);
    char words[400];
    dcp_note_global(d, text);
    snprintf(words, sizeof words, NAMES, text);
    return dcp_note(d, &d->notes->refused, words) == EXIT_NO ? 0 : EXIT_TROUBLE;
}

static int dcp_check_globals(dcp *d)
{
    const berth_walker walker = {.enter = check_global, .context = d};

    if (option_is("load.unknown_globals", "inert"))
        return 0;
    int code = berth_value_walk(berth_root(d->metadata), &walker, NULL);
    return code < 0 ? print_trouble("out of memory") : code;
}

static int dcp_read_parts(dcp *d)
{
    const berth_value *whole = dcp_object(berth_root(d->metadata), "Metadata");
    const berth_value *planner = berth_dict_get(whole, "planner_data");
    int code = dcp_check_globals(d);

    if (code)
        return code;
    if (!whole)
        return dcp_refuse(d, "is no Metadata of torch.distributed.checkpoint");
    if (berth_value_kind(planner) == BERTH_KIND_DICT)
        d->planner = planner;
    code = dcp_read_tensors(d, berth_dict_get(whole, "state_dict_metadata"));
    if (!code)
        code = dcp_read_places(d, berth_dict_get(whole, "storage_data"));
    return code ? code : dcp_make_outline(d);
}

static int dcp_open_and_read(dcp *d)
{
    uint8_t *bytes = NULL;
    size_t nbytes = 0;
    berth_error error;

    d->folder = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d->folder < 0)
        return print_trouble("%s: %s", d->path, strerror(errno));
    int code = dcp_read_bytes(d, &bytes, &nbytes);
    if (!code && asprintf(&d->pickle_name, "%s/.metadata", d->path) < 0) {
        d->pickle_name = NULL;
        code = print_trouble("out of memory");
    }
    if (!code)
        code = dcp_open_pickle(d, bytes, nbytes, &error);
    free(bytes);
    return code ? code : dcp_read_parts(d);
}

int dcp_read(const char *path, dcp_notes *notes, dcp **read)
{
    dcp *d = *read = calloc(1, sizeof *d);

    if (!d)
        return print_trouble("out of memory");
    d->path = path;
    d->notes = notes;
    d->folder = -1;
    d->names = json_object();
    d->files = json_object();
    return d->names && d->files ? dcp_open_and_read(d) : print_trouble("out of memory");
}

void dcp_notes_free(dcp_notes *notes)
{
    free(notes->broken);
    free(notes->refused);
    globals_free(&notes->globals);
}

void dcp_free(void *read)
{
    dcp *d = read;

    if (!d)
        return;
    for (size_t i = 0; i < d->n_entries; i++) {
        for (size_t k = 0; k < d->entries[i].n_chunks; k++)
            dcp_chunk_close(&d->entries[i].chunks[k]);
        free(d->entries[i].chunks);
        dcp_piece_free(&d->entries[i].piece);
    }
    free(d->entries);
    berth_close(d->metadata);
    berth_free(d->pickle);
    free(d->pickle_name);
    json_decref(d->names);
    json_decref(d->outline);
    json_decref(d->files);
    if (d->folder >= 0)
        (void)close(d->folder);
    free(d);
}
