/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/hostile/recipe.h"

void add_bytes(struct bytes *to, const void *bytes, size_t n)
{
    if (to->n + n > to->capacity) {
        to->capacity = 2 * (to->n + n);
        to->bytes = realloc(to->bytes, to->capacity);
        cr_assert_not_null(to->bytes);
    }
    if (n > 0)
        memcpy(to->bytes + to->n, bytes, n);
    to->n += n;
}

void add_number(struct bytes *to, uint64_t number, size_t width)
{
    uint8_t little[8];

    bth_put_u64(little, number);
    add_bytes(to, little, width);
}

/* Where "@name" begins. */
static uint64_t place_of(const struct recipe *recipe, const char *name, size_t n)
{
    for (size_t i = 0; i < recipe->n_pieces; i++)
        if (strlen(recipe->pieces[i].label) == n && !strncmp(recipe->pieces[i].label, name, n))
            return recipe->pieces[i].header_at;
    if (n == 9 && !strncmp(name, "directory", n))
        return recipe->listings[0].at;
    if (n == 13 && !strncmp(name, "alt.directory", n))
        return recipe->listings[1].at;
    if (n == 5 && !strncmp(name, "end64", n))
        return recipe->listings[0].end64_at;
    if (n == 9 && !strncmp(name, "alt.end64", n))
        return recipe->listings[1].end64_at;
    cr_assert(n == 4 && !strncmp(name, "here", n), "no place @%.*s", (int)n, name);
    return recipe->file.n;
}

/* A number, or a place and a number behind it: "@data/1+30". */
static uint64_t parse_number(const struct recipe *recipe, const char *text, char **end)
{
    uint64_t number = 0;

    if (*text == '@') {
        size_t n = strcspn(text + 1, "+- ");
        number = place_of(recipe, text + 1, n);
        *end = (char *)(uintptr_t)text + 1 + n;
        if (**end != '+' && **end != '-')
            return number;
        text = *end;
    }
    bool is_negative = *text == '-';
    uint64_t rest = strtoull(text + (*text == '+' || is_negative), end, 0);
    return is_negative ? number - rest : number + rest;
}

uint64_t change_number(const struct recipe *recipe, const char *text, uint64_t before)
{
    char *end;
    char kind = *text;
    bool is_change = kind == '+' || kind == '-' || kind == '^';
    uint64_t number = parse_number(recipe, text + is_change, &end);

    cr_assert_eq(*end, 0, "no number: %s", text);
    return kind == '+'   ? before + number
           : kind == '-' ? before - number
           : kind == '^' ? before ^ number
                         : number;
}

/* A quoted text with \xNN in it; returns what follows it. */
static const char *add_quoted(struct bytes *to, const char *text)
{
    cr_assert_eq(*text, '\'', "no text: %s", text);
    for (text++; *text && *text != '\''; text++) {
        char digits[3] = {0};
        if (text[0] == '\\' && text[1] == 'x') {
            memcpy(digits, text + 2, 2);
            add_number(to, strtoull(digits, NULL, 16), 1);
            text += 3;
        } else
            add_bytes(to, text, 1);
    }
    return text + 1;
}

/* One block of deflate that is stored. */
static void add_deflated(struct bytes *to, const struct bytes *bytes)
{
    add_number(to, 1, 1);
    add_number(to, bytes->n, 2);
    add_number(to, ~bytes->n, 2);
    add_bytes(to, bytes->bytes, bytes->n);
}

bool is_word(const char *text, size_t n, const char *word)
{
    return strlen(word) == n && strncmp(text, word, n) == 0;
}

const char *add_item(struct recipe *recipe, struct bytes *to, const char *text,
                     const struct bytes *before)
{
    size_t n = strcspn(text, ": ");
    const char *rest = text + n + (text[n] == ':');
    struct bytes quoted = {0};
    char *end;

    if (*text == '\'')
        return add_quoted(to, text);
    if (is_word(text, n, "crc") || is_word(text, n, "deflate")) {
        rest = add_quoted(&quoted, rest);
        if (*text == 'c')
            add_number(to, bth_crc32(0, quoted.bytes, quoted.n), 4);
        else
            add_deflated(to, &quoted);
        free(quoted.bytes);
        return rest;
    }
    if (is_word(text, n, "old")) {
        add_bytes(to, before->bytes, before->n);
        return rest;
    }
    if (strncmp(text, "alt.", 4) == 0) {
        cr_assert_eq(to, &recipe->file, "%s lies in the file itself", text);
        add_listing_item(recipe, text, n);
        return rest;
    }
    uint64_t number = parse_number(recipe, rest, &end);
    if (is_word(text, n, "zeros"))
        for (uint64_t i = 0; i < number; i++)
            add_number(to, 0, 1);
    else {
        cr_assert_eq(*text, 'u', "no item: %s", text);
        add_number(to, number, (size_t)strtoul(text + 1, NULL, 10) / 8);
    }
    return end;
}
