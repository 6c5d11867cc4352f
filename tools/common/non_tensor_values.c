/* SPDX-License-Identifier: BSD-3-Clause */
/* The values of a checkpoint that are not tensors. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/elements.h"
#include "tools/common/non_tensor_values.h"
#include "tools/common/report.h"

/* ---- repeated containers: one walk finds them, a second one their paths ---- */

typedef struct repeated {
    const berth_value *value;
    char *path; /* the first one */
    void *note;
} repeated;

struct repeated_values {
    repeated *met; /* by address, when all are found */
    size_t n, capacity;
};

/* Containers and objects, but no tensors. */
static int enter_container_or_object(void *context, const berth_walk *walk,
                                     const berth_value *value)
{
    berth_kind kind = berth_value_kind(value);
    bool is_full =
        kind >= BERTH_KIND_LIST && kind <= BERTH_KIND_SET && berth_value_count(value) > 0;
    bool is_object =
        is_full || kind == BERTH_KIND_CALL || berth_value_part(value, BERTH_PART_STATE);

    (void)context, (void)walk;
    return is_object && !berth_as_tensor(value) ? 0 : BERTH_WALK_SKIP;
}

static int repeated_values_add(void *context, const berth_walk *walk, const berth_value *value)
{
    repeated_values *all = context;

    if (enter_container_or_object(context, walk, value) == BERTH_WALK_SKIP)
        return 0;
    if (all->n == all->capacity) {
        size_t capacity = all->capacity ? all->capacity * 2 : 32;
        repeated *met = realloc(all->met, capacity * sizeof *met);
        if (!met)
            return BERTH_E_MEMORY;
        all->met = met;
        all->capacity = capacity;
    }
    all->met[all->n++] = (repeated){.value = value};
    return 0;
}

static int compare_repeated(const void *left, const void *right)
{
    uintptr_t a = (uintptr_t)((const repeated *)left)->value;
    uintptr_t b = (uintptr_t)((const repeated *)right)->value;

    return (a > b) - (a < b);
}

repeated_values *repeated_values_find(const berth_value *root)
{
    repeated_values *all = calloc(1, sizeof *all);
    berth_walker walker = {
        .enter = enter_container_or_object, .alias = repeated_values_add, .context = all};

    if (all && berth_value_walk(root, &walker, NULL) < 0) {
        repeated_values_free(all);
        return NULL;
    }
    size_t n = 0; /* of those that are left when each is there once */
    if (all && all->n)
        qsort(all->met, all->n, sizeof *all->met, compare_repeated);
    for (size_t i = 0; all && i < all->n; i++)
        if (i == 0 || all->met[i].value != all->met[n - 1].value)
            all->met[n++] = all->met[i];
    if (all)
        all->n = n;
    return all;
}

void repeated_values_free(repeated_values *all)
{
    for (size_t i = 0; all && i < all->n; i++)
        free(all->met[i].path);
    if (all)
        free(all->met);
    free(all);
}

static repeated *repeated_values_get(const repeated_values *all, const berth_value *value)
{
    const repeated wanted = {.value = value};

    return all->n ? bsearch(&wanted, all->met, all->n, sizeof wanted, compare_repeated) : NULL;
}

int repeated_values_note_path(repeated_values *all, const berth_walk *walk,
                              const berth_value *value)
{
    enum { MAX_NBYTES = 1024 };
    repeated *met = repeated_values_get(all, value);

    if (!met || met->path)
        return 0;
    const char *path = berth_walk_path(walk);
    met->path = strdup(strlen(path) <= MAX_NBYTES ? path : "...");
    return met->path ? 0 : BERTH_E_MEMORY;
}

const char *repeated_values_first_path(const repeated_values *all, const berth_value *value)
{
    const repeated *met = repeated_values_get(all, value);

    return met ? met->path : NULL;
}

void **repeated_values_note(const repeated_values *all, const berth_value *value)
{
    repeated *met = repeated_values_get(all, value);

    return met ? &met->note : NULL;
}

/* ---- aliases ---- */

typedef struct aliases {
    alias_function alias;
    void *context;
    repeated_values *repeated;
    size_t long_nbytes;
} aliases;

static int aliases_enter(void *context, const berth_walk *walk, const berth_value *value)
{
    aliases *a = context;
    int code = repeated_values_note_path(a->repeated, walk, value);

    return code ? code : enter_container_or_object(context, walk, value);
}

static int aliases_report_path(void *context, const berth_walk *walk, const berth_value *value)
{
    aliases *a = context;
    const char *first = repeated_values_first_path(a->repeated, value);

    if (!first)
        return 0;
    const char *path = berth_walk_path(walk);
    int code = check_total_of_long_names(&a->long_nbytes, strlen(path));
    return code ? code : a->alias(a->context, path, first);
}

int walk_aliases(const berth_value *root, alias_function function, void *context)
{
    aliases a = {.alias = function, .context = context, .repeated = repeated_values_find(root)};
    berth_walker walker = {.enter = aliases_enter, .alias = aliases_report_path, .context = &a};
    int code = a.repeated ? 0 : BERTH_E_MEMORY;

    if (code == 0 && a.repeated->n > 0)
        code = berth_value_walk(root, &walker, NULL);
    repeated_values_free(a.repeated);
    return code < 0 ? print_trouble("out of memory") : code;
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

/* Of texts and bytes at most max_nbytes: then "..." follows. */
static void print_non_tuple(FILE *out, const berth_value *value, size_t max_nbytes)
{
    size_t nbytes = 0, n = 0;
    const char *text;
    const uint8_t *bytes;
    int64_t integer;
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
        if (berth_as_int(value, &integer))
            fprintf(out, "%" PRId64, integer);
        else if ((bytes = berth_as_bytes(value, &n)) != NULL)
            print_hex(out, "int little-endian 0x", bytes, n);
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
        n = nbytes < max_nbytes ? nbytes : max_nbytes;
        while (n < nbytes && n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80)
            n--; /* not within a character */
        print_quoted(out, text, n);
        break;
    case BERTH_KIND_BYTES:
    case BERTH_KIND_BYTEARRAY:
        bytes = berth_as_bytes(value, &nbytes);
        print_hex(out, berth_value_kind(value) == BERTH_KIND_BYTES ? "bytes 0x" : "bytearray 0x",
                  bytes, nbytes < max_nbytes ? nbytes : max_nbytes);
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
    if (nbytes > max_nbytes)
        fputs("...", out);
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
            print_non_tuple(out, item, SIZE_MAX);
        else {
            open[n].tuple = item;
            open[n++].next = 0;
        }
    }
}

char *leaf_text(const berth_value *value)
{
    return leaf_text_start(value, SIZE_MAX);
}

char *leaf_text_start(const berth_value *value, size_t max_nbytes)
{
    char *text = NULL;
    size_t nbytes;
    FILE *out = open_memstream(&text, &nbytes);

    if (!out)
        return NULL;
    if (berth_value_kind(value) == BERTH_KIND_TUPLE)
        print_tuple(out, value);
    else
        print_non_tuple(out, value, max_nbytes);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}
