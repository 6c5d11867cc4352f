/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * An open file, counted by what uses it: the Python object, calls without the GIL, and storages of
 * tensors that lie in its memory. The last one closes it, on any thread.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "adapters/curl/berth_curl.h"
#include "adapters/python/native/native.h"

struct bpy_checkpoint {
    berth_checkpoint *handle;
    atomic_size_t n_users;
    PyObject *owner; /* of the memory that is read; NULL: a file */
    Py_buffer buffer;
    berth_source source;
};

berth_checkpoint *bpy_checkpoint_handle(const bpy_checkpoint *checkpoint)
{
    return checkpoint->handle;
}

PyThreadState *bpy_checkpoint_begin_wait(const bpy_checkpoint *checkpoint)
{
    return checkpoint->source.kind == BERTH_SOURCE_FUNCTION ? PyEval_SaveThread() : NULL;
}

void bpy_checkpoint_end_wait(PyThreadState *thread)
{
    if (thread)
        PyEval_RestoreThread(thread);
}

berth_source *bpy_checkpoint_source(bpy_checkpoint *checkpoint)
{
    return &checkpoint->source;
}

bpy_checkpoint *bpy_checkpoint_use(bpy_checkpoint *checkpoint)
{
    atomic_fetch_add(&checkpoint->n_users, 1);
    return checkpoint;
}

/* Gives the buffer back. At the very end of the process there is nobody to give it to. */
static void release_buffer(bpy_checkpoint *checkpoint)
{
    if (!checkpoint->owner || !Py_IsInitialized())
        return;
    PyGILState_STATE state = PyGILState_Ensure();
    PyBuffer_Release(&checkpoint->buffer);
    Py_DECREF(checkpoint->owner);
    PyGILState_Release(state);
}

void bpy_checkpoint_release(bpy_checkpoint *checkpoint)
{
    if (atomic_fetch_sub(&checkpoint->n_users, 1) > 1)
        return;
    berth_close(checkpoint->handle);
    bpy_source_free(&checkpoint->source);
    release_buffer(checkpoint);
    free(checkpoint);
}

/* ---- opening ---- */

static int open_source(bpy_checkpoint *checkpoint, const char *assignments)
{
    const berth_source *source = &checkpoint->source;
    berth_error error;
    berth_config *config = berth_config_new(&error);
    int status = config ? berth_config_apply(config, assignments, &error) : (int)error.code;
    if (status == 0)
        status = berth_source_url_tune(source, config, &error);
    if (status == 0) {
        const berth_params params = {.config = config};
        Py_BEGIN_ALLOW_THREADS;
        status = berth_open_source(source, &params, &checkpoint->handle, &error);
        Py_END_ALLOW_THREADS;
    }
    berth_config_free(config);
    if (status < 0)
        bpy_raise(&error);
    return status;
}

bpy_checkpoint *bpy_checkpoint_open(PyObject *from, const char *assignments)
{
    bpy_checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
    if (!checkpoint)
        return PyErr_NoMemory(), NULL;
    atomic_init(&checkpoint->n_users, 1);
    if (bpy_source_of(from, &checkpoint->source, &checkpoint->buffer, &checkpoint->owner) == 0 &&
        open_source(checkpoint, assignments) == 0)
        return checkpoint;
    bpy_checkpoint_release(checkpoint);
    return NULL;
}
