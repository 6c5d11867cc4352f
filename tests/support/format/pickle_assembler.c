/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/format/pickle_assembler.h"

void put(struct pickle *pickle, const void *bytes, size_t nbytes)
{
    if (pickle->nbytes + nbytes > pickle->capacity) {
        pickle->capacity = (pickle->nbytes + nbytes) * 2;
        pickle->bytes = realloc(pickle->bytes, pickle->capacity);
        if (!pickle->bytes)
            test_give_up("no memory for a pickle");
    }
    if (nbytes)
        memcpy(pickle->bytes + pickle->nbytes, bytes, nbytes);
    pickle->nbytes += nbytes;
}

void put_little(struct pickle *pickle, uint64_t number, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++)
        put(pickle, &(uint8_t){(uint8_t)(number >> (8 * i))}, 1);
}

void put_text(struct pickle *pickle, const void *text, size_t nbytes)
{
    put(pickle, "X", 1);
    put_little(pickle, nbytes, 4);
    put(pickle, text, nbytes);
}

/* The next word of *source, and moves behind it; 'text' is one word. False: none. */
static bool next_word(const char **source, const char **word, size_t *nbytes)
{
    const char *start = *source + strspn(*source, " \n");
    if (!*start)
        return false;
    const char *end = *start == '\'' ? strchr(start + 1, '\'') + 1 : start + strcspn(start, " \n");
    *word = start;
    *nbytes = (size_t)(end - start);
    *source = end;
    return true;
}

static void put_hex(struct pickle *pickle, const char *word, size_t nbytes)
{
    for (size_t i = 2; i + 1 < nbytes; i += 2) {
        char digits[3] = {word[i], word[i + 1], 0};
        put(pickle, &(uint8_t){(uint8_t)strtol(digits, NULL, 16)}, 1);
    }
}

static void put_argument(struct pickle *pickle, const char **source, bth_form form)
{
    static const size_t number_nbytes[] = {0, 1, 2, 4, 4, 8};
    const char *word;
    size_t nbytes;
    if (form == BTH_FORM_NOTHING || !next_word(source, &word, &nbytes))
        return;
    if (form <= BTH_FORM_U8) {
        put_little(pickle, (uint64_t)strtoll(word, NULL, 10), number_nbytes[form]);
    } else if (form == BTH_FORM_F8) {
        double real = strtod(word, NULL);
        uint64_t bits;
        memcpy(&bits, &real, sizeof bits);
        for (int i = 7; i >= 0; i--)
            put_little(pickle, bits >> (8 * i), 1);
    } else if (form == BTH_FORM_LINES) {
        put(pickle, word, nbytes);
        put(pickle, "\n", 1);
        if (next_word(source, &word, &nbytes))
            put(pickle, word, nbytes);
        put(pickle, "\n", 1);
    } else if (form == BTH_FORM_LINE) {
        put(pickle, word, nbytes);
        put(pickle, "\n", 1);
    } else { /* TEXT1, TEXT4, TEXT8: 'text', or raw bytes after 0x */
        bool raw = *word == '0';
        put_little(pickle, raw ? (nbytes - 2) / 2 : nbytes - 2,
                   form == BTH_FORM_TEXT1   ? 1
                   : form == BTH_FORM_TEXT4 ? 4
                                            : 8);
        if (raw)
            put_hex(pickle, word, nbytes);
        else
            put(pickle, word + 1, nbytes - 2);
    }
}

static void put_word(struct pickle *pickle, const char **source, const char *word, size_t nbytes)
{
    if (*word == '!') {
        pickle->marked = pickle->nbytes;
        word++;
        if (--nbytes == 0)
            return;
    }
    if (*word == '\'') {
        put_text(pickle, word + 1, nbytes - 2);
        return;
    }
    if (strncmp(word, "0x", 2) == 0) {
        put_hex(pickle, word, nbytes);
        return;
    }
    if (strchr("-0123456789", *word)) {
        put(pickle, "J", 1);
        put_little(pickle, (uint64_t)strtoll(word, NULL, 10), 4);
        return;
    }
    for (int byte = 0; byte < 256; byte++) {
        const char *name = bth_opcodes[byte].name;
        if (name && strlen(name) == nbytes && memcmp(name, word, nbytes) == 0) {
            put_little(pickle, (uint64_t)byte, 1);
            put_argument(pickle, source, (bth_form)bth_opcodes[byte].form);
            return;
        }
    }
    test_give_up("no such opcode: %.*s", (int)nbytes, word);
}

void assemble(struct pickle *pickle, const char *source)
{
    const char *word;
    size_t nbytes;
    while (next_word(&source, &word, &nbytes))
        put_word(pickle, &source, word, nbytes);
}

void assemble_times(struct pickle *pickle, const char *source, size_t n)
{
    struct pickle once = {0};
    assemble(&once, source);
    for (size_t i = 0; i < n; i++)
        put(pickle, once.bytes, once.nbytes);
    free(once.bytes);
}

struct reading read_by(const struct pickle *pickle, bth_pickle_rules rules)
{
    struct reading reading = {.tree = berth_tree_new(NULL)};
    uint8_t *exact = malloc(pickle->nbytes); /* a sanitizer sees a byte read behind it */
    if (!rules.record)
        rules.record = "data.pkl";
    if (pickle->nbytes)
        memcpy(exact, pickle->bytes, pickle->nbytes);
    bth_error_clear(&reading.error);
    reading.code =
        bth_pickle_read(exact, pickle->nbytes, &rules, reading.tree, &reading.root, &reading.error);
    free(exact);
    return reading;
}

struct reading read_words_by(const char *source, bth_pickle_rules rules)
{
    struct pickle pickle = {0};
    assemble(&pickle, source);
    struct reading reading = read_by(&pickle, rules);
    free(pickle.bytes);
    return reading;
}

void free_reading(struct reading *reading)
{
    berth_tree_free(reading->tree);
}

void refuses_by(bth_pickle_rules rules, const char *source, int code, const char *sentence)
{
    struct pickle pickle = {0};
    char message[640];
    assemble(&pickle, source);
    struct reading read = read_by(&pickle, rules);
    snprintf(message, sizeof message, "data.pkl at byte %zu: %s", pickle.marked, sentence);
    cr_expect_eq(read.code, code, "%s gave %d", source, read.code);
    cr_expect_str_eq(read.error.message, message, "%s gave %s", source, read.error.message);
    cr_expect_eq(read.error.offset, pickle.marked);
    free_reading(&read);
    free(pickle.bytes);
}

void refuses_as(int code, const char *source, const char *sentence)
{
    refuses_by(NO_RULES, source, code, sentence);
}

void refuses(const char *source, const char *sentence)
{
    refuses_as(BERTH_E_PICKLE, source, sentence);
}

void gives_by(bth_pickle_rules rules, const char *source, const char *text)
{
    ACCEPTS_BY(read, rules, source);
    expect_value(read.root, text);
    free_reading(&read);
}

void gives(const char *source, const char *text)
{
    gives_by(NO_RULES, source, text);
}

void refuses_each(const char *const *sources, const char *sentence)
{
    for (; *sources; sources++)
        refuses(*sources, sentence);
}
