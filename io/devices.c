/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/devices.h"

#include "base/error.h"

static int device_open_without_wing(const char *name, bth_device_handle **device,
                                    berth_error *error)
{
    *device = NULL;
    return bth_fail_status(error, BERTH_E_UNAVAILABLE, "%s: this library was built without devices",
                           name);
}

/* The wing's own definition, where it is linked, stands in its place. */
__attribute__((weak)) const bth_device_functions bth_wing_device = {
    .open = device_open_without_wing,
};
