/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef BTH_SAVE_OUTSIDE_H
#define BTH_SAVE_OUTSIDE_H

#include <stdbool.h>
#include <sys/types.h>

/*
 * In a user namespace (rootless containers) all owners from outside are shown as one number, which
 * is somebody's inside, too: that one is not who has the file.
 */
bool bth_user_is_outside(uid_t user);
bool bth_group_is_outside(gid_t group);

#endif
