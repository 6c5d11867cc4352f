/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A tree -> tensors and storages. A tensor that uses the whole of its storage is made together with
 * it. All others are made as torch.load does: an empty one, and set_.
 */
#include "adapters/python/native/native.h"

/*
 * Storages that map_location moves elsewhere are read when they are asked for, together with those
 * behind them: if all were read first, they would need the host's memory for the whole file.
 */
#define AHEAD_NBYTES (UINT64_C(64) << 20)

/* What has become of a storage. */
typedef struct bpy_loaded_storage {
    bpy_memory *memory; /* not used by a tensor yet */
    PyObject *first;    /* a tensor of the whole storage */
    PyObject *untyped;  /* an UntypedStorage */
    PyObject *typed;    /* the TypedStorage that stands for it as a value */
    bool is_read;       /* `memory` was made */
} bpy_loaded_storage;

static bpy_loaded_storage *storage_slot(bpy_loader *loader, const berth_storage *storage)
{
    bpy_loaded_storage *slot = bpy_map_get(&loader->storages, storage);
    if (slot)
        return slot;
    slot = PyMem_Calloc(1, sizeof *slot);
    if (!slot)
        return PyErr_NoMemory(), NULL;
    if (bpy_map_set(&loader->storages, storage, slot) == 0)
        return slot;
    PyMem_Free(slot);
    return NULL;
}

static void storage_slot_free(bpy_loaded_storage *slot)
{
    bpy_memory_free(slot->memory);
    Py_XDECREF(slot->first);
    Py_XDECREF(slot->untyped);
    Py_XDECREF(slot->typed);
    PyMem_Free(slot);
}

void bpy_loader_free(bpy_loader *loader)
{
    for (size_t i = 0; i < loader->storages.n_slots; i++)
        if (loader->storages.slots[i].key)
            storage_slot_free(loader->storages.slots[i].value);
    for (size_t i = 0; i < loader->objects.n_slots; i++)
        Py_XDECREF((PyObject *)loader->objects.slots[i].value);
    bpy_map_free(&loader->storages);
    bpy_map_free(&loader->objects);
    bpy_map_free(&loader->sizes);
    PyMem_Free(loader->frames);
}

/* ---- bytes ---- */

/* Reads n storages into their memory, without the GIL. */
static int read_bytes(bpy_loader *loader, const berth_destination *destinations, size_t n)
{
    berth_source *source = &loader->checkpoint->source;
    const berth_params params = {.progress = bpy_source_check_signals, .progress_context = source};
    berth_checkpoint *handle = loader->checkpoint->handle;
    berth_error error;
    int status;
    bpy_source_go(source);
    Py_BEGIN_ALLOW_THREADS;
    status = berth_load_into(handle, destinations, n, &params, &error);
    Py_END_ALLOW_THREADS;
    if (status < 0 && !PyErr_Occurred())
        bpy_raise(&error);
    return status < 0 ? -1 : 0;
}

/* Memory for one storage, as a destination. */
static int prepare(bpy_loader *loader, const berth_storage *storage, berth_destination *made)
{
    uint64_t nbytes = berth_storage_get_info(storage)->nbytes;
    bpy_loaded_storage *slot = storage_slot(loader, storage);
    if (slot)
        slot->memory = bpy_memory_new(nbytes);
    if (!slot || !slot->memory)
        return -1;
    slot->is_read = true;
    *made = (berth_destination){.storage = storage,
                                .address = bpy_memory_address(slot->memory),
                                .nbytes = nbytes,
                                .is_new = true};
    return 0;
}

bool bpy_stays_on_host(const bpy_loader *loader, const berth_storage *storage)
{
    const char *location = berth_storage_get_info(storage)->location;
    return !loader->restore || (loader->cpu_stays && strcmp(location, "cpu") == 0);
}

static bool is_read(const bpy_loader *loader, const berth_storage *storage)
{
    const bpy_loaded_storage *slot = bpy_map_get(&loader->storages, storage);
    return slot && slot->is_read;
}

/* Whether a storage is one of those that stay on the host; or of the others, and not read yet. */
static bool is_one_of(const bpy_loader *loader, const berth_storage *storage, bool that_stay)
{
    return bpy_stays_on_host(loader, storage) == that_stay &&
           (that_stay || !is_read(loader, storage));
}

/* Reads such storages from `first` on, until they have max_nbytes bytes. */
static int read_storages(bpy_loader *loader, const berth_storage *first, bool that_stay,
                         uint64_t max_nbytes)
{
    const berth_checkpoint *handle = loader->checkpoint->handle;
    size_t n = 0, made = 0;
    uint64_t nbytes = 0;
    for (const berth_storage *at = first; at && nbytes < max_nbytes;
         at = berth_storage_next(handle, at))
        if (is_one_of(loader, at, that_stay)) {
            nbytes += berth_storage_get_info(at)->nbytes;
            n++;
        }
    if (n == 0)
        return 0;
    berth_destination *destinations = PyMem_Calloc(n, sizeof *destinations);
    int status = destinations ? 0 : (PyErr_NoMemory(), -1);
    for (const berth_storage *at = first; status == 0 && made < n;
         at = berth_storage_next(handle, at))
        if (is_one_of(loader, at, that_stay))
            status = prepare(loader, at, &destinations[made++]);
    if (status == 0)
        status = read_bytes(loader, destinations, n);
    PyMem_Free(destinations);
    return status;
}

int bpy_load_storages(bpy_loader *loader)
{
    if (loader->in_place || loader->is_meta)
        return 0;
    const berth_checkpoint *handle = loader->checkpoint->handle;
    return read_storages(loader, berth_storage_next(handle, NULL), true, UINT64_MAX);
}

/* ---- storages ---- */

int bpy_loader_set_storage(bpy_loader *loader, const berth_storage *storage, PyObject *untyped)
{
    bpy_loaded_storage *slot = storage_slot(loader, storage);
    if (!slot)
        return -1;
    Py_INCREF(untyped);
    slot->untyped = untyped;
    return 0;
}

/* The memory of a storage that no tensor has yet. */
static bpy_memory *take_memory(bpy_loader *loader, const berth_storage *storage,
                               bpy_loaded_storage *slot)
{
    uint64_t nbytes = berth_storage_get_info(storage)->nbytes;
    if (!loader->in_place && !slot->is_read && nbytes > 0 &&
        read_storages(loader, storage, false, AHEAD_NBYTES) < 0)
        return NULL;
    bpy_memory *memory = slot->memory;
    slot->memory = NULL;
    if (memory)
        return memory;
    if (!loader->in_place && nbytes == 0)
        return bpy_memory_new(0);
    berth_error error;
    PyThreadState *thread = bpy_checkpoint_begin_wait(loader->checkpoint);
    const void *address = berth_storage_data(loader->checkpoint->handle, storage, &error);
    bpy_checkpoint_end_wait(thread);
    if (!address && error.code != BERTH_OK)
        return bpy_raise(&error), NULL;
    return bpy_memory_of(loader->checkpoint, address, nbytes);
}

/* An UntypedStorage of no memory: map_location="meta". */
static PyObject *meta_storage(bpy_loader *loader, uint64_t nbytes)
{
    PyObject *arguments = Py_BuildValue("(K)", (unsigned long long)nbytes);
    PyObject *keywords = Py_BuildValue("{ss}", "device", "meta");
    PyObject *made = arguments && keywords
                         ? PyObject_Call(loader->torch->UntypedStorage, arguments, keywords)
                         : NULL;
    Py_XDECREF(arguments);
    Py_XDECREF(keywords);
    return made;
}

/* Whether map_location's function has given what PyTorch takes from it. Raises TypeError. */
static bool is_untyped(const bpy_loader *loader, PyObject *moved)
{
    int is_one = PyObject_IsInstance(moved, loader->torch->UntypedStorage);
    if (is_one == 0)
        PyErr_Format(PyExc_TypeError,
                     "map_location's function must return a torch.UntypedStorage or None, not %R",
                     (PyObject *)Py_TYPE(moved));
    return is_one > 0;
}

PyObject *bpy_location_of(const berth_storage *storage)
{
    const char *text = berth_storage_get_info(storage)->location;
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "surrogatepass");
}

/* Where map_location sends it. Consumes the reference. */
static PyObject *restored(bpy_loader *loader, const berth_storage *storage, PyObject *untyped)
{
    if (!untyped || bpy_stays_on_host(loader, storage))
        return untyped;
    PyObject *location = bpy_location_of(storage);
    PyObject *moved =
        location ? PyObject_CallFunctionObjArgs(loader->restore, untyped, location, NULL) : NULL;
    Py_XDECREF(location);
    Py_DECREF(untyped);
    if (moved && !is_untyped(loader, moved))
        Py_CLEAR(moved);
    return moved;
}

/* The UntypedStorage of a storage; a borrowed reference. */
static PyObject *untyped_of(bpy_loader *loader, const berth_storage *storage,
                            bpy_loaded_storage *slot)
{
    if (slot->untyped)
        return slot->untyped;
    if (slot->first) {
        slot->untyped = bpy_call(slot->first, loader->torch->untyped_storage);
    } else if (loader->is_meta) {
        slot->untyped = meta_storage(loader, berth_storage_get_info(storage)->nbytes);
    } else {
        bpy_memory *memory = take_memory(loader, storage, slot);
        PyObject *bytes = memory ? bpy_memory_to_tensor(loader->torch, memory, NULL) : NULL;
        PyObject *made = bytes ? bpy_call(bytes, loader->torch->untyped_storage) : NULL;
        Py_XDECREF(bytes);
        slot->untyped = restored(loader, storage, made);
    }
    return slot->untyped;
}

/* Whether its storage has an address; -1: an exception is raised. */
static int has_address(const bpy_loader *loader, const berth_storage *storage,
                       const bpy_loaded_storage *slot)
{
    if (loader->is_meta)
        return 0;
    if (bpy_stays_on_host(loader, storage) || !slot->untyped)
        return loader->keeps_empty || berth_storage_get_info(storage)->nbytes > 0;
    PyObject *address = bpy_call(slot->untyped, loader->torch->data_ptr);
    int is_there = address ? PyObject_IsTrue(address) : -1;
    Py_XDECREF(address);
    return is_there;
}

/*
 * PyTorch before 2.15 shares no storage without an address: none on the device "meta", and without
 * mmap no empty one. Consumes `made`, which was made of the storage, on failure.
 */
static PyObject *forget_without_address(bpy_loader *loader, const berth_storage *storage,
                                        bpy_loaded_storage *slot, PyObject *made)
{
    bool is_shared = !made || loader->torch->shares_all;
    int is_there = is_shared ? 1 : has_address(loader, storage, slot);
    if (is_there > 0)
        return made;
    Py_CLEAR(slot->first);
    Py_CLEAR(slot->untyped);
    Py_CLEAR(slot->typed);
    if (is_there < 0)
        Py_CLEAR(made);
    return made;
}

/* A TypedStorage around an UntypedStorage. dtype: 0: bytes. */
static PyObject *typed_around(const bpy_loader *loader, PyObject *untyped, int dtype)
{
    PyObject *type = loader->torch->dtypes[dtype ? dtype : BERTH_UINT8];
    PyObject *arguments = PyTuple_New(0);
    PyObject *keywords =
        Py_BuildValue("{sOsOsO}", "wrap_storage", untyped, "dtype", type, "_internal", Py_True);
    PyObject *made = arguments && keywords
                         ? PyObject_Call(loader->torch->TypedStorage, arguments, keywords)
                         : NULL;
    Py_XDECREF(arguments);
    Py_XDECREF(keywords);
    return made;
}

/*
 * An empty storage can be named by two classes. PyTorch 2.15 keeps the TypedStorage of the class
 * that named it first; each other time it makes one around the same bytes.
 */
static PyObject *typed_of_another_class(bpy_loader *loader, const berth_value *value,
                                        PyObject *untyped, int dtype)
{
    PyObject *known = bpy_map_get(&loader->objects, value);
    PyObject *made = known ? Py_NewRef(known) : typed_around(loader, untyped, dtype);
    if (known || !made)
        return made;
    if (bpy_map_set(&loader->objects, value, made) < 0)
        Py_CLEAR(made);
    Py_XINCREF(made); /* of the map */
    return made;
}

static bool is_of_first_class(const berth_storage *storage, int dtype)
{
    int first = (int)berth_storage_get_info(storage)->dtype;
    return (dtype ? dtype : BERTH_UINT8) == (first ? first : BERTH_UINT8);
}

PyObject *bpy_load_storage(bpy_loader *loader, const berth_value *value)
{
    const berth_storage *storage = berth_as_storage(value);
    int dtype; /* 0: untyped */
    (void)berth_as_constant(value, BERTH_KIND_DTYPE, &dtype);
    if (loader->keeps_empty && !loader->torch->shares_all) /* of the class that named it first */
        dtype = (int)berth_storage_get_info(storage)->dtype;
    bpy_loaded_storage *slot = storage_slot(loader, storage);
    PyObject *untyped = slot ? untyped_of(loader, storage, slot) : NULL;
    if (!untyped)
        return NULL;
    if (loader->torch->shares_all && !is_of_first_class(storage, dtype))
        return typed_of_another_class(loader, value, untyped, dtype);
    if (!slot->typed)
        slot->typed = typed_around(loader, untyped, dtype);
    PyObject *typed = slot->typed;
    Py_XINCREF(typed);
    return forget_without_address(loader, storage, slot, typed);
}

/* ---- strided tensors ---- */

static PyObject *tuple_of(const int64_t *items, int32_t n)
{
    PyObject *tuple = PyTuple_New(n);
    for (int32_t i = 0; tuple && i < n; i++) {
        PyObject *item = PyLong_FromLongLong(items[i]);
        if (!item || PyTuple_SetItem(tuple, i, item) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

static PyObject *dtype_of(const bpy_loader *loader, const berth_tensor *tensor)
{
    PyObject *found = loader->torch->dtypes[tensor->dtype];
    if (!found) {
        berth_checkpoint *handle = loader->checkpoint->handle;
        berth_error error = {.code = BERTH_E_UNSUPPORTED, .offset = BERTH_NO_OFFSET};
        berth_named_tensor named = {0};
        for (size_t i = 0; i < berth_tensor_count(handle) && named.tensor != tensor; i++)
            (void)berth_tensor_at(handle, i, &named, NULL);
        (void)snprintf(error.message, sizeof error.message,
                       "\"%.100s\": this PyTorch has no torch.%s",
                       named.tensor == tensor ? named.name : "?", berth_dtype_name(tensor->dtype));
        bpy_raise_of(loader->checkpoint, &error);
    }
    return found;
}

/* torch.empty(0, dtype=..., device=...) */
static PyObject *empty_tensor(bpy_loader *loader, PyObject *dtype, PyObject *untyped)
{
    PyObject *device = PyObject_GetAttr(untyped, bpy_name.device);
    PyObject *arguments = Py_BuildValue("((i))", 0);
    PyObject *keywords = device ? Py_BuildValue("{sOsO}", "dtype", dtype, "device", device) : NULL;
    PyObject *made =
        arguments && keywords ? PyObject_Call(loader->torch->empty, arguments, keywords) : NULL;
    Py_XDECREF(device);
    Py_XDECREF(arguments);
    Py_XDECREF(keywords);
    return made;
}

/* As torch._utils._rebuild_tensor. */
static PyObject *view_of(bpy_loader *loader, PyObject *untyped, const berth_tensor *tensor)
{
    PyObject *dtype = dtype_of(loader, tensor);
    PyObject *made = dtype ? empty_tensor(loader, dtype, untyped) : NULL;
    PyObject *offset = made ? PyLong_FromLongLong(tensor->storage_offset) : NULL;
    PyObject *shape = tuple_of(tensor->shape, tensor->rank);
    PyObject *stride = tuple_of(tensor->stride, tensor->rank);
    PyObject *view = offset && shape && stride
                         ? PyObject_CallFunctionObjArgs(loader->torch->set, made, untyped, offset,
                                                        shape, stride, NULL)
                         : NULL;
    Py_XDECREF(made);
    Py_XDECREF(offset);
    Py_XDECREF(shape);
    Py_XDECREF(stride);
    return view;
}

/* A tensor and its storage, in one step if it is the storage's first and uses all of it. */
static PyObject *strided(bpy_loader *loader, const berth_tensor *tensor)
{
    const berth_storage *storage = tensor->storage;
    bpy_loaded_storage *slot = storage_slot(loader, storage);
    if (!slot)
        return NULL;
    bool is_new =
        !slot->first && !slot->untyped && !loader->is_meta && bpy_stays_on_host(loader, storage);
    PyObject *made = NULL;
    if (is_new && bpy_memory_fits(tensor, berth_storage_get_info(storage)->nbytes)) {
        bpy_memory *memory = take_memory(loader, storage, slot);
        made = memory ? bpy_memory_to_tensor(loader->torch, memory, tensor) : NULL;
        slot->first = made;
        Py_XINCREF(made);
    } else {
        PyObject *untyped = untyped_of(loader, storage, slot);
        made = untyped ? view_of(loader, untyped, tensor) : NULL;
    }
    return forget_without_address(loader, storage, slot, made);
}

/* ---- what else a tensor has ---- */

/* Consumes the reference on failure. */
static PyObject *with_flags(bpy_loader *loader, PyObject *made, uint32_t flags)
{
    int status = made ? 0 : -1;
    if (status == 0 && (flags & BERTH_REQUIRES_GRAD))
        status = PyObject_SetAttr(made, bpy_name.requires_grad, Py_True);
    if (status == 0 && (flags & (BERTH_CONJ | BERTH_NEG))) {
        PyObject *bits = PyDict_New();
        if (bits && (flags & BERTH_CONJ))
            PyDict_SetItemString(bits, "conj", Py_True);
        if (bits && (flags & BERTH_NEG))
            PyDict_SetItemString(bits, "neg", Py_True);
        PyObject *done =
            PyObject_CallFunctionObjArgs(loader->torch->set_metadata, made, bits, NULL);
        status = done ? 0 : -1;
        Py_XDECREF(done);
        Py_XDECREF(bits);
    }
    if (status < 0)
        Py_CLEAR(made);
    return made;
}

static PyObject *meta_tensor(bpy_loader *loader, const berth_tensor *tensor)
{
    PyObject *dtype = dtype_of(loader, tensor);
    PyObject *shape = tuple_of(tensor->shape, tensor->rank);
    PyObject *stride = tuple_of(tensor->stride, tensor->rank);
    PyObject *grad = tensor->flags & BERTH_REQUIRES_GRAD ? Py_True : Py_False;
    PyObject *made = dtype && shape && stride
                         ? PyObject_CallFunctionObjArgs(loader->torch->rebuild_meta, dtype, shape,
                                                        stride, grad, NULL)
                         : NULL;
    Py_XDECREF(shape);
    Py_XDECREF(stride);
    return made;
}

/* A number of older files, or a tensor: what scales and zero points are made of. */
static PyObject *quantizer_part(bpy_loader *loader, const berth_value *value)
{
    if (berth_value_kind(value) != BERTH_KIND_LIST)
        return bpy_load_tensor(loader, value);
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < berth_value_count(value); i++) {
        int64_t integer;
        double number = 0;
        bool is_int = berth_as_int(berth_value_at(value, i), &integer);
        berth_as_float(berth_value_at(value, i), &number);
        PyObject *item = is_int ? PyLong_FromLongLong(integer) : PyFloat_FromDouble(number);
        if (!item || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

/* The tuple of quantizer parameters, as torch._utils._rebuild_qtensor takes it. */
static PyObject *quantizer_of(bpy_loader *loader, const berth_tensor *tensor)
{
    PyObject *scheme = loader->torch->qschemes[tensor->qscheme];
    if (tensor->qscheme == BERTH_PER_TENSOR_AFFINE)
        return Py_BuildValue("(OdL)", scheme, tensor->scale, (long long)tensor->zero_point);
    PyObject *scales = quantizer_part(loader, tensor->scales);
    PyObject *zero_points = scales ? quantizer_part(loader, tensor->zero_points) : NULL;
    PyObject *made =
        zero_points ? Py_BuildValue("(OOOL)", scheme, scales, zero_points, (long long)tensor->axis)
                    : NULL;
    Py_XDECREF(scales);
    Py_XDECREF(zero_points);
    return made;
}

/* A TypedStorage that is no value of the file: quantized tensors are rebuilt from one. */
static PyObject *typed_for(bpy_loader *loader, const berth_tensor *tensor)
{
    bpy_loaded_storage *slot = storage_slot(loader, tensor->storage);
    PyObject *untyped = slot ? untyped_of(loader, tensor->storage, slot) : NULL;
    return untyped && dtype_of(loader, tensor) ? typed_around(loader, untyped, (int)tensor->dtype)
                                               : NULL;
}

static PyObject *quantized(bpy_loader *loader, const berth_tensor *tensor)
{
    PyObject *storage = typed_for(loader, tensor);
    PyObject *shape = tuple_of(tensor->shape, tensor->rank);
    PyObject *stride = tuple_of(tensor->stride, tensor->rank);
    PyObject *quantizer = storage ? quantizer_of(loader, tensor) : NULL;
    PyObject *grad = tensor->flags & BERTH_REQUIRES_GRAD ? Py_True : Py_False;
    PyObject *hooks = PyDict_New();
    PyObject *made = NULL;
    if (storage && shape && stride && quantizer && hooks)
        made = PyObject_CallFunction(loader->torch->rebuild_quantized, "OLOOOOO", storage,
                                     (long long)tensor->storage_offset, shape, stride, quantizer,
                                     grad, hooks);
    Py_XDECREF(storage);
    Py_XDECREF(shape);
    Py_XDECREF(stride);
    Py_XDECREF(quantizer);
    Py_XDECREF(hooks);
    return made;
}

static PyObject *plain_tensor(bpy_loader *loader, const berth_value *value)
{
    const berth_tensor *tensor = berth_as_tensor(value);
    if (tensor->flags & BERTH_META)
        return meta_tensor(loader, tensor);
    if (tensor->qscheme != BERTH_NOT_QUANTIZED)
        return quantized(loader, tensor);
    return with_flags(loader, strided(loader, tensor), tensor->flags);
}

/* ---- tensors of parts ---- */

/* The parts of a sparse or nested tensor; the value's own objects, if it has been met before. */
static PyObject *parts_of(bpy_loader *loader, const berth_value *value)
{
    size_t n = berth_value_count(value);
    PyObject *parts = PyTuple_New((Py_ssize_t)n);
    for (size_t i = 0; parts && i < n; i++) {
        PyObject *part = bpy_load_tensor(loader, berth_value_at(value, i));
        if (!part || PyTuple_SetItem(parts, (Py_ssize_t)i, part) < 0)
            Py_CLEAR(parts);
    }
    return parts;
}

/* berth._sparse.rebuild(layout, (*parts, size[, is_coalesced])) */
static PyObject *sparse(bpy_loader *loader, const berth_value *value)
{
    int layout = 0;
    int32_t rank = 0;
    berth_as_constant(value, BERTH_KIND_LAYOUT, &layout);
    const int64_t *shape = berth_as_size(value, &rank);
    PyObject *parts = parts_of(loader, value);
    PyObject *sizes = parts ? tuple_of(shape, rank) : NULL;
    PyObject *size = sizes ? PyObject_CallFunctionObjArgs(loader->torch->Size, sizes, NULL) : NULL;
    PyObject *coalesced = berth_value_flags(value) & BERTH_COALESCED ? Py_True : Py_False;
    PyObject *rest = NULL;
    if (size)
        rest = layout == BERTH_SPARSE_COO ? Py_BuildValue("(OO)", size, coalesced)
                                          : Py_BuildValue("(O)", size);
    PyObject *data = rest ? PySequence_Concat(parts, rest) : NULL;
    PyObject *made = data ? PyObject_CallFunctionObjArgs(loader->torch->rebuild_sparse,
                                                         loader->torch->layouts[layout], data, NULL)
                          : NULL;
    Py_XDECREF(parts);
    Py_XDECREF(sizes);
    Py_XDECREF(size);
    Py_XDECREF(rest);
    Py_XDECREF(data);
    return made;
}

static PyObject *nested(bpy_loader *loader, const berth_value *value)
{
    PyObject *parts = parts_of(loader, value);
    PyObject *made = parts ? PyObject_CallObject(loader->torch->rebuild_nested, parts) : NULL;
    Py_XDECREF(parts);
    return made;
}

/* torch.nn.Parameter(data, requires_grad), without its Python code. */
static PyObject *parameter(bpy_loader *loader, const berth_value *value)
{
    PyObject *data = bpy_load_tensor(loader, berth_value_part(value, BERTH_PART_INNER));
    PyObject *grad = berth_value_flags(value) & BERTH_REQUIRES_GRAD ? Py_True : Py_False;
    PyObject *made = data ? PyObject_CallFunctionObjArgs(loader->torch->make_subclass,
                                                         loader->torch->Parameter, data, grad, NULL)
                          : NULL;
    Py_XDECREF(data);
    return made;
}

/* Any tensor that was not met before. */
static PyObject *new_tensor(bpy_loader *loader, const berth_value *value)
{
    switch (berth_value_kind(value)) {
    case BERTH_KIND_TENSOR:
        return plain_tensor(loader, value);
    case BERTH_KIND_SPARSE:
        return sparse(loader, value);
    case BERTH_KIND_NESTED:
        return nested(loader, value);
    case BERTH_KIND_PARAMETER:
        return parameter(loader, value);
    default:
        PyErr_Format(PyExc_RuntimeError, "berth: no tensor, but a %s",
                     berth_kind_name(berth_value_kind(value)));
        return NULL;
    }
}

PyObject *bpy_load_tensor(bpy_loader *loader, const berth_value *value)
{
    PyObject *made = bpy_map_get(&loader->objects, value);
    if (made) {
        Py_INCREF(made);
        return made;
    }
    if (Py_EnterRecursiveCall(" while loading a tensor of parts"))
        return NULL;
    made = new_tensor(loader, value);
    Py_LeaveRecursiveCall();
    if (!made)
        return NULL;
    if (bpy_map_set(&loader->objects, value, made) < 0)
        Py_CLEAR(made);
    Py_XINCREF(made); /* of the map */
    return made;
}
