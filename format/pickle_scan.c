/* SPDX-License-Identifier: BSD-3-Clause */
/* Opcodes and their arguments, and the end of a pickle, without building anything. */
#include <string.h>

#include "format/pickle_machine.h"

const berth_opcode berth_opcodes[256] = {
#define BERTH_OPCODE(opcode, byte, argument) [byte] = {#opcode, true, BERTH_FORM_##argument},
#define BERTH_OPCODE_REFUSED(opcode, byte) [byte] = {#opcode, false, BERTH_FORM_NOTHING},
#include "format/pickle_opcodes.def"
};

size_t berth_scan_F8(const uint8_t *bytes, size_t nbytes, berth_argument *argument)
{
    uint64_t bits = 0;
    if (nbytes < 8)
        return SIZE_MAX;
    for (int i = 0; i < 8; i++)
        bits = bits << 8 | bytes[i];
    memcpy(&argument->real, &bits, sizeof bits);
    return 8;
}

size_t berth_scan_LINES(const uint8_t *bytes, size_t nbytes, berth_argument *argument)
{
    const uint8_t *first = memchr(bytes, '\n', nbytes);
    if (!first)
        return SIZE_MAX;
    const uint8_t *name = first + 1;
    const uint8_t *second = memchr(name, '\n', nbytes - (size_t)(name - bytes));
    if (!second)
        return SIZE_MAX;
    argument->text = (const char *)bytes;
    argument->text_nbytes = (size_t)(first - bytes);
    argument->name = (const char *)name;
    argument->name_nbytes = (size_t)(second - name);
    return (size_t)(second + 1 - bytes);
}

int berth_fail_opcode(uint8_t byte, const berth_pickle_rules *rules, size_t at, berth_error *error)
{
    const char *name = berth_opcodes[byte].name;
    uint64_t offset = rules->base_offset + at;
    if (name)
        return berth_fail(error, BERTH_E_FORBIDDEN, rules->record, offset,
                          "opcode %s (0x%02x) is not allowed in a checkpoint", name, byte);
    return berth_fail(error, BERTH_E_FORBIDDEN, rules->record, offset, "0x%02x is no pickle opcode",
                      byte);
}

static void note_fetched(berth_pickle_survey *survey, uint32_t index)
{
    survey->fetched[index % BERTH_FETCHED_BITS / 64] |= UINT64_C(1) << index % 64;
    /* In 32 bits the last one stays: no pickle is so long, so both are wrong. */
    uint64_t n = (uint64_t)index + 1;
    if (n > survey->n_memo)
        survey->n_memo = n < SIZE_MAX ? (size_t)n : SIZE_MAX;
}

static size_t look_at_usual(const uint8_t *bytes, berth_pickle_survey *survey)
{
    berth_usual usual;
    size_t used = berth_scan_usual(bytes, &usual);
    for (size_t i = 0; used && i < BERTH_USUAL_GETS; i++)
        note_fetched(survey, usual.gets[i]);
    return used;
}

int berth_pickle_look(const uint8_t *bytes, size_t nbytes, const berth_pickle_rules *rules,
                      berth_pickle_survey *survey, berth_error *error)
{
    size_t at = survey->extent;
    bool ended = false;
    while (at < nbytes && !ended) {
        size_t used = berth_may_be_usual(rules, bytes + at, nbytes - at)
                          ? look_at_usual(bytes + at, survey)
                          : 0;
        if (used) {
            at += used;
            continue;
        }
        berth_argument argument;
        switch (bytes[at]) {
#define BERTH_OPCODE(name, opcode, form)                                                           \
    case opcode:                                                                                   \
        used = berth_scan_##form(bytes + at + 1, nbytes - at - 1, &argument);                      \
        if (((opcode) == 'h' || (opcode) == 'j') && used != SIZE_MAX)                              \
            note_fetched(survey, (uint32_t)argument.number);                                       \
        ended = (opcode) == '.';                                                                   \
        break;
#include "format/pickle_opcodes.def"
        default:
            return berth_fail_opcode(bytes[at], rules, at, error);
        }
        if (used == SIZE_MAX)
            break;
        at += 1 + used;
    }
    survey->extent = at;
    if (ended)
        return 0;
    return berth_fail(error, BERTH_E_TRUNCATED, rules->record, rules->base_offset + nbytes,
                      "the pickle does not end here: no STOP yet");
}
