/* SPDX-License-Identifier: BSD-3-Clause */
/* A file that appears whole or not at all, for what is no checkpoint. */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/command.h"

/* What a link says, from the folder that the link is in. NULL: no memory, or errno. */
static char *read_link(const char *link)
{
    const char *slash = strrchr(link, '/');
    char target[PATH_MAX], *path = NULL;
    ssize_t n = readlink(link, target, sizeof target - 1);

    if (n < 0)
        return NULL;
    target[n] = '\0';
    int folder_nbytes = slash && target[0] != '/' ? (int)(slash - link) + 1 : 0;
    return asprintf(&path, "%.*s%s", folder_nbytes, link, target) < 0 ? NULL : path;
}

/*
 * F4: a symbolic link is followed: what it points to is replaced, not the link, also where there is
 * nothing yet. NULL: errno tells why not.
 */
static char *resolve(const char *path)
{
    enum { MOST_LINKS = 40 };
    char *at = strdup(path);
    struct stat status;

    for (int i = 0; at && lstat(at, &status) == 0 && S_ISLNK(status.st_mode); i++) {
        char *next = i < MOST_LINKS ? read_link(at) : NULL;
        int failure = i < MOST_LINKS ? errno : ELOOP;
        free(at);
        at = next;
        errno = failure;
    }
    return at;
}

/* F4: the name that saves give their temporaries, so that the next one removes a leftover. */
static char *temporary_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    unsigned long long random;
    char *name = NULL;

    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random ||
        asprintf(&name, "%.*s.berth-%016llx.tmp", slash ? (int)(slash - path) + 1 : 0, path,
                 random) < 0)
        return NULL;
    return name;
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
        return trouble("%s: the link cannot be followed: %s", path, strerror(errno));
    if (stat(file->path, &status) == 0 && !S_ISREG(status.st_mode))
        return trouble("%s: not a regular file", path);
    if (access(file->path, W_OK) != 0 && errno != ENOENT)
        return trouble("%s: cannot be replaced: %s", path, strerror(errno));
    file->temporary = temporary_name(file->path);
    if (!file->temporary)
        return trouble("%s: no name for a temporary file: %s", path, strerror(errno));
    file->fd = open(file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (file->fd < 0)
        return trouble("%s: no temporary file can be created in its folder: %s", path,
                       strerror(errno));
    (void)flock(file->fd, LOCK_EX | LOCK_NB); /* or a save takes it for a leftover */
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
    if (rename(file->temporary, file->path) != 0)
        return trouble("%s: %s", file->path, strerror(errno));
    file->fd = -1;
    close(fd); /* what could fail here was told by fsync */
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
