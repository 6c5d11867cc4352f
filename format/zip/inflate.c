/* SPDX-License-Identifier: BSD-3-Clause */
#include "format/zip/zip.h"

#include <inttypes.h>
#include <stdio.h>
#include <zlib.h>

#include "config/error.h"
#include "config/memory.h"

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
    return bth_fail(error, BERTH_E_UNSUPPORTED, entry->record, entry->data_offset,
                    "deflated from %" PRIu64 " bytes to %" PRIu64
                    "%s: unpack the archive and zip it again with `zip -0 -r`",
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

static int inflate_fail(const bth_zip_entry *entry, const z_stream *stream, int result,
                        berth_error *error)
{
    if (result == Z_MEM_ERROR)
        return bth_fail_memory(error, 0);
    if (result == Z_STREAM_END || result == Z_BUF_ERROR) /* Z_FINISH never gives Z_OK */
        return bth_fail(error, BERTH_E_ARCHIVE, entry->record, entry->data_offset,
                        "%lu bytes inflate to %lu, the directory has %" PRIu64 " and %" PRIu64 "%s",
                        stream->total_in, stream->total_out, entry->compressed_nbytes,
                        entry->nbytes,
                        result == Z_STREAM_END ? "" : "; the deflated data do not end there");
    return bth_fail(error, BERTH_E_ARCHIVE, entry->record, entry->data_offset + stream->total_in,
                    "cannot be inflated: %s", stream->msg ? stream->msg : "bad data");
}

int bth_inflate(const bth_zip_entry *entry, const uint8_t *in, uint8_t *out, berth_error *error)
{
    uint8_t nowhere = 0; /* zlib wants a pointer even for no bytes */
    z_stream stream = {.zalloc = zlib_allocate, .zfree = zlib_release};

    if (bth_inflate_check_limits(entry, error) < 0)
        return error->code;
    int result = inflateInit2(&stream, -MAX_WBITS);
    if (result == Z_OK) {
        /* The caps keep both below 2^32. zlib does not write to its input. */
        stream.next_in = (Bytef *)(uintptr_t)in;
        stream.avail_in = (uInt)entry->compressed_nbytes;
        stream.next_out = entry->nbytes > 0 ? out : &nowhere;
        stream.avail_out = (uInt)entry->nbytes;
        result = inflate(&stream, Z_FINISH);
        inflateEnd(&stream);
    }
    if (result != Z_STREAM_END || stream.avail_in > 0 || stream.avail_out > 0)
        return inflate_fail(entry, &stream, result, error);
    return BERTH_OK;
}
