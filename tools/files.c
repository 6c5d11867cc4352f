/* SPDX-License-Identifier: BSD-3-Clause */
/* One report on each of several files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/shared.h"

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
    for (size_t i = 0; i < set.n_files && !code; i++)
        loop_run_file(loop, set.paths[i], NULL);
    if (!code && loop->with_indices)
        loop_run_file(loop, path, &set);
    shard_set_free(&set);
}

static bool any_is_index(const positional *words)
{
    for (int i = 0; i < words->n; i++)
        if (is_shard_index(words->words[i]))
            return true;
    return false;
}

int for_each_file(const positional *words, const common *options, bool with_indices,
                  file_function function, void *context)
{
    file_loop loop = {.function = function, .context = context, .with_indices = with_indices};

    loop.all.is_several = words->n > 1 || any_is_index(words);
    if (options->json && loop.all.is_several)
        loop.all.reports = json_array();
    for (int i = 0; i < words->n; i++) {
        const char *path = input_path(words->words[i]);
        if (path && is_shard_index(path))
            loop_run_set(&loop, path);
        else if (path)
            loop_run_file(&loop, path, NULL);
        else
            loop_note_code(&loop, EXIT_TROUBLE);
    }
    if (loop.all.reports)
        loop_note_code(&loop, print_json(loop.all.reports));
    return loop.worst;
}
