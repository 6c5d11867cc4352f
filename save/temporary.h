/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Temporary files of saves (F4, X5): ".berth-<hash of the target's name>-<slot>.tmp" in the
 * target's folder. The slot is 0 to 15; where all are taken, 16 random hex digits. So a save finds
 * what earlier saves of its target left by trying names, and lists no folder.
 *
 * The owner of a temporary stands in its extended attribute user.berth.owner. Others remove it only
 * if that process is certainly gone. No locks: many file systems keep them to one mount, and then
 * each host sees the others' temporaries as left over.
 *
 * Who removes one claims its inode first: user.berth.claim0 can be made only once. So no two
 * processes remove one name, of which the second would remove a new file of that name.
 */
#ifndef BTH_SAVE_TEMPORARY_H
#define BTH_SAVE_TEMPORARY_H

#include <sys/stat.h>

#include "berth.h"
#include "save/temporary_owner.h"

#define BTH_TEMPORARY_NAME_NBYTES 48
#define BTH_TEMPORARY_OWNER "user.berth.owner"

/* Creates one in a folder for a target: *fd for reading and writing, and its name. */
int bth_temporary_create(int folder, const char *target, mode_t mode, int *fd,
                         char name[BTH_TEMPORARY_NAME_NBYTES], berth_error *error);

/*
 * Whether the name certainly is no longer that of the open file. Names are few: who removed one by
 * hand, or from another host, lets another save have it.
 */
bool bth_temporary_is_lost(int folder, const char *name, int fd);
/* When it has the target's name: it is nobody's temporary any more. */
void bth_temporary_release(int fd);

/* One that is there. */
typedef struct bth_temporary_file {
    int fd;                                 /* O_PATH */
    struct stat status;                     /* of a regular file */
    char owner[BTH_TEMPORARY_OWNER_NBYTES]; /* as it stands there; "" if nothing does */
    berth_temporary_state state;
} bth_temporary_file;

/* Looks at a name. False: no regular file has it. */
bool bth_temporary_open(int folder, const char *name, bth_temporary_file *file);
void bth_temporary_close(bth_temporary_file *file);
/*
 * Removes it. False: another process does, or errno tells why it cannot be; EEXIST if that one has
 * claimed it. `is_old`: who claimed it on another host, and has not removed it since, is gone too.
 */
bool bth_temporary_remove(int folder, const char *name, bth_temporary_file *file, bool is_old);

/* Also the names that Berth 0.1 gave: ".berth-<16 hex digits>.tmp". */
bool bth_temporary_is_name(const char *name);

#endif
