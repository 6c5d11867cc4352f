/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The file that a save replaces (F4), behind links. Refuses first what would fail later (X2). For a
 * save in place it may also be a device or a pipe, a mount point, or a file in a folder that may
 * not be written to.
 */
#ifndef BTH_SAVE_TARGET_FILE_H
#define BTH_SAVE_TARGET_FILE_H

#include <sys/stat.h>

#include "berth.h"

typedef struct bth_target_file {
    int folder;           /* that holds it; -1: none */
    bool folder_readable; /* false: open with O_PATH, it cannot be listed or synced */
    char *name;           /* in that folder */
    bool in_place;        /* save.replace=in_place */
    bool exists;
    struct stat status; /* of the file that is there */
    int nameless;       /* X4: the open file itself, if the path leads to a descriptor of a file
                           that is not found by its name; -1: it has a name */
} bth_target_file;

#define BTH_NO_TARGET_FILE ((bth_target_file){.folder = -1, .nameless = -1})

/*
 * Follows symbolic links. Refuses anything but a writable regular file or a new name (W10); with
 * BERTH_E_REPLACE what can be written in place.
 */
int bth_target_file_find(const char *path, bool in_place, bth_target_file *target,
                         berth_error *error);
/* Checks again the file that has the name now, of this status. Refuses as above. */
int bth_target_file_check_and_set_status(bth_target_file *target, const struct stat *status,
                                         berth_error *error);
void bth_target_file_free(bth_target_file *target); /* of BTH_NO_TARGET_FILE: nothing */

/*
 * In a user namespace (rootless containers) all users from outside are shown as one id, and so are
 * all groups. A user inside may have that id, too, and does not own the file.
 */
bool bth_id_is_unmapped(unsigned id, bool is_group);

/* ---- file_metadata.c ---- */

/*
 * Metadata that a new file gets from the file that it replaces (X1): owner, group, mode, ACL,
 * security label and user attributes.
 *
 * Whoever could not read or write the old file cannot read or write the new one, except for the
 * saving process. If the process may not change the owner, an ACL passes the rights on, or the file
 * has fewer rights, and the log reports it. A save that would lock out the old owner is refused.
 *
 * `fd`: a new, empty file that only its owner can open. When this returns 0, it has its final
 * rights, and *copied is the status of the old file. The target must exist.
 */
int bth_metadata_copy(const bth_target_file *target, int fd, struct stat *copied,
                      berth_error *error);

#endif
