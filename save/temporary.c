/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/temporary.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/fnv.h"
#include "base/lock.h"
#include "io/file.h"
#include "io/syscalls.h"

/*
 * The process that owns a temporary, as text (X5): "1 <boot id> <pid namespace> <time namespace>
 * <pid> <start>". Two hosts have two boot ids, and two containers of one host have two pid
 * namespaces. If a pid is used again, the start differs. It is in clock ticks since the boot, as
 * the time namespace counts them.
 */

#define STAT_NBYTES 1024
#define LINK_NBYTES 64
/* Numbers of fields in /proc/PID/stat. The second is the program's name, in parentheses. */
#define STATE_FIELD 3
#define N_THREADS_FIELD 20
#define START_FIELD 22

/* Parses a number without sign or blank, up to the character `end`. */
static bool owner_parse_number(const char **at, char end, unsigned long long *number)
{
    char *behind;

    if (**at < '0' || **at > '9')
        return false;
    errno = 0;
    *number = strtoull(*at, &behind, 10);
    *at = behind + 1;
    return errno == 0 && *behind == end;
}

static bool owner_read_link(const char *path, char text[LINK_NBYTES])
{
    ssize_t n = bth_system.readlinkat(AT_FDCWD, path, text, LINK_NBYTES - 1);

    text[n > 0 ? n : 0] = '\0';
    return n > 0;
}

/* Reads the number in a namespace's link, "pid:[4026531836]". */
static bool owner_read_namespace(const char *path, unsigned long long *number)
{
    char text[LINK_NBYTES];
    const char *at = owner_read_link(path, text) ? strchr(text, '[') : NULL;

    return at && owner_parse_number(&(const char *){at + 1}, ']', number);
}

/*
 * Reads when a process started, in clock ticks since the boot. `of`: its part of the path.
 * *is_over: it has ended (a zombie), and none of its threads runs.
 */
static bool owner_read_start_time_and_state(const char *of, unsigned long long *start,
                                            bool *is_over)
{
    char path[LINK_NBYTES], text[STAT_NBYTES], state = ' ';
    unsigned long long n_threads = 0;

    (void)snprintf(path, sizeof path, "/proc/%.40s/stat", of);
    if (!bth_file_read_start_as_text(path, text, sizeof text))
        return false;
    const char *at = strrchr(text, ')'); /* the name may hold parentheses */
    for (int field = 3; at && field <= START_FIELD; field++) {
        at = strchr(at + 1, ' ');
        if (at && field == STATE_FIELD)
            state = at[1];
        if (at && field == N_THREADS_FIELD)
            (void)owner_parse_number(&(const char *){at + 1}, ' ', &n_threads);
    }
    *is_over = state == 'X' || (state == 'Z' && n_threads <= 1);
    return at && owner_parse_number(&(const char *){at + 1}, ' ', start);
}

/* ---- this process ---- */

/* What /proc says of this process, read once. */
static struct {
    bth_lock lock;    /* of the rest */
    uint64_t process; /* that read it; 0: none */
    pid_t id;         /* the same, as a pid: with another process's, this one would look dead */
    char host[BTH_TEMPORARY_OWNER_NBYTES]; /* "1 <boot id> <pid namespace> <time namespace> "; "":
                                            * no /proc
                                            */
    unsigned long long start;
} known;

/*
 * False without /proc. `host` has BTH_TEMPORARY_OWNER_NBYTES bytes.
 *
 * The start is that of the first thread: in qemu that in /proc/self/stat is wrong. If /proc belongs
 * to another pid namespace, the thread has another number there. Kernels before 5.6 have no time
 * namespaces. /proc/self has no namespaces after the first thread's end.
 */
static bool owner_get_own_host_and_start(char *host, unsigned long long *start)
{
    char first[LINK_NBYTES], boot[LINK_NBYTES];
    unsigned long long processes, time = 0;
    bool is_over;

    (void)bth_lock_acquire(&known.lock);
    if (known.process != bth_process_unique_number() || known.id != getpid()) {
        known.host[0] = '\0';
        (void)snprintf(first, sizeof first, "self/task/%ld", (long)getpid());
        if ((owner_read_start_time_and_state(first, &known.start, &is_over) ||
             owner_read_start_time_and_state("self", &known.start, &is_over)) &&
            bth_file_read_start_as_text("/proc/sys/kernel/random/boot_id", boot, sizeof boot) &&
            owner_read_namespace("/proc/thread-self/ns/pid", &processes)) {
            boot[strcspn(boot, " \n")] = '\0';
            (void)owner_read_namespace("/proc/thread-self/ns/time", &time);
            (void)snprintf(known.host, sizeof known.host, "1 %s %llu %llu ", boot, processes, time);
        }
        known.process = known.host[0] ? bth_process_unique_number() : 0;
        known.id = getpid();
    }
    memcpy(host, known.host, sizeof known.host);
    *start = known.start;
    bth_lock_release(&known.lock);
    return host[0];
}

bool bth_temporary_owner_self(char text[BTH_TEMPORARY_OWNER_NBYTES])
{
    unsigned long long start;

    if (!owner_get_own_host_and_start(text, &start))
        return false;
    size_t n = strlen(text);
    (void)snprintf(text + n, BTH_TEMPORARY_OWNER_NBYTES - n, "%ld %llu", (long)getpid(), start);
    return true;
}

/* ---- another one ---- */

/* Whether the process that a text names is alive. `text` may hold anything. DEAD only if this
 * kernel says so (X5): a process that it does not call dead counts as alive. */
static berth_temporary_state temporary_owner_state(const char *text)
{
    char host[BTH_TEMPORARY_OWNER_NBYTES], self[LINK_NBYTES], first[LINK_NBYTES];
    unsigned long long process, start, now;
    bool is_over;

    if (!owner_get_own_host_and_start(host, &start) || strncmp(text, host, strlen(host)) != 0)
        return BERTH_TEMPORARY_UNKNOWN;
    /* Anybody may have written it: kill takes a pid of 0 or less for a group. */
    const char *at = text + strlen(host);
    if (!owner_parse_number(&at, ' ', &process) || process == 0 || process > INT32_MAX ||
        !owner_parse_number(&at, '\0', &start))
        return BERTH_TEMPORARY_UNKNOWN;
    if (bth_system.kill((pid_t)process, 0) < 0 && errno == ESRCH)
        return BERTH_TEMPORARY_DEAD;
    (void)snprintf(first, sizeof first, "%llu/task/%llu", process, process);
    /* Whether /proc has this process's pids: it may belong to another pid namespace. */
    if (owner_read_link("/proc/self", self) && strtol(self, NULL, 10) == (long)getpid() &&
        owner_read_start_time_and_state(first, &now, &is_over) && (now != start || is_over))
        return BERTH_TEMPORARY_DEAD;
    return BERTH_TEMPORARY_ALIVE;
}

#define PREFIX ".berth-"
#define SUFFIX ".tmp"
#define N_DIGITS 16
#define N_SLOTS 16
#define CLAIM "user.berth.claim"
#define MAX_CLAIMS 8

/* ---- names ---- */

/* Behind the hash: nothing, "-0" to "-15", or a dash and random digits. */
bool bth_temporary_is_name(const char *name)
{
    static const char digits[] = "0123456789abcdef";
    size_t nbytes = strlen(name), head = strlen(PREFIX) + N_DIGITS;
    char slot[N_DIGITS + 2];

    if (nbytes < head + strlen(SUFFIX) || strncmp(name, PREFIX, strlen(PREFIX)) != 0 ||
        strcmp(name + nbytes - strlen(SUFFIX), SUFFIX) != 0 ||
        strspn(name + strlen(PREFIX), digits) != N_DIGITS)
        return false;
    const char *text = name + head;
    nbytes -= head + strlen(SUFFIX);
    if (nbytes == 0)
        return true;
    if (text[0] == '-' && nbytes == N_DIGITS + 1)
        return strspn(text + 1, digits) >= N_DIGITS;
    for (int i = 0; i < N_SLOTS; i++)
        if ((size_t)snprintf(slot, sizeof slot, "-%d", i) == nbytes &&
            memcmp(slot, text, nbytes) == 0)
            return true;
    return false;
}

static void temporary_write_slot_name(char name[BTH_TEMPORARY_NAME_NBYTES], uint64_t hash, int slot)
{
    (void)snprintf(name, BTH_TEMPORARY_NAME_NBYTES, PREFIX "%016llx-%d" SUFFIX,
                   (unsigned long long)hash, slot);
}

/* ---- looking at one, and removing it ---- */

/* A temporary that exists. */
typedef struct temporary_file {
    int fd;                                 /* O_PATH */
    struct stat status;                     /* of a regular file */
    char owner[BTH_TEMPORARY_OWNER_NBYTES]; /* "": none */
    berth_temporary_state state;
} temporary_file;

static void temporary_read_owner(int fd, const char *attribute,
                                 char text[BTH_TEMPORARY_OWNER_NBYTES])
{
    ssize_t n = bth_xattr_get(fd, attribute, text, BTH_TEMPORARY_OWNER_NBYTES - 1);

    text[n > 0 ? n : 0] = '\0';
}

/* False: the name has no regular file. Else the caller closes file->fd. */
static bool temporary_open(int folder, const char *name, temporary_file *file)
{
    *file = (temporary_file){.fd = -1};
    file->fd = bth_system.openat(folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC, 0);
    if (file->fd < 0)
        return false;
    if (bth_system.fstat(file->fd, &file->status) < 0 || !S_ISREG(file->status.st_mode)) {
        bth_file_close(file->fd);
        return false;
    }
    temporary_read_owner(file->fd, BTH_TEMPORARY_OWNER, file->owner);
    file->state = temporary_owner_state(file->owner);
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
        berth_temporary_state state = temporary_owner_state(other);
        if (state == BERTH_TEMPORARY_ALIVE || (state == BERTH_TEMPORARY_UNKNOWN && !is_old)) {
            errno = EEXIST;
            return false;
        }
    }
    return false;
}

/* Whether the name still leads to this file. */
static bool temporary_name_leads_to_file(int folder, const char *name, const temporary_file *file)
{
    struct stat named;

    return bth_system.fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           named.st_dev == file->status.st_dev && named.st_ino == file->status.st_ino;
}

/*
 * Removes it. False: another process does, or errno says why not; EEXIST: another process has
 * claimed it. `is_old`: a process on another host that claimed it counts as gone.
 *
 * File systems without extended attributes have no claims: there only `berth clean` removes. A file
 * that lost its name meanwhile may have become a target: it gets no claim.
 */
static bool temporary_claim_and_remove(int folder, const char *name, temporary_file *file,
                                       bool is_old)
{
    struct stat now;

    errno = 0;
    if (!temporary_name_leads_to_file(folder, name, file))
        return false;
    errno = 0;
    bool is_claimed = temporary_write_claim_attribute(file->fd, is_old);
    /* A full disk may have no room for the claim: truncates the file of a dead save. Nobody reads
     * it, and it has no other name. Its process was dead before its name was checked, so it can no
     * longer become the target. */
    if (!is_claimed && (errno == ENOSPC || errno == EDQUOT) &&
        file->state == BERTH_TEMPORARY_DEAD && temporary_name_leads_to_file(folder, name, file) &&
        bth_system.fstat(file->fd, &now) == 0 && now.st_nlink == 1) {
        int fd = bth_file_open_again(file->fd, O_WRONLY | O_NONBLOCK);
        bool is_cut = fd >= 0 && bth_system.ftruncate(fd, 0) == 0;
        bth_file_close(fd);
        is_claimed = is_cut && temporary_write_claim_attribute(file->fd, is_old);
    }
    if (!is_claimed && !bth_xattr_is_absent(errno))
        return false;
    errno = 0;
    return temporary_name_leads_to_file(folder, name, file) &&
           bth_system.unlinkat(folder, name, 0) == 0;
}

/* X5: removes a name if its save is certainly dead. *exists: something has the name. */
static bool temporary_remove_if_save_is_dead(int folder, const char *name, bool *exists)
{
    temporary_file file;
    bool removed = false;

    *exists = temporary_open(folder, name, &file);
    if (!*exists)
        return false;
    if (file.state == BERTH_TEMPORARY_DEAD)
        removed = temporary_claim_and_remove(folder, name, &file, false);
    if (removed)
        bth_log("removed %s, left by a save that was killed", name);
    bth_file_close(file.fd);
    return removed;
}

/* ---- creating ---- */

/* W7: O_EXCL, so that no two saves share one. Returns the descriptor, or -errno. */
static int temporary_try_to_create(int folder, const char *name, mode_t mode)
{
    int fd;

    BTH_REPEAT(fd, bth_system.openat(folder, name,
                                     O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
    return fd < 0 ? -errno : fd;
}

/*
 * Creates one in the first slot that is free, or that a dead save left; if there is none, or
 * without `in_slot`, with a random name. -1: the error is set.
 */
static int temporary_create(int folder, uint64_t hash, mode_t mode, bool in_slot, char *name,
                            berth_error *error)
{
    char owner[BTH_TEMPORARY_OWNER_NBYTES];
    /* It is remembered: a kill soon after the creation would leave it without owner. X6: where it
     * cannot be kept, the file is left to `berth clean`. */
    bool has_owner = bth_temporary_owner_self(owner), exists;
    int fd = -EEXIST;

    for (int slot = 0; in_slot && slot < N_SLOTS && fd == -EEXIST; slot++) {
        temporary_write_slot_name(name, hash, slot);
        fd = temporary_try_to_create(folder, name, mode);
        if (fd == -EEXIST && temporary_remove_if_save_is_dead(folder, name, &exists))
            fd = temporary_try_to_create(folder, name, mode);
    }
    if (fd == -EEXIST) {
        uint64_t random;
        ssize_t n;
        BTH_REPEAT(n, bth_system.getrandom(&random, sizeof random, 0));
        if (n != (ssize_t)sizeof random) {
            bth_fail_system(error, n < 0 ? errno : EIO, "no random name for a temporary file");
            return -1;
        }
        (void)snprintf(name, BTH_TEMPORARY_NAME_NBYTES, PREFIX "%016llx-%016llx" SUFFIX,
                       (unsigned long long)hash, (unsigned long long)random);
        fd = temporary_try_to_create(folder, name, mode);
    }
    if (fd < 0)
        return bth_fail_system(error, -fd, "no temporary file can be created in its folder"), -1;
    if (bth_temporary_is_lost(folder, name, fd)) { /* X10 */
        bth_file_close(fd);
        bth_fail_system(error, EBUSY, "its temporary file, or the descriptor of it, was replaced");
        return -1;
    }
    if (has_owner)
        (void)bth_xattr_set(fd, BTH_TEMPORARY_OWNER, owner, strlen(owner), 0);
    return fd;
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

int bth_temporary_create(int folder, const char *target, mode_t mode, bool tries_rename, int *fd,
                         char name[BTH_TEMPORARY_NAME_NBYTES], berth_error *error)
{
    uint64_t hash = bth_fnv_update(BTH_FNV_BEGIN, target, strlen(target));
    char other[BTH_TEMPORARY_NAME_NBYTES];
    bool exists = true, is_behind = false;
    int failure = 0;

    *fd = temporary_create(folder, hash, mode, true, name, error);
    /* Removes later slots, of killed saves that ran side by side. */
    for (int slot = 0; slot < N_SLOTS && exists && *fd >= 0; slot++) {
        temporary_write_slot_name(other, hash, slot);
        if (is_behind)
            (void)temporary_remove_if_save_is_dead(folder, other, &exists);
        is_behind |= strcmp(other, name) == 0;
    }
    if (*fd < 0 || !tries_rename)
        return error->code;
    /* Another one is renamed over it, and takes its place. */
    int created = temporary_create(folder, hash, mode, false, other, error);
    if (created >= 0) {
        bth_file_close(*fd);
        *fd = -1;
        failure = bth_system.renameat(folder, other, folder, name) < 0 ? errno : 0;
        if (failure == 0) {
            *fd = created;
            return 0;
        }
    }
    bth_temporary_close_and_remove(folder, other, created);
    if (*fd < 0)
        temporary_remove(folder, name);
    if (failure == 0)
        return error->code;
    return bth_fail_system(error, failure,
                           failure == EEXIST /* some mounts rename only to a name that is free */
                               ? "its file system cannot replace a file by a rename"
                               : "its file system cannot rename files");
}

/* ---- those of a folder ---- */

/* A removal that another process makes first is no failure. A file of an unknown process is removed
 * by its age: writes to it would change its time. */
int berth_clean_temporaries(const char *folder, uint32_t flags, double min_age_seconds,
                            berth_temporary_function report, void *context, berth_error *error)
{
    /* getdents64 fills it with aligned entries of different lengths. */
    _Alignas(struct dirent64) char entries[8192];
    const struct dirent64 *entry;
    struct timespec now;
    int opened;
    ssize_t n;

    BTH_ERROR_BEGIN(error);
    if (!folder || !report || (flags & ~BERTH_CLEAN_REMOVE))
        return bth_fail_argument(error, "%s",
                                 !folder   ? "the folder is NULL"
                                 : !report ? "the function is NULL"
                                           : "unknown flags");
    BTH_REPEAT(opened, bth_system.openat(AT_FDCWD, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0));
    if (opened < 0) {
        (void)bth_fail_system(error, errno, "cannot be opened");
        return bth_error_prefix(error, folder);
    }
    (void)clock_gettime(CLOCK_REALTIME, &now);
    while ((n = bth_system.getdents64(opened, entries, sizeof entries)) > 0) {
        for (ssize_t at = 0; at < n; at += entry->d_reclen) {
            temporary_file file;
            berth_error why;
            entry = (const void *)(entries + at);
            if (!bth_temporary_is_name(entry->d_name) ||
                !temporary_open(opened, entry->d_name, &file))
                continue;
            const struct timespec *then = &file.status.st_mtim;
            double age =
                difftime(now.tv_sec, then->tv_sec) + (double)(now.tv_nsec - then->tv_nsec) * 1e-9;
            berth_temporary found = {.name = entry->d_name,
                                     .nbytes = (uint64_t)file.status.st_size,
                                     .age_seconds = age > 0 ? age : 0,
                                     .state = file.state,
                                     .owner = file.owner};
            bool is_old = found.age_seconds >= min_age_seconds;
            bth_error_clear(&why);
            if ((flags & BERTH_CLEAN_REMOVE) &&
                (file.state == BERTH_TEMPORARY_DEAD ||
                 (file.state == BERTH_TEMPORARY_UNKNOWN && is_old))) {
                found.removed = temporary_claim_and_remove(opened, entry->d_name, &file, is_old);
                if (!found.removed && errno != 0 && errno != ENOENT && errno != EEXIST) {
                    (void)bth_fail_errno(&why, errno, NULL, BERTH_NO_OFFSET, "%s cannot be removed",
                                         entry->d_name);
                    found.error = &why;
                }
            }
            report(context, &found);
            bth_file_close(file.fd);
        }
    }
    if (n < 0)
        (void)bth_fail_system(error, errno, "cannot be listed");
    bth_file_close(opened);
    return bth_error_prefix(error, folder);
}
