/* SPDX-License-Identifier: BSD-3-Clause */
/* The files that this process has loaded past the page cache (load.reuse=auto). */
#ifndef BTH_LOAD_TRANSFER_LOADED_FILES_H
#define BTH_LOAD_TRANSFER_LOADED_FILES_H

#include <stdbool.h>

/*
 * Adds an open file, and returns whether it was there: the same inode, unchanged since. The last
 * files are kept, about 64. False also if the system does not report the inode. Thread-safe.
 */
bool bth_loaded_files_add(int fd);

#endif
