/* SPDX-License-Identifier: BSD-3-Clause */
/* Which records a save consists of, and in which order (format/FORMAT.md section 1). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/values/tensor.h"
#include "format/values/value.h"
#include "io/device.h"
#include "save/plan.h"

#define NAME_PICKLE "data.pkl"
#define NAME_ID ".data/serialization_id"

static bool is_big(const struct berth_config *config)
{
    if (config->save_byteorder == BTH_BYTEORDER_NATIVE)
        return __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;
    return config->save_byteorder == BTH_BYTEORDER_BIG;
}

/* Whether save.byteorder is not this machine's. */
static bool is_foreign(const struct berth_config *config)
{
    return is_big(config) != (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}

static int add_bytes(berth_plan *plan, const char *name, const void *bytes, size_t nbytes,
                     berth_error *error)
{
    const bth_plan_record content = {.data = bytes, .swap_nbytes = 1};

    return bth_plan_add(plan, name, nbytes, &content, error);
}

static int add_text(berth_plan *plan, const char *name, const char *text, berth_error *error)
{
    return add_bytes(plan, name, text, strlen(text), error);
}

/* What stands between data.pkl and the storages. */
static int add_head(berth_plan *plan, const struct berth_config *config, berth_error *error)
{
    (void)snprintf(plan->alignment_text, sizeof plan->alignment_text, "%u", plan->alignment);
    add_text(plan, ".format_version", "1", error);
    add_text(plan, ".storage_alignment", plan->alignment_text, error);
    add_text(plan, "byteorder", is_big(config) ? "big" : "little", error);
    return error->code;
}

/* What stands behind the storages. */
static int add_tail(berth_plan *plan, berth_error *error)
{
    const bth_plan_record computed = {.swap_nbytes = 1};

    if (add_text(plan, "version", "3\n", error) < 0 ||
        bth_plan_add(plan, NAME_ID, BTH_ID_NBYTES, &computed, error) < 0)
        return error->code;
    plan->id_index = plan->n_records - 1;
    return 0;
}

static int add_given(berth_plan *plan, const berth_new_record *record, berth_error *error)
{
    const bth_plan_record content = {.data = record->data,
                                     .read = record->data ? NULL : record->read,
                                     .context = record->context,
                                     .no_crc32 = record->no_crc32,
                                     .crc32 = record->crc32,
                                     .swap_nbytes = 1};

    if (record->nbytes > 0 && !record->data && !record->read)
        return bth_fail(error, BERTH_E_ARGUMENT, record->name, BERTH_NO_OFFSET,
                        "neither data nor read is given");
    return bth_plan_add(plan, record->name, record->nbytes, &content, error);
}

/* The first bytes of a short record as text; false if it is longer. */
static bool read_text(const berth_new_record *record, char *text, size_t text_nbytes)
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

/*
 * Readers compute offsets by this record: one that tells another alignment than the layout's would
 * make them take wrong bytes for tensors.
 */
static int check_alignment(const berth_plan *plan, const berth_new_record *record,
                           berth_error *error)
{
    char text[16], *end;

    if (strcmp(record->name, ".storage_alignment") != 0 || !read_text(record, text, sizeof text))
        return 0;
    unsigned long told = strtoul(text, &end, 10);
    if (end == text || *end || told == plan->alignment)
        return 0;
    return bth_fail(error, BERTH_E_ARGUMENT, record->name, BERTH_NO_OFFSET,
                    "says %lu, save.storage_alignment is %u", told, plan->alignment);
}

static int add_all_given(berth_plan *plan, const berth_new_record *records, size_t n_records,
                         uint32_t flags, const struct berth_config *config, berth_error *error)
{
    bool complete = flags & BERTH_RECORDS_COMPLETE;

    for (size_t i = 0; i < n_records; i++) {
        if (add_given(plan, &records[i], error) < 0 ||
            check_alignment(plan, &records[i], error) < 0)
            return error->code;
        if (i == 0 && !complete && add_head(plan, config, error) < 0)
            return error->code;
    }
    if (!complete && add_tail(plan, error) < 0)
        return error->code;
    return bth_plan_close(plan, error);
}

static int check_given(const berth_new_record *records, size_t n_records, uint32_t flags,
                       const struct berth_config *config, berth_error *error)
{
    if (flags & ~BERTH_RECORDS_COMPLETE)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "unknown flags 0x%x",
                        flags & ~BERTH_RECORDS_COMPLETE);
    if (!records || n_records == 0)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET, "no records");
    if (flags & BERTH_RECORDS_COMPLETE)
        return 0;
    if (!records[0].name || strcmp(records[0].name, NAME_PICKLE) != 0)
        return bth_fail(error, BERTH_E_ARGUMENT, records[0].name, BERTH_NO_OFFSET,
                        "the first record must be " NAME_PICKLE);
    if (is_foreign(config))
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                        "records are written as they are, they cannot be turned to "
                        "save.byteorder=%s",
                        is_big(config) ? "big" : "little");
    return 0;
}

int bth_plan_records(const char *archive, const berth_new_record *records, size_t n_records,
                     uint32_t flags, const struct berth_config *config, berth_plan **plan,
                     berth_error *error)
{
    if (check_given(records, n_records, flags, config, error) < 0)
        return error->code;
    *plan = bth_plan_new(archive, config, n_records + 5, error);
    if (!*plan)
        return error->code;
    if (add_all_given(*plan, records, n_records, flags, config, error) < 0) {
        berth_plan_free(*plan);
        *plan = NULL;
    }
    return error->code;
}

/*
 * The unit that a change of byte order reverses in a storage: that of its class in the file, by
 * which PyTorch turns it back; an UntypedStorage it never turns (T5).
 */
static uint8_t swap_nbytes(berth_dtype class)
{
    return class == BERTH_DTYPE_NONE ? 1 : (uint8_t)bth_dtype_swap_nbytes(class);
}

/* The number of a device in the plan, beginning at 1. */
static int add_device(berth_plan *plan, bth_device_handle *device, uint8_t *number,
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

/* What lies on a device must still be there. */
static int find_device(berth_plan *plan, const berth_storage *storage, uint8_t *number,
                       berth_error *error)
{
    uint64_t at = 0;
    const berth_storage *bottom = bth_storage_bottom(storage, &at);

    *number = 0;
    if (!bottom->device || storage->nbytes == 0)
        return 0;
    if (bth_device_check_life(bottom->device->device, bottom->device->life, error) < 0 ||
        bth_device_check(bottom->device->device,
                         bottom->device->address + (uintptr_t)(bottom->root_offset + at),
                         (size_t)storage->nbytes, error) < 0)
        return error->code;
    return add_device(plan, bottom->device->device, number, error);
}

static int add_storages(berth_plan *plan, bool foreign, berth_error *error)
{
    for (size_t i = 0; i < plan->pickled.n_storages; i++) {
        const berth_storage *storage = plan->pickled.storages[i];
        bth_plan_record content = {
            .storage = storage, .swap_nbytes = foreign ? swap_nbytes(plan->pickled.dtypes[i]) : 1};
        char name[32];
        (void)snprintf(name, sizeof name, "data/%zu", i);
        if (storage->nbytes % content.swap_nbytes != 0)
            return bth_fail(error, BERTH_E_UNSUPPORTED, name, BERTH_NO_OFFSET,
                            "%llu bytes are no whole elements, their byte order cannot be turned",
                            (unsigned long long)storage->nbytes);
        if (find_device(plan, storage, &content.device, error) < 0)
            return bth_error_in(error, name);
        if (bth_plan_add(plan, name, storage->nbytes, &content, error) < 0)
            return error->code;
    }
    return 0;
}

static int fill_from_value(berth_plan *plan, const berth_value *value,
                           const struct berth_config *config, berth_error *error)
{
    bool foreign = is_foreign(config);

    if (bth_pickle_write(value, foreign, &plan->pickled, error) < 0 ||
        add_bytes(plan, NAME_PICKLE, plan->pickled.bytes, plan->pickled.nbytes, error) < 0 ||
        add_head(plan, config, error) < 0 || add_storages(plan, foreign, error) < 0 ||
        add_tail(plan, error) < 0)
        return error->code;
    return bth_plan_close(plan, error);
}

int bth_plan_value(const char *archive, const berth_value *value, const struct berth_config *config,
                   berth_plan **plan, berth_error *error)
{
    if (!value)
        return bth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                        "the value is NULL: berth_tree_error tells whether making it failed");
    if (berth_tree_error(bth_value_tree(value), error) < 0)
        return error->code;
    *plan = bth_plan_new(archive, config, 16, error);
    if (!*plan)
        return error->code;
    if (fill_from_value(*plan, value, config, error) < 0) {
        berth_plan_free(*plan);
        *plan = NULL;
    }
    return error->code;
}
