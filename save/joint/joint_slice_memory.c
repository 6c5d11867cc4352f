/* SPDX-License-Identifier: BSD-3-Clause */
/* The bytes of slices: those on devices come to the host, as a whole. */
#include "base/error.h"
#include "base/memory.h"
#include "io/device/device.h"
#include "io/file.h"
#include "io/syscalls.h"
#include "save/joint/joint_slices.h"

/* ---- memory of the host ---- */

/* Whether the system copies it; unknown: there is no pipe to ask by. */
static bool byte_can_be_copied(const uint8_t *address, bool unknown)
{
    int ends[2];

    if (bth_system.pipe2(ends, O_CLOEXEC) < 0)
        return unknown;
    bool can_be_copied = bth_system.write(ends[1], address, 1) == 1 || errno != EFAULT;
    bth_file_close(ends[0]);
    bth_file_close(ends[1]);
    return can_be_copied;
}

/*
 * False only if the system says so. It may forbid the first question, and it moves none of the
 * memory that a driver maps (VM_IO, VM_PFNMAP), such as pinned memory of some devices; but it
 * copies that.
 */
static bool byte_can_be_read(const uint8_t *address)
{
    uint8_t byte;
    const struct iovec to = {.iov_base = &byte, .iov_len = 1};
    const struct iovec from = {.iov_base = (void *)(uintptr_t)address, .iov_len = 1};

    return bth_system.process_vm_readv(getpid(), &to, 1, &from, 1, 0) >= 0 ||
           byte_can_be_copied(address, errno != EFAULT);
}

static int data_check_host(const uint8_t *data, uint64_t nbytes, berth_error *error)
{
    if (byte_can_be_read(data) && byte_can_be_read(data + (nbytes - 1)))
        return 0;
    return bth_fail_argument(error,
                             "%llu bytes at 0x%zx are not memory that the host can read: if they "
                             "lie on a device, name it in berth_slice.device",
                             (unsigned long long)nbytes, (size_t)(uintptr_t)data);
}

/* ---- memory of devices ---- */

static int data_copy_from_device(const berth_slice *slice, uint64_t nbytes, void *copy,
                                 berth_error *error)
{
    uintptr_t address = (uintptr_t)slice->data;
    bth_device_handle *device;

    if (bth_device_open(slice->device, &device, error) < 0 ||
        bth_device_check_memory(device, address, (size_t)nbytes, error) < 0)
        return error->code;
    return bth_device_copy_to_host_and_wait(device, copy, address, (size_t)nbytes, slice->ready,
                                            error);
}

static int parts_copy_from_device(bth_slice_parts *parts, const berth_slice *slice, uint64_t nbytes,
                                  const void **data, berth_error *error)
{
    bool fits = nbytes <= SIZE_MAX - sizeof(bth_slice_copy);
    bth_slice_copy *copy = fits ? bth_allocate(sizeof *copy + (size_t)nbytes) : NULL;

    if (!copy)
        return bth_fail_memory(error, nbytes);
    copy->next = parts->copies;
    parts->copies = copy;
    *data = copy->bytes;
    return data_copy_from_device(slice, nbytes, copy->bytes, error);
}

int bth_slice_parts_get_data(bth_slice_parts *parts, const berth_slice *slice, uint64_t nbytes,
                             const void **data, berth_error *error)
{
    if (slice->device)
        return parts_copy_from_device(parts, slice, nbytes, data, error);
    *data = slice->data;
    return data_check_host(slice->data, nbytes, error);
}
