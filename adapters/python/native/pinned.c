/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The type Pinned: a source that is opened once, for all that read it. It keeps what is read until
 * it is told to stop: so PyTorch unpickles the bytes that Berth has read before, whatever the file,
 * the server or the file object has now (Y1).
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters/python/native/native.h"

/* Bytes that were read. */
typedef struct kept_range {
    uint64_t offset;
    size_t nbytes;
    uint8_t bytes[];
} kept_range;

typedef struct pinned_object {
    PyObject_HEAD berth_source origin; /* a function; it is asked for what is not kept */
    int fd;                            /* of a file; -1: there is none */
    PyObject *owner;                   /* of what the origin needs; NULL: nothing */
    Py_buffer buffer;                  /* of memory */
    char name[32];                     /* of a descriptor */
    bool keeps;                        /* changes only while nobody reads */
    pthread_mutex_t lock;              /* of the ranges, while it keeps */
    kept_range **ranges;               /* by their offsets; they do not overlap */
    size_t n_ranges, room;
} pinned_object;

static PyTypeObject *pinned_type;

/* ---- reading ---- */

static int file_read(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    const pinned_object *self = context;
    uint8_t *at = buffer;
    while (nbytes > 0) {
        ssize_t n = pread(self->fd, at, nbytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : ENODATA; /* it was cut */
        at += n;
        nbytes -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

static int memory_read(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    const pinned_object *self = context;
    memcpy(buffer, (const uint8_t *)self->buffer.buf + offset, nbytes);
    return 0;
}

/*
 * The range that has a byte; NULL: none, and *nbytes is at most what lies before the next one.
 * *index: where a range that begins with the byte belongs.
 */
static const kept_range *range_find(const pinned_object *self, uint64_t offset, size_t *nbytes,
                                    size_t *index)
{
    size_t low = 0, high = self->n_ranges;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (self->ranges[middle]->offset <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    *index = low;
    const kept_range *before = low > 0 ? self->ranges[low - 1] : NULL;
    if (before && offset - before->offset < before->nbytes)
        return before;
    if (low < self->n_ranges && self->ranges[low]->offset - offset < *nbytes)
        *nbytes = (size_t)(self->ranges[low]->offset - offset);
    return NULL;
}

static int range_keep(pinned_object *self, size_t index, const void *bytes, size_t nbytes,
                      uint64_t offset)
{
    if (self->n_ranges == self->room) {
        size_t room = 2 * self->room + 8;
        kept_range **ranges = realloc(self->ranges, room * sizeof(kept_range *));
        if (!ranges)
            return ENOMEM;
        self->ranges = ranges;
        self->room = room;
    }
    kept_range *range = malloc(sizeof *range + nbytes);
    if (!range)
        return ENOMEM;
    range->offset = offset;
    range->nbytes = nbytes;
    memcpy(range->bytes, bytes, nbytes);
    memmove(&self->ranges[index + 1], &self->ranges[index],
            (self->n_ranges - index) * sizeof(kept_range *));
    self->ranges[index] = range;
    self->n_ranges++;
    return 0;
}

/* The function of the source. Without the GIL, which a file object's read takes. */
static int pinned_read(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    pinned_object *self = context;
    const berth_source *origin = &self->origin;
    uint8_t *to = buffer;
    int failure = 0;
    bool keeps = self->keeps;

    if (keeps)
        (void)pthread_mutex_lock(&self->lock);
    while (nbytes > 0 && failure == 0) {
        size_t n = nbytes, index;
        const kept_range *range = range_find(self, offset, &n, &index);
        if (range) {
            size_t skipped = (size_t)(offset - range->offset);
            n = n < range->nbytes - skipped ? n : range->nbytes - skipped;
            memcpy(to, range->bytes + skipped, n);
        } else {
            failure = origin->read(origin->context, to, n, offset);
            if (failure == 0 && keeps)
                failure = range_keep(self, index, to, n, offset);
        }
        to += n;
        nbytes -= n;
        offset += n;
    }
    if (keeps)
        (void)pthread_mutex_unlock(&self->lock);
    return failure;
}

bool bpy_pinned_source(PyObject *from, berth_source *source)
{
    pinned_object *self = (pinned_object *)from;
    if (Py_TYPE(from) != pinned_type)
        return false;
    const berth_source *origin = &self->origin;
    *source = berth_from_function(pinned_read, self, origin->nbytes, origin->name);
    source->fd = self->fd;
    source->path = origin->path;
    return true;
}

const berth_source *bpy_source_origin(const berth_source *source)
{
    return source->read == pinned_read ? &((const pinned_object *)source->context)->origin : source;
}

/* ---- pinning ---- */

/* A descriptor of our own, not 0, 1 or 2 (X10); -1: none. *nbytes: the size of the file. */
static int file_open(const berth_source *source, uint64_t *nbytes)
{
    bool is_path = source->kind == BERTH_SOURCE_PATH;
    /* A pipe is not waited for (F1). */
    int given =
        is_path ? open(source->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) : source->fd;
    int fd = given < 0 ? -1 : fcntl(given, F_DUPFD_CLOEXEC, 3);
    struct stat status;
    if (is_path && given >= 0)
        (void)close(given);
    bool is_file = fd >= 0 && fstat(fd, &status) == 0;
    if (is_file && S_ISBLK(status.st_mode))
        is_file = ioctl(fd, BLKGETSIZE64, nbytes) == 0;
    else if (is_file && (is_file = S_ISREG(status.st_mode)))
        *nbytes = (uint64_t)status.st_size;
    if (is_file || fd < 0)
        return fd;
    (void)close(fd);
    return -1;
}

/* The source is a path or a descriptor. */
static int pin_file(pinned_object *self, PyObject *from, const berth_source *source)
{
    uint64_t nbytes = 0;
    const char *name = source->path;
    Py_BEGIN_ALLOW_THREADS;
    self->fd = file_open(source, &nbytes);
    Py_END_ALLOW_THREADS;
    if (self->fd < 0) { /* an open says why; what is a file again by then, is none that is pinned */
        bpy_checkpoint *opened = bpy_checkpoint_open(from, "");
        if (opened) {
            bpy_release_without_gil(&opened->held);
            PyErr_SetString(PyExc_OSError, "the file has changed while it was opened");
        }
        return -1;
    }
    if (!name) {
        (void)snprintf(self->name, sizeof self->name, "descriptor %d", source->fd);
        name = self->name;
    }
    self->origin = berth_from_function(file_read, self, nbytes, name);
    self->origin.path = source->path;
    self->owner = Py_NewRef(from);
    return 0;
}

static int pin_source(pinned_object *self, PyObject *from)
{
    berth_source source = {0};
    if (bpy_source_of(from, &source, &self->buffer, &self->owner) < 0)
        return -1;
    if (source.kind == BERTH_SOURCE_PATH || source.kind == BERTH_SOURCE_FD)
        return pin_file(self, from, &source);
    self->origin = source;
    if (source.kind == BERTH_SOURCE_MEMORY)
        self->origin = berth_from_function(memory_read, self, source.nbytes, "memory");
    return 0;
}

/* pin(source) */
static PyObject *pinned_new(PyObject *module, PyObject *from)
{
    (void)module;
    pinned_object *self = PyObject_New(pinned_object, pinned_type);
    if (!self)
        return NULL;
    self->origin = (berth_source){0};
    self->fd = -1;
    self->owner = NULL;
    self->buffer = (Py_buffer){0};
    self->keeps = false;
    self->ranges = NULL;
    self->n_ranges = self->room = 0;
    (void)pthread_mutex_init(&self->lock, NULL);
    if (pin_source(self, from) == 0)
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

/* Whatever reads it owns it: nobody does any more. */
static void pinned_dealloc(PyObject *object)
{
    pinned_object *self = (pinned_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_BEGIN_ALLOW_THREADS;
    bpy_source_free(&self->origin);
    if (self->fd >= 0)
        (void)close(self->fd);
    Py_END_ALLOW_THREADS;
    for (size_t i = 0; i < self->n_ranges; i++)
        free(self->ranges[i]);
    free(self->ranges);
    (void)pthread_mutex_destroy(&self->lock);
    PyBuffer_Release(&self->buffer);
    Py_XDECREF(self->owner);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* ---- the type ---- */

/* Pinned.keep(keeps) */
static PyObject *pinned_keep(PyObject *self, PyObject *keeps)
{
    ((pinned_object *)self)->keeps = keeps == Py_True;
    Py_RETURN_NONE;
}

static PyObject *pinned_nbytes(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(((pinned_object *)self)->origin.nbytes);
}

static PyObject *pinned_fileno(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromLong(((pinned_object *)self)->fd);
}

/* Pinned.read(offset, nbytes) -> bytes */
static PyObject *pinned_read_bytes(PyObject *object, PyObject *arguments)
{
    pinned_object *self = (pinned_object *)object;
    Py_ssize_t offset, nbytes;
    int failure;
    if (!PyArg_ParseTuple(arguments, "nn", &offset, &nbytes))
        return NULL;
    if (offset < 0 || nbytes < 0 || (uint64_t)offset > self->origin.nbytes ||
        (uint64_t)nbytes > self->origin.nbytes - (uint64_t)offset) {
        PyErr_SetString(PyExc_ValueError, "these bytes are not all inside");
        return NULL;
    }
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, nbytes);
    char *buffer = bytes ? PyBytes_AsString(bytes) : NULL;
    if (!buffer)
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    failure = pinned_read(self, buffer, (size_t)nbytes, (uint64_t)offset);
    Py_END_ALLOW_THREADS;
    if (failure == 0 && !PyErr_Occurred())
        return bytes;
    Py_DECREF(bytes);
    berth_error error = {
        .code = BERTH_E_CALLBACK, .offset = (uint64_t)offset, .system_errno = failure};
    (void)snprintf(error.message, sizeof error.message, "%s: byte %zd cannot be read: %s",
                   self->origin.name, offset, strerror(failure));
    return bpy_raise(&error);
}

static PyMethodDef methods[] = {
    {"keep", pinned_keep, METH_O, "keep(keeps)\n--\n\n"},
    {"nbytes", pinned_nbytes, METH_NOARGS, "nbytes()\n--\n\n"},
    {"fileno", pinned_fileno, METH_NOARGS, "fileno()\n--\n\n-1: it is no file."},
    {"read", pinned_read_bytes, METH_VARARGS, "read(offset, nbytes)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, pinned_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyMethodDef pin_function[] = {
    {"pin", pinned_new, METH_O, "pin(source)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

int bpy_pinned_type_add(PyObject *module)
{
    PyType_Spec spec = {.name = "berth._native.Pinned",
                        .basicsize = sizeof(pinned_object),
                        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                        .slots = slots};
    pinned_type = (PyTypeObject *)PyType_FromSpec(&spec);
    if (!pinned_type || PyModule_AddType(module, pinned_type) < 0)
        return -1;
    return PyModule_AddFunctions(module, pin_function);
}
