/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A walk in C holds the GIL: no byte code runs in it that would give it up. So it does so itself.
 *
 * A thread that waits for the GIL asks for it after sys.getswitchinterval(), 5 ms if the program
 * says nothing. So a walk that gives the GIL up to a thread that never waits would have it back
 * after 5 ms, and take twice its time. While a walk goes on the interval is shorter; and while a
 * short save goes on, which takes the GIL a few times more.
 */
#include <time.h>

#include "adapters/python/native/native.h"

#define VALUES_PER_LOOK 32 /* 20 to 60 us of work: the clock costs a thousandth of it */
#define MOST_NS 4000000
#define INTERVAL 0.0002 /* seconds; a switch itself takes some 20 us */

static PyObject *get_interval, *set_interval; /* functions of sys */

/* Since when the walk that has the GIL has had it: whoever takes it again in a walk, says so. */
static int64_t held_since_ns;

/* How many go on; the GIL protects them. The other two: as before the first one began. */
static size_t n_walks, n_hurries;
static PyObject *interval_before; /* NULL: it stays as it is */
static double interval_of_walks;  /* as sys.getswitchinterval() tells it, which rounds */
static int collected_before;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Both functions of sys, looked up once: to restore the interval takes no memory. */
static bool has_functions(void)
{
    if (!get_interval)
        get_interval = Py_XNewRef(PySys_GetObject("getswitchinterval"));
    if (!set_interval)
        set_interval = Py_XNewRef(PySys_GetObject("setswitchinterval"));
    return get_interval && set_interval;
}

static void change_interval(PyObject *to)
{
    Py_XDECREF(to ? PyObject_CallFunctionObjArgs(set_interval, to, NULL) : NULL);
}

/* In seconds; 0: there is no memory to ask. */
static double interval_now(void)
{
    PyObject *interval = PyObject_CallNoArgs(get_interval);
    double seconds = interval ? PyFloat_AsDouble(interval) : 0;
    Py_XDECREF(interval);
    PyErr_Clear();
    return seconds;
}

/* sys.setswitchinterval() cuts what is below a microsecond, also of what was told: a half more. */
static PyObject *settable(double seconds)
{
    return PyFloat_FromDouble(seconds + 5e-7);
}

static void shorten_interval(void)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    double before = has_functions() ? interval_now() : 0;
    PyObject *interval = before > INTERVAL ? settable(INTERVAL) : NULL;
    interval_before = interval ? settable(before) : NULL;
    if (interval_before) {
        change_interval(interval);
        interval_of_walks = interval_now();
    }
    Py_XDECREF(interval);
    PyErr_Clear();
    PyErr_Restore(type, value, traceback);
}

/* Unless the program has changed it. Without memory to ask, it has not. */
static void restore_interval(void)
{
    PyObject *type, *value, *traceback;
    if (!interval_before)
        return;
    PyErr_Fetch(&type, &value, &traceback);
    double now = interval_now();
    if (now == 0 || now == interval_of_walks || interval_of_walks == 0)
        change_interval(interval_before);
    Py_CLEAR(interval_before);
    PyErr_Restore(type, value, traceback);
}

void bpy_hurry_begin(void)
{
    if (n_hurries++ == 0)
        shorten_interval();
}

void bpy_hurry_end(void)
{
    if (n_hurries > 0 && --n_hurries == 0)
        restore_interval();
}

void bpy_walk_held(void)
{
    held_since_ns = now_ns();
}

void bpy_walk_begin(void)
{
    bpy_walk_held();
    if (n_walks++ == 0)
        collected_before = PyGC_Disable();
    bpy_hurry_begin();
}

static void restore_collector(void)
{
    if (collected_before)
        PyGC_Enable();
}

void bpy_walk_end(void)
{
    bpy_hurry_end();
    if (n_walks > 0 && --n_walks == 0)
        restore_collector();
}

/* What this very thread was in when it forked goes on, and its end finds nothing to end. */
void bpy_walk_after_fork(void)
{
    if (n_hurries > 0)
        restore_interval();
    if (n_walks > 0)
        restore_collector();
    n_walks = n_hurries = 0;
}

bool bpy_walk_next(bpy_walk *walk)
{
    if (++walk->n_values % VALUES_PER_LOOK != 0 || now_ns() - held_since_ns < MOST_NS)
        return false;
    Py_BEGIN_ALLOW_THREADS;
    Py_END_ALLOW_THREADS;
    bpy_walk_held();
    return true;
}

int bpy_walk_check(bpy_walk *walk)
{
    return bpy_walk_next(walk) ? PyErr_CheckSignals() : 0;
}
