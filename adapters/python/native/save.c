/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * save(value, target, archive_name): walks the value with the GIL, then saves without it. The save
 * is a job, so that the main thread wakes up for signals: an exception of a handler
 * (KeyboardInterrupt) cancels it.
 */
#include <errno.h>

#include "adapters/python/native/native.h"

#define SECONDS_BETWEEN_SIGNALS 0.05

/* ---- a Python function that is written to ---- */

typedef struct writer {
    PyObject *write;
    PyObject *type, *value, *traceback; /* the exception of a call that failed */
    bool is_cancelled;
} writer;

/* Whether the call took all bytes: None, as some files return, or their number. */
static int write_bytes(writer *to, const char *bytes, size_t nbytes)
{
    while (nbytes > 0 && !to->is_cancelled) {
        PyObject *taken = PyObject_CallFunction(to->write, "y#", bytes, (Py_ssize_t)nbytes);
        size_t n = taken && taken != Py_None ? PyLong_AsSize_t(taken) : nbytes;
        Py_XDECREF(taken);
        if (!taken || PyErr_Occurred())
            return -1;
        if (n == 0 || n > nbytes) {
            PyErr_Format(PyExc_OSError, "write() took %zu of %zu bytes", n, nbytes);
            return -1;
        }
        bytes += n;
        nbytes -= n;
    }
    return to->is_cancelled ? -1 : 0;
}

static int writer_write(void *context, const void *buffer, size_t nbytes, uint64_t offset)
{
    (void)offset;
    writer *to = context;
    PyGILState_STATE state = PyGILState_Ensure();
    int status = to->type ? -1 : write_bytes(to, buffer, nbytes);
    if (status < 0 && !to->type && !to->is_cancelled)
        PyErr_Fetch(&to->type, &to->value, &to->traceback);
    PyGILState_Release(state);
    return status < 0 ? EIO : 0;
}

/* ---- running ---- */

static void job_end_without_gil(berth_job *job)
{
    Py_BEGIN_ALLOW_THREADS;
    berth_job_free(job);
    Py_END_ALLOW_THREADS;
}

/* Waits for the job. Returns: its status; or 1: a signal's handler has raised an exception. */
static int job_wait(berth_job *job, writer *to, berth_error *error)
{
    int status = BERTH_E_TIMEOUT;
    while (status == BERTH_E_TIMEOUT) {
        Py_BEGIN_ALLOW_THREADS;
        status = berth_job_wait(job, BERTH_JOB_DONE, SECONDS_BETWEEN_SIGNALS, error);
        Py_END_ALLOW_THREADS;
        if (PyErr_CheckSignals() < 0) {
            to->is_cancelled = true;
            berth_job_cancel(job);
            return 1;
        }
    }
    return status;
}

/* Returns: 0; -1: an exception is raised. */
static int run(const berth_target *target, const berth_content *content, const char *archive_name,
               writer *to)
{
    const berth_params params = {.archive_name = archive_name};
    berth_error error;
    berth_job *job;
    int status;
    Py_BEGIN_ALLOW_THREADS;
    status = berth_save_begin(target, content, 0, &params, &job, &error);
    Py_END_ALLOW_THREADS;
    if (status == 0) {
        status = job_wait(job, to, &error);
        job_end_without_gil(job);
    }
    if (status < 0 && to->type) {
        PyErr_Restore(to->type, to->value, to->traceback);
        *to = (writer){.write = to->write};
    } else if (status < 0)
        bpy_raise(&error);
    return status == 0 ? 0 : -1;
}

/* ---- targets ---- */

int bpy_save_content(PyObject *to, const berth_content *content, const char *archive_name)
{
    berth_target target;
    writer function = {.write = to};
    const berth_sink sink = {.write = writer_write, .context = &function, .in_order = true};
    if (PyBytes_Check(to)) {
        target = berth_to_path(PyBytes_AsString(to));
    } else if (PyLong_Check(to)) {
        target = berth_to_fd((int)PyLong_AsLong(to));
    } else {
        target = berth_to_sink(&sink);
    }
    if (PyErr_Occurred())
        return -1;
    int status = run(&target, content, archive_name, &function);
    Py_XDECREF(function.type);
    Py_XDECREF(function.value);
    Py_XDECREF(function.traceback);
    return status;
}

/* ---- the value ---- */

static void saver_free(bpy_saver *saver)
{
    Py_BEGIN_ALLOW_THREADS;
    berth_tree_free(saver->tree);
    Py_END_ALLOW_THREADS;
    bpy_walk_begin(&saver->walk);
    for (size_t i = 0; i < saver->n_owners; i++) {
        Py_DECREF(saver->owners[i]);
        (void)bpy_walk_next(&saver->walk);
    }
    bpy_walk_end();
    PyMem_Free(saver->owners);
    bpy_map_free(&saver->nodes);
    bpy_map_free(&saver->storages);
    bpy_map_free(&saver->addresses);
    Py_XDECREF(saver->steps);
    Py_XDECREF(saver->why);
}

/* Raises berth._errors.Declined(path, why), a TypeError. */
static void raise_refusal(bpy_saver *saver)
{
    PyObject *errors = PyImport_ImportModule("berth._errors");
    PyObject *declined =
        errors ? PyObject_CallMethod(errors, "declined", "OO", saver->steps, saver->why) : NULL;
    if (declined)
        PyErr_SetObject((PyObject *)Py_TYPE(declined), declined);
    Py_XDECREF(declined);
    Py_XDECREF(errors);
}

static void raise_failure(bpy_saver *saver)
{
    berth_error error;
    if (PyErr_Occurred())
        return;
    if (saver->why)
        raise_refusal(saver);
    else if (berth_tree_error(saver->tree, &error) < 0)
        bpy_raise(&error);
    else
        PyErr_SetString(PyExc_SystemError, "berth: a value was not saved, without a reason");
}

/* The tree of a value; NULL: an exception is raised. */
static berth_value *walk(bpy_saver *saver, PyObject *object)
{
    berth_error error;
    saver->tree = berth_tree_new(&error);
    saver->steps = PyList_New(0);
    if (!saver->tree || !saver->steps)
        return saver->tree ? NULL : (bpy_raise(&error), NULL);
    bpy_walk_begin(&saver->walk);
    berth_value *value = bpy_save_value(saver, object);
    bpy_walk_end();
    if (!value || PyErr_Occurred() || berth_tree_error(saver->tree, NULL) < 0) {
        raise_failure(saver);
        return NULL;
    }
    return value;
}

PyObject *bpy_save(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *object, *target;
    const char *archive_name;
    if (!PyArg_ParseTuple(arguments, "OOz", &object, &target, &archive_name))
        return NULL;
    bpy_saver saver = {.torch = bpy_torch_get()};
    if (!saver.torch)
        return NULL;
    const berth_value *value = walk(&saver, object);
    const berth_content content = berth_of_value(value);
    int status = value ? bpy_save_content(target, &content, archive_name) : -1;
    saver_free(&saver);
    if (status < 0)
        return NULL;
    Py_RETURN_NONE;
}
