/* SPDX-License-Identifier: BSD-3-Clause */
/* One storage: its alignment, how it is loaded, its device target, and the verdict on its CRC. */
#include "base/error.h"
#include "format/values/value.h"
#include "load/checkpoint.h"

/* The largest alignment of any dtype: an untyped storage can be viewed as each of them. */
#define WIDEST_UNIT 8

bool bth_storage_is_untyped(const berth_storage *storage)
{
    return storage->dtype == BERTH_DTYPE_NONE || storage->dtype == BERTH_UINT8;
}

size_t bth_storage_alignment(const berth_storage *storage)
{
    return bth_storage_is_untyped(storage) ? WIDEST_UNIT : bth_dtype_swap_nbytes(storage->dtype);
}

int bth_storage_fail_ambiguous_swap(const berth_storage *storage, berth_error *error)
{
    return bth_fail(error, BERTH_E_UNSUPPORTED, NULL, storage->offset,
                    "it is in the other byte order, and viewed as elements of different width: "
                    "which bytes to swap is not known");
}

bth_storage_target bth_storage_get_target(berth_checkpoint *checkpoint, const berth_storage *root)
{
    bth_storage_target target = {0};

    bth_checkpoint_lock(checkpoint);
    if (checkpoint->storages.targets)
        target = checkpoint->storages.targets[root->index];
    bth_checkpoint_unlock(checkpoint);
    return target;
}

/* ---- choice ---- */

/* T5: a storage that cannot be used in place is read, even if another method was chosen. */
static bth_choice storage_choose_read_if_not_mappable(const berth_checkpoint *checkpoint,
                                                      const berth_storage *root, bth_choice choice)
{
    uintptr_t address =
        (uintptr_t)checkpoint->source.reader.memory + root->offset; /* maps: page-aligned */

    if (checkpoint->storages.stored[root->index].deflated)
        return bth_choice_for_deflated();
    if (choice.method != BERTH_LOAD_MAP)
        return choice;
    if (checkpoint->storages.stored[root->index].unit > 1)
        return (bth_choice){BERTH_LOAD_READ, "it is in the other byte order"};
    if (address % bth_storage_alignment(root) != 0)
        return (bth_choice){BERTH_LOAD_READ, "it is not aligned for its elements"};
    return choice;
}

bth_choice bth_storage_choose(berth_checkpoint *checkpoint, const struct berth_config *config,
                              bth_conditions *conditions, const berth_storage *root)
{
    const bth_storage_state *stored = &checkpoint->storages.stored[root->index];
    berth_load_method requested =
        stored->chosen_by ? stored->chosen : (berth_load_method)config->load_method;
    bth_choice choice = bth_access_choose(&checkpoint->source.access, config, conditions, requested,
                                          stored->chosen_by);

    return storage_choose_read_if_not_mappable(checkpoint, root, choice);
}

bool bth_storage_will_be_mapped(berth_checkpoint *checkpoint, const berth_storage *root)
{
    bth_conditions conditions = {0};

    bth_checkpoint_lock(checkpoint);
    bth_access_set_known_conditions(&checkpoint->source.access, &conditions);
    bth_choice choice = bth_storage_choose(checkpoint, &checkpoint->config, &conditions, root);
    bth_checkpoint_unlock(checkpoint);
    return choice.method == BERTH_LOAD_MAP;
}

/* ---- checksum ---- */

/* Compares with the directory. BERTH_CRC_ABSENT: only a zip has CRCs. */
static berth_crc_verdict storage_compare_crc32(const berth_checkpoint *checkpoint,
                                               const berth_storage *storage, uint64_t nbytes,
                                               uint32_t crc32, berth_error *error)
{
    const bth_zip_entry *entry;
    bool present = false;

    if (!bth_contents_are_zip(&checkpoint->contents))
        return BERTH_CRC_ABSENT;
    if (bth_storage_entry(&checkpoint->contents, storage, &entry, error) < 0 ||
        entry->nbytes != nbytes) /* T1: the recorded CRC is of more bytes */
        return BERTH_CRC_UNCHECKED;
    if (bth_zip_compare_crc(entry, crc32, &present, error) < 0)
        return BERTH_CRC_BAD;
    return present ? BERTH_CRC_GOOD : BERTH_CRC_ABSENT;
}

int bth_storage_check_crc32(berth_checkpoint *checkpoint, const berth_storage *storage,
                            uint64_t nbytes, uint32_t crc32, berth_error *error)
{
    berth_crc_verdict verdict = storage_compare_crc32(checkpoint, storage, nbytes, crc32, error);

    bth_checkpoint_lock(checkpoint);
    checkpoint->storages.stored[storage->index].crc32 = (uint8_t)verdict;
    bth_checkpoint_unlock(checkpoint);
    return error->code;
}

int bth_ranges_check_crc32s(berth_checkpoint *checkpoint, const bth_transfer *transfer,
                            berth_error *error)
{
    for (size_t i = 0; i < transfer->requests.n_ranges; i++) {
        const bth_range *range = &transfer->requests.ranges[i];
        if (!transfer->with_crc32 && !range->deflated)
            continue;
        if (bth_storage_check_crc32(checkpoint, range->owner, range->nbytes, range->crc32, error) <
            0)
            return bth_error_in_storage(checkpoint, range->owner, error);
    }
    return 0;
}

/* ---- transfers ---- */

int bth_range_add_storage_to_error(void *context, const bth_range *range, berth_error *error)
{
    return bth_error_in_storage(context, range->owner, error);
}

void bth_stats_add_transfer(berth_stats *stats, const bth_transfer *transfer)
{
    if (!stats)
        return;
    stats->moved_nbytes += atomic_load(&transfer->moved_nbytes);
    stats->n_requests += atomic_load(&transfer->n_reads);
    stats->disk_seconds += (double)atomic_load(&transfer->disk_nanoseconds) * 1e-9;
    stats->render_seconds += (double)atomic_load(&transfer->render_nanoseconds) * 1e-9;
    stats->crc32_seconds += (double)atomic_load(&transfer->crc32_nanoseconds) * 1e-9;
    bth_pages_describe(&transfer->pages, stats);
}
