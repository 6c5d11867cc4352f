/* SPDX-License-Identifier: BSD-3-Clause */
/* From the outline of a joint save to its ticket: the tensors whose bytes the writers have. */
#include <stdlib.h>
#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/names/names.h"
#include "format/values/value.h"
#include "save/joint/joint_ticket.h"

/* A storage of the ticket, by its address. */
typedef struct outline_storage {
    const berth_storage *storage;
    size_t record; /* of the plan */
    uint32_t number;
    bool has_tensor;
} outline_storage;

typedef struct outline_tensor {
    char *name;
    const berth_tensor *tensor;
    uint64_t offset; /* in the storage, in bytes */
    uint32_t storage;
} outline_tensor;

typedef struct outline_tables {
    const berth_plan *plan;
    outline_storage *storages; /* sorted by address */
    size_t n_storages;
    outline_tensor *tensors; /* sorted by name; one whose name is not its path is there twice */
    size_t n_tensors;
} outline_tables;

bool bth_plan_record_is_elsewhere(const berth_plan *plan, size_t i)
{
    const bth_plan_record *record = &plan->records[i];
    uint64_t at = 0;

    if (!record->storage || record->layout.nbytes == 0)
        return false;
    const berth_storage *bottom = bth_storage_resolve_view(record->storage, &at);
    return !bottom->data && !bottom->read && !bottom->device;
}

/* ---- storages ---- */

static int outline_storage_compare(const void *a, const void *b)
{
    uintptr_t one = (uintptr_t)((const outline_storage *)a)->storage;
    uintptr_t other = (uintptr_t)((const outline_storage *)b)->storage;

    return (one > other) - (one < other);
}

static int outline_collect_storages(outline_tables *tables, berth_error *error)
{
    const berth_plan *plan = tables->plan;
    size_t nbytes = bth_array_nbytes(plan->n_storages + 1, sizeof *tables->storages);

    tables->storages = bth_allocate(nbytes);
    if (!tables->storages)
        return bth_fail_memory(error, nbytes);
    for (size_t i = 0; i < plan->n_records; i++)
        if (bth_plan_record_is_elsewhere(plan, i)) {
            tables->storages[tables->n_storages] =
                (outline_storage){plan->records[i].storage, i, (uint32_t)tables->n_storages, false};
            tables->n_storages++;
        }
    qsort(tables->storages, tables->n_storages, sizeof *tables->storages, outline_storage_compare);
    return 0;
}

/* NULL: the tensor has its bytes here, or none at all. */
static outline_storage *outline_find_storage(const outline_tables *tables,
                                             const berth_tensor *tensor, uint64_t *offset)
{
    int64_t elements;

    if (!tensor || !tensor->storage)
        return NULL;
    const outline_storage wanted = {.storage = bth_tensor_saved_storage(tensor, &elements)};
    *offset = (uint64_t)elements / (unsigned)bth_dtype_elements_per_item(tensor->dtype) *
              berth_dtype_nbytes(tensor->dtype);
    return bsearch(&wanted, tables->storages, tables->n_storages, sizeof wanted,
                   outline_storage_compare);
}

/* ---- tensors ---- */

static int outline_add_tensor(outline_tables *tables, const bth_names *names, size_t i,
                              berth_error *error)
{
    const berth_tensor *tensor = berth_as_tensor(bth_names_tensor_value(names, i));
    uint64_t offset = 0;
    outline_storage *storage = outline_find_storage(tables, tensor, &offset);
    char *name = NULL, *path = NULL;

    if (!storage)
        return 0;
    storage->has_tensor = true;
    if (bth_names_allocate_tensor_name_and_path(names, i, &name, &path, error) < 0)
        return error->code;
    tables->tensors[tables->n_tensors++] = (outline_tensor){name, tensor, offset, storage->number};
    if (strcmp(name, path) == 0)
        bth_release(path);
    else
        tables->tensors[tables->n_tensors++] =
            (outline_tensor){path, tensor, offset, storage->number};
    return 0;
}

static int outline_tensor_compare(const void *a, const void *b)
{
    return strcmp(((const outline_tensor *)a)->name, ((const outline_tensor *)b)->name);
}

static int outline_add_tensors(outline_tables *tables, const bth_names *names, berth_error *error)
{
    size_t n = bth_names_tensor_count(names);
    size_t nbytes = bth_array_nbytes(2 * n + 1, sizeof *tables->tensors);

    tables->tensors = bth_allocate(nbytes);
    if (!tables->tensors)
        return bth_fail_memory(error, nbytes);
    for (size_t i = 0; i < n; i++)
        if (outline_add_tensor(tables, names, i, error) < 0)
            return error->code;
    qsort(tables->tensors, tables->n_tensors, sizeof *tables->tensors, outline_tensor_compare);
    return 0;
}

static int outline_collect_tensors(outline_tables *tables, const berth_value *outline,
                                   berth_error *error)
{
    bth_names *names = NULL;

    if (bth_names_new(outline, &names, error) < 0)
        return error->code;
    (void)outline_add_tensors(tables, names, error);
    bth_names_free(names);
    return error->code;
}

/* A storage that no name leads to could not be written. */
static int outline_check_storages_have_tensors(const outline_tables *tables, berth_error *error)
{
    for (size_t i = 0; i < tables->n_storages; i++)
        if (!tables->storages[i].has_tensor)
            return bth_fail(error, BERTH_E_ARGUMENT,
                            bth_plan_record_name(tables->plan, tables->storages[i].record),
                            BERTH_NO_OFFSET,
                            "no tensor of the outline is on it: its bytes must be in the outline");
    return 0;
}

static void outline_free_all(outline_tables *tables)
{
    for (size_t i = 0; i < tables->n_tensors; i++)
        bth_release(tables->tensors[i].name);
    bth_release(tables->tensors);
    bth_release(tables->storages);
}

/* ---- writing ---- */

static uint64_t text_nbytes(const char *text)
{
    return 4 + strlen(text) + 1;
}

static uint64_t ticket_compute_nbytes(const bth_ticket *ticket, const outline_tables *tables)
{
    uint64_t nbytes = BTH_BLOB_HEAD_NBYTES + 6 * 4 + 8 + 2 * 4 + text_nbytes(ticket->path) +
                      text_nbytes(ticket->folder) + text_nbytes(ticket->temporary) +
                      text_nbytes(ticket->archive) + 24 * tables->n_storages + BTH_BLOB_END_NBYTES;

    for (size_t i = 0; i < tables->n_tensors; i++)
        nbytes += 4 * 4 + 8 + 8 * (uint64_t)tables->tensors[i].tensor->rank +
                  text_nbytes(tables->tensors[i].name);
    return nbytes;
}

static uint8_t *ticket_put_head(uint8_t *out, const bth_ticket *ticket)
{
    out = bth_blob_put_head(out, BTH_BLOB_TICKET, ticket->identity);
    out = bth_put_u32(out, ticket->n_writers);
    out = bth_put_u32(out, ticket->block_nbytes);
    out = bth_put_u32(out, ticket->compute_crc32);
    out = bth_put_u32(out, (uint64_t)ticket->durability);
    out = bth_put_u32(out, BTH_MACHINE_IS_BIG_ENDIAN);
    out = bth_put_u32(out, ticket->alignment);
    out = bth_put_u64(out, ticket->file_nbytes);
    out = bth_blob_put_text(out, ticket->path);
    out = bth_blob_put_text(out, ticket->folder);
    out = bth_blob_put_text(out, ticket->temporary);
    return bth_blob_put_text(out, ticket->archive);
}

static uint8_t *ticket_put_storages(uint8_t *out, const berth_plan *plan)
{
    uint32_t number = 0;

    for (size_t i = 0; i < plan->n_records; i++) {
        const bth_plan_record *record = &plan->records[i];
        if (bth_plan_record_is_elsewhere(plan, i)) {
            out = bth_put_u32(out, number);
            out = bth_put_u32(out, record->swap_nbytes);
            out = bth_put_u64(out, record->layout.header_offset);
            out = bth_put_u64(out, record->layout.nbytes);
        }
        number += bth_plan_record_is_storage(plan, i);
    }
    return out;
}

static uint8_t *ticket_put_tensor(uint8_t *out, const outline_tensor *added)
{
    const berth_tensor *tensor = added->tensor;

    out = bth_put_u32(out, added->storage);
    out = bth_put_u32(out, (uint64_t)tensor->dtype);
    out = bth_put_u32(out, (uint64_t)tensor->rank);
    out = bth_put_u32(out, berth_tensor_is_contiguous(tensor));
    out = bth_put_u64(out, added->offset);
    for (int32_t i = 0; i < tensor->rank; i++)
        out = bth_put_u64(out, (uint64_t)tensor->shape[i]);
    return bth_blob_put_text(out, added->name);
}

static int ticket_write(const bth_ticket *ticket, const outline_tables *tables, uint8_t **bytes,
                        size_t *nbytes, berth_error *error)
{
    *nbytes = (size_t)ticket_compute_nbytes(ticket, tables);
    *bytes = bth_allocate(*nbytes);
    if (!*bytes)
        return bth_fail_memory(error, *nbytes);
    uint8_t *out = ticket_put_head(*bytes, ticket);
    out = bth_put_u32(out, tables->n_storages);
    out = bth_put_u32(out, tables->n_tensors);
    out = ticket_put_storages(out, tables->plan);
    for (size_t i = 0; i < tables->n_tensors; i++)
        out = ticket_put_tensor(out, &tables->tensors[i]);
    bth_blob_put_end(*bytes, *nbytes);
    return 0;
}

int bth_ticket_write(const bth_ticket *ticket, const berth_plan *plan, const berth_value *outline,
                     uint8_t **bytes, size_t *nbytes, berth_error *error)
{
    outline_tables tables = {.plan = plan};

    if (outline_collect_storages(&tables, error) == 0 &&
        outline_collect_tensors(&tables, outline, error) == 0 &&
        outline_check_storages_have_tensors(&tables, error) == 0)
        (void)ticket_write(ticket, &tables, bytes, nbytes, error);
    outline_free_all(&tables);
    return error->code;
}
