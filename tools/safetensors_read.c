/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Safetensors to checkpoint. The header is checked before it is used: known dtypes, shapes that
 * agree with offsets, no gaps, no overlaps, no name twice.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/shared.h"

typedef struct safetensors_file {
    const char *path;
    int fd;
    void *map;
    const uint8_t *bytes;
    size_t nbytes;
    const uint8_t *data;
    size_t data_nbytes;
    json_t *header;
} safetensors_file;

/* One tensor's range, for the check of gaps. */
typedef struct range {
    uint64_t begin, end;
    const char *name;
} range;

static int safetensors_refuse(const safetensors_file *file, const char *name, const char *why)
{
    print_trouble("%s: %.200s%s%s%s", file->path, name, strlen(name) > 200 ? "..." : "",
                  name[0] ? ": " : "", why);
    return EXIT_NO;
}

static const char too_short[] = "too short for a safetensors file";

static int safetensors_map(safetensors_file *file)
{
    struct stat status;

    file->fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* do not wait for a pipe */
    if (file->fd < 0 && errno == EWOULDBLOCK && stat(file->path, &status) == 0 &&
        S_ISREG(status.st_mode)) /* X9: but wait for a lease */
        file->fd = open(file->path, O_RDONLY | O_CLOEXEC);
    if (file->fd < 0 || fstat(file->fd, &status) != 0)
        return print_trouble("%s: %s", file->path, strerror(errno));
    if (!S_ISREG(status.st_mode))
        return print_trouble("%s: not a regular file", file->path);
    if (status.st_size == 0)
        return safetensors_refuse(file, "", too_short);
    file->nbytes = (size_t)status.st_size;
    /* A private map: elements may be swapped in place. */
    bool swaps = __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__;
    file->map =
        mmap(NULL, file->nbytes, PROT_READ | (swaps ? PROT_WRITE : 0), MAP_PRIVATE, file->fd, 0);
    if (file->map == MAP_FAILED) {
        file->map = NULL;
        return print_trouble("%s: %s", file->path, strerror(errno));
    }
    file->bytes = file->map;
    return 0;
}

/*
 * P3: an object costs the JSON parser some 200 bytes, but `{}` has only 2. One that describes a
 * tensor has at least 49.
 */
static bool header_has_too_many_objects(const uint8_t *text, size_t nbytes)
{
    size_t n_objects = 0;
    bool in_string = false;

    for (size_t i = 0; i < nbytes; i++) {
        if (in_string && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            in_string = !in_string;
        else if (!in_string && text[i] == '{')
            n_objects++;
    }
    return n_objects > nbytes / 32 + 2;
}

static int safetensors_parse_header(safetensors_file *file)
{
    uint64_t n = 0;
    json_error_t error;
    char why[256];

    if (file->nbytes < 10)
        return safetensors_refuse(file, "", too_short);
    for (int i = 0; i < 8; i++)
        n |= (uint64_t)file->bytes[i] << (8 * i);
    if (n > file->nbytes - 8 || n > SAFETENSORS_MAX_HEADER_NBYTES)
        return safetensors_refuse(
            file, "", "not a safetensors file: its header is longer than the file, or than 100 MB");
    if (header_has_too_many_objects(file->bytes + 8, (size_t)n))
        return safetensors_refuse(file, "", "its header has too many objects for its length");
    file->header =
        json_loadb((const char *)file->bytes + 8, (size_t)n, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(file->header)) {
        snprintf(why, sizeof why, "header at byte %d: %s", error.position + 8, error.text);
        return safetensors_refuse(file, "", why);
    }
    file->data = file->bytes + 8 + n;
    file->data_nbytes = file->nbytes - 8 - (size_t)n;
    return 0;
}

/* Reads a shape into an array of BERTH_MAX_RANK; false: not a shape. */
static bool header_read_shape(const json_t *array, int64_t *shape, int32_t *rank)
{
    size_t n = json_array_size(array);

    if (!json_is_array(array) || n > BERTH_MAX_RANK)
        return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(array, i);
        if (!json_is_integer(item) || json_integer_value(item) < 0)
            return false;
        shape[i] = json_integer_value(item);
    }
    *rank = (int32_t)n;
    return true;
}

/* F4 shapes count elements, PyTorch's count bytes of two. False: PyTorch has no such tensor. */
static bool tensor_halve_f4(berth_tensor *tensor, int64_t *shape)
{
    if (tensor->dtype != BERTH_FLOAT4_E2M1FN_X2)
        return true;
    if (tensor->rank == 0 || shape[tensor->rank - 1] % 2 != 0)
        return false;
    shape[tensor->rank - 1] /= 2;
    return true;
}

static int safetensors_refuse_dtype(const safetensors_file *file, const char *name,
                                    const char *dtype_name)
{
    char why[80];

    snprintf(why, sizeof why, "PyTorch has no dtype for '%.32s'", dtype_name);
    return safetensors_refuse(file, name, dtype_name[0] ? why : "it has no dtype");
}

static bool shape_fits_nbytes(const int64_t *shape, int32_t rank, size_t item, uint64_t nbytes)
{
    uint64_t product = item;

    for (int32_t i = 0; i < rank; i++)
        if (__builtin_mul_overflow(product, (uint64_t)shape[i], &product))
            return false;
    return product == nbytes;
}

static int safetensors_add_tensor(const safetensors_file *file, const char *name,
                                  const json_t *entry, berth_tree *tree, berth_value *dict,
                                  range *where)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const char *dtype_name = json_string_value(json_object_get(entry, "dtype"));
    int64_t shape[BERTH_MAX_RANK];
    berth_tensor tensor = {.shape = shape};

    tensor.dtype = dtype_name ? dtype_from_safetensors_name(dtype_name) : BERTH_DTYPE_NONE;
    if (tensor.dtype == BERTH_DTYPE_NONE)
        return safetensors_refuse_dtype(file, name, dtype_name ? dtype_name : "");
    if (!header_read_shape(json_object_get(entry, "shape"), shape, &tensor.rank))
        return safetensors_refuse(file, name, "its shape is not a list of sizes");
    if (!tensor_halve_f4(&tensor, shape))
        return safetensors_refuse(file, name,
                                  "PyTorch has F4 in pairs only: its last dimension must be even");
    if (json_array_size(offsets) != 2 || !json_is_integer(json_array_get(offsets, 0)) ||
        !json_is_integer(json_array_get(offsets, 1)))
        return safetensors_refuse(file, name, "its data_offsets are not two integers");
    json_int_t begin = json_integer_value(json_array_get(offsets, 0));
    json_int_t end = json_integer_value(json_array_get(offsets, 1));
    if (begin < 0 || end < begin || (uint64_t)end > file->data_nbytes)
        return safetensors_refuse(file, name, "its data_offsets are outside the file");
    if (!shape_fits_nbytes(shape, tensor.rank, berth_dtype_nbytes(tensor.dtype),
                           (uint64_t)(end - begin)))
        return safetensors_refuse(file, name, "its shape and dtype do not fit its number of bytes");
    tensor.data = file->data + begin;
    to_or_from_little(tensor.dtype, (uint8_t *)(uintptr_t)tensor.data, (size_t)(end - begin));
    *where = (range){(uint64_t)begin, (uint64_t)end, name};
    berth_dict_set(dict, name, berth_make_tensor(tree, &tensor));
    return 0;
}

static int compare_ranges(const void *left, const void *right)
{
    const range *a = left, *b = right;

    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return a->end < b->end ? -1 : a->end > b->end;
}

/* One reading: every byte of the data belongs to exactly one tensor. */
static int safetensors_check_ranges(const safetensors_file *file, range *ranges, size_t n)
{
    uint64_t at = 0;

    qsort(ranges, n, sizeof *ranges, compare_ranges);
    for (size_t i = 0; i < n; i++) {
        if (ranges[i].begin != at)
            return safetensors_refuse(file, ranges[i].name,
                                      "it overlaps another tensor, or leaves a gap");
        at = ranges[i].end;
    }
    return at == file->data_nbytes ? 0
                                   : safetensors_refuse(file, "", "bytes after the last tensor");
}

/* __metadata__ must be a map of texts, as every reader of the format expects. */
static int safetensors_check_metadata(const safetensors_file *file, json_t *metadata)
{
    const char *name;
    json_t *text;

    if (!json_is_object(metadata))
        return safetensors_refuse(file, "__metadata__", "not a map of texts");
    json_object_foreach(metadata, name, text)
    {
        if (!json_is_string(text))
            return safetensors_refuse(file, "__metadata__", "not a map of texts");
    }
    return 0;
}

static int safetensors_add_tensors_to_dict(safetensors_file *file, berth_tree *tree,
                                           berth_value *dict)
{
    size_t n = 0, capacity = json_object_size(file->header);
    range *ranges = calloc(capacity + 1, sizeof *ranges);
    const char *name;
    json_t *entry;
    int code = 0;

    if (!ranges)
        return print_trouble("out of memory");
    json_object_foreach(file->header, name, entry)
    {
        if (code)
            break;
        if (strcmp(name, "__metadata__") == 0)
            code = safetensors_check_metadata(file, entry);
        else
            code = safetensors_add_tensor(file, name, entry, tree, dict, &ranges[n++]);
    }
    if (!code)
        code = safetensors_check_ranges(file, ranges, n);
    free(ranges);
    return code;
}

/* A checkpoint has no room for these texts, except for the usual "format". */
static size_t safetensors_count_lost_metadata(const safetensors_file *file)
{
    const json_t *metadata = json_object_get(file->header, "__metadata__");

    return json_object_size(metadata) - (json_object_get(metadata, "format") ? 1 : 0);
}

static int safetensors_parse_and_add_tensors(safetensors_file *file, berth_tree *tree,
                                             berth_value *dict)
{
    int code = safetensors_parse_header(file);

    return code ? code : safetensors_add_tensors_to_dict(file, tree, dict);
}

int safetensors_read_bytes_into_dict(const char *name, const void *bytes, size_t nbytes,
                                     berth_tree *tree, berth_value *dict)
{
    safetensors_file file = {.path = name, .fd = -1, .bytes = bytes, .nbytes = nbytes};
    int code = safetensors_parse_and_add_tensors(&file, tree, dict);

    json_decref(file.header);
    return code;
}

static int dict_save_as_checkpoint(const char *out, berth_value *dict, const common *options)
{
    berth_stats stats = {0};
    berth_error error;
    berth_params call;
    progress bar;

    register_remark_printer(options);
    progress_begin(&bar, "convert", options, &call, &stats);
    int code = berth_save(out, dict, &call, &error);
    progress_finish(&bar);
    return print_stats_if_requested(options, &stats, code < 0 ? fail(&error) : EXIT_YES);
}

int convert_from_safetensors(const char *in, const char *out, const common *options)
{
    safetensors_file file = {.path = in, .fd = -1};
    berth_error error;
    berth_tree *tree = berth_tree_new(&error);
    berth_value *dict = berth_make_dict(tree);
    int code = tree ? safetensors_map(&file) : fail(&error);

    if (!code)
        code = safetensors_parse_and_add_tensors(&file, tree, dict);
    if (!code)
        code = dict_save_as_checkpoint(out, dict, options);
    if (!code && safetensors_count_lost_metadata(&file) && !options->quiet)
        (void)print_trouble("%s: left out %zu entries of __metadata__", in,
                            safetensors_count_lost_metadata(&file));
    berth_tree_free(tree);
    json_decref(file.header);
    if (file.map)
        munmap(file.map, file.nbytes);
    if (file.fd >= 0)
        close(file.fd);
    return code;
}
