/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/plan.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/seeded_hash.h"
#include "format/serialization_id.h"
#include "format/values/value.h"
#include "format/zip/zip.h"
#include "io/devices.h"

/*
 * PyTorch's reader keeps this many bytes of a name: MZ_ZIP_MAX_ARCHIVE_FILENAME_SIZE less its NUL.
 * In these bytes of the first record's name it looks for the slash behind the archive's name. It
 * lists these bytes of every name as text.
 */
#define KEPT_NBYTES 511

/* Refuses a name that Berth's reader refuses, and names of folders. */
static int name_check(const char *what, const char *name, bool is_archive, berth_error *error)
{
    berth_error bad;

    if (!name)
        name = "";
    bth_error_clear(&bad);
    if (bth_zip_check_name((const uint8_t *)name, strlen(name), true, is_archive, BERTH_NO_OFFSET,
                           &bad) < 0)
        return bth_fail_argument(error, "the %s: %s", what, bad.message);
    const char *slash = strrchr(name, '/');
    if (slash && !slash[1])
        return bth_fail_argument(error, "the %s: it ends with a slash: '%s'", what, name);
    return 0;
}

int bth_check_archive_name(const char *name, berth_error *error)
{
    if (name_check("archive name", name, true, error) == 0 && strchr(name, '/'))
        bth_fail_argument(error, "the archive name: it contains a slash: '%s'", name);
    if (error->code == 0 && strlen(name) >= KEPT_NBYTES)
        bth_fail_argument(
            error,
            "the archive name: it has %zu bytes, and PyTorch opens no file whose archive "
            "name has more than %d: choose a shorter one",
            strlen(name), KEPT_NBYTES - 1);
    return error->code;
}

char *bth_archive_name_of_path(const char *path)
{
    const char *base = path ? path : "";
    bool is_ascii = true;
    berth_error bad;

    for (const char *at = base; *at; at++) {
        is_ascii &= (unsigned char)*at < 0x80;
        if (*at == '/' || *at == '\\')
            base = at + 1;
    }
    const char *dot = strrchr(base, '.');
    size_t n = dot ? (size_t)(dot - base) : strlen(base);
    char *name = bth_duplicate_text(base, n);
    bth_error_clear(&bad);
    if (!name || (is_ascii && bth_check_archive_name(name, &bad) == 0))
        return name;
    bth_release(name);
    return bth_duplicate_text("archive", strlen("archive"));
}

berth_plan *bth_plan_new(const char *archive, const struct berth_config *config, size_t n_records,
                         berth_error *error)
{
    berth_plan *plan;

    if (bth_check_archive_name(archive, error) < 0)
        return NULL;
    plan = bth_allocate_zeroed(sizeof *plan);
    if (!plan)
        return bth_fail_memory(error, sizeof *plan), NULL;
    plan->id_index = BTH_NO_RECORD;
    plan->alignment = (uint32_t)config->save_storage_alignment;
    plan->compute_crc32 = config->save_compute_crc32;
    plan->archive_nbytes = strlen(archive);
    plan->archive = bth_duplicate_text(archive, plan->archive_nbytes);
    if (!plan->archive)
        bth_fail_memory(error, plan->archive_nbytes);
    plan->records =
        bth_items_grow(NULL, 0, n_records, &plan->n_records_room, sizeof *plan->records, error);
    if (plan->records && plan->archive)
        return plan;
    berth_plan_free(plan);
    return NULL;
}

void berth_plan_free(berth_plan *plan)
{
    if (!plan)
        return;
    bth_pickled_free(&plan->pickled);
    bth_release(plan->records);
    bth_release(plan->names);
    bth_release(plan->archive);
    bth_release(plan->devices);
    bth_release(plan->header);
    bth_release(plan->views);
    bth_release(plan);
}

/* Where the next record begins. */
static uint64_t plan_end(const berth_plan *plan)
{
    return plan->n_records > 0 ? plan->records[plan->n_records - 1].layout.next_offset : 0;
}

int bth_plan_add_at(berth_plan *plan, const char *name, uint64_t offset, uint64_t nbytes,
                    const bth_plan_record *content, berth_error *error)
{
    const bool has_header = !plan->is_plain && !content->is_part;
    uint64_t end;

    assert(offset >= plan_end(plan));
    if (has_header && name_check("record name", name, false, error) < 0)
        return error->code;
    size_t own_nbytes = strlen(name), name_nbytes = plan->archive_nbytes + 1 + own_nbytes;
    bth_plan_record *records = bth_items_grow(plan->records, plan->n_records, 1,
                                              &plan->n_records_room, sizeof *records, error);
    if (!records)
        return error->code;
    plan->records = records;
    char *names = bth_items_grow(plan->names, plan->names_nbytes, name_nbytes + 1,
                                 &plan->names_room, 1, error);
    if (!names)
        return error->code;
    plan->names = names;
    char *full_name = names + plan->names_nbytes;
    memcpy(full_name, plan->archive, plan->archive_nbytes);
    full_name[plan->archive_nbytes] = '/';
    memcpy(full_name + plan->archive_nbytes + 1, name, own_nbytes + 1);
    bth_plan_record *record = &records[plan->n_records];
    *record = *content;
    record->name_at = plan->names_nbytes;
    if (has_header && name_nbytes > UINT16_MAX)
        return bth_fail(error, BERTH_E_ARGUMENT, name, BERTH_NO_OFFSET,
                        "the name has %zu bytes, a zip's have at most %u", name_nbytes, UINT16_MAX);
    if (has_header && name_nbytes > KEPT_NBYTES &&
        ((unsigned char)full_name[KEPT_NBYTES] & 0xc0) == 0x80)
        return bth_fail(error, BERTH_E_ARGUMENT, name, BERTH_NO_OFFSET,
                        "with the archive's the name has %zu bytes, of which PyTorch keeps %d; "
                        "they end within a character, and it opens no such file: choose a shorter "
                        "one",
                        name_nbytes, KEPT_NBYTES);
    bth_layout_entry *layout = &record->layout;
    if ((has_header &&
         bth_layout_entry_compute(offset, name_nbytes, nbytes, plan->alignment, layout) < 0) ||
        (!has_header && (!bth_try_add(offset, nbytes, &end) || end > INT64_MAX)))
        return bth_fail(error, BERTH_E_ARGUMENT, name, offset,
                        "%llu bytes do not fit a file of 2^63 bytes", (unsigned long long)nbytes);
    if (has_header) {
        uint64_t longest = bth_max(layout->data_offset - layout->header_offset,
                                   bth_layout_central_entry_nbytes(layout));
        plan->max_header_nbytes = (size_t)bth_max(plan->max_header_nbytes, longest);
    } else
        *layout = (bth_layout_entry){.header_offset = offset,
                                     .data_offset = offset,
                                     .nbytes = nbytes,
                                     .next_offset = offset + nbytes};
    if (!plan->header || plan->n_records > 0) /* not its header */
        plan->requested_nbytes += nbytes;
    if (record->device)
        plan->device_nbytes += nbytes;
    plan->names_nbytes += name_nbytes + 1;
    plan->n_records++;
    plan->n_storages += bth_plan_record_is_storage(plan, plan->n_records - 1);
    return 0;
}

int bth_plan_add(berth_plan *plan, const char *name, uint64_t nbytes,
                 const bth_plan_record *content, berth_error *error)
{
    return bth_plan_add_at(plan, name, plan_end(plan), nbytes, content, error);
}

bool bth_plan_record_is_storage(const berth_plan *plan, size_t i)
{
    if (plan->is_plain)
        return plan->header && i > 0;
    return strncmp(bth_plan_record_full_name(plan, i) + plan->archive_nbytes, "/data/", 6) == 0;
}

/* Z8: PyTorch finds records by their names in any case. */
static int plan_check_unique_names(const berth_plan *plan, berth_error *error)
{
    size_t n_slots = 16;

    while (n_slots < plan->n_records * 2)
        n_slots *= 2;
    /* An open hash table of indices plus one. */
    size_t *slots = bth_allocate_zeroed(n_slots * sizeof *slots);
    if (!slots)
        return bth_fail_memory(error, n_slots * sizeof *slots);
    for (size_t i = 0; i < plan->n_records && error->code == BERTH_OK; i++) {
        const char *name = bth_plan_record_name(plan, i), *other = NULL;
        size_t nbytes = strlen(name), at = bth_hash_any_case(0, name, nbytes) & (n_slots - 1);
        for (; slots[at] && !other; at = (at + 1) & (n_slots - 1)) {
            const char *found = bth_plan_record_name(plan, slots[at] - 1);
            if (strlen(found) == nbytes && bth_same_in_any_case(name, found, nbytes))
                other = found;
        }
        if (!other)
            slots[at] = i + 1;
        else if (strcmp(name, other) == 0)
            bth_fail(error, BERTH_E_ARGUMENT, name, BERTH_NO_OFFSET, "two records have this name");
        else
            bth_fail(error, BERTH_E_ARGUMENT, name, BERTH_NO_OFFSET,
                     "its name differs from '%.100s' only in capital letters, which PyTorch "
                     "ignores",
                     other);
    }
    bth_release(slots);
    return error->code;
}

int bth_plan_close(berth_plan *plan, berth_error *error)
{
    uint64_t offset = plan_end(plan);
    plan->nbytes = plan->tail_offset = plan->directory_offset = offset;
    if (plan->is_plain || plan->is_parts) {
        if (plan->max_header_nbytes == 0) /* no header is rendered */
            plan->max_header_nbytes = 1;
        return 0;
    }
    /* Of a value, they are names of Berth's own, and numbers. */
    if (!plan->pickled.bytes && plan_check_unique_names(plan, error) < 0)
        return error->code;
    for (size_t i = 0; i < plan->n_records; i++) {
        plan->records[i].central_offset = offset;
        offset += bth_layout_central_entry_nbytes(&plan->records[i].layout);
    }
    plan->directory_nbytes = offset - plan->directory_offset;
    plan->nbytes = offset + BTH_ZIP_END_NBYTES;
    if (plan->id_index != BTH_NO_RECORD)
        plan->tail_offset = plan->records[plan->id_index].layout.data_offset;
    if (plan->nbytes > INT64_MAX)
        return bth_fail_argument(error, "the file would have more than 2^63 bytes");
    return 0;
}

int berth_plan_at(const berth_plan *plan, size_t i, berth_record *record)
{
    if (!plan || !record)
        return BERTH_E_ARGUMENT;
    if (i >= plan->n_records)
        return BERTH_E_NOT_FOUND;
    const bth_layout_entry *layout = &plan->records[i].layout;
    *record = (berth_record){.name = bth_plan_record_name(plan, i),
                             .nbytes = layout->nbytes,
                             .header_offset = layout->header_offset,
                             .offset = layout->data_offset};
    return 0;
}

/* ---- the records of a save, and their order (format/FORMAT.md section 1) ---- */

#define NAME_PICKLE "data.pkl"
#define NAME_ID ".data/serialization_id"

/* The text of the record. *is_foreign: it differs from this machine's. */
static const char *config_byteorder(const struct berth_config *config, bool *is_foreign)
{
    const bool native = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;
    bool is_big = config->save_byteorder == BTH_BYTEORDER_NATIVE
                      ? native
                      : config->save_byteorder == BTH_BYTEORDER_BIG;

    *is_foreign = is_big != native;
    return is_big ? "big" : "little";
}

static int plan_add_text(berth_plan *plan, const char *name, const char *text, berth_error *error)
{
    const bth_plan_record content = {.data = text, .swap_nbytes = 1};

    return bth_plan_add(plan, name, strlen(text), &content, error);
}

/* The records between data.pkl and the storages. `byteorder` NULL: that one stands behind them. */
static int plan_add_records_before_storages(berth_plan *plan, const char *byteorder,
                                            berth_error *error)
{
    (void)snprintf(plan->alignment_text, sizeof plan->alignment_text, "%u", plan->alignment);
    if (plan_add_text(plan, ".format_version", "1", error) < 0 ||
        plan_add_text(plan, ".storage_alignment", plan->alignment_text, error) < 0 || !byteorder)
        return error->code;
    return plan_add_text(plan, "byteorder", byteorder, error);
}

/* `byteorder` NULL: it stands before the storages. */
static int plan_add_records_behind_storages(berth_plan *plan, const char *byteorder,
                                            berth_error *error)
{
    const bth_plan_record computed = {.swap_nbytes = 1};

    if (plan_add_text(plan, "version", "3\n", error) < 0 ||
        (byteorder && plan_add_text(plan, "byteorder", byteorder, error) < 0) ||
        bth_plan_add(plan, NAME_ID, BTH_ID_NBYTES, &computed, error) < 0)
        return error->code;
    plan->id_index = plan->n_records - 1;
    return 0;
}

/* Readers compute offsets from this record. If it differs from the layout, they read wrong bytes.
 * A text that is no short number is not checked. */
static int plan_check_alignment_record(const berth_plan *plan, const berth_new_record *record,
                                       berth_error *error)
{
    size_t nbytes = (size_t)record->nbytes;
    char text[16] = "", *end;

    if (plan->is_plain || strcmp(record->name, ".storage_alignment") != 0 || record->nbytes == 0 ||
        record->nbytes >= sizeof text || (!record->data && !record->read))
        return 0;
    if (record->data)
        memcpy(text, record->data, nbytes);
    else if (record->read(record->context, text, nbytes, 0) != 0)
        return 0;
    text[nbytes] = '\0';
    unsigned long recorded = strtoul(text, &end, 10);
    if (end == text || *end || recorded == plan->alignment)
        return 0;
    return bth_fail(error, BERTH_E_ARGUMENT, record->name, BERTH_NO_OFFSET,
                    "says %lu, save.storage_alignment is %u", recorded, plan->alignment);
}

static int plan_add_caller_and_own_records(berth_plan *plan, const berth_content *content,
                                           const struct berth_config *config, berth_error *error)
{
    bool complete = content->flags & (BERTH_RECORDS_COMPLETE | BERTH_RECORDS_PLAIN), is_foreign;
    bool is_last = content->flags & BERTH_RECORDS_BYTEORDER_LAST;
    const char *byteorder = config_byteorder(config, &is_foreign);

    plan->is_plain = content->flags & BERTH_RECORDS_PLAIN;
    plan->compute_crc32 &= !plan->is_plain;
    for (size_t i = 0; i < content->n_records; i++) {
        const berth_new_record *record = &content->records[i];
        const berth_storage *storage = record->storage;
        bth_plan_record added = {.data = record->data,
                                 .read = record->data ? NULL : record->read,
                                 .storage = storage,
                                 .context = record->context,
                                 .no_crc32 = record->no_crc32,
                                 .crc32 = record->crc32,
                                 .swap_nbytes = 1};
        if (storage && (record->data || record->read || storage->nbytes != record->nbytes))
            return bth_fail(error, BERTH_E_ARGUMENT, record->name, BERTH_NO_OFFSET,
                            "its storage is not the only source of its bytes, or has another size");
        if (record->nbytes > 0 && !storage && !record->data && !record->read)
            return bth_fail(error, BERTH_E_ARGUMENT, record->name, BERTH_NO_OFFSET,
                            "neither data nor read is set");
        if (BTH_CHECK_RESERVED(berth_new_record, record, error) < 0)
            return error->code;
        if (storage && bth_plan_add_device_of_storage(plan, storage, &added.device, error) < 0)
            return bth_error_add_record(error, record->name);
        if ((plan->is_plain && name_check("record name", record->name, false, error) < 0) ||
            bth_plan_add(plan, record->name, record->nbytes, &added, error) < 0 ||
            plan_check_alignment_record(plan, record, error) < 0 ||
            (i == 0 && !complete &&
             plan_add_records_before_storages(plan, is_last ? NULL : byteorder, error) < 0))
            return error->code;
    }
    return complete ? 0 : plan_add_records_behind_storages(plan, is_last ? byteorder : NULL, error);
}

int bth_plan_add_device_of_storage(berth_plan *plan, const berth_storage *storage, uint8_t *number,
                                   berth_error *error)
{
    uint64_t at = 0;
    const berth_storage *bottom = bth_storage_resolve_view(storage, &at);
    const bth_device_memory *memory = bottom->device;

    *number = 0;
    if (!memory || storage->nbytes == 0)
        return 0;
    if (bth_wing_device.check_life(memory->device, memory->life, error) < 0 ||
        bth_wing_device.check_memory(memory->device,
                                     memory->address + (uintptr_t)(bottom->root_offset + at),
                                     (size_t)storage->nbytes, error) < 0)
        return error->code;
    while (*number < plan->n_devices)
        if (plan->devices[(*number)++] == memory->device)
            return 0;
    size_t nbytes = (*number + 1u) * sizeof *plan->devices;
    bth_device_handle **devices =
        *number < UINT8_MAX ? bth_reallocate(plan->devices, nbytes) : NULL;
    if (!devices)
        return bth_fail_memory(error, nbytes);
    plan->devices = devices;
    devices[plan->n_devices++] = memory->device;
    *number = plan->n_devices;
    return 0;
}

static int plan_add_records_of_value(berth_plan *plan, const berth_value *value,
                                     const struct berth_config *config, berth_error *error)
{
    bool foreign;
    const char *byteorder = config_byteorder(config, &foreign);
    const bth_pickled *pickled = &plan->pickled;

    if (bth_pickle_write(value, foreign, &plan->pickled, error) < 0)
        return error->code;
    const bth_plan_record pickle = {.data = pickled->bytes, .swap_nbytes = 1};
    if (bth_plan_add(plan, NAME_PICKLE, pickled->nbytes, &pickle, error) < 0 ||
        plan_add_records_before_storages(plan, byteorder, error) < 0)
        return error->code;
    for (size_t i = 0; i < pickled->n_storages; i++) {
        const berth_storage *storage = pickled->storages[i];
        berth_dtype class = pickled->dtypes[i];
        bth_plan_record content = {.storage = storage, .swap_nbytes = 1};
        char name[32];
        /* PyTorch swaps back by the class in the file, and never an UntypedStorage (T5). */
        if (foreign && class != BERTH_DTYPE_NONE)
            content.swap_nbytes = (uint8_t)bth_dtype_swap_nbytes(class);
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
    if (pickled->has_nested)
        bth_log("%s: PyTorch 2.15 loads the nested tensors in it with weights_only=False alone",
                plan->archive);
    return plan_add_records_behind_storages(plan, NULL, error);
}

static int content_check(const berth_content *content, const struct berth_config *config,
                         berth_error *error)
{
    static const uint32_t known[] = {
        [BERTH_CONTENT_VALUE] = 0,
        [BERTH_CONTENT_SAFETENSORS] = BERTH_TENSORS_ONLY | BERTH_COPY_TIES,
        [BERTH_CONTENT_RECORDS] =
            BERTH_RECORDS_COMPLETE | BERTH_RECORDS_BYTEORDER_LAST | BERTH_RECORDS_PLAIN};
    bool is_foreign;

    if (!content)
        return bth_fail_argument(error, "the content is NULL");
    if (BTH_CHECK_RESERVED(berth_content, content, error) < 0)
        return error->code;
    if (content->kind != BERTH_CONTENT_VALUE && content->kind != BERTH_CONTENT_SAFETENSORS &&
        content->kind != BERTH_CONTENT_RECORDS)
        return bth_fail_argument(error, "invalid kind of content");
    const berth_new_record *first = content->records;
    const uint32_t unknown = content->flags & ~known[content->kind];
    if (unknown)
        return bth_fail_argument(error, "unknown flags 0x%x", unknown);
    if (content->kind != BERTH_CONTENT_RECORDS) {
        if (!content->value)
            return bth_fail_argument(
                error, "the value is NULL: berth_tree_error returns why, if making it failed");
        return berth_tree_error(bth_value_tree(content->value), error);
    }
    if (!first || content->n_records == 0)
        return bth_fail_argument(error, "the content has no records");
    if (content->flags & (BERTH_RECORDS_COMPLETE | BERTH_RECORDS_PLAIN))
        return 0;
    if (!first->name || strcmp(first->name, NAME_PICKLE) != 0)
        return bth_fail(error, BERTH_E_ARGUMENT, first->name, BERTH_NO_OFFSET,
                        "the first record must be " NAME_PICKLE);
    const char *byteorder = config_byteorder(config, &is_foreign);
    if (is_foreign)
        return bth_fail_argument(
            error,
            "records are written as they are, their byte order cannot be changed to "
            "save.byteorder=%s",
            byteorder);
    return 0;
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
