/* SPDX-License-Identifier: BSD-3-Clause */
#include "format/zip/zip.h"

#include <inttypes.h>
#include <stdio.h>
#include <zlib.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/checksum.h"

/* Input that is fetched at a time. */
#define INPUT_NBYTES (UINT64_C(64) << 10)
/* Output that is summed while it is in the processor's cache. */
#define PIECE_NBYTES ((size_t)256 << 10)

/* Z9: a few bytes must not cause a large allocation; the sizes are only claims of the file. */
int bth_inflate_check_limits(const bth_zip_entry *entry, berth_error *error)
{
    char limit[40];
    if (entry->nbytes > BTH_INFLATE_MAX_NBYTES || entry->compressed_nbytes > BTH_INFLATE_MAX_NBYTES)
        (void)snprintf(limit, sizeof limit, "; at most %u are inflated", BTH_INFLATE_MAX_NBYTES);
    else if (entry->nbytes > BTH_INFLATE_FREE_NBYTES &&
             entry->nbytes / BTH_INFLATE_MAX_RATIO >= entry->compressed_nbytes)
        (void)snprintf(limit, sizeof limit, ", more than %d to 1", BTH_INFLATE_MAX_RATIO);
    else
        return BERTH_OK;
    return bth_fail(
        error, BERTH_E_UNSUPPORTED, entry->record, entry->data_offset,
        "deflated from %" PRIu64 " bytes to %" PRIu64
        "%s: unpack the archive and zip it again with `zip -0 -r`, which compresses nothing",
        entry->nbytes, entry->compressed_nbytes, limit);
}

static void *zlib_allocate(void *context, uInt n_items, uInt item_nbytes)
{
    (void)context;
    return bth_allocate(bth_array_nbytes(n_items, item_nbytes));
}

static void zlib_release(void *context, void *pointer)
{
    (void)context;
    bth_release(pointer);
}

int bth_inflate_in_pieces(const bth_zip_entry *entry, const bth_zip_input *input,
                          bth_inflate_output *output, berth_error *error)
{
    z_stream stream = {.zalloc = zlib_allocate, .zfree = zlib_release};
    /* Given to zlib, and inflated: its own counters have 32 bits on some systems. */
    uint64_t in_nbytes = 0, out_nbytes = 0;
    output->crc32 = 0;
    if (entry->compressed_nbytes == 0 && entry->nbytes == 0) /* as other readers have it */
        return 0;
    if (inflateInit2(&stream, -MAX_WBITS) != Z_OK)
        return bth_fail_memory(error, 0);
    for (int result = Z_OK; result != Z_STREAM_END && error->code == BERTH_OK;) {
        uint64_t left = bth_min(entry->compressed_nbytes - in_nbytes, INPUT_NBYTES);
        if (stream.avail_in == 0 && left > 0) {
            const uint8_t *bytes;
            if (input->get(input->context, entry->data_offset + in_nbytes, left, left, &bytes,
                           error) < 0)
                break;
            stream.next_in = (Bytef *)(uintptr_t)bytes; /* zlib does not write to it */
            stream.avail_in = (uInt)left;
            in_nbytes += left;
        }
        /* The room for the next piece. After the record's last byte there is room for one more. */
        uint64_t room = output->scratch_nbytes;
        uint8_t *out = output->scratch;
        if (out_nbytes >= output->from && out_nbytes - output->from < output->nbytes) {
            out = output->memory + (out_nbytes - output->from);
            room = output->nbytes - (out_nbytes - output->from);
        }
        if (out_nbytes < output->from)
            room = bth_min(room, output->from - out_nbytes);
        room = bth_min(room, bth_min(entry->nbytes - out_nbytes + 1, PIECE_NBYTES));
        stream.next_out = out;
        stream.avail_out = (uInt)room;
        result = inflate(&stream, Z_NO_FLUSH);
        size_t nbytes = (size_t)room - stream.avail_out;
        output->crc32 = bth_crc32(output->crc32, out, nbytes);
        out_nbytes += nbytes;
        if (output->advance && output->advance(output->context, nbytes, error) < 0)
            break;
        uint64_t consumed = in_nbytes - stream.avail_in;
        const char *why = NULL; /* the sizes are wrong */
        if (out_nbytes > entry->nbytes)
            why = "; more follows";
        else if (result == Z_BUF_ERROR) /* there was room, so there is no more input */
            why = "; the deflated data do not end there";
        else if (result == Z_STREAM_END &&
                 (consumed != entry->compressed_nbytes || out_nbytes != entry->nbytes))
            why = "";
        if (result == Z_MEM_ERROR)
            (void)bth_fail_memory(error, 0);
        else if (result < 0 && result != Z_BUF_ERROR)
            (void)bth_fail(error, BERTH_E_ARCHIVE, entry->record, entry->data_offset + consumed,
                           "cannot be inflated: %s", stream.msg ? stream.msg : "bad data");
        else if (why)
            (void)bth_fail(error, BERTH_E_ARCHIVE, entry->record, entry->data_offset,
                           "%" PRIu64 " bytes inflate to %" PRIu64 ", the directory has %" PRIu64
                           " and %" PRIu64 "%s",
                           consumed, out_nbytes, entry->compressed_nbytes, entry->nbytes, why);
    }
    inflateEnd(&stream);
    return error->code;
}

int bth_inflate(const bth_zip_entry *entry, const uint8_t *in, uint8_t *out, berth_error *error)
{
    uint8_t scratch[BTH_INFLATE_MIN_SCRATCH_NBYTES];
    bth_zip_part part = {
        .bytes = in, .offset = entry->data_offset, .nbytes = entry->compressed_nbytes};
    bth_zip_input input = bth_zip_input_over(&part);
    bth_inflate_output output = {.memory = out,
                                 .nbytes = entry->nbytes,
                                 .scratch = scratch,
                                 .scratch_nbytes = sizeof scratch};
    if (bth_inflate_check_limits(entry, error) < 0)
        return error->code;
    return bth_inflate_in_pieces(entry, &input, &output, error);
}
