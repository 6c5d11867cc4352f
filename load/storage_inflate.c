/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Deflated storages (Z12), as `zip -r` makes them. They are never mapped, and cannot be read in
 * parts. The transfer engine inflates each as a whole, when its bytes are asked for.
 */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/values/value.h"
#include "load/checkpoint.h"
#include "load/transfer/transfer.h"

typedef unsigned long long ull;

const bth_zip_entry *bth_storage_deflated_record(const berth_storage *storage)
{
    const bth_storage_state *stored = bth_storage_root(storage)->context;

    return stored->deflated;
}

void bth_storages_set_deflated(berth_checkpoint *checkpoint)
{
    const bth_zip_directory *directory = &checkpoint->contents.container.directory;

    for (size_t i = 0; checkpoint->contents.n_deflated > 0 && i < directory->n_entries; i++) {
        const bth_zip_entry *entry = &directory->entries[i];
        if (entry->method != BTH_ZIP_DEFLATED || strncmp(entry->record, "data/", 5) != 0)
            continue;
        const berth_storage *storage = bth_tree_find_storage(
            checkpoint->contents.tree, entry->record + 5, strlen(entry->record + 5));
        if (storage)
            checkpoint->storages.stored[storage->index].deflated = entry;
    }
}

int bth_storage_check_may_inflate(const berth_checkpoint *checkpoint, const berth_storage *root,
                                  const char *what, berth_error *error)
{
    if (!checkpoint->storages.stored[root->index].deflated)
        return 0;
    if (what)
        return bth_fail(error, BERTH_E_UNSUPPORTED, NULL, root->offset,
                        "it is deflated: %s; `berth convert` writes a file where it is not", what);
    if (checkpoint->config.load_inflate)
        return 0;
    return bth_fail(error, BERTH_E_UNSUPPORTED, NULL, root->offset,
                    "it is deflated: load.inflate=on inflates it, and `berth convert` writes a "
                    "file where it is not");
}

int bth_storages_reserve_inflated(berth_checkpoint *checkpoint, const struct berth_config *config,
                                  const berth_storage *root, berth_error *error)
{
    bth_storages *storages = &checkpoint->storages;
    uint64_t max_nbytes = (uint64_t)config->io_memory_nbytes, sum;

    if (!bth_try_add(storages->inflated_nbytes, root->nbytes, &sum))
        return bth_fail_memory(error, UINT64_MAX);
    if (max_nbytes > 0 && sum > max_nbytes)
        return bth_fail(error, BERTH_E_MEMORY, NULL, root->offset,
                        "io.memory_nbytes=%llu is too small to inflate its %llu bytes, beside "
                        "%llu bytes of other storages: %llu are missing",
                        (ull)max_nbytes, (ull)root->nbytes, (ull)storages->inflated_nbytes,
                        (ull)(sum - max_nbytes));
    storages->inflated_nbytes = sum;
    return 0;
}

void bth_storages_release_inflated(berth_checkpoint *checkpoint, const berth_storage *root)
{
    if (checkpoint->storages.stored[root->index].deflated)
        checkpoint->storages.inflated_nbytes -= root->nbytes;
}

int bth_storage_inflate_into(berth_checkpoint *checkpoint, const berth_storage *root, void *buffer,
                             berth_error *error)
{
    const bth_storage_state *stored = &checkpoint->storages.stored[root->index];
    size_t nbytes = (size_t)root->nbytes;

    if (bth_storage_check_may_inflate(checkpoint, root, NULL, error) < 0 ||
        bth_read_inflated_range(&checkpoint->source.reader, &checkpoint->config, stored->deflated,
                                buffer, nbytes, 0, error) < 0)
        return error->code;
    if (stored->unit > 1)
        bth_swap_bytes(buffer, buffer, nbytes - nbytes % stored->unit, stored->unit);
    return 0;
}

int bth_storage_load_if_deflated(berth_checkpoint *checkpoint, const berth_storage *root,
                                 size_t nbytes, berth_error *error)
{
    const uint8_t *memory;

    if (nbytes == 0 || nbytes == root->nbytes || !checkpoint->storages.stored[root->index].deflated)
        return 0;
    return bth_storage_load_and_get_memory(checkpoint, root, &memory, error);
}
