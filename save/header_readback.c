/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/error.h"
#include "base/memory.h"
#include "format/json/safetensors.h"
#include "format/values/value.h"
#include "save/file_part.h"
#include "save/run_state.h"

/* The headers of one record after the other: read back, and as rendered again. */
struct readback {
    bth_image *image;
    const bth_output *output;
    size_t record;
    uint8_t *bytes, *scratch; /* each has room for the longest header and the end */
    bth_zip_part part;        /* what of the file `bytes` holds */
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

static int readback_check_end(const struct readback *readback, bth_zip_end *end, berth_error *error)
{
    const berth_plan *plan = readback->image->plan;
    const bth_file_part part = bth_file_part_of_end(plan);
    uint64_t nbytes = bth_min(plan->nbytes, BTH_ZIP_TAIL_NBYTES);
    uint8_t *tail = readback_read(readback->output, plan->nbytes - nbytes, nbytes, error);

    if (tail && bth_zip_find_end(tail, (size_t)nbytes, plan->nbytes, end, error) == 0) {
        bth_file_part_compare_number(NULL, "the directory's offset", end->directory_offset,
                                     plan->directory_offset, error);
        bth_file_part_compare_number(NULL, "the directory's size", end->directory_nbytes,
                                     plan->directory_nbytes, error);
        if (bth_file_part_compare_number(NULL, "the number of entries", end->n_entries,
                                         plan->n_records, error) == 0)
            bth_file_part_compare_bytes(plan, &part, 0, tail + (nbytes - part.range.nbytes),
                                        readback->scratch, error);
    }
    bth_release(tail);
    return error->code;
}

/* Reads the header or the descriptor that holds `offset` back, and compares it. */
static int readback_load_and_check_header_or_descriptor(struct readback *readback, uint64_t offset,
                                                        berth_error *error)
{
    const berth_plan *plan = readback->image->plan;
    size_t i = readback->record;
    bth_file_part part = bth_file_part_of_header(plan, i);

    if (offset >= part.range.offset + part.range.nbytes)
        part = bth_file_part_of_descriptor(plan, i);
    readback->part.nbytes = 0;
    if (readback->output->read(readback->output->context, readback->bytes,
                               (size_t)part.range.nbytes, part.range.offset, error) < 0)
        return error->code;
    readback->part = (bth_zip_part){readback->bytes, part.range.offset, part.range.nbytes};
    return bth_file_part_compare_bytes(plan, &part, bth_image_crc32(readback->image, i),
                                       readback->bytes, readback->scratch, error);
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
        const bth_file_part part = bth_file_part_of_entry(plan, i);
        uint32_t crc32 = bth_image_crc32(readback->image, i);
        readback->record = i;
        if (bth_file_part_compare_entry(plan, i, crc32, &directory->entries[i], error) < 0 ||
            bth_zip_check_record(&input, 0, &directory->entries[i], error) < 0 ||
            bth_file_part_compare_bytes(
                plan, &part, crc32, directory_bytes + (part.range.offset - plan->directory_offset),
                readback->scratch, error) < 0)
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
        bth_file_part_compare_number(NULL, "the number of records", directory.n_entries,
                                     readback->image->plan->n_records, error) == 0 &&
        readback_check_records(readback, bytes, &directory, error) == 0)
        (void)bth_zip_check_no_gaps(&directory, end, 0, 0, error);
    bth_zip_free_directory(&directory);
    bth_release(bytes);
    return error->code;
}

/* ---- safetensors ---- */

/* Compares the offsets that a reader finds with the plan's. Both are in the file's order. */
static int readback_compare_tensors(const berth_plan *plan, const berth_tree *tree,
                                    berth_error *error)
{
    bth_file_part_compare_number(NULL, "the number of tensors", bth_tree_n_storages(tree),
                                 plan->n_records - 1, error);
    for (size_t i = 1; i < plan->n_records && error->code == 0; i++) {
        const berth_storage *storage = bth_tree_storage(tree, i - 1);
        const char *name = bth_plan_record_name(plan, i);
        bth_file_part_compare_number(name, "its offset", storage->offset,
                                     plan->records[i].layout.data_offset, error);
        bth_file_part_compare_number(name, "its size", storage->nbytes,
                                     plan->records[i].layout.nbytes, error);
    }
    return error->code;
}

static int readback_compare_safetensors_header(const berth_plan *plan, const uint8_t *bytes,
                                               uint64_t nbytes, berth_error *error)
{
    for (uint64_t i = 0; i < nbytes; i++)
        if (bytes[i] != plan->header[i])
            return bth_fail(error, BERTH_E_OFFSETS, "header", i,
                            "0x%02x was written, 0x%02x is planned", bytes[i], plan->header[i]);
    return 0;
}

/* Reads the header back, and parses it as that of any other file. */
static int readback_check_safetensors(const berth_plan *plan, const bth_output *output,
                                      berth_error *error)
{
    bth_range header = bth_plan_data_range(plan, 0);
    uint8_t *bytes = readback_read(output, header.offset, header.nbytes, error);
    berth_tree *tree = bytes ? berth_tree_new(error) : NULL;
    bth_safetensors contents;

    if (tree && readback_compare_safetensors_header(plan, bytes, header.nbytes, error) == 0 &&
        bth_safetensors_read(bytes, header.nbytes - BTH_SAFETENSORS_LENGTH_NBYTES, plan->nbytes,
                             tree, &contents, error) == 0)
        (void)readback_compare_tensors(plan, tree, error);
    berth_tree_free(tree);
    bth_release(bytes);
    return error->code;
}

int bth_readback_check_headers_and_directory(bth_image *image, const bth_output *output,
                                             berth_error *error)
{
    struct readback readback = {.image = image, .output = output};
    size_t nbytes = bth_file_part_scratch_nbytes(image->plan);
    bth_zip_end end = {0};

    if (!output->read || (image->plan->is_plain && !image->plan->header))
        return 0;
    if (image->plan->is_plain)
        return readback_check_safetensors(image->plan, output, error);
    readback.bytes = bth_allocate(2 * nbytes);
    if (!readback.bytes)
        return bth_fail_memory(error, 2 * nbytes);
    readback.scratch = readback.bytes + nbytes;
    if (readback_check_end(&readback, &end, error) == 0)
        readback_check_directory(&readback, &end, error);
    bth_release(readback.bytes);
    return error->code;
}
