/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads a record's data, in the byte order of the file. */
#include <string.h>

#include "base/error.h"
#include "format/values/value.h"
#include "save/image.h"

static int record_read_storage(const berth_storage *storage, uint8_t *out, size_t nbytes,
                               uint64_t at, const char *name, berth_error *error)
{
    storage = bth_storage_resolve_view(storage, &at);
    if (storage->data) {
        memcpy(out, (const uint8_t *)storage->data + at, nbytes);
        return 0;
    }
    if (!storage->read)
        return bth_fail(error, BERTH_E_ARGUMENT, name, BERTH_NO_OFFSET, "the storage has no bytes");
    (void)storage->read(storage, out, nbytes, at, error);
    return bth_error_add_record(error, name);
}

/* In the machine's byte order. */
static int record_read_unswapped(const berth_plan *plan, size_t i, uint8_t *out, size_t nbytes,
                                 uint64_t at, berth_error *error)
{
    const bth_plan_record *record = &plan->records[i];

    if (record->data) {
        memcpy(out, (const uint8_t *)record->data + at, nbytes);
        return 0;
    }
    if (record->storage)
        return record_read_storage(record->storage, out, nbytes, at, bth_plan_record_name(plan, i),
                                   error);
    int failure = record->read(record->context, out, nbytes, at);
    if (failure == 0)
        return 0;
    bth_fail_errno(error, failure < 0 ? -failure : failure, bth_plan_record_name(plan, i),
                   record->layout.data_offset + at, "the caller's read failed");
    error->code = BERTH_E_CALLBACK;
    return error->code;
}

/* Reads a share of one element, which a tile's border cuts. */
static int record_read_part_of_element(const berth_plan *plan, size_t i, uint8_t *out,
                                       size_t nbytes, uint64_t at, berth_error *error)
{
    size_t unit = plan->records[i].swap_nbytes;
    size_t cut = (size_t)(at % unit);
    uint8_t element[16];

    if (record_read_unswapped(plan, i, element, unit, at - cut, error) < 0)
        return error->code;
    bth_swap_bytes(element, element, unit, unit);
    memcpy(out, element + cut, nbytes);
    return 0;
}

/* How many bytes to read next: whole elements, or a share of one. */
static size_t record_compute_next_read_nbytes(size_t nbytes, uint64_t at, size_t unit)
{
    size_t rest = unit - (size_t)(at % unit);

    if (rest < unit || nbytes < unit)
        return nbytes < rest ? nbytes : rest;
    return nbytes - nbytes % unit;
}

const uint8_t *bth_record_data_address(const berth_plan *plan, size_t i, uint64_t at)
{
    const bth_plan_record *record = &plan->records[i];
    const berth_storage *storage = record->storage;

    if (record->swap_nbytes > 1)
        return NULL;
    if (record->data)
        return (const uint8_t *)record->data + at;
    if (!storage)
        return NULL;
    storage = bth_storage_resolve_view(storage, &at);
    return storage->data ? (const uint8_t *)storage->data + at : NULL;
}

int bth_record_data_read(const berth_plan *plan, size_t i, uint8_t *out, size_t nbytes, uint64_t at,
                         berth_error *error)
{
    const bth_plan_record *record = &plan->records[i];
    size_t unit = record->swap_nbytes;

    if (unit <= 1)
        return record_read_unswapped(plan, i, out, nbytes, at, error);
    while (nbytes > 0) {
        size_t n = record_compute_next_read_nbytes(nbytes, at, unit);
        bool is_cut = n < unit;
        if ((is_cut ? record_read_part_of_element : record_read_unswapped)(plan, i, out, n, at,
                                                                           error) < 0)
            return error->code;
        if (!is_cut)
            bth_swap_bytes(out, out, n, unit);
        out += n;
        at += n;
        nbytes -= n;
    }
    return 0;
}
