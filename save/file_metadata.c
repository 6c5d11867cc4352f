/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/target_file.h"

#include <ctype.h>
#include <errno.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/bytes.h"
#include "io/file.h"
#include "io/file_system.h"
#include "io/syscalls.h"

#define HEAD_NBYTES ((size_t)4)
#define ENTRY_NBYTES ((size_t)8)
#define MAX_NEW_ENTRIES 3 /* the old owner, the old group, the mask */
#define ALL 7u
#define READ_AND_WRITE 6u
#define NO_ID ((uint32_t)ACL_UNDEFINED_ID)

typedef struct entry {
    unsigned tag, rights;
    uint32_t id;
} entry;

/* ---- the attribute ---- */

static size_t acl_count_entries(const bth_acl *acl)
{
    return (acl->nbytes - HEAD_NBYTES) / ENTRY_NBYTES;
}

static entry acl_get_entry(const bth_acl *acl, size_t i)
{
    bth_cursor at = bth_cursor_make(acl->bytes + HEAD_NBYTES + i * ENTRY_NBYTES, ENTRY_NBYTES);
    entry read = {.tag = bth_cursor_u16(&at)};

    read.rights = bth_cursor_u16(&at);
    read.id = bth_cursor_u32(&at);
    return read;
}

static void acl_begin_bytes(bth_acl *acl)
{
    (void)bth_put_u32(acl->bytes, POSIX_ACL_XATTR_VERSION);
    acl->nbytes = HEAD_NBYTES;
}

static void acl_add_entry(bth_acl *acl, unsigned tag, unsigned rights, uint32_t id)
{
    uint8_t *at = acl->bytes + acl->nbytes;

    at = bth_put_u16(at, tag);
    at = bth_put_u16(at, rights);
    (void)bth_put_u32(at, id);
    acl->nbytes += ENTRY_NBYTES;
}

size_t bth_acl_new_owner_or_group_max_nbytes(size_t nbytes)
{
    size_t min_nbytes = HEAD_NBYTES + 3 * ENTRY_NBYTES;

    return (nbytes < min_nbytes ? min_nbytes : nbytes) + MAX_NEW_ENTRIES * ENTRY_NBYTES;
}

bool bth_acl_is_valid(const uint8_t *bytes, size_t nbytes)
{
    const bth_acl acl = {.bytes = (uint8_t *)(uintptr_t)bytes, .nbytes = nbytes};
    bth_cursor head = bth_cursor_make(bytes, nbytes);
    unsigned seen = 0, last = 0;

    if (bth_cursor_u32(&head) != POSIX_ACL_XATTR_VERSION || /* 0, if there are less bytes */
        bth_cursor_left(&head) % ENTRY_NBYTES != 0)
        return false;
    for (size_t i = 0; i < acl_count_entries(&acl); i++) {
        entry each = acl_get_entry(&acl, i);
        if (each.tag < last || each.rights > ALL || (each.tag & (each.tag - 1)) != 0 ||
            each.tag == 0 || each.tag > ACL_OTHER ||
            (seen & each.tag & ~(unsigned)(ACL_USER | ACL_GROUP)) != 0)
            return false;
        last = each.tag;
        seen |= each.tag;
    }
    if ((seen & (ACL_USER | ACL_GROUP)) && !(seen & ACL_MASK))
        return false;
    return (seen & ACL_USER_OBJ) && (seen & ACL_GROUP_OBJ) && (seen & ACL_OTHER);
}

void bth_acl_of_mode(mode_t mode, bth_acl *acl)
{
    acl_begin_bytes(acl);
    acl_add_entry(acl, ACL_USER_OBJ, mode >> 6 & ALL, NO_ID);
    acl_add_entry(acl, ACL_GROUP_OBJ, mode >> 3 & ALL, NO_ID);
    acl_add_entry(acl, ACL_OTHER, mode & ALL, NO_ID);
}

/* ---- sums of entries ---- */

/* The rights of each class, masked, and the rights that all named entries have in common. */
typedef struct rights {
    unsigned mask, user, group, other;
    unsigned new_owner;                 /* who can always change the mode, and wrote the file */
    unsigned common_user, common_group; /* ALL: there are no named entries */
} rights;

static rights acl_compute_rights_of_all_classes(const bth_acl *acl, const bth_acl_change *change)
{
    rights sum = {.mask = ALL, .common_user = ALL, .common_group = ALL};

    for (size_t i = 0; i < acl_count_entries(acl); i++)
        if (acl_get_entry(acl, i).tag == ACL_MASK)
            sum.mask = acl_get_entry(acl, i).rights;
    for (size_t i = 0; i < acl_count_entries(acl); i++) {
        entry each = acl_get_entry(acl, i);
        if (each.tag == ACL_USER_OBJ)
            sum.user = each.rights;
        else if (each.tag == ACL_GROUP_OBJ)
            sum.group = each.rights & sum.mask;
        else if (each.tag == ACL_OTHER)
            sum.other = each.rights;
        else if (each.tag == ACL_USER)
            sum.common_user &= each.rights & sum.mask;
        else if (each.tag == ACL_GROUP)
            sum.common_group &= each.rights & sum.mask;
    }
    sum.new_owner = change->owner ? sum.user | READ_AND_WRITE : sum.user;
    return sum;
}

/* ---- passing on ---- */

/* Adds the named entries of one tag, and one for the former owner or group. */
static unsigned acl_add_named_and_former_entries(const bth_acl *old, unsigned tag, unsigned mask,
                                                 bool has_former, uint32_t former,
                                                 unsigned former_rights, bth_acl *made)
{
    unsigned all = 0;

    for (size_t i = 0; i < acl_count_entries(old); i++) {
        entry each = acl_get_entry(old, i);
        if (each.tag != tag)
            continue;
        each.rights &= mask;
        if (has_former && each.id == former)
            continue; /* its rights came from being owner or group: added below */
        acl_add_entry(made, tag, each.rights, each.id);
        all |= each.rights;
    }
    if (has_former)
        acl_add_entry(made, tag, former_rights, former);
    return has_former ? all | former_rights : all;
}

void bth_acl_make_for_new_owner_or_group(const bth_acl *old, const bth_acl_change *change,
                                         bth_acl *made)
{
    rights was = acl_compute_rights_of_all_classes(old, change);
    unsigned group = was.group;

    /* A member of the new group may have been one of the others before, or of any group. */
    if (change->group)
        group &= was.other & was.common_group;
    acl_begin_bytes(made);
    acl_add_entry(made, ACL_USER_OBJ, was.new_owner, NO_ID);
    unsigned mask = group | acl_add_named_and_former_entries(old, ACL_USER, was.mask, change->owner,
                                                             change->old_owner, was.user, made);
    acl_add_entry(made, ACL_GROUP_OBJ, group, NO_ID);
    mask |= acl_add_named_and_former_entries(old, ACL_GROUP, was.mask, change->group,
                                             change->old_group, was.group, made);
    /* With a mask of 0 Linux ignores the named entries: a user whose entry has no rights would get
     * those of the others. So the mask is at least the right to execute, which no entry has. */
    if (made->nbytes > HEAD_NBYTES + 2 * ENTRY_NBYTES)
        acl_add_entry(made, ACL_MASK, mask ? mask : ACL_EXECUTE, NO_ID);
    acl_add_entry(made, ACL_OTHER, was.other, NO_ID);
}

bool bth_acl_compute_narrower_mode(const bth_acl *old, const bth_acl_change *change, mode_t *mode)
{
    rights was = acl_compute_rights_of_all_classes(old, change);
    unsigned group = was.group & was.common_user;
    unsigned other = was.other & was.common_user & was.common_group;

    if (change->group) {
        other &= was.group;
        group &= other;
    }
    unsigned needed = change->owner ? was.user & READ_AND_WRITE : 0;
    if (change->owner) {
        group &= was.user;
        other &= was.user;
    }
    *mode = (mode_t)(was.new_owner << 6 | group << 3 | other);
    return (needed & ~group) == 0 && (needed & ~other) == 0;
}

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

/* Losing them gives nobody access, so the save goes on. */
static int metadata_copy_user_attributes(const metadata *m, berth_error *error)
{
    char *names = bth_allocate(BTH_MAX_XATTR_NBYTES);

    if (!names)
        return bth_fail_memory(error, BTH_MAX_XATTR_NBYTES);
    ssize_t n = bth_xattr_list(m->from, names, BTH_MAX_XATTR_NBYTES);
    if (n < 0 && !bth_xattr_is_absent(errno))
        bth_log("%s: attributes of users are not kept: %s", m->name, bth_errno_text(errno));
    for (const char *at = names; n > 0 && at < names + n; at += strlen(at) + 1) {
        xattr_value old;
        if (strncmp(at, USER_PREFIX, strlen(USER_PREFIX)) != 0 || attribute_is_checksum(at))
            continue;
        int failure = xattr_read(m->from, at, &old);
        if (failure == 0 && old.bytes)
            failure = xattr_write(m->to, at, &old);
        bth_release(old.bytes);
        if (failure != 0)
            bth_log("%s: the attribute %s is not kept: %s", m->name, at, bth_errno_text(failure));
    }
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

/* ---- rights ---- */

static int metadata_fail_lock_out(const metadata *m, berth_error *error)
{
    bth_fail_system(error, EPERM,
                    "cannot be replaced: it belongs to user %ld, who could not use the new file; "
                    "save as that user, or remove the file first",
                    (long)m->old.st_uid);
    return bth_fail_offering_in_place(error);
}

/* Sets the mode and removes an ACL that the folder gave to the new file. Some file systems refuse
 * every chmod (CIFS, WSL, FUSE): an equal mode is not set again. */
static int metadata_set_mode_and_remove_acl(const metadata *m, mode_t mode, berth_error *error)
{
    struct stat status;
    bool has_acl = bth_xattr_get(m->to, POSIX_ACL, NULL, 0) >= 0 ||
                   !(bth_xattr_is_absent(errno) || errno == ENOENT);

    if (has_acl && bth_system.fremovexattr(m->to, POSIX_ACL) < 0)
        mode &= (mode_t)~070; /* if it stays, these bits are its mask: no entry gives access */
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

/* `old`: the old file's ACL. Without bytes: its mode says everything. */
static int metadata_copy_posix_acl_or_mode(const metadata *m, const bth_acl *old,
                                           berth_error *error)
{
    size_t room = bth_acl_new_owner_or_group_max_nbytes(old->nbytes);
    uint8_t *bytes = bth_allocate(2 * room);
    bth_acl was = *old, made = {.bytes = bytes ? bytes + room : NULL};
    const bth_acl *wanted = old->bytes ? old : NULL;
    bool is_changed = m->change.owner || m->change.group;
    bool is_narrower =
        is_changed && (m->has_unmapped_id || !bth_file_system_query(m->to).obeys_acls);

    if (!bytes)
        return bth_fail_memory(error, 2 * room);
    if (!old->bytes) {
        was.bytes = bytes;
        bth_acl_of_mode(m->old.st_mode & 0777, &was);
    }
    if (is_changed) {
        bth_acl_make_for_new_owner_or_group(&was, &m->change, &made);
        wanted = &made;
    }
    int failure = wanted && !is_narrower ? xattr_write(m->to, POSIX_ACL, wanted) : 0;
    if (failure != 0 && !metadata_is_forbidden(failure) && failure != ENOENT)
        (void)bth_fail_system(error, failure, "its ACL cannot be kept");
    else if (is_narrower || failure != 0) { /* the file system has no POSIX ACLs */
        mode_t mode;
        if (!bth_acl_compute_narrower_mode(&was, &m->change, &mode))
            (void)metadata_fail_lock_out(m, error);
        else {
            if (mode != (m->old.st_mode & 0777))
                bth_log("%s: its rights become narrower: mode %03o", m->name, (unsigned)mode);
            (void)metadata_set_mode_and_remove_acl(m, mode, error);
        }
    } else if (!wanted)
        (void)metadata_set_mode_and_remove_acl(m, m->old.st_mode & 0777, error);
    bth_release(bytes);
    return error->code;
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
    bool is_known = failure == 0 && (!posix.bytes || bth_acl_is_valid(posix.bytes, posix.nbytes));
    /* An NFS 4 ACL is kept as it is, or not at all. Every file there has one, mostly the same. */
    if (failure == ENOMEM)
        (void)bth_fail_memory(error, BTH_MAX_XATTR_NBYTES);
    else if (is_known && !nfs4.bytes)
        (void)metadata_copy_posix_acl_or_mode(m, &posix, error);
    else if (!is_known || m->change.owner || m->change.group ||
             xattr_write(m->to, attribute, &nfs4) != 0) {
        /* The old rights are not known: only the owner keeps access. */
        if (m->change.owner)
            (void)metadata_fail_lock_out(m, error);
        else {
            bth_log("%s: only its owner keeps access: its ACL cannot be read or kept", m->name);
            (void)metadata_set_mode_and_remove_acl(m, m->old.st_mode & 0700, error);
        }
    }
    bth_release(nfs4.bytes);
    bth_release(posix.bytes);
    return error->code;
}

int bth_metadata_copy(const bth_target_file *target, int fd, struct stat *copied,
                      berth_error *error)
{
    metadata m = {.name = target->name, .to = fd, .old = target->status};
    struct stat made = {0};

    /* O_PATH, if the file cannot be read. O_NONBLOCK: it may be a pipe by now, or leased. */
    m.from = bth_system.openat(target->folder, target->name,
                               O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0);
    if (m.from < 0 && errno != ENOENT)
        m.from =
            bth_system.openat(target->folder, target->name, O_PATH | O_NOFOLLOW | O_CLOEXEC, 0);
    if ((m.from < 0 && errno != ENOENT) || (m.from >= 0 && bth_system.fstat(m.from, &m.old) < 0))
        (void)bth_fail_system(error, errno, "cannot be examined");
    else if (!S_ISREG(m.old.st_mode))
        (void)bth_fail_system(error, EBUSY, "cannot be replaced: it is no longer a regular file");
    m.change.old_owner = m.old.st_uid;
    m.change.old_group = m.old.st_gid;
    /* If a new file has no label, the system does not use labels, and the old one may be lost.
     * Otherwise another label could give others access. */
    for (size_t i = 0; i < sizeof labels / sizeof *labels && error->code == BERTH_OK; i++) {
        xattr_value old, present = {0};
        int failure = xattr_read(m.from, labels[i], &old);
        if (failure == 0 && old.bytes) {
            failure = xattr_write(m.to, labels[i], &old);
            if (failure != 0 && xattr_read(m.to, labels[i], &present) == 0 && !present.bytes)
                failure = 0;
        }
        bth_release(old.bytes);
        bth_release(present.bytes);
        if (failure != 0 && failure != ENOENT) {
            bth_fail_system(error, failure,
                            "cannot be replaced: its label %s cannot be given to a new file",
                            labels[i]);
            (void)bth_fail_offering_in_place(error);
        }
    }
    if (error->code == BERTH_OK && metadata_copy_user_attributes(&m, error) == 0 &&
        bth_system.fstat(m.to, &made) < 0)
        bth_fail_system(error, errno, "cannot be examined");
    /* The group first, so that no other group can ever open the file. Until it has its mode, only
     * its owner can. */
    if (error->code == BERTH_OK &&
        metadata_copy_user_or_group_id(&m, true, (long)made.st_gid, error) == 0 &&
        metadata_copy_user_or_group_id(&m, false, (long)made.st_uid, error) == 0)
        (void)metadata_copy_rights(&m, error);
    bth_file_close(m.from);
    *copied = m.old;
    return error->code;
}
