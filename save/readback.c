/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/readback.h"

#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/zip/zip_read.h"
#include "format/zip/zip_write.h"

/* Allocates and reads a range of what was written. NULL on failure. */
static uint8_t *read_range(const bth_output *output, uint64_t offset, uint64_t nbytes,
                           berth_error *error)
{
    uint8_t *bytes = nbytes <= SIZE_MAX ? bth_allocate((size_t)nbytes) : NULL;

    if (!bytes) {
        bth_fail_memory(error, nbytes);
        return NULL;
    }
    if (output->read(output->context, bytes, (size_t)nbytes, offset, error) == 0)
        return bytes;
    bth_release(bytes);
    return NULL;
}

static int fail_different(const char *name, const char *what, uint64_t written, uint64_t planned,
                          berth_error *error)
{
    return bth_fail(error, BERTH_E_OFFSETS, name, BERTH_NO_OFFSET,
                    "%s is %llu as read back, %llu as planned", what, (unsigned long long)written,
                    (unsigned long long)planned);
}

/* A rendered piece and what is there; the first byte that differs is told. */
static int check_bytes(const char *name, uint64_t offset, const uint8_t *read,
                       const uint8_t *rendered, size_t nbytes, berth_error *error)
{
    size_t i = 0;

    while (i < nbytes && read[i] == rendered[i])
        i++;
    if (i == nbytes)
        return 0;
    return bth_fail(error, BERTH_E_OFFSETS, name, offset + i,
                    "0x%02x as read back, 0x%02x as rendered", read[i], rendered[i]);
}

static int check_end(const berth_plan *plan, const bth_output *output, bth_zip_end *end,
                     berth_error *error)
{
    uint64_t nbytes = plan->nbytes < BTH_ZIP_TAIL_NBYTES ? plan->nbytes : BTH_ZIP_TAIL_NBYTES;
    uint8_t *tail = read_range(output, plan->nbytes - nbytes, nbytes, error);

    if (!tail)
        return error->code;
    if (bth_zip_find_end(tail, (size_t)nbytes, plan->nbytes, end, error) < 0)
        ;
    else if (end->directory_offset != plan->directory_offset)
        fail_different(NULL, "the directory's offset", end->directory_offset,
                       plan->directory_offset, error);
    else if (end->directory_nbytes != plan->directory_nbytes)
        fail_different(NULL, "the directory's size", end->directory_nbytes, plan->directory_nbytes,
                       error);
    else if (end->n_entries != plan->n_records)
        fail_different(NULL, "the number of entries", end->n_entries, plan->n_records, error);
    else {
        uint8_t rendered[BTH_ZIP_END_NBYTES];
        bth_zip_write_end(plan->n_records, plan->directory_offset, plan->directory_nbytes,
                          rendered);
        check_bytes(NULL, plan->nbytes - sizeof rendered, tail + nbytes - sizeof rendered, rendered,
                    sizeof rendered, error);
    }
    bth_release(tail);
    return error->code;
}

static int check_entry(const bth_image *image, size_t i, const bth_zip_entry *entry,
                       berth_error *error)
{
    const berth_plan *plan = image->plan;
    const bth_place *place = &plan->records[i].place;
    const char *name = bth_plan_name(plan, i);
    uint32_t crc32 = bth_image_crc32(image, i);

    if (strcmp(entry->name, bth_plan_full_name(plan, i)) != 0)
        return bth_fail(error, BERTH_E_OFFSETS, name, BERTH_NO_OFFSET,
                        "its entry is that of %s as read back", entry->name);
    if (entry->header_offset != place->header_offset)
        return fail_different(name, "its header's offset", entry->header_offset,
                              place->header_offset, error);
    if (entry->nbytes != place->nbytes)
        return fail_different(name, "its size", entry->nbytes, place->nbytes, error);
    if (entry->crc32 != crc32)
        return fail_different(name, "its CRC", entry->crc32, crc32, error);
    return 0;
}

static int check_header(const berth_plan *plan, size_t i, bth_zip_entry *entry,
                        const uint8_t *header, uint8_t *scratch, berth_error *error)
{
    const bth_place *place = &plan->records[i].place;
    size_t nbytes = (size_t)(place->data_offset - place->header_offset);
    bth_zip_local local;

    if (bth_zip_read_local(header, nbytes, place->header_offset, &local, error) < 0 ||
        bth_zip_check_local(&local, entry, error) < 0)
        return error->code;
    if (entry->data_offset != place->data_offset)
        return fail_different(bth_plan_name(plan, i), "its data's offset", entry->data_offset,
                              place->data_offset, error);
    bth_zip_write_local(place, bth_plan_full_name(plan, i), scratch);
    return check_bytes(bth_plan_name(plan, i), place->header_offset, header, scratch, nbytes,
                       error);
}

static int check_descriptor(const bth_image *image, size_t i, bth_zip_entry *entry,
                            const bth_output *output, berth_error *error)
{
    const bth_place *place = &image->plan->records[i].place;
    uint8_t read[BTH_MAX_DESCRIPTOR_NBYTES], rendered[BTH_MAX_DESCRIPTOR_NBYTES];
    uint64_t offset = place->data_offset + place->nbytes;
    size_t nbytes = place->descriptor_nbytes;

    if (nbytes > 0 && output->read(output->context, read, nbytes, offset, error) < 0)
        return error->code;
    if (bth_zip_check_descriptor(read, nbytes, place->next_offset, entry, error) < 0)
        return error->code;
    bth_zip_write_descriptor(place, bth_image_crc32(image, i), rendered);
    return check_bytes(bth_plan_name(image->plan, i), offset, read, rendered, nbytes, error);
}

/* The local header and the descriptor of an entry, in the file. */
static int check_record(const bth_image *image, size_t i, bth_zip_entry *entry,
                        const bth_output *output, uint8_t *scratch, berth_error *error)
{
    const bth_place *place = &image->plan->records[i].place;
    uint8_t *header =
        read_range(output, place->header_offset, place->data_offset - place->header_offset, error);

    if (!header)
        return error->code;
    if (check_header(image->plan, i, entry, header, scratch, error) == 0)
        check_descriptor(image, i, entry, output, error);
    bth_release(header);
    return error->code;
}

static int check_records(const bth_image *image, const bth_output *output, const bth_zip_end *end,
                         const uint8_t *directory_bytes, bth_zip_directory *directory,
                         uint8_t *scratch, berth_error *error)
{
    const berth_plan *plan = image->plan;

    for (size_t i = 0; i < plan->n_records; i++) {
        const bth_plan_record *record = &plan->records[i];
        const char *name = bth_plan_name(plan, i);
        if (check_entry(image, i, &directory->entries[i], error) < 0 ||
            check_record(image, i, &directory->entries[i], output, scratch, error) < 0)
            return error->code;
        bth_zip_write_central(&record->place, bth_plan_full_name(plan, i),
                              bth_image_crc32(image, i), scratch);
        if (check_bytes(name, record->central_offset,
                        directory_bytes + (record->central_offset - plan->directory_offset),
                        scratch, (size_t)bth_layout_central_nbytes(&record->place), error) < 0)
            return error->code;
    }
    return bth_zip_check_ranges(directory, end, 0, 0, error);
}

static int check_directory(const bth_image *image, const bth_output *output, const bth_zip_end *end,
                           const uint8_t *bytes, berth_error *error)
{
    const berth_plan *plan = image->plan;
    bth_zip_directory directory = {0};
    uint8_t *scratch;

    if (bth_zip_read_directory(bytes, end, &directory, error) < 0)
        return error->code;
    scratch = bth_allocate(plan->max_header_nbytes);
    if (!scratch)
        bth_fail_memory(error, plan->max_header_nbytes);
    else if (directory.n_entries != plan->n_records)
        fail_different(NULL, "the number of records", directory.n_entries, plan->n_records, error);
    else
        check_records(image, output, end, bytes, &directory, scratch, error);
    bth_release(scratch);
    bth_zip_free_directory(&directory);
    return error->code;
}

int bth_readback(const bth_image *image, const bth_output *output, berth_error *error)
{
    bth_zip_end end = {0};
    uint8_t *bytes;

    if (!output->read)
        return 0;
    if (check_end(image->plan, output, &end, error) < 0)
        return error->code;
    bytes = read_range(output, end.directory_offset, end.directory_nbytes, error);
    if (!bytes)
        return error->code;
    check_directory(image, output, &end, bytes, error);
    bth_release(bytes);
    return error->code;
}
