/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "format/zip/zip.h"
#include "save/run_state.h"

/* The headers of one record after the other: read back, and as rendered again. */
struct readback {
    bth_image *image;
    const bth_output *output;
    size_t record;
    uint8_t *bytes, *rendered, *scratch; /* each has room for the longest header and the end */
    bth_zip_part part;                   /* what of the file `bytes` holds */
};

/* Allocates and reads a range of what was written. NULL on failure. */
static uint8_t *readback_read(const bth_output *output, uint64_t offset, uint64_t nbytes,
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

/* Compares one number of the reader with the plan's. An error that is set already stays. */
static int readback_compare_number(const char *name, const char *what, uint64_t written,
                                   uint64_t planned, berth_error *error)
{
    if (written != planned)
        bth_fail(error, BERTH_E_OFFSETS, name, BERTH_NO_OFFSET,
                 "%s is %llu as read back, %llu as planned", what, (unsigned long long)written,
                 (unsigned long long)planned);
    return error->code;
}

/* Renders a range again and compares it with bytes that were read. The error names the first byte
 * that differs. */
static int readback_check_bytes(const struct readback *readback, const char *name,
                                const uint8_t *read, uint64_t offset, uint64_t nbytes,
                                berth_error *error)
{
    bth_tile tile = {.offset = offset,
                     .nbytes = (size_t)nbytes,
                     .bytes = readback->rendered,
                     .scratch = readback->scratch};
    size_t i = 0;

    if (bth_image_render(readback->image, &tile, error) < 0)
        return error->code;
    while (i < tile.nbytes && read[i] == tile.bytes[i])
        i++;
    if (i == tile.nbytes)
        return 0;
    return bth_fail(error, BERTH_E_OFFSETS, name, offset + i,
                    "0x%02x as read back, 0x%02x as rendered", read[i], tile.bytes[i]);
}

static int readback_check_end(const struct readback *readback, bth_zip_end *end, berth_error *error)
{
    const berth_plan *plan = readback->image->plan;
    uint64_t nbytes = plan->nbytes < BTH_ZIP_TAIL_NBYTES ? plan->nbytes : BTH_ZIP_TAIL_NBYTES;
    uint8_t *tail = readback_read(readback->output, plan->nbytes - nbytes, nbytes, error);

    if (tail && bth_zip_find_end(tail, (size_t)nbytes, plan->nbytes, end, error) == 0) {
        readback_compare_number(NULL, "the directory's offset", end->directory_offset,
                                plan->directory_offset, error);
        readback_compare_number(NULL, "the directory's size", end->directory_nbytes,
                                plan->directory_nbytes, error);
        if (readback_compare_number(NULL, "the number of entries", end->n_entries, plan->n_records,
                                    error) == 0)
            readback_check_bytes(readback, NULL, tail + (nbytes - BTH_ZIP_END_NBYTES),
                                 plan->nbytes - BTH_ZIP_END_NBYTES, BTH_ZIP_END_NBYTES, error);
    }
    bth_release(tail);
    return error->code;
}

static int readback_check_entry(const struct readback *readback, const bth_zip_entry *entry,
                                berth_error *error)
{
    const berth_plan *plan = readback->image->plan;
    size_t i = readback->record;
    const bth_layout_entry *layout = &plan->records[i].layout;
    const char *name = bth_plan_record_name(plan, i);

    if (strcmp(entry->name, bth_plan_record_full_name(plan, i)) != 0)
        return bth_fail(error, BERTH_E_OFFSETS, name, BERTH_NO_OFFSET,
                        "its entry is that of %s as read back", entry->name);
    readback_compare_number(name, "its header's offset", entry->header_offset,
                            layout->header_offset, error);
    readback_compare_number(name, "its size", entry->nbytes, layout->nbytes, error);
    return readback_compare_number(name, "its CRC", entry->crc32,
                                   bth_image_crc32(readback->image, i), error);
}

/* Reads the header or the descriptor that holds `offset` back, and compares it. */
static int readback_load_and_check_header_or_descriptor(struct readback *readback, uint64_t offset,
                                                        berth_error *error)
{
    const berth_plan *plan = readback->image->plan;
    size_t i = readback->record;
    bth_range range = bth_plan_header_range(plan, i);

    if (offset >= range.offset + range.nbytes)
        range = bth_plan_descriptor_range(plan, i);
    readback->part.nbytes = 0;
    if (readback->output->read(readback->output->context, readback->bytes, (size_t)range.nbytes,
                               range.offset, error) < 0)
        return error->code;
    readback->part = (bth_zip_part){readback->bytes, range.offset, range.nbytes};
    return readback_check_bytes(readback, bth_plan_record_name(plan, i), readback->bytes,
                                range.offset, range.nbytes, error);
}

static int readback_load_and_get_bytes(void *context, uint64_t offset, uint64_t nbytes,
                                       uint64_t ahead, const uint8_t **bytes, berth_error *error)
{
    struct readback *readback = context;
    bth_zip_part *part = &readback->part;
    bth_zip_input input = bth_zip_input_over(part);

    if ((offset < part->offset || offset - part->offset >= part->nbytes) &&
        readback_load_and_check_header_or_descriptor(readback, offset, error) < 0)
        return error->code;
    return input.get(part, offset, nbytes, ahead, bytes, error);
}

static int readback_check_records(struct readback *readback, const uint8_t *directory_bytes,
                                  const bth_zip_directory *directory, berth_error *error)
{
    const bth_zip_input input = {.get = readback_load_and_get_bytes, .context = readback};
    const berth_plan *plan = readback->image->plan;

    for (size_t i = 0; i < plan->n_records; i++) {
        uint64_t offset = plan->records[i].central_offset;
        readback->record = i;
        if (readback_check_entry(readback, &directory->entries[i], error) < 0 ||
            bth_zip_check_record(&input, 0, &directory->entries[i], error) < 0 ||
            readback_check_bytes(readback, bth_plan_record_name(plan, i),
                                 directory_bytes + (offset - plan->directory_offset), offset,
                                 bth_layout_central_entry_nbytes(&plan->records[i].layout),
                                 error) < 0)
            return error->code;
    }
    return 0;
}

static int readback_check_directory(struct readback *readback, const bth_zip_end *end,
                                    berth_error *error)
{
    bth_zip_directory directory = {0};
    uint8_t *bytes =
        readback_read(readback->output, end->directory_offset, end->directory_nbytes, error);

    if (bytes && bth_zip_read_directory(bytes, end, &directory, error) == 0 &&
        readback_compare_number(NULL, "the number of records", directory.n_entries,
                                readback->image->plan->n_records, error) == 0 &&
        readback_check_records(readback, bytes, &directory, error) == 0)
        (void)bth_zip_check_no_gaps(&directory, end, 0, 0, error);
    bth_zip_free_directory(&directory);
    bth_release(bytes);
    return error->code;
}

int bth_readback_check_headers_and_directory(bth_image *image, const bth_output *output,
                                             berth_error *error)
{
    struct readback readback = {.image = image, .output = output};
    size_t nbytes = image->plan->max_header_nbytes;
    bth_zip_end end = {0};

    if (!output->read)
        return 0;
    if (nbytes < BTH_ZIP_END_NBYTES)
        nbytes = BTH_ZIP_END_NBYTES;
    readback.bytes = bth_allocate(3 * nbytes);
    if (!readback.bytes)
        return bth_fail_memory(error, 3 * nbytes);
    readback.rendered = readback.bytes + nbytes;
    readback.scratch = readback.rendered + nbytes;
    if (readback_check_end(&readback, &end, error) == 0)
        readback_check_directory(&readback, &end, error);
    bth_release(readback.bytes);
    return error->code;
}
