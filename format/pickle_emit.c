/* SPDX-License-Identifier: BSD-3-Clause */
#include "format/pickle_emit.h"

#include <string.h>

#include "config/error.h"
#include "config/fnv.h"
#include "config/memory.h"

#define RECORD "data.pkl"

/* ---- bytes ---- */

/* Room for n more bytes: where they go, or NULL when it has failed. */
static uint8_t *reserve(berth_emitter *emitter, size_t n)
{
    if (emitter->error->code != BERTH_OK)
        return NULL;
    if (n > emitter->capacity - emitter->nbytes) {
        uint64_t wanted;
        if (!berth_add(emitter->nbytes, n, &wanted) || wanted > SIZE_MAX / 2) {
            berth_fail_memory(emitter->error, UINT64_MAX);
            return NULL;
        }
        size_t capacity = emitter->capacity ? emitter->capacity : 1024;
        while (capacity < wanted)
            capacity *= 2;
        uint8_t *bytes = berth_reallocate(emitter->bytes, capacity);
        if (!bytes) {
            berth_fail_memory(emitter->error, capacity);
            return NULL;
        }
        emitter->bytes = bytes;
        emitter->capacity = capacity;
    }
    uint8_t *at = emitter->bytes + emitter->nbytes;
    emitter->nbytes += n;
    return at;
}

static void put_u32(uint8_t *out, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        out[i] = (uint8_t)(value >> (8 * i));
}

void berth_emit_op(berth_emitter *emitter, int op)
{
    uint8_t *out = reserve(emitter, 1);
    if (out)
        *out = (uint8_t)op;
}

/* An opcode with one byte, or another with four, as the value fits. */
static void emit_short_or_long(berth_emitter *emitter, int short_op, int long_op, uint32_t value)
{
    uint8_t *out = reserve(emitter, value < 256 ? 2 : 5);
    if (!out)
        return;
    out[0] = (uint8_t)(value < 256 ? short_op : long_op);
    if (value < 256)
        out[1] = (uint8_t)value;
    else
        put_u32(out + 1, value);
}

void berth_emit_bool(berth_emitter *emitter, bool value)
{
    berth_emit_op(emitter, value ? BERTH_OP_NEWTRUE : BERTH_OP_NEWFALSE);
}

void berth_emit_int(berth_emitter *emitter, int64_t value)
{
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)((uint64_t)value >> (8 * i));
    if (value < INT32_MIN || value > INT32_MAX) {
        berth_emit_bigint(emitter, bytes, sizeof bytes);
        return;
    }
    bool one = value >= 0 && value <= UINT8_MAX;
    bool two = value >= 0 && value <= UINT16_MAX;
    size_t n = one ? 1 : two ? 2 : 4;
    berth_emit_op(emitter, one ? BERTH_OP_BININT1 : two ? BERTH_OP_BININT2 : BERTH_OP_BININT);
    uint8_t *out = reserve(emitter, n);
    if (out)
        memcpy(out, bytes, n);
}

void berth_emit_float(berth_emitter *emitter, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits); /* as bits: a NaN keeps its payload */
    uint8_t *out = reserve(emitter, 9);
    if (!out)
        return;
    out[0] = BERTH_OP_BINFLOAT;
    for (int i = 0; i < 8; i++)
        out[1 + i] = (uint8_t)(bits >> (56 - 8 * i));
}

void berth_emit_bigint(berth_emitter *emitter, const uint8_t *bytes, size_t nbytes)
{
    /* As short as the sign allows, as CPython's LONG1; of 255 bytes at most, as every value is. */
    while (nbytes > 1 && ((bytes[nbytes - 1] == 0x00 && !(bytes[nbytes - 2] & 0x80)) ||
                          (bytes[nbytes - 1] == 0xff && (bytes[nbytes - 2] & 0x80))))
        nbytes--;
    uint8_t *out = reserve(emitter, 2 + nbytes);
    if (!out)
        return;
    out[0] = BERTH_OP_LONG1;
    out[1] = (uint8_t)nbytes;
    memcpy(out + 2, bytes, nbytes);
}

/* ---- text ---- */

/* BINUNICODE and its length: where the text goes. */
static uint8_t *reserve_text(berth_emitter *emitter, size_t nbytes)
{
    if (nbytes > UINT32_MAX) {
        berth_fail(emitter->error, BERTH_E_UNSUPPORTED, RECORD, BERTH_NO_OFFSET,
                   "text of %zu bytes: pickle protocol 2 holds at most 4294967295", nbytes);
        return NULL;
    }
    uint8_t *out = reserve(emitter, 5 + nbytes);
    if (!out)
        return NULL;
    out[0] = BERTH_OP_BINUNICODE;
    put_u32(out + 1, (uint32_t)nbytes);
    return out + 5;
}

void berth_emit_text(berth_emitter *emitter, const char *text, size_t nbytes, uint32_t *slot)
{
    if (berth_emit_again(emitter, slot))
        return;
    uint8_t *out = reserve_text(emitter, nbytes);
    if (out && nbytes > 0)
        memcpy(out, text, nbytes);
    berth_emit_memo(emitter, slot);
}

void berth_emit_latin1(berth_emitter *emitter, const uint8_t *bytes, size_t nbytes)
{
    /* CPython decodes one byte to one of 256 strings that it keeps. */
    uint32_t *slot = nbytes == 0   ? &emitter->characters[BERTH_MEMO_EMPTY]
                     : nbytes == 1 ? &emitter->characters[bytes[0]]
                                   : NULL;
    if (berth_emit_again(emitter, slot))
        return;
    size_t n = nbytes;
    for (size_t i = 0; i < nbytes; i++)
        n += bytes[i] >> 7;
    uint8_t *out = reserve_text(emitter, n);
    for (size_t i = 0; out && i < nbytes; i++) {
        if (bytes[i] < 0x80) {
            *out++ = bytes[i];
        } else {
            *out++ = (uint8_t)(0xc0 | (bytes[i] >> 6));
            *out++ = (uint8_t)(0x80 | (bytes[i] & 0x3f));
        }
    }
    berth_emit_memo(emitter, slot);
}

static const char *const constant_texts[BERTH_TEXT_COUNT] = {
    [BERTH_TEXT_STORAGE] = "storage", [BERTH_TEXT_CPU] = "cpu",       [BERTH_TEXT_META] = "meta",
    [BERTH_TEXT_MPS] = "mps",         [BERTH_TEXT_LATIN1] = "latin1",
};

void berth_emit_constant(berth_emitter *emitter, int constant)
{
    const char *text = constant_texts[constant];
    berth_emit_text(emitter, text, strlen(text), &emitter->constants[constant]);
}

int berth_emit_find_constant(const char *text, size_t nbytes)
{
    for (int i = 0; i < BERTH_TEXT_COUNT; i++)
        if (strlen(constant_texts[i]) == nbytes && memcmp(constant_texts[i], text, nbytes) == 0)
            return i;
    return -1;
}

/* ---- memo ---- */

void berth_emit_memo(berth_emitter *emitter, uint32_t *slot)
{
    if (emitter->n_memo == BERTH_MEMO_OPEN - 1) {
        berth_fail(emitter->error, BERTH_E_UNSUPPORTED, RECORD, BERTH_NO_OFFSET,
                   "more objects than a pickle of protocol 2 can number");
        return;
    }
    emit_short_or_long(emitter, BERTH_OP_BINPUT, BERTH_OP_LONG_BINPUT, emitter->n_memo);
    emitter->n_memo++;
    if (slot)
        *slot = emitter->n_memo;
}

bool berth_emit_again(berth_emitter *emitter, const uint32_t *slot)
{
    if (!slot || *slot == 0 || *slot == BERTH_MEMO_OPEN)
        return false;
    emit_short_or_long(emitter, BERTH_OP_BINGET, BERTH_OP_LONG_BINGET, *slot - 1);
    return true;
}

/* ---- globals ---- */

static uint64_t hash_text(uint64_t hash, const char *text)
{
    hash = berth_fnv(hash, text, strlen(text));
    return hash ^ (hash >> 29);
}

/* The entry of a global, or the free one where it belongs. */
static berth_emitted_global *find_global(const berth_emitter *emitter, const char *module,
                                         const char *name)
{
    uint64_t hash = hash_text(hash_text(BERTH_FNV_BEGIN, module) * 31, name);
    size_t i = (size_t)hash & (emitter->globals_capacity - 1);
    for (;; i = (i + 1) & (emitter->globals_capacity - 1)) {
        berth_emitted_global *global = &emitter->globals[i];
        if (!global->name ||
            (strcmp(global->name, name) == 0 && strcmp(global->module, module) == 0))
            return global;
    }
}

/* Keeps the table at most half full. */
static bool grow_globals(berth_emitter *emitter)
{
    if (emitter->n_globals < emitter->globals_capacity / 2)
        return true;
    size_t old_capacity = emitter->globals_capacity;
    size_t capacity = old_capacity ? old_capacity * 2 : 64;
    berth_emitted_global *old = emitter->globals;
    berth_emitted_global *table = berth_allocate_zeroed(capacity * sizeof *table);
    if (!table) {
        berth_fail_memory(emitter->error, capacity * sizeof *table);
        return false;
    }
    emitter->globals = table;
    emitter->globals_capacity = capacity;
    for (size_t i = 0; i < old_capacity; i++)
        if (old[i].name)
            *find_global(emitter, old[i].module, old[i].name) = old[i];
    berth_release(old);
    return true;
}

static uint8_t *put_line(uint8_t *out, const char *text, size_t nbytes)
{
    memcpy(out, text, nbytes);
    out[nbytes] = '\n';
    return out + nbytes + 1;
}

void berth_emit_global(berth_emitter *emitter, const char *module, const char *name)
{
    if (!grow_globals(emitter))
        return;
    berth_emitted_global *global = find_global(emitter, module, name);
    if (!global->name) {
        global->module = module;
        global->name = name;
        emitter->n_globals++;
    }
    if (berth_emit_again(emitter, &global->memo))
        return;
    size_t module_nbytes = strlen(module);
    size_t name_nbytes = strlen(name);
    uint8_t *out = reserve(emitter, module_nbytes + name_nbytes + 3);
    if (!out)
        return;
    *out++ = BERTH_OP_GLOBAL;
    put_line(put_line(out, module, module_nbytes), name, name_nbytes);
    berth_emit_memo(emitter, &global->memo);
}

/* ---- tuples ---- */

void berth_emit_tuple_mark(berth_emitter *emitter, size_t n)
{
    if (n > 3)
        berth_emit_op(emitter, BERTH_OP_MARK);
}

void berth_emit_tuple(berth_emitter *emitter, size_t n, uint32_t *slot)
{
    if (n == 0) { /* one object for ever, and never stored */
        berth_emit_op(emitter, BERTH_OP_EMPTY_TUPLE);
        return;
    }
    berth_emit_op(emitter, n > 3 ? BERTH_OP_TUPLE : BERTH_OP_TUPLE1 + (int)n - 1);
    berth_emit_memo(emitter, slot);
}

void berth_emit_ints(berth_emitter *emitter, const int64_t *items, int32_t n)
{
    berth_emit_tuple_mark(emitter, (size_t)n);
    for (int32_t i = 0; i < n; i++)
        berth_emit_int(emitter, items[i]);
    berth_emit_tuple(emitter, (size_t)n, NULL);
}
