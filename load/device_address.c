/* SPDX-License-Identifier: BSD-3-Clause */
/* Addresses on devices. */
#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "load/storages_load.h"

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
