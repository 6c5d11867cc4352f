/* SPDX-License-Identifier: BSD-3-Clause */
/* The error object, the texts of the statuses, the log hook. */
#include "config/error.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "config/utf8.h"

const char *berth_version(void)
{
    return BERTH_VERSION_STRING;
}

/* Row i belongs to status -i. */
static const struct {
    const char *name;
    const char *text;
} statuses[] = {
#define ROW(name, text) [-BERTH_##name] = {"BERTH_" #name, text}
    ROW(OK, "success"),
    ROW(E_ARGUMENT, "invalid argument"),
    ROW(E_OPTION, "invalid option name or value"),
    ROW(E_UNAVAILABLE, "not available in this build"),
    ROW(E_MEMORY, "out of memory"),
    ROW(E_SYSTEM, "a system call failed"),
    ROW(E_NO_SPACE, "no space left, or a size limit was reached"),
    ROW(E_CALLBACK, "the caller's function failed"),
    ROW(E_CANCELLED, "cancelled"),
    ROW(E_NOT_DURABLE, "the file is in place, but may be lost in a power cut"),
    ROW(E_NOT_FOUND, "not found"),
    ROW(E_AMBIGUOUS, "the name matches several values"),
    ROW(E_NOT_CHECKPOINT, "not a checkpoint"),
    ROW(E_ARCHIVE, "the archive is broken or ambiguous"),
    ROW(E_PICKLE, "the pickle is malformed"),
    ROW(E_FORBIDDEN, "the pickle names a function that is not allowed"),
    ROW(E_TENSOR, "a tensor does not fit its storage"),
    ROW(E_OFFSETS, "computed offsets differ from the file's"),
    ROW(E_CHECKSUM, "a checksum does not match"),
    ROW(E_TRUNCATED, "the file ends too early"),
    ROW(E_UNSUPPORTED, "valid, but not supported"),
    ROW(E_DEVICE, "a device failed, or does not exist"),
    ROW(E_BUSY, "live tickets still use the row cache"),
    ROW(E_TIMEOUT, "not done in the given time"),
    ROW(E_PEER, "another writer of the joint save failed"),
    ROW(E_REPLACE, "the file cannot be replaced, only written in place"),
#undef ROW
};
#define N_STATUSES (sizeof statuses / sizeof *statuses)

const char *berth_status_text(int status)
{
    return status <= 0 && status > -(int)N_STATUSES ? statuses[-status].text : "unknown status";
}

const char *berth_status_name(int status)
{
    return status <= 0 && status > -(int)N_STATUSES ? statuses[-status].name : "BERTH_E_UNKNOWN";
}

void bth_error_clear(berth_error *error)
{
    /* Not the whole object: it has almost a kilobyte, and every call clears it. */
    error->code = BERTH_OK;
    error->system_errno = 0;
    error->offset = BERTH_NO_OFFSET;
    error->record[0] = '\0';
    error->message[0] = '\0';
}

/*
 * Messages hold names of records and globals from untrusted files. They stay one line of UTF-8
 * without control characters, which a terminal would execute. If the text was cut inside a
 * sequence, that sequence is removed.
 */
static void text_replace_unprintable(char *text, size_t text_nbytes)
{
    uint8_t *bytes = (uint8_t *)text;
    size_t length = strlen(text), n;

    for (size_t i = 0; i < length; i += n) {
        n = bth_utf8_sequence_nbytes(bytes + i, length - i);
        if (n > 0 && !bth_utf8_is_control(bytes + i))
            continue;
        bool is_cut = n == 0 && length == text_nbytes - 1 && length - i < 4 && bytes[i] >= 0xC2;
        text[i] = is_cut ? '\0' : '?';
        n = is_cut ? length - i : 1;
    }
}

/* Appends to the message, as much as fits. */
__attribute__((format(printf, 2, 0))) static void
error_message_append_va_list(berth_error *error, const char *format, va_list arguments)
{
    size_t length = strlen(error->message);

    (void)vsnprintf(error->message + length, sizeof error->message - length, format, arguments);
}

__attribute__((format(printf, 2, 3))) static void error_message_append(berth_error *error,
                                                                       const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    error_message_append_va_list(error, format, arguments);
    va_end(arguments);
}

/* Sets code, record and offset, and begins the message with them. */
static void error_set_code_and_begin_message(berth_error *error, int code, const char *record,
                                             uint64_t offset)
{
    bth_error_clear(error);
    error->code = (berth_status)code;
    error->offset = offset;
    if (record && *record) {
        (void)snprintf(error->record, sizeof error->record, "%s", record);
        text_replace_unprintable(error->record, sizeof error->record);
        error_message_append(error, "%s", error->record);
    }
    if (offset != BERTH_NO_OFFSET)
        error_message_append(error, "%sat byte %llu", *error->message ? " " : "",
                             (unsigned long long)offset);
    if (*error->message)
        error_message_append(error, ": ");
}

static int errno_to_status(int system_errno)
{
    switch (system_errno) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return BERTH_E_NO_SPACE;
    case ENOMEM:
        return BERTH_E_MEMORY;
    case ENOENT:
        return BERTH_E_NOT_FOUND;
    default:
        return BERTH_E_SYSTEM;
    }
}

/* Not glibc's strerror: all threads share its buffer, and it follows the locale. */
const char *bth_errno_text(int system_errno)
{
#ifdef __GLIBC__
#if __GLIBC_PREREQ(2, 32)
    return strerrordesc_np(system_errno);
#else /* which gives its own text for what it knows, and else the buffer */
    char unknown[64];
    const char *text = strerror_r(system_errno, unknown, sizeof unknown);
    return text == unknown ? NULL : text;
#endif
#else
    const char *text = strerror(system_errno);
    return strcmp(text, strerror(0)) == 0 ? NULL : text;
#endif
}

/* system_errno: 0 if no system call failed. */
__attribute__((format(printf, 6, 0))) static int
error_fail_va_list(berth_error *error, int code, int system_errno, const char *record,
                   uint64_t offset, const char *format, va_list arguments)
{
    if (error->code != BERTH_OK)
        return error->code;
    error_set_code_and_begin_message(error, code, record, offset);
    error_message_append_va_list(error, format, arguments);
    error->system_errno = system_errno;
    const char *text = system_errno != 0 ? bth_errno_text(system_errno) : "";
    if (!text)
        error_message_append(error, ": error %d", system_errno);
    else if (*text)
        error_message_append(error, ": %s", text);
    text_replace_unprintable(error->message, sizeof error->message);
    return error->code;
}

int bth_fail(berth_error *error, int code, const char *record, uint64_t offset, const char *format,
             ...)
{
    va_list arguments;

    assert(code < 0);
    va_start(arguments, format);
    (void)error_fail_va_list(error, code, 0, record, offset, format, arguments);
    va_end(arguments);
    return error->code;
}

int bth_fail_errno(berth_error *error, int system_errno, const char *record, uint64_t offset,
                   const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    (void)error_fail_va_list(error, errno_to_status(system_errno), system_errno, record, offset,
                             format, arguments);
    va_end(arguments);
    return error->code;
}

/* Puts text before the message. */
static void error_message_prepend(berth_error *error, const char *text, const char *between)
{
    char message[sizeof error->message];

    memcpy(message, error->message, sizeof message);
    error->message[0] = '\0';
    error_message_append(error, "%s%s%s", text, between, message);
    text_replace_unprintable(error->message, sizeof error->message);
}

int bth_error_prefix(berth_error *error, const char *name)
{
    if (error->code != BERTH_OK)
        error_message_prepend(error, name, ": ");
    return error->code;
}

int bth_error_append(berth_error *error, const char *format, ...)
{
    va_list arguments;

    if (error->code != BERTH_OK) {
        va_start(arguments, format);
        error_message_append_va_list(error, format, arguments);
        va_end(arguments);
        text_replace_unprintable(error->message, sizeof error->message);
    }
    return error->code;
}

int bth_error_prefix_index(berth_error *error, const char *what, size_t index)
{
    char name[64];

    (void)snprintf(name, sizeof name, "%s %zu", what, index);
    return bth_error_prefix(error, name);
}

int bth_error_add_record(berth_error *error, const char *record)
{
    static const char at[] = "at byte ";

    if (error->code == BERTH_OK || error->record[0])
        return error->code;
    (void)snprintf(error->record, sizeof error->record, "%s", record);
    text_replace_unprintable(error->record, sizeof error->record);
    error_message_prepend(error, error->record,
                          strncmp(error->message, at, sizeof at - 1) == 0 ? " " : ": ");
    return error->code;
}

int bth_fail_memory(berth_error *error, uint64_t nbytes)
{
    return bth_fail_status(error, BERTH_E_MEMORY, "out of memory: %llu bytes were requested",
                           (unsigned long long)nbytes);
}

static berth_log_function log_function;
static void *log_context;

void berth_set_log(berth_log_function function, void *context)
{
    log_function = function;
    log_context = context;
}

void bth_log(const char *format, ...)
{
    berth_error line;
    va_list arguments;

    if (!log_function)
        return;
    BTH_HOLD_CANCEL(true);
    bth_error_clear(&line);
    va_start(arguments, format);
    error_message_append_va_list(&line, format, arguments);
    va_end(arguments);
    text_replace_unprintable(line.message, sizeof line.message);
    log_function(log_context, line.message);
}
