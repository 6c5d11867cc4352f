/* SPDX-License-Identifier: BSD-3-Clause */
/* What the pickle of a file names: the second answer of `berth verify` and `berth info`. */
#include "tools/shared.h"

static void add_global(void *context, const char *module, const char *name, bool is_allowed)
{
    named_globals *globals = context;

    globals->n_refused += !is_allowed;
    json_array_append_new(globals->all, json_pack("{s:o,s:o,s:b}", "module", text_json(module),
                                                  "name", text_json(name), "allowed", is_allowed));
}

int globals_find(const char *path, named_globals *globals)
{
    berth_source source;
    berth_error error;

    *globals = (named_globals){.all = json_array()};
    if (find_source(path, &source, &error) < 0 ||
        berth_list_globals(&source, add_global, globals, &error) < 0)
        return fail(&error);
    return 0;
}

void globals_free(named_globals *globals)
{
    json_decref(globals->all);
    *globals = (named_globals){0};
}

bool globals_print_refused(const named_globals *globals, const char *before)
{
    const char *comma = "";
    size_t i;
    json_t *global;

    if (globals->n_refused == 0)
        return false;
    printf(globals->n_refused == 1 ? "%snames %zu class or function that is not allowed: "
                                   : "%snames %zu classes or functions that are not allowed: ",
           before, globals->n_refused);
    json_array_foreach(globals->all, i, global)
    {
        if (json_is_true(json_object_get(global, "allowed")))
            continue;
        fputs(comma, stdout);
        print_shown(stdout, json_string_value(json_object_get(global, "module")));
        putchar(' ');
        print_shown(stdout, json_string_value(json_object_get(global, "name")));
        comma = ", ";
    }
    return true;
}
