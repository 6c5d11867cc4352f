/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The GIL, for threads that Python does not know, beside forks.
 *
 * Such a thread gets a thread state for as long as it has the GIL. CPython 3.11 makes one without
 * the GIL, under a lock of its own. A fork at that moment leaves the lock taken in the child, and
 * os.fork() never returns there: PyOS_AfterFork_Child() takes this lock
 * (_PyThreadState_DeleteExcept) before it makes it anew. So states are made and deleted under a
 * lock of ours, which a fork waits for (X11).
 */
#include <pthread.h>

#include "adapters/python/native/native.h"

static PyInterpreterState *interpreter;
static pthread_mutex_t states; /* recursive: who gives it up without having it does nothing */

static void make_lock(void)
{
    pthread_mutexattr_t recursive;
    (void)pthread_mutexattr_init(&recursive);
    (void)pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    (void)pthread_mutex_init(&states, &recursive);
    (void)pthread_mutexattr_destroy(&recursive);
}

void bpy_gil_make(void)
{
    interpreter = PyInterpreterState_Get();
    make_lock();
}

bpy_gil bpy_gil_take(void)
{
    bpy_gil gil = {.made = NULL};
    if (PyGILState_GetThisThreadState()) {
        gil.known = PyGILState_Ensure();
        return gil;
    }
    (void)pthread_mutex_lock(&states);
    gil.made = PyThreadState_New(interpreter);
    (void)pthread_mutex_unlock(&states);
    if (!gil.made)
        Py_FatalError("berth: no memory for the state of a thread"); /* as PyGILState_Ensure() */
    PyEval_AcquireThread(gil.made);
    return gil;
}

void bpy_gil_give(bpy_gil gil)
{
    if (!gil.made) {
        PyGILState_Release(gil.known);
        return;
    }
    PyThreadState_Clear(gil.made);
    PyEval_ReleaseThread(gil.made);
    (void)pthread_mutex_lock(&states);
    PyThreadState_Delete(gil.made);
    (void)pthread_mutex_unlock(&states);
}

/* ---- forks ---- */

/* Without the GIL: another thread that forks, too, may have the lock, and need the GIL to go on. */
static PyObject *before_fork(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS;
    (void)pthread_mutex_lock(&states);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *after_fork_in_parent(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    (void)pthread_mutex_unlock(&states);
    Py_RETURN_NONE;
}

static PyObject *after_fork_in_child(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    make_lock();
    bpy_walk_after_fork();
    Py_RETURN_NONE;
}

PyMethodDef bpy_fork_functions[] = {
    {"before_fork", before_fork, METH_NOARGS, "before_fork()\n--\n\n"},
    {"after_fork_in_parent", after_fork_in_parent, METH_NOARGS, "after_fork_in_parent()\n--\n\n"},
    {"after_fork_in_child", after_fork_in_child, METH_NOARGS, "after_fork_in_child()\n--\n\n"},
    {NULL, NULL, 0, NULL},
};
