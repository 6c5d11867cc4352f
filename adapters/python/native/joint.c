/* SPDX-License-Identifier: BSD-3-Clause */
/* Many processes, one file or one object of S3: the coordinator (the type Joint), and what each of
 * them writes. */
#include <berth/joint.h>
#include <errno.h>
#include <stdatomic.h>

#include "adapters/curl/berth_curl.h"
#include "adapters/python/native/native.h"

typedef struct joint_object {
    PyObject_HEAD bpy_saver saver;
    const berth_value *outline;
    berth_joint *joint;         /* of a file */
    berth_joint_url *url_joint; /* of an object; both NULL: it has ended */
    atomic_bool is_stopped;     /* its requests */
    berth_joint_info info;      /* of a joint that has not ended */
} joint_object;

static PyTypeObject *joint_type;

/* ---- the outline ---- */

/* A sequence of ints; -1: an exception is raised, or it has more than BERTH_MAX_RANK items. */
static int32_t read_ints(PyObject *tuple, int64_t *ints)
{
    Py_ssize_t n = PyTuple_Size(tuple);
    if (n > BERTH_MAX_RANK)
        PyErr_Format(PyExc_ValueError, "a tensor of rank %zd", n);
    for (Py_ssize_t i = 0; i < n && !PyErr_Occurred(); i++)
        ints[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
    return PyErr_Occurred() ? -1 : (int32_t)n;
}

/* Tensors that share a storage have the same object as its key. */
static berth_storage *storage_elsewhere(bpy_saver *saver, PyObject *key, const berth_tensor *tensor)
{
    berth_storage *storage = bpy_map_get(&saver->storages, key);
    uint64_t nbytes = berth_tensor_nbytes(tensor);
    if (storage || bpy_check_is_saved(saver, (int)tensor->dtype) < 0)
        return storage;
    storage = berth_storage_new(saver->tree, bpy_storage_class(saver, nbytes, (int)tensor->dtype),
                                BERTH_ELSEWHERE, nbytes, NULL);
    return storage && bpy_map_set(&saver->storages, key, storage) == 0 ? storage : NULL;
}

/* (dtype, shape, requires_grad, is_parameter, key of the storage) */
static berth_value *make_elsewhere(bpy_saver *saver, PyObject *facts)
{
    PyObject *dtype, *tuple, *key;
    int64_t shape[BERTH_MAX_RANK];
    int grad, is_parameter;
    if (!PyArg_ParseTuple(facts, "OO!ppO", &dtype, &PyTuple_Type, &tuple, &grad, &is_parameter,
                          &key))
        return NULL;
    int number = bpy_torch_find(saver->torch->dtypes, BERTH_DTYPE_COUNT, dtype);
    if (number == 0)
        return bpy_refuse(saver, "a tensor of %R, which Berth does not know", dtype);
    berth_tensor tensor = {.dtype = (berth_dtype)number, .shape = shape};
    tensor.rank = read_ints(tuple, shape);
    if (tensor.rank < 0)
        return NULL;
    tensor.flags = grad && !is_parameter ? BERTH_REQUIRES_GRAD : 0;
    tensor.storage = storage_elsewhere(saver, key, &tensor);
    berth_value *value = tensor.storage ? berth_make_tensor(saver->tree, &tensor) : NULL;
    return value && is_parameter ? berth_make_parameter(saver->tree, value, grad) : value;
}

berth_value *bpy_save_elsewhere(bpy_saver *saver, PyObject *tensor)
{
    PyObject *facts = PyObject_GetAttrString(tensor, "facts");
    if (!facts || bpy_saver_keep(saver, facts) < 0)
        return NULL;
    berth_value *value = make_elsewhere(saver, facts);
    return value && bpy_map_set(&saver->outline, value, tensor) == 0 ? value : NULL;
}

/* ---- the coordinator ---- */

static int is_stopped(void *context)
{
    return atomic_load((atomic_bool *)context);
}

/* Of the coordinator, which begins and ends the upload on the thread that calls. */
static int is_stopped_or_interrupted(void *context)
{
    return is_stopped(context) || bpy_is_interrupted();
}

/* A signal's exception stays; it has the error as a note, which tells what is left. */
static PyObject *raise_or_note(const berth_error *error)
{
    if (!PyErr_Occurred())
        return bpy_raise(error);
    bpy_add_note(error->message);
    return NULL;
}

static int begin(joint_object *self, const char *path, bool is_url, size_t n_writers,
                 const char *base)
{
    const berth_params params = {.progress = bpy_check_signals, .base = base};
    const berth_upload_params how = {.cancelled = is_stopped_or_interrupted,
                                     .context = &self->is_stopped};
    berth_error error;
    int status;
    Py_BEGIN_ALLOW_THREADS;
    if (is_url)
        status = berth_joint_url_begin(path, self->outline, n_writers, &params, &how,
                                       &self->url_joint, &self->info, &error);
    else
        status = berth_joint_begin(path, self->outline, n_writers, &params, &self->joint,
                                   &self->info, &error);
    Py_END_ALLOW_THREADS;
    if (status < 0)
        raise_or_note(&error);
    return status;
}

/* joint_begin(value, path, n_writers, elsewhere, base) -> Joint */
static PyObject *joint_begin(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *value, *elsewhere, *to;
    Py_ssize_t n_writers;
    const char *base = NULL;
    if (!PyArg_ParseTuple(arguments, "OOnO|y", &value, &to, &n_writers, &elsewhere, &base))
        return NULL;
    const bool is_url = PyUnicode_Check(to);
    PyObject *path = is_url ? bpy_text(to, "a URL") : Py_NewRef(to);
    const char *text = path ? PyBytes_AsString(path) : NULL;
    joint_object *self = text ? PyObject_New(joint_object, joint_type) : NULL;
    if (!self) {
        Py_XDECREF(path);
        return NULL;
    }
    self->saver = (bpy_saver){.torch = bpy_torch_get(), .elsewhere = elsewhere};
    self->joint = NULL;
    self->url_joint = NULL;
    atomic_init(&self->is_stopped, false);
    self->outline = self->saver.torch ? bpy_save_walk(&self->saver, value) : NULL;
    if (!self->outline || begin(self, text, is_url, (size_t)n_writers, base) < 0)
        Py_CLEAR(self);
    Py_DECREF(path);
    return (PyObject *)self;
}

static bool joint_running(const joint_object *self)
{
    bool is_running = self->joint || self->url_joint;
    if (!is_running)
        PyErr_SetString(PyExc_ValueError, "the joint save has ended");
    return is_running;
}

/* Joint.ticket() -> bytes */
static PyObject *joint_ticket(PyObject *object, PyObject *unused)
{
    (void)unused;
    const joint_object *self = (joint_object *)object;
    const berth_joint_info *info = &self->info;
    if (!joint_running(self))
        return NULL;
    return PyBytes_FromStringAndSize(info->ticket, (Py_ssize_t)info->ticket_nbytes);
}

typedef struct named_tensors {
    const bpy_map *outline;
    PyObject *list;
} named_tensors;

static int add_name(void *context, const berth_walk *walk, const berth_value *value)
{
    const named_tensors *named = context;
    PyObject *tensor = bpy_map_get(named->outline, value);
    if (!tensor)
        return 0;
    PyObject *pair = Py_BuildValue("(Oy)", tensor, berth_walk_path(walk));
    int status = pair ? PyList_Append(named->list, pair) : -1;
    Py_XDECREF(pair);
    return status;
}

/* Joint.names() -> [(tensor that is elsewhere, its path in the file)] */
static PyObject *joint_names(PyObject *object, PyObject *unused)
{
    (void)unused;
    joint_object *self = (joint_object *)object;
    named_tensors named = {&self->saver.outline, joint_running(self) ? PyList_New(0) : NULL};
    const berth_walker walker = {.enter = add_name, .context = &named};
    berth_error error;
    if (named.list && berth_value_walk(self->outline, &walker, &error) < 0) {
        Py_CLEAR(named.list);
        if (!PyErr_Occurred())
            bpy_raise(&error);
    }
    return named.list;
}

/* Joint.add_receipt(writer, bytes) */
static PyObject *joint_add_receipt(PyObject *object, PyObject *arguments)
{
    const joint_object *self = (joint_object *)object;
    berth_error error;
    const char *bytes;
    Py_ssize_t writer, nbytes;
    int status;
    if (!PyArg_ParseTuple(arguments, "ny#", &writer, &bytes, &nbytes) || !joint_running(self))
        return NULL;
    if (self->joint)
        status = berth_joint_add_receipt(self->joint, bytes, (size_t)nbytes, &error);
    else
        status = berth_joint_url_add_receipt(self->url_joint, (size_t)writer, bytes, (size_t)nbytes,
                                             &error);
    if (status < 0)
        return bpy_raise(&error);
    Py_RETURN_NONE;
}

/* Joint.finish() */
static PyObject *joint_finish(PyObject *object, PyObject *unused)
{
    (void)unused;
    joint_object *self = (joint_object *)object;
    berth_joint *joint = self->joint;
    berth_joint_url *url_joint = self->url_joint;
    berth_error error;
    int status;
    if (!joint_running(self))
        return NULL;
    self->joint = NULL;
    self->url_joint = NULL;
    Py_BEGIN_ALLOW_THREADS;
    status = joint ? berth_joint_finish(joint, &error) : berth_joint_url_finish(url_joint, &error);
    Py_END_ALLOW_THREADS;
    if (status < 0)
        return raise_or_note(&error);
    if (PyErr_Occurred()) {
        bpy_add_note("it came too late: the save is complete");
        return NULL;
    }
    Py_RETURN_NONE;
}

static int joint_give_up(joint_object *self, berth_error *error)
{
    berth_joint *joint = self->joint;
    berth_joint_url *url_joint = self->url_joint;
    int status;
    self->joint = NULL;
    self->url_joint = NULL;
    Py_BEGIN_ALLOW_THREADS;
    berth_joint_abort(joint);
    status = berth_joint_url_abort(url_joint, error);
    Py_END_ALLOW_THREADS;
    return status;
}

/* Joint.abort() -> None, or why something is left */
static PyObject *joint_abort(PyObject *object, PyObject *unused)
{
    (void)unused;
    berth_error error;
    if (joint_give_up((joint_object *)object, &error) < 0)
        return PyUnicode_DecodeUTF8(error.message, (Py_ssize_t)strlen(error.message), "replace");
    Py_RETURN_NONE;
}

static void joint_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    berth_error ignored;
    (void)joint_give_up((joint_object *)object, &ignored);
    bpy_saver_free(&((joint_object *)object)->saver);
    PyObject_Free(object);
    Py_DECREF(type);
}

/* ---- a writer ---- */

/* Slices, and the sizes that they point to: starts and lengths of one slice after the other. */
typedef struct slice_list {
    size_t n;
    berth_slice *slices;
    int64_t *sizes;
} slice_list;

static void slices_free(slice_list *list)
{
    PyMem_Free(list->slices);
    PyMem_Free(list->sizes);
}

/* (name, starts or None, lengths or None, offset, nbytes, address) */
static int slice_read(PyObject *tuple, berth_slice *slice, int64_t *sizes)
{
    const char *name;
    PyObject *starts, *lengths, *address;
    unsigned long long offset, nbytes;
    if (!PyArg_ParseTuple(tuple, "yOOKKO", &name, &starts, &lengths, &offset, &nbytes, &address))
        return -1;
    const void *data = PyLong_AsVoidPtr(address);
    if (starts == Py_None)
        *slice = berth_slice_bytes(name, offset, nbytes, data);
    else
        *slice = berth_slice_of(name, sizes, sizes + BERTH_MAX_RANK, data);
    if (starts != Py_None &&
        (read_ints(starts, sizes) < 0 || read_ints(lengths, sizes + BERTH_MAX_RANK) < 0))
        return -1;
    return PyErr_Occurred() ? -1 : 0;
}

/* On failure an exception is raised, and nothing is to be freed. */
static int slices_make(slice_list *list, PyObject *objects)
{
    Py_ssize_t n = PyList_Size(objects);
    if (n < 0)
        return -1;
    *list = (slice_list){.n = (size_t)n};
    list->slices = PyMem_Calloc(list->n + 1, sizeof *list->slices);
    list->sizes = PyMem_Calloc(list->n + 1, 2 * BERTH_MAX_RANK * sizeof *list->sizes);
    int status = list->slices && list->sizes ? 0 : (PyErr_NoMemory(), -1);
    for (size_t i = 0; status == 0 && i < list->n; i++)
        status = slice_read(PyList_GetItem(objects, (Py_ssize_t)i), &list->slices[i],
                            list->sizes + 2 * BERTH_MAX_RANK * i);
    if (status < 0)
        slices_free(list);
    return status;
}

/* The Python object that exchanges bytes among so many writers. */
typedef struct exchange_caller {
    PyObject *function;
    size_t n_writers;
    atomic_bool *is_stopped; /* is set when it has failed */
} exchange_caller;

static PyObject *exchange_list(const uint64_t *nbytes, size_t n, uint64_t *sum)
{
    PyObject *list = PyList_New((Py_ssize_t)n);
    *sum = 0;
    for (size_t i = 0; list && i < n; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(nbytes[i]);
        if (!number || PyList_SetItem(list, (Py_ssize_t)i, number) < 0)
            Py_CLEAR(list);
        *sum += nbytes[i];
    }
    return list;
}

/* bytes may be NULL if there are none. torch.frombuffer wants what could be written to. */
static PyObject *exchange_view(const void *bytes, uint64_t nbytes)
{
    static char nothing;
    char *address = nbytes > 0 ? (char *)(uintptr_t)bytes : &nothing;
    return PyMemoryView_FromMemory(address, (Py_ssize_t)nbytes, PyBUF_WRITE);
}

/* Tells the others, with an exception set: it stays. */
static void exchange_leave(const exchange_caller *caller)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *result = PyObject_CallMethod(caller->function, "leave", NULL);
    if (!result)
        PyErr_Clear();
    Py_XDECREF(result);
    PyErr_Restore(type, value, traceback);
}

static int exchange_run(const exchange_caller *caller, const void *send,
                        const uint64_t *send_nbytes, void *receive, const uint64_t *receive_nbytes)
{
    uint64_t n_sent, n_received;
    PyObject *to = exchange_list(send_nbytes, caller->n_writers, &n_sent);
    PyObject *from = to ? exchange_list(receive_nbytes, caller->n_writers, &n_received) : NULL;
    PyObject *sent = from ? exchange_view(send, n_sent) : NULL;
    PyObject *received = sent ? exchange_view(receive, n_received) : NULL;
    PyObject *result = NULL;
    if (received)
        result =
            PyObject_CallFunctionObjArgs(caller->function, sent, to, received, from, (void *)NULL);
    else
        exchange_leave(caller);
    Py_XDECREF(result);
    Py_XDECREF(received);
    Py_XDECREF(sent);
    Py_XDECREF(from);
    Py_XDECREF(to);
    return result ? 0 : -1;
}

/* A berth_exchange_fn. A signal's exception may be set: then Berth tells the others of it. */
static int exchange_call(void *context, const void *send, const uint64_t *send_nbytes,
                         void *receive, const uint64_t *receive_nbytes)
{
    const exchange_caller *caller = context;
    PyObject *type, *value, *traceback;
    int status;
    bpy_gil gil = bpy_gil_take();
    PyErr_Fetch(&type, &value, &traceback);
    if (!type && PyErr_CheckSignals() < 0) {
        exchange_leave(caller);
        status = -1;
    } else
        status = exchange_run(caller, send, send_nbytes, receive, receive_nbytes);
    if (type)
        PyErr_Restore(type, value, traceback); /* the first one is raised */
    bpy_gil_give(gil);
    if (status < 0)
        atomic_store(caller->is_stopped, true);
    return status < 0 ? ECANCELED : 0;
}

/* bpy_check_signals; what stops, stops the requests of this writer, too. */
static int check_writing(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    const exchange_caller *caller = context;
    int stop = bpy_check_signals(NULL, done_nbytes, total_nbytes);
    if (stop)
        atomic_store(caller->is_stopped, true);
    return stop;
}

/* (receipt, bytes shared, why no more) of slices that are written without the GIL. url_joint: of
 * the coordinator of an object; else NULL. */
static PyObject *write_slices(const char *ticket, size_t ticket_nbytes, size_t writer,
                              const slice_list *list, berth_joint_url *url_joint, bool is_url,
                              const char *base, exchange_caller *caller)
{
    berth_stats stats = {.method = NULL};
    const berth_params params = {.base = base,
                                 .stats = &stats,
                                 .progress = check_writing,
                                 .progress_context = caller,
                                 .exchange = caller->function == Py_None ? NULL : exchange_call,
                                 .exchange_context = caller};
    const berth_upload_params how = {.cancelled = is_stopped, .context = caller->is_stopped};
    void *receipt = NULL;
    char *text = NULL;
    size_t nbytes;
    berth_error error;
    int status;
    Py_BEGIN_ALLOW_THREADS;
    if (is_url)
        status = berth_joint_url_write(ticket, ticket_nbytes, writer, url_joint, list->slices,
                                       list->n, &params, &how, &text, &nbytes, &error);
    else
        status = berth_joint_write(ticket, ticket_nbytes, writer, list->slices, list->n, &params,
                                   &receipt, &nbytes, &error);
    Py_END_ALLOW_THREADS;
    PyObject *answer = NULL;
    if (status < 0 && !PyErr_Occurred())
        bpy_raise(&error);
    if (status == 0)
        answer = Py_BuildValue("(y#Kz)", is_url ? text : (const char *)receipt, (Py_ssize_t)nbytes,
                               (unsigned long long)stats.shared_nbytes, stats.base_reason);
    berth_free(receipt);
    free(text);
    return answer;
}

/*
 * joint_write(ticket, writer, slices, n_writers, exchange, joint, is_url, base) -> (receipt, bytes
 * shared, why no more). Who calls it holds what the slices point to.
 */
static PyObject *joint_write(PyObject *module, PyObject *arguments)
{
    (void)module;
    const char *ticket;
    Py_ssize_t nbytes, writer, n_writers;
    PyObject *objects, *exchange, *joint;
    atomic_bool own = false;
    slice_list list;
    const char *base = NULL;
    int is_url;
    if (!PyArg_ParseTuple(arguments, "y#nO!nOOp|y", &ticket, &nbytes, &writer, &PyList_Type,
                          &objects, &n_writers, &exchange, &joint, &is_url, &base) ||
        slices_make(&list, objects) < 0)
        return NULL;
    joint_object *self = Py_TYPE(joint) == joint_type ? (joint_object *)joint : NULL;
    exchange_caller caller = {exchange, (size_t)n_writers, self ? &self->is_stopped : &own};
    PyObject *receipt = write_slices(ticket, (size_t)nbytes, (size_t)writer, &list,
                                     self ? self->url_joint : NULL, is_url, base, &caller);
    slices_free(&list);
    return receipt;
}

/* joint_deal(index, nbytes, n_writers, writer) -> (offset, nbytes) */
static PyObject *joint_deal(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_ssize_t index, n_writers, writer;
    unsigned long long nbytes;
    uint64_t offset, share;
    if (!PyArg_ParseTuple(arguments, "nKnn", &index, &nbytes, &n_writers, &writer))
        return NULL;
    berth_deal_bytes((size_t)index, nbytes, (size_t)n_writers, (size_t)writer, &offset, &share);
    return Py_BuildValue("(KK)", (unsigned long long)offset, (unsigned long long)share);
}

/* ---- the type ---- */

static PyMethodDef joint_methods[] = {
    {"ticket", joint_ticket, METH_NOARGS, "ticket()\n--\n\n"},
    {"names", joint_names, METH_NOARGS, "names()\n--\n\n"},
    {"add_receipt", joint_add_receipt, METH_VARARGS, "add_receipt(writer, receipt)\n--\n\n"},
    {"finish", joint_finish, METH_NOARGS, "finish()\n--\n\n"},
    {"abort", joint_abort, METH_NOARGS,
     "abort()\n--\n\nReturns None; or why something of it is left in the store."},
    {NULL, NULL, 0, NULL},
};

static PyMethodDef joint_functions[] = {
    {"joint_begin", joint_begin, METH_VARARGS,
     "joint_begin(value, path, n_writers, elsewhere, base)\n--\n\n"
     "path: bytes; or a URL of S3, a str. base: a path, bytes.\n"
     "elsewhere: the type of tensors that the writers have; their attribute facts says what they\n"
     "are: (dtype, shape, requires_grad, is_parameter, key of the storage)."},
    {"joint_write", joint_write, METH_VARARGS,
     "joint_write(ticket, writer, slices, n_writers, exchange, joint, is_url, base)\n--\n\n"
     "slices: (name, starts, lengths, 0, 0, address), or (name, None, None, offset, nbytes,\n"
     "address). exchange(send, send_nbytes, receive, receive_nbytes): a berth_exchange_fn, with\n"
     "buffers and lists; what it raises is raised. exchange.leave(): it is not called: this "
     "writer\n"
     "has failed. joint: of the coordinator; else None. Returns (receipt, bytes shared with the\n"
     "base, why no more or None)."},
    {"joint_deal", joint_deal, METH_VARARGS,
     "joint_deal(index, nbytes, n_writers, writer)\n--\n\nberth_deal_bytes."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot joint_slots[] = {
    {Py_tp_dealloc, joint_dealloc},
    {Py_tp_methods, joint_methods},
    {0, NULL},
};

int bpy_joint_type_add(PyObject *module)
{
    PyType_Spec joint = {.name = "berth._native.Joint",
                         .basicsize = sizeof(joint_object),
                         .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                         .slots = joint_slots};
    joint_type = (PyTypeObject *)PyType_FromSpec(&joint);
    if (!joint_type || PyModule_AddType(module, joint_type) < 0)
        return -1;
    return PyModule_AddFunctions(module, joint_functions);
}
