/* SPDX-License-Identifier: BSD-3-Clause */
/* What is known of one storage: its place, the verdict on its CRC, and why it cannot be used. */
#include "config/error.h"
#include "config/memory.h"
#include "load/storages_load.h"

int bth_fail_ambiguous(const berth_storage *storage, berth_error *error)
{
    return bth_fail(error, BERTH_E_UNSUPPORTED, NULL, storage->offset,
                    "it is in the other byte order, and viewed as elements of different width: "
                    "which bytes to swap is not known");
}

bth_placed bth_storage_placed(berth_checkpoint *checkpoint, const berth_storage *root)
{
    bth_placed placed = {0};

    bth_checkpoint_lock(checkpoint);
    if (checkpoint->storages.placed)
        placed = checkpoint->storages.placed[root->index];
    bth_checkpoint_unlock(checkpoint);
    return placed;
}

int bth_fail_on_device(const bth_device_handle *device, berth_error *error)
{
    return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                    "its place is %s, where the host cannot follow an address: "
                    "berth_tensor_device_address tells it, berth_tensor_read copies from there",
                    bth_device_name(device));
}

/* What the directory says of a sum. BERTH_CRC_ABSENT: a legacy file has none. */
static berth_crc_verdict storage_judge(const berth_checkpoint *checkpoint,
                                       const berth_storage *storage, uint32_t computed,
                                       berth_error *error)
{
    const bth_zip_entry *entry;
    bool present = false;

    if (checkpoint->contents.is_legacy)
        return BERTH_CRC_ABSENT;
    if (bth_storage_entry(&checkpoint->contents, storage, &entry, error) < 0 ||
        entry->nbytes != storage->nbytes) /* T1: the CRC is of more bytes */
        return BERTH_CRC_UNCHECKED;
    if (bth_zip_check_crc(entry, computed, &present, error) < 0)
        return BERTH_CRC_BAD;
    return present ? BERTH_CRC_GOOD : BERTH_CRC_ABSENT;
}

int bth_storage_check_crc32(berth_checkpoint *checkpoint, const berth_storage *storage,
                            uint32_t computed, berth_error *error)
{
    berth_crc_verdict verdict = storage_judge(checkpoint, storage, computed, error);

    bth_checkpoint_lock(checkpoint);
    checkpoint->storages.stored[storage->index].crc32 = (uint8_t)verdict;
    bth_checkpoint_unlock(checkpoint);
    return error->code;
}

void bth_kept_region_free(bth_kept_region *kept)
{
    if (kept)
        bth_region_free(&kept->region);
    bth_release(kept);
}
