/* SPDX-License-Identifier: BSD-3-Clause */
/* What the pickle of a file names: the second answer of `berth verify` and `berth info`. */
#include <string.h>

#include "tools/common/globals.h"
#include "tools/common/report.h"
#include "tools/common/urls.h"

static void add_global(void *context, const char *module, const char *name, bool is_allowed)
{
    named_globals *globals = context;
    char key[512];

    snprintf(key, sizeof key, "%s %s", module, name); /* of printable characters */
    if (json_object_get(globals->seen, key))
        return;
    json_object_set_new(globals->seen, key, json_true());
    globals->n_refused += !is_allowed;
    json_array_append_new(globals->all, json_pack("{s:o,s:o,s:b}", "module", text_json(module),
                                                  "name", text_json(name), "allowed", is_allowed));
}

static void globals_begin(named_globals *globals)
{
    if (globals->all)
        return;
    globals->all = json_array();
    globals->seen = json_object();
}

void globals_note(named_globals *globals, const char *module, const char *name)
{
    globals_begin(globals);
    add_global(globals, module, name, false);
}

void globals_add(const berth_source *source, named_globals *globals)
{
    globals_begin(globals);
    if (!source || globals->error.code < 0 ||
        berth_list_globals(source, add_global, globals, &globals->error) < 0)
        return; /* the caller sees the error */
}

void globals_find(const char *path, named_globals *globals)
{
    berth_source source;

    *globals = (named_globals){.n_refused = 0};
    bool is_found = find_source(path, &source, &globals->error) == 0;
    globals_add(is_found ? &source : NULL, globals);
}

size_t globals_find_said(const named_globals *globals, const char *message)
{
    static const char before[] = "; it names the global ";
    const char *said = strstr(message, before);

    return said && globals->n_refused > 0 && globals->error.code == 0 ? (size_t)(said - message)
                                                                      : strlen(message);
}

void globals_set_json(const named_globals *globals, json_t *report)
{
    json_object_set(report, "globals", globals->all);
    if (globals->error.code < 0)
        json_object_set_new(report, "globals_unknown", text_json(globals->error.message));
}

void globals_free(named_globals *globals)
{
    json_decref(globals->all);
    json_decref(globals->seen);
    *globals = (named_globals){0};
}

bool globals_print_refused(const named_globals *globals, const char *before)
{
    const char *comma = "";
    size_t i;
    json_t *global;

    if (globals->error.code < 0) {
        printf("%snames what cannot be listed: ", before);
        print_shown(stdout, globals->error.message);
        return true;
    }
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
