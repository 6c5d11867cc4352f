/* SPDX-License-Identifier: BSD-3-Clause */
/* Which tensors and storages a caller means: selections, and the rules of berth_set_storage_rules,
 * which choose the I/O method and device of each storage. */
#include "load/selection.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "config/options.h"
#include "io/devices.h"
#include "load/errors_with_names.h"
#include "load/transfer/method_choice.h"

/* A walk over the names, begun with the checkpoint's. After an error, or false, it has ended. */
typedef struct name_walk {
    const bth_names *names;
    size_t n; /* of the next one */
    bth_name_text name, path;
    const berth_tensor *tensor; /* NULL: it has no bytes */
} name_walk;

static bool name_walk_next(name_walk *walk, berth_error *error)
{
    if (error->code == 0 && walk->n < bth_names_tensor_count(walk->names) &&
        bth_names_write_tensor_name_and_path(walk->names, walk->n, &walk->name, &walk->path,
                                             error) == 0) {
        const berth_tensor *tensor =
            berth_as_tensor(bth_names_tensor_value(walk->names, walk->n++));
        bool has_bytes = tensor && tensor->storage && !(tensor->flags & BERTH_META);
        walk->tensor = has_bytes ? tensor : NULL;
        return true;
    }
    bth_release(walk->name.text);
    bth_release(walk->path.text);
    return false;
}

int bth_selection_visit(berth_checkpoint *checkpoint, const berth_selection *selection,
                        bth_visit visit, void *context, berth_error *error)
{
    const char *pattern = selection->pattern;
    name_walk walk = {.names = pattern ? bth_checkpoint_names(checkpoint, error) : NULL};
    bool any_fits = false;

    while (walk.names && name_walk_next(&walk, error)) {
        if (fnmatch(pattern, walk.name.text, 0) != 0)
            continue;
        any_fits = true;
        if (walk.tensor)
            (void)visit(context, walk.tensor, error);
    }
    if (pattern && !any_fits) /* the first error stays */
        return bth_fail_status(error, BERTH_E_NOT_FOUND,
                               "no tensor has a name that fits \"%.100s\"", pattern);
    if (selection->n_tensors > 0 && !selection->tensors)
        return bth_fail_argument(error, "%zu tensors are selected, but there is no list of them",
                                 selection->n_tensors);
    for (size_t i = 0; i < selection->n_tensors && error->code == 0; i++) {
        const berth_tensor *tensor = selection->tensors[i];
        if (bth_checkpoint_check_caller_tensor(checkpoint, tensor, error) < 0) {
            (void)bth_error_in_tensor(checkpoint, tensor, error);
            return bth_error_prefix_index(error, "selected tensor", i);
        }
        (void)visit(context, tensor, error);
    }
    return error->code;
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
    if (selection && (selection->pattern || selection->n_tensors > 0)) { /* else: all */
        is_selected = bth_allocate_zeroed(n_all + 1);
        if (!is_selected)
            return bth_fail_memory(error, n_all + 1);
        if (bth_selection_visit(checkpoint, selection, selection_mark_storage_of_tensor,
                                is_selected, error) < 0)
            goto cleanup;
    }
    *storages = bth_allocate((n_all + 1) * sizeof **storages);
    if (!*storages) {
        (void)bth_fail_memory(error, (n_all + 1) * sizeof **storages);
        goto cleanup;
    }
    for (size_t i = 0; i < n_all; i++) {
        const berth_storage *storage = bth_tree_storage(checkpoint->contents.tree, i);
        if (is_selected ? is_selected[i] : !storage->root)
            (*storages)[(*n)++] = storage;
    }
    qsort(*storages, *n, sizeof **storages, storage_compare_offsets);
cleanup:
    bth_release(is_selected);
    return error->code;
}

/* The choice for one storage. */
struct chosen {
    berth_load_method method;
    const char *chosen_by; /* NULL: load.method decides */
    bth_range_target target;
};

/* ---- which rule applies ---- */

/* Compares all conditions except the pattern. */
static bool rule_matches_storage(const berth_storage_rule *rule, const berth_storage *root)
{
    return root->nbytes >= rule->min_nbytes &&
           (rule->max_nbytes == 0 || root->nbytes <= rule->max_nbytes) &&
           (!rule->location || fnmatch(rule->location, root->location, 0) == 0);
}

/* Sets first[index of a storage] to the first rule that fits, which applies; n_rules: none. */
static int rules_find_first_for_storages(berth_checkpoint *checkpoint,
                                         const berth_storage_rule *rules, size_t n_rules,
                                         size_t *first, berth_error *error)
{
    bool any_pattern = false;

    for (size_t i = 0; i < checkpoint->storages.n; i++) { /* rules without a pattern */
        const berth_storage *storage = bth_tree_storage(checkpoint->contents.tree, i);
        for (first[i] = 0; first[i] < n_rules; first[i]++) {
            const berth_storage_rule *rule = &rules[first[i]];
            if (!rule->pattern && rule_matches_storage(rule, storage))
                break;
        }
    }
    for (size_t r = 0; r < n_rules; r++)
        any_pattern = any_pattern || rules[r].pattern;
    name_walk walk = {.names = any_pattern ? bth_checkpoint_names(checkpoint, error) : NULL};
    while (walk.names && name_walk_next(&walk, error)) {
        if (!walk.tensor)
            continue;
        const berth_storage *root = bth_storage_root(walk.tensor->storage);
        for (size_t r = 0; r < first[root->index]; r++)
            if (rules[r].pattern && rule_matches_storage(&rules[r], root) &&
                fnmatch(rules[r].pattern, walk.name.text, 0) == 0)
                first[root->index] = r;
    }
    return error->code;
}

/* ---- what the rule sets ---- */

static int rule_check_method(berth_load_method method, berth_error *error)
{
    if (bth_load_method_is_valid(method))
        return 0;
    return bth_fail_argument(error, "invalid method %d", (int)method);
}

static int rule_apply_to_storage(const berth_storage_rule *rule, const berth_storage *storage,
                                 struct chosen *chosen, berth_error *error)
{
    berth_storage_choice choice = {.method = rule->method,
                                   .device = rule->device ? rule->device : "cpu"};
    int result = rule->choose ? rule->choose(rule->context, storage, &choice) : 0;
    bth_range_target *target = &chosen->target;

    if (result != 0) {
        const char *text = result > 0 ? bth_errno_text(result) : NULL;
        (void)bth_fail_status(error, BERTH_E_CALLBACK, "the caller's function failed: %s",
                              text ? text : "it returned no errno value");
        error->system_errno = text ? result : 0;
        return error->code;
    }
    if (rule->choose && BTH_CHECK_RESERVED(berth_storage_choice, &choice, error) < 0)
        return error->code;
    chosen->method = choice.method;
    if (choice.method != BERTH_LOAD_AUTO)
        chosen->chosen_by = rule->choose ? "the caller's function chose it" : "a rule chose it";
    if (rule_check_method(choice.method, error) < 0)
        return error->code;
    const char *device = choice.device;
    if (!device)
        return bth_fail_argument(error, "the caller's function set device to NULL");
    if (strcmp(device, BERTH_DEVICE_SAVED) == 0)
        device = storage->location;
    if (strcmp(device, "cpu") != 0 && bth_wing_device.open(device, &target->device, error) < 0)
        return error->code;
    if (choice.address == 0)
        return 0;
    /* The caller's memory on a device. */
    if (!target->device)
        return bth_fail_argument(
            error, "an address must be on a device, not on \"cpu\": berth_load_into fills "
                   "memory of the host");
    if (choice.nbytes < storage->nbytes)
        return bth_fail_argument(
            error, "%s: the memory at the address has %llu bytes, but %llu are needed",
            bth_wing_device.name(target->device), (unsigned long long)choice.nbytes,
            (unsigned long long)storage->nbytes);
    target->address = choice.address;
    target->life = bth_wing_device.life(target->device);
    target->ready = choice.ready;
    return bth_wing_device.check_memory(target->device, choice.address, (size_t)storage->nbytes,
                                        error);
}

int berth_set_storage_rules(berth_checkpoint *checkpoint, const berth_storage_rule *rules,
                            size_t n_rules, berth_error *error)
{
    bool any_device = false;

    BTH_ERROR_BEGIN(error);
    if (!checkpoint || (!rules && n_rules > 0))
        return bth_fail_argument(error, "berth_set_storage_rules needs a checkpoint and rules");
    bth_storages *storages = &checkpoint->storages;
    size_t n = storages->n + 1;
    size_t *first = bth_allocate_zeroed(n * sizeof *first);
    struct chosen *chosen = bth_allocate_zeroed(n * sizeof *chosen);
    if (!first || !chosen)
        (void)bth_fail_memory(error, n * sizeof *chosen);
    for (size_t r = 0; r < n_rules && error->code == 0; r++)
        if (BTH_CHECK_RESERVED(berth_storage_rule, &rules[r], error) < 0 ||
            rule_check_method(rules[r].method, error) < 0)
            (void)bth_error_prefix_index(error, "rule", r);
    if (error->code < 0 ||
        rules_find_first_for_storages(checkpoint, rules, n_rules, first, error) < 0)
        goto cleanup;
    for (size_t i = 0; i < storages->n; i++) { /* without the lock: calls the caller's functions */
        const berth_storage *storage = bth_tree_storage(checkpoint->contents.tree, i);
        if (!storage->root && first[i] < n_rules &&
            rule_apply_to_storage(&rules[first[i]], storage, &chosen[i], error) < 0) {
            (void)bth_error_in_storage(checkpoint, storage, error);
            goto cleanup;
        }
        any_device = any_device || chosen[i].target.device;
    }
    bth_checkpoint_lock(checkpoint);
    if (!storages->targets && any_device) { /* made with the first one that goes to a device */
        storages->targets = bth_allocate_zeroed(n * sizeof *storages->targets);
        if (!storages->targets)
            (void)bth_fail_memory(error, n * sizeof *storages->targets);
    }
    for (size_t i = 0; i < storages->n && error->code == 0; i++) {
        bth_storage_state *stored = &storages->stored[i];
        stored->chosen = chosen[i].method;
        stored->chosen_by = chosen[i].chosen_by;
        /* A storage that is loaded or being loaded keeps its target. */
        if (storages->targets && !storages->targets[i].is_there && !stored->is_loading &&
            !atomic_load(&stored->memory))
            storages->targets[i].range = chosen[i].target;
    }
    bth_checkpoint_unlock(checkpoint);
cleanup:
    bth_release(first);
    bth_release(chosen);
    return bth_error_in_checkpoint(checkpoint, error);
}
