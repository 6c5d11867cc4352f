/* SPDX-License-Identifier: BSD-3-Clause */
/* The type Checkpoint: an open file, as berth._load and berth._open use it. */
#include "adapters/python/native/native.h"

/* Bytes of an open file, for memoryview. */
typedef struct bytes_object {
    PyObject_HEAD bpy_checkpoint *checkpoint;
    void *address;
    Py_ssize_t nbytes;
} bytes_object;

#define CLOSED "the file is closed"

static PyTypeObject *checkpoint_type, *bytes_type;

bpy_checkpoint *bpy_checkpoint_of(PyObject *object)
{
    if (Py_TYPE(object) == checkpoint_type)
        return (bpy_checkpoint *)bpy_hold(object, CLOSED);
    PyErr_SetString(PyExc_TypeError, "the file is not one of berth.open");
    return NULL;
}

static PyObject *text_object(const char *text)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "surrogateescape");
}

/* A name as Berth takes it (Y11); NULL: an exception is raised. *bytes owns it. */
static const char *name_text(const bpy_checkpoint *checkpoint, PyObject *name, PyObject **bytes)
{
    berth_error none = {.code = BERTH_E_NOT_FOUND, .offset = BERTH_NO_OFFSET};
    *bytes = NULL;
    if (!PyUnicode_Check(name)) {
        PyErr_Format(PyExc_TypeError, "a name is a str, not %R", (PyObject *)Py_TYPE(name));
        return NULL;
    }
    *bytes = PyUnicode_AsEncodedString(name, "utf-8", "surrogateescape");
    const char *text = *bytes ? PyBytes_AsString(*bytes) : NULL;
    if (text && strlen(text) == (size_t)PyBytes_Size(*bytes))
        return text;
    if (!text && !PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
        return NULL;
    (void)snprintf(none.message, sizeof none.message,
                   "no name has %s; keys() gives a path in its place, as \"['a\\x00b']\"",
                   text ? "a NUL character" : "such characters");
    PyErr_Clear();
    bpy_raise_of(checkpoint, &none);
    Py_CLEAR(*bytes);
    return NULL;
}

static PyObject *sizes_object(const int64_t *sizes, int32_t n)
{
    PyObject *tuple = PyTuple_New(n);
    for (int32_t i = 0; tuple && i < n; i++) {
        PyObject *item = PyLong_FromLongLong(sizes[i]);
        if (!item || PyTuple_SetItem(tuple, i, item) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

/* ---- opening and closing ---- */

static PyObject *checkpoint_open(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *source;
    const char *assignments;
    if (!PyArg_ParseTuple(arguments, "Os", &source, &assignments))
        return NULL;
    bpy_checkpoint *checkpoint = bpy_checkpoint_open(source, assignments);
    return checkpoint ? bpy_holder_new(checkpoint_type, &checkpoint->held) : NULL;
}

/* ---- values ---- */

static const berth_value *value_named(const bpy_checkpoint *checkpoint, PyObject *name)
{
    berth_error error;
    PyObject *bytes = NULL;
    if (name == Py_None)
        return berth_root(checkpoint->handle);
    const char *text = name_text(checkpoint, name, &bytes);
    const berth_value *value = text ? berth_find(checkpoint->handle, text, &error) : NULL;
    if (text && !value)
        bpy_raise(&error);
    Py_XDECREF(bytes);
    return value;
}

/* Checkpoint.value(name, in_place, keeps_empty, is_meta, restore, cpu_stays, places) */
static PyObject *checkpoint_value(bpy_held *held, PyObject *arguments)
{
    PyObject *name, *restore, *places;
    int in_place, keeps_empty, is_meta, cpu_stays;
    bpy_checkpoint *checkpoint = (bpy_checkpoint *)held;
    if (!PyArg_ParseTuple(arguments, "OpppOpO", &name, &in_place, &keeps_empty, &is_meta, &restore,
                          &cpu_stays, &places))
        return NULL;
    bpy_loader loader = {
        .torch = bpy_torch_get(),
        .checkpoint = checkpoint,
        .in_place = in_place,
        .keeps_empty = keeps_empty,
        .is_meta = is_meta,
        .cpu_stays = cpu_stays,
        .restore = restore == Py_None ? NULL : restore,
        .places = places == Py_None ? NULL : places,
    };
    if (!loader.torch)
        return NULL;
    const berth_value *value = value_named(checkpoint, name);
    PyObject *made = NULL;
    if (value && bpy_load_storages(&loader) == 0 && bpy_load_to_devices(&loader) == 0)
        made = bpy_load_value(&loader, value);
    bpy_loader_free(&loader);
    return made;
}

/*
 * Checkpoint.try_values(): makes all values, but for tensors and what classes of the file make, and
 * drops them. So what a pickle can make Python do is known before PyTorch unpickles it (Y1).
 */
static PyObject *checkpoint_try_values(bpy_held *held, PyObject *unused)
{
    (void)unused;
    bpy_checkpoint *checkpoint = (bpy_checkpoint *)held;
    bpy_loader loader = {
        .torch = bpy_torch_get(), .checkpoint = checkpoint, .in_place = true, .is_trial = true};
    const berth_value *root = berth_root(checkpoint->handle);
    PyObject *made = loader.torch && root ? bpy_load_value(&loader, root) : NULL;
    bpy_loader_free(&loader);
    Py_XDECREF(made);
    if (!made && PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

/* With deep nesting and long keys a small file can have very long names (P3): the bounds of the
 * command. */
static bool long_names_are_too_many(size_t *counted, size_t nbytes, berth_error *error)
{
    enum { LONG_NBYTES = 1024, MAX_NBYTES = 16 << 20 };

    if (nbytes > LONG_NBYTES)
        *counted += nbytes;
    if (*counted <= MAX_NBYTES)
        return false;
    *error = (berth_error){.code = BERTH_E_UNSUPPORTED, .offset = BERTH_NO_OFFSET};
    (void)snprintf(
        error->message, sizeof error->message,
        "names above %d bytes take more than %d MiB in all: Berth does not list them; berth.load "
        "reads the file",
        LONG_NBYTES, MAX_NBYTES >> 20);
    return true;
}

static PyObject *checkpoint_names(bpy_held *held, PyObject *unused)
{
    (void)unused;
    const bpy_checkpoint *checkpoint = (bpy_checkpoint *)held;
    berth_checkpoint *handle = checkpoint->handle;
    PyObject *names = PyList_New(0);
    berth_named_tensor named;
    berth_error error;
    size_t long_nbytes = 0;
    for (size_t i = 0; names && i < berth_tensor_count(handle); i++) {
        if (berth_tensor_at(handle, i, &named, &error) < 0) {
            Py_CLEAR(names);
            return bpy_raise(&error);
        }
        if (long_names_are_too_many(&long_nbytes, strlen(named.name), &error)) {
            Py_CLEAR(names);
            return bpy_raise_of(checkpoint, &error);
        }
        PyObject *name = text_object(named.name);
        if (!name || PyList_Append(names, name) < 0)
            Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

const berth_tensor *bpy_checkpoint_find(const bpy_checkpoint *checkpoint, PyObject *name)
{
    berth_error error;
    PyObject *bytes;
    const char *text = name_text(checkpoint, name, &bytes);
    const berth_tensor *tensor = text ? berth_find_tensor(checkpoint->handle, text, &error) : NULL;
    if (text && !tensor)
        bpy_raise(&error);
    Py_XDECREF(bytes);
    return tensor;
}

/* Checkpoint.tensor(name) -> (dtype, shape, stride, nbytes, flags) */
static PyObject *checkpoint_tensor(bpy_held *held, PyObject *name)
{
    const berth_tensor *tensor = bpy_checkpoint_find((bpy_checkpoint *)held, name);
    if (!tensor)
        return NULL;
    PyObject *shape = sizes_object(tensor->shape, tensor->rank);
    PyObject *stride = sizes_object(tensor->stride, tensor->rank);
    PyObject *made = shape && stride
                         ? Py_BuildValue("(sOOKI)", berth_dtype_name(tensor->dtype), shape, stride,
                                         (unsigned long long)berth_tensor_nbytes(tensor),
                                         (unsigned int)tensor->flags)
                         : NULL;
    Py_XDECREF(shape);
    Py_XDECREF(stride);
    return made;
}

/* ---- elements ---- */

/* The items of a sequence of ints, one for each dimension. */
static int sizes_from(PyObject *sequence, int32_t rank, int64_t *sizes)
{
    if (PySequence_Size(sequence) != rank) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_IndexError, "the tensor has %d dimensions", rank);
        return -1;
    }
    for (int32_t i = 0; i < rank; i++) {
        PyObject *item = PySequence_GetItem(sequence, i);
        sizes[i] = item ? PyLong_AsLongLong(item) : 0;
        Py_XDECREF(item);
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* Elements starts[d] to starts[d] + lengths[d] - 1 of each dimension of a tensor. */
typedef struct slice_range {
    const berth_tensor *tensor;
    int64_t starts[BERTH_MAX_RANK], lengths[BERTH_MAX_RANK];
    size_t n, nbytes; /* elements, and their bytes */
} slice_range;

static int slice_count(slice_range *slice)
{
    const berth_tensor *tensor = slice->tensor;
    bool is_inside = true;
    slice->n = 1;
    for (int32_t i = 0; i < tensor->rank; i++)
        is_inside = is_inside && slice->lengths[i] >= 0 &&
                    !__builtin_mul_overflow(slice->n, (size_t)slice->lengths[i], &slice->n);
    if (!is_inside ||
        __builtin_mul_overflow(slice->n, berth_dtype_nbytes(tensor->dtype), &slice->nbytes) ||
        slice->nbytes > berth_tensor_nbytes(tensor)) {
        PyErr_SetString(PyExc_IndexError, "the slice is not inside the tensor");
        return -1;
    }
    return 0;
}

/* On failure an exception is raised. */
static int slice_from(const bpy_checkpoint *checkpoint, PyObject *name, PyObject *starts,
                      PyObject *lengths, slice_range *slice)
{
    slice->tensor = bpy_checkpoint_find(checkpoint, name);
    if (!slice->tensor || sizes_from(starts, slice->tensor->rank, slice->starts) < 0 ||
        sizes_from(lengths, slice->tensor->rank, slice->lengths) < 0)
        return -1;
    return slice_count(slice);
}

/* Without the GIL. On failure an exception is raised. */
static int slice_read(const bpy_checkpoint *checkpoint, const slice_range *slice, void *buffer)
{
    berth_checkpoint *handle = checkpoint->handle;
    berth_error error;
    int status;
    Py_BEGIN_ALLOW_THREADS;
    status = berth_tensor_read_slice(handle, slice->tensor, slice->starts, slice->lengths, buffer,
                                     &error);
    Py_END_ALLOW_THREADS;
    if (status < 0)
        bpy_raise(&error);
    return status;
}

/* Checkpoint.slice(name, starts, lengths) -> bytearray */
static PyObject *checkpoint_slice(bpy_held *held, PyObject *arguments)
{
    PyObject *name, *starts, *lengths;
    slice_range slice;
    const bpy_checkpoint *checkpoint = (bpy_checkpoint *)held;
    if (!PyArg_ParseTuple(arguments, "OOO", &name, &starts, &lengths) ||
        slice_from(checkpoint, name, starts, lengths, &slice) < 0)
        return NULL;
    PyObject *bytes = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)slice.nbytes);
    if (bytes && slice_read(checkpoint, &slice, PyByteArray_AsString(bytes)) < 0)
        Py_CLEAR(bytes);
    return bytes;
}

/* Checkpoint.read_slice(name, starts, lengths, address, nbytes): to memory of that size */
static PyObject *checkpoint_read_slice(bpy_held *held, PyObject *arguments)
{
    PyObject *name, *starts, *lengths, *address;
    Py_ssize_t nbytes;
    slice_range slice;
    const bpy_checkpoint *checkpoint = (bpy_checkpoint *)held;
    if (!PyArg_ParseTuple(arguments, "OOOOn", &name, &starts, &lengths, &address, &nbytes) ||
        slice_from(checkpoint, name, starts, lengths, &slice) < 0)
        return NULL;
    void *memory = PyLong_AsVoidPtr(address);
    if (PyErr_Occurred())
        return NULL;
    if (slice.nbytes != (size_t)nbytes)
        return PyErr_Format(PyExc_ValueError, "%zu bytes for a slice of %zu", (size_t)nbytes,
                            slice.nbytes);
    if (slice_read(checkpoint, &slice, memory) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* Checkpoint.memory(name): the storage's bytes from the tensor's first element on, in place. */
static PyObject *checkpoint_memory(bpy_held *held, PyObject *name)
{
    bpy_checkpoint *checkpoint = (bpy_checkpoint *)held;
    const berth_tensor *tensor = bpy_checkpoint_find(checkpoint, name);
    if (!tensor)
        return NULL;
    berth_error error;
    PyThreadState *thread = bpy_checkpoint_begin_wait(checkpoint);
    const void *address = berth_tensor_data(checkpoint->handle, tensor, &error);
    bpy_checkpoint_end_wait(thread);
    if (!address)
        return bpy_raise(&error);
    uint64_t before = (uint64_t)tensor->storage_offset * berth_dtype_nbytes(tensor->dtype);
    bytes_object *bytes = PyObject_New(bytes_object, bytes_type);
    if (!bytes)
        return NULL;
    bpy_use(held);
    bytes->checkpoint = checkpoint;
    bytes->address = (void *)(uintptr_t)address;
    bytes->nbytes = (Py_ssize_t)(berth_storage_get_info(tensor->storage)->nbytes - before);
    PyObject *view = PyMemoryView_FromObject((PyObject *)bytes);
    Py_DECREF(bytes);
    return view;
}

static int bytes_get_buffer(PyObject *self, Py_buffer *view, int flags)
{
    const bytes_object *bytes = (bytes_object *)self;
    return PyBuffer_FillInfo(view, self, bytes->address, bytes->nbytes, 0, flags);
}

static void bytes_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    bpy_release_without_gil(&((bytes_object *)self)->checkpoint->held);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* ---- facts ---- */

static PyObject *checkpoint_info(bpy_held *held, PyObject *unused)
{
    (void)unused;
    berth_info info;
    berth_error error;
    if (berth_get_info(((bpy_checkpoint *)held)->handle, &info, &error) < 0)
        return bpy_raise(&error);
    return Py_BuildValue(
        "{sssssLsLsssOsKsKsnsnsnsnsOsOsnsK}", "container", info.container, "archive", info.archive,
        "format_version", (long long)info.format_version, "storage_alignment",
        (long long)info.storage_alignment, "byteorder", info.byteorder, "byteorder_recorded",
        info.byteorder_recorded ? Py_True : Py_False, "nbytes", (unsigned long long)info.nbytes,
        "storages_nbytes", (unsigned long long)info.storages_nbytes, "n_records",
        (Py_ssize_t)info.n_records, "n_storages", (Py_ssize_t)info.n_storages, "n_tensors",
        (Py_ssize_t)info.n_tensors, "n_crc32", (Py_ssize_t)info.n_crc32, "calculated_offsets",
        info.calculated_offsets ? Py_True : Py_False, "repacked",
        info.repacked ? Py_True : Py_False, "n_deflated", (Py_ssize_t)info.n_deflated,
        "behind_nbytes", (unsigned long long)info.behind_nbytes);
}

/* Whether the file is of before PyTorch 1.6. */
static PyObject *checkpoint_is_legacy(bpy_held *held, PyObject *unused)
{
    (void)unused;
    berth_info info;
    berth_error error;
    if (berth_get_info(((bpy_checkpoint *)held)->handle, &info, &error) < 0)
        return bpy_raise(&error);
    return PyBool_FromLong(strcmp(info.container, "legacy") == 0);
}

/* The texts of __metadata__ in a safetensors file; None: it has none. */
static PyObject *checkpoint_metadata(bpy_held *held, PyObject *unused)
{
    (void)unused;
    berth_info info;
    berth_error error;
    if (berth_get_info(((bpy_checkpoint *)held)->handle, &info, &error) < 0)
        return bpy_raise(&error);
    if (!info.metadata)
        Py_RETURN_NONE;
    PyObject *texts = PyDict_New();
    berth_value *key, *item;
    for (size_t i = 0; texts && berth_dict_at(info.metadata, i, &key, &item); i++) {
        PyObject *name = text_object(berth_as_text(key, NULL));
        PyObject *text = text_object(berth_as_text(item, NULL));
        if (!name || !text || PyDict_SetItem(texts, name, text) < 0)
            Py_CLEAR(texts);
        Py_XDECREF(name);
        Py_XDECREF(text);
    }
    return texts;
}

/* ---- the types ---- */

BPY_HELD_METHOD(checkpoint_value, CLOSED)
BPY_HELD_METHOD(checkpoint_try_values, CLOSED)
BPY_HELD_METHOD(checkpoint_is_legacy, CLOSED)
BPY_HELD_METHOD(checkpoint_names, CLOSED)
BPY_HELD_METHOD(checkpoint_tensor, CLOSED)
BPY_HELD_METHOD(checkpoint_slice, CLOSED)
BPY_HELD_METHOD(checkpoint_read_slice, CLOSED)
BPY_HELD_METHOD(checkpoint_memory, CLOSED)
BPY_HELD_METHOD(checkpoint_info, CLOSED)
BPY_HELD_METHOD(checkpoint_metadata, CLOSED)

static PyMethodDef checkpoint_methods[] = {
    {"close", bpy_holder_close, METH_NOARGS, "close()\n--\n\n"},
    {"value", checkpoint_value_held, METH_VARARGS,
     "value(name, in_place, keeps_empty, is_meta, restore, cpu_stays, places)\n--\n\n"},
    {"try_values", checkpoint_try_values_held, METH_NOARGS, "try_values()\n--\n\n"},
    {"is_legacy", checkpoint_is_legacy_held, METH_NOARGS, "is_legacy()\n--\n\n"},
    {"names", checkpoint_names_held, METH_NOARGS, "names()\n--\n\n"},
    {"tensor", checkpoint_tensor_held, METH_O, "tensor(name)\n--\n\n"},
    {"slice", checkpoint_slice_held, METH_VARARGS, "slice(name, starts, lengths)\n--\n\n"},
    {"read_slice", checkpoint_read_slice_held, METH_VARARGS,
     "read_slice(name, starts, lengths, address, nbytes)\n--\n\n"},
    {"memory", checkpoint_memory_held, METH_O, "memory(name)\n--\n\n"},
    {"info", checkpoint_info_held, METH_NOARGS, "info()\n--\n\n"},
    {"metadata", checkpoint_metadata_held, METH_NOARGS, "metadata()\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot checkpoint_slots[] = {
    {Py_tp_dealloc, bpy_holder_dealloc},
    {Py_tp_methods, checkpoint_methods},
    {0, NULL},
};

static PyType_Slot bytes_slots[] = {
    {Py_tp_dealloc, bytes_dealloc},
    {Py_bf_getbuffer, bytes_get_buffer},
    {0, NULL},
};

static PyMethodDef open_function[] = {
    {"open", checkpoint_open, METH_VARARGS, "open(source, assignments)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

int bpy_checkpoint_type_add(PyObject *module)
{
    const unsigned int flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION;
    PyType_Spec checkpoint = {.name = "berth._native.Checkpoint",
                              .basicsize = sizeof(bpy_holder),
                              .flags = flags,
                              .slots = checkpoint_slots};
    PyType_Spec bytes = {.name = "berth._native.Bytes",
                         .basicsize = sizeof(bytes_object),
                         .flags = flags,
                         .slots = bytes_slots};
    checkpoint_type = (PyTypeObject *)PyType_FromSpec(&checkpoint);
    bytes_type = (PyTypeObject *)PyType_FromSpec(&bytes);
    if (!checkpoint_type || !bytes_type || PyModule_AddType(module, checkpoint_type) < 0)
        return -1;
    return PyModule_AddFunctions(module, open_function);
}
