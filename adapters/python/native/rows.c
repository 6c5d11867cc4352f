/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The types Rows and Ticket: a cache of rows, and a request of some, as berth._rows uses them. Ids
 * and outputs are addresses (int) or objects with a buffer; _rows.py has checked their shapes.
 */
#include <stdatomic.h>
#include <stddef.h>

#include "adapters/python/native/native.h"

/* A file of which the cache has a table. */
typedef struct rows_file {
    struct rows_file *next;
    bpy_checkpoint *checkpoint;
} rows_file;

/* A cache, counted by what uses it: Python objects, and calls without the GIL. */
typedef struct bpy_rows {
    berth_rows *handle;
    atomic_size_t n_users;
    rows_file *files; /* open as long as the cache lives; only with the GIL */
} bpy_rows;

typedef struct rows_object {
    PyObject_HEAD bpy_rows *rows; /* NULL: closed */
} rows_object;

typedef struct ticket_object {
    PyObject_HEAD bpy_rows *rows;
    berth_ticket ticket;
    size_t n, row_nbytes;
    size_t n_users; /* the object until it is released, and calls; 0: the ticket has ended */
    bool is_released;
} ticket_object;

static PyTypeObject *rows_type, *ticket_type;

/* ---- life ---- */

static bpy_rows *rows_use(bpy_rows *rows)
{
    atomic_fetch_add(&rows->n_users, 1);
    return rows;
}

/* The last one frees the cache: nobody else is in a call with it. */
static void rows_release(bpy_rows *rows)
{
    if (atomic_fetch_sub(&rows->n_users, 1) > 1)
        return;
    berth_rows_free(rows->handle);
    for (rows_file *file = rows->files, *next; file; file = next) {
        next = file->next;
        bpy_checkpoint_release(file->checkpoint);
        free(file);
    }
    free(rows);
}

static void rows_release_without_gil(bpy_rows *rows)
{
    Py_BEGIN_ALLOW_THREADS;
    rows_release(rows);
    Py_END_ALLOW_THREADS;
}

/* rows_new(cache_nbytes, scratch_nbytes, ways) */
static PyObject *rows_new(PyObject *module, PyObject *arguments)
{
    (void)module;
    unsigned long long cache_nbytes, scratch_nbytes, ways;
    if (!PyArg_ParseTuple(arguments, "KKK", &cache_nbytes, &scratch_nbytes, &ways))
        return NULL;
    const berth_rows_limits limits = {
        .cache_nbytes = cache_nbytes, .scratch_nbytes = scratch_nbytes, .ways = ways};
    rows_object *self = PyObject_New(rows_object, rows_type);
    if (!self)
        return NULL;
    self->rows = calloc(1, sizeof *self->rows);
    berth_error error;
    int status = -1;
    if (!self->rows) {
        PyErr_NoMemory();
    } else {
        atomic_init(&self->rows->n_users, 1);
        Py_BEGIN_ALLOW_THREADS;
        status = berth_rows_new(&limits, NULL, &self->rows->handle, &error);
        Py_END_ALLOW_THREADS;
        if (status < 0)
            bpy_raise(&error);
    }
    if (status < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static PyObject *rows_close(PyObject *self, PyObject *unused)
{
    (void)unused;
    bpy_rows *rows = ((rows_object *)self)->rows;
    ((rows_object *)self)->rows = NULL;
    if (rows)
        rows_release_without_gil(rows);
    Py_RETURN_NONE;
}

static void rows_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(rows_close(self, NULL));
    PyObject_Free(self);
    Py_DECREF(type);
}

/* The open cache, used once more; NULL: an exception is raised. */
static bpy_rows *rows_opened(PyObject *self)
{
    bpy_rows *rows = ((rows_object *)self)->rows;
    if (rows)
        return rows_use(rows);
    PyErr_SetString(PyExc_ValueError, "the cache of rows is closed");
    return NULL;
}

/* ---- tables ---- */

/* Consumes the file; on failure it is closed. */
static int add_table(bpy_rows *rows, rows_file *file, const berth_tensor *tensor, size_t *table)
{
    berth_checkpoint *handle = bpy_checkpoint_handle(file->checkpoint);
    berth_error error;
    int status;
    Py_BEGIN_ALLOW_THREADS;
    status = berth_rows_add(rows->handle, handle, tensor, table, &error);
    if (status < 0)
        bpy_checkpoint_release(file->checkpoint);
    Py_END_ALLOW_THREADS;
    if (status < 0) {
        free(file);
        bpy_raise(&error);
        return -1;
    }
    file->next = rows->files;
    rows->files = file;
    return 0;
}

/* Rows.add(checkpoint, name) -> number of the table */
static PyObject *rows_add(PyObject *self, PyObject *arguments)
{
    PyObject *object, *name;
    size_t table;
    if (!PyArg_ParseTuple(arguments, "OO", &object, &name))
        return NULL;
    bpy_checkpoint *checkpoint = bpy_checkpoint_of(object);
    const berth_tensor *tensor = checkpoint ? bpy_checkpoint_find(checkpoint, name) : NULL;
    bpy_rows *rows = tensor ? rows_opened(self) : NULL;
    if (!rows)
        return NULL;
    rows_file *file = malloc(sizeof *file);
    int status = -1;
    if (file) {
        file->checkpoint = bpy_checkpoint_use(checkpoint);
        status = add_table(rows, file, tensor, &table);
    } else {
        PyErr_NoMemory();
    }
    rows_release_without_gil(rows);
    return status < 0 ? NULL : PyLong_FromSize_t(table);
}

/* ---- gathers ---- */

/* Parts of a gather, and what keeps their memory. */
typedef struct rows_parts {
    size_t n, n_views;
    berth_rows_part *parts;
    Py_buffer *views; /* two for each part */
} rows_parts;

static void parts_free(rows_parts *parts)
{
    for (size_t i = 0; i < parts->n_views; i++)
        PyBuffer_Release(&parts->views[i]);
    free(parts->parts);
    free(parts->views);
}

/* Where an object's bytes begin; flags: of its buffer. On failure an exception is raised. */
static void *parts_address(rows_parts *parts, PyObject *object, int flags)
{
    if (object == Py_None)
        return NULL;
    if (PyLong_Check(object))
        return PyLong_AsVoidPtr(object);
    Py_buffer *view = &parts->views[parts->n_views];
    if (PyObject_GetBuffer(object, view, flags) < 0)
        return NULL;
    parts->n_views++;
    return view->buf;
}

/* (table, ids, n, ids_are_32_bit, output, stride_nbytes, pruned_to_zero) */
static int parts_fill(rows_parts *parts, PyObject *tuple, berth_rows_part *part)
{
    PyObject *ids, *output;
    unsigned long long stride_nbytes;
    Py_ssize_t table, n;
    int are_32_bit, pruned;
    if (!PyArg_ParseTuple(tuple, "nOnpOKp", &table, &ids, &n, &are_32_bit, &output, &stride_nbytes,
                          &pruned))
        return -1;
    *part = (berth_rows_part){.table = (size_t)table,
                              .n = (size_t)n,
                              .stride_nbytes = stride_nbytes,
                              .ids_are_32_bit = are_32_bit,
                              .pruned_to_zero = pruned};
    part->ids = parts_address(parts, ids, PyBUF_SIMPLE);
    part->output =
        PyErr_Occurred() ? NULL : parts_address(parts, output, PyBUF_STRIDES | PyBUF_WRITABLE);
    return PyErr_Occurred() ? -1 : 0;
}

/* Of a list of such tuples. On failure an exception is raised, and nothing is to be freed. */
static int parts_make(rows_parts *parts, PyObject *list)
{
    Py_ssize_t n = PyList_Size(list);
    if (n < 0)
        return -1;
    *parts = (rows_parts){.n = (size_t)n};
    parts->parts = calloc(parts->n + 1, sizeof *parts->parts);
    parts->views = calloc(2 * parts->n + 1, sizeof *parts->views);
    int status = parts->parts && parts->views ? 0 : (PyErr_NoMemory(), -1);
    for (size_t i = 0; status == 0 && i < parts->n; i++)
        status = parts_fill(parts, PyList_GetItem(list, (Py_ssize_t)i), &parts->parts[i]);
    if (status < 0)
        parts_free(parts);
    return status;
}

/* Rows.gather(parts) */
static PyObject *rows_gather(PyObject *self, PyObject *list)
{
    const berth_params params = {.progress = bpy_check_signals};
    rows_parts parts;
    berth_error error;
    int status;
    if (parts_make(&parts, list) < 0)
        return NULL;
    bpy_rows *rows = rows_opened(self);
    if (!rows) {
        parts_free(&parts);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    status = berth_rows_gather(rows->handle, parts.parts, parts.n, &params, &error);
    rows_release(rows);
    Py_END_ALLOW_THREADS;
    parts_free(&parts);
    if (PyErr_Occurred())
        return NULL;
    if (status < 0)
        return bpy_raise(&error);
    Py_RETURN_NONE;
}

/* Rows.estimate(parts) -> (n_ids, n_passes, memory_nbytes, output_nbytes) */
static PyObject *rows_estimate(PyObject *self, PyObject *list)
{
    berth_rows_gather_estimate estimate;
    rows_parts parts;
    berth_error error;
    if (parts_make(&parts, list) < 0)
        return NULL;
    bpy_rows *rows = rows_opened(self);
    int status =
        rows ? berth_rows_estimate(rows->handle, parts.parts, parts.n, NULL, &estimate, &error)
             : -1;
    parts_free(&parts);
    if (!rows)
        return NULL;
    rows_release_without_gil(rows);
    if (status < 0)
        return bpy_raise(&error);
    return Py_BuildValue(
        "(KKKK)", (unsigned long long)estimate.n_ids, (unsigned long long)estimate.n_passes,
        (unsigned long long)estimate.memory_nbytes, (unsigned long long)estimate.output_nbytes);
}

/* ---- statistics ---- */

#define COUNT(name)                                                                                \
    {                                                                                              \
#name, offsetof(berth_rows_stats, name)                                                    \
    }

static const struct rows_count {
    const char *name;
    size_t offset;
} COUNTS[] = {
    COUNT(n_requests),       COUNT(n_refused),   COUNT(n_tickets), COUNT(n_ids),
    COUNT(n_unique),         COUNT(n_hits),      COUNT(n_awaited), COUNT(n_misses),
    COUNT(n_conflicts),      COUNT(n_evictions), COUNT(n_reads),   COUNT(n_merged),
    COUNT(requested_nbytes), COUNT(read_nbytes), COUNT(n_lines),   COUNT(line_nbytes),
    COUNT(n_passes),         COUNT(n_streamed),
};

static int add_count(PyObject *counts, const char *name, uint64_t n)
{
    PyObject *number = PyLong_FromUnsignedLongLong(n);
    int status = number ? PyDict_SetItemString(counts, name, number) : -1;
    Py_XDECREF(number);
    return status;
}

/* Rows.stats() -> dict */
static PyObject *rows_stats(PyObject *self, PyObject *unused)
{
    (void)unused;
    berth_rows_stats stats;
    berth_error error;
    bpy_rows *rows = rows_opened(self);
    if (!rows)
        return NULL;
    int status = berth_rows_get_stats(rows->handle, &stats, &error);
    rows_release_without_gil(rows);
    if (status < 0)
        return bpy_raise(&error);
    PyObject *counts = PyDict_New();
    for (size_t i = 0; counts && i < sizeof COUNTS / sizeof *COUNTS; i++) {
        uint64_t n;
        memcpy(&n, (const char *)&stats + COUNTS[i].offset, sizeof n);
        if (add_count(counts, COUNTS[i].name, n) < 0)
            Py_CLEAR(counts);
    }
    return counts;
}

/* ---- tickets ---- */

/* One user less; the last one ends the ticket. With the GIL. */
static void ticket_leave(ticket_object *self)
{
    if (--self->n_users > 0)
        return;
    bpy_rows *rows = self->rows;
    Py_BEGIN_ALLOW_THREADS;
    (void)berth_rows_release(rows->handle, self->ticket, NULL);
    rows_release(rows);
    Py_END_ALLOW_THREADS;
}

static int rows_request(bpy_rows *rows, size_t table, const void *ids, size_t n,
                        berth_ticket *ticket)
{
    berth_error error;
    int status;
    Py_BEGIN_ALLOW_THREADS;
    status = berth_rows_prefetch(rows->handle, table, ids, n, ticket, &error);
    Py_END_ALLOW_THREADS;
    if (status < 0)
        bpy_raise(&error);
    return status;
}

/* Takes a user of the cache. */
static PyObject *ticket_make(bpy_rows *rows, berth_ticket ticket, size_t n, size_t row_nbytes)
{
    ticket_object *self = PyObject_New(ticket_object, ticket_type);
    if (!self) {
        (void)berth_rows_release(rows->handle, ticket, NULL);
        rows_release_without_gil(rows);
        return NULL;
    }
    self->rows = rows;
    self->ticket = ticket;
    self->n = n;
    self->row_nbytes = row_nbytes;
    self->n_users = 1;
    self->is_released = false;
    return (PyObject *)self;
}

/* Rows.prefetch(table, ids, n, row_nbytes) -> Ticket; ids: of 64 bits */
static PyObject *rows_prefetch(PyObject *self, PyObject *arguments)
{
    Py_ssize_t table, n, row_nbytes;
    PyObject *ids;
    Py_buffer view = {0};
    rows_parts parts = {.views = &view};
    berth_ticket ticket;
    if (!PyArg_ParseTuple(arguments, "nOnn", &table, &ids, &n, &row_nbytes))
        return NULL;
    const void *address = parts_address(&parts, ids, PyBUF_SIMPLE);
    bpy_rows *rows = PyErr_Occurred() ? NULL : rows_opened(self);
    PyObject *made = NULL;
    if (rows && rows_request(rows, (size_t)table, address, (size_t)n, &ticket) == 0)
        made = ticket_make(rows, ticket, (size_t)n, (size_t)row_nbytes);
    else if (rows)
        rows_release_without_gil(rows);
    PyBuffer_Release(&view);
    return made;
}

/* Uses a live ticket. Returns: 0; -1: an exception is raised. */
static int ticket_enter(ticket_object *self)
{
    if (self->is_released) {
        PyErr_SetString(PyExc_ValueError, "the ticket is released");
        return -1;
    }
    self->n_users++;
    return 0;
}

static PyObject *ticket_finish_call(ticket_object *self, int status, const berth_error *error)
{
    ticket_leave(self);
    if (status < 0)
        return bpy_raise(error);
    Py_RETURN_NONE;
}

/* Ticket.wait() */
static PyObject *ticket_wait(PyObject *object, PyObject *unused)
{
    (void)unused;
    ticket_object *self = (ticket_object *)object;
    berth_error error;
    int status;
    if (ticket_enter(self) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    status = berth_rows_wait(self->rows->handle, self->ticket, NULL, &error);
    Py_END_ALLOW_THREADS;
    return ticket_finish_call(self, status, &error);
}

/* Waits, and copies the rows. Without the GIL. */
static int copy_rows(const ticket_object *self, const void **pointers, uint8_t *output,
                     size_t stride_nbytes, berth_error *error)
{
    int status = berth_rows_wait(self->rows->handle, self->ticket, pointers, error);
    for (size_t i = 0; status == 0 && i < self->n; i++)
        memcpy(output + i * stride_nbytes, pointers[i], self->row_nbytes);
    return status;
}

/* Ticket.copy(output, stride_nbytes) */
static PyObject *ticket_copy(PyObject *object, PyObject *arguments)
{
    ticket_object *self = (ticket_object *)object;
    PyObject *output;
    Py_ssize_t stride_nbytes;
    Py_buffer view = {0};
    rows_parts parts = {.views = &view};
    berth_error error;
    int status;
    if (!PyArg_ParseTuple(arguments, "On", &output, &stride_nbytes))
        return NULL;
    uint8_t *address = parts_address(&parts, output, PyBUF_STRIDES | PyBUF_WRITABLE);
    const void **pointers = PyErr_Occurred() ? NULL : malloc((self->n + 1) * sizeof *pointers);
    if (!pointers && !PyErr_Occurred())
        PyErr_NoMemory();
    if (!pointers || ticket_enter(self) < 0) {
        free(pointers);
        PyBuffer_Release(&view);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    status = copy_rows(self, pointers, address, (size_t)stride_nbytes, &error);
    Py_END_ALLOW_THREADS;
    free(pointers);
    PyBuffer_Release(&view);
    return ticket_finish_call(self, status, &error);
}

/* Ticket.release() */
static PyObject *ticket_release(PyObject *object, PyObject *unused)
{
    (void)unused;
    ticket_object *self = (ticket_object *)object;
    if (!self->is_released) {
        self->is_released = true;
        ticket_leave(self);
    }
    Py_RETURN_NONE;
}

static void ticket_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(ticket_release(self, NULL));
    PyObject_Free(self);
    Py_DECREF(type);
}

/* ---- the types ---- */

static PyMethodDef rows_methods[] = {
    {"close", rows_close, METH_NOARGS, "close()\n--\n\n"},
    {"add", rows_add, METH_VARARGS, "add(checkpoint, name)\n--\n\n"},
    {"gather", rows_gather, METH_O, "gather(parts)\n--\n\n"},
    {"estimate", rows_estimate, METH_O, "estimate(parts)\n--\n\n"},
    {"prefetch", rows_prefetch, METH_VARARGS, "prefetch(table, ids, n, row_nbytes)\n--\n\n"},
    {"stats", rows_stats, METH_NOARGS, "stats()\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

static PyMethodDef ticket_methods[] = {
    {"wait", ticket_wait, METH_NOARGS, "wait()\n--\n\n"},
    {"copy", ticket_copy, METH_VARARGS, "copy(output, stride_nbytes)\n--\n\n"},
    {"release", ticket_release, METH_NOARGS, "release()\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot rows_slots[] = {
    {Py_tp_dealloc, rows_dealloc},
    {Py_tp_methods, rows_methods},
    {0, NULL},
};

static PyType_Slot ticket_slots[] = {
    {Py_tp_dealloc, ticket_dealloc},
    {Py_tp_methods, ticket_methods},
    {0, NULL},
};

static PyMethodDef rows_function[] = {
    {"rows", rows_new, METH_VARARGS, "rows(cache_nbytes, scratch_nbytes, ways)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

int bpy_rows_types_add(PyObject *module)
{
    const unsigned int flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION;
    PyType_Spec rows = {.name = "berth._native.Rows",
                        .basicsize = sizeof(rows_object),
                        .flags = flags,
                        .slots = rows_slots};
    PyType_Spec ticket = {.name = "berth._native.Ticket",
                          .basicsize = sizeof(ticket_object),
                          .flags = flags,
                          .slots = ticket_slots};
    rows_type = (PyTypeObject *)PyType_FromSpec(&rows);
    ticket_type = (PyTypeObject *)PyType_FromSpec(&ticket);
    if (!rows_type || !ticket_type || PyModule_AddType(module, rows_type) < 0)
        return -1;
    return PyModule_AddFunctions(module, rows_function);
}
