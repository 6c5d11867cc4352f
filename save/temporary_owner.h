/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The process that owns a temporary, as text (X5): "1 <boot id> <pid namespace> <time namespace>
 * <pid> <start>". Two hosts have two boot ids, and two containers of one host two pid namespaces. A
 * pid that is used again has another start, in clock ticks since the boot, as the time namespace
 * counts them.
 */
#ifndef BTH_SAVE_TEMPORARY_OWNER_H
#define BTH_SAVE_TEMPORARY_OWNER_H

#include "berth.h"

#define BTH_TEMPORARY_OWNER_NBYTES 160

/* This process. False without /proc: then no process can know. */
bool bth_temporary_owner_self(char text[BTH_TEMPORARY_OWNER_NBYTES]);

/* Whether the process that a text names is alive. `text` may hold anything. DEAD only if this
 * kernel says so. */
berth_temporary_state bth_temporary_owner_state(const char *text);

#endif
