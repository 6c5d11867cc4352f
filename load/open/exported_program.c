/* SPDX-License-Identifier: BSD-3-Clause */
/* The weights of a program of torch.export, found through the directory (FORMAT.md 9). */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/json/exported.h"
#include "load/open/open_steps.h"

/* The model of data/weights/<model>_weights_config.json; *nbytes: of its name. NULL: no such. */
static const char *record_find_model(const char *record, size_t *nbytes)
{
    const size_t n_prefix = sizeof BTH_EXPORTED_WEIGHTS_PREFIX - 1;
    const size_t n_suffix = sizeof BTH_EXPORTED_CONFIG_SUFFIX - 1;
    size_t n = strlen(record);

    if (n <= n_prefix + n_suffix || memcmp(record, BTH_EXPORTED_WEIGHTS_PREFIX, n_prefix) != 0 ||
        strcmp(record + n - n_suffix, BTH_EXPORTED_CONFIG_SUFFIX) != 0)
        return NULL;
    *nbytes = n - n_prefix - n_suffix;
    return record + n_prefix;
}

static size_t container_count_models(const bth_container *container)
{
    size_t n = 0, ignored;

    for (size_t i = 0; i < container->directory.n_entries; i++)
        n += record_find_model(container->directory.entries[i].record, &ignored) != NULL;
    return n;
}

bool bth_archive_is_exported_program(const bth_container *container)
{
    return bth_container_find(container, BTH_EXPORTED_FORMAT_RECORD) &&
           container_count_models(container) > 0;
}

static bool container_find_nbytes(const void *context, const char *record, uint64_t *nbytes)
{
    const bth_zip_entry *entry = bth_container_find(context, record);

    *nbytes = entry ? entry->nbytes : 0;
    return entry != NULL;
}

int bth_exported_read(bth_opening *opening, berth_error *error)
{
    const size_t n_format = sizeof BTH_EXPORTED_FORMAT - 1;
    bth_contents *contents = opening->contents;
    const bth_zip_directory *directory = &contents->container.directory;
    const bth_zip_entry *entry =
        bth_container_find(&contents->container, BTH_EXPORTED_FORMAT_RECORD);
    const uint8_t *bytes;
    uint8_t *owned;

    /* PyTorch, too, refuses another format. */
    if (bth_entry_read_data(entry, &opening->cache, &bytes, &owned, error) < 0)
        return error->code;
    if (entry->nbytes != n_format || memcmp(bytes, BTH_EXPORTED_FORMAT, n_format) != 0)
        (void)bth_fail(error, BERTH_E_UNSUPPORTED, entry->record, entry->data_offset,
                       "it does not say \"" BTH_EXPORTED_FORMAT "\"");
    bth_release(owned);
    if (error->code < 0)
        return error->code;

    if (container_count_models(&contents->container) > 1)
        contents->root = berth_make_dict(contents->tree, BERTH_KIND_DICT);
    for (size_t i = 0; i < directory->n_entries; i++) {
        size_t nbytes;
        berth_value *weights = NULL;
        entry = &directory->entries[i];
        const char *model = record_find_model(entry->record, &nbytes);
        if (!model)
            continue;
        bth_exported_text text = {.record = entry->record,
                                  .nbytes = (size_t)entry->nbytes,
                                  .offset = entry->data_offset,
                                  .find_record = container_find_nbytes,
                                  .context = &contents->container};
        if (bth_entry_read_data(entry, &opening->cache, &text.bytes, &owned, error) == 0)
            (void)bth_exported_read_weights(&text, contents->tree, &weights, error);
        bth_release(owned);
        if (error->code < 0)
            return error->code;
        if (!contents->root) /* there is no other model */
            contents->root = weights;
        else if (berth_dict_set_value(contents->root, berth_make_str(contents->tree, model, nbytes),
                                      weights) < 0)
            return berth_tree_error(contents->tree, error);
    }
    return 0;
}
