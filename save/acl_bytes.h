/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * POSIX ACLs as bytes of the attribute "system.posix_acl_access" (X1), in the format of
 * <linux/posix_acl_xattr.h>: 4 bytes of version, then 8 bytes an entry, little-endian, in the order
 * of the tags. Rights are bits: 4 read, 2 write, 1 execute. This code opens no file.
 */
#ifndef BTH_SAVE_ACL_BYTES_H
#define BTH_SAVE_ACL_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

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
