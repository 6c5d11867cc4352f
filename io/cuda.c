/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * CUDA through its driver, which is opened at run time: one binary runs with and without it. Its
 * functions have the types of the toolkit's headers; nothing of the toolkit is linked.
 */
#include <cuda.h>
#include <cudaTypedefs.h>
#include <string.h>

#include "config/error.h"
#include "io/device_driver.h"
#include "io/syscalls.h"

#define LIBRARY "libcuda.so.1"

#if CUDA_VERSION < 12000 /* headers before have none */
typedef CUresult (*PFN_cuCtxGetId_v12000)(CUcontext, unsigned long long *);
#endif

struct functions {
#define CUDA_REQUIRED(name, version, suffix) PFN_cu##name##_v##version name;
#define CUDA_OPTIONAL CUDA_REQUIRED
#include "io/cuda_driver.def"
#undef CUDA_OPTIONAL
#undef CUDA_REQUIRED
};

static const struct symbol {
    const char *name;
    size_t at; /* in struct functions */
    bool is_required;
} symbols[] = {
#define CUDA_REQUIRED(name, version, suffix)                                                       \
    {"cu" #name suffix, offsetof(struct functions, name), true},
#define CUDA_OPTIONAL(name, version, suffix)                                                       \
    {"cu" #name suffix, offsetof(struct functions, name), false},
#include "io/cuda_driver.def"
#undef CUDA_OPTIONAL
#undef CUDA_REQUIRED
};

/* The driver, once it runs: the process has one. Written before the first handle is given out. */
static struct functions cuda;
static bool is_loaded;

/* ---- starting ---- */

/* The versioned names are the driver's oldest promise: no newer signature ever comes by them. */
static const char *find_functions(void *library, struct functions *found)
{
    const char *missing = NULL;

    memset(found, 0, sizeof *found);
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *function = bth_system.dlsym(library, symbols[i].name);
        memcpy((char *)found + symbols[i].at, &function, sizeof function);
        if (!function && symbols[i].is_required && !missing)
            missing = symbols[i].name;
    }
    return missing;
}

static int fail_missing(const struct functions *found, const char *missing, berth_error *error)
{
    int version = 0;

    if (found->DriverGetVersion && found->DriverGetVersion(&version) == CUDA_SUCCESS)
        return bth_fail(error, BERTH_E_DEVICE, NULL, BERTH_NO_OFFSET,
                        LIBRARY " has no %s: a driver for CUDA %d.%d is too old", missing,
                        version / 1000, version % 1000 / 10);
    return bth_fail(error, BERTH_E_DEVICE, NULL, BERTH_NO_OFFSET,
                    LIBRARY " has no %s: it is too old", missing);
}

/*
 * After these, cuda.h says, the process must be terminated and launched again: each call gives the
 * same error. (Numbers: only newer headers have the names CUDA_ERROR_CONTAINED and
 * CUDA_ERROR_TENSOR_MEMORY_LEAK.)
 */
static bool is_final(int result)
{
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

    for (size_t i = 0; i < sizeof final / sizeof *final; i++)
        if (result == final[i])
            return true;
    return false;
}

static bth_driver_result describe_by(const struct functions *by, int result)
{
    bth_driver_result told = {
        .text = "CUDA error", .code = BERTH_E_DEVICE, .is_final = is_final(result)};
    const char *name, *text;

    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        told.code = BERTH_E_MEMORY;
    if (result == CUDA_ERROR_NOT_SUPPORTED)
        told.code = BERTH_E_UNSUPPORTED;
    if (by->GetErrorName && by->GetErrorString &&
        by->GetErrorName((CUresult)result, &name) == CUDA_SUCCESS &&
        by->GetErrorString((CUresult)result, &text) == CUDA_SUCCESS) {
        told.name = name;
        told.text = text;
    }
    return told;
}

static void describe(int result, bth_driver_result *told)
{
    *told = describe_by(&cuda, result);
}

static int fail_to_start(const struct functions *found, int result, berth_error *error)
{
    bth_driver_result told = describe_by(found, result);

    if (told.name)
        return bth_fail(error, told.code, NULL, BERTH_NO_OFFSET,
                        "the CUDA driver does not start: %s (%s)", told.text, told.name);
    return bth_fail(error, told.code, NULL, BERTH_NO_OFFSET,
                    "the CUDA driver does not start: %s %d", told.text, result);
}

/* The library stays open: others in the process have it open as well. */
static int load(berth_error *error)
{
    struct functions found;
    const char *missing;

    if (is_loaded)
        return 0;
    void *library = bth_system.dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        return bth_fail(error, BERTH_E_DEVICE, NULL, BERTH_NO_OFFSET,
                        "there is no CUDA driver on this machine (%s)", why ? why : LIBRARY);
    }
    missing = find_functions(library, &found);
    if (missing)
        return fail_missing(&found, missing, error);
    CUresult result = found.Init(0);
    if (result != CUDA_SUCCESS)
        return fail_to_start(&found, (int)result, error);
    cuda = found;
    is_loaded = true;
    return 0;
}

static int count(unsigned *n)
{
    int found = 0;
    CUresult result = cuda.DeviceGetCount(&found);

    *n = found > 0 ? (unsigned)found : 0;
    return (int)result;
}

/* ---- every call is made in the device's context, and leaves the thread the one it had ---- */

/*
 * While another thread captures a graph in the mode CU_STREAM_CAPTURE_MODE_GLOBAL, most calls that
 * allocate, free, pin or wait would invalidate the capture: unless the thread that makes them is
 * relaxed (X16). So is one that captures by itself; its own work is no part of ours.
 */
struct visit {
    CUstreamCaptureMode mode; /* that the thread was in */
    bool is_relaxed;
};

static void relax(struct visit *visit)
{
    visit->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    visit->is_relaxed = cuda.ThreadExchangeStreamCaptureMode &&
                        cuda.ThreadExchangeStreamCaptureMode(&visit->mode) == CUDA_SUCCESS;
}

static void unrelax(struct visit *visit)
{
    if (visit->is_relaxed)
        visit->is_relaxed = cuda.ThreadExchangeStreamCaptureMode(&visit->mode) != CUDA_SUCCESS;
}

/*
 * The mode is the thread's, but to change it a driver may want a current context that lives: the
 * thread's own, or this one.
 */
static CUresult enter(CUcontext context, struct visit *visit)
{
    relax(visit);
    CUresult result = cuda.CtxPushCurrent(context);
    if (result != CUDA_SUCCESS)
        unrelax(visit);
    else if (!visit->is_relaxed)
        relax(visit);
    return result;
}

static void leave(struct visit *visit)
{
    CUcontext popped;

    unrelax(visit);
    (void)cuda.CtxPopCurrent(&popped);
    unrelax(visit);
}

#define IN_CONTEXT(device, result, call)                                                           \
    do {                                                                                           \
        struct visit visit_;                                                                       \
        (result) = enter((CUcontext)atomic_load(&(device)->native), &visit_);                      \
        if ((result) == CUDA_SUCCESS) {                                                            \
            (result) = (call);                                                                     \
            leave(&visit_);                                                                        \
        }                                                                                          \
    } while (0)

#define RETURN_IN_CONTEXT(device, call)                                                            \
    do {                                                                                           \
        CUresult result_;                                                                          \
        IN_CONTEXT(device, result_, call);                                                         \
        return (int)result_;                                                                       \
    } while (0)

/* ---- opening ---- */

/*
 * After a kernel that went wrong all is refused, so a new event is, too. Where there is no room for
 * one, that is all that is wrong.
 */
static CUresult try_out(CUcontext context)
{
    CUevent event = NULL;
    struct visit visit;
    CUresult result = enter(context, &visit);

    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.EventCreate(&event, CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS)
        result = cuda.EventDestroy(event);
    leave(&visit);
    return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : result;
}

/* A context that was reset has another number, if it looks the same otherwise. 0: none. */
static unsigned long long id_of(CUcontext context)
{
    unsigned long long id = 0;

    return cuda.CtxGetId && cuda.CtxGetId(context, &id) == CUDA_SUCCESS ? id : 0;
}

/*
 * The primary context is the one that PyTorch and the run-time library use: memory of theirs is
 * memory here. Never given back: that could reset the device under a library that came later. One
 * that died is made anew by this, for all of the process (X18).
 */
static int open_device(bth_device_handle *device)
{
    CUdevice number;
    CUcontext context = NULL;
    struct visit visit;
    CUresult result = cuda.DeviceGet(&number, (int)device->ordinal);

    if (result != CUDA_SUCCESS)
        return (int)result;
    relax(&visit);
    result = cuda.DevicePrimaryCtxRetain(&context, number);
    unrelax(&visit);
    if (result == CUDA_SUCCESS)
        result = try_out(context);
    if (result == CUDA_SUCCESS) {
        atomic_fetch_add(&device->life, 1);
        atomic_store(&device->native_id, id_of(context));
        atomic_store(&device->native, context);
    }
    return (int)result;
}

/* X18: cuDevicePrimaryCtxReset leaves it inactive, until somebody retains it anew. */
static int look(const bth_device_handle *device, bool closely)
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
    if (!is_active || id_of(context) != atomic_load(&device->native_id))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return closely ? (int)try_out(context) : 0;
}

/* ---- memory ---- */

static int allocate(bth_device_handle *device, size_t nbytes, uintptr_t *address)
{
    CUdeviceptr at = 0;
    CUresult result;

    IN_CONTEXT(device, result, cuda.MemAlloc(&at, nbytes));
    *address = result == CUDA_SUCCESS ? (uintptr_t)at : 0;
    return (int)result;
}

static int release(bth_device_handle *device, uintptr_t address)
{
    RETURN_IN_CONTEXT(device, cuda.MemFree((CUdeviceptr)address));
}

/* Whose memory, by unified addresses. Host memory that the driver never saw is an invalid value. */
static int find(bth_device_handle *device, uintptr_t address, bth_memory_place *place)
{
    CUmemorytype type = (CUmemorytype)0;
    int ordinal = -1;
    CUresult result;

    IN_CONTEXT(
        device, result,
        cuda.PointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)address));
    place->kind = BTH_MEMORY_PAGEABLE;
    if (result == CUDA_ERROR_INVALID_VALUE)
        return 0;
    if (result != CUDA_SUCCESS)
        return (int)result;
    if (type == CU_MEMORYTYPE_HOST)
        place->kind = BTH_MEMORY_PINNED;
    if (type != CU_MEMORYTYPE_DEVICE)
        return 0;
    IN_CONTEXT(device, result,
               cuda.PointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                        (CUdeviceptr)address));
    place->kind = BTH_MEMORY_DEVICE;
    place->ordinal = (unsigned)ordinal;
    return (int)result;
}

static int pin(bth_device_handle *device, size_t nbytes, void **bytes)
{
    RETURN_IN_CONTEXT(device, cuda.MemHostAlloc(bytes, nbytes, CU_MEMHOSTALLOC_PORTABLE));
}

static int unpin(bth_device_handle *device, void *bytes)
{
    RETURN_IN_CONTEXT(device, cuda.MemFreeHost(bytes));
}

static int enlist(bth_device_handle *device, void *bytes, size_t nbytes)
{
    if (!cuda.MemHostRegister || !cuda.MemHostUnregister)
        return CUDA_ERROR_NOT_SUPPORTED;
    RETURN_IN_CONTEXT(device, cuda.MemHostRegister(bytes, nbytes, CU_MEMHOSTREGISTER_PORTABLE));
}

static int delist(bth_device_handle *device, void *bytes)
{
    if (!cuda.MemHostUnregister)
        return CUDA_ERROR_NOT_SUPPORTED;
    RETURN_IN_CONTEXT(device, cuda.MemHostUnregister(bytes));
}

/* ---- streams ---- */

/* NON_BLOCKING: else the default stream, where training runs, and ours would wait in turns. */
static int open_stream(bth_device_handle *device, void **stream)
{
    CUstream opened = NULL;
    CUresult result;

    IN_CONTEXT(device, result, cuda.StreamCreate(&opened, CU_STREAM_NON_BLOCKING));
    *stream = result == CUDA_SUCCESS ? opened : NULL;
    return (int)result;
}

static int wait_stream(bth_device_handle *device, void *stream)
{
    RETURN_IN_CONTEXT(device, cuda.StreamSynchronize((CUstream)stream));
}

static int close_stream(bth_device_handle *device, void *stream)
{
    (void)wait_stream(device, stream);
    RETURN_IN_CONTEXT(device, cuda.StreamDestroy((CUstream)stream));
}

static int copy_to_host(bth_device_handle *device, void *stream, void *to, uintptr_t from,
                        size_t nbytes)
{
    RETURN_IN_CONTEXT(device,
                      cuda.MemcpyDtoHAsync(to, (CUdeviceptr)from, nbytes, (CUstream)stream));
}

static int copy_to_device(bth_device_handle *device, void *stream, uintptr_t to, const void *from,
                          size_t nbytes)
{
    RETURN_IN_CONTEXT(device,
                      cuda.MemcpyHtoDAsync((CUdeviceptr)to, from, nbytes, (CUstream)stream));
}

/* ---- events ---- */

/* BLOCKING_SYNC: who waits sleeps, there is other work for its processor. */
static int open_event(bth_device_handle *device, void **event)
{
    CUevent opened = NULL;
    CUresult result;

    IN_CONTEXT(device, result,
               cuda.EventCreate(&opened, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING));
    *event = result == CUDA_SUCCESS ? opened : NULL;
    return (int)result;
}

static int close_event(bth_device_handle *device, void *event)
{
    RETURN_IN_CONTEXT(device, cuda.EventDestroy((CUevent)event));
}

static int record(bth_device_handle *device, void *event, void *stream)
{
    RETURN_IN_CONTEXT(device, cuda.EventRecord((CUevent)event, (CUstream)stream));
}

static int wait_event(bth_device_handle *device, void *event)
{
    RETURN_IN_CONTEXT(device, cuda.EventSynchronize((CUevent)event));
}

static int query_event(bth_device_handle *device, void *event, bool *has_come)
{
    CUresult result;

    IN_CONTEXT(device, result, cuda.EventQuery((CUevent)event));
    *has_come = result == CUDA_SUCCESS;
    return result == CUDA_ERROR_NOT_READY ? 0 : (int)result;
}

static int wait_for(bth_device_handle *device, void *stream, void *event)
{
    RETURN_IN_CONTEXT(device, cuda.StreamWaitEvent((CUstream)stream, (CUevent)event, 0));
}

const bth_device_driver bth_cuda_driver = {
    .kind = "cuda",
    .load = load,
    .describe = describe,
    .count = count,
    .open = open_device,
    .look = look,
    .allocate = allocate,
    .release = release,
    .find = find,
    .pin = pin,
    .unpin = unpin,
    .enlist = enlist,
    .delist = delist,
    .open_stream = open_stream,
    .close_stream = close_stream,
    .copy_to_host = copy_to_host,
    .copy_to_device = copy_to_device,
    .wait_stream = wait_stream,
    .open_event = open_event,
    .close_event = close_event,
    .record = record,
    .wait_event = wait_event,
    .query_event = query_event,
    .wait_for = wait_for,
};
