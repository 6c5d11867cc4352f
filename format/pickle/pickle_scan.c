/* SPDX-License-Identifier: BSD-3-Clause */
/* Finds the end of a pickle and the memo indices that it fetches. Builds nothing. */
#include "format/pickle/pickle_machine.h"

static void survey_mark_fetched(bth_pickle_survey *survey, uint32_t index)
{
    survey->fetched[index % BTH_FETCHED_BITS / 64] |= UINT64_C(1) << index % 64;
    /* With 32-bit sizes the count may be one too small; no pickle is so long that it matters. */
    uint64_t n = (uint64_t)index + 1;
    if (n > survey->n_memo)
        survey->n_memo = n < SIZE_MAX ? (size_t)n : SIZE_MAX;
}

static size_t survey_mark_usual_tensor_fetches(const uint8_t *bytes, bth_pickle_survey *survey)
{
    bth_usual usual;
    size_t used = bth_usual_tensor_parse(bytes, &usual);
    for (size_t i = 0; used && i < BTH_USUAL_GETS; i++)
        survey_mark_fetched(survey, usual.gets[i]);
    return used;
}

int bth_pickle_find_end_and_fetches(const uint8_t *bytes, size_t nbytes,
                                    const bth_pickle_rules *rules, bth_pickle_survey *survey,
                                    berth_error *error)
{
    size_t at = survey->extent;
    bool ended = false;
    bool is_protocol_4 = bth_rules_allow_protocol_4(rules, bytes, nbytes);
    while (at < nbytes && !ended) {
        size_t used = bth_usual_tensor_may_begin(rules, bytes + at, nbytes - at)
                          ? survey_mark_usual_tensor_fetches(bytes + at, survey)
                          : 0;
        if (used) {
            at += used;
            continue;
        }
        bth_argument argument;
        switch (bytes[at]) {
#define SCAN_OPCODE(opcode, form)                                                                  \
    used = bth_scan_##form(bytes + at + 1, nbytes - at - 1, &argument);                            \
    if (((opcode) == BTH_OP_BINGET || (opcode) == BTH_OP_LONG_BINGET) && used != SIZE_MAX)         \
        survey_mark_fetched(survey, (uint32_t)argument.number);                                    \
    ended = (opcode) == BTH_OP_STOP;                                                               \
    break;
#define BTH_OPCODE(name, opcode, form, takes, gives)                                               \
    case opcode:                                                                                   \
        SCAN_OPCODE(opcode, form)
#define BTH_OPCODE_INERT(name, opcode, form, takes, gives)                                         \
    case opcode:                                                                                   \
        if (!is_protocol_4)                                                                        \
            return bth_fail_opcode(bytes, at, rules, error);                                       \
        SCAN_OPCODE(opcode, form)
#include "format/pickle/pickle_opcodes.def"
        default:
            return bth_fail_opcode(bytes, at, rules, error);
        }
        if (used == SIZE_MAX)
            break;
        at += 1 + used;
    }
    survey->extent = at;
    if (ended)
        return 0;
    return bth_fail(error, BERTH_E_TRUNCATED, rules->record, rules->base_offset + nbytes,
                    "the pickle does not end here: no STOP yet");
}
