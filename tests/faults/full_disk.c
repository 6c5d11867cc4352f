/* SPDX-License-Identifier: BSD-3-Clause */
/* W1 for real: a small file system that is full. Needs the right to mount; says so without. */
#include <criterion/criterion.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>

#include "io/syscalls.h"
#include "tests/save/records.h"

#define ROOM "size=1m"

/* A file system of 1 MiB that only this process sees. False: not allowed here. */
static bool mount_small(const char *folder)
{
    return unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("none", folder, "tmpfs", 0, ROOM) == 0;
}

static int no_fallocate(int fd, int mode, off_t offset, off_t nbytes)
{
    (void)fd, (void)mode, (void)offset, (void)nbytes;
    errno = EOPNOTSUPP;
    return -1;
}

static int no_forecast(int fd, struct statvfs *status)
{
    (void)fd, (void)status;
    errno = ENOSYS;
    return -1;
}

static int save(const char *path, const uint8_t *bytes, size_t nbytes, berth_error *error)
{
    const berth_new_record records[] = {{.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."},
                                        {.name = "data/0", .nbytes = nbytes, .data = bytes}};

    return berth_save_records(path, NULL, records, 2, 0, NULL, error);
}

/* Fails for want of room; the old file stays, and afterwards there is as much room as before. */
static void check_full(const char *folder, const char *about)
{
    char *path = test_path(folder, "model.pt");
    uint8_t *bytes = sample_bytes(2u << 20);
    berth_error error;

    for (int i = 0; i < 3; i++) {
        test_write_file(path, "old", 3);
        cr_assert_eq(save(path, bytes, 2u << 20, &error), BERTH_E_NO_SPACE, "%s: %s", about,
                     error.message);
        cr_assert_eq(error.system_errno, ENOSPC);
        cr_assert(strstr(error.message, "No space left on device (") &&
                      strstr(error.message, " KiB missing)"),
                  "%s: %s", about, error.message);
        size_t nbytes;
        uint8_t *file = test_read_file(path, &nbytes);
        cr_assert(nbytes == 3 && memcmp(file, "old", 3) == 0, "%s", about);
        free(file);
        cr_assert_eq(test_folder_count(folder), 1, "%s", about);
        cr_assert_eq(save(path, bytes, 700u << 10, &error), 0, "%s: %s", about, error.message);
        cr_assert_eq(remove(path), 0);
    }
    free(bytes);
    free(path);
}

Test(full_disk, a_full_file_system_keeps_the_old_file)
{
    char *folder = test_folder_new();

    if (!mount_small(folder)) {
        test_folder_remove(folder);
        cr_skip_test("mounting is not permitted here");
    }
    check_full(folder, "room taken at once");
    berth_system.fallocate = no_fallocate;
    check_full(folder, "forecast");
    berth_system.fstatvfs = no_forecast;
    check_full(folder, "full in the middle of writing");
    berth_system_restore();
    umount(folder);
    test_folder_remove(folder);
}
