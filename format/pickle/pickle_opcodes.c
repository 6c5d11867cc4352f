/* SPDX-License-Identifier: BSD-3-Clause */
/* The table of opcodes, the arguments that are not read in line, and errors at an opcode. */
#include "format/pickle/pickle_opcodes.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "format/pickle/pickle_machine.h"

const bth_opcode bth_opcodes[256] = {
#define TO_MARK BTH_TO_MARK
#define BTH_OPCODE(opcode, byte, argument, takes, gives)                                           \
    [byte] = {#opcode, true, BTH_FORM_##argument, takes, gives},
#define BTH_OPCODE_REFUSED(opcode, byte, argument, takes, gives)                                   \
    [byte] = {#opcode, false, BTH_FORM_##argument, takes, gives},
#include "format/pickle/pickle_opcodes.def"
};

size_t bth_scan_F8(const uint8_t *bytes, size_t nbytes, bth_argument *argument)
{
    uint64_t bits = 0;
    if (nbytes < 8)
        return SIZE_MAX;
    for (int i = 0; i < 8; i++)
        bits = bits << 8 | bytes[i];
    memcpy(&argument->real, &bits, sizeof bits);
    return 8;
}

size_t bth_scan_LINE(const uint8_t *bytes, size_t nbytes, bth_argument *argument)
{
    const uint8_t *end = nbytes > 0 ? memchr(bytes, '\n', nbytes) : NULL;
    if (!end)
        return SIZE_MAX;
    argument->text = (const char *)bytes;
    argument->text_nbytes = (size_t)(end - bytes);
    return argument->text_nbytes + 1;
}

size_t bth_scan_LINES(const uint8_t *bytes, size_t nbytes, bth_argument *argument)
{
    bth_argument second = {0};
    size_t first_nbytes = bth_scan_LINE(bytes, nbytes, argument);
    if (first_nbytes == SIZE_MAX ||
        bth_scan_LINE(bytes + first_nbytes, nbytes - first_nbytes, &second) == SIZE_MAX)
        return SIZE_MAX;
    argument->name = second.text;
    argument->name_nbytes = second.text_nbytes;
    return first_nbytes + second.text_nbytes + 1;
}

size_t bth_latin1_to_utf8(const uint8_t *bytes, size_t nbytes, uint8_t *utf8)
{
    size_t n = 0;
    for (size_t i = 0; i < nbytes; i++) {
        if (bytes[i] >= 0x80)
            utf8[n++] = (uint8_t)(0xc0 | bytes[i] >> 6);
        utf8[n++] = bytes[i] < 0x80 ? bytes[i] : (uint8_t)(0x80 | (bytes[i] & 0x3f));
    }
    return n;
}

size_t bth_scan_argument(uint8_t opcode, const uint8_t *bytes, size_t nbytes,
                         bth_argument *argument)
{
    static size_t (*const scanners[256])(const uint8_t *, size_t, bth_argument *) = {
#define BTH_OPCODE(name, byte, form, takes, gives) [byte] = bth_scan_##form,
#define BTH_OPCODE_REFUSED BTH_OPCODE
#include "format/pickle/pickle_opcodes.def"
    };
    return scanners[opcode] ? scanners[opcode](bytes, nbytes, argument) : SIZE_MAX;
}

int bth_fail_opcode(const uint8_t *bytes, size_t at, const bth_pickle_rules *rules,
                    berth_error *error)
{
    const char *name = bth_opcodes[bytes[at]].name;
    uint64_t offset = rules->base_offset + at;
    /* "": the protocol is 2 or 3. Before protocol 2 no pickle named its own. */
    const char *protocol = at == 0 || bytes[0] != BTH_OP_PROTO
                               ? "0 (whose tensors nobody can read) or 1"
                           : bytes[1] == 4 ? "4"
                           : bytes[1] == 5 ? "5"
                                           : "";
    if (!name)
        return bth_fail(error, BERTH_E_FORBIDDEN, rules->record, offset,
                        "0x%02x is not a pickle opcode", bytes[at]);
    if (!*protocol)
        return bth_fail(error, BERTH_E_FORBIDDEN, rules->record, offset,
                        "opcode %s (0x%02x) is not allowed in a checkpoint", name, bytes[at]);
    return bth_fail(error, BERTH_E_FORBIDDEN, rules->record, offset,
                    "opcode %s (0x%02x) is not allowed in a checkpoint: it was saved with "
                    "pickle_protocol=%s" BTH_REFUSED_FOR_PROTOCOL,
                    name, bytes[at], protocol);
}

int bth_unpickle_fail(bth_unpickler *unpickler, int code, const char *format, ...)
{
    char text[sizeof unpickler->error->message];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return bth_fail(unpickler->error, code, unpickler->rules->record,
                    unpickler->rules->base_offset + unpickler->op_at, "%s", text);
}

int bth_unpickle_fail_by_tree_error(bth_unpickler *unpickler, const char *subject)
{
    berth_error inner;
    /* The first error stays. */
    if (berth_tree_error(unpickler->tree, &inner) == BERTH_OK)
        return bth_fail_memory(unpickler->error, 0);
    /* An invalid argument of a berth_make function means an invalid pickle. */
    int code = inner.code == BERTH_E_ARGUMENT ? BERTH_E_PICKLE : inner.code;
    return bth_unpickle_fail(unpickler, code, "%s: %s", subject, inner.message);
}
