/* SPDX-License-Identifier: BSD-3-Clause */
/* The names of kinds. */
#include <string.h>

#include "format/values/node.h"

berth_kind berth_value_kind(const berth_value *value)
{
    return value ? (berth_kind)value->kind : BERTH_KIND_NONE;
}

const char *bth_kind_phrase(berth_kind kind)
{
    static const char *const phrases[] = {
        [BERTH_KIND_NONE] = "None",
        [BERTH_KIND_BOOL] = "a bool",
        [BERTH_KIND_INT] = "an int",
        [BERTH_KIND_FLOAT] = "a float",
        [BERTH_KIND_COMPLEX] = "a complex",
        [BERTH_KIND_STR] = "a str",
        [BERTH_KIND_BYTES] = "bytes",
        [BERTH_KIND_BYTEARRAY] = "a bytearray",
        [BERTH_KIND_LIST] = "a list",
        [BERTH_KIND_TUPLE] = "a tuple",
        [BERTH_KIND_DICT] = "a dict",
        [BERTH_KIND_ORDERED_DICT] = "an OrderedDict",
        [BERTH_KIND_COUNTER] = "a Counter",
        [BERTH_KIND_SET] = "a set",
        [BERTH_KIND_SIZE] = "a torch.Size",
        [BERTH_KIND_DEVICE] = "a torch.device",
        [BERTH_KIND_DTYPE] = "a torch.dtype",
        [BERTH_KIND_QSCHEME] = "a torch.qscheme",
        [BERTH_KIND_LAYOUT] = "a torch.layout",
        [BERTH_KIND_STORAGE] = "a storage",
        [BERTH_KIND_TENSOR] = "a tensor",
        [BERTH_KIND_SPARSE] = "a sparse tensor",
        [BERTH_KIND_NESTED] = "a nested tensor",
        [BERTH_KIND_PARAMETER] = "a Parameter",
        [BERTH_KIND_SUBCLASS] = "a tensor with attributes",
        [BERTH_KIND_GLOBAL] = "a global",
        [BERTH_KIND_CALL] = "an object",
    };
    return (size_t)kind < sizeof(phrases) / sizeof(*phrases) ? phrases[kind] : "unknown";
}

const char *berth_kind_name(berth_kind kind)
{
    const char *phrase = bth_kind_phrase(kind);
    if (strncmp(phrase, "a ", 2) == 0)
        return phrase + 2;
    return strncmp(phrase, "an ", 3) == 0 ? phrase + 3 : phrase;
}
