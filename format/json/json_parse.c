/* SPDX-License-Identifier: BSD-3-Clause */
#include "format/json/json_parse.h"

#include "base/error.h"

/* P3: the parser needs some 200 bytes for an object, but `{}` has only 2. */
static int text_check_objects_and_numbers(const bth_json_text *text, berth_error *error)
{
    const uint8_t *bytes = text->bytes;
    size_t n_objects = 0;
    bool in_string = false;
    for (size_t i = 0; i < text->nbytes; i++) {
        if (in_string && bytes[i] == '\\')
            i++;
        else if (bytes[i] == '"')
            in_string = !in_string;
        else if (!in_string && bytes[i] == '{')
            n_objects++;
        else if (!in_string && bytes[i] == '-' && text->refuses_minus_zero &&
                 i + 1 < text->nbytes && bytes[i + 1] == '0')
            return bth_fail(error, BERTH_E_ARCHIVE, text->record, text->offset + i,
                            "%s: a size or an offset with a minus sign", text->what);
    }
    if (n_objects > text->nbytes / text->min_object_nbytes + 2)
        return bth_fail(error, BERTH_E_ARCHIVE, text->record, text->offset,
                        "%s has too many objects for its length", text->what);
    return 0;
}

/* The parser's own texts speak of its flags and of C. */
static const char *json_error_say(const json_error_t *json_error)
{
    switch (json_error_code(json_error)) {
    case json_error_premature_end_of_input:
        return "it ends too early";
    case json_error_end_of_input_expected:
        return "more follows its end";
    case json_error_invalid_utf8:
        return "a text that is not UTF-8";
    case json_error_null_character:
    case json_error_null_byte_in_key:
        return "a NUL in a text";
    case json_error_duplicate_key:
        return "a key that the object has already";
    case json_error_numeric_overflow:
        return "a number that is too large";
    case json_error_stack_overflow:
        return "too many objects and lists in each other";
    default:
        return "this is not JSON";
    }
}

json_t *bth_json_parse(const bth_json_text *text, berth_error *error)
{
    json_error_t json_error;
    json_t *json;
    if (text_check_objects_and_numbers(text, error) < 0)
        return NULL;
    json = json_loadb((const char *)text->bytes, text->nbytes, JSON_REJECT_DUPLICATES, &json_error);
    if (json_is_object(json))
        return json;
    if (json)
        (void)bth_fail(error, BERTH_E_ARCHIVE, text->record, text->offset, "%s is no JSON object",
                       text->what);
    else if (json_error_code(&json_error) == json_error_out_of_memory || !json_error.text[0])
        (void)bth_fail_memory(error, text->nbytes);
    else
        (void)bth_fail(error, BERTH_E_ARCHIVE, text->record,
                       text->offset + (uint64_t)json_error.position, "%s: %s", text->what,
                       json_error_say(&json_error));
    json_decref(json);
    return NULL;
}

int64_t bth_json_read_size(const json_t *value)
{
    int64_t size = json_integer_value(value);
    return json_is_integer(value) && size >= 0 ? size : -1;
}

int32_t bth_json_read_sizes(const json_t *list, bool in_objects, int64_t *sizes)
{
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n > BERTH_MAX_RANK)
        return -1;
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(list, i);
        sizes[i] = bth_json_read_size(in_objects ? json_object_get(item, "as_int") : item);
        if (sizes[i] < 0)
            return -1;
    }
    return (int32_t)n;
}
