/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The file that a save replaces (F4), behind links. Refuses first what would fail later (X2). For a
 * save in place it may also be a device or a pipe, a mount point, or a file in a folder that may
 * not be written to.
 */
#ifndef BTH_SAVE_TARGET_FILE_H
#define BTH_SAVE_TARGET_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

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
 * Makes BERTH_E_REPLACE of BERTH_E_SYSTEM: a rename cannot put a file there, but
 * save.replace=in_place can write it. Adds that to the message. Returns the code.
 */
int bth_fail_offering_in_place(berth_error *error);

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

/*
 * POSIX ACLs as bytes of the attribute "system.posix_acl_access" (X1), in the format of
 * <linux/posix_acl_xattr.h>: 4 bytes of version, then 8 bytes an entry, little-endian, in the order
 * of the tags. Rights are bits: 4 read, 2 write, 1 execute. This code opens no file.
 */

typedef struct bth_acl {
    uint8_t *bytes; /* of the attribute; with room for three more entries */
    size_t nbytes;
} bth_acl;

/* Bytes that bth_acl_make_for_new_owner_or_group needs for an attribute of nbytes bytes. */
size_t bth_acl_new_owner_or_group_max_nbytes(size_t nbytes);
/* Whether these are bytes of an ACL, as the kernel makes them. */
bool bth_acl_is_valid(const uint8_t *bytes, size_t nbytes);
/* Makes the ACL of a file that has only a mode. `acl` has room for three entries. */
void bth_acl_of_mode(mode_t mode, bth_acl *acl);

/* Whether the new file has another owner or group than the old one. */
typedef struct bth_acl_change {
    bool owner, group; /* true: not kept */
    uid_t old_owner;
    gid_t old_group;
} bth_acl_change;

/*
 * Makes the ACL of a new file with another owner or group. Nobody but the new owner gets more
 * rights than before, and the old owner and group keep theirs. `made` has
 * bth_acl_new_owner_or_group_max_nbytes bytes.
 */
void bth_acl_make_for_new_owner_or_group(const bth_acl *old, const bth_acl_change *change,
                                         bth_acl *made);

/*
 * The same without an ACL: a mode that gives nobody more rights. False: the old owner may lose
 * rights by it. The members of groups are not known.
 */
bool bth_acl_compute_narrower_mode(const bth_acl *old, const bth_acl_change *change, mode_t *mode);

#endif
