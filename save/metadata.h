/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Metadata that a new file gets from the file that it replaces (X1): owner, group, mode, ACL,
 * security label and user attributes.
 *
 * Nobody but the saving process can read or write the new file who could not read or write the old
 * one. Where the process may not give the file away, an ACL passes the rights on, or they become
 * narrower, and the log says so. A save that would lock out the old owner is refused.
 */
#ifndef BTH_SAVE_METADATA_H
#define BTH_SAVE_METADATA_H

#include "save/target_file.h"

/*
 * `fd`: a new, empty file that only its owner can open. When this returns 0, it has its final
 * rights, and *copied is the status of the old file. The target must exist.
 */
int bth_metadata_copy(const bth_target_file *target, int fd, struct stat *copied,
                      berth_error *error);

#endif
