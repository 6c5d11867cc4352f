/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * An open file. The Python object uses it, and each call; then its descriptor is closed. Storages
 * of tensors that lie in its memory keep that.
 */
#include <berth/config.h>

#include "adapters/python/native/native.h"

PyThreadState *bpy_checkpoint_begin_wait(const bpy_checkpoint *checkpoint)
{
    return checkpoint->source.kind == BERTH_SOURCE_FUNCTION ? PyEval_SaveThread() : NULL;
}

void bpy_checkpoint_end_wait(PyThreadState *thread)
{
    if (thread)
        PyEval_RestoreThread(thread);
}

/* Gives the buffer back. At the very end of the process there is nobody to give it to. */
static void release_buffer(bpy_checkpoint *checkpoint)
{
    if (!checkpoint->owner || !Py_IsInitialized())
        return;
    bpy_gil gil = bpy_gil_take();
    PyBuffer_Release(&checkpoint->buffer);
    Py_CLEAR(checkpoint->owner);
    bpy_gil_give(gil);
}

void bpy_checkpoint_use_memory(bpy_checkpoint *checkpoint)
{
    atomic_fetch_add(&checkpoint->n_memories, 1);
}

void bpy_checkpoint_release_memory(bpy_checkpoint *checkpoint)
{
    if (atomic_fetch_sub(&checkpoint->n_memories, 1) != 1)
        return;
    berth_close(checkpoint->handle);
    bpy_source_free(&checkpoint->source);
    release_buffer(checkpoint);
    free(checkpoint);
}

/* All who use the file are one of those who use its memory: the last one leaves it here. */
static void checkpoint_end(bpy_held *held)
{
    bpy_checkpoint *checkpoint = (bpy_checkpoint *)held;
    if (atomic_load(&checkpoint->n_memories) > 1) {
        berth_close_descriptors(checkpoint->handle);
        if (checkpoint->source.kind ==
            BERTH_SOURCE_MEMORY) /* the tensors have copies of what was lent (Y10) */
            release_buffer(checkpoint);
    }
    bpy_checkpoint_release_memory(checkpoint);
}

/* ---- opening ---- */

static int open_source(bpy_checkpoint *checkpoint, const char *assignments)
{
    const berth_source *source = &checkpoint->source;
    berth_error error;
    berth_config *config = bpy_source_config(source, assignments, &error);
    int status = config ? 0 : (int)error.code;
    if (status == 0 && source->kind == BERTH_SOURCE_MEMORY) /* it was lent: Y10 */
        status = berth_config_apply(config, "load.method=read", &error);
    if (status == 0) {
        const berth_params params = {.config = config};
        Py_BEGIN_ALLOW_THREADS;
        status = berth_open_source(source, &params, &checkpoint->handle, &error);
        Py_END_ALLOW_THREADS;
    }
    berth_config_free(config);
    if (status == 0 && !PyErr_Occurred())
        return 0;
    bpy_raise_refusal(&error, source);
    return -1;
}

/* As the library's messages name it; of a long name its end. */
static void keep_name(bpy_checkpoint *checkpoint)
{
    const berth_source *source = &checkpoint->source;
    char descriptor[32];
    const char *name = source->kind == BERTH_SOURCE_PATH     ? source->path
                       : source->kind == BERTH_SOURCE_MEMORY ? "memory"
                                                             : source->name;
    if (source->kind == BERTH_SOURCE_FD) {
        (void)snprintf(descriptor, sizeof descriptor, "descriptor %d", source->fd);
        name = descriptor;
    }
    size_t n = name ? strlen(name) : 0, most = sizeof checkpoint->name - sizeof "...";
    (void)snprintf(checkpoint->name, sizeof checkpoint->name, "%s%s", n > most ? "..." : "",
                   n > most ? name + n - most
                   : name   ? name
                            : "source");
}

bpy_checkpoint *bpy_checkpoint_open(PyObject *from, const char *assignments)
{
    bpy_checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
    if (!checkpoint)
        return PyErr_NoMemory(), NULL;
    atomic_init(&checkpoint->held.n_users, 1);
    atomic_init(&checkpoint->n_memories, 1);
    checkpoint->held.end = checkpoint_end;
    if (bpy_source_of(from, &checkpoint->source, &checkpoint->buffer, &checkpoint->owner) == 0 &&
        open_source(checkpoint, assignments) == 0) {
        keep_name(checkpoint);
        return checkpoint;
    }
    bpy_release_without_gil(&checkpoint->held);
    return NULL;
}
