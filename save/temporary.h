/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Temporary files of saves (F4): ".berth-<16 hex digits>.tmp" in the target's folder, locked with
 * flock while the save that owns them lives, so that saves of one path never meet in one (W7). One
 * without a lock is a leftover of a killed save.
 */
#ifndef BERTH_SAVE_TEMPORARY_H
#define BERTH_SAVE_TEMPORARY_H

#include <sys/types.h>

#include "berth.h"

#define BERTH_TEMPORARY_NAME_NBYTES 32

/* Creates one in a folder, locked: *fd for reading and writing, and its name. */
int berth_temporary_create(int folder, mode_t mode, int *fd, char name[BERTH_TEMPORARY_NAME_NBYTES],
                           berth_error *error);

/* Removes leftovers from a folder, and nothing else. What cannot be removed is left, silently. */
void berth_temporary_clean(int folder);

bool berth_temporary_is_name(const char *name);

#endif
