/* SPDX-License-Identifier: BSD-3-Clause */
#include "format/pickle/pickle_emit.h"

#include <string.h>

#include "base/error.h"
#include "base/fnv.h"
#include "base/memory.h"
#include "format/bytes.h"

/* ---- bytes ---- */

/* Returns where n more bytes go; NULL after a failure. */
static uint8_t *emitter_extend_output(bth_emitter *emitter, size_t n)
{
    if (emitter->error->code != BERTH_OK)
        return NULL;
    if (n > emitter->capacity - emitter->out.nbytes) {
        uint64_t wanted;
        if (!bth_try_add(emitter->out.nbytes, n, &wanted) || wanted > SIZE_MAX / 2) {
            bth_fail_memory(emitter->error, UINT64_MAX);
            return NULL;
        }
        size_t capacity = emitter->capacity ? emitter->capacity : 1024;
        while (capacity < wanted)
            capacity *= 2;
        uint8_t *bytes = bth_reallocate(emitter->out.bytes, capacity);
        if (!bytes) {
            bth_fail_memory(emitter->error, capacity);
            return NULL;
        }
        emitter->out.bytes = bytes;
        emitter->capacity = capacity;
    }
    uint8_t *at = emitter->out.bytes + emitter->out.nbytes;
    emitter->out.nbytes += n;
    return at;
}

void bth_emit_op(bth_emitter *emitter, int op)
{
    uint8_t *out = emitter_extend_output(emitter, 1);
    if (out)
        *out = (uint8_t)op;
}

/* An opcode with one byte, or another with four, as the value fits. */
static void emit_short_or_long(bth_emitter *emitter, int short_op, int long_op, uint32_t value)
{
    uint8_t *out = emitter_extend_output(emitter, value < 256 ? 2 : 5);
    if (!out)
        return;
    out[0] = (uint8_t)(value < 256 ? short_op : long_op);
    if (value < 256)
        out[1] = (uint8_t)value;
    else
        bth_put_u32(out + 1, value);
}

void bth_emit_bool(bth_emitter *emitter, bool value)
{
    bth_emit_op(emitter, value ? BTH_OP_NEWTRUE : BTH_OP_NEWFALSE);
}

void bth_emit_int(bth_emitter *emitter, int64_t value)
{
    uint8_t bytes[8];
    bth_put_u64(bytes, (uint64_t)value);
    if (value < INT32_MIN || value > INT32_MAX) {
        bth_emit_bigint(emitter, bytes, sizeof bytes);
        return;
    }
    bool one = value >= 0 && value <= UINT8_MAX;
    bool two = value >= 0 && value <= UINT16_MAX;
    size_t n = one ? 1 : two ? 2 : 4;
    bth_emit_op(emitter, one ? BTH_OP_BININT1 : two ? BTH_OP_BININT2 : BTH_OP_BININT);
    uint8_t *out = emitter_extend_output(emitter, n);
    if (out)
        memcpy(out, bytes, n);
}

void bth_emit_float(bth_emitter *emitter, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits); /* as bits: a NaN keeps its payload */
    uint8_t *out = emitter_extend_output(emitter, 9);
    if (!out)
        return;
    out[0] = BTH_OP_BINFLOAT;
    for (int i = 0; i < 8; i++)
        out[1 + i] = (uint8_t)(bits >> (56 - 8 * i));
}

void bth_emit_bigint(bth_emitter *emitter, const uint8_t *bytes, size_t nbytes)
{
    /* As short as the sign allows, as CPython's LONG1. No value has more than 255 bytes. */
    while (nbytes > 1 && ((bytes[nbytes - 1] == 0x00 && !(bytes[nbytes - 2] & 0x80)) ||
                          (bytes[nbytes - 1] == 0xff && (bytes[nbytes - 2] & 0x80))))
        nbytes--;
    uint8_t *out = emitter_extend_output(emitter, 2 + nbytes);
    if (!out)
        return;
    out[0] = BTH_OP_LONG1;
    out[1] = (uint8_t)nbytes;
    memcpy(out + 2, bytes, nbytes);
}

/* ---- text ---- */

/* BINUNICODE and its length: where the text goes. */
static uint8_t *emit_text_header_and_reserve_text(bth_emitter *emitter, size_t nbytes)
{
    if (nbytes > UINT32_MAX) {
        BTH_EMIT_REFUSE(emitter, "text of %zu bytes: pickle protocol 2 holds at most 4294967295",
                        nbytes);
        return NULL;
    }
    uint8_t *out = emitter_extend_output(emitter, 5 + nbytes);
    if (!out)
        return NULL;
    out[0] = BTH_OP_BINUNICODE;
    bth_put_u32(out + 1, nbytes);
    return out + 5;
}

void bth_emit_text(bth_emitter *emitter, const char *text, size_t nbytes, uint32_t *slot)
{
    if (bth_emit_fetch_if_in_memo(emitter, slot))
        return;
    uint8_t *out = emit_text_header_and_reserve_text(emitter, nbytes);
    if (out && nbytes > 0)
        memcpy(out, text, nbytes);
    bth_emit_memo(emitter, slot);
}

void bth_emit_bytes_as_latin1_text(bth_emitter *emitter, const uint8_t *bytes, size_t nbytes)
{
    /* CPython keeps 256 strings of one character, and decodes one byte to one of them. */
    uint32_t *slot = nbytes == 0   ? &emitter->characters[BTH_MEMO_EMPTY]
                     : nbytes == 1 ? &emitter->characters[bytes[0]]
                                   : NULL;
    if (bth_emit_fetch_if_in_memo(emitter, slot))
        return;
    size_t n = nbytes;
    for (size_t i = 0; i < nbytes; i++)
        n += bytes[i] >> 7;
    uint8_t *out = emit_text_header_and_reserve_text(emitter, n);
    for (size_t i = 0; out && i < nbytes; i++) {
        if (bytes[i] < 0x80) {
            *out++ = bytes[i];
        } else {
            *out++ = (uint8_t)(0xc0 | (bytes[i] >> 6));
            *out++ = (uint8_t)(0x80 | (bytes[i] & 0x3f));
        }
    }
    bth_emit_memo(emitter, slot);
}

static const char *const constant_texts[BTH_TEXT_COUNT] = {
    [BTH_TEXT_STORAGE] = "storage", [BTH_TEXT_CPU] = "cpu",       [BTH_TEXT_META] = "meta",
    [BTH_TEXT_MPS] = "mps",         [BTH_TEXT_LATIN1] = "latin1",
};

void bth_emit_constant_text(bth_emitter *emitter, int constant)
{
    const char *text = constant_texts[constant];
    bth_emit_text(emitter, text, strlen(text), &emitter->constants[constant]);
}

int bth_constant_text_find(const char *text, size_t nbytes)
{
    for (int i = 0; i < BTH_TEXT_COUNT; i++)
        if (strlen(constant_texts[i]) == nbytes && memcmp(constant_texts[i], text, nbytes) == 0)
            return i;
    return -1;
}

/* ---- memo ---- */

void bth_emit_memo(bth_emitter *emitter, uint32_t *slot)
{
    if (emitter->n_memo == BTH_MEMO_OPEN - 1) {
        BTH_EMIT_REFUSE(emitter, "more objects than a pickle of protocol 2 can number");
        return;
    }
    emit_short_or_long(emitter, BTH_OP_BINPUT, BTH_OP_LONG_BINPUT, emitter->n_memo);
    emitter->n_memo++;
    if (slot)
        *slot = emitter->n_memo;
}

bool bth_emit_fetch_if_in_memo(bth_emitter *emitter, const uint32_t *slot)
{
    if (!slot || *slot == 0 || *slot == BTH_MEMO_OPEN)
        return false;
    emit_short_or_long(emitter, BTH_OP_BINGET, BTH_OP_LONG_BINGET, *slot - 1);
    return true;
}

/* ---- globals ---- */

/* The entry of a global, or the free one where it belongs. */
static bth_emitted_global *emitted_globals_find_entry_or_empty(const bth_emitter *emitter,
                                                               const char *module, const char *name)
{
    uint64_t hash =
        bth_fnv_update(bth_fnv_update(BTH_FNV_BEGIN, module, strlen(module)), name, strlen(name));
    size_t i = (size_t)(hash ^ hash >> 29) & (emitter->globals_capacity - 1);
    for (;; i = (i + 1) & (emitter->globals_capacity - 1)) {
        bth_emitted_global *global = &emitter->globals[i];
        if (!global->name ||
            (strcmp(global->name, name) == 0 && strcmp(global->module, module) == 0))
            return global;
    }
}

/* Keeps the table at most half full. */
static bool emitted_globals_grow_if_half_full(bth_emitter *emitter)
{
    if (emitter->n_globals < emitter->globals_capacity / 2)
        return true;
    size_t old_capacity = emitter->globals_capacity;
    size_t capacity = old_capacity ? old_capacity * 2 : 64;
    bth_emitted_global *old = emitter->globals;
    bth_emitted_global *table = bth_allocate_zeroed(capacity * sizeof *table);
    if (!table) {
        bth_fail_memory(emitter->error, capacity * sizeof *table);
        return false;
    }
    emitter->globals = table;
    emitter->globals_capacity = capacity;
    for (size_t i = 0; i < old_capacity; i++)
        if (old[i].name)
            *emitted_globals_find_entry_or_empty(emitter, old[i].module, old[i].name) = old[i];
    memset(emitter->recent, 0, sizeof emitter->recent);
    bth_release(old);
    return true;
}

static uint8_t *text_write_as_line(uint8_t *out, const char *text, size_t nbytes)
{
    memcpy(out, text, nbytes);
    out[nbytes] = '\n';
    return out + nbytes + 1;
}

/* The entry of a global, which is added if it is not there. NULL on failure. */
static bth_emitted_global *emitted_globals_find_or_add(bth_emitter *emitter, const char *module,
                                                       const char *name)
{
    bth_emitted_global **recent = &emitter->recent[(uintptr_t)name / 8 % BTH_N_RECENT];
    bth_emitted_global *global = *recent;

    if (global && global->name == name && global->module == module)
        return global;
    if (!emitted_globals_grow_if_half_full(emitter))
        return NULL;
    global = emitted_globals_find_entry_or_empty(emitter, module, name);
    if (!global->name) {
        global->module = module;
        global->name = name;
        emitter->n_globals++;
    }
    *recent = global;
    return global;
}

void bth_emit_global(bth_emitter *emitter, const char *module, const char *name)
{
    bth_emitted_global *global = emitted_globals_find_or_add(emitter, module, name);

    if (!global || bth_emit_fetch_if_in_memo(emitter, &global->memo))
        return;
    size_t module_nbytes = strlen(module);
    size_t name_nbytes = strlen(name);
    uint8_t *out = emitter_extend_output(emitter, module_nbytes + name_nbytes + 3);
    if (!out)
        return;
    *out++ = BTH_OP_GLOBAL;
    text_write_as_line(text_write_as_line(out, module, module_nbytes), name, name_nbytes);
    bth_emit_memo(emitter, &global->memo);
}

/* ---- tuples and calls ---- */

void bth_emit_tuple_mark(bth_emitter *emitter, size_t n)
{
    if (n > 3)
        bth_emit_op(emitter, BTH_OP_MARK);
}

void bth_emit_tuple_end(bth_emitter *emitter, size_t n, uint32_t *slot)
{
    if (n == 0) { /* Python has one, and never stores it */
        bth_emit_op(emitter, BTH_OP_EMPTY_TUPLE);
        return;
    }
    bth_emit_op(emitter, n > 3 ? BTH_OP_TUPLE : BTH_OP_TUPLE1 + (int)n - 1);
    bth_emit_memo(emitter, slot);
}

void bth_emit_ints(bth_emitter *emitter, const int64_t *items, int32_t n)
{
    bth_emit_tuple_mark(emitter, (size_t)n);
    for (int32_t i = 0; i < n; i++)
        bth_emit_int(emitter, items[i]);
    bth_emit_tuple_end(emitter, (size_t)n, NULL);
}

void bth_emit_tuple_end_reduce_and_memo(bth_emitter *emitter, size_t n, uint32_t *slot)
{
    bth_emit_tuple_end(emitter, n, NULL);
    bth_emit_op(emitter, BTH_OP_REDUCE);
    bth_emit_memo(emitter, slot);
}

void bth_emit_ordered_dict(bth_emitter *emitter, uint32_t *slot)
{
    bth_emit_global(emitter, "collections", "OrderedDict");
    bth_emit_tuple_end_reduce_and_memo(emitter, 0, slot);
}
