/* SPDX-License-Identifier: BSD-3-Clause */
/* The error object, the texts of the statuses, the log hook. */
#include "base/error.h"
#include "berth/more.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

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

const char *bth_status_text(int status)
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
 * Messages hold names of records and globals from untrusted files. They stay one line of UTF-8 that
 * a terminal only shows. If the text was cut inside a sequence, that sequence is removed.
 */
static void text_make_safe(char *text, size_t text_nbytes)
{
    char whole[sizeof((berth_error *)0)->message];
    size_t length = strlen(text), cut = length;

    if (length == text_nbytes - 1) {
        while (cut > 0 && length - cut < 3 && ((uint8_t)text[cut - 1] & 0xC0) == 0x80)
            cut--;
        if (cut > 0 && (uint8_t)text[cut - 1] >= 0xC2 &&
            bth_utf8_sequence_nbytes((uint8_t *)text + cut - 1, length - cut + 1) == 0)
            length = cut - 1;
    }
    /* NOLINTNEXTLINE(bugprone-not-null-terminated-result): its length goes with it */
    memcpy(whole, text, length);
    (void)berth_show_text(whole, length, BERTH_TEXT_PLAIN, text, text_nbytes);
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
    bth_error_clear(error);
    error->code = (berth_status)code;
    error->offset = offset;
    if (record && *record) {
        (void)snprintf(error->record, sizeof error->record, "%s", record);
        text_make_safe(error->record, sizeof error->record);
        error_message_append(error, "%s", error->record);
    }
    if (offset != BERTH_NO_OFFSET)
        error_message_append(error, "%sat byte %llu", *error->message ? " " : "",
                             (unsigned long long)offset);
    if (*error->message)
        error_message_append(error, ": ");
    error_message_append_va_list(error, format, arguments);
    error->system_errno = system_errno;
    const char *text = system_errno != 0 ? bth_errno_text(system_errno) : "";
    if (!text)
        error_message_append(error, ": error %d", system_errno);
    else if (*text)
        error_message_append(error, ": %s", text);
    text_make_safe(error->message, sizeof error->message);
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
    bool is_space = system_errno == ENOSPC || system_errno == EDQUOT || system_errno == EFBIG;
    int code = is_space                 ? BERTH_E_NO_SPACE
               : system_errno == ENOMEM ? BERTH_E_MEMORY
               : system_errno == ENOENT ? BERTH_E_NOT_FOUND
                                        : BERTH_E_SYSTEM;
    va_list arguments;

    va_start(arguments, format);
    (void)error_fail_va_list(error, code, system_errno, record, offset, format, arguments);
    va_end(arguments);
    return error->code;
}

/* Where the character begins that the byte `at` is in. */
static size_t text_character_begin(const char *text, size_t at)
{
    size_t begin = at;

    while (begin > 0 && at - begin < 3 && ((uint8_t)text[begin] & 0xC0) == 0x80)
        begin--;
    return begin;
}

/* Puts text before the message. Of a long one both ends: the name of a file is at one of them. */
static void error_message_prepend(berth_error *error, const char *text, const char *between)
{
    enum { MAX_NBYTES = 400, FRONT_NBYTES = 100, BACK_NBYTES = 290 };
    char message[sizeof error->message];
    size_t n = strlen(text);

    memcpy(message, error->message, sizeof message);
    error->message[0] = '\0';
    if (n > MAX_NBYTES)
        error_message_append(error, "%.*s...%s%s%s", (int)text_character_begin(text, FRONT_NBYTES),
                             text, text + text_character_begin(text, n - BACK_NBYTES), between,
                             message);
    else
        error_message_append(error, "%s%s%s", text, between, message);
    text_make_safe(error->message, sizeof error->message);
}

int bth_error_prefix(berth_error *error, const char *name)
{
    if (error->code != BERTH_OK)
        error_message_prepend(error, *name ? name : "''", ": ");
    return error->code;
}

int bth_error_append(berth_error *error, const char *format, ...)
{
    va_list arguments;

    if (error->code != BERTH_OK) {
        va_start(arguments, format);
        error_message_append_va_list(error, format, arguments);
        va_end(arguments);
        text_make_safe(error->message, sizeof error->message);
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
    text_make_safe(error->record, sizeof error->record);
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
    text_make_safe(line.message, sizeof line.message);
    log_function(log_context, line.message);
}

void bth_notes_add(bth_notes *notes, const char *format, ...)
{
    va_list arguments;

    if (notes->n < BTH_MAX_NOTES) {
        va_start(arguments, format);
        (void)vsnprintf(notes->lines[notes->n], sizeof notes->lines[0], format, arguments);
        va_end(arguments);
    }
    notes->n++;
}

void bth_notes_log(const bth_notes *notes)
{
    for (size_t i = 0; i < notes->n && i < BTH_MAX_NOTES; i++)
        bth_log("%s", notes->lines[i]);
    if (notes->n > BTH_MAX_NOTES)
        bth_log("%zu more remarks about options are left out", notes->n - BTH_MAX_NOTES);
}
