/* SPDX-License-Identifier: BSD-3-Clause */
/* P1: pickles of protocol 4 and 5, which are read inertly only. */
#include "tests/support/format/pickle_assembler.h"

#define CLASS "SHORT_BINUNICODE 'a.b' MEMOIZE SHORT_BINUNICODE 'C' MEMOIZE STACK_GLOBAL MEMOIZE "

Test(pickle_protocol, four_and_five_are_read_inertly)
{
    gives_by(INERT, "PROTO 4 FRAME 4 " CLASS "EMPTY_TUPLE NEWOBJ MEMOIZE STOP", "new <a.b C>()");
    gives_by(INERT, "PROTO 5 " CLASS "EMPTY_TUPLE NEWOBJ MEMOIZE STOP", "new <a.b C>()");
    gives_by(INERT, "PROTO 4 BINUNICODE8 'a.b' 'C' STACK_GLOBAL EMPTY_TUPLE REDUCE STOP",
             "<a.b C>()");
    gives_by(INERT, "PROTO 4 SHORT_BINUNICODE 'torch' SHORT_BINUNICODE 'float32' STACK_GLOBAL STOP",
             "float32");
    /* MEMOIZE numbers what it keeps from 0. */
    gives_by(INERT,
             "PROTO 4 EMPTY_LIST MEMOIZE MARK SHORT_BINUNICODE 'x' MEMOIZE SHORT_BINUNICODE 'y' "
             "MEMOIZE BINGET 1 BINGET 2 APPENDS STOP",
             "[&1 'x', &2 'y', *1, *2]");
}

Test(pickle_protocol, without_inert_and_in_other_protocols_they_are_refused)
{
    static const char *const opcodes[] = {"0x95", "0x8c", "0x8d", "0x93", "0x94"};
    static const struct {
        const char *before; /* without PROTO it is protocol 0 or 1, whatever the second byte is */
        bth_pickle_rules rules;
    } cases[] = {
        {"PROTO 3 NONE", {.inert = true}}, {"NONE NONE", {.inert = true}}, {"PROTO 4 NONE", {0}}};

    for (size_t i = 0; i < 3 * sizeof opcodes / sizeof *opcodes; i++) {
        char source[64];
        snprintf(source, sizeof source, "%s %s", cases[i % 3].before, opcodes[i / 3]);
        struct pickle pickle = {0};
        bth_pickle_survey survey = {0};
        berth_error error = {0};
        assemble(&pickle, source);
        struct reading read = read_by(&pickle, cases[i % 3].rules);
        cr_expect_eq(read.error.code, BERTH_E_FORBIDDEN, "%s", source);
        cr_expect_eq(bth_pickle_find_end_and_fetches(pickle.bytes, pickle.nbytes,
                                                     &cases[i % 3].rules, &survey, &error),
                     BERTH_E_FORBIDDEN, "%s", source);
        free_reading(&read);
        free(pickle.bytes);
    }
}

Test(pickle_protocol, what_is_wrong)
{
    static const struct {
        const char *source, *sentence;
    } cases[] = {
        {"PROTO 4 !FRAME 2 STOP", "FRAME of 2 bytes: 1 are left"},
        {"PROTO 4 !FRAME -1 STOP", "FRAME of 18446744073709551615 bytes: 1 are left"},
        {"PROTO 4 !MEMOIZE STOP", "stack underflow: MEMOIZE needs 1 items, 0 are there"},
        {"PROTO 4 'a' !STACK_GLOBAL STOP",
         "stack underflow: STACK_GLOBAL needs 2 items, 1 are there"},
        {"PROTO 4 'a' 1 !STACK_GLOBAL STOP", "STACK_GLOBAL of values that are no texts"},
        {"PROTO 4 1 'a' !STACK_GLOBAL STOP", "STACK_GLOBAL of values that are no texts"},
        {"PROTO 4 'a' 'b c' !STACK_GLOBAL STOP", "GLOBAL with text that is not a dotted name"},
        {"PROTO 4 NONE BINPUT 0 !MEMOIZE STOP", "MEMOIZE behind a PUT"},
        {"PROTO 4 NONE MEMOIZE !BINPUT 5 STOP", "BINPUT behind MEMOIZE"},
        {"PROTO 4 NONE MEMOIZE !BINGET 1 STOP", "BINGET of memo index 1, where nothing was put"},
        {"PROTO 4 !SHORT_BINUNICODE 0xff STOP",
         "SHORT_BINUNICODE: text that is not UTF-8 at its byte 0"},
        {"PROTO 4 !0x8c 0x05 0x61", "the argument of SHORT_BINUNICODE is cut: 2 bytes are left"},
        {"!0x80", "the argument of PROTO is cut: 0 bytes are left"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuses_by(INERT, cases[i].source, BERTH_E_PICKLE, cases[i].sentence);
    refuses_by(INERT, "PROTO 4 'a' 'B.c' !STACK_GLOBAL STOP", BERTH_E_UNSUPPORTED,
               "STACK_GLOBAL of a class within another");
}
