/* SPDX-License-Identifier: BSD-3-Clause */
/* The values of a checkpoint that are not tensors. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/shared.h"

static bool value_is_nonempty_container(const berth_value *value)
{
    berth_kind kind = berth_value_kind(value);

    return kind >= BERTH_KIND_LIST && kind <= BERTH_KIND_SET && berth_value_count(value) > 0;
}

/* A negative result means that the walk had no memory. */
static int walk_exit_code(int code)
{
    return code < 0 ? print_trouble("out of memory") : code;
}

/* ---- aliases: the first walk finds repeated containers, the second one their paths ---- */

typedef struct repeated {
    const berth_value *value;
    char *path; /* the first one */
} repeated;

typedef struct aliases {
    alias_function alias;
    void *context;
    repeated *met; /* by address, in the second walk */
    size_t n, capacity;
    size_t long_nbytes;
} aliases;

/* Containers and objects, but no tensors. */
static int aliases_enter_container_or_object(void *context, const berth_walk *walk,
                                             const berth_value *value)
{
    bool is_object = value_is_nonempty_container(value) ||
                     berth_value_kind(value) == BERTH_KIND_CALL ||
                     berth_value_part(value, BERTH_PART_STATE);

    (void)context, (void)walk;
    return is_object && !berth_as_tensor(value) ? 0 : BERTH_WALK_SKIP;
}

static int aliases_add_repeated(void *context, const berth_walk *walk, const berth_value *value)
{
    aliases *a = context;

    if (aliases_enter_container_or_object(context, walk, value) == BERTH_WALK_SKIP)
        return 0;
    if (a->n == a->capacity) {
        size_t capacity = a->capacity ? a->capacity * 2 : 32;
        repeated *met = realloc(a->met, capacity * sizeof *met);
        if (!met)
            return BERTH_E_MEMORY;
        a->met = met;
        a->capacity = capacity;
    }
    a->met[a->n++] = (repeated){.value = value};
    return 0;
}

static int compare_repeated(const void *left, const void *right)
{
    uintptr_t a = (uintptr_t)((const repeated *)left)->value;
    uintptr_t b = (uintptr_t)((const repeated *)right)->value;

    return (a > b) - (a < b);
}

static repeated *find_repeated(const aliases *a, const berth_value *value)
{
    const repeated wanted = {.value = value};

    return a->n ? bsearch(&wanted, a->met, a->n, sizeof wanted, compare_repeated) : NULL;
}

static int keep_first_path(void *context, const berth_walk *walk, const berth_value *value)
{
    enum { MAX_NBYTES = 1024 };
    repeated *met = find_repeated(context, value);

    if (met) {
        const char *path = berth_walk_path(walk);
        met->path = strdup(strlen(path) <= MAX_NBYTES ? path : "...");
        if (!met->path)
            return BERTH_E_MEMORY;
    }
    return aliases_enter_container_or_object(context, walk, value);
}

static int aliases_report_path(void *context, const berth_walk *walk, const berth_value *value)
{
    aliases *a = context;
    const repeated *met = find_repeated(a, value);

    if (!met)
        return 0;
    const char *path = berth_walk_path(walk);
    int code = check_total_of_long_names(&a->long_nbytes, strlen(path));
    return code ? code : a->alias(a->context, path, met->path);
}

int walk_aliases(const berth_value *root, alias_function function, void *context)
{
    aliases a = {.alias = function, .context = context};
    berth_walker walker = {
        .enter = aliases_enter_container_or_object, .alias = aliases_add_repeated, .context = &a};
    int code = berth_value_walk(root, &walker, NULL);
    size_t n = 0;

    if (a.n)
        qsort(a.met, a.n, sizeof *a.met, compare_repeated);
    for (size_t i = 0; i < a.n; i++) /* each once */
        if (i == 0 || a.met[i].value != a.met[n - 1].value)
            a.met[n++] = a.met[i];
    a.n = n;
    walker.enter = keep_first_path;
    walker.alias = aliases_report_path;
    if (code == 0 && n > 0)
        code = berth_value_walk(root, &walker, NULL);
    for (size_t i = 0; i < n; i++)
        free(a.met[i].path);
    free(a.met);
    return walk_exit_code(code);
}

/* ---- texts ---- */

static void print_quoted(FILE *out, const char *text, size_t nbytes)
{
    fputc('\'', out);
    for (size_t i = 0; i < nbytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '\'' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            fprintf(out, "\\x%02x", c);
        else if (c == 0xc2 && i + 1 < nbytes && (unsigned char)text[i + 1] < 0xa0)
            fprintf(out, "\\x%02x", (unsigned char)text[++i]);
        else if (c == 0xed && i + 2 < nbytes && (unsigned char)text[i + 1] >= 0xa0) {
            /* a surrogate, which is no UTF-8 */
            fprintf(out, "\\u%04x",
                    0xd000u | ((unsigned)text[i + 1] & 0x3f) << 6 | ((unsigned)text[i + 2] & 0x3f));
            i += 2;
        } else
            fputc(c, out);
    }
    fputc('\'', out);
}

static void print_hex(FILE *out, const char *prefix, const uint8_t *bytes, size_t nbytes)
{
    fputs(prefix, out);
    for (size_t i = 0; i < nbytes; i++)
        fprintf(out, "%02x", bytes[i]);
}

static void print_int(FILE *out, const berth_value *value)
{
    int64_t integer;
    size_t nbytes;

    if (berth_as_int(value, &integer)) {
        fprintf(out, "%" PRId64, integer);
        return;
    }
    const uint8_t *bytes = berth_as_bigint(value, &nbytes);
    print_hex(out, "int little-endian 0x", bytes, bytes ? nbytes : 0);
}

/* 5.0 is not 5. */
static void print_float(FILE *out, double number)
{
    char text[40];

    snprintf(text, sizeof text, "%.17g", number);
    fprintf(out, strpbrk(text, ".en") ? "%s" : "%s.0", text);
}

static void print_ints(FILE *out, const char *before, const int64_t *ints, int32_t n)
{
    fputs(before, out);
    for (int32_t i = 0; i < n; i++)
        fprintf(out, i ? ", %" PRId64 : "%" PRId64, ints[i]);
    fputs("]", out);
}

/* Prints values with a shape, or named by a number of berth.h. False: another kind. */
static bool print_size_sparse_storage_or_constant(FILE *out, const berth_value *value)
{
    int32_t rank = 0;
    const int64_t *shape = berth_as_size(value, &rank);
    berth_storage *storage = berth_as_storage(value);
    int number = 0;

    switch (berth_value_kind(value)) {
    case BERTH_KIND_SIZE:
        print_ints(out, "torch.Size([", shape, rank);
        fputc(')', out);
        return true;
    case BERTH_KIND_SPARSE:
        (void)berth_as_constant(value, BERTH_KIND_LAYOUT, &number);
        fprintf(out, "<sparse of layout %d%s", number,
                (berth_value_flags(value) & BERTH_COALESCED) ? ", coalesced" : "");
        print_ints(out, ", [", shape, rank);
        fputc('>', out);
        return true;
    case BERTH_KIND_QSCHEME:
        (void)berth_as_constant(value, BERTH_KIND_QSCHEME, &number);
        fprintf(out, "<qscheme %d>", number);
        return true;
    case BERTH_KIND_LAYOUT:
        (void)berth_as_constant(value, BERTH_KIND_LAYOUT, &number);
        fprintf(out, "<layout %d>", number);
        return true;
    case BERTH_KIND_STORAGE:
        fprintf(out, "<storage of %" PRIu64 " bytes>", berth_storage_get_info(storage)->nbytes);
        return true;
    default:
        return false;
    }
}

static void print_non_tuple(FILE *out, const berth_value *value)
{
    size_t nbytes = 0;
    const char *text;
    const uint8_t *bytes;
    bool is_true;
    int number;
    double real, imaginary;

    switch (berth_value_kind(value)) {
    case BERTH_KIND_NONE:
        fputs("None", out);
        break;
    case BERTH_KIND_BOOL:
        (void)berth_as_bool(value, &is_true);
        fputs(is_true ? "True" : "False", out);
        break;
    case BERTH_KIND_INT:
        print_int(out, value);
        break;
    case BERTH_KIND_FLOAT:
        (void)berth_as_float(value, &real);
        print_float(out, real);
        break;
    case BERTH_KIND_COMPLEX:
        (void)berth_as_complex(value, &real, &imaginary);
        fprintf(out, "(%.17g%+.17gj)", real, imaginary);
        break;
    case BERTH_KIND_STR:
        text = berth_as_text(value, &nbytes);
        print_quoted(out, text, nbytes);
        break;
    case BERTH_KIND_BYTES:
    case BERTH_KIND_BYTEARRAY:
        bytes = berth_as_bytes(value, &nbytes);
        print_hex(out, berth_value_kind(value) == BERTH_KIND_BYTES ? "bytes 0x" : "bytearray 0x",
                  bytes, nbytes);
        break;
    case BERTH_KIND_DTYPE:
        (void)berth_as_constant(value, BERTH_KIND_DTYPE, &number);
        fprintf(out, "torch.%s", berth_dtype_name((berth_dtype)number));
        break;
    case BERTH_KIND_DEVICE:
    case BERTH_KIND_GLOBAL:
        text = berth_as_text(value, &nbytes);
        fprintf(out, "<%s>", text ? text : "");
        break;
    default:
        if (!print_size_sparse_storage_or_constant(out, value))
            fprintf(out, "<%s of %zu>", berth_kind_name(berth_value_kind(value)),
                    berth_value_count(value));
    }
}

/* Shows the items of a tuple, because tuples are keys. Depth and length are bounded: nested tuples
 * can double (P3). */
static void print_tuple(FILE *out, const berth_value *tuple)
{
    enum { MAX_DEPTH = 16, MAX_NBYTES = 1024 };
    struct {
        const berth_value *tuple;
        size_t next;
    } open[MAX_DEPTH] = {{tuple, 0}};
    size_t n = 1;

    fputc('(', out);
    while (n) {
        size_t next = open[n - 1].next++, count = berth_value_count(open[n - 1].tuple);
        if (next == count) {
            fputs(count == 1 ? ",)" : ")", out);
            n--;
            continue;
        }
        const berth_value *item = berth_value_at(open[n - 1].tuple, next);
        bool nested = berth_value_kind(item) == BERTH_KIND_TUPLE;
        if (ftell(out) > MAX_NBYTES || (nested && n == MAX_DEPTH)) {
            fputs("...", out);
            return;
        }
        fputs(next ? ", " : "", out);
        fputs(nested ? "(" : "", out);
        if (!nested)
            print_non_tuple(out, item);
        else {
            open[n].tuple = item;
            open[n++].next = 0;
        }
    }
}

char *leaf_text(const berth_value *value)
{
    char *text = NULL;
    size_t nbytes;
    FILE *out = open_memstream(&text, &nbytes);

    if (!out)
        return NULL;
    if (berth_value_kind(value) == BERTH_KIND_TUPLE)
        print_tuple(out, value);
    else
        print_non_tuple(out, value);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}
