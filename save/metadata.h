/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a new file takes over from the one that it replaces (X1): owner, group, mode, ACL, security
 * label and the attributes that users gave it.
 *
 * Nobody can read or write the new file who could not read or write the old one, but the process
 * that saves. Where the process may not give the file away, the rights are passed on by an ACL, or
 * are narrower, which the log says. A save that would lock out the old owner is refused.
 */
#ifndef BTH_SAVE_METADATA_H
#define BTH_SAVE_METADATA_H

#include "save/target_file.h"

/*
 * `fd`: a new, empty file that only its owner can open yet. When this returns 0, it has the rights
 * that it will have, and *carried is the status of the old one. The target must exist.
 */
int bth_metadata_copy(const bth_target_file *target, int fd, struct stat *copied,
                      berth_error *error);

#endif
