/* SPDX-License-Identifier: BSD-3-Clause */
/* The file that a save replaces (F4), behind links. Refuses first what would fail later (X2). */
#ifndef BTH_SAVE_TARGET_FILE_H
#define BTH_SAVE_TARGET_FILE_H

#include <sys/stat.h>

#include "berth.h"

typedef struct bth_target_file {
    int folder;           /* that holds it; -1: none */
    bool folder_readable; /* false: open with O_PATH, it cannot be listed or synced */
    char *name;           /* in that folder */
    bool exists;
    struct stat status; /* of the file that is replaced */
    int nameless;       /* X4: the file itself, open for reading and writing, if the path is a
                           descriptor's       in /proc and the file has no name; -1: it has one */
} bth_target_file;

#define BTH_NO_TARGET_FILE                                                                         \
    {                                                                                              \
        .folder = -1, .nameless = -1                                                               \
    }

/* Follows symbolic links. Refuses all but a regular file that may be written, or none (W10). */
int bth_target_file_find(const char *path, bth_target_file *target, berth_error *error);
/* Checks again the file that has the name now, of this status. Refuses as above. */
int bth_target_file_check(bth_target_file *target, const struct stat *status, berth_error *error);
void bth_target_file_free(bth_target_file *target); /* of BTH_NO_TARGET_FILE: nothing */

/*
 * In a user namespace (rootless containers) all users from outside are shown as one id, and so are
 * all groups. A user inside may have that id, too, and does not own the file.
 */
bool bth_id_is_unmapped(unsigned id, bool is_group);

#endif
