/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The promise of a save to a path: the path holds the old file or the whole new one, whatever
 * happens. A temporary file in the target's folder reserves all its disk space at once, is synced
 * and renamed over the target; then the folder is synced.
 *
 * Where that is impossible, the file is written in place, from its beginning to its end, so that
 * what a kill leaves is a file that ends too early (W11). A new file that is written so is removed
 * if the save fails; an old one is overwritten only if save.replace=in_place says so.
 */
#ifndef BTH_SAVE_COMMIT_H
#define BTH_SAVE_COMMIT_H

#include "save/target_file.h"
#include "save/temporary.h"

typedef struct bth_commit {
    bth_target_file target;
    int fd;             /* of the temporary; -1: none */
    struct stat copied; /* status of the old file when its metadata was copied; zeros: none */
    bool in_place;      /* fd is the target itself */
    bool is_new;        /* in place: this save has made it */
    bool has_lost_old;  /* in place: the old content is gone */
    bool is_sized;      /* the file has nbytes bytes already */
    bool is_sparse;     /* but room for none: bth_commit_reserve is to be called */
    const char *order;  /* why it is written from the beginning to the end; NULL: in any order */
    /* F6: of a new file, before the umask. Others' bits also bound what the folder's ACL gives. */
    mode_t new_mode;
    char temporary[BTH_TEMPORARY_NAME_NBYTES];
    uint64_t process; /* that made the file: a child of fork leaves it alone (X11) */
    int64_t durability;
    int64_t reached; /* the durability that the file system could give; -1: there is no file */
    uint64_t nbytes;
} bth_commit;

/*
 * Does everything that can fail before data is written. `nbytes`: the exact size. `is_shared`:
 * other processes write the file, too, each its parts. `has_base`: a temporary gets its size, and
 * no room, because it may share blocks (is_sparse). On failure nothing remains.
 */
int bth_commit_begin(bth_commit *commit, const char *path, uint64_t nbytes,
                     const struct berth_config *config, bool is_shared, bool has_base,
                     berth_error *error);
/* Reserves the disk space: bytes without any get it. */
int bth_commit_reserve(bth_commit *commit, berth_error *error);
/* Makes the written data as durable as `durability` says. After a failure the commit must be
 * aborted (W2). */
int bth_commit_sync(bth_commit *commit, berth_error *error);
/* The same for a descriptor of the temporary that another process has opened. *is_synced: false if
 * the file system cannot sync files. */
int bth_commit_sync_file(int fd, int64_t durability, bool *is_synced, berth_error *error);
/* Renames the temporary to the target. A failure of the rename leaves the old file, and the commit
 * must be aborted; a later one is BERTH_E_NOT_DURABLE, and the commit has ended. */
int bth_commit_replace(bth_commit *commit, berth_error *error);
/* Removes the temporary, or the new file. Of an ended commit: nothing. */
void bth_commit_abort(bth_commit *commit);

#endif
