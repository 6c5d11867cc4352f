/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The globals that a pickle may name (P1), numbered: first the rows of pickle_globals.def, then
 * the dtypes, then the storage classes of torch, then those of torch.cuda.
 */
#include <string.h>

#include "format/pickle_machine.h"
#include "format/tensor.h"

static const berth_known rows[] = {
#define BERTH_CALLABLE(module, name, build, arguments)                                             \
    {module, name, arguments, berth_build_##build, BERTH_IS_CALLABLE, 0},
#define BERTH_NAMED(module, name, what) {module, name, NULL, NULL, what, 0},
#define BERTH_TENSOR_CLASS(module, name, dtype)                                                    \
    {module, name, NULL, NULL, BERTH_IS_TENSOR_CLASS, dtype},
#define BERTH_QSCHEME_GLOBAL(name, qscheme) {"torch", name, NULL, NULL, BERTH_IS_QSCHEME, qscheme},
#include "format/pickle_globals.def"
};

enum {
    N_ROWS = sizeof rows / sizeof *rows,
    FIRST_DTYPE = N_ROWS,
    FIRST_STORAGE = FIRST_DTYPE + BERTH_DTYPE_COUNT,
    FIRST_CUDA_STORAGE = FIRST_STORAGE + BERTH_DTYPE_COUNT,
    N_GLOBALS = FIRST_CUDA_STORAGE + BERTH_DTYPE_COUNT
};
_Static_assert(N_GLOBALS < BERTH_MAX_GLOBALS, "numbers of globals + 1 fit a byte");

static bool same_text(const char *wanted, const char *text, size_t nbytes)
{
    return strlen(wanted) == nbytes && memcmp(wanted, text, nbytes) == 0;
}

static int find_dtype(const char *name, size_t nbytes)
{
    char text[32];
    if (nbytes >= sizeof text || memchr(name, '.', nbytes) || memchr(name, 0, nbytes))
        return -1;
    memcpy(text, name, nbytes);
    text[nbytes] = 0;
    berth_dtype dtype = berth_dtype_from_name(text);
    return dtype == BERTH_DTYPE_NONE ? -1 : FIRST_DTYPE + (int)dtype;
}

/* A class like FloatStorage of torch or torch.cuda, which has no quantized ones. */
static int find_storage_class(bool cuda, const char *name, size_t nbytes)
{
    berth_dtype dtype;
    if (!berth_dtype_from_storage_class(name, nbytes, &dtype) || dtype == BERTH_DTYPE_NONE)
        return -1;
    if (cuda && name[0] == 'Q')
        return -1;
    return (cuda ? FIRST_CUDA_STORAGE : FIRST_STORAGE) + (int)dtype;
}

/* The number of a global, or -1. */
static int find_global(const char *module, size_t module_nbytes, const char *name,
                       size_t name_nbytes)
{
    for (int i = 0; i < N_ROWS; i++) {
        if (same_text(rows[i].name, name, name_nbytes) &&
            same_text(rows[i].module, module, module_nbytes))
            return i;
    }
    if (same_text("torch.storage", module, module_nbytes))
        return same_text("UntypedStorage", name, name_nbytes) ? FIRST_STORAGE : -1;
    if (same_text("torch.cuda", module, module_nbytes))
        return find_storage_class(true, name, name_nbytes);
    if (!same_text("torch", module, module_nbytes))
        return -1;
    int dtype = find_dtype(name, name_nbytes);
    return dtype >= 0 ? dtype : find_storage_class(false, name, name_nbytes);
}

/* What the number means. */
static berth_known known_global(int number)
{
    if (number < N_ROWS)
        return rows[number];
    berth_known known = {.module = "torch"};
    if (number < FIRST_STORAGE) {
        known.what = BERTH_IS_DTYPE;
        known.number = number - FIRST_DTYPE;
        known.name = berth_dtype_name((berth_dtype)known.number);
        return known;
    }
    known.what = BERTH_IS_STORAGE_CLASS;
    known.number = number - (number < FIRST_CUDA_STORAGE ? FIRST_STORAGE : FIRST_CUDA_STORAGE);
    if (known.number == BERTH_DTYPE_NONE) {
        known.module = "torch.storage";
        known.name = "UntypedStorage";
        return known;
    }
    if (number >= FIRST_CUDA_STORAGE)
        known.module = "torch.cuda";
    known.name = berth_dtype_storage_class((berth_dtype)known.number);
    return known;
}

/* ---- nodes of globals ---- */

static size_t index_of_node(const berth_value *node)
{
    uint64_t hash = (uint64_t)(uintptr_t)node * 0x9E3779B97F4A7C15u;
    return (size_t)(hash >> 55);
}

static void remember_global(berth_unpickler *unpickler, int number, berth_value *node)
{
    size_t i = index_of_node(node);
    while (unpickler->global_index[i])
        i = (i + 1) % sizeof unpickler->global_index;
    unpickler->global_index[i] = (uint8_t)(number + 1);
    unpickler->globals[number] = node;
}

bool berth_unpickle_known(const berth_unpickler *unpickler, const berth_value *value,
                          berth_known *known)
{
    size_t i = index_of_node(value);
    for (; unpickler->global_index[i]; i = (i + 1) % sizeof unpickler->global_index) {
        int number = unpickler->global_index[i] - 1;
        if (unpickler->globals[number] == value) {
            *known = known_global(number);
            return true;
        }
    }
    return false;
}

/* Names are printed, listed and saved again: identifiers and dots, or they are refused. */
static bool is_dotted_name(const char *text, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c <= ' ' || c >= 0x7f)
            return false;
    }
    return nbytes > 0;
}

static berth_value *make_known_global(berth_unpickler *unpickler, int number)
{
    berth_known known = known_global(number);
    if (known.what == BERTH_IS_DTYPE)
        return berth_dtype_value(unpickler->tree, (berth_dtype)known.number);
    if (known.what == BERTH_IS_QSCHEME)
        return berth_qscheme_value(unpickler->tree, (berth_qscheme)known.number);
    return berth_global(unpickler->tree, known.module, strlen(known.module), known.name,
                        strlen(known.name));
}

static berth_value *unknown_global(berth_unpickler *unpickler, const berth_argument *argument)
{
    if (!is_dotted_name(argument->text, argument->text_nbytes) ||
        !is_dotted_name(argument->name, argument->name_nbytes)) {
        berth_unpickle_fail(unpickler, BERTH_E_PICKLE, "GLOBAL of text that is no dotted name");
        return NULL;
    }
    if (unpickler->rules->inert)
        return berth_inert_global(unpickler->tree, argument->text, argument->text_nbytes,
                                  argument->name, argument->name_nbytes);
    int module_shown = argument->text_nbytes < 100 ? (int)argument->text_nbytes : 100;
    int name_shown = argument->name_nbytes < 100 ? (int)argument->name_nbytes : 100;
    berth_unpickle_fail(unpickler, BERTH_E_FORBIDDEN,
                        "global %.*s %.*s is not allowed in a checkpoint (load.unknown_globals = "
                        "inert lists such files without running anything)",
                        module_shown, argument->text, name_shown, argument->name);
    return NULL;
}

berth_value *berth_unpickle_global(berth_unpickler *unpickler, const berth_argument *argument)
{
    int number =
        find_global(argument->text, argument->text_nbytes, argument->name, argument->name_nbytes);
    if (number < 0)
        return unknown_global(unpickler, argument);
    if (!unpickler->globals[number]) {
        berth_value *node = make_known_global(unpickler, number);
        if (!node)
            return NULL;
        remember_global(unpickler, number, node);
    }
    return unpickler->globals[number];
}
