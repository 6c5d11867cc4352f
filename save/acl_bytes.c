/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/acl_bytes.h"

#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>

#include "format/bytes.h"

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

    if (bth_cursor_u32(&head) != POSIX_ACL_XATTR_VERSION || !head.good ||
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
    unsigned common_user, common_group; /* ALL: there are no named entries */
} rights;

static rights acl_compute_rights_of_all_classes(const bth_acl *acl)
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
    return sum;
}

/* An owner can always change the mode, and the new owner wrote the file. */
static unsigned acl_new_owner_rights(const rights *old, const bth_acl_change *change)
{
    return change->owner ? old->user | READ_AND_WRITE : old->user;
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
    rights was = acl_compute_rights_of_all_classes(old);
    unsigned group = was.group;

    /* A member of the new group may have been one of the others before, or of any group. */
    if (change->group)
        group &= was.other & was.common_group;
    acl_begin_bytes(made);
    acl_add_entry(made, ACL_USER_OBJ, acl_new_owner_rights(&was, change), NO_ID);
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
    rights was = acl_compute_rights_of_all_classes(old);
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
    *mode = (mode_t)(acl_new_owner_rights(&was, change) << 6 | group << 3 | other);
    return (needed & ~group) == 0 && (needed & ~other) == 0;
}
