/* SPDX-License-Identifier: BSD-3-Clause */
/* Finds values by name. */
#include "format/names/names.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/shown_text.h"
#include "format/values/value.h"

#include <stdlib.h>
#include <string.h>

/* Limits of the search for values without an entry, and of the search for similar names. */
enum {
    MAX_READINGS = 10000,
    MAX_NEAR = 10000,
    MAX_NEAR_NBYTES = BTH_MAX_DISTANCE_NBYTES,
    MAX_STEPS = 4
};

/* A message must have room for two names. */
enum { MAX_SHOWN_NBYTES = 200 };

/* ---- one step, by text ---- */

/* Reads a decimal without leading zeros; it may have a minus sign if `negative`. */
static bool int64_parse_decimal(const char *text, size_t nbytes, bool negative, int64_t *integer)
{
    bool minus = negative && nbytes > 1 && text[0] == '-';
    size_t at = minus;
    *integer = 0;
    if (at == nbytes || (text[at] == '0' && nbytes > 1))
        return false;
    for (; at < nbytes; at++) {
        int digit = text[at] - '0';
        if (digit < 0 || digit > 9 || __builtin_mul_overflow(*integer, 10, integer) ||
            __builtin_add_overflow(*integer, minus ? -digit : digit, integer))
            return false;
    }
    return true;
}

/* W6: a name that could not be written for lack of memory is an error, not a different name. */
static bool name_text_ran_out_of_memory(const bth_name_text *out, berth_error *error)
{
    if (out->failed)
        (void)bth_fail_memory(error, out->nbytes + 32);
    return out->failed;
}

/* Finds up to two keys that are no str, by the text between the brackets of a path: an int64, or
 * keys of other kinds by their repr. Returns how many. Several keys can have one repr: long tuples
 * with the same beginning, NaNs. */
static int keys_find_non_str_by_text(const berth_value *dict, const char *text, size_t nbytes,
                                     size_t found[2], berth_error *error)
{
    size_t n = berth_value_count(dict);
    int64_t integer;
    int n_found = 0;
    if (int64_parse_decimal(text, nbytes, true, &integer)) {
        found[0] = bth_dict_find_int_position(dict, integer);
        return found[0] != SIZE_MAX;
    }
    for (size_t i = 0; i < n && n_found < 2; i++) {
        const berth_value *key = bth_value_key(dict, i);
        if (berth_value_kind(key) == BERTH_KIND_STR || berth_as_int(key, &integer))
            continue;
        /* With room for the longest cut tuple, so that this limit does not cut it again. */
        bth_name_text out = {.limit = nbytes + BTH_TUPLE_REPR_NBYTES + 4};
        bth_name_text_append_repr(&out, key);
        bool same = !out.cut && !name_text_ran_out_of_memory(&out, error) && out.nbytes == nbytes &&
                    memcmp(out.text, text, nbytes) == 0;
        bth_release(out.text);
        if (same)
            found[n_found++] = i;
    }
    return n_found;
}

/* Finds an attribute or a part of a tensor by name; false if the value does not have it. */
static bool step_find_attribute_or_part(const berth_value *value, const char *text, size_t nbytes,
                                        uint32_t *step)
{
    const char *name;
    *step = BTH_STEP_LIST_ITEMS;
    while ((name = bth_step_attribute_name(value, *step))) {
        if (strlen(name) == nbytes && memcmp(name, text, nbytes) == 0 &&
            bth_value_child_at_step(value, *step))
            return true;
        *step = *step == BTH_STEP_STATE ? 0 : *step + 1; /* the parts come last */
    }
    return false;
}

/* Finds the steps that a part of a short name can mean: a str key, an int key or two keys with that
 * repr, and an attribute. */
static int steps_find_by_text(const berth_value *value, const char *text, size_t nbytes,
                              uint32_t steps[MAX_STEPS], berth_error *error)
{
    int n = 0;
    int64_t integer;
    if (bth_kind_is_dict(berth_value_kind(value))) {
        size_t found[2];
        size_t i = bth_dict_find_text_position(value, text, nbytes);
        if (i != SIZE_MAX)
            steps[n++] = (uint32_t)i;
        int n_others = keys_find_non_str_by_text(value, text, nbytes, found, error);
        for (int other = 0; other < n_others; other++)
            steps[n++] = (uint32_t)found[other];
    } else if (int64_parse_decimal(text, nbytes, false, &integer) &&
               (uint64_t)integer < berth_value_count(value) && integer < BTH_STEP_LIST_ITEMS &&
               !bth_kind_is_tensor(berth_value_kind(value))) {
        steps[n++] = (uint32_t)integer;
    }
    if (step_find_attribute_or_part(value, text, nbytes, &steps[n]))
        n++;
    return n;
}

/* ---- paths: ['a'][0].__dict__ ---- */

/* Reads a quoted text; *at is then behind its closing quote. A path ends with a NUL, so no check
 * for its end is needed behind a backslash. */
static bool path_parse_quoted(const char **at, bth_name_text *out)
{
    static const char from[] = "nrt\\'\"", to[] = "\n\r\t\\'\"";
    char quote = *(*at)++;
    bth_name_text_append_bytes(out, "", 0);
    while (**at && **at != quote) {
        char c = *(*at)++;
        if (c != '\\') {
            bth_name_text_append_bytes(out, &c, 1);
            continue;
        }
        c = *(*at)++;
        const char *known = c ? strchr(from, c) : NULL;
        if (known) {
            bth_name_text_append_bytes(out, &to[known - from], 1);
            continue;
        }
        size_t n_digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
        if (!n_digits || strspn(*at, "0123456789abcdefABCDEF") < n_digits)
            return false;
        char digits[9] = {0}, text[4];
        memcpy(digits, *at, n_digits);
        *at += n_digits;
        uint32_t point = (uint32_t)strtoul(digits, NULL, 16);
        if (point > 0x10ffff)
            return false;
        size_t n = point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
        for (size_t i = n; i-- > 1; point >>= 6)
            text[i] = (char)(0x80 | (point & 0x3f));
        text[0] = (char)(n == 1 ? point : (0xf00u >> n & 0xf0) | point);
        bth_name_text_append_bytes(out, text, n);
    }
    return *(*at)++ == quote;
}

/* Reads ['a'] or [0] or [(1, 2)] as a step; *at is then behind the bracket. */
static bool path_parse_and_find_item(const berth_value *value, const char **at, const char *end,
                                     uint32_t *index, berth_error *error)
{
    size_t found = SIZE_MAX;
    ++*at;
    if (*at < end && (**at == '\'' || **at == '"')) {
        bth_name_text out = {.limit = SIZE_MAX};
        if (path_parse_quoted(at, &out) && !name_text_ran_out_of_memory(&out, error) &&
            bth_kind_is_dict(berth_value_kind(value)))
            found = bth_dict_find_text_position(value, out.text, out.nbytes);
        bth_release(out.text);
        if (found == SIZE_MAX || *(*at)++ != ']') /* at the end there is a NUL */
            return false;
        *index = (uint32_t)found;
        return true;
    }
    /* A repr may contain brackets (torch.Size([1])), so each closing bracket is tried. */
    for (const char *close = *at; (close = memchr(close, ']', (size_t)(end - close))); close++) {
        int64_t integer;
        size_t nbytes = (size_t)(close - *at), keys[2];
        int n = bth_kind_is_dict(berth_value_kind(value))
                    ? keys_find_non_str_by_text(value, *at, nbytes, keys, error)
                    : 0;
        if (n == 2) {
            bth_fail_status(error, BERTH_E_AMBIGUOUS, "two keys are written as %.*s",
                            (int)(nbytes < MAX_SHOWN_NBYTES ? nbytes : MAX_SHOWN_NBYTES), *at);
            return false;
        }
        if (n == 1)
            found = keys[0];
        else if (!bth_kind_is_dict(berth_value_kind(value)) &&
                 int64_parse_decimal(*at, nbytes, false, &integer) && integer < BTH_STEP_LIST_ITEMS)
            found = (size_t)integer;
        if (found != SIZE_MAX || close + 1 - *at > 512) {
            *index = (uint32_t)found;
            *at = close + 1;
            return found != SIZE_MAX;
        }
    }
    return false;
}

/* The value of a path, or NULL. Also follows edges that the walk did not enter again. */
static const berth_value *value_find_by_path(const berth_value *root, const char *path,
                                             berth_error *error)
{
    const berth_value *value = root;
    const char *at = path, *end = path + strlen(path);
    while (value && at < end) {
        uint32_t index;
        bool found = false;
        if (*at == '[') {
            found = path_parse_and_find_item(value, &at, end, &index, error);
        } else if (*at == '.') {
            const char *from = ++at;
            at += strcspn(at, ".[");
            found = step_find_attribute_or_part(value, from, (size_t)(at - from), &index);
        }
        value = found ? bth_value_child_at_step(value, index) : NULL;
    }
    return value;
}

/* ---- short names of any values ---- */

/* A value that the first `at` bytes of the name lead to. */
struct reading {
    const berth_value *value;
    size_t at;
    uint32_t parent;
    uint32_t index;
};

static void reading_write_path(bth_name_text *out, const struct reading *readings, uint32_t reading)
{
    uint32_t chain[64] = {0};
    size_t n = 0;
    for (uint32_t at = reading; at != 0 && n < 64; at = readings[at].parent)
        chain[n++] = at;
    while (n-- > 0) {
        const struct reading *step = &readings[chain[n]];
        bth_name_text_append_step(out, readings[step->parent].value, step->index, true);
    }
}

static void name_fail_ambiguous(const char *name, bth_name_text *first, bth_name_text *second,
                                berth_error *error)
{
    bth_fail_status(error, BERTH_E_AMBIGUOUS, "\"%.*s\" is the name of two values: %.*s and %.*s",
                    MAX_SHOWN_NBYTES / 2, name, MAX_SHOWN_NBYTES, first->text ? first->text : "",
                    MAX_SHOWN_NBYTES, second->text ? second->text : "");
    bth_release(first->text);
    bth_release(second->text);
}

/* Any value by short name; NULL without an error if there is none. */
static const berth_value *value_find_by_short_name(const berth_value *root, const char *name,
                                                   berth_error *error)
{
    size_t nbytes = strlen(name);
    uint32_t n = 0, found[2] = {0}; /* readings of the whole name */
    int n_found = 0;
    bool too_many = false;
    struct reading *readings = bth_allocate(MAX_READINGS * sizeof(*readings));
    if (!readings)
        return bth_fail_memory(error, MAX_READINGS * sizeof(*readings)), NULL;
    readings[n++] = (struct reading){.value = root};
    for (uint32_t i = 0; i < n && n_found < 2 && !too_many; i++) {
        const berth_value *parent = readings[i].value;
        size_t from = readings[i].at;
        /* Tries every end of the next step, because keys may contain dots. */
        for (size_t end = from; end <= nbytes && !too_many; end++) {
            const char *dot = memchr(name + end, '.', nbytes - end);
            end = dot ? (size_t)(dot - name) : nbytes;
            uint32_t steps[MAX_STEPS];
            int n_steps = steps_find_by_text(parent, name + from, end - from, steps, error);
            for (int step = 0; step < n_steps; step++) {
                too_many = n == MAX_READINGS;
                if (too_many)
                    break;
                readings[n] =
                    (struct reading){.value = bth_value_child_at_step(parent, steps[step]),
                                     .at = end + 1,
                                     .parent = i,
                                     .index = steps[step]};
                if (end == nbytes && n_found < 2)
                    found[n_found++] = n;
                n++;
            }
        }
    }
    const berth_value *value = n_found ? readings[found[0]].value : NULL;
    if (error->code == BERTH_OK && n_found == 2) {
        bth_name_text first = {.limit = SIZE_MAX}, second = {.limit = SIZE_MAX};
        reading_write_path(&first, readings, found[0]);
        reading_write_path(&second, readings, found[1]);
        name_fail_ambiguous(name, &first, &second, error);
    } else if (error->code == BERTH_OK && too_many) {
        bth_fail_status(error, BERTH_E_AMBIGUOUS,
                        "\"%.*s\" can be read in more than %d ways; use its path, as ['a'][0]",
                        MAX_SHOWN_NBYTES, name, MAX_READINGS);
    }
    bth_release(readings);
    return error->code == BERTH_OK ? value : NULL;
}

/* ---- similar names ---- */

/* The message shows the most similar of the first names. */
static void name_fail_not_found(const bth_names *names, const char *name, berth_error *error)
{
    size_t nbytes = strlen(name), best = nbytes / 2 + 1;
    char *near = NULL;
    for (uint32_t i = 0; i < names->n_tensors && i < MAX_NEAR && nbytes <= MAX_NEAR_NBYTES; i++) {
        bth_name_text out = {.limit = MAX_NEAR_NBYTES};
        bth_name_text_write_entry_name(&out, names, names->tensors[i], false);
        size_t far = best;
        if (!out.cut && !out.failed) { /* then there is a text */
            /* "weight" is similar to "decoder.weight", but more similar to "weigth". */
            bool within = nbytes > 2 && strstr(out.text, name);
            far =
                within ? best - (best > 1) : bth_text_distance(name, nbytes, out.text, out.nbytes);
        }
        if (far < best) {
            best = far;
            bth_release(near);
            near = out.text;
        } else {
            bth_release(out.text);
        }
    }
    bth_fail_status(error, BERTH_E_NOT_FOUND, "no value named \"%.*s\"%s%.*s%s", MAX_SHOWN_NBYTES,
                    name, near ? "; near: \"" : "", MAX_SHOWN_NBYTES, near ? near : "",
                    near ? "\"" : "");
    bth_release(near);
}

/* ---- tensors by short name ---- */

/* A listed tensor; NULL without an error if no tensor has that name. */
static const berth_value *names_find_tensor_by_short_name(const bth_names *names, const char *name,
                                                          berth_error *error)
{
    uint64_t hash = bth_name_hash_append(names, 0, name, strlen(name));
    uint32_t found[2] = {0}; /* entries */
    int n_found = 0;
    bool is_shared = true;
    for (uint32_t i = bth_names_find_tensor_by_hash(names, hash);
         i < names->n_tensors && n_found < 2 && is_shared; i++) {
        uint32_t entry = names->tensors[i];
        if ((names->entries[entry].hash & ~BTH_NAME_SHARED) != hash)
            continue;
        bth_name_text out = {.limit = SIZE_MAX};
        bth_name_text_write_entry_name(&out, names, entry, false);
        bool same = !name_text_ran_out_of_memory(&out, error) && strcmp(out.text, name) == 0;
        bth_release(out.text);
        if (error->code != BERTH_OK)
            return NULL;
        if (same) {
            found[n_found++] = entry;
            is_shared = names->entries[entry].hash & BTH_NAME_SHARED;
        }
    }
    if (n_found < 2)
        return n_found ? names->entries[found[0]].value : NULL;
    bth_name_text a = {.limit = SIZE_MAX}, b = {.limit = SIZE_MAX};
    bth_name_text_write_entry_name(&a, names, found[0], true);
    bth_name_text_write_entry_name(&b, names, found[1], true);
    name_fail_ambiguous(name, &a, &b, error);
    return NULL;
}

const berth_value *bth_names_find_value(const bth_names *names, const char *name,
                                        berth_error *error)
{
    if (!name)
        return bth_fail_argument(error, "the name is NULL"), NULL;
    if (!*name)
        return names->root;
    const berth_value *value =
        *name == '[' || *name == '.' ? value_find_by_path(names->root, name, error) : NULL;
    if (!value && error->code == BERTH_OK)
        value = names_find_tensor_by_short_name(names, name, error);
    if (!value && error->code == BERTH_OK)
        value = value_find_by_short_name(names->root, name, error);
    if (!value && error->code == BERTH_OK)
        name_fail_not_found(names, name, error);
    return error->code == BERTH_OK ? value : NULL;
}
