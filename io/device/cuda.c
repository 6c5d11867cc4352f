/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * CUDA devices. The driver is opened at run time, so that one binary runs with and without it. Its
 * functions have the types of the toolkit's headers; nothing of the toolkit is linked.
 */
#include <cuda.h>
#include <cudaTypedefs.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "io/device/device_driver.h"
#include "io/syscalls.h"

#define LIBRARY "libcuda.so.1"

#if CUDA_VERSION < 12000 /* older headers do not have it */
typedef CUresult (*PFN_cuCtxGetId_v12000)(CUcontext, unsigned long long *);
#endif

struct cuda_functions {
#define CUDA_REQUIRED(name, version, suffix) PFN_cu##name##_v##version name;
#define CUDA_OPTIONAL CUDA_REQUIRED
#include "io/device/cuda_driver.def"
#undef CUDA_OPTIONAL
#undef CUDA_REQUIRED
};

static const struct symbol {
    const char *name;
    size_t offset; /* in struct cuda_functions */
    bool is_required;
} symbols[] = {
#define CUDA_REQUIRED(name, version, suffix)                                                       \
    {"cu" #name suffix, offsetof(struct cuda_functions, name), true},
#define CUDA_OPTIONAL(name, version, suffix)                                                       \
    {"cu" #name suffix, offsetof(struct cuda_functions, name), false},
#include "io/device/cuda_driver.def"
#undef CUDA_OPTIONAL
#undef CUDA_REQUIRED
};

/* The driver of this process. Written before the first handle is returned. */
static struct cuda_functions cuda;
static bool is_loaded;

/* ---- starting ---- */

static void cuda_describe_result(int result, bth_driver_result *described)
{
    /* cuda.h: after these errors all calls fail, until the process is started again. (Only newer
     * headers have names for 226 and 721: CUDA_ERROR_CONTAINED, CUDA_ERROR_TENSOR_MEMORY_LEAK.) */
    static const int final[] = {226,
                                CUDA_ERROR_ILLEGAL_ADDRESS,
                                CUDA_ERROR_LAUNCH_TIMEOUT,
                                CUDA_ERROR_HARDWARE_STACK_ERROR,
                                CUDA_ERROR_ILLEGAL_INSTRUCTION,
                                CUDA_ERROR_MISALIGNED_ADDRESS,
                                CUDA_ERROR_INVALID_ADDRESS_SPACE,
                                CUDA_ERROR_INVALID_PC,
                                CUDA_ERROR_LAUNCH_FAILED,
                                721};
    const char *name, *text;

    described->is_sticky = false;
    for (size_t i = 0; i < sizeof final / sizeof *final; i++)
        described->is_sticky |= result == final[i];
    described->code = result == CUDA_ERROR_OUT_OF_MEMORY   ? BERTH_E_MEMORY
                      : result == CUDA_ERROR_NOT_SUPPORTED ? BERTH_E_UNSUPPORTED
                                                           : BERTH_E_DEVICE;
    if (cuda.GetErrorName && cuda.GetErrorString &&
        cuda.GetErrorName((CUresult)result, &name) == CUDA_SUCCESS &&
        cuda.GetErrorString((CUresult)result, &text) == CUDA_SUCCESS)
        (void)snprintf(described->text, sizeof described->text, "%s (%s)", text, name);
    else
        (void)snprintf(described->text, sizeof described->text, "CUDA error %d", result);
}

/* The driver stays open: other libraries of the process use it as well. */
static int cuda_load_driver(berth_error *error)
{
    bth_driver_result described;
    const char *missing = NULL; /* the first required function that is missing */
    int version = 0;

    if (is_loaded)
        return 0;
    void *library = bth_system.dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        return bth_fail_status(error, BERTH_E_DEVICE,
                               "there is no CUDA driver on this machine (%s)", why ? why : LIBRARY);
    }
    /* A versioned name always keeps its signature. */
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *function = bth_system.dlsym(library, symbols[i].name);
        memcpy((char *)&cuda + symbols[i].offset, &function, sizeof function);
        if (!function && symbols[i].is_required && !missing)
            missing = symbols[i].name;
    }
    if (missing && cuda.DriverGetVersion && cuda.DriverGetVersion(&version) == CUDA_SUCCESS)
        return bth_fail_status(error, BERTH_E_DEVICE,
                               LIBRARY " has no %s: a driver for CUDA %d.%d is too old", missing,
                               version / 1000, version % 1000 / 10);
    if (missing)
        return bth_fail_status(error, BERTH_E_DEVICE, LIBRARY " has no %s: it is too old", missing);
    CUresult result = cuda.Init(0);
    if (result != CUDA_SUCCESS) {
        cuda_describe_result((int)result, &described);
        return bth_fail_status(error, described.code, "the CUDA driver does not start: %s",
                               described.text);
    }
    is_loaded = true;
    return 0;
}

static int cuda_count_devices(unsigned *n)
{
    int found = 0;
    CUresult result = cuda.DeviceGetCount(&found);

    *n = found > 0 ? (unsigned)found : 0;
    return (int)result;
}

/* ---- each call is made in the device's context, and restores that of the thread ---- */

/*
 * X16: while another thread captures a graph in the mode CU_STREAM_CAPTURE_MODE_GLOBAL, most calls
 * that allocate, free, pin or wait invalidate its capture, unless the calling thread is in the mode
 * RELAXED. A thread that captures a graph itself may be relaxed, too: our work is not part of it.
 */
struct capture_mode {
    CUstreamCaptureMode mode; /* the thread's own */
    bool is_relaxed;
};

static void capture_mode_relax(struct capture_mode *capture_mode)
{
    capture_mode->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    capture_mode->is_relaxed =
        cuda.ThreadExchangeStreamCaptureMode &&
        cuda.ThreadExchangeStreamCaptureMode(&capture_mode->mode) == CUDA_SUCCESS;
}

static void capture_mode_restore(struct capture_mode *capture_mode)
{
    if (capture_mode->is_relaxed)
        capture_mode->is_relaxed =
            cuda.ThreadExchangeStreamCaptureMode(&capture_mode->mode) != CUDA_SUCCESS;
}

/* Some drivers change a thread's mode only in a live context: the thread's own, or this one. */
static CUresult cuda_context_enter(CUcontext context, struct capture_mode *capture_mode)
{
    capture_mode_relax(capture_mode);
    CUresult result = cuda.CtxPushCurrent(context);
    if (result != CUDA_SUCCESS)
        capture_mode_restore(capture_mode);
    else if (!capture_mode->is_relaxed)
        capture_mode_relax(capture_mode);
    return result;
}

static void cuda_context_leave(struct capture_mode *capture_mode)
{
    CUcontext popped;

    capture_mode_restore(capture_mode);
    (void)cuda.CtxPopCurrent(&popped);
    capture_mode_restore(capture_mode);
}

#define IN_CONTEXT(device, result, call)                                                           \
    do {                                                                                           \
        struct capture_mode visit_;                                                                \
        (result) = cuda_context_enter((CUcontext)atomic_load(&(device)->native), &visit_);         \
        if ((result) == CUDA_SUCCESS) {                                                            \
            (result) = (call);                                                                     \
            cuda_context_leave(&visit_);                                                           \
        }                                                                                          \
    } while (0)

/* Defines a function of the driver table that makes one call. */
#define CUDA_CALL(function, parameters, call)                                                      \
    static int function parameters                                                                 \
    {                                                                                              \
        CUresult result;                                                                           \
        IN_CONTEXT(device, result, call);                                                          \
        return (int)result;                                                                        \
    }

/* ---- opening ---- */

/*
 * Creates an event, which fails after a failed kernel, as all calls do. Out of memory is no sign of
 * a dead context.
 */
static CUresult cuda_try_context(CUcontext context)
{
    CUevent event = NULL;
    struct capture_mode capture_mode;
    CUresult result = cuda_context_enter(context, &capture_mode);

    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.EventCreate(&event, CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS)
        result = cuda.EventDestroy(event);
    cuda_context_leave(&capture_mode);
    return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : result;
}

/* A new number after each reset of a context. 0: unknown. */
static unsigned long long cuda_context_id(CUcontext context)
{
    unsigned long long id = 0;

    return cuda.CtxGetId && cuda.CtxGetId(context, &id) == CUDA_SUCCESS ? id : 0;
}

/*
 * The primary context, which PyTorch and CUDA's runtime use as well: their memory can be used here.
 * It is never released: that could reset the device while a later library uses it. If the context
 * has died, this makes a new one for the whole process (X18).
 */
static int cuda_open_device(bth_device_handle *device)
{
    CUdevice number;
    CUcontext context = NULL;
    struct capture_mode capture_mode;
    CUresult result = cuda.DeviceGet(&number, (int)device->ordinal);

    if (result != CUDA_SUCCESS)
        return (int)result;
    capture_mode_relax(&capture_mode);
    result = cuda.DevicePrimaryCtxRetain(&context, number);
    capture_mode_restore(&capture_mode);
    if (result == CUDA_SUCCESS)
        result = cuda_try_context(context);
    if (result == CUDA_SUCCESS) {
        atomic_fetch_add(&device->life, 1);
        atomic_store(&device->native_id, cuda_context_id(context));
        atomic_store(&device->native, context);
    }
    return (int)result;
}

/* X18: after cuDevicePrimaryCtxReset the context is inactive, until it is retained again. */
static int cuda_check_context(const bth_device_handle *device, bool thoroughly)
{
    CUcontext context = (CUcontext)atomic_load(&device->native);
    CUdevice number;
    unsigned flags;
    int is_active = 0;
    CUresult result = cuda.DeviceGet(&number, (int)device->ordinal);

    if (result == CUDA_SUCCESS)
        result = cuda.DevicePrimaryCtxGetState(number, &flags, &is_active);
    if (result != CUDA_SUCCESS)
        return (int)result;
    if (!is_active || cuda_context_id(context) != atomic_load(&device->native_id))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return thoroughly ? (int)cuda_try_context(context) : 0;
}

/* ---- memory ---- */

static int cuda_allocate_device_memory(bth_device_handle *device, size_t nbytes, uintptr_t *address)
{
    CUdeviceptr at = 0;
    CUresult result;

    IN_CONTEXT(device, result, cuda.MemAlloc(&at, nbytes));
    *address = result == CUDA_SUCCESS ? (uintptr_t)at : 0;
    return (int)result;
}

CUDA_CALL(cuda_release_device_memory, (bth_device_handle * device, uintptr_t address),
          cuda.MemFree((CUdeviceptr)address))

/* Host memory that the driver does not know is an invalid value. */
static int cuda_find_memory_owner(bth_device_handle *device, uintptr_t address,
                                  bth_memory_owner *owner)
{
    CUmemorytype type = (CUmemorytype)0;
    int ordinal = -1;
    CUresult result;

    IN_CONTEXT(
        device, result,
        cuda.PointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)address));
    owner->kind = BTH_MEMORY_PAGEABLE;
    if (result == CUDA_ERROR_INVALID_VALUE)
        return 0;
    if (result != CUDA_SUCCESS)
        return (int)result;
    if (type == CU_MEMORYTYPE_HOST)
        owner->kind = BTH_MEMORY_PINNED;
    if (type != CU_MEMORYTYPE_DEVICE)
        return 0;
    IN_CONTEXT(device, result,
               cuda.PointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                        (CUdeviceptr)address));
    owner->kind = BTH_MEMORY_DEVICE;
    owner->ordinal = (unsigned)ordinal;
    return (int)result;
}

CUDA_CALL(cuda_allocate_pinned, (bth_device_handle * device, size_t nbytes, void **bytes),
          cuda.MemHostAlloc(bytes, nbytes, CU_MEMHOSTALLOC_PORTABLE))
CUDA_CALL(cuda_release_pinned, (bth_device_handle * device, void *bytes), cuda.MemFreeHost(bytes))
CUDA_CALL(cuda_register_pinned, (bth_device_handle * device, void *bytes, size_t nbytes),
          !cuda.MemHostRegister || !cuda.MemHostUnregister
              ? CUDA_ERROR_NOT_SUPPORTED
              : cuda.MemHostRegister(bytes, nbytes, CU_MEMHOSTREGISTER_PORTABLE))
CUDA_CALL(cuda_unregister_pinned, (bth_device_handle * device, void *bytes),
          cuda.MemHostUnregister ? cuda.MemHostUnregister(bytes) : CUDA_ERROR_NOT_SUPPORTED)

/* ---- streams ---- */

/* NON_BLOCKING: otherwise our stream and the default one (of training) wait for each other. */
static int cuda_open_stream(bth_device_handle *device, void **stream)
{
    CUstream opened = NULL;
    CUresult result;

    IN_CONTEXT(device, result, cuda.StreamCreate(&opened, CU_STREAM_NON_BLOCKING));
    *stream = result == CUDA_SUCCESS ? opened : NULL;
    return (int)result;
}

CUDA_CALL(cuda_wait_stream, (bth_device_handle * device, void *stream),
          cuda.StreamSynchronize((CUstream)stream))
CUDA_CALL(cuda_close_stream, (bth_device_handle * device, void *stream),
          ((void)cuda.StreamSynchronize((CUstream)stream), cuda.StreamDestroy((CUstream)stream)))
CUDA_CALL(cuda_copy_to_host,
          (bth_device_handle * device, void *stream, void *to, uintptr_t from, size_t nbytes),
          cuda.MemcpyDtoHAsync(to, (CUdeviceptr)from, nbytes, (CUstream)stream))
CUDA_CALL(cuda_copy_to_device,
          (bth_device_handle * device, void *stream, uintptr_t to, const void *from, size_t nbytes),
          cuda.MemcpyHtoDAsync((CUdeviceptr)to, from, nbytes, (CUstream)stream))

/* ---- events ---- */

/* BLOCKING_SYNC: a waiting thread sleeps, and leaves its processor to others. */
static int cuda_open_event(bth_device_handle *device, void **event)
{
    CUevent opened = NULL;
    CUresult result;

    IN_CONTEXT(device, result,
               cuda.EventCreate(&opened, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING));
    *event = result == CUDA_SUCCESS ? opened : NULL;
    return (int)result;
}

CUDA_CALL(cuda_close_event, (bth_device_handle * device, void *event),
          cuda.EventDestroy((CUevent)event))
CUDA_CALL(cuda_record_event, (bth_device_handle * device, void *event, void *stream),
          cuda.EventRecord((CUevent)event, (CUstream)stream))
CUDA_CALL(cuda_wait_event, (bth_device_handle * device, void *event),
          cuda.EventSynchronize((CUevent)event))
CUDA_CALL(cuda_stream_wait_for_event, (bth_device_handle * device, void *stream, void *event),
          cuda.StreamWaitEvent((CUstream)stream, (CUevent)event, 0))

const bth_device_driver bth_cuda_driver = {
    .kind = "cuda",
    .load = cuda_load_driver,
    .describe = cuda_describe_result,
    .count = cuda_count_devices,
    .open = cuda_open_device,
    .check = cuda_check_context,
    .allocate = cuda_allocate_device_memory,
    .release = cuda_release_device_memory,
    .find = cuda_find_memory_owner,
    .pin = cuda_allocate_pinned,
    .unpin = cuda_release_pinned,
    .register_pinned = cuda_register_pinned,
    .unregister_pinned = cuda_unregister_pinned,
    .open_stream = cuda_open_stream,
    .close_stream = cuda_close_stream,
    .copy_to_host = cuda_copy_to_host,
    .copy_to_device = cuda_copy_to_device,
    .wait_stream = cuda_wait_stream,
    .open_event = cuda_open_event,
    .close_event = cuda_close_event,
    .record = cuda_record_event,
    .wait_event = cuda_wait_event,
    .wait_for = cuda_stream_wait_for_event,
};
