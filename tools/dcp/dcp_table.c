/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The tensors that `.metadata` lists, and the places of their pieces. Nothing in it is believed
 * (D2, D3): boxes lie inside their tensors and fill them, each piece lies inside its file, and no
 * byte of a file belongs to two pieces.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/common/report.h"
#include "tools/dcp/dcp.h"

/* ---- tensors ---- */

/* The product of a shape times `unit`. False: above 2^63. */
static bool shape_multiply(const int64_t *shape, int32_t rank, uint64_t unit, uint64_t *product)
{
    bool fits = true;

    *product = unit;
    for (int32_t i = 0; i < rank; i++)
        if (shape[i] == 0)
            *product = 0;
    for (int32_t i = 0; i < rank && *product && fits; i++) {
        fits = shape[i] > 0 && *product <= (uint64_t)INT64_MAX / (uint64_t)shape[i];
        *product *= fits ? (uint64_t)shape[i] : 1;
    }
    return fits;
}

static int entry_read_chunk(const dcp *d, dcp_entry *entry, const berth_value *value)
{
    const berth_value *state = dcp_object(value, "ChunkStorageMetadata");
    int32_t n_starts = -1, n_lengths = -1;
    const int64_t *starts = berth_as_size(berth_dict_get(state, "offsets"), &n_starts);
    const int64_t *lengths = berth_as_size(berth_dict_get(state, "sizes"), &n_lengths);
    dcp_chunk chunk = {
        .piece = {.in = d}, .rank = entry->rank, .starts = starts, .lengths = lengths};

    if (n_starts != entry->rank || n_lengths != entry->rank)
        return dcp_refuse(d, "\"%.200s\": a chunk has not the rank of the tensor", entry->name);
    for (int32_t i = 0; i < entry->rank; i++)
        if (starts[i] < 0 || lengths[i] < 0 || starts[i] > entry->shape[i] ||
            lengths[i] > entry->shape[i] - starts[i])
            return dcp_refuse(d,
                              "\"%.200s\": a chunk of %" PRId64 " from %" PRId64 " on is outside "
                              "of dimension %d, which has %" PRId64,
                              entry->name, lengths[i], starts[i], (int)i, entry->shape[i]);
    (void)shape_multiply(lengths, entry->rank, 1, &chunk.numel); /* not above the tensor's */
    if (chunk.numel > 0)
        entry->chunks[entry->n_chunks++] = chunk;
    return 0;
}

static int entry_read_chunks(const dcp *d, dcp_entry *entry, const berth_value *chunks)
{
    enum { MAX_CHUNKS = 65536 };
    size_t n = berth_value_count(chunks);
    int code = 0;

    if (berth_value_kind(chunks) != BERTH_KIND_LIST || n > MAX_CHUNKS)
        return dcp_refuse(d, "\"%.200s\": its chunks are no list of at most %d", entry->name,
                          MAX_CHUNKS);
    entry->chunks = calloc(n + 1, sizeof *entry->chunks);
    if (!entry->chunks)
        return print_trouble("out of memory");
    for (size_t i = 0; i < n && !code; i++)
        code = entry_read_chunk(d, entry, berth_value_at(chunks, i));
    if (!code)
        code = dcp_check_chunks(d, entry); /* it sorts them */
    for (size_t i = 0; i < entry->n_chunks; i++)
        (void)pthread_mutex_init(&entry->chunks[i].lock, NULL);
    return code;
}

/* TensorProperties: (dtype, layout, requires_grad, memory format, pinned). */
static int entry_read_properties(const dcp *d, dcp_entry *entry, const berth_value *properties)
{
    const berth_value *state = dcp_object(properties, "TensorProperties");
    const berth_value *layout = berth_value_at(state, 1);
    int dtype, number;

    if (!berth_as_constant(berth_value_at(state, 0), BERTH_KIND_DTYPE, &dtype) ||
        !berth_as_constant(layout, BERTH_KIND_LAYOUT, &number))
        return dcp_refuse(d, "\"%.200s\": its properties have no dtype and layout", entry->name);
    entry->dtype = (berth_dtype)dtype;
    if (number != BERTH_STRIDED)
        return dcp_refuse(d, "\"%.200s\": its layout %d is not strided", entry->name, number);
    const char *name = berth_dtype_name(entry->dtype);
    if (name[0] == 'q')
        return dcp_refuse(d, "\"%.200s\": elements of %s are quantized, which DCP does not save",
                          entry->name, name);
    return 0;
}

static int entry_read_tensor(const dcp *d, dcp_entry *entry, const berth_value *state)
{
    int code = entry_read_properties(d, entry, berth_dict_get(state, "properties"));

    if (code)
        return code;
    entry->shape = berth_as_size(berth_dict_get(state, "size"), &entry->rank);
    if (berth_value_kind(berth_dict_get(state, "size")) != BERTH_KIND_SIZE ||
        (!entry->shape && entry->rank))
        return dcp_refuse(d, "\"%.200s\": it has no size", entry->name);
    if (entry->rank > BERTH_MAX_RANK - 1 ||
        !shape_multiply(entry->shape, entry->rank, berth_dtype_nbytes(entry->dtype),
                        &entry->nbytes))
        return dcp_refuse(d, "\"%.200s\": its size is above 2^63 bytes or %d dimensions",
                          entry->name, BERTH_MAX_RANK - 1);
    return entry_read_chunks(d, entry, berth_dict_get(state, "chunks"));
}

/* A text without NUL, or NULL. */
static const char *value_plain_text(const berth_value *value)
{
    size_t nbytes = 0;
    const char *text =
        berth_value_kind(value) == BERTH_KIND_STR ? berth_as_text(value, &nbytes) : NULL;

    return text && strlen(text) == nbytes ? text : NULL;
}

static int dcp_read_entry(dcp *d, const berth_value *key, const berth_value *value)
{
    dcp_entry *entry = &d->entries[d->n_entries++];
    const berth_value *tensor = dcp_object(value, "TensorStorageMetadata");

    entry->name = value_plain_text(key);
    entry->piece.in = d;
    if (!entry->name)
        return dcp_refuse(d, "name %zu is no text, or has a NUL", d->n_entries);
    if (json_object_set_new_nocheck(d->names, entry->name,
                                    json_integer((json_int_t)d->n_entries - 1)) < 0)
        return print_trouble("out of memory");
    entry->is_bytes = !tensor;
    if (tensor)
        return entry_read_tensor(d, entry, tensor);
    const berth_value *class = berth_value_part(value, BERTH_PART_INNER);
    const char *name =
        berth_value_kind(value) == BERTH_KIND_CALL ? berth_as_text(class, NULL) : NULL;
    if (name && !strncmp(name, "torch.distributed.", 18) && strstr(name, " BytesStorageMetadata"))
        return 0;
    return dcp_refuse(d, "\"%.200s\" is neither a tensor nor bytes", entry->name);
}

int dcp_read_tensors(dcp *d, const berth_value *tensors)
{
    size_t n = berth_value_count(tensors);
    berth_value *key, *value;
    int code = 0;

    if (berth_value_kind(tensors) != BERTH_KIND_DICT)
        return dcp_refuse(d, "has no state_dict_metadata");
    d->entries = calloc(n + 1, sizeof *d->entries);
    if (!d->entries)
        return print_trouble("out of memory");
    for (size_t i = 0; i < n && !code && berth_dict_at(tensors, i, &key, &value); i++)
        code = dcp_read_entry(d, key, value);
    return code;
}

/* ---- places ---- */

/* Why the bytes of a piece are not there: noted, or printed. Returns 0 or the code. */
static int dcp_break_piece(const dcp *d, const char *name, dcp_piece *piece, int code,
                           const char *format, ...) __attribute__((format(printf, 5, 6)));

static int dcp_break_piece(const dcp *d, const char *name, dcp_piece *piece, int code,
                           const char *format, ...)
{
    va_list arguments;
    char text[600];

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (code == EXIT_TROUBLE && !d->notes)
        return print_trouble("%s/%s", d->path, text);
    if (!d->notes)
        return dcp_refuse(d, "\"%.200s\": %s", name, text);
    free(piece->broken);
    piece->broken = strdup(text);
    return piece->broken ? 0 : print_trouble("out of memory");
}

/* The size of the file of a piece, which is looked up once. */
static int dcp_find_file(dcp *d, const char *name, dcp_piece *piece, uint64_t *nbytes)
{
    const char *file = piece->file;
    json_t *known = json_object_get(d->files, file);
    struct stat status;

    *nbytes = known ? (uint64_t)json_integer_value(known) : 0;
    if (known)
        return 0;
    if (!*file || strchr(file, '/') || !strcmp(file, ".") || !strcmp(file, ".."))
        return dcp_refuse(d, "\"%.200s\" is no name of a file of the directory", file);
    if (fstatat(d->folder, file, &status, 0) < 0)
        return dcp_break_piece(d, name, piece, errno == ENOENT ? EXIT_NO : EXIT_TROUBLE,
                               "%.200s: %s", file, strerror(errno));
    if (!S_ISREG(status.st_mode))
        return dcp_break_piece(d, name, piece, EXIT_NO, "\"%.200s\" is no file", file);
    *nbytes = (uint64_t)status.st_size;
    return json_object_set_new_nocheck(d->files, file, json_integer((json_int_t)status.st_size)) < 0
               ? print_trouble("out of memory")
               : 0;
}

/* Fills a piece from a _StorageInfo. */
static int dcp_read_piece(dcp *d, const char *name, const berth_value *value, dcp_piece *piece)
{
    const berth_value *state = dcp_object(value, "_StorageInfo");
    const berth_value *transforms = berth_dict_get(state, "transform_descriptors");
    const char *file = value_plain_text(berth_dict_get(state, "relative_path"));
    int64_t offset, length;
    uint64_t file_nbytes;

    if (!file || !berth_as_int(berth_dict_get(state, "offset"), &offset) ||
        !berth_as_int(berth_dict_get(state, "length"), &length))
        return dcp_refuse(d, "\"%.200s\": a place has no file, offset and length", name);
    if (berth_value_count(transforms))
        return dcp_refuse(d,
                          "\"%.200s\": its pieces are transformed (compressed or encrypted), "
                          "which Berth does not read",
                          name);
    if (piece->file)
        return dcp_refuse(d, "\"%.200s\" has two places for one piece", name);
    if (offset < 0 || length <= 0)
        return dcp_refuse(d, "\"%.200s\": no piece has %" PRId64 " bytes from byte %" PRId64 " on",
                          name, length, offset);
    *piece =
        (dcp_piece){.in = d, .file = file, .offset = (uint64_t)offset, .nbytes = (uint64_t)length};
    int code = dcp_find_file(d, name, piece, &file_nbytes);
    if (code || piece->broken ||
        ((uint64_t)offset <= file_nbytes && (uint64_t)length <= file_nbytes - (uint64_t)offset))
        return code;
    return dcp_break_piece(d, name, piece, EXIT_NO,
                           "%" PRId64 " bytes from byte %" PRId64
                           " on are not in %.200s, which has %" PRIu64
                           ": a download or a save in place that did not end?",
                           length, offset, file, file_nbytes);
}

static int compare_starts(const int64_t *a, const int64_t *b, int32_t rank)
{
    int order = 0;

    for (int32_t i = 0; i < rank && !order; i++)
        order = (a[i] > b[i]) - (a[i] < b[i]);
    return order;
}

static int compare_chunks(const void *left, const void *right)
{
    const dcp_chunk *a = left, *b = right;

    return compare_starts(a->starts, b->starts, a->rank);
}

/* The piece that a MetadataIndex names. NULL: an empty chunk, or none that is known. */
static dcp_piece *dcp_find_piece(const dcp *d, const berth_value *index, const char **name)
{
    const json_t *number;
    dcp_chunk key = {0};

    *name = value_plain_text(berth_dict_get(index, "fqn"));
    number = *name ? json_object_get(d->names, *name) : NULL;
    dcp_entry *entry = number ? &d->entries[json_integer_value(number)] : NULL;
    if (!entry || entry->is_bytes)
        return entry ? &entry->piece : NULL;
    key.starts = berth_as_size(berth_dict_get(index, "offset"), &key.rank);
    if (key.rank != entry->rank || entry->n_chunks == 0)
        return NULL;
    dcp_chunk *chunk = bsearch(&key, entry->chunks, entry->n_chunks, sizeof key, compare_chunks);
    return chunk ? &chunk->piece : NULL;
}

/* ---- all pieces ---- */

static int compare_pieces(const void *left, const void *right)
{
    const dcp_piece *a = *(const dcp_piece *const *)left, *b = *(const dcp_piece *const *)right;
    int order = strcmp(a->file, b->file);

    return order ? order : (a->offset > b->offset) - (a->offset < b->offset);
}

/* No byte of a file belongs to two pieces: a small directory cannot stand for a large checkpoint.
 */
static int dcp_check_pieces(const dcp *d, const dcp_piece **pieces, size_t n)
{
    qsort(pieces, n, sizeof *pieces, compare_pieces);
    for (size_t i = 1; i < n; i++)
        if (!pieces[i]->broken && !pieces[i - 1]->broken &&
            !strcmp(pieces[i]->file, pieces[i - 1]->file) &&
            pieces[i]->offset < pieces[i - 1]->offset + pieces[i - 1]->nbytes)
            return dcp_refuse(d,
                              "the pieces at bytes %" PRIu64 " and %" PRIu64 " of %.200s overlap",
                              pieces[i - 1]->offset, pieces[i]->offset, pieces[i]->file);
    return 0;
}

/* A chunk is not larger than its piece. */
static int entry_list_pieces(const dcp *d, const dcp_entry *entry, const dcp_piece **pieces,
                             size_t *n)
{
    if (entry->is_bytes && !entry->piece.file)
        return dcp_refuse(d, "does not say where \"%.200s\" is", entry->name);
    if (entry->is_bytes)
        pieces[(*n)++] = &entry->piece;
    for (size_t i = 0; i < entry->n_chunks; i++) {
        const dcp_chunk *chunk = &entry->chunks[i];
        if (!chunk->piece.file)
            return dcp_refuse(d, "does not say where chunk %zu of \"%.200s\" is", i, entry->name);
        if (chunk->numel * berth_dtype_nbytes(entry->dtype) > chunk->piece.nbytes)
            return dcp_refuse(
                d, "chunk %zu of \"%.200s\" is larger than its piece of %" PRIu64 " bytes", i,
                entry->name, chunk->piece.nbytes);
        pieces[(*n)++] = &chunk->piece;
    }
    return 0;
}

static int dcp_check_all_pieces(const dcp *d)
{
    size_t n = 0, n_found = 0;
    int code = 0;

    for (size_t i = 0; i < d->n_entries; i++)
        n += d->entries[i].is_bytes + d->entries[i].n_chunks;
    const dcp_piece **pieces = calloc(n + 1, sizeof *pieces);
    if (!pieces)
        return print_trouble("out of memory");
    for (size_t i = 0; i < d->n_entries && !code; i++)
        code = entry_list_pieces(d, &d->entries[i], pieces, &n_found);
    if (!code)
        code = dcp_check_pieces(d, pieces, n_found);
    free(pieces);
    return code;
}

int dcp_read_places(dcp *d, const berth_value *places)
{
    berth_value *key, *value;
    const char *name;
    int code = 0;

    if (berth_value_kind(places) != BERTH_KIND_DICT)
        return dcp_refuse(d, "has no storage_data");
    for (size_t i = 0; !code && berth_dict_at(places, i, &key, &value); i++) {
        const berth_value *index = dcp_object(key, "MetadataIndex");
        if (!index)
            return dcp_refuse(d, "place %zu is not named by a MetadataIndex", i);
        dcp_piece *piece = dcp_find_piece(d, index, &name);
        if (piece)
            code = dcp_read_piece(d, name, value, piece);
    }
    return code ? code : dcp_check_all_pieces(d);
}

/* ---- chunks fill their tensor ---- */

static bool chunks_overlap(const dcp_chunk *a, const dcp_chunk *b)
{
    for (int32_t i = 0; i < a->rank; i++)
        if (a->starts[i] >= b->starts[i] + b->lengths[i] ||
            b->starts[i] >= a->starts[i] + a->lengths[i])
            return false;
    return true;
}

typedef struct sweep_item {
    int64_t start;
    const dcp_chunk *chunk;
} sweep_item;

static int compare_sweep_items(const void *left, const void *right)
{
    const sweep_item *a = left, *b = right;

    return (a->start > b->start) - (a->start < b->start);
}

/* Sorts the chunks by their starts in a dimension. Returns how many different ones there are. */
static size_t sweep_sort(sweep_item *items, const dcp_entry *entry, int32_t dimension)
{
    size_t n_distinct = 1;

    for (size_t i = 0; i < entry->n_chunks; i++)
        items[i] = (sweep_item){entry->chunks[i].starts[dimension], &entry->chunks[i]};
    qsort(items, entry->n_chunks, sizeof *items, compare_sweep_items);
    for (size_t i = 1; i < entry->n_chunks; i++)
        n_distinct += items[i].start != items[i - 1].start;
    return n_distinct;
}

/* Sweeps along the dimension that is cut most often: few chunks are there at one time. */
static bool sweep_finds_overlap(sweep_item *items, const dcp_entry *entry)
{
    size_t most = 0, n = entry->n_chunks;
    int32_t best = 0;

    for (int32_t i = 0; i < entry->rank; i++) {
        size_t n_distinct = sweep_sort(items, entry, i);
        best = n_distinct > most ? i : best;
        most = n_distinct > most ? n_distinct : most;
    }
    (void)sweep_sort(items, entry, best);
    for (size_t i = 0; i < n; i++) {
        int64_t end = items[i].start + items[i].chunk->lengths[best];
        for (size_t k = i + 1; k < n && items[k].start < end; k++)
            if (chunks_overlap(items[i].chunk, items[k].chunk))
                return true;
    }
    return false;
}

/* A tensor without dimensions has one element: two chunks are one too many. */
static int entry_find_overlap(const dcp_entry *entry, bool *overlaps)
{
    sweep_item *items = calloc(entry->n_chunks, sizeof *items);

    *overlaps = true;
    if (!items)
        return print_trouble("out of memory");
    if (entry->rank > 0)
        *overlaps = sweep_finds_overlap(items, entry);
    free(items);
    return 0;
}

int dcp_check_chunks(const dcp *d, dcp_entry *entry)
{
    uint64_t numel = 0, whole = entry->nbytes / berth_dtype_nbytes(entry->dtype);
    bool overlaps = false;
    int code = 0;

    for (size_t i = 0; i < entry->n_chunks && numel <= whole; i++)
        numel += entry->chunks[i].numel;
    qsort(entry->chunks, entry->n_chunks, sizeof *entry->chunks, compare_chunks);
    if (numel < whole)
        return dcp_refuse(d, "\"%.200s\": %" PRIu64 " of %" PRIu64 " elements are in no chunk",
                          entry->name, whole - numel, whole);
    if (numel == whole && entry->n_chunks > 1)
        code = entry_find_overlap(entry, &overlaps);
    if (code)
        return code;
    return overlaps || numel > whole ? dcp_refuse(d, "\"%.200s\": its chunks overlap", entry->name)
                                     : 0;
}
