/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/commit.h"

#include <errno.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/trace.h"
#include "config/options.h"
#include "io/file.h"
#include "io/file_system.h"
#include "io/map.h"
#include "io/syscalls.h"
#include "save/output.h"

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
    bool is_ours = commit->process == bth_process_unique_number();

    if (is_ours && (!commit->in_place || commit->is_new)) {
        bth_temporary_close_and_remove(commit->target.folder,
                                       commit->in_place ? commit->target.name : commit->temporary,
                                       commit->fd);
        commit->fd = -1;
    }
    commit_end(commit);
}

/* An error if the disk is too small. */
static int commit_check_room(const bth_commit *commit, int fd, int system_errno, berth_error *error)
{
    uint64_t room = bth_output_file_own_and_free_room(fd);

    if (system_errno == 0 && room < commit->nbytes)
        system_errno = ENOSPC;
    if (system_errno == 0)
        return 0;
    return bth_fail_no_space(error, system_errno, NULL, BERTH_NO_OFFSET, room, commit->nbytes, 0);
}

/*
 * Reserves all disk space now, so that a full disk is an error before a byte is written. If the
 * file system cannot do that, compares the free space, which is no guarantee; posix_fallocate would
 * write zeros there. A file system that cannot even set a size gets it by the writes.
 *
 * On tmpfs this makes every page, which is most of the time of a save (0.11 of 0.17 s for 512 MiB).
 * Writes that make the pages take as long (0.18 s); a map filled by two threads, twice as long.
 */
int bth_commit_reserve(bth_commit *commit, berth_error *error)
{
    double begin_seconds = bth_trace_seconds();
    off_t nbytes = (off_t)commit->nbytes;
    int result;

    commit->is_sized = commit->is_sparse = false;
    if (commit->order) /* a size would be an end to write behind */
        return commit_check_room(commit, commit->fd, 0, error);
    BTH_REPEAT(result, bth_system.fallocate(commit->fd, 0, 0, nbytes));
    int failure = result < 0 ? errno : 0;
    commit_trace("fallocate", begin_seconds);
    if (bth_file_system_has_no_call(failure)) {
        if (commit_check_room(commit, commit->fd, 0, error) < 0)
            return error->code;
        failure = bth_system.ftruncate(commit->fd, nbytes) < 0 ? errno : 0;
        if (bth_file_system_has_no_call(failure))
            return 0;
    }
    commit->is_sized = failure == 0;
    if (failure == ENOSPC || failure == EDQUOT || failure == EFBIG)
        return commit_check_room(commit, commit->fd, failure, error);
    return failure ? bth_fail_system(error, failure, "its disk space cannot be reserved") : 0;
}

/* ---- in place ---- */

#define IN_PLACE "it is written in place, in order"

/* O_EXCL, O_NOFOLLOW: a file or a link that somebody else made meanwhile is not written to. */
static int commit_begin_new_in_place(bth_commit *commit, berth_error *error)
{
    const bth_target_file *target = &commit->target;

    BTH_REPEAT(commit->fd, bth_system.openat(target->folder, target->name,
                                             O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                                             commit->new_mode));
    if (commit->fd < 0)
        return bth_fail_system(error, errno, "cannot be created");
    commit->in_place = commit->is_new = true;
    commit->order = IN_PLACE;
    if (bth_temporary_is_lost(target->folder, target->name, commit->fd)) /* X10 */
        return bth_fail_system(error, EBUSY, "it, or the descriptor of it, was replaced");
    return bth_commit_reserve(commit, error);
}

/*
 * What can be known is refused before the old content is lost. O_TRUNC, because mounts of object
 * stores know no other way to begin anew. A pipe waits here for its reader; a signal ends that.
 */
static int commit_begin_old_in_place(bth_commit *commit, berth_error *error)
{
    const bth_target_file *target = &commit->target;
    const struct stat *status = &target->status;
    int found = bth_system.openat(target->folder, target->name, O_PATH | O_NOFOLLOW | O_CLOEXEC, 0);
    char path[BTH_FILE_PATH_NBYTES];
    struct stat now;

    commit->in_place = true;
    commit->order = IN_PLACE;
    if (found < 0 || bth_system.fstat(found, &now) < 0)
        bth_fail_system(error, errno, "cannot be opened");
    else if (now.st_dev != status->st_dev || now.st_ino != status->st_ino)
        bth_fail_system(error, EBUSY, "another file took its name");
    else if (S_ISREG(now.st_mode) && bth_file_is_mapped(found))
        bth_fail_system(error, EBUSY,
                        "cannot be written in place: this process has a map of it, whose values "
                        "would be lost; close it, or load it with load.mmap=off");
    else if (!S_ISREG(now.st_mode) || commit_check_room(commit, found, 0, error) == 0) {
        commit->fd = bth_system.open(bth_file_proc_path(found, path),
                                     O_WRONLY | O_TRUNC | O_NOCTTY | O_CLOEXEC, 0);
        if (commit->fd < 0)
            bth_fail_system(error, errno, "cannot be written in place");
    }
    bth_file_close(found);
    commit->has_lost_old = commit->fd >= 0 && S_ISREG(status->st_mode);
    return error->code;
}

/* X4: a file that is not found by its name cannot be replaced. */
static int commit_begin_with_descriptor(bth_commit *commit, berth_error *error)
{
    commit->fd = commit->target.nameless;
    commit->target.nameless = -1;
    commit->in_place = true;
    if (!S_ISREG(commit->target.status.st_mode)) {
        commit->order = IN_PLACE;
        return 0;
    }
    /* Checked before the old content is lost: a memfd may be sealed. -1: not a memfd. */
    int seals = bth_system.get_seals(commit->fd);
    if (seals > 0 && (seals & ~F_SEAL_SEAL) != 0)
        return bth_fail_system(error, EPERM, "is sealed, and cannot be written in place");
    if (bth_commit_reserve(commit, error) < 0)
        return error->code;
    if (bth_system.ftruncate(commit->fd, 0) < 0)
        return bth_fail_system(error, errno, "has no name, and cannot be written in place");
    commit->has_lost_old = true;
    return bth_commit_reserve(commit, error);
}

/* ---- begin ---- */

/*
 * By a rename if it can be; a new file goes in place where it cannot come by one. Nobody else may
 * open the temporary until it has the rights of the file that it replaces (X1).
 */
static int commit_begin_found(bth_commit *commit, const struct berth_config *config, bool is_shared,
                              bool has_base, berth_error *error)
{
    const bth_target_file *target = &commit->target;
    mode_t mode = target->exists ? 0600 : commit->new_mode;

    if (target->nameless >= 0)
        return commit_begin_with_descriptor(commit, error);
    if (target->in_place)
        return target->exists ? commit_begin_old_in_place(commit, error)
                              : commit_begin_new_in_place(commit, error);
    bool may_need_order = bth_file_system_query(target->folder).may_need_order;
    if (bth_temporary_create(target->folder, target->name, mode, may_need_order, &commit->fd,
                             commit->temporary, error) < 0) {
        const berth_error why = *error;
        bool is_impossible = bth_file_system_has_no_call(why.system_errno) ||
                             why.system_errno == EACCES || why.system_errno == EEXIST;
        if (!is_impossible || is_shared)
            return error->code;
        if (target->exists)
            return bth_fail_offering_in_place(error);
        if (config->save_replace == BTH_REPLACE_ALWAYS)
            return bth_error_append(error, "; save.replace=auto writes a new file in place");
        bth_error_clear(error);
        if (commit_begin_new_in_place(commit, error) == 0)
            bth_log("%s is written in place: %s", target->name, why.message);
        else if (commit->fd < 0 && error->system_errno == why.system_errno)
            *error = why;
        return error->code;
    }
    if (may_need_order && !is_shared && config->save_method != BTH_SAVE_DIRECT)
        commit->order = "its file system may take bytes in order only";
    if (target->exists && bth_metadata_copy(target, commit->fd, &commit->copied, error) < 0)
        return error->code;
    commit->is_sparse = commit->is_sized =
        has_base && !commit->order && bth_system.ftruncate(commit->fd, (off_t)commit->nbytes) == 0;
    if ((!commit->is_sparse && bth_commit_reserve(commit, error) < 0) || !may_need_order ||
        !is_shared || commit->nbytes == 0)
        return error->code;
    /* Several processes write where they like: a file system that cannot take it is refused now. */
    if ((bth_file_write(commit->fd, "", 1, commit->nbytes - 1, error) == 0 &&
         bth_file_write(commit->fd, "", 1, 0, error) == 0) ||
        !bth_file_system_has_no_call(error->system_errno))
        return error->code;
    return bth_error_append(error, ": its file system takes bytes in order only, so several "
                                   "processes cannot write one file there; one of them can save it "
                                   "alone, or the file goes to another file system");
}

int bth_commit_begin(bth_commit *commit, const char *path, uint64_t nbytes,
                     const struct berth_config *config, bool is_shared, bool has_base,
                     berth_error *error)
{
    static const mode_t modes[] = {0666, 0660, 0600}; /* by save.readers */
    uint64_t limit = bth_output_file_size_limit();
    int64_t durability = config->save_durability;
    bth_target_file *target = &commit->target;

    *commit = (bth_commit){.fd = -1,
                           .target = BTH_NO_TARGET_FILE,
                           .new_mode = modes[config->save_readers],
                           .process = bth_process_unique_number(),
                           .durability = durability,
                           .reached = durability,
                           .nbytes = nbytes};
    bool in_place = config->save_replace == BTH_REPLACE_IN_PLACE;
    if (in_place && is_shared)
        return bth_fail_argument(error, "several processes cannot write a file in place: "
                                        "save.replace must be auto or always");
    if (bth_target_file_find(path, in_place, target, error) < 0)
        return error->code;
    if (!target->folder_readable && durability == BTH_DURABILITY_FULL)
        bth_fail_system(error, EACCES,
                        "its folder cannot be read, so it cannot be synced "
                        "(save.durability=file does without)");
    else if (nbytes > limit)
        bth_fail_no_space(error, EFBIG, NULL, BERTH_NO_OFFSET, limit, nbytes, 0);
    else
        (void)commit_begin_found(commit, config, is_shared, has_base, error);
    if (error->code != BERTH_OK)
        bth_commit_abort(commit);
    return error->code;
}

/* ---- until it is done ---- */

/*
 * W5: before the rename, so that after a power cut the name never leads to bytes that are not on
 * disk. W2: never repeated after a failure: the kernel may have dropped the pages, and succeed.
 */
int bth_commit_sync_file(int fd, int64_t durability, bool *is_synced, berth_error *error)
{
    double begin_seconds = bth_trace_seconds();
    int result = 0;

    if (durability == BTH_DURABILITY_FULL)
        result = bth_system.fsync(fd);
    else if (durability == BTH_DURABILITY_FILE)
        result = bth_system.fdatasync(fd);
    *is_synced = result == 0;
    if (result < 0 && !bth_file_system_has_no_call(errno))
        bth_fail_system(error, errno, "cannot be synced");
    if (durability != BTH_DURABILITY_NONE)
        commit_trace(durability == BTH_DURABILITY_FULL ? "fsync" : "fdatasync", begin_seconds);
    if (error->code != BERTH_OK)
        return error->code;
    /* Some file systems (NFS) report a failed write at close only: closes a copy. */
    begin_seconds = bth_trace_seconds();
    int copy = bth_system.dup(fd);
    if (copy < 0 || (bth_system.close(copy) < 0 && errno != EINTR))
        bth_fail_system(error, errno, "cannot be closed");
    commit_trace("close", begin_seconds);
    return error->code;
}

int bth_commit_sync(bth_commit *commit, berth_error *error)
{
    mode_t mode = commit->target.status.st_mode; /* 0: there was no file */
    bool is_synced, is_file = mode == 0 || S_ISREG(mode) || S_ISBLK(mode);
    struct stat status;

    if (!commit->is_sized) { /* a file of another format may have been written in part */
        if (bth_system.fstat(commit->fd, &status) < 0)
            return bth_fail_system(error, errno, "cannot be examined");
        if (S_ISREG(status.st_mode) && (uint64_t)status.st_size < commit->nbytes &&
            bth_system.ftruncate(commit->fd, (off_t)commit->nbytes) < 0)
            return bth_fail_system(error, errno, "cannot be extended to its size");
    }
    if (bth_commit_sync_file(commit->fd, is_file ? commit->durability : BTH_DURABILITY_NONE,
                             &is_synced, error) < 0)
        return error->code;
    if (!is_file)
        commit->reached = -1;
    else if (!is_synced) {
        bth_log("%s: its file system cannot sync files: a power cut may lose it",
                commit->target.name);
        commit->reached = BTH_DURABILITY_NONE;
    }
    return 0;
}

/*
 * W4: the one step from old to new. F3: readers that have the old file open keep it whole.
 *
 * X1: what counts is the file that is replaced now. Since the save began it may have become
 * private, or another user's. Until its rights are copied, only the new file's owner can open it.
 */
static int commit_rename(bth_commit *commit, berth_error *error)
{
    bth_target_file *target = &commit->target;
    const struct stat *copied = &commit->copied;
    struct stat now;

    bool exists = bth_system.fstatat(target->folder, target->name, &now, AT_SYMLINK_NOFOLLOW) == 0;
    if (!exists && errno != ENOENT)
        return bth_fail_system(error, errno, "cannot be examined");
    if (exists &&
        (copied->st_ino != now.st_ino || copied->st_dev != now.st_dev ||
         copied->st_ctim.tv_sec != now.st_ctim.tv_sec ||
         copied->st_ctim.tv_nsec != now.st_ctim.tv_nsec || copied->st_mode != now.st_mode ||
         copied->st_uid != now.st_uid || copied->st_gid != now.st_gid)) {
        if (bth_target_file_check_and_set_status(target, &now, error) < 0)
            return error->code;
        (void)bth_system.fchmod(commit->fd, 0600);
        if (bth_metadata_copy(target, commit->fd, &commit->copied, error) < 0)
            return error->code;
    }
    if (bth_temporary_is_lost(target->folder, commit->temporary, commit->fd))
        return bth_fail_system(error, ENOENT,
                               "cannot be replaced: its temporary was removed, or another file "
                               "has its name");
    double begin_seconds = bth_trace_seconds();
    if (bth_system.renameat(target->folder, commit->temporary, target->folder, target->name) < 0) {
        int failure = errno;
        bth_fail_system(error, failure, "cannot be replaced");
        if (bth_file_system_has_no_call(failure) || failure == EBUSY || failure == EEXIST)
            (void)bth_error_append(error, "; save.replace=in_place can write it in place");
    }
    commit_trace("rename", begin_seconds);
    return error->code;
}

int bth_commit_replace(bth_commit *commit, berth_error *error)
{
    if (!commit->in_place) {
        if (commit_rename(commit, error) < 0)
            return error->code;
        (void)bth_system.fremovexattr(commit->fd, BTH_TEMPORARY_OWNER);
    }
    if (commit->durability == BTH_DURABILITY_FULL && (!commit->in_place || commit->is_new)) {
        double begin_seconds = bth_trace_seconds();
        int failure = bth_system.fsync(commit->target.folder) < 0 ? errno : 0;
        commit_trace("fsync of the folder", begin_seconds);
        if (bth_file_system_has_no_call(failure)) {
            bth_log("%s: its file system cannot sync folders", commit->target.name);
            if (commit->reached == BTH_DURABILITY_FULL)
                commit->reached = BTH_DURABILITY_FILE;
        } else if (failure != 0) { /* the data may be on disk nevertheless; the name may not */
            bth_fail_system(error, failure, "%s", bth_status_text(BERTH_E_NOT_DURABLE));
            error->code = BERTH_E_NOT_DURABLE;
        }
    }
    commit_end(commit);
    return error->code;
}
