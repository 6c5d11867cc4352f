/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which process a temporary belongs to, as text (X5): "1 <boot id> <pid namespace> <time namespace>
 * <pid> <start>". Two hosts have two boot ids; two containers of one host have two pid namespaces;
 * a number that was given out again has another start, which is counted in clock ticks since the
 * boot, as the time namespace sees it.
 */
#ifndef BTH_SAVE_TEMPORARY_OWNER_H
#define BTH_SAVE_TEMPORARY_OWNER_H

#include "berth.h"

#define BTH_TEMPORARY_OWNER_NBYTES 160

/* This process. False where /proc does not tell: then nobody can ever know. */
bool bth_temporary_owner_self(char text[BTH_TEMPORARY_OWNER_NBYTES]);

/*
 * Whether the process that a text names is there. `text` may hold anything. Dead is only who this
 * kernel says is dead.
 */
berth_temporary_state bth_temporary_owner_state(const char *text);

#endif
