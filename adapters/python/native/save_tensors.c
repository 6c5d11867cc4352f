/* SPDX-License-Identifier: BSD-3-Clause */
/* Tensors and storages -> a tree. Their bytes stay where they are. */
#include <berth/device.h>

#include "adapters/python/native/dlpack.h"

/* ---- storages ---- */

/* PyTorch saves no two storages of one address as different types. */
static int check_address(bpy_saver *saver, void *address, PyObject *dtype)
{
    PyObject *known = address ? bpy_map_get(&saver->addresses, address) : NULL;
    if (known && known != dtype) {
        PyErr_SetString(PyExc_RuntimeError, "Cannot save multiple tensors or storages that view "
                                            "the same data as different types");
        return -1;
    }
    return known || !address ? 0 : bpy_map_set(&saver->addresses, address, dtype);
}

/* storage.method() as a number; sets *failed. */
static uint64_t number_of(PyObject *storage, PyObject *method, bool *failed)
{
    PyObject *object = bpy_call(storage, method);
    uint64_t number = object ? PyLong_AsUnsignedLongLong(object) : 0;
    Py_XDECREF(object);
    *failed |= PyErr_Occurred() != NULL;
    return number;
}

static void *address_of(const bpy_saver *saver, PyObject *untyped, bool *failed)
{
    if (saver->address)
        return saver->address;
    return (void *)(uintptr_t)number_of(untyped, saver->torch->data_ptr, failed);
}

int bpy_check_is_saved(const bpy_saver *saver, int dtype)
{
    if (dtype < BERTH_INT1 || dtype > BERTH_UINT7 || saver->torch->is_new[dtype])
        return 0;
    PyErr_Format(
        PyExc_TypeError,
        "a tensor of %R, which PyTorch loads but does not save: save .view(torch.uint8) of "
        "it, and .view(%R) what is loaded",
        saver->torch->dtypes[dtype], saver->torch->dtypes[dtype]);
    return -1;
}

berth_dtype bpy_storage_class(const bpy_saver *saver, uint64_t nbytes, int dtype)
{
    bool is_typed = dtype > 0 && !saver->torch->is_new[dtype] &&
                    nbytes % berth_dtype_nbytes((berth_dtype)dtype) == 0;
    return is_typed ? (berth_dtype)dtype : BERTH_DTYPE_NONE;
}

/*
 * The event of the driver's behind which the bytes of a device's current stream are complete. It is
 * recorded at the first storage of the device, and lives as long as the save needs it.
 */
static int find_event(bpy_saver *saver, PyObject *untyped, PyObject *device, const char **location,
                      void **ready)
{
    PyObject *known = saver->events ? PyDict_GetItemWithError(saver->events, device) : NULL;
    if (!known && !PyErr_Occurred())
        known = bpy_event_new(&saver->events, device, untyped);
    if (!known)
        return -1;
    if (known == Py_None)
        return bpy_refuse(saver, "it is on the device %S", device), -1;
    unsigned long long handle;
    PyObject *owner;
    if (!PyArg_ParseTuple(known, "sKO", location, &handle, &owner))
        return -1;
    *ready = (void *)(uintptr_t)handle;
    return 0;
}

/* The storage of memory of the host or of a device. */
static berth_storage *storage_at(bpy_saver *saver, PyObject *untyped, void *address,
                                 uint64_t nbytes, berth_dtype dtype)
{
    const char *location;
    void *ready;
    if (saver->is_on_host)
        return berth_storage_new(saver->tree, dtype, address, nbytes, NULL);
    PyObject *device = PyObject_GetAttr(untyped, bpy_name.device);
    PyObject *type = device ? PyObject_GetAttr(device, bpy_name.type) : NULL;
    berth_storage *storage = NULL;
    if (type && PyUnicode_CompareWithASCIIString(type, "cpu") == 0)
        storage = berth_storage_new(saver->tree, dtype, address, nbytes, NULL);
    else if (type && find_event(saver, untyped, device, &location, &ready) == 0)
        storage = berth_device_storage_new(saver->tree, dtype, (uintptr_t)address, nbytes, location,
                                           ready);
    Py_XDECREF(device);
    Py_XDECREF(type);
    return storage;
}

static berth_storage *storage_new(bpy_saver *saver, PyObject *untyped, int dtype)
{
    bool failed = false;
    uint64_t nbytes = number_of(untyped, saver->torch->nbytes, &failed);
    void *address = address_of(saver, untyped, &failed);
    if (failed)
        return NULL;
    if (!address && nbytes > 0)
        return bpy_refuse(saver, "its storage has no memory"), NULL;
    PyObject *saved_as = saver->torch->dtypes[BERTH_UINT8];
    if (dtype > 0 && !saver->torch->is_new[dtype])
        saved_as = saver->torch->dtypes[dtype];
    if (check_address(saver, address, saved_as) < 0)
        return NULL;
    return storage_at(saver, untyped, address, nbytes, bpy_storage_class(saver, nbytes, dtype));
}

/*
 * A storage that was met before is saved again; by the same type, or PyTorch refuses it. An empty
 * one may have several types in PyTorch, but not in a tree.
 */
static berth_storage *storage_again(bpy_saver *saver, PyObject *untyped, int dtype,
                                    berth_storage *storage)
{
    bool failed = false;
    void *address = address_of(saver, untyped, &failed);
    bool as_bytes = dtype <= 0 || saver->torch->is_new[dtype];
    PyObject *saved_as = saver->torch->dtypes[as_bytes ? BERTH_UINT8 : dtype];
    if (failed || check_address(saver, address, saved_as) < 0)
        return NULL;
    if (!address && berth_storage_get_info(storage)->dtype != bpy_storage_class(saver, 0, dtype))
        return bpy_refuse(saver, "its empty storage has another dtype, too"), NULL;
    return storage;
}

/*
 * The storage of an UntypedStorage, which is one object as long as it lives. Takes the reference.
 * Parameters: dtype: of the tensor or TypedStorage that has it; 0: none.
 */
static berth_storage *save_storage(bpy_saver *saver, PyObject *untyped, int dtype)
{
    if (!untyped)
        return NULL;
    if (bpy_check_is_saved(saver, dtype) < 0) {
        Py_DECREF(untyped);
        return NULL;
    }
    berth_storage *storage = bpy_map_get(&saver->storages, untyped);
    if (storage) {
        storage = storage_again(saver, untyped, dtype, storage);
        Py_DECREF(untyped);
        return storage;
    }
    if (bpy_saver_keep(saver, untyped) < 0)
        return NULL;
    storage = storage_new(saver, untyped, dtype);
    return storage && bpy_map_set(&saver->storages, untyped, storage) == 0 ? storage : NULL;
}

berth_value *bpy_save_untyped(bpy_saver *saver, PyObject *storage)
{
    Py_INCREF(storage);
    berth_storage *made = save_storage(saver, storage, 0);
    return made ? berth_make_storage(saver->tree, made) : NULL;
}

berth_value *bpy_save_typed(bpy_saver *saver, PyObject *storage)
{
    PyObject *untyped = PyObject_GetAttr(storage, bpy_name.untyped);
    PyObject *dtype = untyped ? PyObject_GetAttr(storage, bpy_name.dtype) : NULL;
    int number = dtype ? bpy_torch_find(saver->torch->dtypes, BERTH_DTYPE_COUNT, dtype) : 0;
    Py_XDECREF(dtype);
    if (!dtype) {
        Py_XDECREF(untyped);
        return NULL;
    }
    berth_storage *made = save_storage(saver, untyped, number);
    return made ? berth_make_storage(saver->tree, made) : NULL;
}

/* ---- what a tensor is ---- */

/* A tensor's attribute that is a bool: 1, 0, or -1: an exception is raised. */
static int flag(PyObject *tensor, PyObject *name)
{
    PyObject *object = PyObject_GetAttr(tensor, name);
    int is_set = object ? object == Py_True : -1;
    Py_XDECREF(object);
    return is_set;
}

/* The number of a tensor's dtype or layout in a table; 0: refused, or an exception is raised. */
static int constant_of(bpy_saver *saver, PyObject *tensor, PyObject *name, PyObject *const *table,
                       int n)
{
    PyObject *object = PyObject_GetAttr(tensor, name);
    int number = object ? bpy_torch_find(table, n, object) : 0;
    if (object && number == 0)
        bpy_refuse(saver, "a tensor of %R, which Berth does not know", object);
    Py_XDECREF(object);
    return number;
}

/* tensor.size() or tensor.stride(): the number of items; -1: an exception is raised. */
static int32_t read_sizes(bpy_saver *saver, PyObject *tensor, PyObject *method, int64_t *sizes)
{
    PyObject *tuple = bpy_call(tensor, method);
    Py_ssize_t n = tuple ? PyTuple_Size(tuple) : -1;
    if (n > BERTH_MAX_RANK) {
        bpy_refuse(saver, "a tensor of rank %zd; Berth knows ranks up to %d", n, BERTH_MAX_RANK);
        n = -1;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        sizes[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
    Py_XDECREF(tuple);
    return PyErr_Occurred() ? -1 : (int32_t)n;
}

/*
 * Conjugate and negative bits, as torch.save asks for them. Not by is_neg() and is_conj(): these
 * give up the GIL, and beside a thread that waits for it that costs more than the whole save.
 */
static int read_bits(bpy_saver *saver, PyObject *tensor, uint32_t *flags)
{
    PyObject *bits = PyObject_CallFunctionObjArgs(saver->torch->get_metadata, tensor, NULL);
    Py_ssize_t n = bits ? PyDict_Size(bits) : 0;
    if (n > 0) {
        bool is_conjugate = PyDict_GetItemString(bits, "conj") == Py_True;
        bool is_negative = PyDict_GetItemString(bits, "neg") == Py_True;
        *flags |= (is_negative ? BERTH_NEG : 0) | (is_conjugate ? BERTH_CONJ : 0);
        if (n > is_conjugate + is_negative)
            bpy_refuse(saver, "a tensor with the metadata %R", bits);
    }
    Py_XDECREF(bits);
    return bits && !saver->why ? 0 : -1;
}

/* The bits, and whether a gradient is wanted. */
static int read_flags(bpy_saver *saver, PyObject *tensor, uint32_t *flags)
{
    int grad = flag(tensor, bpy_name.requires_grad);
    *flags = grad > 0 ? BERTH_REQUIRES_GRAD : 0;
    return grad < 0 ? -1 : read_bits(saver, tensor, flags);
}

/*
 * Where the elements of a tensor of the host or of a device are.
 * Parameters: data: address of the first element; NULL: not known.
 */
static int read_storage(bpy_saver *saver, PyObject *object, berth_tensor *tensor, char *data)
{
    bool failed = false;
    tensor->storage_offset = (int64_t)number_of(object, saver->torch->storage_offset, &failed);
    if (failed)
        return -1;
    if (data)
        saver->address = data - tensor->storage_offset * (int64_t)berth_dtype_nbytes(tensor->dtype);
    tensor->storage =
        save_storage(saver, bpy_call(object, saver->torch->untyped_storage), (int)tensor->dtype);
    saver->address = NULL;
    return tensor->storage ? 0 : -1;
}

/* Where its elements are: a storage, or nowhere. */
static int read_place(bpy_saver *saver, PyObject *object, berth_tensor *tensor)
{
    int is_cpu = flag(object, bpy_name.is_cpu);
    int is_meta = is_cpu == 0 ? flag(object, bpy_name.is_meta) : 0;
    if (is_meta > 0) {
        tensor->flags |= BERTH_META;
        return 0;
    }
    return is_cpu < 0 || is_meta < 0 ? -1 : read_storage(saver, object, tensor, NULL);
}

/* ---- tensors of parts ---- */

/* torch.Tensor.name(tensor) (Y5) */
static PyObject *call_named(const bpy_saver *saver, PyObject *tensor, const char *name)
{
    PyObject *method = PyObject_GetAttrString(saver->torch->Tensor, name);
    PyObject *result = method ? bpy_call(tensor, method) : NULL;
    Py_XDECREF(method);
    return result;
}

/* tensor.name() as a value. */
static berth_value *save_part(bpy_saver *saver, PyObject *tensor, const char *name)
{
    PyObject *part = call_named(saver, tensor, name);
    if (!part || bpy_saver_keep(saver, part) < 0)
        return NULL;
    return bpy_save_value(saver, part);
}

static bool save_parts(bpy_saver *saver, PyObject *tensor, const char *const *parts, size_t n,
                       berth_value **values)
{
    for (size_t i = 0; i < n; i++) {
        values[i] = save_part(saver, tensor, parts[i]);
        if (!values[i])
            return false;
    }
    return true;
}

static berth_value *save_sparse(bpy_saver *saver, PyObject *tensor, int layout)
{
    static const char *const COO[] = {"_indices", "_values"};
    static const char *const ROWS[] = {"crow_indices", "col_indices", "values"};
    static const char *const COLUMNS[] = {"ccol_indices", "row_indices", "values"};
    bool is_coo = layout == BERTH_SPARSE_COO;
    bool by_rows = layout == BERTH_SPARSE_CSR || layout == BERTH_SPARSE_BSR;
    berth_value *parts[3];
    int64_t shape[BERTH_MAX_RANK];
    int32_t rank = read_sizes(saver, tensor, saver->torch->size, shape);
    if (rank < 0 || !save_parts(saver, tensor,
                                is_coo    ? COO
                                : by_rows ? ROWS
                                          : COLUMNS,
                                is_coo ? 2 : 3, parts))
        return NULL;
    PyObject *coalesced = is_coo ? call_named(saver, tensor, "is_coalesced") : NULL;
    if (is_coo && !coalesced)
        return NULL;
    berth_value *value = berth_make_sparse(saver->tree, (berth_layout_kind)layout, shape, rank,
                                           parts, coalesced == Py_True);
    Py_XDECREF(coalesced);
    return value;
}

static berth_value *save_nested(bpy_saver *saver, PyObject *tensor)
{
    static const char *const PARTS[] = {"values", "_nested_tensor_size", "_nested_tensor_strides",
                                        "_nested_tensor_storage_offsets"};
    berth_value *parts[4];
    return save_parts(saver, tensor, PARTS, 4, parts) ? berth_make_nested(saver->tree, parts)
                                                      : NULL;
}

/* A number that a method of the tensor returns. */
static double number_from(const bpy_saver *saver, PyObject *tensor, const char *name,
                          int64_t *integer)
{
    PyObject *object = call_named(saver, tensor, name);
    double number = 0;
    if (object && integer)
        *integer = PyLong_AsLongLong(object);
    else if (object)
        number = PyFloat_AsDouble(object);
    Py_XDECREF(object);
    return number;
}

static int read_quantizer(bpy_saver *saver, PyObject *object, berth_tensor *tensor)
{
    PyObject *scheme = call_named(saver, object, "qscheme");
    int number = scheme ? bpy_torch_find(saver->torch->qschemes,
                                         BERTH_PER_CHANNEL_AFFINE_FLOAT_QPARAMS + 1, scheme)
                        : 0;
    Py_XDECREF(scheme);
    tensor->qscheme = (berth_qscheme)number;
    if (number == BERTH_PER_TENSOR_AFFINE) {
        tensor->scale = number_from(saver, object, "q_scale", NULL);
        if (!PyErr_Occurred())
            number_from(saver, object, "q_zero_point", &tensor->zero_point);
    } else if (number == BERTH_PER_CHANNEL_AFFINE ||
               number == BERTH_PER_CHANNEL_AFFINE_FLOAT_QPARAMS) {
        tensor->scales = save_part(saver, object, "q_per_channel_scales");
        tensor->zero_points =
            tensor->scales ? save_part(saver, object, "q_per_channel_zero_points") : NULL;
        if (tensor->zero_points)
            number_from(saver, object, "q_per_channel_axis", &tensor->axis);
        return tensor->zero_points && !PyErr_Occurred() ? 0 : -1;
    } else {
        bpy_refuse(saver, "a tensor of a quantization that PyTorch does not save");
    }
    return saver->why || PyErr_Occurred() ? -1 : 0;
}

/* ---- a tensor ---- */

static bool is_quantized(berth_dtype dtype)
{
    return dtype >= BERTH_QINT8 && dtype <= BERTH_QUINT2X4;
}

/* Whether the tensor is of this dtype: PyTorch passes int1 to uint7 as 8 bits. */
static bool is_of_dtype(PyObject *tensor, PyObject *dtype)
{
    PyObject *own = PyObject_GetAttr(tensor, bpy_name.dtype);
    if (!own)
        PyErr_Clear();
    Py_XDECREF(own); /* the tensor has it, too */
    return own == dtype;
}

/*
 * Reads dtype, shape and stride of an ordinary tensor of the host in one step, if this PyTorch can.
 * What is sparse, nested, quantized or elsewhere has no DLPack form. The view's shape is the
 * tensor's own, which another thread may change before the walk is done with it: it is copied.
 */
static bool read_by_table(const bpy_saver *saver, PyObject *object, berth_tensor *tensor,
                          int64_t *shape, int64_t *stride, char **data)
{
    const dl_exchange *exchange = saver->torch->exchange;
    dl_tensor view;
    if (!exchange || exchange->major != 1 || !exchange->view_object)
        return false;
    if (exchange->view_object(object, &view) != 0) {
        PyErr_Clear();
        return false;
    }
    int dtype = 1;
    while (dtype < BERTH_DTYPE_COUNT &&
           (bpy_dl_types[dtype].code != view.code || bpy_dl_types[dtype].bits != view.bits))
        dtype++;
    if (view.device_type != DL_CPU || dtype == BERTH_DTYPE_COUNT || view.lanes != 1 ||
        view.rank > BERTH_MAX_RANK ||
        (view.bits == 8 && !is_of_dtype(object, saver->torch->dtypes[dtype])))
        return false;
    tensor->dtype = (berth_dtype)dtype;
    tensor->rank = view.rank;
    *data = view.data ? (char *)view.data + view.offset_nbytes : NULL;
    for (int32_t i = 0; i < view.rank; i++) {
        shape[i] = view.shape[i];
        stride[i] = view.strides[i];
    }
    return true;
}

static berth_value *make_tensor(bpy_saver *saver, berth_tensor *tensor, bool keeps_grad)
{
    if (!keeps_grad)
        tensor->flags &= ~BERTH_REQUIRES_GRAD;
    berth_value *made = berth_make_tensor(saver->tree, tensor);
    berth_error error;
    if (!made && berth_tree_error(saver->tree, &error) == BERTH_E_TENSOR)
        return bpy_refuse(saver, "%s", error.message);
    return made;
}

/* Parameters: keeps_grad: false: as the tensor's .data, which wants no gradient. */
static berth_value *save_strided(bpy_saver *saver, PyObject *object, bool keeps_grad)
{
    int64_t shape[BERTH_MAX_RANK], stride[BERTH_MAX_RANK];
    berth_tensor tensor = {.shape = shape, .stride = stride};
    tensor.dtype = (berth_dtype)constant_of(saver, object, bpy_name.dtype, saver->torch->dtypes,
                                            BERTH_DTYPE_COUNT);
    if (tensor.dtype == BERTH_DTYPE_NONE || read_flags(saver, object, &tensor.flags) < 0)
        return NULL;
    tensor.rank = read_sizes(saver, object, saver->torch->size, shape);
    if (tensor.rank < 0 || read_sizes(saver, object, saver->torch->stride, stride) < 0 ||
        read_place(saver, object, &tensor) < 0)
        return NULL;
    if (is_quantized(tensor.dtype) && read_quantizer(saver, object, &tensor) < 0)
        return NULL;
    return make_tensor(saver, &tensor, keeps_grad);
}

/* A sparse or nested Parameter's inner tensor has parts without gradients: its .data's. */
static berth_value *save_of_parts(bpy_saver *saver, PyObject *object, int layout, bool keeps_grad)
{
    PyObject *tensor = object;
    if (keeps_grad)
        Py_INCREF(tensor);
    else
        tensor = PyObject_GetAttr(object, bpy_name.data);
    if (!tensor || bpy_saver_keep(saver, tensor) < 0)
        return NULL;
    return layout == BERTH_STRIDED ? save_nested(saver, tensor)
                                   : save_sparse(saver, tensor, layout);
}

static berth_value *save_bare_tensor(bpy_saver *saver, PyObject *object, bool keeps_grad)
{
    int64_t shape[BERTH_MAX_RANK], stride[BERTH_MAX_RANK];
    berth_tensor tensor = {.shape = shape, .stride = stride};
    char *data;
    if (read_by_table(saver, object, &tensor, shape, stride, &data)) {
        saver->is_on_host = true;
        int status = read_flags(saver, object, &tensor.flags);
        if (status == 0)
            status = read_storage(saver, object, &tensor, data);
        saver->is_on_host = false;
        return status < 0 ? NULL : make_tensor(saver, &tensor, keeps_grad);
    }
    int layout = constant_of(saver, object, bpy_name.layout, saver->torch->layouts, BERTH_JAGGED);
    int is_nested = layout == BERTH_STRIDED ? flag(object, bpy_name.is_nested) : 0;
    if (layout == 0 || is_nested < 0)
        return NULL;
    return layout != BERTH_STRIDED || is_nested ? save_of_parts(saver, object, layout, keeps_grad)
                                                : save_strided(saver, object, keeps_grad);
}

/* PyTorch warns about hooks that are not saved. Only tensors that want a gradient have some. */
static int warn_of_hooks(bpy_saver *saver, PyObject *tensor)
{
    PyObject *hooks = PyObject_GetAttr(tensor, bpy_name.backward_hooks);
    int has_hooks = hooks ? PyObject_IsTrue(hooks) : -1;
    Py_XDECREF(hooks);
    if (has_hooks <= 0)
        return has_hooks;
    PyObject *done = PyObject_CallFunctionObjArgs(saver->torch->warn_hooks, tensor, NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/*
 * Puts the tensor's Python attributes around its value. It is there already if one of them holds
 * the tensor itself.
 */
static berth_value *save_attributes(bpy_saver *saver, PyObject *tensor, berth_value *value)
{
    PyObject *state = value ? bpy_call(tensor, saver->torch->getstate) : NULL;
    if (!state || bpy_saver_keep(saver, state) < 0)
        return NULL;
    if (state == Py_None)
        return value;
    berth_value *attributes = bpy_save_value(saver, state);
    if (!attributes)
        return NULL;
    berth_value *known = bpy_map_get(&saver->nodes, tensor);
    return known ? known : berth_make_subclass(saver->tree, value, attributes);
}

berth_value *bpy_save_tensor(bpy_saver *saver, PyObject *tensor)
{
    berth_value *value = save_bare_tensor(saver, tensor, true);
    bool has_grad = berth_value_flags(value) & BERTH_REQUIRES_GRAD;
    if (has_grad && warn_of_hooks(saver, tensor) < 0)
        return NULL;
    return save_attributes(saver, tensor, value);
}

berth_value *bpy_save_parameter(bpy_saver *saver, PyObject *parameter)
{
    int grad = flag(parameter, bpy_name.requires_grad);
    berth_value *inner = grad < 0 ? NULL : save_bare_tensor(saver, parameter, false);
    if (!inner)
        return NULL;
    return save_attributes(saver, parameter, berth_make_parameter(saver->tree, inner, grad == 1));
}
