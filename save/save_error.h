/* SPDX-License-Identifier: BSD-3-Clause */
/* Errors of a save: those that name no record, and no-space errors with the missing bytes (W1). */
#ifndef BTH_SAVE_SAVE_ERROR_H
#define BTH_SAVE_SAVE_ERROR_H

#include "base/error.h"

/* Returns the code. */
#define bth_fail_system(error, system_errno, ...)                                                  \
    bth_fail_errno(error, system_errno, NULL, BERTH_NO_OFFSET, __VA_ARGS__)

/*
 * Makes BERTH_E_REPLACE of BERTH_E_SYSTEM: a rename cannot put a file there, but
 * save.replace=in_place can write it. Adds that to the message. Returns the code.
 */
int bth_fail_offering_in_place(berth_error *error);

/* How many of nbytes have no room. If the room is not known (UINT64_MAX), or seems to be enough (a
 * quota, a limit): how many are not written. */
uint64_t bth_missing_nbytes(uint64_t room_nbytes, uint64_t nbytes, uint64_t written_nbytes);

/* "... at byte N: No space left on device (812 MiB missing)". */
int bth_fail_no_space(berth_error *error, int system_errno, const char *record, uint64_t offset,
                      uint64_t missing_nbytes);

#endif
