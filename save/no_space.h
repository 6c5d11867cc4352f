/* SPDX-License-Identifier: BSD-3-Clause */
/* How much room is missing, in numbers and in words (W1). */
#ifndef BTH_SAVE_NO_SPACE_H
#define BTH_SAVE_NO_SPACE_H

#include "berth.h"

/*
 * How many of nbytes have no room. Where nobody knows (room_nbytes is UINT64_MAX), or there seems
 * to be room (a quota, a limit): those that are not written.
 */
uint64_t bth_missing_nbytes(uint64_t room_nbytes, uint64_t nbytes, uint64_t written_nbytes);

/* "… at byte N: No space left on device (812 MiB missing)". */
int bth_fail_no_space(berth_error *error, int system_errno, const char *record, uint64_t offset,
                      uint64_t missing_nbytes);

#endif
