/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The promise of a save to a path: the path holds the old file or the whole new one, whatever
 * happens. A temporary file in the target's folder reserves all its disk space at once, is synced
 * and renamed over the target; then the folder is synced.
 */
#ifndef BTH_SAVE_COMMIT_H
#define BTH_SAVE_COMMIT_H

#include "save/target_file.h"
#include "save/temporary.h"

typedef struct bth_commit {
    bth_target_file target;
    int fd;             /* of the temporary; -1: none */
    struct stat copied; /* status of the old file when its metadata was copied; zeros: none */
    bool in_place;      /* X4: fd is the target itself, which has no name */
    char temporary[BTH_TEMPORARY_NAME_NBYTES];
    uint64_t process; /* that made the temporary: a child of fork leaves it alone (X11) */
    int64_t durability;
    uint64_t nbytes;
} bth_commit;

/* Does everything that can fail before data is written. `nbytes`: the exact size. On failure
 * nothing remains. */
int bth_commit_begin(bth_commit *commit, const char *path, uint64_t nbytes, int64_t durability,
                     berth_error *error);
/* Makes the written data as durable as `durability` says. After a failure the commit must be
 * aborted (W2). */
int bth_commit_sync(bth_commit *commit, berth_error *error);
/* The same for a descriptor of the temporary that another process has opened. */
int bth_commit_sync_file(int fd, int64_t durability, berth_error *error);
/* Renames the temporary to the target. A failure of the rename leaves the old file; a later one is
 * BERTH_E_NOT_DURABLE. Ends the commit either way. */
int bth_commit_replace(bth_commit *commit, berth_error *error);
/* Removes the temporary. Of an ended commit: nothing. */
void bth_commit_abort(bth_commit *commit);

#endif
