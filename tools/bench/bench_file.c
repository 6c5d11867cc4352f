/* SPDX-License-Identifier: BSD-3-Clause */
/* The files of benchmarks: where they are made, and how much of each is in the page cache. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters/curl/berth_curl.h"
#include "tools/bench/bench.h"
#include "tools/common/inputs.h"
#include "tools/common/options.h"
#include "tools/common/progress.h"
#include "tools/common/report.h"

int bench_check_file(const positional *words)
{
    const char *path = words->n ? words->words[0] : NULL;

    if (path && berth_is_url(path))
        return print_trouble("%s: berth bench needs a file: `berth copy` brings it here", path);
    return path ? check_is_one_file(path) : 0;
}

int bench_folder_make(bench_folder *folder)
{
    strcpy(folder->folder, "berth-bench-XXXXXX");
    if (!mkdtemp(folder->folder)) {
        int code = errno;
        folder->folder[0] = '\0';
        return print_trouble("cannot make a folder in the current one: %s", strerror(code));
    }
    snprintf(folder->path, sizeof folder->path, "%s/bench.pt", folder->folder);
    return 0;
}

int bench_folder_remove(const bench_folder *folder)
{
    if (!folder->folder[0])
        return 0;
    if (unlink(folder->path) != 0 && errno != ENOENT)
        return print_trouble("%s could not be removed: %s", folder->path, strerror(errno));
    if (rmdir(folder->folder) != 0)
        return print_trouble("%s could not be removed: %s", folder->folder, strerror(errno));
    return 0;
}

static int file_evict(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return print_trouble("%s: %s", path, strerror(errno));
    /* The kernel evicts only clean pages. The caller counts the pages that stay. */
    int code = fdatasync(fd) != 0 && errno != EINVAL && errno != EROFS ? errno : 0;
    if (!code)
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    return code ? print_trouble("%s: %s", path, strerror(code)) : 0;
}

/* Stops on a signal. */
static int file_warm(const char *path)
{
    enum { AT_ONCE = 4 << 20 };
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *buffer = malloc(AT_ONCE);
    int code = 0;
    ssize_t n = 1;

    if (fd < 0)
        code = print_trouble("%s: %s", path, strerror(errno));
    else if (!buffer)
        code = print_trouble("out of memory");
    while (!code && n > 0 && !caught_signal_code_or(0)) {
        n = read(fd, buffer, AT_ONCE);
        if (n < 0 && errno != EINTR)
            code = print_trouble("%s: %s", path, strerror(errno));
    }
    free(buffer);
    if (fd >= 0)
        close(fd);
    return code;
}

/* The part of a mapped range that is in the page cache; -1: unknown. */
static double map_cached_part(void *map, size_t nbytes, size_t page_nbytes)
{
    enum { AT_ONCE = 1 << 16 };
    static unsigned char present[AT_ONCE];
    size_t n_pages = (nbytes + page_nbytes - 1) / page_nbytes, found = 0;

    for (size_t first = 0; first < n_pages; first += AT_ONCE) {
        size_t n = n_pages - first < AT_ONCE ? n_pages - first : AT_ONCE;
        if (mincore((char *)map + first * page_nbytes, n * page_nbytes, present) != 0)
            return -1;
        for (size_t i = 0; i < n; i++)
            found += present[i] & 1;
    }
    return (double)found / (double)n_pages;
}

/* The part of a file that is in the page cache, 0 to 1; -1: unknown. */
static double file_cached_part(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    double part = -1;

    /* If the caller neither owns the file nor may write it, mincore reports all pages. */
    if (fd >= 0 && fstat(fd, &status) == 0 && status.st_size > 0 &&
        (status.st_uid == geteuid() || access(path, W_OK) == 0)) {
        size_t nbytes = (size_t)status.st_size;
        void *map = mmap(NULL, nbytes, PROT_READ, MAP_SHARED, fd, 0);
        if (map != MAP_FAILED) {
            part = map_cached_part(map, nbytes, (size_t)sysconf(_SC_PAGESIZE));
            munmap(map, nbytes);
        }
    }
    if (fd >= 0)
        close(fd);
    return part;
}

int bench_cache_set_and_measure(bench_cache *cache, const char *path)
{
    int code = cache->is_cold ? file_evict(path) : file_warm(path);

    cache->before = file_cached_part(path);
    return code;
}

bool bench_cache_was_cold(const bench_cache *cache)
{
    return cache->is_cold && cache->before >= 0 && cache->before <= 0.01;
}

json_t *bench_cache_part_json(const bench_cache *cache)
{
    return cache->before < 0 ? json_null() : json_real(cache->before);
}
