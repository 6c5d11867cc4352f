/* SPDX-License-Identifier: BSD-3-Clause */
/* A berth_error becomes an exception (berth._errors.make chooses its class); signals do so, too. */
#include "adapters/python/native/native.h"

PyObject *bpy_raise(const berth_error *failure)
{
    berth_error own = *failure, *error = &own;
    if (PyErr_Occurred()) /* the handler of a signal has raised one, which ended the call */
        return NULL;
    bpy_explain(error);
    PyObject *errors = PyImport_ImportModule("berth._errors");
    if (!errors)
        return NULL;
    PyObject *message = PyUnicode_DecodeUTF8(error->message, (Py_ssize_t)strlen(error->message),
                                             "backslashreplace");
    PyObject *record =
        PyUnicode_DecodeUTF8(error->record, (Py_ssize_t)strlen(error->record), "backslashreplace");
    PyObject *exception = NULL;
    if (message && record)
        exception =
            PyObject_CallMethod(errors, "make", "sOiKO", berth_status_name(error->code), message,
                                error->system_errno, (unsigned long long)error->offset, record);
    if (exception)
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
    Py_XDECREF(exception);
    Py_XDECREF(message);
    Py_XDECREF(record);
    Py_DECREF(errors);
    return NULL;
}

const char *bpy_text(PyObject *object, const char *what)
{
    berth_error error = {.code = BERTH_E_ARGUMENT, .offset = BERTH_NO_OFFSET};
    Py_ssize_t nbytes;
    if (!PyUnicode_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s is a str, not %R", what, (PyObject *)Py_TYPE(object));
        return NULL;
    }
    const char *text = PyUnicode_AsUTF8AndSize(object, &nbytes);
    if (text && !memchr(text, 0, (size_t)nbytes))
        return text;
    (void)snprintf(error.message, sizeof error.message, "%s has %s", what,
                   text ? "a NUL character" : "characters that cannot be encoded");
    PyErr_Clear();
    bpy_raise(&error);
    return NULL;
}

int bpy_check_signals(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    (void)context;
    (void)done_nbytes;
    (void)total_nbytes;
    bpy_gil gil = bpy_gil_take();
    int stop = PyErr_CheckSignals() < 0;
    bpy_gil_give(gil);
    return stop;
}
