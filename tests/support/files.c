/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/support.h"
#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <linux/fs.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

void test_give_up(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "test support: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    abort();
}

bool test_is_long(void)
{
    const char *asked = getenv("BERTH_LONG");

    return asked && *asked && strcmp(asked, "0") != 0;
}

char *test_path(const char *folder, const char *name)
{
    char *path;
    if (asprintf(&path, "%s/%s", folder, name) < 0)
        test_give_up("out of memory");
    return path;
}

char *test_folder_new(void)
{
    const char *above = getenv("TMPDIR");
    char *folder = test_path(above && *above ? above : "/tmp", "berth-test-XXXXXX");
    if (!mkdtemp(folder))
        test_give_up("%s: %s", folder, strerror(errno));
    return folder;
}

static int remove_entry(const char *path, const struct stat *about, int kind, struct FTW *place)
{
    (void)about;
    (void)kind;
    (void)place;
    return remove(path);
}

void test_folder_remove(char *folder)
{
    if (nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS) != 0)
        test_give_up("%s: %s", folder, strerror(errno));
    free(folder);
}

size_t test_folder_count(const char *folder)
{
    DIR *entries = opendir(folder);
    if (!entries)
        test_give_up("%s: %s", folder, strerror(errno));
    size_t n = 0;
    for (const struct dirent *entry; (entry = readdir(entries));)
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(entries);
    return n;
}

uint8_t *test_read_file(const char *path, size_t *nbytes)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0)
        test_give_up("%s: %s", path, strerror(errno));
    long size = ftell(file);
    rewind(file);
    uint8_t *bytes = size < 0 ? NULL : malloc((size_t)size + 1);
    if (!bytes || fread(bytes, 1, (size_t)size, file) != (size_t)size)
        test_give_up("%s: could not be read", path);
    fclose(file);
    bytes[size] = 0;
    *nbytes = (size_t)size;
    return bytes;
}

void test_write_file(const char *path, const void *bytes, size_t nbytes)
{
    FILE *file = fopen(path, "wb");
    if (!file)
        test_give_up("%s: %s", path, strerror(errno));
    if (fwrite(bytes, 1, nbytes, file) != nbytes || fclose(file) != 0)
        test_give_up("%s: could not be written", path);
}

bool test_file_holds(const char *path, const void *bytes, size_t nbytes)
{
    size_t n;
    uint8_t *file = test_read_file(path, &n);
    bool same = n == nbytes && memcmp(file, bytes, n) == 0;

    free(file);
    return same;
}

int test_clone_by_copying(int fd, unsigned long request, void *argument)
{
    const struct file_clone_range *range = argument;
    uint8_t block[4096];

    if (request != FICLONERANGE)
        return ioctl(fd, request, argument);
    for (uint64_t at = 0; at < range->src_length; at += sizeof block)
        if (pread((int)range->src_fd, block, sizeof block, (off_t)(range->src_offset + at)) !=
                sizeof block ||
            pwrite(fd, block, sizeof block, (off_t)(range->dest_offset + at)) != sizeof block) {
            errno = EINVAL;
            return -1;
        }
    return 0;
}
