/* SPDX-License-Identifier: BSD-3-Clause */
/* Options, as berth._config shows them. */
#include "adapters/python/native/native.h"

/* The value as Python has it: bool, int, or text. */
static PyObject *value_object(const berth_option *option)
{
    if (strcmp(option->type, "bool") == 0)
        return PyBool_FromLong(option->number != 0);
    if (strcmp(option->type, "int") == 0 || strcmp(option->type, "bytes") == 0)
        return PyLong_FromLongLong(option->number);
    return PyUnicode_DecodeFSDefault(option->text ? option->text : option->value);
}

#define NAME "the name of an option"

static PyObject *option_get(PyObject *module, PyObject *object)
{
    (void)module;
    berth_option option;
    berth_error error;
    const char *name = bpy_text(object, NAME);
    if (!name)
        return NULL;
    return berth_config_describe(name, &option, &error) < 0 ? bpy_raise(&error)
                                                            : value_object(&option);
}

static PyObject *option_describe(PyObject *module, PyObject *object)
{
    (void)module;
    berth_option option;
    berth_error error;
    const char *name = bpy_text(object, NAME);
    if (!name)
        return NULL;
    if (berth_config_describe(name, &option, &error) < 0)
        return bpy_raise(&error);
    return Py_BuildValue("{sssssssssssssssssNsO}", "name", option.name, "type", option.type, "unit",
                         option.unit, "bounds", option.bounds, "default", option.initial, "help",
                         option.help, "aliases", option.aliases, "source", option.source, "value",
                         value_object(&option), "is_default",
                         option.is_default ? Py_True : Py_False);
}

static PyObject *done(int status, const berth_error *error)
{
    if (status < 0)
        return bpy_raise(error);
    Py_RETURN_NONE;
}

static PyObject *option_set(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *objects[2];
    berth_error error;
    if (!PyArg_ParseTuple(arguments, "OO", &objects[0], &objects[1]))
        return NULL;
    const char *name = bpy_text(objects[0], NAME);
    const char *text = name ? bpy_text(objects[1], "the value of an option") : NULL;
    return text ? done(berth_config_set(name, text, &error), &error) : NULL;
}

static PyObject *option_reset(PyObject *module, PyObject *object)
{
    (void)module;
    berth_error error;
    const char *name = object == Py_None ? NULL : bpy_text(object, NAME);
    return name || object == Py_None ? done(berth_config_reset(name, &error), &error) : NULL;
}

static PyObject *option_patch(PyObject *module, PyObject *object)
{
    (void)module;
    berth_error error;
    const char *assignments = bpy_text(object, "options and their values");
    return assignments ? done(berth_config_patch(assignments, &error), &error) : NULL;
}

static PyObject *option_unpatch(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    berth_error error;
    return done(berth_config_unpatch(&error), &error);
}

static PyObject *option_names(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    PyObject *names = PyList_New(0);
    for (size_t i = 0; names && berth_config_name(i); i++) {
        PyObject *name = PyUnicode_FromString(berth_config_name(i));
        if (!name || PyList_Append(names, name) < 0)
            Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

PyMethodDef bpy_option_functions[] = {
    {"option_get", option_get, METH_O, "option_get(name)\n--\n\n"},
    {"option_set", option_set, METH_VARARGS, "option_set(name, text)\n--\n\n"},
    {"option_reset", option_reset, METH_O, "option_reset(name)\n--\n\n"},
    {"option_patch", option_patch, METH_O, "option_patch(assignments)\n--\n\n"},
    {"option_unpatch", option_unpatch, METH_NOARGS, "option_unpatch()\n--\n\n"},
    {"option_names", option_names, METH_NOARGS, "option_names()\n--\n\n"},
    {"option_describe", option_describe, METH_O, "option_describe(name)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};
