/* SPDX-License-Identifier: BSD-3-Clause */
/* Options, as berth._config shows them. */
#include <berth/config.h>

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

/* Calls a function for the option of a name. */
static PyObject *with_option(PyObject *object, PyObject *(*make)(const berth_option *option))
{
    berth_option option;
    berth_error error;
    PyObject *name = bpy_text(object, NAME);
    if (!name)
        return NULL;
    int status = berth_config_describe(NULL, PyBytes_AsString(name), &option, &error);
    Py_DECREF(name);
    return status < 0 ? bpy_raise(&error) : make(&option);
}

static PyObject *option_get(PyObject *module, PyObject *name)
{
    (void)module;
    return with_option(name, value_object);
}

static PyObject *facts_object(const berth_option *option)
{
    return Py_BuildValue("{sssssssssssssssssNsO}", "name", option->name, "type", option->type,
                         "unit", option->unit, "bounds", option->bounds, "default", option->initial,
                         "help", option->help, "aliases", option->aliases, "source", option->source,
                         "value", value_object(option), "is_default",
                         option->is_default ? Py_True : Py_False);
}

static PyObject *option_describe(PyObject *module, PyObject *name)
{
    (void)module;
    return with_option(name, facts_object);
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
    PyObject *name = bpy_text(objects[0], NAME);
    PyObject *text = name ? bpy_text(objects[1], "the value of an option") : NULL;
    PyObject *result =
        text ? done(berth_config_set(PyBytes_AsString(name), PyBytes_AsString(text), NULL, &error),
                    &error)
             : NULL;
    Py_XDECREF(name);
    Py_XDECREF(text);
    return result;
}

static PyObject *option_reset(PyObject *module, PyObject *object)
{
    (void)module;
    berth_error error;
    if (object == Py_None)
        return done(berth_config_reset(NULL, &error), &error);
    PyObject *name = bpy_text(object, NAME);
    PyObject *result =
        name ? done(berth_config_reset(PyBytes_AsString(name), &error), &error) : NULL;
    Py_XDECREF(name);
    return result;
}

static PyObject *option_patch(PyObject *module, PyObject *object)
{
    (void)module;
    berth_error error;
    PyObject *text = bpy_text(object, "a list of options");
    PyObject *result =
        text ? done(berth_config_patch(PyBytes_AsString(text), &error), &error) : NULL;
    Py_XDECREF(text);
    return result;
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

/* Lines "name=value" of what is in force on this thread. */
static PyObject *option_print(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    berth_error error;
    int64_t size = berth_config_print(NULL, BERTH_CONFIG_PORTABLE, NULL, 0, &error);
    if (size < 0)
        return bpy_raise(&error);
    PyObject *text = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (text) /* a bytes object has room for the NUL */
        (void)berth_config_print(NULL, BERTH_CONFIG_PORTABLE, PyBytes_AsString(text),
                                 (size_t)size + 1, NULL);
    return text;
}

static PyObject *option_parse(PyObject *module, PyObject *arguments)
{
    (void)module;
    const char *text;
    berth_error error;
    return PyArg_ParseTuple(arguments, "y", &text)
               ? done(berth_config_parse(text, NULL, &error), &error)
               : NULL;
}

static PyObject *option_hash(PyObject *module, PyObject *arguments)
{
    (void)module;
    unsigned classes;
    berth_error error;
    if (!PyArg_ParseTuple(arguments, "I", &classes))
        return NULL;
    uint64_t hash = berth_config_hash(NULL, classes);
    if (hash == 0 && berth_config_print(NULL, BERTH_CONFIG_PORTABLE, NULL, 0, &error) < 0)
        return bpy_raise(&error);
    return PyLong_FromUnsignedLongLong(hash);
}

PyMethodDef bpy_option_functions[] = {
    {"option_get", option_get, METH_O, "option_get(name)\n--\n\n"},
    {"option_set", option_set, METH_VARARGS, "option_set(name, text)\n--\n\n"},
    {"option_reset", option_reset, METH_O, "option_reset(name)\n--\n\n"},
    {"option_patch", option_patch, METH_O, "option_patch(assignments)\n--\n\n"},
    {"option_unpatch", option_unpatch, METH_NOARGS, "option_unpatch()\n--\n\n"},
    {"option_print", option_print, METH_NOARGS, "option_print()\n--\n\n"},
    {"option_parse", option_parse, METH_VARARGS, "option_parse(text)\n--\n\n"},
    {"option_hash", option_hash, METH_VARARGS, "option_hash(classes)\n--\n\n"},
    {"option_names", option_names, METH_NOARGS, "option_names()\n--\n\n"},
    {"option_describe", option_describe, METH_O, "option_describe(name)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};
