/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Checkpoints in several files: an index, "model.safetensors.index.json", names them.
 * Source: transformers, {"metadata": {...}, "weight_map": {"NAME": "FILE", ...}}.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "adapters/curl/berth_curl.h"
#include "tools/shared.h"

bool is_shard_index(const char *path)
{
    return has_extension(path, ".index.json");
}

/* ---- the index ---- */

/* The files lie beside the index, wherever that is: names with a folder are refused. */
static int set_check_map(const shard_set *set)
{
    const char *name;
    json_t *file;

    if (!json_is_object(set->map))
        return print_trouble("%s: has no weight_map: it is no index of a checkpoint", set->path);
    json_object_foreach(set->map, name, file)
    {
        const char *text = json_string_value(file);
        if (!text || !*text || strchr(text, '/') || !strcmp(text, ".."))
            return print_trouble("%s: the file of \"%s\" is not a name of a file beside the index",
                                 set->path, name);
    }
    return 0;
}

static int compare_texts(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* The names of the files, each once, in order. False: no memory. */
static bool set_list_files(shard_set *set)
{
    size_t n = 0, n_names = json_object_size(set->map);
    const char *name;
    json_t *file;

    set->files = calloc(n_names + 1, sizeof *set->files);
    if (!set->files)
        return false;
    json_object_foreach(set->map, name, file)
    {
        set->files[n++] = json_string_value(file);
    }
    qsort(set->files, n, sizeof *set->files, compare_texts);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(set->files[i], set->files[set->n_files - 1]) != 0)
            set->files[set->n_files++] = set->files[i];
    return true;
}

/* *json: the content of the index. Returns 0, or an exit code after printing why. */
static int load_index(const char *path, json_t **json)
{
    enum { MAX_NBYTES = 256 << 20 }; /* so large is that of two million tensors */
    struct stat status;
    json_error_t error;
    if (berth_is_url(path))
        return print_trouble("%s: an index at a URL is not read: download it, with its files",
                             path);
    FILE *file = fopen(path, "re");

    *json = NULL;
    if (!file || fstat(fileno(file), &status) < 0) {
        int code = print_trouble("%s: %s", path, strerror(errno));
        if (file)
            (void)fclose(file);
        return code;
    }
    if (S_ISREG(status.st_mode) && status.st_size <= MAX_NBYTES)
        *json = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
    else
        snprintf(error.text, sizeof error.text, "no file of at most %d MiB", MAX_NBYTES >> 20);
    (void)fclose(file);
    if (*json)
        return 0;
    (void)print_trouble("%s: is no index of a checkpoint: %s", path, error.text);
    return EXIT_NO;
}

int shard_set_read(const char *path, shard_set *set)
{
    *set = (shard_set){.path = path};
    int code = load_index(path, &set->json);

    if (code)
        return code;
    set->map = json_object_get(set->json, "weight_map");
    if (set_check_map(set))
        return EXIT_NO;
    return set_list_files(set) ? 0 : print_trouble("out of memory");
}

char *shard_path(const shard_set *set, size_t i)
{
    const char *slash = strrchr(set->path, '/');
    size_t folder_n = slash ? (size_t)(slash - set->path) + 1 : 0;
    size_t n = strlen(set->files[i]);
    char *path = malloc(folder_n + n + 1);

    if (path) {
        memcpy(path, set->path, folder_n);
        memcpy(path + folder_n, set->files[i], n + 1);
    }
    return path;
}

void shard_set_free(shard_set *set)
{
    for (size_t i = 0; set->checkpoints && i < set->n_files; i++)
        berth_close(set->checkpoints[i]);
    free(set->checkpoints);
    free(set->files);
    json_decref(set->json);
    *set = (shard_set){0};
}

/* ---- the files ---- */

int shard_set_open(shard_set *set, bool quietly)
{
    int worst = 0;
    berth_error error;

    set->checkpoints = calloc(set->n_files + 1, sizeof *set->checkpoints);
    if (!set->checkpoints)
        return print_trouble("out of memory");
    for (size_t i = 0; i < set->n_files && (quietly || !worst); i++) {
        char *path = shard_path(set, i);
        if (!path)
            return print_trouble("out of memory");
        if (berth_open(path, NULL, &set->checkpoints[i], &error) < 0) {
            int code = quietly ? exit_code(&error) : fail(&error);
            worst = code > worst ? code : worst;
        }
        free(path);
    }
    return worst;
}

berth_checkpoint *shard_set_find(const shard_set *set, const char *file)
{
    const char *const *found =
        bsearch(&file, set->files, set->n_files, sizeof *set->files, compare_texts);

    return found ? set->checkpoints[found - set->files] : NULL;
}
