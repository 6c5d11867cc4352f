/* SPDX-License-Identifier: BSD-3-Clause */
#include "format/json/json_text.h"

#include "base/error.h"

/* P3: the parser needs some 200 bytes for an object, but `{}` has only 2. */
static bool text_has_too_many_objects(const bth_json_text *text)
{
    size_t n_objects = 0;
    bool in_string = false;

    for (size_t i = 0; i < text->nbytes; i++) {
        if (in_string && text->bytes[i] == '\\')
            i++;
        else if (text->bytes[i] == '"')
            in_string = !in_string;
        else if (!in_string && text->bytes[i] == '{')
            n_objects++;
    }
    return n_objects > text->nbytes / text->min_object_nbytes + 2;
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

    if (text_has_too_many_objects(text)) {
        (void)bth_fail(error, BERTH_E_ARCHIVE, text->record, text->offset,
                       "%s has too many objects for its length", text->what);
        return NULL;
    }
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
