/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/commit.h"

#include <errno.h>

#include "config/error.h"
#include "config/lock.h"
#include "config/options.h"
#include "io/file.h"
#include "io/syscalls.h"
#include "save/metadata.h"
#include "save/no_space.h"
#include "save/output_file.h"

/* The temporary goes, or has become the target: then there is nothing of that name. */
static void end(bth_commit *commit)
{
    bth_file_close(commit->fd);
    commit->fd = -1;
    bth_target_file_free(&commit->target);
}

void bth_commit_abort(bth_commit *commit)
{
    if (commit->fd >= 0 && !commit->in_place && commit->process == bth_process() &&
        !bth_temporary_is_lost(commit->target.folder, commit->temporary, commit->fd))
        (void)bth_system.unlinkat(commit->target.folder, commit->temporary, 0);
    end(commit);
}

/* Told beforehand: a write beyond the limit would raise SIGXFSZ, which kills (F5). */
static int check_limit(uint64_t nbytes, berth_error *error)
{
    struct rlimit limit;

    if (bth_system.getrlimit(RLIMIT_FSIZE, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur >= nbytes)
        return 0;
    return bth_fail_no_space(error, EFBIG, NULL, BERTH_NO_OFFSET, nbytes - limit.rlim_cur);
}

/*
 * All of the room now, so that its lack is known at second 0. Never posix_fallocate, which writes
 * zeros where the file system cannot. There, free space is a forecast and no promise.
 *
 * On tmpfs it makes every page, and so is most of a save (0.11 of 0.17 s of 512 MiB), and no loss:
 * writes that make them take as long together (0.18 s), both being under the inode's lock, and maps
 * that two threads fill, which are not, twice as long.
 */
static int take_room(const bth_commit *commit, berth_error *error)
{
    off_t nbytes = (off_t)commit->nbytes;
    int result;

    do
        result = bth_system.fallocate(commit->fd, 0, 0, nbytes);
    while (result < 0 && errno == EINTR);
    if (result == 0)
        return 0;
    int failure = errno;
    if (failure == EOPNOTSUPP || failure == ENOSYS) {
        if (bth_output_file_room(commit->fd) < commit->nbytes)
            failure = ENOSPC;
        else if (bth_system.ftruncate(commit->fd, nbytes) == 0)
            return 0;
        else
            failure = errno;
    }
    if (failure == ENOSPC || failure == EDQUOT || failure == EFBIG)
        return bth_fail_no_space(
            error, failure, NULL, BERTH_NO_OFFSET,
            bth_missing_nbytes(bth_output_file_room(commit->fd), commit->nbytes, 0));
    return bth_fail_errno(error, failure, NULL, BERTH_NO_OFFSET, "no room can be taken");
}

/* Nobody else may open it until it has the rights of the file that it replaces (X1). */
static int create(bth_commit *commit, berth_error *error)
{
    const bth_target_file *target = &commit->target;

    if (bth_temporary_create(target->folder, target->name, target->exists ? 0600 : 0666,
                             &commit->fd, commit->temporary, error) < 0)
        return error->code;
    if (target->exists && bth_metadata_copy(target, commit->fd, &commit->copied, error) < 0)
        return error->code;
    return take_room(commit, error);
}

/* X4: there is no old file to keep, and no name to give to another one. */
static int take_over(bth_commit *commit, berth_error *error)
{
    commit->fd = commit->target.nameless;
    commit->target.nameless = -1;
    commit->in_place = true;
    /* Before anything is lost: a memfd may be sealed. -1: it is none. */
    int seals = bth_system.get_seals(commit->fd);
    if (seals > 0 && (seals & ~F_SEAL_SEAL) != 0)
        return bth_fail_errno(error, EPERM, NULL, BERTH_NO_OFFSET,
                              "is sealed, and cannot be written in place");
    if (take_room(commit, error) < 0)
        return error->code;
    if (bth_system.ftruncate(commit->fd, 0) < 0)
        return bth_fail_errno(error, errno, NULL, BERTH_NO_OFFSET,
                              "has no name, and cannot be written in place");
    return take_room(commit, error);
}

int bth_commit_begin(bth_commit *commit, const char *path, uint64_t nbytes, int64_t durability,
                     berth_error *error)
{
    *commit = (bth_commit){.fd = -1,
                           .target = BTH_NO_TARGET_FILE,
                           .process = bth_process(),
                           .durability = durability,
                           .nbytes = nbytes};
    if (bth_target_file_find(path, &commit->target, error) < 0)
        return error->code;
    if (!commit->target.folder_readable && durability == BTH_DURABILITY_FULL)
        bth_fail_errno(error, EACCES, NULL, BERTH_NO_OFFSET,
                       "its folder cannot be read, so it cannot be synced "
                       "(save.durability=file does without)");
    else if (check_limit(nbytes, error) == 0)
        (void)(commit->target.nameless >= 0 ? take_over : create)(commit, error);
    if (error->code != BERTH_OK)
        bth_commit_abort(commit);
    return error->code;
}

/*
 * W5: before the rename, so that no power cut leaves the new name on old bytes. W2: never repeated.
 * The kernel may have dropped the pages, and would then report success.
 */
static int sync_data(const bth_commit *commit, berth_error *error)
{
    int result = 0;

    if (commit->durability == BTH_DURABILITY_FULL)
        result = bth_system.fsync(commit->fd);
    else if (commit->durability == BTH_DURABILITY_FILE)
        result = bth_system.fdatasync(commit->fd);
    if (result < 0)
        return bth_fail_errno(error, errno, NULL, BERTH_NO_OFFSET, "cannot be synced");
    return 0;
}

/*
 * Some file systems tell only at close that a write failed (NFS). Closing a copy of the descriptor
 * asks them.
 */
static int close_copy(const bth_commit *commit, berth_error *error)
{
    int copy = bth_system.dup(commit->fd);

    if (copy < 0 || (bth_system.close(copy) < 0 && errno != EINTR))
        return bth_fail_errno(error, errno, NULL, BERTH_NO_OFFSET, "cannot be closed");
    return 0;
}

static int sync_folder(const bth_commit *commit, berth_error *error)
{
    if (commit->durability != BTH_DURABILITY_FULL || bth_system.fsync(commit->target.folder) == 0)
        return 0;
    int failure = errno;
    if (failure == EINVAL) {
        bth_log("%s: its file system cannot sync folders", commit->target.name);
        return 0;
    }
    bth_fail_errno(error, failure, NULL, BERTH_NO_OFFSET, "%s",
                   berth_status_text(BERTH_E_NOT_DURABLE));
    error->code = BERTH_E_NOT_DURABLE;
    return error->code;
}

int bth_commit_sync(bth_commit *commit, berth_error *error)
{
    if (sync_data(commit, error) == 0)
        close_copy(commit, error);
    return error->code;
}

static bool is_as_carried(const struct stat *copied, const struct stat *now)
{
    return copied->st_ino == now->st_ino && copied->st_dev == now->st_dev &&
           copied->st_ctim.tv_sec == now->st_ctim.tv_sec &&
           copied->st_ctim.tv_nsec == now->st_ctim.tv_nsec && copied->st_mode == now->st_mode &&
           copied->st_uid == now->st_uid && copied->st_gid == now->st_gid;
}

/*
 * X1: what is replaced now counts, not what was there when the save began: it may have been made
 * private since, or be another's. Until its rights are there, only the owner has any.
 */
static int carry_anew(bth_commit *commit, berth_error *error)
{
    bth_target_file *target = &commit->target;
    struct stat now;

    if (bth_system.fstatat(target->folder, target->name, &now, AT_SYMLINK_NOFOLLOW) < 0) {
        if (errno == ENOENT)
            return 0;
        return bth_fail_errno(error, errno, NULL, BERTH_NO_OFFSET, "cannot be examined");
    }
    if (is_as_carried(&commit->copied, &now))
        return 0;
    if (bth_target_file_check(target, &now, error) < 0)
        return error->code;
    (void)bth_system.fchmod(commit->fd, 0600);
    return bth_metadata_copy(target, commit->fd, &commit->copied, error);
}

/* W4: the one step from old to new. F3: who has the old file open or mapped keeps it whole. */
static int rename_over(bth_commit *commit, berth_error *error)
{
    const bth_target_file *target = &commit->target;

    if (carry_anew(commit, error) < 0)
        return error->code;
    if (bth_temporary_is_lost(target->folder, commit->temporary, commit->fd))
        return bth_fail_errno(error, ENOENT, NULL, BERTH_NO_OFFSET,
                              "cannot be replaced: its temporary was removed, or another file "
                              "has its name");
    if (bth_system.renameat(target->folder, commit->temporary, target->folder, target->name) < 0)
        return bth_fail_errno(error, errno, NULL, BERTH_NO_OFFSET, "cannot be replaced");
    return 0;
}

int bth_commit_replace(bth_commit *commit, berth_error *error)
{
    if (commit->in_place) {
        end(commit);
        return 0;
    }
    if (rename_over(commit, error) < 0) {
        bth_commit_abort(commit);
        return error->code;
    }
    bth_temporary_release(commit->fd);
    sync_folder(commit, error);
    end(commit);
    return error->code;
}
