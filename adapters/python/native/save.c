/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * save_begin(value, target, archive_name, snapshot, safetensors): walks the value with the GIL; the
 * job saves without it.
 */
#include "adapters/python/native/native.h"

/* ---- the value ---- */

void bpy_saver_free(bpy_saver *saver)
{
    if (!saver->tree && !saver->steps && saver->n_owners == 0)
        return;
    Py_BEGIN_ALLOW_THREADS;
    berth_tree_free(saver->tree);
    Py_END_ALLOW_THREADS;
    bpy_walk_begin();
    for (size_t i = 0; i < saver->n_owners; i++) {
        Py_DECREF(saver->owners[i]);
        (void)bpy_walk_next(&saver->walk);
    }
    bpy_walk_end();
    PyMem_Free(saver->owners);
    bpy_map_free(&saver->nodes);
    bpy_map_free(&saver->storages);
    bpy_map_free(&saver->addresses);
    Py_XDECREF(saver->events);
    bpy_map_free(&saver->outline);
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

berth_value *bpy_save_walk(bpy_saver *saver, PyObject *object)
{
    berth_error error;
    saver->tree = berth_tree_new(&error);
    saver->steps = PyList_New(0);
    if (!saver->tree || !saver->steps)
        return saver->tree ? NULL : (bpy_raise(&error), NULL);
    bpy_walk_begin();
    berth_value *value = bpy_save_value(saver, object);
    bpy_walk_end();
    if (!value || PyErr_Occurred() || berth_tree_error(saver->tree, NULL) < 0) {
        raise_failure(saver);
        return NULL;
    }
    return value;
}

static PyObject *save_begin(bpy_saver *saver, PyObject *object, PyObject *target,
                            const char *archive_name, bool snapshot, bool safetensors)
{
    const berth_value *value = saver->torch ? bpy_save_walk(saver, object) : NULL;
    if (!value) {
        bpy_saver_free(saver);
        return NULL;
    }
    const berth_content content =
        safetensors ? berth_of_safetensors(value, NULL, BERTH_COPY_TIES) : berth_of_value(value);
    return bpy_job_begin(saver, target, &content, archive_name, snapshot ? BERTH_SAVE_SNAPSHOT : 0);
}

PyObject *bpy_save_begin(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *object, *target;
    const char *archive_name;
    int snapshot, safetensors = 0;
    if (!PyArg_ParseTuple(arguments, "OOzp|p", &object, &target, &archive_name, &snapshot,
                          &safetensors))
        return NULL;
    bpy_saver saver = {.torch = bpy_torch_get()};
    bpy_hurry_begin();
    PyObject *job = save_begin(&saver, object, target, archive_name, snapshot, safetensors);
    bpy_hurry_end();
    return job;
}
