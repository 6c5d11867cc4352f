/* SPDX-License-Identifier: BSD-3-Clause */
/* The records of a save, and their order (format/FORMAT.md section 1). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/serialization_id.h"
#include "format/values/value.h"
#include "io/device/device.h"
#include "save/plan.h"
#include "save/save_error.h"

#define NAME_PICKLE "data.pkl"
#define NAME_ID ".data/serialization_id"

static bool config_byteorder_is_big(const struct berth_config *config)
{
    if (config->save_byteorder == BTH_BYTEORDER_NATIVE)
        return __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;
    return config->save_byteorder == BTH_BYTEORDER_BIG;
}

/* Whether save.byteorder differs from this machine's. */
static bool config_byteorder_is_foreign(const struct berth_config *config)
{
    return config_byteorder_is_big(config) != (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}

static int plan_add_bytes(berth_plan *plan, const char *name, const void *bytes, size_t nbytes,
                          berth_error *error)
{
    const bth_plan_record content = {.data = bytes, .swap_nbytes = 1};

    return bth_plan_add(plan, name, nbytes, &content, error);
}

static int plan_add_text(berth_plan *plan, const char *name, const char *text, berth_error *error)
{
    return plan_add_bytes(plan, name, text, strlen(text), error);
}

static int plan_add_byteorder(berth_plan *plan, const struct berth_config *config,
                              berth_error *error)
{
    return plan_add_text(plan, "byteorder", config_byteorder_is_big(config) ? "big" : "little",
                         error);
}

/* Of the records between data.pkl and the storages. */
static int plan_add_format_alignment(berth_plan *plan, berth_error *error)
{
    (void)snprintf(plan->alignment_text, sizeof plan->alignment_text, "%u", plan->alignment);
    plan_add_text(plan, ".format_version", "1", error);
    plan_add_text(plan, ".storage_alignment", plan->alignment_text, error);
    return error->code;
}

static int plan_add_version(berth_plan *plan, berth_error *error)
{
    return plan_add_text(plan, "version", "3\n", error);
}

static int plan_add_id(berth_plan *plan, berth_error *error)
{
    const bth_plan_record computed = {.swap_nbytes = 1};

    if (bth_plan_add(plan, NAME_ID, BTH_ID_NBYTES, &computed, error) < 0)
        return error->code;
    plan->id_index = plan->n_records - 1;
    return 0;
}

static int plan_check_caller_record(const berth_new_record *record, berth_error *error)
{
    const berth_storage *storage = record->storage;

    if (storage && (record->data || record->read || storage->nbytes != record->nbytes))
        return bth_fail(error, BERTH_E_ARGUMENT, record->name, BERTH_NO_OFFSET,
                        "its storage is not the only source of its bytes, or has another size");
    if (record->nbytes > 0 && !storage && !record->data && !record->read)
        return bth_fail(error, BERTH_E_ARGUMENT, record->name, BERTH_NO_OFFSET,
                        "neither data nor read is set");
    return BTH_CHECK_RESERVED(berth_new_record, record, error);
}

static int plan_add_caller_record(berth_plan *plan, const berth_new_record *record,
                                  berth_error *error)
{
    bth_plan_record content = {.data = record->data,
                               .read = record->data ? NULL : record->read,
                               .storage = record->storage,
                               .context = record->context,
                               .no_crc32 = record->no_crc32,
                               .crc32 = record->crc32,
                               .swap_nbytes = 1};

    if (plan_check_caller_record(record, error) < 0)
        return error->code;
    if (record->storage &&
        bth_plan_add_device_of_storage(plan, record->storage, &content.device, error) < 0)
        return bth_error_add_record(error, record->name);
    if (!plan->is_plain)
        return bth_plan_add(plan, record->name, record->nbytes, &content, error);
    if (bth_check_record_name(record->name, error) < 0)
        return error->code;
    return bth_plan_add_plain(plan, record->name, record->nbytes, &content, error);
}

/* Reads a short record as text. False if it is longer, or cannot be read. */
static bool record_read_text(const berth_new_record *record, char *text, size_t text_nbytes)
{
    size_t nbytes = (size_t)record->nbytes;

    if (record->nbytes >= text_nbytes || (nbytes > 0 && !record->data && !record->read))
        return false;
    if (nbytes > 0 && record->data)
        memcpy(text, record->data, nbytes);
    else if (nbytes > 0 && record->read(record->context, text, nbytes, 0) != 0)
        return false;
    text[nbytes] = '\0';
    return true;
}

/* Readers compute offsets from this record. If it differs from the layout, they read wrong bytes.
 */
static int plan_check_alignment_record(const berth_plan *plan, const berth_new_record *record,
                                       berth_error *error)
{
    char text[16], *end;

    if (plan->is_plain || strcmp(record->name, ".storage_alignment") != 0 ||
        !record_read_text(record, text, sizeof text))
        return 0;
    unsigned long recorded = strtoul(text, &end, 10);
    if (end == text || *end || recorded == plan->alignment)
        return 0;
    return bth_fail(error, BERTH_E_ARGUMENT, record->name, BERTH_NO_OFFSET,
                    "says %lu, save.storage_alignment is %u", recorded, plan->alignment);
}

static int plan_add_caller_and_own_records(berth_plan *plan, const berth_content *content,
                                           const struct berth_config *config, berth_error *error)
{
    bool complete = content->flags & (BERTH_RECORDS_COMPLETE | BERTH_RECORDS_PLAIN);
    bool byteorder_last = content->flags & BERTH_RECORDS_BYTEORDER_LAST;

    plan->is_plain = content->flags & BERTH_RECORDS_PLAIN;
    plan->compute_crc32 &= !plan->is_plain;
    for (size_t i = 0; i < content->n_records; i++) {
        const berth_new_record *record = &content->records[i];
        if (plan_add_caller_record(plan, record, error) < 0 ||
            plan_check_alignment_record(plan, record, error) < 0)
            return error->code;
        if (i == 0 && !complete &&
            (plan_add_format_alignment(plan, error) < 0 ||
             (!byteorder_last && plan_add_byteorder(plan, config, error) < 0)))
            return error->code;
    }
    if (complete)
        return 0;
    if (plan_add_version(plan, error) < 0 ||
        (byteorder_last && plan_add_byteorder(plan, config, error) < 0))
        return error->code;
    return plan_add_id(plan, error);
}

static int content_check_records(const berth_content *content, const struct berth_config *config,
                                 berth_error *error)
{
    const berth_new_record *first = content->records;

    const uint32_t known =
        BERTH_RECORDS_COMPLETE | BERTH_RECORDS_BYTEORDER_LAST | BERTH_RECORDS_PLAIN;
    uint32_t unknown = content->flags & ~known;

    if (unknown)
        return bth_fail_argument(error, "unknown flags 0x%x", unknown);
    if (!first || content->n_records == 0)
        return bth_fail_argument(error, "the content has no records");
    if (content->flags & (BERTH_RECORDS_COMPLETE | BERTH_RECORDS_PLAIN))
        return 0;
    if (!first->name || strcmp(first->name, NAME_PICKLE) != 0)
        return bth_fail(error, BERTH_E_ARGUMENT, first->name, BERTH_NO_OFFSET,
                        "the first record must be " NAME_PICKLE);
    if (config_byteorder_is_foreign(config))
        return bth_fail_argument(
            error,
            "records are written as they are, their byte order cannot be changed to "
            "save.byteorder=%s",
            config_byteorder_is_big(config) ? "big" : "little");
    return 0;
}

/* The unit that a change of byte order reverses: PyTorch swaps back by the storage's class in the
 * file, and never an UntypedStorage (T5). */
static uint8_t storage_class_swap_nbytes(berth_dtype class)
{
    return class == BERTH_DTYPE_NONE ? 1 : (uint8_t)bth_dtype_swap_nbytes(class);
}

/* *number: of the device in the plan, beginning at 1. */
static int plan_find_or_add_device(berth_plan *plan, bth_device_handle *device, uint8_t *number,
                                   berth_error *error)
{
    *number = 0;
    while (*number < plan->n_devices)
        if (plan->devices[(*number)++] == device)
            return 0;
    size_t nbytes = (*number + 1u) * sizeof *plan->devices;
    bth_device_handle **devices =
        *number < UINT8_MAX ? bth_reallocate(plan->devices, nbytes) : NULL;
    if (!devices)
        return bth_fail_memory(error, nbytes);
    plan->devices = devices;
    devices[plan->n_devices++] = device;
    *number = plan->n_devices;
    return 0;
}

int bth_plan_add_device_of_storage(berth_plan *plan, const berth_storage *storage, uint8_t *number,
                                   berth_error *error)
{
    uint64_t at = 0;
    const berth_storage *bottom = bth_storage_resolve_view(storage, &at);

    *number = 0;
    if (!bottom->device || storage->nbytes == 0)
        return 0;
    if (bth_device_check_life(bottom->device->device, bottom->device->life, error) < 0 ||
        bth_device_check_memory(bottom->device->device,
                                bottom->device->address + (uintptr_t)(bottom->root_offset + at),
                                (size_t)storage->nbytes, error) < 0)
        return error->code;
    return plan_find_or_add_device(plan, bottom->device->device, number, error);
}

static int plan_add_storages(berth_plan *plan, bool foreign, berth_error *error)
{
    for (size_t i = 0; i < plan->pickled.n_storages; i++) {
        const berth_storage *storage = plan->pickled.storages[i];
        bth_plan_record content = {
            .storage = storage,
            .swap_nbytes = foreign ? storage_class_swap_nbytes(plan->pickled.dtypes[i]) : 1};
        char name[32];
        (void)snprintf(name, sizeof name, "data/%zu", i);
        if (storage->nbytes % content.swap_nbytes != 0)
            return bth_fail(
                error, BERTH_E_UNSUPPORTED, name, BERTH_NO_OFFSET,
                "%llu bytes are no whole number of elements: their byte order cannot be changed",
                (unsigned long long)storage->nbytes);
        if (bth_plan_add_device_of_storage(plan, storage, &content.device, error) < 0)
            return bth_error_add_record(error, name);
        if (bth_plan_add(plan, name, storage->nbytes, &content, error) < 0)
            return error->code;
    }
    return 0;
}

static int plan_add_records_of_value(berth_plan *plan, const berth_value *value,
                                     const struct berth_config *config, berth_error *error)
{
    bool foreign = config_byteorder_is_foreign(config);

    if (bth_pickle_write(value, foreign, &plan->pickled, error) < 0 ||
        plan_add_bytes(plan, NAME_PICKLE, plan->pickled.bytes, plan->pickled.nbytes, error) < 0 ||
        plan_add_format_alignment(plan, error) < 0 || plan_add_byteorder(plan, config, error) < 0 ||
        plan_add_storages(plan, foreign, error) < 0 || plan_add_version(plan, error) < 0)
        return error->code;
    if (plan->pickled.has_nested)
        bth_log("%s: PyTorch 2.15 loads the nested tensors in it with weights_only=False alone",
                plan->archive);
    return plan_add_id(plan, error);
}

static int content_check(const berth_content *content, const struct berth_config *config,
                         berth_error *error)
{
    if (!content)
        return bth_fail_argument(error, "the content is NULL");
    if (BTH_CHECK_RESERVED(berth_content, content, error) < 0)
        return error->code;
    if (content->kind == BERTH_CONTENT_RECORDS)
        return content_check_records(content, config, error);
    if (content->kind != BERTH_CONTENT_VALUE && content->kind != BERTH_CONTENT_SAFETENSORS)
        return bth_fail_argument(error, "invalid kind of content");
    uint32_t known =
        content->kind == BERTH_CONTENT_VALUE ? 0 : BERTH_TENSORS_ONLY | BERTH_COPY_TIES;
    if (content->flags & ~known)
        return bth_fail_argument(error, "unknown flags 0x%x", content->flags);
    if (!content->value)
        return bth_fail_argument(
            error, "the value is NULL: berth_tree_error returns why, if making it failed");
    return berth_tree_error(bth_value_tree(content->value), error);
}

berth_plan *bth_plan_make(const char *archive, const berth_content *content,
                          const struct berth_config *config, berth_error *error)
{
    if (content_check(content, config, error) < 0)
        return NULL;
    berth_plan *plan = bth_plan_new(archive, config, content->n_records + 5, error);
    if (!plan)
        return NULL;
    if (content->kind == BERTH_CONTENT_RECORDS)
        plan_add_caller_and_own_records(plan, content, config, error);
    else if (content->kind == BERTH_CONTENT_SAFETENSORS)
        bth_plan_add_safetensors(plan, content, error);
    else
        plan_add_records_of_value(plan, content->value, config, error);
    if (error->code == BERTH_OK && bth_plan_close(plan, error) == 0)
        return plan;
    berth_plan_free(plan);
    return NULL;
}
