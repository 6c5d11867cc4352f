/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Descriptors 0, 1 and 2 belong to the program, also while they are closed (X10): its output must
 * not land in a file of ours that got such a number. So each open first fills the closed numbers
 * with placeholders that can be neither read nor written, and closes them afterwards.
 */
#ifndef BTH_IO_LOW_FDS_H
#define BTH_IO_LOW_FDS_H

#include <stdbool.h>

/* Fills the closed numbers. True: call bth_low_fds_release afterwards. Any thread may call it. */
bool bth_low_fds_fill(void);
void bth_low_fds_release(void);
/* Moves up a descriptor that got a low number because the program closed that number meanwhile. */
int bth_low_fd_move_up(int fd);

#endif
