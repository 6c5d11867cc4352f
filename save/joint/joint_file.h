/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The temporary file of a joint save, which every writer opens. Until the coordinator writes its
 * first block, it begins with a seal that holds the identity of the save. So a writer knows that it
 * is the file of its ticket, on any host, also if a later save has the same name.
 */
#ifndef BTH_SAVE_JOINT_FILE_H
#define BTH_SAVE_JOINT_FILE_H

#include <limits.h>

#include "save/joint/joint_ticket.h"

/* Writes the seal, so that other hosts see it. */
int bth_joint_file_seal(int fd, const uint8_t identity[BTH_JOINT_IDENTITY_NBYTES],
                        berth_error *error);
/* Opens the file of a ticket for reading and writing. */
int bth_joint_file_open(const bth_ticket *ticket, int *fd, berth_error *error);
/* The absolute path of an open folder. */
int bth_joint_folder_path(int folder, char path[PATH_MAX], berth_error *error);

#endif
