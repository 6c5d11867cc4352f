/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The types Rows and Ticket: a cache of rows, and a request of some, as berth._rows uses them. Ids
 * and outputs are addresses (int) or objects with a buffer; _rows.py has checked their shapes.
 */
#include <berth/rows.h>
#include <stddef.h>

#include "adapters/python/native/native.h"

/* A file of which the cache has a table. */
typedef struct rows_file {
    struct rows_file *next;
    bpy_checkpoint *checkpoint;
} rows_file;

/* A cache; its object, calls and tickets use it. */
typedef struct bpy_rows {
    bpy_held held;
    berth_rows *handle;
    rows_file *files; /* open as long as the cache lives; only with the GIL */
} bpy_rows;

/* A request of rows, which its object and calls use. */
typedef struct bpy_ticket {
    bpy_held held;
    bpy_rows *rows;
    berth_ticket ticket;
    size_t n, row_nbytes;
} bpy_ticket;

static PyTypeObject *rows_type, *ticket_type;

/* ---- life ---- */

/* Nobody else is in a call with it. */
static void rows_end(bpy_held *held)
{
    bpy_rows *rows = (bpy_rows *)held;
    berth_rows_free(rows->handle);
    for (rows_file *file = rows->files, *next; file; file = next) {
        next = file->next;
        bpy_release(&file->checkpoint->held);
        free(file);
    }
    free(rows);
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
    bpy_rows *rows = calloc(1, sizeof *rows);
    if (!rows)
        return PyErr_NoMemory();
    atomic_init(&rows->held.n_users, 1);
    rows->held.end = rows_end;
    berth_error error;
    int status;
    Py_BEGIN_ALLOW_THREADS;
    status = berth_rows_new(&limits, NULL, &rows->handle, &error);
    Py_END_ALLOW_THREADS;
    if (status == 0)
        return bpy_holder_new(rows_type, &rows->held);
    bpy_release_without_gil(&rows->held);
    return bpy_raise(&error);
}

/* ---- tables ---- */

/* Takes the file, if it succeeds. */
static int add_table(bpy_rows *rows, rows_file *file, const berth_tensor *tensor, size_t *table)
{
    berth_checkpoint *handle = file->checkpoint->handle;
    berth_error error;
    int status;
    Py_BEGIN_ALLOW_THREADS;
    status = berth_rows_add(rows->handle, handle, tensor, table, &error);
    Py_END_ALLOW_THREADS;
    if (status < 0) {
        bpy_raise(&error);
        return -1;
    }
    file->next = rows->files;
    rows->files = file;
    return 0;
}

/* Rows.add(checkpoint, name) -> number of the table */
static PyObject *rows_add(bpy_held *held, PyObject *arguments)
{
    PyObject *object, *name;
    size_t table;
    if (!PyArg_ParseTuple(arguments, "OO", &object, &name))
        return NULL;
    bpy_checkpoint *checkpoint = bpy_checkpoint_of(object);
    rows_file *file = checkpoint ? malloc(sizeof *file) : NULL;
    if (!file)
        return checkpoint ? (bpy_release_without_gil(&checkpoint->held), PyErr_NoMemory()) : NULL;
    file->checkpoint = checkpoint;
    const berth_tensor *tensor = bpy_checkpoint_find(checkpoint, name);
    if (tensor && add_table((bpy_rows *)held, file, tensor, &table) == 0)
        return PyLong_FromSize_t(table);
    bpy_release_without_gil(&checkpoint->held);
    free(file);
    return NULL;
}

/* ---- calls that wait for rows ---- */

/* A progress function. The handlers of signals are of no such call. */
static int rows_check_signals(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    bpy_read_for_all(false);
    int stop = bpy_check_signals(context, done_nbytes, total_nbytes);
    bpy_read_for_all(true);
    return stop;
}

/* Around such a call: any thread in one reads what others wait for. Without the GIL. */
static PyThreadState *rows_begin_wait(void)
{
    bpy_read_for_all(true);
    return PyEval_SaveThread();
}

static void rows_end_wait(PyThreadState *thread)
{
    PyEval_RestoreThread(thread);
    bpy_read_for_all(false);
}

/*
 * The exception of such a call, if it has failed; that of the file object whose read has failed
 * goes before. Returns: None; NULL.
 */
static PyObject *rows_result(const bpy_rows *rows, int status, const berth_error *failure)
{
    berth_error error = *failure;
    if (status == 0)
        Py_RETURN_NONE;
    bpy_explain(&error);
    for (const rows_file *file = rows->files; file; file = file->next)
        if (bpy_raise_of_stream(&file->checkpoint->source, &error))
            return NULL;
    return bpy_raise(&error);
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
static PyObject *rows_gather(bpy_held *held, PyObject *list)
{
    const berth_params params = {.progress = rows_check_signals};
    rows_parts parts;
    berth_error error;
    const bpy_rows *rows = (bpy_rows *)held;
    if (parts_make(&parts, list) < 0)
        return NULL;
    PyThreadState *thread = rows_begin_wait();
    int status = berth_rows_gather(rows->handle, parts.parts, parts.n, &params, &error);
    rows_end_wait(thread);
    parts_free(&parts);
    return PyErr_Occurred() ? NULL : rows_result(rows, status, &error);
}

/* Rows.estimate(parts) -> (n_ids, n_passes, memory_nbytes, output_nbytes) */
static PyObject *rows_estimate(bpy_held *held, PyObject *list)
{
    berth_rows_gather_estimate estimate;
    rows_parts parts;
    berth_error error;
    if (parts_make(&parts, list) < 0)
        return NULL;
    int status = berth_rows_estimate(((bpy_rows *)held)->handle, parts.parts, parts.n, NULL,
                                     &estimate, &error);
    parts_free(&parts);
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
static PyObject *rows_stats(bpy_held *held, PyObject *unused)
{
    (void)unused;
    berth_rows_stats stats;
    berth_error error;
    if (berth_rows_get_stats(((bpy_rows *)held)->handle, &stats, &error) < 0)
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

static void ticket_end(bpy_held *held)
{
    bpy_ticket *self = (bpy_ticket *)held;
    bpy_read_for_all(true); /* it waits for the rows that are read */
    (void)berth_rows_release(self->rows->handle, self->ticket, NULL);
    bpy_read_for_all(false);
    bpy_release(&self->rows->held);
    free(self);
}

static int rows_request(const bpy_rows *rows, size_t table, const void *ids, size_t n,
                        berth_ticket *ticket)
{
    berth_error error;
    PyThreadState *thread = rows_begin_wait();
    int status = berth_rows_prefetch(rows->handle, table, ids, n, ticket, &error);
    rows_end_wait(thread);
    Py_XDECREF(rows_result(rows, status, &error));
    return status;
}

/* Rows.prefetch(table, ids, n, row_nbytes) -> Ticket; ids: of 64 bits */
static PyObject *rows_prefetch(bpy_held *held, PyObject *arguments)
{
    Py_ssize_t table, n, row_nbytes;
    PyObject *ids;
    Py_buffer view = {0};
    rows_parts parts = {.views = &view};
    if (!PyArg_ParseTuple(arguments, "nOnn", &table, &ids, &n, &row_nbytes))
        return NULL;
    const void *address = parts_address(&parts, ids, PyBUF_SIMPLE);
    bpy_ticket *made = PyErr_Occurred() ? NULL : malloc(sizeof *made);
    PyObject *object = NULL;
    if (made) {
        *made = (bpy_ticket){.held = {.n_users = 1, .end = ticket_end},
                             .rows = (bpy_rows *)held,
                             .n = (size_t)n,
                             .row_nbytes = (size_t)row_nbytes};
        if (rows_request(made->rows, (size_t)table, address, made->n, &made->ticket) < 0) {
            free(made);
        } else {
            bpy_use(held);
            object = bpy_holder_new(ticket_type, &made->held);
        }
    } else if (!PyErr_Occurred()) {
        PyErr_NoMemory();
    }
    PyBuffer_Release(&view);
    return object;
}

/* Ticket.wait() */
static PyObject *ticket_wait(bpy_held *held, PyObject *unused)
{
    (void)unused;
    const bpy_ticket *self = (bpy_ticket *)held;
    berth_error error;
    PyThreadState *thread = rows_begin_wait();
    int status = berth_rows_wait(self->rows->handle, self->ticket, NULL, &error);
    rows_end_wait(thread);
    return rows_result(self->rows, status, &error);
}

/* Waits, and copies the rows. Without the GIL. */
static int copy_rows(const bpy_ticket *self, const void **pointers, uint8_t *output,
                     size_t stride_nbytes, berth_error *error)
{
    int status = berth_rows_wait(self->rows->handle, self->ticket, pointers, error);
    for (size_t i = 0; status == 0 && i < self->n; i++)
        memcpy(output + i * stride_nbytes, pointers[i], self->row_nbytes);
    return status;
}

/* Ticket.copy(output, stride_nbytes) */
static PyObject *ticket_copy(bpy_held *held, PyObject *arguments)
{
    const bpy_ticket *self = (bpy_ticket *)held;
    PyObject *output;
    Py_ssize_t stride_nbytes;
    Py_buffer view = {0};
    rows_parts parts = {.views = &view};
    berth_error error;
    if (!PyArg_ParseTuple(arguments, "On", &output, &stride_nbytes))
        return NULL;
    uint8_t *address = parts_address(&parts, output, PyBUF_STRIDES | PyBUF_WRITABLE);
    const void **pointers = PyErr_Occurred() ? NULL : malloc((self->n + 1) * sizeof *pointers);
    if (!pointers) {
        PyBuffer_Release(&view);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    PyThreadState *thread = rows_begin_wait();
    int status = copy_rows(self, pointers, address, (size_t)stride_nbytes, &error);
    rows_end_wait(thread);
    free(pointers);
    PyBuffer_Release(&view);
    return rows_result(self->rows, status, &error);
}

/* ---- the types ---- */

#define CLOSED "the cache of rows is closed"

BPY_HELD_METHOD(rows_add, CLOSED)
BPY_HELD_METHOD(rows_gather, CLOSED)
BPY_HELD_METHOD(rows_estimate, CLOSED)
BPY_HELD_METHOD(rows_prefetch, CLOSED)
BPY_HELD_METHOD(rows_stats, CLOSED)
BPY_HELD_METHOD(ticket_wait, "the ticket is released")
BPY_HELD_METHOD(ticket_copy, "the ticket is released")

static PyMethodDef rows_methods[] = {
    {"close", bpy_holder_close, METH_NOARGS, "close()\n--\n\n"},
    {"add", rows_add_held, METH_VARARGS, "add(checkpoint, name)\n--\n\n"},
    {"gather", rows_gather_held, METH_O, "gather(parts)\n--\n\n"},
    {"estimate", rows_estimate_held, METH_O, "estimate(parts)\n--\n\n"},
    {"prefetch", rows_prefetch_held, METH_VARARGS, "prefetch(table, ids, n, row_nbytes)\n--\n\n"},
    {"stats", rows_stats_held, METH_NOARGS, "stats()\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

static PyMethodDef ticket_methods[] = {
    {"wait", ticket_wait_held, METH_NOARGS, "wait()\n--\n\n"},
    {"copy", ticket_copy_held, METH_VARARGS, "copy(output, stride_nbytes)\n--\n\n"},
    {"release", bpy_holder_close, METH_NOARGS, "release()\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot rows_slots[] = {
    {Py_tp_dealloc, bpy_holder_dealloc},
    {Py_tp_methods, rows_methods},
    {0, NULL},
};

static PyType_Slot ticket_slots[] = {
    {Py_tp_dealloc, bpy_holder_dealloc},
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
                        .basicsize = sizeof(bpy_holder),
                        .flags = flags,
                        .slots = rows_slots};
    PyType_Spec ticket = {.name = "berth._native.Ticket",
                          .basicsize = sizeof(bpy_holder),
                          .flags = flags,
                          .slots = ticket_slots};
    rows_type = (PyTypeObject *)PyType_FromSpec(&rows);
    ticket_type = (PyTypeObject *)PyType_FromSpec(&ticket);
    if (!rows_type || !ticket_type || PyModule_AddType(module, rows_type) < 0)
        return -1;
    return PyModule_AddFunctions(module, rows_function);
}
