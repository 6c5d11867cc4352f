/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Temporary files of saves (F4, X5): ".berth-<hash of the target's name>-<slot>.tmp" in the
 * target's folder. The slot is 0 to 15; if all are taken, 16 random hex digits. So a save finds the
 * files that earlier saves of its target left by trying names, and lists no folder.
 *
 * The attribute user.berth.owner names the process that owns a temporary. Others remove it only if
 * that process is certainly dead. Locks would not do: on many file systems other hosts do not see
 * them. A process that removes a temporary first claims its inode: user.berth.claim0 can be made
 * only once. Otherwise two processes could remove one name, and the second would remove a new file.
 */
#ifndef BTH_SAVE_TEMPORARY_H
#define BTH_SAVE_TEMPORARY_H

#include <sys/stat.h>

#include "berth.h"
#include "berth/more.h"

#define BTH_TEMPORARY_NAME_NBYTES 48
#define BTH_TEMPORARY_OWNER_NBYTES 160
#define BTH_TEMPORARY_OWNER "user.berth.owner"

/*
 * Creates a temporary for a target in a folder. *fd is open for reading and writing.
 * `tries_rename`: by a rename in the folder, so that a file system without one shows itself before
 * data is written. On failure nothing of it remains, unless *fd is not -1.
 */
int bth_temporary_create(int folder, const char *target, mode_t mode, bool tries_rename, int *fd,
                         char name[BTH_TEMPORARY_NAME_NBYTES], berth_error *error);

/*
 * Closes the file and then removes its name, if that still leads to it: some file systems remove no
 * open file, and others keep it under another name (.fuse_hidden...). fd -1: nothing.
 */
void bth_temporary_close_and_remove(int folder, const char *name, int fd);

/* Whether the name certainly no longer leads to the open file. After a removal by hand, or from
 * another host, another save may have the name. */
bool bth_temporary_is_lost(int folder, const char *name, int fd);

/* Also names of Berth 0.1: ".berth-<16 hex digits>.tmp". */
bool bth_temporary_is_name(const char *name);

/* ---- owners ---- */

/* This process, as text. False without /proc: then no process can know. */
bool bth_temporary_owner_self(char text[BTH_TEMPORARY_OWNER_NBYTES]);

#endif
