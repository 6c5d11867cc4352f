/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/format/value_text.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct showing {
    FILE *out;
    unsigned *visits; /* by id; of the first pass, which tells what is met more than once */
    unsigned *labels;
    unsigned n_labels;
    bool is_first;
};

static void show(struct showing *showing, const berth_value *value);

static void show_quoted(FILE *out, const char *before, const uint8_t *bytes, size_t nbytes)
{
    (void)fprintf(out, "%s'", before);
    for (size_t i = 0; i < nbytes; i++)
        (void)fprintf(out, bytes[i] >= ' ' && bytes[i] <= '~' ? "%c" : "\\x%02x", bytes[i]);
    (void)fputc('\'', out);
}

static void show_numbers(FILE *out, const char *brackets, const int64_t *numbers, int32_t n)
{
    (void)fputc(brackets[0], out);
    for (int32_t i = 0; i < n; i++)
        (void)fprintf(out, "%s%lld", i ? ", " : "", (long long)numbers[i]);
    (void)fputc(brackets[1], out);
}

static void show_int(FILE *out, const berth_value *value)
{
    int64_t integer;
    size_t nbytes;

    if (berth_as_int(value, &integer)) {
        (void)fprintf(out, "%lld", (long long)integer);
        return;
    }
    const uint8_t *bytes = berth_as_bytes(value, &nbytes);
    (void)fputs("0x", out);
    while (nbytes-- > 0)
        (void)fprintf(out, "%02x", bytes[nbytes]);
}

static void show_real(FILE *out, double real)
{
    uint64_t bits;

    memcpy(&bits, &real, sizeof bits);
    if (isnan(real))
        (void)fprintf(out, "nan:%016llx", (unsigned long long)bits);
    else
        (void)fprintf(out, "%.17g", real);
}

static const char *class_name(berth_dtype dtype)
{
    return dtype == BERTH_DTYPE_NONE ? "untyped" : berth_dtype_name(dtype);
}

static void show_storage(FILE *out, const berth_storage *storage, berth_dtype class)
{
    (void)fprintf(out, "<%s", class_name(class));
    if (storage->dtype == BERTH_DTYPE_NONE && storage->element != BERTH_DTYPE_NONE)
        (void)fprintf(out, " of %s", berth_dtype_name(storage->element));
    (void)fprintf(out, " '%s' %llu", storage->key ? storage->key : "",
                  (unsigned long long)storage->nbytes);
    if (strcmp(storage->location, "cpu") != 0)
        (void)fprintf(out, " %s", storage->location);
    if (storage->root) {
        (void)fprintf(out, " at %llu of ", (unsigned long long)storage->root_offset);
        show_storage(out, storage->root, storage->root->dtype);
    }
    (void)fputc('>', out);
}

static void show_tensor(struct showing *showing, const berth_tensor *tensor)
{
    FILE *out = showing->out;
    int64_t usual[BERTH_MAX_RANK];

    (void)fputs(class_name(tensor->dtype), out);
    show_numbers(out, "[]", tensor->shape, tensor->rank);
    bth_contiguous_stride(tensor->shape, tensor->rank, usual);
    if (memcmp(usual, tensor->stride, (size_t)tensor->rank * sizeof *usual) != 0)
        show_numbers(out, "()", tensor->stride, tensor->rank);
    if (tensor->storage_offset)
        (void)fprintf(out, "@%lld", (long long)tensor->storage_offset);
    if (tensor->storage)
        show_storage(out, tensor->storage, tensor->storage->dtype);
    (void)fprintf(out, "%s%s%s%s", tensor->flags & BERTH_META ? " meta" : "",
                  tensor->flags & BERTH_REQUIRES_GRAD ? " grad" : "",
                  tensor->flags & BERTH_CONJ ? " conj" : "",
                  tensor->flags & BERTH_NEG ? " neg" : "");
    if (tensor->scales) {
        (void)fprintf(out, " quantized %d(axis %lld, ", tensor->qscheme, (long long)tensor->axis);
        show(showing, tensor->scales);
        (void)fputs(", ", out);
        show(showing, tensor->zero_points);
        (void)fputc(')', out);
    } else if (tensor->qscheme != BERTH_NOT_QUANTIZED) {
        (void)fprintf(out, " quantized %d(%.17g, %lld)", tensor->qscheme, tensor->scale,
                      (long long)tensor->zero_point);
    }
}

static void show_items(struct showing *showing, const char *open, const berth_value *value,
                       const char *close)
{
    (void)fputs(open, showing->out);
    for (size_t i = 0; i < berth_value_count(value); i++) {
        const berth_value *key = bth_value_key(value, i);
        (void)fputs(i ? ", " : "", showing->out);
        if (key) {
            show(showing, key);
            (void)fputs(": ", showing->out);
        }
        show(showing, bth_value_item(value, i));
    }
    (void)fputs(close, showing->out);
}

static void show_part(struct showing *showing, const char *before, const berth_value *value,
                      berth_part part)
{
    const berth_value *shown = berth_value_part(value, part);

    if (!shown)
        return;
    (void)fputs(before, showing->out);
    show(showing, shown);
}

static void show_sparse(struct showing *showing, const berth_value *value)
{
    static const char *const layouts[] = {"?", "COO", "CSR", "CSC", "BSR", "BSC"};
    int32_t rank;
    const int64_t *shape = berth_as_size(value, &rank);

    (void)fprintf(showing->out, "%s(", layouts[bth_value_layout(value)]);
    show_numbers(showing->out, "[]", shape, rank);
    show_items(showing, ", ", value, "");
    (void)fputs(berth_value_flags(value) & BERTH_COALESCED ? ", coalesced)" : ")", showing->out);
}

/* What is nothing but its items, or begins with them. */
static const char *const brackets[BERTH_KIND_CALL + 1][2] = {
    [BERTH_KIND_LIST] = {"[", "]"},           [BERTH_KIND_TUPLE] = {"(", ")"},
    [BERTH_KIND_DICT] = {"{", "}"},           [BERTH_KIND_ORDERED_DICT] = {"OrderedDict{", "}"},
    [BERTH_KIND_COUNTER] = {"Counter{", "}"}, [BERTH_KIND_SET] = {"set{", "}"},
    [BERTH_KIND_SIZE] = {"Size[", "]"},       [BERTH_KIND_NESTED] = {"Nested(", ")"},
};

static void show_content(struct showing *showing, const berth_value *value)
{
    FILE *out = showing->out;
    berth_kind kind = berth_value_kind(value);
    size_t nbytes;
    const char *text = berth_as_text(value, &nbytes);
    const uint8_t *bytes = berth_as_bytes(value, NULL);

    if (brackets[kind][0])
        show_items(showing, brackets[kind][0], value, brackets[kind][1]);
    else if (kind == BERTH_KIND_NONE)
        (void)fputs(value ? "None" : "NULL", out);
    else if (kind == BERTH_KIND_BOOL)
        (void)fputs(bth_value_bool(value) ? "True" : "False", out);
    else if (kind == BERTH_KIND_INT)
        show_int(out, value);
    else if (kind == BERTH_KIND_STR)
        show_quoted(out, "", (const uint8_t *)text, nbytes);
    else if (bytes && berth_as_bytes(value, &nbytes))
        show_quoted(out, kind == BERTH_KIND_BYTES ? "b" : "bytearray", bytes, nbytes);
    else if (text)
        (void)fprintf(out, kind == BERTH_KIND_DEVICE ? "device %s" : "<%s>", text);
    else if (kind == BERTH_KIND_DTYPE)
        (void)fputs(class_name(bth_value_as_dtype(value)), out);
    else if (kind == BERTH_KIND_QSCHEME)
        (void)fprintf(out, "qscheme %d", bth_value_constant(value, kind));
    else if (kind == BERTH_KIND_LAYOUT)
        (void)fprintf(out, "layout %d", (int)bth_value_layout(value));
    else if (kind == BERTH_KIND_STORAGE)
        show_storage(out, berth_as_storage(value), bth_value_as_dtype(value));
    else if (kind == BERTH_KIND_TENSOR)
        show_tensor(showing, berth_as_tensor(value));
    else if (kind == BERTH_KIND_SPARSE)
        show_sparse(showing, value);
    else if (kind == BERTH_KIND_FLOAT || kind == BERTH_KIND_COMPLEX)
        show_real(out, bth_value_real(value));
    if (kind == BERTH_KIND_FLOAT)
        (void)fputc('f', out);
    if (kind == BERTH_KIND_COMPLEX) {
        (void)fputc(' ', out);
        show_real(out, bth_value_imaginary(value));
        (void)fputc('j', out);
    }
}

/* What is around something else, and what was given to it afterwards. */
static void show_whole(struct showing *showing, const berth_value *value)
{
    berth_kind kind = berth_value_kind(value);

    if (kind == BERTH_KIND_PARAMETER) {
        show_part(showing, "Parameter(", value, BERTH_PART_INNER);
        (void)fputs(berth_value_flags(value) & BERTH_REQUIRES_GRAD ? ", grad)" : ")", showing->out);
    } else if (kind == BERTH_KIND_SUBCLASS) {
        show_part(showing, "Subclass(", value, BERTH_PART_INNER);
        show_part(showing, ", ", value, BERTH_PART_STATE);
        show_part(showing, ", ", value, BERTH_PART_TYPE);
        (void)fputc(')', showing->out);
        return;
    } else if (kind == BERTH_KIND_CALL) {
        show_part(showing, bth_value_is_new_object(value) ? "new " : "", value, BERTH_PART_INNER);
        show_items(showing, "(", value, ")");
        show_part(showing, "+", value, BERTH_PART_LIST_ITEMS);
        show_part(showing, "+", value, BERTH_PART_DICT_ITEMS);
    } else {
        show_content(showing, value);
    }
    show_part(showing, "+", value, BERTH_PART_STATE);
}

/* What is met again is a star and the number at its first place. */
static void show(struct showing *showing, const berth_value *value)
{
    size_t id = bth_value_id(value);

    if (id != SIZE_MAX && berth_value_kind(value) != BERTH_KIND_DTYPE) {
        if (showing->is_first) {
            if (++showing->visits[id] > 1)
                return;
        } else if (showing->labels[id]) {
            (void)fprintf(showing->out, "*%u", showing->labels[id]);
            return;
        } else if (showing->visits[id] > 1) {
            showing->labels[id] = ++showing->n_labels;
            (void)fprintf(showing->out, "&%u ", showing->n_labels);
        }
    }
    show_whole(showing, value);
}

void expect_value(const berth_value *root, const char *expected)
{
    size_t n_ids = bth_tree_n_ids(bth_value_tree(root)) + 1, nbytes;
    struct showing showing = {.visits = calloc(n_ids, sizeof(unsigned)),
                              .labels = calloc(n_ids, sizeof(unsigned))};

    for (int pass = 0; pass < 2; pass++) {
        char *text = NULL;
        showing.is_first = pass == 0;
        showing.out = open_memstream(&text, &nbytes);
        show(&showing, root);
        (void)fclose(showing.out);
        if (pass == 1)
            cr_expect_str_eq(text, expected);
        free(text);
    }
    free(showing.visits);
    free(showing.labels);
}
