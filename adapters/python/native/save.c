/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * save_begin(value, target, archive_name, snapshot, safetensors, base): walks the value with the
 * GIL; the job saves without it. save_specs_begin(rows, target, metadata, owner): the same for
 * tensors by their addresses, without PyTorch.
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
    bpy_saver saver = {.torch = NULL};
    if (!PyArg_ParseTuple(arguments, "OOzp|py", &object, &target, &archive_name, &snapshot,
                          &safetensors, &saver.base))
        return NULL;
    saver.torch = bpy_torch_get();
    bpy_hurry_begin();
    PyObject *job = save_begin(&saver, object, target, archive_name, snapshot, safetensors);
    bpy_hurry_end();
    return job;
}

/* ---- tensors by their addresses ---- */

static berth_dtype dtype_named(const char *name)
{
    for (int i = BERTH_DTYPE_NONE + 1; i < BERTH_DTYPE_COUNT; i++)
        if (strcmp(berth_dtype_name((berth_dtype)i), name) == 0)
            return (berth_dtype)i;
    return BERTH_DTYPE_NONE;
}

/* dtype_nbytes(name): of one element; 0: there is no such dtype. */
PyObject *bpy_dtype_nbytes(PyObject *module, PyObject *name)
{
    (void)module;
    const char *text = PyUnicode_AsUTF8AndSize(name, NULL);
    return text ? PyLong_FromSize_t(berth_dtype_nbytes(dtype_named(text))) : NULL;
}

/* A row (name, dtype, shape, address) as an item of the dict. Returns: 0; -1: an exception. */
static int add_row(bpy_saver *saver, berth_value *dict, PyObject *row)
{
    PyObject *name, *shape;
    const char *dtype;
    unsigned long long address;
    Py_ssize_t n_name;
    int64_t sizes[BERTH_MAX_RANK];
    if (!PyArg_ParseTuple(row, "UsO!K", &name, &dtype, &PyTuple_Type, &shape, &address))
        return -1;
    const char *key = PyUnicode_AsUTF8AndSize(name, &n_name);
    Py_ssize_t rank = PyTuple_Size(shape);
    if (!key)
        return -1;
    if (rank > BERTH_MAX_RANK) {
        PyErr_Format(PyExc_ValueError, "%U: a tensor has %d dimensions at most, not %zd", name,
                     BERTH_MAX_RANK, rank);
        return -1;
    }
    for (Py_ssize_t i = 0; i < rank; i++) {
        sizes[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
        if (PyErr_Occurred())
            return -1;
    }
    const berth_tensor tensor = {.dtype = dtype_named(dtype),
                                 .rank = (int32_t)rank,
                                 .shape = sizes,
                                 .data = (const void *)(uintptr_t)(address ? address : 1)};
    (void)berth_dict_set_value(dict, berth_make_str(saver->tree, key, (size_t)n_name),
                               berth_make_tensor(saver->tree, &tensor));
    return 0;
}

/* The dict of all rows; NULL: an exception is raised, or the tree has failed. */
static const berth_value *rows_value(bpy_saver *saver, PyObject *rows)
{
    berth_value *dict = berth_make_dict(saver->tree, BERTH_KIND_DICT);
    for (Py_ssize_t i = 0; i < PyList_Size(rows); i++)
        if (add_row(saver, dict, PyList_GetItem(rows, i)) < 0)
            return NULL;
    return dict;
}

/* A dict of texts, or None; NULL: an exception is raised, or the tree has failed. */
static const berth_value *texts_value(bpy_saver *saver, PyObject *texts)
{
    if (texts == Py_None)
        return berth_make_none(saver->tree);
    berth_value *dict = berth_make_dict(saver->tree, BERTH_KIND_DICT);
    PyObject *key, *text;
    Py_ssize_t at = 0;
    while (PyDict_Next(texts, &at, &key, &text)) {
        Py_ssize_t n_key, n_text;
        const char *name = PyUnicode_AsUTF8AndSize(key, &n_key);
        const char *content = name ? PyUnicode_AsUTF8AndSize(text, &n_text) : NULL;
        if (!content)
            return NULL;
        (void)berth_dict_set_value(dict, berth_make_str(saver->tree, name, (size_t)n_key),
                                   berth_make_str(saver->tree, content, (size_t)n_text));
    }
    return dict;
}

/* Makes the content of a save; -1: an exception is raised. */
static int specs_content(bpy_saver *saver, PyObject *rows, PyObject *metadata,
                         berth_content *content)
{
    berth_error error;
    saver->tree = berth_tree_new(&error);
    if (!saver->tree)
        return bpy_raise(&error), -1;
    const berth_value *value = rows_value(saver, rows);
    const berth_value *texts = value ? texts_value(saver, metadata) : NULL;
    if (PyErr_Occurred())
        return -1;
    if (berth_tree_error(saver->tree, &error) < 0)
        return bpy_raise(&error), -1;
    *content = berth_of_safetensors(value, texts, BERTH_COPY_TIES);
    return 0;
}

PyObject *bpy_save_specs_begin(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *rows, *target, *metadata, *owner;
    bpy_saver saver = {0};
    if (!PyArg_ParseTuple(arguments, "O!OOO", &PyList_Type, &rows, &target, &metadata, &owner))
        return NULL;
    if (metadata != Py_None && !PyDict_Check(metadata)) {
        PyErr_SetString(PyExc_TypeError, "the metadata are a dict of texts, or None");
        return NULL;
    }
    Py_INCREF(owner);
    berth_content content;
    if (bpy_saver_keep(&saver, owner) < 0 || specs_content(&saver, rows, metadata, &content) < 0) {
        bpy_saver_free(&saver);
        return NULL;
    }
    return bpy_job_begin(&saver, target, &content, NULL, 0);
}
