/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/save_error.h"


int bth_fail_offering_in_place(berth_error *error)
{
    if (error->code != BERTH_E_SYSTEM)
        return error->code;
    error->code = BERTH_E_REPLACE;
    return bth_error_append(error, "; save to another path, or with save.replace=in_place, which "
                                   "loses the old content if it fails");
}

uint64_t bth_missing_nbytes(uint64_t room_nbytes, uint64_t nbytes, uint64_t written_nbytes)
{
    return nbytes - (room_nbytes < nbytes ? room_nbytes : written_nbytes);
}

int bth_fail_no_space(berth_error *error, int system_errno, const char *record, uint64_t offset,
                      uint64_t missing_nbytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
    const char *what = bth_errno_text(system_errno);
    size_t unit = 0;

    /* "812 MiB": whole units, rounded up, below 10,000. */
    for (; missing_nbytes >= 10000 && unit < sizeof units / sizeof *units - 1; unit++)
        missing_nbytes = missing_nbytes / 1024 + (missing_nbytes % 1024 != 0);
    bth_fail(error, BERTH_E_NO_SPACE, record, offset, "%s (%llu %s missing)",
             what ? what : "no room", (unsigned long long)missing_nbytes, units[unit]);
    error->system_errno = system_errno;
    return error->code;
}
