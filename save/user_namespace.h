/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef BTH_SAVE_USER_NAMESPACE_H
#define BTH_SAVE_USER_NAMESPACE_H

#include <stdbool.h>
#include <sys/types.h>

/*
 * In a user namespace (rootless containers) all users from outside are shown as one id, which a
 * user inside may have, too. That user does not own the file.
 */
bool bth_user_is_unmapped(uid_t user);
bool bth_group_is_unmapped(gid_t group);

#endif
