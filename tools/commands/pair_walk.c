/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Two values side by side: each pair of containers once, no recursion (P3). berth_value_walk()
 * walks one value to its end, so it cannot go in step with a second one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/commands/diff.h"
#include "tools/common/array.h"
#include "tools/common/non_tensor_values.h"
#include "tools/common/report.h"

#define ABSENT SIZE_MAX

/* Item i of the left side matches item j of the right side. */
typedef struct match {
    size_t i, j;
} match;

/* Steps after the items; `step_names` has their names in paths. */
enum {
    STEP_LIST_ITEMS,
    STEP_DICT_ITEMS,
    STEP_STATE,
    STEP_CALLABLE,
    STEP_SCALES,
    STEP_ZERO_POINTS,
    N_STEPS
};
static const char *const step_names[N_STEPS] = {"list_items", "dict_items", "__dict__",
                                                "callable",   "scales",     "zero_points"};

/* Two values that are being walked. */
typedef struct frame {
    const berth_value *a, *b;
    berth_kind family;
    match *matches; /* of dicts and sets; else item i goes with item i */
    size_t n;       /* items, matched or not */
    size_t next;    /* the next child: an item or, from n on, a step; the one before is walked */
} frame;

struct pair_walk {
    const pair_visitor *visitor;
    const char *name; /* of the pair at hand */
    frame *frames;
    size_t n_frames, frame_capacity;
    /* Classes of equal values: each node points to another of its class, or to itself. */
    const berth_value **nodes;
    uint32_t *parents;
    size_t n_nodes, node_capacity;
    uint32_t *slots; /* by hash: node + 1 */
    size_t n_slots;
    size_t long_nbytes; /* of long keys */
};

const berth_value *unwrap_parameter_or_subclass(const berth_value *value)
{
    while (berth_value_kind(value) == BERTH_KIND_PARAMETER ||
           berth_value_kind(value) == BERTH_KIND_SUBCLASS)
        value = berth_value_part(value, BERTH_PART_INNER);
    return value;
}

/*
 * Values of one family are walked in step: a dict with an OrderedDict, a list with a tuple. NONE:
 * nothing is inside.
 */
static berth_kind value_kind_family(const berth_value *value)
{
    berth_kind kind = berth_value_kind(value);

    if (kind == BERTH_KIND_ORDERED_DICT || kind == BERTH_KIND_COUNTER)
        return BERTH_KIND_DICT;
    if (kind == BERTH_KIND_TUPLE)
        return BERTH_KIND_LIST;
    bool is_walked = kind == BERTH_KIND_LIST || kind == BERTH_KIND_DICT || kind == BERTH_KIND_SET ||
                     kind == BERTH_KIND_TENSOR || kind == BERTH_KIND_SPARSE ||
                     kind == BERTH_KIND_NESTED || kind == BERTH_KIND_CALL;
    return is_walked ? kind : BERTH_KIND_NONE;
}

/* The attributes of a value, or of the tensor inside it. */
static const berth_value *value_attributes(const berth_value *value)
{
    while (value && !berth_value_part(value, BERTH_PART_STATE) &&
           berth_value_kind(value) != BERTH_KIND_CALL)
        value = berth_value_part(value, BERTH_PART_INNER);
    return value ? berth_value_part(value, BERTH_PART_STATE) : NULL;
}

/* ---- classes ---- */

static size_t pair_walk_slot(const pair_walk *w, const berth_value *value)
{
    uint64_t hash = (uint64_t)(uintptr_t)value * 0x9E3779B97F4A7C15u;
    size_t at = (size_t)(hash >> 20) & (w->n_slots - 1);

    while (w->slots[at] && w->nodes[w->slots[at] - 1] != value)
        at = (at + 1) & (w->n_slots - 1);
    return at;
}

static bool pair_walk_grow_nodes(pair_walk *w)
{
    size_t capacity = w->node_capacity ? w->node_capacity * 2 : 64;
    const berth_value **nodes = realloc(w->nodes, capacity * sizeof *nodes);
    w->nodes = nodes ? nodes : w->nodes;
    uint32_t *parents = realloc(w->parents, capacity * sizeof *parents);
    w->parents = parents ? parents : w->parents;
    uint32_t *slots = calloc(capacity * 2, sizeof *slots);

    if (!nodes || !parents || !slots || capacity > UINT32_MAX) {
        free(slots);
        return false;
    }
    free(w->slots);
    w->slots = slots;
    w->n_slots = capacity * 2;
    w->node_capacity = capacity;
    for (size_t i = 0; i < w->n_nodes; i++)
        w->slots[pair_walk_slot(w, w->nodes[i])] = (uint32_t)i + 1;
    return true;
}

/* The class of a value: its root node. False: no memory. */
static bool pair_walk_find_or_add_class(pair_walk *w, const berth_value *value, uint32_t *root)
{
    if (w->n_nodes == w->node_capacity && !pair_walk_grow_nodes(w))
        return false;
    size_t at = pair_walk_slot(w, value);
    if (!w->slots[at]) {
        w->nodes[w->n_nodes] = value;
        w->parents[w->n_nodes] = (uint32_t)w->n_nodes;
        w->slots[at] = (uint32_t)++w->n_nodes;
    }
    uint32_t node = w->slots[at] - 1;
    while (w->parents[node] != node)
        node = w->parents[node] = w->parents[w->parents[node]];
    *root = node;
    return true;
}

/* 1: the two values must be compared. 0: they are in one class already. -1: no memory. */
static int pair_walk_join_classes(pair_walk *w, const berth_value *a, const berth_value *b)
{
    uint32_t left, right;

    if (!pair_walk_find_or_add_class(w, a, &left) || !pair_walk_find_or_add_class(w, b, &right))
        return -1;
    if (left == right)
        return 0;
    w->parents[left] = right;
    return 1;
}

/* ---- matching keys ---- */

typedef struct named_item {
    const char *text;
    size_t nbytes;
    char *made; /* text of a key that is no str */
    size_t i;
} named_item;

static const berth_value *container_key(const berth_value *container, size_t i)
{
    berth_value *key = NULL;

    return berth_dict_at(container, i, &key, NULL) ? key : berth_value_at(container, i);
}

static const berth_value *container_item(const berth_value *container, size_t i)
{
    berth_value *item = NULL;

    return berth_dict_at(container, i, NULL, &item) ? item : berth_value_at(container, i);
}

static int compare_names(const named_item *a, const named_item *b)
{
    size_t n = a->nbytes < b->nbytes ? a->nbytes : b->nbytes;

    if (!a->made != !b->made)
        return a->made ? 1 : -1;
    int order = n ? memcmp(a->text, b->text, n) : 0;
    return order ? order : (a->nbytes > b->nbytes) - (a->nbytes < b->nbytes);
}

static int compare_names_then_index(const void *left, const void *right)
{
    const named_item *a = left, *b = right;
    int order = compare_names(a, b);

    return order ? order : (a->i > b->i) - (a->i < b->i); /* texts of long tuples are cut */
}

static void named_items_free(named_item *names, size_t n)
{
    for (size_t i = 0; names && i < n; i++)
        free(names[i].made);
    free(names);
}

/* The keys of a container in the order of their texts; NULL: an error was reported. */
static named_item *container_sorted_names(pair_walk *w, const berth_value *container, size_t n)
{
    named_item *names = calloc(n + 1, sizeof *names);
    bool too_long = false;
    size_t i;

    for (i = 0; names && i < n; i++) {
        const berth_value *key = container_key(container, i);
        named_item *name = &names[i];
        name->i = i;
        if (berth_value_kind(key) == BERTH_KIND_STR)
            name->text = berth_as_text(key, &name->nbytes);
        else if ((name->text = name->made = leaf_text(key)))
            name->nbytes = strlen(name->made);
        too_long = name->text && check_total_of_long_names(&w->long_nbytes, name->nbytes);
        if (!name->text || too_long)
            break;
    }
    if (!names || i < n) {
        named_items_free(names, n);
        if (!too_long) /* which is already reported */
            print_trouble("out of memory");
        return NULL;
    }
    qsort(names, n, sizeof *names, compare_names_then_index);
    return names;
}

/* 0, or EXIT_TROUBLE: an error was reported. */
static int frame_match_keys(pair_walk *w, frame *f)
{
    size_t n = berth_value_count(f->a), m = berth_value_count(f->b), i = 0, j = 0;
    named_item *left = container_sorted_names(w, f->a, n),
               *right = left ? container_sorted_names(w, f->b, m) : NULL;
    match *matches = left && right ? calloc(n + m + 1, sizeof *matches) : NULL;

    f->matches = matches;
    if (left && right && !matches)
        print_trouble("out of memory");
    while (matches && (i < n || j < m)) {
        int order = i == n ? 1 : j == m ? -1 : compare_names(&left[i], &right[j]);
        matches[f->n++] =
            (match){order <= 0 ? left[i].i : ABSENT, order >= 0 ? right[j].i : ABSENT};
        i += order <= 0;
        j += order >= 0;
    }
    named_items_free(left, n);
    named_items_free(right, m);
    return matches ? 0 : EXIT_TROUBLE;
}

/* ---- frames ---- */

static int pair_walk_push(pair_walk *w, const berth_value *a, const berth_value *b,
                          berth_kind family)
{
    if (!array_reserve(&w->frames, w->n_frames, &w->frame_capacity, sizeof *w->frames))
        return EXIT_TROUBLE;
    frame *f = &w->frames[w->n_frames++];
    *f = (frame){.a = a, .b = b, .family = family};
    if (family == BERTH_KIND_DICT || family == BERTH_KIND_SET)
        return frame_match_keys(w, f);
    size_t n = berth_value_count(unwrap_parameter_or_subclass(a)),
           m = berth_value_count(unwrap_parameter_or_subclass(b));
    f->n = n > m ? n : m;
    return 0;
}

static const berth_value *value_child_at_step(const berth_value *value, size_t step)
{
    const berth_tensor *tensor = berth_as_tensor(value);

    switch (step) {
    case STEP_LIST_ITEMS:
        return berth_value_part(value, BERTH_PART_LIST_ITEMS);
    case STEP_DICT_ITEMS:
        return berth_value_part(value, BERTH_PART_DICT_ITEMS);
    case STEP_STATE:
        return value_attributes(value);
    case STEP_CALLABLE:
        return berth_value_kind(value) == BERTH_KIND_CALL
                   ? berth_value_part(value, BERTH_PART_INNER)
                   : NULL;
    case STEP_SCALES:
        return tensor ? tensor->scales : NULL;
    default:
        return tensor ? tensor->zero_points : NULL;
    }
}

/* Keys and items of sets are matched by their texts, which are incomplete for objects and tuples.
 */
static bool key_text_is_complete(const berth_value *key)
{
    berth_kind kind = berth_value_kind(key);
    bool is_tensor = kind >= BERTH_KIND_TENSOR && kind <= BERTH_KIND_SUBCLASS;

    return kind != BERTH_KIND_CALL && kind != BERTH_KIND_TUPLE && !is_tensor;
}

/* Child `at` of a frame on both sides; NULL where a side has none. */
static void frame_get_child_pair(const frame *f, size_t at, const berth_value **a,
                                 const berth_value **b)
{
    match m = {at, at};

    *a = *b = NULL;
    if (at >= f->n + N_STEPS) { /* a key, if it must still be compared */
        m = f->matches[at - f->n - N_STEPS];
        if (m.i == ABSENT || m.j == ABSENT || key_text_is_complete(container_key(f->a, m.i)))
            return;
        *a = container_key(f->a, m.i);
        *b = container_key(f->b, m.j);
        return;
    }
    if (at >= f->n) {
        *a = value_child_at_step(f->a, at - f->n);
        *b = value_child_at_step(f->b, at - f->n);
        return;
    }
    if (f->matches)
        m = f->matches[at];
    *a = m.i == ABSENT ? NULL : container_item(unwrap_parameter_or_subclass(f->a), m.i);
    *b = m.j == ABSENT ? NULL : container_item(unwrap_parameter_or_subclass(f->b), m.j);
}

/* ---- paths ---- */

static const char *sparse_or_nested_part_name(const berth_value *value, size_t i)
{
    static const char *const names[][4] = {
        [BERTH_SPARSE_COO] = {"indices", "values", "", ""},
        [BERTH_SPARSE_CSR] = {"crow_indices", "col_indices", "values", ""},
        [BERTH_SPARSE_CSC] = {"ccol_indices", "row_indices", "values", ""},
        [BERTH_SPARSE_BSR] = {"crow_indices", "col_indices", "values", ""},
        [BERTH_SPARSE_BSC] = {"ccol_indices", "row_indices", "values", ""},
    };
    static const char *const nested[4] = {"buffer", "sizes", "strides", "storage_offsets"};

    if (berth_value_kind(value) == BERTH_KIND_NESTED)
        return nested[i & 3];
    int layout;
    (void)berth_as_constant(value, BERTH_KIND_LAYOUT, &layout);
    return names[layout][i & 3];
}

static bool frame_print_step(FILE *out, const frame *f, size_t at)
{
    bool is_key = at >= f->n + N_STEPS;

    if (is_key) {
        fputs(".keys", out);
        at -= f->n + N_STEPS;
    } else if (at >= f->n || f->family == BERTH_KIND_SPARSE || f->family == BERTH_KIND_NESTED) {
        fprintf(out, ".%s",
                at >= f->n ? step_names[at - f->n]
                           : sparse_or_nested_part_name(unwrap_parameter_or_subclass(f->a), at));
        return true;
    }
    if (!f->matches) {
        fprintf(out, "[%zu]", at);
        return true;
    }
    match m = f->matches[at];
    char *text = leaf_text(m.i == ABSENT ? container_key(f->b, m.j) : container_key(f->a, m.i));
    if (text)
        fprintf(out, "[%s]", text);
    free(text);
    return text != NULL;
}

char *pair_path(const pair_walk *w)
{
    char *path = NULL;
    size_t nbytes;
    FILE *out = open_memstream(&path, &nbytes);
    bool done = out && fputs(w->name, out) >= 0;

    for (size_t i = 0; done && i < w->n_frames; i++)
        done = frame_print_step(out, &w->frames[i], w->frames[i].next - 1);
    if (out && fclose(out) != 0)
        done = false;
    if (!done) {
        free(path);
        path = NULL;
    }
    return path;
}

bool pair_is_attributes(const pair_walk *w)
{
    const frame *top = w->n_frames ? &w->frames[w->n_frames - 1] : NULL;

    return top && top->family == BERTH_KIND_DICT && top->next - 1 == top->n + STEP_STATE;
}

/* ---- the walk ---- */

/* Reports two values, and enters them if they have values inside. */
static int pair_walk_visit(pair_walk *w, const berth_value *a, const berth_value *b)
{
    const pair_visitor *visitor = w->visitor;

    if (!a || !b)
        return a || b ? visitor->only(visitor->context, w, a != NULL) : 0;
    berth_kind family = value_kind_family(unwrap_parameter_or_subclass(a));
    if (family == BERTH_KIND_NONE || family != value_kind_family(unwrap_parameter_or_subclass(b)))
        return visitor->both(visitor->context, w, a, b);
    int first = pair_walk_join_classes(w, a, b);
    if (first <= 0)
        return first < 0 ? print_trouble("out of memory") : 0;
    int code = 0;
    if (family == BERTH_KIND_TENSOR || family == BERTH_KIND_SPARSE)
        code = visitor->both(visitor->context, w, a, b);
    return code ? code : pair_walk_push(w, a, b, family);
}

static int pair_walk_run(pair_walk *w, const named_pair *pair)
{
    const berth_value *a, *b;

    w->name = pair->name;
    int code = pair_walk_visit(w, pair->a, pair->b);
    while (!code && w->n_frames) {
        frame *top = &w->frames[w->n_frames - 1];
        /* Items, steps, and the keys of a dict. */
        if (top->next == top->n + N_STEPS + (top->family == BERTH_KIND_DICT ? top->n : 0)) {
            free(top->matches);
            w->n_frames--;
            continue;
        }
        frame_get_child_pair(top, top->next++, &a, &b);
        if (top->family != BERTH_KIND_SET || !a || !b || !key_text_is_complete(a))
            code = pair_walk_visit(w, a, b);
    }
    return code;
}

int walk_named_pairs(const named_pair *pairs, size_t n, const pair_visitor *visitor)
{
    pair_walk w = {.visitor = visitor};
    int code = 0;

    for (size_t i = 0; i < n && !code; i++)
        code = pair_walk_run(&w, &pairs[i]);
    while (w.n_frames)
        free(w.frames[--w.n_frames].matches);
    free(w.frames);
    free(w.nodes);
    free(w.parents);
    free(w.slots);
    return code;
}

int walk_pairs(const berth_value *a, const berth_value *b, const pair_visitor *visitor)
{
    return walk_named_pairs(&(named_pair){"", a, b}, 1, visitor);
}
