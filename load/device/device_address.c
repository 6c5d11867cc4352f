/* SPDX-License-Identifier: BSD-3-Clause */
/* The addresses of tensors on devices. */
#include "base/error.h"
#include "berth/device.h"
#include "io/device/device.h"
#include "load/checkpoint.h"

/* *address: the storage's; 0 if it is empty. */
static int storage_load_and_get_device_address(berth_checkpoint *checkpoint,
                                               const berth_storage *storage, uintptr_t *address,
                                               berth_error *error)
{
    const berth_storage *root = bth_storage_root(storage);
    bth_load_request request = {.config = &checkpoint->config, .at_once = true};
    bth_storage_target target = bth_storage_get_target(checkpoint, root);

    if (target.range.device && !target.is_there &&
        bth_storages_load(checkpoint, &request, &root, 1, error) < 0)
        return error->code;
    target = bth_storage_get_target(checkpoint, root);
    if (!target.is_there)
        return bth_fail_argument(error, "it is in the memory of the host: call berth_tensor_data");
    if (target.range.address == 0)
        return 0;
    /* X18: if the context died, the address may be invalid, or belong to other memory now. */
    if (bth_device_check_life(target.range.device, target.range.life, error) < 0 ||
        bth_device_check_memory(target.range.device, target.range.address, 1, error) < 0)
        return bth_error_in_storage(checkpoint, root, error);
    *address = target.range.address + (uintptr_t)(storage->root ? storage->root_offset : 0);
    return 0;
}

int berth_tensor_device_address(berth_checkpoint *checkpoint, const berth_tensor *tensor,
                                uintptr_t *address, berth_error *error)
{
    uint64_t offset = 0;

    BTH_ERROR_BEGIN(error);
    if (!address)
        (void)bth_fail_argument(error, "the pointer for the address is NULL");
    else {
        *address = 0;
        if (bth_checkpoint_check_caller_tensor(checkpoint, tensor, error) == 0 &&
            bth_tensor_find_first_byte(tensor, &offset, error) == 0 &&
            storage_load_and_get_device_address(checkpoint, tensor->storage, address, error) == 0 &&
            *address != 0)
            *address += (uintptr_t)offset;
        (void)bth_error_in_tensor(checkpoint, tensor, error);
    }
    return bth_error_in_checkpoint(checkpoint, error);
}
