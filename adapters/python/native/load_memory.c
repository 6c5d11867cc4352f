/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory of storages, and tensors over it. DLPack makes a tensor, its storage and the rule by which
 * the memory is freed in one call. Such a storage cannot be resized; nor can one that torch.load
 * has made. PyTorch 2.10 and later have a table of C functions for it; older ones take a capsule.
 */
#include <sys/mman.h>

#include "adapters/python/native/dlpack.h"

#define LARGE_PAGE ((size_t)2 << 20)
#define ALIGNMENT 64 /* of PyTorch's own memory */

const bpy_dl_type bpy_dl_types[BERTH_DTYPE_COUNT] = {
    [BERTH_FLOAT32] = {DL_FLOAT, 32},     [BERTH_FLOAT64] = {DL_FLOAT, 64},
    [BERTH_FLOAT16] = {DL_FLOAT, 16},     [BERTH_BFLOAT16] = {DL_BFLOAT, 16},
    [BERTH_INT8] = {DL_INT, 8},           [BERTH_INT16] = {DL_INT, 16},
    [BERTH_INT32] = {DL_INT, 32},         [BERTH_INT64] = {DL_INT, 64},
    [BERTH_UINT8] = {DL_UINT, 8},         [BERTH_BOOL] = {DL_BOOL, 8},
    [BERTH_COMPLEX64] = {DL_COMPLEX, 64}, [BERTH_COMPLEX128] = {DL_COMPLEX, 128},
};

/* ---- memory ---- */

struct bpy_memory {
    union {
        dl_versioned versioned;
        dl_managed managed;
    };
    void *address;
    size_t nbytes;
    size_t mapped_nbytes; /* of a map of our own; 0: behind this struct, or the checkpoint's */
    bpy_checkpoint *checkpoint; /* whose memory it is; NULL: our own */
    bool *is_gone;              /* while PyTorch makes a tensor of it: set when it is freed */
};

static size_t rounded_up(size_t nbytes, size_t to)
{
    return (nbytes + to - 1) / to * to;
}

/* Zeros, at a multiple of a large page. */
static void *map_large(size_t *nbytes)
{
    size_t wanted = rounded_up(*nbytes, LARGE_PAGE);
    if (wanted < *nbytes)
        return NULL;
    char *start = mmap(NULL, wanted + LARGE_PAGE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return NULL;
    size_t before = rounded_up((uintptr_t)start, LARGE_PAGE) - (uintptr_t)start;
    if (before > 0)
        munmap(start, before);
    if (before < LARGE_PAGE)
        munmap(start + before + wanted, LARGE_PAGE - before);
    *nbytes = wanted;
    return start + before;
}

static bpy_memory *memory_mapped(size_t nbytes)
{
    bpy_memory *memory = calloc(1, sizeof *memory);
    if (!memory)
        return NULL;
    memory->mapped_nbytes = nbytes;
    memory->address = map_large(&memory->mapped_nbytes);
    if (memory->address)
        return memory;
    free(memory);
    return NULL;
}

/* A small storage and its struct are one allocation. */
static bpy_memory *memory_small(size_t nbytes)
{
    size_t head = rounded_up(sizeof(bpy_memory), ALIGNMENT);
    bpy_memory *memory = aligned_alloc(ALIGNMENT, head + rounded_up(nbytes, ALIGNMENT));
    if (!memory)
        return NULL;
    *memory = (bpy_memory){.address = (char *)memory + head};
    return memory;
}

bpy_memory *bpy_memory_new(size_t nbytes)
{
    bpy_memory *memory = nbytes >= LARGE_PAGE ? memory_mapped(nbytes) : memory_small(nbytes);
    if (!memory) {
        PyErr_Format(PyExc_MemoryError, "no memory for a storage of %zu bytes", nbytes);
        return NULL;
    }
    memory->nbytes = nbytes;
    return memory;
}

bpy_memory *bpy_memory_of(bpy_checkpoint *checkpoint, const void *address, size_t nbytes)
{
    bpy_memory *memory = calloc(1, sizeof *memory);
    if (!memory) {
        PyErr_NoMemory();
        return NULL;
    }
    memory->address = (void *)(uintptr_t)address;
    memory->nbytes = nbytes;
    memory->checkpoint = checkpoint;
    bpy_use(&checkpoint->held);
    return memory;
}

void *bpy_memory_address(const bpy_memory *memory)
{
    return memory->address;
}

/* Any thread may drop the last tensor, with the GIL or without. */
void bpy_memory_free(bpy_memory *memory)
{
    if (!memory)
        return;
    if (memory->checkpoint)
        bpy_release(&memory->checkpoint->held);
    if (memory->mapped_nbytes > 0)
        munmap(memory->address, memory->mapped_nbytes);
    free(memory);
}

static void free_by_torch(bpy_memory *memory)
{
    if (memory->is_gone)
        *memory->is_gone = true;
    bpy_memory_free(memory);
}

static void free_versioned(dl_versioned *self)
{
    free_by_torch(self->context);
}

static void free_managed(dl_managed *self)
{
    free_by_torch(self->context);
}

/* ---- tensors ---- */

/* The bytes from the first element to the end of the last one. */
static bool reaches(const berth_tensor *tensor, uint64_t *nbytes)
{
    uint64_t items = 1;
    for (int32_t i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] == 0)
            return *nbytes = 0, true;
        items += (uint64_t)(tensor->shape[i] - 1) * (uint64_t)tensor->stride[i];
    }
    *nbytes = items * berth_dtype_nbytes(tensor->dtype);
    return true;
}

bool bpy_memory_fits(const berth_tensor *tensor, uint64_t nbytes)
{
    uint64_t needed;
    return bpy_dl_types[tensor->dtype].bits > 0 && tensor->storage_offset == 0 &&
           tensor->qscheme == BERTH_NOT_QUANTIZED && reaches(tensor, &needed) && needed == nbytes;
}

static dl_tensor describe(const bpy_memory *memory, const berth_tensor *tensor, int64_t *nbytes)
{
    static int64_t one = 1;
    /* PyTorch takes storages without an address for empty ones, each of its own. */
    void *data = memory->nbytes > 0 ? memory->address : NULL;
    dl_tensor made = {.data = data, .device_type = DL_CPU, .lanes = 1};
    *nbytes = (int64_t)memory->nbytes;
    if (!tensor) {
        made.rank = 1;
        made.code = DL_UINT;
        made.bits = 8;
        made.shape = nbytes;
        made.strides = &one;
        return made;
    }
    made.rank = tensor->rank;
    made.code = bpy_dl_types[tensor->dtype].code;
    made.bits = bpy_dl_types[tensor->dtype].bits;
    made.shape = (int64_t *)(uintptr_t)tensor->shape; /* read only, and only in this call */
    made.strides = (int64_t *)(uintptr_t)tensor->stride;
    return made;
}

static PyObject *to_tensor_by_table(const dl_exchange *exchange, bpy_memory *memory,
                                    const dl_tensor *tensor)
{
    void *object = NULL;
    memory->versioned =
        (dl_versioned){.major = 1, .context = memory, .free = free_versioned, .tensor = *tensor};
    if (exchange->to_object(&memory->versioned, &object) == 0)
        return object;
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_RuntimeError, "PyTorch made no tensor of a storage");
    return NULL;
}

static PyObject *to_tensor_by_capsule(const bpy_torch *torch, bpy_memory *memory,
                                      const dl_tensor *tensor)
{
    memory->managed = (dl_managed){.tensor = *tensor, .context = memory, .free = free_managed};
    PyObject *capsule = PyCapsule_New(&memory->managed, "dltensor", NULL);
    PyObject *object =
        capsule ? PyObject_CallFunctionObjArgs(torch->from_dlpack, capsule, NULL) : NULL;
    Py_XDECREF(capsule);
    return object;
}

/* Where PyTorch fails late (PyTorch 2.13: no memory for the Python object), it has freed the
 * memory. */
PyObject *bpy_memory_to_tensor(const bpy_torch *torch, bpy_memory *memory,
                               const berth_tensor *tensor)
{
    int64_t nbytes;
    bool is_gone = false;
    dl_tensor made = describe(memory, tensor, &nbytes);
    const dl_exchange *exchange = torch->exchange;
    memory->is_gone = &is_gone;
    PyObject *object = exchange && exchange->major == 1
                           ? to_tensor_by_table(exchange, memory, &made)
                           : to_tensor_by_capsule(torch, memory, &made);
    if (object)
        memory->is_gone = NULL;
    else if (!is_gone)
        bpy_memory_free(memory);
    return object;
}
