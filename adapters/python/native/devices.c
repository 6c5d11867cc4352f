/* SPDX-License-Identifier: BSD-3-Clause */
/* Devices that Berth knows, and events of their current streams (berth/_device.py). */
#include <berth/device.h>

#include "adapters/python/native/native.h"

/* has_device(name): whether Berth can use the device here. Opens it. */
PyObject *bpy_has_device(PyObject *module, PyObject *name)
{
    (void)module;
    berth_error error;
    uintptr_t address;
    int status;
    PyObject *bytes = bpy_text(name, "the name of a device");
    const char *text = bytes ? PyBytes_AsString(bytes) : NULL;
    if (!text)
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    status = berth_device_memory_new(text, 0, &address, &error);
    Py_END_ALLOW_THREADS;
    Py_DECREF(bytes);
    return PyBool_FromLong(status == 0);
}

PyObject *bpy_event_new(PyObject **events, PyObject *device, PyObject *storage)
{
    PyObject *module = PyImport_ImportModule("berth._device");
    PyObject *event =
        module ? PyObject_CallMethod(module, "ready", "OO", device, storage ? storage : Py_None)
               : NULL;
    Py_XDECREF(module);
    if (event && !*events)
        *events = PyDict_New();
    if (event && (!*events || PyDict_SetItem(*events, device, event) < 0))
        Py_CLEAR(event);
    Py_XDECREF(event); /* the dict has it */
    return event;
}
