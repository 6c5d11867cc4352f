/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/commit.h"

#include <errno.h>

#include "config/error.h"
#include "config/lock.h"
#include "config/options.h"
#include "io/clock.h"
#include "io/file.h"
#include "io/syscalls.h"
#include "io/trace.h"
#include "io/xattr.h"
#include "save/output_file.h"
#include "save/save_error.h"

/* One call of the system that can take long. */
static void commit_trace(const char *name, double begin_seconds)
{
    BTH_TRACE(.category = "system", .name = name, .begin_seconds = begin_seconds,
              .end_seconds = bth_seconds());
}

/* Frees. The temporary was removed, or has become the target. */
static void commit_end(bth_commit *commit)
{
    bth_file_close(commit->fd);
    commit->fd = -1;
    bth_target_file_free(&commit->target);
}

void bth_commit_abort(bth_commit *commit)
{
    if (commit->fd >= 0 && !commit->in_place && commit->process == bth_process_unique_number() &&
        !bth_temporary_is_lost(commit->target.folder, commit->temporary, commit->fd))
        (void)bth_system.unlinkat(commit->target.folder, commit->temporary, 0);
    commit_end(commit);
}

/*
 * Reserves all disk space now, so that a full disk is an error before a byte is written. If the
 * file system cannot do that, compares the free space, which is no guarantee; posix_fallocate would
 * write zeros there.
 *
 * On tmpfs this makes every page, which is most of the time of a save (0.11 of 0.17 s for 512 MiB).
 * Writes that make the pages take as long (0.18 s); a map filled by two threads, twice as long.
 */
static int commit_reserve(const bth_commit *commit, berth_error *error)
{
    double begin_seconds = bth_trace_seconds();
    off_t nbytes = (off_t)commit->nbytes;
    int result;

    do
        result = bth_system.fallocate(commit->fd, 0, 0, nbytes);
    while (result < 0 && errno == EINTR);
    int failure = errno;
    commit_trace("fallocate", begin_seconds);
    if (result == 0)
        return 0;
    if (failure == EOPNOTSUPP || failure == ENOSYS) {
        if (bth_output_file_own_and_free_room(commit->fd) < commit->nbytes)
            failure = ENOSPC;
        else if (bth_system.ftruncate(commit->fd, nbytes) == 0)
            return 0;
        else
            failure = errno;
    }
    if (failure == ENOSPC || failure == EDQUOT || failure == EFBIG)
        return bth_fail_no_space(
            error, failure, NULL, BERTH_NO_OFFSET,
            bth_missing_nbytes(bth_output_file_own_and_free_room(commit->fd), commit->nbytes, 0));
    return bth_fail_system(error, failure, "its disk space cannot be reserved");
}

/* Nobody else may open it until it has the rights of the file that it replaces (X1). */
static int commit_begin_with_temporary(bth_commit *commit, berth_error *error)
{
    const bth_target_file *target = &commit->target;

    if (bth_temporary_create(target->folder, target->name, target->exists ? 0600 : 0666,
                             &commit->fd, commit->temporary, error) < 0)
        return error->code;
    if (target->exists && bth_metadata_copy(target, commit->fd, &commit->copied, error) < 0)
        return error->code;
    return commit_reserve(commit, error);
}

/* X4: a file without a name cannot be replaced. It is written in place. */
static int commit_begin_in_place(bth_commit *commit, berth_error *error)
{
    commit->fd = commit->target.nameless;
    commit->target.nameless = -1;
    commit->in_place = true;
    /* Checked before the old content is lost: a memfd may be sealed. -1: not a memfd. */
    int seals = bth_system.get_seals(commit->fd);
    if (seals > 0 && (seals & ~F_SEAL_SEAL) != 0)
        return bth_fail_system(error, EPERM, "is sealed, and cannot be written in place");
    if (commit_reserve(commit, error) < 0)
        return error->code;
    if (bth_system.ftruncate(commit->fd, 0) < 0)
        return bth_fail_system(error, errno, "has no name, and cannot be written in place");
    return commit_reserve(commit, error);
}

int bth_commit_begin(bth_commit *commit, const char *path, uint64_t nbytes, int64_t durability,
                     berth_error *error)
{
    uint64_t limit = bth_output_file_size_limit();

    *commit = (bth_commit){.fd = -1,
                           .target = BTH_NO_TARGET_FILE,
                           .process = bth_process_unique_number(),
                           .durability = durability,
                           .nbytes = nbytes};
    if (bth_target_file_find(path, &commit->target, error) < 0)
        return error->code;
    if (!commit->target.folder_readable && durability == BTH_DURABILITY_FULL)
        bth_fail_system(error, EACCES,
                        "its folder cannot be read, so it cannot be synced "
                        "(save.durability=file does without)");
    else if (nbytes > limit)
        bth_fail_no_space(error, EFBIG, NULL, BERTH_NO_OFFSET, nbytes - limit);
    else
        (void)(commit->target.nameless >= 0 ? commit_begin_in_place
                                            : commit_begin_with_temporary)(commit, error);
    if (error->code != BERTH_OK)
        bth_commit_abort(commit);
    return error->code;
}

/*
 * W5: before the rename, so that after a power cut the name never leads to bytes that are not on
 * disk. W2: never repeated after a failure: the kernel may have dropped the pages, and succeed.
 */
static int commit_sync_data(int fd, int64_t durability, berth_error *error)
{
    double begin_seconds = bth_trace_seconds();
    int result = 0;

    if (durability == BTH_DURABILITY_FULL)
        result = bth_system.fsync(fd);
    else if (durability == BTH_DURABILITY_FILE)
        result = bth_system.fdatasync(fd);
    if (result < 0)
        bth_fail_system(error, errno, "cannot be synced");
    if (durability != BTH_DURABILITY_NONE)
        commit_trace(durability == BTH_DURABILITY_FULL ? "fsync" : "fdatasync", begin_seconds);
    return error->code;
}

/* Some file systems (NFS) report a failed write at close only: closes a copy of the descriptor. */
static int commit_check_close_errors(int fd, berth_error *error)
{
    double begin_seconds = bth_trace_seconds();
    int copy = bth_system.dup(fd);

    if (copy < 0 || (bth_system.close(copy) < 0 && errno != EINTR))
        bth_fail_system(error, errno, "cannot be closed");
    commit_trace("close", begin_seconds);
    return error->code;
}

static int commit_sync_folder(const bth_commit *commit, berth_error *error)
{
    double begin_seconds = bth_trace_seconds();

    if (commit->durability != BTH_DURABILITY_FULL)
        return 0;
    int failure = bth_system.fsync(commit->target.folder) < 0 ? errno : 0;
    commit_trace("fsync of the folder", begin_seconds);
    if (failure == 0)
        return 0;
    if (failure == EINVAL) {
        bth_log("%s: its file system cannot sync folders", commit->target.name);
        return 0;
    }
    bth_fail_system(error, failure, "%s", berth_status_text(BERTH_E_NOT_DURABLE));
    error->code = BERTH_E_NOT_DURABLE;
    return error->code;
}

int bth_commit_sync_file(int fd, int64_t durability, berth_error *error)
{
    if (commit_sync_data(fd, durability, error) == 0)
        commit_check_close_errors(fd, error);
    return error->code;
}

int bth_commit_sync(bth_commit *commit, berth_error *error)
{
    return bth_commit_sync_file(commit->fd, commit->durability, error);
}

static bool commit_metadata_is_unchanged_since_copy(const struct stat *copied,
                                                    const struct stat *now)
{
    return copied->st_ino == now->st_ino && copied->st_dev == now->st_dev &&
           copied->st_ctim.tv_sec == now->st_ctim.tv_sec &&
           copied->st_ctim.tv_nsec == now->st_ctim.tv_nsec && copied->st_mode == now->st_mode &&
           copied->st_uid == now->st_uid && copied->st_gid == now->st_gid;
}

/*
 * X1: what counts is the file that is replaced now. Since the save began it may have become
 * private, or another user's. Until its rights are copied, only the new file's owner can open it.
 */
static int commit_copy_changed_metadata(bth_commit *commit, berth_error *error)
{
    bth_target_file *target = &commit->target;
    struct stat now;

    if (bth_system.fstatat(target->folder, target->name, &now, AT_SYMLINK_NOFOLLOW) < 0) {
        if (errno == ENOENT)
            return 0;
        return bth_fail_system(error, errno, "cannot be examined");
    }
    if (commit_metadata_is_unchanged_since_copy(&commit->copied, &now))
        return 0;
    if (bth_target_file_check_and_set_status(target, &now, error) < 0)
        return error->code;
    (void)bth_system.fchmod(commit->fd, 0600);
    return bth_metadata_copy(target, commit->fd, &commit->copied, error);
}

/* W4: the one step from old to new. F3: readers that have the old file open keep it whole. */
static int commit_rename(bth_commit *commit, berth_error *error)
{
    const bth_target_file *target = &commit->target;

    if (commit_copy_changed_metadata(commit, error) < 0)
        return error->code;
    if (bth_temporary_is_lost(target->folder, commit->temporary, commit->fd))
        return bth_fail_system(error, ENOENT,
                               "cannot be replaced: its temporary was removed, or another file "
                               "has its name");
    double begin_seconds = bth_trace_seconds();
    if (bth_system.renameat(target->folder, commit->temporary, target->folder, target->name) < 0)
        bth_fail_system(error, errno, "cannot be replaced");
    commit_trace("rename", begin_seconds);
    return error->code;
}

int bth_commit_replace(bth_commit *commit, berth_error *error)
{
    if (commit->in_place) {
        commit_end(commit);
        return 0;
    }
    if (commit_rename(commit, error) < 0) {
        bth_commit_abort(commit);
        return error->code;
    }
    (void)bth_xattr_remove(commit->fd, BTH_TEMPORARY_OWNER);
    commit_sync_folder(commit, error);
    commit_end(commit);
    return error->code;
}
