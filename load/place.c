/* SPDX-License-Identifier: BSD-3-Clause */
/* Where storages go: to the host, as ever, or to devices, by rules or by the caller's function. */
#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "load/rules.h"
#include "load/storages_load.h"

/* ---- new places ---- */

/* NULL: the host. */
static int open_place(const char *place, bth_device_handle **device, berth_error *error)
{
    *device = NULL;
    return strcmp(place, "cpu") == 0 ? 0 : bth_device_open(place, device, error);
}

/* By the index of the storage; one is memory already, or on its way: it stays what it is. */
static int take_places(berth_checkpoint *checkpoint, const bth_placed *placed, berth_error *error)
{
    size_t nbytes = (checkpoint->storages.n + 1) * sizeof *placed;

    bth_checkpoint_lock(checkpoint);
    if (!checkpoint->storages.placed)
        checkpoint->storages.placed = bth_allocate_zeroed(nbytes);
    if (!checkpoint->storages.placed)
        (void)bth_fail_memory(error, nbytes);
    for (size_t i = 0; i < checkpoint->storages.n && error->code == 0; i++) {
        const bth_stored *stored = &checkpoint->storages.stored[i];
        if (!checkpoint->storages.placed[i].is_there && !stored->is_coming &&
            !atomic_load(&stored->memory))
            checkpoint->storages.placed[i] = placed[i];
    }
    bth_checkpoint_unlock(checkpoint);
    return error->code;
}

static bth_placed *make_places(const berth_checkpoint *checkpoint, berth_error *error)
{
    size_t nbytes = (checkpoint->storages.n + 1) * sizeof(bth_placed);
    bth_placed *placed = bth_allocate_zeroed(nbytes);

    if (!placed)
        (void)bth_fail_memory(error, nbytes);
    return placed;
}

/* ---- by rules ---- */

static bth_condition place_condition(const void *rules, size_t i)
{
    const berth_placement_rule *rule = (const berth_placement_rule *)rules + i;

    return (bth_condition){.pattern = rule->pattern,
                           .location = rule->location,
                           .least_nbytes = rule->least_nbytes,
                           .most_nbytes = rule->most_nbytes};
}

static int place_by_rules(berth_checkpoint *checkpoint, const berth_placement_rule *rules,
                          size_t n_rules, berth_error *error)
{
    bth_placed *placed = make_places(checkpoint, error);
    size_t *first = NULL;

    if (!placed || bth_rules_fit(checkpoint, rules, n_rules, place_condition, &first, error) < 0)
        goto cleanup;
    for (size_t i = 0; i < checkpoint->storages.n; i++) {
        const berth_storage *storage = bth_tree_storage(checkpoint->contents.tree, i);
        if (storage->root || first[i] >= n_rules)
            continue;
        const char *place = rules[first[i]].place;
        if (open_place(place ? place : storage->location, &placed[i].device, error) < 0) {
            (void)bth_error_in_storage(checkpoint, storage, error);
            goto cleanup;
        }
    }
    (void)take_places(checkpoint, placed, error);
cleanup:
    bth_release(first);
    bth_release(placed);
    return error->code;
}

int berth_choose_places(berth_checkpoint *checkpoint, const berth_placement_rule *rules,
                        size_t n_rules, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (!checkpoint || (!rules && n_rules > 0))
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                        "berth_choose_places needs a checkpoint and rules");
    if (place_by_rules(checkpoint, rules, n_rules, error) < 0)
        (void)bth_error_prefix(error, checkpoint->source.reader.name);
    return error->code;
}

/* ---- by a function ---- */

/* Takes over what the function said. */
static int take_placement(const berth_storage *storage, const berth_placement *said,
                          bth_placed *placed, berth_error *error)
{
    if (!said->place)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "there is no place");
    if (open_place(said->place, &placed->device, error) < 0 || said->address == 0)
        return error->code;
    if (!placed->device)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                        "memory can be given on devices only, not on \"cpu\"");
    if (said->nbytes < storage->nbytes)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                        "%s: memory of %llu bytes is given for %llu",
                        bth_device_name(placed->device), (unsigned long long)said->nbytes,
                        (unsigned long long)storage->nbytes);
    placed->address = said->address;
    placed->life = bth_device_life(placed->device);
    placed->ready = said->ready;
    return bth_device_check(placed->device, said->address, (size_t)storage->nbytes, error);
}

static int ask(const berth_storage *storage, berth_placement_function choose, void *context,
               bth_placed *placed, berth_error *error)
{
    berth_placement said = {.place = "cpu"};
    int result = choose(context, storage, &said);
    const char *text = result > 0 ? strerrordesc_np(result) : NULL;

    if (result == 0)
        return take_placement(storage, &said, placed, error);
    error->system_errno = text ? result : 0;
    return bth_fail(error, BERTH_E_CALLBACK, NULL, BERTH_NO_OFFSET,
                    "the caller's function gives it no place: %s", text ? text : "it failed");
}

int berth_choose_places_by(berth_checkpoint *checkpoint, berth_placement_function choose,
                           void *context, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (!checkpoint || !choose)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                        "berth_choose_places_by needs a checkpoint and a function");
    bth_placed *placed = make_places(checkpoint, error);
    /* Without the mutex: it is the caller's code. */
    for (size_t i = 0; placed && i < checkpoint->storages.n && error->code == 0; i++) {
        const berth_storage *storage = bth_tree_storage(checkpoint->contents.tree, i);
        if (!storage->root && ask(storage, choose, context, &placed[i], error) < 0)
            (void)bth_error_in_storage(checkpoint, storage, error);
    }
    if (error->code == 0)
        (void)take_places(checkpoint, placed, error);
    bth_release(placed);
    return error->code < 0 ? bth_error_prefix(error, checkpoint->source.reader.name) : 0;
}

/* ---- addresses ---- */

/* X18: where the context died, the address may be another's memory by now, or nobody's. */
static int check_placed(berth_checkpoint *checkpoint, const berth_storage *root,
                        const bth_placed *placed, berth_error *error)
{
    if (placed->address == 0 || (bth_device_check_life(placed->device, placed->life, error) == 0 &&
                                 bth_device_check(placed->device, placed->address, 1, error) == 0))
        return 0;
    return bth_error_in_storage(checkpoint, root, error);
}

static int find_address(berth_checkpoint *checkpoint, const berth_storage *storage,
                        uintptr_t *address, berth_error *error)
{
    const berth_storage *root = storage->root ? storage->root : storage;
    bth_load_request request = {.config = &checkpoint->config,
                                .at_once = true,
                                .to_devices = true,
                                .with_crc32 = checkpoint->config.load_check >= BTH_CHECK_DATA};
    bth_placed placed = bth_storage_placed(checkpoint, root);

    if (placed.device && !placed.is_there &&
        bth_storages_load(checkpoint, &request, &root, 1, error) < 0)
        return error->code;
    placed = bth_storage_placed(checkpoint, root);
    if (!placed.is_there)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                        "its place is the host's memory: berth_tensor_data tells the address");
    if (check_placed(checkpoint, root, &placed, error) < 0)
        return error->code;
    if (placed.address != 0)
        *address = placed.address + (uintptr_t)(storage->root ? storage->root_offset : 0);
    return 0;
}

int berth_tensor_device_address(berth_checkpoint *checkpoint, const berth_tensor *tensor,
                                uintptr_t *address, berth_error *error)
{
    uint64_t offset = 0;
    uintptr_t found = 0;

    BTH_ERROR_BEGIN(error);
    if (!address)
        (void)bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                       "there is no place for the address");
    if (error->code == 0 && bth_checkpoint_check_tensor(checkpoint, tensor, error) == 0 &&
        bth_tensor_first_byte(tensor, &offset, error) == 0)
        (void)find_address(checkpoint, tensor->storage, &found, error);
    if (address)
        *address = found == 0 ? 0 : found + (uintptr_t)offset;
    return error->code < 0 && checkpoint ? bth_error_prefix(error, checkpoint->source.reader.name)
                                         : error->code;
}
