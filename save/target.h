/* SPDX-License-Identifier: BSD-3-Clause */
/* Which file a save replaces (F4): links followed, everything that can be told beforehand told. */
#ifndef BERTH_SAVE_TARGET_H
#define BERTH_SAVE_TARGET_H

#include <sys/types.h>

#include "berth.h"

typedef struct berth_target {
    int folder;           /* that holds it; -1: none */
    bool folder_readable; /* else it is open with O_PATH: it cannot be listed or synced */
    char *name;           /* in that folder */
    bool exists;
    mode_t mode; /* permissions of the file that is replaced */
} berth_target;

/* Follows symbolic links; refuses what is there and is no regular file that may be written (W10).
 */
int berth_target_find(const char *path, berth_target *target, berth_error *error);
void berth_target_free(berth_target *target); /* of zeros with folder -1: nothing */

#endif
