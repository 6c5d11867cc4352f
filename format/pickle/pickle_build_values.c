/* SPDX-License-Identifier: BSD-3-Clause */
/* REDUCE: builders of all values but tensors. */
#include <stdlib.h>
#include <string.h>

#include "format/pickle/pickle_machine.h"

BTH_BUILDER(ordered_dict)
{
    if (n == 0)
        return berth_make_dict(unpickler->tree, BERTH_KIND_ORDERED_DICT);
    return bth_ordered_dict_from_pairs(unpickler->tree, items[0]);
}

BTH_BUILDER(counter)
{
    return bth_counter_from_dict(unpickler->tree, n ? items[0] : NULL);
}

BTH_BUILDER(set)
{
    return bth_set_from_list(unpickler->tree, n ? items[0] : NULL);
}

BTH_BUILDER(size)
{
    return bth_size_from_tuple(unpickler->tree, items[0]);
}

BTH_BUILDER(complex)
{
    double real, imaginary; /* numbers, as their letters say */
    (void)bth_node_as_double(items[0], &real);
    (void)bth_node_as_double(items[1], &imaginary);
    return berth_make_complex(unpickler->tree, real, imaginary);
}

/* Device types that PyTorch knows by itself. */
static bool device_is_known(const char *type)
{
    static const char *const types[] = {
        "cpu",    "cuda", "ipu",  "xpu",  "mkldnn", "opengl",        "opencl",
        "ideep",  "hip",  "ve",   "fpga", "maia",   "xla",           "lazy",
        "vulkan", "mps",  "meta", "hpu",  "mtia",   "privateuseone",
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(type, types[i]) == 0)
            return true;
    return false;
}

/* torch.device('cuda', 1), ('cuda') and ('cuda:1'). */
BTH_BUILDER(device)
{
    size_t nbytes;
    const char *text = berth_as_text(items[0], &nbytes);
    char type[40] = "";
    int64_t index = -1;
    size_t type_nbytes = strcspn(text, ":");
    bool good = nbytes < sizeof type && strlen(text) == nbytes && type_nbytes > 0;
    if (good && n == 2) {
        (void)berth_as_int(items[1], &index); /* it is an int: see argument_has_expected_kind() */
        good = type_nbytes == nbytes && index >= 0;
    }
    if (good && type_nbytes < nbytes) {
        const char *digits = text + type_nbytes + 1;
        good = *digits && strspn(digits, "0123456789") == strlen(digits) && strlen(digits) <= 3;
        index = good ? strtol(digits, NULL, 10) : -1;
    }
    if (good) {
        memcpy(type, text, type_nbytes);
        type[type_nbytes] = 0;
    }
    if (!device_is_known(type))
        return BTH_UNPICKLE_REFUSE(unpickler, BERTH_E_PICKLE, "%s %s of text that names no device",
                                   known->module, known->name);
    return berth_make_device(unpickler->tree, type, index);
}

/* Of a str, as its letter says. */
static bool encoding_is_latin1(const berth_value *value)
{
    const char *name = berth_as_text(value, NULL);
    return strcmp(name, "latin1") == 0 || strcmp(name, "latin-1") == 0;
}

static berth_value *encoding_refuse(bth_unpickler *unpickler, const bth_known *known)
{
    return BTH_UNPICKLE_REFUSE(unpickler, BERTH_E_PICKLE, "%s %s wants the encoding latin1",
                               known->module, known->name);
}

BTH_BUILDER(encode)
{
    if (!encoding_is_latin1(items[1]))
        return encoding_refuse(unpickler, known);
    return bth_bytes_from_latin1(unpickler->tree, items[0]);
}

/* bytearray(), bytearray(bytes), and as Python before 3.8 wrote it, bytearray(text, 'latin-1'). */
BTH_BUILDER(bytearray)
{
    berth_value *bytes = n ? items[0] : NULL;
    if (n == 2 ? !encoding_is_latin1(items[1]) : n == 1 && bth_node_kind(bytes) != BERTH_KIND_BYTES)
        return encoding_refuse(unpickler, known);
    if (n && bth_node_kind(bytes) == BERTH_KIND_STR)
        bytes = bth_bytes_from_latin1(unpickler->tree, bytes);
    if (n && !bytes)
        return NULL;
    return bth_bytearray_from_bytes(unpickler->tree, bytes);
}

BTH_BUILDER(layout)
{
    const char *name = berth_as_text(items[0], NULL);
    for (int layout = BERTH_SPARSE_COO; layout <= BERTH_JAGGED; layout++)
        if (strcmp(name, bth_layout_names[layout]) == 0)
            return berth_make_constant(unpickler->tree, BERTH_KIND_LAYOUT, layout);
    return BTH_UNPICKLE_REFUSE(unpickler, BERTH_E_PICKLE, "%s %s of an unknown layout",
                               known->module, known->name);
}
