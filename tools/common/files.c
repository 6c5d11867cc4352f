/* SPDX-License-Identifier: BSD-3-Clause */
/* One report on each of several files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/files.h"
#include "tools/common/inputs.h"
#include "tools/common/options.h"
#include "tools/common/report.h"
#include "tools/common/shards.h"

void files_print_heading(files *all)
{
    if (!all->is_several)
        return;
    if (all->n_headings++ > 0)
        putchar('\n');
    print_painted(BOLD, all->path);
    fputs(":\n", stdout);
}

void files_print_prefix(const files *all)
{
    if (!all->is_several)
        return;
    print_painted(BOLD, all->path);
    fputs(": ", stdout);
}

int files_print_json(files *all, json_t *report)
{
    if (!all->is_several)
        return print_json(report);
    if (json_is_array(report))
        report = json_pack("{s:o}", "items", report);
    if (!report)
        return print_trouble("out of memory");
    json_object_set_new(report, "file", text_json(all->path));
    return json_array_append_new(all->reports, report) < 0 ? print_trouble("out of memory") : 0;
}

bool files_is_missing(const files *all, const berth_error *failure)
{
    return all->part_of && error_is_of_missing_file(failure);
}

int files_fail(const files *all, const berth_error *failure)
{
    int code = fail(failure);

    return files_is_missing(all, failure) ? EXIT_NO : code;
}

/* The work of for_each_file. */
typedef struct file_loop {
    files all;
    file_function function;
    void *context;
    bool with_indices;
    int worst;
} file_loop;

static void loop_note_code(file_loop *loop, int code)
{
    loop->worst = code > loop->worst ? code : loop->worst;
}

static void loop_run_file(file_loop *loop, const char *path, shard_set *set)
{
    files *all = &loop->all;
    size_t n_reports = json_array_size(all->reports);

    if (loop->worst >= 128)
        return;
    all->path = path;
    all->set = set;
    int code = loop->function(loop->context, all);
    if (all->reports && json_array_size(all->reports) == n_reports) /* what failed is told */
        json_array_append_new(all->reports,
                              json_pack("{s:o,s:i}", "file", text_json(path), "exit_code", code));
    loop_note_code(loop, code);
}

static void loop_run_set(file_loop *loop, const char *path)
{
    shard_set set;
    int code = shard_set_read(path, &set);

    loop_note_code(loop, code);
    for (size_t i = 0; i < set.n_files && !code; i++) {
        loop->all.part_of = &set;
        loop->all.part = set.files[i];
        loop_run_file(loop, set.paths[i], NULL);
    }
    loop->all.part_of = NULL;
    if (!code && loop->with_indices)
        loop_run_file(loop, path, &set);
    shard_set_free(&set);
}

/* The path of each word, or NULL after printing why; the paths are of the words, or kept. */
static const char **find_paths(const positional *words, bool *is_several)
{
    const char **paths = calloc((size_t)words->n, sizeof *paths);

    *is_several = words->n > 1;
    for (int i = 0; paths && i < words->n; i++) {
        paths[i] = input_path(words->words[i]);
        *is_several = *is_several || (paths[i] && is_shard_index(paths[i]));
    }
    return paths;
}

int for_each_file(const positional *words, const common *options, bool with_indices,
                  file_function function, void *context)
{
    file_loop loop = {.function = function, .context = context, .with_indices = with_indices};
    const char **paths = find_paths(words, &loop.all.is_several);

    if (!paths)
        return print_trouble("out of memory");
    if (options->json && loop.all.is_several)
        loop.all.reports = json_array();
    for (int i = 0; i < words->n; i++) {
        if (paths[i] && is_shard_index(paths[i]))
            loop_run_set(&loop, paths[i]);
        else if (paths[i])
            loop_run_file(&loop, paths[i], NULL);
        else
            loop_note_code(&loop, EXIT_TROUBLE);
    }
    free(paths);
    if (loop.all.reports)
        loop_note_code(&loop, print_json(loop.all.reports));
    return loop.worst;
}
