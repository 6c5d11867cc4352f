/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Access rights of a file, as a POSIX ACL has them: nothing but bytes, no file (X1). A file without
 * an ACL has three entries, by its mode. Rights are bits: 4 read, 2 write, 1 execute.
 *
 * The form of the attribute "system.posix_acl_access" is that of <linux/posix_acl_xattr.h>: 4 bytes
 * of version, then 8 bytes an entry, little-endian, in the order of the tags.
 */
#ifndef BTH_SAVE_ACL_H
#define BTH_SAVE_ACL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct bth_acl {
    uint8_t *bytes; /* as the attribute has them; room for three entries more than there are */
    size_t nbytes;
} bth_acl;

/* Bytes that are needed to pass on an attribute of so many bytes. */
size_t bth_acl_room(size_t nbytes);
/* Whether bytes are an ACL as the kernel makes them. */
bool bth_acl_is_valid(const uint8_t *bytes, size_t nbytes);
/* That of a file without one. `acl` has room for three entries. */
void bth_acl_of_mode(mode_t mode, bth_acl *acl);

/* What of the old file's owner and group the new file has not. */
typedef struct bth_acl_change {
    bool owner, group; /* not kept */
    uid_t old_owner;
    gid_t old_group;
} bth_acl_change;

/*
 * The rights of a new file with another owner or group, by which nobody can do more than by the old
 * ones, but the new owner, and the old owner and group no less. `made` has bth_acl_room.
 */
void bth_acl_pass_on(const bth_acl *old, const bth_acl_change *change, bth_acl *made);

/*
 * The same where there can be no ACL: a mode by which nobody can do more. False: by it, the old
 * owner may be able to do less, as far as can be told without knowing who is in which group.
 */
bool bth_acl_narrow(const bth_acl *old, const bth_acl_change *change, mode_t *mode);

#endif
