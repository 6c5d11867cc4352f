/* SPDX-License-Identifier: BSD-3-Clause */
/* Some of the values of a checkpoint: --only, --without and --root. */
#ifndef BERTH_TOOLS_SELECT_H
#define BERTH_TOOLS_SELECT_H

#include "tools/common/options.h"

enum { MAX_GLOBS = 64 };

typedef struct globs {
    char *patterns[MAX_GLOBS];
    bool is_used[MAX_GLOBS];
    size_t n;
} globs;

/* Which values of a checkpoint a command is about. */
typedef struct selection {
    common common;
    globs only, without;
    const char *root; /* name or path; NULL: all */
} selection;

/* Their parsers, for --only and --without, or for --root too; they include the common options. */
extern const struct argp_child selection_children[];
extern const struct argp_child selection_and_root_children[];

bool selection_is_all(const selection *selected);
bool selection_has_globs(const selection *selected);
/* Whether --only and --without choose this name. */
bool selection_has_name(selection *selected, const char *name);
/*
 * Whether --root, --only and --without may choose something of this value, before it is read. A
 * pattern is for what is inside of it only if it begins with its name and a dot.
 */
bool selection_needs(selection *selected, const char *name);
/* Reports patterns that matched no name. Returns 0 or EXIT_NO. */
int selection_check_used(const selection *selected, const char *path);
/*
 * *value: what --root names, or the whole. Returns 0, or an exit code after printing why.
 */
int select_root(const selection *selected, const berth_checkpoint *checkpoint,
                const berth_value **value);
/*
 * Makes of a value what --only and --without choose. Containers that nothing is left in are left
 * out; what shared storages still does. *tree is the caller's to free in any case; the checkpoint
 * must outlive it. Returns 0, or an exit code after printing why.
 */
int select_values(selection *selected, const char *path, berth_tree **tree,
                  const berth_value **value);

#endif
