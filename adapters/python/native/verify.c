/* SPDX-License-Identifier: BSD-3-Clause */
/* verify(source): what berth_verify found, as plain Python values. */
#include <berth/config.h>

#include "adapters/curl/berth_curl.h"
#include "adapters/python/native/native.h"

/* One record's row is added to a list, on the calling thread. */
static void add_record(void *context, const berth_record_verdict *record)
{
    static const char *const VERDICTS[] = {"unchecked", "good", "absent", "bad"};
    bpy_gil gil = bpy_gil_take();
    PyObject *name = PyErr_Occurred()
                         ? NULL
                         : PyUnicode_DecodeUTF8(record->name, (Py_ssize_t)strlen(record->name),
                                                "backslashreplace");
    PyObject *row = name
                        ? Py_BuildValue("(OKKsz)", name, (unsigned long long)record->offset,
                                        (unsigned long long)record->nbytes, VERDICTS[record->crc32],
                                        record->bad ? record->bad->message : NULL)
                        : NULL;
    if (row)
        PyList_Append(context, row);
    Py_XDECREF(row);
    Py_XDECREF(name);
    bpy_gil_give(gil);
}

static PyObject *verify(berth_source *source, PyObject *records)
{
    berth_verdict verdict;
    berth_error error;
    berth_config *config = bpy_source_config(source, "", &error);
    const berth_params params = {
        .config = config, .progress = bpy_source_check_signals, .progress_context = source};
    int status;
    if (!config)
        return bpy_raise(&error);
    Py_BEGIN_ALLOW_THREADS;
    status = berth_verify(source, &params, add_record, records, &verdict, &error);
    Py_END_ALLOW_THREADS;
    berth_config_free(config);
    if (PyErr_Occurred())
        return NULL;
    /* What cannot be read at all is an exception; a broken file is an answer. The network is none.
     */
    berth_error broken = {.code = BERTH_E_CALLBACK, .offset = BERTH_NO_OFFSET};
    if (berth_source_url_explain(bpy_source_origin(source), &broken) != BERTH_E_CALLBACK)
        return bpy_raise(&broken);
    if ((status == BERTH_E_SYSTEM && verdict.n_bad == 0) || status == BERTH_E_NOT_FOUND ||
        status == BERTH_E_MEMORY || status == BERTH_E_ARGUMENT || status == BERTH_E_OPTION)
        return bpy_raise(&error);
    berth_error unlisted;
    PyObject *globals = bpy_globals_of(source, &unlisted);
    int fills = globals && status == BERTH_E_FORBIDDEN ? bpy_fills_objects(source) : 0;
    if (!globals || fills < 0) {
        Py_XDECREF(globals);
        return NULL;
    }
    return Py_BuildValue(
        "{sOsNsOsOsisssisnsnsnsnsKsKss#}", "records", records, "globals", globals, "intact",
        verdict.is_intact ? Py_True : Py_False, "is_refusal",
        status == BERTH_E_FORBIDDEN ? Py_True : Py_False, "fills", fills, "globals_unknown",
        unlisted.code < 0 ? unlisted.message : "", "errno", status < 0 ? error.system_errno : 0,
        "n_storages", (Py_ssize_t)verdict.n_storages, "n_verified", (Py_ssize_t)verdict.n_verified,
        "n_unverified", (Py_ssize_t)verdict.n_unverified, "n_bad", (Py_ssize_t)verdict.n_bad,
        "nbytes", (unsigned long long)verdict.nbytes, "behind_nbytes",
        (unsigned long long)verdict.behind_nbytes, "error", status < 0 ? error.message : "",
        (Py_ssize_t)(status < 0 ? strlen(error.message) : 0));
}

PyObject *bpy_verify(PyObject *module, PyObject *from)
{
    (void)module;
    Py_buffer buffer = {0};
    PyObject *owner = NULL, *found = NULL;
    berth_source source = {0};
    if (bpy_source_of(from, &source, &buffer, &owner) == 0) {
        PyObject *records = PyList_New(0);
        found = records ? verify(&source, records) : NULL;
        Py_XDECREF(records);
    }
    bpy_source_free(&source);
    PyBuffer_Release(&buffer);
    Py_XDECREF(owner);
    return found;
}
