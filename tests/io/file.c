/* SPDX-License-Identifier: BSD-3-Clause */
/* F1, W1, W3, W9: transfers that finish, or say what is missing. */
#include "io/file.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/syscalls.h"
#include "tests/support/scene.h"

#define NBYTES 10000

static berth_error error;
static uint8_t bytes[NBYTES];
static int fd;

/* What goes wrong: every call moves at most `most` bytes, and call n may fail first. */
static struct {
    size_t most;
    int system_errno; /* of every second call; 0: none */
    int fail_at;      /* from this call on … */
    int fail_errno;   /* … this */
    int n_calls, n_failures, n_polls;
    short events;
} fault;

static void open_a_file(void)
{
    begin_scene("file");
    for (size_t i = 0; i < NBYTES; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 251);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    cr_assert_geq(fd, 0);
    memset(&fault, 0, sizeof fault);
    fault.most = SIZE_MAX;
    error = (berth_error){0};
}

static void close_the_file(void)
{
    bth_system_restore();
    (void)close(fd);
    end_scene();
}
TestSuite(file, .init = open_a_file, .fini = close_the_file);

/* True if this call is to fail; errno is set. */
static bool fails(void)
{
    fault.n_calls++;
    if (fault.fail_at && fault.n_calls >= fault.fail_at) {
        errno = fault.fail_errno;
        return errno != 0;
    }
    errno = fault.system_errno;
    if (!fault.system_errno || fault.n_calls % 2 == 0)
        return false;
    fault.n_failures++;
    return true;
}

static size_t at_most(size_t nbytes)
{
    return nbytes < fault.most ? nbytes : fault.most;
}

static ssize_t faulty_pread(int file, void *buffer, size_t nbytes, off_t offset)
{
    return fails() ? -1 : pread(file, buffer, at_most(nbytes), offset);
}

static ssize_t faulty_pwrite(int file, const void *buffer, size_t nbytes, off_t offset)
{
    return fails() ? -1 : pwrite(file, buffer, at_most(nbytes), offset);
}

static ssize_t faulty_write(int file, const void *buffer, size_t nbytes)
{
    return fails() ? -1 : write(file, buffer, at_most(nbytes));
}

/* Moves at most `most` bytes, across pieces. */
static ssize_t faulty_pwritev(int file, const struct iovec *pieces, int n, off_t offset)
{
    ssize_t moved = 0;

    if (fails())
        return -1;
    cr_assert_leq(n, 1024, "more is EINVAL on Linux");
    for (int i = 0; i < n && (size_t)moved < fault.most; i++) {
        size_t left = fault.most - (size_t)moved;
        size_t now = pieces[i].iov_len < left ? pieces[i].iov_len : left;
        moved += pwrite(file, pieces[i].iov_base, now, offset + moved);
    }
    return moved;
}

static int counting_poll(struct pollfd *fds, nfds_t n, int milliseconds)
{
    (void)milliseconds;
    cr_assert_eq(n, 1);
    fault.n_polls++;
    fault.events = fds->events;
    return 1;
}

static ssize_t pwrite_of_nothing(int file, const void *buffer, size_t nbytes, off_t offset)
{
    (void)file, (void)buffer, (void)nbytes, (void)offset;
    return 0;
}

static void inject(void)
{
    bth_system.pread = faulty_pread;
    bth_system.pwrite = faulty_pwrite;
    bth_system.pwritev = faulty_pwritev;
    bth_system.write = faulty_write;
    bth_system.poll = counting_poll;
}

/* The four ways to move bytes, each ending with the file's bytes in `found`. */
typedef int (*transfer)(uint8_t *found);

static int by_read(uint8_t *found)
{
    cr_assert_eq(pwrite(fd, bytes, NBYTES, 0), NBYTES);
    return bth_file_read(fd, found, NBYTES, 0, &error);
}

static int by_write(uint8_t *found)
{
    int status = bth_file_write(fd, bytes, NBYTES, 0, &error);
    cr_assert_geq(pread(fd, found, NBYTES, 0), 0);
    return status;
}

static int by_append(uint8_t *found)
{
    cr_assert_eq(lseek(fd, 0, SEEK_SET), 0);
    int status = bth_file_write(fd, bytes, NBYTES, BERTH_NO_OFFSET, &error);
    cr_assert_geq(pread(fd, found, NBYTES, 0), 0);
    return status;
}

static int by_pieces(uint8_t *found)
{
    struct iovec pieces[3000];
    size_t n = 0, at = 0;

    /* More pieces than one call takes, of 0, 1, 2, 3 … bytes. */
    for (; at < NBYTES && n < 2999; n++) {
        size_t nbytes = n % 5 < NBYTES - at ? n % 5 : NBYTES - at;
        pieces[n] = (struct iovec){.iov_base = bytes + at, .iov_len = nbytes};
        at += nbytes;
    }
    pieces[n++] = (struct iovec){.iov_base = bytes + at, .iov_len = NBYTES - at};
    int status = bth_file_write_pieces(fd, pieces, n, 0, &error);
    cr_assert_geq(pread(fd, found, NBYTES, 0), 0);
    return status;
}

static const transfer transfers[] = {by_read, by_write, by_append, by_pieces};

static void expect_whole_transfers(void)
{
    static uint8_t found[NBYTES];

    for (size_t i = 0; i < sizeof transfers / sizeof *transfers; i++) {
        memset(found, 0, NBYTES);
        fault.n_calls = 0;
        cr_assert_eq(ftruncate(fd, 0), 0);
        assert_ok(transfers[i](found));
        cr_assert_arr_eq(found, bytes, NBYTES, "transfer %zu", i);
    }
}

Test(file, transfers_are_whole)
{
    expect_whole_transfers();
}

Test(file, short_transfers_continue_w3)
{
    static const size_t most[] = {1, 3, 4096, 9999};

    inject();
    for (size_t i = 0; i < sizeof most / sizeof *most; i++) {
        fault.most = most[i];
        expect_whole_transfers();
        cr_assert_geq((size_t)fault.n_calls, NBYTES / most[i]);
    }
}

Test(file, interrupted_transfers_continue_w3)
{
    inject();
    fault.most = 1000;
    fault.system_errno = EINTR;
    expect_whole_transfers();
    cr_assert_geq(fault.n_calls, 20);
    cr_assert_eq(fault.n_polls, 0);
}

Test(file, transfers_that_would_block_wait_w3)
{
    uint8_t found[NBYTES];

    inject();
    fault.most = 1000;
    fault.system_errno = EAGAIN;
    expect_whole_transfers();
    cr_assert_geq(fault.n_failures, 40);
    cr_assert_eq(fault.n_polls, fault.n_failures, "none spins");
    cr_assert_eq(by_read(found), 0);
    cr_assert_eq(fault.events, POLLIN);
    cr_assert_eq(by_append(found), 0);
    cr_assert_eq(fault.events, POLLOUT);
}

Test(file, failed_writes_tell_where_and_what_is_missing_w1)
{
    static const struct {
        int system_errno, code;
        const char *text;
    } rows[] = {{ENOSPC, BERTH_E_NO_SPACE, "No space left on device"},
                {EDQUOT, BERTH_E_NO_SPACE, "Disk quota exceeded"},
                {EFBIG, BERTH_E_NO_SPACE, "File too large"},
                {EIO, BERTH_E_SYSTEM, "Input/output error"}};
    char sentence[100];
    uint8_t found[NBYTES];

    inject();
    fault.most = 4000;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t kind = 0; kind < 4; kind++) {
            fault.n_calls = 0;
            fault.fail_at = 3;
            fault.fail_errno = rows[i].system_errno;
            error = (berth_error){0};
            cr_assert_eq(ftruncate(fd, 0), 0);
            cr_assert_eq(transfers[kind](found), rows[i].code);
            unsigned at = transfers[kind] == by_read ? 8000 : (unsigned)lseek(fd, 0, SEEK_END);
            cr_assert(at > 0 && at < NBYTES);
            cr_assert_eq(error.system_errno, rows[i].system_errno);
            if (transfers[kind] == by_append)
                (void)snprintf(sentence, sizeof sentence, "2000 bytes not written: %s",
                               rows[i].text);
            else
                (void)snprintf(sentence, sizeof sentence, "at byte %u: %u bytes not %s: %s", at,
                               NBYTES - at, transfers[kind] == by_read ? "read" : "written",
                               rows[i].text);
            cr_assert_str_eq(error.message, sentence);
        }
}

Test(file, a_write_of_nothing_is_an_error_not_a_loop)
{
    bth_system.pwrite = pwrite_of_nothing;
    FAILS(bth_file_write(fd, bytes, 5, 3, &error), BERTH_E_SYSTEM,
          "at byte 3: 5 bytes not written: Input/output error");
}

static ssize_t pread_of_nothing(int file, void *memory, size_t nbytes, off_t offset)
{
    (void)file, (void)memory, (void)nbytes, (void)offset;
    return 0;
}

Test(file, that_ends_too_early_tells_where_w9)
{
    uint8_t found[NBYTES];

    cr_assert_eq(pwrite(fd, bytes, 6000, 0), 6000);
    FAILS(bth_file_read(fd, found, 5000, 2000, &error), BERTH_E_TRUNCATED,
          "at byte 6000: the file ends here, 1000 bytes too early");
    cr_assert_eq(error.offset, 6000);
    bth_system.pread = pread_of_nothing;
    error = (berth_error){0};
    FAILS(bth_file_read(fd, found, 5000, 2000, &error), BERTH_E_TRUNCATED,
          "at byte 2000: the file ends here, 5000 bytes too early, but "
          "reports a larger size, as files of /sys do");
}

Test(file, positions_beyond_the_kernel_s_are_refused)
{
    struct iovec piece = {.iov_base = bytes, .iov_len = 10};

    cr_assert_eq(bth_file_read(fd, bytes, 10, UINT64_MAX - 3, &error), BERTH_E_SYSTEM);
    error = (berth_error){0};
    cr_assert_eq(bth_file_write(fd, bytes, 10, INT64_MAX - 3, &error), BERTH_E_NO_SPACE);
    error = (berth_error){0};
    FAILS(bth_file_write_pieces(fd, &piece, 1, INT64_MAX - 3, &error), BERTH_E_NO_SPACE,
          "at byte 9223372036854775804: 10 bytes not written: File too large");
}

Test(file, of_no_bytes_needs_no_call)
{
    struct iovec pieces[2] = {{.iov_base = bytes, .iov_len = 0}, {.iov_base = NULL, .iov_len = 0}};

    inject();
    cr_assert_eq(bth_file_read(fd, NULL, 0, 0, &error), 0);
    cr_assert_eq(bth_file_write(fd, NULL, 0, 0, &error), 0);
    cr_assert_eq(bth_file_write(fd, NULL, 0, BERTH_NO_OFFSET, &error), 0);
    cr_assert_eq(bth_file_write_pieces(fd, pieces, 2, 0, &error), 0);
    cr_assert_eq(fault.n_calls, 0);
}

/* ---- opening ---- */

Test(file, is_opened_once_and_closed_in_programs_that_are_started_f1)
{
    uint64_t nbytes;
    int opened;

    cr_assert_eq(pwrite(fd, bytes, 6000, 0), 6000);
    cr_assert_eq(bth_file_open(path, &opened, &nbytes, &error), 0);
    cr_assert_eq(nbytes, 6000);
    cr_assert(fcntl(opened, F_GETFD) & FD_CLOEXEC);
    bth_file_close(opened);
    cr_assert_eq(fcntl(opened, F_GETFD), -1);
    bth_file_close(-1);
}

static void expect_not_opened(const char *name, int code, const char *sentence)
{
    uint64_t nbytes;
    int opened = -1;

    error = (berth_error){0};
    cr_assert_eq(bth_file_open(name, &opened, &nbytes, &error), code);
    cr_assert_str_eq(error.message, sentence);
    cr_assert_eq(opened, -1);
}

Test(file, that_is_none_is_told_by_what_it_is_f1)
{
    char *pipe_path = test_path(folder, "pipe");
    char *missing = test_path(folder, "missing");

    cr_assert_eq(mkfifo(pipe_path, 0600), 0);
    expect_not_opened(folder, BERTH_E_NOT_CHECKPOINT, "is a folder, not a file");
    expect_not_opened(pipe_path, BERTH_E_NOT_CHECKPOINT, BTH_FILE_IS_PIPE);
    expect_not_opened("/dev/null", BERTH_E_NOT_CHECKPOINT, "is not a regular file");
    expect_not_opened(missing, BERTH_E_NOT_FOUND, "cannot be opened: No such file or directory");
    free(pipe_path);
    free(missing);
}

static int n_open, n_closed;

static int failing_open(const char *name, int flags, mode_t mode)
{
    if (n_open++ == 0) {
        errno = EINTR;
        return -1;
    }
    return open(name, flags, mode);
}

static int failing_fstat(int file, struct stat *status)
{
    (void)file, (void)status;
    errno = EIO;
    return -1;
}

static int counting_close(int file)
{
    n_closed++;
    return close(file);
}

Test(file, that_cannot_be_examined_is_closed_again_w6)
{
    bth_system.open = failing_open;
    bth_system.fstat = failing_fstat;
    bth_system.close = counting_close;
    expect_not_opened(path, BERTH_E_SYSTEM, "cannot be examined: Input/output error");
    cr_assert_eq(n_open, 2, "EINTR is tried again");
    cr_assert_eq(n_closed, 1);
}
