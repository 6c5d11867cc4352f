/* SPDX-License-Identifier: BSD-3-Clause */
/* Device memory for programs that do not allocate it otherwise. */
#include "base/error.h"
#include "berth/device.h"
#include "io/device/device.h"

int berth_device_memory_new(const char *device, size_t nbytes, uintptr_t *address,
                            berth_error *error)
{
    bth_device_handle *handle;

    BTH_ERROR_BEGIN(error);
    *address = 0;
    if (bth_device_open(device, &handle, error) < 0)
        return error->code;
    return bth_device_allocate_memory(handle, nbytes, address, error);
}

void berth_device_memory_free(const char *device, uintptr_t address)
{
    bth_device_handle *handle;
    berth_error error;

    bth_error_clear(&error);
    if (address != 0 && bth_device_open(device, &handle, &error) == 0)
        bth_device_release_memory(handle, address);
}

int berth_device_memory_copy(const char *device, uintptr_t address, void *bytes, size_t nbytes,
                             berth_copy_direction direction, berth_error *error)
{
    bth_device_handle *handle;
    bth_device_stream stream;

    BTH_ERROR_BEGIN(error);
    if (direction != BERTH_TO_DEVICE && direction != BERTH_FROM_DEVICE)
        return bth_fail_argument(error, "invalid direction %d", (int)direction);
    if (bth_device_open(device, &handle, error) < 0 ||
        bth_device_check_memory(handle, address, nbytes, error) < 0)
        return error->code;
    if (direction == BERTH_FROM_DEVICE)
        return bth_device_copy_to_host_and_wait(handle, bytes, address, nbytes, NULL, error);
    if (bth_device_stream_open(handle, &stream, error) < 0)
        return error->code;
    if (bth_device_copy_to_device(&stream, address, bytes, nbytes, error) == 0)
        (void)bth_device_stream_wait(&stream, error);
    bth_device_stream_close(&stream);
    return error->code;
}
