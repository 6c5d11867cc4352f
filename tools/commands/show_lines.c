/* SPDX-License-Identifier: BSD-3-Clause */
/* berth show: one value as a line. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/commands/show.h"
#include "tools/common/elements.h"
#include "tools/common/non_tensor_values.h"
#include "tools/common/report.h"

static void print_tensor_facts(FILE *out, const berth_tensor *tensor)
{
    char shape[256];

    shape_text(tensor, shape, sizeof shape);
    fprintf(out, "%s %s", berth_dtype_name(tensor->dtype), shape);
    if (tensor->qscheme == BERTH_PER_TENSOR_AFFINE || tensor->qscheme == BERTH_PER_TENSOR_SYMMETRIC)
        fprintf(out, " (scale %.9g, zero point %" PRId64 ")", tensor->scale, tensor->zero_point);
    if (tensor->flags & BERTH_META)
        fputs(" on the meta device", out);
}

/* Returns 0 or an exit code after printing why. */
static int show_print_tensor(const show *s, const berth_tensor *tensor)
{
    int64_t n;
    uint8_t *elements;
    int code = show_read_elements(s, tensor, &n, &elements);

    if (code)
        return code;
    print_tensor_facts(stdout, tensor);
    for (int64_t i = 0; i < n; i++) {
        fputs(i ? ", " : ": ", stdout);
        print_element(stdout, tensor->dtype,
                      elements + (size_t)i * berth_dtype_nbytes(tensor->dtype));
    }
    fputs(n && n < berth_tensor_numel(tensor) ? ", ..." : "", stdout);
    free(elements);
    return 0;
}

/* ---- lines ---- */

void show_print_key(const show *s, size_t depth)
{
    printf("%*s", show_indent(depth), "");
    if (!s->key[0])
        return;
    char *key = strdup(s->key);
    if (key)
        shorten(key);
    print_painted(BLUE, key ? key : "...");
    free(key);
    fputs(": ", stdout);
}

static void print_leaf(const berth_value *value, bool whole)
{
    char *text = leaf_text_start(value, whole ? SIZE_MAX : SHOWN_TEXT_NBYTES);

    print_shown(stdout, text ? text : "out of memory");
    free(text);
}

static void show_print_row(show *s, const berth_value *row)
{
    static const char *const brackets[] = {
        [BERTH_KIND_LIST] = "[]", [BERTH_KIND_TUPLE] = "()", [BERTH_KIND_SET] = "{}"};
    berth_kind kind = berth_value_kind(row);
    size_t n = berth_value_count(row), max = show_length(s);

    putchar(brackets[kind][0]);
    for (size_t i = 0; i < n && i < max; i++) {
        fputs(i ? ", " : "", stdout);
        print_leaf(berth_value_at(row, i), false);
    }
    if (n > max) {
        printf(", ... %zu more", n - max);
        s->n_left_out += n - max;
    }
    printf("%s%c", kind == BERTH_KIND_TUPLE && n == 1 ? "," : "", brackets[kind][1]);
}

/* What a container is. What is in it follows on lines of its own. */
static void print_container_facts(const berth_value *value)
{
    berth_kind kind = berth_value_kind(value);
    const berth_value *called =
        kind == BERTH_KIND_CALL ? berth_value_part(value, BERTH_PART_INNER) : NULL;

    if (berth_as_text(called, NULL)) {
        print_leaf(called, false);
        fputs(", not built", stdout);
    } else if (kind == BERTH_KIND_SPARSE) {
        print_leaf(value, false);
    } else if (berth_value_count(value) || kind == BERTH_KIND_DICT) {
        printf("%s of %zu", berth_kind_name(kind), berth_value_count(value));
    } else {
        fputs(berth_kind_name(kind), stdout);
    }
}

/* Prints the line of a value. Returns 0 or an exit code after printing why. */
int show_print_line(show *s, const berth_value *value, size_t depth)
{
    show_print_key(s, depth);
    if (berth_as_tensor(value))
        return show_print_tensor(s, berth_as_tensor(value));
    if (show_value_is_row(value))
        show_print_row(s, value);
    else if (show_value_has_inside(value) || berth_value_kind(value) == BERTH_KIND_DICT)
        print_container_facts(value);
    else
        print_leaf(value, depth == 0);
    return 0;
}
