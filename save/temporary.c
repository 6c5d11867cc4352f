/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/temporary.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/fnv.h"
#include "io/file.h"
#include "io/syscalls.h"
#include "io/xattr.h"
#include "save/save_error.h"

#define PREFIX ".berth-"
#define SUFFIX ".tmp"
#define N_DIGITS 16
#define N_SLOTS 16
#define CLAIM "user.berth.claim"
#define MAX_CLAIMS 8

/* ---- names ---- */

/* The part behind the hash: nothing, "-0" to "-15", or a dash and random digits. */
static bool temporary_suffix_is_valid(const char *text, size_t nbytes)
{
    char slot[N_DIGITS + 2];

    if (nbytes == 0)
        return true;
    if (text[0] != '-')
        return false;
    if (nbytes == N_DIGITS + 1)
        return strspn(text + 1, "0123456789abcdef") >= N_DIGITS;
    for (int i = 0; i < N_SLOTS; i++)
        if ((size_t)snprintf(slot, sizeof slot, "-%d", i) == nbytes &&
            memcmp(slot, text, nbytes) == 0)
            return true;
    return false;
}

bool bth_temporary_is_name(const char *name)
{
    size_t nbytes = strlen(name), rest = strlen(PREFIX) + N_DIGITS;

    if (nbytes < rest + strlen(SUFFIX) || strncmp(name, PREFIX, strlen(PREFIX)) != 0 ||
        strcmp(name + nbytes - strlen(SUFFIX), SUFFIX) != 0)
        return false;
    return strspn(name + strlen(PREFIX), "0123456789abcdef") == N_DIGITS &&
           temporary_suffix_is_valid(name + rest, nbytes - rest - strlen(SUFFIX));
}

static void temporary_write_slot_name(char name[BTH_TEMPORARY_NAME_NBYTES], uint64_t hash, int slot)
{
    (void)snprintf(name, BTH_TEMPORARY_NAME_NBYTES, PREFIX "%016llx-%d" SUFFIX,
                   (unsigned long long)hash, slot);
}

static int temporary_write_random_name(char name[BTH_TEMPORARY_NAME_NBYTES], uint64_t hash,
                                       berth_error *error)
{
    uint64_t random;
    ssize_t n;

    do
        n = bth_system.getrandom(&random, sizeof random, 0);
    while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof random)
        return bth_fail_system(error, n < 0 ? errno : EIO, "no random name for a temporary file");
    (void)snprintf(name, BTH_TEMPORARY_NAME_NBYTES, PREFIX "%016llx-%016llx" SUFFIX,
                   (unsigned long long)hash, (unsigned long long)random);
    return 0;
}

/* ---- looking at one, and removing it ---- */

static void temporary_read_owner(int fd, const char *attribute,
                                 char text[BTH_TEMPORARY_OWNER_NBYTES])
{
    ssize_t n = bth_xattr_get(fd, attribute, text, BTH_TEMPORARY_OWNER_NBYTES - 1);

    text[n > 0 ? n : 0] = '\0';
}

bool bth_temporary_open(int folder, const char *name, bth_temporary_file *file)
{
    *file = (bth_temporary_file){.fd = -1};
    file->fd = bth_system.openat(folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC, 0);
    if (file->fd < 0)
        return false;
    if (bth_system.fstat(file->fd, &file->status) < 0 || !S_ISREG(file->status.st_mode)) {
        bth_file_close(file->fd);
        return false;
    }
    temporary_read_owner(file->fd, BTH_TEMPORARY_OWNER, file->owner);
    file->state = bth_temporary_owner_state(file->owner);
    return true;
}

/*
 * Makes a claim that no other process can make. Tries the next number if the process of an earlier
 * claim is dead; with `is_old` also if that process is unknown.
 */
static bool temporary_write_claim_attribute(int fd, bool is_old)
{
    char attribute[32], mine[BTH_TEMPORARY_OWNER_NBYTES], other[BTH_TEMPORARY_OWNER_NBYTES];

    if (!bth_temporary_owner_self(mine)) {
        errno = ENOSYS; /* no /proc: processes cannot be identified */
        return false;
    }
    for (int i = 0; i < MAX_CLAIMS; i++) {
        (void)snprintf(attribute, sizeof attribute, CLAIM "%d", i);
        if (bth_xattr_set(fd, attribute, mine, strlen(mine), XATTR_CREATE) == 0)
            return true;
        if (errno != EEXIST)
            return false;
        temporary_read_owner(fd, attribute, other);
        berth_temporary_state state = bth_temporary_owner_state(other);
        if (state == BERTH_TEMPORARY_ALIVE || (state == BERTH_TEMPORARY_UNKNOWN && !is_old)) {
            errno = EEXIST;
            return false;
        }
    }
    return false;
}

/* Whether the name still leads to this file. */
static bool temporary_name_leads_to_file(int folder, const char *name,
                                         const bth_temporary_file *file)
{
    struct stat named;

    return bth_system.fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           named.st_dev == file->status.st_dev && named.st_ino == file->status.st_ino;
}

/*
 * A full disk may have no room for the claim: truncates the file of a dead save. Nobody reads it,
 * and it has no other name. Its process was dead before its name was checked, so it can no longer
 * become the target.
 */
static bool temporary_truncate_to_make_room(int folder, const char *name,
                                            const bth_temporary_file *file)
{
    struct stat now;

    if (file->state != BERTH_TEMPORARY_DEAD || !temporary_name_leads_to_file(folder, name, file) ||
        bth_system.fstat(file->fd, &now) < 0 || now.st_nlink != 1)
        return false;
    int fd = bth_file_open_again(file->fd, O_WRONLY | O_NONBLOCK);
    bool made = fd >= 0 && bth_system.ftruncate(fd, 0) == 0;
    bth_file_close(fd);
    return made;
}

static bool temporary_claim_for_removal(int folder, const char *name,
                                        const bth_temporary_file *file, bool is_old)
{
    if (temporary_write_claim_attribute(file->fd, is_old))
        return true;
    if ((errno != ENOSPC && errno != EDQUOT) ||
        !temporary_truncate_to_make_room(folder, name, file))
        return false;
    return temporary_write_claim_attribute(file->fd, is_old);
}

/*
 * File systems without extended attributes have no claims: there only `berth clean` removes. A file
 * that lost its name meanwhile may have become a target: it gets no claim.
 */
bool bth_temporary_claim_and_remove(int folder, const char *name, bth_temporary_file *file,
                                    bool is_old)
{
    errno = 0;
    if (!temporary_name_leads_to_file(folder, name, file))
        return false;
    errno = 0;
    if (!temporary_claim_for_removal(folder, name, file, is_old) && !bth_xattr_is_absent(errno))
        return false;
    errno = 0;
    return temporary_name_leads_to_file(folder, name, file) &&
           bth_system.unlinkat(folder, name, 0) == 0;
}

/* X5: removes a name if its save is certainly dead. *exists: something has the name. */
static bool temporary_remove_if_save_is_dead(int folder, const char *name, bool *exists)
{
    bth_temporary_file file;
    bool removed = false;

    *exists = bth_temporary_open(folder, name, &file);
    if (!*exists)
        return false;
    if (file.state == BERTH_TEMPORARY_DEAD)
        removed = bth_temporary_claim_and_remove(folder, name, &file, false);
    if (removed)
        bth_log("removed %s, left by a save that was killed", name);
    bth_file_close(file.fd);
    return removed;
}

/* ---- creating ---- */

/* W7: O_EXCL, so that no two saves share one. */
static int temporary_open_new(int folder, const char *name, mode_t mode)
{
    int fd;

    do
        fd = bth_system.openat(folder, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                               mode);
    while (fd < 0 && errno == EINTR);
    return fd;
}

/* Opens the first slot that is free, or that a dead save left. -1 and EEXIST: there is none. */
static int temporary_create_in_free_slot(int folder, uint64_t hash, mode_t mode, char *name)
{
    bool exists;

    for (int slot = 0; slot < N_SLOTS; slot++) {
        temporary_write_slot_name(name, hash, slot);
        int fd = temporary_open_new(folder, name, mode);
        if (fd < 0 && errno == EEXIST) {
            if (!temporary_remove_if_save_is_dead(folder, name, &exists))
                continue;
            fd = temporary_open_new(folder, name, mode);
        }
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    errno = EEXIST;
    return -1;
}

static int temporary_create_with_random_name(int folder, uint64_t hash, mode_t mode, char *name,
                                             berth_error *error)
{
    if (temporary_write_random_name(name, hash, error) < 0)
        return -1;
    return temporary_open_new(folder, name, mode);
}

/* Removes later slots, of killed saves that ran side by side. */
static void temporary_remove_later_slots_of_dead_saves(int folder, uint64_t hash,
                                                       const char *created)
{
    char name[BTH_TEMPORARY_NAME_NBYTES];
    bool exists = true, is_behind = false;

    for (int slot = 0; slot < N_SLOTS && exists; slot++) {
        temporary_write_slot_name(name, hash, slot);
        if (is_behind)
            (void)temporary_remove_if_save_is_dead(folder, name, &exists);
        is_behind |= strcmp(name, created) == 0;
    }
}

/* X6: where that cannot be kept, it is left to `berth clean`. */
static void temporary_set_owner(int fd)
{
    char owner[BTH_TEMPORARY_OWNER_NBYTES];

    if (bth_temporary_owner_self(owner))
        (void)bth_xattr_set(fd, BTH_TEMPORARY_OWNER, owner, strlen(owner), 0);
}

int bth_temporary_create(int folder, const char *target, mode_t mode, int *fd,
                         char name[BTH_TEMPORARY_NAME_NBYTES], berth_error *error)
{
    uint64_t hash = bth_fnv_update(BTH_FNV_BEGIN, target, strlen(target));
    char owner[BTH_TEMPORARY_OWNER_NBYTES];

    /* It is remembered: a kill soon after the creation would leave it without owner. */
    (void)bth_temporary_owner_self(owner);
    int created = temporary_create_in_free_slot(folder, hash, mode, name);

    if (created < 0 && errno == EEXIST)
        created = temporary_create_with_random_name(folder, hash, mode, name, error);
    if (error->code != BERTH_OK)
        return error->code;
    if (created < 0)
        return bth_fail_system(error, errno, "no temporary file can be created in its folder");
    if (bth_temporary_is_lost(folder, name, created)) { /* X10 */
        bth_file_close(created);
        return bth_fail_system(error, EBUSY,
                               "its temporary file, or the descriptor of it, was replaced");
    }
    temporary_set_owner(created);
    temporary_remove_later_slots_of_dead_saves(folder, hash, name);
    *fd = created;
    return 0;
}

bool bth_temporary_is_lost(int folder, const char *name, int fd)
{
    struct stat open, named;

    if (bth_system.fstat(fd, &open) < 0)
        return false;
    if (bth_system.fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT;
    return named.st_dev != open.st_dev || named.st_ino != open.st_ino;
}

/* ---- what a file system may lack ---- */

/* FUSE tells a file system that a file was closed when it likes: such a removal is tried again. */
static void temporary_remove(int folder, const char *name)
{
    int milliseconds = 1;

    while (bth_system.unlinkat(folder, name, 0) < 0) {
        if ((errno != EPERM && errno != EBUSY && errno != ETXTBSY) || milliseconds > 64) {
            bth_log("%s cannot be removed: %s", name, bth_errno_text(errno));
            return;
        }
        (void)bth_system.poll(NULL, 0, milliseconds);
        milliseconds *= 4;
    }
}

void bth_temporary_close_and_remove(int folder, const char *name, int fd)
{
    bool is_lost = fd < 0 || bth_temporary_is_lost(folder, name, fd);

    bth_file_close(fd);
    if (!is_lost)
        temporary_remove(folder, name);
}

int bth_temporary_try_rename(int folder, const char *target, mode_t mode, int *fd,
                             const char name[BTH_TEMPORARY_NAME_NBYTES], berth_error *error)
{
    uint64_t hash = bth_fnv_update(BTH_FNV_BEGIN, target, strlen(target));
    char other[BTH_TEMPORARY_NAME_NBYTES] = "";
    int created = temporary_create_with_random_name(folder, hash, mode, other, error), failure = 0;

    if (error->code == BERTH_OK && created < 0)
        bth_fail_system(error, errno, "no temporary file can be created in its folder");
    if (error->code == BERTH_OK) {
        temporary_set_owner(created);
        bth_file_close(*fd);
        *fd = -1;
        failure = bth_system.renameat(folder, other, folder, name) < 0 ? errno : 0;
    }
    if (error->code == BERTH_OK && failure == 0) {
        *fd = created;
        return 0;
    }
    bth_temporary_close_and_remove(folder, other, created);
    if (*fd < 0)
        temporary_remove(folder, name);
    return failure ? bth_fail_system(error, failure, "its file system cannot rename files")
                   : error->code;
}
