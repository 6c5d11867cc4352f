/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A walk in C holds the GIL: no byte code runs in it that would give it up. So it does so itself.
 *
 * A thread that waits for the GIL asks for it after sys.getswitchinterval(), 5 ms if the program
 * says nothing. So a walk that gives the GIL up to a thread that never waits would have it back
 * after 5 ms, and take twice its time. While a walk goes on the interval is shorter.
 */
#include <time.h>

#include "adapters/python/native/native.h"

#define VALUES_PER_LOOK 32 /* 20 to 60 us of work: the clock costs a thousandth of it */
#define MOST_NS 4000000
#define INTERVAL 0.0005 /* seconds */

/* Of all walks that go on; the GIL protects them. The other two: as before the first one began. */
static size_t n_walks;
static double interval_before;
static int collected_before;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* sys.getswitchinterval(); -1: it failed. */
static double get_interval(void)
{
    PyObject *get = PySys_GetObject("getswitchinterval");
    PyObject *object = get ? PyObject_CallNoArgs(get) : NULL;
    double interval = object ? PyFloat_AsDouble(object) : -1;
    Py_XDECREF(object);
    return interval;
}

static void set_interval(double interval)
{
    PyObject *set = PySys_GetObject("setswitchinterval");
    Py_XDECREF(set ? PyObject_CallFunction(set, "d", interval) : NULL);
}

/* Sets it unless the program has changed it: it is `from`, or whatever it is if that is 0. */
static double change_interval(double from, double to)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    double before = get_interval();
    if (from == 0 ? before > to : before == from)
        set_interval(to);
    PyErr_Restore(type, value, traceback);
    return before;
}

void bpy_walk_begin(bpy_walk *walk)
{
    walk->since_ns = now_ns();
    if (n_walks++ > 0)
        return;
    collected_before = PyGC_Disable();
    interval_before = change_interval(0, INTERVAL);
}

static void restore(void)
{
    if (interval_before > INTERVAL)
        (void)change_interval(INTERVAL, interval_before);
    if (collected_before)
        PyGC_Enable();
}

void bpy_walk_end(void)
{
    if (n_walks > 0 && --n_walks == 0)
        restore();
}

/* A walk in which this very thread has forked goes on, and its end finds no walk. */
PyObject *bpy_walk_after_fork(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    if (n_walks > 0)
        restore();
    n_walks = 0;
    Py_RETURN_NONE;
}

bool bpy_walk_next(bpy_walk *walk)
{
    if (++walk->n_values % VALUES_PER_LOOK != 0 || now_ns() - walk->since_ns < MOST_NS)
        return false;
    Py_BEGIN_ALLOW_THREADS;
    Py_END_ALLOW_THREADS;
    walk->since_ns = now_ns();
    return true;
}

int bpy_walk_check(bpy_walk *walk)
{
    return bpy_walk_next(walk) ? PyErr_CheckSignals() : 0;
}
