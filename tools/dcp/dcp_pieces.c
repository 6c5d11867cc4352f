/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Pieces of tensors, read where they lie. A tensor of a set is contiguous; a chunk is a box of it,
 * and its elements are contiguous in their file. Both are in row-major order, so any range of the
 * tensor needs one range of each chunk.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/common/options.h"
#include "tools/dcp/dcp.h"

int error_set(berth_error *error, berth_status code, const char *format, ...)
{
    va_list arguments;

    *error = (berth_error){.code = code, .offset = BERTH_NO_OFFSET};
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    return code;
}

/* ---- files ---- */

/* Returns 0 or an errno value. A directory can have more files than a process may have open. */
static int piece_read_file(const dcp_piece *piece, void *buffer, size_t nbytes, uint64_t offset)
{
    int fd = openat(piece->in->folder, piece->file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    uint8_t *out = buffer;
    int failure = fd < 0 ? errno : 0;

    while (nbytes > 0 && !failure) {
        ssize_t n = pread(fd, out, nbytes, (off_t)offset);
        if (n < 0 && errno != EINTR)
            failure = errno;
        if (n == 0)
            failure = EIO; /* it was cut since its size was looked up */
        out += n > 0 ? n : 0;
        offset += n > 0 ? (uint64_t)n : 0;
        nbytes -= n > 0 ? (size_t)n : 0;
    }
    if (fd >= 0)
        (void)close(fd);
    return failure;
}

static int piece_read(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    const dcp_piece *piece = context;

    return piece_read_file(piece, buffer, nbytes, piece->offset + offset);
}

berth_source dcp_piece_source(dcp_piece *piece)
{
    if (!piece->name && asprintf(&piece->name, "%s/%s at byte %llu", piece->in->path, piece->file,
                                 (unsigned long long)piece->offset) < 0)
        piece->name = NULL;
    berth_source source = berth_from_function(piece_read, piece, piece->nbytes, piece->name);
    source.path = piece->in->path;
    return source;
}

int dcp_piece_open(dcp_piece *piece, berth_checkpoint **checkpoint, berth_error *error)
{
    const berth_source source = dcp_piece_source(piece);

    return berth_open_source(&source, NULL, checkpoint, error);
}

/* ---- opening a chunk ---- */

static const berth_tensor *checkpoint_only_tensor(const berth_checkpoint *checkpoint)
{
    const berth_value *root = berth_root(checkpoint);

    while (berth_value_kind(root) == BERTH_KIND_PARAMETER ||
           berth_value_kind(root) == BERTH_KIND_SUBCLASS)
        root = berth_value_part(root, BERTH_PART_INNER);
    return berth_as_tensor(root);
}

static bool tensor_is_of_chunk(const berth_tensor *tensor, const dcp_entry *entry,
                               const dcp_chunk *chunk)
{
    bool is = tensor && !(tensor->flags & BERTH_META) && tensor->dtype == entry->dtype &&
              tensor->rank == entry->rank;

    for (int32_t i = 0; is && i < entry->rank; i++)
        is = tensor->shape[i] == chunk->lengths[i];
    return is;
}

/* Whether the bytes in the file are the elements in row-major order: *at. */
static bool tensor_is_plain(berth_checkpoint *checkpoint, const berth_tensor *tensor, uint64_t *at)
{
    berth_named_tensor named;
    berth_info info;
    const char *native = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? "big" : "little";

    if (!berth_tensor_is_contiguous(tensor) || tensor->flags & (BERTH_CONJ | BERTH_NEG) ||
        berth_get_info(checkpoint, &info, NULL) < 0 || strcmp(info.byteorder, native) != 0 ||
        berth_tensor_at(checkpoint, 0, &named, NULL) < 0 || named.tensor != tensor ||
        named.offset == BERTH_NO_OFFSET)
        return false;
    *at = named.offset;
    return true;
}

/* The library calls memory by this word. */
static void error_name_memory(berth_error *error, const char *name)
{
    static const char word[] = "memory: ";
    size_t n = sizeof word - 1;
    char rest[sizeof error->message];

    if (!name || strncmp(error->message, word, n) != 0)
        return;
    memcpy(rest, error->message + n, sizeof rest - n); /* with its NUL */
    if (snprintf(error->message, sizeof error->message, "%.200s: %s", name, rest) < 0)
        error->message[0] = '\0';
}

/* A small piece is checked in memory: the buffers of a reader cost more than its bytes. */
int dcp_piece_verify(dcp_piece *piece, const berth_params *params, berth_verdict *verdict,
                     berth_error *error)
{
    enum { SMALL_NBYTES = 1 << 20 };
    berth_source source = dcp_piece_source(piece);
    void *bytes = piece->nbytes <= SMALL_NBYTES ? malloc((size_t)piece->nbytes) : NULL;

    if (bytes && piece_read(piece, bytes, (size_t)piece->nbytes, 0) == 0)
        source = berth_from_memory(bytes, (size_t)piece->nbytes);
    source.path = piece->in->path;
    int status = berth_verify(&source, params, NULL, NULL, verdict, error);
    if (status < 0)
        error_name_memory(error, piece->name);
    free(bytes);
    return status;
}

/* D4, with load.check=data: no byte is used before the checksums of its piece were compared. */
static int piece_check_data(dcp_piece *piece, berth_error *error)
{
    if (!option_is("load.check", "data"))
        return 0;
    return dcp_piece_verify(piece, NULL, NULL, error);
}

static int chunk_open_locked(const dcp_entry *entry, dcp_chunk *chunk, berth_error *error)
{
    berth_checkpoint *checkpoint;
    uint64_t at;

    if (piece_check_data(&chunk->piece, error) < 0 ||
        dcp_piece_open(&chunk->piece, &checkpoint, error) < 0)
        return error->code;
    const berth_tensor *tensor = checkpoint_only_tensor(checkpoint);
    if (!tensor_is_of_chunk(tensor, entry, chunk)) {
        berth_close(checkpoint);
        return error_set(error, BERTH_E_TENSOR,
                         "%s: is not the piece of \"%.200s\" that .metadata says",
                         chunk->piece.name, entry->name);
    }
    if (tensor_is_plain(checkpoint, tensor, &at)) {
        chunk->at = chunk->piece.offset + at;
        berth_close(checkpoint);
    } else {
        chunk->checkpoint = checkpoint;
        chunk->tensor = tensor;
    }
    chunk->is_open = true;
    return 0;
}

int dcp_chunk_open(const dcp_entry *entry, dcp_chunk *chunk, berth_error *error)
{
    (void)pthread_mutex_lock(&chunk->lock);
    int code = chunk->is_open ? 0 : chunk_open_locked(entry, chunk, error);
    (void)pthread_mutex_unlock(&chunk->lock);
    return code;
}

void dcp_piece_free(dcp_piece *piece)
{
    free(piece->name);
    free(piece->broken);
}

void dcp_chunk_close(dcp_chunk *chunk)
{
    berth_close(chunk->checkpoint);
    dcp_piece_free(&chunk->piece);
    (void)pthread_mutex_destroy(&chunk->lock);
}

/* ---- ranges of a chunk ---- */

/* Elements that lie otherwise than they are read, such as those of a transposed tensor. */
static int chunk_read_elements(const dcp_chunk *chunk, void *buffer, size_t nbytes, uint64_t first,
                               berth_error *error)
{
    size_t item = berth_dtype_nbytes(chunk->tensor->dtype);
    uint64_t begin = first / item, n = (first + nbytes + item - 1) / item - begin;
    uint8_t *elements = malloc((size_t)n * item);

    if (!elements)
        return error_set(error, BERTH_E_MEMORY, "out of memory");
    int code = berth_tensor_read(chunk->checkpoint, chunk->tensor, (int64_t)begin, (int64_t)n,
                                 elements, error);
    if (code == 0)
        memcpy(buffer, elements + (first - begin * item), nbytes);
    free(elements);
    return code;
}

/* Bytes [first, first + nbytes) of the chunk's elements. */
static int chunk_read(const dcp_chunk *chunk, void *buffer, size_t nbytes, uint64_t first,
                      berth_error *error)
{
    if (chunk->checkpoint)
        return chunk_read_elements(chunk, buffer, nbytes, first, error);
    int failure = piece_read_file(&chunk->piece, buffer, nbytes, chunk->at + first);
    if (!failure)
        return 0;
    (void)error_set(error, BERTH_E_SYSTEM, "%s: %s", chunk->piece.name, strerror(failure));
    error->system_errno = failure;
    return error->code;
}

/* ---- a box of a tensor, in bytes ---- */

/* The last dimension is one of bytes. */
typedef struct box {
    int32_t rank;
    uint64_t shape[BERTH_MAX_RANK];   /* of the tensor */
    uint64_t starts[BERTH_MAX_RANK];  /* of the box */
    uint64_t lengths[BERTH_MAX_RANK]; /* of the box */
    uint64_t run;                     /* bytes of the box that lie together in the tensor */
} box;

static box box_of_chunk(const dcp_entry *entry, const dcp_chunk *chunk)
{
    uint64_t item = berth_dtype_nbytes(entry->dtype);
    box b = {.rank = entry->rank + 1, .run = 1};

    for (int32_t i = 0; i < entry->rank; i++) {
        b.shape[i] = (uint64_t)entry->shape[i];
        b.starts[i] = (uint64_t)chunk->starts[i];
        b.lengths[i] = (uint64_t)chunk->lengths[i];
    }
    b.shape[entry->rank] = b.lengths[entry->rank] = item;
    bool is_whole = true; /* the dimensions behind this one */
    for (int32_t i = b.rank; i-- > 0 && is_whole;) {
        b.run *= b.lengths[i];
        is_whole = b.lengths[i] == b.shape[i];
    }
    return b;
}

static uint64_t box_nbytes(const box *b)
{
    uint64_t nbytes = 1;

    for (int32_t i = 0; i < b->rank; i++)
        nbytes *= b->lengths[i];
    return nbytes;
}

/* How many bytes of the box lie before byte `position` of the tensor. */
static uint64_t box_count_before(const box *b, uint64_t position)
{
    uint64_t count = 0, inner = box_nbytes(b), stride = 1;

    for (int32_t i = 0; i < b->rank; i++)
        stride *= b->shape[i];
    for (int32_t i = 0; i < b->rank; i++) {
        inner /= b->lengths[i];
        stride /= b->shape[i];
        uint64_t at = position / stride;
        position %= stride;
        if (at < b->starts[i])
            return count;
        if (at >= b->starts[i] + b->lengths[i])
            return count + b->lengths[i] * inner;
        count += (at - b->starts[i]) * inner;
    }
    return count;
}

/* Where byte `nth` of the box lies in the tensor. */
static uint64_t box_position(const box *b, uint64_t nth)
{
    uint64_t position = 0, stride = 1;

    for (int32_t i = b->rank; i-- > 0;) {
        position += (b->starts[i] + nth % b->lengths[i]) * stride;
        nth /= b->lengths[i];
        stride *= b->shape[i];
    }
    return position;
}

/* Reads bytes [first, end) of the box, and puts their runs to their places in `out`, which begins
 * at byte `offset` of the tensor. */
static int box_read_runs(const box *b, const dcp_chunk *chunk, uint8_t *out, uint64_t offset,
                         uint64_t first, uint64_t end, berth_error *error)
{
    enum { BUFFER_NBYTES = 1 << 20 };
    size_t room = end - first < BUFFER_NBYTES ? (size_t)(end - first) : BUFFER_NBYTES;
    uint8_t *buffer = malloc(room);
    int code = 0;

    if (!buffer)
        return error_set(error, BERTH_E_MEMORY, "out of memory");
    while (first < end && code == 0) {
        size_t n = end - first < room ? (size_t)(end - first) : room;
        code = chunk_read(chunk, buffer, n, first, error);
        for (size_t done = 0; done < n && code == 0;) {
            uint64_t left = b->run - (first + done) % b->run;
            size_t run = left < n - done ? (size_t)left : n - done;
            memcpy(out + (box_position(b, first + done) - offset), buffer + done, run);
            done += run;
        }
        first += n;
    }
    free(buffer);
    return code;
}

static int box_read(const box *b, const dcp_chunk *chunk, uint8_t *out, uint64_t offset,
                    uint64_t first, uint64_t end, berth_error *error)
{
    if (first / b->run != (end - 1) / b->run)
        return box_read_runs(b, chunk, out, offset, first, end, error);
    return chunk_read(chunk, out + (box_position(b, first) - offset), (size_t)(end - first), first,
                      error);
}

static int entry_read_from_chunk(const dcp_entry *entry, dcp_chunk *chunk, uint8_t *out,
                                 size_t nbytes, uint64_t offset, berth_error *error)
{
    const box b = box_of_chunk(entry, chunk);
    uint64_t first = box_count_before(&b, offset);
    uint64_t end = box_count_before(&b, offset + nbytes);

    if (first == end)
        return 0;
    int code = dcp_chunk_open(entry, chunk, error);
    return code ? code : box_read(&b, chunk, out, offset, first, end, error);
}

/* Of thousands of chunks few have a row of the range; they are sorted by their first rows. */
int dcp_entry_read(void *context, void *buffer, size_t nbytes, uint64_t offset, berth_error *error)
{
    const dcp_entry *entry = context;
    uint64_t n_rows = entry->rank ? (uint64_t)entry->shape[0] : 1;
    uint64_t row_nbytes = entry->nbytes / n_rows;
    int64_t first = (int64_t)(offset / row_nbytes);
    int64_t last = (int64_t)((offset + nbytes - 1) / row_nbytes);
    int code = 0;

    for (size_t i = 0; i < entry->n_chunks && code == 0; i++) {
        dcp_chunk *chunk = &entry->chunks[i];
        if (entry->rank && chunk->starts[0] > last)
            break;
        if (!entry->rank || chunk->starts[0] + chunk->lengths[0] > first)
            code = entry_read_from_chunk(entry, chunk, buffer, nbytes, offset, error);
    }
    return code;
}
