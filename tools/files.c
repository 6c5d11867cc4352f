/* SPDX-License-Identifier: BSD-3-Clause */
/* One report on each of several files. */
#include <stdio.h>
#include <string.h>

#include "tools/shared.h"

void files_print_heading(const files *all)
{
    if (all->n < 2)
        return;
    if (all->n_begun > 1)
        putchar('\n');
    print_painted(BOLD, all->path);
    fputs(":\n", stdout);
}

void files_print_prefix(const files *all)
{
    if (all->n < 2)
        return;
    print_painted(BOLD, all->path);
    fputs(": ", stdout);
}

int files_print_json(files *all, json_t *report)
{
    if (all->n < 2)
        return print_json(report);
    if (json_is_array(report))
        report = json_pack("{s:o}", "items", report);
    if (!report)
        return print_trouble("out of memory");
    json_object_set_new(report, "file", text_json(all->path));
    return json_array_append_new(all->reports, report) < 0 ? print_trouble("out of memory") : 0;
}

int for_each_file(const positional *words, const common *options, file_function function,
                  void *context)
{
    files all = {.n = (size_t)words->n};
    int worst = EXIT_YES;

    if (options->json && all.n > 1)
        all.reports = json_array();
    for (size_t i = 0; i < all.n && worst < 128; i++) {
        all.path = input_path(words->words[i]);
        all.n_begun = i + 1;
        size_t n_reports = json_array_size(all.reports);
        int code = all.path ? function(context, &all) : EXIT_TROUBLE;
        if (all.reports && json_array_size(all.reports) == n_reports) /* what failed is told */
            json_array_append_new(
                all.reports,
                json_pack("{s:o,s:i}", "file", text_json(words->words[i]), "exit_code", code));
        worst = code > worst ? code : worst;
    }
    if (all.reports) {
        int printed = print_json(all.reports);
        worst = printed > worst ? printed : worst;
    }
    return worst;
}
