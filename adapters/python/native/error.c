/* SPDX-License-Identifier: BSD-3-Clause */
/* A berth_error becomes an exception (berth._errors.make chooses its class); signals do so, too. */
#include "adapters/python/native/native.h"

/* A global's row is added to a list, on the calling thread. */
static void add_global(void *context, const char *module, const char *name, bool is_allowed)
{
    bpy_gil gil = bpy_gil_take();
    PyObject *texts[2] = {NULL, NULL}, *row = NULL;
    if (!PyErr_Occurred()) {
        texts[0] = PyUnicode_DecodeUTF8(module, (Py_ssize_t)strlen(module), "backslashreplace");
        texts[1] = PyUnicode_DecodeUTF8(name, (Py_ssize_t)strlen(name), "backslashreplace");
    }
    if (texts[0] && texts[1])
        row = Py_BuildValue("(OOO)", texts[0], texts[1], is_allowed ? Py_True : Py_False);
    if (row)
        (void)PyList_Append(context, row);
    Py_XDECREF(row);
    Py_XDECREF(texts[0]);
    Py_XDECREF(texts[1]);
    bpy_gil_give(gil);
}

PyObject *bpy_globals_of(const berth_source *source, berth_error *error)
{
    PyObject *list = PyList_New(0);
    if (!list)
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    error->code = berth_list_globals(source, add_global, list, error);
    Py_END_ALLOW_THREADS;
    if (!PyErr_Occurred())
        return list;
    Py_DECREF(list);
    return NULL;
}

PyObject *bpy_raise(const berth_error *error)
{
    return bpy_raise_refusal(error, NULL);
}

PyObject *bpy_raise_refusal(const berth_error *failure, const berth_source *source)
{
    berth_error own = *failure, *error = &own;
    if (PyErr_Occurred()) /* a file object, or the handler of a signal, has ended the call by it */
        return NULL;
    bpy_explain(error);
    PyObject *errors = PyImport_ImportModule("berth._errors");
    if (!errors)
        return NULL;
    PyObject *message = PyUnicode_DecodeUTF8(error->message, (Py_ssize_t)strlen(error->message),
                                             "backslashreplace");
    PyObject *record =
        PyUnicode_DecodeUTF8(error->record, (Py_ssize_t)strlen(error->record), "backslashreplace");
    berth_error unlisted; /* then the refusal stands alone */
    bool is_refusal = source && error->code == BERTH_E_FORBIDDEN;
    PyObject *named = is_refusal ? bpy_globals_of(source, &unlisted) : PyTuple_New(0);
    PyObject *exception = NULL;
    if (message && record && named)
        exception = PyObject_CallMethod(errors, "make", "sOiKOO", berth_status_name(error->code),
                                        message, error->system_errno,
                                        (unsigned long long)error->offset, record, named);
    Py_XDECREF(named);
    if (exception)
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
    Py_XDECREF(exception);
    Py_XDECREF(message);
    Py_XDECREF(record);
    Py_DECREF(errors);
    return NULL;
}

PyObject *bpy_text(PyObject *object, const char *what)
{
    berth_error error = {.code = BERTH_E_ARGUMENT, .offset = BERTH_NO_OFFSET};
    if (!PyUnicode_Check(object))
        return PyErr_Format(PyExc_TypeError, "%s is a str, not %R", what,
                            (PyObject *)Py_TYPE(object));
    PyObject *bytes = PyUnicode_EncodeFSDefault(object);
    if (bytes && strlen(PyBytes_AsString(bytes)) == (size_t)PyBytes_Size(bytes))
        return bytes;
    if (!bytes && !PyErr_ExceptionMatches(PyExc_UnicodeError))
        return NULL;
    (void)snprintf(error.message, sizeof error.message, "%s has %s", what,
                   bytes ? "a NUL character" : "characters that cannot be encoded");
    Py_XDECREF(bytes);
    PyErr_Clear();
    return bpy_raise(&error);
}

int bpy_check_signals(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    (void)context;
    (void)done_nbytes;
    (void)total_nbytes;
    bpy_gil gil = bpy_gil_take();
    int stop = PyErr_Occurred() || PyErr_CheckSignals() < 0; /* a file object may have raised one */
    bpy_gil_give(gil);
    return stop;
}
