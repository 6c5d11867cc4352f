/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/metadata.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "config/error.h"
#include "config/memory.h"
#include "io/file.h"
#include "io/file_system.h"
#include "io/syscalls.h"
#include "io/xattr.h"
#include "save/acl.h"
#include "save/user_namespace.h"

#define POSIX_ACL "system.posix_acl_access"
/* Of NFS, and of ZFS. */
static const char *const nfs4_acls[] = {"system.nfs4_acl", "system.nfs4_acl_xdr"};
#define USER_PREFIX "user."

/* Labels of security modules that say who may use the file. */
static const char *const labels[] = {"security.selinux", "security.SMACK64"};

typedef struct carry {
    const char *name; /* of the target, for messages */
    int from;         /* the old file; -1: another process removed it meanwhile */
    int to;
    struct stat old;
    bth_acl_change change;
    bool is_nameless; /* who had it has no number here: no ACL can name that one */
} carry;

/* The value of an attribute; bytes NULL if there is none. */
typedef struct value {
    uint8_t *bytes;
    size_t nbytes;
} value;

/* What a file system or the kernel forbids; anything else is trouble, and ends the save. */
static bool is_forbidden(int system_errno)
{
    return system_errno == EPERM || system_errno == EACCES || system_errno == EINVAL ||
           system_errno == EOPNOTSUPP || system_errno == ENOSYS;
}

/* 0, or an errno value if it cannot be known. */
static int read_value(int fd, const char *attribute, value *read)
{
    *read = (value){0};
    ssize_t n = bth_xattr_get(fd, attribute, NULL, 0);
    if (n < 0)
        return bth_xattr_is_absent(errno) ? 0 : errno;
    uint8_t *bytes = bth_allocate((size_t)n + 1); /* also of an empty value */
    if (!bytes)
        return ENOMEM;
    n = bth_xattr_get(fd, attribute, bytes, (size_t)n);
    if (n < 0) {
        int failure = errno;
        bth_release(bytes);
        return bth_xattr_is_absent(failure) ? 0 : failure;
    }
    *read = (value){.bytes = bytes, .nbytes = (size_t)n};
    return 0;
}

static bool is_equal(const value *a, const value *b)
{
    return a->bytes && b->bytes && a->nbytes == b->nbytes &&
           memcmp(a->bytes, b->bytes, a->nbytes) == 0;
}

/* Whether the new file has this value already: what is equal is not set again. */
static bool has_value(int fd, const char *attribute, const value *wanted)
{
    value present;
    bool has = read_value(fd, attribute, &present) == 0 && is_equal(&present, wanted);

    bth_release(present.bytes);
    return has;
}

/* ---- labels ---- */

/*
 * A file that has no label of its own after it was made is on a system that does not use them:
 * there the old one's has no force, and may be lost. Else another label could let others in.
 */
static int carry_label(const carry *c, const char *attribute, berth_error *error)
{
    value old, present = {0};
    int failure = read_value(c->from, attribute, &old);

    if (failure == 0 && old.bytes && !has_value(c->to, attribute, &old) &&
        bth_xattr_set(c->to, attribute, old.bytes, old.nbytes, 0) < 0) {
        failure = errno;
        if (read_value(c->to, attribute, &present) == 0 && !present.bytes)
            failure = 0;
    }
    bth_release(old.bytes);
    bth_release(present.bytes);
    if (failure != 0 && failure != ENOENT)
        return bth_fail_errno(error, failure, NULL, BERTH_NO_OFFSET,
                              "cannot be replaced: its label %s cannot be given to a new file",
                              attribute);
    return 0;
}

/* ---- attributes of users ---- */

/* They speak of the old bytes. Words as they are found in names: user.shatag.sha256, user.md5. */
static bool is_of_bytes(const char *attribute)
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

static void carry_attribute(const carry *c, const char *attribute)
{
    value old;
    int failure = read_value(c->from, attribute, &old);

    if (failure == 0 && old.bytes && !has_value(c->to, attribute, &old) &&
        bth_xattr_set(c->to, attribute, old.bytes, old.nbytes, 0) < 0)
        failure = errno;
    bth_release(old.bytes);
    if (failure != 0)
        bth_log("%s: the attribute %s is not kept: %s", c->name, attribute,
                strerrordesc_np(failure));
}

/* Their loss lets nobody in, and so it never ends a save. */
static int carry_attributes(const carry *c, berth_error *error)
{
    ssize_t n = bth_xattr_list(c->from, NULL, 0);

    if (n < 0 && !bth_xattr_is_absent(errno))
        bth_log("%s: attributes of users are not kept: %s", c->name, strerrordesc_np(errno));
    if (n <= 0)
        return 0;
    char *names = bth_allocate((size_t)n);
    if (!names)
        return bth_fail_memory(error, (uint64_t)n);
    n = bth_xattr_list(c->from, names, (size_t)n);
    for (const char *at = names; n > 0 && at < names + n; at += strlen(at) + 1)
        if (strncmp(at, USER_PREFIX, strlen(USER_PREFIX)) == 0 && !is_of_bytes(at))
            carry_attribute(c, at);
    bth_release(names);
    return 0;
}

/* ---- owner and group ---- */

static int carry_group(carry *c, gid_t present, berth_error *error)
{
    bool outside = bth_group_is_unmapped(c->old.st_gid);

    if (!outside &&
        (present == c->old.st_gid || bth_system.fchown(c->to, (uid_t)-1, c->old.st_gid) == 0))
        return 0;
    if (!outside && !is_forbidden(errno))
        return bth_fail_errno(error, errno, NULL, BERTH_NO_OFFSET, "its group cannot be kept");
    c->change.group = true;
    c->is_nameless |= outside;
    bth_log("%s: its group becomes %ld: it cannot be given to group %ld", c->name, (long)present,
            (long)c->old.st_gid);
    return 0;
}

/* The group first: nobody of another group can ever open it. Only its owner can, until it has its
 * mode. */
static int carry_owner(carry *c, berth_error *error)
{
    bool outside = bth_user_is_unmapped(c->old.st_uid);
    struct stat status;

    if (bth_system.fstat(c->to, &status) < 0)
        return bth_fail_errno(error, errno, NULL, BERTH_NO_OFFSET, "cannot be examined");
    if (carry_group(c, status.st_gid, error) < 0)
        return error->code;
    if (!outside &&
        (status.st_uid == c->old.st_uid || bth_system.fchown(c->to, c->old.st_uid, (gid_t)-1) == 0))
        return 0;
    if (!outside && !is_forbidden(errno))
        return bth_fail_errno(error, errno, NULL, BERTH_NO_OFFSET, "its owner cannot be kept");
    c->change.owner = true;
    c->is_nameless |= outside;
    bth_log("%s: its owner becomes user %ld: it cannot be given to user %ld", c->name,
            (long)status.st_uid, (long)c->old.st_uid);
    return 0;
}

/* ---- rights ---- */

static int fail_lock_out(const carry *c, berth_error *error)
{
    return bth_fail_errno(error, EPERM, NULL, BERTH_NO_OFFSET,
                          "cannot be replaced: it belongs to user %ld, who could not use the new "
                          "file; save as that user, or remove the file first",
                          (long)c->old.st_uid);
}

/* Some file systems refuse every chmod (CIFS, WSL, FUSE): what is right already is not set again.
 */
static int set_mode(const carry *c, mode_t mode, berth_error *error)
{
    struct stat status;

    if (bth_system.fstat(c->to, &status) < 0)
        return bth_fail_errno(error, errno, NULL, BERTH_NO_OFFSET, "cannot be examined");
    mode_t present = status.st_mode & 0777;
    if (present == mode || bth_system.fchmod(c->to, mode) == 0)
        return 0;
    if (!is_forbidden(errno) || (present & ~mode) != 0)
        return bth_fail_errno(error, errno, NULL, BERTH_NO_OFFSET, "its mode cannot be kept");
    bth_log("%s: its mode becomes %03o: it cannot be set to %03o", c->name, (unsigned)present,
            (unsigned)mode);
    return 0;
}

/* No ACL: neither the old one nor one that the folder gives to new files. */
static int set_mode_alone(const carry *c, mode_t mode, berth_error *error)
{
    bool has_acl = bth_xattr_get(c->to, POSIX_ACL, NULL, 0) >= 0 ||
                   !(bth_xattr_is_absent(errno) || errno == ENOENT);

    if (has_acl && bth_xattr_remove(c->to, POSIX_ACL) < 0)
        mode &= (mode_t)~070; /* where one stays, these are its mask: nobody named in it gets in */
    return set_mode(c, mode, error);
}

/* As POSIX ACLs cannot be had here. */
static int narrow(const carry *c, const bth_acl *old, berth_error *error)
{
    mode_t mode;

    if (!bth_acl_narrow(old, &c->change, &mode))
        return fail_lock_out(c, error);
    if (mode != (c->old.st_mode & 0777))
        bth_log("%s: its rights become narrower: mode %03o", c->name, (unsigned)mode);
    return set_mode_alone(c, mode, error);
}

static int set_acl(const carry *c, const bth_acl *old, const value *wanted, berth_error *error)
{
    if (has_value(c->to, POSIX_ACL, wanted) ||
        bth_xattr_set(c->to, POSIX_ACL, wanted->bytes, wanted->nbytes, 0) == 0)
        return 0;
    if (!is_forbidden(errno) && errno != ENOENT)
        return bth_fail_errno(error, errno, NULL, BERTH_NO_OFFSET, "its ACL cannot be kept");
    return narrow(c, old, error);
}

/* `old`: the ACL's bytes, or NULL: the mode says it all. */
static int carry_posix(const carry *c, const value *old, berth_error *error)
{
    size_t room = bth_acl_room(old->nbytes);
    uint8_t *bytes = bth_allocate(2 * room);
    bth_acl was = {.bytes = bytes}, made = {.bytes = bytes + room};

    if (!bytes)
        return bth_fail_memory(error, 2 * room);
    if (old->bytes)
        was = (bth_acl){.bytes = old->bytes, .nbytes = old->nbytes};
    else
        bth_acl_of_mode(c->old.st_mode & 0777, &was);
    if ((c->change.owner || c->change.group) &&
        (c->is_nameless || !bth_file_system_obeys_acls(c->to)))
        (void)narrow(c, &was, error);
    else if (c->change.owner || c->change.group) {
        bth_acl_pass_on(&was, &c->change, &made);
        (void)set_acl(c, &was, &(value){.bytes = made.bytes, .nbytes = made.nbytes}, error);
    } else if (old->bytes)
        (void)set_acl(c, &was, old, error);
    else
        (void)set_mode_alone(c, c->old.st_mode & 0777, error);
    bth_release(bytes);
    return error->code;
}

/* What is not known to be allowed is not allowed: the owner alone. */
static int leave_to_owner(const carry *c, berth_error *error)
{
    if (c->change.owner)
        return fail_lock_out(c, error);
    bth_log("%s: only its owner keeps access: its ACL cannot be read or kept", c->name);
    return set_mode_alone(c, c->old.st_mode & 0700, error);
}

/* An ACL of NFS 4 is kept as it is, or not at all. Every file there has one, mostly the same. */
static int carry_nfs4(const carry *c, const char *attribute, const value *old, berth_error *error)
{
    if (!c->change.owner && !c->change.group &&
        (has_value(c->to, attribute, old) ||
         bth_xattr_set(c->to, attribute, old->bytes, old->nbytes, 0) == 0))
        return 0;
    return leave_to_owner(c, error);
}

static int carry_rights(const carry *c, berth_error *error)
{
    value nfs4 = {0}, posix = {0};
    const char *attribute = NULL;
    int failure = 0;

    for (size_t i = 0; i < 2 && failure == 0 && !nfs4.bytes; i++) {
        attribute = nfs4_acls[i];
        failure = read_value(c->from, attribute, &nfs4);
    }
    if (failure == 0)
        failure = read_value(c->from, POSIX_ACL, &posix);
    if (failure == ENOMEM)
        (void)bth_fail_memory(error, BTH_MAX_XATTR_NBYTES);
    else if (failure != 0 || (posix.bytes && !bth_acl_is_valid(posix.bytes, posix.nbytes)))
        (void)leave_to_owner(c, error);
    else if (nfs4.bytes)
        (void)carry_nfs4(c, attribute, &nfs4, error);
    else
        (void)carry_posix(c, &posix, error);
    bth_release(nfs4.bytes);
    bth_release(posix.bytes);
    return error->code;
}

/*
 * To read its attributes, which needs /proc where the file itself may not be read. O_NONBLOCK: it
 * may be a pipe by now, or leased.
 */
static int open_old(const bth_target_file *target)
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
    carry c = {.name = target->name, .to = fd, .from = open_old(target), .old = target->status};

    if ((c.from < 0 && errno != ENOENT) || (c.from >= 0 && bth_system.fstat(c.from, &c.old) < 0))
        (void)bth_fail_errno(error, errno, NULL, BERTH_NO_OFFSET, "cannot be examined");
    else if (!S_ISREG(c.old.st_mode))
        (void)bth_fail_errno(error, EBUSY, NULL, BERTH_NO_OFFSET,
                             "cannot be replaced: it is no regular file any more");
    if (error->code != BERTH_OK) {
        bth_file_close(c.from);
        return error->code;
    }
    c.change.old_owner = c.old.st_uid;
    c.change.old_group = c.old.st_gid;
    for (size_t i = 0; i < sizeof labels / sizeof *labels && error->code == BERTH_OK; i++)
        (void)carry_label(&c, labels[i], error);
    if (error->code == BERTH_OK && carry_attributes(&c, error) == 0 && carry_owner(&c, error) == 0)
        (void)carry_rights(&c, error);
    bth_file_close(c.from);
    *copied = c.old;
    return error->code;
}
