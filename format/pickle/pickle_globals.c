/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The globals that a pickle may name (P1), numbered: first the rows of pickle_globals.def, then
 * the dtypes, then the storage classes of torch, then those of torch.cuda.
 */
#include <string.h>

#include "format/pickle/pickle_machine.h"
#include "format/values/value.h"

const char *const bth_layout_names[] = {
    [BERTH_SPARSE_COO] = "torch.sparse_coo", [BERTH_SPARSE_CSR] = "torch.sparse_csr",
    [BERTH_SPARSE_CSC] = "torch.sparse_csc", [BERTH_SPARSE_BSR] = "torch.sparse_bsr",
    [BERTH_SPARSE_BSC] = "torch.sparse_bsc", [BERTH_STRIDED] = "torch.strided",
    [BERTH_JAGGED] = "torch.jagged",
};

const bth_known bth_globals[] = {
#define BTH_CALLABLE(module, name, build, wanted, optional)                                        \
    {module,                                                                                       \
     name,                                                                                         \
     wanted optional,                                                                              \
     BTH_BUILD_##build,                                                                            \
     BTH_IS_CALLABLE,                                                                              \
     sizeof(wanted) - 1,                                                                           \
     sizeof(wanted) + sizeof(optional) - 2,                                                        \
     0},
#define BTH_CALLABLE_TOO BTH_CALLABLE
#define BTH_NAMED(module, name, what) {module, name, NULL, BTH_BUILD_NOTHING, what, 0, 0, 0},
#define BTH_TENSOR_CLASS(module, name, dtype)                                                      \
    {module, name, NULL, BTH_BUILD_NOTHING, BTH_IS_TENSOR_CLASS, 0, 0, dtype},
#define BTH_QSCHEME_GLOBAL(name, qscheme)                                                          \
    {"torch", name, NULL, BTH_BUILD_NOTHING, BTH_IS_QSCHEME, 0, 0, qscheme},
#include "format/pickle/pickle_globals.def"
};

enum {
    N_ROWS = sizeof bth_globals / sizeof *bth_globals,
    FIRST_DTYPE = N_ROWS,
    FIRST_STORAGE = FIRST_DTYPE + BERTH_DTYPE_COUNT,
    FIRST_CUDA_STORAGE = FIRST_STORAGE + BERTH_DTYPE_COUNT,
    N_GLOBALS = FIRST_CUDA_STORAGE + BERTH_DTYPE_COUNT
};
_Static_assert(N_GLOBALS < BTH_MAX_GLOBALS, "berth_unpickler.globals");

static bool global_same_text(const char *wanted, const char *text, size_t nbytes)
{
    return strlen(wanted) == nbytes && memcmp(wanted, text, nbytes) == 0;
}

static int global_find_dtype(const char *name, size_t nbytes)
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
static int global_find_storage_class(bool cuda, const char *name, size_t nbytes)
{
    berth_dtype dtype;
    (void)bth_dtype_from_storage_class(name, nbytes, &dtype);
    if (dtype == BERTH_DTYPE_NONE)
        return -1;
    if (cuda && name[0] == 'Q')
        return -1;
    return (cuda ? FIRST_CUDA_STORAGE : FIRST_STORAGE) + (int)dtype;
}

/* The number of a global, or -1. */
static int global_find(const char *module, size_t module_nbytes, const char *name,
                       size_t name_nbytes)
{
    for (int i = 0; i < N_ROWS; i++) {
        if (global_same_text(bth_globals[i].name, name, name_nbytes) &&
            global_same_text(bth_globals[i].module, module, module_nbytes))
            return i;
    }
    if (global_same_text("torch.storage", module, module_nbytes))
        return global_same_text("UntypedStorage", name, name_nbytes) ? FIRST_STORAGE : -1;
    if (global_same_text("torch.cuda", module, module_nbytes))
        return global_find_storage_class(true, name, name_nbytes);
    if (!global_same_text("torch", module, module_nbytes))
        return -1;
    int dtype = global_find_dtype(name, name_nbytes);
    return dtype >= 0 ? dtype : global_find_storage_class(false, name, name_nbytes);
}

/* What the number means; *room is used for those that have no row. */
static const bth_known *global_by_number(int number, bth_known *room)
{
    if (number < N_ROWS)
        return &bth_globals[number];
    *room = (bth_known){.module = "torch"};
    if (number < FIRST_STORAGE) {
        room->what = BTH_IS_DTYPE;
        room->number = number - FIRST_DTYPE;
        room->name = berth_dtype_name((berth_dtype)room->number);
        return room;
    }
    room->what = BTH_IS_STORAGE_CLASS;
    room->number = number - (number < FIRST_CUDA_STORAGE ? FIRST_STORAGE : FIRST_CUDA_STORAGE);
    if (room->number == BERTH_DTYPE_NONE) {
        room->module = "torch.storage";
        room->name = "UntypedStorage";
        return room;
    }
    if (number >= FIRST_CUDA_STORAGE)
        room->module = "torch.cuda";
    room->name = bth_dtype_storage_class((berth_dtype)room->number);
    return room;
}

/* ---- nodes of globals ---- */

/* Its number, or -1. dtypes and quantization schemes have nodes of their own kinds. */
static int global_number(const berth_value *value)
{
    const struct enum_node *node = (const struct enum_node *)value;
    if (value->kind == BERTH_KIND_GLOBAL)
        return (int)((const struct global_node *)value)->known - 1;
    if (value->kind == BERTH_KIND_DTYPE)
        return FIRST_DTYPE + (int)node->value;
    for (int i = 0; i < N_ROWS && value->kind == BERTH_KIND_QSCHEME; i++)
        if (bth_globals[i].what == BTH_IS_QSCHEME && bth_globals[i].number == node->value)
            return i;
    return -1;
}

const bth_known *bth_unpickle_known(const berth_value *value, bth_known *room)
{
    int number = global_number(value);
    return number < 0 ? NULL : global_by_number(number, room);
}

bool bth_unpickle_storage_class(const berth_value *value, berth_dtype *dtype)
{
    int number = value->kind == BERTH_KIND_GLOBAL ? global_number(value) : -1;
    *dtype = BERTH_DTYPE_NONE;
    if (number < FIRST_STORAGE)
        return false;
    number -= number < FIRST_CUDA_STORAGE ? FIRST_STORAGE : FIRST_CUDA_STORAGE;
    *dtype = (berth_dtype)number;
    return true;
}

/* Names are printed and saved again, so only visible ASCII is accepted. */
static bool global_is_name(const char *text, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c <= ' ' || c >= 0x7f)
            return false;
    }
    return nbytes > 0;
}

static berth_value *global_make_known(bth_unpickler *unpickler, int number)
{
    bth_known room;
    const bth_known *known = global_by_number(number, &room);
    if (known->what == BTH_IS_DTYPE)
        return berth_make_constant(unpickler->tree, BERTH_KIND_DTYPE, (int)known->number);
    if (known->what == BTH_IS_QSCHEME)
        return berth_make_constant(unpickler->tree, BERTH_KIND_QSCHEME, (int)known->number);
    berth_value *node = bth_global(unpickler->tree, known->module, strlen(known->module),
                                   known->name, strlen(known->name), false);
    if (node)
        ((struct global_node *)node)->known = (uint32_t)number + 1;
    return node;
}

static berth_value *global_unknown(bth_unpickler *unpickler, const bth_argument *argument)
{
    if (!global_is_name(argument->text, argument->text_nbytes) ||
        !global_is_name(argument->name, argument->name_nbytes)) {
        bth_unpickle_fail(unpickler, BERTH_E_PICKLE, "GLOBAL with text that is no dotted name");
        return NULL;
    }
    if (unpickler->rules->inert)
        return bth_global(unpickler->tree, argument->text, argument->text_nbytes, argument->name,
                          argument->name_nbytes, true);
    int module_shown = argument->text_nbytes < 100 ? (int)argument->text_nbytes : 100;
    int name_shown = argument->name_nbytes < 100 ? (int)argument->name_nbytes : 100;
    bth_unpickle_fail(unpickler, BERTH_E_FORBIDDEN,
                      "global %.*s %.*s is not allowed in a checkpoint (load.unknown_globals = "
                      "inert lists such files without running anything)",
                      module_shown, argument->text, name_shown, argument->name);
    return NULL;
}

berth_value *bth_unpickle_global(bth_unpickler *unpickler, const bth_argument *argument)
{
    int number =
        global_find(argument->text, argument->text_nbytes, argument->name, argument->name_nbytes);
    if (number < 0)
        return global_unknown(unpickler, argument);
    if (!unpickler->globals[number])
        unpickler->globals[number] = global_make_known(unpickler, number);
    return unpickler->globals[number];
}
