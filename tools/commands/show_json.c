/* SPDX-License-Identifier: BSD-3-Clause */
/* berth show: one value as JSON. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/commands/show.h"
#include "tools/common/elements.h"
#include "tools/common/non_tensor_values.h"
#include "tools/common/report.h"

static json_t *element_json(berth_dtype dtype, const uint8_t *at)
{
    char *text = NULL;
    size_t nbytes;
    FILE *out = open_memstream(&text, &nbytes);

    if (!out)
        return NULL;
    print_element(out, dtype, at);
    (void)fclose(out);
    json_t *number = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
    if (!number && text && dtype == BERTH_BOOL)
        number = json_boolean(*at);
    else if (!number && text)
        number = json_string(text); /* nan, inf, complex numbers, numbers beyond 63 bits */
    free(text);
    return number;
}

/* *json stays NULL on failure. Returns 0 or an exit code after printing why. */
static int show_tensor_json(const show *s, const berth_tensor *tensor, json_t **json)
{
    int64_t n;
    uint8_t *elements;
    int code = show_read_elements(s, tensor, &n, &elements);

    if (code)
        return code;
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++)
        json_array_append_new(
            list,
            element_json(tensor->dtype, elements + (size_t)i * berth_dtype_nbytes(tensor->dtype)));
    free(elements);
    *json =
        json_pack("{s:s,s:s,s:o,s:o}", "kind", "tensor", "dtype", berth_dtype_name(tensor->dtype),
                  "shape", json_ints(tensor->shape, tensor->rank), "first_elements", list);
    return 0;
}

/*
 * P3: a file can have one text in many places. When long ones took so much, their beginnings must
 * do.
 */
static bool show_has_room_for_text(show *s, size_t nbytes)
{
    enum { LONG_NBYTES = 1024, MAX_NBYTES = 16 << 20 };

    if (nbytes <= LONG_NBYTES)
        return true;
    s->text_nbytes += nbytes;
    return s->text_nbytes <= MAX_NBYTES;
}

static json_t *leaf_json(show *s, const berth_value *value)
{
    size_t nbytes = 0;
    const char *text = berth_as_text(value, &nbytes);
    bool is_true;
    int64_t integer;
    double number;

    if (berth_value_kind(value) == BERTH_KIND_NONE)
        return json_null();
    if (berth_as_bool(value, &is_true))
        return json_boolean(is_true);
    if (berth_as_int(value, &integer))
        return json_integer(integer);
    if (berth_as_float(value, &number) && isfinite(number))
        return json_real(number);
    if (!text)
        (void)berth_as_bytes(value, &nbytes);
    bool whole = show_has_room_for_text(s, nbytes);
    json_t *string =
        berth_value_kind(value) == BERTH_KIND_STR && whole ? json_stringn(text, nbytes) : NULL;
    if (string)
        return string;
    char *shown = leaf_text_start(value, whole ? SIZE_MAX : SHOWN_TEXT_NBYTES);
    json_t *json = json_pack("{s:s,s:o}", "kind", berth_kind_name(berth_value_kind(value)), "text",
                             text_json(shown ? shown : ""));
    free(shown);
    return json;
}

/* A list is an array, all else an object. */
static json_t *container_json(show *s, const berth_value *value)
{
    berth_kind kind = berth_value_kind(value);

    if (kind == BERTH_KIND_LIST || kind == BERTH_KIND_TUPLE || kind == BERTH_KIND_SET)
        return json_array();
    if (kind >= BERTH_KIND_DICT && kind <= BERTH_KIND_COUNTER)
        return json_object();
    return leaf_json(s, value);
}

/* The text of a key that is a text; NULL: another key, or one that no C string can hold. */
static const char *level_key_text(const show_level *in)
{
    berth_value *key = NULL;
    size_t nbytes = 0;

    (void)berth_dict_at(in->value, in->n_items - 1, &key, NULL);
    const char *text = berth_value_kind(key) == BERTH_KIND_STR ? berth_as_text(key, &nbytes) : NULL;
    return text && strlen(text) == nbytes ? text : NULL;
}

/* Puts a value into the container that it is in, or makes it the report. A key that is taken, as 1
 * after '1', is written as in paths. */
void show_add_json(show *s, json_t *json)
{
    show_level *in = s->n_levels ? &s->levels[s->n_levels - 1] : NULL;
    const char *text = in ? level_key_text(in) : NULL;

    if (!in) {
        s->report = json;
    } else if (json_is_array(in->container)) {
        json_array_append_new(in->container, json);
    } else {
        if (!text || json_object_get(in->container, text) ||
            json_object_set(in->container, text, json) < 0)
            (void)json_object_set(in->container, s->key, json);
        json_decref(json);
    }
}

/* *json: what is in the value is added to it. Returns 0 or an exit code after printing why. */
int show_add_value_json(show *s, const berth_value *value, json_t **json)
{
    const berth_tensor *tensor = berth_as_tensor(value);
    int code = 0;

    if (tensor)
        code = show_tensor_json(s, tensor, json);
    else
        *json = show_value_has_inside(value) || show_value_is_row(value) ? container_json(s, value)
                                                                         : leaf_json(s, value);
    if (!code)
        show_add_json(s, *json);
    return code;
}
