/* SPDX-License-Identifier: BSD-3-Clause */
/* Rules; and methods chosen storage by storage, by rules or by the caller's own function. */
#include "load/rules.h"

#include "config/error.h"
#include "config/memory.h"
#include "load/selection.h"

static bool is_method(berth_load_method method)
{
    return method == BERTH_LOAD_AUTO || method == BERTH_LOAD_MAP || method == BERTH_LOAD_READ ||
           method == BERTH_LOAD_DIRECT;
}

static int fail_method(berth_load_method method, berth_error *error)
{
    return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "there is no method %d",
                    (int)method);
}

/* ---- rules: for each storage the first that fits ---- */

struct rules {
    const void *rules;
    size_t n;
    bth_condition_at at;
    size_t *first; /* by index of the storage */
};

/* All of it but its pattern. */
static bool fits_storage(const bth_condition *rule, const berth_storage *root)
{
    return root->nbytes >= rule->least_nbytes &&
           (rule->most_nbytes == 0 || root->nbytes <= rule->most_nbytes) &&
           (!rule->location || bth_name_fits(rule->location, root->location));
}

static void fit_storages(const berth_checkpoint *checkpoint, const struct rules *rules)
{
    for (size_t i = 0; i < checkpoint->storages.n; i++) {
        const berth_storage *storage = bth_tree_storage(checkpoint->contents.tree, i);
        size_t *first = &rules->first[i];
        for (*first = 0; *first < rules->n; ++*first) {
            bth_condition rule = rules->at(rules->rules, *first);
            if (!rule.pattern && fits_storage(&rule, storage))
                break;
        }
    }
}

/* Rules with a pattern, as far as they come before the one that the storage has. */
static int fit_name(const bth_names *names, size_t i, const struct rules *rules, berth_error *error)
{
    const berth_tensor *tensor = berth_as_tensor(bth_names_value(names, i));
    char *name, *path;

    if (!tensor || !tensor->storage)
        return 0;
    const berth_storage *storage = tensor->storage;
    const berth_storage *root = storage->root ? storage->root : storage;
    size_t *first = &rules->first[root->index];
    if (bth_names_text(names, i, &name, &path, error) < 0)
        return error->code;
    for (size_t r = 0; r < *first; r++) {
        bth_condition rule = rules->at(rules->rules, r);
        if (rule.pattern && fits_storage(&rule, root) && bth_name_fits(rule.pattern, name))
            *first = r;
    }
    bth_release(name);
    bth_release(path);
    return 0;
}

static int fit_names(berth_checkpoint *checkpoint, const struct rules *rules, berth_error *error)
{
    bool any = false;

    for (size_t r = 0; r < rules->n; r++)
        any = any || rules->at(rules->rules, r).pattern;
    if (!any)
        return 0;
    const bth_names *names = bth_checkpoint_names(checkpoint, error);
    for (size_t i = 0; names && i < bth_names_count(names) && error->code == 0; i++)
        (void)fit_name(names, i, rules, error);
    return error->code;
}

int bth_rules_fit(berth_checkpoint *checkpoint, const void *rules, size_t n_rules,
                  bth_condition_at at, size_t **first, berth_error *error)
{
    size_t nbytes = (checkpoint->storages.n + 1) * sizeof **first;
    struct rules all = {.rules = rules, .n = n_rules, .at = at};

    *first = all.first = bth_allocate_zeroed(nbytes);
    if (!all.first)
        return bth_fail_memory(error, nbytes);
    fit_storages(checkpoint, &all);
    if (fit_names(checkpoint, &all, error) < 0) {
        bth_release(*first);
        *first = NULL;
    }
    return error->code;
}

/* ---- methods by rules ---- */

static bth_condition method_condition(const void *rules, size_t i)
{
    const berth_method_rule *rule = (const berth_method_rule *)rules + i;

    return (bth_condition){.pattern = rule->pattern,
                           .location = rule->location,
                           .least_nbytes = rule->least_nbytes,
                           .most_nbytes = rule->most_nbytes};
}

static void take_rules(berth_checkpoint *checkpoint, const berth_method_rule *rules, size_t n_rules,
                       const size_t *first)
{
    bth_checkpoint_lock(checkpoint);
    for (size_t i = 0; i < checkpoint->storages.n; i++) {
        bth_stored *stored = &checkpoint->storages.stored[i];
        bool fits = first[i] < n_rules;
        stored->chosen = fits ? rules[first[i]].method : BERTH_LOAD_AUTO;
        stored->chosen_by = fits ? "a rule asks for it" : NULL;
    }
    bth_checkpoint_unlock(checkpoint);
}

static int choose_by_rules(berth_checkpoint *checkpoint, const berth_method_rule *rules,
                           size_t n_rules, berth_error *error)
{
    size_t *first;

    for (size_t r = 0; r < n_rules; r++)
        if (!is_method(rules[r].method))
            return fail_method(rules[r].method, error);
    if (bth_rules_fit(checkpoint, rules, n_rules, method_condition, &first, error) == 0)
        take_rules(checkpoint, rules, n_rules, first);
    bth_release(first);
    return error->code;
}

int berth_choose_methods(berth_checkpoint *checkpoint, const berth_method_rule *rules,
                         size_t n_rules, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (!checkpoint || (!rules && n_rules > 0))
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                        "berth_choose_methods needs a checkpoint and rules");
    if (choose_by_rules(checkpoint, rules, n_rules, error) < 0)
        (void)bth_error_prefix(error, checkpoint->source.reader.name);
    return error->code;
}

/* ---- methods by a function ---- */

int berth_choose_methods_by(berth_checkpoint *checkpoint, berth_method_function choose,
                            void *context, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (!checkpoint || !choose)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                        "berth_choose_methods_by needs a checkpoint and a function");
    size_t n = checkpoint->storages.n;
    berth_load_method *chosen = bth_allocate((n + 1) * sizeof *chosen);
    if (!chosen) {
        (void)bth_fail_memory(error, (n + 1) * sizeof *chosen);
        return bth_error_prefix(error, checkpoint->source.reader.name);
    }
    /* Without the mutex: it is the caller's code. */
    for (size_t i = 0; i < n && error->code == 0; i++) {
        const berth_storage *storage = bth_tree_storage(checkpoint->contents.tree, i);
        chosen[i] = storage->root ? BERTH_LOAD_AUTO : choose(context, storage);
        if (!is_method(chosen[i]))
            (void)fail_method(chosen[i], error);
    }
    bth_checkpoint_lock(checkpoint);
    for (size_t i = 0; i < n && error->code == 0; i++) {
        checkpoint->storages.stored[i].chosen = chosen[i];
        checkpoint->storages.stored[i].chosen_by = "the caller's function asks for it";
    }
    bth_checkpoint_unlock(checkpoint);
    bth_release(chosen);
    return error->code < 0 ? bth_error_prefix(error, checkpoint->source.reader.name) : 0;
}
