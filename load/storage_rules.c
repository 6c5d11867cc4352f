/* SPDX-License-Identifier: BSD-3-Clause */
/* berth_set_storage_rules: rules of the caller choose the I/O method and device of each storage. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "config/options.h"
#include "io/device/device.h"
#include "load/checkpoint.h"

/* The choice for one storage. */
struct chosen {
    berth_load_method method;
    const char *chosen_by; /* NULL: load.method decides */
    bth_range_target target;
};

/* By the index of a storage. */
struct applied_rules {
    berth_checkpoint *checkpoint;
    const berth_storage_rule *rules;
    size_t n_rules;
    size_t *first; /* the rule that applies; n_rules: none */
    struct chosen *chosen;
};

/* ---- which rule applies ---- */

/* Compares all conditions except the pattern. */
static bool rule_matches_storage(const berth_storage_rule *rule, const berth_storage *root)
{
    return root->nbytes >= rule->min_nbytes &&
           (rule->max_nbytes == 0 || root->nbytes <= rule->max_nbytes) &&
           (!rule->location || bth_name_matches_pattern(rule->location, root->location));
}

static void rules_find_first_without_pattern(const struct applied_rules *applied_rules)
{
    for (size_t i = 0; i < applied_rules->checkpoint->storages.n; i++) {
        const berth_storage *storage =
            bth_tree_storage(applied_rules->checkpoint->contents.tree, i);
        size_t *first = &applied_rules->first[i];
        for (*first = 0; *first < applied_rules->n_rules; ++*first) {
            const berth_storage_rule *rule = &applied_rules->rules[*first];
            if (!rule->pattern && rule_matches_storage(rule, storage))
                break;
        }
    }
}

/* A bth_name_visit: rules with a pattern. The first rule that fits applies. */
static int rules_find_first_for_name(void *context, const berth_tensor *tensor, const char *name,
                                     berth_error *error)
{
    const struct applied_rules *applied_rules = context;

    if (!tensor)
        return 0;
    const berth_storage *root = bth_storage_root(tensor->storage);
    size_t *first = &applied_rules->first[root->index];
    for (size_t r = 0; r < *first; r++) {
        const berth_storage_rule *rule = &applied_rules->rules[r];
        if (rule->pattern && rule_matches_storage(rule, root) &&
            bth_name_matches_pattern(rule->pattern, name))
            *first = r;
    }
    return error->code;
}

static int rules_find_first_for_storages(struct applied_rules *applied_rules, berth_error *error)
{
    rules_find_first_without_pattern(applied_rules);
    for (size_t r = 0; r < applied_rules->n_rules; r++)
        if (applied_rules->rules[r].pattern)
            return bth_checkpoint_visit_names(applied_rules->checkpoint, true,
                                              rules_find_first_for_name, applied_rules, error);
    return 0;
}

/* ---- what the rule sets ---- */

static int rule_check_method(berth_load_method method, berth_error *error)
{
    if (bth_load_method_is_valid(method))
        return 0;
    return bth_fail_argument(error, "invalid method %d", (int)method);
}

/* The caller's memory on a device. */
static int device_target_set_address(const berth_storage_choice *choice,
                                     const berth_storage *storage, bth_range_target *target,
                                     berth_error *error)
{
    if (!target->device)
        return bth_fail_argument(
            error, "an address must be on a device, not on \"cpu\": berth_load_into fills "
                   "memory of the host");
    if (choice->nbytes < storage->nbytes)
        return bth_fail_argument(
            error, "%s: the memory at the address has %llu bytes, but %llu are needed",
            bth_device_name(target->device), (unsigned long long)choice->nbytes,
            (unsigned long long)storage->nbytes);
    target->address = choice->address;
    target->life = bth_device_life(target->device);
    target->ready = choice->ready;
    return bth_device_check_memory(target->device, choice->address, (size_t)storage->nbytes, error);
}

static int device_target_set_from_choice(const berth_storage_choice *choice,
                                         const berth_storage *storage, bth_range_target *target,
                                         berth_error *error)
{
    const char *device = choice->device;

    if (!device)
        return bth_fail_argument(error, "the caller's function set device to NULL");
    if (strcmp(device, BERTH_DEVICE_SAVED) == 0)
        device = storage->location;
    if (strcmp(device, "cpu") != 0 && bth_device_open(device, &target->device, error) < 0)
        return error->code;
    return choice->address ? device_target_set_address(choice, storage, target, error) : 0;
}

static int rule_call_choose_function(const berth_storage_rule *rule, const berth_storage *storage,
                                     berth_storage_choice *choice, berth_error *error)
{
    int result = rule->choose(rule->context, storage, choice);
    const char *text = result > 0 ? bth_errno_text(result) : NULL;

    if (result == 0)
        return BTH_CHECK_RESERVED(berth_storage_choice, choice, error);
    (void)bth_fail_status(error, BERTH_E_CALLBACK, "the caller's function failed: %s",
                          text ? text : "it returned no errno value");
    error->system_errno = text ? result : 0;
    return error->code;
}

static int rule_apply_to_storage(const berth_storage_rule *rule, const berth_storage *storage,
                                 struct chosen *chosen, berth_error *error)
{
    berth_storage_choice choice = {.method = rule->method,
                                   .device = rule->device ? rule->device : "cpu"};

    if (rule->choose && rule_call_choose_function(rule, storage, &choice, error) < 0)
        return error->code;
    chosen->method = choice.method;
    if (choice.method != BERTH_LOAD_AUTO)
        chosen->chosen_by = rule->choose ? "the caller's function chose it" : "a rule chose it";
    if (rule_check_method(choice.method, error) < 0)
        return error->code;
    return device_target_set_from_choice(&choice, storage, &chosen->target, error);
}

/* Without the lock: it calls the caller's functions. */
static int rules_apply_to_storages(const struct applied_rules *applied_rules, berth_error *error)
{
    for (size_t i = 0; i < applied_rules->checkpoint->storages.n; i++) {
        const berth_storage *storage =
            bth_tree_storage(applied_rules->checkpoint->contents.tree, i);
        size_t first = applied_rules->first[i];
        if (!storage->root && first < applied_rules->n_rules &&
            rule_apply_to_storage(&applied_rules->rules[first], storage, &applied_rules->chosen[i],
                                  error) < 0)
            return bth_error_in_storage(applied_rules->checkpoint, storage, error);
    }
    return 0;
}

/* ---- all storages ---- */

/* The list of targets is made with the first storage that goes to a device. */
static int rules_allocate_targets(const struct applied_rules *applied_rules, berth_error *error)
{
    bth_storages *storages = &applied_rules->checkpoint->storages;
    size_t nbytes = (storages->n + 1) * sizeof *storages->targets;
    bool any_device = false;

    for (size_t i = 0; i < storages->n; i++)
        any_device = any_device || applied_rules->chosen[i].target.device;
    if (storages->targets || !any_device)
        return 0;
    storages->targets = bth_allocate_zeroed(nbytes);
    return storages->targets ? 0 : bth_fail_memory(error, nbytes);
}

/* A storage that is loaded or being loaded keeps its target. */
static int rules_publish_choices(const struct applied_rules *applied_rules, berth_error *error)
{
    bth_storages *storages = &applied_rules->checkpoint->storages;

    bth_checkpoint_lock(applied_rules->checkpoint);
    (void)rules_allocate_targets(applied_rules, error);
    for (size_t i = 0; i < storages->n && error->code == 0; i++) {
        bth_storage_state *stored = &storages->stored[i];
        stored->chosen = applied_rules->chosen[i].method;
        stored->chosen_by = applied_rules->chosen[i].chosen_by;
        if (storages->targets && !storages->targets[i].is_there && !stored->is_loading &&
            !atomic_load(&stored->memory))
            storages->targets[i].range = applied_rules->chosen[i].target;
    }
    bth_checkpoint_unlock(applied_rules->checkpoint);
    return error->code;
}

static int rules_check(const struct applied_rules *applied_rules, berth_error *error)
{
    for (size_t r = 0; r < applied_rules->n_rules; r++)
        if (BTH_CHECK_RESERVED(berth_storage_rule, &applied_rules->rules[r], error) < 0 ||
            rule_check_method(applied_rules->rules[r].method, error) < 0)
            return bth_error_prefix_index(error, "rule", r);
    return 0;
}

static int rules_run(struct applied_rules *applied_rules, berth_error *error)
{
    size_t n = applied_rules->checkpoint->storages.n + 1;

    applied_rules->first = bth_allocate_zeroed(n * sizeof *applied_rules->first);
    applied_rules->chosen = bth_allocate_zeroed(n * sizeof *applied_rules->chosen);
    if (!applied_rules->first || !applied_rules->chosen)
        (void)bth_fail_memory(error, n * sizeof *applied_rules->chosen);
    else if (rules_check(applied_rules, error) == 0 &&
             rules_find_first_for_storages(applied_rules, error) == 0 &&
             rules_apply_to_storages(applied_rules, error) == 0)
        (void)rules_publish_choices(applied_rules, error);
    bth_release(applied_rules->first);
    bth_release(applied_rules->chosen);
    return error->code;
}

int berth_set_storage_rules(berth_checkpoint *checkpoint, const berth_storage_rule *rules,
                            size_t n_rules, berth_error *error)
{
    struct applied_rules applied_rules = {
        .checkpoint = checkpoint, .rules = rules, .n_rules = n_rules};

    BTH_ERROR_BEGIN(error);
    if (!checkpoint || (!rules && n_rules > 0))
        return bth_fail_argument(error, "berth_set_storage_rules needs a checkpoint and rules");
    (void)rules_run(&applied_rules, error);
    return bth_error_in_checkpoint(checkpoint, error);
}
