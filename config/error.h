/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The one way to report an error. Internal functions take a `berth_error *`
 * that is never NULL and was cleared by the public function above them
 * (BTH_ERROR_BEGIN); they return 0 or the code they set.
 */
#ifndef BTH_CONFIG_ERROR_H
#define BTH_CONFIG_ERROR_H

#include "berth.h"
#include "config/cancel.h"

/* First statement of every public function with a `berth_error *error` parameter (X13). */
#define BTH_ERROR_BEGIN(error)                                                                     \
    BTH_HOLD_CANCEL(true);                                                                         \
    BTH_ERROR_BEGIN_QUICKLY(error)

/*
 * The same for what is called for each of very many tensors: it waits for nothing, or holds the
 * cancel off where it does. That costs 31 ns, a tenth of opening a file of 100,000.
 */
#define BTH_ERROR_BEGIN_QUICKLY(error)                                                             \
    berth_error bth_error_unasked;                                                                 \
    if (!(error))                                                                                  \
        (error) = &bth_error_unasked;                                                              \
    bth_error_clear(error)

void bth_error_clear(berth_error *error);

/*
 * Sets code, record ("" or NULL: none), offset and message, unless an error is
 * already set: the first one wins. The message reads "record at byte N: text",
 * without the parts that are absent. Returns the code now in `error`.
 */
int bth_fail(berth_error *error, int code, const char *record, uint64_t offset, const char *format,
             ...) __attribute__((format(printf, 5, 6)));

/*
 * The same for a failed system call: the message ends in ": " and errno's text.
 * The code is NO_SPACE for ENOSPC, EDQUOT and EFBIG, MEMORY for ENOMEM, NOT_FOUND
 * for ENOENT, else SYSTEM.
 */
int bth_fail_errno(berth_error *error, int system_errno, const char *record, uint64_t offset,
                   const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Puts "name: " before the message of an error that is set; once per operation. Returns its code.
 */
int bth_error_prefix(berth_error *error, const char *name);

/* Names the record of an error that is set without one: by who reads for it. Returns its code. */
int bth_error_in(berth_error *error, const char *record);

/* BERTH_E_MEMORY, naming how much was asked for. */
int bth_fail_memory(berth_error *error, uint64_t nbytes);

/* Hands a line to the log hook, if there is one. */
void bth_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
