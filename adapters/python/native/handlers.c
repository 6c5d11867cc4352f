/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A call beside a handler of a signal. Python's `with` and `try` can be left at any bytecode, by
 * what the handler of another signal raises; there is none here between what is set and put back,
 * and none between a descriptor and the file object that owns it.
 */
#include <sys/mman.h>

#include "adapters/python/native/native.h"

/* signal.signal() runs the handlers of what has come before it sets anything: it may raise. */
static PyObject *handler_set(PyObject *signals, int number, PyObject *handler)
{
    return PyObject_CallMethod(signals, "signal", "iO", number, handler);
}

/* Puts it back, whatever is raised meanwhile: that replaces what the call returned, or raised. */
static PyObject *handler_put_back(PyObject *signals, int number, PyObject *before, PyObject *result)
{
    enum { MAX_TRIES = 1000 }; /* each had a signal of its own */
    PyObject *type, *error, *trace, *done = NULL;
    PyErr_Fetch(&type, &error, &trace);
    for (int i = 0; !done && i < MAX_TRIES; i++) {
        done = handler_set(signals, number, before);
        if (done)
            break;
        Py_CLEAR(result);
        Py_XDECREF(type);
        Py_XDECREF(error);
        Py_XDECREF(trace);
        PyErr_Fetch(&type, &error, &trace);
    }
    Py_XDECREF(done);
    PyErr_Restore(type, error, trace);
    return result;
}

static PyObject *with_handler(PyObject *module, PyObject *arguments)
{
    (void)module;
    int number;
    PyObject *handler, *function;
    if (!PyArg_ParseTuple(arguments, "iOO", &number, &handler, &function))
        return NULL;
    PyObject *signals = PyImport_ImportModule("signal");
    PyObject *before = signals ? handler_set(signals, number, handler) : NULL;
    PyObject *result = before ? PyObject_CallNoArgs(function) : NULL;
    if (before)
        result = handler_put_back(signals, number, before, result);
    Py_XDECREF(before);
    Py_XDECREF(signals);
    return result;
}

/* For open(): it calls this, and makes its object of what this returns, without a bytecode. */
static PyObject *open_memory(PyObject *module, PyObject *arguments)
{
    (void)module;
    const char *name;
    int flags; /* of open() */
    if (!PyArg_ParseTuple(arguments, "si", &name, &flags))
        return NULL;
    int fd = memfd_create(name, MFD_CLOEXEC);
    return fd < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(fd);
}

PyMethodDef bpy_handler_functions[] = {
    {"open_memory", open_memory, METH_VARARGS,
     "open_memory(name, flags)\n--\n\nAn opener of open(): a file in memory."},
    {"with_handler", with_handler, METH_VARARGS,
     "with_handler(number, handler, function)\n--\n\n"
     "Returns function(), during which the signal has this handler. On the main thread."},
    {NULL, NULL, 0, NULL},
};
