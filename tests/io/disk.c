/* SPDX-License-Identifier: BSD-3-Clause */
/* What is found of disks, partitions, and file systems without a disk. */
#include "io/file_system.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>

#define NBYTES 100

#include "tests/support/io/small_file.h"

static void open_a_file(void)
{
    begin_file(NBYTES);
}

TestSuite(disk, .init = open_a_file, .fini = end_file);

/* A partition 259:3, or what the test wants. */
static int on_a_partition(int of, struct stat *status)
{
    int result = fstat(of, status);

    status->st_dev = makedev(259, 3);
    return result;
}

static int nowhere(int of, struct stat *status)
{
    (void)of, (void)status;
    errno = EIO;
    return -1;
}

/* Makes "folder/name" with all the folders in between. */
static void write_below(const char *name, const char *text)
{
    char *file = test_path(folder, name);

    for (char *at = file + strlen(folder) + 1; (at = strchr(at, '/')); at++) {
        *at = '\0';
        (void)mkdir(file, 0777);
        *at = '/';
    }
    test_write_file(file, text, strlen(text));
    free(file);
}

Test(disk, readahead_is_of_the_disk)
{
    bth_system.fstat = on_a_partition;
    write_below("sys/dev/block/259:3/queue/read_ahead_kb", "512\n");
    write_below("sys/class/bdi/259:3/read_ahead_kb", "64\n");
    cr_expect_eq(bth_disk_readahead_nbytes(file_fd, folder), 512 << 10);
}

Test(disk, readahead_of_a_partition_is_of_its_disk)
{
    bth_system.fstat = on_a_partition;
    write_below("sys/dev/block/259:3/partition", "3\n");
    write_below("sys/dev/block/queue/read_ahead_kb", "8192\n");
    cr_expect_eq(bth_disk_readahead_nbytes(file_fd, folder), 8192 << 10);
}

Test(disk, readahead_without_a_disk_is_of_the_file_system)
{
    bth_system.fstat = on_a_partition;
    write_below("sys/class/bdi/259:3/read_ahead_kb", "1024\n");
    cr_expect_eq(bth_disk_readahead_nbytes(file_fd, folder), 1024 << 10);
}

Test(disk, readahead_that_is_not_reported_is_the_default_of_linux)
{
    bth_system.fstat = on_a_partition;
    cr_expect_eq(bth_disk_readahead_nbytes(file_fd, folder), 128 << 10);
    write_below("sys/dev/block/259:3/queue/read_ahead_kb", "");
    cr_expect_eq(bth_disk_readahead_nbytes(file_fd, folder), 128 << 10);
    bth_system.fstat = nowhere;
    cr_expect_eq(bth_disk_readahead_nbytes(file_fd, folder), 128 << 10);
}

Test(disk, readahead_is_whole_pages_and_within_reason)
{
    uint64_t page_nbytes = (uint64_t)sysconf(_SC_PAGESIZE);

    bth_system.fstat = on_a_partition;
    write_below("sys/dev/block/259:3/queue/read_ahead_kb", "0\n");
    cr_expect_eq(bth_disk_readahead_nbytes(file_fd, folder), page_nbytes);
    write_below("sys/dev/block/259:3/queue/read_ahead_kb", "129\n");
    cr_expect_eq(bth_disk_readahead_nbytes(file_fd, folder),
                 (129 << 10) / page_nbytes * page_nbytes);
    write_below("sys/dev/block/259:3/queue/read_ahead_kb", "18446744073709551615\n");
    cr_expect_eq(bth_disk_readahead_nbytes(file_fd, folder), 1 << 30);
}

Test(disk, rotates_only_if_it_is_one_real_disk)
{
    static const struct {
        const char *rotational, *vendor, *model;
        bool is_rotating;
    } cases[] = {{"1\n", "ATA     \n", "ST4000DM004\n", true},
                 {"1\n", "SEAGATE \n", "ST4000NM0023\n", true},
                 {"0\n", "ATA     \n", "Samsung SSD 870\n", false},
                 {"1\n", "ATA     \n", "QEMU HARDDISK\n", false},
                 {"1\n", "ATA     \n", "VBOX HARDDISK\n", false},
                 {"1\n", "QEMU    \n", "QEMU HARDDISK\n", false},
                 {"1\n", "DELL    \n", "PERC H730\n", false},
                 {"1\n", "0x1af4\n", "", false}}; /* a virtual disk; it has no model */

    bth_system.fstat = on_a_partition;
    cr_expect_not(bth_disk_is_rotating(file_fd, folder), "nothing is reported");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_below("sys/dev/block/259:3/queue/rotational", cases[i].rotational);
        write_below("sys/dev/block/259:3/device/vendor", cases[i].vendor);
        write_below("sys/dev/block/259:3/device/model", cases[i].model);
        cr_expect_eq(bth_disk_is_rotating(file_fd, folder), cases[i].is_rotating, "%zu", i);
    }
    bth_system.fstat = nowhere;
    cr_expect_not(bth_disk_is_rotating(file_fd, folder));
}
