/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/save_error.h"

#include <stdio.h>
#include <string.h>

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

/* "812 MiB": whole units, rounded up, below 10,000. */
static void failure_print_nbytes(char *text, size_t text_nbytes, uint64_t nbytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t unit = 0;

    for (; nbytes >= 10000 && unit < sizeof units / sizeof *units - 1; unit++)
        nbytes = nbytes / 1024 + (nbytes % 1024 != 0);
    (void)snprintf(text, text_nbytes, "%llu %s", (unsigned long long)nbytes, units[unit]);
}

int bth_fail_no_space(berth_error *error, int system_errno, const char *record, uint64_t offset,
                      uint64_t missing_nbytes)
{
    const char *what = bth_errno_text(system_errno);
    char missing[32];

    failure_print_nbytes(missing, sizeof missing, missing_nbytes);
    bth_fail(error, BERTH_E_NO_SPACE, record, offset, "%s (%s missing)", what ? what : "no room",
             missing);
    error->system_errno = system_errno;
    return error->code;
}
