/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Rights that are passed on to a file of another owner or group (X1): all ACLs of a small world are
 * tried, and what each of its people could do before is compared with what they can do afterwards.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <linux/posix_acl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "format/bytes.h"
#include "io/syscalls.h"
#include "save/target_file.h"

/* Users and groups. The new owner is the one who saves; the new group is the saver's. */
enum { OWNER = 1, SAVER = 2, NAMED = 3, STRANGER = 4 };
enum { TEAM = 1, SAVERS = 2, NAMED_GROUP = 3 };

typedef struct access_list {
    uint8_t bytes[128];
    bth_acl acl;
} access_list;

static void add(access_list *list, unsigned tag, unsigned rights, uint32_t id)
{
    uint8_t *at = list->bytes + list->acl.nbytes;

    at = bth_put_u16(at, tag);
    at = bth_put_u16(at, rights);
    (void)bth_put_u32(at, id);
    list->acl.nbytes += 8;
}

/* What POSIX.1e says: the first class that somebody is in decides; of groups any will do. */
static bool may(const bth_acl *acl, unsigned owner, unsigned group, unsigned user, unsigned groups,
                unsigned wanted)
{
    unsigned mask = 7, named = 8, other = 0, user_obj = 0;
    bool in_group = false, by_group = false;

    for (size_t at = 4; at < acl->nbytes; at += 8)
        if (acl->bytes[at] == ACL_MASK)
            mask = acl->bytes[at + 2];
    for (size_t at = 4; at < acl->nbytes; at += 8) {
        unsigned tag = acl->bytes[at], rights = acl->bytes[at + 2], id = acl->bytes[at + 4];
        if (tag == ACL_USER_OBJ)
            user_obj = rights;
        if (tag == ACL_OTHER)
            other = rights;
        if (tag == ACL_USER && id == user)
            named = rights & mask;
        unsigned which = tag == ACL_GROUP_OBJ ? group : id;
        if ((tag == ACL_GROUP_OBJ || tag == ACL_GROUP) && (groups & 1u << which)) {
            in_group = true;
            by_group |= (rights & mask & wanted) == wanted;
        }
    }
    if (user == owner)
        return (user_obj & wanted) == wanted;
    if (named < 8)
        return (named & wanted) == wanted;
    return in_group ? by_group : (other & wanted) == wanted;
}

typedef struct world {
    const bth_acl *old;
    bth_acl_change change;
    unsigned owner, group; /* of the new file */
} world;

/* Linux looks at named entries only where the mask, which is the mode's group bits, is not 0. */
static bool is_looked_at(const bth_acl *acl)
{
    for (size_t at = 4; at < acl->nbytes; at += 8)
        if (acl->bytes[at] == ACL_MASK)
            return acl->bytes[at + 2] != 0;
    return true;
}

/* Nobody but the saver can do more. With an ACL, old owner and old group can do no less. */
static void compare(const world *w, const bth_acl *new, bool is_acl)
{
    static const unsigned asked[] = {4, 2, 6};

    for (unsigned user = OWNER; user <= STRANGER; user++)
        for (unsigned groups = 0; groups < 16; groups += 2)
            for (size_t i = 0; i < 3; i++) {
                bool before = may(w->old, OWNER, TEAM, user, groups, asked[i]);
                bool after = may(new, w->owner, w->group, user, groups, asked[i]);
                if (user == w->owner && w->change.owner)
                    continue;
                cr_assert(before || !after, "user %u of groups %x may do %u now", user, groups,
                          asked[i]);
                if (is_acl && user == OWNER)
                    cr_assert_eq(before, after, "the old owner of groups %x, %u", groups, asked[i]);
                if (is_acl && user == STRANGER && groups == 1u << TEAM)
                    cr_assert_eq(before, after, "the old group, %u", asked[i]);
            }
}

static size_t n_worlds;

static void check_world(const bth_acl *old, bool change_owner, bool change_group)
{
    access_list made = {0}, plain = {0};
    world w = {.old = old,
               .change = {.owner = change_owner,
                          .group = change_group,
                          .old_owner = OWNER,
                          .old_group = TEAM},
               .owner = change_owner ? SAVER : OWNER,
               .group = change_group ? SAVERS : TEAM};
    mode_t mode;

    cr_assert_leq(bth_acl_new_owner_or_group_max_nbytes(old->nbytes), sizeof made.bytes);
    made.acl.bytes = made.bytes;
    plain.acl.bytes = plain.bytes;
    bth_acl_make_for_new_owner_or_group(old, &w.change, &made.acl);
    cr_assert(bth_acl_is_valid(made.acl.bytes, made.acl.nbytes));
    cr_assert((!change_owner && !change_group) || is_looked_at(&made.acl));
    compare(&w, &made.acl, true);
    bool keeps_owner = bth_acl_compute_narrower_mode(old, &w.change, &mode);
    bth_acl_of_mode(mode, &plain.acl);
    compare(&w, &plain.acl, false);
    for (unsigned groups = 0; keeps_owner && groups < 16; groups += 2)
        for (unsigned wanted = 2; wanted <= 6; wanted += 2)
            cr_assert(!may(old, OWNER, TEAM, OWNER, groups, wanted) ||
                      may(&plain.acl, w.owner, w.group, OWNER, groups, wanted));
    n_worlds++;
}

/* `n` counts through all rights of all entries, two bits each. */
static void make_acl(access_list *list, unsigned n, bool is_extended)
{
    unsigned rights[6];

    for (size_t i = 0; i < 6; i++)
        rights[i] = (n >> (2 * i) & 3) * 2;
    *list = (access_list){.acl = {.nbytes = 4}};
    list->acl.bytes = list->bytes;
    (void)bth_put_u32(list->bytes, 2);
    add(list, ACL_USER_OBJ, rights[0], UINT32_MAX);
    if (is_extended)
        add(list, ACL_USER, rights[3], NAMED);
    add(list, ACL_GROUP_OBJ, rights[1], UINT32_MAX);
    if (is_extended) {
        add(list, ACL_GROUP, rights[4], NAMED_GROUP);
        add(list, ACL_MASK, rights[5], UINT32_MAX);
    }
    add(list, ACL_OTHER, rights[2], UINT32_MAX);
}

/* X1 */
Test(acl, nobody_can_do_more_by_rights_that_were_passed_on)
{
    for (unsigned extended = 0; extended < 2; extended++)
        for (unsigned n = 0; n < (extended ? 4096u : 64u); n++)
            for (unsigned change = 0; change < 4; change++) {
                access_list list;
                make_acl(&list, n, extended);
                cr_assert(bth_acl_is_valid(list.acl.bytes, list.acl.nbytes));
                check_world(&list.acl, change & 1, change & 2);
            }
    cr_assert_eq(n_worlds, 4 * (4096 + 64));
}

/* X1 */
Test(acl, what_is_no_acl_is_told)
{
    access_list good;

    make_acl(&good, 1234, true);
    for (size_t n = 0; n < good.acl.nbytes; n++)
        cr_assert_not(bth_acl_is_valid(good.bytes, n), "%zu bytes", n);
    static const struct {
        size_t at;
        uint8_t byte;
    } changes[] = {{0, 3}, {4, 0},  {4, 3},  {4, 64},  {4, 4},
                   {6, 8}, {12, 1}, {36, 8}, {28, 10}, {36, 24}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        make_acl(&good, 1234, true);
        good.bytes[changes[i].at] = changes[i].byte;
        cr_assert_not(bth_acl_is_valid(good.bytes, good.acl.nbytes), "change %zu", i);
    }
    /* An entry of nobody, in front of good ones. */
    access_list more = {.acl = {.nbytes = 4}};
    make_acl(&good, 1234, true);
    more.acl.bytes = more.bytes;
    (void)bth_put_u32(more.bytes, 2);
    add(&more, 0, 0, 0);
    memcpy(more.bytes + more.acl.nbytes, good.bytes + 4, good.acl.nbytes - 4);
    cr_assert_not(bth_acl_is_valid(more.bytes, more.acl.nbytes + good.acl.nbytes - 4));
    /* In another order. */
    static const unsigned orders[][3] = {{ACL_USER_OBJ, ACL_GROUP_OBJ, ACL_OTHER},
                                         {ACL_USER_OBJ, ACL_OTHER, ACL_GROUP_OBJ}};
    for (size_t i = 0; i < 2; i++) {
        more.acl.nbytes = 4;
        for (size_t k = 0; k < 3; k++)
            add(&more, orders[i][k], 4, UINT32_MAX);
        cr_assert_eq(bth_acl_is_valid(more.bytes, more.acl.nbytes), i == 0);
    }
}

static const char *map;

static int open_map(const char *name, int flags, mode_t mode)
{
    (void)flags, (void)mode;
    if (!map || strcmp(name, "/proc/self/gid_map") != 0) {
        errno = ENOENT;
        return -1;
    }
    int fd = memfd_create("map", MFD_CLOEXEC);
    cr_assert_eq(write(fd, map, strlen(map)), (ssize_t)strlen(map));
    return fd;
}

/* 65534 is an id as any other where all ids are, and else what stands for those outside. */
Test(acl, an_id_may_stand_for_those_outside)
{
    static const struct {
        const char *map;
        unsigned id;
        bool is_unmapped;
    } cases[] = {
        {"         0          0 4294967295\n", 65534, false},
        {"0 0 4294967294\n", 65534, true},
        {"0 0 65536\n", 65534, true},
        {"0 1 4294967295\n", 65534, true},
        {"1 0 4294967295\n", 65534, true},
        {"", 65534, true},
        {NULL, 65534, true},
        {"0 0 1\n", 65533, false},
    };

    bth_system.open = open_map;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        map = cases[i].map;
        cr_expect_eq(bth_id_is_unmapped(cases[i].id, true), cases[i].is_unmapped, "%zu", i);
    }
    bth_system_restore();
}
