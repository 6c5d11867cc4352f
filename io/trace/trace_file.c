/* SPDX-License-Identifier: BSD-3-Clause */
#include "io/trace/trace_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/memory.h"
#include "base/shown_text.h"
#include "base/trace.h"
#include "config/option_row.h"
#include "io/file.h"
#include "io/file_system.h"
#include "io/syscalls.h"

#define MARK "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"writer\":\"Berth"
#define END "\n]}\n"
#define END_NBYTES (sizeof END - 1)
#define PENDING_NBYTES ((size_t)256 << 10)
/* Events of short calls are kept together for this long. */
#define LAZY_SECONDS 0.1

static bth_lock files_lock;
static bth_trace_file *files;
static bool is_child; /* a parent traced before the fork */

/*
 * X11: what a child of fork inherits is its parent's; it is left as it is. Static locks are
 * "inherited" at their first use, too.
 */
static void files_acquire(void)
{
    if (bth_lock_acquire(&files_lock) == BTH_LOCK_OURS)
        return;
    files = NULL;
    is_child = atomic_load(&bth_trace_is_used);
}

/* ---- texts ---- */

const char *bth_trace_escape(const char *text, char *out, size_t out_nbytes)
{
    size_t rest = strlen(text), length = 0, n, out_n;
    char escaped[BTH_SHOWN_CHARACTER_NBYTES];

    for (; rest > 0; text += n, rest -= n) {
        if (*text == '"' || *text == '\\') {
            n = 1;
            out_n = (size_t)snprintf(escaped, sizeof escaped, "\\%c", *text);
        } else {
            n = bth_show_character((const uint8_t *)text, rest, true, escaped, &out_n);
        }
        if (out_n >= out_nbytes - length)
            break;
        memcpy(out + length, escaped, out_n);
        length += out_n;
    }
    out[length] = '\0';
    return out;
}

/* "%p" becomes the number of the process, "%%" a percent sign. NULL: too long, or no memory. */
static char *path_make(const char *name, bool *has_number)
{
    char path[BTH_MAX_OPTION_TEXT_NBYTES + 1], folder[BTH_MAX_OPTION_TEXT_NBYTES], number[24];
    size_t length = 0;

    /* The program may change its folder later. */
    if (*name != '/' && getcwd(folder, sizeof folder))
        length = (size_t)snprintf(path, sizeof path, "%s/", folder);
    (void)snprintf(number, sizeof number, "%ld", (long)getpid());
    for (; *name && length < sizeof path; name++) {
        bool is_number = name[0] == '%' && name[1] == 'p';
        *has_number |= is_number;
        name += is_number || (name[0] == '%' && name[1] == '%');
        length += (size_t)snprintf(path + length, sizeof path - length, "%.*s",
                                   is_number ? (int)sizeof number : 1, is_number ? number : name);
    }
    return length < sizeof path ? bth_duplicate_text(path, length) : NULL;
}

/* ---- writing ---- */

/*
 * The file is whole before and after: one call writes events and end. If it fails, the end is put
 * back; but kill -9 can end it between two pages. Behind the events there is room for the end.
 */
static void file_write_events(bth_trace_file *file, int fd, char *events, size_t n)
{
    berth_error unused = {0}, *error = &file->error;

    memcpy(events + n, END, END_NBYTES);
    if (bth_file_write(fd, events, n + END_NBYTES, file->nbytes, error) == 0) {
        file->nbytes += n;
        return;
    }
    if (bth_file_system_has_no_call(error->system_errno))
        (void)bth_error_append(error,
                               "; its file system may take bytes in order only, and a trace is "
                               "written over its own end: choose a path elsewhere");
    (void)bth_file_write(fd, END, END_NBYTES, file->nbytes, &unused);
    (void)bth_system.ftruncate(fd, (off_t)(file->nbytes + END_NBYTES));
}

static void file_write_pending(bth_trace_file *file)
{
    BTH_HOLD_FILE_LIMIT();
    berth_error *error = &file->error;
    struct stat status;

    if (file->n_pending == 0 || file->has_ended)
        return;
    int fd = bth_system.open(file->path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd < 0)
        (void)bth_fail_system(error, errno, "cannot be opened");
    else if (bth_system.fstat(fd, &status) < 0)
        (void)bth_fail_system(error, errno, "cannot be examined");
    else if (status.st_dev != file->device || status.st_ino != file->inode ||
             (uint64_t)status.st_size != file->nbytes + END_NBYTES)
        (void)bth_fail_status(error, BERTH_E_SYSTEM,
                              "another process has written it; with %%p in its name each process "
                              "has a trace of its own");
    else
        file_write_events(file, fd, file->pending, file->n_pending);
    bth_file_close(fd);
    file->has_ended = error->code != BERTH_OK;
    file->n_pending = 0;
    file->write_seconds = bth_seconds();
}

/* ---- making the file ---- */

/* A name that was mistaken must not cost a checkpoint: only traces and empty files are replaced. */
static int file_remove_older_trace(const bth_trace_file *file, mode_t *mode, berth_error *error)
{
    char begin[sizeof MARK - 1];
    struct stat status;

    if (bth_system.fstatat(AT_FDCWD, file->path, &status, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : bth_fail_system(error, errno, "cannot be examined");
    if (!S_ISREG(status.st_mode))
        return bth_fail_argument(error, "is there already, and is not a regular file");
    *mode = status.st_mode & 0666;
    int fd = bth_system.open(file->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd < 0)
        return bth_fail_system(error, errno, "is there already, and cannot be opened");
    if (status.st_size > 0 && (bth_file_read(fd, begin, sizeof begin, 0, error) < 0 ||
                               memcmp(begin, MARK, sizeof begin) != 0)) {
        bth_error_clear(error);
        (void)bth_fail_argument(error, "is there already, and is not a trace: it is left as it is");
    }
    bth_file_close(fd);
    if (error->code == BERTH_OK && bth_system.unlinkat(AT_FDCWD, file->path, 0) < 0)
        return bth_fail_system(error, errno, "cannot be replaced");
    return error->code;
}

static int file_make(bth_trace_file *file, bool has_number, berth_error *error)
{
    char head[512 + END_NBYTES], program[200];
    struct stat status;
    mode_t mode = 0666;

    BTH_HOLD_FILE_LIMIT();
    if (getauxval(AT_SECURE))
        return bth_fail_argument(error, "a program with more rights than its user writes none");
    if (is_child && !has_number)
        return bth_fail_argument(error, "a forked process writes none, as its parent may write it; "
                                        "with %%p in its name each process has a trace of its own");
    if (file_remove_older_trace(file, &mode, error) < 0)
        return error->code;
    int fd =
        bth_system.open(file->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    if (fd < 0)
        return bth_fail_system(error, errno, "cannot be made");
    int n = snprintf(
        head, sizeof head - END_NBYTES,
        MARK " %s\"},\"traceEvents\":[\n{\"name\":\"process_name\",\"ph\":\"M\",\"ts\":%llu,"
             "\"pid\":%ld,\"tid\":0,\"args\":{\"name\":\"%s\"}}",
        BERTH_VERSION_STRING, (unsigned long long)(bth_seconds() * 1e6), (long)getpid(),
        bth_trace_escape(program_invocation_short_name, program, sizeof program));
    if (bth_system.fstat(fd, &status) < 0) {
        (void)bth_fail_system(error, errno, "cannot be examined");
    } else {
        file->device = status.st_dev;
        file->inode = status.st_ino;
        file_write_events(file, fd, head, (size_t)n);
    }
    if (error->code < 0) /* the next trace must find nothing of it */
        (void)bth_system.unlinkat(AT_FDCWD, file->path, 0);
    bth_file_close(fd);
    return error->code;
}

static void file_log_end(bth_trace_file *file)
{
    bool is_due = false;

    files_acquire();
    if (file->has_ended && !file->is_logged && file->process == bth_process_unique_number())
        is_due = file->is_logged = true;
    bth_lock_release(&files_lock);
    if (is_due) /* without the lock: the log function may save */
        bth_log("trace %s: %s", file->path ? file->path : bth_option_text(file->option),
                file->error.message);
}

bth_trace_file *bth_trace_file_find(int64_t option, bool make)
{
    bool has_number = false;

    files_acquire();
    bth_trace_file *file = files;
    while (file && file->option != option)
        file = file->next;
    if (!file && make && (file = bth_allocate_zeroed(sizeof *file))) {
        bth_error_clear(&file->error);
        bth_lock_initialize(&file->counters_lock);
        file->option = option;
        file->process = bth_process_unique_number();
        file->path = path_make(bth_option_text(option), &has_number);
        if (!file->path)
            (void)bth_fail_argument(&file->error, "its path is too long, or memory is out");
        else
            (void)file_make(file, has_number, &file->error);
        file->has_ended = file->error.code != BERTH_OK;
        file->next = files;
        files = file;
    }
    bool has_ended = !file || file->has_ended;
    bth_lock_release(&files_lock);
    if (has_ended && file)
        file_log_end(file);
    return has_ended ? NULL : file;
}

/* ---- events and lanes ---- */

void bth_trace_file_append(bth_trace_file *file, const char *events, size_t n, bool at_once)
{
    /* X11: a fork inside an operation; the parent writes its events. */
    if (file->process != bth_process_unique_number())
        return;
    files_acquire();
    if (!file->has_ended && n > 0) {
        if (file->n_pending + n > PENDING_NBYTES)
            file_write_pending(file);
        if (!file->pending)
            file->pending = bth_allocate(PENDING_NBYTES + END_NBYTES);
        if (file->pending) {
            memcpy(file->pending + file->n_pending, events, n);
            file->n_pending += n;
        } else {
            (void)bth_fail_memory(&file->error, PENDING_NBYTES);
            file->has_ended = true;
        }
    }
    if (!file->has_ended && (at_once || bth_seconds() - file->write_seconds > LAZY_SECONDS))
        file_write_pending(file);
    if (at_once || file->has_ended) { /* traces of many names keep little memory */
        bth_release(file->pending);
        file->pending = NULL;
    }
    bool has_ended = file->has_ended;
    bth_lock_release(&files_lock);
    if (has_ended)
        file_log_end(file);
}

size_t bth_trace_file_claim_lane(bth_trace_file *file)
{
    size_t lane = 0;

    files_acquire();
    while (lane < BTH_TRACE_MAX_LANES && file->lanes[lane])
        lane++;
    if (lane < BTH_TRACE_MAX_LANES)
        file->lanes[lane] = true;
    bth_lock_release(&files_lock);
    return lane;
}

void bth_trace_file_release_lane(bth_trace_file *file, size_t lane)
{
    files_acquire();
    if (lane < BTH_TRACE_MAX_LANES)
        file->lanes[lane] = false;
    bth_lock_release(&files_lock);
}
