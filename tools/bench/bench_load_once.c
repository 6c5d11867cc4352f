/* SPDX-License-Identifier: BSD-3-Clause */
/* One load, by phases. */
#include <berth/config.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/bench/bench_load.h"
#include "tools/common/options.h"
#include "tools/common/progress.h"
#include "tools/common/report.h"

typedef struct tensor_storage {
    const berth_storage *storage;
    uint64_t offset; /* of the tensor, in the file */
    const uint8_t *data;
    uint64_t nbytes;
    bool is_mapped;
} tensor_storage;

int load_subject_read_info(load_subject *subject)
{
    berth_checkpoint *checkpoint;
    berth_archive *archive;
    berth_record record;
    berth_error error;
    berth_info info;

    if (berth_open(subject->path, NULL, &checkpoint, &error) < 0)
        return fail(&error);
    int code = berth_get_info(checkpoint, &info, &error) < 0 ? fail(&error) : 0;
    berth_close(checkpoint);
    if (code != 0)
        return code;
    subject->nbytes = info.storages_nbytes;
    subject->file_nbytes = info.nbytes;
    subject->n_tensors = info.n_tensors;
    subject->n_storages = info.n_storages;
    const berth_source source = berth_from_path(subject->path);
    if (berth_archive_open(&source, NULL, &archive, NULL) == 0) {
        if (berth_archive_find(archive, "data.pkl", &record, NULL) == 0)
            subject->pickle_nbytes = record.nbytes;
        berth_archive_close(archive);
    }
    return 0;
}

/* ---- phases ---- */

/* In the file's order; those of one storage are neighbours. */
static int tensor_storage_compare_offsets(const void *left, const void *right)
{
    const tensor_storage *a = left, *b = right;

    return (a->offset > b->offset) - (a->offset < b->offset);
}

static int load_list_storage_of_each_tensor(load_result *result, bool in_order)
{
    size_t n = berth_tensor_count(result->checkpoint);
    berth_named_tensor named;
    berth_error error;

    result->tensor_storages = calloc(n + 1, sizeof *result->tensor_storages);
    if (!result->tensor_storages)
        return print_trouble("out of memory (%zu tensors)", n);
    for (size_t i = 0; i < n; i++) {
        if (berth_tensor_at(result->checkpoint, i, &named, &error) < 0)
            return fail(&error);
        if (!named.tensor || !named.tensor->storage)
            continue; /* meta: it has no bytes */
        tensor_storage *entry = &result->tensor_storages[result->n_tensor_storages++];
        entry->storage = named.tensor->storage;
        entry->offset = named.offset;
        entry->nbytes = berth_storage_get_info(named.tensor->storage)->nbytes;
    }
    if (result->n_tensor_storages && in_order)
        qsort(result->tensor_storages, result->n_tensor_storages, sizeof *result->tensor_storages,
              tensor_storage_compare_offsets);
    return 0;
}

/* Gets a storage's address, and whether it is mapped; loads it if necessary. */
static int load_get_address_and_method(load_result *result, tensor_storage *entry)
{
    berth_storage_stats stats;
    berth_error error;

    entry->data = berth_storage_data(result->checkpoint, entry->storage, &error);
    if (!entry->data ||
        berth_storage_get_stats(result->checkpoint, entry->storage, &stats, &error) < 0)
        return fail(&error);
    entry->is_mapped = !strcmp(stats.method, "map");
    return 0;
}

static int load_get_addresses_and_methods(load_result *result)
{
    int code = 0;

    for (size_t i = 0; i < result->n_tensor_storages && code == 0; i++)
        code = load_get_address_and_method(result, &result->tensor_storages[i]);
    return code;
}

/* Gets all addresses, and nothing else. */
static int load_get_addresses(load_result *result)
{
    berth_error error;

    for (size_t i = 0; i < result->n_tensor_storages; i++) {
        tensor_storage *entry = &result->tensor_storages[i];
        entry->data = berth_storage_data(result->checkpoint, entry->storage, &error);
        if (!entry->data)
            return fail(&error);
    }
    return 0;
}

static int load_all_storages(load_result *result, const berth_params *params)
{
    berth_params own = *params;
    berth_error error;

    own.stats = &result->fetch;
    int code = berth_load(result->checkpoint, NULL, &own, &error) < 0 ? fail(&error) : 0;
    result->method = result->fetch.method;
    result->reason = result->fetch.reason;
    return code;
}

static int load_set_device(const load_result *result, const char *device)
{
    const berth_storage_rule rule = {.device = device};
    berth_error error;

    return berth_set_storage_rules(result->checkpoint, &rule, 1, &error) < 0 ? fail(&error) : 0;
}

/* Reads every byte. Eight sums, so that memory is the limit, not addition. */
static uint64_t bytes_sum(const uint8_t *bytes, size_t nbytes)
{
    uint64_t sums[8] = {0}, words[8];

    for (; nbytes >= sizeof words; bytes += sizeof words, nbytes -= sizeof words) {
        memcpy(words, bytes, sizeof words);
        for (int i = 0; i < 8; i++)
            sums[i] += words[i];
    }
    for (; nbytes > 0; nbytes--)
        sums[0] += *bytes++;
    return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

static int load_sum_bytes_of_storage(load_result *result, const tensor_storage *entry,
                                     const berth_params *params, uint64_t total)
{
    enum { AT_ONCE = 16 << 20 };

    for (uint64_t at = 0; at < entry->nbytes; at += AT_ONCE) {
        uint64_t left = entry->nbytes - at;
        size_t n = left < AT_ONCE ? (size_t)left : AT_ONCE;
        result->sum += bytes_sum(entry->data + at, n);
        result->touched_nbytes += n;
        if (params->progress(params->progress_context, result->touched_nbytes, total))
            return EXIT_TROUBLE;
    }
    return 0;
}

/* Reads each storage once, in the file's order. Getting its address reports the progress to a
 * prefetch (load.prefetch). */
static int load_sum_bytes_of_mapped_storages(load_result *result, const berth_params *params,
                                             uint64_t total)
{
    const berth_storage *last = NULL;
    int code = 0;

    for (size_t i = 0; i < result->n_tensor_storages && code == 0; i++) {
        tensor_storage *entry = &result->tensor_storages[i];
        if (entry->storage == last)
            continue;
        last = entry->storage;
        if (!entry->data)
            code = load_get_address_and_method(result, entry);
        if (code == 0 && entry->is_mapped)
            code = load_sum_bytes_of_storage(result, entry, params, total);
    }
    return code;
}

/* ---- all of it ---- */

static double seconds_since_and_restart(double *since)
{
    double time = seconds_now(), seconds = time - *since;

    *since = time;
    return seconds;
}

static bool prefetch_is_on(void)
{
    return !option_is("load.prefetch", "off");
}

/* Storages on a device have no address here. */
static int load_run_transfer_phase(load_result *result, const load_subject *subject,
                                   const berth_params *params)
{
    if (subject->device) {
        int code = load_set_device(result, subject->device);
        return code ? code : load_all_storages(result, params);
    }
    if (prefetch_is_on())
        return 0;
    int code = load_all_storages(result, params);
    return code ? code : load_get_addresses_and_methods(result);
}

/* The phases after the names. */
static int load_run_phases_after_names(load_result *result, const load_subject *subject,
                                       const berth_params *params, bool only_open, double *since)
{
    bool is_mapped = result->method && !strcmp(result->method, "map");
    int code = 0;

    if (only_open)
        code = is_mapped ? load_get_addresses(result) : 0;
    else
        code = load_run_transfer_phase(result, subject, params);
    result->phases[LOAD_TRANSFER] = seconds_since_and_restart(since);
    if (code == 0 && !only_open && !subject->device)
        code = load_sum_bytes_of_mapped_storages(result, params, subject->nbytes);
    result->phases[LOAD_TOUCH] = seconds_since_and_restart(since);
    return code;
}

int load_run(const load_subject *subject, const berth_params *params, bool only_open,
             load_result *result)
{
    berth_params own = *params;
    double since = seconds_now();
    berth_error error;

    *result = (load_result){0};
    own.stats = &result->open;
    int code = berth_open(subject->path, &own, &result->checkpoint, &error);
    result->phases[LOAD_OPEN] = seconds_since_and_restart(&since);
    result->method = result->open.method;
    result->reason = result->open.reason;
    if (code < 0)
        return fail(&error);
    code = load_list_storage_of_each_tensor(result, !only_open);
    result->phases[LOAD_NAMES] = seconds_since_and_restart(&since);
    return code ? code : load_run_phases_after_names(result, subject, params, only_open, &since);
}

void load_result_close_checkpoint(load_result *result)
{
    free(result->tensor_storages);
    result->tensor_storages = NULL;
    berth_close(result->checkpoint);
    result->checkpoint = NULL;
}

static int load_measure_open_from_memory(const void *bytes, size_t nbytes, double *seconds)
{
    berth_checkpoint *checkpoint = NULL;
    berth_error error;
    berth_config *config = berth_config_new(&error);

    if (!config || berth_config_apply(config, "load.check=none", &error) < 0) {
        berth_config_free(config);
        return fail(&error);
    }
    const berth_params params = {.config = config};
    const berth_source source = berth_from_memory(bytes, nbytes);
    *seconds = seconds_now();
    int code = berth_open_source(&source, &params, &checkpoint, &error);
    *seconds = seconds_now() - *seconds;
    berth_close(checkpoint);
    berth_config_free(config);
    return code < 0 ? fail(&error) : 0;
}

int load_measure_parsing(const load_subject *subject, double *seconds)
{
    size_t nbytes = (size_t)subject->file_nbytes;
    int fd = open(subject->path, O_RDONLY | O_CLOEXEC);
    int code;

    if (fd < 0)
        return print_trouble("%s: %s", subject->path, strerror(errno));
    void *map = mmap(NULL, nbytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) {
        code = print_trouble("%s: %s", subject->path, strerror(errno));
    } else {
        /* The first time loads the pages; the second time is measured. */
        code = load_measure_open_from_memory(map, nbytes, seconds);
        code = code ? code : load_measure_open_from_memory(map, nbytes, seconds);
        munmap(map, nbytes);
    }
    close(fd);
    return code;
}
