/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/plan.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/seeded_hash.h"
#include "save/save_error.h"

/* More records than any process can hold. Products with it do not wrap. */
#define MAX_RECORDS (SIZE_MAX / 2 / sizeof(bth_plan_record))

static int plan_reserve_records(berth_plan *plan, size_t n_records, berth_error *error)
{
    if (n_records <= plan->n_records_room)
        return 0;
    if (n_records > MAX_RECORDS)
        return bth_fail_memory(error, UINT64_MAX);
    size_t nbytes = n_records * sizeof *plan->records;
    bth_plan_record *records = bth_reallocate(plan->records, nbytes);
    if (!records)
        return bth_fail_memory(error, nbytes);
    plan->records = records;
    plan->n_records_room = n_records;
    return 0;
}

berth_plan *bth_plan_new(const char *archive, const struct berth_config *config, size_t n_records,
                         berth_error *error)
{
    berth_plan *plan;

    if (bth_check_archive_name(archive, error) < 0)
        return NULL;
    plan = bth_allocate_zeroed(sizeof *plan);
    if (!plan) {
        bth_fail_memory(error, sizeof *plan);
        return NULL;
    }
    plan->id_index = BTH_NO_RECORD;
    plan->alignment = (uint32_t)config->save_storage_alignment;
    plan->compute_crc32 = config->save_compute_crc32;
    plan->archive_nbytes = strlen(archive);
    plan->archive = bth_duplicate_text(archive, plan->archive_nbytes);
    if (!plan->archive)
        bth_fail_memory(error, plan->archive_nbytes);
    else if (plan_reserve_records(plan, n_records, error) == 0)
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

/* Makes room for nbytes more in the names. At least doubled, so that adding stays linear. */
static int plan_reserve_names(berth_plan *plan, size_t nbytes, berth_error *error)
{
    if (nbytes <= plan->names_room - plan->names_nbytes)
        return 0;
    size_t room = plan->names_room * 2 + nbytes + 256;
    char *names = bth_reallocate(plan->names, room);
    if (!names)
        return bth_fail_memory(error, room);
    plan->names = names;
    plan->names_room = room;
    return 0;
}

static int plan_add_name(berth_plan *plan, const char *name, size_t *name_at, size_t *name_nbytes,
                         berth_error *error)
{
    size_t own_nbytes = strlen(name);

    *name_nbytes = plan->archive_nbytes + 1 + own_nbytes;
    if (plan_reserve_names(plan, *name_nbytes + 1, error) < 0)
        return error->code;
    *name_at = plan->names_nbytes;
    char *out = plan->names + plan->names_nbytes;
    memcpy(out, plan->archive, plan->archive_nbytes);
    out[plan->archive_nbytes] = '/';
    memcpy(out + plan->archive_nbytes + 1, name, own_nbytes + 1);
    plan->names_nbytes += *name_nbytes + 1;
    return 0;
}

/* Where the next record begins. */
static uint64_t plan_end(const berth_plan *plan)
{
    return plan->n_records > 0 ? plan->records[plan->n_records - 1].layout.next_offset : 0;
}

static int plan_lay_out_record(const berth_plan *plan, const char *name, size_t name_nbytes,
                               uint64_t cursor, uint64_t nbytes, bth_layout_entry *layout,
                               berth_error *error)
{
    if (bth_layout_entry_compute(cursor, name_nbytes, nbytes, plan->alignment, layout) < 0)
        return bth_fail(error, BERTH_E_ARGUMENT, name, cursor,
                        "%llu bytes do not fit a file of 2^63 bytes", (unsigned long long)nbytes);
    return 0;
}

/* Copies `content` and the name to the place after the last record. NULL: an error. */
static bth_plan_record *plan_begin_record(berth_plan *plan, const char *name,
                                          const bth_plan_record *content, size_t *name_nbytes,
                                          berth_error *error)
{
    if (plan->n_records == plan->n_records_room &&
        plan_reserve_records(plan, plan->n_records * 2 + 8, error) < 0)
        return NULL;
    bth_plan_record *record = &plan->records[plan->n_records];
    *record = *content;
    return plan_add_name(plan, name, &record->name_at, name_nbytes, error) < 0 ? NULL : record;
}

static void plan_end_record(berth_plan *plan, const bth_plan_record *record)
{
    if (!plan->header || plan->n_records > 0) /* not its header */
        plan->requested_nbytes += record->layout.nbytes;
    if (record->device)
        plan->device_nbytes += record->layout.nbytes;
    plan->n_storages += bth_plan_record_is_storage(plan, plan->n_records);
    plan->n_records++;
}

static int plan_check_full_name(const berth_plan *plan, const bth_plan_record *record,
                                const char *name, size_t name_nbytes, berth_error *error)
{
    if (name_nbytes > UINT16_MAX)
        return bth_fail(error, BERTH_E_ARGUMENT, name, BERTH_NO_OFFSET,
                        "the name has %zu bytes, a zip's have at most %u", name_nbytes, UINT16_MAX);
    return bth_check_full_name_not_cut_in_character(plan->names + record->name_at, name, error);
}

int bth_plan_add_at(berth_plan *plan, const char *name, uint64_t header_offset, uint64_t nbytes,
                    const bth_plan_record *content, berth_error *error)
{
    size_t name_nbytes = 0;

    assert(header_offset >= plan_end(plan));
    if (bth_check_record_name(name, error) < 0)
        return error->code;
    bth_plan_record *record = plan_begin_record(plan, name, content, &name_nbytes, error);
    if (!record || plan_check_full_name(plan, record, name, name_nbytes, error) < 0 ||
        plan_lay_out_record(plan, name, name_nbytes, header_offset, nbytes, &record->layout,
                            error) < 0)
        return error->code;
    size_t header_nbytes = (size_t)(record->layout.data_offset - record->layout.header_offset);
    size_t central_nbytes = (size_t)bth_layout_central_entry_nbytes(&record->layout);
    size_t longer = header_nbytes > central_nbytes ? header_nbytes : central_nbytes;
    if (longer > plan->max_header_nbytes)
        plan->max_header_nbytes = longer;
    plan_end_record(plan, record);
    return 0;
}

int bth_plan_add(berth_plan *plan, const char *name, uint64_t nbytes,
                 const bth_plan_record *content, berth_error *error)
{
    return bth_plan_add_at(plan, name, plan_end(plan), nbytes, content, error);
}

int bth_plan_add_part(berth_plan *plan, const char *name, bth_range range,
                      const bth_plan_record *content, berth_error *error)
{
    uint64_t begin = range.offset, nbytes = range.nbytes, end;
    size_t name_nbytes = 0;
    bth_plan_record *record = plan_begin_record(plan, name, content, &name_nbytes, error);

    assert(begin >= plan_end(plan));
    if (!record)
        return error->code;
    if (!bth_try_add(begin, nbytes, &end) || end > INT64_MAX)
        return bth_fail(error, BERTH_E_ARGUMENT, name, begin,
                        "%llu bytes do not fit a file of 2^63 bytes", (unsigned long long)nbytes);
    record->layout = (bth_layout_entry){
        .header_offset = begin, .data_offset = begin, .nbytes = nbytes, .next_offset = end};
    plan_end_record(plan, record);
    return 0;
}

int bth_plan_add_plain(berth_plan *plan, const char *name, uint64_t nbytes,
                       const bth_plan_record *content, berth_error *error)
{
    return bth_plan_add_part(plan, name, (bth_range){plan_end(plan), nbytes}, content, error);
}

const char *bth_plan_record_full_name(const berth_plan *plan, size_t i)
{
    return plan->names + plan->records[i].name_at;
}

const char *bth_plan_record_name(const berth_plan *plan, size_t i)
{
    return bth_plan_record_full_name(plan, i) + plan->archive_nbytes + 1;
}

bool bth_plan_record_is_storage(const berth_plan *plan, size_t i)
{
    if (plan->is_plain)
        return plan->header && i > 0;
    return strncmp(bth_plan_record_name(plan, i), "data/", 5) == 0;
}

/* Z8: PyTorch finds records by their names in any case. */
static int plan_fail_duplicate(const char *name, const char *other, berth_error *error)
{
    if (strcmp(name, other) == 0)
        return bth_fail(error, BERTH_E_ARGUMENT, name, BERTH_NO_OFFSET,
                        "two records have this name");
    return bth_fail(error, BERTH_E_ARGUMENT, name, BERTH_NO_OFFSET,
                    "its name differs from '%.100s' only in capital letters, which PyTorch ignores",
                    other);
}

/* `slots`: an open hash table of indices plus one. */
static int plan_check_names_with_hash_table(const berth_plan *plan, size_t *slots, size_t mask,
                                            berth_error *error)
{
    for (size_t i = 0; i < plan->n_records; i++) {
        const char *name = bth_plan_record_name(plan, i);
        size_t nbytes = strlen(name), at = bth_hash_any_case(0, name, nbytes) & mask;
        for (; slots[at]; at = (at + 1) & mask) {
            const char *other = bth_plan_record_name(plan, slots[at] - 1);
            if (strlen(other) == nbytes && bth_same_in_any_case(name, other, nbytes))
                return plan_fail_duplicate(name, other, error);
        }
        slots[at] = i + 1;
    }
    return 0;
}

static int plan_check_unique_names(const berth_plan *plan, berth_error *error)
{
    size_t n_slots = 16;

    while (n_slots < plan->n_records * 2)
        n_slots *= 2;
    size_t *slots = bth_allocate_zeroed(n_slots * sizeof *slots);
    if (!slots)
        return bth_fail_memory(error, n_slots * sizeof *slots);
    plan_check_names_with_hash_table(plan, slots, n_slots - 1, error);
    bth_release(slots);
    return error->code;
}

static void plan_lay_out_directory(berth_plan *plan)
{
    const bth_plan_record *last = &plan->records[plan->n_records - 1];
    uint64_t offset = last->layout.next_offset;

    plan->directory_offset = offset;
    for (size_t i = 0; i < plan->n_records; i++) {
        plan->records[i].central_offset = offset;
        offset += bth_layout_central_entry_nbytes(&plan->records[i].layout);
    }
    plan->directory_nbytes = offset - plan->directory_offset;
    plan->nbytes = offset + BTH_ZIP_END_NBYTES;
    plan->tail_offset = plan->directory_offset;
    if (plan->id_index != BTH_NO_RECORD)
        plan->tail_offset = plan->records[plan->id_index].layout.data_offset;
}

int bth_plan_close(berth_plan *plan, berth_error *error)
{
    if (plan->n_records == 0)
        return bth_fail_argument(error, "the plan has no records");
    if (plan->is_plain || plan->is_parts) {
        plan->nbytes = plan->tail_offset = plan->directory_offset = plan_end(plan);
        if (plan->max_header_nbytes == 0) /* no header is rendered */
            plan->max_header_nbytes = 1;
        return 0;
    }
    /* Of a value, they are names of Berth's own, and numbers. */
    if (!plan->pickled.bytes && plan_check_unique_names(plan, error) < 0)
        return error->code;
    plan_lay_out_directory(plan);
    if (plan->nbytes > INT64_MAX)
        return bth_fail_argument(error, "the file would have more than 2^63 bytes");
    return 0;
}

size_t bth_plan_find_record_by_offset(const berth_plan *plan, uint64_t offset)
{
    size_t low = 0, high = plan->n_records;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (plan->records[middle].layout.next_offset > offset)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

size_t bth_plan_find_directory_entry(const berth_plan *plan, uint64_t offset)
{
    size_t low = 0, high = plan->n_records;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (plan->records[middle].central_offset <= offset)
            low = middle;
        else
            high = middle;
    }
    return low;
}

bth_range bth_plan_header_range(const berth_plan *plan, size_t i)
{
    const bth_layout_entry *layout = &plan->records[i].layout;

    return (bth_range){.offset = layout->header_offset,
                       .nbytes = layout->data_offset - layout->header_offset};
}

bth_range bth_plan_data_range(const berth_plan *plan, size_t i)
{
    const bth_layout_entry *layout = &plan->records[i].layout;

    return (bth_range){.offset = layout->data_offset, .nbytes = layout->nbytes};
}

bth_range bth_plan_descriptor_range(const berth_plan *plan, size_t i)
{
    const bth_layout_entry *layout = &plan->records[i].layout;

    return (bth_range){.offset = layout->data_offset + layout->nbytes,
                       .nbytes = layout->descriptor_nbytes};
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
