/* SPDX-License-Identifier: BSD-3-Clause */
/* The public side of loading: opening and closing, names, berth_load, berth_get_info. */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/trace.h"
#include "io/file.h"
#include "load/errors_with_names.h"
#include "load/selection.h"
#include "load/storage_state.h"
#include "load/verify.h"

/* The wing's own definition, where it is linked, stands in its place. */
__attribute__((weak)) const bth_prefetch_functions bth_wing_prefetch;

/* ---- open and close ---- */

int bth_checkpoint_choose_call_config(const berth_checkpoint *checkpoint,
                                      const berth_params *params, struct berth_config *config,
                                      berth_error *error)
{
    *config = checkpoint->config;
    if (params && BTH_CHECK_RESERVED(berth_params, params, error) == 0 && params->config)
        (void)bth_config_copy_for_operation(params, config, error);
    return error->code;
}

void bth_params_initialize_stats(const berth_params *params)
{
    if (params && params->stats)
        *params->stats = (berth_stats){.method = "none", .reason = "nothing was read"};
}

void bth_params_set_checkpoint_stats(berth_checkpoint *checkpoint, const berth_params *params)
{
    const bth_contents *contents = &checkpoint->contents;
    bth_conditions conditions = {0};

    if (!params || !params->stats)
        return;
    /* The method for storages that are loaded one by one, if all have the same. */
    bth_checkpoint_lock(checkpoint);
    bth_access_set_known_conditions(&checkpoint->source.access, &conditions);
    bth_checkpoint_unlock(checkpoint);
    bth_choice choice = bth_choose(&checkpoint->config, &conditions,
                                   (berth_load_method)checkpoint->config.load_method, NULL);
    double seconds = bth_seconds() - checkpoint->begin_seconds;
    uint64_t moved_nbytes = atomic_load(&checkpoint->source.reader.moved_nbytes);
    *params->stats =
        (berth_stats){.total_seconds = seconds,
                      .plan_seconds = checkpoint->open_seconds,
                      .transfer_seconds = seconds - checkpoint->open_seconds,
                      .moved_nbytes = moved_nbytes,
                      .requested_nbytes = moved_nbytes,
                      .n_requests = atomic_load(&checkpoint->source.reader.n_requests),
                      .n_records = contents->counts.known ? contents->counts.n_records
                                                          : contents->container.directory.n_entries,
                      .n_storages = checkpoint->storages.n,
                      .calculated_offsets = contents->calculated_offsets,
                      .repacked = contents->repacked,
                      .behind_nbytes = contents->behind_nbytes,
                      .method = bth_choice_method_name(choice, conditions.is_memory, false),
                      .reason = choice.reason};
}

/* Opens the source of an empty checkpoint and reads its contents. The error names the file. */
static int checkpoint_open_and_read(berth_checkpoint *checkpoint, const berth_source *source,
                                    const berth_params *params, berth_error *error)
{
    bth_verify_request request = {.scan = {.params = params, .through_cache = true},
                                  .only_mapped = true};

    if (bth_reader_open_source(source, &checkpoint->source.reader, error) < 0) {
        (void)bth_folder_explain(source, error);
        return bth_error_prefix(error, bth_source_name(source));
    }
    bth_lock_initialize(&checkpoint->lock);
    atomic_init(&checkpoint->process, bth_process_unique_number());
    (void)pthread_cond_init(&checkpoint->storages.finished, NULL);
    checkpoint->has_lock = true;
    bth_lock_initialize(&checkpoint->prefetches.lock);
    (void)pthread_cond_init(&checkpoint->prefetches.changed, NULL);
    if (bth_contents_read(&checkpoint->contents, &checkpoint->source.reader, &checkpoint->config,
                          error) == 0 &&
        bth_storages_initialize_states(checkpoint, error) == 0) {
        for (size_t i = 0; i < checkpoint->storages.n; i++)
            bth_tree_storage(checkpoint->contents.tree, i)->read_elements =
                bth_storage_read_elements_for_save;
        /*
         * load.check=data: compares mapped storages now. Storages that are read are compared when
         * they are loaded, so that nothing is read twice; only the indices of sparse tensors are
         * needed now (T6).
         */
        if (checkpoint->config.load_check == BTH_CHECK_DATA &&
            bth_verify_checkpoint(checkpoint, &request, error) == 0)
            (void)bth_checkpoint_check_all_indices(checkpoint, params, error);
        if (error->code == 0 && checkpoint->config.load_prefetch != BTH_PREFETCH_OFF)
            (void)(bth_wing_prefetch.begin
                       ? bth_wing_prefetch.begin(checkpoint, error)
                       : bth_fail_status(error, BERTH_E_UNAVAILABLE,
                                         "load.prefetch: this library was built without it"));
    }
    checkpoint->open_seconds = bth_seconds() - checkpoint->begin_seconds;
    bth_params_set_checkpoint_stats(checkpoint, params);
    return bth_error_in_checkpoint(checkpoint, error);
}

int bth_source_check_open_arguments(const berth_source *source, const void *opened,
                                    berth_error *error)
{
    if (source && opened && (source->kind != BERTH_SOURCE_PATH || source->path))
        return 0;
    return bth_fail_argument(error, "%s",
                             !source   ? "the source is NULL"
                             : !opened ? "the pointer for the result is NULL"
                                       : "the path is NULL");
}

int bth_checkpoint_open(const berth_source *source, const struct berth_config *config,
                        const berth_params *params, berth_checkpoint **opened, berth_error *error)
{
    bth_params_initialize_stats(params);
    if (bth_source_check_open_arguments(source, opened, error) < 0)
        return error->code;
    *opened = NULL;
    berth_checkpoint *checkpoint = bth_allocate_zeroed(sizeof *checkpoint);
    if (!checkpoint)
        return bth_fail_memory(error, sizeof *checkpoint);
    checkpoint->source.reader.fd = -1;
    bth_access_initialize(&checkpoint->source.access, &checkpoint->source.reader);
    checkpoint->begin_seconds = bth_seconds();
    checkpoint->contents.keeps_directory = config != NULL;
    if (config)
        checkpoint->config = *config;
    else
        (void)bth_config_copy_for_operation(params, &checkpoint->config, error);
    bth_traced_call traced;
    params = bth_traced_call_begin(&traced, error->code == 0 ? checkpoint->config.trace : 0, "open",
                                   bth_source_name(source), checkpoint->begin_seconds, params);
    if (error->code == 0 && checkpoint_open_and_read(checkpoint, source, params, error) == 0)
        *opened = checkpoint;
    bth_traced_call_end(&traced, 0, error);
    if (error->code < 0)
        berth_close(checkpoint);
    return error->code;
}

int berth_open(const char *path, const berth_params *params, berth_checkpoint **checkpoint,
               berth_error *error)
{
    const berth_source source = berth_from_path(path);

    BTH_ERROR_BEGIN(error);
    return bth_checkpoint_open(&source, NULL, params, checkpoint, error);
}

int berth_open_source(const berth_source *source, const berth_params *params,
                      berth_checkpoint **checkpoint, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    return bth_checkpoint_open(source, NULL, params, checkpoint, error);
}

void berth_close(berth_checkpoint *checkpoint)
{
    BTH_HOLD_CANCEL(true);
    if (!checkpoint)
        return;
    if (checkpoint->has_lock) {
        bth_prefetches *prefetches = &checkpoint->prefetches;
        bth_checkpoint_reset_if_forked(checkpoint);
        if (prefetches->own) /* the caller has freed all others */
            bth_wing_prefetch.end(prefetches->own);
        if (bth_lock_is_of_this_process(&prefetches->lock)) {
            (void)pthread_cond_destroy(&prefetches->changed);
            bth_lock_destroy(&prefetches->lock);
        }
    }
    bth_trace_flush(checkpoint->config.trace);
    bth_storages_free_memory_and_map(checkpoint);
    bth_contents_free(&checkpoint->contents);
    bth_release(checkpoint->shown_name.text);
    bth_release(checkpoint->shown_path.text);
    bth_reader_close(&checkpoint->source.reader);
    if (checkpoint->has_lock) {
        (void)pthread_cond_destroy(&checkpoint->storages.finished);
        bth_lock_destroy(&checkpoint->lock);
    }
    bth_release(checkpoint);
}

void berth_close_descriptors(berth_checkpoint *checkpoint)
{
    BTH_HOLD_CANCEL(true);
    if (!checkpoint || checkpoint->prefetches.own)
        return;
    bth_checkpoint_reset_if_forked(checkpoint);
    bth_access_close_direct(&checkpoint->source.access);
    bth_file_close(checkpoint->source.reader.fd);
    checkpoint->source.reader.fd = -1;
}

/* ---- load ---- */

int berth_load(berth_checkpoint *checkpoint, const berth_selection *selection,
               const berth_params *params, berth_error *error)
{
    double begin_seconds = bth_seconds();
    const berth_storage **roots = NULL;
    struct berth_config config;
    bth_load_request request = {.config = &config, .at_once = true};
    bth_traced_call traced;
    size_t n = 0;

    BTH_ERROR_BEGIN(error);
    bth_params_initialize_stats(params);
    if (!checkpoint)
        return bth_fail_argument(error, "the checkpoint is NULL");
    if (bth_checkpoint_choose_call_config(checkpoint, params, &config, error) < 0)
        return bth_error_in_checkpoint(checkpoint, error);
    request.params = params = bth_traced_call_begin(
        &traced, config.trace, "load", checkpoint->source.reader.name, begin_seconds, params);
    if (bth_selection_list_storages(checkpoint, selection, &roots, &n, error) == 0)
        (void)bth_storages_load(checkpoint, &request, roots, n, error);
    berth_stats *stats = params ? params->stats : NULL;
    if (stats) { /* bth_storages_load has set the other fields */
        stats->total_seconds = bth_seconds() - begin_seconds;
        stats->plan_seconds = stats->total_seconds - stats->transfer_seconds;
        if (stats->moved_nbytes > 0)
            stats->limited_by = stats->device_seconds > stats->render_seconds &&
                                        stats->device_seconds > stats->disk_seconds
                                    ? "device"
                                : stats->render_seconds > stats->disk_seconds ? "processor"
                                                                              : "disk";
        stats->n_records = stats->n_storages = n;
        stats->calculated_offsets = checkpoint->contents.calculated_offsets;
        stats->repacked = checkpoint->contents.repacked;
        stats->behind_nbytes = checkpoint->contents.behind_nbytes;
        for (size_t i = 0; i < n; i++)
            stats->requested_nbytes += roots[i]->nbytes;
        /* The common method of all storages, or "mixed". */
        stats->method = "none";
        stats->reason =
            stats->requested_nbytes > 0 ? "nothing was loaded" : "nothing was requested";
        bth_checkpoint_lock(checkpoint);
        for (size_t i = 0; i < n; i++) {
            const bth_storage_state *stored = &checkpoint->storages.stored[roots[i]->index];
            if (roots[i]->nbytes == 0 || !stored->method)
                continue;
            if (strcmp(stats->method, "none") == 0) {
                stats->method = stored->method;
                stats->reason = stored->reason;
            } else if (strcmp(stats->method, stored->method) != 0) {
                stats->method = "mixed";
                stats->reason = "see the statistics of each storage";
                break;
            }
        }
        bth_checkpoint_unlock(checkpoint);
    }
    bth_traced_call_end(&traced, 0, error);
    bth_release(roots);
    return bth_error_in_checkpoint(checkpoint, error);
}

/* ---- values and their names ---- */

const berth_value *berth_find(const berth_checkpoint *checkpoint, const char *name,
                              berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (!checkpoint || !name)
        return bth_fail_argument(error, "berth_find needs a checkpoint and a name"), NULL;
    if (!*name)
        return checkpoint->contents.root;
    const bth_names *names = bth_checkpoint_names(checkpoint, error);
    const berth_value *value = names ? bth_names_find_value(names, name, error) : NULL;
    (void)bth_error_in_checkpoint(checkpoint, error);
    return value;
}

const berth_tensor *berth_find_tensor(const berth_checkpoint *checkpoint, const char *name,
                                      berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    const berth_value *value = berth_find(checkpoint, name, error);
    const berth_tensor *tensor = berth_as_tensor(value);

    if (!value || tensor)
        return tensor;
    (void)bth_fail_argument(error, "\"%.100s\" is not a tensor: it is %s", name,
                            berth_kind_name(berth_value_kind(value)));
    (void)bth_error_in_checkpoint(checkpoint, error);
    return NULL;
}

size_t berth_tensor_count(const berth_checkpoint *checkpoint)
{
    BTH_HOLD_CANCEL(true);
    berth_error error;

    if (!checkpoint)
        return 0;
    bth_error_clear(&error);
    const bth_names *names = bth_checkpoint_names(checkpoint, &error);
    return names ? bth_names_tensor_count(names) : 0;
}

int berth_tensor_at(berth_checkpoint *checkpoint, size_t i, berth_named_tensor *named,
                    berth_error *error)
{
    uint64_t offset = BERTH_NO_OFFSET; /* of the first element, in the file */

    BTH_ERROR_BEGIN_QUICKLY(error);
    if (named)
        *named = (berth_named_tensor){0};
    if (!checkpoint || !named)
        return bth_fail_argument(error,
                                 "berth_tensor_at needs a checkpoint and a pointer for the tensor");
    bth_checkpoint_lock(checkpoint);
    const bth_names *names = bth_checkpoint_names_locked(checkpoint, error);
    if (names && i >= bth_names_tensor_count(names))
        (void)bth_fail_status(error, BERTH_E_NOT_FOUND, "there is no tensor %zu among %zu", i,
                              bth_names_tensor_count(names));
    else if (names) /* texts that live until the next call */
        (void)bth_names_write_tensor_name_and_path(names, i, &checkpoint->shown_name,
                                                   &checkpoint->shown_path, error);
    bth_checkpoint_unlock(checkpoint);
    if (error->code < 0)
        return bth_error_in_checkpoint(checkpoint, error);
    const berth_value *value = bth_names_tensor_value(names, i);
    const berth_tensor *tensor = berth_as_tensor(value);
    const berth_storage *storage = tensor ? tensor->storage : NULL;
    if (storage && !bth_storage_deflated_record(storage)) {
        (void)bth_tensor_begins_at_whole_byte(tensor, &offset);
        offset += bth_storage_root(storage)->offset + storage->root_offset;
    }
    const berth_value *inner = berth_value_kind(value) == BERTH_KIND_SUBCLASS
                                   ? berth_value_part(value, BERTH_PART_INNER)
                                   : value;
    *named =
        (berth_named_tensor){.name = checkpoint->shown_name.text,
                             .path = checkpoint->shown_path.text,
                             .tensor = tensor,
                             .value = value,
                             .offset = offset,
                             .parameter = berth_value_kind(inner) == BERTH_KIND_PARAMETER,
                             .requires_grad = (berth_value_flags(value) & BERTH_REQUIRES_GRAD)};
    return 0;
}

/* ---- information about the file ---- */

const berth_storage *berth_storage_next(const berth_checkpoint *checkpoint,
                                        const berth_storage *previous)
{
    if (!checkpoint || (previous && previous->tree != checkpoint->contents.tree))
        return NULL;
    for (size_t i = previous ? previous->index + 1 : 0; i < checkpoint->storages.n; i++) {
        const berth_storage *storage = bth_tree_storage(checkpoint->contents.tree, i);
        if (!storage->root)
            return storage;
    }
    return NULL;
}

int berth_get_info(berth_checkpoint *checkpoint, berth_info *info, berth_error *error)
{
    static const char *const containers[] = {[BTH_CONTAINER_ZIP] = "zip",
                                             [BTH_CONTAINER_LEGACY] = "legacy",
                                             [BTH_CONTAINER_SAFETENSORS] = "safetensors"};

    BTH_ERROR_BEGIN(error);
    if (info)
        *info = (berth_info){0};
    if (!checkpoint || !info)
        return bth_fail_argument(
            error, "berth_get_info needs a checkpoint and a pointer for the information");
    const bth_names *names = bth_checkpoint_names(checkpoint, error);
    if (names) {
        bth_checkpoint_lock(checkpoint);
        (void)bth_contents_ensure_record_counts(&checkpoint->contents, &checkpoint->source.reader,
                                                error);
        bth_checkpoint_unlock(checkpoint);
    }
    if (error->code < 0)
        return bth_error_in_checkpoint(checkpoint, error);
    const char *archive = checkpoint->contents.archive;
    *info = (berth_info){.archive = archive ? archive : "",
                         .container = checkpoint->contents.is_program
                                          ? "pt2"
                                          : containers[checkpoint->contents.kind],
                         .format_version = checkpoint->contents.format_version,
                         .storage_alignment = checkpoint->contents.storage_alignment,
                         .byteorder = checkpoint->contents.is_big ? "big" : "little",
                         .byteorder_recorded = checkpoint->contents.byteorder_recorded,
                         .nbytes = checkpoint->source.reader.nbytes,
                         .n_records = checkpoint->contents.counts.n_records,
                         .n_unknown_records = checkpoint->contents.counts.n_unknown_records,
                         .n_crc32 = checkpoint->contents.counts.n_crc32,
                         .n_tensors = bth_names_tensor_count(names),
                         .calculated_offsets = checkpoint->contents.calculated_offsets,
                         .repacked = checkpoint->contents.repacked,
                         .n_deflated = checkpoint->contents.n_deflated,
                         .behind_nbytes = checkpoint->contents.behind_nbytes,
                         .metadata = checkpoint->contents.metadata};
    for (const berth_storage *storage = berth_storage_next(checkpoint, NULL); storage;
         storage = berth_storage_next(checkpoint, storage)) {
        info->n_storages++;
        info->storages_nbytes += storage->nbytes;
    }
    return 0;
}
