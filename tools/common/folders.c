/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A folder with one checkpoint in it stands for that. The package for Python has the same rule
 * (_set.py): an index, else a model file; a DCP directory stands for itself.
 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "adapters/curl/berth_curl.h"
#include "tools/common/set.h"

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

static void print_why_none(const char *folder, struct dirent **found, int n)
{
    enum { SHOWN = 5, ROOM = SHOWN * (NAME_MAX + 2) + 8 };
    char names[ROOM];
    size_t at = 0;

    if (n == 0) {
        (void)print_trouble("%s: the folder has no index, no model file (.safetensors, .pt, .pth, "
                            ".bin, .ckpt) and no .metadata",
                            folder);
        return;
    }
    for (int i = 0; i < n && i < SHOWN; i++)
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "",
                               found[i]->d_name);
    (void)print_trouble("%s: the folder has %d files that may be the checkpoint (%s%s): name one",
                        folder, n, names, n > SHOWN ? ", ..." : "");
}

/* Its indexes; if there are none, its model files. */
static int list_entries(const char *folder, struct dirent ***found)
{
    const int n = scandir(folder, found, is_index_entry, compare_entries);

    if (n != 0)
        return n;
    free(*found);
    *found = NULL;
    return scandir(folder, found, is_model_entry, compare_entries);
}

/* The only such file of the folder; NULL: there are others, or none, and why was printed. */
static const char *only_file(const char *folder)
{
    struct dirent **found = NULL;
    const int n = list_entries(folder, &found);
    const char *path = NULL;

    if (n < 0)
        (void)print_trouble("%s: %s", folder, strerror(errno));
    else if (n == 1)
        path = keep_path(folder, found[0]->d_name);
    else
        print_why_none(folder, found, n);
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
