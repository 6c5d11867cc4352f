/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/selection.h"

#include <fnmatch.h>
#include <stdlib.h>

#include "config/error.h"
#include "config/memory.h"
#include "config/options.h"

bool bth_name_fits(const char *pattern, const char *name)
{
    return fnmatch(pattern, name, 0) == 0;
}

static bool tensor_has_bytes(const berth_tensor *tensor)
{
    return tensor && tensor->storage && !(tensor->flags & BERTH_META);
}

static bool selection_is_everything(const berth_selection *selection)
{
    return !selection || (!selection->pattern && selection->n_tensors == 0);
}

/* Visits entry i of the names if it fits the pattern; NULL fits any. */
static int selection_visit_one(const bth_names *names, size_t i, const char *pattern, bool *fits,
                               bth_visit visit, void *context, berth_error *error)
{
    const berth_tensor *tensor = berth_as_tensor(bth_names_value(names, i));
    char *name, *path;

    *fits = !pattern;
    if (pattern) {
        if (bth_names_text(names, i, &name, &path, error) < 0)
            return error->code;
        *fits = bth_name_fits(pattern, name);
        bth_release(name);
        bth_release(path);
    }
    return *fits && tensor_has_bytes(tensor) ? visit(context, tensor, error) : 0;
}

static int selection_visit_names(berth_checkpoint *checkpoint, const char *pattern, bth_visit visit,
                                 void *context, berth_error *error)
{
    const bth_names *names = bth_checkpoint_names(checkpoint, error);
    bool any = !pattern;

    if (!names)
        return error->code;
    for (size_t i = 0; i < bth_names_count(names); i++) {
        bool fits;
        if (selection_visit_one(names, i, pattern, &fits, visit, context, error) < 0)
            return error->code;
        any = any || fits;
    }
    if (any)
        return 0;
    return bth_fail(error, BERTH_E_NOT_FOUND, NULL, BERTH_NO_OFFSET,
                    "no tensor has a name that fits \"%.100s\"", pattern);
}

int bth_selection_visit(berth_checkpoint *checkpoint, const berth_selection *selection,
                        bth_visit visit, void *context, berth_error *error)
{
    if (selection && BTH_CHECK_RESERVED(berth_selection, selection, error) < 0)
        return error->code;
    if (selection_is_everything(selection))
        return selection_visit_names(checkpoint, NULL, visit, context, error);
    if (selection->pattern &&
        selection_visit_names(checkpoint, selection->pattern, visit, context, error) < 0)
        return error->code;
    if (selection->n_tensors > 0 && !selection->tensors)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                        "%zu tensors are selected, but there is no list of them",
                        selection->n_tensors);
    for (size_t i = 0; i < selection->n_tensors; i++)
        if (bth_checkpoint_check_tensor(checkpoint, selection->tensors[i], error) < 0 ||
            visit(context, selection->tensors[i], error) < 0)
            return error->code;
    return 0;
}

/* ---- storages ---- */

struct selection_marks {
    bool *is_selected; /* by index */
};

static int selection_mark(void *context, const berth_tensor *tensor, berth_error *error)
{
    struct selection_marks *selection_marks = context;
    const berth_storage *storage = tensor->storage;

    (void)error;
    selection_marks->is_selected[storage->root ? storage->root->index : storage->index] = true;
    return 0;
}

static int storage_compare_offsets(const void *a, const void *b)
{
    const berth_storage *first = *(const berth_storage *const *)a;
    const berth_storage *second = *(const berth_storage *const *)b;

    if (first->offset != second->offset)
        return first->offset < second->offset ? -1 : 1;
    return first->index < second->index ? -1 : first->index > second->index;
}

/* The marked storages; if everything is selected, all that are no views. */
static size_t selection_collect(const berth_checkpoint *checkpoint, const bool *is_selected,
                                const berth_storage **storages)
{
    size_t n = 0;

    for (size_t i = 0; i < checkpoint->storages.n; i++) {
        const berth_storage *storage = bth_tree_storage(checkpoint->contents.tree, i);
        if (is_selected ? is_selected[i] : !storage->root)
            storages[n++] = storage;
    }
    qsort(storages, n, sizeof(berth_storage *), storage_compare_offsets);
    return n;
}

int bth_selection_storages(berth_checkpoint *checkpoint, const berth_selection *selection,
                           const berth_storage ***storages, size_t *n, berth_error *error)
{
    size_t n_all = checkpoint->storages.n;
    struct selection_marks selection_marks = {0};

    *storages = NULL;
    *n = 0;
    if (selection && BTH_CHECK_RESERVED(berth_selection, selection, error) < 0)
        return error->code;
    /* Also without storages: a pattern may still fit nothing. */
    if (!selection_is_everything(selection)) {
        selection_marks.is_selected = bth_allocate_zeroed(n_all + 1);
        if (!selection_marks.is_selected)
            return bth_fail_memory(error, n_all + 1);
        if (bth_selection_visit(checkpoint, selection, selection_mark, &selection_marks, error) < 0)
            goto cleanup;
    }
    *storages = bth_allocate((n_all + 1) * sizeof **storages);
    if (!*storages)
        (void)bth_fail_memory(error, (n_all + 1) * sizeof **storages);
    else
        *n = selection_collect(checkpoint, selection_marks.is_selected, *storages);
cleanup:
    bth_release(selection_marks.is_selected);
    return error->code;
}
