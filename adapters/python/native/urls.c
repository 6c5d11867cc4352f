/* SPDX-License-Identifier: BSD-3-Clause */
/* Where bytes come from. URLs are read by adapters/curl; the GIL guards the list of open ones. */
#include <berth/config.h>
#include <errno.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "adapters/curl/berth_curl.h"
#include "adapters/python/native/native.h"

/* An open URL. */
typedef struct open_url {
    berth_source source;
    atomic_bool stop; /* a signal has ended the call that reads it */
    struct open_url *next;
} open_url;

static open_url *open_urls;

/* Only the main thread runs the handlers of signals. */
static int signal_came(void *context)
{
    open_url *url = context;
    if (atomic_load(&url->stop))
        return 1;
    return syscall(SYS_gettid) == getpid() && bpy_check_signals(context, 0, 0);
}

static int open_url_new(PyObject *text, berth_source *source)
{
    PyObject *bytes = bpy_text(text, "a URL");
    const char *url = bytes ? PyBytes_AsString(bytes) : NULL;
    open_url *opened = url ? calloc(1, sizeof *opened) : NULL;
    const berth_url_params params = {.cancelled = signal_came, .context = opened};
    berth_error error;
    int status;

    if (!opened) {
        Py_XDECREF(bytes);
        return url ? (PyErr_NoMemory(), -1) : -1;
    }
    Py_BEGIN_ALLOW_THREADS;
    status = berth_source_url(url, &params, source, &error);
    Py_END_ALLOW_THREADS;
    Py_DECREF(bytes);
    if (status < 0) {
        free(opened);
        bpy_raise(&error);
        return -1;
    }
    opened->source = *source;
    opened->next = open_urls;
    open_urls = opened;
    return 0;
}

/* What points to it in the list; to NULL: it is no URL. */
static open_url **open_url_find(const berth_source *source)
{
    open_url **at = &open_urls;
    while (*at && (!source->context || (*at)->source.context != source->context))
        at = &(*at)->next;
    return at;
}

void bpy_source_go(const berth_source *source)
{
    open_url *found = *open_url_find(bpy_source_origin(source));
    if (found)
        atomic_store(&found->stop, false);
}

int bpy_source_check_signals(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    int stop = bpy_check_signals(NULL, done_nbytes, total_nbytes);
    if (!stop)
        return 0;
    bpy_gil gil = bpy_gil_take();
    open_url *found = *open_url_find(bpy_source_origin(context));
    if (found)
        atomic_store(&found->stop, true);
    bpy_gil_give(gil);
    return stop;
}

PyObject *bpy_read_url(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *url, *bytes;
    unsigned long long max_nbytes;
    berth_source source;
    int failure = 0;

    if (!PyArg_ParseTuple(arguments, "OK", &url, &max_nbytes) || open_url_new(url, &source) < 0)
        return NULL;
    bool is_small = source.nbytes <= max_nbytes; /* U4 */
    bytes =
        is_small ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)source.nbytes) : Py_NewRef(Py_None);
    if (bytes && is_small) {
        char *buffer = PyBytes_AsString(bytes);
        Py_BEGIN_ALLOW_THREADS;
        failure = source.read(source.context, buffer, (size_t)source.nbytes, 0);
        Py_END_ALLOW_THREADS;
    }
    if (failure) {
        berth_error error = {.code = BERTH_E_CALLBACK, .offset = BERTH_NO_OFFSET};
        (void)snprintf(error.message, sizeof error.message, "%s: cannot be read", source.name);
        bpy_raise(&error);
        Py_CLEAR(bytes);
    }
    bpy_source_free(&source);
    return bytes;
}

PyObject *bpy_url_beside(PyObject *module, PyObject *arguments)
{
    (void)module;
    const char *url, *name;
    if (!PyArg_ParseTuple(arguments, "ss", &url, &name))
        return NULL;
    char *text = berth_url_beside(url, name);
    PyObject *made = text ? PyUnicode_FromString(text) : PyErr_NoMemory();
    free(text);
    return made;
}

static int stream_read(void *context, void *buffer, size_t nbytes, uint64_t offset);

void bpy_source_free(berth_source *source)
{
    if (source->kind != BERTH_SOURCE_FUNCTION || !source->context || !Py_IsInitialized() ||
        source->read == stream_read || bpy_source_origin(source) != source)
        return;
    bpy_gil gil = bpy_gil_take();
    open_url **at = open_url_find(source), *found = *at;
    if (found)
        *at = found->next;
    bpy_gil_give(gil);
    berth_source_url_free(source);
    free(found);
}

void bpy_explain(berth_error *error)
{
    for (const open_url *at = open_urls; at && error->code == BERTH_E_CALLBACK; at = at->next)
        if (strstr(error->message, at->source.name))
            (void)berth_source_url_explain(&at->source, error);
}

PyObject *bpy_url_shown(PyObject *module, PyObject *url)
{
    (void)module;
    /* An error of the encoding would have the whole text in it (U1). */
    PyObject *bytes = PyUnicode_AsEncodedString(url, "utf-8", "surrogatepass");
    const char *text = bytes ? PyBytes_AsString(bytes) : NULL;
    char *shown = text ? berth_url_shown(text) : NULL;
    PyObject *made =
        shown ? PyUnicode_DecodeUTF8(shown, (Py_ssize_t)strlen(shown), "surrogatepass") : NULL;

    if (!made && !PyErr_Occurred())
        PyErr_NoMemory();
    free(shown);
    Py_XDECREF(bytes);
    return made;
}

PyObject *bpy_show_text(PyObject *module, PyObject *bytes)
{
    (void)module;
    char *text;
    Py_ssize_t n;
    if (PyBytes_AsStringAndSize(bytes, &text, &n) < 0)
        return NULL;
    size_t nbytes = berth_show_text(text, (size_t)n, BERTH_TEXT_PLAIN, NULL, 0);
    char *shown = malloc(nbytes + 1);
    if (!shown)
        return PyErr_NoMemory();
    (void)berth_show_text(text, (size_t)n, BERTH_TEXT_PLAIN, shown, nbytes + 1);
    PyObject *made = PyUnicode_DecodeUTF8(shown, (Py_ssize_t)nbytes, NULL);
    free(shown);
    return made;
}

/* ---- file objects ---- */

/* A piece of a read: beside the memory that it goes to. */
#define STREAM_PIECE ((size_t)1 << 20)

/*
 * Reads at most nbytes from the offset on, into a copy, of which the file object may keep a part.
 * Returns: their number; 0: there are none, or an exception is raised.
 */
static size_t read_piece(PyObject *stream, void *buffer, size_t nbytes, uint64_t offset)
{
    Py_buffer data = {.len = 0};
    size_t n = 0;
    PyObject *piece =
        PyObject_CallFunction(stream, "KK", (unsigned long long)offset, (unsigned long long)nbytes);
    if (piece && PyObject_GetBuffer(piece, &data, PyBUF_SIMPLE) == 0) {
        n = (size_t)data.len <= nbytes ? (size_t)data.len : 0;
        memcpy(buffer, data.buf, n);
        PyBuffer_Release(&data);
    }
    Py_XDECREF(piece);
    return n;
}

/* Whether this thread reads for whoever waits, as a cache of rows does. */
static _Thread_local bool reads_for_all;

void bpy_read_for_all(bool on)
{
    reads_for_all = on;
}

/* What is raised now waits in the Stream for the call that fails by this read. */
static void stream_put_failure(PyObject *stream, uint64_t offset)
{
    PyObject *kind, *error, *traceback, *none = NULL;
    PyErr_Fetch(&kind, &error, &traceback);
    PyErr_NormalizeException(&kind, &error, &traceback);
    if (traceback)
        (void)PyException_SetTraceback(error, traceback);
    if (error)
        none = PyObject_CallMethod(stream, "put_failure", "KO", (unsigned long long)offset, error);
    if (!none)
        PyErr_WriteUnraisable(stream);
    Py_XDECREF(none);
    Py_XDECREF(kind);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
}

/*
 * What the file object raises stays raised, and nothing more is read: the thread is that of the
 * call, which ends by it (bpy_raise). But a cache of rows reads on threads of its own, and on that
 * of one call what another one waits for; there bpy_raise_of_stream raises it.
 */
static int stream_read(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    size_t done = 0, n = 1;
    bpy_gil gil = bpy_gil_take();
    bool for_all = gil.made || reads_for_all;
    reads_for_all = false; /* not what the file object's own code reads */
    while (done < nbytes && n > 0 && !PyErr_Occurred()) {
        size_t left = nbytes - done;
        n = read_piece(context, (char *)buffer + done, left < STREAM_PIECE ? left : STREAM_PIECE,
                       offset + done);
        done += n;
    }
    if (for_all && PyErr_Occurred())
        stream_put_failure(context, offset);
    reads_for_all = for_all && !gil.made;
    bpy_gil_give(gil);
    return done == nbytes ? 0 : EIO;
}

bool bpy_raise_of_stream(const berth_source *source, const berth_error *error)
{
    if (source->read != stream_read || error->code != BERTH_E_CALLBACK)
        return false;
    PyObject *failure =
        PyObject_CallMethod(source->context, "failure", "K", (unsigned long long)error->offset);
    if (failure && failure != Py_None)
        PyErr_SetObject((PyObject *)Py_TYPE(failure), failure);
    Py_XDECREF(failure);
    return PyErr_Occurred() != NULL;
}

berth_config *bpy_source_config(const berth_source *source, const char *assignments,
                                berth_error *error)
{
    static const char in_order[] = "io.threads=1 load.prefetch=off";
    const berth_source *origin = bpy_source_origin(source);
    berth_config *config = berth_config_new(error);
    if (config && berth_config_apply(config, assignments, error) == 0 &&
        (origin->read != stream_read || berth_config_apply(config, in_order, error) == 0) &&
        berth_source_url_tune(origin, config, error) == 0)
        return config;
    berth_config_free(config);
    return NULL;
}

static int stream_source(PyObject *stream, berth_source *source, PyObject **owner)
{
    PyObject *size = PyObject_GetAttrString(stream, "nbytes");
    unsigned long long nbytes = size ? PyLong_AsUnsignedLongLong(size) : 0;
    Py_XDECREF(size);
    if (PyErr_Occurred())
        return -1;
    *owner = Py_NewRef(stream);
    *source = berth_from_function(stream_read, stream, nbytes, "memory");
    return 0;
}

int bpy_source_of(PyObject *from, berth_source *source, Py_buffer *buffer, PyObject **owner)
{
    if (PyUnicode_Check(from))
        return open_url_new(from, source);
    if (bpy_pinned_source(from, source))
        return *owner = Py_NewRef(from), 0;
    if (PyBytes_Check(from)) {
        char *path;
        if (PyBytes_AsStringAndSize(from, &path, NULL) < 0) /* it has a NUL */
            return -1;
        *source = berth_from_path(path);
    } else if (PyLong_Check(from)) {
        *source = berth_from_fd((int)PyLong_AsLong(from));
    } else if (PyCallable_Check(from)) {
        return stream_source(from, source, owner);
    } else {
        if (PyObject_GetBuffer(from, buffer, PyBUF_SIMPLE) < 0)
            return -1;
        Py_INCREF(from);
        *owner = from;
        *source = berth_from_memory(buffer->buf, (size_t)buffer->len);
    }
    return PyErr_Occurred() ? -1 : 0;
}
