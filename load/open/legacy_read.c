/* SPDX-License-Identifier: BSD-3-Clause */
/* Drives the reader of streams from before PyTorch 1.6: brings it as many bytes as it needs. */
#include "format/pickle/stream_read.h"

#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "load/checkpoint.h"

/* Counts of small storages that follow each other come with one read. */
#define AHEAD_NBYTES 4096
#define COUNT_NBYTES 8

typedef unsigned long long ull;

/* The five pickles, with as much of the head as they take. */
static int read_head(berth_checkpoint *checkpoint, bth_window *window, bth_stream *stream,
                     berth_error *error)
{
    bool inert = checkpoint->config.load_unknown_globals == BTH_UNKNOWN_INERT;
    uint64_t file_nbytes = window->reader->nbytes;

    for (;;) {
        int result = bth_stream_read(window->head, window->head_nbytes, inert,
                                     checkpoint->contents.tree, stream, error);
        if (result != BERTH_E_TRUNCATED || window->head_nbytes == file_nbytes)
            return result;
        bth_error_clear(error);
        if (bth_window_grow_head(window, 4 * window->head_nbytes, error) < 0)
            return error->code;
    }
}

static int place_storages(berth_checkpoint *checkpoint, bth_window *window,
                          const bth_stream *stream, berth_error *error)
{
    uint64_t at = stream->payload_offset;
    const uint8_t *count;

    for (size_t i = 0; i < stream->n_keys; i++) {
        if (bth_window_get(window, at, COUNT_NBYTES, AHEAD_NBYTES, &count, error) < 0 ||
            bth_stream_place(stream, checkpoint->contents.tree, i, count, at,
                             window->reader->nbytes, &at, error) < 0)
            return error->code;
    }
    /* One reading: a second object behind the first would be read by some and not by others. */
    if (at != window->reader->nbytes)
        return bth_fail(error, BERTH_E_ARCHIVE, NULL, at,
                        "%llu bytes follow the last storage of the stream",
                        (ull)(window->reader->nbytes - at));
    return 0;
}

int bth_checkpoint_read_stream(berth_checkpoint *checkpoint, bth_window *window, berth_error *error)
{
    bth_stream stream;

    memset(&stream, 0, sizeof stream);
    checkpoint->contents.is_stream = true;
    checkpoint->contents.archive = bth_duplicate("", 0);
    if (!checkpoint->contents.archive)
        return bth_fail_memory(error, 1);
    if (read_head(checkpoint, window, &stream, error) < 0)
        return error->code;
    checkpoint->contents.root = stream.root;
    checkpoint->storages.n = bth_tree_n_storages(checkpoint->contents.tree);
    /* PyTorch wrote a stream's elements little-endian on every machine, and reads them so, whatever
       little_endian in its head says of the machine (FORMAT.md 7). */
    checkpoint->contents.is_big = false;
    checkpoint->contents.byteorder_recorded = true;
    return place_storages(checkpoint, window, &stream, error);
}
