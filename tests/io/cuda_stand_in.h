/* SPDX-License-Identifier: BSD-3-Clause */
/* A CUDA driver made up here: what it is asked, and whether it is asked as it must be. */
#ifndef TESTS_IO_CUDA_STAND_IN_H
#define TESTS_IO_CUDA_STAND_IN_H

#include <criterion/criterion.h>
#include <cuda.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "io/device/device.h"
#include "io/syscalls.h"
#include "tests/support/support.h"

#define N_DEVICES 2
#define STACK_DEPTH 8

static berth_error error;
static bth_device_handle *device;

/* ---- the driver ---- */

/* Primary contexts, and as the last one the program's own. */
static struct context {
    bool is_active;
    unsigned long long id; /* another one whenever it is made anew */
    CUresult sick;         /* what all calls give since a kernel went wrong */
} contexts[N_DEVICES + 1];
static unsigned long long n_contexts;
static _Thread_local void *stack[STACK_DEPTH];
static _Thread_local size_t depth;
/* What the thread is in, and was in before a call; a graph is captured somewhere, always. */
static _Thread_local CUstreamCaptureMode mode, own_mode;
static bool has_modes = true, modes_need_context;
static int n_devices = N_DEVICES, n_retained[N_DEVICES], n_calls;
static void *needed; /* what calls must find current */
static CUresult start_result, next_result, push_result, state_result;
static unsigned last_flags;
static void *last_stream, *last_event;
static size_t last_nbytes;
static char made;   /* whose address stands for memory of the host */
static int kill_at; /* the call that finds device 1 reset in its middle; 0: none */

/* X18: what was made in a context must not be used in another one. */
static struct object {
    unsigned long long id; /* of the context; 0: not there, or not made by us */
    const void *bytes;     /* that are pinned */
} objects[4096], pinned[64], memory, host_memory;
static size_t n_objects;

/* X16: else the captures of all threads end here. */
static void expect_relaxed(void)
{
    bool can_be = has_modes && (depth > 0 || !modes_need_context);

    cr_assert(!can_be || mode == CU_STREAM_CAPTURE_MODE_RELAXED, "a capture is broken");
}

/* As cuDevicePrimaryCtxReset. */
static void kill_context(size_t i)
{
    contexts[i].is_active = false;
    contexts[i].sick = CUDA_SUCCESS;
}

static void make_context(size_t i)
{
    contexts[i].is_active = true;
    contexts[i].id = ++n_contexts;
}

/* Every call into a context. */
static CUresult called(void)
{
    cr_assert_gt(depth, 0, "no context is current");
    cr_assert_eq(stack[depth - 1], needed, "another context is current");
    expect_relaxed();
    const struct context *context = stack[depth - 1];
    if (!context->is_active)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (context->sick != CUDA_SUCCESS)
        return context->sick;
    if (++n_calls == kill_at)
        kill_context(1);
    return next_result;
}

static void expect_current(const void *object)
{
    const struct context *context = stack[depth - 1];
    unsigned long long id = ((const struct object *)object)->id;

    cr_assert(!context->is_active || id == 0 || id == context->id, "it is another context's");
}

static CUresult called_for(const void *object)
{
    expect_current(object);
    return called();
}

static CUresult fake_init(unsigned flags)
{
    cr_assert_eq(flags, 0);
    return start_result;
}

static CUresult fake_version(int *version)
{
    *version = 6050;
    return CUDA_SUCCESS;
}

static CUresult fake_count(int *n)
{
    *n = n_devices;
    return CUDA_SUCCESS;
}

static CUresult fake_get(CUdevice *number, int ordinal)
{
    *number = ordinal + 40;
    return CUDA_SUCCESS;
}

static CUresult fake_retain(CUcontext *context, CUdevice number)
{
    expect_relaxed();
    n_retained[number - 40]++;
    *context = (CUcontext)(void *)&contexts[number - 40];
    if (next_result == CUDA_SUCCESS && !contexts[number - 40].is_active)
        make_context((size_t)number - 40);
    return next_result;
}

static CUresult fake_state(CUdevice number, unsigned *flags, int *is_active)
{
    *flags = 0;
    *is_active = contexts[number - 40].is_active;
    return state_result;
}

static CUresult fake_id(CUcontext context, unsigned long long *id)
{
    const struct context *asked = (const void *)context;

    *id = asked->id;
    return asked->is_active ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static CUresult fake_push(CUcontext context)
{
    cr_assert_lt(depth, STACK_DEPTH);
    if (push_result == CUDA_SUCCESS)
        stack[depth++] = context;
    return push_result;
}

static CUresult fake_pop(CUcontext *context)
{
    cr_assert_gt(depth, 0);
    *context = stack[--depth];
    return CUDA_SUCCESS;
}

static CUresult fake_exchange(CUstreamCaptureMode *other)
{
    CUstreamCaptureMode before = mode;
    const struct context *context = depth > 0 ? stack[depth - 1] : NULL;

    if (context ? !context->is_active : modes_need_context)
        return CUDA_ERROR_INVALID_CONTEXT;
    cr_assert(before == own_mode || *other == own_mode, "the thread was left in another mode");
    mode = *other;
    *other = before;
    return CUDA_SUCCESS;
}

static unsigned long long id_now(void)
{
    return depth > 0 ? ((const struct context *)stack[depth - 1])->id : 0;
}

static CUresult fake_allocate(CUdeviceptr *address, size_t nbytes)
{
    *address = 0xD000;
    memory.id = id_now();
    last_nbytes = nbytes;
    return called();
}

static CUresult fake_free(CUdeviceptr address)
{
    cr_assert_eq(address, 0xD000);
    return called_for(&memory);
}

static CUresult fake_host_allocate(void **bytes, size_t nbytes, unsigned flags)
{
    *bytes = &made;
    host_memory.id = id_now();
    last_nbytes = nbytes;
    last_flags = flags;
    return called();
}

static CUresult fake_host_free(void *bytes)
{
    cr_assert_eq(bytes, &made);
    return called_for(&host_memory);
}

static struct object *pinned_at(const void *bytes)
{
    size_t i = 0;

    while (i < sizeof pinned / sizeof *pinned - 1 && pinned[i].bytes != bytes)
        i++;
    return &pinned[i];
}

/* As addresses may come back, what is pinned in an old context is forgotten here. */
static CUresult fake_register(void *bytes, size_t nbytes, unsigned flags)
{
    CUresult result = called();
    struct object *found = pinned_at(bytes);

    if (!found->bytes)
        found = pinned_at(NULL);
    last_nbytes = nbytes;
    last_flags = flags;
    if (result == CUDA_SUCCESS)
        *found = (struct object){.id = id_now(), .bytes = bytes};
    return result;
}

static CUresult fake_unregister(void *bytes)
{
    struct object *found = pinned_at(bytes);
    CUresult result = called_for(found);

    cr_assert_eq(found->bytes, bytes);
    *found = (struct object){0};
    return result;
}

/* 0xD000 and on: memory of device 1; 0xA000: pinned; else unknown. */
static CUresult fake_attribute(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    CUresult result = called();
    bool is_device = address >= 0xD000 && address < 0xE000;

    if (result != CUDA_SUCCESS)
        return result;
    if ((!is_device || (memory.id != 0 && memory.id != id_now())) && address != 0xA000)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
        *(CUmemorytype *)value = is_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    else if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        *(int *)value = 1;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* What was asked of streams, in order: a letter each. */
static char asked[256];

static void note(char letter)
{
    size_t length = strlen(asked);

    if (length < sizeof asked - 1)
        asked[length] = letter;
}

static CUresult fake_to_host(void *to, CUdeviceptr from, size_t nbytes, CUstream stream)
{
    cr_assert(to && from == 0xD000);
    last_nbytes = nbytes;
    last_stream = stream;
    return called_for(stream);
}

static CUresult fake_to_device(CUdeviceptr to, const void *from, size_t nbytes, CUstream stream)
{
    cr_assert(from && to == 0xD000);
    note('c');
    last_nbytes = nbytes;
    last_stream = stream;
    return called_for(stream);
}

static struct object *new_object(void)
{
    objects[n_objects].id = id_now();
    cr_assert_lt(n_objects, sizeof objects / sizeof *objects - 1);
    return &objects[n_objects++];
}

static CUresult fake_stream_create(CUstream *stream, unsigned flags)
{
    *stream = (CUstream)(void *)new_object();
    last_flags = flags;
    return called();
}

static CUresult fake_stream(CUstream stream)
{
    last_stream = stream;
    return called_for(stream);
}

static CUresult fake_stream_wait(CUstream stream, CUevent event, unsigned flags)
{
    note('w');
    last_stream = stream;
    last_event = event;
    cr_assert_eq(flags, 0);
    expect_current(event);
    return called_for(stream);
}

static CUresult fake_event_create(CUevent *event, unsigned flags)
{
    *event = (CUevent)(void *)new_object();
    last_flags = flags;
    return called();
}

static CUresult fake_event(CUevent event)
{
    last_event = event;
    return called_for(event);
}

static CUresult fake_event_wait(CUevent event)
{
    note(((const struct object *)(void *)event)->id ? 'h' : 'H');
    return fake_event(event);
}

static CUresult fake_record(CUevent event, CUstream stream)
{
    note('r');
    last_event = event;
    last_stream = stream;
    expect_current(event);
    return called_for(stream);
}

static CUresult fake_name(CUresult result, const char **name)
{
    *name = result == CUDA_ERROR_NO_DEVICE              ? "CUDA_ERROR_NO_DEVICE"
            : result == CUDA_ERROR_CONTEXT_IS_DESTROYED ? "CUDA_ERROR_CONTEXT_IS_DESTROYED"
                                                        : "CUDA_ERROR_FAKE";
    return CUDA_SUCCESS;
}

static CUresult fake_text(CUresult result, const char **text)
{
    *text = result == CUDA_ERROR_NO_DEVICE              ? "no CUDA-capable device is detected"
            : result == CUDA_ERROR_CONTEXT_IS_DESTROYED ? "context is destroyed"
                                                        : "a fake";
    return CUDA_SUCCESS;
}

#define FUNCTION(name, function)                                                                   \
    {                                                                                              \
        name, (void (*)(void))(function)                                                           \
    }
static const struct {
    const char *name;
    void (*function)(void);
} functions[] = {FUNCTION("cuInit", fake_init),
                 FUNCTION("cuDeviceGetCount", fake_count),
                 FUNCTION("cuDeviceGet", fake_get),
                 FUNCTION("cuDevicePrimaryCtxRetain", fake_retain),
                 FUNCTION("cuDevicePrimaryCtxGetState", fake_state),
                 FUNCTION("cuCtxPushCurrent_v2", fake_push),
                 FUNCTION("cuCtxPopCurrent_v2", fake_pop),
                 FUNCTION("cuMemAlloc_v2", fake_allocate),
                 FUNCTION("cuMemFree_v2", fake_free),
                 FUNCTION("cuMemHostAlloc", fake_host_allocate),
                 FUNCTION("cuMemFreeHost", fake_host_free),
                 FUNCTION("cuPointerGetAttribute", fake_attribute),
                 FUNCTION("cuMemcpyDtoHAsync_v2", fake_to_host),
                 FUNCTION("cuMemcpyHtoDAsync_v2", fake_to_device),
                 FUNCTION("cuStreamCreate", fake_stream_create),
                 FUNCTION("cuStreamDestroy_v2", fake_stream),
                 FUNCTION("cuStreamSynchronize", fake_stream),
                 FUNCTION("cuStreamWaitEvent", fake_stream_wait),
                 FUNCTION("cuEventCreate", fake_event_create),
                 FUNCTION("cuEventDestroy_v2", fake_event),
                 FUNCTION("cuEventRecord", fake_record),
                 FUNCTION("cuEventSynchronize", fake_event_wait),
                 FUNCTION("cuMemHostRegister_v2", fake_register),
                 FUNCTION("cuMemHostUnregister", fake_unregister),
                 FUNCTION("cuThreadExchangeStreamCaptureMode", fake_exchange),
                 FUNCTION("cuCtxGetId", fake_id),
                 FUNCTION("cuGetErrorName", fake_name),
                 FUNCTION("cuGetErrorString", fake_text),
                 FUNCTION("cuDriverGetVersion", fake_version)};

#define N_FUNCTIONS (sizeof functions / sizeof *functions)
#define N_REQUIRED 22 /* the first ones */

static const char *missing = "", *also_missing = "";

static void *open_library(const char *name, int flags)
{
    (void)flags;
    cr_assert_str_eq(name, "libcuda.so.1");
    return &made;
}

static void *find_function(void *library, const char *name)
{
    void *function = NULL;

    cr_assert_eq(library, &made);
    if (strcmp(name, missing) == 0 || strcmp(name, also_missing) == 0)
        return NULL;
    for (size_t i = 0; i < N_FUNCTIONS; i++)
        if (strcmp(name, functions[i].name) == 0)
            memcpy(&function, &functions[i].function, sizeof function);
    cr_assert_not_null(function, "%s is asked for, which this test does not know", name);
    return function;
}

static void set_up(void)
{
    bth_system.dlopen = open_library;
    bth_system.dlsym = find_function;
    make_context(N_DEVICES);
    stack[depth++] = needed = &contexts[N_DEVICES];
}

/* The includer's: each of its tests is of this suite. */
TestSuite(CUDA_SUITE, .timeout = 60, .init = set_up, .fini = bth_system_restore);

/* At the end of each test, not behind it: what fails there fails no test. */
#define CUDA_TEST(name)                                                                            \
    static void name(void);                                                                        \
    Test(CUDA_SUITE, name)                                                                         \
    {                                                                                              \
        name();                                                                                    \
        cr_expect_eq(depth, 1);                                                                    \
        cr_expect_eq(stack[0], &contexts[N_DEVICES], "the program's context is not current");      \
        cr_expect_eq(mode, own_mode, "the thread is in another mode");                             \
    }                                                                                              \
    static void name(void)

static inline void open_device(const char *name, size_t ordinal)
{
    needed = &contexts[ordinal];
    assert_ok(bth_device_open(name, &device, &error));
}

#endif
