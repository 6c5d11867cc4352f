/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How errors are reported. Internal functions take a `berth_error *` that is never NULL; the public
 * function that calls them has cleared it (BTH_ERROR_BEGIN). They return 0 or the code they set.
 */
#ifndef BTH_BASE_ERROR_H
#define BTH_BASE_ERROR_H

#include <pthread.h>
#include <stdbool.h>

#include "berth.h"

/*
 * X13: a call of the library that is cancelled (pthread_cancel) goes on to its end, wherever it
 * waits; so do the caller's own functions that it calls.
 */
/* Returns the state for bth_cancellation_restore; -1: nothing was changed. */
static inline int bth_cancellation_disable_if(bool condition)
{
    int before = -1;

    if (condition)
        (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

static inline void bth_cancellation_restore(const int *before)
{
    int unused;

    if (*before >= 0)
        (void)pthread_setcancelstate(*before, &unused);
}

/* Holds off cancellation until the end of the block, if the condition is true. */
#define BTH_HOLD_CANCEL(condition)                                                                 \
    __attribute__((cleanup(bth_cancellation_restore), unused)) const int bth_cancel_before =       \
        bth_cancellation_disable_if(condition)

/* First statement of every public function with a `berth_error *error` parameter (X13). */
#define BTH_ERROR_BEGIN(error)                                                                     \
    BTH_HOLD_CANCEL(true);                                                                         \
    BTH_ERROR_BEGIN_QUICKLY(error)

/*
 * The same for functions that a program calls once for each tensor. They hold off cancellation only
 * where they wait: it costs 31 ns, a tenth of opening a file of 100,000 tensors.
 */
#define BTH_ERROR_BEGIN_QUICKLY(error)                                                             \
    berth_error bth_error_unasked;                                                                 \
    if (!(error))                                                                                  \
        (error) = &bth_error_unasked;                                                              \
    bth_error_clear(error)

/* How a message ends about a file that is too short, whatever its format. */
#define BTH_CUT_OFF ": a download or a save in place that did not end?"

void bth_error_clear(berth_error *error);

/*
 * Sets code, record ("" or NULL: none), offset and message, unless an error is set already: the
 * first one stays. The message is "record at byte N: text", without the parts that are not given.
 * Returns the code in `error`.
 */
int bth_fail(berth_error *error, int code, const char *record, uint64_t offset, const char *format,
             ...) __attribute__((format(printf, 5, 6)));

/* What an errno value means, in English; NULL if it is unknown. */
const char *bth_errno_text(int system_errno);

/*
 * The same for a failed system call: the message ends in ": " and the text of errno. The code is
 * NO_SPACE for ENOSPC, EDQUOT and EFBIG, MEMORY for ENOMEM, NOT_FOUND for ENOENT, else SYSTEM.
 */
int bth_fail_errno(berth_error *error, int system_errno, const char *record, uint64_t offset,
                   const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Without a record and an offset. */
#define bth_fail_status(error, code, ...) bth_fail(error, code, NULL, BERTH_NO_OFFSET, __VA_ARGS__)
#define bth_fail_argument(error, ...) bth_fail_status(error, BERTH_E_ARGUMENT, __VA_ARGS__)
#define bth_fail_system(error, system_errno, ...)                                                  \
    bth_fail_errno(error, system_errno, NULL, BERTH_NO_OFFSET, __VA_ARGS__)

/* Puts "name: " before the message if an error is set, "'': " for an empty name; once per
 * operation. Returns its code. */
int bth_error_prefix(berth_error *error, const char *name);
/* The same with "what index", of a list of the caller: "rule 3: ". */
int bth_error_prefix_index(berth_error *error, const char *what, size_t index);

/* Adds to the end of the message if an error is set: as much as fits. Returns its code. */
int bth_error_append(berth_error *error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Adds the record if an error is set and has none. Returns its code. */
int bth_error_add_record(berth_error *error, const char *record);

/* The general meaning of a status, for example "out of memory"; "unknown status" for others. */
const char *bth_status_text(int status);

/* BERTH_E_MEMORY; the message names the size. */
int bth_fail_memory(berth_error *error, uint64_t nbytes);

/* Calls the log hook with one line, if there is a hook. */
void bth_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Lines for the log, kept until no lock is held: the log function may use the configuration. */
#define BTH_MAX_NOTES 8

typedef struct bth_notes {
    size_t n; /* also of those that found no place */
    char lines[BTH_MAX_NOTES][200];
} bth_notes;

void bth_notes_add(bth_notes *notes, const char *format, ...) __attribute__((format(printf, 2, 3)));
void bth_notes_log(const bth_notes *notes);

#endif
