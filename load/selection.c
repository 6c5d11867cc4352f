/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/checkpoint.h"

#include <fnmatch.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/memory.h"
#include "config/options.h"

bool bth_name_matches_pattern(const char *pattern, const char *name)
{
    return fnmatch(pattern, name, 0) == 0;
}

int bth_checkpoint_visit_names(berth_checkpoint *checkpoint, bool with_text, bth_name_visit visit,
                               void *context, berth_error *error)
{
    const bth_names *names = bth_checkpoint_names(checkpoint, error);
    bth_name_text name = {0}, path = {0};

    for (size_t i = 0; names && i < bth_names_tensor_count(names) && error->code == 0; i++) {
        const berth_tensor *tensor = berth_as_tensor(bth_names_tensor_value(names, i));
        bool has_bytes = tensor && tensor->storage && !(tensor->flags & BERTH_META);
        if (!with_text || bth_names_write_tensor_name_and_path(names, i, &name, &path, error) == 0)
            (void)visit(context, has_bytes ? tensor : NULL, name.text, error);
    }
    bth_release(name.text);
    bth_release(path.text);
    return error->code;
}

static bool selection_is_everything(const berth_selection *selection)
{
    return !selection || (!selection->pattern && selection->n_tensors == 0);
}

struct selection_names {
    const char *pattern; /* NULL: any name */
    bool any_fits;
    bth_visit visit;
    void *context;
};

static int selection_visit_if_name_matches(void *context, const berth_tensor *tensor,
                                           const char *name, berth_error *error)
{
    struct selection_names *names = context;

    if (names->pattern && !bth_name_matches_pattern(names->pattern, name))
        return 0;
    names->any_fits = true;
    return tensor ? names->visit(names->context, tensor, error) : 0;
}

static int selection_visit_matching_names(berth_checkpoint *checkpoint, const char *pattern,
                                          bth_visit visit, void *context, berth_error *error)
{
    struct selection_names names = {.pattern = pattern, .visit = visit, .context = context};

    if (bth_checkpoint_visit_names(checkpoint, pattern, selection_visit_if_name_matches, &names,
                                   error) < 0 ||
        names.any_fits || !pattern)
        return error->code;
    return bth_fail_status(error, BERTH_E_NOT_FOUND, "no tensor has a name that fits \"%.100s\"",
                           pattern);
}

int bth_selection_visit(berth_checkpoint *checkpoint, const berth_selection *selection,
                        bth_visit visit, void *context, berth_error *error)
{
    if (selection && BTH_CHECK_RESERVED(berth_selection, selection, error) < 0)
        return error->code;
    if (selection_is_everything(selection))
        return selection_visit_matching_names(checkpoint, NULL, visit, context, error);
    if (selection->pattern &&
        selection_visit_matching_names(checkpoint, selection->pattern, visit, context, error) < 0)
        return error->code;
    if (selection->n_tensors > 0 && !selection->tensors)
        return bth_fail_argument(error, "%zu tensors are selected, but there is no list of them",
                                 selection->n_tensors);
    for (size_t i = 0; i < selection->n_tensors; i++) {
        const berth_tensor *tensor = selection->tensors[i];
        if (bth_checkpoint_check_caller_tensor(checkpoint, tensor, error) < 0) {
            (void)bth_error_in_tensor(checkpoint, tensor, error);
            return bth_error_prefix_index(error, "selected tensor", i);
        }
        if (visit(context, tensor, error) < 0)
            return error->code;
    }
    return 0;
}

/* ---- storages ---- */

/* A bth_visit; its context are marks by the index of a storage. */
static int selection_mark_storage_of_tensor(void *context, const berth_tensor *tensor,
                                            berth_error *error)
{
    bool *is_selected = context;

    is_selected[bth_storage_root(tensor->storage)->index] = true;
    return error->code;
}

static int storage_compare_offsets(const void *a, const void *b)
{
    const berth_storage *first = *(const berth_storage *const *)a;
    const berth_storage *second = *(const berth_storage *const *)b;

    if (first->offset != second->offset)
        return first->offset < second->offset ? -1 : 1;
    return first->index < second->index ? -1 : first->index > second->index;
}

/* The marked storages; if everything is selected, all roots. */
static size_t selection_collect_marked_storages(const berth_checkpoint *checkpoint,
                                                const bool *is_selected,
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

int bth_selection_list_storages(berth_checkpoint *checkpoint, const berth_selection *selection,
                                const berth_storage ***storages, size_t *n, berth_error *error)
{
    size_t n_all = checkpoint->storages.n;
    bool *is_selected = NULL;

    *storages = NULL;
    *n = 0;
    if (selection && BTH_CHECK_RESERVED(berth_selection, selection, error) < 0)
        return error->code;
    /* Visited even if there are no storages: a pattern that fits no name is an error. */
    if (!selection_is_everything(selection)) {
        is_selected = bth_allocate_zeroed(n_all + 1);
        if (!is_selected)
            return bth_fail_memory(error, n_all + 1);
        if (bth_selection_visit(checkpoint, selection, selection_mark_storage_of_tensor,
                                is_selected, error) < 0)
            goto cleanup;
    }
    *storages = bth_allocate((n_all + 1) * sizeof **storages);
    if (!*storages)
        (void)bth_fail_memory(error, (n_all + 1) * sizeof **storages);
    else
        *n = selection_collect_marked_storages(checkpoint, is_selected, *storages);
cleanup:
    bth_release(is_selected);
    return error->code;
}
