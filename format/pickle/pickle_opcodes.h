/* SPDX-License-Identifier: BSD-3-Clause */
/* The opcodes of pickles and their arguments, private to the reader and the writer. */
#ifndef BTH_FORMAT_PICKLE_PICKLE_OPCODES_H
#define BTH_FORMAT_PICKLE_PICKLE_OPCODES_H

#include "format/pickle/pickle.h"

/* The reader allows those of BTH_OPCODE; the writer uses those that CPython writes in protocol 2.
 */
enum {
#define BTH_OPCODE(name, byte, form, takes, gives) BTH_OP_##name = (byte),
#define BTH_OPCODE_REFUSED BTH_OPCODE
#include "format/pickle/pickle_opcodes.def"
};

typedef enum bth_form {
    BTH_FORM_NOTHING,
    BTH_FORM_U1,
    BTH_FORM_U2,
    BTH_FORM_U4,
    BTH_FORM_I4,
    BTH_FORM_U8,
    BTH_FORM_F8,
    BTH_FORM_TEXT1,
    BTH_FORM_TEXT4,
    BTH_FORM_TEXT8,
    BTH_FORM_LINE,
    BTH_FORM_LINES
} bth_form;

enum { BTH_TO_MARK = -1 };

typedef struct bth_opcode {
    const char *name; /* NULL: no opcode of any pickle */
    bool allowed;
    uint8_t form;
    int16_t takes; /* values from the stack; BTH_TO_MARK: those above the last MARK, and it */
    uint8_t gives;
} bth_opcode;

extern const bth_opcode bth_opcodes[256];

/* BERTH_E_FORBIDDEN, naming the opcode at bytes[at] (P1), and the protocol if that is the reason.
 */
int bth_fail_opcode(const uint8_t *bytes, size_t at, const bth_pickle_rules *rules,
                    berth_error *error);

/* Each byte is a character: U+0080 and above take two bytes of UTF-8. Returns how many it writes.
 */
size_t bth_latin1_to_utf8(const uint8_t *bytes, size_t nbytes, uint8_t *utf8);

/* An opcode's argument; text points into the pickle. */
typedef struct bth_argument {
    const char *text; /* TEXT1 to TEXT8, LINE; LINES: the first line */
    size_t text_nbytes;
    const char *name; /* LINES: the second line */
    size_t name_nbytes;
    int64_t number; /* U1 to U8 */
    double real;    /* F8 */
} bth_argument;

/* bth_scan_<form>(bytes, nbytes, argument) reads an argument from the nbytes at `bytes`. Returns
 * its size, or SIZE_MAX if it is cut off. Inline, because a file has millions of opcodes. */
#define BTH_SCANNER(form)                                                                          \
    static inline size_t bth_scan_##form(__attribute__((unused)) const uint8_t *bytes,             \
                                         __attribute__((unused)) size_t nbytes,                    \
                                         __attribute__((unused)) bth_argument *argument)

#define BTH_NUMBER_SCANNER(form, size, value)                                                      \
    BTH_SCANNER(form)                                                                              \
    {                                                                                              \
        if (nbytes < (size))                                                                       \
            return SIZE_MAX;                                                                       \
        argument->number = (value);                                                                \
        return (size);                                                                             \
    }

static inline uint32_t bth_little_u32(const uint8_t *bytes)
{
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

/* The text after its length, which is first compared with the bytes that are left (P3). */
static inline size_t bth_scan_text(const uint8_t *bytes, size_t nbytes, size_t head, size_t length,
                                   bth_argument *argument)
{
    if (length > nbytes - head)
        return SIZE_MAX;
    argument->text = (const char *)bytes + head;
    argument->text_nbytes = length;
    return head + length;
}

BTH_SCANNER(NOTHING)
{
    return 0;
}

BTH_NUMBER_SCANNER(U1, 1, bytes[0])
BTH_NUMBER_SCANNER(U2, 2, bytes[0] | bytes[1] << 8)
BTH_NUMBER_SCANNER(U4, 4, bth_little_u32(bytes))
BTH_NUMBER_SCANNER(I4, 4, (int32_t)bth_little_u32(bytes))
BTH_NUMBER_SCANNER(U8, 8,
                   (int64_t)(bth_little_u32(bytes) | (uint64_t)bth_little_u32(bytes + 4) << 32))

BTH_SCANNER(TEXT1)
{
    return nbytes < 1 ? SIZE_MAX : bth_scan_text(bytes, nbytes, 1, bytes[0], argument);
}

BTH_SCANNER(TEXT4)
{
    return nbytes < 4 ? SIZE_MAX : bth_scan_text(bytes, nbytes, 4, bth_little_u32(bytes), argument);
}

BTH_SCANNER(TEXT8)
{
    uint64_t length;
    if (nbytes < 8)
        return SIZE_MAX;
    length = bth_little_u32(bytes) | (uint64_t)bth_little_u32(bytes + 4) << 32;
    return length > nbytes ? SIZE_MAX : bth_scan_text(bytes, nbytes, 8, (size_t)length, argument);
}

size_t bth_scan_F8(const uint8_t *bytes, size_t nbytes, bth_argument *argument);
size_t bth_scan_LINE(const uint8_t *bytes, size_t nbytes, bth_argument *argument);
size_t bth_scan_LINES(const uint8_t *bytes, size_t nbytes, bth_argument *argument);
/* The same by the opcode; SIZE_MAX also if there is no such opcode. */
size_t bth_scan_argument(uint8_t opcode, const uint8_t *bytes, size_t nbytes,
                         bth_argument *argument);

#endif
