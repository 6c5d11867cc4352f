/* SPDX-License-Identifier: BSD-3-Clause */
/* Lines for the log, kept until no lock is held: the log function may use the configuration. */
#ifndef BTH_BASE_DELAYED_LOG_H
#define BTH_BASE_DELAYED_LOG_H

#include <stddef.h>

#define BTH_MAX_NOTES 8

typedef struct bth_notes {
    size_t n; /* also of those that found no place */
    char lines[BTH_MAX_NOTES][200];
} bth_notes;

void bth_notes_add(bth_notes *notes, const char *format, ...) __attribute__((format(printf, 2, 3)));
void bth_notes_log(const bth_notes *notes);

#endif
