/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/fuzz/opcodes.h"

void say_bytes(struct fragment *out, const void *bytes, size_t n)
{
    if (n > sizeof out->bytes - out->nbytes)
        return;
    memcpy(out->bytes + out->nbytes, bytes, n);
    out->nbytes += n;
}

void say(struct fragment *out, const char *text)
{
    say_bytes(out, text, strlen(text));
}

void say_byte(struct fragment *out, size_t byte)
{
    say_bytes(out, &(uint8_t){(uint8_t)byte}, 1);
}

void say_global(struct fragment *out, const char *module, const char *name)
{
    say(out, "c");
    say(out, module);
    say(out, "\n");
    say(out, name);
    say(out, "\n");
}

void say_text(struct fragment *out, const char *text)
{
    const uint8_t length[4] = {(uint8_t)strlen(text)};

    say(out, "X");
    say_bytes(out, length, 4);
    say(out, text);
}

void say_int(struct fragment *out, size_t number)
{
    say(out, "K");
    say_byte(out, number);
}

/* Bytes of the opcode at bytes, its argument too; nbytes where it is cut, or none. */
static size_t opcode_nbytes(const uint8_t *bytes, size_t nbytes)
{
    bth_argument argument;
    size_t left = nbytes - 1;
    size_t used = bth_scan_argument(bytes[0], bytes + 1, left, &argument);

    return used > left ? nbytes : 1 + used;
}

void find_opcodes(const uint8_t *bytes, size_t nbytes, struct opcodes *found)
{
    size_t at = 0;

    found->n = 0;
    while (at < nbytes && found->n < MAX_OPCODES) {
        found->at[found->n++] = at;
        at += opcode_nbytes(bytes + at, nbytes - at);
    }
    found->at[found->n] = at;
}

size_t put_between(uint8_t *bytes, size_t nbytes, size_t most, size_t at, size_t cut,
                   const void *with, size_t n)
{
    if (nbytes - cut + n > most)
        return nbytes;
    memmove(bytes + at + n, bytes + at + cut, nbytes - at - cut);
    if (n > 0)
        memcpy(bytes + at, with, n);
    return nbytes - cut + n;
}
