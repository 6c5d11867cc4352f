/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/file_part.h"

#include <string.h>

#include "base/error.h"

/* ---- which part ---- */

bth_file_part bth_file_part_of_header(const berth_plan *plan, size_t i)
{
    return (bth_file_part){BTH_PART_HEADER, i, bth_plan_header_range(plan, i)};
}

bth_file_part bth_file_part_of_descriptor(const berth_plan *plan, size_t i)
{
    return (bth_file_part){BTH_PART_DESCRIPTOR, i, bth_plan_descriptor_range(plan, i)};
}

bth_file_part bth_file_part_of_entry(const berth_plan *plan, size_t i)
{
    const bth_plan_record *record = &plan->records[i];

    return (bth_file_part){BTH_PART_ENTRY,
                           i,
                           {.offset = record->central_offset,
                            .nbytes = bth_layout_central_entry_nbytes(&record->layout)}};
}

bth_file_part bth_file_part_of_end(const berth_plan *plan)
{
    return (bth_file_part){
        BTH_PART_END,
        plan->n_records,
        {.offset = plan->nbytes - BTH_ZIP_END_NBYTES, .nbytes = BTH_ZIP_END_NBYTES}};
}

bth_file_part bth_file_part_find(const berth_plan *plan, uint64_t offset)
{
    size_t i = bth_plan_find_record_by_offset(plan, offset);

    if (offset >= plan->nbytes)
        return (bth_file_part){BTH_PART_PADDING,
                               plan->n_records,
                               {.offset = plan->nbytes, .nbytes = UINT64_MAX - plan->nbytes}};
    if (offset >= plan->directory_offset + plan->directory_nbytes)
        return bth_file_part_of_end(plan);
    if (i == plan->n_records)
        return bth_file_part_of_entry(plan, bth_plan_find_directory_entry(plan, offset));
    const bth_layout_entry *layout = &plan->records[i].layout;
    if (offset < layout->data_offset)
        return bth_file_part_of_header(plan, i);
    if (offset < layout->data_offset + layout->nbytes)
        return (bth_file_part){BTH_PART_DATA, i, bth_plan_data_range(plan, i)};
    return bth_file_part_of_descriptor(plan, i);
}

/* ---- its bytes ---- */

size_t bth_file_part_scratch_nbytes(const berth_plan *plan)
{
    return plan->max_header_nbytes > BTH_ZIP_END_NBYTES ? plan->max_header_nbytes
                                                        : BTH_ZIP_END_NBYTES;
}

static void file_part_render(const berth_plan *plan, const bth_file_part *part, uint32_t crc32,
                             uint8_t *out)
{
    size_t i = part->record;

    switch (part->kind) {
    case BTH_PART_HEADER:
        bth_zip_write_local(&plan->records[i].layout, bth_plan_record_full_name(plan, i), out);
        break;
    case BTH_PART_DESCRIPTOR:
        bth_zip_write_descriptor(&plan->records[i].layout, crc32, out);
        break;
    case BTH_PART_ENTRY:
        bth_zip_write_central(&plan->records[i].layout, bth_plan_record_full_name(plan, i), crc32,
                              out);
        break;
    case BTH_PART_END:
        bth_zip_write_end(plan->n_records, plan->directory_offset, plan->directory_nbytes, out);
        break;
    case BTH_PART_DATA:
    case BTH_PART_PADDING:
        break; /* the layout says nothing about their bytes */
    }
}

int bth_file_part_compare_bytes(const berth_plan *plan, const bth_file_part *part, uint32_t crc32,
                                const uint8_t *bytes, uint8_t *scratch, berth_error *error)
{
    const char *name =
        part->record < plan->n_records ? bth_plan_record_name(plan, part->record) : NULL;
    uint64_t i = 0;

    file_part_render(plan, part, crc32, scratch);
    while (i < part->range.nbytes && bytes[i] == scratch[i])
        i++;
    if (i == part->range.nbytes)
        return 0;
    return bth_fail(error, BERTH_E_OFFSETS, name, part->range.offset + i,
                    "0x%02x was written, 0x%02x is planned", bytes[i], scratch[i]);
}

/* ---- what a reader finds in it ---- */

int bth_file_part_compare_number(const char *name, const char *what, uint64_t written,
                                 uint64_t planned, berth_error *error)
{
    if (written != planned && error->code == BERTH_OK)
        bth_fail(error, BERTH_E_OFFSETS, name, BERTH_NO_OFFSET,
                 "%s is %llu as written, %llu planned", what, (unsigned long long)written,
                 (unsigned long long)planned);
    return error->code;
}

int bth_file_part_compare_entry(const berth_plan *plan, size_t i, uint32_t crc32,
                                const bth_zip_entry *entry, berth_error *error)
{
    const bth_layout_entry *layout = &plan->records[i].layout;
    const char *name = bth_plan_record_name(plan, i);

    if (strcmp(entry->name, bth_plan_record_full_name(plan, i)) != 0)
        return bth_fail(error, BERTH_E_OFFSETS, name, plan->records[i].central_offset,
                        "its directory entry is that of %s", entry->name);
    bth_file_part_compare_number(name, "its header's offset", entry->header_offset,
                                 layout->header_offset, error);
    bth_file_part_compare_number(name, "its size", entry->nbytes, layout->nbytes, error);
    return bth_file_part_compare_number(name, "its CRC", entry->crc32, crc32, error);
}

/* Reads the entry as a directory of its own. */
static int file_part_read_entry(const berth_plan *plan, const bth_file_part *part, uint32_t crc32,
                                const uint8_t *bytes, berth_error *error)
{
    const bth_zip_end end = {.directory_offset = part->range.offset,
                             .directory_nbytes = part->range.nbytes,
                             .n_entries = 1};
    bth_zip_directory directory = {0};

    if (bth_zip_read_directory(bytes, &end, &directory, error) == 0 &&
        bth_file_part_compare_number(bth_plan_record_name(plan, part->record),
                                     "its number of records", directory.n_entries, 1, error) == 0)
        bth_file_part_compare_entry(plan, part->record, crc32, &directory.entries[0], error);
    bth_zip_free_directory(&directory);
    return error->code;
}

/* The record as its directory entry must describe it. */
static bth_zip_entry file_part_entry_of_plan(const berth_plan *plan, size_t i, uint32_t crc32)
{
    const bth_layout_entry *layout = &plan->records[i].layout;
    unsigned descriptor_flag = layout->descriptor_nbytes > 0 ? BTH_ZIP_FLAG_DESCRIPTOR : 0;

    return (bth_zip_entry){.name = bth_plan_record_full_name(plan, i),
                           .record = bth_plan_record_name(plan, i),
                           .name_nbytes = layout->name_nbytes,
                           .flags = (uint16_t)(BTH_ZIP_FLAG_UTF8 | descriptor_flag),
                           .method = BTH_ZIP_STORED,
                           .crc32 = crc32,
                           .compressed_nbytes = layout->nbytes,
                           .nbytes = layout->nbytes,
                           .header_offset = layout->header_offset,
                           .next_offset = layout->next_offset,
                           .data_offset = layout->data_offset};
}

static int file_part_read_header(const berth_plan *plan, const bth_file_part *part,
                                 const bth_zip_input *input, berth_error *error)
{
    bth_zip_entry entry = file_part_entry_of_plan(plan, part->record, 0);
    const char *name = bth_plan_record_name(plan, part->record);

    if (bth_zip_check_record_header(input, 0, &entry, error) < 0)
        return error->code;
    bth_file_part_compare_number(name, "the offset of its data", entry.data_offset,
                                 plan->records[part->record].layout.data_offset, error);
    return bth_file_part_compare_number(name, "its data's distance from the alignment",
                                        entry.data_offset % plan->alignment, 0, error);
}

int bth_file_part_read_and_compare(const berth_plan *plan, const bth_file_part *part,
                                   uint32_t crc32, const uint8_t *bytes, berth_error *error)
{
    bth_zip_part held = {bytes, part->range.offset, part->range.nbytes};
    const bth_zip_input input = bth_zip_input_over(&held);

    if (part->kind == BTH_PART_ENTRY)
        return file_part_read_entry(plan, part, crc32, bytes, error);
    if (part->kind == BTH_PART_HEADER)
        return file_part_read_header(plan, part, &input, error);
    bth_zip_entry entry = file_part_entry_of_plan(plan, part->record, crc32);
    return bth_zip_check_record_descriptor(&input, 0, &entry, error);
}
