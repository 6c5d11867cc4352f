/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * berth/device.h - memory of devices: GPUs, through CUDA's driver.
 */
#ifndef BERTH_DEVICE_H
#define BERTH_DEVICE_H

#include <berth.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Memory that does not belong to the host: a GPU's, through CUDA's driver. Berth opens the driver
 * when a device is first used. A program needs nothing of CUDA to build, or to run without a GPU.
 * "cuda:0" is the driver's first device, in its primary context, which PyTorch and CUDA's runtime
 * use too. A calling thread keeps the context that it has. Graph captures of any thread are not
 * disturbed (since CUDA 10.1). Addresses on devices are numbers: what CUdeviceptr and a tensor's
 * data_ptr() are. The `berth` command also has "simulated:0" and "simulated:1", for tests and for
 * machines without a GPU; this library does not.
 *
 * If the context of a device dies (cudaDeviceReset, or a kernel that failed), running operations
 * fail. The next operation that uses the device opens it again. Memory from before is lost: saving
 * it, or asking for a tensor that a checkpoint had there, returns BERTH_E_DEVICE. berth_close does
 * not touch it. If only a new process helps, the message says so.
 *
 * Bytes pass between a device and a file through staging buffers (device.staging_nbytes,
 * device.staging_buffers). The first operation pins them, later ones use them again. They count for
 * io.memory_nbytes, which must leave 2 MiB for one buffer. If some of them cannot be pinned there
 * are fewer; if none can, the operation returns BERTH_E_MEMORY with the number of bytes.
 *
 * Berth does not use GPUDirect Storage. Files with save.storage_alignment=4096 suit it: each
 * storage begins at a multiple of 4096, and no other storage lies before the next multiple behind
 * its end.
 *
 * Errors: BERTH_E_DEVICE: there is no driver or no such device, or it failed. The message names the
 * device and ends in the driver's name for the error. BERTH_E_UNAVAILABLE: the library was built
 * without CUDA, or without devices.
 */

/* ---- saving from devices ---- */

/*
 * Makes a storage from memory of a device, as berth_storage_new does from memory of the host.
 *
 *     berth_storage *storage =
 *         berth_device_storage_new(tree, BERTH_FLOAT32, address, nbytes, "cuda:0", event);
 *     berth_dict_set(state, "weight",
 *                    berth_make_tensor(tree, &(berth_tensor){.dtype = BERTH_FLOAT32, .rank = 1,
 *                                                             .shape = &n, .storage = storage}));
 *
 * One file may have storages of several devices and of the host. It differs from a file of host
 * storages only in the locations that it records. Saves read the bytes by asynchronous copies on
 * streams of their own, and check again that they are the device's.
 * Parameters: address, nbytes: the bytes. location: the device, "cuda:0"; "cuda" is the first one,
 * and is saved as "cuda:0". ready: an event (CUevent, cudaEvent_t) of that device, recorded after
 * the kernels that write the bytes, and in no capture of a graph: the device waits for it before it
 * copies. NULL: the bytes are ready.
 * Lifetime: the bytes stay the caller's. They must live, unchanged, as long as the tree; for a job,
 * until it is staged: from then on they may be overwritten or freed. The event must live as long.
 * Returns: the storage; NULL on failure, and berth_tree_error tells why.
 * Errors: BERTH_E_DEVICE: the device cannot be opened. BERTH_E_ARGUMENT: the first or the last byte
 * is not its memory.
 */
BERTH_API berth_storage *berth_device_storage_new(berth_tree *tree, berth_dtype dtype,
                                                  uintptr_t address, uint64_t nbytes,
                                                  const char *location, void *ready);

/* ---- memory of devices ---- */

/*
 * Allocates memory of a device, for programs that have no allocator of their own.
 * Parameters: device: "cuda:0", ... nbytes: 0 gives address 0.
 * Lifetime: *address is the caller's until berth_device_memory_free. If the device's context dies,
 * the memory is gone, and must not be freed.
 * Returns: *address, which is aligned to at least 256 bytes. The content is undefined.
 * Errors: BERTH_E_MEMORY: the device has no room.
 * Threads: any.
 */
BERTH_API BERTH_MUST_CHECK int berth_device_memory_new(const char *device, size_t nbytes,
                                                       uintptr_t *address, berth_error *error);

/*
 * Frees memory of a device.
 * Parameters: address: as berth_device_memory_new returned it; 0: does nothing.
 * Threads: any.
 */
BERTH_API void berth_device_memory_free(const char *device, uintptr_t address);

typedef enum berth_copy_direction {
    BERTH_TO_DEVICE = 1,
    BERTH_FROM_DEVICE = 2
} berth_copy_direction;

/*
 * Copies bytes between the host and a device's memory of any allocator. It waits for its own copy,
 * and for no kernel or other copy. Saves and loads are faster: this is one copy through ordinary
 * memory.
 * Parameters: address, bytes: nbytes bytes each. `bytes` is only read if direction is
 * BERTH_TO_DEVICE.
 * Errors: BERTH_E_ARGUMENT: the first or the last byte is not that device's memory.
 * Threads: any.
 */
BERTH_API BERTH_MUST_CHECK int berth_device_memory_copy(const char *device, uintptr_t address,
                                                        void *bytes, size_t nbytes,
                                                        berth_copy_direction direction,
                                                        berth_error *error);

/* ---- loading to devices ---- */

/*
 * All storages go to the host, wherever they were when they were saved, unless
 * berth_set_storage_rules sends them elsewhere. A rule with `.device = BERTH_DEVICE_SAVED` is
 * PyTorch's default; `.location = "cuda*", .device = "cuda:0"` is its map_location={'cuda:1':
 * 'cuda:0', ...}.
 *
 * berth_load reads such storages into pinned staging buffers, compares their CRCs
 * (load.check=data), swaps bytes, and lets the device copy them while it reads on. Reads go past
 * the page cache where that is best, or as the method says. When it returns, all copies are
 * complete: any stream may use the bytes. A failed load leaves nothing of its own on devices, but
 * may have written to memory of the caller.
 *
 * An event `ready` (CUevent, cudaEvent_t) is recorded behind the last kernel or copy that reads or
 * writes the caller's memory, and not in the capture of a graph. The device waits for it before it
 * copies; the host does not wait. Several storages may have the same event.
 *
 * With load.check=data set load.mmap=off, too: otherwise berth_open reads the whole file that it
 * could map, to compare its CRCs, before berth_set_storage_rules can send anything to a device.
 */

/*
 * The address of a tensor's first element on its device, in the device's byte order. Its strides
 * apply. Loads the storage if that has not been done. Memory that Berth allocates begins at
 * multiples of 512 bytes; for storages of up to 64 KiB at multiples of 64.
 *
 * Saves of the checkpoint's values and berth_tensor_read see what a program writes there. Such
 * saves copy through ordinary memory; a storage that is made by berth_device_storage_new over the
 * address is saved faster.
 * Parameters: address: receives the address; 0 if the tensor is empty.
 * Lifetime: the memory is there until berth_close, or it is the caller's.
 * Errors: BERTH_E_ARGUMENT: the tensor's device is the host. Otherwise as for berth_load.
 * Threads: any.
 */
BERTH_API BERTH_MUST_CHECK int berth_tensor_device_address(berth_checkpoint *checkpoint,
                                                           const berth_tensor *tensor,
                                                           uintptr_t *address, berth_error *error);

#ifdef __cplusplus
}
#endif

#endif /* BERTH_DEVICE_H */
