/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Checkpoints in several files: an index, "model.safetensors.index.json", names them.
 * Source: transformers, {"metadata": {...}, "weight_map": {"NAME": "FILE", ...}}.
 */
#include <berth/config.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "adapters/curl/berth_curl.h"
#include "tools/common/inputs.h"
#include "tools/common/outputs.h"
#include "tools/common/report.h"
#include "tools/common/set.h"
#include "tools/common/shards.h"
#include "tools/common/urls.h"

bool is_shard_index(const char *path)
{
    return has_extension(path, ".index.json");
}

/* ---- the index ---- */

/*
 * D2: the files lie in the index's folder, wherever that is, or below it. The package for Python
 * has the same rule (_set.py); tests/support/index_names.py has the cases of both. JSON's parser
 * has refused NUL, and what is no UTF-8.
 */
static bool is_name_below(const char *text)
{
    for (;; text++) {
        size_t n = strcspn(text, "/");
        if (n <= 2 && strspn(text, ".") >= n) /* "", ".", ".." */
            return false;
        text += n;
        if (!*text)
            return true;
    }
}

static int shard_set_check_map(const shard_set *set)
{
    const char *name;
    json_t *file;

    if (!json_is_object(set->map))
        return print_trouble("%s: has no weight_map: it is no index of a checkpoint", set->path);
    json_object_foreach(set->map, name, file)
    {
        const char *text = json_string_value(file);
        if (!text || !is_name_below(text))
            return print_trouble(
                "%s: the file of \"%s\" is not a name of a file in the index's folder", set->path,
                name);
    }
    return 0;
}

static int compare_texts(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* The names of the files, each once, in order. False: no memory. */
static bool shard_set_list_files(shard_set *set)
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

/* ---- the paths of its files ---- */

/* In the folder of the index. NULL: no memory. */
static char *path_beside(const char *path, const char *name)
{
    const char *slash = strrchr(path, '/');
    size_t folder_n = slash ? (size_t)(slash - path) + 1 : 0, n = strlen(name);
    char *beside = malloc(folder_n + n + 1);

    if (beside) {
        memcpy(beside, path, folder_n);
        memcpy(beside + folder_n, name, n + 1);
    }
    return beside;
}

/* False: no memory. */
static bool shard_set_make_paths(shard_set *set)
{
    bool is_url = berth_is_url(set->path);

    set->paths = calloc(set->n_files + 1, sizeof *set->paths);
    for (size_t i = 0; set->paths && i < set->n_files; i++) {
        set->paths[i] = is_url ? keep_url_beside(set->path, set->files[i])
                               : path_beside(set->path, set->files[i]);
        if (!set->paths[i])
            return false;
        note_input(set->paths[i]);
    }
    return set->paths != NULL;
}

/* ---- reading the index ---- */

/* As the header of a safetensors file, and in Python; U4: a server's word is enough for 64 MiB. */
enum { MAX_INDEX_NBYTES = 100000000, MAX_URL_INDEX_NBYTES = 64 << 20 };

/* P3: the parser needs some 200 bytes for `{}`; an index has three objects, whatever it names. */
static json_t *parse_index(const char *bytes, size_t nbytes, json_error_t *why)
{
    enum { MAX_OBJECTS = 1000 };
    bool in_string = false;
    size_t n = 0;

    for (size_t i = 0; i < nbytes && n <= MAX_OBJECTS; i++)
        if (in_string && bytes[i] == '\\')
            i++;
        else if (bytes[i] == '"')
            in_string = !in_string;
        else
            n += !in_string && bytes[i] == '{';
    if (n <= MAX_OBJECTS)
        return json_loadb(bytes, nbytes, JSON_REJECT_DUPLICATES, why);
    snprintf(why->text, sizeof why->text, "it has too many objects");
    return NULL;
}

/* Each sets *json, or NULL and why. Returns 0, or an exit code after printing why. */
static int load_index_from_url(const char *path, json_t **json, json_error_t *why)
{
    char *bytes;
    uint64_t nbytes;
    int code = read_url(path, MAX_URL_INDEX_NBYTES, &bytes, &nbytes);

    if (!code)
        *json = parse_index(bytes, (size_t)nbytes, why);
    free(bytes);
    return code;
}

static int load_index_from_file(const char *path, json_t **json, json_error_t *why)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* it may be a pipe */
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");

    if (!file || fstat(fd, &status) < 0) {
        int code = print_trouble("%s: %s", path, strerror(errno));
        if (file)
            (void)fclose(file);
        return code;
    }
    bool is_small = S_ISREG(status.st_mode) && status.st_size <= MAX_INDEX_NBYTES;
    char *bytes = is_small ? malloc((size_t)status.st_size + 1) : NULL;
    if (bytes)
        *json = parse_index(bytes, fread(bytes, 1, (size_t)status.st_size, file), why);
    else if (is_small)
        snprintf(why->text, sizeof why->text, "out of memory");
    else
        snprintf(why->text, sizeof why->text, "no file of at most %d bytes", MAX_INDEX_NBYTES);
    free(bytes);
    (void)fclose(file);
    return 0;
}

/* *json: the content of the index. Returns 0, or an exit code after printing why. */
static int load_index(const char *path, json_t **json)
{
    json_error_t why;

    *json = NULL;
    int code = berth_is_url(path) ? load_index_from_url(path, json, &why)
                                  : load_index_from_file(path, json, &why);
    if (code || *json)
        return code;
    (void)print_trouble("%s: is no index of a checkpoint: %s", path, why.text);
    return EXIT_NO;
}

int shard_set_read(const char *path, shard_set *set)
{
    *set = (shard_set){.path = path};
    int code = load_index(path, &set->json);

    if (code)
        return code;
    set->map = json_object_get(set->json, "weight_map");
    if (shard_set_check_map(set))
        return EXIT_NO;
    if (!shard_set_list_files(set) || !shard_set_make_paths(set))
        return print_trouble("out of memory");
    if (berth_is_url(path))
        open_urls(set->paths, set->n_files);
    return 0;
}

void shard_set_free(shard_set *set)
{
    for (size_t i = 0; set->checkpoints && i < set->n_files; i++)
        berth_close(set->checkpoints[i]);
    for (size_t i = 0; set->paths && i < set->n_files && !berth_is_url(set->path); i++)
        free(set->paths[i]);
    free(set->paths);
    free(set->checkpoints);
    free(set->files);
    json_decref(set->json);
    *set = (shard_set){0};
}

/* ---- the files ---- */

static int shard_open(const char *path, berth_checkpoint **checkpoint, berth_error *error)
{
    berth_source source;

    if (find_source(path, &source, error) < 0)
        return error->code;
    berth_config *config = berth_config_new(error);
    const berth_params params = {.config = config};
    /* Nothing is mapped: bytes are read range by range, and stay nowhere. */
    int code = config &&
                       berth_config_apply(config, "load.mmap=off load.prefetch=off", error) == 0 &&
                       berth_source_url_tune(&source, config, error) == 0
                   ? open_file_or_url(path, &params, checkpoint, error)
                   : (int)error->code;
    berth_config_free(config);
    return code;
}

int shard_set_open(shard_set *set, bool quietly)
{
    berth_error error;
    int worst = 0;

    set->checkpoints = calloc(set->n_files + 1, sizeof *set->checkpoints);
    if (!set->checkpoints)
        return print_trouble("out of memory");
    for (size_t i = 0; i < set->n_files && (quietly || !worst); i++)
        if (shard_open(set->paths[i], &set->checkpoints[i], &error) < 0) {
            int code = quietly ? exit_code(&error) : fail(&error);
            code = error_is_of_missing_file(&error) ? EXIT_NO : code; /* the set is broken */
            worst = code > worst ? code : worst;
        }
    return worst;
}

berth_checkpoint *shard_set_find(const shard_set *set, const char *file)
{
    const char *const *found =
        bsearch(&file, set->files, set->n_files, sizeof *set->files, compare_texts);

    return found && set->checkpoints ? set->checkpoints[found - set->files] : NULL;
}

/* ---- as one checkpoint ---- */

static void shards_free(void *shards)
{
    shard_set_free(shards);
    free(shards);
}

static int shards_add_value(const shard_set *shards, file_set *s, berth_value *root,
                            berth_value *const *roots, const char *name, const char *file)
{
    const char *const *found =
        bsearch(&file, shards->files, shards->n_files, sizeof *shards->files, compare_texts);
    size_t i = (size_t)(found - shards->files);
    berth_value *original = berth_dict_get(berth_root(shards->checkpoints[i]), name);
    berth_value *copy = berth_dict_get(roots[i], name);

    if (!original || !copy) {
        (void)print_trouble("%s: \"%s\" is not in %s", shards->path, name, file);
        return EXIT_NO;
    }
    (void)berth_dict_set(root, name, copy); /* the tree remembers a failure */
    return set_add_copied(s, copy, original, shards->checkpoints[i]);
}

/* Of tied tensors a safetensors file and its index name one; __metadata__ has the other names. */
static int shards_add_ties(const shard_set *shards, file_set *s, berth_value *root,
                           berth_value *const *roots, size_t i)
{
    berth_value *key, *text;
    berth_error error;
    berth_info info;
    int code = berth_get_info(shards->checkpoints[i], &info, &error) < 0 ? fail(&error) : 0;

    for (size_t k = 0; !code && berth_dict_at(info.metadata, k, &key, &text); k++) {
        const char *name = berth_as_text(key, NULL);
        const char *in = json_string_value(json_object_get(shards->map, berth_as_text(text, NULL)));
        bool is_tie = in && !strcmp(in, shards->files[i]) && !json_object_get(shards->map, name) &&
                      berth_dict_get(roots[i], name);
        if (is_tie)
            code = shards_add_value(shards, s, root, roots, name, in);
    }
    return code;
}

static int shards_fill(const shard_set *shards, file_set *s)
{
    berth_value **roots = calloc(shards->n_files + 1, sizeof *roots);
    berth_value *root = berth_make_dict(set_tree(s), BERTH_KIND_DICT);
    berth_error error;
    const char *name;
    json_t *file;
    int code = roots ? 0 : EXIT_TROUBLE;

    if (!roots)
        (void)print_trouble("out of memory");
    /* The values of each file are copied in one call: ties within a file are kept. */
    for (size_t i = 0; roots && i < shards->n_files; i++)
        roots[i] = berth_value_copy(set_tree(s), berth_root(shards->checkpoints[i]), 0);
    if (!code && berth_tree_error(set_tree(s), &error) < 0)
        code = fail(&error);
    set_root(s, root);
    json_object_foreach(shards->map, name, file)
    {
        if (!code)
            code = shards_add_value(shards, s, root, roots, name, json_string_value(file));
    }
    for (size_t i = 0; i < shards->n_files && !code; i++)
        code = shards_add_ties(shards, s, root, roots, i);
    free(roots);
    return code;
}

int shard_set_make(const char *path, file_set **made)
{
    shard_set *shards = calloc(1, sizeof *shards);
    file_set *s = *made = shards ? set_new(path) : NULL;

    if (!s) {
        free(shards);
        return EXIT_TROUBLE;
    }
    set_own(s, shards, shards_free);
    int code = shard_set_read(path, shards);
    if (!code)
        code = shard_set_open(shards, false);
    return code ? code : shards_fill(shards, s);
}
