/* SPDX-License-Identifier: BSD-3-Clause */
/* The type Archive: the records of a file, for torch's unpickler (berth._records). */
#include <berth/config.h>

#include "adapters/python/native/native.h"

typedef struct archive_object {
    PyObject_HEAD berth_archive *archive;
    PyObject *owner; /* of the memory that is read, a Stream or a Pinned; NULL: a file */
    Py_buffer buffer;
    berth_source source;
} archive_object;

static PyTypeObject *archive_type;

static int open_archive(const berth_source *source, const char *assignments,
                        berth_archive **archive)
{
    berth_error error;
    berth_config *config = bpy_source_config(source, assignments, &error);
    const berth_params params = {.config = config};
    int status = config ? 0 : (int)error.code;
    if (status == 0) {
        Py_BEGIN_ALLOW_THREADS;
        status = berth_archive_open(source, &params, archive, NULL, &error);
        Py_END_ALLOW_THREADS;
    }
    berth_config_free(config);
    if (status == 0 && !PyErr_Occurred())
        return 0;
    bpy_raise(&error);
    return -1;
}

/* open_archive(source, assignments) */
static PyObject *archive_open(PyObject *module, PyObject *arguments)
{
    PyObject *from;
    const char *assignments;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "Os", &from, &assignments))
        return NULL;
    archive_object *self = PyObject_New(archive_object, archive_type);
    if (!self)
        return NULL;
    self->archive = NULL;
    self->owner = NULL;
    self->buffer = (Py_buffer){0};
    self->source = (berth_source){0};
    if (bpy_source_of(from, &self->source, &self->buffer, &self->owner) == 0 &&
        open_archive(&self->source, assignments, &self->archive) == 0)
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static void archive_dealloc(PyObject *object)
{
    archive_object *self = (archive_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_BEGIN_ALLOW_THREADS;
    berth_archive_close(self->archive);
    bpy_source_free(&self->source);
    Py_END_ALLOW_THREADS;
    if (self->owner) {
        PyBuffer_Release(&self->buffer);
        Py_DECREF(self->owner);
    }
    PyObject_Free(self);
    Py_DECREF(type);
}

/* ---- records ---- */

/* Archive.records() -> {name: (nbytes, offset of the local header, offset of the data, method,
 * CRC-32)} */
static PyObject *archive_records(PyObject *self, PyObject *unused)
{
    (void)unused;
    berth_record record;
    PyObject *records = PyDict_New();
    for (size_t i = 0;
         records && berth_archive_at(((archive_object *)self)->archive, i, &record) == 0; i++) {
        PyObject *name =
            PyUnicode_DecodeUTF8(record.name, (Py_ssize_t)strlen(record.name), "surrogateescape");
        PyObject *facts = Py_BuildValue(
            "(KKKiI)", (unsigned long long)record.nbytes, (unsigned long long)record.header_offset,
            (unsigned long long)record.offset, (int)record.method, (unsigned int)record.crc32);
        if (!name || !facts || PyDict_SetItem(records, name, facts) < 0)
            Py_CLEAR(records);
        Py_XDECREF(name);
        Py_XDECREF(facts);
    }
    return records;
}

static int find_record(PyObject *self, const char *name, berth_record *record)
{
    berth_error error;
    int status = berth_archive_find(((archive_object *)self)->archive, name, record, &error);
    if (status < 0)
        bpy_raise(&error);
    return status;
}

static int read_record(PyObject *self, const berth_record *record, void *buffer)
{
    berth_archive *archive = ((archive_object *)self)->archive;
    berth_error error;
    int status;
    Py_BEGIN_ALLOW_THREADS;
    status = berth_archive_read(archive, record, buffer, (size_t)record->nbytes, 0, &error);
    Py_END_ALLOW_THREADS;
    if (status < 0)
        bpy_raise(&error);
    return status;
}

/* Archive.read(name) -> bytes */
static PyObject *archive_read(PyObject *self, PyObject *arguments)
{
    const char *name;
    berth_record record;
    if (!PyArg_ParseTuple(arguments, "s", &name) || find_record(self, name, &record) < 0)
        return NULL;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)record.nbytes);
    if (bytes && read_record(self, &record, PyBytes_AsString(bytes)) < 0)
        Py_CLEAR(bytes);
    return bytes;
}

/* Archive.storage(name) -> a tensor of uint8, whose storage is as those of torch.load. */
static PyObject *archive_storage(PyObject *self, PyObject *arguments)
{
    const char *name;
    berth_record record;
    const bpy_torch *torch = bpy_torch_get();
    if (!torch || !PyArg_ParseTuple(arguments, "s", &name) || find_record(self, name, &record) < 0)
        return NULL;
    bpy_memory *memory = bpy_memory_new((size_t)record.nbytes);
    if (!memory)
        return NULL;
    if (read_record(self, &record, bpy_memory_address(memory)) == 0)
        return bpy_memory_to_tensor(torch, memory, NULL);
    bpy_memory_free(memory);
    return NULL;
}

/* ---- the type ---- */

static PyMethodDef methods[] = {
    {"records", archive_records, METH_NOARGS, "records()\n--\n\n"},
    {"read", archive_read, METH_VARARGS, "read(name)\n--\n\n"},
    {"storage", archive_storage, METH_VARARGS, "storage(name)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, archive_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyMethodDef open_function[] = {
    {"open_archive", archive_open, METH_VARARGS, "open_archive(source, assignments)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

int bpy_archive_type_add(PyObject *module)
{
    PyType_Spec spec = {.name = "berth._native.Archive",
                        .basicsize = sizeof(archive_object),
                        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                        .slots = slots};
    archive_type = (PyTypeObject *)PyType_FromSpec(&spec);
    if (!archive_type || PyModule_AddType(module, archive_type) < 0)
        return -1;
    return PyModule_AddFunctions(module, open_function);
}
