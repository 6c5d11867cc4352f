/* SPDX-License-Identifier: BSD-3-Clause */
/* "-": standard input and output as files. */
#include <berth/config.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters/curl/berth_curl.h"
#include "tools/common/inputs.h"
#include "tools/common/nearest.h"
#include "tools/common/outputs.h"
#include "tools/common/report.h"
#include "tools/common/select.h"
#include "tools/common/set.h"
#include "tools/common/shards.h"
#include "tools/common/urls.h"
#include "tools/dcp/dcp.h"

bool is_standard(const char *word)
{
    return strcmp(word, "-") == 0;
}

bool has_extension(const char *name, const char *extension)
{
    size_t n = strlen(name), m = strlen(extension);

    return n > m && !strcmp(name + n - m, extension);
}

/* ---- standard input ---- */

/* *max_nbytes: so much it may hold. Less than 0: none can be made, and why was printed. */
static int open_spool(uint64_t *max_nbytes)
{
    const char *folder = getenv("TMPDIR");
    berth_option limit;
    int fd;

    folder = folder && *folder ? folder : "/tmp";
    *max_nbytes = UINT64_MAX;
    fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0)
        return fd;
    if (berth_config_describe(NULL, "io.memory_nbytes", &limit, NULL) == 0 && limit.number > 0)
        *max_nbytes = (uint64_t)limit.number;
    fd = memfd_create("standard input", MFD_CLOEXEC);
    if (fd < 0)
        (void)print_trouble("standard input: neither a temporary in %s nor memory: %s", folder,
                            strerror(errno));
    return fd;
}

static int spool_stdin(int fd, uint64_t max_nbytes)
{
    enum { BUFFER_NBYTES = 1 << 20 };
    char *buffer = malloc(BUFFER_NBYTES);
    uint64_t total = 0;
    ssize_t n = 0;
    int code = buffer ? 0 : print_trouble("out of memory");

    while (!code && (n = read(STDIN_FILENO, buffer, BUFFER_NBYTES)) > 0) {
        total += (uint64_t)n;
        if (total > max_nbytes)
            code = print_trouble("standard input: more than io.memory_nbytes, and no temporary can "
                                 "be made; TMPDIR names another folder");
        for (ssize_t done = 0, more; done < n && !code; done += more)
            if ((more = write(fd, buffer + done, (size_t)(n - done))) < 0)
                code =
                    print_trouble("standard input: its temporary: %s; TMPDIR names another folder",
                                  strerror(errno));
    }
    if (!code && n < 0)
        code = print_trouble("standard input: %s", strerror(errno));
    free(buffer);
    return code;
}

/* A pipe is read once, into a file without a name, which takes its place. */
static int replace_stdin(void)
{
    uint64_t max_nbytes;

    if (isatty(STDIN_FILENO))
        return print_trouble("standard input is a terminal: redirect a file to it");
    int fd = open_spool(&max_nbytes);
    int code = fd < 0 ? EXIT_TROUBLE : spool_stdin(fd, max_nbytes);
    if (!code && dup2(fd, STDIN_FILENO) < 0)
        code = print_trouble("standard input: %s", strerror(errno));
    if (fd >= 0)
        (void)close(fd);
    return code;
}

/* ---- a folder with one checkpoint in it stands for that ---- */

static int is_index_entry(const struct dirent *entry)
{
    return is_shard_index(entry->d_name);
}

static int is_model_entry(const struct dirent *entry)
{
    static const char *const endings[] = {".safetensors", ".pt", ".pth", ".bin", ".ckpt"};

    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (has_extension(entry->d_name, endings[i]))
            return 1;
    return 0;
}

static int compare_entries(const struct dirent **left, const struct dirent **right)
{
    return strcmp((*left)->d_name, (*right)->d_name);
}

/* The paths live as long as the process: they are the names of inputs. */
static const char *keep_path(const char *folder, const char *name)
{
    typedef struct kept {
        struct kept *next;
        char *path;
    } kept;
    static kept *all;
    size_t n = strlen(folder);
    kept *made = malloc(sizeof *made);

    while (n > 0 && folder[n - 1] == '/')
        n--;
    if (!made || asprintf(&made->path, "%.*s/%s", (int)n, folder, name) < 0) {
        free(made);
        (void)print_trouble("out of memory");
        return NULL;
    }
    made->next = all;
    all = made;
    return made->path;
}

/* Its only index; if there is none, its only model file. NULL: there are others, or none, and why
 * was printed. */
static const char *only_file(const char *folder)
{
    enum { SHOWN = 5, ROOM = SHOWN * (NAME_MAX + 2) + 8 };
    struct dirent **found = NULL;
    const char *path = NULL;
    char names[ROOM];
    size_t at = 0;
    int n = scandir(folder, &found, is_index_entry, compare_entries);

    if (n == 0) {
        free(found);
        found = NULL;
        n = scandir(folder, &found, is_model_entry, compare_entries);
    }
    if (n < 0)
        (void)print_trouble("%s: %s", folder, strerror(errno));
    else if (n == 0)
        (void)print_trouble("%s: the folder has no index, no model file (.safetensors, .pt, .pth, "
                            ".bin, .ckpt) and no .metadata",
                            folder);
    else if (n == 1)
        path = keep_path(folder, found[0]->d_name);
    for (int i = 0; n > 1 && i < n && i < SHOWN; i++)
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "",
                               found[i]->d_name);
    if (n > 1)
        (void)print_trouble(
            "%s: the folder has %d files that may be the checkpoint (%s%s): name one", folder, n,
            names, n > SHOWN ? ", ..." : "");
    for (int i = 0; i < n; i++)
        free(found[i]);
    free(found);
    return path;
}

const char *resolve_folder(const char *word)
{
    struct stat status;

    /* What is in it can be a folder, too: the system ends a loop of links. */
    while (word && !berth_is_url(word) && stat(word, &status) == 0 && S_ISDIR(status.st_mode) &&
           !is_dcp_directory(word))
        word = only_file(word);
    return word;
}

/* ---- any word ---- */

/* F1: a pipe is not waited for, and not read, because of its name alone. */
static int refuse_pipe(const char *word)
{
    static const char why[] = "is a pipe, which is read only as standard input";
    char path[1024];
    struct stat status;

    if (stat(word, &status) < 0 || !S_ISFIFO(status.st_mode))
        return 0;
    if (strncmp(word, "/dev/fd/", 8) == 0) /* made by a shell, which gives the next one its own */
        return print_trouble("%s: %s: in its place, `- < <(...)` reads it", word, why);
    if (is_shard_index(word)) /* its files lie beside it */
        return print_trouble("%s: is a pipe: an index is read only as a file", word);
    if (!print_word(word, path, sizeof path)) /* it cannot be shown */
        return print_trouble("%s: %s", word, why);
    return print_trouble("%s: %s: in its place, `- <%s` reads it", word, why, path);
}

const char *input_path(const char *word)
{
    static bool is_there;
    struct stat status;

    if (!is_standard(word) && strcmp(word, STDIN_PATH) != 0)
        return refuse_empty(word) || check_scheme(word) || refuse_pipe(word) ? NULL
                                                                             : resolve_folder(word);
    if (!is_there) {
        note_standard_input(); /* before a temporary takes its place */
        /* A file from its beginning can be opened by its path as often as it is needed. */
        bool is_whole = fstat(STDIN_FILENO, &status) == 0 && S_ISREG(status.st_mode) &&
                        lseek(STDIN_FILENO, 0, SEEK_CUR) == 0 && access(STDIN_PATH, R_OK) == 0;
        is_there = is_whole || replace_stdin() == 0;
    }
    return is_there ? STDIN_PATH : NULL;
}

int check_is_one_file(const char *path)
{
    bool is_index = is_shard_index(path);
    char word[512];

    if (!is_index && !is_dcp_directory(path))
        return 0;
    bool is_word = print_word(path, word, sizeof word);
    (void)print_trouble("%s: %s, and this command takes one file: `berth convert%s%s%s` makes one "
                        "of it",
                        path,
                        is_index ? "the index of a checkpoint in several files"
                                 : "a checkpoint of torch.distributed.checkpoint in several files",
                        is_word ? " " : "", word, is_word ? " NEW.pt" : "");
    return EXIT_NO;
}

/* ---- opening ---- */

/* An error of the library's in *error; all others are printed. */
static int open_any(const char *path, const berth_params *params, selection *selected,
                    input *opened, berth_error *error)
{
    bool is_index = is_shard_index(path);

    *opened = (input){0};
    *error = (berth_error){.code = BERTH_OK, .offset = BERTH_NO_OFFSET};
    if (!is_index && !is_dcp_directory(path))
        return open_file_or_url(path, params, &opened->checkpoint, error) < 0 ? exit_code(error)
                                                                              : 0;
    int code =
        is_index ? shard_set_make(path, &opened->set) : dcp_set_make(path, selected, &opened->set);
    return code ? code : set_open(opened->set, params, &opened->checkpoint);
}

int input_open_selected(const char *path, const berth_params *params, selection *selected,
                        input *opened)
{
    berth_error error;
    berth_stats own = {0};
    berth_params with_stats = params ? *params : (berth_params){0};
    if (!with_stats.stats)
        with_stats.stats = &own;
    int code = open_any(path, &with_stats, selected, opened, &error);

    if (!code && !opened->set)
        tell_behind(path, opened->checkpoint, with_stats.stats->behind_nbytes);
    return error.code < 0 ? fail(&error) : code;
}

int input_open(const char *path, const berth_params *params, input *opened)
{
    return input_open_selected(path, params, &(selection){0}, opened);
}

int input_open_quietly(const char *path, const berth_params *params, input *opened,
                       berth_error *error)
{
    return open_any(path, params, &(selection){0}, opened, error);
}

void input_close(input *opened)
{
    berth_close(opened->checkpoint);
    set_free(opened->set);
    *opened = (input){0};
}
