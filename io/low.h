/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Descriptors 0, 1 and 2 are the program's, also while they are closed (X10): what it prints would
 * land in the file that got such a number. Moving it up after it was opened leaves a moment; so the
 * numbers are taken before, by descriptors that can be neither read nor written, and given back.
 */
#ifndef BTH_IO_LOW_H
#define BTH_IO_LOW_H

#include <stdbool.h>

/* Takes the low numbers that are closed. True: bth_low_give_back is due. Thread-safe. */
bool bth_low_take(void);
void bth_low_give_back(void);
/* The same description above them, of one that the program's own closing let slip through. */
int bth_low_move_up(int fd);

#endif
