/* SPDX-License-Identifier: BSD-3-Clause */
/* A file that appears whole or not at all, for what is no checkpoint. */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/command.h"

/* A symbolic link is followed: what it points to is replaced, not the link. */
static char *resolve(const char *path)
{
    char *real = realpath(path, NULL);

    return real ? real : strdup(path);
}

/* The mode of the file to be replaced, else what the umask leaves of 0666. */
static void keep_mode(const outfile *file)
{
    struct stat old;

    if (stat(file->path, &old) == 0 && fchmod(file->fd, old.st_mode & 07777) != 0)
        trouble("%s: its mode could not be kept: %s", file->path, strerror(errno));
}

int outfile_open(outfile *file, const char *path)
{
    struct stat status;

    *file = (outfile){.fd = -1, .path = resolve(path)};
    if (!file->path)
        return trouble("out of memory");
    if (stat(file->path, &status) == 0 && !S_ISREG(status.st_mode))
        return trouble("%s: not a regular file", path);
    for (unsigned i = 0; i < 100; i++) {
        free(file->temporary);
        if (asprintf(&file->temporary, "%s.%ld-%u.tmp", file->path, (long)getpid(), i) < 0) {
            file->temporary = NULL;
            return trouble("out of memory");
        }
        file->fd =
            open(file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (file->fd >= 0 || errno != EEXIST)
            break;
    }
    if (file->fd < 0)
        return trouble("%s: %s", path, strerror(errno));
    keep_mode(file);
    return 0;
}

int outfile_reserve(outfile *file, uint64_t nbytes)
{
    bool unlikely = nbytes > INT64_MAX;

    if (unlikely)
        errno = EFBIG;
    if (unlikely ||
        (nbytes > 0 && fallocate(file->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)nbytes) != 0 &&
         errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL))
        return trouble("%s: %llu bytes are needed: %s", file->path, (unsigned long long)nbytes,
                       strerror(errno));
    return 0;
}

int outfile_write(outfile *file, const void *bytes, size_t nbytes)
{
    const char *at = bytes;

    while (nbytes) {
        ssize_t n = write(file->fd, at, nbytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return trouble("%s: %s", file->path, strerror(errno));
        at += n;
        nbytes -= (size_t)n;
        file->nbytes += (uint64_t)n;
        file->n_requests++;
    }
    return 0;
}

static int sync_folder(const outfile *file)
{
    char *copy = strdup(file->path);
    int fd = copy ? open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    int failed = fd < 0 || (fsync(fd) != 0 && errno != EINVAL);

    if (failed)
        trouble("%s: in place, but not known to be durable: %s", file->path, strerror(errno));
    if (fd >= 0)
        close(fd);
    free(copy);
    return failed ? EXIT_TROUBLE : 0;
}

int outfile_commit(outfile *file)
{
    int fd = file->fd;

    if (fsync(fd) != 0)
        return trouble("%s: %s", file->path, strerror(errno));
    if (signal_code(0))
        return cancelled(file->path);
    file->fd = -1;
    if (close(fd) != 0 || rename(file->temporary, file->path) != 0) {
        trouble("%s: %s", file->path, strerror(errno));
        unlink(file->temporary);
        return EXIT_TROUBLE;
    }
    free(file->temporary);
    file->temporary = NULL;
    return sync_folder(file);
}

void outfile_close(outfile *file)
{
    if (file->fd >= 0) {
        close(file->fd);
        unlink(file->temporary);
    }
    free(file->temporary);
    free(file->path);
}
