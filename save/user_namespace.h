/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef BTH_SAVE_USER_NAMESPACE_H
#define BTH_SAVE_USER_NAMESPACE_H

#include <stdbool.h>
#include <sys/types.h>

/*
 * In a user namespace (rootless containers) all owners from outside are shown as one number, which
 * is somebody's inside, too: that one is not who has the file.
 */
bool bth_user_is_unmapped(uid_t user);
bool bth_group_is_unmapped(gid_t group);

#endif
