/* SPDX-License-Identifier: BSD-3-Clause */
/* A berth_error becomes an exception: berth._errors.make chooses its class. */
#include "adapters/python/native/native.h"

PyObject *bpy_raise(const berth_error *error)
{
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
