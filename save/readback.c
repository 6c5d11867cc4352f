/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/readback.h"

#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/zip/zip.h"

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

/* Compares bytes with rendered ones. The error names the first byte that differs. */
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
    const bth_layout_entry *place = &plan->records[i].layout;
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

/* The headers of one record after the other: read back, and as rendered. */
struct readback {
    const bth_image *image;
    const bth_output *output;
    size_t record;
    uint8_t *bytes, *rendered; /* each has room for the plan's longest header */
    bth_zip_part part;         /* what of the file `bytes` holds */
};

/* The header or the descriptor that holds `offset`, read back and compared with what is rendered.
 */
static int readback_load(struct readback *readback, uint64_t offset, berth_error *error)
{
    const berth_plan *plan = readback->image->plan;
    size_t i = readback->record;
    const bth_layout_entry *place = &plan->records[i].layout;
    bth_zip_part part = {readback->bytes, place->data_offset + place->nbytes,
                         place->descriptor_nbytes};

    if (offset < place->data_offset) {
        part.offset = place->header_offset;
        part.nbytes = place->data_offset - place->header_offset;
        bth_zip_write_local(place, bth_plan_full_name(plan, i), readback->rendered);
    } else
        bth_zip_write_descriptor(place, bth_image_crc32(readback->image, i), readback->rendered);
    readback->part.nbytes = 0;
    if (readback->output->read(readback->output->context, readback->bytes, (size_t)part.nbytes,
                               part.offset, error) < 0)
        return error->code;
    readback->part = part;
    return check_bytes(bth_plan_name(plan, i), part.offset, part.bytes, readback->rendered,
                       (size_t)part.nbytes, error);
}

static int readback_get(void *context, uint64_t offset, uint64_t nbytes, uint64_t ahead,
                        const uint8_t **bytes, berth_error *error)
{
    struct readback *readback = context;
    bth_zip_part *part = &readback->part;
    bth_zip_input input = bth_zip_input_over(part);

    if ((offset < part->offset || offset - part->offset >= part->nbytes) &&
        readback_load(readback, offset, error) < 0)
        return error->code;
    return input.get(part, offset, nbytes, ahead, bytes, error);
}

static int check_central(const struct readback *readback, const uint8_t *directory,
                         berth_error *error)
{
    const berth_plan *plan = readback->image->plan;
    size_t i = readback->record;
    const bth_plan_record *record = &plan->records[i];

    bth_zip_write_central(&record->layout, bth_plan_full_name(plan, i),
                          bth_image_crc32(readback->image, i), readback->rendered);
    return check_bytes(bth_plan_name(plan, i), record->central_offset,
                       directory + (record->central_offset - plan->directory_offset),
                       readback->rendered, (size_t)bth_layout_central_nbytes(&record->layout),
                       error);
}

static int check_records(struct readback *readback, const uint8_t *directory_bytes,
                         const bth_zip_directory *directory, berth_error *error)
{
    const bth_zip_input input = {.get = readback_get, .context = readback};
    const berth_plan *plan = readback->image->plan;

    readback->rendered = readback->bytes + plan->max_header_nbytes;
    for (size_t i = 0; i < plan->n_records; i++) {
        readback->record = i;
        if (check_entry(readback->image, i, &directory->entries[i], error) < 0 ||
            bth_zip_check_record(&input, 0, &directory->entries[i], error) < 0 ||
            check_central(readback, directory_bytes, error) < 0)
            return error->code;
    }
    return 0;
}

static int check_directory(const bth_image *image, const bth_output *output, const bth_zip_end *end,
                           const uint8_t *bytes, berth_error *error)
{
    const berth_plan *plan = image->plan;
    size_t nbytes = plan->max_header_nbytes;
    struct readback readback = {.image = image, .output = output};
    bth_zip_directory directory = {0};

    if (bth_zip_read_directory(bytes, end, &directory, error) < 0)
        return error->code;
    readback.bytes = bth_allocate(2 * nbytes);
    if (!readback.bytes)
        bth_fail_memory(error, 2 * nbytes);
    else if (directory.n_entries != plan->n_records)
        fail_different(NULL, "the number of records", directory.n_entries, plan->n_records, error);
    else if (check_records(&readback, bytes, &directory, error) == 0)
        (void)bth_zip_check_ranges(&directory, end, 0, 0, error);
    bth_release(readback.bytes);
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
