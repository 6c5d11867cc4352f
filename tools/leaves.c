/* SPDX-License-Identifier: BSD-3-Clause */
/* A walk over what a checkpoint holds beside tensors: each container once, no recursion. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/command.h"

/* One container that is being walked. */
typedef struct frame {
    const berth_value *container;
    size_t next;        /* item to visit next */
    size_t path_nbytes; /* length of the container's own path */
} frame;

/* A container that was entered, and its path, unless that is long. */
typedef struct seen {
    const berth_value *value;
    char *path;
} seen;

typedef struct walk {
    leaf_function leaf;   /* may be NULL */
    alias_function alias; /* may be NULL */
    void *context;
    frame *frames;
    size_t n_frames, frame_capacity;
    seen *seen; /* open addressing, a power of two */
    size_t n_seen, seen_capacity;
    char *path;
    size_t path_nbytes, path_capacity;
    size_t long_nbytes; /* of long paths that were told */
} walk;

static bool is_container(berth_kind kind)
{
    switch (kind) {
    case BERTH_KIND_LIST:
    case BERTH_KIND_TUPLE:
    case BERTH_KIND_SET:
    case BERTH_KIND_DICT:
    case BERTH_KIND_ORDERED_DICT:
    case BERTH_KIND_COUNTER:
        return true;
    default:
        return false;
    }
}

static bool is_tensor(const berth_value *value)
{
    return berth_as_tensor(value) != NULL;
}

static size_t slot_of(const walk *w, const berth_value *value)
{
    uint64_t hash = (uint64_t)(uintptr_t)value * 0x9E3779B97F4A7C15u;
    size_t at = (size_t)(hash >> 20) & (w->seen_capacity - 1);

    while (w->seen[at].value && w->seen[at].value != value)
        at = (at + 1) & (w->seen_capacity - 1);
    return at;
}

static bool grow_seen(walk *w)
{
    size_t n = w->seen_capacity, capacity = n ? n * 2 : 64;
    seen *before = w->seen, *bigger = calloc(capacity, sizeof *bigger);

    if (!bigger)
        return false;
    w->seen = bigger;
    w->seen_capacity = capacity;
    for (size_t i = 0; i < n; i++)
        if (before[i].value)
            bigger[slot_of(w, before[i].value)] = before[i];
    free(before);
    return true;
}

/* 1 if the container is met for the first time, 0 if not, then *first is its path; -1: no memory.
 */
static int enter_once(walk *w, const berth_value *value, const char **first)
{
    enum { LONGEST = 1024 };

    if (w->n_seen * 2 >= w->seen_capacity && !grow_seen(w))
        return -1;
    seen *slot = &w->seen[slot_of(w, value)];
    *first = slot->path ? slot->path : "...";
    if (slot->value)
        return 0;
    if (w->alias && w->path_nbytes <= LONGEST && !(slot->path = strdup(w->path)))
        return -1;
    slot->value = value;
    w->n_seen++;
    return 1;
}

static bool append_path(walk *w, const char *text)
{
    size_t n = strlen(text);

    if (n >= w->path_capacity - w->path_nbytes) {
        size_t capacity = (w->path_capacity + n + 1) * 2;
        char *path = realloc(w->path, capacity);
        if (!path)
            return false;
        w->path = path;
        w->path_capacity = capacity;
    }
    memcpy(w->path + w->path_nbytes, text, n + 1);
    w->path_nbytes += n;
    return true;
}

static bool push(walk *w, const berth_value *container)
{
    if (w->n_frames == w->frame_capacity) {
        size_t capacity = w->frame_capacity ? w->frame_capacity * 2 : 32;
        frame *frames = realloc(w->frames, capacity * sizeof *frames);
        if (!frames)
            return false;
        w->frames = frames;
        w->frame_capacity = capacity;
    }
    w->frames[w->n_frames++] = (frame){container, 0, w->path_nbytes};
    return true;
}

/* What an object holds beside its items, in the order of names (berth.h). */
static const struct {
    const char *suffix;
    berth_part part;
} steps[] = {
    {".list_items", BERTH_PART_LIST_ITEMS},
    {".dict_items", BERTH_PART_DICT_ITEMS},
    {".callable", BERTH_PART_INNER},
    {".__dict__", BERTH_PART_STATE},
};
#define N_STEPS (sizeof steps / sizeof *steps)

/* Puts "[key]" behind the path of the container on top, or the name of a step. */
static bool append_key(walk *w, const berth_value *container, size_t i)
{
    size_t n = berth_value_count(container);
    berth_value *key;
    char number[32];

    if (i >= n)
        return append_path(w, steps[i - n].suffix);
    if (!berth_dict_at(container, i, &key, NULL)) {
        snprintf(number, sizeof number, "[%zu]", i);
        return append_path(w, number);
    }
    char *text = leaf_text(key);
    bool done = text && append_path(w, "[") && append_path(w, text) && append_path(w, "]");
    free(text);
    return done;
}

/* Leaves are told of what plain values hold; aliases there are in objects, too. */
static size_t count_children(const walk *w, const berth_value *value)
{
    return berth_value_count(value) + (w->alias ? N_STEPS : 0);
}

static bool is_entered(const walk *w, const berth_value *value)
{
    bool is_object =
        w->alias && value &&
        (berth_value_kind(value) == BERTH_KIND_CALL || berth_value_part(value, BERTH_PART_STATE));

    return value && !is_tensor(value) &&
           (is_object || (is_container(berth_value_kind(value)) && berth_value_count(value) > 0));
}

/* Child i; NULL if there is none. */
static const berth_value *child_at(const berth_value *value, size_t i)
{
    size_t n = berth_value_count(value);

    berth_value *item = NULL;

    if (i >= n)
        return berth_value_part(value, steps[i - n].part);
    return berth_dict_at(value, i, NULL, &item) ? item : berth_list_at(value, i);
}

/* Enters a container, or tells a leaf. 0, the function's verdict, or -1 without memory. */
static int visit(walk *w, const berth_value *value)
{
    const char *first_path;

    if (is_tensor(value))
        return 0;
    if (!is_entered(w, value)) {
        int code = count_long_name(&w->long_nbytes, w->path_nbytes);
        return code ? code : w->leaf(w->context, w->path, value);
    }
    int first = enter_once(w, value, &first_path);
    if (first < 0 || (first && !push(w, value)))
        return -1;
    if (first || !w->alias)
        return 0;
    int code = count_long_name(&w->long_nbytes, w->path_nbytes);
    return code ? code : w->alias(w->context, w->path, first_path);
}

static int walk_all(walk *w, const berth_value *root)
{
    int verdict = append_path(w, "") ? 0 : -1;

    if (verdict == 0 && (w->leaf || is_entered(w, root)))
        verdict = visit(w, root);
    while (verdict == 0 && w->n_frames) {
        frame *top = &w->frames[w->n_frames - 1];
        w->path_nbytes = top->path_nbytes;
        if (top->next == count_children(w, top->container)) {
            w->n_frames--;
            continue;
        }
        size_t i = top->next++;
        const berth_value *item = child_at(top->container, i);
        if (!w->leaf && !is_entered(w, item))
            continue;
        verdict = append_key(w, top->container, i) ? visit(w, item) : -1;
    }
    return verdict;
}

static int finish(walk *w, const berth_value *root)
{
    int verdict = walk_all(w, root);

    for (size_t i = 0; i < w->seen_capacity; i++)
        free(w->seen[i].path);
    free(w->frames);
    free(w->seen);
    free(w->path);
    return verdict < 0 ? trouble("out of memory") : verdict;
}

int walk_leaves(const berth_value *root, leaf_function function, void *context)
{
    walk w = {.leaf = function, .context = context};

    return finish(&w, root);
}

int walk_aliases(const berth_value *root, alias_function function, void *context)
{
    walk w = {.alias = function, .context = context};

    return finish(&w, root);
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

/* What has a shape, or is named by a number of berth.h. False: nothing of that kind. */
static bool print_shaped(FILE *out, const berth_value *value)
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
        fprintf(out, "<storage of %" PRIu64 " bytes>", berth_storage_nbytes(storage));
        return true;
    default:
        return false;
    }
}

static void print_single(FILE *out, const berth_value *value)
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
        if (!print_shaped(out, value))
            fprintf(out, "<%s of %zu>", berth_kind_name(berth_value_kind(value)),
                    berth_value_count(value));
    }
}

/*
 * A tuple, which can be a key: with what is in it, so that two keys are told apart. Bounded in
 * depth and length: nested tuples can double (P3).
 */
static void print_tuple(FILE *out, const berth_value *tuple)
{
    enum { DEEPEST = 16, LONGEST = 1024 };
    struct {
        const berth_value *tuple;
        size_t next;
    } open[DEEPEST] = {{tuple, 0}};
    size_t n = 1;

    fputc('(', out);
    while (n) {
        size_t next = open[n - 1].next++, count = berth_value_count(open[n - 1].tuple);
        if (next == count) {
            fputs(count == 1 ? ",)" : ")", out);
            n--;
            continue;
        }
        const berth_value *item = berth_list_at(open[n - 1].tuple, next);
        bool nested = berth_value_kind(item) == BERTH_KIND_TUPLE;
        if (ftell(out) > LONGEST || (nested && n == DEEPEST)) {
            fputs("...", out);
            return;
        }
        fputs(next ? ", " : "", out);
        fputs(nested ? "(" : "", out);
        if (!nested)
            print_single(out, item);
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
        print_single(out, value);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}
