/* SPDX-License-Identifier: BSD-3-Clause */
/* From the outline of a joint save to its ticket: the tensors whose bytes the writers have. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/names/names.h"
#include "format/values/value.h"
#include "save/joint/joint_ticket.h"

/* The ticket that is written. */
typedef struct outline_ticket {
    const berth_plan *plan;
    uint32_t *places; /* by storage->index: the place in the ticket + 1; 0: it is not in it */
    bool *is_named;   /* by the place: a tensor is on it */
    size_t n_storages;
    bth_name_text name, path; /* of one tensor */
    uint32_t n_tensors;
    size_t counts_at; /* where the numbers of storages and tensors are */
    uint8_t *bytes;
    size_t nbytes;
    size_t room;
} outline_ticket;

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

static int outline_collect_storages(outline_ticket *out, const berth_value *outline,
                                    berth_error *error)
{
    const berth_plan *plan = out->plan;
    size_t n = bth_tree_n_storages(bth_value_tree(outline));

    out->places = bth_allocate_zeroed(bth_array_nbytes(n + 1, sizeof *out->places));
    out->is_named = bth_allocate_zeroed(plan->n_storages + 1);
    if (!out->places || !out->is_named)
        return bth_fail_memory(error, bth_array_nbytes(n + 1, sizeof *out->places));
    for (size_t i = 0; i < plan->n_records; i++)
        if (bth_plan_record_is_elsewhere(plan, i))
            out->places[plan->records[i].storage->index] = (uint32_t)++out->n_storages;
    return 0;
}

/* ---- writing ---- */

static uint64_t text_nbytes(const char *text)
{
    return 4 + strlen(text) + 1;
}

/* Room for `nbytes` more; NULL on failure. The caller writes them. */
static uint8_t *outline_extend(outline_ticket *out, uint64_t nbytes, berth_error *error)
{
    size_t at = out->nbytes;

    if (nbytes > out->room - at) {
        size_t room = bth_array_nbytes(out->room / 2 + (size_t)nbytes, 3);
        uint8_t *grown = bth_reallocate(out->bytes, room);
        if (!grown) {
            (void)bth_fail_memory(error, room);
            return NULL;
        }
        out->bytes = grown;
        out->room = room;
    }
    out->nbytes += (size_t)nbytes;
    return out->bytes + at;
}

static int outline_put_head_and_storages(outline_ticket *out, const bth_ticket *ticket,
                                         berth_error *error)
{
    const berth_plan *plan = out->plan;
    uint64_t nbytes = BTH_BLOB_HEAD_NBYTES + 6 * 4 + 8 + 2 * 4 + text_nbytes(ticket->path) +
                      text_nbytes(ticket->folder) + text_nbytes(ticket->temporary) +
                      text_nbytes(ticket->archive);
    uint8_t *at = outline_extend(out, nbytes + 24 * (uint64_t)out->n_storages, error);
    uint32_t number = 0;

    if (!at)
        return error->code;
    at = bth_blob_put_head(at, BTH_BLOB_TICKET, ticket->identity);
    at = bth_put_u32(at, ticket->n_writers);
    at = bth_put_u32(at, ticket->block_nbytes);
    at = bth_put_u32(at, ticket->compute_crc32);
    at = bth_put_u32(at, (uint64_t)ticket->durability);
    at = bth_put_u32(at, BTH_MACHINE_IS_BIG_ENDIAN);
    at = bth_put_u32(at, ticket->alignment);
    at = bth_put_u64(at, ticket->file_nbytes);
    at = bth_blob_put_text(at, ticket->path);
    at = bth_blob_put_text(at, ticket->folder);
    at = bth_blob_put_text(at, ticket->temporary);
    at = bth_blob_put_text(at, ticket->archive);
    out->counts_at = (size_t)(at - out->bytes);
    at += 8;
    for (size_t i = 0; i < plan->n_records; i++) {
        const bth_plan_record *record = &plan->records[i];
        if (bth_plan_record_is_elsewhere(plan, i)) {
            at = bth_put_u32(at, number);
            at = bth_put_u32(at, record->swap_nbytes);
            at = bth_put_u64(at, record->layout.header_offset);
            at = bth_put_u64(at, record->layout.nbytes);
        }
        number += bth_plan_record_is_storage(plan, i);
    }
    return 0;
}

static int outline_put_tensor(outline_ticket *out, const bth_names *names, size_t i,
                              berth_error *error)
{
    const berth_tensor *tensor = berth_as_tensor(bth_names_tensor_value(names, i));
    int64_t elements;

    if (!tensor || !tensor->storage)
        return 0;
    const berth_storage *storage = bth_tensor_saved_storage(tensor, &elements);
    uint32_t place = out->places[storage->index];
    if (place == 0) /* its bytes are here */
        return 0;
    uint64_t offset = (uint64_t)elements / (unsigned)bth_dtype_elements_per_item(tensor->dtype) *
                      berth_dtype_nbytes(tensor->dtype);
    out->is_named[place - 1] = true;
    if (bth_names_write_tensor_name_and_path(names, i, &out->name, &out->path, error) < 0)
        return error->code;
    /* A path that follows from the name is left out. */
    const char *name = out->name.text, *path = out->path.text;
    size_t name_nbytes = out->name.nbytes;
    if (bth_name_is_path(name) ||
        (out->path.nbytes == name_nbytes + 4 && memcmp(path, "['", 2) == 0 &&
         memcmp(path + 2, name, name_nbytes) == 0))
        path = "";
    uint8_t *at = outline_extend(
        out, 4 * 4 + 8 + 8 * (uint64_t)tensor->rank + text_nbytes(name) + text_nbytes(path), error);
    if (!at)
        return error->code;
    at = bth_put_u32(at, place - 1);
    at = bth_put_u32(at, (uint64_t)tensor->dtype);
    at = bth_put_u32(at, (uint64_t)tensor->rank);
    at = bth_put_u32(at, berth_tensor_is_contiguous(tensor));
    at = bth_put_u64(at, offset);
    for (int32_t d = 0; d < tensor->rank; d++)
        at = bth_put_u64(at, (uint64_t)tensor->shape[d]);
    (void)bth_blob_put_text(bth_blob_put_text(at, name), path);
    out->n_tensors++;
    return 0;
}

static int outline_put_tensors(outline_ticket *out, const berth_value *outline, berth_error *error)
{
    bth_names *names = NULL;

    if (bth_names_new(outline, &names, error) < 0)
        return error->code;
    for (size_t i = 0; i < bth_names_tensor_count(names) && error->code == BERTH_OK; i++)
        (void)outline_put_tensor(out, names, i, error);
    bth_names_free(names);
    return error->code;
}

/* The end, and what is known only now. No more room is kept than is needed. */
static int outline_put_end(outline_ticket *out, berth_error *error)
{
    const berth_plan *plan = out->plan;

    for (size_t i = 0, place = 0; i < plan->n_records; i++)
        if (bth_plan_record_is_elsewhere(plan, i) && !out->is_named[place++])
            return bth_fail(error, BERTH_E_ARGUMENT, bth_plan_record_name(plan, i), BERTH_NO_OFFSET,
                            "no tensor of the outline is on it: its bytes must be in the outline");
    if (!outline_extend(out, BTH_BLOB_END_NBYTES, error))
        return error->code;
    (void)bth_put_u32(bth_put_u32(out->bytes + out->counts_at, out->n_storages), out->n_tensors);
    bth_blob_put_end(out->bytes, out->nbytes);
    uint8_t *shrunk = bth_reallocate(out->bytes, out->nbytes);
    if (shrunk)
        out->bytes = shrunk;
    return 0;
}

int bth_ticket_write(const bth_ticket *ticket, const berth_plan *plan, const berth_value *outline,
                     uint8_t **bytes, size_t *nbytes, berth_error *error)
{
    outline_ticket out = {.plan = plan};

    if (outline_collect_storages(&out, outline, error) == 0 &&
        outline_put_head_and_storages(&out, ticket, error) == 0 &&
        outline_put_tensors(&out, outline, error) == 0 && outline_put_end(&out, error) == 0) {
        *bytes = out.bytes;
        *nbytes = out.nbytes;
        out.bytes = NULL;
    }
    bth_release(out.places);
    bth_release(out.is_named);
    bth_release(out.name.text);
    bth_release(out.path.text);
    bth_release(out.bytes);
    return error->code;
}
