/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks of names that a save writes: a strict reader must accept them (Z8). */
#ifndef BTH_SAVE_ARCHIVE_NAME_H
#define BTH_SAVE_ARCHIVE_NAME_H

#include "berth.h"

/*
 * The top folder that PyTorch would use for a path (format/FORMAT.md section 1): the base name
 * without its last extension; "archive" for NULL, for a path that is not ASCII, and for a name
 * that Berth or PyTorch could not read back. Allocated. NULL: out of memory.
 */
char *bth_archive_name_of_path(const char *path);

/* Refuses a name that Berth's reader refuses, and names of folders. `what`: for the message. */
int bth_check_name(const char *what, const char *name, berth_error *error);
/* Refuses the same for a top folder, and one that is too long for PyTorch. */
int bth_check_archive_name(const char *name, berth_error *error);
/* Refuses a name with its top folder that PyTorch would cut within a character. */
int bth_check_full_name(const char *full_name, const char *name, berth_error *error);

#endif
