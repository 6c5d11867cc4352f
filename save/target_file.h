/* SPDX-License-Identifier: BSD-3-Clause */
/* Which file a save replaces (F4): links followed, and what can be known refused beforehand (X2).
 */
#ifndef BTH_SAVE_TARGET_FILE_H
#define BTH_SAVE_TARGET_FILE_H

#include <sys/stat.h>

#include "berth.h"

typedef struct bth_target_file {
    int folder;           /* that holds it; -1: none */
    bool folder_readable; /* else it is open with O_PATH: it cannot be listed or synced */
    char *name;           /* in that folder */
    bool exists;
    struct stat status; /* of the file that is replaced */
    int nameless;       /* X4: the file itself, open for reading and writing, where the path is a
                           descriptor's in /proc and the file has no name; -1: it has one */
} bth_target_file;

#define BTH_NO_TARGET_FILE                                                                         \
    {                                                                                              \
        .folder = -1, .nameless = -1                                                               \
    }

/* Follows symbolic links; refuses what is there and is no regular file that may be written (W10).
 */
int bth_target_file_find(const char *path, bth_target_file *target, berth_error *error);
/* Looks again at what has the name now, of this status. Refuses as above. */
int bth_target_file_check(bth_target_file *target, const struct stat *status, berth_error *error);
void bth_target_file_free(bth_target_file *target); /* of BTH_NO_TARGET_FILE: nothing */

#endif
