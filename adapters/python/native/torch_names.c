/* SPDX-License-Identifier: BSD-3-Clause */
/* torch's types, functions and constants, looked up once. */
#include "adapters/python/native/native.h"

bpy_names bpy_name;

/* Where each name of torch is, and where it goes. */
static bpy_torch names;
static const struct {
    const char *module, *path;
    PyObject **place;
} TABLE[] = {
    {"torch", "Tensor", &names.Tensor},
    {"torch.nn", "Parameter", &names.Parameter},
    {"torch", "Size", &names.Size},
    {"torch", "dtype", &names.dtype},
    {"torch", "device", &names.device},
    {"torch", "layout", &names.layout},
    {"torch", "qscheme", &names.qscheme},
    {"torch", "UntypedStorage", &names.UntypedStorage},
    {"torch", "TypedStorage", &names.TypedStorage},
    {"collections", "OrderedDict", &names.OrderedDict},
    {"collections", "Counter", &names.Counter},
    {"torch", "empty", &names.empty},
    {"torch._C", "_from_dlpack", &names.from_dlpack},
    {"torch", "Tensor._make_subclass", &names.make_subclass},
    {"torch._C", "_get_tensor_metadata", &names.get_metadata},
    {"torch._utils", "set_tensor_metadata", &names.set_metadata},
    {"torch._utils", "_set_obj_state", &names.set_state},
    {"torch._utils", "_rebuild_meta_tensor_no_storage", &names.rebuild_meta},
    {"torch._utils", "_rebuild_qtensor", &names.rebuild_quantized},
    {"berth._sparse", "rebuild", &names.rebuild_sparse},
    {"torch._utils", "_rebuild_nested_tensor", &names.rebuild_nested},
    {"torch.utils.hooks", "warn_if_has_hooks", &names.warn_hooks},
    {"torch._weights_only_unpickler", "_get_allowed_globals", &names.allowed_globals},
    {"torch", "Tensor.untyped_storage", &names.untyped_storage},
    {"torch", "Tensor.storage_offset", &names.storage_offset},
    {"torch", "Tensor.size", &names.size},
    {"torch", "Tensor.stride", &names.stride},
    {"torch", "Tensor.set_", &names.set},
    {"torch", "Tensor.__getstate__", &names.getstate},
    {"torch", "UntypedStorage.data_ptr", &names.data_ptr},
    {"torch", "UntypedStorage.nbytes", &names.nbytes},
    {"collections", "OrderedDict.items", &names.ordered_items},
    {"collections", "OrderedDict.__getstate__", &names.ordered_getstate},
};

/* module.a.b; a new reference. */
static PyObject *find(const char *module, const char *path)
{
    PyObject *at = PyImport_ImportModule(module);
    char text[64];
    (void)snprintf(text, sizeof text, "%s", path);
    char *rest = text;
    for (char *step = strtok_r(text, ".", &rest); at && step; step = strtok_r(NULL, ".", &rest)) {
        PyObject *next = PyObject_GetAttrString(at, step);
        Py_DECREF(at);
        at = next;
    }
    return at;
}

/* A constant that not every PyTorch has; NULL without an exception: this one has it not. */
static PyObject *find_constant(const char *name)
{
    PyObject *found = find("torch", name);
    if (!found && PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Clear();
    return found;
}

/* Returns: 0; -1: an exception is raised, for example by ^C: the next call begins again. */
static int find_constants(void)
{
    static const char *const LAYOUTS[] = {NULL,         "sparse_coo", "sparse_csr", "sparse_csc",
                                          "sparse_bsr", "sparse_bsc", "strided",    "jagged"};
    static const char *const QSCHEMES[] = {
        NULL,
        "per_tensor_affine",
        "per_tensor_symmetric",
        "per_channel_affine",
        "per_channel_symmetric",
        "per_channel_affine_float_qparams",
    };
    for (int i = 1; i < BERTH_DTYPE_COUNT && !PyErr_Occurred(); i++)
        names.dtypes[i] = find_constant(berth_dtype_name((berth_dtype)i));
    for (int i = 1; i <= BERTH_JAGGED && !PyErr_Occurred(); i++)
        names.layouts[i] = find_constant(LAYOUTS[i]);
    for (int i = 1; i <= BERTH_PER_CHANNEL_AFFINE_FLOAT_QPARAMS && !PyErr_Occurred(); i++)
        names.qschemes[i] = find_constant(QSCHEMES[i]);
    return PyErr_Occurred() ? -1 : 0;
}

/* torch.storage._new_dtypes(): their storages are saved as bytes. */
static int find_new_dtypes(void)
{
    PyObject *storage = PyImport_ImportModule("torch.storage");
    PyObject *new = storage ? PyObject_CallMethod(storage, "_new_dtypes", NULL) : NULL;
    for (int i = 1; new &&i < BERTH_DTYPE_COUNT; i++)
        names.is_new[i] = names.dtypes[i] && PySet_Contains(new, names.dtypes[i]) == 1;
    Py_XDECREF(storage);
    Py_XDECREF(new);
    return new ? 0 : -1;
}

static void find_exchange(void)
{
    PyObject *capsule = PyObject_GetAttrString(names.Tensor, "__dlpack_c_exchange_api__");
    if (capsule)
        names.exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_XDECREF(capsule);
    PyErr_Clear(); /* an older PyTorch */
}

/* Whether this PyTorch is 2.15 or later, which shares storages without an address, too. */
static int find_sharing(void)
{
    PyObject *version = find("torch", "__version__");
    PyObject *since = Py_BuildValue("(ii)", 2, 15);
    int is_later = version && since ? PyObject_RichCompareBool(version, since, Py_GE) : -1;
    names.shares_all = is_later > 0;
    Py_XDECREF(version);
    Py_XDECREF(since);
    return is_later < 0 ? -1 : 0;
}

const bpy_torch *bpy_torch_get(void)
{
    static bool done;
    if (done)
        return &names;
    for (size_t i = 0; i < sizeof TABLE / sizeof *TABLE; i++) {
        if (!*TABLE[i].place)
            *TABLE[i].place = find(TABLE[i].module, TABLE[i].path);
        if (!*TABLE[i].place)
            return NULL;
    }
    find_exchange();
    if (find_constants() < 0 || find_new_dtypes() < 0 || find_sharing() < 0)
        return NULL;
    done = true;
    return &names;
}

int bpy_torch_find(PyObject *const *table, int n, const PyObject *constant)
{
    for (int i = 1; i < n; i++)
        if (table[i] == constant)
            return i;
    return 0;
}

int bpy_names_make(void)
{
    static const struct {
        PyObject **place;
        const char *text;
    } NAMES[] = {
        {&bpy_name.dtype, "dtype"},
        {&bpy_name.layout, "layout"},
        {&bpy_name.is_cpu, "is_cpu"},
        {&bpy_name.is_meta, "is_meta"},
        {&bpy_name.requires_grad, "requires_grad"},
        {&bpy_name.is_nested, "is_nested"},
        {&bpy_name.backward_hooks, "_backward_hooks"},
        {&bpy_name.data, "data"},
        {&bpy_name.dict, "__dict__"},
        {&bpy_name.untyped, "_untyped_storage"},
        {&bpy_name.type, "type"},
        {&bpy_name.index, "index"},
        {&bpy_name.device, "device"},
    };
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        *NAMES[i].place = PyUnicode_InternFromString(NAMES[i].text);
        if (!*NAMES[i].place)
            return -1;
    }
    return 0;
}
