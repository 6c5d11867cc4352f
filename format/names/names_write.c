/* SPDX-License-Identifier: BSD-3-Clause */
/* The texts of names: Python's repr of keys, steps, short names and paths. */
#include "format/names/names.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/shown_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a text that grows ---- */

void bth_name_text_append_bytes(bth_name_text *out, const char *text, size_t nbytes)
{
    if (out->failed || out->cut)
        return;
    if (nbytes > out->limit - out->nbytes) {
        out->cut = true;
        return;
    }
    if (nbytes >= out->capacity - out->nbytes) {
        size_t capacity = out->nbytes + nbytes + out->capacity / 2 + 96;
        char *grown = bth_reallocate(out->text, capacity);
        if (!grown) {
            out->failed = true;
            return;
        }
        out->text = grown;
        out->capacity = capacity;
    }
    memcpy(out->text + out->nbytes, text, nbytes);
    out->nbytes += nbytes;
    out->text[out->nbytes] = '\0';
}

static void name_text_append_text(bth_name_text *out, const char *text)
{
    bth_name_text_append_bytes(out, text, strlen(text));
}

/* At most 159 bytes. */
__attribute__((format(printf, 2, 3))) static void name_text_append_format(bth_name_text *out,
                                                                          const char *format, ...)
{
    char text[160];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    name_text_append_text(out, text);
}

/* ---- repr: numbers ---- */

/* As Python's repr of a float: exponents from 1e16 on and below 1e-4. */
static void repr_float(bth_name_text *out, double value, bool whole)
{
    if (isnan(value) || isinf(value)) {
        name_text_append_text(out, isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
        return;
    }
    if (signbit(value))
        name_text_append_text(out, "-");
    /* The shortest digits that read back as the same double, without a decimal point, which the
     * process's locale could change. */
    char text[64], digits[32] = "";
    for (int precision = 0; precision < 17; precision++) {
        (void)snprintf(text, sizeof(text), "%.*e", precision, fabs(value));
        if (strtod(text, NULL) == fabs(value))
            break;
    }
    int n = 0;
    const char *at = text;
    for (; *at != 'e'; at++) /* a finite number has one */
        if (*at >= '0' && *at <= '9')
            digits[n++] = *at;
    int exponent = (int)strtol(at + 1, NULL, 10);
    if (exponent < -4 || exponent >= 16) {
        bth_name_text_append_bytes(out, digits, 1);
        if (n > 1)
            name_text_append_text(out, ".");
        name_text_append_text(out, digits + 1);
        name_text_append_format(out, "e%s%02d", exponent < 0 ? "-" : "+", abs(exponent));
        return;
    }
    if (exponent < 0)
        bth_name_text_append_bytes(out, "0.0000", (size_t)(1 - exponent));
    for (int i = 0; i < n || i <= exponent; i++) {
        if (i == exponent + 1 && exponent >= 0)
            name_text_append_text(out, ".");
        bth_name_text_append_bytes(out, i < n ? digits + i : "0", 1);
    }
    if (n <= exponent + 1 && !whole)
        name_text_append_text(out, ".0");
}

/* An integer: of up to 255 bytes beyond 64 bits, in decimal by repeated division by 10^9. */
static void repr_int(bth_name_text *out, const berth_value *key)
{
    size_t nbytes;
    int64_t integer;
    const uint8_t *bytes = berth_as_bytes(key, &nbytes);
    if (!bytes) {
        berth_as_int(key, &integer);
        name_text_append_format(out, "%" PRId64, integer);
        return;
    }
    uint32_t words[64] = {0}, groups[80];
    bool negative = bytes[nbytes - 1] & 0x80;
    unsigned carry = negative;
    for (size_t i = 0; i < nbytes; i++) {
        unsigned byte = (negative ? (uint8_t)~bytes[i] : bytes[i]) + carry;
        words[i / 4] |= (byte & 0xff) << i % 4 * 8;
        carry = byte >> 8;
    }
    size_t n_groups = 0;
    for (size_t n = 64; n > 0;) {
        uint64_t rest = 0;
        for (size_t i = n; i-- > 0;) {
            rest = rest << 32 | words[i];
            words[i] = (uint32_t)(rest / 1000000000);
            rest %= 1000000000;
        }
        groups[n_groups++] = (uint32_t)rest;
        while (n > 0 && words[n - 1] == 0)
            n--;
    }
    name_text_append_text(out, negative ? "-" : "");
    for (size_t i = n_groups; i-- > 0;)
        name_text_append_format(out, i + 1 == n_groups ? "%" PRIu32 : "%09" PRIu32, groups[i]);
}

/* ---- repr: texts ---- */

/* A str, or bytes, of which only ASCII is printable. A text in " has no ' to escape. */
static void repr_quoted(bth_name_text *out, const berth_value *key)
{
    static const char from[] = "\n\r\t\\'", to[] = "nrt\\'";
    bool is_str = berth_value_kind(key) == BERTH_KIND_STR;
    size_t nbytes;
    const uint8_t *text =
        is_str ? (const uint8_t *)berth_as_text(key, &nbytes) : berth_as_bytes(key, &nbytes);
    bool is_double = memchr(text, '\'', nbytes) && !memchr(text, '"', nbytes);
    const char *quote = is_double ? "\"" : "'";
    name_text_append_text(out, is_str ? "" : "b");
    name_text_append_text(out, quote);
    size_t plain = 0; /* runs of plain characters go out at once */
    for (size_t at = 0; at < nbytes && !out->cut;) {
        while (at < nbytes && text[at] >= 0x20 && text[at] < 0x7f && text[at] != '\\' &&
               text[at] != '\'')
            at++;
        if (at == nbytes)
            break;
        /* One code point of valid UTF-8 (surrogates pass), or one byte. */
        uint32_t point = text[at];
        size_t n = !is_str || point < 0x80 ? 1 : point < 0xe0 ? 2 : point < 0xf0 ? 3 : 4;
        if (n > 1)
            point &= 0xffu >> (n + 1);
        for (size_t i = 1; i < n; i++)
            point = point << 6 | (text[at + i] & 0x3f);
        bool is_printable =
            is_str ? !bth_character_is_unseen(point) : point >= 0x20 && point < 0x7f;
        if (!is_printable || point == '\\' || point == (uint8_t)*quote) {
            bth_name_text_append_bytes(out, (const char *)text + plain, at - plain);
            const char *known = point && point < 0x80 ? strchr(from, (int)point) : NULL;
            if (known)
                name_text_append_format(out, "\\%c", to[known - from]);
            else
                name_text_append_format(out,
                                        point < 0x100     ? "\\x%02" PRIx32
                                        : point < 0x10000 ? "\\u%04" PRIx32
                                                          : "\\U%08" PRIx32,
                                        point);
            plain = at + n;
        }
        at += n;
    }
    bth_name_text_append_bytes(out, (const char *)text + plain, nbytes - plain);
    name_text_append_text(out, quote);
}

/* ---- repr: all kinds ---- */

/* The name in getattr(object, name), as pickles say what is inside a class; NULL: another value. */
static const char *call_get_attribute_name(const berth_value *value)
{
    static const char identifier[] =
        "_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    const char *called = berth_as_text(berth_value_part(value, BERTH_PART_INNER), NULL);
    const char *name = NULL;
    size_t nbytes = 0;
    if (berth_value_kind(value) == BERTH_KIND_CALL && berth_value_count(value) == 2 && called &&
        (strcmp(called, "builtins getattr") == 0 || strcmp(called, "__builtin__ getattr") == 0) &&
        berth_value_kind(bth_value_item(value, 1)) == BERTH_KIND_STR)
        name = berth_as_text(bth_value_item(value, 1), &nbytes);
    return nbytes > 0 && strspn(name, identifier) == nbytes ? name : NULL;
}

/* As Python shows objects: "<module Outer.Inner 7>", with a number instead of an address. More than
 * a few levels are not shown, so that names cost no more than P3. */
static void repr_object_with_id(bth_name_text *out, const berth_value *key)
{
    enum { MAX_LEVELS = 4 };
    const char *names[MAX_LEVELS];
    size_t n = 0;
    bool is_object = berth_value_kind(key) == BERTH_KIND_CALL && !call_get_attribute_name(key);
    const berth_value *shown = is_object ? berth_value_part(key, BERTH_PART_INNER) : key;
    while (n < MAX_LEVELS && (names[n] = call_get_attribute_name(shown))) {
        shown = bth_value_item(shown, 0);
        n++;
    }
    bool is_named = berth_value_kind(shown) == BERTH_KIND_GLOBAL;
    name_text_append_text(out, "<");
    name_text_append_format(out, "%.100s",
                            is_named ? berth_as_text(shown, NULL)
                                     : berth_kind_name(berth_value_kind(shown)));
    while (n-- > 0)
        name_text_append_format(out, ".%.100s", names[n]);
    name_text_append_format(out, " %zu>", bth_value_id(key));
}

/* All kinds that contain no other values. */
static void repr_scalar(bth_name_text *out, const berth_value *key)
{
    const char *type;
    int64_t index;
    double real = bth_value_real(key), imaginary = bth_value_imaginary(key);
    bool is_alone;
    switch (berth_value_kind(key)) {
    case BERTH_KIND_NONE:
        name_text_append_text(out, "None");
        break;
    case BERTH_KIND_BOOL:
        name_text_append_text(out, bth_value_bool(key) ? "True" : "False");
        break;
    case BERTH_KIND_INT:
        repr_int(out, key);
        break;
    case BERTH_KIND_FLOAT:
        repr_float(out, real, false);
        break;
    case BERTH_KIND_COMPLEX:
        is_alone = real == 0 && !signbit(real); /* 2j; with a real part (1+2j) */
        if (!is_alone) {
            name_text_append_text(out, "(");
            repr_float(out, real, true);
            if (!signbit(imaginary) || isnan(imaginary))
                name_text_append_text(out, "+");
        }
        repr_float(out, imaginary, true);
        name_text_append_text(out, is_alone ? "j" : "j)");
        break;
    case BERTH_KIND_STR:
    case BERTH_KIND_BYTES:
        repr_quoted(out, key);
        break;
    case BERTH_KIND_DEVICE:
        type = bth_value_device_type_and_index(key, &index);
        name_text_append_format(out, "device(type='%.40s'", type);
        if (index >= 0)
            name_text_append_format(out, ", index=%" PRId64, index);
        name_text_append_text(out, ")");
        break;
    case BERTH_KIND_DTYPE:
        name_text_append_text(out, "torch.");
        name_text_append_text(out, berth_dtype_name(bth_value_as_dtype(key)));
        break;
    default: /* P4: nothing else is a key */
        repr_object_with_id(out, key);
        break;
    }
}

void bth_name_text_append_repr(bth_name_text *out, const berth_value *key)
{
    struct {
        const berth_value *value;
        size_t next;
    } open[BTH_TUPLE_REPR_NBYTES]; /* tuples: each has a bracket in the text */
    size_t n_open = 0, outer = out->limit;
    if (berth_value_kind(key) != BERTH_KIND_TUPLE && berth_value_kind(key) != BERTH_KIND_SIZE) {
        repr_scalar(out, key);
        return;
    }
    if (outer - out->nbytes > BTH_TUPLE_REPR_NBYTES)
        out->limit = out->nbytes + BTH_TUPLE_REPR_NBYTES;
    for (const berth_value *item = key;;) {
        bool is_size = berth_value_kind(item) == BERTH_KIND_SIZE;
        if (!item) {
            n_open--;
            is_size = berth_value_kind(open[n_open].value) == BERTH_KIND_SIZE;
            name_text_append_text(out, is_size ? "])" : open[n_open].next == 1 ? ",)" : ")");
        } else if (is_size || berth_value_kind(item) == BERTH_KIND_TUPLE) {
            name_text_append_text(out, is_size ? "torch.Size([" : "(");
            open[n_open].value = item;
            open[n_open++].next = 0;
        } else {
            repr_scalar(out, item);
        }
        if (out->cut || out->failed || n_open == 0 || n_open == BTH_TUPLE_REPR_NBYTES)
            break;
        item = bth_value_item(open[n_open - 1].value, open[n_open - 1].next);
        if (item)
            name_text_append_text(out, open[n_open - 1].next++ ? ", " : "");
    }
    if (out->limit != outer && (out->cut || n_open)) {
        out->limit = outer;
        out->cut = false;
        name_text_append_text(out, "...)");
    }
    out->limit = outer;
}

/* ---- steps ---- */

const char *bth_step_attribute_name(const berth_value *parent, uint32_t step)
{
    static const char *const nested[] = {"buffer", "sizes", "strides", "storage_offsets"};
    static const char *const quantized[] = {"scales", "zero_points"};
    static const char *const sparse[][3] = {
        [BERTH_SPARSE_COO] = {"indices", "values"},
        [BERTH_SPARSE_CSR] = {"crow_indices", "col_indices", "values"},
        [BERTH_SPARSE_CSC] = {"ccol_indices", "row_indices", "values"},
        [BERTH_SPARSE_BSR] = {"crow_indices", "col_indices", "values"},
        [BERTH_SPARSE_BSC] = {"ccol_indices", "row_indices", "values"},
    };
    berth_kind kind = berth_value_kind(parent);
    switch (step) {
    case BTH_STEP_STATE:
        return "__dict__";
    case BTH_STEP_LIST_ITEMS:
        return "list_items";
    case BTH_STEP_DICT_ITEMS:
        return "dict_items";
    case BTH_STEP_INNER:
        return kind == BERTH_KIND_CALL ? "callable" : "data";
    default: /* only parts of tensors have names */
        if (!bth_kind_is_tensor(kind) || !bth_tensor_part(parent, step))
            return NULL;
        parent = bth_value_unwrap_tensor(parent);
        kind = berth_value_kind(parent);
        return kind == BERTH_KIND_TENSOR   ? quantized[step]
               : kind == BERTH_KIND_NESTED ? nested[step]
                                           : sparse[bth_value_layout(parent)][step];
    }
}

void bth_name_text_append_step(bth_name_text *out, const berth_value *parent, uint32_t index,
                               bool is_path)
{
    const char *attribute = bth_step_attribute_name(parent, index);
    const berth_value *key = attribute ? NULL : bth_value_key(parent, index);
    size_t nbytes;
    const char *text = berth_value_kind(key) == BERTH_KIND_STR ? berth_as_text(key, &nbytes) : NULL;
    if (is_path)
        name_text_append_text(out, attribute ? "." : "[");
    if (attribute)
        name_text_append_text(out, attribute);
    else if (text && !is_path)
        bth_name_text_append_bytes(out, text, nbytes);
    else if (key)
        bth_name_text_append_repr(out, key);
    else
        name_text_append_format(out, "%" PRIu32, index);
    if (is_path && !attribute)
        name_text_append_text(out, "]");
}

/* ---- entries ---- */

void bth_name_text_write_entry_name(bth_name_text *out, const bth_names *names, uint32_t entry,
                                    bool path)
{
    size_t n = 0;
    for (uint32_t at = entry; names->entries[at].parent != UINT32_MAX;
         at = names->entries[at].parent)
        n++;
    out->nbytes = 0;
    out->cut = out->failed = false;
    bth_name_text_append_bytes(out, "", 0);
    if (n == 0)
        return;
    uint32_t few[32], *chain = n <= 32 ? few : bth_allocate(n * sizeof(*chain));
    if (!chain) {
        out->failed = true;
        return;
    }
    n = 0;
    for (uint32_t at = entry; names->entries[at].parent != UINT32_MAX;
         at = names->entries[at].parent)
        chain[n++] = at;
    for (size_t i = n; i-- > 0;) {
        const struct names_entry *step = &names->entries[chain[i]];
        const berth_value *parent = names->entries[step->parent].value;
        if (!path && i + 1 < n)
            name_text_append_text(out, ".");
        bth_name_text_append_step(out, parent, step->index, path);
    }
    if (chain != few)
        bth_release(chain);
}

/* Without NULs, which would end a name, and without surrogates, which are not UTF-8. There is a NUL
 * behind the last byte. */
static bool text_can_be_name(const char *text, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++)
        if (text[i] == '\0' || ((uint8_t)text[i] == 0xed && (uint8_t)text[i + 1] >= 0xa0))
            return false;
    return true;
}

const char *bth_names_tensor_root_key(const bth_names *names, size_t i, bool any_form)
{
    const struct names_entry *entry = &names->entries[names->tensors[i]];
    const berth_value *key = entry->parent == 0 ? bth_value_key(names->root, entry->index) : NULL;
    size_t nbytes;
    const char *text = berth_value_kind(key) == BERTH_KIND_STR ? berth_as_text(key, &nbytes) : NULL;
    return text && (any_form || text[0] != '[') && text_can_be_name(text, nbytes) ? text : NULL;
}

int bth_names_write_tensor_name_and_path(const bth_names *names, size_t i, bth_name_text *name,
                                         bth_name_text *path, berth_error *error)
{
    if (i >= names->n_tensors)
        return bth_fail_argument(error, "no tensor %zu of %u", i, names->n_tensors);
    uint32_t entry = names->tensors[i];
    bool shared = names->entries[entry].hash & BTH_NAME_SHARED;
    name->limit = BTH_MAX_NAME_NBYTES;
    bth_name_text_write_entry_name(name, names, entry, shared);
    if (!shared && !name->failed && !name->cut) {
        /* It must not begin like a path, or be empty, as only the root's is. */
        bool can_be_used = name->nbytes == 0 ? names->entries[entry].parent == UINT32_MAX
                                             : name->text[0] != '[' && name->text[0] != '.' &&
                                                   text_can_be_name(name->text, name->nbytes);
        if (!can_be_used)
            bth_name_text_write_entry_name(name, names, entry, true);
    }
    path->limit = BTH_MAX_NAME_NBYTES;
    bth_name_text_write_entry_name(path, names, entry, true);
    if (name->failed || path->failed)
        return bth_fail_memory(error, name->nbytes + path->nbytes);
    if (path->cut)
        return bth_fail_status(error, BERTH_E_UNSUPPORTED,
                               "the name of tensor %zu has more than %zu bytes", i,
                               BTH_MAX_NAME_NBYTES);
    return 0;
}

int bth_names_allocate_tensor_name_and_path(const bth_names *names, size_t i, char **name,
                                            char **path, berth_error *error)
{
    bth_name_text texts[2] = {{0}, {0}};
    int code = bth_names_write_tensor_name_and_path(names, i, &texts[0], &texts[1], error);
    for (int k = 0; k < 2 && code < 0; k++) {
        bth_release(texts[k].text);
        texts[k].text = NULL;
    }
    *name = texts[0].text;
    *path = texts[1].text;
    return code;
}
