/* SPDX-License-Identifier: BSD-3-Clause */
/* The globals that a pickle may name (P1): the rows of pickle_globals.def and of dtypes.def. */
#include <string.h>

#include "format/pickle/pickle_machine.h"
#include "format/values/value.h"

const char *const bth_layout_names[] = {
    [BERTH_SPARSE_COO] = "torch.sparse_coo", [BERTH_SPARSE_CSR] = "torch.sparse_csr",
    [BERTH_SPARSE_CSC] = "torch.sparse_csc", [BERTH_SPARSE_BSR] = "torch.sparse_bsr",
    [BERTH_SPARSE_BSC] = "torch.sparse_bsc", [BERTH_STRIDED] = "torch.strided",
    [BERTH_JAGGED] = "torch.jagged",
};

#define NAMED_ROW(module, name, what, number)                                                      \
    {module, name, NULL, BTH_BUILD_NOTHING, what, 0, 0, number},

/* A storage class that torch.cuda has: no quantized one. */
#define CUDA_PLAIN(storage_class) storage_class
#define CUDA_QUANTIZED(storage_class) NULL

/* A row without a name is not found. */
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
#define BTH_NAMED(module, name, what) NAMED_ROW(module, name, what, 0)
#define BTH_TENSOR_CLASS(module, name, dtype) NAMED_ROW(module, name, BTH_IS_TENSOR_CLASS, dtype)
#define BTH_QSCHEME_GLOBAL(name, qscheme) NAMED_ROW("torch", name, BTH_IS_QSCHEME, qscheme)
#include "format/pickle/pickle_globals.def"
    NAMED_ROW("torch.storage", "UntypedStorage", BTH_IS_STORAGE_CLASS, BERTH_DTYPE_NONE)
#define DTYPE(dtype, name, nbytes, storage_class, swap_nbytes, elements, sort)                     \
    NAMED_ROW("torch", name, BTH_IS_DTYPE, BERTH_##dtype)                                          \
    NAMED_ROW("torch", storage_class, BTH_IS_STORAGE_CLASS, BERTH_##dtype)                         \
    NAMED_ROW("torch.cuda", CUDA_##sort(storage_class), BTH_IS_STORAGE_CLASS, BERTH_##dtype)
#include "format/dtypes.def"
#undef DTYPE
};

enum { N_GLOBALS = sizeof bth_globals / sizeof *bth_globals };
_Static_assert((int)N_GLOBALS <= BTH_MAX_GLOBALS, "bth_unpickler.globals");

static bool global_text_is_equal(const char *wanted, const char *text, size_t nbytes)
{
    return wanted && strlen(wanted) == nbytes && memcmp(wanted, text, nbytes) == 0;
}

/* Its row, or N_GLOBALS. */
static size_t global_find(const bth_argument *global)
{
    size_t i = 0;
    while (i < N_GLOBALS &&
           !(global_text_is_equal(bth_globals[i].name, global->name, global->name_nbytes) &&
             global_text_is_equal(bth_globals[i].module, global->text, global->text_nbytes)))
        i++;
    return i;
}

bool bth_global_is_known(const char *module, size_t module_nbytes, const char *name,
                         size_t name_nbytes)
{
    return global_find(&(bth_argument){.text = module,
                                       .text_nbytes = module_nbytes,
                                       .name = name,
                                       .name_nbytes = name_nbytes}) < N_GLOBALS;
}

/* Names are printed and saved again, so only visible ASCII is accepted. */
static bool global_text_is_printable_ascii(const char *text, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c <= ' ' || c >= 0x7f)
            return false;
    }
    return nbytes > 0;
}

static berth_value *known_global_make_value(bth_unpickler *unpickler, size_t row)
{
    const bth_known *known = &bth_globals[row];
    if (known->what == BTH_IS_DTYPE)
        return berth_make_constant(unpickler->tree, BERTH_KIND_DTYPE, known->number);
    if (known->what == BTH_IS_QSCHEME)
        return berth_make_constant(unpickler->tree, BERTH_KIND_QSCHEME, known->number);
    berth_value *node = bth_global_new(unpickler->tree, known->module, strlen(known->module),
                                       known->name, strlen(known->name), false);
    if (node)
        ((struct global_node *)node)->known = (uint32_t)row + 1;
    return node;
}

static berth_value *unknown_global_refuse_or_make(bth_unpickler *unpickler,
                                                  const bth_argument *argument)
{
    if (!global_text_is_printable_ascii(argument->text, argument->text_nbytes) ||
        !global_text_is_printable_ascii(argument->name, argument->name_nbytes))
        return BTH_UNPICKLE_REFUSE(unpickler, BERTH_E_PICKLE,
                                   "GLOBAL with text that is not a dotted name");
    if (unpickler->rules->inert)
        return bth_global_new(unpickler->tree, argument->text, argument->text_nbytes,
                              argument->name, argument->name_nbytes, true);
    size_t most = BTH_GLOBAL_SHOWN_NBYTES;
    int module_shown = (int)(argument->text_nbytes < most ? argument->text_nbytes : most);
    int name_shown = (int)(argument->name_nbytes < most ? argument->name_nbytes : most);
    return BTH_UNPICKLE_REFUSE(
        unpickler, BERTH_E_FORBIDDEN,
        "global %.*s %.*s is not allowed in a checkpoint" BTH_REFUSED_FOR_GLOBAL, module_shown,
        argument->text, name_shown, argument->name);
}

berth_value *bth_unpickle_make_global(bth_unpickler *unpickler, const bth_argument *argument)
{
    size_t row = global_find(argument);
    if (row == N_GLOBALS)
        return unknown_global_refuse_or_make(unpickler, argument);
    if (!unpickler->globals[row])
        unpickler->globals[row] = known_global_make_value(unpickler, row);
    return unpickler->globals[row];
}
