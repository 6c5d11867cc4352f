/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/target_file.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "io/file.h"
#include "io/file_system.h"
#include "io/syscalls.h"
#include "io/xattr.h"
#include "save/acl_bytes.h"
#include "save/save_error.h"

#define POSIX_ACL "system.posix_acl_access"
/* Of NFS, and of ZFS. */
static const char *const nfs4_acls[] = {"system.nfs4_acl", "system.nfs4_acl_xdr"};
#define USER_PREFIX "user."

/* Labels by which security modules decide who may use the file. */
static const char *const labels[] = {"security.selinux", "security.SMACK64"};

typedef struct metadata {
    const char *name; /* of the target, for messages */
    int from;         /* the old file; -1: another process removed it meanwhile */
    int to;
    struct stat old;
    bth_acl_change change;
    bool has_unmapped_id; /* the old owner has no id in this user namespace: no ACL can name it */
} metadata;

typedef bth_acl xattr_value; /* of any attribute. bytes NULL: there is none */

/* Whether a file system or the kernel forbids it. Any other failure ends the save. */
static bool metadata_is_forbidden(int system_errno)
{
    return system_errno == EPERM || system_errno == EACCES || system_errno == EINVAL ||
           system_errno == EOPNOTSUPP || system_errno == ENOSYS;
}

/* Returns 0, or an errno value. */
static int xattr_read(int fd, const char *attribute, xattr_value *read)
{
    uint8_t *bytes = bth_allocate(BTH_MAX_XATTR_NBYTES);

    *read = (xattr_value){0};
    if (!bytes)
        return ENOMEM;
    ssize_t n = bth_xattr_get(fd, attribute, bytes, BTH_MAX_XATTR_NBYTES);
    int failure = n < 0 ? errno : 0;
    if (n >= 0)
        *read = (xattr_value){.bytes = bytes, .nbytes = (size_t)n};
    else
        bth_release(bytes);
    return bth_xattr_is_absent(failure) ? 0 : failure;
}

/* Sets an attribute, unless the file has this value already. Returns 0, or an errno value. */
static int xattr_write(int fd, const char *attribute, const xattr_value *value)
{
    xattr_value present;
    bool has = xattr_read(fd, attribute, &present) == 0 && present.bytes &&
               present.nbytes == value->nbytes &&
               memcmp(present.bytes, value->bytes, value->nbytes) == 0;

    bth_release(present.bytes);
    return has || bth_xattr_set(fd, attribute, value->bytes, value->nbytes, 0) == 0 ? 0 : errno;
}

/* ---- labels ---- */

/*
 * If a new file has no label, the system does not use labels, and the old one may be lost.
 * Otherwise another label could give others access.
 */
static int metadata_copy_label(const metadata *m, const char *attribute, berth_error *error)
{
    xattr_value old, present = {0};
    int failure = xattr_read(m->from, attribute, &old);

    if (failure == 0 && old.bytes) {
        failure = xattr_write(m->to, attribute, &old);
        if (failure != 0 && xattr_read(m->to, attribute, &present) == 0 && !present.bytes)
            failure = 0;
    }
    bth_release(old.bytes);
    bth_release(present.bytes);
    if (failure == 0 || failure == ENOENT)
        return 0;
    bth_fail_system(error, failure,
                    "cannot be replaced: its label %s cannot be given to a new file", attribute);
    return bth_fail_offering_in_place(error);
}

/* ---- attributes of users ---- */

/* Checksums of the old bytes, by words in their names: user.shatag.sha256, user.md5. */
static bool attribute_is_checksum(const char *attribute)
{
    static const char *const words[] = {"sha1",   "sha2",   "sha3", "sha5",     "shatag",   "md5",
                                        "crc",    "xxh",    "hash", "b2sum",    "b3sum",    "blake",
                                        "digest", "chksum", "etag", "checksum", "signature"};
    char lower[256];
    size_t n = 0;

    for (; n < sizeof lower - 1 && attribute[n]; n++)
        lower[n] = (char)tolower((unsigned char)attribute[n]);
    lower[n] = '\0';
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(lower, words[i]))
            return true;
    return strncmp(lower, USER_PREFIX "berth.", strlen(USER_PREFIX "berth.")) == 0;
}

static void metadata_copy_attribute(const metadata *m, const char *attribute)
{
    xattr_value old;
    int failure = xattr_read(m->from, attribute, &old);

    if (failure == 0 && old.bytes)
        failure = xattr_write(m->to, attribute, &old);
    bth_release(old.bytes);
    if (failure != 0)
        bth_log("%s: the attribute %s is not kept: %s", m->name, attribute,
                bth_errno_text(failure));
}

/* Losing them gives nobody access, so the save goes on. */
static int metadata_copy_user_attributes(const metadata *m, berth_error *error)
{
    char *names = bth_allocate(BTH_MAX_XATTR_NBYTES);

    if (!names)
        return bth_fail_memory(error, BTH_MAX_XATTR_NBYTES);
    ssize_t n = bth_xattr_list(m->from, names, BTH_MAX_XATTR_NBYTES);
    if (n < 0 && !bth_xattr_is_absent(errno))
        bth_log("%s: attributes of users are not kept: %s", m->name, bth_errno_text(errno));
    for (const char *at = names; n > 0 && at < names + n; at += strlen(at) + 1)
        if (strncmp(at, USER_PREFIX, strlen(USER_PREFIX)) == 0 && !attribute_is_checksum(at))
            metadata_copy_attribute(m, at);
    bth_release(names);
    return 0;
}

/* ---- owner and group ---- */

/* `present`: the new file's. */
static int metadata_copy_user_or_group_id(metadata *m, bool is_group, long present,
                                          berth_error *error)
{
    uid_t user = is_group ? (uid_t)-1 : m->old.st_uid;
    gid_t group = is_group ? m->old.st_gid : (gid_t)-1;
    long old = is_group ? (long)group : (long)user;
    const char *what = is_group ? "group" : "owner", *kind = is_group ? "group" : "user";
    bool outside = bth_id_is_unmapped((unsigned)old, is_group);

    if (!outside && (present == old || bth_system.fchown(m->to, user, group) == 0))
        return 0;
    if (!outside && !metadata_is_forbidden(errno))
        return bth_fail_system(error, errno, "its %s cannot be kept", what);
    *(is_group ? &m->change.group : &m->change.owner) = true;
    m->has_unmapped_id |= outside;
    bth_log("%s: its %s becomes %s %ld: it cannot be given to %s %ld", m->name, what, kind, present,
            kind, old);
    return 0;
}

/* The group first, so that no other group can ever open the file. Until it has its mode, only its
 * owner can. */
static int metadata_copy_owner_and_group(metadata *m, berth_error *error)
{
    struct stat status;

    if (bth_system.fstat(m->to, &status) < 0)
        return bth_fail_system(error, errno, "cannot be examined");
    if (metadata_copy_user_or_group_id(m, true, (long)status.st_gid, error) == 0)
        (void)metadata_copy_user_or_group_id(m, false, (long)status.st_uid, error);
    return error->code;
}

/* ---- rights ---- */

static int metadata_fail_lock_out(const metadata *m, berth_error *error)
{
    bth_fail_system(error, EPERM,
                    "cannot be replaced: it belongs to user %ld, who could not use the new file; "
                    "save as that user, or remove the file first",
                    (long)m->old.st_uid);
    return bth_fail_offering_in_place(error);
}

/* Some file systems refuse every chmod (CIFS, WSL, FUSE): an equal mode is not set again. */
static int metadata_set_mode(const metadata *m, mode_t mode, berth_error *error)
{
    struct stat status;

    if (bth_system.fstat(m->to, &status) < 0)
        return bth_fail_system(error, errno, "cannot be examined");
    mode_t present = status.st_mode & 0777;
    if (present == mode || bth_system.fchmod(m->to, mode) == 0)
        return 0;
    if (!metadata_is_forbidden(errno) || (present & ~mode) != 0)
        return bth_fail_system(error, errno, "its mode cannot be kept");
    bth_log("%s: its mode becomes %03o: it cannot be set to %03o", m->name, (unsigned)present,
            (unsigned)mode);
    return 0;
}

/* Sets the mode and removes an ACL that the folder gave to the new file. */
static int metadata_set_mode_and_remove_acl(const metadata *m, mode_t mode, berth_error *error)
{
    bool has_acl = bth_xattr_get(m->to, POSIX_ACL, NULL, 0) >= 0 ||
                   !(bth_xattr_is_absent(errno) || errno == ENOENT);

    if (has_acl && bth_xattr_remove(m->to, POSIX_ACL) < 0)
        mode &= (mode_t)~070; /* if it stays, these bits are its mask: no entry gives access */
    return metadata_set_mode(m, mode, error);
}

/* For file systems without POSIX ACLs. */
static int metadata_set_narrower_mode(const metadata *m, const bth_acl *old, berth_error *error)
{
    mode_t mode;

    if (!bth_acl_compute_narrower_mode(old, &m->change, &mode))
        return metadata_fail_lock_out(m, error);
    if (mode != (m->old.st_mode & 0777))
        bth_log("%s: its rights become narrower: mode %03o", m->name, (unsigned)mode);
    return metadata_set_mode_and_remove_acl(m, mode, error);
}

static int metadata_set_acl_or_narrower_mode(const metadata *m, const bth_acl *old,
                                             const bth_acl *wanted, berth_error *error)
{
    int failure = xattr_write(m->to, POSIX_ACL, wanted);

    if (failure == 0)
        return 0;
    if (!metadata_is_forbidden(failure) && failure != ENOENT)
        return bth_fail_system(error, failure, "its ACL cannot be kept");
    return metadata_set_narrower_mode(m, old, error);
}

/* `old`: the old file's ACL. Without bytes: its mode says everything. */
static int metadata_copy_posix_acl_or_mode(const metadata *m, const bth_acl *old,
                                           berth_error *error)
{
    size_t room = bth_acl_new_owner_or_group_max_nbytes(old->nbytes);
    uint8_t *bytes = bth_allocate(2 * room);
    bth_acl was = *old, made;
    bool is_changed = m->change.owner || m->change.group;

    if (!bytes)
        return bth_fail_memory(error, 2 * room);
    if (!old->bytes) {
        was.bytes = bytes;
        bth_acl_of_mode(m->old.st_mode & 0777, &was);
    }
    if (is_changed && (m->has_unmapped_id || !bth_file_system_obeys_acls(m->to)))
        (void)metadata_set_narrower_mode(m, &was, error);
    else if (is_changed) {
        made.bytes = bytes + room;
        bth_acl_make_for_new_owner_or_group(&was, &m->change, &made);
        (void)metadata_set_acl_or_narrower_mode(m, &was, &made, error);
    } else if (old->bytes)
        (void)metadata_set_acl_or_narrower_mode(m, &was, old, error);
    else
        (void)metadata_set_mode_and_remove_acl(m, m->old.st_mode & 0777, error);
    bth_release(bytes);
    return error->code;
}

/* If the old rights are not known, only the owner keeps access. */
static int metadata_set_owner_only(const metadata *m, berth_error *error)
{
    if (m->change.owner)
        return metadata_fail_lock_out(m, error);
    bth_log("%s: only its owner keeps access: its ACL cannot be read or kept", m->name);
    return metadata_set_mode_and_remove_acl(m, m->old.st_mode & 0700, error);
}

/* An NFS 4 ACL is kept as it is, or not at all. Every file there has one, mostly the same. */
static int metadata_copy_nfs4_acl(const metadata *m, const char *attribute, const xattr_value *old,
                                  berth_error *error)
{
    if (!m->change.owner && !m->change.group && xattr_write(m->to, attribute, old) == 0)
        return 0;
    return metadata_set_owner_only(m, error);
}

static int metadata_copy_rights(const metadata *m, berth_error *error)
{
    xattr_value nfs4 = {0}, posix = {0};
    const char *attribute = NULL;
    int failure = 0;

    for (size_t i = 0; i < 2 && failure == 0 && !nfs4.bytes; i++) {
        attribute = nfs4_acls[i];
        failure = xattr_read(m->from, attribute, &nfs4);
    }
    if (failure == 0)
        failure = xattr_read(m->from, POSIX_ACL, &posix);
    if (failure == ENOMEM)
        (void)bth_fail_memory(error, BTH_MAX_XATTR_NBYTES);
    else if (failure != 0 || (posix.bytes && !bth_acl_is_valid(posix.bytes, posix.nbytes)))
        (void)metadata_set_owner_only(m, error);
    else if (nfs4.bytes)
        (void)metadata_copy_nfs4_acl(m, attribute, &nfs4, error);
    else
        (void)metadata_copy_posix_acl_or_mode(m, &posix, error);
    bth_release(nfs4.bytes);
    bth_release(posix.bytes);
    return error->code;
}

/* O_PATH, if the file cannot be read. O_NONBLOCK: it may be a pipe by now, or leased. */
static int metadata_open_old(const bth_target_file *target)
{
    int fd = bth_system.openat(target->folder, target->name,
                               O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0);

    if (fd < 0 && errno != ENOENT)
        fd = bth_system.openat(target->folder, target->name, O_PATH | O_NOFOLLOW | O_CLOEXEC, 0);
    return fd;
}

int bth_metadata_copy(const bth_target_file *target, int fd, struct stat *copied,
                      berth_error *error)
{
    metadata m = {
        .name = target->name, .to = fd, .from = metadata_open_old(target), .old = target->status};

    if ((m.from < 0 && errno != ENOENT) || (m.from >= 0 && bth_system.fstat(m.from, &m.old) < 0))
        (void)bth_fail_system(error, errno, "cannot be examined");
    else if (!S_ISREG(m.old.st_mode))
        (void)bth_fail_system(error, EBUSY, "cannot be replaced: it is no longer a regular file");
    if (error->code != BERTH_OK) {
        bth_file_close(m.from);
        return error->code;
    }
    m.change.old_owner = m.old.st_uid;
    m.change.old_group = m.old.st_gid;
    for (size_t i = 0; i < sizeof labels / sizeof *labels && error->code == BERTH_OK; i++)
        (void)metadata_copy_label(&m, labels[i], error);
    if (error->code == BERTH_OK && metadata_copy_user_attributes(&m, error) == 0 &&
        metadata_copy_owner_and_group(&m, error) == 0)
        (void)metadata_copy_rights(&m, error);
    bth_file_close(m.from);
    *copied = m.old;
    return error->code;
}
