/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Checkpoint to safetensors: 8 bytes of header length, a JSON header padded with spaces to 8, the
 * tensors one after the other (https://huggingface.co/docs/safetensors, "Format").
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/shared.h"

static const struct {
    berth_dtype dtype;
    const char *name;
} dtypes[] = {
    {BERTH_FLOAT64, "F64"},
    {BERTH_FLOAT32, "F32"},
    {BERTH_FLOAT16, "F16"},
    {BERTH_BFLOAT16, "BF16"},
    {BERTH_INT64, "I64"},
    {BERTH_INT32, "I32"},
    {BERTH_INT16, "I16"},
    {BERTH_INT8, "I8"},
    {BERTH_UINT8, "U8"},
    {BERTH_BOOL, "BOOL"},
    {BERTH_UINT64, "U64"},
    {BERTH_UINT32, "U32"},
    {BERTH_UINT16, "U16"},
    {BERTH_COMPLEX64, "C64"},
    {BERTH_FLOAT8_E4M3FN, "F8_E4M3"},
    {BERTH_FLOAT8_E4M3FNUZ, "F8_E4M3FNUZ"},
    {BERTH_FLOAT8_E5M2, "F8_E5M2"},
    {BERTH_FLOAT8_E5M2FNUZ, "F8_E5M2FNUZ"},
    {BERTH_FLOAT8_E8M0FNU, "F8_E8M0"},
    {BERTH_FLOAT4_E2M1FN_X2, "F4"}, /* whose shape counts elements, two a byte, PyTorch's bytes */
};

const char *safetensors_dtype_name(berth_dtype dtype)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (dtypes[i].dtype == dtype)
            return dtypes[i].name;
    return NULL;
}

berth_dtype dtype_from_safetensors_name(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (!strcmp(dtypes[i].name, name))
            return dtypes[i].dtype;
    return BERTH_DTYPE_NONE;
}

/* One tensor to be written. */
typedef struct entry {
    char *name;
    const berth_tensor *tensor;
    uint64_t begin;
} entry;

typedef struct conversion {
    berth_checkpoint *checkpoint;
    const char *in;
    bool tensors_only;
    entry *entries;
    size_t n_entries;
    size_t n_left_out;
    uint64_t nbytes; /* of all tensors */
} conversion;

/* Refuses what safetensors cannot express, or leaves it out. */
static int conversion_refuse_or_leave_out(conversion *c, const char *name, const char *why)
{
    c->n_left_out++;
    if (c->tensors_only)
        return 0;
    return print_trouble("%s: %.200s%s: %s; --tensors-only leaves it out", c->in, name,
                         strlen(name) > 200 ? "..." : "", why);
}

/* Containers are not written, whether they are empty or not. */
static int conversion_refuse_or_leave_out_leaf(void *context, const char *path,
                                               const berth_value *value)
{
    char why[160];
    berth_kind kind = berth_value_kind(value);

    if (kind >= BERTH_KIND_LIST && kind <= BERTH_KIND_SET)
        return 0;
    char *text = leaf_text(value);

    snprintf(why, sizeof why, "safetensors cannot hold %s (%s)",
             berth_kind_name(berth_value_kind(value)), text ? text : "");
    free(text);
    return conversion_refuse_or_leave_out(context, path[0] ? path : "the root", why);
}

/* NULL: no problem. F4 doubles the last dimension, which must exist and must not overflow. */
static const char *tensor_why_no_f4(const berth_tensor *tensor)
{
    if (tensor->dtype != BERTH_FLOAT4_E2M1FN_X2)
        return NULL;
    if (tensor->rank == 0)
        return "safetensors holds float4_e2m1fn_x2 with at least one dimension";
    if (tensor->shape[tensor->rank - 1] > INT64_MAX / 2)
        return "its last dimension is too large for safetensors";
    return NULL;
}

static int conversion_add_tensor(conversion *c, const berth_named_tensor *named)
{
    const berth_tensor *tensor = named->tensor;

    if (tensor->qscheme != BERTH_NOT_QUANTIZED)
        return conversion_refuse_or_leave_out(c, named->name,
                                              "safetensors cannot hold quantized tensors");
    if (tensor->flags & BERTH_META)
        return conversion_refuse_or_leave_out(c, named->name,
                                              "a tensor on the meta device has no elements");
    if (!safetensors_dtype_name(tensor->dtype)) {
        char why[96];
        snprintf(why, sizeof why, "safetensors has no dtype for %s",
                 berth_dtype_name(tensor->dtype));
        return conversion_refuse_or_leave_out(c, named->name, why);
    }
    if (tensor_why_no_f4(tensor))
        return conversion_refuse_or_leave_out(c, named->name, tensor_why_no_f4(tensor));
    if (!strcmp(named->name, "__metadata__"))
        return conversion_refuse_or_leave_out(c, named->name,
                                              "the name is reserved in safetensors");
    entry *e = &c->entries[c->n_entries];
    e->name = strdup(named->name);
    e->tensor = tensor;
    if (!e->name)
        return print_trouble("out of memory");
    c->n_entries++;
    return 0;
}

/*
 * Whether it is a part of a sparse, nested or per-channel quantized tensor, which is refused
 * itself. The path of a part ends in a word, "['a'].indices"; the path of a whole tensor ends in
 * "]".
 */
static bool tensor_is_part_of_tensor(const berth_named_tensor *named)
{
    size_t n = strlen(named->path);

    return n > 0 && named->path[n - 1] != ']';
}

/* Largest items first, then by name: the order of the format's own writer. */
static int compare_entries(const void *left, const void *right)
{
    const entry *a = left, *b = right;
    size_t a_item = berth_dtype_nbytes(a->tensor->dtype);
    size_t b_item = berth_dtype_nbytes(b->tensor->dtype);

    if (a_item != b_item)
        return a_item < b_item ? 1 : -1;
    return strcmp(a->name, b->name);
}

/* An expanded tensor can be larger than any disk; the sum of several can overflow (T1). */
static int conversion_set_offsets(conversion *c)
{
    for (size_t i = 0; i < c->n_entries; i++) {
        uint64_t nbytes = berth_tensor_nbytes(c->entries[i].tensor);
        if (nbytes > INT64_MAX - c->nbytes)
            return print_trouble(
                "%s: its tensors, views written out in full, are too large for a file", c->in);
        c->entries[i].begin = c->nbytes;
        c->nbytes += nbytes;
    }
    return 0;
}

static int conversion_collect_tensors(conversion *c)
{
    size_t n = berth_tensor_count(c->checkpoint), long_nbytes = 0;
    berth_named_tensor named;
    berth_error error;
    int code = walk_leaves(berth_root(c->checkpoint), conversion_refuse_or_leave_out_leaf, c);

    if (code)
        return code;
    c->entries = calloc(n + 1, sizeof *c->entries);
    if (!c->entries)
        return print_trouble("out of memory");
    for (size_t i = 0; i < n && !code; i++) {
        if (berth_tensor_at(c->checkpoint, i, &named, &error) < 0)
            return fail(&error);
        if (tensor_is_part_of_tensor(&named))
            continue;
        code = check_total_of_long_names(&long_nbytes, strlen(named.path));
        if (!code)
            code = conversion_add_tensor(c, &named);
    }
    if (code)
        return code;
    qsort(c->entries, c->n_entries, sizeof *c->entries, compare_entries);
    return conversion_set_offsets(c);
}

static json_t *entry_json(const entry *e)
{
    json_t *shape = json_array();
    uint64_t end = e->begin + berth_tensor_nbytes(e->tensor);

    for (int32_t i = 0; i < e->tensor->rank; i++) {
        bool doubles = e->tensor->dtype == BERTH_FLOAT4_E2M1FN_X2 && i == e->tensor->rank - 1;
        json_array_append_new(shape, json_integer(e->tensor->shape[i] * (doubles ? 2 : 1)));
    }
    return json_pack("{s:s,s:o,s:[I,I]}", "dtype", safetensors_dtype_name(e->tensor->dtype),
                     "shape", shape, "data_offsets", (json_int_t)e->begin, (json_int_t)end);
}

/* The header's text, padded with spaces to a multiple of 8; allocated. */
static char *conversion_header(const conversion *c, size_t *nbytes)
{
    json_t *header = json_object();
    int failed = json_object_set_new(header, "__metadata__", json_pack("{s:s}", "format", "pt"));

    for (size_t i = 0; i < c->n_entries && !failed; i++)
        failed = json_object_set_new(header, c->entries[i].name, entry_json(&c->entries[i]));
    char *text = failed ? NULL : json_dumps(header, JSON_COMPACT);
    json_decref(header);
    if (!text)
        return NULL;
    size_t n = strlen(text), padded = (n + 7) / 8 * 8;
    char *grown = realloc(text, padded + 1);
    if (!grown) {
        free(text);
        return NULL;
    }
    memset(grown + n, ' ', padded - n);
    *nbytes = padded;
    return grown;
}

/* The file that is written, and where in it. */
typedef struct output {
    const char *path;
    berth_atomic_file *file;
    uint64_t at;
} output;

static int output_write(output *out, const void *bytes, size_t nbytes)
{
    berth_error error;

    if (berth_atomic_write(out->file, bytes, nbytes, out->at, &error) < 0)
        return fail(&error);
    out->at += nbytes;
    return 0;
}

static int conversion_write_tensor(conversion *c, const entry *e, output *out, progress *bar,
                                   void *buffer, size_t buffer_nbytes)
{
    int64_t numel = berth_tensor_numel(e->tensor),
            chunk = elements_per_chunk(e->tensor, buffer_nbytes);
    size_t item = berth_dtype_nbytes(e->tensor->dtype);
    berth_error error;

    for (int64_t first = 0; first < numel; first += chunk) {
        int64_t n = numel - first < chunk ? numel - first : chunk;
        if (read_elements(c->checkpoint, e->tensor, first, n, buffer, &error) < 0)
            return fail(&error);
        to_or_from_little(e->tensor->dtype, buffer, (size_t)n * item);
        if (output_write(out, buffer, (size_t)n * item))
            return EXIT_TROUBLE;
        if (progress_report(bar, e->begin + (uint64_t)(first + n) * item, c->nbytes))
            return print_cancelled(out->path);
    }
    return 0;
}

static int conversion_write_all(conversion *c, output *out, const berth_params *params,
                                progress *bar)
{
    enum { MAX_NBYTES = 4 << 20, ITEM_NBYTES = 16 };
    size_t buffer_nbytes = c->nbytes < MAX_NBYTES ? (size_t)c->nbytes + ITEM_NBYTES : MAX_NBYTES;
    uint8_t length[8];
    berth_error error;
    size_t n = 0;
    char *header = conversion_header(c, &n);
    void *buffer = NULL;
    int code = 0;

    if (!header) {
        code = print_trouble("%s: a name is not valid UTF-8, or out of memory", c->in);
        goto cleanup;
    }
    if (n > SAFETENSORS_MAX_HEADER_NBYTES) {
        code =
            print_trouble("%s: safetensors headers have at most %d bytes, this one would have %zu: "
                          "use fewer tensors in a file, or shorter names",
                          c->in, SAFETENSORS_MAX_HEADER_NBYTES, n);
        goto cleanup;
    }
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)n >> (8 * i));
    if (berth_atomic_begin(out->path, c->nbytes + n + sizeof length, params, &out->file, &error) <
        0)
        code = fail(&error);
    if (!code)
        code = output_write(out, length, sizeof length);
    if (!code)
        code = output_write(out, header, n);
    /* Allocated only now: a small file can require more memory than the machine has (P3). */
    if (!code && !(buffer = malloc(buffer_nbytes)))
        code = print_trouble("%s: out of memory (%zu bytes)", c->in, buffer_nbytes);
    for (size_t i = 0; i < c->n_entries && !code; i++)
        code = conversion_write_tensor(c, &c->entries[i], out, bar, buffer, buffer_nbytes);
cleanup:
    free(header);
    free(buffer);
    return code;
}

static int conversion_write_file(conversion *c, const char *path, const common *options)
{
    berth_stats stats = {0};
    output out = {.path = path};
    berth_error error;
    berth_params params;
    progress bar;

    register_remark_printer(options);
    progress_begin(&bar, "convert", options, &params,
                   &stats); /* signals only cancel from here on */
    int code = conversion_write_all(c, &out, &params, &bar);
    if (code)
        berth_atomic_abort(out.file);
    else if (berth_atomic_commit(out.file, &error) < 0)
        code = fail(&error);
    progress_finish(&bar);
    stats.requested_nbytes = c->nbytes; /* those of tensors, as of a save */
    code = print_stats_if_requested(options, &stats, code);
    if (!code && c->n_left_out && !options->quiet)
        (void)print_trouble("%s: left out %zu values that are not plain tensors", c->in,
                            c->n_left_out);
    return code;
}

int convert_to_safetensors(const char *in, const char *out, bool tensors_only,
                           const common *options)
{
    conversion c = {.in = in, .tensors_only = tensors_only};
    berth_error error;

    set_load_check_data_by_default();
    if (berth_open(in, NULL, &c.checkpoint, &error) < 0)
        return fail(&error);
    int code = conversion_collect_tensors(&c);
    if (!code)
        code = conversion_write_file(&c, out, options);
    for (size_t i = 0; i < c.n_entries; i++)
        free(c.entries[i].name);
    free(c.entries);
    berth_close(c.checkpoint);
    return code;
}
