/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The type Job: a save that goes on. It owns what must live until the save is staged, the function
 * that is written to, and the library's job. A save that is waited for is a Job, too: only its
 * waiting differs.
 */
#include <berth/config.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <unistd.h>

#include "adapters/curl/berth_curl.h"
#include "adapters/python/native/native.h"

#define SECONDS_BETWEEN_SIGNALS 0.05
#define HURRIED_WAITS 5 /* a save that takes longer does not feel 5 ms */

/* A Python function that is written to. */
typedef struct writer {
    PyObject *write;
    PyObject *type, *value, *traceback; /* the exception of a call that failed */
    bool is_cancelled;
} writer;

typedef struct job_object {
    PyObject_HEAD bpy_saver saver; /* zeros from when the save is staged on */
    writer writer;
    berth_stats stats;       /* filled when it has ended */
    int fd;                  /* the save's own, so that a file may be closed meanwhile; -1: none */
    berth_upload *upload;    /* of a save to a URL; until it has ended */
    atomic_bool is_stopped;  /* its requests */
    berth_job *job;          /* NULL: it did not begin */
    PyThread_type_lock open; /* held until Job.close() */
} job_object;

static PyTypeObject *job_type;

/* ---- on the job's thread ---- */

/* How many bytes a call took: all, if it returned None, as some files do; -1: an exception is
 * raised. */
static Py_ssize_t taken_nbytes(PyObject *taken, Py_ssize_t nbytes)
{
    Py_ssize_t n = taken == Py_None           ? nbytes
                   : PyLong_Check(taken) != 0 ? PyLong_AsSsize_t(taken)
                                              : -1;
    if (n > 0 && n <= nbytes)
        return n;
    PyErr_Clear(); /* of an int that is too large */
    PyErr_Format(PyExc_OSError, "write() returned %R, not how many of %zd bytes it took", taken,
                 nbytes);
    return -1;
}

static int write_bytes(writer *to, const char *bytes, size_t nbytes)
{
    while (nbytes > 0 && !to->is_cancelled) {
        PyObject *taken = PyObject_CallFunction(to->write, "y#", bytes, (Py_ssize_t)nbytes);
        Py_ssize_t n = taken ? taken_nbytes(taken, (Py_ssize_t)nbytes) : -1;
        Py_XDECREF(taken);
        if (n < 0)
            return -1;
        bytes += n;
        nbytes -= (size_t)n;
    }
    return 0;
}

/* What is left of a cancelled save is not written, and is no failure of the function. */
static int writer_write(void *context, const void *buffer, size_t nbytes, uint64_t offset)
{
    (void)offset;
    writer *to = context;
    bpy_gil gil = bpy_gil_take();
    if (!to->type && write_bytes(to, buffer, nbytes) < 0)
        PyErr_Fetch(&to->type, &to->value, &to->traceback);
    int failure = to->type ? EIO : 0;
    bpy_gil_give(gil);
    return failure;
}

/* ---- to a URL ---- */

static int upload_is_stopped(void *context)
{
    job_object *self = context;
    return atomic_load(&self->is_stopped) || bpy_is_interrupted();
}

/* The save has ended. What is left of one that failed is removed; its error tells both, or the
 * exception that is set. error: NULL: it has not failed. */
static void upload_end(job_object *self, berth_error *error)
{
    berth_upload *upload = self->upload;
    berth_error left = {0};
    self->upload = NULL;
    if (!upload)
        return;
    Py_BEGIN_ALLOW_THREADS;
    if (error)
        (void)berth_upload_explain(upload, error);
    (void)berth_upload_end(upload, &left);
    Py_END_ALLOW_THREADS;
    if (left.code < 0 && PyErr_Occurred())
        bpy_add_note(left.message);
    else if (left.code < 0 && error)
        (void)snprintf(error->message + strlen(error->message),
                       sizeof error->message - strlen(error->message), "; %s", left.message);
}

/* ---- begin ---- */

static int begin(job_object *self, const berth_target *target, const berth_content *content,
                 const berth_params *params, uint32_t flags)
{
    berth_error error;
    int status;
    do { /* a pipe waits for its reader: a signal ends that, and its handler may raise */
        Py_BEGIN_ALLOW_THREADS;
        status = berth_save_begin(target, content, flags, params, &self->job, &error);
        Py_END_ALLOW_THREADS;
    } while (status < 0 && error.system_errno == EINTR && PyErr_CheckSignals() == 0);
    if (status < 0)
        upload_end(self, &error);
    if (status < 0 && !PyErr_Occurred())
        bpy_raise(&error);
    return status;
}

static int duplicate(job_object *self, PyObject *number)
{
    int fd = (int)PyLong_AsLong(number);
    if (PyErr_Occurred())
        return -1;
    self->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (self->fd < 0)
        PyErr_SetFromErrno(PyExc_OSError);
    return self->fd < 0 ? -1 : 0;
}

/* Its name in the archive is that of the URL's last part, as of a path. */
static int begin_to_url(job_object *self, PyObject *text, const berth_content *content,
                        const berth_params *params, uint32_t flags)
{
    PyObject *bytes = bpy_text(text, "a URL");
    const char *url = bytes ? PyBytes_AsString(bytes) : NULL;
    const berth_upload_params how = {.cancelled = upload_is_stopped, .context = self};
    berth_error error;
    int status;
    if (!url)
        return -1;
    Py_BEGIN_ALLOW_THREADS;
    status = berth_upload_begin(url, 0, &how, &self->upload, &error);
    Py_END_ALLOW_THREADS;
    if (status == 0) {
        berth_target target = berth_to_sink(berth_upload_sink(self->upload));
        target.path = url;
        status = begin(self, &target, content, params, flags);
    } else if (!PyErr_Occurred())
        bpy_raise(&error);
    Py_DECREF(bytes);
    return status;
}

static int begin_to(job_object *self, PyObject *to, const berth_content *content,
                    const char *archive_name, uint32_t flags)
{
    berth_params params = {
        .archive_name = archive_name, .stats = &self->stats, .base = self->saver.base};
    berth_target target;
    const berth_sink sink = {.write = writer_write, .context = &self->writer, .in_order = true};
    if (PyBytes_Check(to)) {
        char *path;
        if (PyBytes_AsStringAndSize(to, &path, NULL) < 0) /* it has a NUL */
            return -1;
        target = berth_to_path(path);
    } else if (PyUnicode_Check(to)) {
        return begin_to_url(self, to, content, &params, flags);
    } else if (PyLong_Check(to)) {
        if (duplicate(self, to) < 0)
            return -1;
        target = berth_to_fd(self->fd);
    } else {
        Py_INCREF(to);
        self->writer.write = to;
        target = berth_to_sink(&sink);
    }
    return begin(self, &target, content, &params, flags);
}

/* Other threads run meanwhile: they find it empty already. */
static void drop_saver(job_object *self)
{
    bpy_saver saver = self->saver;
    self->saver = (bpy_saver){0};
    bpy_saver_free(&saver);
}

PyObject *bpy_job_begin(bpy_saver *saver, PyObject *to, const berth_content *content,
                        const char *archive_name, uint32_t flags)
{
    job_object *self = PyObject_New(job_object, job_type);
    if (!self) {
        bpy_saver_free(saver);
        return NULL;
    }
    self->saver = *saver;
    *saver = (bpy_saver){0};
    self->writer = (writer){0};
    self->stats = (berth_stats){0};
    self->fd = -1;
    self->upload = NULL;
    atomic_init(&self->is_stopped, false);
    self->job = NULL;
    self->open = PyThread_allocate_lock();
    if (!self->open || !PyThread_acquire_lock(self->open, 0)) {
        PyErr_NoMemory();
        Py_DECREF(self);
        return NULL;
    }
    if (begin_to(self, to, content, archive_name, flags) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    if (flags & BERTH_SAVE_SNAPSHOT)
        drop_saver(self);
    return (PyObject *)self;
}

/* ---- waiting ---- */

/* Whether the event is there; *status: 0, or what failed. */
static bool wait_for(job_object *self, berth_job_event event, double seconds, int *status,
                     berth_error *error)
{
    Py_BEGIN_ALLOW_THREADS;
    *status = berth_job_wait(self->job, event, seconds, error);
    Py_END_ALLOW_THREADS;
    if (*status == BERTH_E_TIMEOUT)
        return false;
    drop_saver(self);
    return true;
}

static void close_fd(job_object *self)
{
    if (self->fd >= 0)
        (void)close(self->fd);
    self->fd = -1;
}

/* The save has ended. Returns: 0; -1: its exception is raised, and is not kept. */
static int end(job_object *self, int status, berth_error *error)
{
    close_fd(self);
    upload_end(self, status < 0 ? error : NULL);
    writer ended = self->writer;
    self->writer = (writer){0};
    Py_XDECREF(ended.write);
    if (ended.type)
        PyErr_Restore(ended.type, ended.value, ended.traceback);
    else if (status < 0 && !PyErr_Occurred())
        bpy_raise(error);
    return PyErr_Occurred() ? -1 : 0;
}

static bool cancel(job_object *self)
{
    bool is_in_time = berth_job_cancel(self->job);
    self->writer.is_cancelled |= is_in_time;
    if (is_in_time)
        atomic_store(&self->is_stopped, true);
    return is_in_time;
}

/* ---- methods ---- */

/* Job.staged(seconds) -> True; False: not yet; None: the save failed before. */
static PyObject *job_staged(PyObject *job, PyObject *arguments)
{
    double seconds;
    berth_error error;
    int status;
    if (!PyArg_ParseTuple(arguments, "d", &seconds))
        return NULL;
    if (!wait_for((job_object *)job, BERTH_JOB_STAGED, seconds, &status, &error))
        Py_RETURN_FALSE;
    if (status < 0)
        Py_RETURN_NONE;
    Py_RETURN_TRUE;
}

/* Job.wait(): until it is done; raises what the save raised, once. */
static PyObject *job_wait(PyObject *job, PyObject *unused)
{
    (void)unused;
    berth_error error;
    int status;
    (void)wait_for((job_object *)job, BERTH_JOB_DONE, -1, &status, &error);
    if (end((job_object *)job, status, &error) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* An exception is raised: the save ends now, also if a traceback keeps the job. */
static PyObject *end_cancelled(job_object *self)
{
    PyObject *type, *value, *traceback;
    berth_error error;
    int status;
    PyErr_Fetch(&type, &value, &traceback);
    cancel(self);
    atomic_store(&self->is_stopped,
                 true); /* the last request of an upload is not waited for long */
    (void)wait_for(self, BERTH_JOB_DONE, -1, &status, &error);
    close_fd(self);
    PyErr_Restore(type, value, traceback);
    upload_end(self, NULL);
    return NULL;
}

/* Waits for the end, and looks for signals. Returns: 0; -1: a handler has raised an exception. */
static int wait_in_steps(job_object *self, int *status, berth_error *error)
{
    unsigned int n = 0;
    int failed = 0;
    bpy_hurry_begin();
    while (failed == 0 && !wait_for(self, BERTH_JOB_DONE, SECONDS_BETWEEN_SIGNALS, status, error)) {
        if (++n == HURRIED_WAITS)
            bpy_hurry_end();
        failed = PyErr_CheckSignals();
    }
    if (n < HURRIED_WAITS)
        bpy_hurry_end();
    return failed;
}

/*
 * Job.finish(): the same on the main thread; an exception of a signal's handler cancels the save.
 */
static PyObject *job_finish(PyObject *job, PyObject *unused)
{
    (void)unused;
    job_object *self = (job_object *)job;
    berth_error error;
    int status;
    if (wait_in_steps(self, &status, &error) < 0)
        return end_cancelled(self);
    if (end(self, status, &error) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/*
 * Job.close(): whoever looks after the save has finished. Once.
 *
 * The lock is taken and given back in one call. With a lock of Python's, whoever is interrupted
 * (^C) between two calls keeps it, and all others wait for ever: threading.Event has that weakness.
 */
static PyObject *job_close(PyObject *job, PyObject *unused)
{
    (void)unused;
    PyThread_release_lock(((job_object *)job)->open);
    Py_RETURN_NONE;
}

/* Job.closed(seconds) -> True; False: not yet, or a signal came. */
static PyObject *job_closed(PyObject *job, PyObject *arguments)
{
    double seconds;
    PyThread_type_lock lock = ((job_object *)job)->open;
    if (!PyArg_ParseTuple(arguments, "d", &seconds))
        return NULL;
    const double most = 1e6; /* seconds; whoever waits longer asks again */
    PY_TIMEOUT_T us = (PY_TIMEOUT_T)((seconds < most ? seconds : most) * 1e6);
    PyLockStatus status;
    Py_BEGIN_ALLOW_THREADS;
    status = PyThread_acquire_lock_timed(lock, seconds < 0 ? -1 : us, 1);
    if (status == PY_LOCK_ACQUIRED)
        PyThread_release_lock(lock);
    Py_END_ALLOW_THREADS;
    return PyErr_CheckSignals() < 0 ? NULL : PyBool_FromLong(status == PY_LOCK_ACQUIRED);
}

static PyObject *job_cancel(PyObject *job, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(cancel((job_object *)job));
}

static PyObject *job_progress(PyObject *job, PyObject *unused)
{
    (void)unused;
    uint64_t done_nbytes, total_nbytes;
    berth_job_progress(((job_object *)job)->job, &done_nbytes, &total_nbytes);
    return Py_BuildValue("(KK)", (unsigned long long)done_nbytes, (unsigned long long)total_nbytes);
}

/* Job.placed() -> (how the file took its place, its durability, bytes shared with the base, why no
 * more): of berth_stats, when it has ended. */
static PyObject *job_placed(PyObject *job, PyObject *unused)
{
    (void)unused;
    const berth_stats *stats = &((job_object *)job)->stats;
    return Py_BuildValue("(zzKz)", stats->placed, stats->durability,
                         (unsigned long long)stats->shared_nbytes, stats->base_reason);
}

/* ---- the type ---- */

/* One that goes on is cancelled, and waited for: whoever wants its end keeps it. */
static void job_dealloc(PyObject *job)
{
    job_object *self = (job_object *)job;
    PyTypeObject *type = Py_TYPE(job);
    cancel(self);
    Py_BEGIN_ALLOW_THREADS;
    berth_job_free(self->job);
    Py_END_ALLOW_THREADS;
    close_fd(self);
    upload_end(self, NULL);
    drop_saver(self);
    Py_XDECREF(self->writer.write);
    Py_XDECREF(self->writer.type);
    Py_XDECREF(self->writer.value);
    Py_XDECREF(self->writer.traceback);
    if (self->open)
        PyThread_free_lock(self->open);
    PyObject_Free(job);
    Py_DECREF(type);
}

static PyMethodDef job_methods[] = {
    {"staged", job_staged, METH_VARARGS,
     "staged(seconds)\n--\n\n"
     "Waits; less than 0: without a limit. None: the save failed before."},
    {"wait", job_wait, METH_NOARGS,
     "wait()\n--\n\n"
     "Waits until the save has ended; raises what it raised, the first time."},
    {"finish", job_finish, METH_NOARGS,
     "finish()\n--\n\n"
     "The same, but an exception of a signal's handler (KeyboardInterrupt) cancels the save."},
    {"close", job_close, METH_NOARGS, "close()\n--\n\nLets closed() return. Once."},
    {"closed", job_closed, METH_VARARGS,
     "closed(seconds)\n--\n\n"
     "Waits for close(); less than 0: without a limit. False: not yet, or a signal came."},
    {"cancel", job_cancel, METH_NOARGS, "cancel()\n--\n\nWhether the path keeps its old file."},
    {"progress", job_progress, METH_NOARGS, "progress()\n--\n\nBytes done, and in all."},
    {"placed", job_placed, METH_NOARGS,
     "placed()\n--\n\n"
     "How the file took its place, its durability, bytes shared with the base, why no more: when "
     "the "
     "save has ended."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot job_slots[] = {
    {Py_tp_dealloc, job_dealloc},
    {Py_tp_methods, job_methods},
    {0, NULL},
};

int bpy_job_type_add(PyObject *module)
{
    PyType_Spec job = {.name = "berth._native.Job",
                       .basicsize = sizeof(job_object),
                       .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                       .slots = job_slots};
    job_type = (PyTypeObject *)PyType_FromSpec(&job);
    return job_type ? PyModule_AddType(module, job_type) : -1;
}
