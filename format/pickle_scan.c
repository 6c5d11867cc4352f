/* SPDX-License-Identifier: BSD-3-Clause */
/* Opcodes and their arguments, and the end of a pickle, without building anything. */
#include <string.h>

#include "format/pickle_machine.h"

const berth_opcode berth_opcodes[256] = {
#define BERTH_OPCODE(opcode, byte, argument) [byte] = {#opcode, true, BERTH_FORM_##argument},
#define BERTH_OPCODE_REFUSED(opcode, byte) [byte] = {#opcode, false, BERTH_FORM_NOTHING},
#include "format/pickle_opcodes.def"
};

/* Bytes of a number, or of the length before a text. */
static const uint8_t head_nbytes[] = {
    [BERTH_FORM_NOTHING] = 0, [BERTH_FORM_U1] = 1,    [BERTH_FORM_U2] = 2,
    [BERTH_FORM_U4] = 4,      [BERTH_FORM_I4] = 4,    [BERTH_FORM_F8] = 8,
    [BERTH_FORM_TEXT1] = 1,   [BERTH_FORM_TEXT4] = 4, [BERTH_FORM_LINES] = 0,
};

static uint32_t little_u32(const uint8_t *bytes)
{
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static double big_double(const uint8_t *bytes)
{
    uint64_t bits = 0;
    for (int i = 0; i < 8; i++)
        bits = bits << 8 | bytes[i];
    double real;
    memcpy(&real, &bits, sizeof real);
    return real;
}

/* The text whose length has been read; the length is not believed before it is compared (P3). */
static size_t scan_text(const uint8_t *bytes, size_t nbytes, size_t head, size_t length,
                        berth_argument *argument)
{
    if (length > nbytes - head)
        return SIZE_MAX;
    argument->text = (const char *)bytes + head;
    argument->text_nbytes = length;
    return head + length;
}

static size_t scan_lines(const uint8_t *bytes, size_t nbytes, berth_argument *argument)
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

size_t berth_scan_argument(berth_form form, const uint8_t *bytes, size_t nbytes,
                           berth_argument *argument)
{
    size_t head = head_nbytes[form];
    if (head > nbytes)
        return SIZE_MAX;
    switch (form) {
    case BERTH_FORM_NOTHING:
        break;
    case BERTH_FORM_U1:
        argument->number = bytes[0];
        break;
    case BERTH_FORM_U2:
        argument->number = bytes[0] | bytes[1] << 8;
        break;
    case BERTH_FORM_U4:
        argument->number = little_u32(bytes);
        break;
    case BERTH_FORM_I4:
        argument->number = (int32_t)little_u32(bytes);
        break;
    case BERTH_FORM_F8:
        argument->real = big_double(bytes);
        break;
    case BERTH_FORM_TEXT1:
        return scan_text(bytes, nbytes, head, bytes[0], argument);
    case BERTH_FORM_TEXT4:
        return scan_text(bytes, nbytes, head, little_u32(bytes), argument);
    case BERTH_FORM_LINES:
        return scan_lines(bytes, nbytes, argument);
    }
    return head;
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

int berth_pickle_extent(const uint8_t *bytes, size_t nbytes, const berth_pickle_rules *rules,
                        size_t *extent, berth_error *error)
{
    size_t at = 0;
    while (at < nbytes) {
        uint8_t byte = bytes[at];
        berth_argument argument;
        if (!berth_opcodes[byte].allowed)
            return berth_fail_opcode(byte, rules, at, error);
        size_t used = berth_scan_argument(berth_opcodes[byte].form, bytes + at + 1, nbytes - at - 1,
                                          &argument);
        if (used == SIZE_MAX)
            break;
        at += 1 + used;
        if (byte == '.') {
            *extent = at;
            return 0;
        }
    }
    return berth_fail(error, BERTH_E_TRUNCATED, rules->record, rules->base_offset + nbytes,
                      "the pickle does not end here: no STOP yet");
}
