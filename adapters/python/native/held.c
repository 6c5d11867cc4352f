/* SPDX-License-Identifier: BSD-3-Clause */
/* What Python objects have open, counted by what uses it: see native.h. */
#include "adapters/python/native/native.h"

bpy_held *bpy_use(bpy_held *held)
{
    atomic_fetch_add(&held->n_users, 1);
    return held;
}

void bpy_release(bpy_held *held)
{
    if (atomic_fetch_sub(&held->n_users, 1) == 1)
        held->end(held);
}

void bpy_release_without_gil(bpy_held *held)
{
    size_t n = atomic_load(&held->n_users);
    while (n > 1)
        if (atomic_compare_exchange_weak(&held->n_users, &n, n - 1))
            return;
    Py_BEGIN_ALLOW_THREADS;
    bpy_release(held);
    Py_END_ALLOW_THREADS;
}

PyObject *bpy_holder_new(PyTypeObject *type, bpy_held *held)
{
    bpy_holder *self = PyObject_New(bpy_holder, type);
    if (self)
        self->held = held;
    else
        bpy_release_without_gil(held);
    return (PyObject *)self;
}

bpy_held *bpy_hold(PyObject *self, const char *closed)
{
    bpy_held *held = ((bpy_holder *)self)->held;
    if (held)
        return bpy_use(held);
    PyErr_SetString(PyExc_ValueError, closed);
    return NULL;
}

PyObject *bpy_call_held(PyObject *self, PyObject *arguments, bpy_held_method method,
                        const char *closed)
{
    bpy_held *held = bpy_hold(self, closed);
    if (!held)
        return NULL;
    PyObject *result = method(held, arguments);
    bpy_release_without_gil(held);
    return result;
}

PyObject *bpy_holder_close(PyObject *self, PyObject *unused)
{
    (void)unused;
    bpy_held *held = ((bpy_holder *)self)->held;
    ((bpy_holder *)self)->held = NULL;
    if (held)
        bpy_release_without_gil(held);
    Py_RETURN_NONE;
}

void bpy_holder_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(bpy_holder_close(self, NULL));
    PyObject_Free(self);
    Py_DECREF(type);
}
