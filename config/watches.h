/* SPDX-License-Identifier: BSD-3-Clause */
/* Functions that a program wants called when the value of an option changes. */
#ifndef BTH_CONFIG_WATCHES_H
#define BTH_CONFIG_WATCHES_H

#include "config/options.h"

/* The values in force on this thread before a change; nothing if nobody watches. */
typedef struct bth_watch_state {
    struct berth_config values;
    bool is_watched;
} bth_watch_state;

/* The caller holds no lock in either. */
void bth_watch_begin_change(bth_watch_state *before);
void bth_watch_end_change(const bth_watch_state *before);

#endif
